"""Reconstructs the state of one group at any time from its records in order. Pure; runs in Spark's workers.

Records mean the same as in `fold`, which computes the current state of all groups by SQL; this module replays one group
record by record. A test compares both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from group_hygiene.model.evidence import Activity
from group_hygiene.model.groups import CommittedOffset, Group, GroupState, GroupType, Offsets, Partition
from group_hygiene.pipeline.store import FAR_MS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
# The log's states as those of ListGroups: with members, the exact state is unknown.
_STATES = {"Empty": GroupState.EMPTY, "Active": GroupState.STABLE, "Unknown": GroupState.UNKNOWN}
COMMIT = "commit"
# The log is read at once, and no check depends on a group's first record, nor on its place in the log.
_END = datetime.max.replace(tzinfo=UTC)
_activity = partial(Activity, first_seen=None, log_partition=0, covered_to=0, read_at=_END)


@dataclass(frozen=True, slots=True)
class Steps:
    """`count` times, `every` apart, the first at `start`."""

    start: datetime
    every: timedelta
    count: int

    @property
    def end(self) -> datetime:
        return self.at(self.count - 1)

    def at(self, index: int) -> datetime:
        return self.start + index * self.every

    def first_from(self, moment: datetime) -> int:
        """Index of the first step that is not before a moment; `count` or more = none."""
        return max(0, -((self.start - moment) // self.every))


class Record(NamedTuple):
    """One record of the log, or the last of several similar ones in a slice of time. Times in milliseconds since 1970.

    slice: its index. first_ms: record time of the first of them; record_ms: of the last. kind: COMMIT, or that of the
    table `group_states`. Of a commit: topic, partition, offset (None = a tombstone), commit_ms (the latest; None for a
    tombstone), aborted. alive: whether it shows use of the group, see `lives`. The other fields are columns of
    `group_states`.
    """

    slice: int
    era: int
    first_ms: int
    record_ms: int
    kind: str
    alive: bool
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    commit_ms: int | None = None
    aborted: bool = False
    protocol_type: str | None = None
    members: int | None = None
    member_id: str | None = None
    state_ms: int | None = None
    gone: bool = False


class Sign(NamedTuple):
    """A use of the group. by: Commit or Join."""

    at: datetime
    by: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """The group's state from a record on, until the next stretch begins.

    group: None = it does not exist. activity: its row in `activity`, read at any later time; without `complete_since`
    before that time, when the lost records still existed. offsets: the committed ones. same_since: start of the time in
    which it is Empty with the same offsets; None = it is not Empty.
    """

    begins: datetime
    group: Group | None
    activity: Activity
    offsets: Offsets
    same_since: datetime | None


@dataclass(frozen=True, slots=True)
class History:
    """A group's stretches in order, and its first use in each slice of time."""

    name: str
    stretches: Sequence[Stretch]
    signs: Sequence[Sign]

    def at(self, moment: datetime) -> Stretch | None:
        """The state at a moment; None = before the group's first record."""
        return next((stretch for stretch in reversed(self.stretches) if stretch.begins <= moment), None)

    def back_after(self, moment: datetime) -> Sign | None:
        return min((sign for sign in self.signs if sign.at > moment), default=None)


def replay(
    name: str,
    records: Iterable[Record],
    start: datetime,
    known: Life | None = None,
    complete_since: datetime | None = None,
) -> History:
    """The history of a group from `start` on, by its records in the order of the log.

    The state after all records of a slice counts from the first of them on. A policy that waits for longer than a slice
    gives the same result. known: its state before its records, if earlier ones were dropped; replay changes it.
    complete_since: see `model.evidence.Activity`.
    """
    life = known or Life()
    stretches = [] if known is None else [_stretch(name, start, life, None)]
    signs: list[Sign] = []
    for _, together in groupby(records, key=attrgetter("slice")):
        slice_ = list(together)
        for record in slice_:
            if life.era not in (None, record.era):
                # The end of an era of the log ends the group's state, but its times stay.
                life = Life(last_ms=life.last_ms)
            life.take(record)
        begins = max(start, moment_of(min(record.first_ms for record in slice_)))
        if stretches and stretches[-1].begins >= begins:
            begins = stretches.pop().begins
        stretches.append(_stretch(name, begins, life, stretches[-1] if stretches else None))
        if alive := [record for record in slice_ if record.alive]:
            first = min(alive, key=lambda record: record.first_ms)
            signs.append(Sign(moment_of(first.first_ms), "Commit" if first.kind == COMMIT else "Join"))
    if complete_since is not None:
        index = bisect_right(stretches, complete_since, key=attrgetter("begins"))
        # A stretch of its own, as a group that matched may not match any more.
        if index:
            stretches.insert(index, replace(stretches[index - 1], begins=complete_since))
        for later, stretch in enumerate(stretches[index:], index):
            stretches[later] = replace(stretch, activity=replace(stretch.activity, complete_since=complete_since))
    return History(name, stretches, signs)


