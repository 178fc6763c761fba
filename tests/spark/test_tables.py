"""The tables by delta-rs: what is told of them is what is in them, whoever wrote it."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta import DeltaTable
from deltalake import DeltaTable as DeltaReader
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from group_hygiene.errors import PipelineError
from group_hygiene.model.evidence import TABLES_VERSION
from group_hygiene.pipeline import store
from group_hygiene.pipeline.store import TableFile
from group_hygiene.pipeline.tables import COMMITS, COVERAGE
from tests.spark.bronze import all_rows, append

_ROW = {
    **{"cluster_id": "ours", "topic_id": None, "era": 0, "batch": 1, "log_partition": 0, "covered_to": 7},
    **{"read_at": datetime(2030, 1, 31, 12, tzinfo=UTC), "complete_since": None, "first_read_at": None},
    **{"version": TABLES_VERSION, "leader_epoch": None, "activity_id": "a", "activity_version": 3},
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
    folder = Path(COVERAGE.path(warehouse))
    assert COVERAGE.rows(warehouse) == []
    assert not COVERAGE.exists(warehouse)

    assert COVERAGE.version(warehouse) == -1
    COVERAGE.overwrite(warehouse, [_ROW], -1)
    assert COVERAGE.version(warehouse) == 0
    assert COVERAGE.rows(warehouse) == [_ROW]
    assert all_rows(spark, warehouse, COVERAGE) == [_ROW]
    for version in (-1, 1):
        with pytest.raises(PipelineError, match="it is not at version"):
            COVERAGE.overwrite(warehouse, [_at(8)], version)
    assert COVERAGE.rows(warehouse) == [_ROW]
    COVERAGE.overwrite(warehouse, [_at(8)], 0)
    assert COVERAGE.rows(warehouse) == [_at(8)]

    shutil.copytree(folder, other)
    COVERAGE.overwrite(warehouse, [_at(9), _at(10)], 1)
    assert COVERAGE.rows(warehouse) == [_at(9), _at(10)]
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    assert COVERAGE.rows(warehouse) == [_at(8)]
    DeltaTable.forPath(spark, str(folder)).update(set={"covered_to": F.lit(10)})
    assert COVERAGE.rows(warehouse) == [_at(10)]
    shutil.rmtree(folder)
    assert COVERAGE.rows(warehouse) == []


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

    COMMITS.create(warehouse, 0)
    for batch in range(1, 5):
        row = _COMMIT | {"batch": batch, "log_offset": batch}
        frame = spark.createDataFrame(pa.Table.from_pylist([row, row], COMMITS.schema))
        append(warehouse, COMMITS, frame.coalesce(1))
    assert batches() == [2, 2, 3, 3]
    held = COMMITS.files(warehouse, COMMITS.version(warehouse), "batch")
    assert sorted((file.rows, file.least, file.most) for file in held) == [(2, each, each) for each in range(1, 5)]
    DeltaTable.forPath(spark, COMMITS.path(warehouse)).optimize().executeCompaction()
    assert batches() == [2, 2, 3, 3]
    # Deletion vectors: rows are gone, and the file that holds them is not.
    spark.sql(f"ALTER TABLE delta.`{COMMITS.path(warehouse)}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
    DeltaTable.forPath(spark, COMMITS.path(warehouse)).delete(F.col("batch") == 3)
    assert batches() == [2, 2]


def _commits(batch: int, count: int) -> pa.RecordBatch:
    """In turns, 500 groups commit ten partitions each; one row in ten is a tombstone."""
    random, row = np.random.default_rng(1), np.arange(count) + batch * count
    of, wiped = row % 5_000, random.random(count) < 0.1
    times = 1_790_000_000_000 + row // 10 * 10 + random.integers(0, 10, count)
    offsets = random.integers(0, 100_000_000, 5_000)[of] + row // 5_000 * 100 + random.integers(0, 100, count)
    columns = {
        **{name: pa.nulls(count) for name in COMMITS.schema.names},
        **{name: pa.repeat(_COMMIT[name], count) for name in ("era", "log_partition", "leader_epoch", "metadata")},
        **{"batch": pa.repeat(batch, count), "log_offset": row, "aborted": pa.repeat(False, count)},
        **{"record_time": pa.array(times * 1000, COMMITS.schema.field("record_time").type)},
        **{"group": [f"group-{each}" for each in of // 10], "topic": [f"topic-{each % 20}" for each in of // 10]},
        **{"partition": (row % 10).astype(np.int32), "committed_offset": pa.array(offsets, mask=wiped)},
        **{"commit_ms": pa.array(times - random.integers(0, 5, count), mask=wiped)},
    }
    return pa.RecordBatch.from_pydict(columns, COMMITS.schema)


def test_a_commit_takes_six_bytes_and_stays_as_small(spark: SparkSession, tmp_path: Path) -> None:
    """In the workers' files, and in those that Spark writes in place of them: all readers read both."""
    warehouse, uri, written = str(tmp_path), COMMITS.path(str(tmp_path)), []
    for batch in (1, 2, 3):
        file = TableFile(warehouse, COMMITS)
        file.add(_commits(batch, 20_000))
        written.append(file.finished().file)
    COMMITS.change(warehouse, written, -1)
    rewrites: dict[str, Any] = {
        "workers": lambda: None,
        "compaction": lambda: DeltaTable.forPath(spark, uri).optimize().executeCompaction(),
        "deletion by Spark": lambda: DeltaTable.forPath(spark, uri).delete("log_offset % 100 = 1"),
        "replacement by Spark": lambda: (
            COMMITS.read(spark, warehouse)
            .where("batch = 2 AND log_offset % 2 = 0")
            .write.format("delta")
            .mode("overwrite")
            .option("replaceWhere", "batch = 2")
            .save(uri)
        ),
    }
    counted = "count(*) AS a, sum(log_offset) AS b, sum(committed_offset) AS c, count(commit_ms) AS d"
    counted += ", max(record_time) AS e, min(commit_ms) AS f"
    before: set[str] = set()
    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'")
    for by, rewrite in rewrites.items():
        rewrite()
        files = DeltaReader(uri).file_uris()
        assert not before & set(files), f"{by}: a file was not rewritten"
        before |= set(files)
        found = [pq.read_metadata(file) for file in files]
        groups = [file.row_group(number) for file in found for number in range(file.num_row_groups)]
        columns = [group.column(index) for group in groups for index in range(group.num_columns)]
        assert {column.compression for column in columns} == {"ZSTD"}, by
        assert sum(Path(file).stat().st_size for file in files) / sum(file.num_rows for file in found) < 6, by
        packed = {each.path_in_schema for each in columns if "DELTA_BINARY_PACKED" in each.encodings}
        assert packed >= {"log_offset", "committed_offset", "record_time", "commit_ms"}, by
        by_spark = COMMITS.read(spark, warehouse).selectExpr(*counted.split(", ")).toArrow().to_pylist()
        assert by_spark == duck.read_parquet(files).aggregate(counted).to_arrow_table().to_pylist(), by
        assert by_spark == store.rows(uri, f"SELECT {counted} FROM t"), by  # noqa: S608


def test_a_table_that_can_not_be_read(tmp_path: Path) -> None:
    """It is not taken for one that isn't there."""
    COVERAGE.overwrite(str(tmp_path), [_ROW], -1)
    (log,) = (tmp_path / "coverage" / "_delta_log").glob("*.json")
    log.write_text("{")
    with pytest.raises(PipelineError, match=r"the table .*/coverage can't be read or written: "):
        COVERAGE.rows(str(tmp_path))
    with pytest.raises(PipelineError, match="can't be read or written"):
        COVERAGE.exists(str(tmp_path))
