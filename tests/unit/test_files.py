"""What a task makes of records: files in which each of them is a row, once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from group_hygiene.errors import PipelineError
from group_hygiene.pipeline import store
from group_hygiene.pipeline.ingest import files
from group_hygiene.pipeline.ingest.files import Target, write_decoded
from group_hygiene.pipeline.store import File, Once
from group_hygiene.pipeline.tables import COMMITS, GROUP_STATES, QUARANTINE, RECORDS
from group_hygiene.spec.secret import one_line
from tests.log_records import COMMIT_V3, SAMPLES, commit_key

START = datetime(2030, 1, 31, 12, 0, 0, 123000, tzinfo=UTC)
Pair = tuple[bytes | None, bytes | None]
COMMIT: Pair = (commit_key(), COMMIT_V3)
BROKEN: Pair = (b"\x7f\xff", b"v")
STATE: Pair = next(sample.pair for sample in SAMPLES if sample.pair[0][:2] == b"\0\2" and sample.pair[1])


def batch(first: int, *pairs: Pair) -> pa.RecordBatch:
    """Records as Spark's source gives them, a second after each other, every other one in partition 4."""
    offsets = range(first, first + len(pairs))
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([3 + offset % 2 for offset in offsets], pa.int32()),
            "offset": pa.array(list(offsets), pa.int64()),
            "timestamp": pa.array([START + timedelta(seconds=offset) for offset in offsets], pa.timestamp("us", "UTC")),
            "key": pa.array([key for key, _ in pairs], pa.binary()),
            "value": pa.array([value for _, value in pairs], pa.binary()),
        }
    )


def written(folder: Path, *batches: pa.RecordBatch, aborted: bool = False) -> list[dict[str, Any]]:
    target = Target(str(folder), {table.name: table.shape for table in RECORDS}, 2, 7, aborted, {4: START})
    (added,) = write_decoded(batches, target)
    rows: list[dict[str, Any]] = added.to_pylist()
    return rows


def held(folder: Path, table: str) -> list[dict[str, Any]]:
    return [row for file in (folder / table).glob("*.parquet") for row in pq.read_table(file).to_pylist()]


def test_each_record_is_a_row_of_its_table(tmp_path: Path) -> None:
    added = written(tmp_path, batch(0, COMMIT, STATE, BROKEN), batch(3, COMMIT), aborted=True)
    found = {table.name: held(tmp_path, table.name) for table in RECORDS}
    assert [row["log_offset"] for row in found["commits"]] == [0, 3]
    assert [row["log_offset"] for row in found["group_states"]] == [1]
    assert [row["log_offset"] for row in found["quarantine"]] == [2]
    for rows in found.values():
        for row in rows:
            assert (row["era"], row["batch"], row["log_partition"]) == (2, 7, 3 + row["log_offset"] % 2)
            assert row["record_time"] == START + timedelta(seconds=row["log_offset"])
            # The other partition was not read before.
            assert row["written_after"] == {3: None, 4: START}[row["log_partition"]]
    assert found["commits"][0]["group"] == "g"
    assert found["commits"][0]["aborted"] is True
    assert found["group_states"][0]["kind"] == "classic"
    assert (found["quarantine"][0]["key"], found["quarantine"][0]["value"]) == BROKEN
    counts = Counter({(row["table"], row["log_partition"]): row["records"] for row in added})
    assert counts == {("commits", 3): 1, ("commits", 4): 1, ("group_states", 4): 1, ("quarantine", 3): 1}
    for row in added:
        assert (tmp_path / row["table"] / row["path"]).stat().st_size == row["size"]


def test_no_file_has_a_host_if_none_is_wanted(tmp_path: Path) -> None:
    """Neither of a member, nor in the bytes of a record that could not be decoded."""
    members = [sample.pair for sample in SAMPLES if b"/10.0.0.1" in (sample.pair[1] or b"")]
    newer = (b"\0\2\0\1g", b"\0\5" + bytes(9) + b"/10.0.0.1")
    assert len(members) > 10
    for hosts, folder in ((True, tmp_path / "with"), (False, tmp_path / "without")):
        folder.mkdir()
        target = Target(str(folder), {table.name: table.shape for table in RECORDS}, 0, 1, False, {}, hosts)
        list(write_decoded([batch(0, *members, newer)], target))
        found = [row for table in RECORDS for row in held(folder, table.name)]
        assert len(found) == len(members) + 1
        assert ("10.0.0.1" in str(found)) is hosts
        clients = [client for row in held(folder, "group_states") for client in row["clients"]]
        assert {client["client_id"] for client in clients} == {"c", "c-1"}
        assert {client["rack_id"] for client in clients} == {None, "a"}


