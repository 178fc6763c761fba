"""Groups with ids as long as Kafka accepts, which any client with a prefix of group ids may create."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testing.sandbox.kafka import KafkaCluster
from tests.kafka.makers import Maker, at
from tests.kafka.test_foreign_answers import limited

# Together larger than the most that an operator with the chart's memory accepts of one broker.
_GROUPS, _CHARACTERS = 1_080, 32_700


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """A broker whose lists of groups may become large."""
    with KafkaCluster() as cluster:
        yield cluster


def test_very_long_ids_hide_no_other_group(kafka: KafkaCluster, make: Maker) -> None:
    """1,080 ids of 32 KB, 35 MB, would stop the scans of all policies: they are left out, and the list says so."""
    topic, other = make.topic(records=2), make.name("other")
    make.simple_groups({other: at(topic, 1)})
    names = [f"{make.tag}{number:04}".ljust(_CHARACTERS, "x") for number in range(_GROUPS)]
    for start in range(0, _GROUPS, 60):
        make.simple_groups({name: at(topic, 1) for name in names[start : start + 60]})
    printed = limited(
        f"""
        from group_hygiene.model.groups import GroupState

        client = connect(Settings(("{kafka.bootstrap_servers}",)))
        seen = cluster.read_cluster(client, Deadline(60))
        for states in (), (GroupState.EMPTY,):
            listing = groups.list_groups(client, seen, Deadline(60), states)
            print(dict(listing.faults), "{other}" in listing.groups, *listing.notes)
        client.close()
        """
    )
    note = f"{_GROUPS} groups with ids of more than 1000 characters are left out, as the list is too large"
    assert printed.splitlines() == [f"{{}} True {note}"] * 2
