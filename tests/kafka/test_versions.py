"""The same product on brokers of several generations: what older ones can't do is done in another way, and said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from group_hygiene.engine.context import read_offsets
from group_hygiene.engine.executor import Executor
from group_hygiene.engine.restorable import RestoreRequest, ResultKind
from group_hygiene.engine.restoration import restore
from group_hygiene.kafka.changes import commit_offsets, delete_groups, delete_offsets, set_share_offsets
from group_hygiene.kafka.client import CLIENT_ID, Client
from group_hygiene.kafka.cluster import features, hidden_topics, offsets_retention_minutes
from group_hygiene.kafka.groups import describe_groups, list_groups
from group_hygiene.kafka.offsets import (
    ShareOffsets,
    committed_offsets,
    end_offsets,
    offsets_at,
    share_offsets,
    start_offsets,
)
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.groups import CommittedOffset, Description, Fault, Group, GroupState, GroupType, Partition
from testing.sandbox.kafka import KafkaCluster
from tests.kafka.makers import Maker, at, seen, soon
from tests.kafka.scene import Guard, Scene, policy, verdicts

pytestmark = pytest.mark.slow  # each command on each version of the brokers

NO_STATES = "brokers older than 2.6 list no states: each group was described"
NO_TYPES = "brokers older than 3.8 list no types: all groups are taken for Classic"
EVERYWHERE = {"RequireStable", "OffsetDelete"}
SINCE_2_8 = EVERYWHERE | {"ListGroupsStateFilter", "TopicIds"}
SINCE_3_9 = SINCE_2_8 | {
    "ListGroupsTypeFilter",
    "BatchedOffsetFetch",
    "BatchedFindCoordinator",
    "ConsumerGroupDescribe",
}
SINCE_4 = SINCE_3_9 | {"DescribeAbsentGroups"}


@dataclass(frozen=True)
class Generation:
    """What brokers of one version can do, and what a list that is filtered by state and type says of them."""

    version: str
    features: frozenset[str]
    notes: tuple[str, ...] = ()


GENERATIONS = (
    Generation("2.5.1", frozenset(EVERYWHERE), (NO_STATES, NO_TYPES)),
    Generation("2.8.2", frozenset(SINCE_2_8), (NO_TYPES,)),
    Generation("3.9.1", frozenset(SINCE_3_9)),
    Generation("4.2.0", frozenset(SINCE_4)),
    Generation("4.2.1", frozenset(SINCE_4)),
    Generation("4.3.0", frozenset(SINCE_4)),
    Generation("4.4.0", frozenset(SINCE_4)),
)


@pytest.fixture(scope="module", params=GENERATIONS, ids=lambda generation: str(generation.version))
def generation(request: pytest.FixtureRequest) -> Generation:
    """Each of them in turn."""
    assert isinstance(request.param, Generation)
    return request.param


@pytest.fixture(scope="module")
def kafka(generation: Generation) -> Iterator[KafkaCluster]:
    """One broker of that version that counts requests."""
    with KafkaCluster(generation.version, request_log=True) as running:
        yield running


@dataclass(frozen=True)
class Population:
    """Groups of each kind, named by what they are; `topic` has 5 records in the first of two partitions."""

    topic: str
    abandoned: str
    caught_up: str
    simple: str
    live: str

    def listed(self) -> dict[str, Group]:
        """What each must be listed as."""
        groups = [
            Group(name, GroupType.CLASSIC, protocol_type, state, 1)
            for name, protocol_type, state in (
                (self.abandoned, "consumer", GroupState.EMPTY),
                (self.caught_up, "consumer", GroupState.EMPTY),
                (self.simple, "", GroupState.EMPTY),
                (self.live, "consumer", GroupState.STABLE),
            )
        ]
        return {group.id: group for group in groups}


@pytest.fixture(scope="module")
def resident(kafka: KafkaCluster) -> Iterator[Maker]:
    """Makes what tests that only read can share."""
    maker = Maker(kafka.bootstrap_servers)
    yield maker
    maker.close()


@pytest.fixture(scope="module")
def population(resident: Maker) -> Population:
    """One for all tests that only read."""
    return populate(resident)


def populate(make: Maker) -> Population:
    """A group of every kind, left by real clients or still in use."""
    topic = make.topic(partitions=2, records=5)
    abandoned = make.abandoned(make.name("abandoned"), topic, commit=at(topic, 2))
    caught_up = make.abandoned(make.name("caught-up"), topic, commit=at(topic, 5))
    simple = make.simple(make.name("simple"), at(topic, 3) | at(topic, 0, partition=1))
    live = make.name("live")
    make.join(live, topic, commit=at(topic, 1))
    return Population(topic, abandoned, caught_up, simple, live)


def positions(answer: object) -> dict[Partition, int]:
    assert isinstance(answer, dict)
    return {partition: commit.offset for partition, commit in answer.items()}


def test_features_are_those_of_the_version(client: Client, generation: Generation) -> None:
    """Each fallback hangs on one of them; what the brokers say decides, and never their version."""
    assert set(features(client)) == generation.features


@pytest.mark.usefixtures("population")
def test_the_cluster_is_read(client: Client, kafka: KafkaCluster) -> None:
    """Id, brokers, leaders with their epochs, permissions, retention and hidden topics: on every version."""
    cluster = seen(client)
    assert cluster.id == kafka.cluster_id
    assert cluster.leaders == dict.fromkeys(range(5), (1, 0))
    assert cluster.problems == ()
    assert offsets_retention_minutes(client, cluster, soon()) == 7 * 24 * 60
    assert hidden_topics(client, cluster, soon()) == ()


def test_every_group_is_listed_as_it_is(
    client: Client, generation: Generation, resident: Maker, population: Population
) -> None:
    """State, protocol type and coordinator; where they are not in the list the groups were described."""
    listing = list_groups(client, seen(client), soon())
    assert {name: group for name, group in listing.groups.items() if resident.tag in name} == population.listed()
    assert not listing.faults
    assert listing.notes == tuple(note for note in generation.notes if note == NO_STATES)


def test_a_list_is_filtered_where_the_broker_can_not(
    client: Client, generation: Generation, kafka: KafkaCluster, resident: Maker, population: Population
) -> None:
    """Empty ones only, with the note that says so, and no more requests than that needs."""
    empty = {name: group for name, group in population.listed().items() if group.state is GroupState.EMPTY}
    cluster, mark = seen(client), kafka.mark()
    listing = list_groups(client, cluster, soon(), {GroupState.EMPTY}, {GroupType.CLASSIC})
    assert {name: group for name, group in listing.groups.items() if resident.tag in name} == empty
    assert not listing.faults
    assert listing.notes == generation.notes
    counts = [
        kafka.count_requests(api, client_id=CLIENT_ID, since=mark)[1] for api in ("LIST_GROUPS", "DESCRIBE_GROUPS")
    ]
    # Before and after the list, what the broker has loaded is asked for by DescribeGroups.
    assert counts == [1, 2 if "ListGroupsStateFilter" in generation.features else 3]


def test_a_list_of_types_that_brokers_do_not_list(client: Client, generation: Generation) -> None:
    """No group has them, which the note explains; a broker that knows them lists none."""
    listing = list_groups(client, seen(client), soon(), (), {GroupType.SHARE, GroupType.STREAMS})
    assert not listing.groups
    assert not listing.faults
    assert listing.notes == generation.notes


def test_groups_are_described(client: Client, generation: Generation, resident: Maker, population: Population) -> None:
    """With members; and an absent one is Dead, or not found where brokers tell the two apart."""
    absent = resident.name("absent")
    listed = population.listed()
    types = {name: group.type for name, group in listed.items()} | {absent: GroupType.CLASSIC}
    coordinators = {name: group.coordinator for name, group in listed.items()} | {absent: None}
    described = describe_groups(client, types, coordinators, soon())
    gone = described.pop(absent)
    if "DescribeAbsentGroups" in generation.features:
        assert isinstance(gone, Fault)
        assert gone.code == "GROUP_ID_NOT_FOUND"
    else:
        assert isinstance(gone, Description)
        assert gone.group.state is GroupState.DEAD
    for name, group in population.listed().items():
        answer = described[name]
        assert isinstance(answer, Description)
        assert (answer.group.state, answer.group.protocol_type) == (group.state, group.protocol_type)
        assert [member.client_id for member in answer.members] == ([f"of-{name}"] if name == population.live else [])
    live = described[population.live]
    assert isinstance(live, Description)
    assert live.members[0].topics == (population.topic,)
    assert live.members[0].assignment == (Partition(population.topic, 0), Partition(population.topic, 1))


@pytest.mark.parametrize("looked_up", [pytest.param(False, id="coordinator-known"), pytest.param(True, id="looked-up")])
def test_offsets_of_several_groups_are_read(
    client: Client, generation: Generation, kafka: KafkaCluster, population: Population, looked_up: bool
) -> None:
    """In one request for all, or in one for each group where the broker takes no more; the same for the look-up."""
    topic, absent = population.topic, "absent"
    groups = dict.fromkeys([*population.listed(), absent], None if looked_up else 1)
    mark = kafka.mark()
    answers = committed_offsets(client, groups, soon())
    assert {name: positions(answer) for name, answer in answers.items()} == {
        population.abandoned: {Partition(topic, 0): 2},
        population.caught_up: {Partition(topic, 0): 5},
        population.simple: {Partition(topic, 0): 3, Partition(topic, 1): 0},
        population.live: {Partition(topic, 0): 1},
        absent: {},
    }
    apis = ("OFFSET_FETCH", "FIND_COORDINATOR")
    fetches, look_ups = (kafka.count_requests(api, client_id=CLIENT_ID, since=mark)[1] for api in apis)
    assert fetches == (1 if "BatchedOffsetFetch" in generation.features else len(groups))
    one_by_one = 1 if "BatchedFindCoordinator" in generation.features else len(groups)
    assert look_ups == (one_by_one if looked_up else 0)


def test_named_partitions_and_stable_offsets_are_read(client: Client, population: Population) -> None:
    """As the re-read before a deletion asks for them."""
    named = [Partition(population.topic, 1), Partition("no-such-topic", 0)]
    groups = dict.fromkeys([population.simple, population.abandoned])
    answers = committed_offsets(client, groups, soon(), named, require_stable=True)
    assert {name: positions(answer) for name, answer in answers.items()} == {
        population.simple: {Partition(population.topic, 1): 0},
        population.abandoned: {},
    }


def test_ends_and_starts_are_read(client: Client, make: Maker) -> None:
    """Of each partition; one that isn't there is a fault of its own."""
    topic = make.topic(partitions=2, records=3)
    wanted = {Partition(topic, 0): 3, Partition(topic, 1): 0}
    assert end_offsets(client, wanted, soon()) == wanted
    answers = start_offsets(client, [*wanted, Partition(topic, 7)], soon())
    fault = answers.pop(Partition(topic, 7))
    assert isinstance(fault, Fault)
    assert fault.code == "UNKNOWN_TOPIC_OR_PARTITION"
    assert answers == dict.fromkeys(wanted, 0)


