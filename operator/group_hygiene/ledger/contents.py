"""The owner of a ledger, the JSON of its entries, and its current state, computed from its log of them.

Pure: no I/O, no Kafka.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar, get_args

import msgspec
from msgspec import inspect

from group_hygiene.model import reasons
from group_hygiene.model.entries import (
    Backup,
    Change,
    Entry,
    HistoryEntry,
    Intent,
    KeepRequest,
    Key,
    LargestCoverage,
    Mark,
    OutcomeType,
    Owner,
    PolicyAlerts,
    Removal,
    ScanClock,
    Seen,
    UsedBy,
    Watch,
)
from group_hygiene.model.evidence import Deletion

# The owner and the topic of a ledger, and the names of its writers.

TOPIC = "__group_hygiene"
# Begins the transactional.id of a command; it has a new one each time, so it fences no other process.
COMMAND_WRITER = "group-hygiene-cli-"
# Owns a ledger that a command created, until an installation claims it.
COMMAND_LINE = "command-line"


@dataclass(frozen=True, kw_only=True)
class LedgerSettings:
    """The owner and the topic of a ledger.

    installation: the required owner; None = any. writer: the transactional.id; a new process with the same one fences
    the previous writer. known, known_topic: id and topic of the ledger that was seen before. transaction_timeout:
    seconds after which brokers abort a transaction that a dead process left open; until then no client can read past
    it.
    """

    installation: str | None
    writer: str
    known: str | None = None
    known_topic: str | None = None
    topic: str = TOPIC
    replication_factor: int = 3
    transaction_timeout: float = 60.0


# Reads and writes the JSON of the ledger's entries. Pure: no I/O, no Kafka.
#
# A key is a list that begins with the entry's kind, a value is an object with `v`, its version. Unreadable records are
# counted, and the groups in their keys are not deleted.

# Times of entries are between these, so that adding any duration of a spec (up to 45 years) does not overflow.
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC)


# Backups have parts of 400 kB, and other entries are smaller. Decoded, a value takes up to 16 times its bytes.
_VALUE_BYTES = 4 << 20


class Unreadable(msgspec.ValidationError):
    """A record that is no entry, or of a version that this program does not know."""


_AnyEntry = (
    Owner
    | Watch
    | ScanClock
    | Seen
    | LargestCoverage
    | Mark
    | KeepRequest
    | Intent
    | Backup
    | HistoryEntry
    | PolicyAlerts
    | UsedBy
)
_DECODER = msgspec.json.Decoder(_AnyEntry)
# The fields of each kind that contain times, at any depth.
_TIMES_IN: dict[type[msgspec.Struct], tuple[str, ...]] = {
    info.cls: tuple(field.name for field in info.fields if "DateTimeType" in repr(field))
    for info in map(inspect.type_info, get_args(_AnyEntry))
    if isinstance(info, inspect.StructType)
}
_KEY = msgspec.json.Decoder(tuple[str, ...])
# Types of entries whose key names a group, and its index in the key.
_GROUP_AT = {"seen": 2, "mark": 2, "keep": 1, "intent": 1, "backup": 1, "outcome": 1, "used-by": 1}


def encode_key(key: Key) -> bytes:
    return msgspec.json.encode(key)


def encode_value(entry: Entry) -> bytes:
    return msgspec.json.encode(entry)


def decode_key(key: bytes | None) -> Key:
    """Raises Unreadable."""
    try:
        return _KEY.decode(key or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unreadable(f"its key is not an entry's: {error}") from error


def decode(key: Key, value: bytes) -> Entry:
    """The entry of a record that is no tombstone. Raises Unreadable, also if it is under another entry's key."""
    if len(value) > _VALUE_BYTES:
        raise Unreadable(f"its value has {len(value)} bytes, more than any entry")
    try:
        entry: Entry = _DECODER.decode(value)
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
    """Why a value can't be read, if a later version wrote it; else empty."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        version = msgspec.json.decode(value, type=dict[str, Any]).get("v")
        if isinstance(version, int) and version > 1:
            return f"it is of version {version}, and this program knows version 1: upgrade it"
    return ""


def group_of(key: Key) -> str | None:
    """The group that a key names; None if it names none."""
    place = _GROUP_AT.get(key[0]) if key else None
    return key[place] if place is not None and len(key) > place else None


def expires(entry: Any) -> datetime | None:
    """Until when an entry is retained; None = until another entry ends it."""
    if isinstance(entry, KeepRequest):
        return entry.until
    return entry.expires if isinstance(entry, Backup | HistoryEntry | LargestCoverage | PolicyAlerts) else None


# Kind of an entry -> the field of `Contents` that has it, and by how many names of its key it is found there.
_PLACES = {
    "watch": ("watches", 1),
    "covered": ("covered", 1),
    "scan-clock": ("clocks", 1),
    "seen": ("seen", 2),
    "mark": ("marks", 2),
    "keep": ("keeps", 1),
    "used-by": ("used_by", 1),
    "intent": ("intents", 1),
}


class Restore(NamedTuple):
    """A restore of a group: its time, and until when the ledger has its outcome."""

    at: datetime
    until: datetime


_NO_RESTORE = Restore(_FIRST, _FIRST)

K = TypeVar("K")
V = TypeVar("V")


@dataclass
class Contents:
    """The entries of a ledger that the operator needs in memory: no backups, no history.

    watches: policy uid -> its Watch. covered, clocks: connection uid -> its LargestCoverage or ScanClock.
    seen: connection uid -> group -> entry. marks: policy uid -> group -> entry.
    keeps, used_by, intents, deletions: by group; keeps are those of users. object_keeps: group -> source -> the request
    of a GroupKeep. offset_deletions: group -> topic -> the last deletion of its offsets.
    alerts: by key, the alerts of policies and what each receiver has received of them.
    unresolved: groups that still existed after an interrupted deletion, whose request may still be carried out.
    unfinished: group -> policy uid -> an interrupted deletion of offsets of topics, or with "" as the uid of the whole
    group, that did not delete everything; until a deletion succeeds. Some offsets of its backup may be gone.
    restored: id of a deletion whose own backup was restored -> when the restore's outcome expires. The deletion had
    taken these offsets. restores: group -> its last restore that brought back all offsets of a backup.
    contested: groups with an open intent that replaced one of another process: two processes delete them at once.
    damaged: group -> why an entry about it can't be read. hidden: the first offset of a batch of records that can't be
    read -> why. unreadable: the number of unreadable records and batches.
    """

    owner: Owner | None = None
    watches: dict[str, Watch] = field(default_factory=dict)
    covered: dict[str, LargestCoverage] = field(default_factory=dict)
    clocks: dict[str, ScanClock] = field(default_factory=dict)
    seen: dict[str, dict[str, Seen]] = field(default_factory=dict)
    marks: dict[str, dict[str, Mark]] = field(default_factory=dict)
    keeps: dict[str, KeepRequest] = field(default_factory=dict)
    object_keeps: dict[str, dict[str, KeepRequest]] = field(default_factory=dict)
    used_by: dict[str, UsedBy] = field(default_factory=dict)
    intents: dict[str, Intent] = field(default_factory=dict)
    deletions: dict[str, Deletion] = field(default_factory=dict)
    offset_deletions: dict[str, dict[str, Deletion]] = field(default_factory=dict)
    unresolved: dict[str, HistoryEntry] = field(default_factory=dict)
    unfinished: dict[str, dict[str, HistoryEntry]] = field(default_factory=dict)
    restored: dict[str, datetime] = field(default_factory=dict)
    restores: dict[str, Restore] = field(default_factory=dict)
    # Compaction may remove the replaced intent, but not within the seconds in which its process may act on it.
    contested: set[str] = field(default_factory=set, compare=False)
    damaged: dict[str, str] = field(default_factory=dict)
    hidden: dict[int, str] = field(default_factory=dict)
    alerts: dict[Key, PolicyAlerts] = field(default_factory=dict)
    _unreadable_keys: dict[bytes, str | None] = field(default_factory=dict)
    # The last one that was read from the log.
    _seen_last: Seen | None = field(default=None, repr=False, compare=False)

    def keep_of(self, group: str) -> KeepRequest | None:
        """The request to keep a group that lasts longest."""
        request, others = self.keeps.get(group), self.object_keeps.get(group)
        if not others:
            return request
        return max((*others.values(), *([request] if request else [])), key=lambda each: each.until)

    def held_ids(self, connection_uid: str) -> Callable[[str], str]:
        """What returns the object of a group's id that the entries of a connection's scans hold; else the id itself."""
        seen = self.seen.get(connection_uid, {})

        def held(group: str) -> str:
            entry = seen.get(group)
            return group if entry is None else entry.group

        return held

    def last_deletion(self, group: str) -> datetime | None:
        """When the group or some of its offsets were deleted last, also if that was interrupted; None = never."""
        times = [each.at for each in self.offset_deletions.get(group, {}).values()]
        times += [each.at for each in self.unfinished.get(group, {}).values()]
        times += [self.deletions[group].at] if group in self.deletions else []
        return max(times, default=None)

    def lost(self, request: KeepRequest) -> datetime | None:
        """The last deletion that concerns the request, if no restore brought all offsets back; None = there is none."""
        last, restore = self.last_deletion(request.group), self.restores.get(request.group, _NO_RESTORE)
        return last if last is not None and last > max(restore.at, request.after or _FIRST) else None

    @property
    def unreadable(self) -> int:
        return len(self._unreadable_keys) + len(self.hidden)

    @property
    def hidden_summary(self) -> str:
        """Where records can't be read, and why; empty if all can."""
        if not self.hidden:
            return ""
        first = min(self.hidden)
        count = "a batch" if len(self.hidden) == 1 else f"{len(self.hidden)} batches, the first one"
        return f"the ledger's records in {count} at offset {first} can't be read: {self.hidden[first]}"

    def take(self, raw_key: bytes | None, value: bytes | None) -> None:
        """Apply one record of the log. Never raises: an unreadable record makes its group `damaged`."""
        group: str | None = None
        try:
            key = decode_key(raw_key)
            group = group_of(key)
            change: Change = Removal(key) if value is None else decode(key, value)
        except Unreadable as error:
            if value is None:
                # A tombstone removes the unreadable record.
                self._clear_unreadable(raw_key or b"")
                return
            self._unreadable_keys[raw_key or b""] = group
            if group is not None:
                self.damaged[group] = str(error)
            return
        self._clear_unreadable(raw_key or b"")
        self.apply([self._sharing(change) if isinstance(change, Seen) else change])

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes that were written, or that need not be written."""
        for change in changes:
            self._set(change.key, None if isinstance(change, Removal) else change)

    def _sharing(self, entry: Seen) -> Seen:
        """The entry with the objects of others, which halves the memory of half a million: the id of the group's
        earlier one, and the rest of the one that was read before. What this process wrote itself is there already.
        """
        known = self.seen.get(entry.connection_uid, {}).get(entry.group)
        if known == entry:
            return known
        before, self._seen_last = self._seen_last or entry, entry
        shared = [(before, name) for name in ("connection_uid", "type", "since", "watched")]
        for other, name in [*shared, *([] if known is None else [(known, "group")])]:
            if getattr(other, name) == getattr(entry, name):
                msgspec.structs.force_setattr(entry, name, getattr(other, name))
        return entry

    def _clear_unreadable(self, raw_key: bytes) -> None:
        """A readable record or a tombstone replaced an unreadable one."""
        if raw_key not in self._unreadable_keys:
            return
        group = self._unreadable_keys.pop(raw_key)
        if group is not None and group not in self._unreadable_keys.values():
            self.damaged.pop(group, None)

    def _set(self, key: Key, entry: Entry | None) -> None:
        """Put the entry under its key; None = remove what is there."""
        match key, entry:
            case _, HistoryEntry():
                self._put_outcome(entry)
            case ("outcome", group, id_, OutcomeType.NOT_DELETED), None:
                self._resolve(group, id_)
                for uid, known in list(self.unfinished.get(group, {}).items()):
                    if known.id == id_:
                        del self.unfinished[group][uid]
            case ("owner",), Owner() | None:
                self.owner = entry
            case ("keep", _, _), _:
                _put(self.object_keeps, key[1:], entry)
            case ("policy-alerts", *_), _:
                _put(self.alerts, [key], entry)
            case (kind, *path), _ if len(path) == _PLACES.get(kind, ("", -1))[1]:
                if isinstance(entry, Intent) and self.intents.get(entry.group, entry).id != entry.id:
                    self.contested.add(entry.group)
                if entry is None and kind == "intent":
                    self.contested.discard(path[0])
                _put(getattr(self, _PLACES[kind][0]), path, entry)

    def _put_outcome(self, outcome: HistoryEntry) -> None:
        group = outcome.group
        match outcome.what:
            case OutcomeType.NOT_DELETED:
                if outcome.reason == reasons.INTERRUPTED:
                    self.unfinished.setdefault(group, {})[outcome.policy_uid if outcome.topics else ""] = outcome
                if outcome.reason == reasons.REAPPEARED:
                    _remember(self.deletions, group, outcome)
                if outcome.type:
                    self.unresolved[group] = outcome
                else:
                    self._resolve(group, outcome.id)
            case OutcomeType.RESTORED:
                if outcome.backup:
                    self.restored[outcome.backup] = outcome.expires
                if outcome.reason == reasons.RESTORED:
                    restore = Restore(outcome.at, outcome.expires)
                    self.restores[group] = max(restore, self.restores.get(group, _NO_RESTORE))
            case OutcomeType.DELETED:
                self.unresolved.pop(group, None)
                self.unfinished.pop(group, None)
                _remember(self.deletions, group, outcome)
            case OutcomeType.OFFSETS_DELETED:
                self.unresolved.pop(group, None)
                self.unfinished.get(group, {}).pop(outcome.policy_uid, None)
                of_group = self.offset_deletions.setdefault(group, {})
                for topic in outcome.topics:
                    _remember(of_group, sys.intern(topic), outcome)

    def _resolve(self, group: str, id_: str) -> None:
        known = self.unresolved.get(group)
        if known is not None and known.id == id_:
            del self.unresolved[group]

    def forget_expired(self, now: datetime) -> None:
        """Drop expired entries. now: a broker's time, with which the operator's clock agrees.

        This process never reads dropped entries again. A clock that jumped ahead must not drop a request to keep a
        group, so callers that use an entry compare its date themselves.
        """

        def current(entries: dict[K, V]) -> dict[K, V]:
            return {key: entry for key, entry in entries.items() if _until(entry) > now}

        def nested(entries: dict[str, dict[str, V]]) -> dict[str, dict[str, V]]:
            left = {group: current(of_group) for group, of_group in entries.items()}
            return {group: of_group for group, of_group in left.items() if of_group}

        self.unresolved, self.unfinished = current(self.unresolved), nested(self.unfinished)
        self.deletions, self.offset_deletions = current(self.deletions), nested(self.offset_deletions)
        self.keeps, self.object_keeps = current(self.keeps), nested(self.object_keeps)
        self.restored, self.restores = current(self.restored), current(self.restores)
        self.alerts = current(self.alerts)


def _until(entry: object) -> datetime:
    """When an entry of `Contents` ends."""
    if isinstance(entry, datetime):
        return entry
    until = entry.until if isinstance(entry, Deletion | Restore) else expires(entry)
    return datetime.max.replace(tzinfo=UTC) if until is None else until


def _put(entries: dict[Any, Any], path: Sequence[object], entry: Entry | None) -> None:
    """Put an entry under nested keys, or remove what is there."""
    *outer, name = path
    for each in outer:
        entries = entries.get(each, {}) if entry is None else entries.setdefault(each, {})
    if entry is None:
        entries.pop(name, None)
    else:
        entries[name] = entry


def _remember(deletions: dict[str, Deletion], name: str, outcome: HistoryEntry) -> None:
    known = deletions.get(name)
    if known is None or known.at <= outcome.at:
        deletions[name] = Deletion(
            outcome.at, sys.intern(outcome.policy), outcome.expires, outcome.what is OutcomeType.NOT_DELETED
        )
