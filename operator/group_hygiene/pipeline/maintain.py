"""Maintains the tables: drops old rows, compacts small files, removes files of old versions.

Of commits that are not new any more, the first and the last of each day stay: enough to find every time of a day or
longer in which a group was unused. Never drops a bronze row that is not in `activity` yet, nor a file of a version that
`coverage` may still name.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from group_hygiene.pipeline import store
from group_hygiene.pipeline.store import Table
from group_hygiene.pipeline.tables import (
    ACTIVITY,
    COMMITS,
    COVERAGE,
    INGESTED,
    PRUNED,
    QUARANTINE,
    RECORDS,
)

# Time of the last maintenance, in seconds since 1970: a property of the table with the fewest writes.
_MAINTAINED = "grouphygiene.maintained"
# A property of `commits`: of the days before this time (ISO 8601), only the first and the last commits are there.
_THINNED = "grouphygiene.thinned"


@dataclass(frozen=True, slots=True)
class Retention:
    """history: of records, by their time in the log, and of groups that are gone (which `activity.update` drops).
    files: of old versions of a table.

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
    """Maintain all existing tables. False = not due. If ingest or activity runs at the same time, one of both fails.

    at_most_every: not due if the last maintenance, or the tables' creation, is more recent than this.
    """
    retention, now = retention or Retention(), datetime.now(UTC)
    if not INGESTED.exists(warehouse):
        return False
    if not QUARANTINE.exists(warehouse):
        # Refuses tables of a later version before anything is written.
        COVERAGE.rows(warehouse)
        # It holds the time of the last maintenance.
        QUARANTINE.change(warehouse, [], -1)
    if at_most_every is not None and now - _last(warehouse) < at_most_every:
        return False
    covered = COVERAGE.rows(warehouse)[:1]
    store.vacuum(ACTIVITY.path(warehouse), retention.activity, [row["activity_version"] for row in covered])
    # The last batch that is in `activity`.
    taken_in = covered[0]["batch"] if covered else 0
    for table in RECORDS:
        _prune(spark, warehouse, table, now - retention.history, taken_in)
    _thin(spark, warehouse, now - retention.commits, taken_in)
    for table in (*RECORDS, INGESTED, COVERAGE):
        if (found := table.open(spark, warehouse)) is not None:
            found.optimize().executeCompaction()
            found.vacuum(retention.files / timedelta(hours=1))
    store.set_property(QUARANTINE.path(warehouse), _MAINTAINED, str(int(now.timestamp())))
    return True


def _last(warehouse: str) -> datetime:
    done = QUARANTINE.settings(warehouse).get(_MAINTAINED)
    return store.created(QUARANTINE.path(warehouse)) if done is None else datetime.fromtimestamp(int(done), UTC)


def _prune(spark: SparkSession, warehouse: str, table: Table, oldest: datetime, taken_in: int) -> None:
    rows = (F.col("record_time") < oldest) & (F.col("batch") <= taken_in)
    found = table.open(spark, warehouse)
    if found is None or found.toDF().where(rows).isEmpty():
        return
    before = table.settings(warehouse).get(PRUNED)
    if before is None or datetime.fromisoformat(before) < oldest:
        # First: a rebuild of `activity`, or a backtest, must know that the rows are incomplete.
        store.set_property(table.path(warehouse), PRUNED, oldest.isoformat())
    found.delete(rows)


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
        wiped, day = F.col("committed_offset").isNull(), F.to_date("record_time")
        whole = F.struct(*COMMITS.schema.names)
        # Not by a window: an aggregation shuffles no more than these rows of a task's.
        ends = [F.min_by(whole, "log_offset"), F.max_by(whole, "log_offset"), F.max_by(whole, "commit_ms")]
        same = rows.groupBy("era", "log_partition", "group", "topic", "partition", wiped, "aborted", day)
        stay = same.agg(F.array_distinct(F.array_compact(F.array(*ends))).alias("ends"))
        writer = stay.select(F.inline("ends")).write.format("delta").mode("overwrite").option("replaceWhere", days)
        writer.save(COMMITS.path(warehouse))
    store.set_property(COMMITS.path(warehouse), _THINNED, end.isoformat())
