"""Policies tried on the past of a cluster: what each would have done at every step, and whom that would have hurt.

Reads the pipeline's tables, writes nothing and asks no Kafka. Each group's life goes through Python once, beside all
others'; what comes back is counted there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate

from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from group_hygiene.durations import format_duration, timestamp, whole_seconds
from group_hygiene.errors import PipelineError
from group_hygiene.patterns import Patterns
from group_hygiene.pipeline.history import Extent, extent, lives
from group_hygiene.pipeline.replay import Steps, moment_of
from group_hygiene.pipeline.tally import ALL, SCHEMA, Brief, Counted, OnTrial, Row, worker
from group_hygiene.pipeline.tasks import telling_tasks
from group_hygiene.pipeline.trial import Trial, World
from group_hygiene.policy import Action, Policy

_MOST_STEPS = 2_000
# What else is tried: these times what the policy asks.
_PERIODS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_GRACES = (1.0, 2.0, 4.0, 7.0)


@dataclass(frozen=True, slots=True)
class Terms:
    """What to look back on: from when (or how long before the end) to when; None = all that the tables hold.

    step: of what is told; when groups are looked at, the policies say. retention: offsets.retention.minutes of the
    brokers; None = not known. verdicts: tell that on each group, too.
    """

    start: datetime | timedelta | None = None
    end: datetime | None = None
    step: timedelta = timedelta(days=1)
    retention: timedelta | None = None
    verdicts: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy to be tried. protect: what its connection keeps from all policies."""

    policy: Policy
    protect: Patterns | None = None


@dataclass(frozen=True, slots=True)
class Day:
    """One step. groups: all that there were. The others: of groups that match, that are marked or deleted at it, and
    how many of the deleted were used again later."""

    at: datetime
    groups: int
    matched: int
    marked: int
    deleted: int
    regret: int


@dataclass(frozen=True, slots=True)
class Regret:
    """A deletion that would have hurt. by: Commit or Join, the first that somebody did with it again."""

    group: str
    pattern: str
    marked_at: datetime
    deleted_at: datetime
    back_at: datetime
    by: str


@dataclass(frozen=True, slots=True)
class Variant:
    """What another period would have led to, all else being as it is: how many groups, each counted once."""

    period: timedelta
    deleted: int
    regret: int


@dataclass(frozen=True, slots=True)
class OfPattern:
    """Of the groups whose names have one pattern. variants: see Tried.periods; safe: the least of them that
    deletes some and hurts none, nor does any longer one; None = there is none."""

    pattern: str
    deleted: int
    regret: int
    safe: timedelta | None
    variants: Sequence[Variant]


@dataclass(frozen=True, slots=True)
class Tried:
    """What one policy would have done.

    unwatched: of the deletions, those after which the tables end before a group would be idle for so long once more.
    periods: with another idleFor, or unchangedFor where that is all it asks. graces: with another gracePeriod.
    patterns: those with deletions under any of the periods, most of them first. reasons: what is said in the end of
    each group that it selects then, as it really was: Match, or why kept. verdicts: that of each of them; empty where
    not asked for.
    """

    policy: Policy
    days: Sequence[Day]
    regrets: Sequence[Regret]
    unwatched: int
    periods: Sequence[Variant]
    graces: Sequence[Variant]
    patterns: Sequence[OfPattern]
    reasons: Mapping[str, int]
    verdicts: Mapping[str, str]

    @property
    def deleted(self) -> int:
        return sum(day.deleted for day in self.days)

    @property
    def regret(self) -> int:
        return len(self.regrets)


@dataclass(frozen=True, slots=True)
class Backtest:
    """Policies on trial, over the same steps. reach: what the tables hold. untried: why others are not, in words."""

    reach: Extent
    steps: Steps
    tried: Sequence[Tried]
    untried: Sequence[str] = ()


