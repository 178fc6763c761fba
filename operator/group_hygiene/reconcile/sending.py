"""The requests that delete, what their answers prove, and whether they were carried out where answers prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from group_hygiene import reasons
from group_hygiene.entries import Intent
from group_hygiene.entries import Outcome as OutcomeEntry
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka import permissions
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import (
    Fault,
    Group,
    GroupState,
    GroupType,
    Keep,
    Offsets,
    Outcome,
    OutcomeKind,
    Partition,
)
from group_hygiene.naming import some_of
from group_hygiene.reconcile.context import Context
from group_hygiene.reconcile.rereading import FRESH_S, Ready
from group_hygiene.snapshot import Description

_UNANSWERED = frozenset({"NETWORK_EXCEPTION", "REQUEST_TIMED_OUT", "NO_ANSWER"})
# A coordinator answers these, and AUTHORIZATION_FAILED, only where it wrote nothing. All others may follow a write that
# is in the log: NOT_COORDINATOR when the coordinator unloads before the write is replicated, COORDINATOR_NOT_AVAILABLE
# when that takes too long (CoordinatorRuntime of Kafka 4), and whatever code a later version adds.
_REFUSALS = frozenset({"NON_EMPTY_GROUP", "INVALID_GROUP_ID", "GROUP_SUBSCRIBED_TO_TOPIC"})
_DENIED = "AUTHORIZATION_FAILED"
_NAMES = 5
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


def delete_groups(context: Context, ready: Mapping[str, Ready], deadline: Deadline) -> dict[str, Result]:
    """Delete each group, asked once (KIP-229).

    Groups whose tombstones may be too much for one write of the broker are not in one request.
    """
    results: dict[str, Result] = {}
    for names in _packed({name: _bytes(each) for name, each in ready.items()}, context.memory.write_bytes):
        homes = {name: ready[name].coordinator for name in names}
        answers = kafka_groups.delete_groups(context.client, homes, deadline)
        results |= {name: _deleted(name, answer, ready[name].group.type) for name, answer in answers.items()}
    return results


def is_large(context: Context, ready: Ready) -> bool:
    """Whether the group's tombstones may be too much for one write of the broker, so that it takes several requests."""
    several = len(ready.offsets) > 1 and ready.group.type is not GroupType.SHARE
    return several and _bytes(ready) > context.memory.write_bytes


def delete_large_group(context: Context, ready: Ready, deadline: Deadline, stop: Callable[[], Keep | None]) -> Result:
    """Delete a group's offsets in chunks (KIP-496), and the group with the last of them, each asked once.

    Right before each request state and offsets are read again, and `stop` is asked: what was read before the first one
    is too old by then. Nothing is sent after the deadline.
    """
    client, name, left = context.client, ready.group.id, dict(ready.offsets)
    denied = _cannot_be_parted(context, ready, deadline)
    if denied is not None:
        return _stopped(ready, left, denied)
    # The group itself has some records too.
    size = max(1, context.memory.write_bytes - _GROUP_RECORDS * kafka_offsets.record_bytes(name))
    # Records that wait for the group are why it may go: should only a part of it go now, they must show it again.
    order = sorted(left, key=lambda place: (place.topic, ready.lag.get(place, 0) > 0, place.partition))
    *chunks, _ = kafka_offsets.write_chunks(name, dict.fromkeys(order, ""), size)
    for chunk in chunks:
        fresh = Deadline(min(FRESH_S, deadline.left))
        keep = stop() or _changed(context, ready, left, fresh)
        if keep is not None:
            return _stopped(ready, left, keep)
        answers = kafka_offsets.delete_offsets(client, name, chunk, fresh, ready.coordinator)
        faults = [fault for fault in answers.values() if fault is not None]
        if faults:
            result = _offsets_deleted(name, answers)
            if isinstance(result, Outcome) and result.kind is not OutcomeKind.DELETED:
                return _stopped(ready, left, Keep(result.reason, result.message))
            return _unsettled(name, faults[0])
        left = {place: commit for place, commit in left.items() if place not in answers}
    fresh = Deadline(min(FRESH_S, deadline.left))
    keep = stop() or _changed(context, ready, left, fresh)
    if keep is not None:
        return _stopped(ready, left, keep)
    (answer,) = kafka_groups.delete_groups(client, {name: ready.coordinator}, fresh).values()
    result = _deleted(name, answer, ready.group.type)
    if isinstance(result, Outcome) and result.kind is not OutcomeKind.DELETED:
        return _stopped(ready, left, Keep(result.reason, result.message))
    return result


def _cannot_be_parted(context: Context, ready: Ready, deadline: Deadline) -> Keep | None:
    """Why some of a group's offsets can't be deleted by OffsetDelete, which needs READ on each topic; None = all can.

    Found out before the first request: a group of which a part can't be deleted must not lose the others.
    """
    allowed = permissions.on_topics(context.client, deadline)
    if isinstance(allowed, Fault):
        return Keep(reasons.OFFSETS_UNKNOWN, f"what may be done with its topics could not be read: {allowed}")
    for topic in sorted({place.topic for place in ready.offsets}):
        operations = allowed.get(topic, frozenset())
        if operations is not None and permissions.Operation.READ not in operations:
            message = f"it is too large for one request, and to delete its offsets of {topic} needs READ on the topic"
            return Keep(reasons.DENIED, message)
    return None


def _bytes(ready: Ready) -> int:
    """What the tombstones of a group take at most. Start offsets of share groups are not in `__consumer_offsets`."""
    name = ready.group.id
    places = () if ready.group.type is GroupType.SHARE else ready.offsets
    own = _GROUP_RECORDS * kafka_offsets.record_bytes(name)
    return own + sum(kafka_offsets.record_bytes(name, place.topic) for place in places)


