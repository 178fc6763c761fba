"""The requests that delete, what their answers prove, and whether they were carried out where answers prove nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from group_hygiene import reasons
from group_hygiene.entries import Intent
from group_hygiene.entries import Outcome as OutcomeEntry
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import (
    Fault,
    Group,
    GroupState,
    GroupType,
    Keep,
    Outcome,
    OutcomeKind,
    Partition,
)
from group_hygiene.naming import some_of
from group_hygiene.reconcile.context import Context
from group_hygiene.reconcile.rereading import Ready
from group_hygiene.snapshot import Description

_UNANSWERED = frozenset({"NETWORK_EXCEPTION", "REQUEST_TIMED_OUT", "NO_ANSWER"})
# A coordinator answers these, and AUTHORIZATION_FAILED, only where it wrote nothing. All others may follow a write that
# is in the log: NOT_COORDINATOR when the coordinator unloads before the write is replicated, COORDINATOR_NOT_AVAILABLE
# when that takes too long (CoordinatorRuntime of Kafka 4), and whatever code a later version adds.
_REFUSALS = frozenset({"NON_EMPTY_GROUP", "INVALID_GROUP_ID", "GROUP_SUBSCRIBED_TO_TOPIC"})
_DENIED = "AUTHORIZATION_FAILED"
# Why a group stays that count as failures of the run.
_FAILURES = frozenset({reasons.DENIED, reasons.OFFSETS_UNKNOWN, reasons.DELETE_FAILED})
_NAMES = 5
NOT_SENT = "not sent: there was no time left"
# How many records a group has beside its offsets, at most, while nobody is in it.
_GROUP_RECORDS = 8


class Gone(NamedTuple):
    """What is there no more of what was to be deleted. all: the whole of it; None = nobody can say now."""

    all: bool | None
    topics: frozenset[str] = frozenset()


class Unsettled(NamedTuple):
    """A deletion that may have been carried out, or may be yet, in whole or in part: its intent and its backup stay.

    outcome: what is known of it now; a later run finds out the rest.
    """

    outcome: Outcome


Result = Outcome | Unsettled


def not_deleted(name: str, keep: Keep) -> Outcome:
    """The outcome of a group that stays: Failed where an operator of the cluster has something to mend, else Kept."""
    kind = OutcomeKind.FAILED if keep.reason in _FAILURES else OutcomeKind.KEPT
    return Outcome(name, kind, keep.reason, keep.message)


def delete_groups(context: Context, ready: Mapping[str, Ready], deadline: Deadline) -> dict[str, Result]:
    """Delete each group, asked once (KIP-229); those for which the deadline leaves no time are not in the results.

    Groups whose tombstones may be too much for one write of the broker are not in one request. The limit is one of each
    offsets partition, but few requests are saved by distinguishing these.
    """
    results: dict[str, Result] = {}
    sizes = {name: tombstone_bytes(each) for name, each in ready.items()}
    for names in kafka_offsets.in_chunks(sizes, context.memory.write_bytes):
        if deadline.left <= 0:
            break
        homes = {name: ready[name].coordinator for name in names}
        answers = kafka_groups.delete_groups(context.client, homes, deadline)
        results |= {name: result_of_group(name, answer, ready[name].group.type) for name, answer in answers.items()}
    return results


def tombstone_bytes(ready: Ready) -> int:
    """What the tombstones of a group take at most. Start offsets of share groups are not in `__consumer_offsets`."""
    name = ready.group.id
    places = () if ready.group.type is GroupType.SHARE else ready.offsets
    return own_bytes(name) + sum(kafka_offsets.record_bytes(name, place.topic) for place in places)


def own_bytes(group: str) -> int:
    """What the tombstones of a group take at most beside those of its offsets."""
    return _GROUP_RECORDS * kafka_offsets.record_bytes(group)


def delete_offsets(context: Context, ready: Mapping[str, Ready], deadline: Deadline) -> dict[str, Result]:
    """Delete the offsets of each group, asked once (KIP-496).

    A request holds one group only. Groups for which the deadline leaves no time are not in the results.
    """
    results: dict[str, Result] = {}
    for name, each in ready.items():
        if deadline.left <= 0:
            break
        answers: dict[Partition, Fault | None] = {}
        places = dict.fromkeys(sorted(each.offsets), "")
        for chunk in kafka_offsets.write_chunks(name, places, context.memory.write_bytes):
            answers |= kafka_offsets.delete_offsets(context.client, name, chunk, deadline, each.coordinator)
        results[name] = result_of_offsets(name, answers)
    return results


def are_gone(context: Context, entries: Iterable[Intent | OutcomeEntry], deadline: Deadline) -> dict[str, Gone]:
    """Whether each group, or its offsets of those topics, is there no more."""
    whole: dict[str, GroupType] = {}
    parts: dict[str, frozenset[str]] = {}
    for entry in entries:
        if entry.topics:
            parts[entry.group] = frozenset(entry.topics)
        else:
            whole[entry.group] = type_of(entry.type)
    return _groups_gone(context, whole, deadline) | _offsets_gone(context, parts, deadline)


def _groups_gone(context: Context, groups: Mapping[str, GroupType], deadline: Deadline) -> dict[str, Gone]:
    asked = [Group(name, kind, "", GroupState.UNKNOWN, -1) for name, kind in groups.items()]
    described = kafka_groups.describe_groups(context.client, asked, deadline)

    def gone(answer: Description | Fault) -> bool | None:
        if isinstance(answer, Fault):
            return True if answer.code == "GROUP_ID_NOT_FOUND" else None
        return answer.group.state is GroupState.DEAD

    return {name: Gone(gone(described[name])) for name in groups}


def _offsets_gone(context: Context, topics: Mapping[str, frozenset[str]], deadline: Deadline) -> dict[str, Gone]:
    committed = kafka_offsets.committed_offsets(context.client, dict.fromkeys(topics), deadline)
    found: dict[str, Gone] = {}
    for name, offsets in committed.items():
        if isinstance(offsets, Fault):
            found[name] = Gone(None)
            continue
        gone = topics[name].difference(place.topic for place in offsets)
        found[name] = Gone(gone == topics[name], gone)
    return found


def _refuses(fault: Fault) -> bool:
    return fault.code in _REFUSALS or fault.code.endswith(_DENIED)


def unsettled(name: str, fault: Fault) -> Unsettled:
    """The result where a request may have been carried out, or may be yet."""
    if fault.code in _UNANSWERED:
        unknown = "no answer: a later run finds out what became of it"
        return Unsettled(Outcome(name, OutcomeKind.KEPT, reasons.INTERRUPTED, unknown))
    message = f"{fault}: it may be carried out all the same, so its backup stays; a later run finds out"
    return Unsettled(Outcome(name, OutcomeKind.FAILED, reasons.DELETE_FAILED, message))


def result_of_group(name: str, fault: Fault | None, kind: GroupType = GroupType.CLASSIC) -> Result:
    """What the answer to DeleteGroups proves; None = no error."""
    if fault is None:
        return Outcome(name, OutcomeKind.DELETED, reasons.DELETED, "deleted")
    if not _refuses(fault):
        return unsettled(name, fault)
    if fault.code == "NON_EMPTY_GROUP":
        message = "somebody joined it just now"
        if kind is GroupType.SHARE:
            message += (
                "; brokers may have erased its start offsets first: its backup has them, so look whether it goes on"
            )
        return Outcome(name, OutcomeKind.KEPT, reasons.BECAME_ACTIVE, message)
    return _refused(name, fault)


def result_of_offsets(name: str, answers: Mapping[Partition, Fault | None]) -> Result:
    """What the answers to OffsetDelete prove, None = no error.

    Whatever went must be restorable, so that one partition is enough for its topic to count as deleted.

    The broker refuses topics that a member subscribes to.
    """
    unclear = [fault for fault in answers.values() if fault is not None and not _refuses(fault)]
    if unclear:
        return unsettled(name, next((fault for fault in unclear if fault.code in _UNANSWERED), unclear[0]))
    done = {place.topic for place, fault in answers.items() if fault is None}
    left = {place: fault for place, fault in sorted(answers.items()) if fault is not None}
    if done:
        told = "; ".join(f"{place}: {fault}" for place, fault in list(left.items())[:_NAMES])
        message = f"offsets of {named(done)} deleted" + (f"; not of {told}" if left else "")
        return Outcome(name, OutcomeKind.DELETED, reasons.OFFSETS_DELETED, message, tuple(sorted(done)))
    place, fault = next(iter(left.items()))
    if fault.code == "GROUP_SUBSCRIBED_TO_TOPIC":
        return Outcome(name, OutcomeKind.KEPT, reasons.SUBSCRIBED, f"a member subscribed to {place.topic} just now")
    return _refused(name, fault)


def _refused(name: str, fault: Fault) -> Outcome:
    if fault.code.endswith(_DENIED):
        return not_deleted(name, Keep(reasons.DENIED, fault.message or "needs DELETE on the group"))
    return not_deleted(name, Keep(reasons.DELETE_FAILED, str(fault)))


def named(topics: Iterable[str]) -> str:
    """Some of the topics by name, and how many more."""
    return some_of(sorted(topics), _NAMES)


def type_of(kind: str) -> GroupType:
    """The type that an entry of the ledger names; Unknown for one that this program does not know."""
    try:
        return GroupType(kind)
    except ValueError:
        return GroupType.UNKNOWN
