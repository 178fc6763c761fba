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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from group_hygiene.cli.options import (
    YAML_FILE,
    ChosenCluster,
    as_record,
    connection_file_option,
    duration,
    option,
    shared,
    size,
    target_options,
)
from group_hygiene.cli.output import note
from group_hygiene.errors import UsageError
from group_hygiene.spec.connection import NO_OWNERS

if TYPE_CHECKING:
    from group_hygiene.pipeline.jobs import Options

_period: dict[str, Any] = {"type": duration, "metavar": "DURATION", "show_default": True}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Options of the commands that start Spark."""

    warehouse: str = option(
        "--warehouse",
        metavar="URI",
        required=True,
        help="Folder of the Delta tables of this Kafka cluster: a local one, or s3a://, abfss:// or gs://.",
    )
    master: str | None = option(
        "--master",
        metavar="URL",
        help="Spark master.  [default: that of spark-submit, else local[*], all cores of this machine]",
    )
    jars: Path | None = option(
        "--jars",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        envvar="GROUP_HYGIENE_SPARK_JARS",
        show_envvar=True,
        help="Folder with Delta's jars. Without it, Spark downloads them from Maven Central.",
    )
    memory: str = option(
        "--memory",
        type=size,
        metavar="SIZE",
        default="2g",
        show_default=True,
        help="Memory of Spark's Java process: 4g, 800m.",
    )
    log: Path = option(
        "--log-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File for Spark's own log.  [default: group-hygiene-spark-<uid>.log in the folder of temporary files]",
    )
    ui_port: int | None = option(
        "--ui-port", type=click.IntRange(1, 65535), help="Port of Spark's web UI.  [default: no web UI]"
    )

    def session(self) -> Options:
        """For `jobs`."""
        from group_hygiene.pipeline.jobs import Options

        return Options(self.master, self.jars, self.memory, self.log, self.ui_port)


def _with_log(given: dict[str, Any], _: object) -> SparkOptions:
    return SparkOptions(**given | {"log": given["log"] or _log_file()})


# A command gets them as `spark`.
spark_options = as_record("spark", SparkOptions, _with_log)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a job that reads Kafka."""

    connection_file: str | None = shared(connection_file_option)
    continuous: bool = option(
        "--continuous/--once",
        default=False,
        or_else=False,
        help="Run until a signal, or end after all of the log is read (default).",
    )
    every: timedelta = option(
        "--every",
        type=duration,
        metavar="DURATION",
        default="30s",
        show_default=True,
        help="With --continuous: time between two reads.",
    )
    start_over: bool = option(
        "--start-over",
        is_flag=True,
        or_else=False,
        help="Continue although the log was recreated or lost unread records. History is not deleted.",
    )
    no_client_hosts: bool = option(
        "--no-client-hosts",
        is_flag=True,
        or_else=False,
        help="Store no hosts of clients, nor values of malformed records, which may hold some. Tables retain "
        "hosts of earlier runs.",
    )


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
@as_record("reading", ReadOptions)
@spark_options
@target_options
def ingest(target: ChosenCluster, spark: SparkOptions, keep_history: timedelta, reading: ReadOptions) -> int:
    """Read new records of the offsets log into the tables.

    \b
    Examples:
      group-hygiene pipeline ingest --bootstrap-server kafka:9092 --warehouse /data/hygiene
      group-hygiene pipeline ingest --command-config client.properties --warehouse /data/hygiene --continuous

    Exit codes: 0 all of the log is in the tables, 1 an error; the next run continues at the same place.
    """
    return _run(("ingest",), spark, {"history": keep_history}, reading, target)


@pipeline.command()
@_history_option
@_commits_option
@spark_options
def maintain(spark: SparkOptions, keep_history: timedelta, keep_every_commit: timedelta) -> int:
    """Compact and clean up the tables. Removes history and files older than the retention. Needs no Kafka.

    \b
    Example:
      group-hygiene pipeline maintain --warehouse /data/hygiene --keep-history 90d

    Exit codes: 0 done, 1 an error.
    """
    return _run(("maintain",), spark, {"history": keep_history, "commits": keep_every_commit})


