"""One batch of the ingest, as the driver does it: the tasks of Spark's workers, then a version of each table.

A run writes to each table right after the version that it saw, or wrote itself: one that another run overtook fails at
its next write.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from uuid import uuid4

from pyspark.sql import SparkSession

from group_hygiene.errors import PipelineError
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.model.groups import Partition
from group_hygiene.pipeline import store
from group_hygiene.pipeline.ingest.progress import Progress, write_progress
from group_hygiene.pipeline.ingest.task import EVERYTHING, Done, Range, Round, Shard, Source, Task, plan, together, work
from group_hygiene.pipeline.store import Held, State
from group_hygiene.pipeline.tables import ACTIVITY, RECORDS

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
# Larger than the number of any batch.
_NO_BATCH = (1 << 63) - 1


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
        """Write `coverage`."""
        write_progress(self._warehouse, progress, self.activity, self._coverage)
        self._coverage += 1

    def remove_leftovers(self, batch: int) -> None:
        """Remove what later batches left: of a run that was killed, or that this one overtakes."""
        for table, version in self._versions.items():
            files = table.files(self._warehouse, version, "batch")
            if any(file.may_have(batch + 1, _NO_BATCH) for file in files):
                self._versions[table] = store.delete(table.path(self._warehouse), f"batch > {batch}", version)
        if ACTIVITY.version(self._warehouse) != self.activity.version:
            self.activity = store.restore(ACTIVITY.path(self._warehouse), self.activity)

    def tasks(self, ranges: Sequence[Range], partitions: Iterable[int], moved: bool) -> list[Task]:
        """The tasks of a batch. partitions: of the log. moved: see `plan`."""
        held = ACTIVITY.files(self._warehouse, self.activity.version, "log_partition")
        groups = {each.path: each.rows for each in held}
        offsets, rows = _offsets(ranges), sum(groups.values())
        split = len(held) > 1 or offsets + rows > _SMALL
        tasks = plan(ranges, {each.path: _shard(each) for each in held}, partitions, split, moved)
        sizes = [1 + _offsets(task.ranges) + sum(groups[path] for path in task.old) for task in tasks]
        # Each core has as many.
        cores = self._spark.sparkContext.defaultParallelism
        number = math.ceil((offsets / _TASK_OFFSETS + rows / _TASK_GROUPS) / cores) * cores
        most = max(_MOST_TASKS, 2 * cores, rows // _TASK_GROUPS)
        return together(tasks, sizes, min(most, max(_LEAST_TASKS, number)))

    def round(
        self,
        progress: Progress,
        now: datetime,
        moved: bool = False,
        hosts: bool = True,
        history: timedelta | None = None,
    ) -> Round:
        """What the tasks of the batch after this progress do. now, moved, hosts: see Round. history: see `ingest`."""
        return Round(
            warehouse=self._warehouse,
            records={table.name: table for table in RECORDS},
            activity=ACTIVITY,
            version=self.activity.version,
            cluster_id=progress.cluster_id,
            era=progress.era,
            batch=progress.batch + 1,
            written_after={each: place.read_at for each, place in progress.places.items() if place.read_at is not None},
            partitions=len(progress.places),
            moved=moved,
            now=now,
            first_day=(now - _COUNTED).date(),
            gone_before=None if history is None else now - history,
            hosts=hosts,
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
    """The progress after a batch."""
    reached = {partition: offset for each in done for partition, offset in each.reached.items()}
    unread = {partition: time for each in done for partition, time in each.unread.items()}
    strays = [each.strays for each in done if each.strays is not None]
    if strays:
        unread = {each: max(unread.get(each, strays[0]), *strays) for each in progress.places}
    return progress.advanced(reached, unread)


def _shard(file: Held) -> Shard:
    return EVERYTHING if None in (file.least, file.most) else Shard(file.least, file.most)


def _offsets(ranges: Iterable[Range]) -> int:
    return sum(each.end - each.start for each in ranges)
