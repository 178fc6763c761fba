"""Sends the requests that delete, and interprets their answers.

The coordinator appends the tombstones of a request as one batch of at most `max.message.bytes`, or none of them. So a
group whose tombstones exceed that is deleted by several requests, under one intent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from group_hygiene.decide.plan import FAILURES
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.groups import NO_SUCH_TOPIC, Fault, GroupState, GroupType, Offsets, Partition
from group_hygiene.model.naming import truncated_list
from group_hygiene.model.reasons import Refusal
from group_hygiene.reconcile.context import Context
from group_hygiene.reconcile.executor import Executor
from group_hygiene.reconcile.preconditions import Moment
from group_hygiene.reconcile.recheck import partitions_of, pending_commits
from group_hygiene.reconcile.settle import Answer, RequestState
from group_hygiene.reconcile.vetoes import FRESH_S, Ready

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


def not_deleted(name: str, refusal: Refusal) -> Outcome:
    """`Failed` if an administrator must fix something, else `NotDeleted`."""
    kind = OutcomeType.FAILED if refusal.reason in FAILURES else OutcomeType.NOT_DELETED
    return Outcome(name, kind, refusal.reason, refusal.message)


def _refused(name: str, refusal: Refusal) -> Answer:
    """The answer if no request was carried out."""
    return Answer(RequestState.REFUSED, not_deleted(name, refusal))


def delete_groups(executor: Executor, ready: Mapping[str, Ready], deadline: Deadline) -> dict[str, Answer]:
    """Delete each group by one request (KIP-229); groups for which the deadline leaves no time are not in the results.

    Each request is limited to groups whose tombstones fit into one write of the broker. That limit is per offsets
    partition, but grouping by partition would save few requests.
    """
    results: dict[str, Answer] = {}
    sizes = {name: _tombstone_bytes(each) for name, each in ready.items()}
    for names in kafka_offsets.in_chunks(sizes, executor.context.memory.write_bytes):
        if deadline.left <= 0:
            break
        coordinators = {name: ready[name].coordinator for name in names}
        answers = executor.delete_groups(coordinators, deadline)
        results |= {name: result_of_group(name, answer, ready[name].group.type) for name, answer in answers.items()}
    return results


def _tombstone_bytes(ready: Ready) -> int:
    """The largest size of a group's tombstones. Start offsets of share groups are not in `__consumer_offsets`."""
    name = ready.group.id
    places = () if ready.group.type is GroupType.SHARE else ready.offsets
    return _own_bytes(name) + sum(kafka_offsets.record_bytes(name, place.topic) for place in places)


def _own_bytes(group: str) -> int:
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


def _unclear(name: str, fault: Fault) -> Answer:
    """The result of a request that the broker may have carried out, or may yet carry out."""
    if fault.code in _UNANSWERED:
        unknown = "no answer: a later run finds out whether it was deleted"
        return Answer(RequestState.UNCLEAR, Outcome(name, OutcomeType.NOT_DELETED, reasons.INTERRUPTED, unknown))
    message = f"{fault}: it may still be carried out, so its backup stays; a later run finds out"
    return Answer(RequestState.UNCLEAR, Outcome(name, OutcomeType.FAILED, reasons.DELETE_FAILED, message))


def result_of_group(name: str, fault: Fault | None, kind: GroupType = GroupType.CLASSIC) -> Answer:
    """The result that the answer to DeleteGroups proves. fault: None = no error."""
    if fault is None:
        return Answer(RequestState.CONFIRMED, Outcome(name, OutcomeType.DELETED, reasons.DELETED, "deleted"))
    if not _refuses(fault):
        return _unclear(name, fault)
    if fault.code == "NON_EMPTY_GROUP":
        message = "a consumer joined it just now"
        if kind is GroupType.SHARE:
            message += "; brokers may have erased its start offsets (its backup has them): check that it still consumes"
        return _refused(name, Refusal(reasons.BECAME_ACTIVE, message))
    return _refused_by(name, fault)


