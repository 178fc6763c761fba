"""The task of a Spark worker: adds new records to the rows of `activity` of groups in some partitions of the log.

Each file of the table has the groups of one shard: of one partition of the log, or of all if the table is small. A task
reads the new records of its shards and all of their rows, and writes new files in place of the old ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import date, datetime
from itertools import chain, islice, pairwise
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from group_hygiene.errors import HygieneError
from group_hygiene.kafka.partitions import partition_of
from group_hygiene.pipeline import store
from group_hygiene.pipeline.activity.fold import Fold
from group_hygiene.pipeline.store import Table
from group_hygiene.pipeline.table_file import TableFile, leave_out_pandas
from group_hygiene.spec.secret import one_line

# Batches that are filtered together, and rows that are added to a file at once.
_BATCHES, _CHUNK = 8, 10_000


class Shard(NamedTuple):
    """The groups whose records are in these partitions of the log: from `low` to `high`."""

    low: int
    high: int


EVERYTHING = Shard(0, (1 << 31) - 1)


class Task(NamedTuple):
    """Successive shards. old: paths of the files with their current rows, and with no others."""

    shards: tuple[Shard, ...]
    old: tuple[str, ...]
    whole: Shard


class Round(NamedTuple):
    """What all tasks do. first, last: batches to add, all of one era. now: see Fold. gone_before: groups that are gone
    since an earlier time get no row any more; None = all get one.

    first_day: see Fold.

    versions: by table, which one to read. table: `activity`. partitions: of the log; None = not known, as it is an
    earlier log. moved: whether groups may be in other partitions than before. run: a name of its own.
    """

    warehouse: str
    table: Table
    cluster_id: str
    era: int
    first: int
    last: int
    now: datetime
    first_day: date
    gone_before: datetime | None
    versions: Mapping[str, int]
    partitions: int | None
    moved: bool
    run: str


class Done(NamedTuple):
    """What a task did. files: in place of `Task.old`, None = it left all as it was. records: that it added.

    failure: why it ended. strays: see `Fold.remove_strays`.
    """

    task: Task
    records: int
    files: list[AddAction] | None
    failure: str | None = None
    strays: datetime | None = None


def plan(files: Mapping[str, Shard], partitions: Iterable[int], split: bool, moved: bool, number: int) -> list[Task]:
    """The tasks of a round, at most so many, which do not touch each other's groups.

    files: by path, the partitions whose groups it may have. split: whether each partition is a shard. moved: whether
    groups may be in other partitions than before: then one task does everything.
    """
    lows = sorted(partitions) if split else [0]
    # An earlier log may have had further partitions.
    wanted = [Shard(low, low) for low in lows[:-1]] + [Shard(lows[-1], EVERYTHING.high)]
    wanted[0] = Shard(EVERYTHING.low, wanted[0].high)
    ranges = sorted([*wanted, *files.values(), *([EVERYTHING] if moved else [])])
    tasks: list[Task] = []
    while ranges:
        low, high = ranges[0]
        while ranges and ranges[0].low <= high:
            high = max(high, ranges.pop(0).high)
        shards = tuple(shard for shard in wanted if low <= shard.low <= high)
        old = tuple(path for path, shard in files.items() if low <= shard.low <= high)
        tasks.append(Task(shards, old, Shard(low, high)))
    count = min(number, len(tasks))
    ends = [index * len(tasks) // count for index in range(count + 1)]
    together = [_together(tasks[first:last]) for first, last in pairwise(ends)]
    # Without a shard, there are only groups of partitions that are no more.
    return [task for task in together if task.shards]


def _together(tasks: Sequence[Task]) -> Task:
    shards, old, wholes = zip(*tasks, strict=True)
    return Task(tuple(chain(*shards)), tuple(chain(*old)), Shard(wholes[0].low, wholes[-1].high))


def work(tasks: Iterator[Task], round: Round) -> Iterator[Done]:
    """For mapPartitions. Failures are results: Spark would pass on the text of an exception only as a traceback."""
    leave_out_pandas()
    for task in tasks:
        try:
            yield _fold(task, round)
        except HygieneError as error:
            yield Done(task, 0, None, str(error))
        except (OSError, DeltaError, pa.ArrowException, duckdb.Error) as error:
            text = one_line(str(error))
            yield Done(task, 0, None, f"the table {round.warehouse}/activity can't be read or written: {text}")


def _fold(task: Task, round: Round) -> Done:
    schema = round.table.schema
    of_task = f"log_partition BETWEEN {task.whole.low} AND {task.whole.high}"
    new = f"{of_task} AND era = {round.era} AND batch BETWEEN {round.first} AND {round.last}"
    with (
        tempfile.TemporaryDirectory() as spill,
        closing(Fold(round.cluster_id, round.era, round.now, round.first_day, spill)) as fold,
    ):
        records = fold.add(_read(round, "commits", new), _read(round, "group_states", new))
        if not records and not round.moved:
            return Done(task, 0, None)
        strays = None if round.partitions is None else fold.remove_strays(round.partitions)
        changed, old, files = fold.groups(), list[pa.Table](), _Files(round, task.shards)
        for rows in _tables(_read(round, "activity", of_task), schema):
            known = pc.is_in(rows.column("group"), value_set=changed)
            old.append(rows.filter(known))
            files.add(rows.filter(pc.invert(known)))
        for rows in fold.rows(pa.concat_tables([schema.empty_table(), *old])):
            files.add(rows)
        return Done(task, records, files.finished(), strays=strays)


def _read(round: Round, table: str, condition: str) -> pa.RecordBatchReader:
    return store.read(f"{round.warehouse}/{table}", round.versions[table], round.run, condition)


def _tables(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    waiting = iter(batches)
    while some := list(islice(waiting, _BATCHES)):
        yield pa.Table.from_batches(some).select(schema.names).cast(schema)


class _Files:
    """New files, one for each shard that has rows."""

    def __init__(self, round: Round, shards: Sequence[Shard]) -> None:
        self._round, self._shards = round, shards
        self._open: dict[Shard, TableFile] = {}

    def add(self, rows: pa.Table) -> None:
        if self._round.gone_before is not None:
            rows = rows.filter(pc.invert(_gone(rows, self._round.gone_before)))
        if self._round.moved and self._round.partitions is not None:
            rows = _moved(rows, self._round.era, self._round.partitions)
        partition = rows.column("log_partition").to_numpy()
        which = np.searchsorted([shard.low for shard in self._shards[1:]], partition, "right")
        numbers = np.unique(which).tolist()
        for number in numbers:
            shard = self._shards[number]
            if shard not in self._open:
                self._open[shard] = TableFile(self._round.warehouse, self._round.table)
            # Most of these are of one shard, as files are.
            own = rows if len(numbers) == 1 else rows.filter(which == number)
            for batch in own.to_batches(max_chunksize=_CHUNK):
                self._open[shard].add(batch)

    def finished(self) -> list[AddAction]:
        return [file.finished().file for file in self._open.values()]


def _gone(rows: pa.Table, before: datetime) -> pa.ChunkedArray:
    """Whether each group ended before that time, and did not commit since. An unknown end is none."""
    ended = pc.fill_null(pc.less(rows.column("tombstoned_at"), before), False)
    silent = pc.fill_null(pc.less(rows.column("last_commit"), before), True)
    return pc.and_(pc.equal(rows.column("state"), "Gone"), pc.and_(ended, silent))


def _moved(rows: pa.Table, era: int, partitions: int) -> pa.Table:
    """The rows of an earlier log with the partition of so many in which their groups' next records will be."""
    groups, eras = rows.column("group").to_pylist(), rows.column("era").to_pylist()
    now = pa.array([partition_of(group, partitions) for group in groups], pa.int32())
    index, found = rows.schema.get_field_index("log_partition"), rows.column("log_partition")
    return rows.set_column(index, rows.field(index), pc.if_else(pa.array([each < era for each in eras]), now, found))
