"""The current state of a ledger, computed from its log of entries. Pure: no I/O, no Kafka."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from group_hygiene.ledger.codec import Unreadable, decode, decode_key, group_of
from group_hygiene.model import reasons
from group_hygiene.model.entries import (
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


@dataclass
class Contents:
    """The entries of a ledger that the operator needs in memory: no backups, no history.

    watches: policy uid -> its Watch. covered, clocks: connection uid -> its Covered or ScanClock.
    seen: connection uid -> group -> entry. marks: policy uid -> group -> entry.
    keeps, used_by, intents, deletions: by group; keeps are those of users. object_keeps: group -> source -> the request
    of a GroupKeep. offset_deletions: group -> topic -> the last deletion of its offsets.
    alerts: by key, the alerts of policies and what each receiver has received of them.
    unresolved: groups that still existed after an interrupted deletion, whose request may still be carried out.
    unfinished: group -> policy uid -> an interrupted deletion of offsets of topics, or with "" as the uid of the whole
    group, that did not delete everything; until a deletion succeeds. Some offsets of its backup may be gone.
    restored: id of a deletion whose own backup was restored -> when the restore's outcome expires. The deletion had
    taken these offsets.
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
    # Compaction may remove the replaced intent, but not within the seconds in which its process may act on it.
    contested: set[str] = field(default_factory=set, compare=False)
    damaged: dict[str, str] = field(default_factory=dict)
    hidden: dict[int, str] = field(default_factory=dict)
    alerts: dict[Key, PolicyAlerts] = field(default_factory=dict)
    _unreadable_keys: dict[bytes, str | None] = field(default_factory=dict)

    def keep_of(self, group: str) -> KeepRequest | None:
        """The request to keep a group that lasts longest."""
        request, others = self.keeps.get(group), self.object_keeps.get(group)
        if not others:
            return request
        return max((*others.values(), *([request] if request else [])), key=lambda each: each.until)

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
        self.apply([change])

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes that were written, or that need not be written."""
        for change in changes:
            self._set(change.key, None if isinstance(change, Removal) else change)

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
            case OutcomeType.RESTORED if outcome.backup:
                self.restored[outcome.backup] = outcome.expires
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
        self.unresolved = {group: outcome for group, outcome in self.unresolved.items() if outcome.expires > now}
        of_unfinished = self.unfinished.items()
        going_on = {group: {uid: o for uid, o in by_uid.items() if o.expires > now} for group, by_uid in of_unfinished}
        self.unfinished = {group: by_uid for group, by_uid in going_on.items() if by_uid}
        self.deletions = {group: d for group, d in self.deletions.items() if d.until > now}
        of_groups = self.offset_deletions.items()
        current = {group: {topic: d for topic, d in topics.items() if d.until > now} for group, topics in of_groups}
        self.offset_deletions = {group: topics for group, topics in current.items() if topics}
        self.restored = {id_: until for id_, until in self.restored.items() if until > now}
        self.keeps = {group: request for group, request in self.keeps.items() if request.until > now}
        of_objects = self.object_keeps.items()
        valid = {group: {s: r for s, r in by_source.items() if r.until > now} for group, by_source in of_objects}
        self.object_keeps = {group: by_source for group, by_source in valid.items() if by_source}
        self.alerts = {key: entry for key, entry in self.alerts.items() if entry.expires > now}


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
