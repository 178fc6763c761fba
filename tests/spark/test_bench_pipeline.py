"""The bench of the pipeline keeps its own promises: it measures a real one, and a wrong count or row ends it."""

import json
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka.record.memory_records import MemoryRecords

from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.offsets_log import Commit, decode
from testing.bench import pipeline
from testing.bench.errors import BenchError, WrongCount
from testing.bench.logs import LEAST_RECORDS, LOG_PARTITIONS, NAMES, Log, log_of, write
from testing.bench.plain import decoded, whole_batches
from testing.bench.same import differences

# In a process of its own: each log has a Spark of its own, and a process can have but one at a time.
_PROGRAM = """
import json
from testing.bench import pipeline
from testing.bench.logs import LEAST_RECORDS, log_of
log = log_of("compacted", LEAST_RECORDS)
with pipeline.filled(log, LEAST_RECORDS) as filled:
    times = pipeline.measure(filled)
line, parts = pipeline.summary(log, times), pipeline.parts(log, times)
print(pipeline.table(log, times))
print(pipeline.markdown({log.name: line}, {log.name: parts}))
print(json.dumps([line, parts]))
"""
_FIGURES = {
    *("records", "l0_s", "l1_s", "l2_s", "full_s", "full_vs_l2", "warm_vs_l2", "increment_s", "records_per_s"),
    *("bytes_per_commit", "peak_rss_mb", "activity_query_s"),
}
_NOW = 1_780_000_000_000


def test_it_measures_a_real_pipeline() -> None:
    """Each rung took its time and saw every record, and the tables of the two that make one are the same."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stderr
    line, parts = json.loads(done.stdout.splitlines()[-1])
    assert line.keys() == _FIGURES
    assert all(value > 0 for value in line.values()), line
    assert all(parts.values()), parts
    assert all(rung in done.stdout for rung in pipeline.RUNGS)
    assert "| L2: numpy, DuckDB, delta-rs | " in done.stdout


def test_targets_name_figures() -> None:
    """A target of a figure that the line lacks would fail at the end of a long run."""
    assert {target.partition(".")[0] for target in pipeline.TARGETS} == set(NAMES)
    assert {target.partition(".")[2] for target in pipeline.TARGETS} <= _FIGURES


@pytest.fixture(params=NAMES)
def log(request: pytest.FixtureRequest) -> Log:
    return log_of(request.param, LEAST_RECORDS)


@pytest.fixture
def written(log: Log, tmp_path: Path) -> tuple[list[bytes], int]:
    """The segments of a log, and the sum of the offsets in it; each folder had other files before."""
    for partition in range(LOG_PARTITIONS):
        folder = tmp_path / f"{OFFSETS_TOPIC}-{partition}"
        folder.mkdir()
        (folder / "partition.metadata").touch()
        (folder / "00000000000000000000.index").touch()
    total = write(log, tmp_path, _NOW)
    folders = [tmp_path / f"{OFFSETS_TOPIC}-{partition}" for partition in range(LOG_PARTITIONS)]
    assert not list(tmp_path.rglob("*.index"))
    assert all((folder / "partition.metadata").exists() for folder in folders)
    return [(folder / "00000000000000000000.log").read_bytes() for folder in folders], total


def test_a_log_is_what_it_says(log: Log, written: tuple[list[bytes], int]) -> None:
    """By the client's own reader and the project's decoder: every batch is sound, and what is in it adds up."""
    segments, total = written
    commits: list[Commit] = []
    states, keys, end = 0, set(), 0
    for segment in segments:
        records = MemoryRecords(segment)
        following = 0
        while (batch := records.next_batch()) is not None:
            assert batch.validate_crc()
            assert batch.base_offset >= following
            for record in batch:
                assert following <= record.offset
                following = record.offset + 1
                keys.add(record.key)
                found = decode(record.key, record.value)
                if isinstance(found, Commit):
                    commits.append(found)
                else:
                    states += 1
        end += following
    assert (len(commits) + states, states) == (log.records, log.states)
    assert sum(commit.offset or 0 for commit in commits) == total
    assert len({commit.group for commit in commits}) == log.groups
    assert end <= (log.offsets or log.records)
    # Of a group that had a member, one key has two records.
    assert len(keys) == log.records // log.rounds - (0 if log.is_sparse else log.joined)


def test_the_rung_without_spark_decodes_the_same(written: tuple[list[bytes], int]) -> None:
    """Its own decoder against the project's, field by field."""
    for segment in written[0]:
        if not segment:
            continue
        data = memoryview(segment)
        commits, states = decoded(data, whole_batches(data), sys.maxsize)
        expected: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        records = MemoryRecords(segment)
        while (batch := records.next_batch()) is not None:
            for record in batch:
                found = decode(record.key, record.value)
                if isinstance(found, Commit):
                    at = datetime.fromtimestamp(0, UTC) + _milliseconds(found.commit_ms)
                    expected.append(
                        {
                            **{"group": found.group, "topic": found.topic, "partition": found.partition},
                            **{"log_offset": record.offset, "committed": found.offset},
                            **{"leader_epoch": found.leader_epoch, "commit_time": at, "day": at.date()},
                        }
                    )
                else:
                    since = datetime.fromtimestamp(0, UTC) + _milliseconds(found.state_ms)
                    since_if_empty = None if found.members else since
                    row = {"group": found.group, "log_offset": record.offset, "empty_since": since_if_empty}
                    others.append(row)
        assert commits.to_pylist() == expected
        assert states.to_pylist() == others


