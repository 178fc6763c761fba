"""What the table `coverage` promises of `activity`: of which log, up to when, and in which version. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from group_hygiene.errors import PipelineError
from group_hygiene.pipeline.tables import ACTIVITY, COVERAGE, State


class Covered(NamedTuple):
    """What `coverage` says. activity: the version of that table that it speaks of. partitions: of the log.

    places: by partition that was read to its end, its row. read_at: the latest of theirs.
    """

    cluster_id: str
    activity: State
    read_at: datetime
    partitions: int
    places: Mapping[int, Mapping[str, Any]]


def promised(spark: SparkSession, warehouse: str) -> Covered:
    """Raises PipelineError, which says what to do, where there are no tables (yet), or they tell of nothing."""
    if not (ACTIVITY.exists(warehouse) and COVERAGE.exists(warehouse)):
        raise PipelineError(f"there are no tables at {warehouse} (yet): run `group-hygiene pipeline run` first")
    rows = COVERAGE.rows(warehouse)
    if not rows:
        raise PipelineError("the tables cover nothing yet: no run of the pipeline came to its end")
    if len({(row["cluster_id"], row["activity_id"]) for row in rows}) > 1:
        raise PipelineError("coverage speaks of several clusters or several activity tables")
    # Of several rows the one that promises least, as the operator reads it.
    rows.sort(key=lambda row: row["covered_to"], reverse=True)
    places = {row["log_partition"]: row for row in rows if row["read_at"] is not None}
    if not places:
        raise PipelineError("the log was never read to its end yet: run `group-hygiene pipeline run` again")
    read_at: datetime = max(place["read_at"] for place in places.values())
    told = State(rows[0]["activity_id"], max(row["activity_version"] for row in rows))
    partitions = len({row["log_partition"] for row in rows})
    return Covered(rows[0]["cluster_id"], told, read_at.astimezone(UTC), partitions, places)


def activity_at(spark: SparkSession, warehouse: str, told: State) -> DataFrame:
    """`activity` at exactly this version: what a run under way writes is later than the log was read.

    Raises PipelineError where it is not there (any more).
    """
    state = ACTIVITY.state(spark, warehouse)
    if state is None or state.id != told.id or state.version < told.version:
        raise PipelineError(
            f"coverage speaks of version {told.version} of an activity table that is not there: it was replaced by an "
            "older one or by another; the next run of the pipeline mends that"
        )
    reader = spark.read.format("delta").option("versionAsOf", str(told.version))
    return ACTIVITY.completed(reader.load(ACTIVITY.path(warehouse)))
