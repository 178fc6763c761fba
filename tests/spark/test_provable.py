"""Against real brokers: what the tables promise holds also where record times, transactions or elections mislead."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from group_hygiene.errors import Halted
from group_hygiene.evidence.reader import Reading, Tables
from group_hygiene.kafka.client import Client, connect
from group_hygiene.kafka.offsets import end_offsets
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity
from group_hygiene.model.groups import Partition
from group_hygiene.pipeline.ingest.reading import Choices, ingest
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.connection import ActivitySpec
from testing.faults.offsets_log import TOPIC, ends
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker, at, soon
from tests.kafka.scene import Scene, alert, verdicts
from tests.spark.bronze import coverage, covered
from tests.spark.conftest import FEW_PARTITIONS

PARTITIONS = int(FEW_PARTITIONS["offsets.topic.num.partitions"])


def run(spark: SparkSession, client: Client, warehouse: str, start_over: bool = False) -> None:
    ingest(spark, client, warehouse, lambda line: None, Choices(start_over))


def known(warehouse: str, group: str, older: datetime | None = None) -> Activity:
    """What the operator reads of the group."""
    reading = Tables(ActivitySpec(warehouse)).read([group], 60, older)
    assert isinstance(reading, Reading), reading
    return reading.groups[group]


@pytest.fixture(scope="module")
def old() -> Iterator[KafkaCluster]:
    """A broker of the last version that takes OffsetCommit v1."""
    with KafkaCluster("3.9.1", config=FEW_PARTITIONS) as cluster:
        yield cluster


def commit_with_time(cluster: KafkaCluster, group: str, topic: str, offset: int, moment: datetime) -> None:
    """OffsetCommit v1, as clients of Kafka 0.8.2 sent it: with a time of the client's own."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    entry = struct.pack(">iqq", 0, offset, int(moment.timestamp() * 1000)) + text("")
    body = text(group) + struct.pack(">i", -1) + text("") + struct.pack(">i", 1) + text(topic)
    request = struct.pack(">hhi", 8, 1, 1) + text("old-client") + body + struct.pack(">i", 1) + entry
    host, _, port = cluster.bootstrap_servers.partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        (error,) = struct.unpack(">h", answer.read(size)[-2:])
    assert error == 0


def test_a_commit_with_a_time_of_its_own_is_no_older_than_its_record(
    spark: SparkSession, old: KafkaCluster, warehouse: str
) -> None:
    """A client commits every hour, with last week's time: it counts from its record's time, also at the first read of
    the log. A later read bounds it, too.
    """
    client, make = connect(Settings((old.bootstrap_servers,))), Maker(old.bootstrap_servers)
    topic, long_ago = make.topic(records=5), datetime.now(UTC) - timedelta(days=7)
    group, other = make.name("hourly"), make.name("other")
    make.simple(make.name("first"), at(topic))
    begun = datetime.now(UTC)
    commit_with_time(old, group, topic, 1, long_ago)
    commit_with_time(old, other, topic, 1, long_ago)
    run(spark, client, warehouse)
    first = known(warehouse, group).read_at
    commit_with_time(old, group, topic, 2, long_ago)
    run(spark, client, warehouse)
    activity = known(warehouse, group, datetime.now(UTC))
    assert activity.read_at > first
    assert activity.idle_since is not None
    assert activity.idle_since >= first
    # Kafka's own clock for it is the time in the record.
    assert activity.oldest_commit is not None
    assert activity.oldest_commit < first - timedelta(days=6)
    first_one = known(warehouse, other)
    assert first_one.last_commit is not None
    assert first_one.last_commit < first - timedelta(days=6)
    assert first_one.idle_since is not None
    assert begun - timedelta(seconds=1) <= first_one.idle_since <= first
    make.close()
    client.close()


