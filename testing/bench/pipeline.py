"""`python -m testing.bench.pipeline`: how long the pipeline takes from the log to the tables, as a ladder.

Three logs, each on a broker of its own: every key once, a hundred times, and what compaction leaves of many more. Each
rung reads a whole log, does more than the one below, and has a process of its own: L0, franz-go reads it; L1, and
decodes keys and values; L2, one Python process without Spark makes a table of one row a group; L3, the pipeline's
ingest as the first work of a Java that is cold, then after one percent of new commits, and warm, into a new warehouse.
Beside them, Spark's own Kafka source reads the log into nothing, warm. Last, the operator's own reader asks for 1,000
groups. The start of Spark is not counted. CPU seconds are those of a rung's processes, without the broker's.

What each of them counted must be what is in the log. After the new commits L2 reads all of it again, and its table must
be the same as `activity`, in every group.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from group_hygiene.errors import HygieneError
from group_hygiene.evidence.reader import Reading, Tables
from group_hygiene.kafka.client import Client, connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.pipeline.jobs import Job, Options, Work, repeat, spark_session
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, GROUP_STATES
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.connection import ActivitySpec
from testing.bench import report
from testing.bench.command import run, say
from testing.bench.errors import BenchError, WrongCount
from testing.bench.load import (
    CONFIG,
    PARTITIONS,
    commit_more,
    coordinating_partition,
    group_name,
    make_topics,
    topic_name,
)
from testing.bench.logs import LEAST_RECORDS, LOG_PARTITIONS, NAMES, Log, log_of
from testing.bench.programs import KAFKA_VERSION, raw_read
from testing.bench.same import COLUMNS
from testing.sandbox.kafka import Jvm, KafkaCluster
from testing.sandbox.proc import Peak, cpu_seconds
from testing.sandbox.spark.jars import jars, jars_with_kafka_source

# The most that each figure may be.
_OF_EACH = {"peak_rss_mb": 4096.0, "activity_query_s": 0.5, "bytes_per_commit": 6.0}
_OF_ONE = {"full_vs_l2": (1.4, 2.0, 2.5), "warm_vs_l2": (1.2, 1.2, 1.5), "increment_s": (2.5, 0.8, 1.0)}
TARGETS = {f"{name}.{figure}": most for figure, all_ in _OF_ONE.items() for name, most in zip(NAMES, all_, strict=True)}
TARGETS |= {f"{name}.{figure}": most for name in NAMES for figure, most in _OF_EACH.items()}
RUNGS = ("l0", "l1", "l2", "spark_source", "full", "increment", "warm")
_CANDIDATES = 1_000
_INCREMENT = 100
_QUERIES = 5
_SECONDS = 1200.0
# Of the broker, which holds the last offset of each key in memory.
_HEAP_GB, _KEYS_A_GB = 2, 1_500_000


@dataclass(frozen=True)
class Rung:
    """seconds: wall time. cpu: seconds of all of its processes."""

    seconds: float
    cpu: float


@dataclass
class Times:
    """What one log gave. rungs: by RUNGS. queries: seconds of each question. startup: seconds, of Spark."""

    rungs: dict[str, Rung] = field(default_factory=dict)
    queries: list[float] = field(default_factory=list)
    startup: float = 0.0
    peak_rss_mb: float = 0.0
    l2_peak_rss_mb: float = 0.0
    increment: int = 0
    bytes_per_commit: float = 0.0
    warehouse_mb: float = 0.0


@dataclass(frozen=True)
class Filled:
    """A broker with a log. offsets: the sum of all offsets that are committed in it."""

    servers: str
    log: Log
    offsets: int


def main() -> int:
    """Run the command line; answers with the exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m testing.bench.pipeline", description=__doc__, formatter_class=raw)
    what = "of each log; compaction leaves a tenth of the third one's (default: %(default)s)"
    parser.add_argument("--records", type=int, default=10_000_000, help=what)
    options = parser.parse_args()
    if options.records < LEAST_RECORDS or options.records % LEAST_RECORDS:
        parser.error(f"a multiple of {LEAST_RECORDS:,} is needed")
    return run(lambda: _measure(options.records), HygieneError)


