"""`python -m testing.bench.picture FOLDER`: the report of a synthetic past of 3,000 groups, in a browser, as PNGs."""

import argparse
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from playwright.sync_api import Page, ViewportSize, sync_playwright

from group_hygiene.errors import HygieneError
from group_hygiene.observe.page import render
from group_hygiene.pipeline.backtest.run import with_suggestions
from group_hygiene.pipeline.jobs import Options, spark_session
from group_hygiene.pipeline.survey import survey
from group_hygiene.spec.connection import GroupOwner, Owners
from group_hygiene.spec.patterns import TenantPatterns
from testing.bench.command import run, say
from testing.bench.past import write_past
from testing.sandbox import browser
from testing.sandbox.spark.jars import jars

_GROUPS, _DAYS = 3_000, 90
# What the synthetic past is: nothing in it expires before.
_RETENTION = timedelta(days=120)
_OWNERS = {
    "platform": ["perf-consumer-*"],
    "payments": ["preview-*-checkout", "nightly-*", "steady-*"],
    "search": ["anonymous.*", "seasonal-*"],
}
# As the docs show them; the first has no suffix.
_SCREENS = {"": (1200, "light"), "-dark": (1200, "dark"), "-830": (830, "light"), "-830-dark": (830, "dark")}
_HEIGHT = 1000


def main() -> int:
    """Run the command line; answers with the exit code."""
    parser = argparse.ArgumentParser("python -m testing.bench.picture", description=__doc__)
    parser.add_argument("folder", type=Path, help="of the PNGs report*.png and report-row*.png")
    folder = parser.parse_args().folder
    return run(lambda: _draw(folder), HygieneError)


def _draw(pictures: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kafka-group-hygiene-bench-") as folder:
        page = Path(folder, "report.html")
        say(f"writing a past of {_GROUPS:,} groups and {_DAYS} days")
        with spark_session(Options(master="local[*]", jars=jars(), log=Path(folder, "spark.log"))) as spark:
            warehouse = f"{folder}/warehouse"
            write_past(spark, warehouse, _GROUPS, _DAYS)
            owners = Owners([GroupOwner(name=name, groups=TenantPatterns(of)) for name, of in _OWNERS.items()])
            findings = survey(spark, warehouse, _RETENTION, owners)
            findings = with_suggestions(spark, warehouse, findings, say)
        page.write_text(render(findings, "report.csv", warehouse="/data/hygiene"), "utf-8")
        _shoot_all(page, pictures)


def _shoot_all(report: Path, pictures: Path) -> None:
    """The first screen, and an opened row, in both widths and schemes."""
    with sync_playwright() as playwright:
        program = str(browser.find())
        chromium = playwright.chromium.launch(executable_path=program, args=browser.arguments())
        for suffix, (width, scheme) in _SCREENS.items():
            size = ViewportSize(width=width, height=_HEIGHT)
            shown = chromium.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
            shown.goto(report.as_uri())
            _shoot(shown, pictures / f"report{suffix}.png")
            shown.locator("button.opener").nth(1).click()
            shown.evaluate("document.getElementById('work').scrollIntoView()")
            _shoot(shown, pictures / f"report-row{suffix}.png")
        chromium.close()


def _shoot(page: Page, file: Path) -> None:
    page.screenshot(path=file)
    say(f"{file}: {file.stat().st_size / 1024:,.0f} KiB")


if __name__ == "__main__":
    sys.exit(main())
