"""The content of the report as records, the texts of names, numbers and times, and the numbers for a later report.

The caller escapes the texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

import msgspec

from group_hygiene.errors import UsageError
from group_hygiene.model import naming

IDLE = timedelta(days=7)
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Unit:
    """The groups of one name pattern, owner and program, including groups that are gone: the unit of work.

    pattern: as in `match.groups`; "" = names without similar ones. owner, program: "" = none. seen: all groups that
    were ever in the tables. groups: of these, groups that exist now. idle: of these, groups that are idle for 7 days or
    more. offsets: how many are stored for existing groups. idle_offsets: of these, for idle groups. idle_since: of the
    group that is idle for longest. came, went: groups that appeared, or went away, after `Findings.since`. cleaned: of
    those that went, groups that a client deleted, as Kafka would have removed them later. new: day -> groups that first
    appeared on it, without days of none. made: whether the names seem generated: most of them have digits in place of
    the star. last_client: the latest one, in words.
    """

    pattern: str
    owner: str
    program: str
    seen: int
    groups: int
    idle: int
    offsets: int
    idle_offsets: int
    idle_since: datetime | None
    came: int
    went: int
    cleaned: int
    new: Mapping[date, int]
    made: bool
    last_client: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.pattern, self.owner, self.program


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group. None = unknown, or not applicable.

    pattern, owner, program: those of its unit. idle_since: the last commit or the end of the last membership, whichever
    is later. expires: when Kafka drops its first offsets, unless the group changes. behind: lag in records, at least,
    by what other groups have read; None = no other group reads its partitions. last_client: in words.
    """

    group: str
    pattern: str
    owner: str
    program: str
    type: str
    state: str
    last_commit: datetime | None
    idle_since: datetime | None
    expires: datetime | None
    topics: int
    partitions: int
    behind: int | None
    last_client: str | None = None

    @property
    def unit(self) -> tuple[str, str, str]:
        return self.pattern, self.owner, self.program


@dataclass(frozen=True, slots=True)
class Share:
    """A part of something, by its name: of all groups or offsets, those that are idle."""

    name: str
    idle: int
    all: int


@dataclass(frozen=True, slots=True)
class DayCounts:
    """How many groups existed at the end of a day, and how many were idle. Idle times that ended are not known."""

    day: date
    groups: int
    idle: int


@dataclass(frozen=True, slots=True)
class StaleTopic:
    """A topic for which an active group has offsets, but has not committed for 7 days or more."""

    group: str
    topic: str
    partitions: int
    last_commit: datetime
    group_last_commit: datetime


@dataclass(frozen=True, slots=True)
class RegrettedGroup:
    """A group that a policy would have deleted, and that was used again. used: days with commits, of the last 31."""

    group: str
    used: Sequence[date]
    deleted_at: datetime
    back_at: datetime


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A policy for one pattern, with the results of its backtest.

    name: of the policy. policy: YAML of a GroupPolicy. idle_for: its idleFor. deleted, regret: groups that it would
    have deleted, and those of them that were used again later. tried: the same for each idleFor: (idleFor, deleted,
    regret), ascending. why_not: the reason, if there is nothing to suggest; then policy is empty. lives: some of the
    groups that were used again after the first idleFor of these.
    """

    pattern: str
    groups: int
    name: str
    policy: str
    idle_for: timedelta | None
    deleted: int
    regret: int
    tried: Sequence[tuple[timedelta, int, int]]
    why_not: str = ""
    lives: Sequence[RegrettedGroup] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that the report shows.

    read_at: when the log was read. since: from when on groups count as new or gone. began: since when the tables are
    complete, None = unknown. retention: the brokers' offsets.retention.minutes. groups: existing groups. idle: of
    these, idle for 7 days or more. offsets, idle_offsets: of these groups. left: partitions for which only idle groups
    have offsets. came, went, cleaned: as in `Unit`. units: the most idle offsets first. others: number of further
    units. owners: of groups, most idle first; empty = no owners are known. topics: of offsets, most idle first.
    committers: (group, commits of the last 7 days). days: ascending. rows: the relevant groups, longest idle first.
    listing: `listed` existing groups as CSV, longest idle first. expiring: day -> groups whose first offsets expire on
    it, within a week, without active groups, and without groups whose offsets should have expired more than a day ago.
    stale: of `stale_total` pairs of a group and a topic; stale_topics: distinct topics of all these. suggestions: one
    for each pattern that was tried. notes: sentences on gaps of the tables, and what to do about them. untried:
    pattern -> why no policy was tried on it.
    """

    cluster_id: str
    read_at: datetime
    since: datetime
    began: datetime | None
    retention: timedelta
    groups: int
    idle: int
    offsets: int
    idle_offsets: int
    left: int
    came: int
    went: int
    cleaned: int
    units: Sequence[Unit]
    others: int
    owners: Sequence[Share]
    topics: Sequence[Share]
    committers: Sequence[tuple[str, int]]
    days: Sequence[DayCounts]
    rows: Sequence[GroupRow]
    listing: bytes
    listed: int
    expiring: Mapping[date, int]
    stale: Sequence[StaleTopic]
    stale_total: int
    stale_topics: int
    suggestions: Sequence[Suggestion]
    notes: Sequence[str]
    untried: Mapping[str, str] = field(default_factory=dict)


