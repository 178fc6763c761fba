"""Audits a scenario: groups wrongly deleted, backups missing, deletions unrecorded. All figures come from here.

Its inputs are the groups that a scenario made and used, the requests and responses of brokers, and the ledger's
committed records. It shares no code with the operator, and ignores statuses. Times are of one machine: when a request
was forwarded to the broker, and when the broker appended a record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from testing.faults.groups import LEADER_EPOCH, Groups, Offsets, metadata
from testing.faults.kafka_proxy import KafkaProxy
from testing.faults.operators import LEASE_SECONDS
from testing.faults.requests import DELETE_GROUPS, LIST_GROUPS, PRODUCE, deleted_groups, written
from testing.sandbox.ledger_log import LedgerLog, Record

# A broker has our clock, in whole milliseconds: a record may seem to be from before an event that it follows.
_TICK_S = 0.001


@dataclass
class _Life:
    """The facts of one group: its offsets and their times, and since when and why it must not be deleted."""

    offsets: list[tuple[float, dict[tuple[str, int], int]]]
    stays: tuple[float, str] | None = None


class Truth:
    """The facts of all groups of a scenario. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lives: dict[str, _Life] = {}

    def made(self, groups: Mapping[str, Offsets]) -> None:
        """Call this after groups were made, or offsets committed."""
        now = time.time()
        with self._lock:
            for name, offsets in groups.items():
                life = self._lives.setdefault(name, _Life([]))
                life.offsets.append((now, dict(offsets)))

    def stays(self, groups: Iterable[str], why: str) -> None:
        """From now on these groups must not be deleted: they are in use, requested to stay, or protected."""
        now = time.time()
        with self._lock:
            for name in groups:
                self._lives.setdefault(name, _Life([])).stays = (now, why)

    def free(self, groups: Iterable[str]) -> None:
        """These groups may be deleted again."""
        with self._lock:
            for name in groups:
                self._lives[name].stays = None

    def lives(self) -> dict[str, _Life]:
        with self._lock:
            return dict(self._lives)


@dataclass
class Audit:
    """Errors by category; a figure of the report is the length of a list."""

    deletions: int = 0
    wrong: list[str] = field(default_factory=list)
    no_backup: list[str] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)

    def add(self, other: Audit) -> None:
        self.deletions += other.deletions
        self.wrong += other.wrong
        self.no_backup += other.no_backup
        self.unrecorded += other.unrecorded

    @property
    def problems(self) -> list[str]:
        return [*self.wrong, *self.no_backup, *self.unrecorded]


@dataclass(frozen=True)
class _Deletion:
    """sent: when the operator sent the request. at: when the broker got it, which may be much later."""

    group: str
    sender: str
    sent: float
    at: float


