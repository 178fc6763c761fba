"""The task of a Spark worker: new records of some partitions of the log become files of all tables.

It decodes the keys and values of records into columns. By numpy, many at once: commits, and the records of Classic
groups of few members, in the layouts that brokers have used for nearly all since 2.1. `offsets_log.decode` decodes
every other record by itself, well-formed or not.

It writes each record into a file of its table of records, and folds it into the row of its group (`fold`): each file of
`activity` has the groups of one shard, which is one partition of the log, or all of them while the table is small, and
a task writes new files in place of those of its shards. The driver adds the files to the tables. If it never does, no
table refers to them, and VACUUM removes them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from group_hygiene.errors import HygieneError
from group_hygiene.kafka.offsets_log import CLIENTS_MAX, TEXT_MAX, BrokenRecord, Commit, MemberClient, decode
from group_hygiene.kafka.record_columns import Cursor, Numbers, Records, Slices, Truths
from group_hygiene.pipeline import store
from group_hygiene.pipeline.ingest.fold import Fold, Run, partitions_of
from group_hygiene.pipeline.store import FAR_MS, Part, Table, TableFile, leave_out_pandas
from group_hygiene.spec.fields import one_line

# The names of `tables.RECORDS`.
_COMMITS, _STATES, _QUARANTINE = "commits", "group_states", "quarantine"
# By the name of a column, its values for the records that were decoded, in order.
Columns = Mapping[str, Any]
# Rows of a file of records.
_FILE_ROWS = 2_000_000
# Bytes of rows of `activity` that are folded together, and that wait for their files; rows that are added to a file at
# once.
_OLD_BYTES, _WAITING_BYTES, _CHUNK = 64_000_000, 128_000_000, 10_000
_TIME = pa.timestamp("us", "UTC")
# The partition of a record, and times before which it was not written.
_WHEN = ("log_partition", "record_time", "written_after")


def decode_all(keys: Slices, values: Slices, hosts: bool = True) -> Iterator[tuple[str, Numbers, Columns]]:
    """Decode many records: the name of a table, the numbers of records that belong there, and columns of their rows.

    Nearly all commits come together, then most Classic groups, and then the other records. Columns that are missing
    are null. Raises nothing.

    hosts: False = no row has a client's host, nor the value of a malformed record, which may hold one.
    """
    left = np.arange(len(keys.starts))
    for table, read in ((_COMMITS, read_commits), (_STATES, partial(read_classic_groups, hosts=hosts))):
        if not len(left):
            return
        try:
            taken, columns = read(keys, values)
        except pa.ArrowInvalid:
            # A text is not UTF-8: the other decoder finds which.
            continue
        yield table, left[taken], columns
        left, keys, values = left[~taken], keys.take(~taken), values.take(~taken)
    others: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for number, key, value in zip(left.tolist(), keys.cells(), values.cells(), strict=True):
        table, row = _row(key, value, hosts)
        others.setdefault(table, []).append((number, row))
    for table, found in others.items():
        numbers, rows = zip(*found, strict=True)
        yield table, np.array(numbers), {name: [row.get(name) for row in rows] for name in set(chain(*rows))}


def read_commits(key: Slices, value: Slices) -> tuple[Truths, Columns]:
    """Decode the records with OffsetCommitKey v1 and OffsetCommitValue v3 or v4, or with a tombstone.

    Returns for each record whether it was decoded, and columns of these, equal to the results of `offsets_log.decode`.
    Raises ArrowInvalid if a text is not UTF-8.
    """
    keys = Cursor(key)
    known = keys.number(2) == 1
    group, topic, partition = keys.text(), keys.text(), keys.number(4)
    taken = known & keys.whole()

    # Both begin with a version, an offset of 8 bytes and an epoch of 4. Then follow the metadata's length (v3: two
    # bytes; v4: length + 1 in one byte), the metadata, a time of 8 bytes and, in v4, the number of tagged fields: none,
    # or one (tag 0, 16 bytes: the topic's id).
    given, version = value.valid, value.number(value.starts, 2)
    newer = version == 4
    counted = np.where(newer, value.number(value.starts + 14, 1), value.number(value.starts + 14, 2))
    metadata_at = value.starts + np.where(newer, 15, 16)
    size = counted - newer
    time_at = metadata_at + size
    behind = value.ends - time_at - 8
    untagged = (behind == 1) & (value.number(time_at + 8, 1) == 0)
    tagged = (behind == 19) & (value.number(time_at + 8, 2) == 0x0100) & (value.number(time_at + 10, 1) == 16)
    whole = np.where(newer, (counted < 0x80) & (untagged | tagged), (version == 3) & (behind == 0)) & (size >= 0)
    taken &= whole | ~given
    null = ~given[taken]
    metadata = Slices(value.data, metadata_at, time_at, given)
    return taken, {
        "group": _texts(group.take(taken)),
        "topic": _texts(topic.take(taken)),
        "partition": partition[taken],
        "committed_offset": pa.array(value.number(value.starts + 2, 8)[taken], mask=null),
        "leader_epoch": pa.array(value.number(value.starts + 10, 4)[taken], mask=null),
        "metadata": _texts(metadata.take(taken)),
        "commit_ms": pa.array(value.number(time_at, 8)[taken], mask=null),
    }


def read_classic_groups(key: Slices, value: Slices, hosts: bool) -> tuple[Truths, Columns]:
    """Decode the records with GroupMetadataKey v2 and GroupMetadataValue v3, of at most CLIENTS_MAX members.

    hosts: see `decode_all`. Otherwise as `read_commits`.
    """
    keys, values = Cursor(key), Cursor(value)
    known = (keys.number(2) == 2) & (values.number(2) == 3)
    group = keys.text()
    known &= keys.whole()
    protocol_type, generation = values.text(), values.number(4)
    # The assignor, and the leader of the group.
    others = [values.text(nullable=True), values.text(nullable=True)]
    since, members = values.number(8), values.number(4)
    taken, rows, left = np.zeros(len(known), np.bool_), np.flatnonzero(known), members[known]
    of_members, values = list[tuple[Numbers, dict[str, Slices]]](), values.part(known)
    for number in range(CLIENTS_MAX + 1):
        taken[rows[values.whole() & (left == number)]] = True
        more = left > number
        values, rows, left = values.part(more), rows[more], left[more]
        if not len(rows):
            break
        names = ("member", "instance_id", "client_id", "host")
        texts = {name: values.text(nullable=name == "instance_id") for name in names}
        for name in names[1:]:
            # Longer ones are cut off.
            values.fits &= texts[name].ends - texts[name].starts <= TEXT_MAX
        of_members.append((rows, texts))
        # The time-outs of rebalances and of sessions; the subscription and the assignment.
        values.number(8)
        values.text(width=4)
        values.text(width=4)
    for cells in others:
        _texts(cells.take(taken))
    count = int(taken.sum())
    return taken, {
        "group": _texts(group.take(taken)),
        "kind": pa.repeat("classic", count),
        "gone": pa.repeat(False, count),
        "protocol_type": _texts(protocol_type.take(taken)),
        "generation": generation[taken],
        "members": members[taken],
        "state_ms": pa.array(since[taken], mask=since[taken] == -1),
        "clients": _clients(of_members, taken, members[taken], hosts),
    }


def _clients(
    of_members: Sequence[tuple[Numbers, dict[str, Slices]]], taken: Truths, members: Numbers, hosts: bool
) -> pa.ListArray:
    """of_members: for the first, the second member and so on, the records that have one, and its texts."""
    texts = dict[str, pa.StringArray]()
    for name in of_members[0][1] if of_members else ():
        cells = [each[name].take(taken[rows]) for rows, each in of_members]
        joined = [np.concatenate([getattr(each, side) for each in cells]) for side in ("starts", "ends", "valid")]
        order = np.argsort(joined[0])
        starts, ends, valid = (column[order] for column in joined)
        if name == "host":
            # Java writes an address as `name/address`, mostly without the name.
            starts += cells[0].data[starts] == ord("/")
        texts[name] = _texts(Slices(cells[0].data, starts, ends, valid))
    if not hosts:
        texts.pop("host", None)
    count = int(members.sum())
    fields = [texts[name] if name in texts else pa.nulls(count, pa.string()) for name in MemberClient._fields]
    offsets = pa.array(np.concatenate([[0], np.cumsum(members)]), pa.int32())
    struct = pa.StructArray.from_arrays(fields, MemberClient._fields)
    return pa.ListArray.from_arrays(offsets, struct, mask=pa.array(members == 0))


def _texts(cells: Slices) -> pa.StringArray:
    """These texts, which ascend without overlap. Raises ArrowInvalid unless all are UTF-8."""
    count, filled = len(cells.valid), cells.valid & (cells.ends > cells.starts)
    held = None if cells.valid.all() else pa.array(cells.valid).buffers()[1]
    # Every other one of the pieces between these edges. An empty text is wherever the one before it ends.
    edges = np.zeros(2 * count + 1, np.int64)
    edges[0:-1:2] = np.where(filled, cells.starts, 0)
    edges[1::2] = np.where(filled, cells.ends, 0)
    edges = np.maximum.accumulate(edges).astype(np.int32)
    pieces = pa.StringArray.from_buffers(len(edges) - 1, pa.py_buffer(edges), pa.py_buffer(cells.data))
    _, ends, data = pieces.take(pa.array(np.arange(0, 2 * count, 2))).buffers()
    texts = pa.StringArray.from_buffers(count, ends, data, held)
    texts.validate(full=True)
    return texts


def _row(key: bytes | None, value: bytes | None, hosts: bool) -> tuple[str, dict[str, Any]]:
    try:
        record = decode(key, value)
    except BrokenRecord as broken:
        return _QUARANTINE, {"key": key, "value": value if hosts else None, "error": str(broken)}
    if not isinstance(record, Commit):
        clients = record.clients if hosts else [client._replace(host=None) for client in record.clients]
        return _STATES, record._asdict() | {"clients": clients or None}
    row: dict[str, Any] = {"group": record.group, "topic": record.topic, "partition": record.partition}
    if not record.gone:
        row |= {"committed_offset": record.offset, "leader_epoch": record.leader_epoch}
        row |= {"metadata": record.metadata, "commit_ms": record.commit_ms}
    return _COMMITS, row


class Range(NamedTuple):
    """Offsets of one partition of the log, without `end`. All of them are before its last stable offset."""

    partition: int
    start: int
    end: int


class Shard(NamedTuple):
    """The groups whose records are in these partitions of the log: from `low` to `high`."""

    low: int
    high: int


EVERYTHING = Shard(0, (1 << 31) - 1)


class Task(NamedTuple):
    """What a task reads, and the shards that it writes. old: paths of the files with their current rows, which are in
    `wholes`, and no other file's.
    """

    ranges: tuple[Range, ...]
    shards: tuple[Shard, ...]
    old: tuple[str, ...]
    wholes: tuple[Shard, ...]


class Round(NamedTuple):
    """What all tasks of a batch do. records: the tables of records by name. written_after: by partition of the log, see
    tables.COMMITS.

    version: of the table `activity`. moved: whether groups may be in other partitions than before. gone_before: groups
    that are gone since an earlier time get no row any more; None = all get one. hosts: whether to store the hosts of
    clients. most: bytes of records after which a task ends. run: a name of its own.
    """

    warehouse: str
    records: Mapping[str, Table]
    activity: Table
    version: int
    log: Run
    batch: int
    written_after: Mapping[int, datetime]
    moved: bool
    gone_before: datetime | None
    hosts: bool
    most: int
    run: str


class Done(NamedTuple):
    """What a task did. reached: by partition, the offset up to which it was read. parts: files of records.

    files: of `activity`, in place of `Task.old`; None = all stays as it was. unread: by partition, when its last record
    was written that can't be decoded. strays: see `Fold`.

    crowded: it has as many bytes as a task may have, and so may not have read all. failure: why it ended.
    """

    task: Task
    reached: Mapping[int, int] = {}
    parts: Sequence[Part] = ()
    files: Sequence[AddAction] | None = None
    unread: Mapping[int, datetime] = {}
    strays: datetime | None = None
    crowded: bool = False
    failure: str | None = None


def plan_tasks(
    ranges: Sequence[Range], files: Mapping[str, Shard], partitions: Iterable[int], split: bool, moved: bool
) -> list[Task]:
    """The smallest tasks that do not touch each other's groups, in the order of partitions.

    files: by path, the partitions whose groups it may have. split: whether each partition is a shard. moved: whether
    groups may be in other partitions than before: then one task does everything. Files of partitions without new
    records stay.
    """
    lows = sorted(partitions) if split else [0]
    # An earlier log may have had further partitions.
    wanted = [Shard(low, low) for low in lows[:-1]] + [Shard(lows[-1], EVERYTHING.high)]
    wanted[0] = Shard(EVERYTHING.low, wanted[0].high)
    bounds = sorted([*wanted, *files.values(), *([EVERYTHING] if moved else [])])
    tasks: list[Task] = []
    while bounds:
        low, high = bounds[0]
        while bounds and bounds[0].low <= high:
            high = max(high, bounds.pop(0).high)
        own = tuple(each for each in ranges if low <= each.partition <= high)
        shards = tuple(shard for shard in wanted if low <= shard.low <= high)
        old = tuple(path for path, shard in files.items() if low <= shard.low <= high)
        if own or moved:
            tasks.append(Task(own, shards, old, (Shard(low, high),)))
    return tasks


def together(tasks: Sequence[Task], sizes: Sequence[int], number: int) -> list[Task]:
    """At most so many tasks, each of successive ones, with about the same sum of sizes."""
    total, at = sum(sizes), 0
    found: list[list[Task]] = [[] for _ in range(number)]
    for task, size in zip(tasks, sizes, strict=True):
        found[(2 * at + size) * number // (2 * total)].append(task)
        at += size
    return [Task(*(tuple(chain(*each)) for each in zip(*some, strict=True))) for some in found if some]


class Sink:
    """The records of one task: each becomes a row of a file, and those of groups stay in memory until they are folded.

    folded: these, by table. unread: see Done. Raises OSError.
    """

    def __init__(self, round: Round) -> None:
        self._round = round
        self._open: dict[str, TableFile] = {}
        self._parts: list[Part] = []
        self._bytes = 0
        self.folded: dict[str, list[pa.RecordBatch]] = {_COMMITS: [], _STATES: []}
        self.unread: dict[int, datetime] = {}

    @property
    def full(self) -> bool:
        return self._bytes >= self._round.most

    def add_records(self, partition: int, records: Records) -> None:
        round = self._round
        same: dict[str, Any] = {"era": round.log.era, "batch": round.batch, "log_partition": partition}
        same["written_after"] = round.written_after.get(partition)
        for name, some, decoded in decode_all(records.keys, records.values, round.hosts):
            if not len(some):
                continue
            times, schema = records.times[some], round.records[name].schema
            columns = {
                **dict.fromkeys(schema.names, pa.nulls(len(some))),
                **{name: pa.repeat(value, len(some)) for name, value in same.items()},
                **decoded,
                "record_time": pa.array(np.clip(times, -FAR_MS, FAR_MS) * 1000, _TIME, mask=times == -1),
                "log_offset": records.offsets[some],
                "aborted": records.aborted[some],
            }
            self.add(name, pa.RecordBatch.from_pydict(columns, schema))

    def add(self, name: str, rows: pa.RecordBatch) -> None:
        if name not in self._open:
            self._open[name] = TableFile(self._round.warehouse, self._round.records[name])
        file = self._open[name]
        file.add(rows)
        if file.rows >= _FILE_ROWS:
            self._parts.append(self._open.pop(name).finished())
        if name in self.folded:
            self.keep(name, rows)
            return
        self._bytes += rows.nbytes
        now = self._round.log.now
        for partition, at, after in zip(*(rows.column(name).to_pylist() for name in _WHEN), strict=True):
            # Without a time, it may be the newest record. A clock that is ahead must not protect groups for ever.
            self.unread[partition] = max(filter(None, (min(at or now, now), after, self.unread.get(partition))))

    def keep(self, name: str, rows: pa.RecordBatch) -> None:
        """Keep rows of groups, which a table has already."""
        self.folded[name].append(rows)
        self._bytes += rows.nbytes

    def finished(self) -> list[Part]:
        return self._parts + [file.finished() for file in self._open.values()]


# Reads these ranges into a sink until it is full; returns by partition the offset up to which it has all records.
Source = Callable[[Sequence[Range], Sink], Mapping[int, int]]


def work(tasks: Iterator[Task], round: Round, source: Source) -> Iterator[Done]:
    """For mapPartitions. Failures are results: Spark would pass on the text of an exception only as a traceback."""
    leave_out_pandas()
    # Arrow's own one takes and returns the memory of large arrays so often that it costs a sixth of the time.
    pa.set_memory_pool(pa.system_memory_pool())
    for task in tasks:
        try:
            yield _done(task, round, source)
        except HygieneError as error:
            yield Done(task, failure=str(error))
        except duckdb.Error as error:
            yield Done(task, failure=f"the new records can't be combined with their groups: {one_line(str(error))}")
        except (OSError, DeltaError, pa.ArrowException) as error:
            yield Done(
                task, failure=f"the tables at {round.warehouse} can't be read or written: {one_line(str(error))}"
            )


def _done(task: Task, round: Round, source: Source) -> Done:
    sink = Sink(round)
    reached = source(task.ranges, sink) if task.ranges else {}
    done = Done(task, reached, sink.finished(), unread=sink.unread, crowded=sink.full)
    if not any(sink.folded.values()) and not round.moved:
        return done
    commits, states = (
        pa.Table.from_batches(batches, round.records[name].schema) for name, batches in sink.folded.items()
    )
    with tempfile.TemporaryDirectory() as spill, closing(Fold(commits, states, round.log, spill)) as fold:
        return done._replace(files=_folded(task, round, fold), strays=fold.strays)


def _folded(task: Task, round: Round, fold: Fold) -> list[AddAction]:
    schema, changed = round.activity.schema, fold.groups
    waiting, files = [schema.empty_table()], _Files(round, task.shards)
    where = " OR ".join(f"log_partition BETWEEN {whole.low} AND {whole.high}" for whole in task.wholes)
    for rows in _tables(store.read(round.activity.path(round.warehouse), round.version, round.run, where), schema):
        known = pc.is_in(rows.column("group"), value_set=changed)
        waiting.append(rows.filter(known))
        files.add(rows.filter(pc.invert(known)))
        if sum(each.nbytes for each in waiting) > _OLD_BYTES:
            for new in fold.rows(pa.concat_tables(waiting), last=False):
                files.add(new)
            waiting = [schema.empty_table()]
    for new in fold.rows(pa.concat_tables(waiting)):
        files.add(new)
    return files.finished()


def _tables(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Some of these at a time, as many as fit into _OLD_BYTES."""
    some, size = list[pa.RecordBatch](), 0
    for batch in batches:
        some.append(batch)
        size += batch.nbytes
        if size > _OLD_BYTES:
            yield pa.Table.from_batches(some).select(schema.names).cast(schema)
            some, size = [], 0
    if some:
        yield pa.Table.from_batches(some).select(schema.names).cast(schema)


