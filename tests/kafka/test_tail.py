"""The end of the offsets log, which no table covers yet: whatever it says of a group keeps that group."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from group_hygiene.engine.uses import read_ends
from group_hygiene.evidence.reader import Tables
from group_hygiene.kafka import offsets_topic
from group_hygiene.kafka.changes import delete_offsets
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, topic_ids
from group_hygiene.kafka.offsets import start_offsets
from group_hygiene.kafka.offsets_log import Commit, decode, partition_of
from group_hygiene.kafka.offsets_topic import Found, Tail
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.groups import Cluster, CommittedOffset, Fault, Partition
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.connection import ActivitySpec
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker, at, seen, soon
from tests.kafka.offsets_topic import read_rows
from tests.kafka.scene import Scene, policy
from tests.warehouse import Warehouse, idle

PENDING = 4_242


Ends = dict[int, int]


def ends_of(client: Client, cluster: Cluster) -> Ends:
    """Where the next record of each partition will be."""
    found = read_ends(client, cluster, soon())
    assert not isinstance(found, Fault)
    return found


@pytest.fixture
def cluster(client: Client, make: Maker) -> Cluster:
    """The shared cluster, which has an offsets log once somebody committed."""
    make.simple(make.name(), at(make.topic()))
    read = seen(client)
    assert read.leaders
    return read


def read(tail: Tail, since: Ends, *names: str, deadline: Deadline | None = None) -> dict[str, Found | Fault | None]:
    """Read on, and answer for these groups."""
    tail.read_on(names.__contains__, deadline or soon())
    return {name: tail.answer(name, since) for name in names}


def later(client: Client, cluster: Cluster, since: Ends, *names: str) -> dict[str, Found | Fault | None]:
    """What the log has of these groups at or after those offsets."""
    return read(Tail(client, cluster.leaders, since), since, *names)


def test_groups_are_where_the_broker_puts_them(kafka: KafkaCluster, cluster: Cluster, make: Maker) -> None:
    """String.hashCode counts UTF-16 units, overflows, and has one value without a positive counterpart."""
    topic, made = make.topic(), [make.name(text) for text in ("plain", "käse", "🧀🧀", "x" * 200, "\uffff\U0010ffff")]
    # Its hash code is -2147483648.
    names = {*made, "polygenelubricants", *(make.name() for _ in range(20))}
    for name in names:
        make.simple(name, at(topic))
    found = {decode(row.key, row.value).group: row.partition for row in read_rows(kafka)}
    assert {name: found[name] for name in names} == {name: partition_of(name, len(cluster.leaders)) for name in names}
    assert len(set(found.values())) == len(cluster.leaders)


# What may happen to a group that looks abandoned. Each leaves it Empty, with the offsets that it had.


class Event(NamedTuple):
    """What happens, and the last record of it: its kind, and of a commit the offset."""

    happens: Callable[[Maker, str, str], object]
    kind: str = "commit"
    offset: int | None = None


def nothing(make: Maker, group: str, topic: str) -> None:
    pass


def commits_the_same(make: Maker, group: str, topic: str) -> None:
    make.simple(group, at(topic))


def comes_and_goes(make: Maker, group: str, topic: str) -> None:
    make.join(group, topic)
    make.leave(group)


def comes_and_goes_again(make: Maker, group: str, topic: str) -> None:
    make.join(group, topic, "consumer")
    make.leave(group)


def commits_in_a_transaction(make: Maker, group: str, topic: str) -> Any:
    return make.pending(group, at(topic, PENDING))


def aborts_a_transaction(make: Maker, group: str, topic: str) -> None:
    make.pending(group, at(topic, PENDING)).abort_transaction()


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(Event(commits_the_same, offset=0), id="the-same-offset-once-more"),
        pytest.param(Event(comes_and_goes, "classic"), id="a-member-that-joined-and-left"),
        pytest.param(Event(comes_and_goes_again, "consumer-"), id="a-member-of-the-newer-protocol"),
        pytest.param(Event(commits_in_a_transaction, offset=PENDING), id="a-transaction-that-is-open"),
        pytest.param(Event(aborts_a_transaction, offset=PENDING), id="a-transaction-that-was-aborted"),
    ],
)
def test_whatever_happens_to_a_group_is_seen(client: Client, cluster: Cluster, make: Maker, event: Event) -> None:
    """What is written after the place is seen, however little it changed, and before it nothing is."""
    topic, name = make.topic(), make.name()
    make.abandoned(name, topic, "consumer" if event.kind.startswith("consumer") else "classic")
    before = ends_of(client, cluster)
    open_transaction: Any = event.happens(make, name, topic)
    (found,) = later(client, cluster, before, name).values()
    (after,) = later(client, cluster, ends_of(client, cluster), name).values()
    if open_transaction is not None:
        open_transaction.abort_transaction()
    assert isinstance(found, Found)
    assert found.partition == partition_of(name, len(cluster.leaders))
    assert found.offset >= before[found.partition]
    record = found.record
    assert record is not None
    assert (record.group, record.gone) == (name, False)
    what = ("commit", record.offset) if isinstance(record, Commit) else (record.kind, None)
    assert (what[0].startswith(event.kind), what[1]) == (True, event.offset)
    assert after is None


def test_deleted_offsets_are_seen(client: Client, cluster: Cluster, make: Maker) -> None:
    """A tombstone too says that the tables are out of date: a commit before it may be compacted away."""
    topic, name = make.topic(), make.name()
    make.abandoned(name, topic)
    before = ends_of(client, cluster)
    assert delete_offsets(client, name, [Partition(topic, 0)], soon()) == {Partition(topic, 0): None}
    found = later(client, cluster, before, name)[name]
    assert isinstance(found, Found)
    assert found.record == Commit(name, topic, 0)


def test_records_of_other_groups_say_nothing(client: Client, cluster: Cluster, make: Maker) -> None:
    """Each group counts from offsets of its own, though all are read at once."""
    topic, name, other = make.topic(), make.name(), make.name()
    make.simple(name, at(topic))
    first = ends_of(client, cluster)
    make.simple(other, at(topic))
    second = ends_of(client, cluster)
    tail = Tail(client, cluster.leaders, first)
    answers = read(tail, first, name, other)
    assert answers[name] is None
    assert isinstance(answers[other], Found)
    assert tail.answer(other, second) is None
    assert tail.used(first) == [other]


def test_reading_on_finds_later_records(client: Client, cluster: Cluster, make: Maker) -> None:
    """Most is read before, and the rest right before the deletion; a record that was found stays found."""
    topic, name, other = make.topic(), make.name(), make.name()
    make.simple(name, at(topic))
    since = ends_of(client, cluster)
    tail = Tail(client, cluster.leaders, since)
    assert read(tail, since, name, other) == {name: None, other: None}
    make.simple(name, at(topic))
    found = read(tail, since, name, other)
    assert isinstance(found[name], Found)
    assert found[other] is None
    assert read(tail, since, name, other) == found
    assert tail.answer(name, tail.positions) is None
    tail.retain({other}.__contains__)
    assert tail.used({}) == []


def test_many_records_are_read_to_the_end(client: Client, cluster: Cluster, make: Maker) -> None:
    """More than an answer holds, some in batches that are larger than its part of an answer, in two partitions."""
    topic, name = make.topic(partitions=100), make.name()
    before = ends_of(client, cluster)
    others = [make.name() for _ in range(2)]
    metadata = "m" * 4000
    for other in others:
        for _ in range(10):
            make.simple(other, {Partition(topic, index): CommittedOffset(0, -1, metadata) for index in range(100)})
    make.simple(name, at(topic))
    found = later(client, cluster, before, name, *others)
    assert all(isinstance(each, Found) for each in found.values())
    for other in others:
        each = found[other]
        assert isinstance(each, Found)
        assert each.offset >= before[each.partition] + 999


@pytest.mark.parametrize(
    ("further", "seconds", "code"),
    [
        pytest.param(1_000, 20, "OFFSET_OUT_OF_RANGE", id="behind-the-end"),
        pytest.param(0, 0, "REQUEST_TIMED_OUT", id="no-time"),
    ],
)
def test_what_cannot_be_read_is_a_fault(
    client: Client, cluster: Cluster, make: Maker, further: int, seconds: float, code: str
) -> None:
    """It is no answer that there is no record; and what can be read later is read then."""
    name, since = make.name(), ends_of(client, cluster)
    partition = partition_of(name, len(cluster.leaders))
    since[partition] += further
    tail = Tail(client, cluster.leaders, since)
    answer = read(tail, since, name, deadline=Deadline(seconds))[name]
    assert isinstance(answer, Fault)
    assert answer.code == code
    again = read(tail, since, name)[name]
    assert (again is None) == (not further)


def test_another_leader_epoch_is_a_fault(client: Client, cluster: Cluster, make: Maker) -> None:
    """A leader that was elected since may have lost records, and others may have got their offsets."""
    name, since = make.name(), ends_of(client, cluster)
    moved = {index: (broker, epoch + 1) for index, (broker, epoch) in cluster.leaders.items()}
    answer = read(Tail(client, moved, since), since, name)[name]
    assert isinstance(answer, Fault)
    assert answer.code == "UNKNOWN_LEADER_EPOCH"


# A broker whose log is damaged, which nobody else may use.


@pytest.fixture(scope="module")
def damaged() -> Iterator[KafkaCluster]:
    """A broker that looks all the time for what is to be deleted of its logs."""
    config = {"log.retention.check.interval.ms": "300", "log.initial.task.delay.ms": "300"}
    with KafkaCluster(config=config) as running:
        yield running


@pytest.fixture(scope="module")
def its_client(damaged: KafkaCluster) -> Iterator[Client]:
    made = connect(Settings((damaged.bootstrap_servers,)))
    yield made
    made.close()


@pytest.mark.parametrize("missing", [False, True], ids=["known", "missing-in-the-offsets"])
def test_any_partition_may_have_the_use(damaged: KafkaCluster, its_client: Client, missing: bool) -> None:
    """Where a broker puts records is not computed. A partition without an offset counts from its start."""
    make = Maker(damaged.bootstrap_servers)
    name, place = make.name(), 3
    # Creates the log.
    make.simple(make.name(), at(make.topic()))
    make.close()
    cluster = seen(its_client)
    before = ends_of(its_client, cluster)
    wrong = next(index for index in cluster.leaders if index != partition_of(name, len(cluster.leaders)))
    # The one client id that may write to internal topics (AdminUtils.ADMIN_CLIENT_ID).
    producer = Producer({"bootstrap.servers": damaged.bootstrap_servers, "client.id": "__admin_client"})
    key = struct.pack(f">hh{len(name)}sh1si", 1, len(name), name.encode(), 1, b"t", place)
    producer.produce(OFFSETS_TOPIC, key=key, value=struct.pack(">hqihq", 3, 7, -1, 0, 0), partition=wrong)
    assert producer.flush(20) == 0
    since = {index: offset for index, offset in before.items() if index != wrong or not missing}
    found = later(its_client, cluster, since, name)[name]
    assert isinstance(found, Found)
    assert (found.partition, found.offset >= before[wrong]) == (wrong, True)
    assert found.record == Commit(name, "t", place, 7, commit_ms=0)


def test_a_broken_record_is_a_fault(damaged: KafkaCluster, its_client: Client) -> None:
    """It may be of any group. A group whose own record can't be read was used."""
    make = Maker(damaged.bootstrap_servers)
    topic, name, other = make.topic(), make.name(), make.name()
    make.simple(name, at(topic))
    cluster = seen(its_client)
    since = ends_of(its_client, cluster)
    producer = Producer({"bootstrap.servers": damaged.bootstrap_servers, "client.id": "__admin_client"})
    key = struct.pack(f">hh{len(name)}sh1si", 1, len(name), name.encode(), 1, b"t", 0)
    producer.produce(OFFSETS_TOPIC, key=key, value=b"no commit", partition=0)
    assert producer.flush(20) == 0
    answers = later(its_client, cluster, since, name, other)
    assert answers == {name: Found(0, since[0], mock.ANY, None), other: None}
    producer.produce(OFFSETS_TOPIC, key=b"\x00\x63what is this", value=b"", partition=1)
    assert producer.flush(20) == 0
    answer = later(its_client, cluster, since, other)[other]
    assert isinstance(answer, Fault)
    assert answer.code == "CORRUPT_MESSAGE"
    assert f"{OFFSETS_TOPIC}-1 at offset {since[1]}" in answer.message
    make.close()


