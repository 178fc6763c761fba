"""The entries of the ledger: records, without I/O. `ledger.contents` reads and writes their JSON.

Each entry has its own key; a later one under that key replaces it, and a removal ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

import msgspec

from group_hygiene.model.groups import CommittedOffset, LogPlace, Partition, Program

Key = tuple[str, ...]
# Begins the policy uid of marks by a command, which exist while it runs.
REQUESTED = "command-line-"
# A time without a zone can't be compared with another one.
Time = Annotated[datetime, msgspec.Meta(tz=True)]
# About 30,000 years: within the range of timedelta.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class OutcomeType(StrEnum):
    """The outcome of a group in a run, and the type of an entry of the history."""

    DELETED = "Deleted"
    OFFSETS_DELETED = "OffsetsDeleted"
    NOT_DELETED = "NotDeleted"
    FAILED = "Failed"
    UNMARKED = "Unmarked"
    RESTORED = "Restored"


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="kind"):
    """Base of all entries. `v`: the version of the format; later ones can't be read."""

    v: Literal[1] = 1

    @property
    def key(self) -> Key:
        raise NotImplementedError

    def __hash__(self) -> int:
        return hash(self.key)


class Owner(Entry, frozen=True, kw_only=True, gc=False, tag="owner"):
    """The installation that writes this ledger. ledger: its id, which never changes; another id is another ledger.

    cluster: the id of its Kafka cluster, as replication may copy the topic to another one; empty = not known. start:
    the first offset of the log when it was claimed: compaction never moves it, and a deletion of records does.
    """

    installation: str
    ledger: str
    since: Time
    cluster: str = ""
    start: int = 0

    @property
    def key(self) -> Key:
        return ("owner",)


class Watch(Entry, frozen=True, kw_only=True, gc=False, tag="watch"):
    """The state of a policy's count of scans.

    An epoch is a series of scans without a missed one. digest: of Policy.digest and of the groups that the policy's
    namespace is granted; another one starts a new epoch. watched, since: `ScanClock.seconds` and date of the scan that
    began it; nothing counts before. at: the last scan; complete_at: the last one that read every group that may be
    Empty and unchanged.
    """

    policy_uid: str
    digest: str
    watched: Seconds
    since: Time
    at: Time
    complete_at: Time

    @property
    def key(self) -> Key:
        return ("watch", self.policy_uid)


class ScanClock(Entry, frozen=True, kw_only=True, gc=False, tag="scan-clock"):
    """The time for which scans have watched the groups of a connection, for all its policies with `unchangedFor`.

    seconds: the sum of the monotonic seconds between scans of one process.
    log: partition of `__consumer_offsets` -> how far it was read; before that, no group with a Seen has a record since
    the scan at which its count began. A partition that is missing is new. Empty = not known. topic_id: of that topic;
    None = not known.
    """

    connection_uid: str
    seconds: Seconds
    log: dict[int, LogPlace] = msgspec.field(default_factory=dict)
    topic_id: str | None = None

    @property
    def key(self) -> Key:
        return ("scan-clock", self.connection_uid)


class Gap(NamedTuple):
    """A time for which no scan read a group. seconds: its length. end_watched, end: `ScanClock.seconds` and date of the
    read that ended it.
    """

    seconds: Seconds
    end_watched: Seconds
    end: Time


class Seen(Entry, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag="seen"):
    """Since when the scans of a connection have found a group Empty with the same committed offsets.

    fingerprint: of `groups.fingerprint`. watched: `ScanClock.seconds` at the first of those scans.
    gaps: between two reads, of those that were too long for a policy that selects the group. In the order of their
    ends, each shorter than the one before: a later gap replaces those that are not longer.
    """

    connection_uid: str
    group: str
    type: str
    fingerprint: bytes
    since: Time
    watched: Seconds
    gaps: tuple[Gap, ...] = ()

    @property
    def key(self) -> Key:
        return ("seen", self.connection_uid, self.group)


class LargestCoverage(Entry, frozen=True, kw_only=True, gc=False, tag="covered"):
    """The largest coverage of the pipeline's tables that a connection has seen: older tables must not replace them.

    to: partition of `__consumer_offsets` -> the log offset up to which they had every record. topic_id: of that log,
    None below 2.8. table, version: Delta's, of the activity table.
    """

    connection_uid: str
    topic_id: str | None
    to: dict[int, int]
    table: str
    version: int
    at: Time
    expires: Time

    @property
    def key(self) -> Key:
        return ("covered", self.connection_uid)


class Mark(Entry, frozen=True, kw_only=True, gc=False, tag="mark"):
    """A policy will delete a group, not before `due`. digest: of the policy that marked it.

    topics: only the offsets of these topics will be deleted, topic -> date of its mark; empty = the whole group. With
    topics, `since` and `due` are those of the first one.
    """

    policy_uid: str
    group: str
    policy: str
    digest: str
    since: Time
    due: Time
    topics: dict[str, Time] = msgspec.field(default_factory=dict)

    def of_topics(self, topics: dict[str, datetime]) -> Mark:
        """The mark of these topics. The time from the mark of a topic to its date stays."""
        since = min(topics.values())
        return msgspec.structs.replace(self, topics=topics, since=since, due=since + (self.due - self.since))

    @property
    def newest(self) -> datetime:
        """The date of the newest mark of a topic; for a whole group, the date of the mark."""
        return max(self.topics.values(), default=self.since)

    @property
    def key(self) -> Key:
        return ("mark", self.policy_uid, self.group)