@dataclass(slots=True)
class Life:
    """The state after the records so far. Times in milliseconds; offsets: place -> (offset, commit time).

    Ids of members that joined before a dropped record are unknown: only `state` shows that they left.
    """

    type: GroupType = GroupType.UNKNOWN
    protocol: str | None = None
    state: str = "Unknown"
    last_ms: int | None = None
    empty_ms: int | None = None
    offsets: dict[Partition, tuple[CommittedOffset, int]] = field(default_factory=dict)
    members: set[str | None] = field(default_factory=set)
    era: int | None = None

    def take(self, record: Record) -> None:
        self.era = record.era
        if record.kind == COMMIT:
            self._commit(record)
            return
        family, _, what = record.kind.partition("-")
        if what == "member":
            (self.members.discard if record.gone else self.members.add)(record.member_id)
        if what in ("", "epoch", "member"):
            self._set_state(record, family, ended=record.gone and what != "member")

    def _commit(self, record: Record) -> None:
        place = Partition(record.topic or "", record.partition or 0)
        if record.commit_ms is not None:
            self.last_ms = max(self.last_ms or record.commit_ms, record.commit_ms)
        if record.aborted:
            return
        if record.offset is not None and record.commit_ms is not None:
            self.offsets[place] = CommittedOffset(record.offset), record.commit_ms
            if self.type is GroupType.UNKNOWN or self.state == "Gone":
                # A simple group: it had no members, at least since its end.
                self.type, self.protocol, self.state, self.empty_ms = GroupType.CLASSIC, "", "Empty", None
            return
        self.offsets.pop(place, None)
        never_joined = self.type in (GroupType.CLASSIC, GroupType.UNKNOWN) and not self.protocol
        if never_joined and not self.offsets and self.state in ("Empty", "Unknown"):
            # No other record of the log may show that such a group ended.
            self.state, self.empty_ms = "Gone", None

    def _set_state(self, record: Record, family: str, ended: bool) -> None:
        if family == "classic":
            if not ended:
                self.protocol = record.protocol_type or ""
            empty = record.members == 0
        else:
            self.protocol = family
            if ended:
                self.members.clear()
            empty = not self.members
        self.type = GroupType.UNKNOWN if self.protocol is None else GroupType(family.capitalize())
        self.state = "Gone" if ended else "Empty" if empty else "Active"
        since = record.state_ms if record.state_ms is not None and record.state_ms > 0 else record.record_ms
        self.empty_ms = since if self.state == "Empty" and self.protocol else None


def _stretch(name: str, begins: datetime, life: Life, before: Stretch | None) -> Stretch:
    protocol = life.protocol or ""
    group = Group(name, life.type, protocol, _STATES[life.state], 0) if life.state in _STATES else None
    times = (life.last_ms, min((commit_ms for _, commit_ms in life.offsets.values()), default=None), life.empty_ms)
    last, oldest, empty = (None if time is None else moment_of(time) for time in times)
    activity = _activity(life.type, protocol, life.state, last_commit=last, oldest_commit=oldest, empty_since=empty)
    offsets = {place: offset for place, (offset, _) in life.offsets.items()}
    same_since = begins if life.state == "Empty" else None
    if same_since and before and before.same_since and (before.group, before.offsets) == (group, offsets):
        same_since = before.same_since
    return Stretch(begins, group, activity, offsets, same_since)


def moment_of(milliseconds: int) -> datetime:
    """The time of milliseconds since 1970. Absurd ones, as clients could choose below Kafka 4.0, are cut off."""
    return _EPOCH + max(-FAR_MS, min(FAR_MS, milliseconds)) * _MILLISECOND


def milliseconds_of(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND
