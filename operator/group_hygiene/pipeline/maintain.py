"""Maintains the tables: drops old rows, compacts small files, removes files of old versions.

Never drops a bronze row that is not in `activity` yet, nor a file of a version that `coverage` may still name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from delta import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from group_hygiene.pipeline import store
from group_hygiene.pipeline.tables import ACTIVITY, COVERAGE, INGESTED, PRUNED, QUARANTINE, RECORDS, Table, laid_out

# Time of the last maintenance, in seconds since 1970: a property of the table with the fewest writes.
_MAINTAINED = "grouphygiene.maintained"


@dataclass(frozen=True, slots=True)
class Retention:
    """history: of records, by their time in the log, and of groups that are gone. files: of old versions of a table.

    activity: of old versions of `activity`, as each run rewrites a large part of it. Readers use the version that
    `coverage` names, which stays.
    """

    history: timedelta = timedelta(days=90)
    files: timedelta = timedelta(days=7)
    activity: timedelta = timedelta(days=1)


def maintain(
    spark: SparkSession, warehouse: str, retention: Retention | None = None, at_most_every: timedelta | None = None
) -> bool:
    """Maintain all existing tables. False = not due. If `activity.update` runs at the same time, one of both fails.

    at_most_every: not due if the last maintenance, or the tables' creation, is more recent than this.
    """
    retention, now = retention or Retention(), datetime.now(UTC)
    if not INGESTED.exists(warehouse):
        return False
    if not QUARANTINE.exists(warehouse):
        # Refuses tables of a later version before anything is written.
        _taken_in(warehouse)
        # No record is in quarantine yet, but the table also holds the time of the last maintenance.
        QUARANTINE.append(spark, warehouse, QUARANTINE.none(spark))
    if at_most_every is not None and now - _last(spark, warehouse) < at_most_every:
        return False
    oldest = now - retention.history
    taken_in = _taken_in(warehouse)
    for table in RECORDS:
        _prune(spark, warehouse, table, oldest, taken_in)
    _drop(
        spark, warehouse, ACTIVITY, (F.col("state") == "Gone") & (F.greatest("tombstoned_at", "last_commit") < oldest)
    )
    for table in (*RECORDS, INGESTED, COVERAGE):
        if (found := table.open(spark, warehouse)) is not None:
            found.optimize().executeCompaction()
            found.vacuum(retention.files / timedelta(hours=1))
    if laid_out(warehouse):
        covered = [row["activity_version"] for row in COVERAGE.rows(warehouse)[:1]]
        # It would remove deletion vectors.
        store.vacuum(ACTIVITY.path(warehouse), retention.activity, covered)
    _note(spark, warehouse, QUARANTINE, _MAINTAINED, str(int(now.timestamp())))
    return True


def _last(spark: SparkSession, warehouse: str) -> datetime:
    detail = DeltaTable.forPath(spark, QUARANTINE.path(warehouse)).detail().collect()[0]
    done = detail["properties"].get(_MAINTAINED)
    # Spark returns a time in the local time zone, without naming it.
    return detail["createdAt"].astimezone(UTC) if done is None else datetime.fromtimestamp(int(done), UTC)


def _taken_in(warehouse: str) -> int:
    """The last batch that is in `activity`."""
    rows = COVERAGE.rows(warehouse)
    return int(rows[0]["batch"]) if rows else 0


def _prune(spark: SparkSession, warehouse: str, table: Table, oldest: datetime, taken_in: int) -> None:
    rows = (F.col("record_time") < oldest) & (F.col("batch") <= taken_in)
    # The note comes first: a rebuild of `activity`, or a backtest, must know that the rows are incomplete.
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
