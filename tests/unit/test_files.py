"""What a task makes of records: files in which each of them is a row, once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from group_hygiene.errors import PipelineError
from group_hygiene.kafka.partition import RawFetched
from group_hygiene.kafka.record_columns import Records, Slices
from group_hygiene.pipeline import store
from group_hygiene.pipeline.ingest import fetch, task
from group_hygiene.pipeline.ingest.fold import Run
from group_hygiene.pipeline.ingest.task import Range, Round, Sink
from group_hygiene.pipeline.store import Part
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, GROUP_STATES, QUARANTINE, RECORDS
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.fields import one_line
from tests.log_records import COMMIT_V3, SAMPLES, commit_key

START, HOUR = datetime(2030, 1, 31, 12, 0, 0, 123000, tzinfo=UTC), timedelta(hours=1)
Pair = tuple[bytes | None, bytes | None]
COMMIT: Pair = (commit_key(), COMMIT_V3)
BROKEN: Pair = (b"\x7f\xff", b"v")
STATE: Pair = next(sample.pair for sample in SAMPLES if sample.pair[0][:2] == b"\0\2" and sample.pair[1])


def batch(first: int, *pairs: Pair) -> Records:
    """Successive records of one partition of the log, a second after each other."""
    offsets = np.arange(first, first + len(pairs))
    times = offsets * 1000 + int(START.timestamp() * 1000)
    keys, values = (Slices.of([pair[side] for pair in pairs]) for side in (0, 1))
    return Records(offsets, times, np.zeros(len(pairs), np.bool_), keys, values, first + len(pairs))


def sink(
    folder: Path, most: int = 1_000_000, hosts: bool = True, read_before: Mapping[int, datetime] | None = None
) -> Sink:
    round = Round(
        warehouse=str(folder),
        records={table.name: table for table in RECORDS},
        activity=ACTIVITY,
        version=-1,
        log=Run("c", 2, 5, START, START.date()),
        batch=7,
        written_after={4: START} if read_before is None else read_before,
        moved=False,
        gone_before=None,
        hosts=hosts,
        most=most,
        run="r",
    )
    return Sink(round)


def written(folder: Path, *batches: Records, partition: int = 4, hosts: bool = True) -> Sequence[Part]:
    added = sink(folder, hosts=hosts)
    for records in batches:
        added.add_records(partition, records)
    return added.finished()


def test_a_full_task_stops_within_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have far more bytes unpacked than as it came. What it says that it has is what it has."""
    client: Any = SimpleNamespace(settings=Settings(("broker:9092",)))
    answers = iter([RawFetched(b"batches", [], 100)])
    monkeypatch.setattr(fetch, "fetch_raw", lambda *_: next(answers))
    monkeypatch.setattr(fetch, "parse", lambda _: iter([batch(0, COMMIT, COMMIT), batch(2, COMMIT), batch(3, COMMIT)]))
    full = sink(tmp_path, most=1)
    assert fetch._read(client, Range(4, 0, 100), {}, full) == 2
    full.finished()
    assert [row["log_offset"] for row in held(tmp_path, "commits")] == [0, 1]


