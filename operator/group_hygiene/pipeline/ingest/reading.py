"""One run of the ingest: the new records of the offsets log become rows of all tables, exactly once.

Each batch has some millions of records: Spark's workers read partitions of the log, write and fold them (`task`), and
say how far they came; if each partition still has the leader epoch of the start, the driver adds the files to each
table of records in one version, then those of `activity`. `coverage` comes last, and is the only checkpoint: rows of a
later batch are leftovers of a run that was killed, and the next run removes them, as it restores the version of
`activity` that `coverage` names.

A run writes to each table right after the version that it saw, or wrote itself: one that another run overtook fails at
its next write.

`plan`, which is pure, decides where to continue to read the log, also if it changed since the last run. If records were
lost or the log is another one, it stops: a user must decide, since the tables' history has a gap then.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import NamedTuple, NoReturn
from uuid import uuid4

from pyspark.sql import SparkSession

from group_hygiene.errors import Halted, PipelineError
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.offsets import epoch_ends
from group_hygiene.kafka.offsets_topic import LogBounds, read_log_bounds
from group_hygiene.model.groups import NO_LEADER_EPOCH, Fault, Partition
from group_hygiene.pipeline import store
from group_hygiene.pipeline.ingest import fetch
from group_hygiene.pipeline.ingest.fold import Run
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
from group_hygiene.pipeline.tables import ACTIVITY, COVERAGE, RECORDS, Place, Progress, read_progress, write_progress

_HOW_TO_CONTINUE = (
    "To continue with the current log, run this once with --start-over: all history stays, and groups count as active "
    "at that moment, since the lost records are unknown"
)
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


def cut_off(before: Progress, ends: Mapping[int, int]) -> dict[int, int]:
    """Partitions that lost records after they were read -> the end offset of the remaining ones.

    ends: current end offsets of the leader epoch in which each was read (`offsets.epoch_ends`).
    """
    return {p: end for p, end in ends.items() if p in before.places and end < before.places[p].covered_to}


def plan(
    before: Progress | None,
    bounds: LogBounds,
    start_over: bool,
    cut: Mapping[int, int] | None = None,
    lost: str | None = None,
) -> Progress:
    """Where to continue. Raises Halted if the log is another one than before, or lost records before they were read.

    cut: see `cut_off`. lost: why the rows of `activity` are gone; None = they are there. start_over: continue
    nevertheless. A log that was recreated, or gained partitions, or is read again for `activity`, is a new era; one
    that lost its beginning is the same era. Raises PipelineError if there is no log now.
    """
    if before is None:
        places = {partition: Place(start) for partition, start in bounds.starts.items()}
        return Progress(bounds.cluster_id, bounds.topic_id, 0, 0, places)
    if before.cluster_id != bounds.cluster_id:
        raise Halted(
            f"this warehouse holds the history of the Kafka cluster {before.cluster_id}, but this cluster is "
            f"{bounds.cluster_id}: use a separate --warehouse for each cluster"
        )
    if before.places and not bounds.ends:
        # Without partitions, era and batch would be lost, as they are stored with each.
        raise PipelineError(
            f"the topic {OFFSETS_TOPIC} is gone: run this again once a consumer has made the brokers create it"
        )
    if (why := lost or _why_new_era(before, bounds, cut or {})) is not None:
        if not start_over:
            raise Halted(f"{why}. {_HOW_TO_CONTINUE}")
        places = {partition: _again(before, partition, bounds) for partition in bounds.starts}
        return Progress(bounds.cluster_id, bounds.topic_id, before.era + 1, before.batch, places)
    places = dict(before.places)
    starts = bounds.starts.items()
    unread = {partition: start for partition, start in starts if start > places.get(partition, Place(start)).covered_to}
    if unread:
        if not start_over:
            partition, start = min(unread.items())
            others = f" (and {len(unread) - 1} more partitions)" if len(unread) > 1 else ""
            raise Halted(
                f"{OFFSETS_TOPIC}-{partition} was read up to offset {places[partition].covered_to} and begins at "
                f"{start} now{others}: the records between were deleted before they were read. {_HOW_TO_CONTINUE}"
            )
        places |= {partition: _again(before, partition, bounds) for partition in unread}
    return Progress(bounds.cluster_id, bounds.topic_id or before.topic_id, before.era, before.batch, places)


def refuse_orphans(warehouse: str) -> None:
    """Before the first run. Raises Halted if tables have rows nevertheless: these would be written twice."""
    for table in (*RECORDS, ACTIVITY):
        if store.rows(table.path(warehouse), "SELECT 1 FROM t LIMIT 1"):
            _tables_differ(f"the table {COVERAGE.name} is gone or empty, and {table.name} is not")


def refuse_others(warehouse: str, batch: int) -> None:
    """Raises Halted unless all tables of records are those that `coverage` names, before anything is written.

    The first batch created them, and a run that was killed leaves the one after `batch`.
    """
    for table in RECORDS:
        version = table.version(warehouse)
        if batch and version < 0:
            _tables_differ(f"the table {COVERAGE.name} ends with batch {batch}, and {table.name} is gone")
        last = max((file.most or 0 for file in table.files(warehouse, version, "batch")), default=0)
        if last > batch + 1:
            _tables_differ(
                f"the table {table.name} ends with batch {last}, and {COVERAGE.name} with batch {batch}: an older "
                f"state of {COVERAGE.name} replaced the newest one"
            )


def _tables_differ(why: str) -> NoReturn:
    raise Halted(
        f"{why}. Restore its newest state, or read the log again into a new, empty --warehouse (and set it in "
        "spec.activity.uri)"
    )


def _again(before: Progress, partition: int, bounds: LogBounds) -> Place:
    """Continue at the log's current beginning; records before it are unknown."""
    known = before.places.get(partition)
    return Place(bounds.starts[partition], None, bounds.asked_at, known.first_read_at if known else None)


