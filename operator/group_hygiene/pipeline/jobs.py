"""What is run in one Spark session: ingest, activity, maintain, in that order, once or again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from group_hygiene.pipeline.activity import update
from group_hygiene.pipeline.ingest import ingest
from group_hygiene.pipeline.maintain import Retention, maintain
from group_hygiene.pipeline.session import Options, spark_session

T = TypeVar("T")
Tell = Callable[[str], None]

# Where Spark's connectors and delta-rs both write.
_STORES = ("s3a", "s3", "abfss", "abfs", "gs")


class Job(StrEnum):
    INGEST = "ingest"
    ACTIVITY = "activity"
    MAINTAIN = "maintain"


@dataclass(frozen=True, slots=True)
class Work:
    """jobs: which of them. warehouse: a folder or a URI. history: how long it is kept; None = the default.

    start_over: see progress.plan; for the first round only.

    every: how long to wait before the next round; None = there is none.
    """

    jobs: Collection[Job]
    warehouse: str
    history: timedelta | None = None
    start_over: bool = False
    every: timedelta | None = None


def run(options: Options, client: Client | None, work: Work, tell: Tell) -> None:
    """Do the work in a session of its own, again and again if so asked. Only ingest needs a client.

    May be killed, or left by an exception, at any point: what is written is whole. Raises HygieneError.
    """
    tell("starting Spark")
    with spark_session(options) as spark:
        repeat(spark, client, work, tell, options.log)


def once(options: Options, work: Callable[[SparkSession], T], tell: Tell) -> T:
    """The answer of some other work, in a session of its own. Raises HygieneError."""
    tell("starting Spark")
    with spark_session(options) as spark, _explained(options.log):
        return work(spark)


def repeat(spark: SparkSession, client: Client | None, work: Work, tell: Tell, log: Path) -> None:
    """The rounds in a session that is there. log: its own.

    Where further rounds follow, one that fails is told and tried again. Raises PipelineError where none follows, where
    a person must say how to go on (Halted), and where the session is gone.
    """
    start_over = work.start_over
    while True:
        try:
            with _explained(log):
                _round(spark, client, work, start_over, tell)
        except PipelineError as error:
            if work.every is None or isinstance(error, Halted) or not _alive(spark):
                raise
            tell(f"failed, and is tried again: {error}")
        if work.every is None:
            return
        start_over = False
        time.sleep(work.every.total_seconds())


def warehouse_uri(text: str) -> str:
    """A URI as it is; a path of this machine as an absolute one. Raises PipelineError where no table can be."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        if scheme not in _STORES:
            known = ", ".join(f"{store}://" for store in _STORES)
            raise PipelineError(f"--warehouse {text} is neither a folder nor in an object store ({known})")
        return text.rstrip("/")
    path = Path(unquote(rest) if separator else text).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise PipelineError(f"--warehouse {text} is no folder")
    if set("%\\") & set(str(path)):
        raise PipelineError(f"--warehouse {text} has a % or \\ in it, which Delta's libraries take for something else")
    return str(path)


def _round(spark: SparkSession, client: Client | None, work: Work, start_over: bool, tell: Tell) -> None:
    if Job.INGEST in work.jobs and client is not None:
        written = ingest(spark, client, work.warehouse, lambda line: tell(f"ingest: {line}"), start_over)
        tell(
            f"ingest: {written.commits:,} commits ({written.aborted:,} of aborted transactions), "
            f"{written.states:,} group records, {written.quarantined:,} broken ones kept aside"
        )
    if Job.ACTIVITY in work.jobs:
        tell(f"activity: {update(spark, work.warehouse)}")
    if Job.MAINTAIN in work.jobs:
        keep = Retention() if work.history is None else Retention(history=work.history)
        # Beside other jobs it comes along with each round, and is worth its time once a day.
        if maintain(spark, work.warehouse, keep, timedelta(days=1) if len(work.jobs) > 1 else None):
            tell("maintain: done")


def _alive(spark: SparkSession) -> bool:
    """Whether its Java process answers and can work."""
    context: Any = spark.sparkContext
    try:
        return not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


@contextmanager
def _explained(log: Path) -> Iterator[None]:
    """What Spark can't do, in a line; the rest is in its log."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error).strip()
        first = text.splitlines()[0] if text else type(error).__name__
        raise PipelineError(f"Spark can't go on: {first} ({log} says more)") from error
