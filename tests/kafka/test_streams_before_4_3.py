"""Streams groups on brokers of 4.2.0, where a restored one can stop its partition of the offsets log from loading."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from msgspec import structs

from group_hygiene.engine.executor import Executor
from group_hygiene.engine.restorable import RestoreRequest, ResultKind
from group_hygiene.engine.restoration import restore
from group_hygiene.kafka.client import connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.groups import list_groups, list_problems
from group_hygiene.kafka.offsets_log import decode
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType, SavedOffset
from group_hygiene.model.groups import GroupType
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.jars import VERSIONS
from testing.sandbox.waiting import wait_for
from tests.backups import backup
from tests.kafka.conftest import QUICK
from tests.kafka.makers import Maker, at, seen, soon
from tests.kafka.members import StreamsMember, part
from tests.kafka.offsets_topic import read_log, types_of_records
from tests.kafka.scene import Guard, Scene, alert, policy, verdicts

# kafka-python's consumers leave sockets for the garbage collector to close.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")]
ONE_PARTITION = {"offsets.topic.num.partitions": "1", "log.cleaner.backoff.ms": "500"}
# Compacts all but the newest records, and removes tombstones at once.
COMPACTED = {"delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0.0", "segment.ms": "1000"}


@pytest.fixture(
    params=[
        pytest.param(("4.2.0", False), id="4.2.0"),
        *(pytest.param((each, True), id=each) for each in ("4.2.1", VERSIONS[0])),
    ]
)
def brokers(request: pytest.FixtureRequest) -> Iterator[tuple[KafkaCluster, bool]]:
    """One broker of a version, and whether it loads such a partition."""
    version, loads = request.param
    with KafkaCluster(version, config=QUICK | ONE_PARTITION) as running:
        yield running, loads


def test_offsets_before_the_records_of_their_streams_group(brokers: tuple[KafkaCluster, bool]) -> None:
    """What a restore would lead to: after compaction and a restart, 4.2.0 loads no group of the whole partition.

    Its list of groups is empty then, without an error: it does not count as complete.
    """
    kafka, loads = brokers
    make = Maker(kafka.bootstrap_servers)
    topic, group, other = make.topic(records=5), make.name("application"), make.name("other")
    make.simple(group, at(topic, 3))
    with (
        closing(connect(Settings((kafka.bootstrap_servers,)))) as client,
        StreamsMember(client, group, [part("0", [topic])]),
    ):
        pass
    compact(kafka, make, other, topic, group)
    make.close()
    kafka.stop_broker(1)
    kafka.start_broker(1)
    with closing(connect(Settings((kafka.bootstrap_servers,)))) as client:
        cluster = seen(client)
        listing = list_groups(client, cluster, soon(60))
        problems = list_problems(cluster, listing, cluster, "")
    if loads:
        assert listing.groups.keys() == {group, other}
        assert problems == []
    else:
        assert listing.groups == {}
        assert listing.faults == {}
        assert problems == [
            f"1 partitions of {OFFSETS_TOPIC} may not be loaded by their leaders: "
            "NOT_COORDINATOR: the group's coordinator moved"
        ]


def compact(kafka: KafkaCluster, make: Maker, other: str, topic: str, group: str) -> None:
    """Until no tombstone is left that says that the group is no Classic one."""
    entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in COMPACTED.items()]
    resource = ConfigResource(ResourceType.TOPIC, OFFSETS_TOPIC, incremental_configs=entries)
    make.admin.incremental_alter_configs([resource])[resource].result()

    def gone() -> bool:
        # Segments end when something is written after their time.
        time.sleep(1)
        make.simple(other, at(topic, 3))
        return ("classic", True) not in types_of_records((decode(*pair) for pair in read_log(kafka)), group)

    wait_for(gone)


def test_a_streams_group_is_kept_where_it_could_not_be_brought_back() -> None:
    """Brokers don't tell 4.2.0 from 4.2.1. Other groups go, an Alert reports it, and no backup of it is restored."""
    with (
        KafkaCluster("4.2.0", config=QUICK) as kafka,
        closing(Maker(kafka.bootstrap_servers)) as make,
        closing(connect(Settings((kafka.bootstrap_servers,)))) as client,
    ):
        topic, group = make.topic(records=5), make.name("application")
        old = make.abandoned(make.name("old"), topic)
        with StreamsMember(client, group, [part("0", [topic])]) as member:
            member.commit(topic, {0: 3})
        scene = Scene(client)
        match = {"types": [str(each) for each in (GroupType.CLASSIC, GroupType.STREAMS)], "unprotect": ["Streams"]}
        tidy = policy(f"{make.tag}*", match=match)
        look = structs.replace(alert(f"{make.tag}*"), match=tidy.match)
        assert verdicts(scene.observe(look), look) == {group: "Match", old: "Match"}
        observation, plan = scene.plan(tidy)
        assert verdicts(observation, tidy) == {group: reasons.NOT_RESTORABLE, old: "Match"}
        refusal = observation.verdicts[tidy.key][group].refusal
        assert refusal is not None
        assert "brokers of Kafka 4.2 may fail to load __consumer_offsets" in refusal.message
        assert {outcome.group: outcome.kind for outcome in scene.apply(plan, observation)} == {old: OutcomeType.DELETED}
        assert verdicts(scene.observe(look), look) == {group: "Match"}

        make.delete_group(group)
        assert scene.memory.ledger is not None
        offsets = {topic: [SavedOffset(0, 3, -1, "", None)]}
        scene.memory.ledger.write([backup(group, offsets, type=str(GroupType.STREAMS))])
        restorer = Executor(scene.context, Guard())
        for preview in (True, False):
            (result,) = restore(restorer, RestoreRequest(id="restore-1", groups=(group,)), preview)
            assert (result.kind, result.reason) == (ResultKind.REFUSED, reasons.NOT_RESTORABLE)
            assert "brokers of Kafka 4.2 may fail to load __consumer_offsets" in result.message
        assert make.groups() == {}