def steps_of(terms: Terms, reach: Extent) -> Steps:
    """The moments to look at: the last one is the end, and the first not before the start, nor before the history.

    Raises PipelineError for a range in which there is nothing to look at, and says what there is.
    """
    held = f"the tables hold the history from {timestamp(reach.began)} to {timestamp(reach.read_at)}"
    end = terms.end or reach.read_at
    asked = terms.start if isinstance(terms.start, datetime) else None
    if isinstance(terms.start, timedelta):
        asked = end - terms.start
    for option, moment in (("--to", end), ("--from", asked)):
        if moment is not None and moment > reach.read_at:
            raise PipelineError(f"{option} {timestamp(moment)} is later than the log was read: {held}")
    if asked is not None and asked > end:
        raise PipelineError(f"--from {timestamp(asked)} is after --to {timestamp(end)}: that range is empty; {held}")
    start = max(asked or reach.began, reach.began)
    if start > end:
        raise PipelineError(f"--to {timestamp(end)} is before there was anything to look back on: {held}")
    count = (end - start) // terms.step
    steps = Steps(end - count * terms.step, terms.step, count + 1)
    if steps.count < 2:
        raise PipelineError(
            f"between {timestamp(start)} and {timestamp(end)} there is no step of {format_duration(terms.step)}: take "
            f"a shorter --step, or a longer range; {held}"
        )
    if steps.count > _MOST_STEPS:
        raise PipelineError(
            f"{steps.count:,} steps of {format_duration(terms.step)} are too many: take a longer --step, or a shorter "
            f"range, for {_MOST_STEPS:,} at most"
        )
    return steps


def too_short(policy: Policy, steps: Steps, reach: Extent) -> str | None:
    """Why a range is too short for a policy, in a sentence: that nobody came back would say nothing."""
    waits = policy.when.idle_for or policy.when.unchanged_for
    if waits is None:
        return None
    field = "idleFor" if policy.when.idle_for else "unchangedFor"
    needed = waits
    if policy.action is Action.DELETE:
        field, needed = f"{field} and gracePeriod", waits + policy.grace_period
    held = reach.read_at - steps.start
    if held >= needed:
        return None
    told = format_duration(whole_seconds(max(timedelta(), held)))
    return (
        f"GroupPolicy {policy.key}: the history from {timestamp(steps.start)} on is {told} long, shorter than "
        f"its {field} of {format_duration(needed)}: who would have come back, nobody can tell. The tables go back to "
        f"{timestamp(reach.began)}, which is enough from {timestamp(reach.began + needed)} on"
    )


def backtest(
    spark: SparkSession,
    warehouse: str,
    candidates: Sequence[Candidate],
    terms: Terms,
    tell: Callable[[str], None] = lambda line: None,
) -> Backtest:
    """Try these policies. tell: gets lines of progress.

    Raises PipelineError for a range, or where for all policies, the tables can tell nothing of it.
    """
    reach = extent(spark, warehouse)
    steps = steps_of(terms, reach)
    judged = [(candidate, too_short(candidate.policy, steps, reach)) for candidate in candidates]
    untried = [why for _, why in judged if why is not None]
    if len(untried) == len(candidates):
        raise PipelineError("; ".join(untried))
    bench = [_on_trial(candidate, steps, terms.retention) for candidate, why in judged if why is None]
    tell(
        f"backtest: {steps.count:,} steps from {timestamp(steps.start)} to {timestamp(steps.end)}, "
        f"{len(bench)} policies"
    )
    brief = Brief(bench, steps, reach.complete_since, reach.began, reach.read_at, terms.verdicts)
    with telling_tasks(spark, lambda done, parts: tell(f"backtest: {done} of {parts} parts")):
        records = lives(spark, warehouse, reach, _slices(bench, steps))
        rows = records.mapInArrow(worker(brief), from_arrow_schema(SCHEMA)).toArrow()
    counted = Counted.of(rows)
    return Backtest(reach, steps, [_tried(number, one, counted, steps) for number, one in enumerate(bench)], untried)


def _on_trial(candidate: Candidate, steps: Steps, retention: timedelta | None) -> OnTrial:
    policy = candidate.policy
    trial = Trial(policy, World(steps.start, steps.end, candidate.protect, retention))
    if policy.action is not Action.DELETE or not trial.waits:
        return OnTrial(trial, (), ())
    longest = steps.every * steps.count
    periods = _others(_PERIODS, trial.waits, longest)
    graces = _others(_GRACES, policy.grace_period, longest)
    return OnTrial(
        trial,
        [(period, trial if period == trial.waits else trial.with_idle_for(period)) for period in periods],
        [(period, trial if period == policy.grace_period else trial.with_grace(period)) for period in graces],
    )


