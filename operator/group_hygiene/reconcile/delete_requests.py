"""Sends the requests that delete, interprets their answers, and checks whether unanswered ones were carried out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from group_hygiene.decide.plan import FAILURES
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import reasons
from group_hygiene.model.entries import Intent
from group_hygiene.model.entries import Outcome as OutcomeEntry
from group_hygiene.model.groups import Fault, GroupState, GroupType, Partition
from group_hygiene.model.naming import truncated_list
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.snapshot import Description
from group_hygiene.model.verdicts import Outcome, OutcomeKind
from group_hygiene.reconcile.context import Context
from group_hygiene.reconcile.executor import Executor
from group_hygiene.reconcile.vetoes import Ready

_UNANSWERED = frozenset({"NETWORK_EXCEPTION", "REQUEST_TIMED_OUT", "NO_ANSWER"})
# A coordinator answers these, and AUTHORIZATION_FAILED, only if it wrote nothing. All others may follow a write that is
# in the log: NOT_COORDINATOR when the coordinator unloads before the write is replicated, COORDINATOR_NOT_AVAILABLE
# when that takes too long (CoordinatorRuntime of Kafka 4), and any code that a later version adds.
_REFUSALS = frozenset({"NON_EMPTY_GROUP", "INVALID_GROUP_ID", "GROUP_SUBSCRIBED_TO_TOPIC"})
_DENIED = "AUTHORIZATION_FAILED"
_NAMES = 5
NOT_SENT = "not sent: there was no time left"
# At most this many records belong to a group without members, beside its offsets.
_GROUP_RECORDS = 8


class Gone(NamedTuple):
    """The parts of a deletion's target that no longer exist. all: whether nothing is left; None = not known now."""

    all: bool | None
    topics: frozenset[str] = frozenset()


class Unresolved(NamedTuple):
    """A deletion that the broker may have carried out, or may yet, at least in part: its intent and its backup stay.

    outcome: as known now; a later run resolves it.
    """

    outcome: Outcome


Result = Outcome | Unresolved


def not_deleted(name: str, refusal: Refusal) -> Outcome:
    """`Failed` if an administrator must fix something, else `NotDeleted`."""
    kind = OutcomeKind.FAILED if refusal.reason in FAILURES else OutcomeKind.NOT_DELETED
    return Outcome(name, kind, refusal.reason, refusal.message)


def delete_groups(executor: Executor, ready: Mapping[str, Ready], deadline: Deadline) -> dict[str, Result]:
    """Delete each group by one request (KIP-229); groups for which the deadline leaves no time are not in the results.

    Each request is limited to groups whose tombstones fit into one write of the broker. That limit is per offsets
    partition, but grouping by partition would save few requests.
    """
    results: dict[str, Result] = {}
    sizes = {name: tombstone_bytes(each) for name, each in ready.items()}
    for names in kafka_offsets.in_chunks(sizes, executor.context.memory.write_bytes):
        if deadline.left <= 0:
            break
        coordinators = {name: ready[name].coordinator for name in names}
        answers = executor.delete_groups(coordinators, deadline)
        results |= {name: result_of_group(name, answer, ready[name].group.type) for name, answer in answers.items()}
    return results


def tombstone_bytes(ready: Ready) -> int:
    """The largest size of a group's tombstones. Start offsets of share groups are not in `__consumer_offsets`."""
    name = ready.group.id
    places = () if ready.group.type is GroupType.SHARE else ready.offsets
    return own_bytes(name) + sum(kafka_offsets.record_bytes(name, place.topic) for place in places)


def own_bytes(group: str) -> int:
    """The largest size of a group's tombstones other than those of its offsets."""
    return _GROUP_RECORDS * kafka_offsets.record_bytes(group)


def delete_offsets(executor: Executor, ready: Mapping[str, Ready], deadline: Deadline) -> dict[str, Result]:
    """Delete the offsets of each group, by requests for one group each (KIP-496).

    Groups for which the deadline leaves no time are not in the results.
    """
    results: dict[str, Result] = {}
    for name, each in ready.items():
        if deadline.left <= 0:
            break
        answers: dict[Partition, Fault | None] = {}
        places = dict.fromkeys(sorted(each.offsets), "")
        for chunk in kafka_offsets.write_chunks(name, places, executor.context.memory.write_bytes):
            answers |= executor.delete_offsets(name, chunk, deadline, each.coordinator)
        results[name] = result_of_offsets(name, answers)
    return results


