"""`report`: what lives in the cluster, as one HTML file. Found out in `pipeline`, drawn in `report`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from group_hygiene.cli.output import note
from group_hygiene.cli.spark_options import needs_spark, teller
from group_hygiene.errors import UsageError


def report(given: Mapping[str, Any]) -> int:
    """Write the report. given: the options, by their names.

    Raises PipelineError for tables that can tell nothing, UsageError for a file that can't be written.
    """
    with needs_spark():
        from group_hygiene.pipeline import jobs
        from group_hygiene.pipeline.activity.survey import survey
        from group_hygiene.pipeline.backtest.suggest import with_suggestions
        from group_hygiene.pipeline.session import Options
        from group_hygiene.report.page import render
    file = _writable(given["file"])
    warehouse, tell = jobs.warehouse_uri(given["warehouse"]), teller()

    def work(spark: Any) -> Any:
        tell("report: looking at the groups as they are")
        findings = survey(spark, warehouse, given["offsets_retention"])
        tell(f"report: {findings.groups:,} groups; trying policies on their past")
        return with_suggestions(spark, warehouse, findings, tell)

    findings = jobs.once(Options(**given["spark"]), work, tell)
    _write(file, render(findings))
    tell(f"report: {file}, {file.stat().st_size / 1024:,.0f} KiB")
    for text in findings.notes:
        note(text)
    return 0


def _writable(named: Path) -> Path:
    """Before minutes of work: the folder is there, and a file can be made in it. A link is followed, not replaced."""
    try:
        if named.is_dir():
            raise UsageError(f"{named} is a folder: name a file in it, as -o {named / 'report.html'}")
        file = named.resolve()
        if file.exists() and not file.is_file():
            raise UsageError(f"{named} is no file that a report could take the place of: name another one")
        if not file.parent.is_dir():
            raise UsageError(f"there is no folder {file.parent} to write {file.name} into")
        with tempfile.TemporaryFile(dir=file.parent):
            return file
    except (OSError, RuntimeError) as error:
        # The latter: links that lead to each other.
        raise UsageError(f"{named} can't be written: {getattr(error, 'strerror', None) or error}") from error


def _write(file: Path, text: str) -> None:
    """All of it or nothing: who opens it meanwhile sees the one before."""
    made: Path | None = None
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as opened:
            made = Path(opened.name)
            opened.write(text)
        made.chmod(0o644)
        made.replace(file)
    except OSError as error:
        if made is not None:
            made.unlink(missing_ok=True)
        raise UsageError(f"{file} can't be written: {error.strerror}") from error
