"""The ledger on a real broker: the topic that is made or refused, and what is in it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import ConfigResource
from kafka import KafkaConsumer, TopicPartition

from group_hygiene.engine.executor import open_ledger
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.kafka.partition import Fetched
from group_hygiene.ledger.contents import encode_key, encode_value
from group_hygiene.ledger.topic import Pair, Written
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, Owner, Removal, Watch, in_parts, whole
from group_hygiene.model.groups import Fault
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.books import (
    EVERYTHING,
    NOW,
    RIGHT,
    backup,
    claimed,
    configured,
    everything,
    foreign,
    fresh,
    intent,
    keep,
    mark,
    opened,
    outcome,
    pair,
    raw_records,
    refused,
    seen,
    settings,
    transaction,
    watch,
)
from tests.kafka.makers import Maker, soon
from tests.kafka.makers import seen as seen_cluster

# kafka-python's consumers leave sockets for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")


def test_a_long_log_is_read_to_its_end(client: Client, make: Maker) -> None:
    """While brokers answer in time, it may take longer than one answer may: else no restore would work."""
    topic = make.name("long")
    ledger = claimed(client, topic)
    for number in range(12):
        entries = [keep(f"{number}-{each}-{'x' * 200}") for each in range(5_000)]
        ledger.note(entries, Deadline(60))
    began = time.monotonic()
    assert len(fresh(client, topic).keeps) == 60_000
    # A third of the time that it takes.
    limit = (time.monotonic() - began) / 3
    reader = open_ledger(client, settings(topic, installation=None), Deadline(limit), create=True)
    assert reader is not None
    assert len(reader.contents.keeps) == 60_000
    assert sum(1 for _ in reader.latest(lambda key: key[0] == "keep", Deadline(limit))) == 60_000


# Made, found, refused.


def test_it_is_made_with_the_right_settings(client: Client, make: Maker) -> None:
    """One compacted partition, with as many replicas as there are brokers at most."""
    topic = make.name("ledger")
    opened(client, settings(topic))
    assert len(make.admin.list_topics(topic).topics[topic].partitions) == 1
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    config = make.admin.describe_configs([resource])[resource].result()
    expected = RIGHT | {"min.insync.replicas": "1", "compression.type": "producer"}
    assert {key: config[key].value for key in expected} == expected


@pytest.mark.slow
def test_three_replicas_need_two_in_sync() -> None:
    """So that no confirmed entry is on one broker alone; and the broker that leads may die."""
    with KafkaCluster(brokers=3) as cluster:
        maker = Maker(cluster.plaintext_bootstrap)
        client = connect(Settings(tuple(cluster.bootstrap_servers.split(","))))
        try:
            ledger = claimed(client, "ledger")
            ledger.write([mark("g-1")])
            place = maker.admin.list_topics("ledger").topics["ledger"].partitions[0]
            assert len(place.replicas) == 3
            resource = ConfigResource(ConfigResource.Type.TOPIC, "ledger")
            assert maker.admin.describe_configs([resource])[resource].result()["min.insync.replicas"].value == "2"
            cluster.kill_broker(place.leader)
            deadline = Deadline(180)
            ledger.write([mark("g-2")], deadline)
            ledger.read_on(deadline)
            reader = open_ledger(client, settings("ledger"), deadline, create=False)
            assert reader is not None
            assert reader.contents == ledger.contents
            assert set(reader.contents.marks["uid-1"]) == {"g-1", "g-2"}
        finally:
            client.close()
            maker.close()


@pytest.mark.parametrize(
    ("changes", "partitions", "says"),
    [
        pytest.param({}, 2, "it must have 1 partition, not 2", id="partitions"),
        pytest.param({"cleanup_policy": "delete"}, 1, "cleanup.policy must be compact, not delete", id="policy"),
        pytest.param(
            {"cleanup_policy": "compact,delete"}, 1, "cleanup.policy must be compact, not compact,delete", id="both"
        ),
        pytest.param(
            {"message_timestamp_type": "CreateTime"},
            1,
            "message.timestamp.type must be LogAppendTime, not CreateTime",
            id="timestamps",
        ),
        pytest.param(
            {"unclean_leader_election_enable": "true"},
            1,
            "unclean.leader.election.enable must be false, not true",
            id="unclean",
        ),
    ],
)
def test_a_topic_with_other_settings_is_refused(
    client: Client, make: Maker, changes: dict[str, str], partitions: int, says: str
) -> None:
    """With what must be changed, and nothing is written to it."""
    topic = foreign(make, partitions, **changes)
    assert says in refused(lambda: opened(client, settings(topic)))


def test_a_topic_of_another_program_is_no_ledger(client: Client, make: Maker) -> None:
    """Neither one with other records, nor one whose owner can't be read."""
    topic = foreign(make)
    make.produce(topic, [(b"k", b"v")])
    assert "holds records of something else" in refused(lambda: opened(client, settings(topic)))
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    make.produce(topic, [(encode_key(("owner",)), b'{"kind":"owner","v":2}')])
    assert "the owner of the ledger" in refused(lambda: ledger.read_on(soon()))
    assert "the owner of the ledger" in refused(lambda: opened(client, settings(topic)))


