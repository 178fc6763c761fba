"""`python -m faults.ingest_kills`: SIGKILL to the ingest at random points, while groups commit.

After each kill, and after a last run that is left alone, what the tables say is finished must equal the log: each
commit once, to the last column. Last line: `N passed, 0 failed`.
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
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import click
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from faults.errors import FaultsError, NotReached
from faults.offsets_log import Row, ends, expected, read
from faults.waiting import wait_for
from sandbox.errors import SandboxError
from sandbox.kafka import KafkaCluster
from sandbox.process import Command, Keeper, Server
from sandbox.spark.jars import jars

KILLS = 20
_GROUPS = 40
_TOPIC = "orders"
_END_SECONDS = 600.0
_PLACE = ("log_partition", "log_offset", "record_ms")
# Of each table, the columns in which faults.offsets_log tells what it must hold.
_TABLES = {
    "commits": (
        *(*_PLACE, "group", "topic", "partition"),
        *("committed_offset", "leader_epoch", "metadata", "commit_ms", "aborted"),
    ),
    "group_states": (
        *(*_PLACE, "kind", "group"),
        *("protocol_type", "generation", "member_id", "members", "state_ms", "gone"),
    ),
}
_ROOT = Path(__file__).parents[1]
_PROGRESS = re.compile(r"([0-9.]+)s  ingest: (.*)")


class Step(StrEnum):
    """Where a kill met the ingest, as the files say that it left."""

    STARTING = "while it started"
    READING = "before a batch was in any table"
    WRITING = "while a table was written"
    BETWEEN = "between the tables of a batch"
    CLOSING = "after the last table of a batch"


class Committers:
    """Groups that commit all the time, one in eight in a transaction, of which every second one is aborted.

    Beside them a group that is joined and left again and again.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ending = threading.Event()
        self._failure: Exception | None = None
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._commit, self._visit)]
        # Its requests end with it: it must live until they are answered.
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
        producer.init_transactions(60)
        offset = 0
        while not self._ending.wait(0.02):
            offset += 1
            group = groups[offset % _GROUPS]
            places = [TopicPartition(_TOPIC, partition, offset) for partition in range(4)]
            if offset % 8:
                group.commit(offsets=places, asynchronous=False)
                continue
            producer.begin_transaction()
            producer.send_offsets_to_transaction(places, group.consumer_group_metadata(), 60)
            (producer.abort_transaction if offset % 16 else producer.commit_transaction)(60)
        for group in groups:
            group.close()

    def _visit(self) -> None:
        while not self._ending.wait(0.2):
            visitor = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "visitors", "log_level": 0})
            visitor.subscribe([_TOPIC])
            while not self._ending.is_set() and not visitor.assignment():
                visitor.poll(0.1)
            visitor.close()


class Ingest:
    """The ingest as users run it: a process that starts another for Java, in which Spark starts one for Python."""

    def __init__(self, keeper: Keeper, bootstrap: str, warehouse: Path) -> None:
        self._keeper = keeper
        self._log = keeper.scratch / "ingest.log"
        self._command: list[str | Path] = [
            *(sys.executable, "-m", "group_hygiene.cli", "pipeline", "ingest", "--bootstrap-server", bootstrap),
            *("--warehouse", warehouse, "--jars", jars(), "--memory", "1g"),
            *("--log-file", keeper.scratch / "spark.log"),
        ]

    def start(self, *options: str) -> Server:
        self._log.unlink(missing_ok=True)
        path = os.pathsep.join((str(_ROOT / "operator"), str(_ROOT)))
        return self._keeper.start("ingest", Command([*self._command, *options], self._log, {"PYTHONPATH": path}))

    def said(self) -> list[tuple[float, str]]:
        """What it told of its steps, with the seconds since its start."""
        text = self._log.read_text() if self._log.exists() else ""
        return [(float(second), what) for second, what in _PROGRESS.findall(text)]

    def wait_until_reading(self, server: Server, times: int) -> None:
        """Until it goes to read the log for so many times."""

        def reading() -> bool:
            if server.exit_code() is not None:
                raise FaultsError(f"the ingest ended by itself:\n{server.log_tail()}")
            return sum(what.startswith("reading") for _, what in self.said()) >= times

        wait_for(reading, "the ingest to read", _END_SECONDS)

    def complete(self) -> None:
        """A run that nobody disturbs."""
        server = self.start("--once")
        wait_for(lambda: server.exit_code() is not None, "the end of the ingest", _END_SECONDS)
        if server.exit_code() != 0:
            raise FaultsError(f"the ingest failed:\n{server.log_tail()}")


