"""One run of the ingest: the new records of the offsets log become rows of all tables, exactly once.

Each batch has some millions of records: Spark's workers read partitions of the log, write and fold them (`task`), and
say how far they came; if each partition still has the leader epoch of the start, the driver adds the files to each
table of records in one version, then those of `activity`. `coverage` comes last, and is the only checkpoint: rows of a
later batch are leftovers of a run that was killed, and the next run removes them, as it restores the version of
`activity` that `coverage` names.

A run writes to each table right after the version that it saw, or wrote itself: one that another run overtook fails at
its next write.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import NamedTuple
from uuid import uuid4

from pyspark.sql import SparkSession

from group_hygiene.errors import PipelineError
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.offsets import epoch_ends
from group_hygiene.kafka.offsets_topic import LogBounds, read_log_bounds
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.pipeline import store
from group_hygiene.pipeline.coverage import Progress, read_progress, write_progress
from group_hygiene.pipeline.ingest import fetch
from group_hygiene.pipeline.ingest.fold import Run
from group_hygiene.pipeline.ingest.progress import cut_off, plan, refuse_orphans, refuse_others
from group_hygiene.pipeline.ingest.task import (
    EVERYTHING,
    Done,
    Range,
    Round,
    Shard,
    Source,
    Task,
    plan_tasks,
    together,
    work,
)
from group_hygiene.pipeline.store import State
from group_hygiene.pipeline.tables import ACTIVITY, COVERAGE, RECORDS

# Offsets of a task, and groups whose rows it may have to write, if that makes so many tasks; more if Spark has many
# cores by now. A task takes a fifth of a second by itself, and compaction may have left few records.
_TASK_OFFSETS, _TASK_GROUPS, _LEAST_TASKS, _MOST_TASKS = 1_000_000, 300_000, 2, 8
# Bytes of records in memory after which a task ends, wherever it is: the rest follows in the next batch. A commit is
# about a hundred; to fold them takes three times as many.
_BYTES = 256_000_000
# Up to so many groups and new offsets, `activity` is one file.
_SMALL = 200_000
# The days of `commits_by_day` before the last one.
_COUNTED = timedelta(days=30)


class Read(NamedTuple):
    """The result of a run. written: records by table, and as "aborted" those of aborted transactions.

    read_at: when the tables are complete as of; an open transaction holds it back. None = some partition was never read
    to its end.
    """

    written: Counter[str]
    read_at: datetime | None


class Choices(NamedTuple):
    """start_over: see progress.plan. hosts: see task.Round.

    history: files of `activity` that are rewritten lose the groups that are gone for longer than this; None = no group.
    """

    start_over: bool = False
    hosts: bool = True
    history: timedelta | None = None


_USUAL = Choices()


def ingest(
    spark: SparkSession, client: Client, warehouse: str, report: Callable[[str], None], choices: Choices = _USUAL
) -> Read:
    """Read the log to its current end. Raises PipelineError unless all of it can be read, and was.

    report: gets a line for each step.
    """
    version = COVERAGE.version(warehouse)
    before, activity = read_progress(warehouse) or (None, None)
    lost = None
    if activity is not None and not ACTIVITY.holds(warehouse, activity):
        lost = (
            f"the table {ACTIVITY.name} is not the one that {COVERAGE.name} names, or is in an older state: restore "
            "its newest one"
        )
    bounds = read_log_bounds(client, _deadline(client))
    if isinstance(bounds, Fault):
        raise PipelineError(f"the log's end can't be read now: {bounds}")
    cut = {} if before is None else _cut_off_now(client, before, bounds)
    progress = plan(before, bounds, choices.start_over, cut, lost)
    if before is None:
        refuse_orphans(warehouse)
    else:
        refuse_others(warehouse, before.batch)
    # The rows of groups of an earlier log move to the files of their partitions, also without new records.
    moved = before is not None and lost is None and before.era != progress.era
    if activity is None or lost is not None:
        # No reader uses the new table until coverage has its id.
        activity = ACTIVITY.create(warehouse, progress.batch)
    tables, written = Tables(spark, warehouse, activity, version), Counter[str]()
    left = _offsets(ranges_of(progress.positions, bounds.ends))
    if left or progress != before:
        # An earlier run that still goes on fails at its next write. Before any other table: the rows of a first
        # batch need an owner. The new era begins with its first batch.
        tables.save(before if moved and before is not None else progress)
        tables.remove_leftovers(progress.batch)
    if left:
        report(f"reading {left:,} offsets")
    while moved or ranges_of(progress.positions, bounds.ends):
        round, last = tables.round(progress, bounds.asked_at, moved, choices), progress
        progress, moved = _read_batch(tables, client, progress, bounds, round, written), False
        so_far = sum(written[table.name] for table in RECORDS)
        offsets = sum(progress.positions.values()) - sum(last.positions.values())
        report(f"batch {progress.batch}: offsets {offsets:,}, records so far {so_far:,}")
    # If there was a batch, it has written this already.
    if (seen := progress.seen(bounds)) != progress:
        tables.save(seen)
    return Read(written, min(seen.read_at.values(), default=None) if len(seen.read_at) == len(seen.places) else None)


def _read_batch(
    tables: Tables, client: Client, before: Progress, bounds: LogBounds, round: Round, written: Counter[str]
) -> Progress:
    """The progress after the batch, which is in all tables; `written` counts its records, too."""
    tasks = tables.tasks(ranges_of(before.positions, bounds.ends), bounds.ends, round.moved)
    settings = client.settings
    if settings.requests_per_second is not None:
        settings = replace(settings, requests_per_second=max(1, settings.requests_per_second // len(tasks)))
    done = tables.work(tasks, round, partial(fetch.read, settings=settings))
    progress = advanced(before, done).seen(bounds)
    if cut := _cut_off_now(client, progress, bounds):
        place = Partition(OFFSETS_TOPIC, min(cut))
        raise PipelineError(f"{place} changed its leader while it was read: nothing is lost, run this again")
    tables.add(done)
    tables.save(progress)
    for part in (part for each in done for part in each.parts):
        written.update({part.table: part.rows, "aborted": part.aborted})
    return progress


def _cut_off_now(client: Client, progress: Progress, bounds: LogBounds) -> dict[int, int]:
    """`cut_off`, by the brokers. Partitions with an unknown leader epoch, or that are gone, are left out."""
    asked = {
        Partition(OFFSETS_TOPIC, partition): place.leader_epoch
        for partition, place in progress.places.items()
        if place.leader_epoch is not None and partition in bounds.ends
    }
    ends: dict[int, int] = {}
    for place, answer in epoch_ends(client, asked, _deadline(client)).items():
        if isinstance(answer, Fault):
            raise PipelineError(f"the leader epochs of {place} can't be read now: {answer}")
        ends[place.partition] = answer
    return cut_off(progress, ends)


def _deadline(client: Client) -> Deadline:
    return Deadline(client.settings.timeout.total_seconds())


class Tables:
    """The tables of a warehouse. activity: the version that has all records which `coverage` counts.

    Raises PipelineError.
    """

    def __init__(self, spark: SparkSession, warehouse: str, activity: State, coverage: int) -> None:
        """coverage: version of that table; -1 = it does not exist."""
        self._spark, self._warehouse = spark, warehouse.rstrip("/")
        self.activity, self._coverage = activity, coverage
        self._versions = {table: table.version(self._warehouse) for table in RECORDS}

    def save(self, progress: Progress) -> None:
        write_progress(self._warehouse, progress, self.activity, self._coverage)
        self._coverage += 1

    def remove_leftovers(self, batch: int) -> None:
        """Remove what later batches left: of a run that was killed, or that this one overtakes."""
        for table, version in self._versions.items():
            files = table.files(self._warehouse, version, "batch")
            if any(file.most is None or file.most > batch for file in files):
                self._versions[table] = store.delete(table.path(self._warehouse), f"batch > {batch}", version)
        if ACTIVITY.version(self._warehouse) != self.activity.version:
            self.activity = store.restore(ACTIVITY.path(self._warehouse), self.activity)

    def tasks(self, ranges: Sequence[Range], partitions: Iterable[int], moved: bool) -> list[Task]:
        """The tasks of a batch. partitions: of the log. moved: see `plan_tasks`."""
        held = ACTIVITY.files(self._warehouse, self.activity.version, "log_partition")
        groups = {each.path: each.rows for each in held}
        offsets, rows = _offsets(ranges), sum(groups.values())
        split = len(held) > 1 or offsets + rows > _SMALL
        shards = {
            each.path: EVERYTHING if None in (each.least, each.most) else Shard(each.least, each.most) for each in held
        }
        tasks = plan_tasks(ranges, shards, partitions, split, moved)
        sizes = [1 + _offsets(task.ranges) + sum(groups[path] for path in task.old) for task in tasks]
        # Each core has as many.
        cores = self._spark.sparkContext.defaultParallelism
        number = math.ceil((offsets / _TASK_OFFSETS + rows / _TASK_GROUPS) / cores) * cores
        most = max(_MOST_TASKS, 2 * cores, rows // _TASK_GROUPS)
        return together(tasks, sizes, min(most, max(_LEAST_TASKS, number)))

    def round(self, progress: Progress, now: datetime, moved: bool = False, choices: Choices = _USUAL) -> Round:
        """What the tasks of the batch after this progress do. now: see Run. moved: see Round."""
        return Round(
            warehouse=self._warehouse,
            records={table.name: table for table in RECORDS},
            activity=ACTIVITY,
            version=self.activity.version,
            log=Run(progress.cluster_id, progress.era, len(progress.places), now, (now - _COUNTED).date()),
            batch=progress.batch + 1,
            written_after=progress.read_at,
            moved=moved,
            gone_before=None if choices.history is None else now - choices.history,
            hosts=choices.hosts,
            most=_BYTES,
            run=uuid4().hex,
        )

    def work(self, tasks: Sequence[Task], round: Round, source: Source) -> list[Done]:
        """Let Spark do these tasks. Raises PipelineError unless each read its partitions to their ends, or enough."""
        spread = self._spark.sparkContext.parallelize(tasks, len(tasks))
        done: list[Done] = spread.mapPartitions(partial(work, round=round, source=source)).collect()
        for each in done:
            if each.failure is not None:
                raise PipelineError(each.failure)
            for partition, _, end in each.task.ranges:
                if not each.crowded and each.reached.get(partition, -1) < end:
                    place = Partition(OFFSETS_TOPIC, partition)
                    raise PipelineError(f"{place} was not read to offset {end}: nothing is lost, run this again")
        return done

    def add(self, done: Sequence[Done]) -> None:
        """Put the files of a batch into the tables."""
        for table in RECORDS:
            files = [part.file for part in chain.from_iterable(each.parts for each in done) if part.table == table.name]
            # Each batch writes a version of each table, even without rows: a run that reads other offsets as the batch
            # of the same number fails then. The first one creates the tables: if one is missing later, it was lost.
            self._versions[table] = table.change(self._warehouse, files, self._versions[table])
        changed = [each for each in done if each.files is not None]
        new = [file for each in changed for file in each.files or ()]
        old = [path for each in changed for path in each.task.old]
        batch = self.activity.batch + 1
        version = ACTIVITY.change(self._warehouse, new, self.activity.version, old, batch)
        self.activity = self.activity._replace(version=version, batch=batch)


def advanced(progress: Progress, done: Sequence[Done]) -> Progress:
    reached = {partition: offset for each in done for partition, offset in each.reached.items()}
    unread = {partition: time for each in done for partition, time in each.unread.items()}
    strays = [each.strays for each in done if each.strays is not None]
    if strays:
        unread = {each: max(unread.get(each, strays[0]), *strays) for each in progress.places}
    return progress.advanced(reached, unread)


def ranges_of(positions: Mapping[int, int], ends: Mapping[int, int]) -> list[Range]:
    """What is left of each partition, in their order; none: all was read."""
    return [Range(each, positions[each], end) for each, end in sorted(ends.items()) if positions[each] < end]


def _offsets(ranges: Iterable[Range]) -> int:
    return sum(each.end - each.start for each in ranges)
