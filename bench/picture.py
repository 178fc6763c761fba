"""`python -m bench.picture FILE`: the report of a synthetic past of 5,000 groups, as a browser shows it, into a PNG."""

import argparse
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from playwright.sync_api import sync_playwright

from bench.command import run, say
from bench.past import write_past
from group_hygiene.errors import HygieneError
from group_hygiene.pipeline.activity.survey import survey
from group_hygiene.pipeline.backtest.suggest import with_suggestions
from group_hygiene.pipeline.session import Options, spark_session
from group_hygiene.report.page import render
from sandbox import browser
from sandbox.spark.jars import jars

_GROUPS, _DAYS = 5_000, 90
# What the synthetic past is: nothing in it expires before.
_RETENTION = timedelta(days=120)
_SIZE = {"width": 1200, "height": 1500}


def main() -> int:
    """Run the command line; answers with the exit code."""
    parser = argparse.ArgumentParser("python -m bench.picture", description=__doc__)
    parser.add_argument("file", type=Path, help="the PNG")
    file = parser.parse_args().file
    return run(lambda: _draw(file), HygieneError)


def _draw(file: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kafka-group-hygiene-bench-") as folder:
        page = Path(folder, "report.html")
        say(f"writing a past of {_GROUPS:,} groups and {_DAYS} days")
        with spark_session(Options(master="local[*]", jars=jars(), log=Path(folder, "spark.log"))) as spark:
            warehouse = f"{folder}/warehouse"
            write_past(spark, warehouse, _GROUPS, _DAYS)
            findings = with_suggestions(spark, warehouse, survey(spark, warehouse, _RETENTION), say)
        page.write_text(render(findings), "utf-8")
        with sync_playwright() as playwright:
            program = str(browser.find())
            chromium = playwright.chromium.launch(executable_path=program, args=browser.arguments())
            shown = chromium.new_page(viewport=_SIZE)  # type: ignore[arg-type]
            shown.goto(page.as_uri())
            shown.screenshot(path=file)
            chromium.close()
    say(f"{file}: {file.stat().st_size / 1024:,.0f} KiB")


if __name__ == "__main__":
    sys.exit(main())
