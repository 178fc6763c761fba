"""Which worker rewrites which files of `activity`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("duckdb")

from group_hygiene.pipeline.activity.shards import EVERYTHING, Shard, plan

SHARDS = st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda at: Shard(at[0], at[0] + at[1]))
FILES = st.lists(SHARDS, max_size=20).map(lambda found: {f"file-{n}": shard for n, shard in enumerate(found)})


@given(FILES, st.integers(1, 50), st.booleans(), st.booleans(), st.integers(1, 60))
def test_no_two_tasks_touch_the_same_groups(
    files: dict[str, Shard], partitions: int, split: bool, moved: bool, number: int
) -> None:
    """Each partition is in one task, which rewrites all files that may have groups of it, and no other task does."""
    tasks = plan(files, range(partitions), split, moved, number)
    assert len(tasks) <= number
    for partition in range(partitions):
        (task,) = [task for task in tasks if task.whole.low <= partition <= task.whole.high]
        assert any(shard.low <= partition <= shard.high for shard in task.shards)
        assert {path for path, shard in files.items() if shard.low <= partition <= shard.high} <= set(task.old)
    for task in tasks:
        for path in task.old:
            assert task.whole.low <= files[path].low <= files[path].high <= task.whole.high
        # All rows that a task reads are in files that it replaces.
        assert {path for path, shard in files.items() if _touches(shard, task.whole)} == set(task.old)
    rewritten = [path for task in tasks for path in task.old]
    assert len(rewritten) == len(set(rewritten))
    if moved:
        assert [task.old for task in tasks] == [tuple(files)]


def _touches(one: Shard, other: Shard) -> bool:
    return one.low <= other.high and other.low <= one.high


def test_as_many_tasks_as_partitions() -> None:
    """One file each, once the table is divided; before that, one file and one task."""
    one = {"all": Shard(3, 17)}
    assert plan(one, range(20), split=False, moved=False, number=99) == [((EVERYTHING,), ("all",), EVERYTHING)]
    divided = {f"file-{partition}": Shard(partition, partition) for partition in range(20)}
    assert [task.old for task in plan(divided, range(20), split=True, moved=False, number=99)] == [
        (path,) for path in divided
    ]
    assert [len(task.shards) for task in plan(one, range(20), split=True, moved=False, number=99)] == [1] * 3 + [15] + [
        1
    ] * 2
    few = plan(divided, range(20), split=True, moved=False, number=4)
    assert [len(task.shards) for task in few] == [5] * 4
