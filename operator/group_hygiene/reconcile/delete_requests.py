"""Sends the requests that delete, and interprets their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from group_hygiene.decide.plan import FAILURES
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import reasons
from group_hygiene.model.groups import Fault, GroupType, Partition
from group_hygiene.model.naming import truncated_list
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.verdicts import Outcome, OutcomeKind
from group_hygiene.reconcile.executor import Executor
from group_hygiene.reconcile.settle import RequestState
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


class Answer(NamedTuple):
    """What is known of the requests for one group. outcome: for the report, unless `settle` finds another one."""

    request: RequestState
    outcome: Outcome


def not_deleted(name: str, refusal: Refusal) -> Outcome:
    """`Failed` if an administrator must fix something, else `NotDeleted`."""
    kind = OutcomeKind.FAILED if refusal.reason in FAILURES else OutcomeKind.NOT_DELETED
    return Outcome(name, kind, refusal.reason, refusal.message)


def refused(name: str, refusal: Refusal) -> Answer:
    """The answer if no request was carried out."""
    return Answer(RequestState.REFUSED, not_deleted(name, refusal))


def delete_groups(executor: Executor, ready: Mapping[str, Ready], deadline: Deadline) -> dict[str, Answer]:
    """Delete each group by one request (KIP-229); groups for which the deadline leaves no time are not in the results.

    Each request is limited to groups whose tombstones fit into one write of the broker. That limit is per offsets
    partition, but grouping by partition would save few requests.
    """
    results: dict[str, Answer] = {}
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


def delete_offsets(executor: Executor, ready: Mapping[str, Ready], deadline: Deadline) -> dict[str, Answer]:
    """Delete the offsets of each group, by requests for one group each (KIP-496).

    Groups for which the deadline leaves no time are not in the results.
    """
    results: dict[str, Answer] = {}
    for name, each in ready.items():
        if deadline.left <= 0:
            break
        answers: dict[Partition, Fault | None] = {}
        places = dict.fromkeys(sorted(each.offsets), "")
        for chunk in kafka_offsets.write_chunks(name, places, executor.context.memory.write_bytes):
            answers |= executor.delete_offsets(name, chunk, deadline, each.coordinator)
        results[name] = result_of_offsets(name, answers)
    return results


def _refuses(fault: Fault) -> bool:
    return fault.code in _REFUSALS or fault.code.endswith(_DENIED)


def unclear_answer(name: str, fault: Fault) -> Answer:
    """The result of a request that the broker may have carried out, or may yet carry out."""
    if fault.code in _UNANSWERED:
        unknown = "no answer: a later run finds out whether it was deleted"
        return Answer(RequestState.UNCLEAR, Outcome(name, OutcomeKind.NOT_DELETED, reasons.INTERRUPTED, unknown))
    message = f"{fault}: it may still be carried out, so its backup stays; a later run finds out"
    return Answer(RequestState.UNCLEAR, Outcome(name, OutcomeKind.FAILED, reasons.DELETE_FAILED, message))


def result_of_group(name: str, fault: Fault | None, kind: GroupType = GroupType.CLASSIC) -> Answer:
    """The result that the answer to DeleteGroups proves. fault: None = no error."""
    if fault is None:
        return Answer(RequestState.CONFIRMED, Outcome(name, OutcomeKind.DELETED, reasons.DELETED, "deleted"))
    if not _refuses(fault):
        return unclear_answer(name, fault)
    if fault.code == "NON_EMPTY_GROUP":
        message = "a consumer joined it just now"
        if kind is GroupType.SHARE:
            message += "; brokers may have erased its start offsets (its backup has them): check that it still consumes"
        return refused(name, Refusal(reasons.BECAME_ACTIVE, message))
    return _refused_by(name, fault)


def result_of_offsets(name: str, answers: Mapping[Partition, Fault | None]) -> Answer:
    """The result that the answers to OffsetDelete prove; None = no error.

    A topic counts as deleted if the offset of one of its partitions is, as everything deleted must be restorable. The
    broker refuses topics that a member subscribes to.
    """
    unclear = [fault for fault in answers.values() if fault is not None and not _refuses(fault)]
    if unclear:
        return unclear_answer(name, next((fault for fault in unclear if fault.code in _UNANSWERED), unclear[0]))
    done = {place.topic for place, fault in answers.items() if fault is None}
    left = {place: fault for place, fault in sorted(answers.items()) if fault is not None}
    if done:
        failed = "; ".join(f"{place}: {fault}" for place, fault in list(left.items())[:_NAMES])
        message = f"offsets of {truncated_list(sorted(done), _NAMES)} deleted" + (f"; not of {failed}" if left else "")
        outcome = Outcome(name, OutcomeKind.DELETED, reasons.OFFSETS_DELETED, message, tuple(sorted(done)))
        return Answer(RequestState.CONFIRMED, outcome)
    place, fault = next(iter(left.items()))
    if fault.code == "GROUP_SUBSCRIBED_TO_TOPIC":
        return refused(name, Refusal(reasons.SUBSCRIBED, f"a member subscribed to {place.topic} just now"))
    return _refused_by(name, fault)


def _refused_by(name: str, fault: Fault) -> Answer:
    if fault.code.endswith(_DENIED):
        return refused(name, Refusal(reasons.DENIED, fault.message or "needs DELETE on the group"))
    return refused(name, Refusal(reasons.DELETE_FAILED, str(fault)))
