"""The end of the offsets log, which no table covers yet: whatever it says of a group keeps that group."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from group_hygiene.evidence.reader import Tables
from group_hygiene.kafka.changes import delete_offsets
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, topic_ids
from group_hygiene.kafka.offsets import end_offsets, start_offsets
from group_hygiene.kafka.offsets_log import Commit, decode
from group_hygiene.kafka.partitions import partition_of
from group_hygiene.kafka.tail import Found, Place, Tail
from group_hygiene.model import reasons
from group_hygiene.model.groups import CommittedOffset, Fault, Partition
from group_hygiene.model.snapshot import Cluster
from group_hygiene.model.verdicts import OutcomeKind
from group_hygiene.spec.connection import ActivitySpec, Settings
from sandbox.kafka import KafkaCluster
from sandbox.waiting import wait_for
from tests.kafka.makers import Maker, at, seen, soon
from tests.kafka.offsets_topic import read_rows
from tests.kafka.scene import Scene, policy
from tests.warehouse import Warehouse, idle

PENDING = 4_242


def end(client: Client, cluster: Cluster, group: str) -> Place:
    """Where the next record of the group will be, or of another one in its partition."""
    partition = Partition(OFFSETS_TOPIC, partition_of(group, len(cluster.leaders)))
    offset = end_offsets(client, [partition], soon())[partition]
    assert isinstance(offset, int)
    return Place(partition.partition, offset)


@pytest.fixture
def cluster(client: Client, make: Maker) -> Cluster:
    """The shared cluster, which has an offsets log once somebody committed."""
    make.simple(make.name(), at(make.topic()))
    read = seen(client)
    assert read.leaders
    return read


def tail(client: Client, cluster: Cluster, **groups: Place) -> Tail:
    leaders = {index: broker for index, (broker, _) in cluster.leaders.items()}
    return Tail(client, groups, leaders)


def beside(group: str, cluster: Cluster) -> str:
    """The name of another group whose records are in the same partition."""
    count = len(cluster.leaders)
    names = (f"{group}-{number}" for number in itertools.count())
    return next(name for name in names if partition_of(name, count) == partition_of(group, count))


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
    """What happens, and the first record of it: its kind, and of a commit the offset."""

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
        pytest.param(Event(comes_and_goes_again, "consumer-member"), id="a-member-of-the-newer-protocol"),
        pytest.param(Event(commits_in_a_transaction, offset=PENDING), id="a-transaction-that-is-open"),
        pytest.param(Event(aborts_a_transaction, offset=PENDING), id="a-transaction-that-was-aborted"),
    ],
)
def test_whatever_happens_to_a_group_is_seen(client: Client, cluster: Cluster, make: Maker, event: Event) -> None:
    """What is written after the place is seen, however little it changed, and before it nothing is."""
    topic, name = make.topic(), make.name()
    make.abandoned(name, topic, "consumer" if event.kind.startswith("consumer") else "classic")
    before = end(client, cluster, name)
    open_transaction: Any = event.happens(make, name, topic)
    found = tail(client, cluster, **{name: before}).read_on(soon())[name]
    after = tail(client, cluster, **{name: end(client, cluster, name)}).read_on(soon())[name]
    if open_transaction is not None:
        open_transaction.abort_transaction()
    assert isinstance(found, Found)
    assert found.place.partition == before.partition
    assert found.place.offset >= before.offset
    record = found.record
    assert (record.group, record.gone) == (name, False)
    read = ("commit", record.offset) if isinstance(record, Commit) else (record.kind, None)
    assert read == (event.kind, event.offset)
    assert after is None


def test_deleted_offsets_are_seen(client: Client, cluster: Cluster, make: Maker) -> None:
    """A tombstone too says that the tables are out of date: a commit before it may be compacted away."""
    topic, name = make.topic(), make.name()
    make.abandoned(name, topic)
    before = end(client, cluster, name)
    assert delete_offsets(client, name, [Partition(topic, 0)], soon()) == {Partition(topic, 0): None}
    found = tail(client, cluster, **{name: before}).read_on(soon())[name]
    assert isinstance(found, Found)
    assert found.record == Commit(name, topic, 0)


def test_records_of_other_groups_say_nothing(client: Client, cluster: Cluster, make: Maker) -> None:
    """In the same partition, and of groups that are asked for in the same breath from places of their own."""
    topic, name = make.topic(), make.name()
    other = beside(name, cluster)
    make.simple(name, at(topic))
    first = end(client, cluster, name)
    make.simple(other, at(topic))
    second = end(client, cluster, other)
    assert first.partition == second.partition
    assert first.offset < second.offset
    assert tail(client, cluster, **{name: first, other: second}).read_on(soon()) == {name: None, other: None}
    answers = tail(client, cluster, **{name: second, other: first}).read_on(soon())
    assert answers[name] is None
    assert isinstance(answers[other], Found)


def test_reading_on_tells_what_came_since(client: Client, cluster: Cluster, make: Maker) -> None:
    """The better part is read before, and what is left right before the deletion; what was found once stays found."""
    topic, name, other = make.topic(), make.name(), make.name()
    make.simple(name, at(topic))
    reader = tail(client, cluster, **{name: end(client, cluster, name), other: end(client, cluster, other)})
    assert reader.read_on(soon()) == {name: None, other: None}
    make.simple(name, at(topic))
    found = reader.read_on(soon())
    assert isinstance(found[name], Found)
    assert found[other] is None
    assert reader.read_on(soon()) == found


def test_many_records_are_read_to_the_end(client: Client, cluster: Cluster, make: Maker) -> None:
    """More than one answer holds: the last record counts as the first does."""
    topic, name = make.topic(partitions=100), make.name()
    before = end(client, cluster, name)
    other = beside(name, cluster)
    metadata = "m" * 4000
    for _ in range(10):
        make.simple(other, {Partition(topic, index): CommittedOffset(0, -1, metadata) for index in range(100)})
    make.simple(name, at(topic))
    found = tail(client, cluster, **{name: before}).read_on(soon())[name]
    assert isinstance(found, Found)
    assert found.place.offset >= before.offset + 1000


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
    """Nothing is not what is answered, and it stays so."""
    name = make.name()
    place = end(client, cluster, name)
    reader = tail(client, cluster, **{name: Place(place.partition, place.offset + further)})
    for deadline in (Deadline(seconds), soon()):
        answer = reader.read_on(deadline)[name]
        assert isinstance(answer, Fault)
        assert answer.code == code


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


def test_a_broken_record_is_a_fault_of_its_partition(damaged: KafkaCluster, its_client: Client) -> None:
    """Whose record it is can't be told, so it may be anybody's."""
    make = Maker(damaged.bootstrap_servers)
    topic, name = make.topic(), make.name()
    make.simple(name, at(topic))
    cluster = seen(its_client)
    elsewhere = next(
        other
        for other in (make.name() for _ in range(100))
        if end(its_client, cluster, other)[0] != end(its_client, cluster, name)[0]
    )
    places = {each: end(its_client, cluster, each) for each in (name, elsewhere)}
    # The one client id that may write to internal topics (AdminUtils.ADMIN_CLIENT_ID).
    producer = Producer({"bootstrap.servers": damaged.bootstrap_servers, "client.id": "__admin_client"})
    producer.produce(OFFSETS_TOPIC, key=b"\x00\x63what is this", value=b"", partition=places[name].partition)
    assert producer.flush(20) == 0
    answers = tail(its_client, cluster, **places).read_on(soon())
    answer = answers[name]
    assert isinstance(answer, Fault)
    assert answer.code == "CORRUPT_MESSAGE"
    assert f"offset {places[name].offset}" in answer.message
    assert answers[elsewhere] is None
    make.close()


def test_a_log_that_was_cut_off_is_a_fault(damaged: KafkaCluster, its_client: Client) -> None:
    """Records between the place and the beginning of the log are gone, and may have been of this group."""
    make = Maker(damaged.bootstrap_servers)
    topic, name = make.topic(), make.name()
    make.simple(name, at(topic))
    cluster = seen(its_client)
    place = end(its_client, cluster, name)
    partition = Partition(OFFSETS_TOPIC, place.partition)
    make.simple(name, at(topic))
    settings = {"cleanup.policy": "delete", "retention.ms": "1", "segment.ms": "100"}
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in settings.items()]
    resource = ConfigResource(ResourceType.TOPIC, OFFSETS_TOPIC, incremental_configs=entries)
    make.admin.incremental_alter_configs([resource])[resource].result()

    def cut_off() -> bool:
        start = start_offsets(its_client, [partition], soon())[partition]
        return isinstance(start, int) and start > place.offset

    wait_for(cut_off, seconds=60)
    answer = tail(its_client, cluster, **{name: place}).read_on(soon())[name]
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
    warehouse.write([idle(name)], covered_to=end(client, cluster, name).offset + further)
    scene = Scene(client)
    scene.context = replace(scene.context, tables=Tables(ActivitySpec(warehouse.uri)))
    observation, plan = scene.plan(policy(name, idleFor="1h"))
    assert plan.actions == (name,)
    happens(make, name, topic)
    (outcome,) = scene.apply(plan, observation)
    kind = OutcomeKind.DELETED if reason == reasons.DELETED else OutcomeKind.NOT_DELETED
    assert (outcome.group, outcome.kind, outcome.reason) == (name, kind, reason), outcome.message
    assert make.groups().get(name) == (None if kind is OutcomeKind.DELETED else "EMPTY")