def test_the_broker_keeps_a_group_with_members(client: Client, make: Maker) -> None:
    """NON_EMPTY_GROUP, and the other group of the same request is deleted."""
    topic, live = make.topic(), make.name("live")
    make.join(live, topic)
    left = make.abandoned(make.name("left"), topic)
    answers = delete_groups(client, dict.fromkeys([live, left]), soon())
    fault = answers[live]
    assert isinstance(fault, Fault)
    assert fault.code == "NON_EMPTY_GROUP"
    assert answers[left] is None
    assert make.groups() == {live: "STABLE"}


def test_exactly_the_abandoned_group_is_deleted(client: Client, generation: Generation, make: Maker) -> None:
    """A whole run: the caught-up, the simple and the live group stay, each for its reason."""
    population = populate(make)
    scene, tidy = Scene(client), policy(f"{make.tag}*")
    first = scene.observe(tidy)
    assert first.snapshot.notes == generation.notes
    scene.marked(tidy, [population.abandoned])
    observation = scene.observe(tidy, after=60)
    assert observation.snapshot.complete
    assert verdicts(observation, tidy) == {
        population.abandoned: "Match",
        population.caught_up: reasons.CAUGHT_UP,
        population.simple: reasons.SIMPLE,
    }
    plan = scene.planned(observation, tidy)
    assert plan.refusal is None
    assert plan.actions == (population.abandoned,)
    (outcome,) = scene.apply(plan, observation)
    assert (outcome.group, outcome.kind) == (population.abandoned, OutcomeType.DELETED)
    assert make.groups() == {
        population.live: "STABLE",
        population.simple: "EMPTY",
        population.caught_up: "EMPTY",
    }


