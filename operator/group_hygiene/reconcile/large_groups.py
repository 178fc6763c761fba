"""Deletes groups whose tombstones exceed one write of the broker, by several requests under one intent.

The coordinator appends the tombstones of a request as one batch of at most `max.message.bytes`, or none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka import permissions
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import reasons
from group_hygiene.model.groups import NO_SUCH_TOPIC, Fault, GroupState, GroupType, Offsets, Partition
from group_hygiene.model.refusal import Refusal
from group_hygiene.reconcile.context import Context
from group_hygiene.reconcile.delete_requests import (
    NOT_SENT,
    Answer,
    not_deleted,
    own_bytes,
    refused,
    result_of_group,
    result_of_offsets,
    tombstone_bytes,
    unclear_answer,
)
from group_hygiene.reconcile.executor import Executor
from group_hygiene.reconcile.preconditions import Moment
from group_hygiene.reconcile.recheck import partitions_of, pending_commits
from group_hygiene.reconcile.settle import RequestState
from group_hygiene.reconcile.vetoes import FRESH_S, Ready


def is_large(context: Context, ready: Ready) -> bool:
    """Whether the group's tombstones may exceed one write of the broker: its deletion needs several requests."""
    several = len(ready.offsets) > 1 and ready.group.type is not GroupType.SHARE
    return several and tombstone_bytes(ready) > context.memory.write_bytes


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
            return unclear_answer(name, fault)
        left = {place: commit for place, commit in left.items() if place not in answers}


def _chunks(context: Context, ready: Ready, deadline: Deadline) -> list[list[Partition]] | Refusal:
    """The partitions of each OffsetDelete request, so that DeleteGroups can delete the rest; a Refusal if it can't.

    OffsetDelete needs READ on each topic, and refuses partitions that don't exist: DeleteGroups deletes their offsets.
    All of this is checked before the first request: a group that can't be deleted as a whole must not lose a part.
    """
    name, topics = ready.group.id, {place.topic for place in ready.offsets}
    allowed = permissions.on_topics(context.client, deadline)
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
        if existing[topic] and operations is not None and permissions.Operation.READ not in operations:
            message = f"it is too large for one request, and to delete its offsets of {topic} needs READ on the topic"
            return Refusal(reasons.DENIED, message)
    # Unread records are a condition of the deletion: partitions that have some come last, so that the group still
    # matches if the deletion is interrupted.
    order = sorted(ready.offsets, key=lambda place: (place.topic, ready.lag.get(place, 0) > 0, place.partition))
    # The group itself has some records, too.
    size = max(1, context.memory.write_bytes - own_bytes(name))
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
        return refused(name, refusal)
    deleted = f"{whole - len(left)} of its {whole} committed offsets were deleted before: its backup has them"
    message = f"{refusal.message}; {deleted}"
    return Answer(RequestState.PART, not_deleted(name, Refusal(refusal.reason, message)))
