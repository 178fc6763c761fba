"""A backup counts once it was read back: what can't be read is no backup, and nothing is deleted on its strength."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from kafka.protocol.consumer import FetchResponse

from group_hygiene.engine import recovery
from group_hygiene.engine.recheck import FRESH_S
from group_hygiene.kafka.client import Client
from group_hygiene.ledger.contents import encode_key
from group_hygiene.model import reasons
from group_hygiene.model.entries import in_parts
from group_hygiene.spec.client_settings import Settings
from testing.faults.kafka_proxy import KafkaProxy, Rule, Then, When
from testing.faults.owners import Owners
from testing.faults.requests import DELETE_GROUPS, END_TXN, FETCH, PRODUCE, Exchange
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.ledger_log import LedgerLog
from testing.sandbox.waiting import wait_for
from tests.kafka.books import backup, claimed, configured, fresh, intent, keep, mark, pair, refused, transaction
from tests.kafka.makers import Maker, soon
from tests.kafka.scene import Scene, policy
from tests.kafka.test_settling import known_for
from tests.kafka.test_uncertain_answers import backups

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")


@pytest.fixture(scope="module")
def proxy(kafka: KafkaCluster) -> Iterator[KafkaProxy]:
    """Between the product's client and the broker."""
    made = KafkaProxy(kafka.door(0), Owners())
    yield made
    made.close()


@pytest.fixture(scope="module")
def access(proxy: KafkaProxy) -> Settings:
    """Through the proxy."""
    return Settings((proxy.bootstrap_servers,))


# org.apache.kafka.common.record.DefaultRecordBatch.
_LENGTH_ENDS, _ATTRIBUTES, _CONTROL = 12, 22, 0x20


def parted(records: Any) -> tuple[bytes, bytes]:
    """The markers that are before the first batch of records, and all from that one on."""
    data, at = bytes(records or b""), 0
    while at < len(data) and data[at + _ATTRIBUTES] & _CONTROL:
        at += _LENGTH_ENDS + int.from_bytes(data[at + _LENGTH_ENDS - 4 : at + _LENGTH_ENDS], "big")
    return data[:at], data[at:]


class World:
    """One abandoned group that is due, and the brokers around it."""

    def __init__(self, scene: Scene, kafka: KafkaCluster, proxy: KafkaProxy, make: Maker) -> None:
        self.scene, self.kafka, self.proxy, self.make = scene, kafka, proxy, make
        self.group = make.abandoned(make.name("old"), make.topic(records=5))
        self.end: Callable[[], object] = lambda: None

    def at(self, api: int, when: When, do: Callable[[], object]) -> None:
        """Call `do` once, at the next request with this API key."""

        def then(_: Exchange) -> Then:
            do()
            return Then.PASS

        self.proxy.rule(Rule(lambda exchange: exchange.api == api, when, then))

    def open_transaction(self) -> None:
        """A foreign client begins one on the ledger's partition."""
        theirs = transaction(self.kafka, self.scene.ledger, [pair(mark("theirs"))], self.make.name())
        self.end = lambda: theirs.abort_transaction(60)

    def end_backup(self) -> None:
        """A foreign client writes a tombstone in the place of the backup."""
        found: list[tuple[str, ...]] = []

        def is_there() -> bool:
            records = LedgerLog(self.kafka.bootstrap_servers, self.scene.ledger).read()
            found.extend(record.key for record in records if record.key[:2] == ("backup", self.group))
            return bool(found)

        wait_for(is_there)
        self.make.produce(self.scene.ledger, [(encode_key(found[0]), None)])

    def delete_records(self) -> None:
        """An administrator deletes the topic's records."""
        everything = TopicPartition(self.scene.ledger, 0, -1)
        self.make.admin.delete_records([everything])[everything].result()

    def answer_nothing(self) -> None:
        """A broker answers the next read without records."""

        def strip(exchange: Exchange) -> Then:
            answer = FetchResponse.decode(exchange.answer, version=exchange.version, header=True)
            place = answer.responses[0].partitions[0]
            place.records, _ = parted(place.records)
            exchange.instead = bytes(answer.encode(header=True))
            return Then.PASS

        # The second one is asked for as the first has room for more.
        for _ in range(2):
            self.proxy.rule(Rule(lambda exchange: exchange.api == FETCH, When.BETWEEN, strip))

    def hide_transaction(self, seconds: float) -> None:
        """For so long a broker answers as if it had not written the marker of our transaction yet."""
        until = time.monotonic() + seconds

        def hide(exchange: Exchange) -> Then:
            answer = FetchResponse.decode(exchange.answer, version=exchange.version, header=True)
            place = answer.responses[0].partitions[0]
            if time.monotonic() < until:
                place.records, hidden = parted(place.records)
                if hidden:
                    place.last_stable_offset = int.from_bytes(hidden[:8], "big")
                    exchange.instead = bytes(answer.encode(header=True))
                self.proxy.rule(Rule(lambda exchange: exchange.api == FETCH, When.BETWEEN, hide))
            return Then.PASS

        self.proxy.rule(Rule(lambda exchange: exchange.api == FETCH, When.BETWEEN, hide))