def test_a_log_that_was_cut_off_is_a_fault(damaged: KafkaCluster, its_client: Client) -> None:
    """Records between the offset and the beginning of the log are gone, and may have been of this group."""
    make = Maker(damaged.bootstrap_servers)
    cluster = seen(its_client)
    # Not in the partition of the broken commit, which its coordinator meets when it loads again, and gives up.
    names = iter(make.name, None)
    topic, name = make.topic(), next(each for each in names if partition_of(each, len(cluster.leaders)) != 0)
    make.simple(name, at(topic))
    since = ends_of(its_client, cluster)
    index = partition_of(name, len(cluster.leaders))
    partition = Partition(OFFSETS_TOPIC, index)
    make.simple(name, at(topic))
    settings = {"cleanup.policy": "delete", "retention.ms": "1", "segment.ms": "100"}
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()]
    resource = ConfigResource(ResourceType.TOPIC, OFFSETS_TOPIC, incremental_configs=entries)
    make.admin.incremental_alter_configs([resource])[resource].result()

    def cut_off() -> bool:
        start = start_offsets(its_client, [partition], soon())[partition]
        return isinstance(start, int) and start > since[index]

    wait_for(cut_off, seconds=60)
    answer = later(its_client, cluster, since, name)[name]
    assert isinstance(answer, Fault)
    assert answer.code == "OFFSET_OUT_OF_RANGE"
    make.close()


