"""Reads the offsets of a group by the requests for its type.

Classic, Consumer and Streams groups have committed offsets. Share groups have start offsets, which OffsetFetch doesn't
return.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka import share_offsets
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.model.backups import Backup
from group_hygiene.model.groups import Fault, GroupType, Offsets, Partition, is_internal

# Types whose offsets OffsetCommit restores. A restored Streams group is a simple Classic one, and becomes a Streams
# group with its offsets when its first member joins (GroupMetadataManager.getOrCreateStreamsGroup).
COMMITTING = frozenset({GroupType.CLASSIC, GroupType.CONSUMER, GroupType.STREAMS})
RESTORABLE = COMMITTING | {GroupType.SHARE}


def read_offsets(
    client: Client,
    types: Mapping[str, GroupType],
    coordinators: Mapping[str, int | None],
    deadline: Deadline,
    require_stable: bool = False,
) -> dict[str, Offsets | Fault]:
    """All offsets of each group, by its type in `types`. coordinators: group -> its coordinator, None = look it up.

    For scans, and right before a deletion: a share group that shows no start offset at all counts as one without any.
    """
    sharing = {name: coordinators[name] for name, kind in types.items() if kind is GroupType.SHARE}
    committing = {name: coordinators[name] for name in types if name not in sharing}
    found = share_offsets.complete_offsets(client, sharing, deadline, again=True) if sharing else {}
    return found | kafka_offsets.committed_offsets(client, committing, deadline, require_stable=require_stable)


def current_offsets(
    client: Client,
    kind: str,
    coordinators: Mapping[str, int | None],
    places: Collection[Partition],
    deadline: Deadline,
) -> Offsets | Fault:
    """The current offsets of one group (its id -> coordinator) for these partitions; a Fault if a commit is pending."""
    if kind == GroupType.SHARE:
        (shared,) = share_offsets.complete_offsets(client, coordinators, deadline).values()
        if isinstance(shared, Fault):
            return shared
        return {place: shared[place] for place in places if place in shared}
    (found,) = kafka_offsets.committed_offsets(client, coordinators, deadline, places, require_stable=True).values()
    return found


def restored_offsets(
    client: Client, backup: Backup, coordinator: int | None, places: Collection[Partition], deadline: Deadline
) -> Offsets | Fault:
    """The current offsets of a backup's group for these partitions; by the backup's topic ids if brokers support it.

    No Fault if a commit is pending.
    """
    coordinators = {backup.group: coordinator}
    if backup.type == GroupType.SHARE:
        return current_offsets(client, backup.type, coordinators, places, deadline)
    return kafka_offsets.committed_by_topic_id(client, coordinators, places, backup.topic_ids, deadline)


def internal_topics(topics: Iterable[str], group: str) -> list[str]:
    """The topics that Kafka Streams created for the application of this id, by their names."""
    return sorted(topic for topic in topics if is_internal(topic, group))
