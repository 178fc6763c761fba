"""Groups on a real broker: what is listed, described and deleted, and what each failure is called."""

from __future__ import annotations

import pytest

from group_hygiene.kafka.changes import delete_groups
from group_hygiene.kafka.client import Client
from group_hygiene.kafka.groups import describe_groups, list_groups
from group_hygiene.model.groups import Cluster, Description, Fault, Group, GroupState, GroupType, Partition
from testing.sandbox.kafka import KafkaCluster
from tests.kafka.makers import Maker, Protocol, at, requests, soon

TYPES: dict[Protocol, GroupType] = {"classic": GroupType.CLASSIC, "consumer": GroupType.CONSUMER}
PROTOCOLS = [pytest.param("classic", id="classic"), pytest.param("consumer", id="kip-848")]


@pytest.fixture
def population(make: Maker) -> dict[str, Group]:
    """A group of every kind that the tests can make, as each of them must be listed."""
    topic = make.topic()
    names = {kind: make.name(kind) for kind in ("simple", "old-empty", "old-live", "new-empty", "new-live")}
    make.simple(names["simple"], at(topic))
    make.abandoned(names["old-empty"], topic)
    make.join(names["old-live"], topic)
    make.abandoned(names["new-empty"], topic, "consumer")
    make.join(names["new-live"], topic, "consumer")
    empty, stable = GroupState.EMPTY, GroupState.STABLE
    groups = [
        Group(names["simple"], GroupType.CLASSIC, "", empty, 1),
        Group(names["old-empty"], GroupType.CLASSIC, "consumer", empty, 1),
        Group(names["old-live"], GroupType.CLASSIC, "consumer", stable, 1),
        Group(names["new-empty"], GroupType.CONSUMER, "consumer", empty, 1),
        Group(names["new-live"], GroupType.CONSUMER, "consumer", stable, 1),
    ]
    return {group.id: group for group in groups}


def test_every_kind_of_group_is_listed_as_it_is(
    client: Client, cluster: Cluster, make: Maker, population: dict[str, Group]
) -> None:
    """State, type, protocol type and coordinator of each group are the broker's."""
    listing = list_groups(client, cluster, soon())
    assert not listing.faults
    assert not listing.notes
    assert {name: group for name, group in listing.groups.items() if make.tag in name} == population
    assert {name for name, group in population.items() if group.simple} == {
        name for name in population if "simple" in name
    }


@pytest.mark.parametrize(
    ("states", "types"),
    [
        pytest.param({GroupState.EMPTY}, set(), id="state"),
        pytest.param({GroupState.STABLE, GroupState.DEAD}, set(), id="states"),
        pytest.param(set(), {GroupType.CONSUMER}, id="type"),
        pytest.param({GroupState.EMPTY}, {GroupType.CLASSIC}, id="state-and-type"),
        pytest.param({GroupState.EMPTY}, {GroupType.CLASSIC, GroupType.CONSUMER}, id="state-and-types"),
    ],
)
@pytest.mark.usefixtures("population")
def test_a_filtered_list_is_the_filtered_full_list(
    client: Client, cluster: Cluster, states: set[GroupState], types: set[GroupType]
) -> None:
    """Filters leave out exactly the groups that don't fit."""
    everything = list_groups(client, cluster, soon()).groups
    wanted = {
        name: group
        for name, group in everything.items()
        if (not states or group.state in states) and (not types or group.type in types)
    }
    assert wanted
    assert len(wanted) < len(everything)
    assert list_groups(client, cluster, soon(), states, types).groups == wanted


