"""The commands of the Spark pipeline: arguments, options and help. Spark is imported when one of them runs."""

from __future__ import annotations

import signal
from typing import Any

import click

from group_hygiene.cli.options import ChosenCluster, connection_file_option, duration, target_options, with_options
from group_hygiene.cli.spark_options import needs_spark, progress_printer, spark_options


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
        from group_hygiene.pipeline.maintain import Retention
        from group_hygiene.pipeline.session import Options
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
