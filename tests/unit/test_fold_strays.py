"""How the pipeline folds records: those in an unexpected partition of the offsets log, and groups some at a time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("duckdb")

import pyarrow as pa

from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.pipeline.ingest.fold import Fold, Run, partitions_of
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, GROUP_STATES

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
NOW = START + timedelta(days=1)
GROUP, PARTITIONS = "orders", 4
OWN = partition_of(GROUP, PARTITIONS)


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def commit(**fields: Any) -> dict[str, Any]:
    same = {"topic": "t", "partition": 0, "committed_offset": 5, "aborted": False, "commit_ms": 1}
    return same | {"group": GROUP, "record_time": at(50)} | fields


def state(kind: str, **fields: Any) -> dict[str, Any]:
    return {"group": GROUP, "record_time": at(50), "kind": kind, "gone": False} | fields


def last_stray(tmp_path: Path, partition: int, *rows: Mapping[str, Any]) -> datetime | None:
    """What `strays` is for records in this partition."""
    of_table: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for offset, row in enumerate(rows):
        of_table["topic" in row].append({"log_partition": partition, "log_offset": offset} | dict(row))
    commits = pa.Table.from_pylist(of_table[True], COMMITS.schema)
    states = pa.Table.from_pylist(of_table[False], GROUP_STATES.schema)
    with closing(Fold(commits, states, Run("cluster", 0, PARTITIONS, NOW, NOW.date()), str(tmp_path))) as fold:
        assert len(fold.groups) == (partition == OWN)
        return fold.strays


@pytest.mark.parametrize(
    ("rows", "used"),
    [
        pytest.param([commit()], at(50), id="commit"),
        pytest.param([commit(aborted=True)], at(50), id="aborted-commit"),
        pytest.param([commit(), commit(record_time=at(40))], at(50), id="the-last-of-them"),
        pytest.param([commit(written_after=at(70))], at(70), id="clock-that-is-behind"),
        pytest.param([commit(record_time=NOW + timedelta(days=9))], NOW, id="clock-that-is-ahead"),
        pytest.param([commit(record_time=None), commit()], NOW, id="without-a-time"),
        pytest.param([commit(written_after=NOW + timedelta(hours=1))], NOW + timedelta(hours=1), id="clock-set-back"),
        pytest.param([state("classic", members=1)], at(50), id="member"),
        pytest.param([state("consumer-member", member_id="a")], at(50), id="member-of-the-newer-protocol"),
        pytest.param([state("share-member", member_id="a")], at(50), id="member-of-a-share-group"),
        pytest.param([commit(committed_offset=None)], None, id="expired-offset"),
        pytest.param([state("classic", members=0)], None, id="members-that-timed-out"),
        pytest.param([state("consumer-member", member_id="a", gone=True)], None, id="member-that-timed-out"),
        pytest.param([state("consumer-epoch", generation=2)], None, id="epoch"),
        pytest.param([state("classic", gone=True)], None, id="group-that-ended"),
    ],
)
def test_a_use_in_an_unexpected_partition_has_its_time(
    tmp_path: Path, rows: list[dict[str, Any]], used: datetime | None
) -> None:
    """Whose offsets it left is not known, so before its time no group counts as idle. Brokers' own records are none."""
    assert last_stray(tmp_path, (OWN + 1) % PARTITIONS, *rows) == used
    assert last_stray(tmp_path, OWN, *rows) is None


# Java's hash of the first one is the smallest number there is.
@example(["polygenelubricants", "", "\u00e9", "\U0001f600"], 50)
@given(st.lists(st.text()), st.integers(1, 1000))
def test_many_groups_are_where_each_of_them_is(groups: list[str], partitions: int) -> None:
    found = partitions_of(pa.array(["first", *groups]).slice(1), partitions)
    assert found.tolist() == [partition_of(group, partitions) for group in groups]


def test_groups_some_at_a_time(tmp_path: Path) -> None:
    """Their rows are the same as all at once: of groups with rows of before, without, and with strays."""
    run = Run("cluster", 0, PARTITIONS, NOW, NOW.date() - timedelta(days=30))
    names = [f"group-{number}" for number in range(20)]

    def rows_of(some: Sequence[str], first: int) -> tuple[pa.Table, pa.Table]:
        commits, states = [], []
        for offset, (name, place) in enumerate(itertools.product(some, range(3)), first):
            same = {"group": name, "log_partition": partition_of(name, PARTITIONS), "log_offset": 2 * offset}
            gone = {} if (offset + place) % 5 else {"committed_offset": None, "commit_ms": None}
            commits.append(commit(**same, partition=place, commit_ms=offset * 86_400_000, metadata="") | gone)
            kind = state("classic", members=offset % 2, protocol_type="consumer", state_ms=offset)
            states.append(kind | same | {"log_offset": 2 * offset + 1})
        commits.append(commit(group=some[0], log_partition=partition_of(some[0], PARTITIONS) + 1, log_offset=99))
        return pa.Table.from_pylist(commits, COMMITS.schema), pa.Table.from_pylist(states, GROUP_STATES.schema)

    def folded(new: tuple[pa.Table, pa.Table], *parts: pa.Table) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        with closing(Fold(*new, run, str(tmp_path))) as fold:
            for number, part in enumerate(parts, 1):
                for table in fold.rows(part, last=number == len(parts)):
                    for row in table.to_pylist():
                        row["offsets"].sort(key=lambda place: place["partition"])
                        assert found.setdefault(row["group"], row) is row
        return found

    before = folded(rows_of(names[:15], 0), ACTIVITY.schema.empty_table())
    old = pa.Table.from_pylist([before[name] for name in names[5:15]], ACTIVITY.schema)
    new = rows_of(names[5:], 100)
    assert len(all_ := folded(new, old)) == 15
    assert folded(new, old.slice(0, 4), old.slice(4, 3), old.slice(7)) == all_
    assert folded(new, *(old.slice(index, 1) for index in range(10)), ACTIVITY.schema.empty_table()) == all_
