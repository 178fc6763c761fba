"""Simulates a policy for one group, with the operator's own checks, and finds whether the group was used again. Pure.

There is one scan per interval of the policy: a group that matches is marked, and deleted at the first scan after its
grace period at which it still matches, as by an operator that is installed at the first scan. Limits are ignored, since
users may raise them. So the result of each group is independent of others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from msgspec import structs

from group_hygiene.decide.checks import judge
from group_hygiene.decide.plan import grace_elapsed
from group_hygiene.model.entries import Mark
from group_hygiene.model.evidence import Deletion, Evidence, Protections, Unchanged
from group_hygiene.model.groups import Bounds
from group_hygiene.pipeline.backtest.replay import History, Sign, Steps, Stretch
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import Action, Policy, next_open

# Instead of the reason of a refusal.
MATCH = "Match"
_NO_PROTECTIONS = Protections()
_MOMENT = timedelta(microseconds=1)
# Of a partition with unread records for every group.
_ENDLESS = Bounds(0, 2**63)


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


def untriable(policy: Policy, retention: timedelta | None) -> str | None:
    """Why a policy can't be tried on the past, in a sentence; None = it can."""
    if policy.action is Action.DELETE_OFFSETS:
        return "action DeleteOffsets can't be tried on the past: the tables lack the subscriptions of members"
    if policy.when.deleted_topics is not None:
        return "when.deletedTopics can't be tried on the past: the tables don't record which topics existed"
    if policy.when.asks_bounds:
        asked = "lag" if policy.when.lag_at_least is not None else "committedOffsets"
        return f"when.{asked} can't be tried on the past: the tables don't record where partitions began and ended"
    if policy.when.expires_within is not None and retention is None:
        return "when.expiresWithin needs the brokers' offsets.retention.minutes: give --offsets-retention"
    return None