def _measure(records: int) -> None:
    raw_read()
    jars_with_kafka_source()
    before = report.circumstances()
    line: dict[str, dict[str, Any]] = {}
    details: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        with filled(log_of(name, records), records) as one:
            times = measure(one)
        line[name], details[name] = summary(one.log, times), parts(one.log, times)
        print(f"\n{table(one.log, times)}\n", flush=True)
    flat = {f"{name}.{figure}": value for name, figures in line.items() for figure, value in figures.items()}
    kept = report.write(f"pipeline-{records}", flat, TARGETS, before.document(), {"parts": details})
    print(f"For docs/scale.md:\n\n{markdown(line, details)}\n")
    print(report.targets(flat, TARGETS))
    print(f"\nEvery count is right, and every row of `activity`. Kept in {os.path.relpath(kept)}\n")
    print(json.dumps(line), flush=True)


@contextmanager
def filled(log: Log, records: int) -> Iterator[Filled]:
    """A broker with this log, whose groups its coordinators have loaded."""
    say(f"{log.name}: starting a broker of Kafka {KAFKA_VERSION}")
    keys = log.records // log.rounds
    heap = f"{max(_HEAP_GB, keys // _KEYS_A_GB)}g"
    with KafkaCluster(KAFKA_VERSION, config=CONFIG, jvm=Jvm(heap=heap, peak_speed=True)) as kafka:
        servers = kafka.bootstrap_servers
        make_topics(servers)
        data = kafka.log(1).parent / "data"
        _make_offsets_topic(servers, data)
        kafka.stop_broker(1)
        say(f"{log.name}: writing {log.records:,} records of {log.groups:,} groups")
        written = _program(
            "writing the log", [sys.executable, "-m", "testing.bench.logs", log.name, str(records), data]
        )
        kafka.start_broker(1)
        _wait_loaded(servers, log)
        yield Filled(servers, log, written["sum"])


def _make_offsets_topic(servers: str, data: Path) -> None:
    """By a request that needs a coordinator; writes nothing into it."""
    give_up = time.monotonic() + _SECONDS
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "log_level": 0})
    try:
        while len(list(data.glob(f"{OFFSETS_TOPIC}-*"))) < LOG_PARTITIONS:
            if time.monotonic() > give_up:
                raise BenchError(f"the broker has not made {OFFSETS_TOPIC}")
            # NOT_COORDINATOR, while it is being made.
            with contextlib.suppress(KafkaException):
                consumer.committed([TopicPartition(topic_name(0), 0)], timeout=10)
    finally:
        consumer.close()


def _wait_loaded(servers: str, log: Log) -> None:
    """Until the coordinator of each partition has a group of it: before that, it takes time from what is measured."""
    some: dict[int, str] = {}
    for number in range(log.groups):
        name = group_name(number)
        some.setdefault(coordinating_partition(name, LOG_PARTITIONS), name)
        if len(some) == LOG_PARTITIONS:
            break
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    give_up = time.monotonic() + _SECONDS
    left = set(some.values())
    while left and time.monotonic() < give_up:
        for name, answer in admin.describe_consumer_groups(sorted(left), request_timeout=60).items():
            if answer.exception() is None and answer.result().state is ConsumerGroupState.EMPTY:
                left.discard(name)
        time.sleep(0.5)
    if left:
        raise BenchError(f"the broker has not loaded {len(left)} partitions of {OFFSETS_TOPIC}")


def measure(filled: Filled) -> Times:
    """All rungs, one after the other. Raises WrongCount where one of them did not see all that it should."""
    times = Times()
    client = connect(Settings((filled.servers,)))
    folder = Path(tempfile.mkdtemp(prefix="kafka-group-hygiene-bench-"))
    try:
        _peers(filled, folder, times)
        warehouse = str(folder / "warehouse")
        options = Options(master="local[*]", jars=jars(), log=folder / "spark.log")
        say("L3: starting Spark")
        started = time.monotonic()
        with spark_session(options) as spark:
            times.startup = time.monotonic() - started
            _pipeline(spark, client, _Job(spark, client, warehouse, options.log), filled, times)
            ACTIVITY.read(spark, warehouse).select(*COLUMNS).write.parquet(str(folder / "ours"))
        _compare(filled, folder, times)
        say("the operator's reader: asking")
        _ask(warehouse, filled.log.groups, times)
        times.warehouse_mb = sum(file.stat().st_size for file in (folder / "warehouse").rglob("*.parquet")) / 1024**2
    finally:
        client.close()
        shutil.rmtree(folder)
    return times


