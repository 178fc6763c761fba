"""`python -m testing.faults.ingest_kills`: SIGKILL to the pipeline at random points, while groups commit.

Every third one hits a run with maintenance. After each kill, and after a last undisturbed run,
the complete part of the tables must equal the log: each commit once, in all columns, and every group with its last
commit and number of commits. Last line: `N passed, 0 failed`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import click
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from testing.faults.errors import FaultsError
from testing.faults.ingest_tables import (
    TABLES,
    covered_by,
    differences,
    is_changed,
    make_maintenance_due,
    unfinished,
)
from testing.faults.offsets_log import ends
from testing.sandbox.errors import NotReached, SandboxError
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.proc import family, state
from testing.sandbox.process import Command, Keeper, Server
from testing.sandbox.spark.jars import jars, jars_of_the_image
from testing.sandbox.waiting import wait_for

KILLS = 20
_GROUPS = 40
_TOPIC = "orders"
_SECONDS = 180.0
_END_SECONDS = 600.0
# Only the groups' commits change the log.
BROKER = {
    "offsets.topic.num.partitions": "4",
    "offsets.retention.check.interval.ms": "86400000",
    "log.cleaner.enable": "false",
}
# For runs of half a minute, optimizing compilation does not pay.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
_ROOT = Path(__file__).parents[2]
_PROGRESS = re.compile(r"([0-9.]+)s  ((?:ingest|maintain): .*)")
# Beginnings of a process's progress lines.
_READING, _BATCH, _INGESTED = "ingest: reading ", "ingest: batch ", "ingest: [0-9,]+ commits"
_MAINTAINED = "maintain: done"


class Step(StrEnum):
    """The step in which the pipeline was killed, by its output and its files."""

    STARTING = "while it started"
    READING = "before a batch was in any table"
    WRITING = "while a table was written"
    BETWEEN = "between the tables of a batch"
    FOLDED = "between activity and coverage"
    CLOSING = "after the last table of a batch"
    MAINTAINING = "while the tables were maintained"


class Committers:
    """Groups that commit continuously, one in eight in a transaction, every second of which is aborted.

    In addition a group that a member joins and leaves repeatedly.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ending = threading.Event()
        self._failure: Exception | None = None
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._commit, self._visit)]
        # Deleting it cancels its requests: it must live until they are answered.
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(_TOPIC, 4, 1)])[_TOPIC].result()

    def __enter__(self) -> Committers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise FaultsError(f"the committers failed: {self._failure}")

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except KafkaException as error:
            self._failure = error

    def _commit(self) -> None:
        config = {"bootstrap.servers": self._bootstrap, "log_level": 0}
        groups = [Consumer(config | {"group.id": f"group-{number}"}) for number in range(_GROUPS)]
        producer = Producer(config | {"transactional.id": "committer"})
        producer.init_transactions(_SECONDS)
        offset = 0
        while not self._ending.wait(0.1):
            offset += 1
            group = groups[offset % _GROUPS]
            places = [TopicPartition(_TOPIC, partition, offset) for partition in range(4)]
            if offset % 8:
                group.commit(offsets=places, asynchronous=False)
                continue
            producer.begin_transaction()
            producer.send_offsets_to_transaction(places, group.consumer_group_metadata(), _SECONDS)
            (producer.abort_transaction if offset % 16 else producer.commit_transaction)(_SECONDS)
        for group in groups:
            group.close()

    def _visit(self) -> None:
        while not self._ending.wait(0.2):
            visitor = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "visitors", "log_level": 0})
            visitor.subscribe([_TOPIC])
            while not self._ending.is_set() and not visitor.assignment():
                visitor.poll(0.1)
            visitor.close()