def _slices(bench: Sequence[OnTrial], steps: Steps) -> Steps:
    """As long as the steps, but not so long that a group could be deleted and come back within one."""
    waits = [
        trial.waits + trial.policy.grace_period
        for one in bench
        for trial in (one.trial, *(other for _, other in (*one.periods, *one.graces)))
        if trial.policy.action is Action.DELETE
    ]
    parts = -(-steps.every // min([*waits, steps.every]))
    while steps.every / parts * parts != steps.every:
        parts += 1
    return Steps(steps.start, steps.every / parts, (steps.count - 1) * parts + 1)


def _others(factors: Iterable[float], wanted: timedelta, longest: timedelta) -> list[timedelta]:
    """In whole seconds, ascending; what is wanted is always among them."""
    second = timedelta(seconds=1)
    tried = (max(second, factor * wanted // second * second) for factor in factors if factor != 1)
    return sorted({wanted, *(period for period in tried if period <= longest)})


def _tried(number: int, one: OnTrial, counted: Counted, steps: Steps) -> Tried:
    there = accumulate(counted.by_step(ALL, "there", steps.count))
    matched = accumulate(counted.by_step(number, "matched", steps.count))
    rest = (counted.by_step(number, what, steps.count) for what in ("marked", "deleted", "hurt"))
    columns = zip(there, matched, *rest, strict=True)
    periods = [period for period, _ in one.periods]
    patterns = _by_pattern(number, periods, one, counted)
    reasons = {text or "": many for (_, text), many in counted.counts.get((number, "reason"), {}).items()}
    return Tried(
        policy=one.trial.policy,
        days=[Day(steps.at(step), *many) for step, many in enumerate(columns)],
        regrets=sorted(map(_regret, counted.regrets.get(number, ())), key=lambda each: (each.deleted_at, each.group)),
        unwatched=counted.counts.get((number, "unwatched"), {}).get((0, None), 0),
        periods=_together(periods, patterns),
        graces=_variants(number, "grace", None, [period for period, _ in one.graces], counted),
        patterns=patterns,
        reasons=dict(sorted(reasons.items())),
        verdicts=counted.verdicts.get(number, {}),
    )


def _regret(row: Row) -> Regret:
    marked, deleted, back = (moment_of(at or 0) for at in (row.marked_ms, row.deleted_ms, row.back_ms))
    return Regret(row.group or "", row.text or "", marked, deleted, back, row.by or "")


def _by_pattern(number: int, periods: Sequence[timedelta], one: OnTrial, counted: Counted) -> list[OfPattern]:
    found = {text for _, text in counted.counts.get((number, "period-deleted"), {})}
    own = periods.index(one.trial.waits) if periods else 0
    made = []
    for pattern in found:
        variants = _variants(number, "period", pattern, periods, counted)
        hurt = max((index for index, variant in enumerate(variants) if variant.regret), default=-1)
        # One that deletes nothing is not safe, but too long for the range.
        safe = next((variant.period for variant in variants[hurt + 1 :] if variant.deleted), None)
        made.append(OfPattern(pattern or "", variants[own].deleted, variants[own].regret, safe, variants))
    return sorted(made, key=lambda each: (-each.deleted, -each.variants[0].deleted, each.pattern))


def _variants(
    number: int, what: str, text: str | None, periods: Sequence[timedelta], counted: Counted
) -> list[Variant]:
    deleted, regret = (counted.counts.get((number, f"{what}-{which}"), {}) for which in ("deleted", "regret"))
    return [
        Variant(period, deleted.get((index, text), 0), regret.get((index, text), 0))
        for index, period in enumerate(periods)
    ]


def _together(periods: Sequence[timedelta], patterns: Sequence[OfPattern]) -> list[Variant]:
    columns = zip(*(pattern.variants for pattern in patterns), strict=True) if patterns else [()] * len(periods)
    return [
        Variant(period, sum(one.deleted for one in column), sum(one.regret for one in column))
        for period, column in zip(periods, columns, strict=True)
    ]
