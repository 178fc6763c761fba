"""How the ingest divides the log, and what it sends to Spark's workers."""

from __future__ import annotations

from functools import partial
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from group_hygiene.pipeline.ingest.batches import divided, ranges_of
from group_hygiene.pipeline.ingest.fetch import Range, Target, read_and_write
from group_hygiene.pipeline.tables import RECORDS
from group_hygiene.spec.connection import Mechanism, OAuth, Sasl, Settings, Tls
from group_hygiene.spec.secret import Hidden

RANGES = st.dictionaries(st.integers(0, 99), st.tuples(st.integers(0, 2**50), st.integers(0, 2**36)), max_size=9)


@given(RANGES, st.integers(1, 9))
def test_every_offset_is_in_one_task(ranges: dict[int, tuple[int, int]], number: int) -> None:
    """From the position to the end of each partition; the tasks have successive partitions."""
    positions = {partition: start for partition, (start, _) in ranges.items()}
    ends = {partition: start + size for partition, (start, size) in ranges.items()}
    tasks = divided(ranges_of(positions, ends), number)
    assert len(tasks) <= number
    assert all(tasks)
    found = list(chain(*tasks))
    left = [Range(each, positions[each], ends[each]) for each in sorted(ranges) if positions[each] < ends[each]]
    assert found == left


@pytest.mark.parametrize(
    ("sizes", "tasks"),
    [
        pytest.param([10, 10, 10, 10], [[0, 1], [2, 3]], id="even"),
        pytest.param([100, 1, 1], [[0], [1, 2]], id="the first one is large"),
        pytest.param([1, 1, 100], [[0, 1], [2]], id="the last one is large"),
        pytest.param([0, 5, 0], [[1]], id="one has records"),
        pytest.param([], [], id="none"),
    ],
)
def test_tasks_have_about_as_many_offsets(sizes: list[int], tasks: list[list[int]]) -> None:
    found = divided(ranges_of(dict.fromkeys(range(len(sizes)), 0), dict(enumerate(sizes))), 2)
    assert [[each.partition for each in task] for task in found] == tasks


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
    target = Target("/tables", {table.name: table for table in RECORDS}, 1, 2, {})
    task = partial(read_and_write, settings=settings, target=target, most=9)
    sent = cloudpickle.loads(cloudpickle.dumps(task))  # type: ignore[no-untyped-call]
    assert sent.keywords == task.keywords
    login = sent.keywords["settings"].sasl
    assert (login.password or login.oauth.client_secret).reveal() == SECRET
    assert SECRET not in repr(sent)