def _why_new_era(before: Progress, bounds: LogBounds, cut: Mapping[int, int]) -> str | None:
    if before.topic_id and bounds.topic_id and before.topic_id != bounds.topic_id:
        ids = f"id {before.topic_id} then, {bounds.topic_id} now"
        return f"the topic {OFFSETS_TOPIC} was recreated since the last run ({ids})"
    for partition, place in sorted(before.places.items()):
        end = bounds.ends.get(partition)
        if end is None or end < place.covered_to:
            now = "is gone" if end is None else f"ends at {end} now"
            return (
                f"{OFFSETS_TOPIC}-{partition} was read up to offset {place.covered_to} and {now}: "
                "the topic was recreated, or a broker lost the end of its log"
            )
    if cut:
        partition, end = min(cut.items())
        place, now = before.places[partition], "is unknown" if end == NO_LEADER_EPOCH else f"ends at offset {end}"
        return (
            f"{OFFSETS_TOPIC}-{partition} was read up to offset {place.covered_to} in leader epoch "
            f"{place.leader_epoch}, which {now} now: the topic was recreated, or an unclean leader election lost the "
            "end of its log"
        )
    if before.places and bounds.starts.keys() - before.places.keys():
        # A group's partition depends on their number: its records continue in another one, with other offsets.
        return (
            f"the topic {OFFSETS_TOPIC} has {len(bounds.starts)} partitions now and had {len(before.places)}: "
            "groups have moved to other partitions"
        )
    return None


class Read(NamedTuple):
    """The result of a run. written: records by table, and as "aborted" those of aborted transactions.

    read_at: when the tables are complete as of; an open transaction holds it back. None = some partition was never read
    to its end.
    """

    written: Counter[str]
    read_at: datetime | None


class Choices(NamedTuple):
    """start_over: see `plan`. hosts: see task.Round.

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
