"""What a policy would have done to one group, by the operator's own checks, and whom that would have hurt. Pure.

It looks once an interval of the policy: a group that matches is marked, and deleted at the first look after its grace
period at which it matches still, as by an operator that was installed when the looks begin. Limits stop nothing here:
what they would have held back at first, somebody approves later. So each group's fate is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from group_hygiene.checks import judge
from group_hygiene.contents import Deletion
from group_hygiene.entries import Mark
from group_hygiene.model import Activity, Bounds, CommittedOffset, Evidence, Partition, Protections, Unchanged, Verdict
from group_hygiene.patterns import Patterns
from group_hygiene.pipeline.replay import History, Sign, Steps, Stretch
from group_hygiene.plan import is_ripe
from group_hygiene.policy import Action, Mode, Policy

_NOBODY = Protections()
_MOMENT = timedelta(microseconds=1)
# Of a partition in which records wait for everybody.
_ENDLESS = Bounds(0, 2**63)


@dataclass(frozen=True, slots=True)
class World:
    """What holds for all groups. start, end: of all looks. protect: of the connection.

    retention: offsets.retention.minutes; None = not known.
    """

    start: datetime
    end: datetime
    protect: Patterns | None = None
    retention: timedelta | None = None


class Removed(NamedTuple):
    """A deletion. back: the sign of life that came after it, None = none did."""

    marked: datetime
    at: datetime
    back: Sign | None


@dataclass(slots=True)
class Fate:
    """Of one group under one policy. spans: from when on it matches, and from when on no more (or never looked at).

    marked: when it got a mark. removed: its deletions, in order.
    """

    spans: list[tuple[datetime, datetime]] = field(default_factory=list)
    marked: list[datetime] = field(default_factory=list)
    removed: list[Removed] = field(default_factory=list)


class Trial:
    """One policy on trial. Asks the checks of nothing but what the tables hold.

    What they don't hold is taken so that more groups match: nobody claims or mirrors a group, and records wait for it.
    """

    def __init__(self, policy: Policy, world: World) -> None:
        self.policy = replace(policy, mode=Mode.ENFORCE)
        self._world = world
        count = (world.end - world.start) // policy.interval + 1
        self._looks = Steps(world.start, policy.interval, count)

    @property
    def waits(self) -> timedelta:
        """How long a group is unused before it matches; nothing where the policy doesn't ask."""
        return self.policy.when.idle_for or self.policy.when.unchanged_for or timedelta()

    def with_idle_for(self, period: timedelta) -> Trial:
        """The same with another `idleFor`; with another `unchangedFor`, where the policy has that alone."""
        when = self.policy.when
        changed = replace(when, unchanged_for=period) if when.idle_for is None else replace(when, idle_for=period)
        return Trial(replace(self.policy, when=changed), self._world)

    def with_grace(self, period: timedelta) -> Trial:
        return Trial(replace(self.policy, grace_period=period), self._world)

    def verdict(self, history: History) -> Verdict | None:
        """What the policy says in the end of the group as it is; None = nothing: it isn't selected, or not there."""
        stretch = history.at(self._world.end)
        return None if stretch is None else self._judge(stretch, self._world.end, history.complete_since)

    def fate(self, history: History) -> Fate:
        """What becomes of the group, from the first look to the last."""
        fate, looks = Fate(), self._looks
        mark: int | None = None
        since, deleted = looks.start, None
        ends = [*(stretch.begins for stretch in history.stretches), self._world.end + _MOMENT][1:]
        for stretch, end in zip(history.stretches, ends, strict=True):
            at, stop = looks.first_from(max(stretch.begins, since)), min(looks.first_from(end), looks.count)
            while at < stop:
                found = self._first_match(
                    partial(self._matches, stretch, history.complete_since, deleted), stretch, (at, stop)
                )
                if found is None or found > at:
                    mark = None
                if found is None:
                    break
                due = self._due(found if mark is None else mark, found, stop)
                over = end if due is None else looks.at(due) + _MOMENT
                if mark is None:
                    mark = found
                    fate.marked.append(looks.at(found))
                    fate.spans.append((looks.at(found), over))
                else:
                    fate.spans[-1] = (fate.spans[-1][0], over)
                if due is None:
                    break
                back = history.back_after(looks.at(due))
                fate.removed.append(Removed(looks.at(mark), looks.at(due), back))
                if back is None:
                    return fate
                mark, since = None, back.at
                at = max(due + 1, looks.first_from(since))
                deleted = Deletion(looks.at(due), self.policy.key, looks.at(due) + self.policy.backup_retention)
        return fate

    def _due(self, mark: int, first: int, stop: int) -> int | None:
        """The first look from `first` on at which a mark is ripe; None = no look before `stop`.

        Whether it is, the operator's own plan says. Alert policies delete nothing.
        """
        if self.policy.action is not Action.DELETE:
            return None
        looks, policy = self._looks, self.policy
        since = looks.at(mark)
        told = Mark(
            policy_uid=policy.uid,
            group="",
            policy=policy.key,
            digest=policy.digest,
            since=since,
            due=since + policy.grace_period,
        )
        # Not by the run that set it, and not before its own date.
        from_ = max(first, mark + 1, looks.first_from(told.due))
        return next((look for look in range(from_, stop) if is_ripe(policy, told, looks.at(look))), None)

    def _first_match(
        self, matches: Callable[[datetime], bool], stretch: Stretch, within: tuple[int, int]
    ) -> int | None:
        """The first look from the first of `within` to before the second at which the group matches.

        Nothing but time passes in a stretch, and all that it does to a group is to make it older: one that matches goes
        on to match. So not every look is taken.
        """
        looks, (first, stop) = self._looks, within
        if matches(looks.at(first)):
            return first
        last = stop - 1
        if last == first or not matches(looks.at(last)):
            return None
        likely = self._likely(stretch)
        guesses = [likely - 1, likely]
        while last - first > 1:
            # Mostly it is the look at which the time is over; the checks have the last word.
            middle = guesses.pop() if guesses else (first + last) // 2
            if not first < middle < last:
                continue
            if matches(looks.at(middle)):
                last = middle
            else:
                first = middle
        return last

    def _likely(self, stretch: Stretch) -> int:
        """A guess at the first look in a stretch at which the policy matches."""
        moments = filter(None, (stretch.last_commit, stretch.empty_since))
        return self._looks.first_from(max(moments, default=self._looks.start) + self.waits)

    def _matches(
        self, stretch: Stretch, complete_since: datetime | None, deleted: Deletion | None, now: datetime
    ) -> bool:
        verdict = self._judge(stretch, now, complete_since, deleted)
        return verdict is not None and verdict.matches

    def _judge(
        self, stretch: Stretch, now: datetime, complete_since: datetime | None, deleted: Deletion | None = None
    ) -> Verdict | None:
        group = stretch.group
        if group is None or not self.policy.match.selects(group):
            return None
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
            # What was lost later was there at that time.
            complete_since=None if complete_since is None or complete_since > now else complete_since,
        )
        offsets = {Partition(*place): CommittedOffset(offset) for place, (offset, _) in stretch.offsets.items()}
        evidence = Evidence(
            protections=_NOBODY,
            protected_by=None if protect is None else protect.matching(group.id),
            deleted=deleted,
            unchanged=self._unchanged(stretch, now),
            offsets=offsets,
            bounds=dict.fromkeys(offsets, _ENDLESS),
            records=dict.fromkeys(offsets, _ENDLESS.end),
            activity=activity,
            retention=self._world.retention,
        )
        return judge(self.policy, group, evidence, now)

    def _unchanged(self, stretch: Stretch, now: datetime) -> Unchanged | None:
        """By looks alone, as the operator knows it."""
        if self.policy.when.unchanged_for is None or stretch.same_since is None:
            return None
        since = self._looks.at(self._looks.first_from(stretch.same_since))
        return Unchanged(since, now - since) if since <= now else None


def reason_of(verdict: Verdict) -> str:
    """One word for a verdict: Match, or why the group is kept."""
    return "Match" if verdict.keep is None else verdict.keep.reason


def untriable(policy: Policy, retention: timedelta | None) -> str | None:
    """Why a policy can't be tried on the past, in a sentence; None = it can."""
    if policy.action is Action.DELETE_OFFSETS:
        return "action DeleteOffsets can't be tried on the past: the tables don't tell what members subscribed to then"
    if policy.when.topics is not None:
        return "when.topics can't be tried on the past: the tables don't tell which topics existed then"
    if policy.when.asks_bounds:
        asked = "lag" if policy.when.lag_at_least is not None else "outOfRange"
        return f"when.{asked} can't be tried on the past: the tables don't tell where partitions began and ended then"
    if policy.when.expires_within is not None and retention is None:
        return "when.expiresWithin needs to know how long the brokers keep offsets: give --offsets-retention"
    return None