@pipeline.command()
@_history_option
@_commits_option
@as_record("reading", ReadOptions)
@spark_options
@target_options
def run(
    target: ChosenCluster,
    spark: SparkOptions,
    keep_history: timedelta,
    keep_every_commit: timedelta,
    reading: ReadOptions,
) -> int:
    """Run ingest and, once a day, maintain in one session.

    \b
    Examples:
      group-hygiene pipeline run --bootstrap-server kafka:9092 --warehouse /data/hygiene
      group-hygiene pipeline run --connection main -n kafka --warehouse s3a://bucket/hygiene --continuous --every 5m

    Exit codes: 0 done, or stopped by a signal, 1 an error.
    """
    retention = {"history": keep_history, "commits": keep_every_commit}
    return _run(("ingest", "maintain"), spark, retention, reading, target)


def _run(
    names: Sequence[str],
    spark: SparkOptions,
    retention: Mapping[str, timedelta],
    reading: ReadOptions | None = None,
    target: ChosenCluster | None = None,
) -> int:
    """retention: see jobs.Retention. target: None = no job reads Kafka."""
    with needs_spark():
        from group_hygiene.pipeline import jobs
    reading = reading or ReadOptions()
    work = jobs.Work(
        jobs=[jobs.Job(name) for name in names],
        warehouse=jobs.warehouse_uri(spark.warehouse),
        retention=jobs.Retention(**retention),
        start_over=reading.start_over,
        every=reading.every if reading.continuous else None,
        hosts=not reading.no_client_hosts,
    )
    if target is None:
        jobs.run(spark.session(), None, work, progress_printer())
        return 0
    from group_hygiene.cli.target import open_session, read_connection_file

    # As Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with open_session(target, read_connection_file(reading.connection_file)) as session:
            jobs.run(spark.session(), session.client, work, progress_printer())
    except KeyboardInterrupt:
        if work.every is None:
            raise
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Options of `report`."""

    file: Path = option(
        "--output-file", type=click.Path(path_type=Path), metavar="FILE", required=True, help="The HTML file."
    )
    offsets_retention: timedelta = option(
        "--offsets-retention",
        type=duration,
        metavar="DURATION",
        default="7d",
        show_default=True,
        help="offsets.retention.minutes of the brokers, to calculate when offsets expire.",
    )
    connection_file: str | None = option(
        "--connection-file",
        type=YAML_FILE,
        metavar="FILE",
        help="YAML file with a KafkaConnection; the report shows its owners of groups.",
    )
    since: Path | None = option(
        "--since",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="JSON file of an earlier report; the new one shows what changed since then.  [default: the last 7 days]",
    )
    spark: SparkOptions = shared(spark_options)


@click.command()
@as_record("chosen", ReportOptions)
def report(chosen: ReportOptions) -> int:
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
        from group_hygiene.observe.findings import decode, encode
        from group_hygiene.observe.page import render
        from group_hygiene.pipeline import jobs
        from group_hygiene.pipeline.backtest.run import with_suggestions
        from group_hygiene.pipeline.survey import survey
    from group_hygiene.cli.target import read_connection_file

    file = _writable(chosen.file)
    numbers, listing = _writable(file.with_suffix(".json")), _writable(file.with_suffix(".csv"))
    if file in (numbers, listing):
        raise UsageError(f"{file} is the name of a file beside the page: name it as --output-file {file.stem}.html")
    before = None
    if chosen.since is not None:
        # Before it is replaced: it may be that of the same page.
        before = decode(chosen.since.read_bytes(), str(chosen.since))
    connection = read_connection_file(chosen.connection_file)
    owners, servers = (NO_OWNERS, ()) if connection is None else (connection.owners, connection.bootstrap_servers)
    warehouse, progress = jobs.warehouse_uri(chosen.spark.warehouse), progress_printer()

    def work(spark: Any) -> Any:
        progress("report: reading the current groups")
        since = None if before is None else before.read_at
        findings = survey(spark, warehouse, chosen.offsets_retention, owners, since)
        if before is not None and before.cluster_id != findings.cluster_id:
            raise UsageError(f"{chosen.since} is of another cluster, {before.cluster_id!r}")
        progress(f"report: {findings.groups:,} groups; trying policies on their past")
        return with_suggestions(spark, warehouse, findings, progress)

    findings = jobs.once(chosen.spark.session(), work, progress)
    _write(listing, findings.listing)
    _write(file, render(findings, listing.name, before, warehouse, servers).encode())
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
