"""Leader epochs of real brokers: what an unclean leader election cuts off is noticed, also once the log grew again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from group_hygiene.engine.recovery import LedgerNeed
from group_hygiene.engine.requested import DeletionRequest, judge_requested
from group_hygiene.evidence.reader import Tables
from group_hygiene.kafka.client import Client, connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, read_cluster
from group_hygiene.kafka.offsets import epoch_ends
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.kafka.offsets_topic import LogBounds, read_log_bounds
from group_hygiene.kafka.partition import PartitionLeader, RawFetched, fetch_raw
from group_hygiene.model import reasons
from group_hygiene.model.groups import NO_LEADER_EPOCH, Cluster, Partition
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.connection import ActivitySpec
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.books import configured
from tests.kafka.makers import Maker, at, seen, soon
from tests.kafka.scene import Scene, alert, policy, verdicts
from tests.kafka.tables import Pipeline
from tests.warehouse import simple

UNCLEAN = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """Two brokers, each with all of the offsets log."""
    with KafkaCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
def make(kafka: KafkaCluster) -> Iterator[Maker]:
    maker = Maker(kafka.bootstrap_servers)
    yield maker
    maker.close()


def bounds(client: Client) -> LogBounds:
    found = read_log_bounds(client, soon())
    assert isinstance(found, LogBounds), found
    return found


def leader(client: Client, partition: int) -> int:
    found = read_cluster(client, soon())
    return found.leaders[partition][0] if isinstance(found, Cluster) else -1


@pytest.mark.slow
def test_a_stale_leader_is_looked_up_again(client: Client, make: Maker) -> None:
    """One answer with metadata serves all partitions. A broker that no longer leads one says so: no record is lost."""
    make.simple(make.name("group"), at(make.topic(records=1, replicas=2)))
    read = 0
    for partition, end in bounds(client).ends.items():
        place, now = Partition(OFFSETS_TOPIC, partition), leader(client, partition)
        known = {partition: 3 - now}
        found = fetch_raw(PartitionLeader(client, place, known), 0, soon())
        assert isinstance(found, RawFetched), found
        assert (bool(found.data), found.stable) == (end > 0, end)
        assert known[partition] == now
        read += len(found.data)
    assert read


@pytest.mark.slow
def test_times_of_an_earlier_leader_prove_nothing(kafka: KafkaCluster, client: Client, make: Maker) -> None:
    """Its clock may have been behind. The present leader's counts once it has led for as long as is looked back."""
    topic, group = make.topic(records=9, replicas=2), make.name("group")
    make.simple(group, at(topic, 4))
    count = len(seen(client).leaders)
    own = partition_of(group, count)
    others = {partition_of(name, count): name for name in (make.name("other") for _ in range(100))}
    same = others.pop(own)
    first = leader(client, own)
    kafka.kill_broker(first)
    kafka.start_broker(first)
    kafka.wait_ready()
    wait_for(lambda: leader(client, own) not in (-1, first) or seen(client).leaders[own][1] > 0)

    def reason() -> str | None:
        """Once each broker that leads has written a record just now."""
        for name in others.values():
            make.simple(name, at(topic))
        context = Scene(client, need=LedgerNeed.READ).context
        request = DeletionRequest((group,), "me", timedelta(seconds=1), timedelta(days=1))
        refusal = judge_requested(context, request).verdicts[group].refusal
        return None if refusal is None else f"{refusal.reason}: {refusal.message}"

    found = reason()
    assert found is not None
    assert found.startswith("ClockUnknown: "), found
    assert "earlier leader" in found
    make.simple(same, at(topic))
    time.sleep(1.1)
    assert reason() is None


