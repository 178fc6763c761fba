"""A group that commits far more than others: its commits are folded on disk, in the memory that every run has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from group_hygiene.pipeline.table_file import TableFile
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS
from sandbox.proc import Peak
from sandbox.spark.jars import jars
from tests.spark.histories import Bronze, milliseconds

COMMITTED, PARTITIONS, BATCH, LIMIT_MB = 5_000_000, 3, 500_000, 2048


def test_five_million_commits_of_one_group(spark: SparkSession, warehouse: str, tmp_path: Path) -> None:
    """They are counted, and the last of each partition is the group's offset, within 2 GB for all processes."""
    bronze = Bronze(spark, warehouse)
    bronze.batch, bronze._offset = 1, COMMITTED
    file, schema = TableFile(warehouse, COMMITS), COMMITS.schema
    same = {"era": 0, "batch": 1, "log_partition": 0, "group": "busy", "topic": "orders", "leader_epoch": 0}
    same |= {"metadata": "", "aborted": False, "written_after": None}
    for first in range(0, COMMITTED, BATCH):
        number = np.arange(first, first + BATCH)
        # Of 14 hours, one every 10 ms.
        own = {"log_offset": number, "partition": number % PARTITIONS, "committed_offset": number}
        own |= {"record_time": (milliseconds(0) + number * 10) * 1000, "commit_ms": milliseconds(0) + number * 10}
        columns = [
            pa.array(own[field.name]).cast(field.type)
            if field.name in own
            else pa.repeat(pa.scalar(same[field.name], field.type), BATCH)
            for field in schema
        ]
        file.add(pa.RecordBatch.from_arrays(columns, schema=schema))
    COMMITS.change(warehouse, [file.finished().file], COMMITS.version(warehouse))
    bronze.finish()
    command = [sys.executable, "-m", "group_hygiene.cli", "pipeline", "activity", "--warehouse", warehouse]
    command += ["--jars", str(jars()), "--log-file", str(tmp_path / "spark.log"), "--memory", "1g"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        with Peak(process.pid) as peak:
            assert process.wait(600) == 0, (tmp_path / "said").read_text()
    (row,) = ACTIVITY.read(spark, warehouse).collect()
    assert (row["group"], sum(row["commits_by_day"].values()), row["partitions"]) == ("busy", COMMITTED, PARTITIONS)
    last = {COMMITTED - 1 - back: (COMMITTED - 1 - back) % PARTITIONS for back in range(PARTITIONS)}
    assert {each["offset"]: each["partition"] for each in row["offsets"]} == last
    assert peak.mb < LIMIT_MB, f"{peak.mb:.0f} MB"