def test_changes_between_scan_and_deletion_have_their_own_reasons(client: Client, make: Maker) -> None:
    """Joined, deleted, or in a transaction: each has its reason on every version, and the others go."""
    topic = make.topic(partitions=2, records=5)
    joined, gone, transactional, left = (
        make.abandoned(make.name(what), topic) for what in ("joined", "gone", "transactional", "left")
    )
    scene = Scene(client)
    observation, plan = scene.plan(policy(f"{make.tag}*"))
    assert set(plan.actions) == {joined, gone, transactional, left}
    make.join(joined, topic)
    make.delete_group(gone)
    producer = make.pending(transactional, at(topic, 4, partition=1))
    try:
        outcomes = {outcome.group: (outcome.kind, outcome.reason) for outcome in scene.apply(plan, observation)}
    finally:
        producer.abort_transaction(60)
    assert outcomes == {
        joined: (OutcomeType.NOT_DELETED, reasons.BECAME_ACTIVE),
        gone: (OutcomeType.NOT_DELETED, reasons.GONE),
        transactional: (OutcomeType.NOT_DELETED, reasons.PENDING_TRANSACTION),
        left: (OutcomeType.DELETED, reasons.DELETED),
    }
    assert make.groups() == {joined: "STABLE", transactional: "EMPTY"}


