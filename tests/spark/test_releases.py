"""The pipeline goes on from the tables that former releases wrote, and leaves those of later ones alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from group_hygiene.errors import Halted
from group_hygiene.pipeline.activity.coverage import activity_at, read_coverage
from group_hygiene.pipeline.activity.update import update
from group_hygiene.pipeline.backtest.lives import extent
from group_hygiene.pipeline.ingest.progress import read_progress
from group_hygiene.pipeline.maintain import maintain
from group_hygiene.pipeline.store import Table
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, COVERAGE, INGESTED
from tests.spark.bronze import append

RELEASES = sorted(path.parent for path in (Path(__file__).parents[1] / "releases").glob("*/tables"))


@pytest.mark.parametrize("release", [pytest.param(path, id=path.name) for path in RELEASES])
def test_tables_of_a_release_are_gone_on_from(spark: SparkSession, warehouse: str, release: Path) -> None:
    """What was ingested is known, what it says of groups can be looked back on, added to, and is the same made anew."""
    shutil.copytree(release / "tables", warehouse)
    before = read_progress(warehouse)
    assert before is not None
    assert (before.era, before.batch, set(before.places)) == (0, 1, {0, 1})
    covered = extent(warehouse).covered
    assert {place["batch"] for place in covered.places.values()} == {1}
    activity = activity_at(spark, warehouse, covered.activity)
    known = {row["group"]: row["state"] for row in activity.collect()}
    assert known == {"left": "Empty", "assigned": "Empty", "in-use": "Active"}
    moment = commit_of(spark, warehouse, "assigned")
    assert update(spark, warehouse).records == 1
    rows = {row["group"]: row for row in ACTIVITY.read(spark, warehouse).collect()}
    assert {group: row["state"] for group, row in rows.items()} == known
    assert rows["assigned"]["last_commit"].astimezone(UTC) == moment
    shutil.rmtree(ACTIVITY.path(warehouse))
    update(spark, warehouse)
    assert {row["group"]: row["state"] for row in ACTIVITY.read(spark, warehouse).collect()} == known
    assert maintain(spark, warehouse)


def commit_of(spark: SparkSession, warehouse: str, group: str) -> datetime:
    """One more batch: the group commits when the log was read to its end last. Answers with that moment."""
    of_group = COMMITS.read(spark, warehouse).where(F.col("group") == group).toArrow().to_pylist()
    ingested = INGESTED.rows(warehouse)
    place = next(row for row in ingested if row["log_partition"] == of_group[0]["log_partition"])
    moment: datetime = place["read_at"]
    new = {"batch": 2, "log_offset": place["covered_to"], "commit_ms": int(moment.timestamp() * 1000)}
    rows = pa.Table.from_pylist([of_group[0] | new | {"record_time": moment}], COMMITS.schema)
    append(warehouse, COMMITS, spark.createDataFrame(rows))
    place["covered_to"] += 1
    INGESTED.overwrite(warehouse, [row | {"batch": 2} for row in ingested])
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


@pytest.mark.parametrize(
    ("table", "job"),
    [
        pytest.param(INGESTED, lambda _, warehouse: read_progress(warehouse), id="ingest"),
        pytest.param(INGESTED, update, id="activity"),
        pytest.param(COVERAGE, maintain, id="maintain"),
        pytest.param(COVERAGE, lambda _, warehouse: read_coverage(warehouse), id="backtest-and-report"),
    ],
)
def test_tables_of_a_later_version_are_left_alone(
    spark: SparkSession, warehouse: str, table: Table, job: Callable[[SparkSession, str], object]
) -> None:
    """Every job ends before it writes, also one that runs again and again, and says why."""
    shutil.copytree(RELEASES[-1] / "tables", warehouse)
    rows = table.rows(warehouse)
    table.overwrite(warehouse, [row | {"version": 2} for row in rows])
    before = {file for file in Path(warehouse).rglob("*.parquet") if table.name not in file.parts}
    with pytest.raises(Halted, match="have version 2, and this program supports version 1"):
        job(spark, warehouse)
    assert {file for file in Path(warehouse).rglob("*.parquet") if table.name not in file.parts} == before