def _peers(filled: Filled, folder: Path, times: Times) -> None:
    """L0, L1, L2 and Spark's source. L0 is first, so that no other finds a broker that was never asked for records."""
    log = filled.log
    sums = {"commits": log.records - log.states, "states": log.states, "offsets": filled.offsets}
    go: list[str | Path] = [raw_read(), filled.servers, OFFSETS_TOPIC, "2"]
    python = [sys.executable, "-m"]
    jobs: list[tuple[str, str, list[str | Path], Mapping[str, int]]] = [
        ("l0", "L0, franz-go: reading", [*go, "raw"], {}),
        ("l1", "L1, franz-go: decoding", [*go, "decode"], sums),
        (*("l2", "L2, without Spark"), [*python, "testing.bench.plain", filled.servers, folder / "plain"], sums),
        (
            *("spark_source", "Spark's source"),
            [*python, "testing.bench.spark_source", filled.servers, folder / "source.log"],
            {},
        ),
    ]
    for name, what, command, expected in jobs:
        say(what)
        answer = _program(what, command)
        for of_what, count in {"records": log.records, **expected}.items():
            _check(f"{what}, {of_what}", answer[of_what], count)
        times.rungs[name] = Rung(answer["seconds"], answer["cpu"])
        times.l2_peak_rss_mb = max(times.l2_peak_rss_mb, answer.get("peak_mb", 0.0))


@dataclass(frozen=True)
class _Job:
    """Runs the ingest as the command line does."""

    spark: SparkSession
    client: Client
    warehouse: str
    log: Path

    def __call__(self, warehouse: str = "") -> Rung:
        started, used = time.monotonic(), self._cpu()
        repeat(self.spark, self.client, Work((Job.INGEST,), warehouse or self.warehouse), say, self.log)
        return Rung(time.monotonic() - started, self._cpu() - used)

    def _cpu(self) -> float:
        return cpu_seconds(java(self.spark)) + time.process_time()


def java(spark: SparkSession) -> int:
    """The process in which the session runs; Spark's workers are its descendants."""
    gateway: Any = spark.sparkContext._gateway
    return int(gateway.proc.pid)


def _pipeline(spark: SparkSession, client: Client, job: _Job, filled: Filled, times: Times) -> None:
    log = filled.log
    with Peak(java(spark), os.getpid()) as peak:
        say("L3: all of it")
        times.rungs["full"] = job()
    times.bytes_per_commit = COMMITS.size(job.warehouse) / (log.records - log.states)
    names, partitions = increment(log)
    times.increment = commit_more(filled.servers, names, partitions)
    with Peak(java(spark), os.getpid()) as later:
        say(f"L3: {times.increment:,} new commits")
        times.rungs["increment"] = job()
        say("L3: all of it, warm")
        times.rungs["warm"] = job(f"{job.warehouse}-warm")
    times.peak_rss_mb = max(peak.mb, later.mb)
    counted = [table.read(spark, job.warehouse).count() for table in (COMMITS, GROUP_STATES, ACTIVITY)]
    _check("L3: commits, states, groups", counted, [log.records - log.states + times.increment, log.states, log.groups])


