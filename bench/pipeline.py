"""`python -m bench.pipeline`: how long the pipeline takes from the offsets log to the activity tables, and back out.

A real broker gets the commits of many groups, 10 each. Measured in one run, in this order: franz-go reads the log and
looks at nothing; Spark counts its records, read by its own source, the first work of a session; ingest
and activity take in all of it, the first work of another session (so both pay for a Java that is cold); after one
percent of new commits, each of another group, ingest and activity take in those, in that same session; the operator's
own reader asks the tables for 1,000 groups. The start of a session counts for nothing, and is told apart. What each of
them counted must be what was committed.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession

from bench import report
from bench.command import run, say
from bench.errors import BenchError, WrongCount
from bench.load import CONFIG, PARTITIONS, commit_more, load, truncated_list
from bench.programs import KAFKA_VERSION, raw_read
from group_hygiene.errors import HygieneError
from group_hygiene.evidence.reader import Reading, Tables
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.log_bounds import LogBounds, read_log_bounds
from group_hygiene.model.groups import Fault
from group_hygiene.pipeline.activity.update import update
from group_hygiene.pipeline.ingest.batches import ingest
from group_hygiene.pipeline.session import Options, spark_session
from group_hygiene.pipeline.tables import ACTIVITY
from group_hygiene.spec.connection import ActivitySpec, Settings
from sandbox.kafka import Jvm, KafkaCluster
from sandbox.proc import Peak
from sandbox.spark.jars import jars_with_kafka_source

_T = TypeVar("_T")
# The most that each figure may be.
TARGETS = {"full_vs_count": 4.0, "increment_vs_full": 0.35, "activity_query_s": 0.5, "peak_rss_mb": 4096.0}
_CANDIDATES = 1_000
_INCREMENT = 100
_QUERIES = 5
_SECONDS = 600.0
# Of the broker, which holds all offsets in memory.
_HEAP_GB, _GROUPS_A_GB = 2, 150_000


@dataclass
class Times:
    """Seconds of each part; all but `startup` without the start of their session. queries: one for each question."""

    raw_read: float = 0.0
    count: float = 0.0
    count_again: float = 0.0
    startup: float = 0.0
    ingest: float = 0.0
    activity: float = 0.0
    increment_ingest: float = 0.0
    increment_activity: float = 0.0
    queries: list[float] = field(default_factory=list)
    peak_rss_mb: float = 0.0
    groups_changed: int = 0
    warehouse_mb: float = 0.0


def main() -> int:
    """Run the command line; answers with the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m bench.pipeline", description=__doc__, formatter_class=raw)
    parser.add_argument("--records", type=int, default=1_000_000, help="commits, default: %(default)s")
    options = parser.parse_args()
    if options.records < 1_000 or options.records % 1_000:
        parser.error("thousands of commits are needed")
    return run(lambda: _measure(options.records), HygieneError)


def _measure(records: int) -> None:
    raw_read()
    before = report.circumstances()
    groups = records // PARTITIONS
    with filled(groups) as servers:
        times = measure(servers, groups)
    line = summary(records, times)
    kept = report.write(
        f"pipeline-{records}", line, TARGETS, before.document() | {"groups": groups}, {"parts": parts(times)}
    )
    print(f"\n{records:,} commits of {groups:,} groups, then {times.groups_changed:,} more, of as many groups\n")
    print("\n".join(f"{name:24} {value}" for name, value in parts(times).items()))
    print(f"\n{report.targets(line, TARGETS)}")
    print(f"\nEach counted all records and groups. Kept in {os.path.relpath(kept)}\n")
    print(json.dumps(line), flush=True)


@contextmanager
def filled(groups: int) -> Iterator[str]:
    """The bootstrap servers of a broker with the commits of so many groups, 10 each."""
    say(f"starting a broker of Kafka {KAFKA_VERSION}")
    heap = f"{max(_HEAP_GB, groups // _GROUPS_A_GB)}g"
    with KafkaCluster(KAFKA_VERSION, config=CONFIG, jvm=Jvm(heap=heap, peak_speed=True)) as kafka:
        say(f"loading {groups:,} groups")
        started = time.monotonic()
        _, members = load(kafka.bootstrap_servers, groups)
        members.stop()
        say(f"loaded in {time.monotonic() - started:.0f} s")
        yield kafka.bootstrap_servers


def measure(servers: str, groups: int) -> Times:
    """All parts, one after the other. Raises WrongCount where one of them did not see all that it should."""
    times = Times()
    client = connect(Settings(tuple(servers.split(","))))
    folder = Path(tempfile.mkdtemp(prefix="kafka-group-hygiene-bench-"))
    try:
        # First: so that no other finds a broker that was never asked for records.
        say("franz-go: reading")
        records = _raw_read(servers, times)
        options = Options(master="local[*]", jars=jars_with_kafka_source(), log=folder / "spark.log")
        say("Spark: counting")
        with spark_session(options) as spark:
            _count(spark, client, records, times)
        say("the pipeline: starting Spark")
        started = time.monotonic()
        with spark_session(options) as spark:
            times.startup = time.monotonic() - started
            _pipeline(spark, client, str(folder / "warehouse"), _Expected(records, groups), times)
        say("the operator's reader: asking")
        _ask(str(folder / "warehouse"), groups, times)
        times.warehouse_mb = sum(file.stat().st_size for file in (folder / "warehouse").rglob("*.parquet")) / 1024**2
    finally:
        client.close()
        shutil.rmtree(folder)
    return times