def _packed(sizes: Mapping[str, int], limit: int) -> Iterator[list[str]]:
    """The names in lists whose sizes add up to no more than `limit`; each has one at least.

    The limit is one of each offsets partition, but few requests are saved by telling these apart.
    """
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and total + size > limit:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    if names:
        yield names


def _changed(context: Context, ready: Ready, left: Offsets, deadline: Deadline) -> Keep | None:
    """Why a group that is Empty and has the offsets that are `left` is another one now; None = it is that."""
    name = ready.group.id
    group = replace(ready.group, coordinator=-1 if ready.coordinator is None else ready.coordinator)
    described = kafka_groups.describe_groups(context.client, [group], deadline)[name]
    if isinstance(described, Fault):
        return Keep(reasons.OFFSETS_UNKNOWN, str(described))
    if described.group.state is not GroupState.EMPTY:
        return Keep(reasons.BECAME_ACTIVE, f"its state is {described.group.state} now")
    homes = {name: ready.coordinator}
    committed = kafka_offsets.committed_offsets(context.client, homes, deadline, require_stable=True)[name]
    if isinstance(committed, Fault):
        return Keep(reasons.OFFSETS_UNKNOWN, str(committed))
    if committed != left:
        return Keep(reasons.CHANGED, "its committed offsets changed")
    if deadline.left <= 0:
        return Keep(reasons.OFFSETS_UNKNOWN, "not sent: there was no time left")
    return None


def _stopped(ready: Ready, left: Offsets, keep: Keep) -> Result:
    """A group that is deleted by several requests stays: as it was, or with a part of its offsets."""
    name, whole = ready.group.id, len(ready.offsets)
    failed = keep.reason in (reasons.DENIED, reasons.OFFSETS_UNKNOWN)
    kind = OutcomeKind.FAILED if failed else OutcomeKind.KEPT
    if len(left) == whole:
        return Outcome(name, kind, keep.reason, keep.message)
    message = (
        f"{keep.message}; {whole - len(left)} of its {whole} committed offsets were deleted before: its backup has them"
    )
    return Unsettled(Outcome(name, kind, keep.reason, message))


def delete_offsets(context: Context, ready: Mapping[str, Ready], deadline: Deadline) -> dict[str, Result]:
    """Delete the offsets of each group, asked once (KIP-496).

    A request holds one group only. What the deadline leaves no time for is not sent.
    """
    outcomes: dict[str, Result] = {}
    for name, each in ready.items():
        if deadline.left <= 0:
            outcomes[name] = Outcome(
                name, OutcomeKind.KEPT, reasons.OFFSETS_UNKNOWN, "not sent: there was no time left"
            )
            continue
        answers: dict[Partition, Fault | None] = {}
        places = dict.fromkeys(sorted(each.offsets), "")
        for chunk in kafka_offsets.write_chunks(name, places, context.memory.write_bytes):
            answers |= kafka_offsets.delete_offsets(context.client, name, chunk, deadline, each.coordinator)
        outcomes[name] = _offsets_deleted(name, answers)
    return outcomes


def are_gone(context: Context, entries: Iterable[Intent | OutcomeEntry], deadline: Deadline) -> dict[str, Gone]:
    """Whether each group, or its offsets of those topics, is there no more."""
    whole: dict[str, GroupType] = {}
    parts: dict[str, frozenset[str]] = {}
    for entry in entries:
        if entry.topics:
            parts[entry.group] = frozenset(entry.topics)
        else:
            whole[entry.group] = _type(entry.type)
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


def _unsettled(name: str, fault: Fault) -> Unsettled:
    if fault.code in _UNANSWERED:
        message = "no answer: a later run finds out what became of it"
        return Unsettled(Outcome(name, OutcomeKind.KEPT, reasons.INTERRUPTED, message))
    message = f"{fault}: it may be carried out all the same, so its backup stays; a later run finds out"
    return Unsettled(Outcome(name, OutcomeKind.FAILED, reasons.DELETE_FAILED, message))


def _deleted(name: str, fault: Fault | None, kind: GroupType = GroupType.CLASSIC) -> Result:
    if fault is None:
        return Outcome(name, OutcomeKind.DELETED, reasons.DELETED, "deleted")
    if not _refuses(fault):
        return _unsettled(name, fault)
    if fault.code == "NON_EMPTY_GROUP":
        message = "somebody joined it just now"
        if kind is GroupType.SHARE:
            message += (
                "; brokers may have erased its start offsets first: its backup has them, so look whether it goes on"
            )
        return Outcome(name, OutcomeKind.KEPT, reasons.BECAME_ACTIVE, message)
    return _refused(name, fault)


def _offsets_deleted(name: str, answers: Mapping[Partition, Fault | None]) -> Result:
    """Whatever went must be restorable, so that one partition is enough for its topic to count as deleted.

    The broker refuses topics that a member subscribes to.
    """
    unclear = [fault for fault in answers.values() if fault is not None and not _refuses(fault)]
    if unclear:
        return _unsettled(name, next((fault for fault in unclear if fault.code in _UNANSWERED), unclear[0]))
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
        return Outcome(name, OutcomeKind.FAILED, reasons.DENIED, fault.message or "needs DELETE on the group")
    return Outcome(name, OutcomeKind.FAILED, reasons.DELETE_FAILED, str(fault))


def named(topics: Iterable[str]) -> str:
    """Some of the topics by name, and how many more."""
    return some_of(sorted(topics), _NAMES)


def _type(kind: str) -> GroupType:
    try:
        return GroupType(kind)
    except ValueError:
        return GroupType.UNKNOWN