def test_an_empty_topic_is_claimed_only_if_nothing_is_known(client: Client, make: Maker) -> None:
    """A ledger that was there before and is not there now is never begun anew in silence."""
    topic = foreign(make)
    refused(lambda: opened(client, settings(topic, known="former")), reasons.LEDGER_RESET)
    absent = make.name("absent")
    for create in (True, False):
        wanted = settings(absent, known="former")
        refused(lambda wanted=wanted, create=create: open_ledger(client, wanted, soon(), create), reasons.LEDGER_RESET)  # type: ignore[misc]
    assert absent not in make.admin.list_topics().topics
    ledger = claimed(client, topic)
    refused(lambda: opened(client, settings(topic, known="former")), reasons.LEDGER_RESET)
    assert opened(client, settings(topic, known=ledger.id)).id == ledger.id
    make.produce(topic, [(encode_key(("owner",)), None)])
    refused(lambda: ledger.read_on(soon()), reasons.LEDGER_RESET)


def test_it_belongs_to_one_installation(client: Client, make: Maker) -> None:
    """Another one is told whose it is, also if both found it empty."""
    topic = foreign(make)
    ours = opened(client, settings(topic))
    theirs = opened(client, settings(topic, installation="theirs", writer=f"theirs-{topic}"))
    ours.claim()
    assert "belongs to the installation ours, not to theirs" in refused(theirs.claim, reasons.LEDGER_OWNED)
    any_owner = opened(client, settings(topic, installation=None, writer=f"cli-{topic}"))
    any_owner.claim()
    any_owner.write([keep("g-1")])
    ours.read_on(soon())
    assert set(ours.contents.keeps) == {"g-1"}


def test_it_belongs_to_one_cluster(client: Client, make: Maker) -> None:
    """Replication copies the topic with all its marks, requests and backups: of these, none is of this cluster."""
    topic, copied = make.name("ledger"), foreign(make)
    owner = claimed(client, topic).contents.owner
    assert owner is not None
    assert owner.cluster == seen_cluster(client).id
    make.produce(copied, [pair(msgspec.structs.replace(owner, cluster="another")), pair(mark("g-1"))])
    assert "is a copy" in refused(lambda: opened(client, settings(copied)), reasons.LEDGER_OWNED)


def test_a_ledger_that_was_copied_back_is_read_again(client: Client, make: Maker) -> None:
    """The topic is made anew with the same ledger in it: who holds the former contents is told, once."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    ledger.write([mark("g-1"), mark("g-2")])
    former, owner = ledger.contents, ledger.contents.owner
    assert owner is not None
    make.delete_topic(topic)
    opened(client, settings(topic))
    make.produce(topic, [pair(owner), pair(mark("g-3"))])
    assert "recreated" in refused(lambda: ledger.read_on(soon()))
    assert set(former.marks["uid-1"]) == {"g-1", "g-2"}
    ledger.read_on(soon())
    assert set(ledger.contents.marks["uid-1"]) == {"g-3"}


def test_a_ledger_whose_records_were_deleted(client: Client, make: Maker) -> None:
    """By a retention that was set for a moment: with their owner or without, for processes of before and later ones."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    ledger.write([keep("g-1"), mark("g-2")])
    owner = ledger.contents.owner
    assert owner is not None
    make.delete_records(topic)
    known = settings(topic, known=ledger.id)
    refused(lambda: ledger.read_on(soon()), reasons.LEDGER_RESET)
    refused(lambda: opened(client, known), reasons.LEDGER_RESET)
    make.produce(topic, [pair(owner), pair(mark("g-3"))])
    for read in (
        lambda: ledger.read_on(soon()),
        lambda: opened(client, known),
        lambda: opened(client, settings(topic)),
    ):
        assert "records were deleted" in refused(read, reasons.LEDGER_RESET)


def test_a_topic_whose_records_were_deleted_may_become_a_ledger(client: Client, make: Maker) -> None:
    """Those were not its own."""
    topic = foreign(make)
    make.produce(topic, [(b"k", b"v")])
    make.delete_records(topic)
    ledger = claimed(client, topic)
    ledger.write([keep("g-1")])
    assert set(opened(client, settings(topic, known=ledger.id)).contents.keeps) == {"g-1"}


