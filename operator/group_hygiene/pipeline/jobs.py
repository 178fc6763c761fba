"""The jobs of one Spark session: ingest, then maintain, once or repeatedly."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from group_hygiene.errors import Halted, PipelineError
from group_hygiene.kafka.client import Client
from group_hygiene.pipeline.ingest.reading import Choices, ingest
from group_hygiene.pipeline.maintain import Retention, maintain
from group_hygiene.pipeline.session import Options, spark_session
from group_hygiene.pipeline.tables import COMMITS, GROUP_STATES, QUARANTINE

T = TypeVar("T")
Report = Callable[[str], None]

# Object stores that both Spark's connectors and delta-rs support.
_STORES = ("s3a", "s3", "abfss", "abfs", "gs")


class Job(StrEnum):
    INGEST = "ingest"
    MAINTAIN = "maintain"


@dataclass(frozen=True, slots=True)
class Work:
    """jobs: the jobs to run. warehouse: a folder or a URI. retention: of its tables.

    start_over: see progress.plan; until a round succeeds.

    every: time between rounds; None = one round only. hosts: whether to store the hosts of clients.
    """

    jobs: Collection[Job]
    warehouse: str
    retention: Retention = field(default_factory=Retention)
    start_over: bool = False
    every: timedelta | None = None
    hosts: bool = True


def run(options: Options, client: Client | None, work: Work, report: Report) -> None:
    """Run the jobs in a new session, repeatedly if `work.every` is set. Only ingest needs a client.

    May be killed at any point: the tables stay consistent. Raises HygieneError.
    """
    once(options, lambda spark: repeat(spark, client, work, report, options.log), report)


def once(options: Options, work: Callable[[SparkSession], T], report: Report) -> T:
    """Run `work` in a new session, and return its result. Raises HygieneError."""
    report("starting Spark")
    with spark_session(options) as spark, _explained(options.log):
        return work(spark)


def repeat(spark: SparkSession, client: Client | None, work: Work, report: Report, log: Path) -> None:
    """Run the rounds in an existing session. log: of the session.

    If further rounds follow, a failure is reported, and the next round retries. Otherwise raises PipelineError, as it
    does if a user must choose how to continue (Halted), or if the session has ended.
    """
    while True:
        try:
            with _explained(log):
                _round(spark, client, work, report)
                work = replace(work, start_over=False)
        except PipelineError as error:
            if work.every is None or isinstance(error, Halted) or not _alive(spark):
                raise
            report(f"failed, will retry: {error}")
        if work.every is None:
            return
        # Java holds what Python's objects refer to, also those in cycles: plans, and tables that were broadcast.
        gc.collect()
        time.sleep(work.every.total_seconds())


def warehouse_uri(text: str) -> str:
    """The URI unchanged, or a local path as an absolute one. Raises PipelineError if it can't hold tables."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        if scheme not in _STORES:
            known = ", ".join(f"{store}://" for store in _STORES)
            raise PipelineError(f"--warehouse {text} is neither a folder nor in an object store ({known})")
        return text.rstrip("/")
    path = Path(unquote(rest) if separator else text).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise PipelineError(f"--warehouse {text} is not a folder")
    if set("%\\") & set(str(path)):
        raise PipelineError(f"--warehouse {text} contains % or \\, which Delta's libraries misinterpret")
    return str(path)


def _round(spark: SparkSession, client: Client | None, work: Work, report: Report) -> None:
    if Job.INGEST in work.jobs and client is not None:
        choices = Choices(work.start_over, work.hosts, work.retention.history)
        written, read_at = ingest(spark, client, work.warehouse, lambda line: report(f"ingest: {line}"), choices)
        upto = "not complete yet" if read_at is None else f"complete as of {read_at:%Y-%m-%d %H:%M:%S} UTC"
        report(
            f"ingest: {written[COMMITS.name]:,} commits ({written['aborted']:,} of aborted transactions), "
            f"{written[GROUP_STATES.name]:,} group records, {written[QUARANTINE.name]:,} malformed ones in quarantine; "
            f"{upto}"
        )
    # With other jobs, once a day is enough.
    every = timedelta(days=1) if len(work.jobs) > 1 else None
    if Job.MAINTAIN in work.jobs and maintain(spark, work.warehouse, work.retention, every):
        report("maintain: done")


def _alive(spark: SparkSession) -> bool:
    """Whether its Java process answers and is not stopped."""
    context: Any = spark.sparkContext
    try:
        return not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


@contextmanager
def _explained(log: Path) -> Iterator[None]:
    """Raise Spark's errors as PipelineError with their first line; the rest is in Spark's log."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error).strip()
        first = text.splitlines()[0] if text else type(error).__name__
        raise PipelineError(f"Spark failed: {first} (details in {log})") from error
