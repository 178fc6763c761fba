"""A group that commits far more than others: its commits are folded on disk, in the memory that every run has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from testing.sandbox.proc import Peak

ROOT = Path(__file__).parents[2]
COMMITTED, PARTITIONS, LIMIT_MB = 5_000_000, 3, 1280
# Of 14 hours, one every 10 ms.
_FOLD = """
import json, sys, tempfile
from datetime import UTC, datetime
import numpy as np, pyarrow as pa
from group_hygiene.pipeline.ingest.fold import Fold, Run
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, GROUP_STATES
committed, partitions, size = int(sys.argv[1]), int(sys.argv[2]), 250_000
now, schema = datetime(2026, 11, 21, tzinfo=UTC), COMMITS.schema
begin = int(now.timestamp() * 1000) - committed * 10
same = {"era": 0, "batch": 1, "log_partition": 0, "group": "busy", "topic": "orders", "leader_epoch": 0}
same |= {"metadata": "", "aborted": False, "written_after": None}
commits = []
for first in range(0, committed, size):
    number = np.arange(first, first + size)
    own = {"log_offset": number, "partition": number % partitions, "committed_offset": number}
    own |= {"record_time": (begin + number * 10) * 1000, "commit_ms": begin + number * 10}
    columns = [
        pa.array(own[field.name]).cast(field.type)
        if field.name in own
        else pa.repeat(pa.scalar(same[field.name], field.type), size)
        for field in schema
    ]
    commits.append(pa.RecordBatch.from_arrays(columns, schema=schema))
commits = pa.Table.from_batches(commits)
with tempfile.TemporaryDirectory() as spill:
    run = Run("cluster", 0, 1, now, datetime(2026, 10, 22).date())
    fold = Fold(commits, GROUP_STATES.schema.empty_table(), run, spill)
    (row,) = [row for rows in fold.rows(ACTIVITY.schema.empty_table()) for row in rows.to_pylist()]
    fold.close()
commits = sum(number for _, number in row["commits_by_day"])
print(json.dumps([row["group"], commits, {each["offset"]: each["partition"] for each in row["offsets"]}]))
"""


# Groups with ids as long as Kafka stores, and a thousand offsets each, which commit once more.
_LONG = """
import json, sys, tempfile
from datetime import UTC, datetime
import pyarrow as pa
from group_hygiene.pipeline.ingest.fold import Fold, Run
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, GROUP_STATES
groups, offsets = int(sys.argv[1]), int(sys.argv[2])
now = datetime(2026, 11, 21, tzinfo=UTC)
same = {"topic": "orders", "committed_offset": 7, "leader_epoch": 0, "metadata": "", "commit_time": now}
names = [f"{number:04}" + "x" * 32_000 for number in range(groups)]
row = {"cluster_id": "c", "log_partition": 0, "type": "Classic", "state": "Empty", "members": [], "topics": 1}
row |= {"partitions": offsets, "commits_by_day": [], "era": 0, "updated_at": now, "offsets": [
    {"topic": "orders", "partition": place, "offset": 7, "leader_epoch": 0, "metadata": "", "commit_time": now}
    for place in range(offsets)
]}
old = pa.Table.from_pylist([row | {"group": name} for name in names], ACTIVITY.schema)
new = {"era": 0, "batch": 2, "log_partition": 0, "topic": "orders", "partition": 1, "committed_offset": 9}
new |= {"leader_epoch": 0, "metadata": "", "commit_ms": int(now.timestamp() * 1000), "aborted": False}
commits = [new | {"group": name, "log_offset": number} for number, name in enumerate(names)]
with tempfile.TemporaryDirectory() as spill:
    run = Run("cluster", 0, 1, now, datetime(2026, 10, 22).date())
    tables = pa.Table.from_pylist(commits, COMMITS.schema), GROUP_STATES.schema.empty_table()
    fold = Fold(*tables, run, spill)
    rows = [row for found in fold.rows(old) for row in found.to_pylist()]
    fold.close()
print(json.dumps(sorted({(len(row["group"]), row["partitions"], sum(each["offset"] for each in row["offsets"]))
    for row in rows})), len(rows))
"""


def test_five_million_commits_of_one_group() -> None:
    """They are counted, and the last of each partition is the group's offset, in little more memory than DuckDB's."""
    said = folded(_FOLD, COMMITTED, PARTITIONS)
    last = {str(COMMITTED - 1 - back): (COMMITTED - 1 - back) % PARTITIONS for back in range(PARTITIONS)}
    assert json.loads(said) == ["busy", COMMITTED, last]


def test_long_names_of_groups_with_many_offsets() -> None:
    """An id is in memory once, not once for each of its group's offsets."""
    assert folded(_LONG, 200, 1_000) == f"[[32004, 1000, {999 * 7 + 9}]] 200\n"


def folded(program: str, *arguments: int) -> str:
    """What the program says, which may have so much memory."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "operator")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    with Peak(process.pid) as peak:
        said, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    assert peak.mb < LIMIT_MB, f"{peak.mb:.0f} MB"
    return said
