"""What a group of each type has that a backup must hold, and by which requests it is read and brought back.

Classic, Consumer and Streams groups have committed offsets. Share groups have start offsets, of which OffsetFetch knows
nothing; and OffsetCommit under the id of one that was deleted would make a Classic group that shuts out its consumers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from group_hygiene.entries import Backup
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka import share_offsets
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.model import Fault, GroupType, Offsets, Partition

# Whose offsets OffsetCommit brings back. A Streams group becomes a simple Classic one by that, and a Streams group
# again, offsets and all, when its first member joins (GroupMetadataManager.getOrCreateStreamsGroup).
COMMITTING = frozenset({GroupType.CLASSIC, GroupType.CONSUMER, GroupType.STREAMS})
RESTORABLE = COMMITTING | {GroupType.SHARE}
_SHOWN_S = 5.0
_INTERNAL = ("-changelog", "-repartition")


def read_offsets(
    client: Client,
    types: Mapping[str, GroupType],
    homes: Mapping[str, int | None],
    deadline: Deadline,
    require_stable: bool = False,
) -> dict[str, Offsets | Fault]:
    """All offsets of each group, as `types` says what it is. homes: its coordinator, None = look it up."""
    sharing = {name: homes[name] for name, kind in types.items() if kind is GroupType.SHARE}
    committing = {name: homes[name] for name in types if name not in sharing}
    found = share_offsets.whole_offsets(client, sharing, deadline) if sharing else {}
    return found | kafka_offsets.committed_offsets(client, committing, deadline, require_stable=require_stable)


def read_back(
    client: Client,
    kind: str,
    home: Mapping[str, int | None],
    places: Collection[Partition],
    deadline: Deadline,
) -> Offsets | Fault:
    """What one group has now for these partitions. home: its id, coordinator. Pending commits are a Fault."""
    if kind == GroupType.SHARE:
        (shared,) = share_offsets.whole_offsets(client, home, deadline).values()
        if isinstance(shared, Fault):
            return shared
        return {place: shared[place] for place in places if place in shared}
    (found,) = kafka_offsets.committed_offsets(client, home, deadline, places, require_stable=True).values()
    return found


def bring_back(
    client: Client,
    backup: Backup,
    coordinator: int | None,
    offsets: Offsets,
    deadline: Deadline,
) -> dict[Partition, Fault | None]:
    """Give the group of a backup these offsets, asked once: for each None = it has them, else the Fault.

    Committed offsets are given to the topics with the backup's ids, where brokers know such commits. Start offsets of
    share groups are set by the topics' names: Kafka knows no other way. coordinator: None = look it up.
    """
    name = backup.group
    if backup.type != GroupType.SHARE:
        return kafka_offsets.commit_offsets(client, name, offsets, deadline, coordinator, backup.topic_ids)
    answers = share_offsets.set_offsets(client, name, offsets, deadline, coordinator)
    set_ = {place for place, fault in answers.items() if fault is None}
    share_offsets.wait_shown(client, {name: coordinator}, set_, Deadline(_SHOWN_S))
    return answers


def brought_back(
    client: Client, backup: Backup, coordinator: int | None, places: Collection[Partition], deadline: Deadline
) -> Offsets | Fault:
    """What the group of a backup has now for these partitions of the topics with the backup's ids, where brokers tell.

    Pending commits are no Fault.
    """
    home = {backup.group: coordinator}
    if backup.type == GroupType.SHARE:
        return read_back(client, backup.type, home, places, deadline)
    return kafka_offsets.committed_by_topic_id(client, home, places, backup.topic_ids, deadline)


def internal_topics(topics: Iterable[str], group: str) -> list[str]:
    """Those of the topics that Kafka Streams made for the application of this id, as far as names tell."""
    rests = {topic: topic.removeprefix(f"{group}-") for topic in topics if topic.startswith(f"{group}-")}
    return sorted(topic for topic, rest in rests.items() if rest.endswith(_INTERNAL))