@dataclass(frozen=True)
class _Expected:
    """records: of all kinds, in the log."""

    records: int
    groups: int


def _raw_read(servers: str, times: Times) -> int:
    command: list[str | Path] = [raw_read(), servers, OFFSETS_TOPIC, "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise BenchError(f"franz-go did not read the log: {done.stderr.strip()}")
    answer = json.loads(done.stdout)
    times.raw_read = answer["seconds"]
    return int(answer["records"])


def _count(spark: SparkSession, client: Client, records: int, times: Times) -> None:
    bounds = _bounds(client)
    for name in ("count", "count_again"):
        started = time.monotonic()
        counted = _spark_source(spark, client, bounds).count()
        setattr(times, name, time.monotonic() - started)
        _check("Spark's count", counted, records)


def _spark_source(spark: SparkSession, client: Client, bounds: LogBounds) -> DataFrame:
    """The log as Spark's own source reads it, as fast as it can."""
    # By default, it finds offsets with an admin client that omits internal topics without an error.
    spark.conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "true")
    places = {"startingOffsets": bounds.starts, "endingOffsets": bounds.ends}
    options = {name: json.dumps({OFFSETS_TOPIC: offsets}) for name, offsets in places.items()} | {
        "kafka.bootstrap.servers": ",".join(client.settings.bootstrap_servers),
        "assign": json.dumps({OFFSETS_TOPIC: sorted(bounds.ends)}),
        "maxRecordsPerPartition": "500000",
        "kafka.fetch.max.wait.ms": "10",
        "kafka.max.poll.records": "100000",
    }
    return (
        spark.read.format("kafka").options(**options).load().select("partition", "offset", "timestamp", "key", "value")
    )


def _pipeline(spark: SparkSession, client: Client, warehouse: str, expected: _Expected, times: Times) -> None:
    gateway: Any = spark.sparkContext._gateway
    with Peak(gateway.proc.pid, os.getpid()) as peak:
        say("the pipeline: all of it")
        times.ingest, written = _timed(lambda: ingest(spark, client, warehouse, say))
        times.activity, _ = _timed(lambda: update(spark, warehouse))
        _check("ingest", written.records, expected.records)
        _check("commits", written.commits, expected.groups * PARTITIONS)
    say("the pipeline: an increment")
    every = _INCREMENT // PARTITIONS
    times.groups_changed = commit_more(",".join(client.settings.bootstrap_servers), expected.groups, every)
    with Peak(gateway.proc.pid, os.getpid()) as later:
        times.increment_ingest, written = _timed(lambda: ingest(spark, client, warehouse, say))
        times.increment_activity, _ = _timed(lambda: update(spark, warehouse))
    _check("ingest of the increment", written.records, times.groups_changed)
    times.peak_rss_mb = max(peak.mb, later.mb)
    rows = ACTIVITY.read(spark, warehouse)
    total = rows.selectExpr("count(*)", "sum(commits_1d)", "sum(partitions)").collect()[0]
    commits = expected.groups * PARTITIONS
    _check("activity", tuple(total), (expected.groups, commits + times.groups_changed, commits))


def _ask(warehouse: str, groups: int, times: Times) -> None:
    wanted = truncated_list(groups, max(1, groups // _CANDIDATES))[:_CANDIDATES]
    tables = Tables(ActivitySpec(warehouse))
    for _ in range(_QUERIES):
        seconds, answer = _timed(lambda: tables.read(wanted, _SECONDS))
        if not isinstance(answer, Reading):
            raise BenchError(f"the operator can't read the tables: {answer}")
        _check("the operator's reader", len(answer.groups), len(wanted))
        times.queries.append(seconds)


def _bounds(client: Client) -> LogBounds:
    bounds = read_log_bounds(client, Deadline(_SECONDS))
    if isinstance(bounds, Fault):
        raise BenchError(f"the log's ends are not known: {bounds}")
    return bounds


def _timed(work: Callable[[], _T]) -> tuple[float, _T]:
    started = time.monotonic()
    done = work()
    return time.monotonic() - started, done


def _check(who: str, counted: Any, expected: Any) -> None:
    if counted != expected:
        raise WrongCount(f"{who} counted {counted}, but there are {expected}")


def summary(records: int, times: Times) -> dict[str, Any]:
    """The figures that are compared: seconds, MiB, and ratios of seconds."""
    full, increment = times.ingest + times.activity, times.increment_ingest + times.increment_activity
    return {
        "records": records,
        "full_s": round(full, 3),
        "increment_s": round(increment, 3),
        "spark_count_s": round(times.count, 3),
        "raw_read_s": round(times.raw_read, 3),
        "records_per_s": round(records / full),
        "full_vs_count": round(full / times.count, 3),
        "increment_vs_full": round(increment / full, 3),
        "peak_rss_mb": round(times.peak_rss_mb, 1),
        "activity_query_s": round(statistics.median(times.queries), 4),
        "startup_s": round(times.startup, 3),
    }


def parts(times: Times) -> dict[str, Any]:
    """What the figures are made of, and what they leave out."""
    return {
        "ingest_s": round(times.ingest, 3),
        "activity_s": round(times.activity, 3),
        "increment_ingest_s": round(times.increment_ingest, 3),
        "increment_activity_s": round(times.increment_activity, 3),
        "increment_commits": times.groups_changed,
        "spark_count_again_s": round(times.count_again, 3),
        "activity_queries_s": [round(seconds, 4) for seconds in times.queries],
        "warehouse_mb": round(times.warehouse_mb, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