@pytest.mark.usefixtures("population")
def test_what_is_committed_is_there(client: Client, make: Maker) -> None:
    """To an absent and to an Empty group, exactly; a partition that isn't there has a fault of its own."""
    topic, absent = make.topic(partitions=2), make.name("restored")
    left = make.abandoned(make.name("left"), topic)
    commit = {
        Partition(topic, 0): CommittedOffset(7, 0, "from host-1, ünïcode"),
        Partition(topic, 1): CommittedOffset(0),
    }
    for group in (absent, left):
        answers = commit_offsets(client, group, commit | at("no-such-topic", 1), soon())
        fault = answers.pop(Partition("no-such-topic", 0))
        assert isinstance(fault, Fault)
        assert fault.code == "UNKNOWN_TOPIC_OR_PARTITION"
        assert answers == dict.fromkeys(commit)
        assert committed_offsets(client, {group: None}, soon()) == {group: commit}


def test_a_deleted_group_is_restored(client: Client, make: Maker) -> None:
    """By its backup in the ledger: what was committed, with the leader epoch."""
    topic = make.topic(partitions=2, records=5)
    group = make.abandoned(make.name("old"), topic, commit=at(topic, 3) | at(topic, 0, partition=1))
    before = committed_offsets(client, {group: None}, soon())
    scene = Scene(client)
    observation, plan = scene.plan(policy(f"{make.tag}*"))
    (outcome,) = scene.apply(plan, observation)
    assert (outcome.group, outcome.kind) == (group, OutcomeType.DELETED)
    assert group not in make.groups()
    assert scene.memory.ledger is not None
    restorer = Executor(scene.context, Guard())
    request = RestoreRequest(id="restore-1", groups=(group,), allow_unknown_topic_identity=True)
    (result,) = restore(restorer, request)
    assert (result.kind, result.restored) == (ResultKind.RESTORED, 2)
    assert committed_offsets(client, {group: None}, soon()) == before


def test_no_commit_into_a_group_with_members(client: Client, make: Maker) -> None:
    """The broker refuses, for each partition, and what the members committed stays."""
    topic, live = make.topic(partitions=2), make.name("live")
    make.join(live, topic, commit=at(topic, 3))
    answers = commit_offsets(client, live, at(topic, 9) | at(topic, 9, partition=1), soon())
    faults = {place: fault.code for place, fault in answers.items() if fault}
    assert faults == dict.fromkeys([Partition(topic, 0), Partition(topic, 1)], "UNKNOWN_MEMBER_ID")
    assert positions(committed_offsets(client, {live: None}, soon())[live]) == {Partition(topic, 0): 3}


