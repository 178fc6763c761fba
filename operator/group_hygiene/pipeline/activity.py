"""Brings `activity` up to what was ingested, and says so in `coverage`. What records mean is in `folding`.

The cost follows what is new: bronze rows of batches that are not in `activity` yet, and the rows of their groups.
Adding the same records twice changes nothing: each row knows up to where it was read (`read_to`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from delta import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from group_hygiene.errors import PipelineError
from group_hygiene.pipeline.folding import changes, merged
from group_hygiene.pipeline.progress import refuse_older
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, COVERAGE, GROUP_STATES, INGESTED, PRUNED, QUARANTINE, Table

# Records of one MERGE: a group's own are held in memory together.
_ROUND_RECORDS = 5_000_000
# Up to so many, the changes are sent to where the rows are, rather than all rows moved about.
_BROADCAST_RECORDS = 100_000

# Each run adds some files, and who reads the table opens all of them: beyond so many, they are put together.
_FILES = 100
# What a run writes to `activity` bears this mark in Delta's history. Anybody else may have put old rows there.
_MARK = "group-hygiene"
_MARKING = "spark.databricks.delta.commitInfo.userMetadata"
# Without it: what leaves rows as they are or takes some away, as Delta calls it. A group without a row is never idle.
_HARMLESS = {"OPTIMIZE", "DELETE", "VACUUM START", "VACUUM END"}

_Rows = Sequence[dict[str, Any]]
_Moments = Mapping[int, datetime | None]


@dataclass(frozen=True, slots=True)
class Updated:
    """What was taken in. read_at: `activity` is complete as of then; None = the log was never read to its end yet."""

    batches: int
    records: int
    read_at: datetime | None

    def __str__(self) -> str:
        upto = "not complete yet" if self.read_at is None else f"complete as of {self.read_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.records:,} new records, {upto}"


class _Round(NamedTuple):
    """Batches that are taken in together."""

    first: int
    last: int
    records: int


class _Written(NamedTuple):
    """A table as it is now. Another table in the same place has another id."""

    id: str
    version: int


def update(spark: SparkSession, warehouse: str) -> Updated:
    """Take in all that ingest has finished since the last time; `coverage` says so last.

    Raises PipelineError where nothing was ingested yet, Halted where `ingested` is older than what was taken in.
    """
    ingested = _rows(spark, warehouse, INGESTED)
    if not ingested:
        raise PipelineError("nothing was ingested into this warehouse yet: run `group-hygiene pipeline ingest` first")
    coverage = _rows(spark, warehouse, COVERAGE)
    if coverage:
        refuse_older(_batch(ingested[0]), _batch(coverage[0]))
    target = ACTIVITY.create(spark, warehouse)
    written = _written(target)
    read_at = max((row["read_at"] for row in ingested if row["read_at"]), default=None)
    now = read_at or datetime.now(UTC)
    since: _Moments = {row["log_partition"]: row["complete_since"] for row in coverage}
    told = _told(coverage[0]) if coverage else written._replace(version=0)
    if back := _went_back(target, written, told):
        # Until coverage names its id, nobody takes what is in it for all there is.
        target = ACTIVITY.make_anew(spark, warehouse)
        written = _written(target)
    if back or not coverage:
        coverage = []
        if any(_pruned(spark, warehouse, table) for table in (COMMITS, GROUP_STATES, QUARANTINE)):
            since = {row["log_partition"]: now for row in ingested}
    since = _later(since, {row["log_partition"]: row["complete_since"] for row in ingested})
    since = _later(since, _last_unread(spark, warehouse, ingested[0]))
    # Otherwise a run ended between the two tables, or somebody put files together: rows may know more than coverage.
    trusted = back or written.version == told.version
    rounds = _rounds(spark, warehouse, coverage, ingested)
    for part in rounds:
        commits, states = (_between(spark, warehouse, table, part) for table in (COMMITS, GROUP_STATES))
        if not trusted:
            commits, states = (_not_taken_in(rows, target.toDF()) for rows in (commits, states))
        with _marked(spark):
            _take_in(target, changes(commits, states, now), ingested[0]["cluster_id"], part, now)
    if rounds and _detail(target)["numFiles"] > _FILES:
        target.optimize().executeCompaction()
    _cover(spark, warehouse, ingested, since, _written(target) if rounds else written)
    return Updated(sum(part.last - part.first + 1 for part in rounds), sum(part.records for part in rounds), read_at)


def _take_in(target: DeltaTable, found: DataFrame, cluster_id: str, part: _Round, now: datetime) -> None:
    activity = target.toDF()
    empty, few = activity.isEmpty(), part.records <= _BROADCAST_RECORDS
    if few:
        found = found.persist()
        activity = F.broadcast(activity.join(F.broadcast(found.select("group")), "group", "left_semi"))
    rows = merged(found, activity, now).withColumn("cluster_id", F.lit(cluster_id)).select(*ACTIVITY.schema.names)
    if empty:
        rows.write.format("delta").mode("append").save(_detail(target)["location"])
    else:
        merge = target.alias("t").merge((F.broadcast(rows) if few else rows).alias("s"), "t.group = s.group")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    found.unpersist()


def _rounds(spark: SparkSession, warehouse: str, coverage: _Rows, ingested: _Rows) -> list[_Round]:
    """What is to be taken in: batches of one era together, as long as they don't hold too many records."""
    before, last = (coverage[0]["batch"] if coverage else 0), ingested[0]["batch"]
    if last <= before:
        return []
    if last == before + 1:
        known = {row["log_partition"]: row["covered_to"] for row in coverage if row["era"] == ingested[0]["era"]}
        return [_Round(last, last, sum(row["covered_to"] - known.get(row["log_partition"], 0) for row in ingested))]
    commits, states = (
        _between(spark, warehouse, table, _Round(before + 1, last, 0)).groupBy("era", "batch").count()
        for table in (COMMITS, GROUP_STATES)
    )
    totals = commits.unionByName(states).groupBy("era", "batch").agg(F.sum("count").alias("records"))
    rounds: list[_Round] = []
    era = None
    for row in totals.orderBy("batch").collect():
        part = _Round(row["batch"], row["batch"], row["records"])
        if rounds and row["era"] == era and rounds[-1].records + part.records <= _ROUND_RECORDS:
            first = rounds.pop()
            part = _Round(first.first, part.last, first.records + part.records)
        rounds.append(part)
        era = row["era"]
    return rounds


