"""The commands `pipeline` and `report`, and the options of all commands that start Spark. `backtests` has `backtest`.

`pipeline` collects the data, `report` renders it; both, and Spark, are imported when a command runs.
"""

from __future__ import annotations

import os
import secrets
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from group_hygiene.cli.options import (
    YAML_FILE,
    ChosenCluster,
    connection_file_option,
    duration,
    size,
    target_options,
    with_arguments,
    with_options,
)
from group_hygiene.cli.output import note
from group_hygiene.errors import UsageError
from group_hygiene.spec.connection import NO_OWNERS


def _group(given: dict[str, Any]) -> None:
    spark = {name: given.pop(name) for name in ("master", "jars", "memory", "log", "ui_port")}
    given["spark"] = spark | {"log": spark["log"] or _log_file()}


# Of all Spark jobs; the command gets them as `warehouse` and `spark`, for jobs.Options.
spark_options = with_options(
    click.option(
        "--warehouse",
        metavar="URI",
        required=True,
        help="Folder of the Delta tables of this Kafka cluster: a local one, or s3a://, abfss:// or gs://.",
    ),
    click.option(
        "--master",
        metavar="URL",
        help="Spark master.  [default: that of spark-submit, else local[*], all cores of this machine]",
    ),
    click.option(
        "--jars",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        envvar="GROUP_HYGIENE_SPARK_JARS",
        show_envvar=True,
        help="Folder with Delta's jars. Without it, Spark downloads them from Maven Central.",
    ),
    click.option(
        "--memory",
        type=size,
        metavar="SIZE",
        default="2g",
        show_default=True,
        help="Memory of Spark's Java process: 4g, 800m.",
    ),
    click.option(
        "--log-file",
        "log",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File for Spark's own log.  [default: group-hygiene-spark-<uid>.log in the folder of temporary files]",
    ),
    click.option("--ui-port", type=click.IntRange(1, 65535), help="Port of Spark's web UI.  [default: no web UI]"),
    with_arguments(_group),
)


