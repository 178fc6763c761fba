"""What the ledger holds: entries, their JSON, and the contents that a log of them adds up to. Pure: no I/O, no Kafka.

An entry is written whole under a key of its own; a later one under that key replaces it, and a removal ends it. Keys
and values are JSON: a key is a list that begins with the kind, a value an object with `v`, its version. What can't be
read is never guessed: it is counted, and the group that its key names is held.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

Key = tuple[str, ...]
# A time without a zone can't be compared with another one.
Time = Annotated[datetime, msgspec.Meta(tz=True)]

_CHUNK_BYTES = 400_000


class What(StrEnum):
    """What an Outcome tells of a group."""

    DELETED = "Deleted"
    KEPT = "Kept"
    FAILED = "Failed"
    UNMARKED = "Unmarked"
    RESTORED = "Restored"


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="kind"):
    """Base of all entries. `v`: the version of this form; another one is not read."""

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
    watched: float
    at: Time
    complete_at: Time

    @property
    def key(self) -> Key:
        return ("watch", self.policy_uid)


class Seen(Entry, frozen=True, kw_only=True, gc=False, tag="seen"):
    """Since when a policy's looks find a group Empty with the same committed offsets.

    fingerprint: of `model.fingerprint`. watched: the Watch's seconds at the first of those looks.
    """

    policy_uid: str
    group: str
    epoch: int
    fingerprint: bytes
    since: Time
    watched: float

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
    """A group is to be deleted by a policy, not before `due`. digest: of the policy that marked it."""

    policy_uid: str
    group: str
    policy: str
    digest: str
    since: Time
    due: Time

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
    """A DeleteGroups request for this group may be sent until `deadline`. Its Outcome ends it.

    id: of the deletion. type: the group's type, which says how to find out whether it is gone. writer: who may send it,
    and finds out what became of it, as `LedgerSettings.writer`.
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
    evidence: why it was due, in words. expires: until when the backup is kept.
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

    @property
    def key(self) -> Key:
        return ("backup", self.group, self.id, str(self.part))


