"""What the report tells, as plain records: how it is found out is in `pipeline.survey`, how it looks in `report.page`.

All times are UTC. Where a list is cut, its whole length stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum


class Age(StrEnum):
    """How long ago a group's last commit was when the log was read. In order."""

    HOUR = "under an hour"
    DAY = "under a day"
    WEEK = "under 7 days"
    MONTH = "under 30 days"
    QUARTER = "under 90 days"
    OLDER = "90 days or more"
    NEVER = "no commit known"


@dataclass(frozen=True, slots=True)
class Count:
    """So many groups have this type and state (as the table `activity` spells them), and a last commit of this age."""

    type: str
    state: str
    age: Age
    groups: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Groups whose names have one pattern (as `match.groups` takes it), those that are gone included.

    seen: all there ever were in the tables; there: how many of them there are now; idle: of these, how many are idle
    for 7 days or more. new: first day of a group in the tables -> groups; days without new ones are left out. made:
    whether the names look made by a program: most of them have digits where the pattern has a star.
    """

    pattern: str
    seen: int
    there: int
    idle: int
    new: Mapping[date, int]
    made: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One group. None = not known, or does not apply.

    idle_since: since when nobody committed or was a member. expires: when Kafka drops the first of its offsets, while
    it stays as it is. due: the day under which `Findings.expiring` counts it; None = not counted there. behind: records
    that wait for it at the least, since other groups have read them; None = no other group reads its partitions.
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


@dataclass(frozen=True, slots=True)
class StaleTopic:
    """A topic of which a group that is in use has not committed for 7 days or more, though it has offsets of it."""

    group: str
    topic: str
    partitions: int
    last_commit: datetime
    group_last_commit: datetime


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A policy for one pattern, tried on the past.

    policy: ready YAML of a GroupPolicy. idle_for: what it asks. deleted, regret: groups that it would have deleted in
    the range, and those of them that were used again later. longer: what it says of other idleFor: (idleFor, deleted,
    regret), ascending. why_not: a sentence, where there is nothing to suggest; then policy is empty.
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

    read_at: as of when. began: since when the tables hold all there was; None = that can't be told. retention: the
    brokers' offsets.retention.minutes that the days of expiry are computed with. groups: how many there are, those that
    are gone not counted. idle: how many of them are idle for 7 days or more. counts: all of them. patterns: those with
    the most groups first. others: how many more patterns there are. rows: groups worth a look, of `groups`: the longest
    idle first. expiring: day -> groups whose first offsets go then, within a week; those in use are not counted, nor
    those that should have lost theirs more than a day ago. stale: of `stale_total`. suggestions: one for each pattern
    that was tried. notes: sentences on what the tables can't tell, and what to do about it.
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
