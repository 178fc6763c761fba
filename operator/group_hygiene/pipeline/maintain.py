"""Keeps the tables small and quick: drops what is too old, puts small files together, removes files of old versions.

Never drops a bronze row that `activity` lacks, nor a file that `coverage` may still name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from delta import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from group_hygiene.pipeline.tables import ACTIVITY, COVERAGE, INGESTED, PRUNED, QUARANTINE, RECORDS, Table

# When it was done last, in seconds since 1970: a property of the table that is written to least often.
_MAINTAINED = "grouphygiene.maintained"


@dataclass(frozen=True, slots=True)
class Retention:
    """history: of records, by their time in the log, and of groups that are gone. files: of old versions of a table.

    Delta refuses less than a week for files: readers of an old version would lose them while they read.
    """

    history: timedelta = timedelta(days=90)
    files: timedelta = timedelta(days=7)


def maintain(
    spark: SparkSession, warehouse: str, keep: Retention | None = None, at_most_every: timedelta | None = None
) -> bool:
    """All of it, for every table that is there. False = not due. Not while `activity.update` runs: one of both fails.

    at_most_every: not if it was done, or the tables were made, less than that ago.
    """
    keep, now = keep or Retention(), datetime.now(UTC)
    if not INGESTED.exists(warehouse):
        return False
    if not QUARANTINE.exists(warehouse):
        # Tables of a later version are refused before anything is written.
        _taken_in(warehouse)
        # No record was kept aside yet. It also tells when all of this was done.
        QUARANTINE.append(spark, warehouse, QUARANTINE.none(spark))
    if at_most_every is not None and now - _last(spark, warehouse) < at_most_every:
        return False
    oldest = now - keep.history
    taken_in = _taken_in(warehouse)
    for table in RECORDS:
        _prune(spark, warehouse, table, oldest, taken_in)
    _drop(
        spark, warehouse, ACTIVITY, (F.col("state") == "Gone") & (F.greatest("tombstoned_at", "last_commit") < oldest)
    )
    for table in (*RECORDS, INGESTED, ACTIVITY, COVERAGE):
        if (found := table.open(spark, warehouse)) is not None:
            found.optimize().executeCompaction()
            found.vacuum(keep.files / timedelta(hours=1))
    _note(spark, warehouse, QUARANTINE, _MAINTAINED, str(int(now.timestamp())))
    return True


def _last(spark: SparkSession, warehouse: str) -> datetime:
    told = DeltaTable.forPath(spark, QUARANTINE.path(warehouse)).detail().collect()[0]
    done = told["properties"].get(_MAINTAINED)
    # Spark answers with the time zone of this machine, and does not say so.
    return told["createdAt"].astimezone(UTC) if done is None else datetime.fromtimestamp(int(done), UTC)


def _taken_in(warehouse: str) -> int:
    """The last batch that is in `activity`."""
    rows = COVERAGE.rows(warehouse)
    return int(rows[0]["batch"]) if rows else 0


def _prune(spark: SparkSession, warehouse: str, table: Table, oldest: datetime, taken_in: int) -> None:
    rows = (F.col("record_time") < oldest) & (F.col("batch") <= taken_in)
    # Before: who makes `activity` anew from what is left, or looks back, must not take that for all there was.
    _drop(spark, warehouse, table, rows, lambda: _note(spark, warehouse, table, PRUNED, oldest.isoformat()))


def _drop(
    spark: SparkSession, warehouse: str, table: Table, rows: Column, first: Callable[[], None] = lambda: None
) -> None:
    found = table.open(spark, warehouse)
    if found is None or found.toDF().where(rows).isEmpty():
        return
    first()
    found.delete(rows)


def _note(spark: SparkSession, warehouse: str, table: Table, name: str, value: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{table.path(warehouse)}` SET TBLPROPERTIES ('{name}' = '{value}')")