def result_of_offsets(name: str, answers: Mapping[Partition, Fault | None]) -> Answer:
    """The result that the answers to OffsetDelete prove; None = no error.

    A topic counts as deleted if the offset of one of its partitions is, as everything deleted must be restorable. The
    broker refuses topics that a member subscribes to.
    """
    unclear = [fault for fault in answers.values() if fault is not None and not _refuses(fault)]
    if unclear:
        return _unclear(name, next((fault for fault in unclear if fault.code in _UNANSWERED), unclear[0]))
    done = {place.topic for place, fault in answers.items() if fault is None}
    left = {place: fault for place, fault in sorted(answers.items()) if fault is not None}
    if done:
        failed = "; ".join(f"{place}: {fault}" for place, fault in list(left.items())[:_NAMES])
        message = f"offsets of {truncated_list(sorted(done), _NAMES)} deleted" + (f"; not of {failed}" if left else "")
        outcome = Outcome(name, OutcomeType.DELETED, reasons.OFFSETS_DELETED, message, tuple(sorted(done)))
        return Answer(RequestState.CONFIRMED, outcome)
    place, fault = next(iter(left.items()))
    if fault.code == "GROUP_SUBSCRIBED_TO_TOPIC":
        return _refused(name, Refusal(reasons.SUBSCRIBED, f"a member subscribed to {place.topic} just now"))
    return _refused_by(name, fault)


def _refused_by(name: str, fault: Fault) -> Answer:
    if fault.code.endswith(_DENIED):
        return _refused(name, Refusal(reasons.DENIED, fault.message or "needs DELETE on the group"))
    return _refused(name, Refusal(reasons.DELETE_FAILED, str(fault)))


def is_large(context: Context, ready: Ready) -> bool:
    """Whether the group's tombstones may exceed one write of the broker: its deletion needs several requests."""
    several = len(ready.offsets) > 1 and ready.group.type is not GroupType.SHARE
    return several and _tombstone_bytes(ready) > context.memory.write_bytes


def delete_large_group(
    executor: Executor, ready: Ready, deadline: Deadline, stop: Callable[[], Refusal | None]
) -> Answer:
    """Delete a group's offsets in chunks (KIP-496), and the group with the rest of them, by one request each.

    Before each request, reads state and offsets again, as earlier reads are too old by then, and calls `stop`. Sends
    nothing after the deadline.
    """
    context, name, left = executor.context, ready.group.id, dict(ready.offsets)
    chunks = _chunks(context, ready, deadline)
    if isinstance(chunks, Refusal):
        return _stopped(ready, left, chunks)
    found = partitions_of(kafka_cluster.read_topics(context.client, deadline))
    # Every partition for which a transaction may commit: see `pending_commits`.
    places = found if isinstance(found, Fault) else {*found, *ready.offsets}
    while True:
        fresh = Deadline(min(FRESH_S, deadline.left))
        refusal = stop() or _changed(executor, ready, left, places, fresh)
        if refusal is not None:
            return _stopped(ready, left, refusal)
        chunk = chunks.pop(0) if chunks else None
        if chunk is None:
            (fault,) = executor.delete_groups({name: ready.coordinator}, fresh).values()
            result = result_of_group(name, fault, ready.group.type)
        else:
            answers = executor.delete_offsets(name, chunk, fresh, ready.coordinator)
            fault = next((fault for fault in answers.values() if fault is not None), None)
            result = result_of_offsets(name, answers)
        if result.request is RequestState.REFUSED:
            return _stopped(ready, left, Refusal(result.outcome.reason, result.outcome.message))
        if chunk is None:
            return result
        if fault is not None:
            return _unclear(name, fault)
        left = {place: commit for place, commit in left.items() if place not in answers}


