"""What a policy would have done to one group, by the operator's own checks, and whom that would have hurt. Pure.

A look at every step: a group that matches is marked, and deleted at the first look after its grace period at which it
matches still, as an operator does that was installed at the first step. Limits stop nothing here: what they would have
held back at first, somebody approves later. So each group's fate is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from group_hygiene.checks import judge
from group_hygiene.entries import Deletion, Mark
from group_hygiene.model import (
    Activity,
    CommittedOffset,
    Evidence,
    Partition,
    Protections,
    Unchanged,
    Verdict,
)
from group_hygiene.pipeline.replay import History, Sign, Steps, Stretch
from group_hygiene.plan import is_ripe
from group_hygiene.policy import Action, Mode, Patterns, Policy

_NOBODY = Protections()


@dataclass(frozen=True, slots=True)
class World:
    """What holds for all groups. protect: of the connection. retention: offsets.retention.minutes; None = not known."""

    steps: Steps
    protect: Patterns | None = None
    retention: timedelta | None = None


class Removed(NamedTuple):
    """A deletion. back: the sign of life that came after it, None = none did."""

    marked: int
    step: int
    back: Sign | None


@dataclass(frozen=True, slots=True)
class Fate:
    """Of one group under one policy. spans: from which to which step it matches, both included.

    marked: the steps at which it got a mark. removed: its deletions, in order.
    """

    spans: Sequence[tuple[int, int]]
    marked: Sequence[int]
    removed: Sequence[Removed]


@dataclass(slots=True)
class _Fate:
    spans: list[tuple[int, int]] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)
    removed: list[Removed] = field(default_factory=list)

    def matched(self, first: int, last: int) -> None:
        if self.spans and self.spans[-1][1] == first - 1:
            first = self.spans.pop()[0]
        self.spans.append((first, last))


class Trial:
    """One policy on trial. Asks the checks of nothing but what the tables hold.

    What they don't hold is taken so that more groups match, never fewer: nobody claims or mirrors a group, and records
    wait for it.
    """

    def __init__(self, policy: Policy, world: World) -> None:
        self.policy = replace(policy, mode=Mode.ENFORCE)
        self._world = world

    def with_idle_for(self, period: timedelta) -> Trial:
        """The same with another `idleFor`; with another `unchangedFor`, where the policy has that alone."""
        when = self.policy.when
        changed = replace(when, unchanged_for=period) if when.idle_for is None else replace(when, idle_for=period)
        return Trial(replace(self.policy, when=changed), self._world)

    def with_grace(self, period: timedelta) -> Trial:
        return Trial(replace(self.policy, grace_period=period), self._world)

    def verdict(self, history: History, step: int) -> Verdict | None:
        """What the policy says at a step of the group as it was; None = nothing, the group isn't selected, or there."""
        stretch = next((one for one in reversed(history.stretches) if one.first <= step), None)
        return None if stretch is None else self.judge(stretch, step, history.complete_since)

    def fate(self, history: History) -> Fate:
        """What becomes of the group, from the first step to the last."""
        fate = _Fate()
        looks = _Looks(self, history.complete_since)
        steps, mark, since = self._world.steps, None, 0
        for stretch, end in _ends(history.stretches, steps.count):
            at = max(stretch.first, since)
            while at < end:
                found = looks.first_match(stretch, at, end)
                if found is None or found > at:
                    mark = None
                if found is None:
                    break
                if mark is None:
                    mark = found
                    fate.marked.append(found)
                due = self._due(mark, found, end)
                fate.matched(found, min(due, end - 1))
                if due >= end:
                    break
                back = history.back_after(due)
                fate.removed.append(Removed(mark, due, back))
                if back is None:
                    return _done(fate)
                mark, since = None, back.step
                at = max(at, since)
                looks.deleted = Deletion(steps.at(due), self.policy.key, steps.at(due) + self.policy.backup_retention)
        return _done(fate)

    def _due(self, mark: int, first: int, end: int) -> int:
        """The first step at which a mark is ripe; `end` = at none before it. Alert policies delete nothing."""
        if self.policy.action is not Action.DELETE:
            return end
        steps, policy = self._world.steps, self.policy
        since = steps.at(mark)
        told = Mark(
            policy_uid=policy.uid,
            group="",
            policy=policy.key,
            digest=policy.digest,
            since=since,
            due=since + policy.grace_period,
        )
        # By its own date, not before; and whether it is ripe then, the operator's own plan says.
        step = max(first, mark + 1, steps.first_from(told.due))
        return next((one for one in range(step, end) if is_ripe(policy, told, steps.at(one))), end)

    def likely(self, stretch: Stretch) -> int:
        """A guess at the first step of a stretch at which the policy may match."""
        wanted = self.policy.when.idle_for or self.policy.when.unchanged_for or timedelta()
        moments = filter(None, (stretch.last_commit, stretch.empty_since))
        return self._world.steps.first_from(max(moments, default=self._world.steps.start) + wanted)

    def judge(
        self, stretch: Stretch, step: int, complete_since: datetime | None, deleted: Deletion | None = None
    ) -> Verdict | None:
        """What the policy says at a step of a stretch. deleted: the group's last deletion by this policy."""
        group = stretch.group
        if group is None or not self.policy.match.selects(group):
            return None
        now = self._world.steps.at(step)
        protect = self._world.protect
        activity = Activity(
            type=group.type,
            protocol_type=group.protocol_type,
            state=stretch.state,
            first_seen=None,
            last_commit=stretch.last_commit,
            oldest_commit=stretch.oldest_commit,
            empty_since=stretch.empty_since,
            log_partition=0,
            covered_to=0,
            read_at=now,
            complete_since=complete_since,
        )
        unchanged = None
        if self.policy.when.unchanged_for is not None and stretch.same_since is not None:
            since = self._world.steps.at(stretch.same_since)
            unchanged = Unchanged(since, now - since)
        offsets = {Partition(*place): CommittedOffset(offset) for place, (offset, _) in stretch.offsets.items()}
        evidence = Evidence(
            protections=_NOBODY,
            protected_by=None if protect is None else protect.matching(group.id),
            deleted=deleted,
            unchanged=unchanged,
            offsets=offsets,
            lag=dict.fromkeys(offsets, 1),
            activity=activity,
            retention=self._world.retention,
        )
        return judge(self.policy, group, evidence, now)