def test_the_rung_without_spark_refuses_what_it_does_not_know(written: tuple[list[bytes], int]) -> None:
    """A record that it left out would make it the fastest of all."""
    segment = bytearray(next(filter(None, written[0])))
    # The attributes of the first batch.
    segment[22] |= 1
    data = memoryview(bytes(segment))
    with pytest.raises(BenchError, match="compressed"):
        decoded(data, whole_batches(data), sys.maxsize)


def _milliseconds(value: int | None) -> Any:
    return pa.scalar(value, pa.duration("ms")).as_py()


@pytest.mark.parametrize("column", ["last_commit", "empty_since", "commits_by_day", "offsets"])
def test_each_column_is_compared(tmp_path: Path, column: str) -> None:
    """Rows that differ are counted, and so are rows that one of the tables lacks; the order of offsets is free."""
    offset = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    types = {
        **{"group": pa.string(), "last_commit": pa.timestamp("us", "UTC"), "empty_since": pa.timestamp("us", "UTC")},
        **{"partitions": pa.int32(), "commits_by_day": pa.map_(pa.date32(), pa.int64()), "offsets": pa.list_(offset)},
    }
    moment, day = datetime(2026, 5, 1, tzinfo=UTC), date(2026, 5, 1)
    offsets = [{"topic": "t", "partition": number, "offset": 7} for number in range(2)]
    row = {
        **{"group": "a", "last_commit": moment, "empty_since": None, "partitions": 2},
        **{"commits_by_day": [(day, 3)], "offsets": offsets},
    }
    others = {
        **{"last_commit": moment.replace(second=1), "empty_since": moment},
        **{"commits_by_day": [(day, 4)], "offsets": [offsets[0] | {"offset": 8}, offsets[1]]},
    }

    def table(name: str, *rows: dict[str, Any]) -> str:
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist(list(rows), pa.schema(list(types.items()))), tmp_path / name / "a.parquet")
        return str(tmp_path / name)

    ours = table("ours", row, row | {"group": "b"})
    assert differences(ours, table("same", row | {"offsets": offsets[::-1]}, row | {"group": "b"})) == 0
    assert differences(ours, table("other", row | {column: others[column]}, row | {"group": "b"})) == 1
    assert differences(ours, table("more", row, row | {"group": "b"}, row | {"group": "c"})) == 1


def test_a_wrong_count_ends_it() -> None:
    """A part that read too little would be the fastest of all."""
    with pytest.raises(WrongCount, match="the reader counted 9, but there are 10"):
        pipeline._check("the reader", 9, 10)
