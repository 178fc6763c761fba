"""The bronze tables as plain rows, in the columns of testing.faults.offsets_log.Rows."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from group_hygiene.pipeline.store import Table
from group_hygiene.pipeline.tables import COMMITS, COVERAGE, GROUP_STATES, QUARANTINE
from testing.faults.offsets_log import Row, Rows

_PLACE = ("log_partition", "log_offset", "record_ms")
_COMMIT = ("group", "topic", "partition", "committed_offset", "leader_epoch", "metadata", "commit_ms", "aborted")
_STATE = ("kind", "group", "protocol_type", "generation", "member_id", "members", "state_ms", "gone", "clients")


def tables(spark: SparkSession, warehouse: str, era: int = 0) -> Rows:
    """All rows of an era, by where they were read."""

    def rows(table: Table, *columns: str) -> list[Row]:
        frame = table.read(spark, warehouse).where(F.col("era") == era)
        frame = frame.withColumn("record_ms", F.unix_millis("record_time")).select(*_PLACE, *columns)
        plain = [tuple(map(_plain, row)) for row in frame.collect()]
        return sorted(plain, key=lambda row: row[:2])

    return Rows(rows(COMMITS, *_COMMIT), rows(GROUP_STATES, *_STATE), rows(QUARANTINE, "key", "value"))


def _plain(cell: Any) -> Any:
    if isinstance(cell, list):
        return tuple(map(tuple, cell))
    return bytes(cell) if isinstance(cell, bytearray) else cell


def all_rows(spark: SparkSession, warehouse: str, table: Table) -> list[dict[str, Any]]:
    """All of a table, times in UTC."""
    return cast(list[dict[str, Any]], table.read(spark, warehouse).toArrow().to_pylist())


def replace(spark: SparkSession, warehouse: str, table: Table, rows: list[dict[str, Any]]) -> None:
    """These rows instead of those."""
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, table.schema))
    frame.write.format("delta").mode("overwrite").save(table.path(warehouse))


def append(warehouse: str, table: Table, rows: DataFrame) -> None:
    """These rows beside those."""
    rows.write.format("delta").mode("append").option("mergeSchema", "true").save(table.path(warehouse))


def covered(spark: SparkSession, warehouse: str) -> dict[int, int]:
    """Partition of the log -> the offset up to which it was read."""
    return {row.log_partition: row.covered_to for row in COVERAGE.read(spark, warehouse).collect()}


def coverage(spark: SparkSession, warehouse: str) -> list[Any]:
    return COVERAGE.read(spark, warehouse).orderBy("log_partition").collect()
