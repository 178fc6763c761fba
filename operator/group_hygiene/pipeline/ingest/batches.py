"""One run of the ingest: writes the new records of the offsets log into the bronze tables, exactly once.

A run reads the log in rounds. Each is a batch: Spark's workers read pieces of the log into files (`fetch`), and once
every piece was read to its end, and its partition still has the leader epoch of the start, the driver adds the files to
each table in one version. `ingested` comes last, and is the only checkpoint: rows of a later batch are leftovers of a
run that was killed, and the next run removes them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
from group_hygiene.pipeline.ingest.fetch import Done, Piece, Target, read_and_write
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
from group_hygiene.pipeline.table_file import Part
from group_hygiene.pipeline.tables import COVERAGE, INGESTED, RECORDS

Report = Callable[[str], None]

# Pieces of a round, and the least offsets of each: little work is lost with a killed run, but a round costs a second.
_PIECES, _PIECE_OFFSETS = 64, 1_000_000
# Compaction leaves few records of older offsets. After a round with fewer records than this there are more pieces, and
# they grow, but shrink towards the end of their partition: a year of 20 million commits a day takes some 70.
_FEW_RECORDS, _GROWTH = 8_000_000, 8
# A task connects to the brokers and writes a file for each table. A piece takes a request at least.
_LEAST_TASKS, _TASK_RECORDS, _TASK_PIECES = 2, 1_000_000, 32
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


def pieces_of(positions: Mapping[int, int], ends: Mapping[int, int], most: int = _PIECE_OFFSETS) -> list[Piece]:
    """A round's pieces of the offsets from the positions to the ends, in turn of each partition; none: all was read.

    most: offsets of one; more than the least for offsets that hold few records.
    """
    many = _PIECES if most <= _PIECE_OFFSETS else 4 * _PIECES
    ranked: list[tuple[int, Piece]] = []
    for partition, end in ends.items():
        at, rank = positions[partition], 0
        while at < end and rank < many:
            size = max(_PIECE_OFFSETS, min(most, (end - at) // _GROWTH))
            ranked.append((rank, Piece(partition, at, min(at + size, end))))
            at, rank = at + size, rank + 1
    return [piece for _, piece in sorted(ranked)[:many]]


def divided(pieces: Iterable[Piece], number: int) -> list[list[Piece]]:
    """The pieces of each task, which have about as many offsets, and those of few partitions: few files have them."""
    pieces, at = sorted(pieces), 0
    total = _offsets(pieces)
    tasks: list[list[Piece]] = [[] for _ in range(number)]
    for piece in pieces:
        tasks[at * number // total].append(piece)
        at += piece.end - piece.start
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
        most, density = _PIECE_OFFSETS, 1.0
        while pieces := pieces_of(self._progress.positions, self._bounds.ends, most):
            found = self._read_batch(pieces, math.ceil(density * _offsets(pieces)))
            if found is None:
                most, density = _PIECE_OFFSETS, 1.0
                continue
            most = most * _GROWTH if found < _FEW_RECORDS else max(_PIECE_OFFSETS, most // _GROWTH)
            density = found / _offsets(pieces)

    def _read_batch(self, pieces: list[Piece], expected: int) -> int | None:
        """The number of records. None = none were written: the cleaner removed less of these offsets than before."""
        tasks = math.ceil(max(_LEAST_TASKS, expected / _TASK_RECORDS, len(pieces) / _TASK_PIECES))
        parts = self._parts(pieces, min(len(pieces), tasks))
        if parts is None:
            self._report("so many records here that smaller batches follow")
            return None
        ends = {piece.partition: piece.end for piece in pieces}
        progress = self._progress.advanced(ends).seen(self._bounds)
        if cut := cut_off(progress, self._ask_epochs(progress)):
            place = Partition(OFFSETS_TOPIC, min(cut))
            raise PipelineError(f"{place} changed its leader while it was read: nothing is lost, run this again")
        for table in RECORDS:
            files = [part.file for part in parts if part.table == table.name]
            # Each batch writes a version of each table, even without rows: a run that reads other offsets as the batch
            # of the same number fails then. The first one creates the tables: if one is missing later, it was lost.
            self._versions[table] = table.change(self._warehouse, files, self._versions[table])
        self._write_progress(progress)
        for part in parts:
            self._written.update({part.table: part.rows, "aborted": part.aborted})
        so_far = sum(self._written[table.name] for table in RECORDS)
        self._report(f"batch {progress.batch}: offsets {_offsets(pieces):,}, records so far {so_far:,}")
        return sum(part.rows for part in parts)

    def _parts(self, pieces: list[Piece], number: int) -> list[Part] | None:
        """Let Spark read these pieces by so many tasks. Raises PipelineError unless each was read to its end, once.

        None = a task has too many records.
        """
        tasks = divided(pieces, number)
        places = self._progress.places.items()
        read = {partition: place.read_at for partition, place in places if place.read_at is not None}
        tables = {table.name: table for table in RECORDS}
        batch = self._progress.batch + 1
        target = Target(self._warehouse, tables, self._progress.era, batch, read, self._hosts)
        settings = self._client.settings
        if settings.requests_per_second is not None:
            settings = replace(settings, requests_per_second=max(1, settings.requests_per_second // len(tasks)))
        work = partial(read_and_write, settings=settings, target=target)
        done: list[Done] = self._spark.sparkContext.parallelize(tasks, len(tasks)).mapPartitions(work).collect()
        for each in done:
            if each.failure is not None:
                raise PipelineError(each.failure)
        if any(each.crowded for each in done):
            return None
        reached = {piece: offset for each in done for piece, offset in each.reached.items()}
        for piece in pieces:
            if reached.get(piece, piece.start) < piece.end:
                place = Partition(OFFSETS_TOPIC, piece.partition)
                raise PipelineError(f"{place} was not read to offset {piece.end}: nothing is lost, run this again")
        return [part for each in done for part in each.parts]


def _offsets(pieces: Iterable[Piece]) -> int:
    return sum(piece.end - piece.start for piece in pieces)
