"""What was known of one group at any moment, from its records in order. Pure; runs in Spark's workers.

The same records say the same here as in `folding`, which tells only what is known now. That one adds up whole tables
by SQL; this one walks through the life of one group. A test holds them against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import NamedTuple

from group_hygiene.model import Group, GroupState, GroupType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_TYPES = {
    "classic": GroupType.CLASSIC,
    "consumer": GroupType.CONSUMER,
    "share": GroupType.SHARE,
    "streams": GroupType.STREAMS,
}
# What the log knows of a state, as ListGroups would spell it: of those with members, which one it was is not known.
_STATES = {"Empty": GroupState.EMPTY, "Active": GroupState.STABLE, "Unknown": GroupState.UNKNOWN}
COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class Steps:
    """`count` moments, `every` apart, the first at `start`."""

    start: datetime
    every: timedelta
    count: int

    @property
    def end(self) -> datetime:
        """The last of them."""
        return self.at(self.count - 1)

    def at(self, index: int) -> datetime:
        return self.start + index * self.every

    def first_from(self, moment: datetime) -> int:
        """The first step that is not before a moment; `count` or more: none is."""
        return max(0, -((self.start - moment) // self.every))


class Record(NamedTuple):
    """One record of the log, or the last one of several alike in one slice of time. Times in milliseconds since 1970.

    slice: its number. first_ms: record time of the first of them, record_ms: of the last. kind: COMMIT, or as in the
    table `group_states`. Of a commit: topic, partition, offset (None = a tombstone), commit_ms (None there; of several,
    the latest), aborted. Of a group's state: what `group_states` says.
    """

    slice: int
    era: int
    first_ms: int
    record_ms: int
    kind: str
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

    @property
    def sign_of_life(self) -> bool:
        """Somebody committed, in vain or not, or was a member.

        That the last one left tells that there was one: who joined and left again soon may be known by that alone, as
        compaction leaves the last record.
        """
        if self.kind == COMMIT:
            return self.commit_ms is not None
        joined = bool(self.members) or bool(self.protocol_type) or self.kind.endswith(("-member", "-epoch"))
        return joined and not self.gone


class Sign(NamedTuple):
    """A sign of life. by: Commit or Join."""

    at: datetime
    by: str


class Stretch(NamedTuple):
    """What is known from a record on, until the next stretch begins.

    group: None = it is not there. The rest is what a row of `activity` says, as `model.Activity` has it.
    offsets: what is committed: (topic, partition) -> (offset, commit time in milliseconds).
    same_since: since when it is Empty, with the same committed offsets; None = it is not Empty.
    """

    begins: datetime
    group: Group | None
    state: str
    last_commit: datetime | None
    oldest_commit: datetime | None
    empty_since: datetime | None
    offsets: Mapping[tuple[str, int], tuple[int, int]]
    same_since: datetime | None


class Known(NamedTuple):
    """What `activity` says of a group now, for what its records no longer tell: they may have been dropped since.

    offsets: those that were committed before all records that are left.
    """

    type: str
    protocol_type: str | None
    state: str
    last_ms: int | None
    empty_ms: int | None
    offsets: Mapping[tuple[str, int], tuple[int, int]] = {}


@dataclass(frozen=True, slots=True)
class History:
    """A group's life, stretch after stretch; and of each slice of time the first sign of life.

    complete_since: see `model.Activity`.
    """

    name: str
    stretches: Sequence[Stretch]
    signs: Sequence[Sign]
    complete_since: datetime | None = None

    def at(self, moment: datetime) -> Stretch | None:
        """What was known at a moment; None = no record of it was there yet."""
        return next((stretch for stretch in reversed(self.stretches) if stretch.begins <= moment), None)

    def back_after(self, moment: datetime) -> Sign | None:
        """The first sign of life after a moment."""
        return min((sign for sign in self.signs if sign.at > moment), default=None)


def replay(name: str, records: Iterable[Record], start: datetime, known: Known | None = None) -> History:
    """The life of a group from `start` on, by its records in the order of the log.

    A slice counts as one: what its records say together holds from the first of them on. Nobody can tell the difference
    who waits for longer than a slice. known: see there, None = the records are all.
    """
    life = _Life() if known is None else _life_of(known)
    stretches = [] if known is None else [_stretch(name, start, life, None)]
    signs: list[Sign] = []
    for _, together in groupby(records, key=lambda record: record.slice):
        slice_ = list(together)
        for record in slice_:
            life.take(record)
        begins = max(start, moment_of(min(record.first_ms for record in slice_)))
        if stretches and stretches[-1].begins >= begins:
            begins = stretches.pop().begins
        stretches.append(_stretch(name, begins, life, stretches[-1] if stretches else None))
        alive = [record for record in slice_ if record.sign_of_life]
        if alive:
            first = min(alive, key=lambda record: record.first_ms)
            signs.append(Sign(moment_of(first.first_ms), "Commit" if first.kind == COMMIT else "Join"))
    return History(name, stretches, signs)


@dataclass(slots=True)
class _Life:
    """What the records so far say. Times in milliseconds; offsets: place -> (offset, commit time)."""

    type: str = "Unknown"
    protocol: str | None = None
    state: str = "Unknown"
    last_ms: int | None = None
    empty_ms: int | None = None
    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)
    era: int | None = None

    def take(self, record: Record) -> None:
        if self.era is not None and record.era != self.era:
            # What it was in an earlier life of the log ended with that; its times stay.
            self.type, self.protocol, self.state, self.empty_ms = "Unknown", None, "Unknown", None
            self.offsets, self.members = {}, set()
        self.era = record.era
        if record.kind == COMMIT:
            self._commit(record)
            return
        family, _, what = record.kind.partition("-")
        if what == "member" and record.member_id is not None:
            (self.members.discard if record.gone else self.members.add)(record.member_id)
        if family in _TYPES and what in ("", "epoch", "member"):
            self._told(record, family, ended=record.gone and what != "member")

    def _commit(self, record: Record) -> None:
        place = record.topic or "", record.partition or 0
        if record.commit_ms is not None:
            self.last_ms = max(self.last_ms or record.commit_ms, record.commit_ms)
        if record.aborted:
            return
        if record.offset is not None and record.commit_ms is not None:
            self.offsets[place] = record.offset, record.commit_ms
            if self.type == "Unknown" or self.state == "Gone":
                # Nobody ever joined it, or nobody did since its end.
                self.type, self.protocol, self.state, self.empty_ms = "Classic", "", "Empty", None
            return
        self.offsets.pop(place, None)
        nobody_joined = self.type in ("Classic", "Unknown") and not self.protocol
        if nobody_joined and not self.offsets and self.state in ("Empty", "Unknown"):
            # Nothing else in the log may tell that such a group ended.
            self.state, self.empty_ms = "Gone", None

    def _told(self, record: Record, family: str, ended: bool) -> None:
        if family == "classic":
            if not ended:
                self.protocol = record.protocol_type or ""
            nobody = record.members == 0
        else:
            self.protocol = family
            if ended:
                self.members.clear()
            nobody = not self.members
        self.type = "Unknown" if self.protocol is None else str(_TYPES[family])
        self.state = "Gone" if ended else "Empty" if nobody else "Active"
        since = record.state_ms if record.state_ms is not None and record.state_ms > 0 else record.record_ms
        self.empty_ms = since if self.state == "Empty" and self.protocol else None


def _life_of(known: Known) -> _Life:
    # Of members that joined before the records begin, nobody knows the ids: that they left is told by `state` alone.
    return _Life(known.type, known.protocol_type, known.state, known.last_ms, known.empty_ms, dict(known.offsets))


def _stretch(name: str, begins: datetime, life: _Life, before: Stretch | None) -> Stretch:
    group = None
    if life.state in _STATES:
        group = Group(name, GroupType(life.type), life.protocol or "", _STATES[life.state], 0)
    oldest = min((commit_ms for _, commit_ms in life.offsets.values()), default=None)
    last_commit, oldest_commit, empty_since = map(_known_time, (life.last_ms, oldest, life.empty_ms))
    made = Stretch(begins, group, life.state, last_commit, oldest_commit, empty_since, dict(life.offsets), begins)
    return made._replace(same_since=_same_since(before, made))


def _same_since(before: Stretch | None, now: Stretch) -> datetime | None:
    if now.state != "Empty":
        return None
    if before is None or before.same_since is None or before.group != now.group:
        return now.begins
    same = {place: offset for place, (offset, _) in before.offsets.items()}
    return before.same_since if same == {place: offset for place, (offset, _) in now.offsets.items()} else now.begins


def moment_of(milliseconds: int) -> datetime:
    """Of milliseconds since 1970."""
    return _EPOCH + milliseconds * _MILLISECOND


def milliseconds_of(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


def _known_time(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else moment_of(milliseconds)
