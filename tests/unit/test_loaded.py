"""Group ids that stand for partitions of `__consumer_offsets`."""

from __future__ import annotations

import pytest

from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.cluster import PREFIX
from group_hygiene.kafka.groups import ids_by_partition
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.model.groups import Fault


@pytest.mark.parametrize("partitions", [1, 5, 50, 1_000, 10_000])
def test_each_partition_has_an_id_of_its_own(partitions: int) -> None:
    """So that its coordinator, and no other one, answers for it."""
    found = ids_by_partition(partitions, Deadline(60))
    assert not isinstance(found, Fault)
    assert {index: partition_of(name, partitions) for index, name in found.items()} == {n: n for n in range(partitions)}
    assert all(name.startswith(PREFIX) for name in found.values())


def test_without_partitions_nothing_is_asked() -> None:
    """A cluster in which nobody has used a group yet."""
    assert ids_by_partition(0, Deadline(60)) == {}


def test_ids_are_sought_to_the_deadline() -> None:
    """A broker says how many partitions there are: no list of groups waits longer for their ids than it may take."""
    found = ids_by_partition(10_000, Deadline(0))
    assert isinstance(found, Fault)
    assert found.code == "REQUEST_TIMED_OUT"
