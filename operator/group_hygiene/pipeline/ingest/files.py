"""Runs in Spark's workers: decodes records, and writes them as Parquet files into the folders of the tables.

The driver adds the files to the tables once it knows that all records are in them. If it never does, no table refers to
them, and VACUUM removes them. Imports only the decoder, numpy, pyarrow and delta-rs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem
from pyarrow.parquet import ParquetWriter

from group_hygiene.kafka.record_columns import Records
from group_hygiene.pipeline.ingest.decoder import decode_all
from group_hygiene.pipeline.shape import NEARLY_UNIQUE, Shape
from group_hygiene.pipeline.store import File
from group_hygiene.spec.durations import timestamp

# Rows of a table, or their bytes, that are buffered in memory, and then written as a row group; and rows of a file.
_ROW_GROUP, _BUFFER_BYTES, _FILE_ROWS = 250_000, 64_000_000, 2_000_000
# The largest time in milliseconds that fits into a table's microseconds.
_LATEST = (1 << 63) // 1000 - 1


class Target(NamedTuple):
    """An existing warehouse, its tables by name, and columns that are the same in all rows.

    written_after: by partition of the log, see tables.RECORDS. hosts: whether to store the hosts of clients.
    """

    warehouse: str
    tables: Mapping[str, Shape]
    era: int
    batch: int
    written_after: Mapping[int, datetime]
    hosts: bool = True


class Part(NamedTuple):
    """A file that no table includes yet. rows: their number; aborted: of those of aborted transactions."""

    table: str
    file: File
    rows: int
    aborted: int


class Files:
    """The files of one task: each record becomes a row of one of them. Raises OSError."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._open: dict[str, _File] = {}
        self._parts: list[Part] = []

    def add(self, partition: int, records: Records) -> None:
        """Add records of one partition of the log."""
        for name, rows in self._by_table(partition, records):
            file = self._open.setdefault(name, _File(self._target.warehouse, name, self._target.tables[name]))
            file.add(rows)
            if file.rows >= _FILE_ROWS:
                self._parts.append(self._open.pop(name).finished())

    def finished(self) -> list[Part]:
        self._parts += [file.finished() for file in self._open.values()]
        self._open = {}
        return self._parts

    def _by_table(self, partition: int, records: Records) -> Iterator[tuple[str, pa.RecordBatch]]:
        decoded = decode_all(records.keys, records.values, self._target.hosts)
        none = records.times == -1
        times = pa.array(np.clip(records.times, -_LATEST, _LATEST) * 1000, pa.timestamp("us", "UTC"), mask=none)
        columns = dict(zip(decoded.schema.names, decoded.columns, strict=True)) | {
            "log_offset": pa.array(records.offsets),
            "record_time": times,
            "aborted": pa.array(records.aborted),
        }
        target = self._target
        same: dict[str, Any] = {"era": target.era, "batch": target.batch, "log_partition": partition}
        same["written_after"] = target.written_after.get(partition)
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


class _File:
    """A file, created with its first row group. rows: that were added."""

    def __init__(self, warehouse: str, table: str, shape: Shape) -> None:
        self._warehouse = warehouse
        self._table = table
        self._name = f"part-{uuid4()}.snappy.parquet"
        self._shape = shape
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._sink: Any = None
        self._writer: Any = None
        self._stats = _Stats(shape.schema.names[: shape.indexed])
        self._aborted = 0
        self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        self._waiting_bytes += rows.nbytes
        self.rows += len(rows)
        if "aborted" in rows.schema.names:
            self._aborted += rows.column("aborted").true_count
        if self._waiting_rows >= _ROW_GROUP or self._waiting_bytes >= _BUFFER_BYTES:
            self._write()

    def finished(self) -> Part:
        if self._waiting:
            self._write()
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        return Part(self._table, File(self._name, size, self._stats.text(self.rows)), self.rows, self._aborted)

    def _write(self) -> None:
        rows, schema = pa.Table.from_batches(self._waiting), self._shape.schema
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        if self._writer is None:
            folder = PyFileSystem(DeltaStorageHandler(self._warehouse))
            self._sink = folder.open_output_stream(f"{self._table}/{self._name}")
            repetitive = [name for name in schema.names if name not in NEARLY_UNIQUE]
            self._writer = ParquetWriter(self._sink, schema, use_dictionary=repetitive, compression="snappy")
        self._writer.write_table(rows)
        self._stats.add(rows)


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