# What is in it.


@pytest.mark.parametrize(
    ("key", "value", "held"),
    [
        pytest.param(b"\xff\xfe", b"x", None, id="garbage-key"),
        pytest.param(None, b"x", None, id="no-key"),
        pytest.param(b'["mark","uid-1","g-1"]', b"\x00\xff", "g-1", id="garbage-value"),
        pytest.param(
            b'["mark","uid-1","g-1"]', encode_value(mark("g-1")).replace(b'"v":1', b'"v":2'), "g-1", id="version-2"
        ),
        pytest.param(b'["keep","g-1"]', b'{"kind":"blessing","v":1,"group":"g-1"}', "g-1", id="unknown-kind"),
        pytest.param(b'["mark","uid-1","g-1"]', encode_value(mark("g-2")), "g-1", id="wrong-key"),
        pytest.param(b'["blessing","g-1"]', b"{}", None, id="unknown-key"),
    ],
)
def test_damage_is_counted_and_holds_its_group(
    client: Client, make: Maker, key: bytes | None, value: bytes, held: str | None
) -> None:
    """Everything else is read, and a tombstone in its place ends it."""
    topic = foreign(make, cleanup_policy="delete") if key is None else make.name("ledger")
    if key is None:
        # A compacted topic takes no record without a key, but one that was compacted later may hold it.
        owner = Owner(installation="ours", ledger="x", since=NOW)
        make.produce(topic, [pair(owner), (key, value), pair(mark("g-9"))])
        configured(make, topic, {"cleanup.policy": "compact"})
        ledger = opened(client, settings(topic))
    else:
        ledger = claimed(client, topic)
        make.produce(topic, [(key, value), pair(mark("g-9"))])
        ledger.read_on(soon())
    assert ledger.contents.unreadable == 1
    assert set(ledger.contents.damaged) == ({held} if held else set())
    assert set(ledger.contents.marks["uid-1"]) == {"g-9"}
    assert everything(ledger) == {mark("g-9")}
    if key is not None:
        make.produce(topic, [(key, None)])
        ledger.read_on(soon())
        assert ledger.contents.damaged == {}
        assert ledger.contents.unreadable == 0


def test_our_own_entry_takes_the_place_of_a_damaged_one(client: Client, make: Maker) -> None:
    """The group is let go at once, and not at the next start."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    make.produce(topic, [(encode_key(mark("g-1").key), b"?")])
    ledger.read_on(soon())
    assert set(ledger.contents.damaged) == {"g-1"}
    ledger.write([mark("g-1")])
    assert ledger.contents.damaged == {}
    assert fresh(client, topic) == ledger.contents


def test_a_large_backup_is_whole_or_none(client: Client, make: Maker) -> None:
    """20,000 partitions are more than a broker takes in one record, and a part that is missing is found out."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    saved = backup("g-1", partitions=20_000)
    parts = in_parts(saved)
    assert len(parts) > 1
    assert sum(len(encode_value(part)) for part in parts) > 1_000_000
    ledger.write([*parts, intent("g-1")])

    def stored() -> Backup | None:
        found = ledger.entries(lambda key: key[:3] == ("backup", "g-1", "id-1"), soon())
        return whole([entry for entry in found if isinstance(entry, Backup)])

    assert stored() == saved
    ledger.write([Removal(parts[-1].key)])
    assert stored() is None


@pytest.mark.slow
def test_compaction_changes_nothing(make: Maker) -> None:
    """What brokers removed was replaced before; the end is found though offsets are missing, markers among them."""
    quick = {"log.cleaner.backoff.ms": "100"}
    with KafkaCluster(config=quick) as cluster:
        maker = Maker(cluster.plaintext_bootstrap)
        client = connect(Settings((cluster.bootstrap_servers,)))
        try:
            ledger = claimed(client, "ledger")
            for number in range(30):
                ledger.write([mark(f"g-{index}", digest=f"d-{number}") for index in range(10)])
            transaction(cluster, "ledger", [pair(mark("aborted"))], "aborts").abort_transaction(60)
            ledger.write([*EVERYTHING, Removal(mark("g-0").key)])
            reader = opened(client, settings("ledger"))
            before = raw_records(cluster, "ledger")
            rare = {"segment.ms": "1", "min.cleanable.dirty.ratio": "0.001", "delete.retention.ms": "1"}
            configured(maker, "ledger", rare)
            rolled = iter(range(1_000))

            def compacted() -> bool:
                # A segment is closed by the next write only, and the open one is not compacted.
                time.sleep(0.2)
                ledger.write([watch(f"uid-{next(rolled) % 2}")])
                return raw_records(cluster, "ledger") < before // 4

            wait_for(compacted)
            ledger.read_on(soon())
            reader.read_on(soon())
            assert reader.contents == ledger.contents
            # A ledger with the setting that made this quick is not opened.
            configured(maker, "ledger", {"delete.retention.ms": "3600000"})
            assert fresh(client, "ledger") == ledger.contents
            assert set(ledger.contents.marks["uid-1"]) == {f"g-{index}" for index in range(1, 10)}
            assert everything(ledger) >= {each for each in EVERYTHING if not isinstance(each, Backup | Watch)} - {
                mark("g-0")
            }
        finally:
            client.close()
            maker.close()