class Pace(NamedTuple):
    """How long an undisturbed run takes, in seconds: until it reads, and from then on until all is in the tables."""

    starting: float
    working: float

    @classmethod
    def of(cls, ingest: Ingest) -> Pace:
        ingest.complete()
        said = ingest.said()
        return cls(said[0][0], said[-1][0] - said[0][0])


class Kills:
    """One kill after the other of an ingest that goes on and on."""

    def __init__(self, ingest: Ingest, warehouse: Path, pace: Pace) -> None:
        self._ingest, self._warehouse, self._pace = ingest, warehouse, pace

    def one(self) -> tuple[str, Step | None]:
        """Answers with what was killed, and when; no step = it had done its work, and waited for more."""
        server = self._ingest.start("--continuous", "--every", "1s")
        # One in five while it starts; the first time that it reads is slower than the others, and has the most steps.
        if random.random() < 0.2:
            after = random.uniform(0, self._pace.starting)
        else:
            self._ingest.wait_until_reading(server, random.choice([1, 1, 2]))
            after = random.uniform(0, self._pace.working)
        time.sleep(after)
        killed = kill(server, random.choice(["all", "all", "python", "java"]))
        return killed, step(self._warehouse, [what for _, what in self._ingest.said()])


def step(warehouse: Path, said: list[str]) -> Step | None:
    """What the files, and what the process had said, tell of a kill; None = there was nothing to do."""
    checkpoint = _newest(warehouse / "_checkpoints")
    planned, done = (_last(checkpoint / name) if checkpoint else -1 for name in ("offsets", "commits"))
    if not said:
        return Step.STARTING
    if checkpoint is None or planned <= done:
        return Step.READING if said[-1].startswith("reading") and said[-1] != "reading 0 offsets" else None
    written = [name for name in (*_TABLES, "ingested") if _version(warehouse / name, checkpoint.name) >= planned]
    if "ingested" in written:
        return Step.CLOSING
    since = (checkpoint / "offsets" / str(planned)).stat().st_mtime
    if any(_unfinished(warehouse / name, since) for name in (*_TABLES, "ingested")):
        return Step.WRITING
    return Step.BETWEEN if written else Step.READING


def kill(server: Server, what: str) -> str:
    """SIGKILL to all of its processes, or to one of them, and the others end by themselves. Answers with which."""
    java = list(_java(server.pid))
    if what == "java" and not java:
        what = "python"
    if what == "all":
        server.send(signal.SIGKILL)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid if what == "python" else java[0], signal.SIGKILL)
    wait_for(lambda: server.exit_code() is not None, "the end of what was killed")
    wait_for(lambda: not any(map(_runs, java)), "the end of Java after that of Python")
    return what


def differences(bootstrap: str, warehouse: Path) -> list[str]:
    """What is wrong in the tables, as far as they say that they are finished; nothing = they equal the log."""
    covered, batch = _finished(warehouse)
    if not covered:
        return []
    log, found = expected(read(bootstrap)), []
    for (name, columns), rows in zip(_TABLES.items(), (log.commits, log.states), strict=True):
        held = _query(warehouse / name, f"SELECT {_selected(columns)} FROM t WHERE batch <= {batch}")  # noqa: S608
        wanted = {row for row in rows if row[1] < covered.get(row[0], 0)}
        wrong = {
            "doubled": len(held) - len(set(held)),
            "lost": len(wanted - set(held)),
            "not in the log": len(set(held) - wanted),
        }
        found += [f"{count} of {len(wanted)} {name} {what}" for what, count in wrong.items() if count]
    return found


