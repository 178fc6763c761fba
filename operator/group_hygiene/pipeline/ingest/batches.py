"""One run of the ingest: writes the new records of the offsets log into the bronze tables, exactly once.

Each batch has some millions of records: Spark's workers read partitions of the log into files (`fetch`), and say how
far they came; if each partition still has the leader epoch of the start, the driver adds the files to each table in one
version. `ingested` comes last, and is the only checkpoint: rows of a later batch are leftovers of a run that was
killed, and the next run removes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from group_hygiene.errors import PipelineError
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.leader_epochs import epoch_ends
from group_hygiene.kafka.log_bounds import LogBounds, read_log_bounds
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.pipeline import store
from group_hygiene.pipeline.ingest.fetch import Done, Range, Target, read_and_write
from group_hygiene.pipeline.ingest.progress import (
    Progress,
    cut_off,
    plan,
    read_progress,
    refuse_incomplete,
    refuse_older,
    refuse_orphans,
    write_progress,
)
from group_hygiene.pipeline.tables import COVERAGE, INGESTED, RECORDS

Report = Callable[[str], None]

# Offsets of a task, and the least and most tasks; more if Spark has many cores by now. A task connects to the brokers,
# and writes a file for each table, and compaction may have left few records.
_TASK_OFFSETS, _LEAST_TASKS, _MOST_TASKS = 1_000_000, 2, 16
# Records after which a task ends, wherever it is: the rest follows in the next batch. A run that is killed loses one
# batch, and each costs a second.
_RECORDS = 4_000_000
# Larger than the number of any batch.
_NO_BATCH = (1 << 63) - 1


def ingest(
    spark: SparkSession,
    client: Client,
    warehouse: str,
    report: Report,
    start_over: bool = False,
    hosts: bool = True,
) -> Counter[str]:
    """Read the log to its current end. Raises PipelineError unless all of it can be read, and was.

    Returns the number of records that were written into each table, and as "aborted" those of aborted transactions.

    start_over: see progress.plan. report: gets a line for each step. hosts: see fetch.Target.
    """
    return _Ingest(spark, client, warehouse, report, hosts).run(start_over)


def ranges_of(positions: Mapping[int, int], ends: Mapping[int, int]) -> list[Range]:
    """What is left of each partition, in their order; none: all was read."""
    return [Range(each, positions[each], end) for each, end in sorted(ends.items()) if positions[each] < end]


def divided(ranges: Sequence[Range], number: int) -> list[list[Range]]:
    """At most so many tasks, with about as many offsets each. A partition is in one of them.

    A task has successive partitions: its files then have no others between them.
    """
    total, at = _offsets(ranges), 0
    tasks: list[list[Range]] = [[] for _ in range(number)]
    for each in ranges:
        size = each.end - each.start
        tasks[(2 * at + size) * number // (2 * total)].append(each)
        at += size
    return [task for task in tasks if task]


class _Ingest:
    def __init__(self, spark: SparkSession, client: Client, warehouse: str, report: Report, hosts: bool) -> None:
        self._spark = spark
        self._hosts = hosts
        self._client = client
        self._warehouse = warehouse.rstrip("/")
        self._report = report
        self._written = Counter[str]()

    def run(self, start_over: bool) -> Counter[str]:
        self._version = INGESTED.version(self._warehouse)
        before = read_progress(self._warehouse)
        self._bounds = bounds = self._ask_bounds()
        cut = {} if before is None else cut_off(before, self._ask_epochs(before))
        self._progress = plan(before, bounds, start_over, cut)
        if before is None:
            refuse_orphans(self._warehouse)
        else:
            refuse_incomplete(self._warehouse, before.batch)
            self._refuse_older(before)
        left = sum(max(0, end - self._progress.positions[partition]) for partition, end in bounds.ends.items())
        # An earlier run that still goes on fails at its next write: to each table this run writes right after a version
        # that it has seen, or has written itself.
        self._versions = {table: table.version(self._warehouse) for table in RECORDS}
        if left or self._progress != before:
            # Before any other table: the rows of a first batch need an owner.
            self._write_progress(self._progress)
        if left:
            self._remove_leftovers()
            self._report(f"reading {left:,} offsets")
            self._read()
        # If there was a batch, it has written this already.
        if (seen := self._progress.seen(bounds)) != self._progress:
            self._write_progress(seen)
        return self._written

    def _write_progress(self, progress: Progress) -> None:
        write_progress(self._warehouse, progress, self._version)
        self._progress, self._version = progress, self._version + 1

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

    def _refuse_older(self, before: Progress) -> None:
        if before.positions != self._bounds.ends:
            for row in COVERAGE.rows(self._warehouse)[:1]:
                refuse_older((before.era, before.batch), (row["era"], row["batch"]))

    def _remove_leftovers(self) -> None:
        """Remove rows of batches that `ingested` lacks: of a run that was killed, or that this one overtakes."""
        last = self._progress.batch
        for table, version in self._versions.items():
            files = table.files(self._warehouse, version, "batch")
            if any(file.may_have(last + 1, _NO_BATCH) for file in files):
                self._versions[table] = store.delete(table.path(self._warehouse), f"batch > {last}", version)

    def _read(self) -> None:
        while ranges := ranges_of(self._progress.positions, self._bounds.ends):
            most = max(_MOST_TASKS, 2 * self._spark.sparkContext.defaultParallelism)
            self._read_batch(divided(ranges, min(most, max(_LEAST_TASKS, _offsets(ranges) // _TASK_OFFSETS))))

    def _read_batch(self, tasks: Sequence[Sequence[Range]]) -> None:
        done, before = self._done(tasks), self._progress.positions
        reached = {partition: offset for each in done for partition, offset in each.reached.items()}
        progress = self._progress.advanced(reached).seen(self._bounds)
        if cut := cut_off(progress, self._ask_epochs(progress)):
            place = Partition(OFFSETS_TOPIC, min(cut))
            raise PipelineError(f"{place} changed its leader while it was read: nothing is lost, run this again")
        parts = [part for each in done for part in each.parts]
        for table in RECORDS:
            files = [part.file for part in parts if part.table == table.name]
            # Each batch writes a version of each table, even without rows: a run that reads other offsets as the batch
            # of the same number fails then. The first one creates the tables: if one is missing later, it was lost.
            self._versions[table] = table.change(self._warehouse, files, self._versions[table])
        self._write_progress(progress)
        for part in parts:
            self._written.update({part.table: part.rows, "aborted": part.aborted})
        so_far = sum(self._written[table.name] for table in RECORDS)
        offsets = sum(reached[partition] - before[partition] for partition in reached)
        self._report(f"batch {progress.batch}: offsets {offsets:,}, records so far {so_far:,}")

    def _done(self, tasks: Sequence[Sequence[Range]]) -> list[Done]:
        """Let Spark do these tasks. Raises PipelineError unless each read its partitions to their ends, or enough."""
        places = self._progress.places.items()
        read = {partition: place.read_at for partition, place in places if place.read_at is not None}
        tables = {table.name: table for table in RECORDS}
        batch = self._progress.batch + 1
        target = Target(self._warehouse, tables, self._progress.era, batch, read, self._hosts)
        settings = self._client.settings
        if settings.requests_per_second is not None:
            settings = replace(settings, requests_per_second=max(1, settings.requests_per_second // len(tasks)))
        work = partial(read_and_write, settings=settings, target=target, most=_RECORDS)
        done: list[Done] = self._spark.sparkContext.parallelize(tasks, len(tasks)).mapPartitions(work).collect()
        for ranges, each in zip(tasks, done, strict=True):
            if each.failure is not None:
                raise PipelineError(each.failure)
            for partition, _, end in ranges:
                if not each.crowded and each.reached.get(partition, -1) < end:
                    place = Partition(OFFSETS_TOPIC, partition)
                    raise PipelineError(f"{place} was not read to offset {end}: nothing is lost, run this again")
        return done


def _offsets(ranges: Iterable[Range]) -> int:
    return sum(each.end - each.start for each in ranges)
