"""CaughtUp where topics are written in transactions: marks have offsets, and nobody reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from group_hygiene.evidence.reader import Tables
from group_hygiene.kafka import offsets
from group_hygiene.kafka.client import CLIENT_ID, Client
from group_hygiene.kafka.offsets import LastRecord, SearchRange, committed_offsets, end_offsets, last_records
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.spec.connection import ActivitySpec
from group_hygiene.spec.policy import Policy
from testing.sandbox.kafka import KafkaCluster
from tests.kafka.makers import Maker, at, seen, soon
from tests.kafka.scene import Scene, alert, policy, verdicts
from tests.kafka.tables import Pipeline
from tests.warehouse import simple

MATCH = "Match"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("2.5.1", id="2.5.1", marks=pytest.mark.slow),
        pytest.param(None, id="4.4.0-two-brokers"),
    ],
)
def kafka(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Brokers that count requests."""
    if request.param is None:
        yield request.getfixturevalue("two_brokers")
        return
    with KafkaCluster(request.param, request_log=True) as cluster:
        yield cluster


def look(client: Client, topic: str, first: int = 0, enough: int | None = None) -> LastRecord | Fault:
    """What a search of the topic's partition 0 finds."""
    place = Partition(topic, 0)
    end = end_offsets(client, [place], soon())[place]
    assert isinstance(end, int)
    return last_records(client, {place: SearchRange(first, end if enough is None else enough, end)}, soon())[place]


def unused(*groups: str) -> Policy:
    """Delete what nobody has used for three days, by the log alone."""
    return policy(*groups, unchangedFor=None, idleFor="72h")


def fetches(kafka: KafkaCluster, since: Any) -> int:
    return sum(kafka.count_requests("FETCH", client_id=CLIENT_ID, since=since).values())


def why(scene: Scene, wanted: Policy, after: float = 0) -> dict[str, str]:
    return verdicts(scene.observe(wanted, after=after), wanted)


def test_where_the_last_record_is(client: Client, make: Maker) -> None:
    """Behind it are marks of transactions, records of aborted ones, and one that is still open."""
    topic = make.topic()
    assert look(client, topic) == LastRecord(-1, 0, 0), "nothing was ever written"
    make.transaction(topic, 3)
    assert look(client, topic) == LastRecord(2, 3, 4)
    make.transaction(topic, 30, "abort")
    assert look(client, topic) == LastRecord(2, 3, 35)
    assert look(client, topic, first=3) == LastRecord(-1, 3, 35), "not before what is asked for"
    producer = make.transaction(topic, 2, "open")
    make.produce(topic, [(None, b"x")])
    assert look(client, topic) == LastRecord(2, 3, 38), "nobody who reads what is committed gets that far"
    make.finish(producer, topic)
    assert look(client, topic) == LastRecord(37, 38, 39)
    assert look(client, topic, enough=20) == LastRecord(37, 39, 39)


def test_a_long_way_back(client: Client, make: Maker) -> None:
    """Behind more aborted records than an answer holds; and forward again, to the last of those before them."""
    topic = make.topic()
    make.produce(topic, [(None, b"x" * 5_000)] * 60)
    make.transaction(topic, 150, "abort", size=5_000)
    assert look(client, topic) == LastRecord(59, 60, 211)
    found = look(client, topic, enough=3)
    assert isinstance(found, LastRecord)
    assert (3 <= found.offset <= 59, found.clear) == (True, 211), "what is enough ends the search"