@pytest.mark.usefixtures("population")
def test_filters_are_applied_by_the_broker(client: Client, cluster: Cluster, kafka: KafkaCluster) -> None:
    """A filtered list asks for these states and types only, once per broker."""
    mark = kafka.mark()
    list_groups(client, cluster, soon(), {GroupState.EMPTY}, {GroupType.CONSUMER})
    (request,) = requests(kafka, "LIST_GROUPS", mark)
    assert request == {"statesFilter": ["Empty"], "typesFilter": ["Consumer"]}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_live_group_is_described_with_its_member(client: Client, make: Maker, protocol: Protocol) -> None:
    """A member's client id, subscription and assignment are told; the epoch for KIP-848 alone."""
    topic, group = make.topic(partitions=3), make.name("live")
    make.join(group, topic, protocol)
    described = describe_groups(client, {group: TYPES[protocol]}, {group: None}, soon())[group]
    assert isinstance(described, Description)
    assert described.group == Group(group, TYPES[protocol], "consumer", GroupState.STABLE, -1)
    assert described.protocol in ("range", "uniform")
    (member,) = described.members
    assert member.client_id == f"of-{group}"
    assert member.host == "/127.0.0.1"
    assert member.topics == (topic,)
    assert member.assignment == tuple(Partition(topic, index) for index in range(3))
    assert (described.epoch is None) == (member.epoch is None) == (protocol == "classic")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_empty_group_is_described_without_members(client: Client, make: Maker, protocol: Protocol) -> None:
    """Empty, with nobody in it."""
    group = make.abandoned(make.name("left"), make.topic(), protocol)
    described = describe_groups(client, {group: TYPES[protocol]}, {group: 1}, soon())[group]
    assert isinstance(described, Description)
    assert described.group.state is GroupState.EMPTY
    assert described.members == ()


@pytest.mark.parametrize("kind", [GroupType.CLASSIC, GroupType.CONSUMER, GroupType.SHARE, GroupType.STREAMS])
def test_an_absent_group_is_not_found(client: Client, make: Maker, kind: GroupType) -> None:
    """Absence has a name of its own, and is neither Dead nor Empty."""
    name = make.name("absent")
    answer = describe_groups(client, {name: kind}, {name: None}, soon())[name]
    assert isinstance(answer, Fault)
    assert answer.code == "GROUP_ID_NOT_FOUND"
    assert not answer.retriable


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_empty_group_is_deleted_with_its_offsets(client: Client, make: Maker, protocol: Protocol) -> None:
    """None = deleted, and then it is no longer listed."""
    group = make.abandoned(make.name("left"), make.topic(), protocol)
    assert delete_groups(client, {group: None}, soon()) == {group: None}
    assert group not in make.groups()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_live_group_is_not_deleted(client: Client, make: Maker, protocol: Protocol) -> None:
    """The broker's own guard answers NON_EMPTY_GROUP, and the group stays Stable."""
    group = make.name("live")
    make.join(group, make.topic(), protocol)
    fault = delete_groups(client, {group: 1}, soon())[group]
    assert isinstance(fault, Fault)
    assert fault.code == "NON_EMPTY_GROUP"
    assert make.groups()[group] == "STABLE"


def test_each_group_of_a_delete_has_its_own_answer(client: Client, make: Maker) -> None:
    """A live and an absent group don't keep an Empty one from being deleted, and the other way round."""
    topic, live, absent = make.topic(), make.name("live"), make.name("absent")
    make.join(live, topic)
    left = make.abandoned(make.name("left"), topic)
    answers = delete_groups(client, dict.fromkeys((live, absent, left)), soon())
    codes = {name: fault.code if fault else None for name, fault in answers.items()}
    assert codes == {live: "NON_EMPTY_GROUP", absent: "GROUP_ID_NOT_FOUND", left: None}


def test_a_delete_without_a_connection_answers_for_each_group(client: Client, make: Maker) -> None:
    """A coordinator that isn't there is a fault of every group that was to be deleted at it, and none is."""
    group = make.abandoned(make.name("left"), make.topic())
    fault = delete_groups(client, {group: 77}, soon())[group]
    assert isinstance(fault, Fault)
    assert fault.code == "BROKER_NOT_AVAILABLE"
    assert make.groups()[group] == "EMPTY"