@dataclass
class Auditor:
    """Of one connection. policy_uid, grace, max_per_run: of the policy under test; grace in seconds.

    late: how long after its date a mark may be written, in seconds.
    """

    groups: Groups
    proxy: KafkaProxy
    ledger: LedgerLog
    truth: Truth
    policy_uid: str
    grace: float
    max_per_run: int
    late: float = LEASE_SECONDS
    _known_ids: dict[str, str] = field(default_factory=dict)

    def audit(self) -> Audit:
        """Compare, once no run is active and no intent is open."""
        self.ledger.read()
        listed = self.groups.listed()
        lives = self.truth.lives()
        result = Audit()
        done = set()
        ids: dict[str, str] = {}
        deletions = self._deletions(listed, lives)
        for deletion in deletions:
            result.deletions += 1
            done.add(deletion.group)
            life = lives.get(deletion.group)
            result.wrong += self._wrong(deletion, life)
            id_ = self._intent(deletion)
            if life is not None:
                result.no_backup += self._no_backup(deletion, id_, life)
            result.unrecorded += self._unrecorded(deletion, id_, ids)
        for runs in self._runs(deletions).values():
            for groups in runs.values():
                result.wrong += [f"{name}: one too many for one run" for name in groups[self.max_per_run :]]
        for name in lives:
            if name not in listed and name not in done:
                result.wrong.append(f"{name}: gone, and no DeleteGroups for it was seen")
        return result

    def runs(self) -> dict[str, list[float]]:
        """Sender -> start of each of its runs with deletions."""
        found = self._runs(self._deletions(self.groups.listed(), self.truth.lives()))
        return {sender: sorted(runs) for sender, runs in found.items()}

    def open_intents(self) -> list[str]:
        """Groups with an intent that has no outcome yet."""
        self.ledger.read()
        return [key[1] for key in self.ledger.latest() if key[0] == "intent"]

    def recorded(self, groups: Iterable[str]) -> bool:
        """Whether the ledger records the deletion of each group."""
        self.ledger.read()
        in_ledger = {
            r.key[1] for r in self.ledger.records if r.value is not None and r.key[0] == "outcome" and _deleted(r)
        }
        return set(groups) <= in_ledger

    def _runs(self, deletions: Iterable[_Deletion]) -> dict[str, dict[float, list[str]]]:
        """Sender -> start of a run -> its deleted groups. A run begins with a list of all groups."""
        looks: dict[str, list[float]] = {}
        for exchange in self.proxy.seen(LIST_GROUPS):
            looks.setdefault(exchange.sender, []).append(exchange.sent)
        runs: dict[str, dict[float, list[str]]] = {}
        for deletion in deletions:
            begun = max((at for at in looks.get(deletion.sender, ()) if at <= deletion.sent), default=0.0)
            runs.setdefault(deletion.sender, {}).setdefault(begun, []).append(deletion.group)
        return runs

    def _deletions(self, listed: set[str], lives: Mapping[str, _Life]) -> list[_Deletion]:
        """The deletions by brokers, in order. A request without a response deleted the groups that are gone."""
        found: list[_Deletion] = []
        certain: set[str] = set()
        maybe: list[_Deletion] = []
        for exchange in self.proxy.seen(DELETE_GROUPS):
            if not exchange.sender:
                continue
            for group, code in deleted_groups(exchange).items():
                deletion = _Deletion(group, exchange.sender, exchange.sent, exchange.forwarded)
                if code == 0:
                    found.append(deletion)
                    certain.add(group)
                elif code is None and group not in listed:
                    maybe.append(deletion)
        # Of several requests without a response, the last one counts.
        last = {deletion.group: deletion for deletion in maybe if deletion.group not in certain}
        found += [each for each in last.values() if each.group in lives]
        return sorted(found, key=lambda deletion: deletion.at)

    def _wrong(self, deletion: _Deletion, life: _Life | None) -> list[str]:
        name, at = deletion.group, deletion.at
        if life is None:
            return [f"{name}: {deletion.sender} deleted it, but the scenario never made it"]
        if life.stays is not None and life.stays[0] <= at:
            return [f"{name}: deleted by {deletion.sender}, though {life.stays[1]}"]
        mark = self.ledger.before(("mark", self.policy_uid, name), at)
        if mark is None:
            return [f"{name}: deleted by {deletion.sender} without a mark"]
        since = _time(mark.value["since"])
        if mark.at - since > self.late:
            # No leader can have written it so late: it announced less time than its dates say.
            return [f"{name}: deleted by {deletion.sender} by a mark that was written {mark.at - since:.1f} s late"]
        if mark.at < since - _TICK_S or at - since < self.grace or at < _time(mark.value["due"]):
            return [
                f"{name}: deleted by {deletion.sender} {at - since:.3f} s after its mark, before its grace was over"
            ]
        changes = [when for when, _ in life.offsets[1:] if mark.at < when < at]
        if changes:
            return [f"{name}: deleted by {deletion.sender}, though it committed after its mark"]
        return []

    def _intent(self, deletion: _Deletion) -> str:
        """The id of the intent that was open when the request was sent; empty = none."""
        key = ("intent", deletion.group)
        found = self.ledger.before(key, deletion.sent)
        if found is not None:
            return str(found.value["id"])
        if not self.ledger.compacted(key):
            return ""
        # Compaction may have removed the intent: the proxy's log of written records has it.
        ids = [
            str(value["id"])
            for exchange in self.proxy.seen(PRODUCE)
            if exchange.sender and exchange.forwarded <= deletion.sent
            for written_key, value in written(exchange)
            if tuple(written_key) == key and value is not None
        ]
        return ids[-1] if ids else ""

    def _no_backup(self, deletion: _Deletion, id_: str, life: _Life) -> list[str]:
        """The backup of this deletion must contain all offsets of the group, and no others."""
        had = [offsets for when, offsets in life.offsets if when <= deletion.at]
        if not had:
            return []
        parts = [
            record.value
            for record in self.ledger.of("backup", deletion.group)
            if record.key[2] == id_ and record.at <= deletion.at and self.ledger.stands(record)
        ]
        wanted = {
            (topic, partition): (offset, LEADER_EPOCH, metadata(deletion.group, topic, partition, offset))
            for (topic, partition), offset in had[-1].items()
        }
        if _saved(parts) != (wanted, self._topic_ids({topic for topic, _ in wanted})):
            return [f"{deletion.group}: deleted by {deletion.sender}; {len(parts)} parts of a backup, not what it had"]
        return []

    def _topic_ids(self, topics: set[str]) -> dict[str, str]:
        missing = topics - self._known_ids.keys()
        self._known_ids |= self.groups.topic_ids(missing)
        return {topic: self._known_ids[topic] for topic in topics & self._known_ids.keys()}

    def _unrecorded(self, deletion: _Deletion, id_: str, ids: dict[str, str]) -> list[str]:
        """There must be an intent before it, and its own outcome after it. ids: of earlier intents -> groups."""
        name = deletion.group
        if not id_:
            return [f"{name}: deleted by {deletion.sender} without an intent"]
        if id_ in ids:
            return [f"{name}: deleted twice by one intent"]
        ids[id_] = name
        for record in self.ledger.of("outcome", name):
            if _deleted(record) and record.key[2] == id_ and record.at >= deletion.at - _TICK_S:
                return []
        return [f"{name}: deleted, and the ledger has no outcome of that deletion"]


def _deleted(record: Record) -> bool:
    return isinstance(record.value, dict) and record.value.get("what") == "Deleted"


_Row = tuple[int, int, str]


def _saved(parts: list[dict[str, Any]]) -> tuple[dict[tuple[str, int], _Row], dict[str, str]] | None:
    """A backup's offset, leader epoch and metadata of each partition, and topic ids. None = a part is missing."""
    if not parts or {part["part"] for part in parts} != set(range(int(parts[0]["parts"]))):
        return None
    saved: dict[tuple[str, int], _Row] = {}
    ids: dict[str, str] = {}
    for part in parts:
        saved |= {(topic, row[0]): (row[1], row[2], row[3]) for topic, rows in part["offsets"].items() for row in rows}
        ids |= part["topic_ids"]
    return saved, ids


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
