"""The command `report`: its options and help, and the files that it writes.

`pipeline` collects the data, `report` renders it; both are imported when it runs.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Any

import click

from group_hygiene.cli.options import YAML_FILE, duration
from group_hygiene.cli.output import note
from group_hygiene.cli.spark_options import needs_spark, progress_printer, spark_options
from group_hygiene.errors import UsageError
from group_hygiene.spec.connection import NO_OWNERS

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


@click.command()
@click.option(
    "--output-file", "file", type=click.Path(path_type=Path), metavar="FILE", required=True, help="The HTML file."
)
@click.option(
    "--offsets-retention",
    type=duration,
    metavar="DURATION",
    default="7d",
    show_default=True,
    help="offsets.retention.minutes of the brokers, to calculate when offsets expire.",
)
@click.option(
    "--connection-file",
    type=YAML_FILE,
    metavar="FILE",
    help="YAML file with a KafkaConnection; the report shows its owners of groups.",
)
@click.option(
    "--since",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="JSON file of an earlier report; the new one shows what changed since then.  [default: the last 7 days]",
)
@spark_options
def report(**given: Any) -> int:
    """Write a report on all groups: an HTML file that loads nothing, a CSV file and a JSON file of the same name.

    Reads only the tables of `group-hygiene pipeline`: no Kafka, no Kubernetes. The report shows what idle groups cost,
    and policies that the command has tried on the past; groups by pattern of names, owner and program; offsets that
    expire within a week, and topics that groups in use no longer read. The CSV file lists all groups. With the JSON
    file, a later report shows what changed.

    \b
    Examples:
      group-hygiene report --warehouse /data/hygiene --output-file report.html
      group-hygiene report --warehouse s3a://bucket/hygiene --offsets-retention 30d --output-file report.html
      group-hygiene report --warehouse /data/hygiene --connection-file connection.yaml --output-file report.html
      group-hygiene report --warehouse /data/hygiene --since report.json --output-file report.html

    Exit codes: 0 written, 1 an error.
    """
    with needs_spark():
        from group_hygiene.pipeline import jobs
        from group_hygiene.pipeline.backtest.suggest import with_suggestions
        from group_hygiene.pipeline.session import Options
        from group_hygiene.pipeline.survey import survey
        from group_hygiene.report import comparison
        from group_hygiene.report.page import render
    from group_hygiene.cli.target import read_connection_file

    file = _writable(given["file"])
    numbers, listing = _writable(file.with_suffix(".json")), _writable(file.with_suffix(".csv"))
    if file in (numbers, listing):
        raise UsageError(f"{file} is the name of a file beside the page: name it as --output-file {file.stem}.html")
    before = None
    if given["since"] is not None:
        # Before it is replaced: it may be that of the same page.
        before = comparison.decode(given["since"].read_bytes(), str(given["since"]))
    connection = read_connection_file(given["connection_file"])
    owners = NO_OWNERS if connection is None else connection.owners
    warehouse, progress = jobs.warehouse_uri(given["warehouse"]), progress_printer()

    def work(spark: Any) -> Any:
        progress("report: reading the current groups")
        since = None if before is None else before.read_at
        findings = survey(spark, warehouse, given["offsets_retention"], owners, since)
        if before is not None and before.cluster_id != findings.cluster_id:
            raise UsageError(f"{given['since']} is of another cluster, {before.cluster_id!r}")
        progress(f"report: {findings.groups:,} groups; trying policies on their past")
        return with_suggestions(spark, warehouse, findings, progress)

    findings = jobs.once(Options(**given["spark"]), work, progress)
    _write(listing, findings.listing)
    _write(file, render(findings, listing.name, before).encode())
    _write(numbers, comparison.encode(findings).encode())
    progress(f"report: {file}, {file.stat().st_size / 1024:,.0f} KiB; {listing.name} and {numbers.name} beside it")
    for text in findings.notes:
        note(text)
    return 0


def _writable(named: Path) -> Path:
    """Check, before minutes of work, that the file can be created in its folder. A link is followed, not replaced."""
    try:
        if named.is_dir():
            raise UsageError(f"{named} is a folder: name a file in it, as --output-file {named / 'report.html'}")
        file = named.resolve()
        if file.exists() and not file.is_file():
            raise UsageError(f"{named} is not a regular file: name another one")
        if not file.parent.is_dir():
            raise UsageError(f"there is no folder {file.parent} for {file.name}")
        with tempfile.TemporaryFile(dir=file.parent):
            return file
    except (OSError, RuntimeError) as error:
        # RuntimeError: links that refer to each other.
        raise UsageError(f"{named} can't be written: {getattr(error, 'strerror', None) or error}") from error


def _write(file: Path, content: bytes) -> None:
    """Replace the file atomically: readers see the old one until the new one is complete.

    It keeps its mode; a new one has what the umask leaves.
    """
    temporary = file.parent / f".report-{secrets.token_hex(8)}"
    try:
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else None
        with open(os.open(temporary, _NEW, 0o666 if mode is None else 0o600), "wb") as opened:
            if mode is not None:
                os.fchmod(opened.fileno(), mode)
            opened.write(content)
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"{file} can't be written: {error.strerror}") from error
