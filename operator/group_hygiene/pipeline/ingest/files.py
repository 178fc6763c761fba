"""Runs in Spark's workers: decodes records, and writes them as Parquet files, one for each table.

The driver adds the files to the tables once it knows that all records are in them. If it never does, no table refers to
them, and VACUUM removes them.

Only this Python code processes records. It imports only the decoder, numpy, pyarrow and delta-rs' file system.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem
from pyarrow.parquet import ParquetWriter

from group_hygiene.pipeline.ingest.decoder import decode_all
from group_hygiene.pipeline.shape import NEARLY_UNIQUE, Shape
from group_hygiene.spec.durations import timestamp

# The result of a task: a row for each file and partition of the log. stats: JSON of Delta's log.
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
# Rows of a table that are buffered in memory, and then written as a row group.
_ROW_GROUP = 250_000


class Target(NamedTuple):
    """An existing warehouse, its tables by name, and columns that are the same in all rows.

    aborted: whether the records are of aborted transactions. written_after: by partition of the log, see
    tables.RECORDS. hosts: whether to store the hosts of clients.
    """

    warehouse: str
    tables: Mapping[str, Shape]
    era: int
    batch: int
    aborted: bool
    written_after: Mapping[int, datetime]
    hosts: bool = True


def write_decoded(batches: Iterable[pa.RecordBatch], target: Target) -> Iterator[pa.RecordBatch]:
    """For mapInArrow: from decoder.SOURCE_COLUMNS to WRITTEN. Each record becomes a row of one of the files.

    Raises OSError or DeltaError if a file can't be written.
    """
    files = {name: _File(target.warehouse, name, shape) for name, shape in target.tables.items()}
    for batch in batches:
        for name, rows in _by_table(batch, target):
            files[name].add(rows)
    yield pa.RecordBatch.from_pylist(
        [{"table": name} | row for name, file in files.items() for row in file.finished()], schema=WRITTEN
    )


def _by_table(batch: pa.RecordBatch, target: Target) -> Iterator[tuple[str, pa.RecordBatch]]:
    decoded = decode_all(batch.column("key"), batch.column("value"), target.hosts)
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
    """A file, created with its first rows."""

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
        if sum(map(len, self._waiting)) >= _ROW_GROUP:
            self._write()

    def finished(self) -> Iterator[dict[str, Any]]:
        """Its rows of WRITTEN, one per partition of the log; none if there is no file."""
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
            repetitive = [name for name in schema.names if name not in NEARLY_UNIQUE]
            self._writer = ParquetWriter(self._sink, schema, use_dictionary=repetitive, compression="snappy")
        self._writer.write_table(rows)
        self._stats.add(rows)
        for count in rows.column("log_partition").value_counts().to_pylist():
            self._records[count["values"]] += count["counts"]


class _Stats:
    """Statistics of a file's columns for Delta's log; readers skip files by them."""

    def __init__(self, columns: list[str]) -> None:
        self._ends: dict[str, list[pa.Scalar]] = {name: [] for name in columns}
        self._nulls = Counter[str]()

    def add(self, rows: pa.Table) -> None:
        for name, ends in self._ends.items():
            column = rows.column(name)
            self._nulls[name] += column.null_count
            ends.extend(pc.min_max(column).values())

    def text(self, records: int) -> str:
        """The JSON of Delta's protocol. Times are in milliseconds, the precision of a record's time."""
        stats: dict[str, Any] = {"numRecords": records, "minValues": {}, "maxValues": {}}
        for name, ends in self._ends.items():
            least, most = pc.min_max(pa.array(ends)).values()
            try:
                found = least.as_py(), most.as_py()
            except (OverflowError, ValueError):
                # A time beyond Python's range: the column gets no statistics.
                continue
            if None not in found:
                stats["minValues"][name], stats["maxValues"][name] = found
        return json.dumps(stats | {"nullCount": dict(self._nulls)}, default=partial(timestamp, timespec="milliseconds"))