def test_a_sweep_removes_what_is_over(client: Client, make: Maker) -> None:
    """Expired backups, outcomes and requests; nothing else."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    stays = {watch(), seen("g-1"), mark("g-1"), keep("g-1"), outcome("g-1"), intent("g-1"), intent("g-2", "id-2")}
    goes = [
        keep("g-2", NOW),
        outcome("g-2", expires=NOW),
        *in_parts(backup("g-2", expires=NOW)),
    ]
    kept = backup("g-1")
    ledger.write([*stays, kept, *goes])
    assert ledger.sweep(NOW) == len(goes)
    assert everything(ledger) == stays
    assert [each for each in ledger.entries(lambda key: key[0] == "backup", soon())] == [kept]
    assert ledger.sweep(NOW) == 0
    assert set(ledger.contents.deletions) == {"g-1"}
    assert ledger.contents.keeps == fresh(client, topic).keeps


@pytest.mark.parametrize("moment", ["while-it-is-read", "right-before-the-removal"])
def test_a_sweep_keeps_what_is_written_again_meanwhile(
    client: Client, make: Maker, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A request that somebody renews while the log is swept stays: its author has read it in the ledger."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    renewed, over = keep("g-1"), keep("g-2", NOW)
    ledger.write([keep("g-1", NOW), over])
    shell = claimed(client, topic, installation=None, writer=f"{settings(topic).writer}-shell")
    pending = [renewed]

    def renew() -> None:
        if pending:
            shell.write([pending.pop()])
            assert renewed in everything(shell)

    if moment == "while-it-is-read":
        fetches = ledger._fetches

        def read(*arguments: Any, **options: Any) -> Iterator[Fetched]:
            yield from fetches(*arguments, **options)
            renew()

        monkeypatch.setattr(ledger, "_fetches", read)
    else:
        send = ledger._writer._send

        def remove(records: Sequence[Pair], deadline: Deadline) -> Written | Fault:
            renew()
            return send(records, deadline)

        monkeypatch.setattr(ledger._writer, "_send", remove)
    assert ledger.sweep(NOW) == 1
    assert not pending
    assert everything(ledger) == {renewed}
    ledger.read_on(soon())
    assert set(ledger.contents.keeps.values()) == {renewed} == set(fresh(client, topic).keeps.values())
    monkeypatch.undo()
    ledger.write([keep("g-3")])
    assert set(fresh(client, topic).keeps) == {"g-1", "g-3"}, "after a removal that was given up, it still writes"


@pytest.mark.slow
def test_a_hundred_thousand_entries_are_written_and_read(client: Client, make: Maker) -> None:
    """And one more, which is one transaction more."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    many = [seen(f"group-{number}") for number in range(100_001)]
    start = time.monotonic()
    ledger.write(many, Deadline(180))
    written = time.monotonic()
    reader = open_ledger(client, settings(topic), Deadline(180), create=False)
    read = time.monotonic()
    print(f"\n100,001 entries: written in {written - start:.1f} s, read in {read - written:.1f} s")  # noqa: T201
    assert reader is not None
    assert len(reader.contents.seen["uid-1"]) == len(many)
    assert reader.contents == ledger.contents


def test_an_entry_is_what_the_wire_holds(client: Client, kafka: KafkaCluster, make: Maker) -> None:
    """Another client reads JSON, by the names that the docs give."""
    topic = make.name("ledger")
    claimed(client, topic).write([mark("g-1")])
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=None, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    records: list[Any] = []

    def both() -> bool:
        records.extend(record for batch in consumer.poll(timeout_ms=200).values() for record in batch)
        return len(records) >= 2

    wait_for(both)
    consumer.close()
    assert [record.key for record in records] == [b'["owner"]', b'["mark","uid-1","g-1"]']
    assert msgspec.json.decode(records[1].value)["kind"] == "mark"
