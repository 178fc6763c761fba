"""What the ledger holds: entries and their JSON. Pure: no I/O, no Kafka. `contents` is what a log of them adds up to.

An entry is written whole under a key of its own; a later one under that key replaces it, and a removal ends it. Keys
and values are JSON: a key is a list that begins with the kind, a value an object with `v`, its version. What can't be
read is never guessed: it is counted, and the group that its key names is held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import inspect

Key = tuple[str, ...]
# A time without a zone can't be compared with another one.
Time = Annotated[datetime, msgspec.Meta(tz=True)]
# About 30,000 years: what can be added and subtracted as a timedelta.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
# Times of entries are between these: with any duration that a spec may have (45 years) added, they are times still.
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC)

_CHUNK_BYTES = 400_000
# GroupType.SHARE, as Kafka names it.
_SHARE = "Share"


class What(StrEnum):
    """What an Outcome tells of a group."""

    DELETED = "Deleted"
    OFFSETS_DELETED = "OffsetsDeleted"
    KEPT = "Kept"
    FAILED = "Failed"
    UNMARKED = "Unmarked"
    RESTORED = "Restored"


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="kind"):
    """Base of all entries. `v`: the version of this form; a later one is not read."""

    v: Literal[1] = 1

    @property
    def key(self) -> Key:
        raise NotImplementedError


class Owner(Entry, frozen=True, kw_only=True, gc=False, tag="owner"):
    """Which installation writes here. ledger: an id given at the beginning; another one is another ledger."""

    installation: str
    ledger: str
    since: Time

    @property
    def key(self) -> Key:
        return ("owner",)


class Watch(Entry, frozen=True, kw_only=True, gc=False, tag="watch"):
    """How a policy's looks at the cluster went on.

    digest: of what decides (Policy.digest); another one starts anew. epoch: grows when looks were missed, and voids
    every Seen of an earlier one. watched: monotonic seconds between the looks of this epoch, added up. at: the last
    look; complete_at: the last one at which every group that was looked for could be read.
    """

    policy_uid: str
    digest: str
    epoch: int
    watched: Seconds
    at: Time
    complete_at: Time

    @property
    def key(self) -> Key:
        return ("watch", self.policy_uid)


class LogEnd(NamedTuple):
    """Where a partition of `__consumer_offsets` ended. leader_epoch: in which it was led then; -1 = not known."""

    partition: int
    offset: int
    leader_epoch: int


class Seen(Entry, frozen=True, kw_only=True, gc=False, tag="seen"):
    """Since when a policy's looks find a group Empty with the same committed offsets.

    fingerprint: of `model.fingerprint`. watched: the Watch's seconds at the first of those looks.
    log_end: no record of the group since that look is before this offset; None = not known (older releases).
    """

    policy_uid: str
    group: str
    epoch: int
    fingerprint: bytes
    since: Time
    watched: Seconds
    log_end: LogEnd | None = None

    @property
    def key(self) -> Key:
        return ("seen", self.policy_uid, self.group)


class Covered(Entry, frozen=True, kw_only=True, gc=False, tag="covered"):
    """How far a connection saw the pipeline's tables at most: older ones must not take their place.

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
    """A group is to be deleted by a policy, not before `due`. digest: of the policy that marked it.

    topics: only its offsets of these are, each since when it is marked; none = the whole group. Then `since` and `due`
    are those of the first of them.
    """

    policy_uid: str
    group: str
    policy: str
    digest: str
    since: Time
    due: Time
    topics: dict[str, Time] = msgspec.field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def newest(self) -> datetime:
        """Since when the last of its topics is marked; of a whole group, since when that is."""
        return max(self.topics.values(), default=self.since)

    @property
    def key(self) -> Key:
        return ("mark", self.policy_uid, self.group)


class KeepRequest(Entry, frozen=True, kw_only=True, gc=False, tag="keep"):
    """Somebody asked to keep a group for a while, whatever policies say."""

    group: str
    until: Time
    why: str
    by: str
    at: Time

    @property
    def key(self) -> Key:
        return ("keep", self.group)