def test_nothing_comes_of_nothing(tmp_path: Path) -> None:
    assert written(tmp_path, batch(0)) == written(tmp_path) == []
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize("together", [1, 3, 1000])
def test_the_metadata_of_a_file_for_delta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    """The ends of the first columns over all that is in it, however it came there."""
    monkeypatch.setattr(files, "_ROW_GROUP", together)
    added = written(tmp_path, batch(5, COMMIT, COMMIT), batch(1, COMMIT), batch(9, COMMIT))
    (file,) = {(row["path"], row["stats"]) for row in added}
    assert sum(row["records"] for row in added) == 4
    assert json.loads(file[1]) == {
        "numRecords": 4,
        "minValues": {
            "era": 2,
            "batch": 7,
            "log_partition": 3,
            "log_offset": 1,
            "record_time": "2030-01-31T12:00:01.123Z",
        },
        "maxValues": {
            "era": 2,
            "batch": 7,
            "log_partition": 4,
            "log_offset": 9,
            "record_time": "2030-01-31T12:00:09.123Z",
        },
        "nullCount": {"era": 0, "batch": 0, "log_partition": 0, "log_offset": 0, "record_time": 0},
    }
    assert pq.ParquetFile(tmp_path / "commits" / file[0]).num_row_groups == {1: 3, 3: 2, 1000: 1}[together]


def test_times_that_a_broker_did_not_give(tmp_path: Path) -> None:
    """A column of nulls has no ends."""
    record = batch(0, COMMIT).set_column(2, "timestamp", pa.array([None], pa.timestamp("us", "UTC")))
    (row,) = written(tmp_path, record)
    stats = json.loads(row["stats"])
    assert (stats["nullCount"]["record_time"], "record_time" in stats["minValues"]) == (1, False)
    assert held(tmp_path, "commits")[0]["record_time"] is None


def test_a_file_has_the_columns_of_its_table(tmp_path: Path) -> None:
    written(tmp_path, batch(0, COMMIT, STATE, BROKEN))
    for table in (COMMITS, GROUP_STATES, QUARANTINE):
        (file,) = (tmp_path / table.name).glob("*.parquet")
        assert pq.read_schema(file).names == table.schema.names


def test_unknown_times(tmp_path: Path) -> None:
    """A record's time is any number: one that is no date is no reason to end, and nothing is said of the column."""
    far = pa.array([253402300800000000], pa.timestamp("us", "UTC"))
    (row,) = written(tmp_path, batch(0, COMMIT).set_column(2, "timestamp", far))
    assert set(json.loads(row["stats"])["maxValues"]) == {"era", "batch", "log_partition", "log_offset"}


def test_files_are_in_a_table_once(tmp_path: Path) -> None:
    """By the writer's number: with files or without, and whoever had the table open before."""
    added = written(tmp_path, batch(0, COMMIT, STATE))
    found = {row["table"]: File(row["path"], row["size"], row["stats"]) for row in added}
    for table, files_of_it in ((COMMITS, [found["commits"]]), (QUARANTINE, [])):
        for once in (Once("mine", 0), Once("mine", 0)):
            table.add(str(tmp_path), files_of_it, once)
        opened = store.opened(table.path(str(tmp_path)))
        assert opened is not None
        assert (opened.version(), len(opened.file_uris())) == (0, len(files_of_it))
        assert store.files_between(opened, "batch", 7, 9) == [file.path for file in files_of_it]
        assert store.files_between(opened, "batch", 1, 6) == []
    (more,) = written(tmp_path, batch(9, COMMIT))
    for _ in range(2):
        COMMITS.add(str(tmp_path), [File(more["path"], more["size"], more["stats"])], Once("mine", 1))
    held = found["commits"].size + more["size"]
    assert (COMMITS.size(str(tmp_path)), QUARANTINE.size(str(tmp_path)), GROUP_STATES.size(str(tmp_path))) == (
        held,
        0,
        0,
    )
    assert sorted(row["log_offset"] for row in store.rows(COMMITS.path(str(tmp_path)))) == [0, 9]


def test_a_table_whose_files_are_broken(tmp_path: Path) -> None:
    """One line, as for everything that can't be read; and it is not a table without rows."""
    (added,) = written(tmp_path, batch(0, COMMIT))
    COMMITS.add(str(tmp_path), [File(added["path"], added["size"], added["stats"])], Once("mine", 0))
    (tmp_path / "commits" / added["path"]).write_bytes(b"PAR1 nothing")
    with pytest.raises(PipelineError, match=r"the table .*/commits can't be read or written: .+"):
        store.rows(COMMITS.path(str(tmp_path)))
    (tmp_path / "commits" / added["path"]).unlink()
    with pytest.raises(PipelineError, match=r"the table .*/commits can't be read or written: .+"):
        store.rows(COMMITS.path(str(tmp_path)))


def test_messages_of_stores_are_shown_without_signatures() -> None:
    error = "\x1b[31mGET\x1b[0m https://a.blob/x?sv=1&sig=hunter2 failed:\n  403"
    assert one_line(error) == "GET https://a.blob/x?*** failed: 403"
    assert one_line("word " * 100) == ("word " * 100)[:297] + "..."


def test_it_drags_nothing_along() -> None:
    """Spark's workers import it, again and again: no client library, and no more of this package than the decoder."""
    program = "import sys, group_hygiene.pipeline.ingest.files; print(*sorted(sys.modules))"
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    ours = {name.rpartition(".")[2] for name in listed if name.startswith("group_hygiene.pipeline.")}
    assert ours == {"ingest", "columns", "decoder", "files", "shape"}
    assert not {"kafka", "pyspark", "kubernetes"} & set(listed)
