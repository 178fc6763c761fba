"""The small tables: what is told of them is what is in them, whoever wrote it."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from delta import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from group_hygiene.model import TABLES_VERSION
from group_hygiene.pipeline.tables import INGESTED, Once

_ROW = {
    **{"cluster_id": "ours", "topic_id": None, "era": 0, "batch": 1, "log_partition": 0, "covered_to": 7},
    **{"read_at": datetime(2030, 1, 31, 12, tzinfo=UTC), "complete_since": None, "first_read_at": None},
    **{"stream": "mine", "version": TABLES_VERSION},
}


def _jobs(spark: SparkSession) -> int:
    tracker: Any = spark.sparkContext._jsc.statusTracker()
    return len(tracker.getJobIdsForGroup(None))


def _at(covered_to: int) -> dict[str, Any]:
    return _ROW | {"covered_to": covered_to}


def test_small_tables_tell_what_is_in_them(spark: SparkSession, tmp_path: Path) -> None:
    """What this process wrote, without a query; what anybody else wrote, also as a version of the same number."""
    warehouse, other = str(tmp_path / "one"), tmp_path / "other"
    folder = Path(INGESTED.path(warehouse))
    assert INGESTED.rows(spark, warehouse) == []

    INGESTED.overwrite(spark, warehouse, [_ROW], Once("mine", 1))
    before = _jobs(spark)
    assert INGESTED.rows(spark, warehouse) == [_ROW]
    assert _jobs(spark) == before
    INGESTED.overwrite(spark, warehouse, [_at(8)], Once("mine", 1))
    assert INGESTED.rows(spark, warehouse) == [_ROW]

    shutil.copytree(folder, other)
    INGESTED.overwrite(spark, warehouse, [_at(9)], Once("mine", 2))
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    assert INGESTED.rows(spark, warehouse) == [_ROW]
    DeltaTable.forPath(spark, str(folder)).update(set={"covered_to": F.lit(10)})
    assert INGESTED.rows(spark, warehouse) == [_at(10)]
    shutil.rmtree(folder)
    assert INGESTED.rows(spark, warehouse) == []
