"""Which worker rewrites which files of `activity`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("duckdb")

from group_hygiene.pipeline.ingest.task import EVERYTHING, Range, Shard, plan_tasks, together

SHARDS = st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda at: Shard(at[0], at[0] + at[1]))
FILES = st.lists(SHARDS, max_size=20).map(lambda found: {f"file-{n}": shard for n, shard in enumerate(found)})


def ranges(*partitions: int) -> list[Range]:
    return [Range(partition, 0, 1) for partition in partitions]


@given(FILES, st.integers(1, 50), st.sets(st.integers(0, 49)), st.booleans(), st.booleans(), st.integers(1, 60))
def test_no_two_tasks_touch_the_same_groups(
    files: dict[str, Shard], partitions: int, new: set[int], split: bool, moved: bool, number: int
) -> None:
    """Each partition with new records is in one task, which rewrites all files that may have groups of it, and no other
    task does. The other files stay.
    """
    left = ranges(*(partition for partition in sorted(new) if partition < partitions))
    tasks = plan_tasks(left, files, range(partitions), split, moved)
    tasks = together(tasks, [1] * len(tasks), number)
    assert len(tasks) <= number
    assert [each for task in tasks for each in task.ranges] == left
    for task in tasks:
        for partition, _, _ in task.ranges:
            assert any(whole.low <= partition <= whole.high for whole in task.wholes)
            assert any(shard.low <= partition <= shard.high for shard in task.shards)
            assert {path for path, shard in files.items() if shard.low <= partition <= shard.high} <= set(task.old)
        for path in task.old:
            assert any(whole.low <= files[path].low <= files[path].high <= whole.high for whole in task.wholes)
        # All rows that a task reads are in files that it replaces.
        read = {path for path, shard in files.items() if any(_touches(shard, whole) for whole in task.wholes)}
        assert read == set(task.old)
    rewritten = [path for task in tasks for path in task.old]
    assert len(rewritten) == len(set(rewritten))
    if moved:
        assert [task.old for task in tasks] == [tuple(files)]


def _touches(one: Shard, other: Shard) -> bool:
    return one.low <= other.high and other.low <= one.high


def test_as_many_tasks_as_partitions() -> None:
    """One file each, once the table is divided; before that, one file and one task."""
    one, all_ = {"all": Shard(3, 17)}, ranges(*range(20))
    (task,) = plan_tasks(all_, one, range(20), split=False, moved=False)
    assert (task.shards, task.old, task.wholes) == ((EVERYTHING,), ("all",), (EVERYTHING,))
    divided = {f"file-{partition}": Shard(partition, partition) for partition in range(20)}
    assert [task.old for task in plan_tasks(all_, divided, range(20), split=True, moved=False)] == [
        (path,) for path in divided
    ]
    assert [len(task.shards) for task in plan_tasks(all_, one, range(20), split=True, moved=False)] == [1] * 3 + [
        15
    ] + [1] * 2
    some = plan_tasks(ranges(2, 5), divided, range(20), split=True, moved=False)
    assert [(task.old, task.ranges) for task in some] == [
        (("file-2",), tuple(ranges(2))),
        (("file-5",), tuple(ranges(5))),
    ]
