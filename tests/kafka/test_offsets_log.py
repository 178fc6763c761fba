"""Records that real brokers of several generations wrote, and what Kafka's own classes make of the same bytes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator

import pytest
from confluent_kafka import Consumer

from group_hygiene.kafka.client import connect
from group_hygiene.kafka.offsets_log import RECORD_TYPES, BrokenRecord, Commit, StateRecord, decode
from group_hygiene.model.groups import CommittedOffset, Partition
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.jars import VERSIONS
from testing.sandbox.waiting import wait_for
from tests.kafka.conftest import QUICK
from tests.kafka.makers import Maker, at
from tests.kafka.members import ShareMember, StreamsMember, part
from tests.kafka.offsets_topic import Record, generated, read_log, scala, types_of_records
from tests.log_records import SAMPLES

# Written by no broker of 4.3 or later: the hash of its topics stands in a group's epoch.
NO_LONGER_WRITTEN = {"consumer-topics", "share-topics"}
METADATA = "é 🧀 {}"
MODERN = {"group.protocol": "consumer", "log_level": 0}
COMMITTED, ABORTED = 7_000, 8_000
KAFKAS = [sample for sample in SAMPLES if sample.written_by == "4.3.0"]


@pytest.fixture(scope="module", params=["2.5.1", "2.8.2", "3.9.1"])
def older(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """One broker of that version; that of 3.9 with the coordinator that knows KIP-848."""
    config = {name: value for name, value in QUICK.items() if "consumer" in name} | {
        "group.coordinator.rebalance.protocols": "classic,consumer"
    }
    config = config if request.param == "3.9.1" else {}
    with KafkaCluster(request.param, config=config) as running:
        yield running


@pytest.fixture(
    params=[VERSIONS[0], *(pytest.param(version, marks=pytest.mark.slow) for version in ("4.3.0", "4.2.0"))]
)
def newer(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """The shared broker of the newest version; or one of those before it, whose groups are of all four types too."""
    if request.param == VERSIONS[0]:
        yield request.getfixturevalue("kafka")
        return
    with KafkaCluster(request.param, config=QUICK) as running:
        yield running


def commits(make: Maker) -> str:
    """Every way to commit, a topic that is deleted under its offsets, and a group that is deleted; the group's name."""
    topic, doomed, group = make.topic(), make.topic(), make.name("committing")
    make.simple(make.name("käse-🧀"), at(topic))
    make.simple(group, {Partition(topic, 0): CommittedOffset(5, 3, METADATA), Partition(doomed, 0): CommittedOffset(6)})
    make.pending(group, at(topic, COMMITTED)).commit_transaction()
    make.pending(group, at(topic, ABORTED)).abort_transaction()
    make.abandoned(make.name("classic"), topic)
    make.delete_group(make.abandoned(make.name("deleted"), topic))
    make.delete_topic(doomed)
    return group


def consumer_group(kafka: KafkaCluster, make: Maker) -> str:
    """A group of the protocol of KIP-848 that Kafka's own console consumer made: the C client wants newer brokers."""
    topic, group = make.topic(records=1), make.name("kip848")
    where = ("--bootstrap-server", kafka.bootstrap_servers, "--topic", topic, "--group", group, "--from-beginning")
    protocol = ("--consumer-property", "group.protocol=consumer", "--max-messages", "1", "--timeout-ms", "60000")
    done = kafka.tool("org.apache.kafka.tools.consumer.ConsoleConsumer", *where, *protocol)
    assert done.stdout == "x\n", done.stderr
    return group


def check_commits(records: Iterable[Record], group: str, topics: int = 2) -> None:
    """What `commits` did is in the records."""
    records = list(records)
    assert any("käse-🧀" in record.group for record in records)
    mine = [record for record in records if isinstance(record, Commit) and record.group == group]
    assert {record.topic for record in mine} == {record.topic for record in mine if record.offset is not None}
    assert len({record.topic for record in mine}) == topics
    offsets = {record.offset: record for record in mine}
    assert set(offsets) == {5, 6, COMMITTED, ABORTED, None}
    assert (offsets[5].leader_epoch, offsets[5].metadata) == (3, METADATA)
    times = [offsets[offset].commit_ms or 0 for offset in (5, COMMITTED, ABORTED)]
    assert 1_700_000_000_000 < times[0] <= times[1] <= times[2]


