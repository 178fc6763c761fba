"""What the operator needs to remember of a ledger: what a log of entries adds up to. Pure: no I/O, no Kafka."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from group_hygiene import reasons
from group_hygiene.entries import (
    Change,
    Covered,
    Entry,
    Intent,
    KeepRequest,
    Key,
    Mark,
    Outcome,
    Owner,
    Removal,
    Seen,
    Told,
    Unreadable,
    Watch,
    What,
    decode,
    decode_key,
    group_of,
)


class Deletion(NamedTuple):
    """The last deletion of a group, or of its offsets of a topic: when, by which policy, and until when it counts.

    is_partial: it was interrupted, and somebody used the group since.
    """

    at: datetime
    policy: str
    until: datetime
    is_partial: bool = False


@dataclass
class Contents:
    """What the operator needs to remember of a ledger, as small as it can be: no backups, no history.

    watches: policy uid -> its Watch. covered: connection uid -> its Covered. seen, marks: policy uid -> group -> entry.
    keeps, intents, deletions: by group. offset_deletions: group -> topic -> the last deletion of its offsets.
    told: policy uid and receiver -> what that was told.
    doubtful: groups that were there after a deletion was interrupted: the request may still be under way.
    unfinished: group -> policy uid -> an interrupted deletion of offsets of topics, or with "" as the uid of the whole
    group, after which they were there; until they are deleted. A part of what its backup has may be gone.
    restored: groups with an open intent whose own backup was restored, and which lacked what it has: they were deleted.
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
    offset_deletions: dict[str, dict[str, Deletion]] = field(default_factory=dict)
    doubtful: dict[str, Outcome] = field(default_factory=dict)
    unfinished: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    restored: set[str] = field(default_factory=set)
    damaged: dict[str, str] = field(default_factory=dict)
    told: dict[tuple[str, str], Told] = field(default_factory=dict)
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
            case Told():
                self.told[entry.policy_uid, entry.receiver] = entry
            case KeepRequest():
                self.keeps[entry.group] = entry
            case Intent():
                self.intents[entry.group] = entry
                self.restored.discard(entry.group)
            case Outcome():
                self._put_outcome(entry)

    def _put_outcome(self, outcome: Outcome) -> None:
        group = outcome.group
        if outcome.what is What.KEPT and outcome.reason == reasons.INTERRUPTED:
            self.unfinished.setdefault(group, {})[outcome.policy_uid if outcome.topics else ""] = outcome
        if outcome.what is What.KEPT and outcome.reason == reasons.REAPPEARED:
            _remember(self.deletions, group, outcome)
        match outcome.what:
            case What.KEPT if outcome.type:
                self.doubtful[group] = outcome
            case What.KEPT:
                self._end_doubt(group, outcome.id)
            case What.RESTORED if group in self.intents and outcome.backup == self.intents[group].id:
                # By the order of the log, which no clock can change.
                self.restored.add(group)
            case What.DELETED:
                self.doubtful.pop(group, None)
                self.unfinished.pop(group, None)
                _remember(self.deletions, group, outcome)
            case What.OFFSETS_DELETED:
                self.doubtful.pop(group, None)
                self.unfinished.get(group, {}).pop(outcome.policy_uid, None)
                of_group = self.offset_deletions.setdefault(group, {})
                for topic in outcome.topics:
                    _remember(of_group, sys.intern(topic), outcome)

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
            case ("told", uid, receiver):
                self.told.pop((uid, receiver), None)
            case ("keep", group):
                self.keeps.pop(group, None)
            case ("intent", group):
                self.intents.pop(group, None)
                self.restored.discard(group)
            case ("outcome", group, id_, What.KEPT):
                self._end_doubt(group, id_)
                self._end_unfinished(group, id_)

    def _end_doubt(self, group: str, id_: str) -> None:
        known = self.doubtful.get(group)
        if known is not None and known.id == id_:
            del self.doubtful[group]

    def _end_unfinished(self, group: str, id_: str) -> None:
        for uid, known in list(self.unfinished.get(group, {}).items()):
            if known.id == id_:
                del self.unfinished[group][uid]

    def forget_expired(self, now: datetime) -> None:
        """Drop what was remembered for a time that is over. now: a broker's time, which our clock agrees with.

        What is dropped here is never read again by this process. A clock that jumped ahead must not cost a request to
        keep a group, so who asks for an entry compares its date instead.
        """
        self.doubtful = {group: outcome for group, outcome in self.doubtful.items() if outcome.expires > now}
        of_unfinished = self.unfinished.items()
        going_on = {group: {uid: o for uid, o in by_uid.items() if o.expires > now} for group, by_uid in of_unfinished}
        self.unfinished = {group: by_uid for group, by_uid in going_on.items() if by_uid}
        self.deletions = {group: d for group, d in self.deletions.items() if d.until > now}
        of_groups = self.offset_deletions.items()
        kept = {group: {topic: d for topic, d in topics.items() if d.until > now} for group, topics in of_groups}
        self.offset_deletions = {group: topics for group, topics in kept.items() if topics}
        self.keeps = {group: request for group, request in self.keeps.items() if request.until > now}
        self.told = {pair: told for pair, told in self.told.items() if told.expires > now}


def _remember(deletions: dict[str, Deletion], name: str, outcome: Outcome) -> None:
    known = deletions.get(name)
    if known is None or known.at <= outcome.at:
        deletions[name] = Deletion(outcome.at, sys.intern(outcome.policy), outcome.expires, outcome.what is What.KEPT)
