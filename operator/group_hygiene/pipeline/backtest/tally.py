"""Counts the results of policies for many groups: in Spark's workers, then in Spark.

What the driver gets is bounded by the number of policies and steps, whatever the number of groups.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from group_hygiene.pipeline.backtest.lives import Extent, GroupRecords, group_records
from group_hygiene.pipeline.backtest.replay import History, Steps, milliseconds_of, replay
from group_hygiene.pipeline.backtest.trial import Removed, Simulation, Trial, reason_of

_ROWS_A_BATCH = 10_000
# Of each policy, the most that the driver lists.
PATTERNS, REGRETS = 5_000, 10_000
# Instead of a policy's number: counts of all groups.
ALL = -1


class OnTrial(NamedTuple):
    """A policy, and the same with other periods. periods, graces: ascending, its own included, or empty."""

    trial: Trial
    periods: Sequence[Trial]
    graces: Sequence[Trial]


class Brief(NamedTuple):
    """The input of a worker. steps: of the counts. reach: of the tables."""

    bench: Sequence[OnTrial]
    steps: Steps
    reach: Extent


class Row(NamedTuple):
    """One count, perhaps of a reason (`text`); or the counts of a pattern by the periods ("pattern"; many: with the
    policy's own); or one deletion of a group that was used again ("regret"). Times in milliseconds since 1970.
    """

    policy: int
    what: str
    step: int = 0
    text: str | None = None
    many: int = 1
    deleted: Sequence[int] | None = None
    regretted: Sequence[int] | None = None
    group: str | None = None
    marked_ms: int | None = None
    deleted_ms: int | None = None
    back_ms: int | None = None
    by: str | None = None


_SUMS = ("deleted", "regretted")
_TYPES = dict.fromkeys(("what", "text", "group", "by"), pa.string()) | dict.fromkeys(_SUMS, pa.list_(pa.int64()))
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.int64())) for name in Row._fields])


def worker(brief: Brief) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow` over rows of `lives.lives`; returns rows of SCHEMA."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tally = _Tally(brief)
        for group in group_records(batches, brief.reach.began):
            tally.add(group)
            if len(tally.rows) >= _ROWS_A_BATCH:
                yield _batch(tally.rows)
                tally.rows.clear()
        tally.rows += [Row(*key, number) for key, number in tally.counts.items()]
        for (number, pattern), (deleted, regretted) in tally.patterns.items():
            own = brief.bench[number].periods.index(brief.bench[number].trial)
            tally.rows.append(Row(number, "pattern", 0, pattern, deleted[own], deleted, regretted))
        for first in range(0, len(tally.rows), _ROWS_A_BATCH):
            yield _batch(tally.rows[first : first + _ROWS_A_BATCH])

    return work


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class _Tally:
    """Counts the results of groups. counts: (policy, what, step, text) -> number. patterns: see `Row`."""

    def __init__(self, brief: Brief) -> None:
        self._brief = brief
        self.counts: Counter[tuple[int, str, int, str | None]] = Counter()
        self.patterns: dict[tuple[int, str], tuple[list[int], list[int]]] = {}
        self.rows: list[Row] = []

    def add(self, group: GroupRecords) -> None:
        brief = self._brief
        history = replay(group.group, group.records, brief.steps.start, group.known)
        history = replace(history, complete_since=brief.reach.complete_since.get(group.log_partition))
        there = False
        for stretch in history.stretches:
            if there is not (there := stretch.group is not None):
                self._count(ALL, "there", stretch.begins, 1 if there else -1)
        for number, one in enumerate(brief.bench):
            match = one.trial.policy.match
            # Most policies select few groups, by name.
            if match.groups.matches(group.group) and not match.exclude.matches(group.group):
                self._try(number, one, history, group.pattern)

    def _count(self, number: int, what: str, moment: datetime, many: int = 1) -> None:
        self.counts[number, what, self._brief.steps.first_from(moment), None] += many

    def _try(self, number: int, one: OnTrial, history: History, pattern: str) -> None:
        verdict = one.trial.verdict(history)
        if verdict is not None:
            self.counts[number, "reason", 0, reason_of(verdict)] += 1
        results = _simulated(one, history)
        result = results[one.trial]
        for first, end in result.spans:
            self._count(number, "matched", first)
            self._count(number, "matched", end, -1)
        for moment in result.marked:
            self._count(number, "marked", moment)
        for removed in result.removed:
            self._count(number, "deleted", removed.at)
            if removed.back is not None:
                self._count(number, "regretted", removed.at)
                row = Row(number, "regret", text=pattern, group=history.name, by=removed.back.by)
                marked, at, back = map(milliseconds_of, (removed.marked, removed.at, removed.back.at))
                self.rows.append(row._replace(marked_ms=marked, deleted_ms=at, back_ms=back))
            elif self._brief.reach.read_at - removed.at < one.trial.waits:
                self.counts[number, "unwatched", 0, None] += 1
        for what, others in (("period", one.periods), ("grace", one.graces)):
            deleted, regretted = _until(others, history, results)
            for index in range(deleted):
                self.counts[number, f"{what}-deleted", index, None] += 1
            for index in range(regretted):
                self.counts[number, f"{what}-regret", index, None] += 1
            if what == "period" and deleted:
                sums = self.patterns.setdefault((number, pattern), ([0] * len(others), [0] * len(others)))
                for until, counts in zip((deleted, regretted), sums, strict=True):
                    counts[:until] = [many + 1 for many in counts[:until]]


def _simulated(one: OnTrial, history: History) -> dict[Trial, Simulation]:
    """The policy's own result, perhaps with that of its least period.

    A group that never matches with the least doesn't with a longer one. So a group in use, with many stretches, is
    mostly judged with the least alone.
    """
    first = one.periods[0] if one.periods and len(history.stretches) > len(one.periods) else one.trial
    found = {first: first.simulate(history)}
    if first is not one.trial:
        found[one.trial] = one.trial.simulate(history) if found[first].spans else found[first]
    return found


def _until(trials: Sequence[Trial], history: History, results: dict[Trial, Simulation]) -> tuple[int, int]:
    """Of trials with ascending periods, how many delete the group, and how many of these are regretted.

    A group that one period does not delete is not deleted with a longer one, and the same holds for regrets. So not all
    trials need be run. results: of those that were.
    """

    def removed(index: int) -> Sequence[Removed]:
        if trials[index] not in results:
            results[trials[index]] = trials[index].simulate(history)
        return results[trials[index]].removed

    known = [index for index, trial in enumerate(trials) if trial in results]
    deleted = _first_without(len(trials), known, lambda index: bool(removed(index)))
    return deleted, _first_without(deleted, known, lambda index: any(one.back for one in removed(index)))


def _first_without(size: int, known: Iterable[int], holds: Callable[[int], bool]) -> int:
    """The first index for which a monotonic predicate is false; tries known indexes first."""
    low, high = 0, size
    for index in [*known, size - 1, 0]:
        if low <= index < high:
            low, high = (index + 1, high) if holds(index) else (low, index)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if holds(middle) else (low, middle)
    return low


class Counted(NamedTuple):
    """The counts of all workers. counts: (policy, what) -> (step, text) -> number. patterns, regrets: by policy."""

    counts: dict[tuple[int, str], dict[tuple[int, str | None], int]]
    patterns: dict[int, list[Any]]
    regrets: dict[int, list[Any]]

    @classmethod
    def of(cls, rows: DataFrame, periods: int, patterns: int = PATTERNS, regrets: int = REGRETS) -> Counted:
        """Of rows of SCHEMA. periods: the most that a policy has. patterns, regrets: the most that each policy gets."""
        sums = (
            F.array(*(F.coalesce(F.sum(F.get(name, F.lit(index))), F.lit(0)) for index in range(periods))).alias(name)
            for name in _SUMS
        )
        keys = [name for name in Row._fields if name not in ("many", *_SUMS)]
        rows = rows.groupBy(*keys).agg(F.sum("many").alias("many"), *sums)
        what = F.col("what")
        most = (F.when(what == "pattern", -value) for value in (F.col("many"), F.get("deleted", F.lit(0))))
        ranked = Window.partitionBy("policy", "what").orderBy(*most, "deleted_ms", "group", "text")
        rows = rows.withColumn("rank", F.row_number().over(ranked))
        limit = F.when(what == "pattern", patterns).when(what == "regret", regrets)
        found = cls(defaultdict(dict), defaultdict(list), defaultdict(list))
        for row in sorted(rows.where(limit.isNull() | (F.col("rank") <= limit)).collect(), key=attrgetter("rank")):
            if row.what in ("pattern", "regret"):
                (found.patterns if row.what == "pattern" else found.regrets)[row.policy].append(row)
            else:
                found.counts[row.policy, row.what][row.step, row.text] = row.many
        return found

    def by_step(self, policy: int, what: str, steps: int) -> list[int]:
        found = self.counts.get((policy, what), {})
        return [found.get((step, None), 0) for step in range(steps)]
