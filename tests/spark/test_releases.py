"""The pipeline leaves alone the tables that later releases wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from group_hygiene.errors import Halted
from group_hygiene.pipeline.jobs import maintain
from group_hygiene.pipeline.tables import COVERAGE, read_coverage, read_progress
from tests.spark.histories import Bronze, commit


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(lambda _, warehouse: read_progress(warehouse), id="ingest"),
        pytest.param(maintain, id="maintain"),
        pytest.param(lambda _, warehouse: read_coverage(warehouse), id="backtest-and-report"),
    ],
)
def test_tables_of_a_later_version_are_left_alone(
    spark: SparkSession, warehouse: str, job: Callable[[SparkSession, str], object]
) -> None:
    """Every job ends before it writes, also one that runs again and again, and says why."""
    Bronze(spark, warehouse).write({"g": [commit(1)]})
    COVERAGE.overwrite(
        warehouse, [row | {"version": 2} for row in COVERAGE.rows(warehouse)], COVERAGE.version(warehouse)
    )
    before = set(Path(warehouse).rglob("*.*"))
    with pytest.raises(Halted, match="have version 2, and this program supports version 1"):
        job(spark, warehouse)
    assert set(Path(warehouse).rglob("*.*")) == before
