"""The one object that changes Kafka: runs of the operator, commands and restores go through it.

It alone sends the requests of `kafka.changes`, and writes the entries of `ledger.records`: backups, intents, outcomes,
marks and requests to keep groups. It decides nothing about a group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf

from group_hygiene.kafka import changes
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.offsets import wait_until_shown
from group_hygiene.ledger import ledger, records
from group_hygiene.ledger import topic as ledger_topic
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, Change, Key, Removal
from group_hygiene.model.groups import Fault, GroupType, Offsets, Partition, Snapshot
from group_hygiene.model.reasons import Refusal
from group_hygiene.reconcile.context import Context
from group_hygiene.reconcile.preconditions import Guard, Moment, ProofInput, refusals

__all__ = ["Executor", "Ledger", "may_create_ledger", "open_ledger"]

_SHOWN_S = 5.0
_CLOCK: Key = ("clock",)


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