def printable(name: str) -> str:
    """A name as one line without invisible or bidirectional control characters; an empty name is shown as quotes."""
    return naming.printable(name) or '""'


def number(count: int) -> str:
    """12345 -> 12,345."""
    return f"{count:,}"


def counted(count: int, one: str, several: str = "") -> str:
    """A number with its noun: "1 group", "2 groups"."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def duration(time: timedelta) -> str:
    """In the largest unit that is at least 1: 12 d, 5 h, 3 min; less than a minute is 0 min. As in `page.js`."""
    minutes = max(0, int(time.total_seconds())) // 60
    if minutes >= 1440:
        return f"{minutes // 1440:,} d"
    return f"{minutes // 60} h" if minutes >= 60 else f"{minutes} min"


def period(time: timedelta) -> str:
    """In whole days, else in hours: 2 d, 36 h."""
    hours = time / timedelta(hours=1)
    return f"{hours / 24:,.0f} d" if hours % 24 == 0 else f"{hours:,g} h"


def moment(time: datetime) -> str:
    """To the minute: 2030-01-31 12:00."""
    return f"{time:%Y-%m-%d %H:%M}"


def weekday(day: date) -> str:
    """Mon 23 Nov, in English in any locale."""
    return f"{_WEEKDAYS[day.weekday()]} {day.day} {_MONTHS[day.month - 1]}"


class _Counts(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """groups: existing ones."""

    groups: int
    idle: int
    offsets: int
    idle_offsets: int
    came: int
    went: int
    cleaned: int


class UnitNumbers(_Counts, frozen=True, rename="camel", kw_only=True):
    """Of a `findings.Unit`."""

    pattern: str
    owner: str
    program: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.pattern, self.owner, self.program


class Numbers(_Counts, frozen=True, rename="camel", kw_only=True):
    """Of `findings.Findings`. version: of this file; units: without the `others`."""

    version: int = 0
    cluster_id: str
    read_at: datetime
    since: datetime
    units: tuple[UnitNumbers, ...]
    others: int

    def of(self, unit: tuple[str, str, str]) -> UnitNumbers | None:
        """None = it was none of the units with the most idle offsets."""
        return next((each for each in self.units if each.key == unit), None)


def encode(findings: Findings) -> str:
    numbers = msgspec.structs.replace(msgspec.convert(findings, Numbers, from_attributes=True), version=_VERSION)
    return msgspec.json.format(msgspec.json.encode(numbers), indent=2).decode() + "\n"


def decode(text: bytes, source: str) -> Numbers:
    """Raises UsageError if these are not the numbers of a report."""
    try:
        numbers = msgspec.json.decode(text, type=Numbers)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{source} is not the JSON that `report` writes beside its page: {error}") from error
    if numbers.version != _VERSION or numbers.read_at.tzinfo is None:
        raise UsageError(f"{source} is of another version of this program")
    return numbers
