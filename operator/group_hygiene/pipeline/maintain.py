"""Maintains the tables: drops old rows, compacts small files, removes files of old versions.

Of commits that are not new any more, the first and the last of each day stay: enough to find every time of a day or
longer in which a group was unused. Never drops a bronze row that is not in `activity` yet, nor a file of a version that
`coverage` may still name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from delta import DeltaTable
from pyspark.sql import Column, SparkSession, Window
from pyspark.sql import functions as F

from group_hygiene.pipeline import store
from group_hygiene.pipeline.tables import (
    ACTIVITY,
    COMMITS,
    COVERAGE,
    INGESTED,
    PRUNED,
    QUARANTINE,
    RECORDS,
    Table,
    laid_out,
)

# Time of the last maintenance, in seconds since 1970: a property of the table with the fewest writes.
_MAINTAINED = "grouphygiene.maintained"
# A property of `commits`: of the days before this time (ISO 8601), only the first and the last commits are there.
_THINNED = "grouphygiene.thinned"


@dataclass(frozen=True, slots=True)
class Retention:
    """history: of records, by their time in the log, and of groups that are gone. files: of old versions of a table.

    commits: of every commit; of older ones, the first and the last of a day are enough.
    activity: of old versions of `activity`, as each run rewrites a large part of it. Readers use the version that
    `coverage` names, which stays.
    """

    history: timedelta = timedelta(days=90)
    commits: timedelta = timedelta(days=14)
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
    _thin(spark, warehouse, now - retention.commits, taken_in)
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


def _thin(spark: SparkSession, warehouse: str, oldest: datetime, taken_in: int) -> None:
    """Drop commits of the days before `oldest`, of each place and day all but the first, the last and the latest.

    Tombstones and commits of aborted transactions count apart. The latest is the one with the latest time of its own.
    """
    if not COMMITS.exists(warehouse):
        return
    end = oldest.replace(hour=0, minute=0, second=0, microsecond=0)
    begin = COMMITS.settings(warehouse).get(_THINNED, "0001-01-01T00:00:00+00:00")
    if begin >= end.isoformat():
        return
    days = f"record_time >= timestamp '{begin}' AND record_time < timestamp '{end.isoformat()}' AND batch <= {taken_in}"
    rows = COMMITS.read(spark, warehouse).where(days)
    if not rows.isEmpty():
        wiped, day, offset = F.col("committed_offset").isNull(), F.to_date("record_time"), F.col("log_offset")
        same = Window.partitionBy("era", "log_partition", "group", "topic", "partition", wiped, "aborted", day)
        ends = {"first": F.min(offset), "last": F.max(offset), "latest": F.max_by(offset, "commit_ms")}
        stay = rows.withColumns({name: found.over(same) for name, found in ends.items()})
        stay = stay.where("log_offset IN (first, last, latest)").select(*COMMITS.schema.names)
        writer = stay.write.format("delta").mode("overwrite").option("replaceWhere", days)
        writer.save(COMMITS.path(warehouse))
    _note(spark, warehouse, COMMITS, _THINNED, end.isoformat())


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