@pytest.mark.slow
def test_what_older_brokers_wrote(older: KafkaCluster) -> None:
    """Commits of every kind, members that come and go, and tombstones: each as that version's own classes read it."""
    make = Maker(older.bootstrap_servers)
    group = commits(make)
    newer = older.version == "3.9.1"
    if newer:
        make.delete_group(consumer_group(older, make))
    make.close()
    wait_for(
        lambda: ("commit", True) in types_of_records((decode(*pair) for pair in read_log(older)), group), seconds=60
    )
    pairs = read_log(older)
    records = [decode(*pair) for pair in pairs]
    known = scala(older, pairs)
    unknown = set()
    for record, theirs in zip(records, known, strict=True):
        if theirs is None:
            assert isinstance(record, StateRecord)
            unknown.add(record.kind)
        elif older.version == "2.5.1" and isinstance(record, StateRecord):
            # It writes since when a group is in its state, and reads that from version 2 only: its own are version 3.
            assert record._replace(state_ms=None) == theirs
        else:
            assert record == theirs
    # The coordinator in Scala knows nothing of KIP-848, and all else.
    assert unknown == (
        {kind for kind in RECORD_TYPES if kind.startswith("consumer-")} - {"consumer-regex"} if newer else set()
    )
    if newer:
        assert records == generated(older, pairs)
    check_commits(records, group)
    classic = [record for record in records if isinstance(record, StateRecord) and record.kind == "classic"]
    assert {record.members for record in classic if not record.gone} == {0, 1}
    assert all((record.state_ms or 0) > 1_700_000_000_000 for record in classic if not record.gone)
    # The coordinator in Java writes a new group before its first member is in it.
    types = {(record.protocol_type, record.members) for record in classic if not record.gone}
    assert types == {("consumer", 0), ("consumer", 1)} | ({("", 0)} if newer else set())
    assert any(record.gone for record in classic)


def test_what_the_newest_broker_wrote(newer: KafkaCluster) -> None:
    """Groups of all four types with members, without, and deleted: each record as its own classes read it."""
    kafka, make, client = newer, Maker(newer.bootstrap_servers), connect(Settings((newer.bootstrap_servers,)))
    committing, topic = commits(make), make.topic()
    names = {kind: make.name(kind) for kind in ("classic", "consumer", "share", "streams")}

    def seen(*kinds: tuple[str, bool]) -> bool:
        records = [decode(*pair) for pair in read_log(kafka)]
        return set(kinds) <= {row for name in names.values() for row in types_of_records(records, name)}

    make.join(names["classic"], topic)
    make.join(names["consumer"], topic, "consumer", at(topic))
    pattern = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": names["consumer"]} | MODERN)
    pattern.subscribe([f"^{topic}.*"])
    with (
        ShareMember(kafka, make, names["share"], topic),
        StreamsMember(client, names["streams"], [part("0", [topic])]),
    ):

        def all_there() -> bool:
            pattern.poll(0.1)
            return seen(("consumer-regex", False), ("share-state", False), ("share-assignment", False))

        wait_for(all_there, seconds=60)
    pattern.close()
    make.leave(names["classic"])
    make.leave(names["consumer"])
    for name in names.values():
        make.delete_group(name)
    make.close()
    client.close()
    wait_for(
        lambda: ("commit", True) in types_of_records((decode(*pair) for pair in read_log(kafka)), committing),
        seconds=60,
    )

    pairs = read_log(kafka)
    records = [decode(*pair) for pair in pairs]
    assert records == generated(kafka, pairs)
    check_commits(records, committing)
    of_types = {row for name in names.values() for row in types_of_records(records, name)} - {
        ("commit", False),
        ("commit", True),
    }
    kinds = set(RECORD_TYPES) - NO_LONGER_WRITTEN
    assert {kind for kind, gone in of_types if not gone} == kinds
    assert {kind for kind, gone in of_types if gone} >= kinds - {"consumer-regex"}


def test_every_sample_says_to_kafka_what_it_says_to_us(kafka: KafkaCluster) -> None:
    """The records that the unit tests decode are Kafka's own, also those that no broker writes any more."""
    assert generated(kafka, [sample.pair for sample in KAFKAS]) == [sample.record for sample in KAFKAS]


def test_damaged_records_say_nothing_that_kafka_does_not_read_in_them(kafka: KafkaCluster) -> None:
    """Of what we read of changed bytes Kafka reads the same, or refuses what is in tagged fields, which we skip."""
    dice = random.Random(6)
    pairs: list[tuple[bytes, bytes | None]] = []
    records: list[Record] = []
    while len(records) < 2_000:
        key, value = dice.choice(KAFKAS).pair
        if value is None or dice.random() < 0.3:
            key = damaged(key, dice)
        else:
            value = damaged(value, dice)
        with contextlib.suppress(BrokenRecord):
            records.append(decode(key, value))
            pairs.append((key, value))
    theirs = generated(kafka, pairs)
    assert [record for record, read in zip(records, theirs, strict=True) if read not in (None, record)] == []
    assert theirs.count(None) < 20


def damaged(data: bytes, dice: random.Random) -> bytes:
    """With some bytes changed, put in or taken out."""
    at = dice.randrange(len(data))
    return (
        data[:at]
        + bytes(dice.choices((0, 1, 2, 3, 127, 128, 255), k=dice.randint(0, 2)))
        + data[at + dice.randint(0, 2) :]
    )