def are_gone(context: Context, entries: Iterable[Intent | OutcomeEntry], deadline: Deadline) -> dict[str, Gone]:
    """Whether each group, or its offsets of the entry's topics, no longer exist. A group's last entry counts."""
    whole: dict[str, GroupType] = {}
    parts: dict[str, frozenset[str]] = {}
    for entry in {each.group: each for each in entries}.values():
        if entry.topics:
            parts[entry.group] = frozenset(entry.topics)
        else:
            whole[entry.group] = type_of(entry.type)
    return _groups_gone(context, whole, deadline) | _offsets_gone(context, parts, deadline)


def _groups_gone(context: Context, groups: Mapping[str, GroupType], deadline: Deadline) -> dict[str, Gone]:
    described = kafka_groups.describe_groups(context.client, groups, dict.fromkeys(groups), deadline)

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


def unresolved(name: str, fault: Fault) -> Unresolved:
    """The result of a request that the broker may have carried out, or may yet carry out."""
    if fault.code in _UNANSWERED:
        unknown = "no answer: a later run finds out whether it was deleted"
        return Unresolved(Outcome(name, OutcomeKind.NOT_DELETED, reasons.INTERRUPTED, unknown))
    message = f"{fault}: it may still be carried out, so its backup stays; a later run finds out"
    return Unresolved(Outcome(name, OutcomeKind.FAILED, reasons.DELETE_FAILED, message))


def result_of_group(name: str, fault: Fault | None, kind: GroupType = GroupType.CLASSIC) -> Result:
    """The result that the answer to DeleteGroups proves. fault: None = no error."""
    if fault is None:
        return Outcome(name, OutcomeKind.DELETED, reasons.DELETED, "deleted")
    if not _refuses(fault):
        return unresolved(name, fault)
    if fault.code == "NON_EMPTY_GROUP":
        message = "a consumer joined it just now"
        if kind is GroupType.SHARE:
            message += "; brokers may have erased its start offsets (its backup has them): check that it still consumes"
        return Outcome(name, OutcomeKind.NOT_DELETED, reasons.BECAME_ACTIVE, message)
    return _refused(name, fault)


def result_of_offsets(name: str, answers: Mapping[Partition, Fault | None]) -> Result:
    """The result that the answers to OffsetDelete prove; None = no error.

    A topic counts as deleted if the offset of one of its partitions is, as everything deleted must be restorable. The
    broker refuses topics that a member subscribes to.
    """
    unclear = [fault for fault in answers.values() if fault is not None and not _refuses(fault)]
    if unclear:
        return unresolved(name, next((fault for fault in unclear if fault.code in _UNANSWERED), unclear[0]))
    done = {place.topic for place, fault in answers.items() if fault is None}
    left = {place: fault for place, fault in sorted(answers.items()) if fault is not None}
    if done:
        failed = "; ".join(f"{place}: {fault}" for place, fault in list(left.items())[:_NAMES])
        message = f"offsets of {named(done)} deleted" + (f"; not of {failed}" if left else "")
        return Outcome(name, OutcomeKind.DELETED, reasons.OFFSETS_DELETED, message, tuple(sorted(done)))
    place, fault = next(iter(left.items()))
    if fault.code == "GROUP_SUBSCRIBED_TO_TOPIC":
        return Outcome(
            name, OutcomeKind.NOT_DELETED, reasons.SUBSCRIBED, f"a member subscribed to {place.topic} just now"
        )
    return _refused(name, fault)


def _refused(name: str, fault: Fault) -> Outcome:
    if fault.code.endswith(_DENIED):
        return not_deleted(name, Refusal(reasons.DENIED, fault.message or "needs DELETE on the group"))
    return not_deleted(name, Refusal(reasons.DELETE_FAILED, str(fault)))


def named(topics: Iterable[str]) -> str:
    """The first topics by name, and the number of others."""
    return truncated_list(sorted(topics), _NAMES)


def type_of(kind: str) -> GroupType:
    """The type in an entry of the ledger; Unknown if this version does not know it."""
    try:
        return GroupType(kind)
    except ValueError:
        return GroupType.UNKNOWN
