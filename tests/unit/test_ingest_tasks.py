"""How the ingest divides the log, and what it sends to Spark's workers."""

from __future__ import annotations

from functools import partial
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from group_hygiene.pipeline.ingest import fetch
from group_hygiene.pipeline.ingest.reading import ranges_of
from group_hygiene.pipeline.ingest.task import Range, Task, plan_tasks, together
from group_hygiene.spec.client_settings import Mechanism, OAuth, Sasl, Settings, Tls
from group_hygiene.spec.fields import Hidden

RANGES = st.dictionaries(st.integers(0, 99), st.tuples(st.integers(0, 2**50), st.integers(0, 2**36)), max_size=9)


@given(RANGES, st.integers(1, 9))
def test_every_offset_is_in_one_task(ranges: dict[int, tuple[int, int]], number: int) -> None:
    """From the position to the end of each partition; the tasks have successive partitions."""
    positions = {partition: start for partition, (start, _) in ranges.items()}
    ends = {partition: start + size for partition, (start, size) in ranges.items()}
    left = [Range(each, positions[each], ends[each]) for each in sorted(ranges) if positions[each] < ends[each]]
    assert ranges_of(positions, ends) == left
    tasks = plan_tasks(left, {}, sorted(ranges) or [0], split=True, moved=False)
    found = together(tasks, [task.ranges[0].end - task.ranges[0].start for task in tasks], number)
    assert len(found) <= number
    assert list(chain(*(task.ranges for task in found))) == left


@pytest.mark.parametrize(
    ("sizes", "tasks"),
    [
        pytest.param([10, 10, 10, 10], [[0, 1], [2, 3]], id="even"),
        pytest.param([100, 1, 1], [[0], [1, 2]], id="the first one is large"),
        pytest.param([1, 1, 100], [[0, 1], [2]], id="the last one is large"),
        pytest.param([5], [[0]], id="one"),
        pytest.param([], [], id="none"),
    ],
)
def test_tasks_have_about_the_same_size(sizes: list[int], tasks: list[list[int]]) -> None:
    each = [Task((Range(number, 0, size),), (), (), ()) for number, size in enumerate(sizes)]
    assert [[some.partition for some in task.ranges] for task in together(each, sizes, 2)] == tasks


def test_a_partition_that_was_read_has_none() -> None:
    """Nor one whose end is before what was read: it may have an open transaction again."""
    assert ranges_of({0: 5, 1: 7}, {0: 5, 1: 6}) == []


SECRET = "never-to-be-seen"
LOGINS = [
    pytest.param(Sasl(Mechanism.SCRAM_SHA_512, "user", Hidden(SECRET)), id="scram"),
    pytest.param(Sasl(Mechanism.OAUTHBEARER, oauth=OAuth("https://idp/token", "id", Hidden(SECRET), "a")), id="oauth"),
]


@pytest.mark.parametrize("sasl", LOGINS)
def test_a_worker_has_the_whole_connection(sasl: Sasl) -> None:
    """With its secrets, as Spark sends a task; what is shown of it has none."""
    settings = Settings(("a:1",), Tls("ca", "certificate", Hidden(SECRET)), sasl, requests_per_second=5)
    task = partial(fetch.read, settings=settings)
    sent = cloudpickle.loads(cloudpickle.dumps(task))  # type: ignore[no-untyped-call]
    assert sent.keywords == task.keywords
    login = sent.keywords["settings"].sasl
    assert (login.password or login.oauth.client_secret).reveal() == SECRET
    assert SECRET not in repr(sent)