def increment(log: Log) -> tuple[list[str], int]:
    """The groups that commit again, one percent of the log's records, and how many partitions each."""
    wanted = max(1, log.records // _INCREMENT)
    partitions = max(1, min(PARTITIONS, wanted // log.groups))
    return [
        group_name(number) for number in range(0, log.groups, max(1, log.groups * partitions // wanted))
    ], partitions


def _compare(filled: Filled, folder: Path, times: Times) -> None:
    say("L2 again: is all of it the same?")
    again = folder / "plain-again"
    python = [sys.executable, "-m"]
    answer = _program("L2 again", [*python, "testing.bench.plain", filled.servers, again])
    _check("L2 again", answer["records"], filled.log.records + times.increment)
    _check(
        "groups that differ from L2's",
        _program("comparing", [*python, "testing.bench.same", folder / "ours", again]),
        0,
    )


def _ask(warehouse: str, groups: int, times: Times) -> None:
    wanted = [group_name(number) for number in range(0, groups, max(1, groups // _CANDIDATES))][:_CANDIDATES]
    tables = Tables(ActivitySpec(warehouse))
    for _ in range(_QUERIES):
        started = time.monotonic()
        answer = tables.read(wanted, _SECONDS)
        times.queries.append(time.monotonic() - started)
        if not isinstance(answer, Reading):
            raise BenchError(f"the operator can't read the tables: {answer}")
        _check("the operator's reader", len(answer.groups), len(wanted))


def _program(what: str, command: Sequence[str | Path]) -> Any:
    """Run it in a process of its own; returns the JSON that it prints last."""
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root / 'operator'}{os.pathsep}{root}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=environment)
    if done.returncode:
        raise BenchError(f"{what} failed: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def _check(who: str, counted: Any, expected: Any) -> None:
    if counted != expected:
        raise WrongCount(f"{who} counted {counted}, but there are {expected}")


def summary(log: Log, times: Times) -> dict[str, Any]:
    """The figures that are compared: seconds of wall time, MiB, and ratios of seconds."""
    rungs = times.rungs
    full = rungs["full"].seconds
    return {
        "records": log.records,
        **{f"{name}_s": round(rungs[name].seconds, 3) for name in ("l0", "l1", "l2")},
        "full_s": round(full, 3),
        "full_vs_l2": round(full / rungs["l2"].seconds, 3),
        "warm_vs_l2": round(rungs["warm"].seconds / rungs["l2"].seconds, 3),
        "increment_s": round(rungs["increment"].seconds, 3),
        "bytes_per_commit": round(times.bytes_per_commit, 2),
        "records_per_s": round(log.records / full),
        "peak_rss_mb": round(times.peak_rss_mb, 1),
        "activity_query_s": round(statistics.median(times.queries), 4),
    }


def parts(log: Log, times: Times) -> dict[str, Any]:
    """What the figures are made of, and what they leave out."""
    return {
        "groups": log.groups,
        "offsets": log.offsets or log.records,
        **{f"{name}_s": round(times.rungs[name].seconds, 3) for name in RUNGS},
        **{f"{name}_cpu_s": round(times.rungs[name].cpu, 3) for name in RUNGS},
        "increment_commits": times.increment,
        "startup_s": round(times.startup, 3),
        "l2_peak_rss_mb": round(times.l2_peak_rss_mb, 1),
        "activity_queries_s": [round(seconds, 4) for seconds in times.queries],
        "warehouse_mb": round(times.warehouse_mb, 1),
    }


def table(log: Log, times: Times) -> str:
    """The ladder as aligned text."""
    title = f"{log.name}: {log.records:,} records of {log.groups:,} groups in {log.offsets or log.records:,} offsets"
    rows = [f"{name:20} {rung.seconds:9.2f} s {rung.cpu:9.2f} s" for name, rung in times.rungs.items()]
    return "\n".join([title, f"{'':20} {'wall':>11} {'CPU':>11}", *rows])


_Figures = Mapping[str, Mapping[str, Any]]


def markdown(line: _Figures, details: _Figures) -> str:
    """The ladders of all logs as a table: wall time, and CPU seconds in parentheses."""

    def rung(*names: str) -> Callable[[str], str]:
        def cell(log: str) -> str:
            wall, cpu = (sum(details[log][f"{name}_{unit}"] for name in names) for unit in ("s", "cpu_s"))
            return f"{wall:.1f} s ({cpu:.1f})"

        return cell

    rows: dict[str, Callable[[str], str]] = {
        "records, groups": lambda log: f"{line[log]['records']:,}, {details[log]['groups']:,}",
        "L0: franz-go reads": rung("l0"),
        "L1: franz-go decodes": rung("l1"),
        "L2: numpy, DuckDB, delta-rs": rung("l2"),
        "L3: the pipeline, cold": rung("full"),
        "L3: warm": rung("warm"),
        "L3, compared with L2": lambda log: f"{line[log]['full_vs_l2']:.1f} times, {line[log]['warm_vs_l2']:.1f} warm",
        "L3: one percent of new commits": rung("increment"),
        "Spark's Kafka source into nothing, warm": rung("spark_source"),
        "peak memory of L3": lambda log: f"{line[log]['peak_rss_mb'] / 1024:.1f} GB",
        "the operator reads 1,000 groups": lambda log: f"{line[log]['activity_query_s']:.2f} s",
        "tables on disk, with rows that were replaced": lambda log: f"{details[log]['warehouse_mb']:.1f} MB",
    }
    head = ["| | " + " | ".join(line) + " |", "| --- " * (len(line) + 1) + "|"]
    return "\n".join([*head, *(f"| {row} | {' | '.join(cell(log) for log in line)} |" for row, cell in rows.items())])


if __name__ == "__main__":
    sys.exit(main())
