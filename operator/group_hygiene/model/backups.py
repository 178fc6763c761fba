"""The backups of groups: entries of the ledger in parts, their assembly and merging. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from group_hygiene.model.entries import Entry, Key, Time
from group_hygiene.model.groups import CommittedOffset, Partition

_CHUNK_BYTES = 400_000
# GroupType.SHARE, as Kafka names it.
_SHARE = "Share"


class SavedOffset(NamedTuple):
    """One partition of a backup. lag: records after the committed offset, None = not known."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    lag: int | None


class Backup(Entry, frozen=True, kw_only=True, gc=False, tag="backup"):
    """The offsets of a group before a deletion: one part of `parts`, complete only with all of them.

    id: of the deletion. offsets: topic -> its committed partitions. topic_ids: topic -> id (KIP-516), empty below 2.8.
    evidence: why it was due, in words. expires: until when the backup is retained. internal_topics: of a Streams
    application, with their ids; its offsets belong to them. partial: the group stayed, with other offsets.
    continues: the id of an earlier, interrupted deletion that may have taken a part: this backup includes that part.
    replaced: of no deletion: the restore `continues` was about to commit other offsets in the place of these.
    """

    group: str
    id: str
    part: int
    parts: int
    type: str
    protocol_type: str
    cluster: str
    policy: str
    policy_uid: str
    generation: int
    at: Time
    expires: Time
    evidence: str
    offsets: dict[str, list[SavedOffset]]
    topic_ids: dict[str, str]
    internal_topics: dict[str, str] = msgspec.field(default_factory=dict)
    partial: bool = False
    continues: str = ""
    replaced: bool = False

    @property
    def key(self) -> Key:
        return ("backup", self.group, self.id, str(self.part))


def saved_offsets(backup: Backup) -> dict[Partition, CommittedOffset]:
    """The committed offsets of a backup, or of a part of one."""
    return {
        Partition(topic, row.partition): CommittedOffset(row.offset, row.leader_epoch, row.metadata)
        for topic, rows in backup.offsets.items()
        for row in rows
    }


def in_parts(backup: Backup, chunk_bytes: int = _CHUNK_BYTES) -> list[Backup]:
    """The backup as parts of at most about `chunk_bytes` each, as brokers refuse larger records."""
    chunks: list[dict[str, list[SavedOffset]]] = [{}]
    size = 0
    for topic, rows in backup.offsets.items():
        for row in rows:
            # JSON takes up to six bytes for a character.
            cost = 48 + len(msgspec.json.encode(row.metadata)) + (0 if topic in chunks[-1] else len(topic) + 8)
            if size + cost > chunk_bytes and chunks[-1]:
                chunks.append({})
                size = 0
            chunks[-1].setdefault(topic, []).append(row)
            size += cost
    return [
        msgspec.structs.replace(
            backup,
            part=index,
            parts=len(chunks),
            offsets=offsets,
            topic_ids={topic: backup.topic_ids[topic] for topic in offsets if topic in backup.topic_ids},
        )
        for index, offsets in enumerate(chunks)
    ]


def whole(parts: Sequence[Backup]) -> Backup | None:
    """The backup assembled from all its parts; None if one is missing.

    A backup that was written again in fewer parts leaves its former last parts behind, which don't count: each part has
    the number of the write that it is of.
    """
    by_part = {part.part: part for part in parts}
    # Another client may have written `parts`: memory must not grow with it.
    number = by_part[0].parts if 0 in by_part else 0
    whole = [by_part[index] for index in sorted(by_part) if index < number]
    if not 0 < number == len(whole) or any(part.parts != number for part in whole):
        return None
    offsets: dict[str, list[SavedOffset]] = {}
    topic_ids: dict[str, str] = {}
    for part in whole:
        for topic, rows in part.offsets.items():
            offsets.setdefault(topic, []).extend(rows)
        topic_ids |= part.topic_ids
    return msgspec.structs.replace(by_part[0], part=0, parts=1, offsets=offsets, topic_ids=topic_ids)


def with_earlier(backup: Backup, earlier: Backup) -> Backup:
    """The backup, with offsets of an earlier one of the same group that the group no longer has.

    Offsets of a topic that was recreated since are left out, as they belong to another topic. Backups of a share group
    and of another type with the same id are not merged. An Empty group of the other types may change its type and
    retains its offsets (KIP-848, KIP-1071).
    """
    if (backup.type == _SHARE) != (earlier.type == _SHARE):
        return backup
    offsets, ids = dict(backup.offsets), dict(backup.topic_ids)
    for topic, rows in earlier.offsets.items():
        if topic in offsets and ids.get(topic) != earlier.topic_ids.get(topic):
            continue
        present = {row.partition for row in offsets.get(topic, ())}
        missing = [row for row in rows if row.partition not in present]
        if missing:
            offsets[topic] = sorted([*offsets.get(topic, ()), *missing])
            ids |= {topic: earlier.topic_ids[topic]} if topic in earlier.topic_ids else {}
    return msgspec.structs.replace(backup, offsets=offsets, topic_ids=ids)


def with_late_offsets(
    backup: Backup, late: Mapping[Partition, CommittedOffset], topic_ids: Mapping[str, str]
) -> Backup | None:
    """The backup, with offsets that were committed after it was made; None = it has them all.

    topic_ids: of topics that it lacks.
    """
    offsets = {topic: {row.partition: row for row in rows} for topic, rows in backup.offsets.items()}
    changed = False
    for place, commit in late.items():
        rows = offsets.setdefault(place.topic, {})
        known = rows.get(place.partition)
        if known is None or known[1:4] != commit:
            rows[place.partition] = SavedOffset(place.partition, *commit, None)
            changed = True
    if not changed:
        return None
    return msgspec.structs.replace(
        backup,
        offsets={topic: sorted(rows.values()) for topic, rows in offsets.items()},
        topic_ids={**topic_ids, **backup.topic_ids},
    )


def with_newer_offsets(backup: Backup, newer: Backup) -> Backup:
    """The backup, with the offsets of a newer one of the same group for the same partitions of the same topics."""
    if (backup.type == _SHARE) != (newer.type == _SHARE):
        return backup
    offsets = dict(backup.offsets)
    for topic in offsets.keys() & newer.offsets.keys():
        if backup.topic_ids.get(topic) == newer.topic_ids.get(topic):
            later = {row.partition: row for row in newer.offsets[topic]}
            offsets[topic] = [later.get(row.partition, row) for row in offsets[topic]]
    return msgspec.structs.replace(backup, offsets=offsets)
