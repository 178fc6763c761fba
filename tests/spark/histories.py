"""Histories of groups as records of the log, and the tables that an ingest makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from group_hygiene.pipeline.ingest.reading import Choices, Tables, advanced
from group_hygiene.pipeline.ingest.task import Range, Sink
from group_hygiene.pipeline.store import Table
from group_hygiene.pipeline.tables import (
    ACTIVITY,
    COMMITS,
    COVERAGE,
    GROUP_STATES,
    QUARANTINE,
    RECORDS,
    Place,
    Progress,
    read_progress,
)

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
# When the log was read.
READ_AT = START + timedelta(days=1)
Event = dict[str, Any]
HOUR = 3600.0


def moment(second: float) -> datetime:
    return START + timedelta(seconds=second)


def milliseconds(second: float) -> int:
    return round(moment(second).timestamp() * 1000)


def commit(second: float, offset: int | None = 1, partition: int = 0, aborted: bool = False, **more: Any) -> Event:
    """A commit, a tenth of a second before it stands in the log; offset None = a tombstone."""
    value = {"leader_epoch": 0, "metadata": "", "commit_ms": milliseconds(second)} if offset is not None else {}
    committed = {"topic": "orders", "partition": partition, "committed_offset": offset, "aborted": aborted}
    return {"table": COMMITS, "record_time": moment(second + 0.1), **committed, **value} | more


def wiped(second: float, partition: int = 0) -> Event:
    return commit(second, None, partition)


def state(second: float, kind: str, gone: bool = False, **more: Any) -> Event:
    """Any other record."""
    return {"table": GROUP_STATES, "record_time": moment(second), "kind": kind, "gone": gone} | more


def classic(second: float, members: int, protocol_type: str = "consumer") -> Event:
    """A Classic group as it is from then on; it stands in the log a second later."""
    fields = {"members": members, "protocol_type": protocol_type, "generation": 1, "state_ms": milliseconds(second)}
    return state(second + 1, "classic") | fields


def client(name: str, rack: str | None = None) -> dict[str, Any]:
    """A member's client, as a record names it."""
    return {"client_id": name, "host": "10.1.2.3", "instance_id": None, "rack_id": rack}


def epoch(second: float, family: str = "consumer") -> Event:
    return state(second, f"{family}-epoch", generation=1)


def member(second: float, name: str, gone: bool = False, family: str = "consumer") -> Event:
    return state(second, f"{family}-member", gone, member_id=name)


def hours(*times: float) -> list[float]:
    return [time * HOUR for time in times]


LIVES: dict[str, list[Event]] = {
    # In use for a quarter of an hour each, by names of one kind.
    **{
        f"console-consumer-{number}": [classic(second, 1), commit(second + 60), classic(second + 900, 0)]
        for number, second in enumerate(hours(0.5, 1.5, 2.5), 10_000)
    },
    "weekly": [classic(100, 1), classic(900, 0), classic(6.5 * HOUR, 1), classic(7 * HOUR, 0)],
    "steady": [commit(hour * HOUR) for hour in range(24)],
    "expired": [commit(60), wiped(2.5 * HOUR)],
    "late": [commit(23.5 * HOUR)],
}


class Bronze:
    """The tables that the ingest fills, without a log. Every event of a group is a record of one log partition.

    began: when the log was read to its end first. partitions: of the log. history: see reading.Choices.
    """

    def __init__(self, spark: SparkSession, warehouse: str, began: datetime = START) -> None:
        self._spark, self.warehouse, self._began = spark, warehouse, began
        self.partitions = 1
        self.history: timedelta | None = None
        self.offset = 0

    def write(self, groups: Mapping[str, Sequence[Event]], era: int = 0, log_partition: int = 0) -> None:
        """One batch: of each group these records, in this order. They are in all tables then."""
        batch = 1 + (COVERAGE.rows(self.warehouse)[0]["batch"] if COVERAGE.exists(self.warehouse) else 0)
        rows: dict[str, list[dict[str, Any]]] = {COMMITS.name: [], GROUP_STATES.name: [], QUARANTINE.name: []}
        start = self.offset
        for group, events in groups.items():
            for event in events:
                place = {"era": era, "batch": batch, "log_partition": log_partition, "log_offset": self.offset}
                table: Table = event["table"]
                fields = event | place | {"group": group}
                rows[table.name].append({name: fields.get(name) for name in table.schema.names})
                self.offset += 1
        batches = {
            table.name: pa.RecordBatch.from_pylist(rows[table.name], table.schema)
            for table in RECORDS
            if rows[table.name]
        }
        self._add([Range(log_partition, start, self.offset)] if batches else [], batches, era, log_partition)

    def finish(self, era: int = 0, log_partition: int = 0) -> None:
        """A run without new records."""
        self._add([], {}, era, log_partition)

    def _add(self, ranges: list[Range], batches: dict[str, pa.RecordBatch], era: int, log_partition: int) -> None:
        known = read_progress(self.warehouse)
        before = Progress("cluster", "topic", era, 0, {}) if known is None else known[0]
        moved = before.era != era
        places = {} if moved else dict(before.places)
        for partition in range(self.partitions) if self.partitions > 1 else [log_partition]:
            places.setdefault(partition, Place(0))
        progress = replace(before, era=era, places=places)
        tables = Tables(
            self._spark,
            self.warehouse,
            ACTIVITY.create(self.warehouse, 0) if known is None else known[1],
            COVERAGE.version(self.warehouse),
        )
        tables.remove_leftovers(before.batch)
        if ranges or moved:
            progress = add_batch(
                tables, progress, ranges, batches, now=READ_AT, moved=moved, choices=Choices(history=self.history)
            )
        seen = {
            partition: replace(place, read_at=READ_AT, first_read_at=self._began)
            for partition, place in progress.places.items()
        }
        tables.save(replace(progress, places=seen))


def add_batch(
    tables: Tables, progress: Progress, ranges: Sequence[Range], batches: Mapping[str, pa.RecordBatch], **how: Any
) -> Progress:
    """Add these rows, by table, as if they were what the log has in these ranges; `coverage` is not written yet.

    how: see Tables.round.
    """

    # Within this function, as Spark's workers can't import the tests.
    def given(ranges: Sequence[Range], sink: Sink) -> dict[int, int]:
        for name, rows in batches.items():
            sink.add(name, rows)
        return {each.partition: each.end for each in ranges}

    tasks = tables.tasks(ranges, progress.places, how.get("moved", False))
    done = tables.work(tasks, tables.round(progress, **how), given)
    tables.add(done)
    return advanced(progress, done)