def test_a_log_of_aborted_records_is_not_searched_to_its_start(
    scene: Scene, client: Client, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is not deleted; other groups and the scan do not wait for it."""
    topic, other = make.topic(), make.topic(records=2)
    make.transaction(topic, 150, "abort", size=5_000)
    read = make.abandoned(make.name("read"), topic)
    left = make.abandoned(make.name("left"), other)
    wanted = policy(read, left)
    monkeypatch.setattr(offsets, "_ANSWERS_MAX", 2)
    scene.observe(wanted)
    observation = scene.observe(wanted, after=60)
    assert verdicts(observation, wanted) == {read: reasons.LAG_UNKNOWN, left: MATCH}
    assert observation.snapshot.complete
    found = look(client, topic)
    assert isinstance(found, Fault)
    assert (found.code, found.retriable) == ("TOO_MANY_BATCHES", False)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_need_not_be_unpacked(client: Client, make: Maker, codec: str) -> None:
    """Whatever they are packed with."""
    topic = make.topic()
    setting = "uncompressed" if codec == "none" else codec
    entry = ConfigEntry("compression.type", setting, incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    make.admin.incremental_alter_configs([changed])[changed].result()
    make.produce(topic, [(None, b"x" * 1000)] * 7)
    make.transaction(topic, 9, "abort")
    assert look(client, topic) == LastRecord(6, 7, 17)


def test_marks_of_transactions_are_no_records_that_wait(
    scene: Scene, client: Client, make: Maker, kafka: KafkaCluster
) -> None:
    """Who read all three records is caught up, whatever offsets marks and aborted transactions use up; who did not is
    abandoned. From the second scan on nothing is fetched.
    """
    topic, other = make.topic(), make.topic(partitions=2, records=2)
    make.transaction(topic, 3)
    read = make.abandoned(make.name("read"), topic, commit=at(topic, 3))
    left = make.abandoned(make.name("left"), topic, commit=at(topic, 2))
    both = make.abandoned(make.name("both"), topic, commit=at(topic, 3) | at(other, 2))
    wanted, lag = policy(read, left, both), alert(f"{make.tag}*", name="lag", lag={"atLeast": 1})
    scene.observe(wanted)
    assert why(scene, wanted, after=60) == {read: reasons.CAUGHT_UP, left: MATCH, both: reasons.CAUGHT_UP}
    make.transaction(topic, 5, "abort")
    assert why(scene, wanted) == {read: reasons.CAUGHT_UP, left: MATCH, both: reasons.CAUGHT_UP}
    mark = kafka.mark()
    for _ in range(3):
        assert why(scene, wanted) == {read: reasons.CAUGHT_UP, left: MATCH, both: reasons.CAUGHT_UP}
        assert verdicts(scene.observe(lag), lag) == dict.fromkeys((read, left, both), MATCH), "as Kafka's tools count"
    # Each scan reads the offsets log on, by one request to each broker.
    assert fetches(kafka, mark) == 3 * len(mark)
    make.produce(topic, [(None, b"x")])
    assert why(scene, wanted) == {read: MATCH, left: MATCH, both: reasons.CAUGHT_UP}
    assert fetches(kafka, mark) == 1 + 4 * len(mark), "what was known of one was not enough for the others"


def test_a_live_consumer_of_a_silent_topic_is_kept(client: Client, make: Maker, scene: Scene, tmp_path: Path) -> None:
    """It was assigned its partition, so it is Empty; and only marks of transactions wait for it."""
    topic, group = make.topic(), make.name("assigned")
    make.transaction(topic, 3)
    make.reads(group, topic, 3)
    committed = committed_offsets(client, {group: None}, soon())[group]
    assert isinstance(committed, dict)
    assert [(commit.offset, look(client, topic)) for commit in committed.values()] == [(3, LastRecord(2, 3, 4))]
    make.transaction(topic, 2, "abort")
    cluster = seen(client)
    pipeline = Pipeline(client, cluster, tmp_path / "warehouse")
    pipeline.run([simple(group)])
    scene.use(Tables(ActivitySpec(pipeline.uri)))
    wanted = unused(group)
    observation, plan = scene.due(wanted)
    assert (verdicts(observation, wanted), plan.actions) == ({group: reasons.CAUGHT_UP}, ())
    make.transaction(topic, 1)
    observation, plan = scene.due(wanted)
    assert (verdicts(observation, wanted), plan.actions) == ({group: MATCH}, (group,))


def test_lag_in_another_topic_proves_nothing(client: Client, make: Maker, scene: Scene, tmp_path: Path) -> None:
    """A live consumer has read all of a silent topic, and its group left records of another topic behind long ago."""
    silent, left, group = make.topic(records=3), make.topic(records=3), make.name("assigned")
    make.simple(group, at(left))
    make.reads(group, silent, 3)
    committed = committed_offsets(client, {group: None}, soon())[group]
    assert isinstance(committed, dict)
    assert {place.topic: commit.offset for place, commit in committed.items()} == {left: 0, silent: 3}
    cluster = seen(client)
    pipeline = Pipeline(client, cluster, tmp_path / "warehouse")
    pipeline.run([simple(group)])
    scene.use(Tables(ActivitySpec(pipeline.uri)))
    wanted = unused(group)
    observation, plan = scene.due(wanted)
    assert (verdicts(observation, wanted), plan.actions) == ({group: reasons.CAUGHT_UP}, ())
    make.produce(silent, [(None, b"x")])
    observation, plan = scene.due(wanted)
    assert (verdicts(observation, wanted), plan.actions) == ({group: MATCH}, (group,))


def test_it_is_asked_again_before_a_deletion(scene: Scene, make: Maker, client: Client) -> None:
    """The record that waited at the scan was removed since, and what is left are marks: it stays."""
    topic, other = make.topic(), make.topic()
    for each in (topic, other):
        make.transaction(each, 3)
    still, no_more = (make.abandoned(make.name("left"), each, commit=at(each, 2)) for each in (topic, other))
    tidy = policy(still, no_more)
    observation, plan = scene.plan(tidy)
    assert set(plan.actions) == {still, no_more}
    for gone in make.admin.delete_records([TopicPartition(other, 0, 3)]).values():
        gone.result()
    outcomes = {outcome.group: (outcome.kind, outcome.reason) for outcome in scene.apply(plan, observation)}
    assert outcomes == {
        still: (OutcomeType.DELETED, reasons.DELETED),
        no_more: (OutcomeType.NOT_DELETED, reasons.CAUGHT_UP),
    }


def test_who_does_not_ask_fetches_nothing(scene: Scene, make: Maker, kafka: KafkaCluster) -> None:
    """Policies for whom lag is a number, or that look at nothing of the kind, read no log."""
    topic = make.topic()
    make.transaction(topic, 3)
    make.abandoned(make.name("left"), topic)
    groups = f"{make.tag}*"
    mark = kafka.mark()
    scene.observe(
        alert(groups, lag={"atLeast": 1}),
        alert(groups, name="lost", committedOffsets="OutOfRange"),
        policy(groups, name="x"),
    )
    assert fetches(kafka, mark) == 0


def test_one_partition_is_enough(scene: Scene, make: Maker, kafka: KafkaCluster) -> None:
    """Ten partitions with records, and three groups that read none: one answer tells of all three."""
    topic = make.topic(partitions=10)
    for index in range(10):
        make.produce(topic, [(None, b"x")], partition=index)
    everywhere = {place: commit for index in range(10) for place, commit in at(topic, partition=index).items()}
    groups = [make.abandoned(make.name("left"), topic, commit=everywhere) for _ in range(3)]
    wanted = policy(*groups)
    scene.observe(wanted)
    mark = kafka.mark()
    assert why(scene, wanted, after=60) == dict.fromkeys(groups, MATCH)
    # The second one reads the offsets log on.
    assert fetches(kafka, mark) == 1 + len(mark)
