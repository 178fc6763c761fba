"""The tables by delta-rs: what is told of them is what is in them, whoever wrote it."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from group_hygiene.errors import PipelineError
from group_hygiene.model.evidence import TABLES_VERSION
from group_hygiene.pipeline import store
from group_hygiene.pipeline.tables import COMMITS, INGESTED
from tests.spark.bronze import all_rows, append

_ROW = {
    **{"cluster_id": "ours", "topic_id": None, "era": 0, "batch": 1, "log_partition": 0, "covered_to": 7},
    **{"read_at": datetime(2030, 1, 31, 12, tzinfo=UTC), "complete_since": None, "first_read_at": None},
    **{"version": TABLES_VERSION, "leader_epoch": None},
}

_COMMIT = {
    **{"era": 0, "log_partition": 0, "record_time": datetime(2030, 1, 31, 12, tzinfo=UTC), "group": "g"},
    **{"topic": "t", "partition": 0, "committed_offset": 1, "leader_epoch": 0, "metadata": "", "commit_ms": 1},
    "aborted": False,
}


def _at(covered_to: int) -> dict[str, Any]:
    return _ROW | {"covered_to": covered_to}


def test_small_tables_tell_what_is_in_them(spark: SparkSession, tmp_path: Path) -> None:
    """By Spark or by delta-rs; and nothing is written after a version that is not the newest one."""
    warehouse, other = str(tmp_path / "one"), tmp_path / "other"
    folder = Path(INGESTED.path(warehouse))
    assert INGESTED.rows(warehouse) == []
    assert not INGESTED.exists(warehouse)

    assert INGESTED.version(warehouse) == -1
    INGESTED.overwrite(warehouse, [_ROW], -1)
    assert INGESTED.version(warehouse) == 0
    assert INGESTED.rows(warehouse) == [_ROW]
    assert all_rows(spark, warehouse, INGESTED) == [_ROW]
    for version in (-1, 1):
        with pytest.raises(PipelineError, match="it is not at version"):
            INGESTED.overwrite(warehouse, [_at(8)], version)
    assert INGESTED.rows(warehouse) == [_ROW]
    INGESTED.overwrite(warehouse, [_at(8)], 0)
    assert INGESTED.rows(warehouse) == [_at(8)]

    shutil.copytree(folder, other)
    INGESTED.overwrite(warehouse, [_at(9), _at(10)])
    assert INGESTED.rows(warehouse) == [_at(9), _at(10)]
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    assert INGESTED.rows(warehouse) == [_at(8)]
    DeltaTable.forPath(spark, str(folder)).update(set={"covered_to": F.lit(10)})
    assert INGESTED.rows(warehouse) == [_at(10)]
    shutil.rmtree(folder)
    assert INGESTED.rows(warehouse) == []


def test_rows_of_some_batches(spark: SparkSession, tmp_path: Path) -> None:
    """As the workers read them; put together by Spark, or with rows deleted, they are the same."""
    # Patterns, elsewhere.
    warehouse = str(tmp_path / "a{b}[c]* e")

    def batches() -> list[int]:
        path = COMMITS.path(warehouse)
        rows = store.read(
            path, COMMITS.version(warehouse), str(len(list(Path(path).rglob("*")))), "batch BETWEEN 2 AND 3"
        ).read_all()
        return sorted(rows.column("batch").to_pylist())

    COMMITS.create(warehouse)
    for batch in range(1, 5):
        row = _COMMIT | {"batch": batch, "log_offset": batch}
        frame = spark.createDataFrame(pa.Table.from_pylist([row, row], COMMITS.schema))
        append(warehouse, COMMITS, frame.coalesce(1))
    assert batches() == [2, 2, 3, 3]
    held = COMMITS.files(warehouse, COMMITS.version(warehouse), "batch")
    assert sum(file.rows for file in held if file.may_have(2, 3)) == 4
    table = COMMITS.open(spark, warehouse)
    assert table is not None
    table.optimize().executeCompaction()
    assert batches() == [2, 2, 3, 3]
    # Deletion vectors: rows are gone, and the file that holds them is not.
    spark.sql(f"ALTER TABLE delta.`{COMMITS.path(warehouse)}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
    DeltaTable.forPath(spark, COMMITS.path(warehouse)).delete(F.col("batch") == 3)
    assert batches() == [2, 2]


def test_a_table_that_can_not_be_read(tmp_path: Path) -> None:
    """It is not taken for one that isn't there."""
    INGESTED.overwrite(str(tmp_path), [_ROW])
    (log,) = (tmp_path / "ingested" / "_delta_log").glob("*.json")
    log.write_text("{")
    with pytest.raises(PipelineError, match=r"the table .*/ingested can't be read or written: "):
        INGESTED.rows(str(tmp_path))
    with pytest.raises(PipelineError, match="can't be read or written"):
        INGESTED.exists(str(tmp_path))
