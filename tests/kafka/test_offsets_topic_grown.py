"""More partitions for `__consumer_offsets`: brokers put a group's records where the number at their start says.

Metadata names the new number at once (KAFKA-7771, KAFKA-14418, KIP-895). So no partition is computed: a group that was
used stays, in whichever partition a broker wrote that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer
from confluent_kafka.admin import NewPartitions

from group_hygiene.cli import main
from group_hygiene.engine import recovery
from group_hygiene.engine.recovery import LedgerNeed
from group_hygiene.kafka.client import connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.ledger.records import record
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.errors import NotReached
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker
from tests.kafka.scene import Scene, policy
from tests.kafka.test_settling import known_for

pytestmark = pytest.mark.slow

OLD, NEW = 5, 20


class World(NamedTuple):
    """A cluster whose offsets topic grows. restarted: brokers that are restarted then, before groups are used.

    refusal: why nothing may be deleted; None = groups that were not used are.
    """

    refusal: str | None
    brokers: int = 1
    version: str = "4.4.0"
    restarted: tuple[int, ...] = ()


GROWN = reasons.OFFSETS_TOPIC_GROWN
WORLDS = [
    pytest.param(World(GROWN), id="one-broker-not-restarted"),
    pytest.param(World(None, restarted=(1,)), id="one-broker-restarted"),
    pytest.param(World(GROWN, brokers=2), id="two-brokers-not-restarted"),
    pytest.param(World(GROWN, brokers=2, restarted=(1,)), id="two-brokers-one-restarted"),
    pytest.param(World(GROWN, brokers=2, version="2.8.2"), id="two-old-brokers-not-restarted"),
]


class Groups(NamedTuple):
    """Abandoned groups, whose partition is another one by the new number, and the same. gone: a moved one, deleted."""

    moved: list[str]
    same: list[str]
    gone: str


class Place(NamedTuple):
    """A cluster of a World after it has grown, and a scene that scanned it before."""

    world: World
    kafka: KafkaCluster
    make: Maker
    topic: str
    scene: Scene
    groups: Groups

    def use(self, group: str) -> bool:
        """A consumer joins, reads and leaves without a commit. False: it could not, as brokers disagree."""
        consumer = Consumer(
            {"bootstrap.servers": self.kafka.plaintext_bootstrap, "group.id": group, "enable.auto.commit": False}
            | {"auto.offset.reset": "earliest", "log_level": 0}
        )
        consumer.subscribe([self.topic])
        try:
            wait_for(lambda: consumer.poll(0.05) or consumer.assignment(), seconds=30)
        except NotReached:
            return False
        finally:
            consumer.close()
        return True


@pytest.fixture(scope="module", params=WORLDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    world: World = request.param
    config = {"offsets.topic.num.partitions": str(OLD), "offsets.topic.replication.factor": "1"}
    with KafkaCluster(world.version, brokers=world.brokers, config=config) as kafka:
        make = Maker(kafka.plaintext_bootstrap)
        topic = make.topic(records=5, replicas=world.brokers)
        names = [make.name("job") for _ in range(100)]
        gone, *moved = [name for name in names if partition_of(name, OLD) != partition_of(name, NEW)][:4]
        same = [name for name in names if partition_of(name, OLD) == partition_of(name, NEW)][:3]
        for name in (gone, *moved, *same):
            make.abandoned(name, topic)
        client = connect(Settings(tuple(kafka.bootstrap_servers.split(","))))
        scene = Scene(client)
        observation, plan = scene.plan(policy(gone))
        (outcome,) = scene.apply(plan, observation)
        assert outcome.kind is OutcomeType.DELETED
        scene.observe(policy(*moved, *same), full=True)
        make.admin.create_partitions([NewPartitions(OFFSETS_TOPIC, NEW)])[OFFSETS_TOPIC].result()
        wait_for(lambda: len(make.admin.list_topics(OFFSETS_TOPIC).topics[OFFSETS_TOPIC].partitions) == NEW)
        for broker in world.restarted:
            kafka.stop_broker(broker)
            kafka.start_broker(broker)
            kafka.wait_ready()
        yield Place(world, kafka, make, topic, scene, Groups(moved, same, gone))
        client.close()
        make.close()


def test_the_next_scan_shows_it(place: Place) -> None:
    """Also one that does not list all groups, and before any group is used."""

    def shows() -> bool:
        place.scene.observe(policy(*place.groups.moved, *place.groups.same))
        return bool(place.scene.memory.grown)

    if place.world.refusal is None:
        assert not shows()
    else:
        # On a loaded machine, the brokers may not know the new partitions at once.
        wait_for(shows, seconds=60)


def test_a_group_that_is_used_stays(place: Place) -> None:
    """Used between two scans, or between its scan and its deletion, it is Empty with the same offsets at each scan."""
    world, scene, groups = place.world, place.scene, place.groups
    tidy = policy(*groups.moved, *groups.same)
    early, late = (groups.moved[0], groups.same[0]), (groups.moved[1], groups.same[1])
    used = [name for name in early if place.use(name)]
    scene.mark(tidy, scene.observe(tidy, after=60))
    scene.clock.moved += timedelta(seconds=2)
    observation = scene.observe(tidy)
    assert not used or set(used).isdisjoint(scene.planned(observation, tidy).due)
    used += [name for name in late if place.use(name)]
    outcomes = {each.group: each for each in scene.apply(scene.planned(observation, tidy), observation)}
    deleted = {name for name, each in outcomes.items() if each.kind is OutcomeType.DELETED}
    assert deleted.isdisjoint(used)
    again = scene.planned(scene.observe(tidy), tidy)
    if world.refusal is None:
        assert groups.same[2] in deleted, outcomes
        assert outcomes[groups.same[1]].reason == reasons.RECENTLY_ACTIVE
        assert again.refusal is None
    else:
        assert not deleted
        assert again.refusal is not None
        assert again.refusal.reason == world.refusal
        assert "must be restarted" in again.refusal.message
        assert "must be restarted" in scene.observe(tidy).snapshot.refusal.message or world.brokers == 1


def test_doctor_names_the_brokers_to_restart(place: Place) -> None:
    """Also where no group has been used since: its records of before show it."""
    result = CliRunner().invoke(main, ["doctor", "--bootstrap-server", place.kafka.bootstrap_servers])
    assert ("must be restarted" in result.stdout) == (place.world.refusal is not None), result.stdout


def test_commands_keep_a_group_that_is_used(place: Place) -> None:
    """`delete` with its default options, of groups that were used a moment ago."""
    used = [name for name in (place.groups.moved[0], place.groups.same[0]) if place.use(name)]
    where = ("--bootstrap-server", place.kafka.bootstrap_servers, "--ledger-topic", place.scene.ledger)
    arguments = ["delete", *where, *used, "--yes", "--without-connection", "-o", "json"]
    result = CliRunner().invoke(main, arguments)
    assert not used or result.exit_code != 0
    for row in json.loads(result.stdout)["groups"] if used else ():
        assert row["result"] != "Deleted", row


def test_commands_refuse_also_by_force(place: Place) -> None:
    """`--force` trusts the user's word that a group is unused, and not what brokers that disagree say of it."""
    group = place.groups.same[2]
    where = ("--bootstrap-server", place.kafka.bootstrap_servers, "--ledger-topic", place.scene.ledger)
    result = CliRunner().invoke(
        main, ["delete", *where, group, "--force", "--preview", "--yes", "--without-connection", "-o", "json"]
    )
    (row,) = json.loads(result.stdout)["groups"]
    if place.world.refusal is not None:
        assert (row["result"], row["reason"]) == ("NotDeleted", place.world.refusal), row