def open_before(world: World) -> None:
    world.at(PRODUCE, When.BEFORE, world.open_transaction)


def open_after(world: World) -> None:
    world.at(END_TXN, When.BETWEEN, world.open_transaction)


def tombstone(world: World) -> None:
    world.at(END_TXN, When.BETWEEN, world.end_backup)


def records_deleted(world: World) -> None:
    configured(world.make, world.scene.ledger, {"cleanup.policy": "compact,delete"})
    world.at(END_TXN, When.BETWEEN, world.delete_records)


def empty_answer(world: World) -> None:
    world.at(END_TXN, When.BETWEEN, world.answer_nothing)


@pytest.fixture
def world(scene: Scene, kafka: KafkaCluster, proxy: KafkaProxy, make: Maker) -> World:
    """With a ledger of its own."""
    return World(scene, kafka, proxy, make)


@pytest.mark.parametrize(
    ("happens", "reason", "says"),
    [
        pytest.param(
            open_before,
            reasons.BACKUP_NOT_READABLE,
            "a transaction has been open",
            id="a-foreign-transaction-before-it",
        ),
        pytest.param(
            open_after, reasons.BACKUP_NOT_READABLE, "a transaction has been open", id="a-foreign-transaction-after-it"
        ),
        pytest.param(tombstone, reasons.BACKUP_NOT_READABLE, "1 of 2 records", id="a-tombstone-in-its-place"),
        pytest.param(empty_answer, reasons.BACKUP_NOT_READABLE, "2 of 2 records", id="an-answer-without-it"),
        pytest.param(records_deleted, reasons.LEDGER_RESET, "any more", id="its-records-are-deleted"),
    ],
)
def test_nothing_is_deleted_whose_backup_is_not_read_back(
    world: World, happens: Callable[[World], None], reason: str, says: str
) -> None:
    """No request is sent, the reason names the cause; and once that has passed, the group goes, with its backup."""
    scene, wanted = world.scene, policy(world.group)
    observation, plan = scene.plan(wanted)
    before = len(world.proxy.seen(DELETE_GROUPS))
    happens(world)
    (outcome,) = scene.apply(plan, observation)
    world.end()
    assert world.group in world.make.groups()
    assert len(world.proxy.seen(DELETE_GROUPS)) == before
    assert outcome.reason == reason
    assert says in outcome.message
    if reason == reasons.LEDGER_RESET:
        return
    scene.context = scene.open()
    known_for(scene, 60)
    recovery.recover_intents(scene.context)
    contents = scene.context.journal.contents
    # Nothing was sent, so nothing is in doubt; and no backup is left of it.
    assert (contents.intents, contents.unresolved) == ({}, {})
    assert backups(scene, world.group) == []
    observation, plan = scene.due(wanted)
    (outcome,) = scene.apply(plan, observation)
    assert outcome.reason == reasons.DELETED
    assert world.group not in world.make.groups()
    assert len(backups(scene, world.group)) >= 1


def test_a_run_ends_where_a_backup_is_not_read_back(world: World) -> None:
    """The next backup would wait as long, so it is not written."""
    scene, make = world.scene, world.make
    scene.memory.batch = 1
    groups = {world.group, *(make.abandoned(make.name("old"), make.topic(records=5)) for _ in range(2))}
    observation, plan = scene.plan(policy(*groups))
    assert set(plan.actions) == groups
    before = len(world.proxy.seen(DELETE_GROUPS))
    open_before(world)
    outcomes = scene.apply(plan, observation)
    world.end()
    assert [each.group for each in outcomes] == list(plan.actions)
    assert [each.reason for each in outcomes] == [reasons.BACKUP_NOT_READABLE, *[reasons.INTERRUPTED] * 2]
    assert [each.message.partition(":")[0] for each in outcomes[1:]] == ["not tried"] * 2
    assert len(world.proxy.seen(DELETE_GROUPS)) == before
    assert groups <= make.groups().keys()


