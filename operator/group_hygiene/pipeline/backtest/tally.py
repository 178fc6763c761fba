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
from group_hygiene.pipeline.backtest.trial import Span, Trial, first_index

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

    @property
    def own(self) -> int:
        """The index of the policy's own period."""
        return self.periods.index(self.trial) if self.periods else 0


class Regret(NamedTuple):
    """A deletion of a group that was used again later. by: its first use, Commit or Join."""

    group: str
    pattern: str
    marked_at: datetime
    deleted_at: datetime
    back_at: datetime
    by: str


class Row(NamedTuple):
    """One count (`many`), perhaps of a reason (`text`), or a Regret ("regret").

    "period", "grace", and by name pattern (`text`) "pattern": groups that so many of the policy's periods delete, from
    the first one on, and for which so many of these are regretted. See `counted` for the sums.
    """

    policy: int
    what: str
    step: int = 0
    text: str | None = None
    deleted: int = 0
    regretted: int = 0
    regret: Mapping[str, Any] | None = None
    many: int = 1


_TIME = pa.timestamp("us", "UTC")
_REGRET = pa.struct([(name, _TIME if name.endswith("_at") else pa.string()) for name in Regret._fields])
_TYPES = {"what": pa.string(), "text": pa.string(), "regret": _REGRET}
# (policy, what) -> rows.
Sums = Mapping[tuple[int, str], Sequence[Mapping[str, Any]]]
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.int64())) for name in Row._fields])


def tally(
    batches: Iterable[pa.RecordBatch], bench: Sequence[OnTrial], steps: Steps, reach: Extent
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow` over rows of `lives.lives`; returns rows of SCHEMA. steps: of the counts."""
    rows = _Tally(bench, steps, reach.read_at).rows(histories(batches, reach, steps.start))
    while chunk := list(islice(rows, _ROWS_A_BATCH)):
        yield pa.RecordBatch.from_pylist([row._asdict() for row in chunk], SCHEMA)


class _Tally:
    """Counts the results of groups."""

    def __init__(self, bench: Sequence[OnTrial], steps: Steps, read_at: datetime) -> None:
        self._bench, self._steps, self._read_at = bench, steps, read_at
        self._counts: Counter[Row] = Counter()

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
        for row, many in self._counts.items():
            yield row._replace(many=many)

    def _count(self, policy: int, what: str, at: datetime | None = None, many: int = 1, **of: Any) -> None:
        self._counts[Row(policy, what, 0 if at is None else self._steps.first_from(at), **of)] += many

    def _try(self, number: int, one: OnTrial, history: History, pattern: str) -> Iterator[Row]:
        """Count the results of a policy for a group; returns its regrets."""
        if reason := one.trial.reason(history):
            self._count(number, "reason", text=reason)
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
                self._count(number, "unwatched")
        periods, graces = (_until(others, one.trial, simulate) for others in (one.periods, one.graces))
        for what, text, until in (("period", None, periods), ("pattern", pattern, periods), ("grace", None, graces)):
            if until[0]:
                self._count(number, what, text=text, deleted=until[0], regretted=until[1])


def _until(trials: Sequence[Trial], own: Trial, simulate: Callable[[Trial], Sequence[Span]]) -> tuple[int, int]:
    """Of trials with ascending periods, how many delete the group, and how many of these are regretted.

    A group that one period does not delete is not deleted with a longer one, and the same holds for regrets. So not all
    trials need be run; own, one of them, was.
    """
    if not trials:
        return 0, 0

    def until(size: int, result: Callable[[Span], Any]) -> int:
        guesses = (trials.index(own), size - 1, 0)
        return first_index(0, size, guesses, lambda index: not any(map(result, simulate(trials[index]))))

    deleted = until(len(trials), attrgetter("deleted"))
    return deleted, until(deleted, attrgetter("back"))


def counted(rows: DataFrame, bench: Sequence[OnTrial], patterns: int = PATTERNS, regrets: int = REGRETS) -> Sums:
    """Rows of SCHEMA, summed over all workers; none for other keys.

    deleted, regretted: by the policy's period, how many groups. patterns, regrets: the most that each policy gets, the
    first in order.
    """
    # Alert policies have no periods, but an array without elements has no type.
    most = max(1, *(len(others) for one in bench for others in (one.periods, one.graces)))
    many = F.col("many")
    sums = (
        F.array(*(F.sum(F.when(F.col(name) > index, many).otherwise(0)) for index in range(most))).alias(name)
        for name in ("deleted", "regretted")
    )
    rows = rows.groupBy("policy", "what", "step", "text", "regret").agg(F.sum(many).alias("many"), *sums)
    # Patterns by their deletions: with the policy's own period, then with the shortest.
    own = F.get(F.lit([one.own for one in bench]), "policy")
    order = (F.desc(F.get("deleted", own)), F.desc(F.get("deleted", F.lit(0))))
    ranked = Window.partitionBy("policy", "what").orderBy(*order, "regret.deleted_at", "regret.group", "text")
    rows = rows.withColumn("rank", F.row_number().over(ranked))
    limit = F.when(F.col("what") == "pattern", patterns).when(F.col("what") == "regret", regrets)
    found: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    listed = rows.where(limit.isNull() | (F.col("rank") <= limit)).toArrow()
    for row in listed.sort_by("rank").to_pylist():
        found[row["policy"], row["what"]].append(row)
    return found
