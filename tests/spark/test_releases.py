"""The pipeline leaves alone the tables that later releases wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from group_hygiene.errors import Halted
from group_hygiene.pipeline.activity.coverage import read_coverage
from group_hygiene.pipeline.activity.update import update
from group_hygiene.pipeline.ingest.progress import read_progress
from group_hygiene.pipeline.maintain import maintain
from group_hygiene.pipeline.store import Table
from group_hygiene.pipeline.tables import COVERAGE, INGESTED
from tests.spark.histories import Bronze, commit


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
    Bronze(spark, warehouse).write({"g": [commit(1)]})
    update(spark, warehouse)
    rows = table.rows(warehouse)
    table.overwrite(warehouse, [row | {"version": 2} for row in rows])
    before = {file for file in Path(warehouse).rglob("*.parquet") if table.name not in file.parts}
    with pytest.raises(Halted, match="have version 2, and this program supports version 1"):
        job(spark, warehouse)
    assert {file for file in Path(warehouse).rglob("*.parquet") if table.name not in file.parts} == before
