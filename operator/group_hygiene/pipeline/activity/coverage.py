"""Reads the table `coverage`: the log, time and version for which `activity` is complete."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from group_hygiene.errors import PipelineError
from group_hygiene.pipeline.store import State
from group_hygiene.pipeline.tables import ACTIVITY, COVERAGE


class Covered(NamedTuple):
    """The content of `coverage`. activity: the state of the table that it covers. partitions: of the log.

    places: partition that was read to its end -> its row. read_at: the latest of these.
    """

    cluster_id: str
    activity: State
    read_at: datetime
    partitions: int
    places: Mapping[int, Mapping[str, Any]]

    @property
    def complete_since(self) -> dict[int, datetime]:
        """Partition -> records from before this time are missing; see `model.evidence.Activity`."""
        times = {partition: place["complete_since"] for partition, place in self.places.items()}
        return {partition: time for partition, time in times.items() if time is not None}


def read_coverage(warehouse: str) -> Covered:
    """Read `coverage`. Raises PipelineError, with what to do, if there are no tables yet, or empty ones."""
    if not (ACTIVITY.exists(warehouse) and COVERAGE.exists(warehouse)):
        raise PipelineError(f"there are no tables at {warehouse} yet: run `group-hygiene pipeline run` first")
    rows = COVERAGE.rows(warehouse)
    if not rows:
        raise PipelineError("the tables cover nothing yet: no run of the pipeline has completed")
    if len({(row["cluster_id"], row["activity_id"]) for row in rows}) > 1:
        raise PipelineError("coverage names several clusters or several activity tables")
    # If a partition has several rows, the one that covers least counts, as in the operator.
    rows.sort(key=lambda row: row["covered_to"], reverse=True)
    places = {row["log_partition"]: row for row in rows if row["read_at"] is not None}
    if not places:
        raise PipelineError("the log was never read to its end yet: run `group-hygiene pipeline run` again")
    read_at: datetime = max(place["read_at"] for place in places.values())
    state = State(rows[0]["activity_id"], max(row["activity_version"] for row in rows), rows[0]["batch"])
    partitions = len({row["log_partition"] for row in rows})
    return Covered(rows[0]["cluster_id"], state, read_at.astimezone(UTC), partitions, places)


def activity_at(spark: SparkSession, warehouse: str, covered: State) -> DataFrame:
    """`activity` at exactly this version: a concurrent run may have written a later one.

    Raises PipelineError if this version does not exist.
    """
    if not ACTIVITY.holds(warehouse, covered):
        raise PipelineError(
            f"coverage names version {covered.version} of an activity table that does not exist: an older or another "
            "table replaced it; the next run of the pipeline corrects that"
        )
    return ACTIVITY.read(spark, warehouse, covered.version)
