"""Coordinators that move or die, and groups that vanish, while a scan or a deletion is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

import pytest

from group_hygiene import reasons
from group_hygiene.connection import Settings
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.kafka.cluster import read_cluster
from group_hygiene.kafka.groups import list_groups
from group_hygiene.kafka.mirror import Checkpoints
from group_hygiene.kafka.offsets import committed_offsets
from group_hygiene.model import Cluster, Fault, Offsets, OutcomeKind
from group_hygiene.reconcile import Observation
from sandbox.kafka import KafkaCluster
from tests.kafka.makers import Maker, at, soon, wait_for
from tests.kafka.scene import Scene, alert, planned, policy, verdicts

BROKERS = {1, 2, 3}
# Three replicas of each partition, so that coordinators move when a broker is lost.
MANY = {"offsets.topic.num.partitions": "12"}


@pytest.fixture(scope="module")
def trio() -> Iterator[KafkaCluster]:
    """Three brokers that can take over from each other."""
    with KafkaCluster(brokers=3, config=MANY) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(trio: KafkaCluster) -> Iterator[Client]:
    """The product's client, connected to all three."""
    made = connect(Settings(tuple(trio.bootstrap_servers.split(","))))
    yield made
    made.close()


@pytest.fixture
def make(trio: KafkaCluster) -> Iterator[Maker]:
    """Makes what the test needs in the three brokers."""
    maker = Maker(trio.bootstrap_servers)
    yield maker
    maker.close()


@pytest.fixture
def topic(make: Maker) -> str:
    """A topic of three replicas with records."""
    return make.topic(records=5, replicas=3)


@pytest.fixture
def commits(make: Maker, topic: str) -> dict[str, Offsets]:
    """Simple groups on all brokers -> what each has committed."""
    made: dict[str, Offsets] = {make.name("simple"): at(topic, number % 5) for number in range(200)}
    make.simple_groups(made)
    return made


