"""`python -m docsite.terminal STORY FILE`: draws commands of the tutorial and their output, as in a terminal, as a PNG.

The commands and their output are those of docs/tutorial.md, which a test compares with real servers.
"""

import argparse
from collections.abc import Iterable
from html import escape
from pathlib import Path

from playwright.sync_api import sync_playwright

from docsite.transcript import Step, steps
from testing.sandbox import browser

_TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
# Beginnings of a story's commands: a policy from dry run to restore; a plan with the reason of each skipped group.
_STORIES = {
    "policy": ("kubectl get k", "kubectl patch", "group-hygiene keep", "group-hygiene history"),
    "plan": ("group-hygiene plan",),
}
# Longer lines are truncated, so that the picture is readable on pages of 830 pixels.
_COLUMNS = {"policy": 200, "plan": 112}
_STYLE = """
  body { margin: 0; background: transparent; }
  main { display: inline-block; padding: 20px 26px; border-radius: 10px; background: #14191f; color: #d9e2e1;
         font: 14px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; }
  b { color: #7fd0c5; font-weight: 600; }
  i { color: #93a7a4; font-style: normal; }
"""


def main() -> None:
    parser = argparse.ArgumentParser("python -m docsite.terminal", description=__doc__)
    parser.add_argument("story", choices=_STORIES)
    parser.add_argument("file", type=Path, help="the PNG")
    given = parser.parse_args()
    shown_steps = (step for step in steps(_TUTORIAL.read_text()) if _is_shown(step, _STORIES[given.story]))
    session = "\n\n".join(_html(step, _COLUMNS[given.story]) for step in shown_steps)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(browser.find()), args=browser.arguments())
        shown = chromium.new_page(viewport={"width": 1600, "height": 900}, device_scale_factor=1.5)
        shown.set_content(f"<style>{_STYLE}</style><main>{session}</main>")
        shown.locator("main").screenshot(path=given.file, omit_background=True)
        chromium.close()


def _is_shown(step: Step, beginnings: tuple[str, ...]) -> bool:
    return step.command.startswith(beginnings) and "jsonpath" not in step.command


def _html(step: Step, columns: int) -> str:
    return "\n".join([f"<i>$</i> <b>{escape(step.command)}</b>", *_lines(step.output, columns)])


def _lines(output: Iterable[str], columns: int) -> Iterable[str]:
    """Titles of tables darker than their rows; truncated lines end with ` ...`."""
    for line in output:
        text = escape(line if len(line) <= columns else f"{line[: columns - 4].rstrip()} ...")
        yield f"<i>{text}</i>" if line.isupper() else text


if __name__ == "__main__":
    main()