def test_offsets_are_deleted_one_by_one(client: Client, make: Maker) -> None:
    """Only the named ones, and one that was never committed is no fault; a group that isn't there is."""
    topic = make.topic(partitions=3)
    group = make.simple(make.name("simple"), at(topic, 1) | at(topic, 2, partition=1))
    never = Partition(topic, 2)
    assert delete_offsets(client, group, [Partition(topic, 0), never], soon()) == {
        Partition(topic, 0): None,
        never: None,
    }
    assert positions(committed_offsets(client, {group: None}, soon())[group]) == {Partition(topic, 1): 2}
    (fault,) = delete_offsets(client, make.name("absent"), [never], soon()).values()
    assert isinstance(fault, Fault)
    assert fault.code == "GROUP_ID_NOT_FOUND"


def test_offsets_of_a_subscribed_topic_are_not_deleted(client: Client, make: Maker) -> None:
    """GROUP_SUBSCRIBED_TO_TOPIC for its partitions alone (KIP-496)."""
    topic, other, live = make.topic(), make.topic(), make.name("live")
    make.join(live, topic, commit=at(topic, 3) | at(other, 4))
    answers = delete_offsets(client, live, [Partition(topic, 0), Partition(other, 0)], soon())
    fault = answers[Partition(topic, 0)]
    assert isinstance(fault, Fault)
    assert fault.code == "GROUP_SUBSCRIBED_TO_TOPIC"
    assert answers[Partition(other, 0)] is None
    assert positions(committed_offsets(client, {live: None}, soon())[live]) == {Partition(topic, 0): 3}


@pytest.mark.usefixtures("population")
def test_more_than_a_batch_can_hold_is_written_in_several(client: Client, kafka: KafkaCluster, make: Maker) -> None:
    """A broker writes a commit as one batch, and refuses one that is larger than max.message.bytes."""
    count = 130
    topic, group = make.topic(partitions=count), make.name("wide")
    commit = {Partition(topic, index): CommittedOffset(index, 0, "m" * 4000) for index in range(count)}
    mark = kafka.mark()
    assert set(commit_offsets(client, group, commit, soon()).values()) == {None}
    assert kafka.count_requests("OFFSET_COMMIT", client_id=CLIENT_ID, since=mark) == {1: 2}
    assert committed_offsets(client, {group: None}, soon()) == {group: commit}


def test_share_groups_are_left_alone_where_they_cannot_be_saved(
    client: Client, generation: Generation, make: Maker
) -> None:
    """Before 4.1 nobody can tell or set their offsets: a Fault that keeps a group, and nothing is sent or made."""
    topic, group = make.topic(records=1), make.name("share")
    answer, given = share_offsets(client, {group: None}, soon())[group], {Partition(topic, 0): CommittedOffset(1)}
    asked_for = policy(f"{make.tag}*", match={"types": ["Classic", "Share"], "unprotect": ["Share"]})
    other = make.abandoned(make.name("old"), topic)
    observation = Scene(client).observe(asked_for)
    assert verdicts(observation, asked_for) == {other: reasons.TOO_RECENT}
    if "DescribeAbsentGroups" in generation.features:
        assert answer == ShareOffsets({}, frozenset())
        return
    assert answer == Fault("UNSUPPORTED_VERSION", "offsets of share groups need brokers of 4.1 or later")
    assert read_offsets(client, {group: GroupType.SHARE}, {group: None}, soon()) == {group: answer}
    (refused,) = set_share_offsets(client, group, given, soon()).values()
    assert refused is not None
    assert refused.code == "UNSUPPORTED_VERSION"
    assert group not in make.groups()


def test_offsets_are_found_by_time(client: Client, make: Maker) -> None:
    """The first record of that time or later; none where all are older."""
    topic = make.topic(partitions=2, records=3)
    place, empty = Partition(topic, 0), Partition(topic, 1)
    assert offsets_at(client, {place: 0, empty: 0, Partition(topic, 9): 0}, soon()) == {
        place: 0,
        empty: None,
        Partition(topic, 9): Fault("UNKNOWN_TOPIC_OR_PARTITION", f"{topic}-9"),
    }
    assert offsets_at(client, {place: 4_000_000_000_000}, soon()) == {place: None}