def main() -> int:
    options = _options()
    random.seed(options.seed)
    click.echo(f"seed {options.seed}")
    failed, met = 0, Counter[Step | None]()
    with KafkaCluster(config={"offsets.topic.num.partitions": "8"}) as kafka, Keeper() as keeper:
        bootstrap, warehouse = kafka.bootstrap_servers, keeper.scratch / "warehouse"
        ingest = Ingest(keeper, bootstrap, warehouse)
        with Committers(bootstrap) as committers:
            # The first kill meets an ingest that never wrote anything: the measured runs have tables of their own.
            kills = Kills(ingest, warehouse, Pace.of(Ingest(keeper, bootstrap, keeper.scratch / "undisturbed")))
            while (count := met.total() - met[None]) < options.kills:
                if met[None] > 2 * options.kills + 5:
                    raise NotReached("most kills come when all is done")
                what, where = kills.one()
                met[where] += 1
                name = f"kill {count + 1:2} of {what}, {where}" if where else f"        of {what}, when all was done"
                failed += _tell(name, differences(bootstrap, warehouse))
            committers.end()
        ingest.complete()
        problems = differences(bootstrap, warehouse)
        covered = _finished(warehouse)[0]
        if covered != ends(bootstrap):
            problems.append("the log was not read to its end")
        failed += _tell(f"the last run, up to offset {sum(covered.values()):,}", problems)
    click.echo(f"{options.kills} kills: {', '.join(f'{met[where]} {where}' for where in Step)}")
    click.echo(f"not counted, as all was done: {met[None]}")
    click.echo(f"{met.total() + 1 - failed} passed, {failed} failed")
    return int(failed > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults.ingest_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the points in time")
    return parser.parse_args()


def _tell(what: str, problems: list[str]) -> int:
    click.echo(f"{what}: {', '.join(problems) or 'equals the log'}")
    return int(bool(problems))


def _query(table: Path, sql: str) -> list[Row]:
    answer = QueryBuilder().register("t", DeltaTable(str(table))).execute(sql).read_all()
    columns: list[Any] = [answer.column(index).to_pylist() for index in range(answer.num_columns)]
    return list(zip(*columns, strict=True))


def _selected(columns: Iterable[str]) -> str:
    # A timestamp is a number of microseconds.
    return ", ".join("CAST(record_time AS BIGINT) / 1000" if name == "record_ms" else f'"{name}"' for name in columns)


def _finished(warehouse: Path) -> tuple[dict[int, int], int]:
    """By log partition, up to where the tables are finished; and the last batch of which that is said."""
    try:
        rows = _query(warehouse / "ingested", "SELECT log_partition, covered_to, batch FROM t")
    except TableNotFoundError:
        return {}, 0
    return {partition: offset for partition, offset, _ in rows}, max((row[2] for row in rows), default=0)


def _newest(folder: Path) -> Path | None:
    return max(folder.iterdir(), key=lambda entry: entry.stat().st_mtime, default=None) if folder.exists() else None


def _last(folder: Path) -> int:
    """The highest number that is the name of a file there."""
    names = [file.name for file in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _version(table: Path, stream: str) -> int:
    """The last batch of the stream that is in the table."""
    try:
        version = DeltaTable(str(table)).transaction_version(stream)
    except TableNotFoundError:
        return -1
    return -1 if version is None else version


def _unfinished(table: Path, since: float) -> bool:
    """Files came into the table since then, and no version of it names one of them."""
    try:
        named = {Path(name).name for name in DeltaTable(str(table)).file_uris()}
    except TableNotFoundError:
        named = set()
    return any(file.stat().st_mtime >= since and file.name not in named for file in table.glob("*.parquet"))


def _runs(pid: int) -> bool:
    """Not ended, nor ended and not yet fetched by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _java(pid: int) -> Iterator[int]:
    """The Java processes that descend from one."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in map(int, children):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/exe").readlink().name == "java":
                yield child
        yield from _java(child)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (FaultsError, NotReached, SandboxError) as error:
        click.echo(f"{error}\n0 passed, 1 failed")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
