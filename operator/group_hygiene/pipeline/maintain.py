"""Maintains the tables: drops old rows, compacts small files, removes files of old versions.

Of commits that are not new any more, the first and the last of each day stay: enough to find every time of a day or
longer in which a group was unused. Never drops a bronze row that is not in `activity` yet, nor a file of a version that
`coverage` may still name.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from delta import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from group_hygiene.pipeline import store
from group_hygiene.pipeline.store import Table
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, COVERAGE, PRUNED, RECORDS, THINNED

# A property of `coverage`: time of the last maintenance, in seconds since 1970.
_MAINTAINED = "grouphygiene.maintained"
# A table of so many files is not compacted: that would rewrite all of a small one at each run.
_FEW = 8


@dataclass(frozen=True, slots=True)
class Retention:
    """history: of records, by their time in the log, and of groups that are gone (which `ingest` drops).
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
    """Maintain all existing tables. False = not due. If ingest runs at the same time, one of both fails.

    at_most_every: not due if the last maintenance, or the tables' creation, is more recent than this.
    """
    retention, now = retention or Retention(), datetime.now(UTC)
    if not COVERAGE.exists(warehouse):
        return False
    if at_most_every is not None:
        done = COVERAGE.settings(warehouse).get(_MAINTAINED)
        last = store.created(COVERAGE.path(warehouse)) if done is None else datetime.fromtimestamp(int(done), UTC)
        if now - last < at_most_every:
            return False
    # Before anything is written: it refuses tables of a later version.
    covered = COVERAGE.rows(warehouse)[:1]
    store.vacuum(ACTIVITY.path(warehouse), retention.activity, [row["activity_version"] for row in covered])
    # The last batch that is in `activity`.
    taken_in = covered[0]["batch"] if covered else 0
    for table in RECORDS:
        if not table.exists(warehouse):
            continue
        found = DeltaTable.forPath(spark, table.path(warehouse))
        _prune(found, warehouse, table, now - retention.history, taken_in)
        if table is COMMITS:
            _thin(spark, warehouse, now - retention.commits, taken_in)
        if len(table.files(warehouse, table.version(warehouse), "batch")) > _FEW:
            found.optimize().executeCompaction()
    for table in (*RECORDS, COVERAGE):
        store.vacuum(table.path(warehouse), retention.files)
    store.set_property(COVERAGE.path(warehouse), _MAINTAINED, str(int(now.timestamp())))
    return True


def _prune(found: DeltaTable, warehouse: str, table: Table, oldest: datetime, taken_in: int) -> None:
    rows = (F.col("record_time") < oldest) & (F.col("batch") <= taken_in)
    if found.toDF().where(rows).isEmpty():
        return
    before = table.settings(warehouse).get(PRUNED)
    if before is None or datetime.fromisoformat(before) < oldest:
        # First: a backtest must know that the rows are incomplete.
        store.set_property(table.path(warehouse), PRUNED, oldest.isoformat())
    found.delete(rows)


def _thin(spark: SparkSession, warehouse: str, oldest: datetime, taken_in: int) -> None:
    """Drop commits of the days before `oldest`, of each place and day all but the first, the last and the latest.

    Tombstones and commits of aborted transactions count apart. The latest is the one with the latest time of its own.
    """
    end = oldest.replace(hour=0, minute=0, second=0, microsecond=0)
    begin = datetime.fromisoformat(COMMITS.settings(warehouse).get(THINNED, "0001-01-01T00:00:00+00:00"))
    if begin >= end:
        return
    wiped, day = F.col("committed_offset").isNull(), F.to_date("record_time").alias("day")

    def ends(since: datetime, until: datetime, of: Column | str) -> tuple[str, DataFrame]:
        """Which rows are from these days, and of each place and day `of` those that stay, and the number of rows."""
        times = (f"timestamp '{moment.isoformat()}'" for moment in (since, until))
        which = "record_time >= {} AND record_time < {} AND batch <= {}".format(*times, taken_in)
        stay = F.array(F.min_by(of, "log_offset"), F.max_by(of, "log_offset"), F.max_by(of, "commit_ms"))
        # Not by a window: an aggregation shuffles no more than these rows of a task's.
        same = ("era", "log_partition", "group", "topic", "partition", wiped, "aborted", day)
        rows = COMMITS.read(spark, warehouse).where(which).groupBy(*same)
        return which, rows.agg(F.array_distinct(F.array_compact(stay)).alias("ends"), F.count("*").alias("rows"))

    _, found = ends(begin, end, "log_offset")
    days = found.where("rows > size(ends)").select("day").distinct().orderBy("day").toArrow()["day"].to_pylist()
    # One at a time: it bounds what is shuffled, and a run that was killed continues with the next one.
    for begin in (datetime.combine(date, time(), UTC) for date in days):
        which, found = ends(begin, until := begin + timedelta(days=1), F.struct(*COMMITS.schema.names))
        writer = found.select(F.inline("ends")).write.format("delta").mode("overwrite").option("replaceWhere", which)
        writer.save(COMMITS.path(warehouse))
        store.set_property(COMMITS.path(warehouse), THINNED, until.isoformat())
    store.set_property(COMMITS.path(warehouse), THINNED, end.isoformat())
