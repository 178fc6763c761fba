"""Writes a Parquet file into the folder of a table, for the driver to add it to the table. Runs in Spark's workers.

If the driver never does, no table refers to the file, and VACUUM removes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem
from pyarrow.parquet import ParquetWriter

from group_hygiene.pipeline.store import NEARLY_UNIQUE, File, Table
from group_hygiene.spec.durations import timestamp

# Rows, or their bytes, that are buffered in memory, and then written as a row group.
_ROW_GROUP, _BUFFER_BYTES = 250_000, 64_000_000


class Part(NamedTuple):
    """A file that no table includes yet. rows: their number; aborted: of those of aborted transactions."""

    table: str
    file: File
    rows: int
    aborted: int


class TableFile:
    """One file in the folder of a table, created with its first row group. rows: that were added. Raises OSError."""

    def __init__(self, warehouse: str, table: Table) -> None:
        self._warehouse = warehouse
        self._table = table
        self._name = f"part-{uuid4()}.snappy.parquet"
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._sink: Any = None
        self._writer: Any = None
        self._stats = _Stats(table.schema.names[: table.indexed])
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
        return Part(self._table.name, File(self._name, size, self._stats.text(self.rows)), self.rows, self._aborted)

    def _write(self) -> None:
        rows, schema = pa.Table.from_batches(self._waiting), self._table.schema
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        if self._writer is None:
            folder = PyFileSystem(DeltaStorageHandler(self._warehouse))
            self._sink = folder.open_output_stream(f"{self._table.name}/{self._name}")
            leaves = [leaf for field in schema for leaf in _leaves(field, field.name)]
            repetitive = [leaf for leaf in leaves if leaf not in NEARLY_UNIQUE]
            self._writer = ParquetWriter(self._sink, schema, use_dictionary=repetitive, compression="snappy")
        self._writer.write_table(rows)
        self._stats.add(rows)


def _leaves(field: pa.Field, path: str) -> Iterator[str]:
    """The paths of a column in Parquet: several if it is nested."""
    kind = field.type
    inner: list[tuple[str, pa.Field]] = []
    if pa.types.is_map(kind):
        inner = [("key_value.key", kind.key_field), ("key_value.value", kind.item_field)]
    elif pa.types.is_list(kind):
        inner = [("list.element", kind.value_field)]
    elif pa.types.is_struct(kind):
        inner = [(each.name, each) for each in kind]
    else:
        yield path
    for name, each in inner:
        yield from _leaves(each, f"{path}.{name}")


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