def others_open(world: World, seconds: float) -> None:
    world.open_transaction()
    threading.Timer(seconds, world.end).start()


@pytest.mark.parametrize(
    ("hides", "reason", "says"),
    [
        pytest.param(others_open, reasons.BACKUP_NOT_READABLE, "a transaction has been open", id="others"),
        pytest.param(World.hide_transaction, reasons.OFFSETS_UNKNOWN, "saving took too long", id="its-own"),
    ],
)
def test_a_transaction_that_ends_too_late(
    world: World, hides: Callable[[World, float], None], reason: str, says: str
) -> None:
    """A run waits no longer than its reads of the group are valid; the next one deletes it."""
    scene, wanted = world.scene, policy(world.group)
    observation, plan = scene.plan(wanted)
    before = len(world.proxy.seen(DELETE_GROUPS))
    # Longer than a loaded machine may delay the last read, and shorter than other writes would wait.
    world.at(END_TXN, When.BETWEEN, lambda: hides(world, FRESH_S + 4))
    (outcome,) = scene.apply(plan, observation)
    assert (outcome.reason, says in outcome.message) == (reason, True), outcome.message
    assert len(world.proxy.seen(DELETE_GROUPS)) == before
    assert world.group in world.make.groups()
    scene.context = scene.open()
    known_for(scene, 60)
    recovery.recover_intents(scene.context)
    assert scene.context.journal.contents.intents == {}
    observation, plan = scene.due(wanted)
    (outcome,) = scene.apply(plan, observation)
    assert outcome.reason == reasons.DELETED


def test_a_batch_that_the_broker_had_already_is_read_back(world: World) -> None:
    """The answer to the first try is lost: the second one says nothing of where the records are."""
    scene = world.scene
    observation, plan = scene.plan(policy(world.group))
    lost = world.proxy.rule(Rule(lambda exchange: exchange.api == PRODUCE, When.BETWEEN, lambda _: Then.DROP))
    (outcome,) = scene.apply(plan, observation)
    lost.wait("an answer is lost")
    assert outcome.reason == reasons.DELETED
    assert len(backups(scene, world.group)) == 1


def test_a_backup_of_several_answers_is_read_back(client: Client, make: Maker) -> None:
    """A broker sends 8 MB at most in one answer."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    before = len(list(ledger.entries(lambda _: True, soon())))
    parts = in_parts(backup("g-1", partitions=120_000))
    ledger.write([*parts, intent("g-1")])
    assert len(list(ledger.entries(lambda _: True, soon()))) == before + len(parts) + 1
    assert ledger.contents.intents.keys() == {"g-1"}
    assert fresh(client, topic) == ledger.contents


def test_what_others_wrote_before_is_known_after_a_write(client: Client, make: Maker) -> None:
    """`contents` is what the log says: neither a write nor a note hides what came before it."""
    topic = make.name("ledger")
    ours, theirs = claimed(client, topic), claimed(client, topic, writer=make.name("theirs"))
    theirs.write([keep("g-1")])
    ours.write([mark("g-1")])
    assert ours.contents.keeps.keys() == {"g-1"}
    theirs.write([keep("g-2")])
    ours.note([mark("g-2")])
    assert ours.contents.keeps.keys() == {"g-1"}
    ours.read_on(soon())
    assert ours.contents == fresh(client, topic)


def test_a_write_behind_an_open_transaction_is_a_problem(client: Client, kafka: KafkaCluster, make: Maker) -> None:
    """The writer gets the reason, as does `keep`; once it can be read, it counts."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    theirs = transaction(kafka, topic, [pair(mark("theirs"))], make.name())
    said = refused(lambda: ledger.write([keep("g-1")], until=soon(1)), reasons.BACKUP_NOT_READABLE)
    assert "has been open" in said
    assert ledger.contents.keeps == {}
    theirs.abort_transaction(60)
    ledger.read_on(soon())
    assert ledger.contents.keeps.keys() == {"g-1"}
