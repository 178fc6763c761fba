"""One run of the ingest: the new records of the offsets log become rows of all tables, exactly once.

Each batch has some millions of records: Spark's workers read partitions of the log, write and fold them (`task`), and
say how far they came; if each partition still has the leader epoch of the start, the driver adds the files to each
table of records in one version, then those of `activity`. `coverage` comes last, and is the only checkpoint: rows of a
later batch are leftovers of a run that was killed, and the next run removes them, as it restores the version of
`activity` that `coverage` names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from pyspark.sql import SparkSession

from group_hygiene.errors import PipelineError
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.log_bounds import LogBounds, read_log_bounds
from group_hygiene.kafka.offsets import epoch_ends
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.pipeline.ingest import fetch
from group_hygiene.pipeline.ingest.batch import Tables, advanced
from group_hygiene.pipeline.ingest.progress import (
    Progress,
    cut_off,
    plan,
    read_progress,
    refuse_orphans,
    refuse_others,
)
from group_hygiene.pipeline.ingest.task import Range
from group_hygiene.pipeline.store import State
from group_hygiene.pipeline.tables import ACTIVITY, COVERAGE, RECORDS

Report = Callable[[str], None]


class Read(NamedTuple):
    """The result of a run. written: records by table, and as "aborted" those of aborted transactions.

    read_at: when the tables are complete as of; an open transaction holds it back. None = some partition was never read
    to its end.
    """

    written: Counter[str]
    read_at: datetime | None


@dataclass(frozen=True, slots=True)
class Choices:
    """start_over: see progress.plan. hosts: see task.Round.

    history: files of `activity` that are rewritten lose the groups that are gone for longer than this; None = no group.
    """

    start_over: bool = False
    hosts: bool = True
    history: timedelta | None = None


_USUAL = Choices()


def ingest(spark: SparkSession, client: Client, warehouse: str, report: Report, choices: Choices = _USUAL) -> Read:
    """Read the log to its current end. Raises PipelineError unless all of it can be read, and was.

    report: gets a line for each step.
    """
    return _Ingest(spark, client, warehouse, report, choices).run()


def ranges_of(positions: Mapping[int, int], ends: Mapping[int, int]) -> list[Range]:
    """What is left of each partition, in their order; none: all was read."""
    return [Range(each, positions[each], end) for each, end in sorted(ends.items()) if positions[each] < end]


class _Ingest:
    def __init__(self, spark: SparkSession, client: Client, warehouse: str, report: Report, choices: Choices) -> None:
        self._spark, self._client, self._warehouse, self._report = spark, client, warehouse, report
        self._choices = choices
        self._written = Counter[str]()

    def run(self) -> Read:
        version = COVERAGE.version(self._warehouse)
        before, activity = read_progress(self._warehouse) or (None, None)
        lost = None if activity is None else self._why_lost(activity)
        self._bounds = bounds = self._ask_bounds()
        cut = {} if before is None else cut_off(before, self._ask_epochs(before))
        progress = plan(before, bounds, self._choices.start_over, cut, lost)
        if before is None:
            refuse_orphans(self._warehouse)
        else:
            refuse_others(self._warehouse, before.batch)
        # The rows of groups of an earlier log move to the files of their partitions, also without new records.
        moved = before is not None and lost is None and before.era != progress.era
        if activity is None or lost is not None:
            # No reader uses the new table until coverage has its id.
            activity = ACTIVITY.create(self._warehouse, progress.batch)
        self._tables = Tables(self._spark, self._warehouse, activity, version)
        left = sum(end - start for _, start, end in ranges_of(progress.positions, bounds.ends))
        if left or progress != before:
            # An earlier run that still goes on fails at its next write. Before any other table: the rows of a first
            # batch need an owner. The new era begins with its first batch.
            self._tables.save(before if moved and before is not None else progress)
            self._tables.remove_leftovers(progress.batch)
        if left:
            self._report(f"reading {left:,} offsets")
        while moved or ranges_of(progress.positions, bounds.ends):
            progress, moved = self._batch(progress, moved), False
        # If there was a batch, it has written this already.
        if (seen := progress.seen(bounds)) != progress:
            self._tables.save(seen)
        moments = [place.read_at for place in seen.places.values()]
        return Read(self._written, min((each for each in moments if each), default=None) if all(moments) else None)

    def _why_lost(self, activity: State) -> str | None:
        """Why the rows of `activity` that `coverage` names are gone; None = they are there."""
        if ACTIVITY.holds(self._warehouse, activity):
            return None
        return (
            f"the table {ACTIVITY.name} is not the one that {COVERAGE.name} names, or is in an older state: restore "
            "its newest one"
        )

    def _batch(self, before: Progress, moved: bool) -> Progress:
        ranges = ranges_of(before.positions, self._bounds.ends)
        tasks = self._tables.tasks(ranges, self._bounds.ends, moved)
        choices = self._choices
        round = self._tables.round(before, self._bounds.asked_at, moved, choices.hosts, choices.history)
        settings = self._client.settings
        if settings.requests_per_second is not None:
            settings = replace(settings, requests_per_second=max(1, settings.requests_per_second // len(tasks)))
        done = self._tables.work(tasks, round, partial(fetch.read, settings=settings))
        progress = advanced(before, done).seen(self._bounds)
        if cut := cut_off(progress, self._ask_epochs(progress)):
            place = Partition(OFFSETS_TOPIC, min(cut))
            raise PipelineError(f"{place} changed its leader while it was read: nothing is lost, run this again")
        self._tables.add(done)
        self._tables.save(progress)
        for part in (part for each in done for part in each.parts):
            self._written.update({part.table: part.rows, "aborted": part.aborted})
        so_far = sum(self._written[table.name] for table in RECORDS)
        offsets = sum(progress.positions.values()) - sum(before.positions.values())
        self._report(f"batch {progress.batch}: offsets {offsets:,}, records so far {so_far:,}")
        return progress

    def _ask_bounds(self) -> LogBounds:
        bounds = read_log_bounds(self._client, self._deadline())
        if isinstance(bounds, Fault):
            raise PipelineError(f"the log's end can't be read now: {bounds}")
        return bounds

    def _ask_epochs(self, progress: Progress) -> dict[int, int]:
        """By partition, the end offset of the leader epoch in which it was read; without unknown or gone ones."""
        asked = {
            Partition(OFFSETS_TOPIC, partition): place.leader_epoch
            for partition, place in progress.places.items()
            if place.leader_epoch is not None and partition in self._bounds.ends
        }
        ends: dict[int, int] = {}
        for place, answer in epoch_ends(self._client, asked, self._deadline()).items():
            if isinstance(answer, Fault):
                raise PipelineError(f"the leader epochs of {place} can't be read now: {answer}")
            ends[place.partition] = answer
        return ends

    def _deadline(self) -> Deadline:
        return Deadline(self._client.settings.timeout.total_seconds())
