"""Counts the results of policies for many groups, in Spark's workers.

The driver adds the counts of all workers. Single rows are returned only for deletions of groups that were used again
and, if requested, for verdicts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

import pyarrow as pa

from group_hygiene.pipeline.backtest.lives import GroupRecords, group_records
from group_hygiene.pipeline.backtest.replay import History, Steps, milliseconds_of, replay
from group_hygiene.pipeline.backtest.trial import Simulation, Trial, reason_of

_ROWS_A_BATCH = 10_000
# Instead of a policy's number: counts of all groups.
ALL = -1


class OnTrial(NamedTuple):
    """A policy, and the same with other periods. periods, graces: ascending, each with its trial."""

    trial: Trial
    periods: Sequence[tuple[timedelta, Trial]]
    graces: Sequence[tuple[timedelta, Trial]]


@dataclass(frozen=True, slots=True)
class Brief:
    """The input of a worker. steps: of the counts. complete_since: by partition of the log.

    began, read_at: of the history. verdicts: whether to return the verdict of each group.
    """

    bench: Sequence[OnTrial]
    steps: Steps
    complete_since: Mapping[int, datetime]
    began: datetime
    read_at: datetime
    verdicts: bool


class Row(NamedTuple):
    """One count: its policy, name and step, and a text (a pattern or a reason).

    Or one deletion of a group that was used again ("regret"), or one group's verdict. Times in milliseconds since 1970.
    """

    policy: int
    what: str
    step: int
    text: str | None
    many: int
    group: str | None = None
    marked_ms: int | None = None
    deleted_ms: int | None = None
    back_ms: int | None = None
    by: str | None = None


_TEXTS = {"what", "text", "group", "by"}
SCHEMA = pa.schema([(name, pa.string() if name in _TEXTS else pa.int64()) for name in Row._fields])


def worker(brief: Brief) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow` over rows of `lives.lives`; returns rows of SCHEMA."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tally = _Tally(brief)
        for group in group_records(batches, brief.began):
            tally.add(group)
            if len(tally.rows) >= _ROWS_A_BATCH:
                yield _batch(tally.rows)
                tally.rows.clear()
        tally.rows += [Row(*key, number) for key, number in tally.counts.items()]
        for first in range(0, len(tally.rows), _ROWS_A_BATCH):
            yield _batch(tally.rows[first : first + _ROWS_A_BATCH])

    return work


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class _Tally:
    """Counts the results of groups. counts: (policy, what, step, text) -> number."""

    def __init__(self, brief: Brief) -> None:
        self._brief = brief
        self.counts: Counter[tuple[int, str, int, str | None]] = Counter()
        self.rows: list[Row] = []

    def add(self, group: GroupRecords) -> None:
        brief = self._brief
        history = replay(group.group, group.records, brief.steps.start, group.known)
        history = replace(history, complete_since=brief.complete_since.get(group.log_partition))
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
            reason = reason_of(verdict)
            self.counts[number, "reason", 0, reason] += 1
            if self._brief.verdicts:
                self.rows.append(Row(number, "verdict", 0, reason, 1, history.name))
        result = one.trial.simulate(history)
        for first, end in result.spans:
            self._count(number, "matched", first)
            self._count(number, "matched", end, -1)
        for moment in result.marked:
            self._count(number, "marked", moment)
        for removed in result.removed:
            self._count(number, "deleted", removed.at)
            if removed.back is not None:
                self._count(number, "regretted", removed.at)
                row = Row(number, "regret", 0, pattern, 1, history.name, by=removed.back.by)
                marked, at, back = map(milliseconds_of, (removed.marked, removed.at, removed.back.at))
                self.rows.append(row._replace(marked_ms=marked, deleted_ms=at, back_ms=back))
            elif self._brief.read_at - removed.at < one.trial.waits:
                self.counts[number, "unwatched", 0, None] += 1
        for what, text, others in (("period", pattern, one.periods), ("grace", None, one.graces)):
            deleted, regretted = _until([trial for _, trial in others], history, (one.trial, result))
            for index in range(deleted):
                self.counts[number, f"{what}-deleted", index, text] += 1
            for index in range(regretted):
                self.counts[number, f"{what}-regret", index, text] += 1


def _until(trials: Sequence[Trial], history: History, own: tuple[Trial, Simulation]) -> tuple[int, int]:
    """Of trials with ascending periods, how many delete the group, and how many of these are regretted.

    A group that one period does not delete is not deleted with a longer one, and the same holds for regrets. So not all
    trials need be run.
    """
    results = {trials.index(own[0]): own[1]} if trials else {}

    def result(index: int) -> Simulation:
        if index not in results:
            results[index] = trials[index].simulate(history)
        return results[index]

    deleted = _first_without(len(trials), results, lambda index: bool(result(index).removed))
    return deleted, _first_without(deleted, results, lambda index: any(one.back for one in result(index).removed))


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
    """The counts of all workers. counts: (policy, what) -> (step, text) -> number."""

    counts: Mapping[tuple[int, str], Mapping[tuple[int, str | None], int]]
    regrets: Mapping[int, Sequence[Row]]
    verdicts: Mapping[int, Mapping[str, str]]

    @classmethod
    def of(cls, rows: pa.Table) -> Counted:
        counts: dict[tuple[int, str], Counter[tuple[int, str | None]]] = defaultdict(Counter)
        regrets: dict[int, list[Row]] = defaultdict(list)
        verdicts: dict[int, dict[str, str]] = defaultdict(dict)
        for row in map(Row._make, zip(*(column.to_pylist() for column in rows.columns), strict=True)):
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