class _Looks:
    """The looks at one group. deleted: its last deletion."""

    def __init__(self, trial: Trial, complete_since: datetime | None) -> None:
        self._trial, self._complete_since = trial, complete_since
        self.deleted: Deletion | None = None

    def first_match(self, stretch: Stretch, first: int, end: int) -> int | None:
        """The first step from `first` to before `end` at which the group matches.

        Nothing but time passes in a stretch, and all that it does to a group is to make it older: one that matches goes
        on to match. So not every step is looked at.
        """
        if self._matches(stretch, first):
            return first
        last = end - 1
        if last == first or not self._matches(stretch, last):
            return None
        likely = self._trial.likely(stretch)
        guesses = [likely - 1, likely]
        while last - first > 1:
            # Mostly it is the step at which the time is over; the checks have the last word.
            middle = guesses.pop() if guesses else (first + last) // 2
            if not first < middle < last:
                continue
            if self._matches(stretch, middle):
                last = middle
            else:
                first = middle
        return last

    def _matches(self, stretch: Stretch, step: int) -> bool:
        verdict = self._trial.judge(stretch, step, self._complete_since, self.deleted)
        return verdict is not None and verdict.matches


def reason_of(verdict: Verdict) -> str:
    """One word for a verdict: Match, or why the group is kept."""
    return "Match" if verdict.keep is None else verdict.keep.reason


def untriable(policy: Policy, retention: timedelta | None) -> str | None:
    """Why a policy can't be tried on the past, in a sentence; None = it can."""
    if policy.when.topics is not None:
        return "when.topics can't be tried on the past: the tables don't tell which topics existed then"
    if policy.when.expires_within is not None and retention is None:
        return "when.expiresWithin needs to know how long the brokers keep offsets: give --offsets-retention"
    return None


def _ends(stretches: Sequence[Stretch], count: int) -> list[tuple[Stretch, int]]:
    ends = [*(stretch.first for stretch in stretches), count][1:]
    return list(zip(stretches, ends, strict=True))


def _done(fate: _Fate) -> Fate:
    return Fate(tuple(fate.spans), tuple(fate.marked), tuple(fate.removed))
