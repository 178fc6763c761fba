"""The content of the report, as records: `pipeline.activity.survey` computes them, and `report.page` renders them.

All times are UTC. Beside each truncated list is its whole length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum


class Age(StrEnum):
    """The age of a group's last commit when the log was read. In order."""

    HOUR = "under an hour"
    DAY = "under a day"
    WEEK = "under 7 days"
    MONTH = "under 30 days"
    QUARTER = "under 90 days"
    OLDER = "90 days or more"
    NEVER = "no commit known"


@dataclass(frozen=True, slots=True)
class Count:
    """Number of groups with this type and state (as in the table `activity`), and a last commit of this age."""

    type: str
    state: str
    age: Age
    groups: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Groups whose names match one pattern (as in `match.groups`), including groups that are gone.

    seen: all groups that were ever in the tables. there: of these, groups that exist now. idle: of these, groups that
    are idle for 7 days or more. new: day -> groups that first appeared on it, without days of none. made: whether the
    names seem generated: most of them have digits in place of the star.
    """

    pattern: str
    seen: int
    there: int
    idle: int
    new: Mapping[date, int]
    made: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One group. None = unknown, or not applicable.

    idle_since: the last commit or the end of the last membership, whichever is later. expires: when Kafka drops its
    first offsets, unless the group changes. due: its day in `Findings.expiring`, None = not counted there. behind: lag
    in records, at least, by what other groups have read; None = no other group reads its partitions. last_client: in
    words. owner: its name; no row has one if no owners were given.
    """

    group: str
    pattern: str
    type: str
    state: str
    age: Age
    last_commit: datetime | None
    idle_since: datetime | None
    expires: datetime | None
    due: date | None
    topics: int
    partitions: int
    behind: int | None
    last_client: str | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class StaleTopic:
    """A topic for which an active group has offsets, but has not committed for 7 days or more."""

    group: str
    topic: str
    partitions: int
    last_commit: datetime
    group_last_commit: datetime


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A policy for one pattern, with the results of its backtest.

    policy: YAML of a GroupPolicy. idle_for: its idleFor. deleted, regret: groups that it would have deleted, and those
    of them that were used again later. longer: the same for other idleFor: (idleFor, deleted, regret), ascending.
    why_not: a sentence, if there is nothing to suggest; then policy is empty.
    """

    pattern: str
    groups: int
    policy: str
    idle_for: timedelta | None
    deleted: int
    regret: int
    longer: Sequence[tuple[timedelta, int, int]]
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that the report shows.

    read_at: when the log was read. began: since when the tables are complete, None = unknown. retention: the brokers'
    offsets.retention.minutes, for the days of expiry. groups: existing groups. idle: of these, idle for 7 days or more.
    counts: of all existing groups. patterns: in descending order of groups. others: number of further patterns. rows:
    the relevant groups, longest idle first. expiring: day -> groups whose first offsets expire on it, within a week,
    without active groups, and without groups whose offsets should have expired more than a day ago. stale: of
    `stale_total`. suggestions: one for each pattern that was tried. notes: sentences on gaps of the tables, and what to
    do about them.
    """

    cluster_id: str
    read_at: datetime
    began: datetime | None
    retention: timedelta
    groups: int
    idle: int
    counts: Sequence[Count]
    patterns: Sequence[Growth]
    others: int
    rows: Sequence[Row]
    expiring: Mapping[date, int]
    stale: Sequence[StaleTopic]
    stale_total: int
    suggestions: Sequence[Suggestion]
    notes: Sequence[str]
