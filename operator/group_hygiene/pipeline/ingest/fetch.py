"""The task of a Spark worker: fetches partitions of the offsets log from their leaders, and writes Parquet files.

It returns the offset up to which each was read, so the driver knows without a further read that all of it is in the
files, whatever gaps compaction and transaction markers left. Then it adds the files to the tables. If it never does, no
table refers to them, and VACUUM removes them. The connection comes in the task itself, in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError

from group_hygiene.errors import HygieneError, PipelineError
from group_hygiene.kafka.bounds import TooMuch
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.partition import PartitionLeader, fetch_raw
from group_hygiene.kafka.record_batches import parse
from group_hygiene.kafka.record_columns import Records
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.pipeline.ingest.decoder import decode_all
from group_hygiene.pipeline.store import FAR_MS, Table
from group_hygiene.pipeline.table_file import Part, TableFile, leave_out_pandas
from group_hygiene.spec.connection import Settings
from group_hygiene.spec.secret import one_line

# Rows of a file.
_FILE_ROWS = 2_000_000
_TIME = pa.timestamp("us", "UTC")


class Range(NamedTuple):
    """Offsets of one partition of the log, without `end`. All of them are before its last stable offset."""

    partition: int
    start: int
    end: int


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


class Done(NamedTuple):
    """The result of a task: by partition, the offset up to which it was read; and the files. failure: why it ended.

    crowded: it has as many records as a task may have, and so may not have read all.
    """

    reached: dict[int, int]
    parts: list[Part]
    failure: str | None = None
    crowded: bool = False


def read_and_write(tasks: Iterator[Sequence[Range]], settings: Settings, target: Target, most: int) -> Iterator[Done]:
    """For mapPartitions. A task stops after the answer with which it has `most` records.

    Failures are results: Spark would pass on the text of an exception only as a traceback.
    """
    leave_out_pandas()
    for ranges in tasks:
        reached: dict[int, int] = {}
        try:
            with closing(connect(settings)) as client:
                files, leaders = Files(target), dict[int, int]()
                for each in ranges:
                    reached[each.partition] = _read(client, each, leaders, files, most)
                yield Done(reached, files.finished(), crowded=files.rows >= most)
        except HygieneError as error:
            yield Done(reached, [], str(error))
        except (OSError, DeltaError) as error:
            yield Done(reached, [], f"the records can't be written into the tables: {one_line(str(error))}")


def _read(client: Client, offsets: Range, leaders: dict[int, int], files: Files, most: int) -> int:
    place, position = Partition(OFFSETS_TOPIC, offsets.partition), offsets.start
    leader = PartitionLeader(client, place, leaders)
    while position < offsets.end and files.rows < most:
        # The limit for the timeout of a scan applies to each request.
        answer = fetch_raw(leader, position, Deadline(client.settings.timeout.total_seconds()))
        if isinstance(answer, Fault):
            raise PipelineError(_explained(place, answer))
        if not answer.data:
            if answer.stable < offsets.end:
                raise PipelineError(f"{place} ends earlier than a moment ago: nothing is lost, run this again")
            # Compaction removed everything up to the last stable offset.
            return offsets.end
        before = position
        try:
            for records in parse(answer):
                position = max(position, records.next)
                files.add(offsets.partition, records.between(before, offsets.end))
        except (ValueError, IndexError, TooMuch) as error:
            raise PipelineError(f"{place} can't be read at offset {position}: {error}") from error
        if position <= before:
            raise PipelineError(f"{place} can't be read: the broker's answer does not reach offset {before}")
    return min(position, offsets.end)


def _explained(place: Partition, fault: Fault) -> str:
    if fault.code == "OFFSET_OUT_OF_RANGE":
        return "the log lost records, or was recreated, while it was read: the next run explains what to do"
    return f"{place} can't be read: {fault}"


class Files:
    """The files of one task: each record becomes a row of one of them. rows: that were added. Raises OSError."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._open: dict[str, TableFile] = {}
        self._parts: list[Part] = []
        self.rows = 0

    def add(self, partition: int, records: Records) -> None:
        """Add records of one partition of the log."""
        target = self._target
        same: dict[str, Any] = {"era": target.era, "batch": target.batch, "log_partition": partition}
        same["written_after"] = target.written_after.get(partition)
        for name, some, decoded in decode_all(records.keys, records.values, target.hosts):
            if not len(some):
                continue
            times, table = records.times[some], target.tables[name]
            columns = {
                **dict.fromkeys(table.schema.names, pa.nulls(len(some))),
                **{name: pa.repeat(value, len(some)) for name, value in same.items()},
                **decoded,
                "record_time": pa.array(np.clip(times, -FAR_MS, FAR_MS) * 1000, _TIME, mask=times == -1),
                "log_offset": records.offsets[some],
                "aborted": records.aborted[some],
            }
            if name not in self._open:
                self._open[name] = TableFile(target.warehouse, table)
            file = self._open[name]
            file.add(pa.RecordBatch.from_pydict(columns, table.schema))
            self.rows += len(some)
            if file.rows >= _FILE_ROWS:
                self._parts.append(self._open.pop(name).finished())

    def finished(self) -> list[Part]:
        self._parts += [file.finished() for file in self._open.values()]
        self._open = {}
        return self._parts