def _chunks(context: Context, ready: Ready, deadline: Deadline) -> list[list[Partition]] | Refusal:
    """The partitions of each OffsetDelete request, so that DeleteGroups can delete the rest; a Refusal if it can't.

    OffsetDelete needs READ on each topic, and refuses partitions that don't exist: DeleteGroups deletes their offsets.
    All of this is checked before the first request: a group that can't be deleted as a whole must not lose a part.
    """
    name, topics = ready.group.id, {place.topic for place in ready.offsets}
    allowed = kafka_cluster.on_topics(context.client, deadline)
    counts = kafka_cluster.partition_counts(context.client, topics, deadline)
    if isinstance(allowed, Fault):
        return Refusal(reasons.OFFSETS_UNKNOWN, f"the permissions on its topics could not be read: {allowed}")
    # A topic that was recreated with fewer partitions lacks some, too.
    existing: dict[str, int] = {}
    for topic, count in sorted(counts.items()):
        if isinstance(count, Fault) and count.code != NO_SUCH_TOPIC:
            return Refusal(reasons.OFFSETS_UNKNOWN, f"topic {topic} could not be read: {count}")
        existing[topic] = 0 if isinstance(count, Fault) else count
        operations = allowed.get(topic, frozenset())
        if existing[topic] and operations is not None and kafka_cluster.Operation.READ not in operations:
            message = f"it is too large for one request, and to delete its offsets of {topic} needs READ on the topic"
            return Refusal(reasons.DENIED, message)
    # Unread records are a condition of the deletion: partitions that have some come last, so that the group still
    # matches if the deletion is interrupted.
    order = sorted(ready.offsets, key=lambda place: (place.topic, ready.lag.get(place, 0) > 0, place.partition))
    # The group itself has some records, too.
    size = max(1, context.memory.write_bytes - _own_bytes(name))
    last = [place for place in order if place.partition >= existing[place.topic]]
    room = size - sum(kafka_offsets.record_bytes(name, place.topic) for place in last)
    if room < 0:
        message = f"{len(last)} of its offsets are of partitions that don't exist: too many for one write of the broker"
        return Refusal(reasons.DELETE_FAILED, message)
    missing = set(last)
    rest = [place for place in order if place not in missing]
    chunks = list(kafka_offsets.write_chunks(name, dict.fromkeys(rest, ""), size))
    if chunks and sum(kafka_offsets.record_bytes(name, place.topic) for place in chunks[-1]) <= room:
        chunks.pop()
    return chunks


def _changed(
    executor: Executor, ready: Ready, left: Offsets, places: Collection[Partition] | Fault, deadline: Deadline
) -> Refusal | None:
    """Why the group is no longer Empty with exactly the offsets `left`, or may not be deleted now; None = it may."""
    context, name = executor.context, ready.group.id
    coordinators = {name: ready.coordinator}
    refusal = pending_commits(context, coordinators, places, deadline).get(name)
    if refusal is not None:
        return refusal
    described = kafka_groups.describe_groups(context.client, {name: ready.group.type}, coordinators, deadline)[name]
    if isinstance(described, Fault):
        return Refusal(reasons.OFFSETS_UNKNOWN, str(described))
    if described.group.state is not GroupState.EMPTY:
        return Refusal(reasons.BECAME_ACTIVE, f"its state is {described.group.state} now")
    committed = kafka_offsets.committed_offsets(context.client, coordinators, deadline, require_stable=True)[name]
    if isinstance(committed, Fault):
        return Refusal(reasons.OFFSETS_UNKNOWN, str(committed))
    if committed != left:
        return Refusal(reasons.CHANGED, "its committed offsets changed")
    if deadline.left <= 0:
        return Refusal(reasons.OFFSETS_UNKNOWN, NOT_SENT)
    return executor.refusal(deadline, Moment.SENDING)


def _stopped(ready: Ready, left: Offsets, refusal: Refusal) -> Answer:
    """The result of a deletion by several requests that stopped, before the first request or after some."""
    name, whole = ready.group.id, len(ready.offsets)
    if len(left) == whole:
        return _refused(name, refusal)
    deleted = f"{whole - len(left)} of its {whole} committed offsets were deleted before: its backup has them"
    message = f"{refusal.message}; {deleted}"
    return Answer(RequestState.PART, not_deleted(name, Refusal(refusal.reason, message)))