class Intent(Entry, frozen=True, kw_only=True, gc=False, tag="intent"):
    """A DeleteGroups request for this group may be sent until `deadline`, or an OffsetDelete request for its offsets of
    `topics`, where there are any. Its Outcome ends it.

    id: of the deletion. type: the group's type, which says how to find out whether it is gone. writer: who may send it,
    and finds out what became of it, as `LedgerSettings.writer`. partitions: how many committed offsets the group had,
    where it is deleted by several requests, so that a part of them may be gone; 0 = by one.
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

    @property
    def key(self) -> Key:
        return ("intent", self.group)


class SavedOffset(NamedTuple):
    """One partition of a backup. lag: records after the committed offset, None = not known."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    lag: int | None


class Backup(Entry, frozen=True, kw_only=True, gc=False, tag="backup"):
    """What a group had before a deletion: one part of `parts`, whole only with all of them.

    id: of the deletion. offsets: topic -> its committed partitions. topic_ids: topic -> id (KIP-516), empty below 2.8.
    evidence: why it was due, in words. expires: until when the backup is kept. internal_topics: of a Streams
    application, with their ids: what its offsets belong to. partial: the group stayed, with other offsets.
    continues: the id of an earlier deletion, which was interrupted and may have taken a part: this backup has that too.
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

    @property
    def key(self) -> Key:
        return ("backup", self.group, self.id, str(self.part))


class Outcome(Entry, frozen=True, kw_only=True, gc=False, tag="outcome"):
    """What was done with a group, or was not: the history. id: of the deletion or restore, else unique.

    topics: those whose offsets were deleted, or were to be; none = it was about the whole group.
    type, writer: the intent's, where the group may still turn out to be deleted (see `Contents.doubtful`).
    backup: of a restore, the id of the deletion that it proves: offsets were missing that the group had had then.
    """

    group: str
    id: str
    at: Time
    what: What
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
    backup: str = ""

    @property
    def key(self) -> Key:
        return ("outcome", self.group, self.id, self.what)


class Firing(NamedTuple):
    """One kind of alert, as a receiver was told of it.

    since: when what was told last was found. digests: of what fires, see `alerts.state`. until: how long an
    Alertmanager takes it for firing unless it is told again; None for receivers that forget nothing. total: how many
    groups it was told of.
    """

    since: Time
    digests: bytes
    until: Time | None = None
    total: int = 0


class Notice(NamedTuple):
    """What a receiver is still to be told once: so many groups were deleted, some of which are named."""

    at: Time
    total: int
    groups: list[str]


class Told(Entry, frozen=True, kw_only=True, gc=False, tag="told"):
    """What a receiver was told of a policy, so that a restart repeats nothing.

    receiver: its name, with `policy/` before that of a policy's own. digest: of where it is (Receiver.digest).
    connection_uid: whose loop tells it. policy: namespace/name. firing: by kind. owed: not told yet.
    """

    policy_uid: str
    receiver: str
    digest: str
    connection_uid: str
    policy: str
    firing: dict[str, Firing]
    expires: Time
    owed: tuple[Notice, ...] = ()

    @property
    def key(self) -> Key:
        return ("told", self.policy_uid, self.receiver)


@dataclass(frozen=True, slots=True)
class Removal:
    """The end of an entry: a tombstone under its key."""

    key: Key


Change = Entry | Removal


class Unreadable(msgspec.ValidationError):
    """A record that is none of ours, or of a version that this program does not know."""


_KINDS = (Owner, Watch, Seen, Covered, Mark, KeepRequest, Intent, Backup, Outcome, Told)
_ANY = msgspec.json.Decoder(Owner | Watch | Seen | Covered | Mark | KeepRequest | Intent | Backup | Outcome | Told)
# The fields of each kind in which there are times, at any depth.
_TIMES_IN: dict[type[msgspec.Struct], tuple[str, ...]] = {
    info.cls: tuple(field.name for field in info.fields if "DateTimeType" in repr(field))
    for info in map(inspect.type_info, _KINDS)
    if isinstance(info, inspect.StructType)
}
_KEY = msgspec.json.Decoder(tuple[str, ...])
# Kinds whose key names a group, and where.
_GROUP_AT = {"seen": 2, "mark": 2, "keep": 1, "intent": 1, "backup": 1, "outcome": 1}


def encode_key(key: Key) -> bytes:
    return msgspec.json.encode(key)


def encode_value(entry: Entry) -> bytes:
    return msgspec.json.encode(entry)


def decode_key(key: bytes | None) -> Key:
    """Raises Unreadable."""
    try:
        return _KEY.decode(key or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unreadable(f"its key is none of ours: {error}") from error


def decode(key: Key, value: bytes) -> Entry:
    """The entry of a record that is no tombstone. Raises Unreadable, also when it stands under another entry's key."""
    try:
        entry: Entry = _ANY.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(_newer(value) or f"its value can't be read: {error}") from error
    if entry.key != key:
        raise Unreadable("its value belongs under another key")
    for name in _TIMES_IN[type(entry)]:
        if not all(_FIRST <= time < _LAST for time in _times(getattr(entry, name))):
            raise Unreadable(f"its {name} is not between the years {_FIRST.year} and {_LAST.year}")
    return entry