class Pipeline:
    """The jobs as users run them: a process that starts Java, from which Spark starts Python workers."""

    def __init__(
        self,
        keeper: Keeper,
        command: str,
        bootstrap: str,
        warehouse: Path | str,
        name: str = "pipeline",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """name: of its process. variables: of an object store, which needs the image's jars."""
        self.command = command
        self._keeper, self._name, self._log = keeper, name, keeper.scratch / f"{name}.log"
        path = os.pathsep.join((str(_ROOT / "operator"), str(_ROOT)))
        self._environment = {"PYTHONPATH": path, "SPARK_SUBMIT_OPTS": _JAVA, **(variables or {})}
        self._argv: list[str | Path] = [
            *(sys.executable, "-m", "group_hygiene.cli", "pipeline", command, "--bootstrap-server", bootstrap),
            *("--warehouse", warehouse, "--jars", jars_of_the_image() if variables else jars(), "--memory", "1g"),
            *("--log-file", keeper.scratch / "spark.log"),
        ]

    def start(self, *options: str) -> Server:
        self._log.unlink(missing_ok=True)
        return self._keeper.start(self._name, Command([*self._argv, *options], self._log, self._environment))

    def log(self) -> str:
        """All that it has printed."""
        return self._log.read_text() if self._log.exists() else ""

    def said(self) -> list[tuple[float, str]]:
        """Its progress lines, with the seconds since its start."""
        return [(float(second), what) for second, what in _PROGRESS.findall(self.log())]

    def said_at(self) -> float:
        """The time of its last line; 0 = it has printed none."""
        return self._log.stat().st_mtime if self._log.exists() else 0.0

    def wait_until_said(self, server: Server, line: str, times: int) -> None:
        """Wait until it has printed so many lines with this beginning."""

        def said() -> bool:
            if server.exit_code() is not None:
                raise FaultsError(f"the pipeline ended by itself:\n{server.log_tail()}")
            return sum(bool(re.match(line, what)) for _, what in self.said()) >= times

        wait_for(said, f"the pipeline to say {line!r}", _END_SECONDS)

    def complete(self) -> None:
        """An undisturbed run."""
        server = self.start("--once")
        wait_for(lambda: server.exit_code() is not None, "the end of the pipeline", _END_SECONDS)
        if server.exit_code() != 0:
            raise FaultsError(f"the pipeline failed:\n{server.log_tail()}")


class Pace(NamedTuple):
    """Seconds of an undisturbed run: until it reads, then until all is ingested, and for the maintenance."""

    starting: float
    ingesting: float
    maintaining: float

    @classmethod
    def of(cls, run: Pipeline) -> Pace:
        run.complete()
        said = run.said()
        (ingested,) = [second for second, what in said if re.match(_INGESTED, what)]
        return cls(said[0][0], ingested - said[0][0], max(2.0, said[-1][0] - ingested))


class Kills:
    """Successive kills of a pipeline."""

    def __init__(self, ingest: Pipeline, run: Pipeline, warehouse: Path, pace: Pace) -> None:
        self._ingest, self._run, self._warehouse, self._pace = ingest, run, warehouse, pace

    def one(self, of_a_run: bool) -> tuple[str, Step | None]:
        """Returns what was killed, and in which step; None = it had finished, and waited."""
        pipeline = self._run if of_a_run else self._ingest
        due = of_a_run and make_maintenance_due(self._warehouse)
        server = pipeline.start("--continuous", "--every", "1s")
        # One in five kills of the ingest hits its start.
        if not of_a_run and random.random() < 0.2:
            after = random.uniform(0, self._pace.starting)
        else:
            line, times, lasts = random.choice(self._moments(of_a_run, due))
            pipeline.wait_until_said(server, line, times)
            after = random.uniform(0, lasts)
        time.sleep(after)
        killed = kill(server, random.choice(["all", "all", "python", "java"]))
        return f"{killed} of {pipeline.command}", step(self._warehouse, pipeline, of_a_run, due)

    def _moments(self, of_a_run: bool, due: bool) -> list[tuple[str, int, float]]:
        """Choices of (line, its occurrence, seconds after it within which to kill), with equal probability."""
        reading = (_READING, 1, self._pace.ingesting)
        if not of_a_run:
            # The first read is the slowest, and has the most steps.
            return [reading, reading, (_READING, 2, self._pace.ingesting)]
        return [reading, *[(_INGESTED, 1, self._pace.maintaining)] * 2 * due]


def step(warehouse: Path, pipeline: Pipeline, of_a_run: bool, due: bool) -> Step | None:
    """The step of a kill, by files and output; None = there was nothing to do.

    due: maintenance was due in the first round of that run.
    """
    said, since = [what for _, what in pipeline.said()], pipeline.said_at()
    if not said:
        return Step.STARTING
    last = said[-1]
    if of_a_run and due and re.match(_INGESTED, last) and _MAINTAINED not in said:
        return Step.MAINTAINING
    if last.startswith(_BATCH):
        return Step.CLOSING
    if not last.startswith(_READING):
        return None
    if is_changed(warehouse / "coverage", since):
        return Step.CLOSING
    if is_changed(warehouse / "activity", since):
        return Step.FOLDED
    if any(is_changed(warehouse / name, since) for name in TABLES):
        return Step.BETWEEN
    return Step.WRITING if any(unfinished(warehouse / name, since) for name in TABLES) else Step.READING


def kill(server: Server, what: str) -> str:
    """SIGKILL all of its processes, or one of them, after which the others end. Returns which."""
    java = list(_java(server.pid))
    if what == "java" and not java:
        what = "python"
    if what == "all":
        server.send(signal.SIGKILL)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid if what == "python" else java[0], signal.SIGKILL)
    wait_for(lambda: server.exit_code() is not None, "the end of what was killed", _SECONDS)
    wait_for(
        lambda: all(state(pid) in ("", "Z", "X") for pid in java), "the end of Java after that of Python", _SECONDS
    )
    return what