def _went_back(table: DeltaTable, now: _Written, told: _Written) -> bool:
    """It is another table than that of which coverage tells, or an older state of it, or somebody else wrote to it."""
    if now.id != told.id or now.version < told.version:
        return True
    since = table.history(now.version - told.version).collect() if now.version > told.version else []
    known = [row for row in since if row["operation"] in _HARMLESS or row["userMetadata"] == _MARK]
    # Delta forgets its history some time: what can't be seen may have been anything.
    return len(known) < now.version - told.version


@contextmanager
def _marked(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(_MARKING, _MARK)
    try:
        yield
    finally:
        spark.conf.unset(_MARKING)


def _pruned(spark: SparkSession, warehouse: str, table: Table) -> bool:
    return (
        table.exists(spark, warehouse)
        and PRUNED in _detail(DeltaTable.forPath(spark, table.path(warehouse)))["properties"]
    )


def _between(spark: SparkSession, warehouse: str, table: Table, part: _Round) -> DataFrame:
    batch = F.col("batch")
    return table.read(spark, warehouse).where((batch >= part.first) & (batch <= part.last))


def _not_taken_in(rows: DataFrame, activity: DataFrame) -> DataFrame:
    """Those rows that their group's row in `activity` doesn't know yet."""
    known = activity.select("group", F.col("era").alias("known_era"), "read_to")
    later = (F.col("era") > F.col("known_era")) | (
        (F.col("era") == F.col("known_era")) & (F.col("log_offset") >= F.col("read_to"))
    )
    return rows.join(known, "group", "left").where(F.col("read_to").isNull() | later).drop("known_era", "read_to")


def _last_unread(spark: SparkSession, warehouse: str, ingested: dict[str, Any]) -> dict[int, datetime | None]:
    """By log partition, the time of the last record that nobody could read: it may have been of any of its groups."""
    if not QUARANTINE.exists(spark, warehouse):
        return {}
    broken = QUARANTINE.read(spark, warehouse).where(F.col("batch") <= ingested["batch"])
    broken = broken.where(F.col("era") == ingested["era"])
    rows = broken.groupBy("log_partition").agg(F.max("record_time").alias("last")).collect()
    return {row["log_partition"]: _utc(row["last"]) for row in rows}


def _later(one: _Moments, other: _Moments) -> _Moments:
    """By log partition, the later one; None = never."""
    told = {
        partition: [moment for moment in (one.get(partition), other.get(partition)) if moment is not None]
        for partition in one.keys() | other.keys()
    }
    return {partition: max(moments, default=None) for partition, moments in told.items()}


def _cover(spark: SparkSession, warehouse: str, ingested: _Rows, since: _Moments, written: _Written) -> None:
    """Not a copy of the table `ingested` as it is now: that may be further than what was taken in."""
    COVERAGE.create(spark, warehouse)
    rows = []
    for row in ingested:
        whose = {"activity_id": written.id, "activity_version": written.version}
        told = row | whose | {"complete_since": since[row["log_partition"]]}
        rows.append(tuple(told[name] for name in COVERAGE.schema.names))
    frame = spark.createDataFrame(rows, COVERAGE.schema).coalesce(1)
    frame.write.format("delta").mode("overwrite").save(COVERAGE.path(warehouse))


def _batch(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["era"], row["batch"]


def _told(coverage: Mapping[str, Any]) -> _Written:
    return _Written(coverage["activity_id"], coverage["activity_version"])


def _written(table: DeltaTable) -> _Written:
    return _Written(_detail(table)["id"], table.history(1).collect()[0]["version"])


def _detail(table: DeltaTable) -> Row:
    return table.detail().collect()[0]


def _rows(spark: SparkSession, warehouse: str, table: Table) -> _Rows:
    if not table.exists(spark, warehouse):
        return []
    return [
        {name: _utc(value) for name, value in row.asDict().items()} for row in table.read(spark, warehouse).collect()
    ]


def _utc(value: Any) -> Any:
    # Spark answers with the time zone of this machine, and does not say so.
    return value.astimezone(UTC) if isinstance(value, datetime) else value
