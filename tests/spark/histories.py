"""Histories of groups as records of the log, and the bronze rows and `ingested` that an ingest makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from group_hygiene.model.evidence import TABLES_VERSION
from group_hygiene.pipeline.store import Table
from group_hygiene.pipeline.tables import COMMITS, GROUP_STATES, INGESTED, RECORDS

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
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
    """The tables that an ingest fills, without one. Every event of a group is a record of one log partition.

    began: when the log was read to its end first.
    """

    def __init__(self, spark: SparkSession, warehouse: str, began: datetime = START) -> None:
        self._spark, self.warehouse, self._began = spark, warehouse, began
        self._offset = 0
        self.batch = 0
        # Of the log.
        self.partitions = 1
        for table in (*RECORDS, INGESTED):
            table.create(warehouse)

    def write(self, groups: Mapping[str, Sequence[Event]], era: int = 0, log_partition: int = 0) -> None:
        """One finished batch: of each group these records, in this order."""
        self.batch += 1
        rows: dict[str, list[tuple[Any, ...]]] = {COMMITS.name: [], GROUP_STATES.name: []}
        for group, events in groups.items():
            for event in events:
                place = {"era": era, "batch": self.batch, "log_partition": log_partition, "log_offset": self._offset}
                table: Table = event["table"]
                rows[table.name].append(tuple((event | place | {"group": group}).get(f) for f in table.schema.names))
                self._offset += 1
        for table in (COMMITS, GROUP_STATES):
            self._append(table, rows[table.name])
        self.finish(era, log_partition)

    def finish(self, era: int = 0, log_partition: int = 0) -> None:
        """What `ingested` says after that batch."""
        read_at = START + timedelta(days=1)
        rest = (self._offset, read_at, None, self._began, TABLES_VERSION, None)
        partitions = range(self.partitions) if self.partitions > 1 else [log_partition]
        rows = [("cluster", "topic", era, self.batch, partition, *rest) for partition in partitions]
        frame = self._spark.createDataFrame(rows, INGESTED.none(self._spark).schema)
        frame.write.format("delta").mode("overwrite").save(INGESTED.path(self.warehouse))

    def _append(self, table: Table, rows: Iterable[tuple[Any, ...]]) -> None:
        frame = self._spark.createDataFrame(list(rows), table.none(self._spark).schema).coalesce(1)
        frame.write.format("delta").mode("append").save(table.path(self.warehouse))
