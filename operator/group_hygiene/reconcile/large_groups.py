"""Groups whose tombstones are too much for one write of the broker: deleted by several requests under one intent.

The coordinator appends the tombstones of a request as one batch of at most `max.message.bytes`, or none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from group_hygiene import reasons
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka import permissions
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import (
    NO_SUCH_TOPIC,
    Fault,
    GroupState,
    GroupType,
    Keep,
    Offsets,
    Outcome,
    OutcomeKind,
    Partition,
)
from group_hygiene.reconcile.context import Context
from group_hygiene.reconcile.rereading import FRESH_S, Ready, partitions_of, pending_commits
from group_hygiene.reconcile.sending import (
    NOT_SENT,
    Result,
    Unsettled,
    not_deleted,
    own_bytes,
    result_of_group,
    result_of_offsets,
    tombstone_bytes,
    unsettled,
)


def is_large(context: Context, ready: Ready) -> bool:
    """Whether the group's tombstones may be too much for one write of the broker, so that it takes several requests."""
    several = len(ready.offsets) > 1 and ready.group.type is not GroupType.SHARE
    return several and tombstone_bytes(ready) > context.memory.write_bytes


def delete_large_group(context: Context, ready: Ready, deadline: Deadline, stop: Callable[[], Keep | None]) -> Result:
    """Delete a group's offsets in chunks (KIP-496), and the group with the last of them, each asked once.

    Right before each request state and offsets are read again, and `stop` is asked: what was read before the first one
    is too old by then. Nothing is sent after the deadline.
    """
    client, name, left = context.client, ready.group.id, dict(ready.offsets)
    chunks = _chunks(context, ready, deadline)
    if isinstance(chunks, Keep):
        return _stopped(ready, left, chunks)
    places = _all_partitions(context, ready, deadline)
    for chunk in chunks:
        fresh = Deadline(min(FRESH_S, deadline.left))
        keep = stop() or _changed(context, ready, left, places, fresh)
        if keep is not None:
            return _stopped(ready, left, keep)
        answers = kafka_offsets.delete_offsets(client, name, chunk, fresh, ready.coordinator)
        faults = [fault for fault in answers.values() if fault is not None]
        if faults:
            result = result_of_offsets(name, answers)
            if isinstance(result, Outcome) and result.kind is not OutcomeKind.DELETED:
                return _stopped(ready, left, Keep(result.reason, result.message))
            return unsettled(name, faults[0])
        left = {place: commit for place, commit in left.items() if place not in answers}
    fresh = Deadline(min(FRESH_S, deadline.left))
    keep = stop() or _changed(context, ready, left, places, fresh)
    if keep is not None:
        return _stopped(ready, left, keep)
    (answer,) = kafka_groups.delete_groups(client, {name: ready.coordinator}, fresh).values()
    result = result_of_group(name, answer, ready.group.type)
    if isinstance(result, Outcome) and result.kind is not OutcomeKind.DELETED:
        return _stopped(ready, left, Keep(result.reason, result.message))
    return result


def _chunks(context: Context, ready: Ready, deadline: Deadline) -> list[list[Partition]] | Keep:
    """What OffsetDelete takes, request by request, so that DeleteGroups can take the rest; a Keep where that can't be.

    OffsetDelete needs READ on each topic, and refuses partitions that don't exist: offsets of these go with the group.
    All of that is found out before the first request: a group that can't go as a whole must not lose a part.
    """
    name, topics = ready.group.id, {place.topic for place in ready.offsets}
    allowed = permissions.on_topics(context.client, deadline)
    counts = kafka_cluster.partition_counts(context.client, topics, deadline)
    if isinstance(allowed, Fault):
        return Keep(reasons.OFFSETS_UNKNOWN, f"what may be done with its topics could not be read: {allowed}")
    # A topic that was created again, with fewer partitions, lacks some, too.
    existing: dict[str, int] = {}
    for topic, count in sorted(counts.items()):
        if isinstance(count, Fault) and count.code != NO_SUCH_TOPIC:
            return Keep(reasons.OFFSETS_UNKNOWN, f"topic {topic} could not be read: {count}")
        existing[topic] = 0 if isinstance(count, Fault) else count
        operations = allowed.get(topic, frozenset())
        if existing[topic] and operations is not None and permissions.Operation.READ not in operations:
            message = f"it is too large for one request, and to delete its offsets of {topic} needs READ on the topic"
            return Keep(reasons.DENIED, message)
    # Records that wait for the group are why it may go: should only a part of it go now, they must show it again.
    order = sorted(ready.offsets, key=lambda place: (place.topic, ready.lag.get(place, 0) > 0, place.partition))
    # The group itself has some records too.
    size = max(1, context.memory.write_bytes - own_bytes(name))
    last = [place for place in order if place.partition >= existing[place.topic]]
    room = size - sum(kafka_offsets.record_bytes(name, place.topic) for place in last)
    if room < 0:
        message = f"{len(last)} of its offsets are of partitions that don't exist: too many for one write of the broker"
        return Keep(reasons.DELETE_FAILED, message)
    missing = set(last)
    rest = [place for place in order if place not in missing]
    chunks = list(kafka_offsets.write_chunks(name, dict.fromkeys(rest, ""), size))
    if chunks and sum(kafka_offsets.record_bytes(name, place.topic) for place in chunks[-1]) <= room:
        chunks.pop()
    return chunks


def _all_partitions(context: Context, ready: Ready, deadline: Deadline) -> Collection[Partition] | Fault:
    """Every partition for which a transaction may commit, with those that the group had: see `pending_commits`."""
    found = partitions_of(kafka_cluster.read_topics(context.client, deadline))
    return found if isinstance(found, Fault) else {*found, *ready.offsets}


def _changed(
    context: Context, ready: Ready, left: Offsets, places: Collection[Partition] | Fault, deadline: Deadline
) -> Keep | None:
    """Why a group that is Empty and has the offsets that are `left` is another one now; None = it is that."""
    name = ready.group.id
    home = {name: ready.coordinator}
    keep = pending_commits(context, home, places, deadline).get(name)
    if keep is not None:
        return keep
    group = replace(ready.group, coordinator=-1 if ready.coordinator is None else ready.coordinator)
    described = kafka_groups.describe_groups(context.client, [group], deadline)[name]
    if isinstance(described, Fault):
        return Keep(reasons.OFFSETS_UNKNOWN, str(described))
    if described.group.state is not GroupState.EMPTY:
        return Keep(reasons.BECAME_ACTIVE, f"its state is {described.group.state} now")
    committed = kafka_offsets.committed_offsets(context.client, home, deadline, require_stable=True)[name]
    if isinstance(committed, Fault):
        return Keep(reasons.OFFSETS_UNKNOWN, str(committed))
    if committed != left:
        return Keep(reasons.CHANGED, "its committed offsets changed")
    if deadline.left <= 0:
        return Keep(reasons.OFFSETS_UNKNOWN, NOT_SENT)
    return None


def _stopped(ready: Ready, left: Offsets, keep: Keep) -> Result:
    """A group that is deleted by several requests stays: as it was, or with a part of its offsets."""
    name, whole = ready.group.id, len(ready.offsets)
    if len(left) == whole:
        return not_deleted(name, keep)
    message = (
        f"{keep.message}; {whole - len(left)} of its {whole} committed offsets were deleted before: its backup has them"
    )
    return Unsettled(not_deleted(name, Keep(keep.reason, message)))
