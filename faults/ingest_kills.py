"""`python -m faults.ingest_kills`: SIGKILL to the ingest at random points, while groups commit.

After each kill, and after a last run that is left alone, what the tables say is finished must equal the log: each
commit once, to the last column. Last line: `N passed, 0 failed`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from faults.errors import FaultsError, NotReached
from faults.offsets_log import Row, expected, read
from faults.waiting import wait_for
from sandbox.errors import SandboxError
from sandbox.kafka import KafkaCluster
from sandbox.process import Command, Keeper, Server
from sandbox.spark.jars import jars

KILLS = 20
_GROUPS = 40
_TOPIC = "orders"
_COLUMNS = (
    *("log_partition", "log_offset", "record_ms", "group", "topic", "partition"),
    *("committed_offset", "leader_epoch", "metadata", "commit_ms", "aborted"),
)
_END_SECONDS = 600.0


class Committers:
    """Groups that commit all the time, one in eight in a transaction, of which every second one is aborted."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ending = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        AdminClient({"bootstrap.servers": bootstrap}).create_topics([NewTopic(_TOPIC, 4, 1)])[_TOPIC].result()

    def __enter__(self) -> Committers:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()
        if self._failure is not None:
            raise FaultsError(f"the committers failed: {self._failure}")

    def _run(self) -> None:
        try:
            self._commit()
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
        return self._keeper.start("ingest", Command([*self._command, *options], self._log))

    def wait_until_reading(self, server: Server) -> None:
        """Until it has written once, so that a kill meets something."""

        def reading() -> bool:
            if server.exit_code() is not None:
                raise FaultsError(f"the ingest ended by itself:\n{server.log_tail()}")
            return self._log.exists() and "ingest:" in self._log.read_text()

        wait_for(reading, "the first batch", _END_SECONDS)

    def complete(self) -> None:
        """A run that nobody disturbs."""
        server = self.start("--once")
        wait_for(lambda: server.exit_code() is not None, "the end of the last run", _END_SECONDS)
        if server.exit_code() != 0:
            raise FaultsError(f"the ingest failed:\n{server.log_tail()}")


def kill(server: Server, what: str) -> None:
    """SIGKILL to all of its processes, or to one of them, and the others end by themselves."""
    if what == "all":
        server.send(signal.SIGKILL)
    else:
        pid = server.pid if what == "python" else next(_java(server.pid), server.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: server.exit_code() is not None, "the end of what was killed")


def differences(bootstrap: str, warehouse: Path) -> list[str]:
    """What is wrong in the tables, as far as they say that they are finished; nothing = they equal the log."""
    try:
        ingested = _query(warehouse / "ingested", "SELECT log_partition, covered_to, batch FROM t")
    except TableNotFoundError:
        return []
    covered = {partition: offset for partition, offset, _ in ingested}
    batch = max((row[2] for row in ingested), default=0)
    selected = ", ".join(
        "CAST(date_part('epoch', record_time) * 1000 AS BIGINT)" if name == "record_ms" else f'"{name}"'
        for name in _COLUMNS
    )
    held = _query(warehouse / "commits", f"SELECT {selected} FROM t WHERE batch <= {batch}")  # noqa: S608
    wanted = [row for row in expected(read(bootstrap)).commits if row[1] < covered.get(row[0], 0)]
    doubles = len(held) - len(set(held))
    lost, alien = set(wanted) - set(held), set(held) - set(wanted)
    found = {"doubled": doubles, "lost": len(lost), "not in the log": len(alien)}
    return [f"{count} of {len(wanted)} commits {what}" for what, count in found.items() if count]


def main() -> int:
    options = _options()
    random.seed(options.seed)
    click.echo(f"seed {options.seed}")
    failed = 0
    with KafkaCluster(config={"offsets.topic.num.partitions": "8"}) as kafka, Keeper() as keeper:
        bootstrap, warehouse = kafka.bootstrap_servers, keeper.scratch / "warehouse"
        ingest = Ingest(keeper, bootstrap, warehouse)
        with Committers(bootstrap) as committers:
            for number in range(1, options.kills + 1):
                server = ingest.start("--continuous", "--every", "1s")
                what = random.choice(["all", "all", "python", "java"])
                after = random.uniform(0, 10)
                # One in five while it starts.
                if random.random() < 0.8:
                    ingest.wait_until_reading(server)
                time.sleep(after)
                kill(server, what)
                failed += _tell(f"kill {number:2} of {what}, after {after:4.1f} s", differences(bootstrap, warehouse))
            committers.end()
        ingest.complete()
        problems = differences(bootstrap, warehouse)
        whole = sum(row[1] for row in _query(warehouse / "ingested", "SELECT log_partition, covered_to FROM t"))
        failed += _tell(f"the last run, up to offset {whole:,}", problems)
    click.echo(f"{options.kills + 1 - failed} passed, {failed} failed")
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


def _java(pid: int) -> Iterator[int]:
    """The Java processes that descend from one."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if Path(f"/proc/{child}/exe").resolve().name == "java":
            yield int(child)
        yield from _java(int(child))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (FaultsError, NotReached, SandboxError) as error:
        click.echo(f"{error}\n0 passed, 1 failed")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
