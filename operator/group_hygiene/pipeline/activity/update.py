"""Adds newly ingested records to `activity`, and then updates `coverage`. The meaning of records is in `fold`.

The cost depends on new data only: bronze rows of batches that are not in `activity` yet, and the rows of their groups.
Adding the same records twice changes nothing: each row has the offset up to which it includes the log (`read_to`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from group_hygiene.errors import PipelineError
from group_hygiene.model.evidence import TABLES_VERSION
from group_hygiene.pipeline.activity.fold import changes, merged
from group_hygiene.pipeline.ingest.progress import refuse_incomplete, refuse_older
from group_hygiene.pipeline.tables import (
    ACTIVITY,
    COMMITS,
    COVERAGE,
    GROUP_STATES,
    INGESTED,
    PRUNED,
    QUARANTINE,
    RECORDS,
    State,
)

# Records of one MERGE: those of one group are in memory at once.
_ROUND_RECORDS = 5_000_000
# Up to so many records, few groups change.
_FEW_RECORDS = 100_000
# And then a table of at most so many bytes and offsets is rewritten, which is faster than Spark's MERGE: 3 s, not 6 s,
# for 10,000 of 100,000 groups. For 100,000 of 200,000 it takes 9 s, and 0.9 GB in Python.
_SMALL_BYTES, _SMALL_OFFSETS = 32 * 1024**2, 2_000_000

# Each version adds files, and each reader opens all of them: they are compacted after so many versions.
_VERSIONS = 16
# No table.
_NOTHING = State("", -1)
# Our commits to `activity` have this mark in Delta's history. Commits without it may have put old rows back.
_MARK = "group-hygiene"
_MARKING = "spark.databricks.delta.commitInfo.userMetadata"
# Operations that need no mark: they change no row, or only remove some. A group without a row is never idle.
_HARMLESS = {"OPTIMIZE", "DELETE", "VACUUM START", "VACUUM END"}

_Rows = Sequence[dict[str, Any]]
_Moments = Mapping[int, datetime | None]


@dataclass(frozen=True, slots=True)
class Updated:
    """The result. read_at: when `activity` is complete as of; None = some partition was never read to its end.

    An open transaction holds it back.
    """

    batches: int
    records: int
    read_at: datetime | None

    def __str__(self) -> str:
        upto = "not complete yet" if self.read_at is None else f"complete as of {self.read_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.records:,} new records, {upto}"


class _Round(NamedTuple):
    """Batches that are added together."""

    first: int
    last: int
    records: int


def update(spark: SparkSession, warehouse: str) -> Updated:
    """Add all batches that ingest has completed since the last update; writes `coverage` last.

    Raises PipelineError if nothing was ingested yet, Halted if `ingested` is older than `coverage`.
    """
    ingested = INGESTED.rows(warehouse)
    if not ingested:
        raise PipelineError("nothing was ingested into this warehouse yet: run `group-hygiene pipeline ingest` first")
    coverage = COVERAGE.rows(warehouse)
    if coverage:
        refuse_older(_batch(ingested[0]), _batch(coverage[0]))
    refuse_incomplete(warehouse, ingested[0]["batch"])
    ACTIVITY.add_columns(warehouse, _MARK)
    state = ACTIVITY.state(spark, warehouse)
    read_at = max((row["read_at"] for row in ingested if row["read_at"]), default=None)
    now = read_at or datetime.now(UTC)
    complete_since: _Moments = {row["log_partition"]: row["complete_since"] for row in coverage}
    # Without coverage, every version of the table must have our mark, including the first one.
    last = State(coverage[0]["activity_id"], coverage[0]["activity_version"]) if coverage else None
    rebuild = state is None or _went_back(spark, warehouse, state, last or state._replace(version=-1))
    at = since = state or _NOTHING
    if rebuild and state is not None:
        # No reader uses the new table until coverage has its id.
        ACTIVITY.recreate(spark, warehouse)
        at = _written(spark, warehouse, _NOTHING)
    if rebuild or not coverage:
        coverage = []
        if any(table.setting(warehouse, PRUNED) for table in RECORDS):
            complete_since = {row["log_partition"]: now for row in ingested}
    complete_since = _later(complete_since, {row["log_partition"]: row["complete_since"] for row in ingested})
    complete_since = _later(complete_since, _last_unread(spark, warehouse, ingested[0]))
    # Otherwise a run ended between the two tables, or files were compacted: rows may include more than coverage says.
    trusted = rebuild or last == state
    rounds = _rounds(spark, warehouse, coverage, ingested)
    with _marking(spark):
        for part in rounds:
            which = part.first, part.last
            commits, states = (table.batches(spark, warehouse, *which) for table in (COMMITS, GROUP_STATES))
            if not trusted:
                commits, states = (_not_taken_in(spark, warehouse, rows) for rows in (commits, states))
            found = changes(commits, states, ingested[0]["cluster_id"], now)
            few = part.records <= _FEW_RECORDS
            if rebuild and part is rounds[0]:
                ACTIVITY.append(spark, warehouse, merged(found, ACTIVITY.none(spark), now))
            elif few and _is_small(warehouse):
                _change(spark, warehouse, at, found, now)
            else:
                _merge(spark, warehouse, at, found, now, few)
            at = _written(spark, warehouse, at)
        if at == _NOTHING:
            ACTIVITY.append(spark, warehouse, ACTIVITY.none(spark))
            at = _written(spark, warehouse, at)
        at = _put_together(spark, warehouse, at, since)
    # If nothing was written, this is the version that was checked above, not a newer one.
    whose = {"activity_id": at.id, "activity_version": at.version, "version": TABLES_VERSION}
    # Not the current table `ingested`: it may be ahead of what was added.
    rows = [row | whose | {"complete_since": complete_since[row["log_partition"]]} for row in ingested]
    COVERAGE.overwrite(warehouse, rows)
    moments = [row["read_at"] for row in ingested]
    complete = None if None in moments else min(moments)
    return Updated(sum(part.last - part.first + 1 for part in rounds), sum(part.records for part in rounds), complete)


def _merge(spark: SparkSession, warehouse: str, at: State, found: DataFrame, now: datetime, few: bool) -> None:
    """By Spark, which writes the changed rows."""
    _refuse_overtaken(ACTIVITY.state(spark, warehouse), at)
    target = DeltaTable.forPath(spark, ACTIVITY.path(warehouse))
    activity = target.toDF()
    if few:
        # Send the few groups to all rows, instead of shuffling the rows.
        activity = F.broadcast(activity.join(F.broadcast(found.select("group")), "group", "left_semi"))
    rows = merged(found, activity, now)
    merge = target.alias("t").merge((F.broadcast(rows) if few else rows).alias("s"), "t.group = s.group")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def _change(spark: SparkSession, warehouse: str, at: State, found: DataFrame, now: datetime) -> None:
    """By delta-rs, which rewrites all files with changed rows."""
    found = found.localCheckpoint()

    def changed(known: pa.Table) -> pa.Table:
        return merged(found, spark.createDataFrame(known, ACTIVITY.schema), now).toArrow()

    ACTIVITY.change(warehouse, at.version, found.select("group").toArrow(), changed, _MARK)


def _is_small(warehouse: str) -> bool:
    small = ACTIVITY.size(warehouse) <= _SMALL_BYTES
    return small and ACTIVITY.total(warehouse, "partitions") <= _SMALL_OFFSETS


def _written(spark: SparkSession, warehouse: str, before: State) -> State:
    """The state of `activity` after this run wrote one version of it, or none.

    Raises PipelineError if another run wrote as well: this run may have added to rows that are outdated now.
    """
    state = ACTIVITY.state(spark, warehouse)
    if before not in (_NOTHING, state):
        _refuse_overtaken(state, before._replace(version=before.version + 1))
    if state is None:
        raise PipelineError(f"the table {ACTIVITY.name} was removed while it was written: run this again")
    return state


def _refuse_overtaken(state: State | None, at: State) -> None:
    if state != at:
        raise PipelineError(f"another run wrote the table {ACTIVITY.name} at the same time: run this one again")


def _put_together(spark: SparkSession, warehouse: str, at: State, since: State) -> State:
    """Compact `activity` if that is due since then."""
    if at.version // _VERSIONS <= max(since.version, 0) // _VERSIONS:
        return at
    DeltaTable.forPath(spark, ACTIVITY.path(warehouse)).optimize().executeCompaction()
    return _written(spark, warehouse, at)


def _rounds(spark: SparkSession, warehouse: str, coverage: _Rows, ingested: _Rows) -> list[_Round]:
    """The batches to add: those of one era together, up to a number of records."""
    before, last = (coverage[0]["batch"] if coverage else 0), ingested[0]["batch"]
    if last <= before:
        return []
    if last == before + 1:
        known = {row["log_partition"]: row["covered_to"] for row in coverage if row["era"] == ingested[0]["era"]}
        return [_Round(last, last, sum(row["covered_to"] - known.get(row["log_partition"], 0) for row in ingested))]
    commits, states = (
        table.batches(spark, warehouse, before + 1, last).groupBy("era", "batch").count()
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


def _went_back(spark: SparkSession, warehouse: str, now: State, last: State) -> bool:
    """Whether it is another table than `coverage` names, or an older state of it, or another program wrote to it."""
    if now.id != last.id or now.version < last.version:
        return True
    count = now.version - last.version
    if not count:
        return False
    since = DeltaTable.forPath(spark, ACTIVITY.path(warehouse)).history(count).collect()
    known = [row for row in since if row["operation"] in _HARMLESS or row["userMetadata"] == _MARK]
    # Delta's history has a retention: a commit that is no longer in it may have been anything.
    return len(known) < count


@contextmanager
def _marking(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(_MARKING, _MARK)
    try:
        yield
    finally:
        spark.conf.unset(_MARKING)


def _not_taken_in(spark: SparkSession, warehouse: str, rows: DataFrame) -> DataFrame:
    """The rows that their group's row in `activity` does not include yet."""
    known = ACTIVITY.read(spark, warehouse).select("group", F.col("era").alias("known_era"), "read_to")
    later = (F.col("era") > F.col("known_era")) | (
        (F.col("era") == F.col("known_era")) & (F.col("log_offset") >= F.col("read_to"))
    )
    return rows.join(known, "group", "left").where(F.col("read_to").isNull() | later).drop("known_era", "read_to")


def _last_unread(spark: SparkSession, warehouse: str, ingested: dict[str, Any]) -> dict[int, datetime | None]:
    """By log partition, the time of the last malformed record: it may have been of any of the partition's groups."""
    if not QUARANTINE.exists(warehouse):
        return {}
    broken = QUARANTINE.read(spark, warehouse).where(F.col("batch") <= ingested["batch"])
    broken = broken.where(F.col("era") == ingested["era"])
    times = F.greatest("record_time", "written_after")
    rows = broken.groupBy("log_partition").agg(F.max(times).alias("last")).toArrow().to_pylist()
    return {row["log_partition"]: row["last"] for row in rows}


def _later(one: _Moments, other: _Moments) -> _Moments:
    """By log partition, the later time; None = never."""
    both = {
        partition: [moment for moment in (one.get(partition), other.get(partition)) if moment is not None]
        for partition in one.keys() | other.keys()
    }
    return {partition: max(moments, default=None) for partition, moments in both.items()}


def _batch(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["era"], row["batch"]
