"""Runs in Spark's workers: decodes records, and writes them as Parquet files into the folders of the tables.

The driver adds the files to the tables once it knows that all records are in them. If it never does, no table refers to
them, and VACUUM removes them. Imports only the decoder, numpy, pyarrow and delta-rs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from group_hygiene.kafka.record_columns import Records
from group_hygiene.pipeline.ingest.decoder import decode_all
from group_hygiene.pipeline.store import FAR_MS, Table
from group_hygiene.pipeline.table_file import Part, TableFile

# Rows of a file.
_FILE_ROWS = 2_000_000


class Target(NamedTuple):
    """An existing warehouse, its tables by name, and columns that are the same in all rows.

    written_after: by partition of the log, see tables.RECORDS. hosts: whether to store the hosts of clients.
    """

    warehouse: str
    tables: Mapping[str, Table]
    era: int
    batch: int
    written_after: Mapping[int, datetime]
    hosts: bool = True


class Files:
    """The files of one task: each record becomes a row of one of them. rows: that were added. Raises OSError."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._open: dict[str, TableFile] = {}
        self._parts: list[Part] = []
        self.rows = 0

    def add(self, partition: int, records: Records) -> None:
        """Add records of one partition of the log."""
        for name, rows in self._by_table(partition, records):
            if name not in self._open:
                self._open[name] = TableFile(self._target.warehouse, self._target.tables[name])
            file = self._open[name]
            file.add(rows)
            self.rows += len(rows)
            if file.rows >= _FILE_ROWS:
                self._parts.append(self._open.pop(name).finished())

    def finished(self) -> list[Part]:
        self._parts += [file.finished() for file in self._open.values()]
        self._open = {}
        return self._parts

    def _by_table(self, partition: int, records: Records) -> Iterator[tuple[str, pa.RecordBatch]]:
        target = self._target
        same: dict[str, Any] = {"era": target.era, "batch": target.batch, "log_partition": partition}
        same["written_after"] = target.written_after.get(partition)
        for name, some, decoded in decode_all(records.keys, records.values, target.hosts):
            if not len(some):
                continue
            times, schema = records.times[some], target.tables[name].schema
            of_record = np.clip(times, -FAR_MS, FAR_MS) * 1000
            columns = {
                **decoded,
                "record_time": pa.array(of_record, pa.timestamp("us", "UTC"), mask=times == -1),
                "log_offset": pa.array(records.offsets[some]),
                "aborted": pa.array(records.aborted[some]),
            }
            arrays = [
                _array(columns[field.name], field.type)
                if field.name in columns
                else pa.repeat(pa.scalar(same.get(field.name), field.type), len(some))
                for field in schema
            ]
            yield name, pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(cells: Any, kind: pa.DataType) -> pa.Array:
    return cells.cast(kind) if isinstance(cells, pa.Array) else pa.array(cells, kind)