@pytest.fixture
def open_transaction(kafka: KafkaCluster, make: Maker) -> Iterator[tuple[str, Any]]:
    """A group, and a producer in whose transaction it will commit."""
    group = make.name("open")
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
    producer = Producer(settings | {"transactional.id": group, "transaction.timeout.ms": 600_000})
    producer.init_transactions(120)
    producer.begin_transaction()
    yield group, producer
    producer.abort_transaction(120)


def test_an_open_transaction_holds_back_what_is_read(
    spark: SparkSession, kafka: KafkaCluster, client: Client, make: Maker, warehouse: str, open_transaction: Any
) -> None:
    """As long as it is open, its partition is as old as its first record: what follows that, nobody has read."""
    (group, producer), bootstrap, topic = open_transaction, kafka.bootstrap_servers, make.topic(records=1)
    make.simple(make.name("any"), at(topic))
    run(spark, client, warehouse)
    log, before = ends(bootstrap), {row.log_partition: row.read_at for row in coverage(spark, warehouse)}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), 120)
    wait_for(lambda: ends(bootstrap) != log)
    begun, own = datetime.now(UTC), partition_of(group, PARTITIONS)
    for _ in range(2):
        run(spark, client, warehouse)
        assert covered(spark, warehouse)[own] == log[own]
        read_at = {row.log_partition: row.read_at.astimezone(UTC) for row in coverage(spark, warehouse)}
        assert before[own].astimezone(UTC) <= read_at.pop(own) <= begun
        assert min(read_at.values()) > begun
    consumer.close()


def test_what_an_unclean_election_cut_off(spark: SparkSession, warehouse: str) -> None:
    """The partition grew again past what was read: nobody trusts that, and the pipeline says what to do."""
    with KafkaCluster(brokers=2, config=FEW_PARTITIONS) as cluster:
        bootstrap = cluster.bootstrap_servers
        client, make = connect(Settings(tuple(bootstrap.split(",")))), Maker(bootstrap)
        topic, group = make.topic(records=1, replicas=2), make.name("group")
        make.simple(group, at(topic))
        own = partition_of(group, PARTITIONS)
        leader, follower = replicas(make, own)
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[UNCLEAN])
        make.admin.incremental_alter_configs([resource])[resource].result()
        cluster.kill_broker(follower)
        cluster.wait_forgotten(follower)
        for _ in range(3):
            make.simple(group, at(topic))
        run(spark, client, warehouse)
        read = covered(spark, warehouse)[own]
        scene = Scene(client)
        scene.use(Tables(ActivitySpec(warehouse)))
        policy = alert(group, idleFor="1h")
        assert verdicts(scene.observe(policy), policy) == {group: reasons.TOO_RECENT}
        cluster.kill_broker(leader)
        cluster.start_broker(follower)
        wait_for(lambda: replicas(make, own)[0] == follower)
        cluster.start_broker(leader)
        assert end(client, own) < read
        while end(client, own) <= read:
            make.simple(group, at(topic))
        assert verdicts(scene.observe(policy), policy) == {group: reasons.EVIDENCE_INCOMPLETE}
        with pytest.raises(Halted, match=r"lost the end of its log.*--start-over"):
            run(spark, client, warehouse)
        now = datetime.now(UTC)
        run(spark, client, warehouse, start_over=True)
        assert verdicts(scene.observe(policy), policy) == {group: reasons.TOO_RECENT}
        assert all(row.complete_since.astimezone(UTC) >= now for row in coverage(spark, warehouse))
        make.close()
        client.close()


def end(client: Client, partition: int) -> int:
    place = Partition(TOPIC, partition)
    answer = end_offsets(client, [place], soon())[place]
    assert isinstance(answer, int), answer
    return answer


UNCLEAN = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)


def replicas(make: Maker, partition: int) -> tuple[int, int]:
    """The leader of a partition of the offsets log, and its other replica."""
    found = make.admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[partition]
    (other,) = set(found.replicas) - {found.leader}
    return found.leader, other
