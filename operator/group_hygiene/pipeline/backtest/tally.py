"""Counts the results of policies for many groups: in Spark's workers, then in Spark.

What the driver gets is bounded by the number of policies and steps, whatever the number of groups.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from group_hygiene.pipeline.backtest.lives import Extent, histories
from group_hygiene.pipeline.backtest.replay import History, Steps
from group_hygiene.pipeline.backtest.trial import Span, Trial, first_index, reason_of

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


class Regret(NamedTuple):
    """A deletion of a group that was used again later. by: its first use, Commit or Join."""

    group: str
    pattern: str
    marked_at: datetime
    deleted_at: datetime
    back_at: datetime
    by: str


class Row(NamedTuple):
    """One count, perhaps of a reason (`text`); or the counts of a pattern by the periods ("pattern"; many: with the
    policy's own); or a Regret ("regret").
    """

    policy: int
    what: str
    step: int = 0
    text: str | None = None
    many: int = 1
    deleted: Sequence[int] | None = None
    regretted: Sequence[int] | None = None
    regret: Mapping[str, Any] | None = None


_SUMS = ("deleted", "regretted")
_TIME = pa.timestamp("us", "UTC")
_REGRET = pa.struct([(name, _TIME if name.endswith("_at") else pa.string()) for name in Regret._fields])
_TYPES = {"what": pa.string(), "text": pa.string(), "regret": _REGRET} | dict.fromkeys(_SUMS, pa.list_(pa.int64()))
# (policy, what) -> rows of SCHEMA.
Sums = Mapping[tuple[int, str], Sequence[Mapping[str, Any]]]
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.int64())) for name in Row._fields])


def worker(
    bench: Sequence[OnTrial], steps: Steps, reach: Extent
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow` over rows of `lives.lives`; returns rows of SCHEMA. steps: of the counts."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = _Tally(bench, steps, reach.read_at).rows(histories(batches, reach, steps.start))
        while chunk := list(islice(rows, _ROWS_A_BATCH)):
            columns = zip(zip(*chunk, strict=True), SCHEMA, strict=True)
            yield pa.RecordBatch.from_arrays([pa.array(column, field.type) for column, field in columns], schema=SCHEMA)

    return work


class _Tally:
    """Counts the results of groups. counts: (policy, what, step, text) -> number. patterns: see `Row`."""

    def __init__(self, bench: Sequence[OnTrial], steps: Steps, read_at: datetime) -> None:
        self._bench, self._steps, self._read_at = bench, steps, read_at
        self._counts: Counter[tuple[int, str, int, str | None]] = Counter()
        self._patterns: dict[tuple[int, str], tuple[list[int], list[int]]] = {}

    def rows(self, groups: Iterable[tuple[str, History]]) -> Iterator[Row]:
        """groups: their name patterns and histories."""
        for pattern, history in groups:
            there = False
            for stretch in history.stretches:
                if there is not (there := stretch.group is not None):
                    self._count(ALL, "there", stretch.begins, 1 if there else -1)
            for number, one in enumerate(self._bench):
                match = one.trial.policy.match
                # Most policies select few groups, by name.
                if match.groups.matches(history.name) and not match.exclude.matches(history.name):
                    yield from self._try(number, one, history, pattern)
        for key, many in self._counts.items():
            yield Row(*key, many)
        for (number, pattern), (deleted, regretted) in self._patterns.items():
            own = self._bench[number].periods.index(self._bench[number].trial)
            yield Row(number, "pattern", 0, pattern, deleted[own], deleted, regretted)

    def _count(self, number: int, what: str, moment: datetime, many: int = 1) -> None:
        self._counts[number, what, self._steps.first_from(moment), None] += many

    def _try(self, number: int, one: OnTrial, history: History, pattern: str) -> Iterator[Row]:
        """Count the results of a policy for a group; returns its regrets."""
        verdict = one.trial.verdict(history)
        if verdict is not None:
            self._counts[number, "reason", 0, reason_of(verdict)] += 1
        simulate = cache(lambda trial: trial.simulate(history))
        # A group in use has many stretches, and mostly never matches: then no longer period need be tried.
        if len(history.stretches) > len(one.periods) > 0 and not simulate(one.periods[0]):
            return
        for span in simulate(one.trial):
            self._count(number, "marked", span.marked)
            self._count(number, "matched", span.marked)
            self._count(number, "matched", span.end, -1)
            if span.deleted is None:
                continue
            self._count(number, "deleted", span.deleted)
            if span.back is not None:
                self._count(number, "regretted", span.deleted)
                regret = Regret(history.name, pattern, span.marked, span.deleted, span.back.at, span.back.by)
                yield Row(number, "regret", regret=regret._asdict())
            elif self._read_at - span.deleted < one.trial.waits:
                self._counts[number, "unwatched", 0, None] += 1
        for what, others in (("period", one.periods), ("grace", one.graces)):
            deleted, regretted = _until(others, one.trial, simulate)
            for index in range(deleted):
                self._counts[number, f"{what}-deleted", index, None] += 1
            for index in range(regretted):
                self._counts[number, f"{what}-regret", index, None] += 1
            if what == "period" and deleted:
                sums = self._patterns.setdefault((number, pattern), ([0] * len(others), [0] * len(others)))
                for until, counts in zip((deleted, regretted), sums, strict=True):
                    counts[:until] = [many + 1 for many in counts[:until]]


def _until(trials: Sequence[Trial], own: Trial, simulate: Callable[[Trial], Sequence[Span]]) -> tuple[int, int]:
    """Of trials with ascending periods, how many delete the group, and how many of these are regretted.

    A group that one period does not delete is not deleted with a longer one, and the same holds for regrets. So not all
    trials need be run; own, one of them, was.
    """
    if not trials:
        return 0, 0

    def until(size: int, result: Callable[[Span], Any]) -> int:
        def has_none(index: int) -> bool:
            return not any(map(result, simulate(trials[index])))

        return first_index(0, size, (trials.index(own), size - 1, 0), has_none)

    deleted = until(len(trials), attrgetter("deleted"))
    return deleted, until(deleted, attrgetter("back"))


def counted(rows: DataFrame, periods: int, patterns: int = PATTERNS, regrets: int = REGRETS) -> Sums:
    """Rows of SCHEMA, summed over all workers; none for other keys.

    periods: the most that a policy has. patterns, regrets: the most that each policy gets, the first in order.
    """
    sums = (
        F.array(*(F.coalesce(F.sum(F.get(name, F.lit(index))), F.lit(0)) for index in range(periods))).alias(name)
        for name in _SUMS
    )
    keys = [name for name in Row._fields if name not in ("many", *_SUMS)]
    rows = rows.groupBy(*keys).agg(F.sum("many").alias("many"), *sums)
    what = F.col("what")
    most = (F.when(what == "pattern", -value) for value in (F.col("many"), F.get("deleted", F.lit(0))))
    ranked = Window.partitionBy("policy", "what").orderBy(*most, "regret.deleted_at", "regret.group", "text")
    rows = rows.withColumn("rank", F.row_number().over(ranked))
    limit = F.when(what == "pattern", patterns).when(what == "regret", regrets)
    found: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    listed = rows.where(limit.isNull() | (F.col("rank") <= limit)).toArrow()
    for row in listed.sort_by("rank").to_pylist():
        found[row["policy"], row["what"]].append(row)
    return found