def _times(value: object) -> Iterator[datetime]:
    """Every time in the value of a field."""
    if isinstance(value, datetime):
        yield value
    elif isinstance(value, dict | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _times(each)


def _newer(value: bytes) -> str:
    """Why a value can't be read, where a later version wrote it; else empty."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        version = msgspec.json.decode(value, type=dict[str, Any]).get("v")
        if isinstance(version, int) and version > 1:
            return f"it is of version {version}, and this program knows version 1: upgrade it"
    return ""


def group_of(key: Key) -> str | None:
    """The group that a key names; None where it names none."""
    place = _GROUP_AT.get(key[0]) if key else None
    return key[place] if place is not None and len(key) > place else None


def in_parts(backup: Backup, chunk_bytes: int = _CHUNK_BYTES) -> list[Backup]:
    """The backup as records of at most about `chunk_bytes` each, as a broker takes no larger one."""
    chunks: list[dict[str, list[SavedOffset]]] = [{}]
    size = 0
    for topic, rows in backup.offsets.items():
        for row in rows:
            cost = 48 + len(row.metadata.encode()) * 2 + (0 if topic in chunks[-1] else len(topic) + 8)
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
    """One backup of all its parts; None while one is missing."""
    by_part = {part.part: part for part in parts}
    # How many there are is what somebody wrote: nothing may grow with it.
    if not by_part or len(by_part) != parts[0].parts or set(by_part) != set(range(len(by_part))):
        return None
    offsets: dict[str, list[SavedOffset]] = {}
    topic_ids: dict[str, str] = {}
    for index in sorted(by_part):
        for topic, rows in by_part[index].offsets.items():
            offsets.setdefault(topic, []).extend(rows)
        topic_ids |= by_part[index].topic_ids
    return msgspec.structs.replace(by_part[0], part=0, parts=1, offsets=offsets, topic_ids=topic_ids)


def with_earlier(backup: Backup, earlier: Backup) -> Backup:
    """The backup, with what an earlier one of the same group has and the group has no more.

    Offsets of a topic that was created again since belong to another topic, and are left out. So are start offsets of a
    share group of the same id, and in one the offsets that others committed. A group that is Empty may go from one of
    the other types to another and keeps its offsets (KIP-848, KIP-1071).
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


def with_newer_offsets(backup: Backup, newer: Backup) -> Backup:
    """The backup, with the offsets that a newer one of the same group has of the same partitions of the same topics."""
    if (backup.type == _SHARE) != (newer.type == _SHARE):
        return backup
    offsets = dict(backup.offsets)
    for topic in offsets.keys() & newer.offsets.keys():
        if backup.topic_ids.get(topic) == newer.topic_ids.get(topic):
            later = {row.partition: row for row in newer.offsets[topic]}
            offsets[topic] = [later.get(row.partition, row) for row in offsets[topic]]
    return msgspec.structs.replace(backup, offsets=offsets)


def expires(entry: Any) -> datetime | None:
    """Until when an entry is kept; None = for as long as something else says so."""
    if isinstance(entry, KeepRequest):
        return entry.until
    return entry.expires if isinstance(entry, Backup | Outcome | Covered | Told) else None
