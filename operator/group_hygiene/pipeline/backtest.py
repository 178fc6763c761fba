"""Policies tried on the past of a cluster: what each would have done at every step, and whom that would have hurt.

Reads the pipeline's tables, writes nothing and asks no Kafka. Each group's life goes through Python once, beside all
others'; what comes back is counted there already.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from group_hygiene.errors import PipelineError
from group_hygiene.pipeline.history import Extent, Told, extent, lives, told
from group_hygiene.pipeline.replay import History, Steps, replay
from group_hygiene.pipeline.tasks import telling_tasks
from group_hygiene.pipeline.trial import Fate, Trial, World, reason_of
from group_hygiene.policy import Action, Patterns, Policy, format_duration

_MOST_STEPS = 2_000
# What else is tried: these times what the policy asks.
_PERIODS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_GRACES = (1.0, 2.0, 4.0, 7.0)
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Terms:
    """What to look back on: from when to when, in which steps; None = all that the tables hold.

    retention: offsets.retention.minutes of the brokers; None = not known. verdicts: tell that on each group, too.
    """

    start: datetime | None = None
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
    """Of the groups whose names have one pattern. variants: see Tried.periods; regret-free from `safe` on, None = with
    none of them."""

    pattern: str
    deleted: int
    regret: int
    safe: timedelta | None
    variants: Sequence[Variant]


@dataclass(frozen=True, slots=True)
class Tried:
    """What one policy would have done. periods: with another idleFor, or unchangedFor where that is all it asks.

    graces: with another gracePeriod. patterns: those with deletions under any of the periods, most of them first.
    reasons: what is said at the last step of each group that it selects then, as it really was: Match, or why kept.
    verdicts: that of each of them; empty where not asked for.
    """

    policy: Policy
    days: Sequence[Day]
    regrets: Sequence[Regret]
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

    @property
    def end(self) -> datetime:
        """The last step."""
        return self.steps.at(self.steps.count - 1)


def steps_of(terms: Terms, reach: Extent) -> Steps:
    """The moments to look at: the last one is the end, and the first not before the start, nor before the history.

    Raises PipelineError for a range in which there is nothing to look at, and says what there is.
    """
    held = f"the tables hold the history from {_time(reach.began)} to {_time(reach.read_at)}"
    end = terms.end or reach.read_at
    for option, moment in (("--to", end), ("--from", terms.start)):
        if moment is not None and moment > reach.read_at:
            raise PipelineError(f"{option} {_time(moment)} is later than the log was read: {held}")
    if terms.start is not None and terms.start > end:
        raise PipelineError(f"--from {_time(terms.start)} is after --to {_time(end)}: that range is empty; {held}")
    start = max(terms.start or reach.began, reach.began)
    if start > end:
        raise PipelineError(f"--to {_time(end)} is before there was anything to look back on: {held}")
    count = (end - start) // terms.step
    steps = Steps(end - count * terms.step, terms.step, count + 1)
    if steps.count < 2:
        raise PipelineError(
            f"between {_time(start)} and {_time(end)} there is no step of {format_duration(terms.step)}: take a "
            f"shorter --step, or a longer range; {held}"
        )
    if steps.count > _MOST_STEPS:
        raise PipelineError(
            f"{steps.count:,} steps of {format_duration(terms.step)} are too many: take a longer --step, or a shorter "
            f"range, for {_MOST_STEPS:,} at most"
        )
    return steps


def too_short(policy: Policy, reach: Extent) -> str | None:
    """Why the history is too short for a policy, in a sentence: that nobody came back would say nothing."""
    wanted = policy.when.idle_for or policy.when.unchanged_for
    held = reach.read_at - reach.began
    if wanted is None or held >= wanted:
        return None
    field = "idleFor" if policy.when.idle_for else "unchangedFor"
    return (
        f"GroupPolicy {policy.key}: the tables hold a history of {_rounded(held)}, which is shorter than its {field} "
        f"of {format_duration(wanted)}: who would have come back, nobody can tell before {_time(reach.began + wanted)}"
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
    untried = [why for candidate in candidates if (why := too_short(candidate.policy, reach)) is not None]
    if len(untried) == len(candidates):
        raise PipelineError("; ".join(untried))
    able = [candidate for candidate in candidates if too_short(candidate.policy, reach) is None]
    bench = [_on_trial(candidate, steps, terms.retention) for candidate in able]
    last = steps.at(steps.count - 1)
    tell(f"backtest: {steps.count:,} steps from {_time(steps.start)} to {_time(last)}, {len(bench)} policies")
    work = _worker(bench, steps, reach, terms.verdicts)
    with telling_tasks(spark, lambda done, parts: tell(f"backtest: {done} of {parts} parts")):
        rows = lives(spark, warehouse, reach, steps).mapInArrow(work, _COUNTED).toArrow()
    counted = _Counted.of(rows)
    return Backtest(reach, steps, [_tried(number, one, counted, steps) for number, one in enumerate(bench)], untried)


class _OnTrial(NamedTuple):
    """A policy, and the same with other periods. periods, graces: ascending, with what each of them asks."""

    trial: Trial
    periods: Sequence[tuple[timedelta, Trial]]
    graces: Sequence[tuple[timedelta, Trial]]


def _on_trial(candidate: Candidate, steps: Steps, retention: timedelta | None) -> _OnTrial:
    policy = candidate.policy
    trial = Trial(policy, World(steps, candidate.protect, retention))
    wanted = policy.when.idle_for or policy.when.unchanged_for
    if policy.action is not Action.DELETE or wanted is None:
        return _OnTrial(trial, (), ())
    longest = steps.every * steps.count
    periods = _others(_PERIODS, wanted, longest)
    graces = _others(_GRACES, policy.grace_period, longest)
    return _OnTrial(
        trial,
        [(period, trial if period == wanted else trial.with_idle_for(period)) for period in periods],
        [(period, trial if period == policy.grace_period else trial.with_grace(period)) for period in graces],
    )


def _others(factors: Iterable[float], wanted: timedelta, longest: timedelta) -> list[timedelta]:
    """In whole seconds, ascending; what is wanted is always among them."""
    second = timedelta(seconds=1)
    tried = (max(second, factor * wanted // second * second) for factor in factors if factor != 1)
    return sorted({wanted, *(period for period in tried if period <= longest)})


# One count, or one deletion that would have hurt: `group` is of the latter alone, and of verdicts.
_COUNTED = StructType(
    [
        StructField("policy", IntegerType(), False),
        StructField("what", StringType(), False),
        StructField("step", IntegerType(), False),
        StructField("text", StringType()),
        StructField("many", LongType(), False),
        StructField("group", StringType()),
        StructField("marked", IntegerType()),
        StructField("back_ms", LongType()),
        StructField("by", StringType()),
    ]
)
_ROWS_A_BATCH = 10_000
# Of all groups, whatever the policies.
_ALL = -1


class _Row(NamedTuple):
    policy: int
    what: str
    step: int
    text: str | None
    many: int
    group: str | None = None
    marked: int | None = None
    back_ms: int | None = None
    by: str | None = None


def _worker(
    bench: Sequence[_OnTrial], steps: Steps, reach: Extent, verdicts: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tally = _Tally(bench, steps, reach, verdicts)
        for group in told(batches):
            tally.add(group)
            if len(tally.rows) >= _ROWS_A_BATCH:
                yield _batch(tally.rows)
                tally.rows.clear()
        tally.rows += [_Row(*key, number) for key, number in tally.counts.items()]
        for first in range(0, len(tally.rows), _ROWS_A_BATCH):
            yield _batch(tally.rows[first : first + _ROWS_A_BATCH])

    return work


def _batch(rows: Sequence[_Row]) -> pa.RecordBatch:
    types = [pa.int32(), pa.string(), pa.int32(), pa.string(), pa.int64()]
    types += [pa.string(), pa.int32(), pa.int64(), pa.string()]
    arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(_Row._fields))


class _Tally:
    """Counts what becomes of one group after the other. counts: (policy, what, step, text) -> how many."""

    def __init__(self, bench: Sequence[_OnTrial], steps: Steps, reach: Extent, verdicts: bool) -> None:
        self._bench, self._steps, self._reach, self._verdicts = bench, steps, reach, verdicts
        self.counts: Counter[tuple[int, str, int, str | None]] = Counter()
        self.rows: list[_Row] = []

    def add(self, group: Told) -> None:
        history = replay(group.group, group.records, self._steps.count, group.known)
        history = replace(history, complete_since=self._reach.complete_since.get(group.log_partition))
        there = False
        for stretch in history.stretches:
            if there is not (there := stretch.group is not None):
                self.counts[_ALL, "there", stretch.first, None] += 1 if there else -1
        for number, one in enumerate(self._bench):
            match = one.trial.policy.match
            # Most policies are about few groups, by their names.
            if match.groups.matches(group.group) and not match.exclude.matches(group.group):
                self._try(number, one, history, group.pattern)

    def _try(self, number: int, one: _OnTrial, history: History, pattern: str) -> None:
        counts, last = self.counts, self._steps.count - 1
        verdict = one.trial.verdict(history, last)
        if verdict is not None:
            reason = reason_of(verdict)
            counts[number, "reason", 0, reason] += 1
            if self._verdicts:
                self.rows.append(_Row(number, "verdict", last, reason, 1, history.name))
        fate = one.trial.fate(history)
        for first, end in fate.spans:
            counts[number, "matched", first, None] += 1
            counts[number, "matched", end + 1, None] -= 1
        for step in fate.marked:
            counts[number, "marked", step, None] += 1
        for removed in fate.removed:
            counts[number, "deleted", removed.step, None] += 1
            if removed.back is not None:
                place = _Row(number, "regret", removed.step, pattern, 1, history.name, removed.marked)
                back_ms = (removed.back.at - _EPOCH) // _MILLISECOND
                self.rows.append(place._replace(back_ms=back_ms, by=removed.back.by))
        for what, text, others in (("period", pattern, one.periods), ("grace", None, one.graces)):
            deleted, hurt = _until([trial for _, trial in others], history, (one.trial, fate))
            for index in range(deleted):
                counts[number, f"{what}-deleted", index, text] += 1
            for index in range(hurt):
                counts[number, f"{what}-regret", index, text] += 1


def _until(trials: Sequence[Trial], history: History, own: tuple[Trial, Fate]) -> tuple[int, int]:
    """Of trials with ever longer periods, how many delete the group, and how many of these hurt.

    Who is not deleted is not deleted after a longer time either, and who is not missed is not missed then. So not all
    of them need be tried.
    """
    fates = {trials.index(own[0]): own[1]} if trials else {}

    def fate(index: int) -> Fate:
        if index not in fates:
            fates[index] = trials[index].fate(history)
        return fates[index]

    deleted = _first_without(len(trials), fates, lambda index: bool(fate(index).removed))
    return deleted, _first_without(deleted, fates, lambda index: any(one.back for one in fate(index).removed))


def _first_without(size: int, known: Iterable[int], holds: Callable[[int], bool]) -> int:
    """The first index for which something no longer holds, that holds up to there; begins with what is known."""
    low, high = 0, size
    for index in [*known, size - 1, 0]:
        if low <= index < high:
            low, high = (index + 1, high) if holds(index) else (low, index)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if holds(middle) else (low, middle)
    return low


class _Counted(NamedTuple):
    """What all workers counted, together."""

    counts: Mapping[tuple[int, str], Mapping[tuple[int, str | None], int]]
    regrets: Mapping[int, Sequence[_Row]]
    verdicts: Mapping[int, Mapping[str, str]]

    @classmethod
    def of(cls, rows: pa.Table) -> _Counted:
        counts: dict[tuple[int, str], Counter[tuple[int, str | None]]] = defaultdict(Counter)
        regrets: dict[int, list[_Row]] = defaultdict(list)
        verdicts: dict[int, dict[str, str]] = defaultdict(dict)
        for row in map(_Row._make, zip(*(column.to_pylist() for column in rows.columns), strict=True)):
            if row.what == "regret":
                regrets[row.policy].append(row)
            elif row.what == "verdict":
                verdicts[row.policy][row.group or ""] = row.text or ""
            else:
                counts[row.policy, row.what][row.step, row.text] += row.many
        return cls(counts, regrets, verdicts)

    def by_step(self, policy: int, what: str, steps: int) -> list[int]:
        found = self.counts.get((policy, what), {})
        return [found.get((step, None), 0) for step in range(steps)]


def _tried(number: int, one: _OnTrial, counted: _Counted, steps: Steps) -> Tried:
    hurt = counted.regrets.get(number, ())
    regrets = sorted((_regret(row, steps) for row in hurt), key=lambda each: (each.deleted_at, each.group))
    hurt_at = Counter(row.step for row in hurt)
    there = accumulate(counted.by_step(_ALL, "there", steps.count))
    matched = accumulate(counted.by_step(number, "matched", steps.count))
    marked, deleted = (counted.by_step(number, what, steps.count) for what in ("marked", "deleted"))
    columns = zip(there, matched, marked, deleted, strict=True)
    days = [Day(steps.at(step), *many, hurt_at[step]) for step, many in enumerate(columns)]
    reasons = {text or "": many for (_, text), many in counted.counts.get((number, "reason"), {}).items()}
    periods = [period for period, _ in one.periods]
    patterns = _by_pattern(number, periods, one, counted)
    return Tried(
        policy=one.trial.policy,
        days=days,
        regrets=regrets,
        periods=_together(periods, patterns),
        graces=_variants(number, "grace", None, [period for period, _ in one.graces], counted),
        patterns=patterns,
        reasons=dict(sorted(reasons.items())),
        verdicts=counted.verdicts.get(number, {}),
    )


def _regret(row: _Row, steps: Steps) -> Regret:
    back = _EPOCH + (row.back_ms or 0) * _MILLISECOND
    return Regret(row.group or "", row.text or "", steps.at(row.marked or 0), steps.at(row.step), back, row.by or "")


def _by_pattern(number: int, periods: Sequence[timedelta], one: _OnTrial, counted: _Counted) -> list[OfPattern]:
    found = {text for _, text in counted.counts.get((number, "period-deleted"), {})}
    when = one.trial.policy.when
    own = periods.index(when.idle_for or when.unchanged_for or timedelta()) if periods else 0
    made = []
    for pattern in found:
        variants = _variants(number, "period", pattern, periods, counted)
        hurt = [index for index, variant in enumerate(variants) if variant.regret]
        safe = next(iter(periods[max(hurt, default=-1) + 1 :]), None)
        made.append(OfPattern(pattern or "", variants[own].deleted, variants[own].regret, safe, variants))
    return sorted(made, key=lambda each: (-each.deleted, -each.variants[0].deleted, each.pattern))


def _variants(
    number: int, what: str, text: str | None, periods: Sequence[timedelta], counted: _Counted
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


def _rounded(period: timedelta) -> str:
    return format_duration(max(timedelta(), period) // timedelta(seconds=1) * timedelta(seconds=1))


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
