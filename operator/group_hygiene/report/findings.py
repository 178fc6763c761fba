"""The content of the report, as records: `pipeline.survey` computes them, and `report.page` renders them.

All times are UTC. Beside each truncated list is its whole length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta


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
    regret), ascending. why_not: a sentence, if there is nothing to suggest; then policy is empty. lives: some of the
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
    stale: of `stale_total`. suggestions: one for each pattern that was tried. notes: sentences on gaps of the
    tables, and what to do about them.
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
    suggestions: Sequence[Suggestion]
    notes: Sequence[str]