def held(folder: Path, table: str) -> list[dict[str, Any]]:
    return [row for file in (folder / table).glob("*.parquet") for row in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize("partition", [3, 4])
def test_each_record_is_a_row_of_its_table(tmp_path: Path, partition: int) -> None:
    """With the position of its partition, and whether its transaction was aborted."""
    lost = batch(3, COMMIT)._replace(aborted=np.array([True]))
    added = written(tmp_path, batch(0, COMMIT, STATE, BROKEN), lost, partition=partition)
    found = {table.name: held(tmp_path, table.name) for table in RECORDS}
    assert [row["log_offset"] for row in found["commits"]] == [0, 3]
    assert [row["log_offset"] for row in found["group_states"]] == [1]
    assert [row["log_offset"] for row in found["quarantine"]] == [2]
    for rows in found.values():
        for row in rows:
            assert (row["era"], row["batch"], row["log_partition"]) == (2, 7, partition)
            assert row["record_time"] == START + timedelta(seconds=row["log_offset"])
            # The other partition was not read before.
            assert row["written_after"] == {3: None, 4: START}[partition]
    assert found["commits"][0]["group"] == "g"
    assert [row["aborted"] for row in found["commits"]] == [False, True]
    assert found["group_states"][0]["kind"] == "classic"
    assert (found["quarantine"][0]["key"], found["quarantine"][0]["value"]) == BROKEN
    counts = [(part.table, part.rows, part.aborted) for part in added]
    assert counts == [("commits", 2, 1), ("group_states", 1, 0), ("quarantine", 1, 0)]
    for part in added:
        assert (tmp_path / part.table / part.file.path).stat().st_size == part.file.size


@pytest.mark.parametrize(
    ("partition", "at", "unread"),
    [
        pytest.param(3, -HOUR, -HOUR, id="before-the-first-read"),
        pytest.param(4, -3 * HOUR, -2 * HOUR, id="after-an-earlier-read"),
        pytest.param(3, None, 0 * HOUR, id="without-a-time"),
        pytest.param(4, None, 0 * HOUR, id="without-a-time-after-an-earlier-read"),
        pytest.param(3, 9_000 * HOUR, 0 * HOUR, id="by-a-clock-that-is-ahead"),
        pytest.param(5, -HOUR, HOUR, id="by-a-clock-that-is-behind-that-of-the-earlier-read"),
        pytest.param(5, None, HOUR, id="without-a-time-and-by-such-a-clock"),
    ],
)
def test_until_when_a_record_that_cannot_be_decoded_hides_use(
    tmp_path: Path, partition: int, at: timedelta | None, unread: timedelta
) -> None:
    """It may have been any group's last one: until it was written for certain, but not longer than until now."""
    time = -1 if at is None else int((START + at).timestamp() * 1000)
    added = sink(tmp_path, read_before={4: START - 2 * HOUR, 5: START + HOUR})
    added.add_records(partition, batch(0, BROKEN)._replace(times=np.array([time])))
    assert added.unread == {partition: START + unread}


def test_a_file_has_so_many_rows_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many records a task reads: the next ones are in another file."""
    monkeypatch.setattr(task, "_FILE_ROWS", 3)
    added = written(tmp_path, *(batch(at, COMMIT, COMMIT) for at in range(0, 10, 2)))
    assert [part.rows for part in added] == [4, 4, 2]
    assert sorted(row["log_offset"] for row in held(tmp_path, "commits")) == list(range(10))


def test_large_rows_do_not_wait_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written at so many bytes, however few they are."""
    monkeypatch.setattr(store, "_BUFFER_BYTES", 1000)
    large = (b"\x63" * 100, b"\x63" * 500)
    (part,) = written(tmp_path, batch(0, large), batch(1, large), batch(2, large), batch(3, large))
    assert part.rows == 4
    assert pq.ParquetFile(tmp_path / "quarantine" / part.file.path).num_row_groups == 2


def test_a_record_without_a_time_has_none(tmp_path: Path) -> None:
    """As in the oldest message format: its time is unknown, and not in 1969."""
    written(tmp_path, batch(0, COMMIT)._replace(times=np.array([-1])))
    assert [row["record_time"] for row in held(tmp_path, "commits")] == [None]


def test_no_file_has_a_host_if_none_is_wanted(tmp_path: Path) -> None:
    """Neither of a member, nor in the bytes of a record that could not be decoded."""
    members = [sample.pair for sample in SAMPLES if b"/10.0.0.1" in (sample.pair[1] or b"")]
    newer = (b"\0\2\0\1g", b"\0\5" + bytes(9) + b"/10.0.0.1")
    assert len(members) > 10
    for hosts, folder in ((True, tmp_path / "with"), (False, tmp_path / "without")):
        folder.mkdir()
        written(folder, batch(0, *members, newer), hosts=hosts)
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
    monkeypatch.setattr(store, "_ROW_GROUP", together)
    (part,) = written(tmp_path, batch(5, COMMIT, COMMIT), batch(1, COMMIT), batch(9, COMMIT))
    same = {"era": 2, "batch": 7, "log_partition": 4}
    assert part.rows == 4
    assert json.loads(part.file.stats) == {
        "numRecords": 4,
        "minValues": same | {"log_offset": 1, "record_time": "2030-01-31T12:00:01.123Z"},
        "maxValues": same | {"log_offset": 9, "record_time": "2030-01-31T12:00:09.123Z"},
        "nullCount": {"era": 0, "batch": 0, "log_partition": 0, "log_offset": 0, "record_time": 0},
    }
    assert pq.ParquetFile(tmp_path / "commits" / part.file.path).num_row_groups == {1: 3, 3: 2, 1000: 1}[together]


def test_a_file_has_the_columns_of_its_table(tmp_path: Path) -> None:
    written(tmp_path, batch(0, COMMIT, STATE, BROKEN))
    for table in (COMMITS, GROUP_STATES, QUARANTINE):
        (file,) = (tmp_path / table.name).glob("*.parquet")
        assert pq.read_schema(file).names == table.schema.names


@pytest.mark.parametrize("time", [253402300800000, 1 << 62, -(1 << 62)])
def test_unknown_times(tmp_path: Path, time: int) -> None:
    """A record's time is any number: one that is no date is some 1,900 years from 1970, as a duration may be added."""
    (part,) = written(tmp_path, batch(0, COMMIT)._replace(times=np.array([time])))
    year = 3871 if time > 0 else 68
    assert [row["record_time"].year for row in held(tmp_path, "commits")] == [year]
    assert json.loads(part.file.stats)["maxValues"]["record_time"].startswith(f"{year:04}-")


def test_a_text_that_is_too_long_for_statistics(tmp_path: Path) -> None:
    """Parquet has no minimum and maximum of it, also if it has those of other row groups."""
    file = store.TableFile(str(tmp_path), ACTIVITY)
    empty = dict.fromkeys(ACTIVITY.schema.names) | {"commits_by_day": [], "topics_after": [], "log_partition": 3}
    for cluster in ("a", "b" * 5_000):
        file.add(pa.RecordBatch.from_pylist([empty | {"cluster_id": cluster}], ACTIVITY.schema))
        file.write()
    stats = json.loads(file.finished().file.stats)
    assert (stats["numRecords"], stats["minValues"], stats["maxValues"]) == (
        2,
        {"log_partition": 3},
        {"log_partition": 3},
    )


def test_files_come_into_a_table_right_after_a_version(tmp_path: Path) -> None:
    """With files or without, also the first ones: not if another run wrote the table since."""
    found = {part.table: part.file for part in written(tmp_path, batch(0, COMMIT, STATE))}
    for table, files_of_it in ((COMMITS, [found["commits"]]), (QUARANTINE, [])):
        assert table.change(str(tmp_path), files_of_it, -1) == 0
        with pytest.raises(PipelineError, match="exists"):
            table.change(str(tmp_path), files_of_it, -1)
        opened = store.opened(table.path(str(tmp_path)))
        assert opened is not None
        assert (opened.version(), len(opened.file_uris())) == (0, len(files_of_it))
        held = table.files(str(tmp_path), 0, "batch")
        assert [(file.path, file.rows, file.least, file.most) for file in held] == [
            (file.path, 1, 7, 7) for file in files_of_it
        ]
    (more,) = (part.file for part in written(tmp_path, batch(9, COMMIT)))
    assert COMMITS.change(str(tmp_path), [more], 0) == 1
    with pytest.raises(PipelineError, match="another run wrote it"):
        COMMITS.change(str(tmp_path), [more], 0)
    with pytest.raises(PipelineError, match="another run wrote it"):
        store.delete(COMMITS.path(str(tmp_path)), "batch > 0", 0)
    sizes = [table.size(str(tmp_path)) for table in (COMMITS, QUARANTINE, GROUP_STATES)]
    assert sizes == [found["commits"].size + more.size, 0, 0]
    assert sorted(row["log_offset"] for row in store.rows(COMMITS.path(str(tmp_path)))) == [0, 9]


def test_a_table_whose_files_are_broken(tmp_path: Path) -> None:
    """One line, as for everything that can't be read; and it is not a table without rows."""
    (file,) = (part.file for part in written(tmp_path, batch(0, COMMIT)))
    COMMITS.change(str(tmp_path), [file], -1)
    (tmp_path / "commits" / file.path).write_bytes(b"PAR1 nothing")
    with pytest.raises(PipelineError, match=r"the table .*/commits can't be read or written: .+"):
        store.rows(COMMITS.path(str(tmp_path)))
    (tmp_path / "commits" / file.path).unlink()
    with pytest.raises(PipelineError, match=r"the table .*/commits can't be read or written: .+"):
        store.rows(COMMITS.path(str(tmp_path)))


def test_messages_of_stores_are_shown_without_signatures() -> None:
    error = "\x1b[31mGET\x1b[0m https://a.blob/x?sv=1&sig=hunter2 failed:\n  403"
    assert one_line(error) == "GET https://a.blob/x?*** failed: 403"
    assert one_line("word " * 100) == ("word " * 100)[:297] + "..."


def test_what_repeats_is_in_dictionaries(tmp_path: Path) -> None:
    """Also what is nested in a column; but no offsets, nor times of a single group: these are stored as differences."""
    client = {"client_id": "a", "host": "b", "instance_id": "c", "rack_id": "d"}
    offset = {"topic": "t", "partition": 1, "offset": 7, "leader_epoch": 0, "metadata": "", "commit_time": None}
    row = dict.fromkeys(ACTIVITY.schema.names) | {"group": "g", "offsets": [offset], "last_clients": [client]}
    row |= {"log_partition": 3, "commits_by_day": [(date(2026, 11, 25), 1)], "topics_after": []}
    file = store.TableFile(str(tmp_path), ACTIVITY)
    file.add(pa.RecordBatch.from_pylist([row], ACTIVITY.schema))
    written = pq.ParquetFile(tmp_path / "activity" / file.finished().file.path).metadata.row_group(0)
    columns = [written.column(index) for index in range(written.num_columns)]
    plain = {column.path_in_schema for column in columns if not column.has_dictionary_page}
    times = {"offsets.list.element.commit_time", "first_seen", "first_commit", "last_commit", "oldest_commit"}
    assert plain == {"offsets.list.element.offset"} | times
    assert {column.path_in_schema for column in columns if "DELTA_BINARY_PACKED" in column.encodings} == plain


@pytest.mark.parametrize(
    ("module", "with_it", "clients"),
    [
        pytest.param("ingest.fetch", {"fetch", "fold", "ingest", "task"}, {"kafka"}, id="fetch"),
        pytest.param("ingest.task", {"fold", "ingest", "task"}, set(), id="task"),
    ],
)
def test_it_drags_nothing_along(module: str, with_it: set[str], clients: set[str]) -> None:
    """Spark's workers import it, again and again: no client library that they don't use, and no more of this package
    than they need.
    """
    program = f"import sys, group_hygiene.pipeline.{module}; print(*sorted(sys.modules))"
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    ours = {name.rpartition(".")[2] for name in listed if name.startswith("group_hygiene.pipeline.")}
    assert ours == with_it | {"store"}
    assert {"kafka", "pyspark", "kubernetes"} & set(listed) == clients


def test_arrow_does_without_pandas() -> None:
    """Other code of the same process can still import it."""
    program = (
        "import sys; import pyarrow as pa; from group_hygiene.pipeline.store import leave_out_pandas;"
        "leave_out_pandas(); leave_out_pandas(); pa.array([1]); print('pandas' in sys.modules);"
        "print(any('pipeline.store' in type(each).__module__ for each in sys.meta_path));"
        "import pandas; print(pandas.Series([1]).sum())"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "False", "1"]
