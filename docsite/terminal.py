"""`python -m docsite.terminal FILE`: what kubectl shows in the tutorial, as a terminal would, into a PNG.

The commands and their output are those of docs/tutorial.md, which a test holds against real servers.
"""

import argparse
from collections.abc import Iterable
from html import escape
from pathlib import Path

from playwright.sync_api import sync_playwright

from docsite.transcript import Step, steps
from sandbox import browser

_TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
# Those that tell the story: what would go, the word that counts, who said no, what went and what came back.
_SHOWN = ("kubectl get k", "kubectl patch", "group-hygiene keep", "group-hygiene history")
_STYLE = """
  body { margin: 0; background: transparent; }
  main { display: inline-block; padding: 20px 26px; border-radius: 10px; background: #14191f; color: #d9e2e1;
         font: 14px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; }
  b { color: #7fd0c5; font-weight: 600; }
  i { color: #93a7a4; font-style: normal; }
"""


def main() -> None:
    parser = argparse.ArgumentParser("python -m docsite.terminal", description=__doc__)
    parser.add_argument("file", type=Path, help="the PNG")
    file = parser.parse_args().file
    session = "\n\n".join(_html(step) for step in steps(_TUTORIAL.read_text()) if _is_shown(step))
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(browser.find()), args=browser.arguments())
        shown = chromium.new_page(viewport={"width": 1600, "height": 900}, device_scale_factor=1.5)
        shown.set_content(f"<style>{_STYLE}</style><main>{session}</main>")
        shown.locator("main").screenshot(path=file, omit_background=True)
        chromium.close()


def _is_shown(step: Step) -> bool:
    return step.command.startswith(_SHOWN) and "jsonpath" not in step.command


def _html(step: Step) -> str:
    return "\n".join([f"<i>$</i> <b>{escape(step.command)}</b>", *_lines(step.output)])


def _lines(output: Iterable[str]) -> Iterable[str]:
    """Titles of tables less bright than what is in them."""
    for line in output:
        text = escape(line)
        yield f"<i>{text}</i>" if line.isupper() else text


if __name__ == "__main__":
    main()