# And what the operator makes of it, at the moment of the deletion.


@pytest.fixture
def warehouse(client: Client, cluster: Cluster, tmp_path: Path) -> Warehouse:
    """Tables of the shared broker's log."""
    topic_id = topic_ids(client, [OFFSETS_TOPIC], soon())[OFFSETS_TOPIC]
    assert isinstance(topic_id, str)
    return Warehouse(tmp_path, cluster.id, topic_id, len(cluster.leaders))


@pytest.mark.parametrize(
    ("happens", "further", "reason"),
    [
        pytest.param(nothing, 0, reasons.DELETED, id="nothing-happens"),
        pytest.param(commits_the_same, 0, reasons.RECENTLY_ACTIVE, id="the-same-offset-once-more"),
        pytest.param(comes_and_goes, 0, reasons.RECENTLY_ACTIVE, id="a-member-that-joined-and-left"),
        pytest.param(aborts_a_transaction, 0, reasons.RECENTLY_ACTIVE, id="a-transaction-that-was-aborted"),
        pytest.param(nothing, 1_000, reasons.EVIDENCE_INCOMPLETE, id="another-log"),
    ],
)
def test_only_a_group_that_the_log_is_silent_about_is_deleted(  # noqa: PLR0913, PLR0917
    client: Client,
    cluster: Cluster,
    make: Maker,
    warehouse: Warehouse,
    happens: Callable[[Maker, str, str], object],
    further: int,
    reason: str,
) -> None:
    """Idle by the tables, Empty and unchanged by the broker: the end of the log has the last word."""
    topic, name = make.topic(records=5), make.name()
    make.abandoned(name, topic)
    ends = ends_of(client, cluster)
    ends[partition_of(name, len(ends))] += further
    warehouse.write([idle(name)], ends=ends)
    scene = Scene(client)
    scene.context = replace(scene.context, tables=Tables(ActivitySpec(warehouse.uri)))
    observation, plan = scene.plan(policy(name, idleFor="1h"))
    assert plan.actions == (name,)
    happens(make, name, topic)
    (outcome,) = scene.apply(plan, observation)
    kind = OutcomeType.DELETED if reason == reasons.DELETED else OutcomeType.NOT_DELETED
    assert (outcome.group, outcome.kind, outcome.reason) == (name, kind, reason), outcome.message
    assert make.groups().get(name) == (None if kind is OutcomeType.DELETED else "EMPTY")


def test_long_ids_cost_neither_time_nor_memory(client: Client, cluster: Cluster, make: Maker) -> None:
    """Clients choose ids of up to 32 KB, and all connections share what is remembered of them."""
    remembered = offsets_topic._partition_of.cache_info
    since, before = ends_of(client, cluster), remembered()
    name = make.simple(make.name("x" * 256), at(make.topic()))
    assert isinstance(later(client, cluster, since, name)[name], Found)
    assert (remembered().hits, remembered().misses) == (before.hits, before.misses)
    for n in range(11_000):
        offsets_topic._partition_of(f"id-{n}", 50)
    assert remembered().currsize <= 10_000