def test_a_restore_waits_for_brokers_that_disagree(place: Place) -> None:
    """What they commit now is gone once they are restarted."""
    where = ("--bootstrap-server", place.kafka.bootstrap_servers, "--ledger-topic", place.scene.ledger)
    result = CliRunner().invoke(main, ["restore", *where, place.groups.gone, "-o", "json"])
    (row,) = json.loads(result.stdout)["groups"]
    assert (result.exit_code == 0) == (place.world.refusal is None), row
    if place.world.refusal is not None:
        assert (row["result"], row["reason"]) == ("Waiting", place.world.refusal), row
        assert place.groups.gone not in place.make.groups()


def test_a_deletion_is_not_settled_by_brokers_that_disagree(place: Place) -> None:
    """One that is asked for a group may look for it in another partition than the one that has it."""
    if place.world.refusal is None or place.world.brokers == 1:
        pytest.skip("the brokers agree")
    scene, tidy = place.scene, policy(*place.groups.moved)
    intents = [scene.intent(group, tidy) for group in place.groups.moved]
    assert record(scene.context.journal, intents) is None
    successor = Scene(scene.client, ledger=scene.ledger, need=LedgerNeed.READ)
    known_for(successor, 60)
    recovery.recover_intents(successor.context)
    contents = successor.context.journal.contents
    assert contents.deletions.keys().isdisjoint(place.groups.moved)
