"""Coordinators that move or die, and groups that vanish or are denied, while a scan or a deletion is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import NewTopic
from kafka.protocol.admin import ListGroupsRequest

from group_hygiene.engine.context import Observation
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import hidden_topics
from group_hygiene.kafka.groups import list_groups
from group_hygiene.kafka.mirror import Checkpoints
from group_hygiene.kafka.offsets import committed_offsets
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.groups import Fault, Offsets
from group_hygiene.spec.client_settings import Mechanism, Sasl, Settings
from group_hygiene.spec.fields import Hidden
from testing.faults.leaders import lists_while_leaders_move, mover
from testing.sandbox.kafka import KafkaCluster, Security
from testing.sandbox.waiting import wait_for
from tests.kafka.clients import Around
from tests.kafka.makers import Maker, at, seen, soon
from tests.kafka.permissions import DELETE, DESCRIBE, EXAMPLE, GROUP, TOPIC, grant, ledger_least
from tests.kafka.scene import Scene, alert, policy, verdicts

pytestmark = pytest.mark.slow  # brokers that die, and come back

BROKERS = {1, 2, 3}
# Three replicas of each partition, so that coordinators move when a broker is lost.
MANY = {"offsets.topic.num.partitions": "12"}
# Until the controller calls a broker dead: longer than the scans below take.
SESSION = {"broker.session.timeout.ms": "25000"}
USER, PASSWORD = "hygiene", "a-password"
# A name that begins so is denied the one or the other.
NO_DESCRIBE, NO_DELETE = "no-describe-", "no-delete-"
LEDGERS = "__group_hygiene-"
DENIED = (
    (USER, (GROUP, NO_DESCRIBE, DESCRIBE)),
    (USER, (TOPIC, NO_DESCRIBE, DESCRIBE)),
    (USER, (GROUP, NO_DELETE, DELETE)),
)


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """Three brokers that can take over from each other, with a user that may do no more than it needs."""
    security = Security(sasl="PLAIN", users={USER: PASSWORD}, authorizer=True)
    with KafkaCluster(brokers=3, security=security, config=MANY | SESSION) as cluster:
        maker = Maker(cluster.plaintext_bootstrap)
        grant(maker, {USER: (*EXAMPLE, *ledger_least(LEDGERS))}, DENIED)
        maker.close()
        yield cluster


@pytest.fixture(scope="module")
def access(kafka: KafkaCluster) -> Settings:
    """As that user."""
    return Settings(tuple(kafka.bootstrap_servers.split(",")), sasl=Sasl(Mechanism.PLAIN, USER, Hidden(PASSWORD)))


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


def all_back(client: Client, kafka: KafkaCluster, broker: int) -> None:
    """Start a broker that was lost, and wait until nothing is missing."""
    kafka.start_broker(broker)
    wait_for(lambda: set(seen(client).brokers) == BROKERS and not list_groups(client, seen(client), soon()).faults)


def busiest(client: Client) -> int:
    """The broker that coordinates the most partitions of the offsets topic."""
    leaders = [broker for broker, _ in seen(client).leaders.values()]
    return max(BROKERS, key=leaders.count)


def not_on(client: Client, broker: int) -> set[str]:
    """All groups that another broker coordinates."""
    listed = list_groups(client, seen(client), soon()).groups
    return {name for name, group in listed.items() if group.coordinator != broker}


def elect_preferred(client: Client, make: Maker) -> None:
    """Let each partition be led by the first of its replicas, once that has caught up; returns when some moved."""
    before = seen(client).leaders

    def moved() -> bool:
        make.admin.elect_leaders(ElectionType.PREFERRED).result()
        return seen(client).leaders != before

    wait_for(moved)


def of(observation: Observation, make: Maker) -> set[str]:
    return {name for name in observation.snapshot.groups if make.tag in name}


def test_a_complete_list_lacks_no_group_while_leaders_move(
    kafka: KafkaCluster, client: Client, make: Maker, topic: str
) -> None:
    """A leader that was just elected lists no group of a partition that it has not begun to load, without an error.

    Nor one whose records it has loaded, but does not yet know to be committed.
    """

    def commit() -> Collection[str]:
        made: dict[str, Offsets] = {make.name("simple"): at(topic, 1) for _ in range(40)}
        make.simple_groups(made)
        return made.keys()

    lists = lists_while_leaders_move(client, kafka.plaintext_bootstrap, commit, moves=20)
    assert (lists.moves, lists.lacking) == (20, 0)
    assert lists.complete >= 20


def test_a_leader_that_has_its_partitions_back_is_no_proof(
    kafka: KafkaCluster, client: Client, make: Maker, topic: str
) -> None:
    """It has loaded them before the list and after it, and did not lead them when it listed."""

    def has_loaded() -> bool:
        """A leader that missed a commit while it loaded counts as not loaded until the next commit."""
        make.simple_groups({make.name("simple"): at(topic, 1) for _ in range(40)})
        return not list_groups(client, seen(client), soon()).not_loaded

    wait_for(has_loaded)
    before = seen(client)
    with mover(kafka.plaintext_bootstrap) as move:

        def away(_: int) -> None:
            led = seen(client).leaders
            move()
            wait_for(lambda: all(seen(client).leaders[index] != place for index, place in led.items()))

        def back(count: int) -> None:
            away(count)
            away(count)
            now = {index: leader for index, (leader, _) in seen(client).leaders.items()}
            assert now == {index: leader for index, (leader, _) in before.leaders.items()}
            wait_for(has_loaded)

        around: Any = Around(client, ListGroupsRequest, away, back)
        listing = list_groups(around, before, soon())
    assert listing.faults == {}
    assert listing.not_loaded.keys() == before.leaders.keys()
    assert {fault.code for fault in listing.not_loaded.values()} == {"FENCED_LEADER_EPOCH"}


def test_a_coordinator_that_moves_is_followed_and_stops_deletions(
    kafka: KafkaCluster, client: Client, make: Maker, topic: str, commits: dict[str, Offsets]
) -> None:
    """Between list and fetch: all offsets are read, but the scan is incomplete. Before a deletion: nothing goes."""
    old = {make.abandoned(make.name("old"), topic) for _ in range(3)}
    look, tidy = alert(f"{make.tag}simple*", committedOffsets="Absent"), policy(f"{make.tag}old*")
    planning = Scene(client)
    before, plan = planning.plan(tidy)
    assert set(plan.actions) == old
    # While a broker is gone a scan with something due takes all of its time.
    scene, moved = Scene(client, timeout="40s"), busiest(client)
    scene.observe(tidy)
    scene.marked(tidy, old)
    scene.memory.checkpoints = Between(lambda: kafka.stop_broker(moved))
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
        refused = scene.planned(observation, tidy)
        assert refused.actions == ()
        assert (refused.refusal.reason if refused.refusal else None) == (
            reasons.SNAPSHOT_INCOMPLETE if refused.due else None
        )

        outcomes = {(outcome.group, outcome.kind, outcome.reason) for outcome in planning.apply(plan, before)}
        assert outcomes == {(group, OutcomeType.NOT_DELETED, reasons.SNAPSHOT_INCOMPLETE) for group in old}
    finally:
        all_back(client, kafka, moved)
    # An election brings its partitions back to it. Those that are asked now are alive, and know that they moved.
    returning = Scene(client)
    returning.observe(tidy)
    returning.marked(tidy, old)
    returning.memory.checkpoints = Between(lambda: elect_preferred(client, make))
    observation = returning.observe(look, tidy, after=60)
    assert verdicts(observation, look) == dict.fromkeys(commits, reasons.HAS_OFFSETS)
    assert any("leaders of __consumer_offsets changed" in problem for problem in observation.snapshot.incomplete)
    refused = returning.planned(observation, tidy)
    assert (set(refused.due), refused.actions) == (old, ())

    # Until all coordinators have loaded.
    wait_for(lambda: not list_groups(client, seen(client), soon()).faults)
    fresh = planning.observe(tidy, after=1)
    plan = planning.planned(fresh, tidy)
    assert set(plan.actions) == old
    assert {outcome.kind for outcome in planning.apply(plan, fresh)} == {OutcomeType.DELETED}
    assert of(planning.observe(tidy, full=True), make) == commits.keys()


def test_a_broker_that_dies_between_list_and_offsets_hides_nothing(
    kafka: KafkaCluster, client: Client, make: Maker, topic: str, commits: dict[str, Offsets]
) -> None:
    """Then and later, a scan that says it is complete has every group, and one that is not deletes nothing."""
    old = {make.abandoned(make.name("old"), topic) for _ in range(3)}
    everything = commits.keys() | old
    # Less time than the controller takes to see that a broker is dead.
    scene, look, tidy = (
        Scene(client, timeout="12s"),
        alert(f"{make.tag}*", committedOffsets="Absent"),
        policy(f"{make.tag}old*"),
    )
    scene.observe(look, tidy)
    scene.marked(tidy, old)
    lost = busiest(client)
    others = not_on(client, lost) & everything
    scene.memory.checkpoints = Between(lambda: kafka.kill_broker(lost))
    try:
        observation = scene.observe(look, tidy, after=60)
        assert not observation.snapshot.complete
        assert of(observation, make) == everything
        answered = verdicts(observation, look)
        read = {name for name, reason in answered.items() if reason == reasons.HAS_OFFSETS}
        # Of the others, too, once somebody has taken over.
        assert others <= read <= everything
        assert {answered[name] for name in everything - read} <= {reasons.OFFSETS_UNKNOWN}
        plan = scene.planned(observation, tidy)
        assert set(plan.due) <= read
        assert plan.actions == ()

        # How many of the scans are incomplete depends on how long the ledger keeps the first of them.
        for _ in range(60):
            observation = scene.observe(look, tidy, after=1)
            if observation.snapshot.complete:
                break
            assert of(observation, make) >= others
            assert observation.snapshot.broker_faults.keys() <= {lost}
            plan = scene.planned(observation, tidy)
            assert plan.actions == ()
            # Its ledger may be led by the lost broker.
            refusals = {reasons.SNAPSHOT_INCOMPLETE, reasons.LEDGER_UNAVAILABLE}
            assert plan.refusal is None or plan.refusal.reason in refusals
            answered = verdicts(observation, look)
            assert {name for name in others if answered[name] != reasons.HAS_OFFSETS} == set()
        # The other brokers have taken over: nothing is lost with one of three.
        assert observation.snapshot.complete
        assert of(observation, make) == everything
        assert set(verdicts(observation, look).values()) == {reasons.HAS_OFFSETS}
        assert dict(committed_offsets(client, dict.fromkeys(commits), soon())) == commits
    finally:
        all_back(client, kafka, lost)


def test_a_broker_that_dies_while_it_lists_is_named(
    kafka: KafkaCluster, client: Client, commits: dict[str, Offsets]
) -> None:
    """It has got the request and dies before it answers: all that the others hold is there, its own is a Fault."""
    cluster, lost = seen(client), busiest(client)
    homes = {name: group.coordinator for name, group in list_groups(client, cluster, soon()).groups.items()}
    others = not_on(client, lost)
    kafka.pause_broker(lost)
    killer = threading.Timer(0.5, kafka.kill_broker, [lost])
    killer.start()
    try:
        listing = list_groups(client, cluster, soon(10))
        assert not killer.is_alive()
        assert listing.faults.keys() == {lost}
        assert listing.groups.keys() == others
        offsets = committed_offsets(client, {name: homes[name] for name in commits}, soon(10))
        assert offsets.keys() == commits.keys()
        # Of its own, too, there may be answers, once somebody has taken over.
        assert {name for name, answer in offsets.items() if isinstance(answer, Fault)} <= commits.keys() - others
        # A leader that missed a commit while it loaded answers without it until the next commit, and scans notice.
        after = seen(client)
        missing = list_groups(client, after, soon(10)).not_loaded
        right = {
            name: answer
            for name, answer in offsets.items()
            if not isinstance(answer, Fault) and partition_of(name, len(after.leaders)) not in missing
        }
        assert right == {name: commits[name] for name in right}
    finally:
        killer.join()
        all_back(client, kafka, lost)


def test_a_group_that_is_deleted_between_list_and_fetch_is_gone(
    client: Client, make: Maker, topic: str, commits: dict[str, Offsets]
) -> None:
    """It looks as if it had no offsets; whoever wants to delete it is told that it is gone, and the others go."""
    gone, other = make.abandoned(make.name("old"), topic, commit={}), make.abandoned(make.name("old"), topic, commit={})
    scene, tidy = Scene(client), policy(f"{make.tag}old*", committedOffsets="Absent")
    look = alert(f"{make.tag}simple*", committedOffsets="Absent")
    scene.observe(tidy)
    scene.marked(tidy, [gone, other])
    simple = next(iter(commits))

    def both() -> None:
        make.delete_group(gone)
        make.delete_group(simple)

    scene.memory.checkpoints = Between(both)
    observation = scene.observe(tidy, look, after=60)
    assert observation.snapshot.complete
    assert verdicts(observation, look) == dict.fromkeys(commits, reasons.HAS_OFFSETS) | {simple: "Match"}
    plan = scene.planned(observation, tidy)
    assert set(plan.actions) == {gone, other}
    outcomes = {outcome.group: (outcome.kind, outcome.reason) for outcome in scene.apply(plan, observation)}
    assert outcomes == {
        gone: (OutcomeType.NOT_DELETED, reasons.GONE),
        other: (OutcomeType.DELETED, reasons.DELETED),
    }


def test_a_denied_group_is_alone_with_it(client: Client, make: Maker, topic: str, commits: dict[str, Offsets]) -> None:
    """In batches of many: one whose offsets we may not read, and one that we may not delete."""
    old = {make.abandoned(make.name("old"), topic) for _ in range(2)}
    hidden, held = (make.abandoned(f"{prefix}{make.name('old')}", topic) for prefix in (NO_DESCRIBE, NO_DELETE))
    look, tidy = alert(f"*{make.tag}*", committedOffsets="Absent"), policy(f"*{make.tag}old*")
    scene = Scene(client)
    scene.observe(tidy)
    scene.marked(tidy, [*old, held])
    observation = scene.observe(look, tidy, after=60)
    assert observation.snapshot.complete
    readable = {*commits, *old, held}
    assert verdicts(observation, look) == dict.fromkeys(readable, reasons.HAS_OFFSETS) | {hidden: reasons.DENIED}
    read = {name: verdict.evidence.offsets for name, verdict in observation.verdicts[look.key].items()}
    assert {name: read[name] for name in commits} == commits
    plan = scene.planned(observation, tidy)
    assert set(plan.actions) == {*old, held}
    outcomes = {outcome.group: (outcome.kind, outcome.reason) for outcome in scene.apply(plan, observation)}
    deleted, denied = (OutcomeType.DELETED, reasons.DELETED), (OutcomeType.FAILED, reasons.DENIED)
    assert outcomes == dict.fromkeys(old, deleted) | {held: denied}
    assert make.groups().keys() == {*commits, hidden, held}


def test_a_hidden_topic_on_a_dead_broker_is_not_overlooked(
    kafka: KafkaCluster, client: Client, make: Maker, topic: str
) -> None:
    """Its only replica is there, so no disk shows it: while a broker is gone, nobody knows what is hidden."""
    make.abandoned(make.name("old"), topic)
    lost, name = busiest(client), f"{NO_DESCRIBE}{make.name()}"
    make.admin.create_topics([NewTopic(name, num_partitions=1, replica_assignment=[[lost]])])[name].result()
    wait_for(lambda: hidden_topics(client, seen(client), soon()) == (name,))
    kafka.stop_broker(lost)
    try:
        wait_for(lambda: lost not in seen(client).brokers)
        found = hidden_topics(client, seen(client), soon())
        assert isinstance(found, Fault)
        assert f"broker {lost} " in found.message
    finally:
        all_back(client, kafka, lost)
    wait_for(lambda: hidden_topics(client, seen(client), soon()) == (name,))
    make.admin.delete_topics([name])[name].result()