@contextmanager
def needs_spark() -> Iterator[None]:
    """For imports of modules that need Spark: raises UsageError if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "group_hygiene":
            raise
        raise UsageError(
            f'this needs Spark ({error.name} is missing): pip install "kafka-group-hygiene[pipeline]"'
        ) from error


def progress_printer() -> Callable[[str], None]:
    """A function that prints a line of progress on stderr, with the seconds since this call."""
    started = time.monotonic()

    def report(line: str) -> None:
        click.echo(f"{time.monotonic() - started:6.1f}s  {line}", err=True)
        sys.stderr.flush()

    return report


def _log_file() -> Path:
    """The default log file. Creates it, readable only by its owner.

    Its name is predictable: raises UsageError if another user has put a link, a pipe or a file there.
    """
    path = Path(tempfile.gettempdir(), f"group-hygiene-spark-{os.getuid()}.log")
    try:
        # Without O_NONBLOCK, open() of a pipe would wait for a reader.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise UsageError(f"{path} can't be written ({error.strerror}): name another file with --log-file") from error
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_nlink != 1:
            raise UsageError(f"{path} is not a regular file that only you own: name another one with --log-file")
        os.fchmod(file, 0o600)
    finally:
        os.close(file)
    return path


@click.group()
def pipeline() -> None:
    """Read Kafka's offsets log with Spark. Records when each group was last in use.

    Policies with `idleFor` or `expiresWithin` use its tables. It writes nothing to Kafka and joins no group.

    \b
    Examples:
      group-hygiene pipeline run --bootstrap-server kafka:9092 --warehouse /data/hygiene
      group-hygiene pipeline ingest --command-config client.properties --warehouse s3a://bucket/hygiene
      group-hygiene pipeline maintain --warehouse /data/hygiene

    Exit codes: 0 done, 1 an error.
    """


# Of a job that reads Kafka.
_read_options = with_options(
    connection_file_option,
    click.option(
        "--continuous/--once",
        default=False,
        help="Run until a signal, or end after all of the log is read (default).",
    ),
    click.option(
        "--every",
        type=duration,
        metavar="DURATION",
        default="30s",
        show_default=True,
        help="With --continuous: time between two reads.",
    ),
    click.option(
        "--start-over",
        is_flag=True,
        help="Continue although the log was recreated or lost unread records. History is not deleted.",
    ),
    click.option(
        "--no-client-hosts",
        is_flag=True,
        help="Store no hosts of clients, nor values of malformed records, which may hold some. Tables retain "
        "hosts of earlier runs.",
    ),
)


_period: dict[str, Any] = {"type": duration, "metavar": "DURATION", "show_default": True}
_commits_option = click.option(
    "--keep-every-commit",
    **_period,
    default="14d",
    help="Retention of every commit; of older ones, the first and the last of a day stay.",
)
_history_option = click.option(
    "--keep-history",
    **_period,
    default="90d",
    help="Retention of commits, group records, and groups that are gone: 90d, 720h.",
)


@pipeline.command()
@_history_option
@_read_options
@spark_options
@target_options
def ingest(target: ChosenCluster, **given: Any) -> int:
    """Read new records of the offsets log into the tables.

    \b
    Examples:
      group-hygiene pipeline ingest --bootstrap-server kafka:9092 --warehouse /data/hygiene
      group-hygiene pipeline ingest --command-config client.properties --warehouse /data/hygiene --continuous

    Exit codes: 0 all of the log is in the tables, 1 an error; the next run continues at the same place.
    """
    return _run(("ingest",), target, given)


@pipeline.command()
@_history_option
@_commits_option
@spark_options
def maintain(**given: Any) -> int:
    """Compact and clean up the tables. Removes history and files older than the retention. Needs no Kafka.

    \b
    Example:
      group-hygiene pipeline maintain --warehouse /data/hygiene --keep-history 90d

    Exit codes: 0 done, 1 an error.
    """
    return _run(("maintain",), None, given)


@pipeline.command()
@_history_option
@_commits_option
@_read_options
@spark_options
@target_options
def run(target: ChosenCluster, **given: Any) -> int:
    """Run ingest and, once a day, maintain in one session.

    \b
    Examples:
      group-hygiene pipeline run --bootstrap-server kafka:9092 --warehouse /data/hygiene
      group-hygiene pipeline run --connection main -n kafka --warehouse s3a://bucket/hygiene --continuous --every 5m

    Exit codes: 0 done, or stopped by a signal, 1 an error.
    """
    return _run(("ingest", "maintain"), target, given)


def _run(names: tuple[str, ...], target: ChosenCluster | None, given: dict[str, Any]) -> int:
    with needs_spark():
        from group_hygiene.pipeline import jobs
        from group_hygiene.pipeline.jobs import Options, Retention
    periods = {"history": "keep_history", "commits": "keep_every_commit"}
    work = jobs.Work(
        jobs=[jobs.Job(name) for name in names],
        warehouse=jobs.warehouse_uri(given["warehouse"]),
        retention=Retention(**{field: given[name] for field, name in periods.items() if name in given}),
        start_over=given.get("start_over", False),
        every=given["every"] if given.get("continuous") else None,
        hosts=not given.get("no_client_hosts", False),
    )
    options = Options(**given["spark"])
    if target is None:
        jobs.run(options, None, work, progress_printer())
        return 0
    from group_hygiene.cli.target import open_session, read_connection_file

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with open_session(target, read_connection_file(given["connection_file"])) as session:
            jobs.run(options, session.client, work, progress_printer())
    except KeyboardInterrupt:
        if work.every is None:
            raise
    return 0


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


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
        from group_hygiene.pipeline.backtest.run import with_suggestions
        from group_hygiene.pipeline.jobs import Options
        from group_hygiene.pipeline.survey import survey
        from group_hygiene.report.findings import decode, encode
        from group_hygiene.report.page import render
    from group_hygiene.cli.target import read_connection_file

    file = _writable(given["file"])
    numbers, listing = _writable(file.with_suffix(".json")), _writable(file.with_suffix(".csv"))
    if file in (numbers, listing):
        raise UsageError(f"{file} is the name of a file beside the page: name it as --output-file {file.stem}.html")
    before = None
    if given["since"] is not None:
        # Before it is replaced: it may be that of the same page.
        before = decode(given["since"].read_bytes(), str(given["since"]))
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
    _write(numbers, encode(findings).encode())
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