class Outcome(Entry, frozen=True, kw_only=True, gc=False, tag="outcome"):
    """What was done with a group, or was not: the history. id: of the deletion or restore, else unique.

    type, writer: the intent's, where the group may still turn out to be deleted (see `Contents.doubtful`).
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

    @property
    def key(self) -> Key:
        return ("outcome", self.group, self.id, self.what)


@dataclass(frozen=True, slots=True)
class Removal:
    """The end of an entry: a tombstone under its key."""

    key: Key


Change = Entry | Removal


class Deletion(NamedTuple):
    """The last deletion of a group, as far as contents remember it: when, by which policy, and until when it counts."""

    at: datetime
    policy: str
    until: datetime


class Unreadable(msgspec.ValidationError):
    """A record that is none of ours, or of a version that this program does not know."""


_ANY = msgspec.json.Decoder(Owner | Watch | Seen | Covered | Mark | KeepRequest | Intent | Backup | Outcome)
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
        raise Unreadable(f"its value can't be read: {error}") from error
    if entry.key != key:
        raise Unreadable("its value belongs under another key")
    return entry


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
    if not by_part or set(by_part) != set(range(parts[0].parts)):
        return None
    offsets: dict[str, list[SavedOffset]] = {}
    topic_ids: dict[str, str] = {}
    for index in sorted(by_part):
        for topic, rows in by_part[index].offsets.items():
            offsets.setdefault(topic, []).extend(rows)
        topic_ids |= by_part[index].topic_ids
    return msgspec.structs.replace(by_part[0], part=0, parts=1, offsets=offsets, topic_ids=topic_ids)


@dataclass
class Contents:
    """What the operator needs to remember of a ledger, as small as it can be: no backups, no history.

    watches: policy uid -> its Watch. covered: connection uid -> its Covered. seen, marks: policy uid -> group -> entry.
    keeps, intents, deletions: by group.
    doubtful: groups that were there after a deletion was interrupted: the request may still be under way.
    restored: groups with an open intent that were restored after it was written, so they were deleted before that.
    damaged: group -> why an entry about it can't be read. unreadable: how many records could not be.
    """

    owner: Owner | None = None
    watches: dict[str, Watch] = field(default_factory=dict)
    covered: dict[str, Covered] = field(default_factory=dict)
    seen: dict[str, dict[str, Seen]] = field(default_factory=dict)
    marks: dict[str, dict[str, Mark]] = field(default_factory=dict)
    keeps: dict[str, KeepRequest] = field(default_factory=dict)
    intents: dict[str, Intent] = field(default_factory=dict)
    deletions: dict[str, Deletion] = field(default_factory=dict)
    doubtful: dict[str, Outcome] = field(default_factory=dict)
    restored: set[str] = field(default_factory=set)
    damaged: dict[str, str] = field(default_factory=dict)
    _unreadable_keys: dict[bytes, str | None] = field(default_factory=dict)

    @property
    def unreadable(self) -> int:
        return len(self._unreadable_keys)

    def take(self, raw_key: bytes | None, value: bytes | None) -> None:
        """Take in one record, as read from the log. Never raises: what can't be read holds its group."""
        group: str | None = None
        try:
            key = decode_key(raw_key)
            group = group_of(key)
            change: Change = Removal(key) if value is None else decode(key, value)
        except Unreadable as error:
            if value is None:
                # A tombstone leaves nothing behind that could not be read.
                self._mend(raw_key or b"")
                return
            self._unreadable_keys[raw_key or b""] = group
            if group is not None:
                self.damaged[group] = str(error)
            return
        self._mend(raw_key or b"")
        self.apply([change])

    def apply(self, changes: Iterable[Change]) -> None:
        """Take in changes that were written, or that need not be."""
        for change in changes:
            if isinstance(change, Removal):
                self._remove(change.key)
            else:
                self._put(change)

    def _mend(self, raw_key: bytes) -> None:
        """A readable record or a tombstone took the place of one that could not be read."""
        if raw_key not in self._unreadable_keys:
            return
        group = self._unreadable_keys.pop(raw_key)
        if group is not None and group not in self._unreadable_keys.values():
            self.damaged.pop(group, None)

    def _put(self, entry: Entry) -> None:
        match entry:
            case Owner():
                self.owner = entry
            case Watch():
                self.watches[entry.policy_uid] = entry
            case Covered():
                self.covered[entry.connection_uid] = entry
            case Seen():
                self.seen.setdefault(sys.intern(entry.policy_uid), {})[entry.group] = entry
            case Mark():
                self.marks.setdefault(sys.intern(entry.policy_uid), {})[entry.group] = entry
            case KeepRequest():
                self.keeps[entry.group] = entry
            case Intent():
                self.intents[entry.group] = entry
                self.restored.discard(entry.group)
            case Outcome() if entry.what is What.KEPT and entry.type:
                self.doubtful[entry.group] = entry
            case Outcome() if entry.what is What.KEPT:
                self._end_doubt(entry.group, entry.id)
            case Outcome() if entry.what is What.RESTORED and entry.group in self.intents:
                # By the order of the log, which no clock can change.
                self.restored.add(entry.group)
            case Outcome() if entry.what is What.DELETED:
                self.doubtful.pop(entry.group, None)
                known = self.deletions.get(entry.group)
                if known is None or known.at <= entry.at:
                    self.deletions[entry.group] = Deletion(entry.at, sys.intern(entry.policy), entry.expires)

    def _remove(self, key: Key) -> None:
        match key:
            case ("owner",):
                self.owner = None
            case ("watch", uid):
                self.watches.pop(uid, None)
            case ("covered", uid):
                self.covered.pop(uid, None)
            case ("seen", uid, group):
                self.seen.get(uid, {}).pop(group, None)
            case ("mark", uid, group):
                self.marks.get(uid, {}).pop(group, None)
            case ("keep", group):
                self.keeps.pop(group, None)
            case ("intent", group):
                self.intents.pop(group, None)
                self.restored.discard(group)
            case ("outcome", group, id_, What.KEPT):
                self._end_doubt(group, id_)

    def _end_doubt(self, group: str, id_: str) -> None:
        known = self.doubtful.get(group)
        if known is not None and known.id == id_:
            del self.doubtful[group]

    def forget_expired(self, now: datetime) -> None:
        """Drop what was remembered for a time that is over. now: a broker's time, which our clock agrees with.

        What is dropped here is never read again by this process. A clock that jumped ahead must not cost a request to
        keep a group, so who asks for an entry compares its date instead.
        """
        self.doubtful = {group: outcome for group, outcome in self.doubtful.items() if outcome.expires > now}
        self.deletions = {group: d for group, d in self.deletions.items() if d.until > now}
        self.keeps = {group: request for group, request in self.keeps.items() if request.until > now}


def removals(keys: Iterable[Key]) -> Iterator[Removal]:
    return (Removal(key) for key in keys)


def expires(entry: Any) -> datetime | None:
    """Until when an entry is kept; None = for as long as something else says so."""
    if isinstance(entry, KeepRequest):
        return entry.until
    return entry.expires if isinstance(entry, Backup | Outcome | Covered) else None