def main() -> int:
    options = _options()
    random.seed(options.seed)
    click.echo(f"seed {options.seed}")
    failed, met = 0, Counter[Step | None]()
    with KafkaCluster(config=BROKER) as kafka, Keeper() as keeper:
        bootstrap, warehouse = kafka.bootstrap_servers, keeper.scratch / "warehouse"
        ingest, run = (Pipeline(keeper, command, bootstrap, warehouse) for command in ("ingest", "run"))
        with Committers(bootstrap) as committers:
            # The measured runs use other tables, so that the first kill hits an ingest before its first write.
            pace = Pace.of(Pipeline(keeper, "run", bootstrap, keeper.scratch / "undisturbed"))
            kills = Kills(ingest, run, warehouse, pace)
            while (count := met.total() - met[None]) < options.kills:
                if met[None] > 2 * options.kills + 5:
                    raise NotReached("most kills come when all is done")
                of_a_run = count % 3 == 2
                if of_a_run:
                    _make_due(run, warehouse)
                what, where = kills.one(of_a_run)
                met[where] += 1
                name = f"kill {count + 1:2} of {what}, {where}" if where else f"        of {what}, when all was done"
                failed += _report(name, differences(bootstrap, warehouse))
            committers.end()
        _make_due(run, warehouse)
        run.complete()
        problems, log = differences(bootstrap, warehouse), ends(bootstrap)
        if covered_by(warehouse / "coverage", "batch")[0] != log:
            problems.append("the log was not read to its end")
        if _MAINTAINED not in [what for _, what in run.said()]:
            problems.append("nothing was maintained")
        failed += _report(f"the last run, up to offset {sum(log.values()):,}", problems)
    click.echo(f"{options.kills} kills: {', '.join(f'{met[where]} {where}' for where in Step)}")
    click.echo(f"not counted, as all was done: {met[None]}")
    click.echo(f"{met.total() + 1 - failed} passed, {failed} failed")
    return int(failed > 0)


def _make_due(run: Pipeline, warehouse: Path) -> None:
    """Make maintenance due in the next run, after a complete run if there was none: it creates the table."""
    if not make_maintenance_due(warehouse):
        run.complete()
        make_maintenance_due(warehouse)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testing.faults.ingest_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the points in time")
    return parser.parse_args()


def _report(what: str, problems: list[str]) -> int:
    click.echo(f"{what}: {', '.join(problems) or 'equals the log'}")
    return int(bool(problems))


def _java(pid: int) -> Iterator[int]:
    """The Java processes among the descendants of a process."""
    for child in family(pid)[1:]:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/exe").readlink().name == "java":
                yield child


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (FaultsError, SandboxError) as error:
        click.echo(f"{error}\n0 passed, 1 failed")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
