"""A broker that hangs beside groups that need a second look: those get it, and the fault names who did not answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka.protocol.admin import ListGroupsRequest

from group_hygiene.kafka.client import Call, Client
from group_hygiene.kafka.groups import describe_groups, list_groups
from group_hygiene.kafka.offsets import committed_offsets
from group_hygiene.model.groups import Description, Fault, GroupState
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker, at, seen, soon

pytestmark = pytest.mark.slow  # brokers that hang, until they are given up

# One replica of each partition: a broker that hangs takes its groups along.
FRAGILE = {"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "12"}
# So long nobody calls it dead: it hangs, and Metadata goes on naming it.
SESSION = {"broker.session.timeout.ms": "600000"}
SECONDS = 20
HUNG = 2


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """Three brokers, each the only one that knows its groups."""
    with KafkaCluster(brokers=3, config=FRAGILE | SESSION) as cluster:
        yield cluster


@pytest.fixture
def homes(kafka: KafkaCluster, client: Client, make: Maker) -> Iterator[dict[str, int]]:
    """Simple groups on each broker -> the broker that is their coordinator. One of the brokers hangs."""
    topic = make.topic(replicas=3)
    names = [make.name("simple") for _ in range(60)]
    make.simple_groups({name: at(topic, 1) for name in names})
    cluster = seen(client)
    groups = list_groups(client, cluster, soon()).groups
    kafka.pause_broker(HUNG)
    yield {name: groups[name].coordinator for name in names}
    kafka.resume_broker(HUNG)
    kafka.wait_ready()
    wait_for(lambda: not list_groups(client, cluster, soon()).faults)


def test_a_hung_broker_does_not_take_the_time_of_a_second_look(client: Client, homes: dict[str, int]) -> None:
    """Groups that moved between the other two are asked at their new home; the hung one's alone have no answer."""
    others = {name for name, home in homes.items() if home != HUNG}
    assert set(homes.values()) == {1, 2, 3}
    # As if one group of each had moved since it was listed.
    moved = {next(name for name, at_ in homes.items() if at_ == home): 4 - home for home in (1, 3)}
    places: dict[str, int | None] = {**homes, **moved}

    offsets = committed_offsets(client, places, soon(SECONDS))
    assert {name for name, answer in offsets.items() if not isinstance(answer, Fault)} == others
    for answer in offsets.values():
        assert not isinstance(answer, Fault) or answer.retriable


def test_a_group_is_described_beside_a_hung_broker(client: Client, homes: dict[str, int]) -> None:
    """The same for what describes groups."""
    cluster = seen(client)
    listing = list_groups(client, cluster, soon(10))
    types = {name: group.type for name, group in listing.groups.items()}
    coordinators = {name: group.coordinator for name, group in listing.groups.items()}
    described = describe_groups(client, types, coordinators, soon(SECONDS))
    states = {name: answer.group.state for name, answer in described.items() if isinstance(answer, Description)}
    states = {name: states[name] for name in states.keys() & homes.keys()}
    assert states == {name: GroupState.EMPTY for name, home in homes.items() if home != HUNG}


@pytest.mark.usefixtures("homes")
def test_who_gives_no_answer_is_named(client: Client) -> None:
    """Also when there was no time left to ask; any broker has no name."""
    for seconds in (1, 0):
        fault = client.send(Call(HUNG, ListGroupsRequest()), soon(seconds))
        assert fault == Fault("REQUEST_TIMED_OUT", f"no answer from broker {HUNG} in time", retriable=True)
    assert client.send(Call(None, ListGroupsRequest()), soon(0)) == Fault(
        "REQUEST_TIMED_OUT", "no answer in time", retriable=True
    )