def test_a_log_whose_records_were_deleted_proves_nothing() -> None:
    """By a retention, or a user: until the first record that is left in each partition is old enough."""
    config = {"offsets.topic.num.partitions": "2", "offsets.topic.replication.factor": "1"}
    config |= {"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "200"}
    with KafkaCluster(config=config) as kafka, closing(Maker(kafka.plaintext_bootstrap)) as make:
        topic, names = make.topic(records=9), [make.name("group") for _ in range(50)]
        first, second = ([name for name in names if partition_of(name, 2) == index] for index in (0, 1))
        group, *others = first
        make.simple(group, at(topic, 4))
        with closing(connect(Settings(tuple(kafka.bootstrap_servers.split(","))))) as client:

            def reason(*, of: float) -> str:
                """Of a deletion of the group, if it was not used for so many seconds."""
                request = DeletionRequest((group,), "me", timedelta(seconds=of), timedelta(days=1))
                judged = judge_requested(Scene(client, need=LedgerNeed.READ).context, request)
                refusal = judged.verdicts[group].refusal
                return "" if refusal is None else f"{refusal.reason}: {refusal.message}"

            assert reason(of=3600).startswith("RecentlyActive: it committed for")
            configured(make, OFFSETS_TOPIC, {"cleanup.policy": "compact,delete", "retention.ms": "1"})
            wait_for(lambda: sum(bounds(client).starts.values()) == sum(bounds(client).ends.values()) > 0)
            configured(make, OFFSETS_TOPIC, {"cleanup.policy": "compact", "retention.ms": "-1"})
            assert reason(of=3600).startswith("EvidenceIncomplete: records were deleted from __consumer_offsets-")
            for other in (others[0], second[0]):
                make.simple(other, at(topic))
            assert reason(of=3600).startswith("EvidenceIncomplete: records were deleted from __consumer_offsets-")
            time.sleep(1.1)
            assert reason(of=1) == ""


def counted(scene: Scene) -> float:
    """For how many seconds all groups were counted."""
    contents, uid = scene.context.journal.contents, scene.connection.uid
    return contents.clocks[uid].seconds - max(each.watched for each in contents.seen[uid].values())


@pytest.mark.slow
def test_what_an_unclean_election_cut_off(kafka: KafkaCluster, client: Client, make: Maker, tmp_path: Path) -> None:
    """A broker that was behind leads, and its log grows past what was read: the tables decide nothing any more.

    And the count of `unchangedFor` starts again for every group: a lost record may have been its use.
    """
    topic, group = make.topic(records=1, replicas=2), make.name("group")
    make.abandoned(make.name("left"), topic)
    make.simple(group, at(topic))
    cluster = seen(client)
    own = partition_of(group, len(cluster.leaders))
    place, first = Partition(OFFSETS_TOPIC, own), leader(client, own)
    (behind,) = set(cluster.brokers) - {first}
    resource = ConfigResource(ResourceType.TOPIC, OFFSETS_TOPIC, incremental_configs=[UNCLEAN])
    make.admin.incremental_alter_configs([resource])[resource].result()
    kafka.kill_broker(behind)
    kafka.wait_forgotten(behind)
    wait_for(lambda: isinstance(read_log_bounds(client, soon()), LogBounds))
    for _ in range(3):
        make.simple(group, at(topic))
    read = bounds(client)
    pipeline = Pipeline(client, cluster, tmp_path / "warehouse")
    pipeline.run([simple(group)], leader_epoch=read.leader_epochs[own])
    unchanged, counting = Scene(client, need=LedgerNeed.READ), policy("*")
    unchanged.observe(counting)
    unchanged.observe(counting, after=30)

    assert counted(unchanged) == 30 * 60
    scene = Scene(client)
    scene.use(Tables(ActivitySpec(pipeline.uri)))
    idle = alert(group, idleFor="72h")

    def reason() -> str:
        return verdicts(scene.observe(idle), idle)[group]

    before = reason()
    assert not before.startswith("Evidence"), before
    kafka.kill_broker(first)
    kafka.start_broker(behind)
    wait_for(lambda: leader(client, own) == behind)
    kafka.start_broker(first)
    wait_for(lambda: isinstance(read_log_bounds(client, soon()), LogBounds))
    assert bounds(client).ends[own] < read.ends[own]
    while bounds(client).ends[own] <= read.ends[own]:
        make.simple(group, at(topic))
    ends = epoch_ends(client, {place: read.leader_epochs[own]}, soon())
    assert isinstance(end := ends[place], int)
    assert end < read.ends[own]
    assert reason() == reasons.EVIDENCE_INCOMPLETE
    unchanged.observe(counting, after=30)
    assert counted(unchanged) == 0
    unchanged.observe(counting, after=30)
    assert counted(unchanged) == 30 * 60
    pipeline.run([simple(group)], leader_epoch=bounds(client).leader_epochs[own])
    assert reason() == before
    assert epoch_ends(client, {place: 1_000_000}, soon()) == {place: NO_LEADER_EPOCH}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        pytest.param("4.4.0", 4, 1, id="shorter"),
        pytest.param("4.4.0", 1, 4, id="longer"),
        pytest.param("2.5.1", 4, 1, id="shorter-without-topic-ids"),
    ],
)
def test_a_log_that_is_recreated(version: str, before: int, after: int) -> None:
    """Its leaders have the same epochs: uses before the place where the reading goes on would not be seen."""
    config = {"offsets.topic.num.partitions": "1"}
    with KafkaCluster(version, config=config) as cluster, closing(Maker(cluster.bootstrap_servers)) as make:
        client = connect(Settings(tuple(cluster.bootstrap_servers.split(","))))
        topic, counting = make.topic(records=1), policy("*")
        for _ in range(before):
            make.abandoned(make.name("left"), topic)
        scene = Scene(client, need=LedgerNeed.READ)

        def watched(after: float) -> float:
            scene.observe(counting, after=after)
            return counted(scene)

        assert [watched(0), watched(30)] == [0, 30 * 60]
        former = seen(client)
        make.admin.delete_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC].result()
        wait_for(lambda: not seen(client).leaders)
        for _ in range(after):
            make.abandoned(make.name("new"), topic)
        assert seen(client).leaders == former.leaders
        assert [watched(30), watched(30)] == [0, 30 * 60]
        client.close()
