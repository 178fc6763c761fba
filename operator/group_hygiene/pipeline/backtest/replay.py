"""The past of one group: its state at any time, and what a policy would have done. Pure; runs in Spark's workers.

What records say of a group's state, and which of them show use, is up to `ingest.fold`.

A policy is simulated with the operator's own checks: which groups it deletes, and whether they were used again. There
is one scan per interval of the policy: a group that matches is marked, and deleted at the first scan after its grace
period at which it still matches, as by an operator that is installed at the first scan. Limits are ignored, since users
may raise them. So the result of each group is independent of others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property, partial
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import structs

from group_hygiene.engine.checks import judge
from group_hygiene.engine.plan import grace_elapsed
from group_hygiene.model.entries import Mark
from group_hygiene.model.evidence import Activity, Deletion, Evidence, Need, Protections, Unchanged
from group_hygiene.model.groups import Bounds, CommittedOffset, Group, GroupState, GroupType, Offsets, Partition
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import Action, Policy, next_open

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
# The log's states as those of ListGroups: with members, the exact state is unknown.
_STATES = {"Empty": GroupState.EMPTY, "Active": GroupState.STABLE, "Unknown": GroupState.UNKNOWN}
COMMIT = "commit"
# The log is read at once, and no check depends on a group's first record, nor on its place in the log.
_END = datetime.max.replace(tzinfo=UTC)
# Instead of the reason of a refusal.
MATCH = "Match"
_NO_PROTECTIONS = Protections()
_MOMENT = timedelta(microseconds=1)
# Of a partition with unread records for every group.
_ENDLESS = Bounds(0, 2**63)
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


class Moment(NamedTuple):
    """A row of `ingest.fold.Moments`, without its group: what `activity` says after the records of a slice of time.

    first_ms: null = before the first record. state: null = no record counts. offsets: the committed ones.
    """

    first_ms: int | None
    used_ms: int | None
    used_by: str | None
    type: str | None
    protocol_type: str | None
    state: str | None
    last_ms: int | None
    oldest_ms: int | None
    empty_ms: int | None
    offsets: Offsets


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


def replay(name: str, moments: Iterable[Moment], start: datetime, complete_since: datetime | None = None) -> History:
    """The history of a group from `start` on.

    The state after all records of a slice counts from the first of them on. A policy that waits for longer than a slice
    gives the same result. complete_since: see `model.evidence.Activity`.
    """
    stretches: list[Stretch] = []
    signs: list[Sign] = []
    for moment in moments:
        if moment.state is not None:
            begins = start if moment.first_ms is None else max(start, moment_of(moment.first_ms))
            if stretches and stretches[-1].begins >= begins:
                begins = stretches.pop().begins
            stretches.append(_stretch(name, begins, moment, stretches[-1] if stretches else None))
        if moment.used_ms is not None:
            signs.append(Sign(moment_of(moment.used_ms), "Commit" if moment.used_by == COMMIT else "Join"))
    if complete_since is not None:
        index = bisect_right(stretches, complete_since, key=attrgetter("begins"))
        # A stretch of its own, as a group that matched may not match any more.
        if index:
            stretches.insert(index, replace(stretches[index - 1], begins=complete_since))
        for later, stretch in enumerate(stretches[index:], index):
            stretches[later] = replace(stretch, activity=replace(stretch.activity, complete_since=complete_since))
    return History(name, stretches, signs)


def moments_of(rows: pa.Table) -> Iterator[tuple[int, list[Moment]]]:
    """By the number of a group, its moments: the rows of `Moments.rows`, together for each group."""
    offsets = rows["offsets"].combine_chunks()
    cells = [offsets.values.field(name).to_pylist() for name in ("topic", "partition", "offset")]
    # Most moments have the places of the one before.
    places, committed = list(map(cache(Partition), *cells[:2])), list(map(CommittedOffset, cells[2]))
    of_moments = (dict(zip(places[a:b], committed[a:b], strict=True)) for a, b in pairwise(offsets.offsets.to_pylist()))
    moments = list(map(Moment, *(rows[name].to_pylist() for name in Moment._fields[:-1]), of_moments))
    groups = rows["group"].to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    for first, end in pairwise(edges):
        if first < end:
            yield int(groups[first]), moments[first:end]


def _stretch(name: str, begins: datetime, moment: Moment, before: Stretch | None) -> Stretch:
    state, type_, protocol = moment.state or "Unknown", GroupType(moment.type or ""), moment.protocol_type or ""
    group = Group(name, type_, protocol, _STATES[state], 0) if state in _STATES else None
    times = (moment.last_ms, moment.oldest_ms, moment.empty_ms)
    last, oldest, empty = (None if time is None else moment_of(time) for time in times)
    activity = _activity(type_, protocol, state, last_commit=last, oldest_commit=oldest, empty_since=empty)
    same_since = begins if state == "Empty" else None
    if same_since and before and before.same_since and (before.group, before.offsets) == (group, moment.offsets):
        same_since = before.same_since
    return Stretch(begins, group, activity, moment.offsets, same_since)


def moment_of(milliseconds: int) -> datetime:
    """The time of milliseconds since 1970."""
    return _EPOCH + milliseconds * _MILLISECOND


def milliseconds_of(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


class Span(NamedTuple):
    """A time in which the group matches. deleted: when that ended in a deletion; back: the first use after it."""

    marked: datetime
    end: datetime
    deleted: datetime | None = None
    back: Sign | None = None


@dataclass(frozen=True, eq=False)
class Trial:
    """The simulation of one policy, with evidence from the tables alone.

    Evidence that the tables lack is assumed so that more groups match: no object claims a group, no replicator mirrors
    it, and it has unread records.

    start, end: of all scans. protect: of the connection. retention: offsets.retention.minutes; None = unknown.
    """

    policy: Policy
    start: datetime
    end: datetime
    protect: Patterns | None = None
    retention: timedelta | None = None

    @cached_property
    def _scans(self) -> Steps:
        return Steps(self.start, self.policy.interval, (self.end - self.start) // self.policy.interval + 1)

    @property
    def waits(self) -> timedelta:
        """How long a group is unused before it matches; zero if the policy has no such field."""
        return self.policy.when.idle_for or self.policy.when.unchanged_for or timedelta()

    def with_idle_for(self, period: timedelta) -> Trial:
        """The same with another `idleFor`, or with another `unchangedFor` if the policy has only that."""
        when = self.policy.when
        field = "unchanged_for" if when.idle_for is None else "idle_for"
        return replace(self, policy=structs.replace(self.policy, when=structs.replace(when, **{field: period})))

    def with_grace(self, period: timedelta) -> Trial:
        return replace(self, policy=self.policy.with_deletion(grace_period=period))

    def reason(self, history: History) -> str | None:
        """For the group at the end, Match or the reason of the refusal; None = not selected, or it does not exist."""
        stretch = history.at(self.end)
        return None if stretch is None else self._judge(stretch, self.end)

    def simulate(self, history: History) -> list[Span]:
        """Simulate the policy for the group, from the first scan to the last."""
        spans: list[Span] = []
        scans, at = self._scans, 0
        mark: Mark | None = None
        deleted: Deletion | None = None
        ends = [*(stretch.begins for stretch in history.stretches), self.end + _MOMENT][1:]
        for stretch, end in zip(history.stretches, ends, strict=True):
            at, stop = max(at, scans.first_from(stretch.begins)), min(scans.first_from(end), scans.count)
            while at < stop:
                found = self._first_match(stretch, deleted, at, stop)
                if found > at:
                    mark = None
                if found == stop:
                    break
                if mark is None:
                    mark = self._mark(scans.at(found))
                    spans.append(Span(mark.since, end))
                due = self._due(mark, found, stop)
                if due is None:
                    spans[-1] = spans[-1]._replace(end=end)
                    break
                now = scans.at(due)
                back = history.back_after(now)
                spans[-1] = Span(mark.since, now + _MOMENT, now, back)
                if back is None:
                    return spans
                mark, at = None, scans.first_from(back.at)
                deleted = Deletion(now, self.policy.key, now + self.policy.backup_retention)
        return spans

    def _mark(self, since: datetime) -> Mark:
        uid, key, digest = self.policy.uid, self.policy.key, self.policy.digest
        due = since + self.policy.grace_period
        return Mark(policy_uid=uid, group="", policy=key, digest=digest, since=since, due=due)

    def _due(self, mark: Mark, first: int, stop: int) -> int | None:
        """The first scan from `first` on at which a mark's grace period is over; None = no scan before `stop`.

        Uses the operator's own `grace_elapsed`. Alert policies delete nothing.
        """
        if self.policy.action is not Action.DELETE:
            return None
        scans, policy = self._scans, self.policy
        # Not by the run that set it, and not before its own date.
        from_ = max(first, scans.first_from(max(mark.since + _MOMENT, mark.due)))
        if policy.windows:
            from_ = scans.first_from(next_open(policy.windows, scans.at(from_)))
        return next((scan for scan in range(from_, stop) if grace_elapsed(policy, mark, scans.at(scan))), None)

    def _first_match(self, stretch: Stretch, deleted: Deletion | None, first: int, stop: int) -> int:
        """The first scan at which the group matches, from `first` on; `stop` = none before that.

        Within a stretch, the group only gets older, and once it matches, it continues to match. So a binary search is
        enough.
        """
        scans = self._scans
        moments = filter(None, (stretch.activity.last_commit, stretch.activity.empty_since))
        likely = max(first, scans.first_from(max(moments, default=scans.start) + self.waits))

        def matches(scan: int) -> bool:
            return self._judge(stretch, scans.at(scan), deleted) == MATCH

        # Mostly it is the scan at which the period is over; the checks decide.
        return first_index(first, stop, (likely, likely - 1, stop - 1), matches)

    def _judge(self, stretch: Stretch, now: datetime, deleted: Deletion | None = None) -> str | None:
        """As `reason`, for this state at this time."""
        group = stretch.group
        if group is None or not self.policy.match.selects(group):
            return None
        evidence = Evidence(
            protections=_NO_PROTECTIONS,
            protected_by=None if self.protect is None else self.protect.matching(group.id),
            deleted=deleted,
            unchanged=self._unchanged(stretch, now),
            offsets=stretch.offsets,
            bounds=dict.fromkeys(stretch.offsets, _ENDLESS),
            records=dict.fromkeys(stretch.offsets, _ENDLESS.end),
            activity=stretch.activity,
            retention=self.retention,
        )
        refusal = judge(self.policy, group, evidence, now).refusal
        return MATCH if refusal is None else refusal.reason

    def _unchanged(self, stretch: Stretch, now: datetime) -> Unchanged | None:
        """By scans alone, as in the operator."""
        if self.policy.when.unchanged_for is None or stretch.same_since is None:
            return None
        since = self._scans.at(self._scans.first_from(stretch.same_since))
        return Unchanged(since, now - since) if since <= now else None


def first_index(low: int, high: int, guesses: Iterable[int], holds: Callable[[int], bool]) -> int:
    """The first index for which a monotonic predicate holds, from `low` on; `high` = none. Guesses are tried first."""
    for index in guesses:
        if low <= index < high:
            low, high = (low, index) if holds(index) else (index + 1, high)
    return bisect_left(range(high), True, low, key=holds)


# What a replay knows of each group, and what it can't know.
_IN_TABLES = frozenset({Need.ACTIVITY, Need.OFFSETS})
_NOT_IN_TABLES = {Need.MISSING_TOPICS: "which topics existed", Need.BOUNDS: "where partitions began and ended"}


def untriable(policy: Policy, retention: timedelta | None) -> str | None:
    """Why a policy can't be tried on the past, in a sentence; None = it can."""
    if policy.action is Action.DELETE_OFFSETS:
        return "action DeleteOffsets can't be tried on the past: the tables lack the subscriptions of members"
    for condition, need in policy.when.each_need():
        if need not in _IN_TABLES:
            lacking = _NOT_IN_TABLES.get(need, "what it needs")
            return f"when.{condition} can't be tried on the past: the tables don't record {lacking}"
    if policy.when.expires_within is not None and retention is None:
        return "when.expiresWithin needs the brokers' offsets.retention.minutes: give --offsets-retention"
    return None
