"""Writes a Parquet file into the folder of a table, for the driver to add it to the table. Runs in Spark's workers.

If the driver never does, no table refers to the file, and VACUUM removes it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyarrow.fs import PyFileSystem

from group_hygiene.pipeline.store import Table
from group_hygiene.spec.fields import timestamp

# Rows, or their bytes, that are buffered in memory, and then written as a row group.
_ROW_GROUP, _BUFFER_BYTES = 250_000, 64_000_000
# Numbers and times with nearly unique values: a dictionary for them would be built and discarded. Differences of
# successive values are small. Spark's rewrites keep it: see `session`.
NEARLY_UNIQUE = (
    *("log_offset", "record_time", "committed_offset", "commit_ms"),
    *("offsets.list.element.offset", "offsets.list.element.commit_time"),
    *("first_seen", "first_commit", "last_commit", "oldest_commit"),
)


def leave_out_pandas() -> None:
    """Keep Arrow from importing pandas, which takes a third of a second in each worker, and which no task needs.

    Call it before the first array is created. Other imports of pandas are not affected.
    """

    class Finder:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "pandas":
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, finder := Finder())
    pa.array([])
    sys.meta_path.remove(finder)


class Part(NamedTuple):
    """A file that no table includes yet. rows: their number; aborted: of those of aborted transactions."""

    table: str
    file: AddAction
    rows: int
    aborted: int


class TableFile:
    """One file in the folder of a table, with one row or more. rows: that were added.

    waiting_bytes: of those in memory. Raises OSError.
    """

    def __init__(self, warehouse: str, table: Table) -> None:
        self._table, self._name = table, f"part-{uuid4()}.zstd.parquet"
        folder = PyFileSystem(DeltaStorageHandler(warehouse))
        self._sink = folder.open_output_stream(f"{table.name}/{self._name}")
        self._metadata: list[pq.FileMetaData] = []
        paths = _paths(table.schema)
        self._writer = pq.ParquetWriter(
            self._sink,
            table.schema,
            compression="zstd",
            use_dictionary=[path for path in paths if path not in NEARLY_UNIQUE],
            column_encoding={path: "DELTA_BINARY_PACKED" for path in paths if path in NEARLY_UNIQUE},
            # No reader of a table looks at those of the others.
            write_statistics=table.schema.names[: table.indexed],
            metadata_collector=self._metadata,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self.waiting_bytes = self._aborted = self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        self.waiting_bytes += rows.nbytes
        self.rows += len(rows)
        if "aborted" in rows.schema.names:
            self._aborted += rows.column("aborted").true_count
        if self._waiting_rows >= _ROW_GROUP or self.waiting_bytes >= _BUFFER_BYTES:
            self.write()

    def finished(self) -> Part:
        self.write()
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        stats = _stats(self._table.schema.names[: self._table.indexed], *self._metadata)
        file = AddAction(self._name, size, {}, int(time.time() * 1000), True, stats)
        return Part(self._table.name, file, self.rows, self._aborted)

    def write(self) -> None:
        """Write the rows that wait, as a row group."""
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0


@cache
def _paths(schema: pa.Schema) -> tuple[str, ...]:
    """The paths of the columns in Parquet: several if a column is nested."""
    file = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), file)
    columns = pq.read_metadata(pa.BufferReader(file.getvalue())).schema
    return tuple(columns.column(index).path for index in range(len(columns)))


def _stats(names: Sequence[str], metadata: pq.FileMetaData) -> str:
    """Statistics of these first columns, in the JSON of Delta's protocol; readers skip files by them.

    Times are in milliseconds, the precision of a record's time.
    """
    least, most, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for index, name in enumerate(names):
        groups = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        nulls[name] = sum(group.null_count for group in groups)
        known = [group for group in groups if group.num_values]
        # With nothing but nulls, too long texts or a time beyond Python's range, it gets no minimum and maximum.
        if not known or not all(group.has_min_max for group in known):
            continue
        with suppress(ValueError, OverflowError):
            least[name], most[name] = min(group.min for group in known), max(group.max for group in known)
    stats = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(stats, default=partial(timestamp, timespec="milliseconds"))
