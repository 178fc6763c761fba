"""What must hold before Kafka is changed, and the one object that changes it.

The preconditions are data: the operator's runs, every command and `doctor` use this one list. A proof answers None, or
why nothing may be changed. It reads only. To add one: `docs/adding-things.md`.

Runs of the operator, commands and restores go through `Executor`. It alone sends the requests of `kafka.changes`, and
writes the entries of `ledger.records`: backups, intents, outcomes, marks and requests to keep groups. It decides
nothing about a group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from math import inf
from typing import NamedTuple, Protocol, TypeVar

from group_hygiene.engine.context import Context, Memory
from group_hygiene.engine.uses import grown_refusal
from group_hygiene.errors import LedgerProblem
from group_hygiene.kafka import brokers, changes
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.offsets import wait_until_shown
from group_hygiene.ledger import ledger, records
from group_hygiene.ledger import topic as ledger_topic
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.ledger.journal import Journal
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, Change, Key, Removal
from group_hygiene.model.groups import Fault, GroupType, Offsets, Partition, Snapshot
from group_hygiene.model.reasons import Refusal
from group_hygiene.process.clock import Clock

__all__ = ["Executor", "Ledger", "may_create_ledger", "open_ledger"]

T = TypeVar("T")

# The time for an admin request to reach the broker: nothing is sent if less is left.
MARGIN_S = 1.0
NOT_LEADER = Refusal(reasons.NOT_LEADER, "this process does not lead any more, or not for long enough")

# How long to wait until brokers show new offsets of a share group.
_SHOWN_S = 5.0
_CLOCK: Key = ("clock",)


class Guard(Protocol):
    """Asked right before each change of Kafka."""

    def refusal(self) -> Refusal | None:
        """Why the run must end here: the policy or connection was edited, or the operator stops. None = continue."""

    def seconds_left(self) -> float:
        """For how long this process is certainly the only one that acts; 0 = not any more."""


class Moment(Enum):
    """When a precondition is proved."""

    OPENING = "for each run, before its ledger is opened"
    OPENED = "for each run, when its ledger is open"
    SCAN = "for each run that deletes, at the end of its scan"
    RESTORE = "for each restore, before its first group and then every ten seconds"
    DELETION = "right before each request that deletes"
    REQUEST = "right before each request that changes something, and each request to keep a group"
    SENDING = "again after the last read before a deletion; needs no request"


@dataclass(kw_only=True)
class ProofInput:
    """What proofs read. Of the optional fields, each moment has those that its preconditions need.

    memory: of the connection, with the ledger that is open. settings: of the ledger that the spec names. writes:
    whether the run may write the ledger. journal, clock, snapshot: of the run. topics: whether all topics are visible,
    as `Observation.topics`; None = not checked. guard: of the change; None = it changes only the ledger.
    """

    client: Client
    memory: Memory
    deadline: Deadline
    settings: LedgerSettings | None = None
    writes: bool = False
    journal: Journal | None = None
    clock: Clock | None = None
    snapshot: Snapshot | None = None
    topics: Refusal | None = None
    guard: Guard | None = None


class Precondition(NamedTuple):
    """docsite/preconditions.yaml says from which harm it protects, and what the proof relies on."""

    name: str
    moments: tuple[Moment, ...]
    prove: Callable[[ProofInput], Refusal | None]


def refusals(case: ProofInput, *moments: Moment) -> Iterator[Refusal]:
    """The refusals of the preconditions of these moments, in order, each proved when it is asked for."""
    for precondition in PRECONDITIONS:
        if set(moments).intersection(precondition.moments) and (refusal := precondition.prove(case)) is not None:
            yield refusal


def _cluster(case: ProofInput) -> Refusal | None:
    found = kafka_cluster.read_identity(case.client, case.deadline)
    if isinstance(found, Fault):
        return Refusal(reasons.LEDGER_UNAVAILABLE, f"the id of the cluster could not be read: {found}")
    return case.memory.other_cluster(found.id)


def _ledger_topic(case: ProofInput) -> Refusal | None:
    settings = _given(case.settings)
    known = case.memory.ledger_topic or settings.known_topic
    if known in (None, settings.topic):
        return None
    message = (
        f"the ledger is in the topic {known}, and spec.ledger.topic names {settings.topic}: set it back to {known}. "
        "A ledger does not move: marks, backups and requests to keep a group would be lost"
    )
    return Refusal(reasons.LEDGER_CHANGED, message)


def _transactions(case: ProofInput) -> Refusal | None:
    if not case.writes:
        return None
    settings, cluster = _given(case.settings), kafka_cluster.read_identity(case.client, case.deadline)
    if isinstance(cluster, Fault):
        return Refusal(reasons.LEDGER_UNAVAILABLE, f"the brokers could not be read: {cluster}")
    writer, timeout = settings.writer, settings.transaction_timeout
    problem = brokers.transaction_problem(case.client, cluster, writer, timeout, case.deadline)
    if problem is None:
        return None
    return Refusal(reasons.LEDGER_UNAVAILABLE, f"the ledger can't be written: {problem.message}")


def _tried(read: Callable[[Deadline], None], deadline: Deadline) -> Refusal | None:
    try:
        read(deadline)
    except LedgerProblem as error:
        return Refusal.of(error)
    return None


def _ledger_records(case: ProofInput) -> Refusal | None:
    hidden = _given(case.journal).contents.hidden_summary
    return Refusal(reasons.RECORD_UNREADABLE, hidden) if hidden else None


def _topics_visible(case: ProofInput) -> Refusal | None:
    # A backup would lack offsets of topics that the user may not DESCRIBE.
    visible = case.topics is None or case.topics.reason in (reasons.TOPICS_VISIBLE, reasons.TOPICS_ATTESTED)
    return None if visible else case.topics


def _clocks(case: ProofInput) -> Refusal | None:
    journal = _given(case.journal)
    # Without anything written there is no broker's time yet; a deletion has written its intent.
    return journal.skew(_given(case.clock).now()) if journal.has_written else None


def _given(value: T | None) -> T:
    if value is None:
        raise RuntimeError("a precondition was proved without its input")
    return value


PRECONDITIONS = (
    Precondition("cluster id", (Moment.OPENING,), _cluster),
    Precondition("ledger's topic", (Moment.OPENING,), _ledger_topic),
    Precondition("transactions", (Moment.OPENING,), _transactions),
    Precondition(
        "ledger's content", (Moment.OPENED,), lambda case: _tried(_given(case.memory.ledger).read_on, case.deadline)
    ),
    Precondition(
        "ledger's settings",
        (Moment.OPENED,),
        lambda case: _tried(_given(case.memory.ledger).check_settings, case.deadline),
    ),
    Precondition("ledger's records", (Moment.SCAN, Moment.DELETION), _ledger_records),
    Precondition("clocks", (Moment.SCAN, Moment.RESTORE, Moment.DELETION, Moment.SENDING), _clocks),
    Precondition(
        "partitions of the offsets log",
        (Moment.SCAN, Moment.RESTORE),
        lambda case: grown_refusal(case.memory.grown),
    ),
    Precondition(
        "all groups",
        (Moment.SCAN,),
        lambda case: None if _given(case.snapshot).complete else _given(case.snapshot).refusal,
    ),
    Precondition("all topics", (Moment.SCAN,), _topics_visible),
    Precondition(
        "unchanged objects", (Moment.REQUEST,), lambda case: None if case.guard is None else case.guard.refusal()
    ),
    Precondition(
        "lead",
        (Moment.REQUEST, Moment.SENDING),
        lambda case: None if case.guard is None or case.guard.seconds_left() >= MARGIN_S else NOT_LEADER,
    ),
)


@dataclass(frozen=True, slots=True)
class Executor:
    """The changes of one run. guard: of the run; None = it changes only the ledger, which its writer's epoch guards."""

    context: Context
    guard: Guard | None = None

    def refusal(self, deadline: Deadline, *moments: Moment) -> Refusal | None:
        """Why nothing may be changed at these moments: the first precondition that does not hold; None = all hold."""
        return next(self.refusals(deadline, *moments), None)

    def refusals(
        self, deadline: Deadline, *moments: Moment, snapshot: Snapshot | None = None, topics: Refusal | None = None
    ) -> Iterator[Refusal]:
        """The refusals of all preconditions that don't hold. snapshot, topics: see `ProofInput`."""
        context = self.context
        case = ProofInput(
            client=context.client,
            memory=context.memory,
            deadline=deadline,
            journal=context.journal,
            clock=context.clock,
            guard=self.guard,
            snapshot=snapshot,
            topics=topics,
        )
        return refusals(case, *moments)

    def seconds_left(self) -> float:
        """For how long this process may act. See `Guard`."""
        return inf if self.guard is None else self.guard.seconds_left()

    def record(
        self, entries: Sequence[Change], deadline: Deadline | None = None, until: Deadline | None = None
    ) -> Refusal | None:
        """Write entries that must not be lost, all or none, and read them back; see `records.record`.

        Raises LedgerFenced.
        """
        return records.record(self.context.journal, entries, deadline, until)

    def broker_time(self, deadline: Deadline | None = None) -> datetime | Refusal:
        """The broker's time now, by a tombstone in the ledger under a key that no entry has: no request returns it."""
        problem = self.record([Removal(_CLOCK)], deadline)
        unknown = Refusal(reasons.CLOCK_SKEW, "the broker's time of a write to the ledger is not known")
        return problem or self.context.journal.stamp or unknown

    def end(self, entries: Sequence[Change]) -> None:
        """Apply changes that end entries: they count at once, and are written as soon as the ledger can be."""
        records.end(self.context.journal, entries)

    def delete_groups(self, coordinators: Mapping[str, int | None], deadline: Deadline) -> dict[str, Fault | None]:
        """See `changes.delete_groups`."""
        return changes.delete_groups(self.context.client, coordinators, deadline)

    def delete_offsets(
        self, group: str, partitions: Collection[Partition], deadline: Deadline, coordinator: int | None
    ) -> dict[Partition, Fault | None]:
        """See `changes.delete_offsets`."""
        return changes.delete_offsets(self.context.client, group, partitions, deadline, coordinator)

    def restore_offsets(
        self, backup: Backup, coordinator: int | None, offsets: Offsets, deadline: Deadline
    ) -> dict[Partition, Fault | None]:
        """Set these offsets of the backup's group, by one request each: for each partition None = set, else the Fault.

        Commits name topics by the backup's ids, if the brokers support that. Requests for share groups name topics by
        their names, as Kafka has no other way; OffsetCommit under the id of a deleted share group would create a
        Classic group that excludes its consumers. coordinator: None = look it up.
        """
        client, name = self.context.client, backup.group
        if backup.type != GroupType.SHARE:
            return changes.commit_offsets(client, name, offsets, deadline, coordinator, backup.topic_ids)
        answers = changes.set_share_offsets(client, name, offsets, deadline, coordinator)
        set_ = {place for place, fault in answers.items() if fault is None}
        wait_until_shown(client, {name: coordinator}, set_, Deadline(_SHOWN_S))
        return answers


def open_ledger(
    client: Client, settings: LedgerSettings, deadline: Deadline, create: bool, claim: bool = False
) -> Ledger | None:
    """See `ledger.open_ledger`; with `create`, creates the topic if there is none. Raises LedgerProblem."""
    return ledger.open_ledger(client, settings, deadline, changes.create_topic if create else None, claim)


def may_create_ledger(client: Client, topic: str, replication_factor: int, deadline: Deadline) -> Fault | None:
    """Why the ledger's topic could not be created; creates nothing."""
    return ledger_topic.may_create(client, topic, replication_factor, deadline, changes.create_topic)
