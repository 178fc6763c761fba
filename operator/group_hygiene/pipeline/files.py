"""What Spark's workers do with records: decode them, and write them down as Parquet files, one for each table.

No table has those files yet. That is the driver's work, once it knows that all records are in them; until then, and for
good where it never comes to that, they are files that no table names, and VACUUM takes them away.

The only Python that sees records. It imports the decoder, numpy, pyarrow and delta-rs' file system, nothing else.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem
from pyarrow.parquet import ParquetWriter

from group_hygiene.pipeline.decoding import decode_all

# What comes back of a task: a row for each file and partition of the log. stats: as Delta's log has them.
WRITTEN = pa.schema(
    {
        "table": pa.string(),
        "path": pa.string(),
        "size": pa.int64(),
        "stats": pa.string(),
        "log_partition": pa.int32(),
        "records": pa.int64(),
    }
)
# So many rows of a table are held in memory, and then written together: a row group.
_TOGETHER = 250_000
# Columns in which nearly every value is another one: a dictionary of them would be made, and thrown away.
UNLIKE = ("log_offset", "committed_offset")


class Shape(NamedTuple):
    """How the rows of a table look. mark: of the decoded columns, the one that only its rows have; its fields, if any,
    are columns too. indexed: so many of the first columns have minima and maxima in Delta's log.
    """

    schema: pa.Schema
    mark: str
    indexed: int


class Target(NamedTuple):
    """Where to write: a warehouse that is there, and its tables by name. The others are the same in all rows.

    aborted: whether these are records of transactions that were aborted. written_after: by partition of the log, see
    tables.RECORDS.
    """

    warehouse: str
    tables: Mapping[str, Shape]
    era: int
    batch: int
    aborted: bool
    written_after: Mapping[int, datetime]


def write_decoded(batches: Iterable[pa.RecordBatch], target: Target) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: decoding.SOURCE_COLUMNS in, WRITTEN out. Each record is a row of one of the files.

    Raises OSError or DeltaError where they can't be written.
    """
    files = {name: _File(target.warehouse, name, shape) for name, shape in target.tables.items()}
    for batch in batches:
        for name, rows in _by_table(batch, target):
            files[name].add(rows)
    yield pa.RecordBatch.from_pylist(
        [{"table": name} | told for name, file in files.items() for told in file.finished()], schema=WRITTEN
    )


def _by_table(batch: pa.RecordBatch, target: Target) -> Iterator[tuple[str, pa.RecordBatch]]:
    decoded = decode_all(batch.column("key"), batch.column("value"))
    columns = dict(zip(decoded.schema.names, decoded.columns, strict=True)) | {
        "log_partition": batch.column("partition"),
        "log_offset": batch.column("offset"),
        "record_time": batch.column("timestamp"),
        "written_after": _by_partition(batch.column("partition"), target.written_after),
    }
    same = {"era": target.era, "batch": target.batch, "aborted": target.aborted}
    for name, shape in target.tables.items():
        mark = columns[shape.mark]
        taken = mark.is_valid()
        if not (count := taken.true_count):
            continue
        fields = mark.type if pa.types.is_struct(mark.type) else ()
        own = columns | {field.name: mark.field(field.name) for field in fields}
        arrays = [
            pa.repeat(pa.scalar(same[field.name], field.type), count)
            if field.name in same
            else own[field.name].filter(taken).cast(field.type)
            for field in shape.schema
        ]
        yield name, pa.RecordBatch.from_arrays(arrays, schema=shape.schema)


def _by_partition(partitions: pa.Array, moments: Mapping[int, datetime]) -> pa.Array:
    known = pa.array(moments.values(), pa.timestamp("us", "UTC"))
    return known.take(pc.index_in(partitions, value_set=pa.array(moments.keys(), partitions.type)))


class _File:
    """A file, made with its first rows."""

    def __init__(self, warehouse: str, table: str, shape: Shape) -> None:
        self._warehouse = warehouse
        self._table = table
        self._name = f"part-{uuid4()}.snappy.parquet"
        self._shape = shape
        self._waiting: list[pa.RecordBatch] = []
        self._sink: Any = None
        self._writer: Any = None
        self._records = Counter[int]()
        self._stats = _Stats(shape.schema.names[: shape.indexed])

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) >= _TOGETHER:
            self._write()

    def finished(self) -> Iterator[dict[str, Any]]:
        """What it holds, by partition of the log; nothing, if there is none."""
        if self._waiting:
            self._write()
        if self._writer is None:
            return
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        file = {"path": self._name, "size": size, "stats": self._stats.text(self._records.total())}
        for partition, records in self._records.items():
            yield file | {"log_partition": partition, "records": records}

    def _write(self) -> None:
        rows, schema = pa.Table.from_batches(self._waiting), self._shape.schema
        self._waiting = []
        if self._writer is None:
            folder = PyFileSystem(DeltaStorageHandler(self._warehouse))
            self._sink = folder.open_output_stream(f"{self._table}/{self._name}")
            alike = [name for name in schema.names if name not in UNLIKE]
            self._writer = ParquetWriter(self._sink, schema, use_dictionary=alike, compression="snappy")
        self._writer.write_table(rows)
        self._stats.add(rows)
        for count in rows.column("log_partition").value_counts().to_pylist():
            self._records[count["values"]] += count["counts"]


class _Stats:
    """What Delta's log says of a file's columns, so that who looks for other values need not open it."""

    def __init__(self, columns: list[str]) -> None:
        self._ends: dict[str, list[pa.Scalar]] = {name: [] for name in columns}
        self._nulls = Counter[str]()

    def add(self, rows: pa.Table) -> None:
        for name, ends in self._ends.items():
            column = rows.column(name)
            self._nulls[name] += column.null_count
            ends.extend(pc.min_max(column).values())

    def text(self, records: int) -> str:
        """As Delta's protocol has it: times in whole milliseconds, which is what a record's time is."""
        told: dict[str, Any] = {"numRecords": records, "minValues": {}, "maxValues": {}}
        for name, ends in self._ends.items():
            least, most = pc.min_max(pa.array(ends)).values()
            try:
                found = least.as_py(), most.as_py()
            except (OverflowError, ValueError):
                # A time that Python doesn't know: nothing is said of the column.
                continue
            if None not in found:
                told["minValues"][name], told["maxValues"][name] = found
        return json.dumps(told | {"nullCount": dict(self._nulls)}, default=_time)


def _time(moment: Any) -> str:
    text: str = moment.isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