class _Files:
    """New files of `activity`, one for each shard that has rows."""

    def __init__(self, round: Round, shards: Sequence[Shard]) -> None:
        self._round, self._shards = round, shards
        self._open: dict[Shard, TableFile] = {}

    def add(self, rows: pa.Table) -> None:
        if self._round.gone_before is not None:
            rows = rows.filter(pc.invert(_gone(rows, self._round.gone_before)))
        if self._round.moved:
            rows = _moved(rows, self._round.log)
        partition = rows.column("log_partition").to_numpy()
        which = np.searchsorted([shard.low for shard in self._shards[1:]], partition, "right")
        if np.count_nonzero(np.diff(which)) > len(self._shards):
            order = np.argsort(which, kind="stable")
            rows, which = rows.take(order), which[order]
        # Slices: a filter would copy the rows.
        for own in np.split(np.arange(len(which)), np.flatnonzero(np.diff(which)) + 1):
            if len(own):
                shard = self._shards[which[own[0]]]
                if shard not in self._open:
                    self._open[shard] = TableFile(self._round.warehouse, self._round.activity)
                for batch in rows.slice(own[0], len(own)).to_batches(max_chunksize=_CHUNK):
                    self._open[shard].add(batch)
        if sum(file.waiting_bytes for file in self._open.values()) > _WAITING_BYTES:
            for file in self._open.values():
                file.write()

    def finished(self) -> list[AddAction]:
        return [file.finished().file for file in self._open.values()]


def _gone(rows: pa.Table, before: datetime) -> pa.ChunkedArray:
    """Whether each group ended before that time, and did not commit since. An unknown end is none."""
    ended = pc.fill_null(pc.less(rows.column("tombstoned_at"), before), False)
    silent = pc.fill_null(pc.less(rows.column("last_commit"), before), True)
    return pc.and_(pc.equal(rows.column("state"), "Gone"), pc.and_(ended, silent))


def _moved(rows: pa.Table, log: Run) -> pa.Table:
    """The rows of an earlier log with the partition of this one in which their groups' next records will be."""
    now = pa.array(partitions_of(rows.column("group").combine_chunks(), log.partitions), pa.int32())
    index, found = rows.schema.get_field_index("log_partition"), rows.column("log_partition")
    return rows.set_column(index, rows.field(index), pc.if_else(pc.less(rows.column("era"), log.era), now, found))