class UsedBy(Entry, frozen=True, kw_only=True, gc=False, tag="used-by"):
    """A scan saw members of this program in a group. client_id: of one of them, truncated."""

    group: str
    program: Program
    client_id: str
    at: Time

    @property
    def key(self) -> Key:
        return ("used-by", self.group)


class KeepRequest(Entry, frozen=True, kw_only=True, gc=False, tag="keep"):
    """A request not to delete a group until a date, by any policy.

    source: namespace/name/uid of the GroupKeep that asks for it; "" = a user, by a command. Each source has its own
    request for a group. A program that knows no sources finds it under a wrong key, so it deletes no such group.
    after: of a GroupKeep, the last deletion of the group that does not concern it, as the group existed again; None =
    there is none.
    """

    group: str
    until: Time
    why: str
    by: str
    at: Time
    source: str = ""
    after: Time | None = None

    @property
    def key(self) -> Key:
        return ("keep", self.group, self.source) if self.source else ("keep", self.group)

    def asker(self, namespace: str, connection_namespace: str) -> str:
        """Who asks, for a policy of that namespace: others may not learn the name of a GroupKeep."""
        own = self.source.partition("/")[0] in ("", namespace) or namespace == connection_namespace
        return self.by if own else "a GroupKeep"


class Intent(Entry, frozen=True, kw_only=True, gc=False, tag="intent"):
    """A DeleteGroups request for this group may be sent until `deadline`, or an OffsetDelete request for its offsets of
    `topics`, if there are any. Its Outcome ends it.

    id: of the deletion. type: the group's type, for the request that finds out whether it is gone. writer: the process
    that may send the request and resolves it, as `LedgerSettings.writer`. partitions: the number of committed offsets,
    if the deletion takes several requests, so that a part of them may be gone; 0 = one request. log_ends: partition of
    `__consumer_offsets` -> its end before the offsets were read; empty = brokers hide it. waiting: the records that
    waited for the group, for the message of its outcome; 0 = none, or not known.
    """

    group: str
    id: str
    type: str
    policy: str
    policy_uid: str
    generation: int
    at: Time
    deadline: Time
    expires: Time
    marked_since: Time | None = None
    writer: str = ""
    topics: tuple[str, ...] = ()
    partitions: int = 0
    log_ends: dict[int, int] = msgspec.field(default_factory=dict)
    waiting: int = 0

    @property
    def key(self) -> Key:
        return ("intent", self.group)


class HistoryEntry(Entry, frozen=True, kw_only=True, gc=False, tag="outcome"):
    """History: an action on a group, or why there was none. id: of the deletion or restore, else unique.

    topics: those whose offsets were or should have been deleted; empty = the whole group.
    type, writer, partitions, log_ends: the intent's, if the group may yet be found deleted (`Contents.unresolved`).
    backup: of a restore, the id of the deletion that it proves, as offsets of its backup were missing.
    """

    group: str
    id: str
    at: Time
    what: OutcomeType
    reason: str
    message: str
    policy: str
    policy_uid: str
    generation: int
    expires: Time
    marked_since: Time | None = None
    type: str = ""
    writer: str = ""
    topics: tuple[str, ...] = ()
    partitions: int = 0
    log_ends: dict[int, int] = msgspec.field(default_factory=dict)
    backup: str = ""

    @property
    def key(self) -> Key:
        return ("outcome", self.group, self.id, self.what)


class Firing(NamedTuple):
    """A firing alert of a policy.

    since: the time of its latest change. digests: of its groups, see `observe.alerts`. total: how many groups.
    reported, new: how many it had at its latest change, and how many of these were new. groups: the names of some, new
    ones first, each with its last client in words ("" = not known). detail, first_due: see
    `observe.alerts.AlertFinding`.
    """

    since: Time
    digests: bytes
    total: int
    reported: int
    new: int
    groups: dict[str, str]
    detail: str = ""
    first_due: Time | None = None


class Notice(NamedTuple):
    """Groups that were deleted: when the last of them, how many, and some of them as in `Firing.groups`."""

    at: Time
    total: int
    groups: dict[str, str]


class Delivered(NamedTuple):
    """The alerts of a policy that a receiver has.

    digest: of the receiver's address, see Receiver.digest. since: by type, `Firing.since` of the alert that it received
    last. deleted: the deletions that it has not received. unconfirmed: it answered none of several messages, which are
    not sent again.
    """

    digest: str
    since: dict[str, Time]
    deleted: Notice | None = None
    unconfirmed: bool = False


class PolicyAlerts(Entry, frozen=True, kw_only=True, gc=False, tag="policy-alerts"):
    """The alerts of a policy after its latest run, by type, and what each receiver has of them, by its name.

    So a restart repeats none. policy_uid: with `/NAME`, those of the groups of the owner with this name. policy:
    namespace/name.
    """

    connection_uid: str
    policy_uid: str
    policy: str
    firing: dict[str, Firing]
    delivered: dict[str, Delivered]
    expires: Time

    @property
    def key(self) -> Key:
        return ("policy-alerts", self.connection_uid, self.policy_uid)


@dataclass(frozen=True, slots=True)
class Removal:
    """The end of an entry: a tombstone under its key."""

    key: Key


Change = Entry | Removal


# The backups of groups: entries of the ledger in parts, their assembly and merging. Pure.

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