class Between(Checkpoints):
    """What a scan remembers of checkpoints; does something when it is asked: after the lists, before offsets."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self._action: Callable[[], object] | None = action

    def read(self, client: Client, topics: Iterable[str], deadline: Deadline) -> frozenset[str] | Fault:
        action, self._action = self._action, None
        if action is not None:
            action()
        return super().read(client, topics, deadline)


def seen(client: Client) -> Cluster:
    cluster = read_cluster(client, soon())
    assert isinstance(cluster, Cluster)
    return cluster


def all_back(client: Client, trio: KafkaCluster, broker: int) -> None:
    """Start a broker that was lost, and wait until nothing is missing."""
    trio.start_broker(broker)
    wait_for(lambda: set(seen(client).brokers) == BROKERS and not list_groups(client, seen(client), soon()).faults)


def busiest(client: Client) -> int:
    """The broker that coordinates the most partitions of the offsets topic."""
    leaders = [broker for broker, _ in seen(client).leaders.values()]
    return max(BROKERS, key=leaders.count)


def of(observation: Observation, make: Maker) -> set[str]:
    return {name for name in observation.snapshot.groups if make.tag in name}


def test_a_coordinator_that_moves_is_followed_and_stops_deletions(
    trio: KafkaCluster, client: Client, make: Maker, topic: str, commits: dict[str, Offsets]
) -> None:
    """Between list and fetch: all offsets are read, but the scan is incomplete. Before a deletion: nothing goes."""
    old = {make.abandoned(make.name("old"), topic) for _ in range(3)}
    look, tidy = alert(f"{make.tag}simple*", committed="None"), policy(f"{make.tag}old*")
    planning = Scene(client)
    before, plan = planning.plan(tidy)
    assert set(plan.actions) == old
    # While a broker is gone a scan with something due takes all of its time.
    scene, moved = Scene(client, timeout="8s"), busiest(client)
    scene.observe(tidy)
    scene.memory.checkpoints = Between(lambda: trio.stop_broker(moved))
    try:
        observation = scene.observe(look, tidy, after=60)
        assert any(group.coordinator == moved for group in observation.snapshot.groups.values())
        assert verdicts(observation, look) == dict.fromkeys(commits, reasons.HAS_OFFSETS)
        evidence = {name: verdict.evidence.offsets for name, verdict in observation.verdicts[look.key].items()}
        assert evidence == commits
        assert any("leaders of __consumer_offsets changed" in problem for problem in observation.snapshot.incomplete)
        # Their partitions move, too: some of the ends may be unknown for a moment.
        assert set(verdicts(observation, tidy)) == old
        assert set(verdicts(observation, tidy).values()) <= {"Match", reasons.LAG_UNKNOWN}
        refused = planned(observation, tidy)
        assert refused.actions == ()
        assert (refused.refusal.reason if refused.refusal else None) == (
            reasons.SNAPSHOT_INCOMPLETE if refused.due else None
        )

        outcomes = {(outcome.group, outcome.kind, outcome.reason) for outcome in planning.apply(plan, before)}
        assert outcomes == {(group, OutcomeKind.KEPT, reasons.SNAPSHOT_INCOMPLETE) for group in old}
        assert old <= make.groups().keys()
    finally:
        all_back(client, trio, moved)
    fresh = planning.observe(tidy, after=1)
    plan = planned(fresh, tidy)
    assert set(plan.actions) == old
    assert {outcome.kind for outcome in planning.apply(plan, fresh)} == {OutcomeKind.DELETED}
    assert make.groups().keys() == commits.keys()


def test_a_broker_that_dies_during_a_scan_hides_nothing(
    trio: KafkaCluster, client: Client, make: Maker, topic: str, commits: dict[str, Offsets]
) -> None:
    """At whatever moment: a scan that says it is complete has every group, and one that is not deletes nothing."""
    old = {make.abandoned(make.name("old"), topic) for _ in range(3)}
    everything = commits.keys() | old
    scene, look, tidy = Scene(client, timeout="4s"), alert(f"{make.tag}*", committed="None"), policy(f"{make.tag}old*")
    scene.observe(look, tidy)
    lost = busiest(client)
    homes = {name: group.coordinator for name, group in list_groups(client, seen(client), soon()).groups.items()}
    others = {name for name in everything if homes[name] != lost}
    killer = threading.Timer(0.3, trio.kill_broker, [lost])
    killer.start()
    incomplete: list[Observation] = []
    try:
        observation = scene.observe(look, tidy, after=1)
        while killer.is_alive() or not incomplete or not observation.snapshot.complete:
            observation = scene.observe(look, tidy, after=1)
            if observation.snapshot.complete:
                assert of(observation, make) == everything
            else:
                incomplete.append(observation)
                assert of(observation, make) >= others
                plan = planned(observation, tidy)
                assert plan.actions == ()
                assert plan.refusal is None or plan.refusal.reason == reasons.SNAPSHOT_INCOMPLETE
            answered = verdicts(observation, look)
            assert {name for name in others if answered[name] != reasons.HAS_OFFSETS} == set()
        assert all(observation.snapshot.broker_faults.keys() <= {lost} for observation in incomplete)
        # The other brokers have taken over: nothing is lost with one of three.
        assert set(verdicts(observation, look).values()) == {reasons.HAS_OFFSETS}
        assert dict(committed_offsets(client, dict.fromkeys(commits), soon())) == commits
    finally:
        killer.join()
        all_back(client, trio, lost)


def test_a_group_that_is_deleted_between_list_and_fetch_is_gone(
    client: Client, make: Maker, topic: str, commits: dict[str, Offsets]
) -> None:
    """It looks as if it had no offsets; whoever wants to delete it is told that it is gone, and the others go."""
    gone, other = make.abandoned(make.name("old"), topic, commit={}), make.abandoned(make.name("old"), topic, commit={})
    scene, tidy = Scene(client), policy(f"{make.tag}old*", committed="None")
    look = alert(f"{make.tag}simple*", committed="None")
    scene.observe(tidy)
    simple = next(iter(commits))

    def both() -> None:
        make.delete_group(gone)
        make.delete_group(simple)

    scene.memory.checkpoints = Between(both)
    observation = scene.observe(tidy, look, after=60)
    assert observation.snapshot.complete
    assert verdicts(observation, look) == dict.fromkeys(commits, reasons.HAS_OFFSETS) | {simple: "Match"}
    plan = planned(observation, tidy)
    assert set(plan.actions) == {gone, other}
    outcomes = {outcome.group: (outcome.kind, outcome.reason) for outcome in scene.apply(plan, observation)}
    assert outcomes == {
        gone: (OutcomeKind.KEPT, reasons.GONE),
        other: (OutcomeKind.DELETED, reasons.DELETED),
    }
