"""The demo's Kafka clients: long-running ones, in threads, and an independent view of the cluster.

`sandbox.example_groups` has the groups, and why each exists.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from testing.sandbox.errors import SandboxError
from testing.sandbox.ledger_log import LedgerLog

TIMEOUT = 90.0
# librdkafka writes to stderr by itself, for example when the cluster is stopped at the end.
QUIET = {"log_level": 0}

Position = tuple[str, int]
LEDGER = "__group_hygiene"
Work = Generator[int, None, None]


class Client:
    """A client that runs until `stop`, in its own thread, since a consumer belongs to the thread that made it.

    `work` yields repeatedly how many things it has just done (records read, commits made); its `finally` closes its
    resources.
    """

    def __init__(self, name: str, work: Callable[[], Work]) -> None:
        self.name = name
        self.done = 0
        self.error: str | None = None
        self._work = work
        self._stopping = threading.Event()
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> "Client":
        """Start it and wait until it has done something."""
        self._thread.start()
        if not self.wait_for(1):
            raise SandboxError(f"client {self.name}: {self.error or 'did nothing'}")
        return self

    def wait_for(self, done: int, timeout: float = TIMEOUT) -> bool:
        """Whether it has done that many things in time and without an error."""
        with self._progress:
            self._progress.wait_for(lambda: self.done >= done or self.error is not None, timeout)
            return self.done >= done and self.error is None

    def stop(self) -> None:
        """Ask it to stop; `join` waits for it."""
        self._stopping.set()

    def join(self, timeout: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        work = self._work()
        try:
            for count in work:
                with self._progress:
                    self.done += count
                    self._progress.notify_all()
                if self._stopping.is_set():
                    break
            work.close()
        except Exception as error:
            if not self._stopping.is_set():
                with self._progress:
                    self.error = f"{type(error).__name__}: {error}"
                    self._progress.notify_all()


@dataclass(frozen=True)
class Seen:
    """One group as Kafka shows it. `waiting` = records after the committed offsets."""

    state: str
    offsets: Mapping[Position, int]
    waiting: int


@dataclass(frozen=True)
class Ledger:
    """The operator's ledger. backups: group -> partition -> offset, of complete ones; deleted: groups.

    why: group -> why it was due.
    """

    backups: Mapping[str, Mapping[Position, int]] = field(default_factory=dict)
    deleted: frozenset[str] = frozenset()
    why: Mapping[str, str] = field(default_factory=dict)


class View:
    """Kafka's own view of its groups, read with another library than the operator's."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin: Any = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def states(self) -> dict[str, str]:
        """Group -> state, of all groups."""
        found = self._admin.list_consumer_groups(request_timeout=TIMEOUT).result(TIMEOUT)
        return {row.group_id: row.state.name.title().replace("_", "") for row in found.valid}

    def offsets(self, groups: Iterable[str]) -> dict[str, dict[Position, int]]:
        """Group -> partition -> committed offset."""
        # The library takes one group per call, so all calls are made before waiting for the first response.
        asked = {
            group: self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
            for group in groups
        }
        return {
            group: {(p.topic, p.partition): p.offset for p in answer.result(TIMEOUT).topic_partitions if p.offset >= 0}
            for group, answer in asked.items()
        }

    def groups(self) -> dict[str, Seen]:
        """Every group with all facts that the demo shows."""
        states = self.states()
        offsets = self.offsets(states)
        ends = self._ends({position for committed in offsets.values() for position in committed})
        return {
            group: Seen(state, offsets[group], sum(max(0, ends[p] - at) for p, at in offsets[group].items()))
            for group, state in states.items()
        }

    def ledger(self) -> Ledger:
        """The ledger, read as any program could: a compacted topic whose keys and values are JSON."""
        found: dict[tuple[str, str], list[Any]] = {}
        deleted: set[str] = set()
        for record in LedgerLog(self._bootstrap, LEDGER).read():
            (kind, *key), value = record.key, record.value
            if value is None:
                continue
            if kind == "outcome" and value["what"] == "Deleted":
                deleted.add(key[0])
            elif kind == "backup":
                group, deletion, _part = key
                found.setdefault((group, deletion), []).append(value)
        backups = {
            group: {
                (topic, number): offset
                for part in parts
                for topic, rows in part["offsets"].items()
                for number, offset, *_ in rows
            }
            for (group, _), parts in found.items()
            if len(parts) == parts[0]["parts"]
        }
        why = {group: parts[0]["evidence"] for (group, _), parts in found.items()}
        return Ledger(backups, frozenset(deleted), why)

    def _ends(self, positions: Iterable[Position]) -> dict[Position, int]:
        wanted = {TopicPartition(*position): OffsetSpec.latest() for position in positions}
        if not wanted:
            return {}
        answers = self._admin.list_offsets(wanted, request_timeout=TIMEOUT)
        return {(p.topic, p.partition): answer.result(TIMEOUT).offset for p, answer in answers.items()}
