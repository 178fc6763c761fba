"""Logs of real brokers in which something happened: the tables hold what Kafka's own decoder prints of their files.

That is DumpLogSegments. Neither our reader nor our decoder has a part in what is expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, NewPartitions
from pyspark.sql import SparkSession

from group_hygiene.errors import Halted
from group_hygiene.kafka.client import Client, connect
from group_hygiene.kafka.offsets_log import BrokenRecord
from group_hygiene.model.groups import CommittedOffset, Partition
from group_hygiene.pipeline.tables import ACTIVITY, COVERAGE
from group_hygiene.spec.client_settings import Settings
from testing.faults.groups import Groups
from testing.faults.offsets_log import TOPIC, Raw, ends, expected, read, write
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker, at, has_leaders
from tests.kafka.members import SilentShareMember, StreamsMember, part
from tests.kafka.offsets_topic import Record, dumped
from tests.spark.bronze import tables
from tests.spark.conftest import FEW_PARTITIONS
from tests.spark.test_exactness import milliseconds, times_of
from tests.spark.test_ingest import configure, everything, run, settle, wait_decided

PARTITIONS, LARGE = int(FEW_PARTITIONS["offsets.topic.num.partitions"]), 4_000
GROWN = 11
NEWEST, CLASSIC, ALL = "4.4.0", ("classic",), ("classic", "consumer")
# A key of an unknown version, an empty key; commits and groups that end too early, or are of such a version in
# the layout of a known one.
_COMMIT, _GROUP = bytes.fromhex("0001000167000174") + bytes(4), bytes.fromhex("0002000167")
MALFORMED = [
    (b"\x7f\xff\x00\x01x", b"v"),
    (b"", b"nothing"),
    (bytes.fromhex("0001000167000174"), bytes(3)),
    (_COMMIT, b"\x00\x63" + bytes(18)),
    (_COMMIT, b"\x00\x63" + bytes(22)),
    (_COMMIT, b"\x00\x03" + bytes(5)),
    (_GROUP, b"\x00\x63" + bytes(30)),
    (_GROUP, bytes.fromhex("0003 0000 00000001 ffff ffff 0000000000000000 00000005")),
    (_GROUP, b""),
]


@dataclass
class Stage:
    """A cluster with groups of its types, and a warehouse."""

    spark: SparkSession
    kafka: KafkaCluster
    client: Client
    make: Maker
    warehouse: str
    topic: str

    def ingest(self, start_over: bool = False) -> None:
        run(self.spark, self.client, self.warehouse, start_over)


def nothing(_: Stage) -> None:
    pass


def malformed(stage: Stage) -> None:
    """From brokers of 4.0 on, coordinators stop when a client writes into their log: it is not tried there."""
    for number, (key, value) in enumerate(MALFORMED):
        write(stage.kafka.bootstrap_servers, number % PARTITIONS, key, value)
    stage.ingest()
    assert len(tables(stage.spark, stage.warehouse).quarantine) == len(MALFORMED)


def two_more_types(stage: Stage) -> None:
    """Their members leave."""
    with (
        SilentShareMember(stage.client, stage.make.name("share"), stage.topic),
        StreamsMember(stage.client, stage.make.name("streams"), [part("0", [stage.topic])]),
    ):
        stage.ingest()
    # A coordinator writes the state of a share group after its answer.
    settle(stage.kafka.bootstrap_servers)


def expire(stage: Stage) -> None:
    """Offsets with a retention of their own, as clients before KIP-211 commit them, and the groups of some."""
    groups, offset = Groups(stage.kafka.bootstrap_servers), {(stage.topic, 0): 5}
    gone, stays = stage.make.name("gone"), stage.make.name("stays")
    groups.commit(stays, {(stage.topic, 1): 6})
    for name in (gone, stays):
        groups.commit(name, offset, retention_ms=4_000)
    stage.ingest()
    before = activity(stage)
    assert {name: len(before[name]["offsets"]) for name in (gone, stays)} == {gone: 1, stays: 2}
    wait_for(lambda: gone not in stage.make.groups())
    settle(stage.kafka.bootstrap_servers)
    stage.ingest()
    after = activity(stage)
    assert {name: len(after[name]["offsets"]) for name in (gone, stays)} == {gone: 0, stays: 1}
    assert (after[gone]["state"], after[stays]["state"]) == ("Gone", "Empty")


def lose_the_beginning(stage: Stage) -> None:
    """By a retention that no cluster should have: no broker takes a request to delete these records."""
    with pytest.raises(KafkaException, match="Invalid topic"):
        stage.make.admin.delete_records([TopicPartition(TOPIC, 0, 1)])[TopicPartition(TOPIC, 0, 1)].result()
    group, topic = stage.make.name("often"), stage.make.topic(partitions=200)
    long = {Partition(topic, number): CommittedOffset(number, 0, "m" * 3_000) for number in range(200)}
    for _ in range(4):
        stage.make.simple(group, long)
    set_ = {"cleanup.policy": "delete", "retention.bytes": "1"}
    configure(stage.make, [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in set_.items()])
    wait_for(lambda: any(raw.offset for raw in first_records(stage).values()))
    configure(stage.make, [ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)])


def first_records(stage: Stage) -> dict[int, Raw]:
    return {raw.partition: raw for raw in reversed(read(stage.kafka.bootstrap_servers))}


def many_partitions(stage: Stage) -> None:
    """In one group each: by a member, without one, in transactions; some are committed again, and one is deleted."""
    topic, names = stage.make.topic(partitions=LARGE), [stage.make.name(what) for what in ("joined", "simple", "gone")]

    def offsets(first: int) -> dict[Partition, CommittedOffset]:
        return {Partition(topic, number): CommittedOffset(number) for number in range(first, LARGE)}

    stage.make.abandoned(names[0], topic, "classic", offsets(0))
    for name in names[1:]:
        stage.make.simple(name, offsets(0))
    aborted = stage.make.pending(names[1], offsets(LARGE // 2))
    stage.ingest()
    aborted.abort_transaction(60)
    stage.make.simple(names[1], offsets(LARGE - 3))
    stage.make.delete_group(names[2])
    stage.make.pending(names[0], offsets(1)).commit_transaction(60)
    wait_decided(stage.client)
    stage.ingest()
    found = activity(stage)
    assert [len(found[name]["offsets"]) for name in names] == [LARGE, LARGE, 0]


def grow(stage: Stage) -> None:
    """First while the broker goes on with the old number of partitions, then restarted."""
    stage.ingest()
    names = [stage.make.name("grown") for _ in range(8)]
    for name in names:
        stage.make.simple(name, at(stage.topic, 1))
    stage.make.admin.create_partitions([NewPartitions(TOPIC, GROWN)])[TOPIC].result()
    wait_for(lambda: has_leaders(stage.make.admin, TOPIC, GROWN))
    with pytest.raises(Halted, match=f"has {GROWN} partitions now and had {PARTITIONS}.*--start-over"):
        stage.ingest()
    stage.ingest(start_over=True)
    since = datetime.now(UTC)
    for name in names:
        stage.make.simple(name, at(stage.topic, 2))
    assert any(own_partition(name, GROWN) != own_partition(name, PARTITIONS) for name in names)
    stage.ingest()
    # A commit where a group's records should not be: of which groups more are there, is not known.
    assert all(row["complete_since"] >= since for row in COVERAGE.rows(stage.warehouse))
    stage.kafka.stop_broker(1)
    stage.kafka.start_broker(1)
    for name in names[::2]:
        stage.make.simple(name, at(stage.topic, 3))


def own_partition(group: str, partitions: int) -> int:
    """String.hashCode of an ASCII id, without its sign, by the number of partitions."""
    code = 0
    for letter in group:
        code = (31 * code + ord(letter)) % (1 << 32)
    return abs(code - (code >> 31 << 32)) % partitions


def activity(stage: Stage) -> dict[str, dict[str, Any]]:
    return {row["group"]: row.asDict(recursive=True) for row in ACTIVITY.read(stage.spark, stage.warehouse).collect()}


@dataclass
class World:
    """happens: between the groups of these types and the last ingest."""

    version: str = NEWEST
    types: tuple[Any, ...] = ALL
    config: Mapping[str, str] = field(default_factory=dict)
    happens: Callable[[Stage], None] = nothing


APPEND_TIME = {"log.message.timestamp.type": "LogAppendTime"}
EXPIRY = {"offsets.retention.check.interval.ms": "500"}
RETENTION = {
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "100",
    "offsets.topic.segment.bytes": str(1 << 20),
}


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(World("2.5.1", CLASSIC, happens=malformed), id="malformed-2.5"),
        pytest.param(World("2.8.2", CLASSIC, happens=malformed), id="malformed-2.8"),
        pytest.param(World("3.9.1", CLASSIC, happens=malformed), id="malformed-3.9"),
        pytest.param(World("4.2.0"), id="4.2"),
        pytest.param(World("2.8.2", CLASSIC, APPEND_TIME), id="append-time-2.8"),
        pytest.param(World(config=APPEND_TIME, happens=two_more_types), id="append-time"),
        pytest.param(World("3.9.1", CLASSIC, EXPIRY, expire), id="offsets-that-expired-3.9"),
        pytest.param(World(config=EXPIRY, happens=expire), id="offsets-that-expired"),
        pytest.param(World(config=RETENTION, happens=lose_the_beginning), id="its-beginning-was-deleted"),
        pytest.param(World(happens=many_partitions), id="groups-of-thousands-of-partitions"),
        pytest.param(World(happens=grow), id="more-partitions"),
    ],
)
def test_a_real_log(spark: SparkSession, warehouse: str, world: World) -> None:
    """Every record in its table, to the last column; and what they say of each group."""
    with KafkaCluster(world.version, config={**FEW_PARTITIONS, **world.config}) as kafka:
        client, make = connect(Settings((kafka.bootstrap_servers,))), Maker(kafka.bootstrap_servers)
        stage = Stage(spark, kafka, client, make, warehouse, make.topic(partitions=2, records=3))
        everything(make, kafka.bootstrap_servers, world.types)
        world.happens(stage)
        stage.ingest()
        compare(stage)
        make.close()
        client.close()


def compare(stage: Stage) -> None:
    log, last, printed = read(stage.kafka.bootstrap_servers), ends(stage.kafka.bootstrap_servers), dumped(stage.kafka)
    assert {raw[:3] for raw in log} == printed.keys()
    coverage = COVERAGE.rows(stage.warehouse)
    era = coverage[0]["era"]

    def decoder(raw: Raw) -> Record:
        record = printed[raw[:3]]
        if record is None:
            raise BrokenRecord("by Kafka")
        return record

    wanted, held = expected(log, decoder), tables(stage.spark, stage.warehouse, era)
    assert wanted.commits
    assert wanted.states
    # First what differs, as pytest shows long lists in part.
    assert [set(some) ^ set(others) for some, others in zip(held, wanted, strict=True)] == [set()] * 3
    assert held == wanted
    assert {row["log_partition"]: row["covered_to"] for row in coverage} == last

    # Records of a group in other partitions than its own say nothing: which of them are the latest is not known.
    own = [raw for raw in log if (it := printed[raw[:3]]) and own_partition(it.group, len(last)) == raw.partition]
    times, _ = times_of((raw.time_ms, printed[raw[:3]]) for raw in own)
    offsets: dict[str, dict[tuple[str, int], int]] = {name: {} for name in times}
    for _, _, _, group, topic, partition, offset, *_, aborted in expected(own, decoder).commits:
        if not aborted:
            offsets[group][topic, partition] = offset
    found = activity(stage)
    assert times.keys() <= found.keys()
    for group, wanted_times in times.items():
        row = found[group]
        assert {name: milliseconds(row[name]) for name in wanted_times} == wanted_times, group
        left = {place: offset for place, offset in offsets[group].items() if offset is not None}
        assert {(each["topic"], each["partition"]): each["offset"] for each in row["offsets"]} == left, group
