"""One writer of a ledger at a time, and each of its transactions all or nothing, on a real broker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient

from group_hygiene.errors import LedgerFenced
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.model.entries import KeepRequest, Owner, Removal
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.books import (
    LATER,
    NOW,
    LosingClient,
    claimed,
    configured,
    foreign,
    fresh,
    mark,
    opened,
    pair,
    refused,
    seen,
    settings,
    transaction,
    unread,
)
from tests.kafka.makers import Maker, soon

# kafka-python's consumers leave sockets for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")


# Brokers forget a transactional id a few seconds after its last write, which takes them seven days by default.
_EXPIRING = {
    "transactional.id.expiration.ms": "3000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


@pytest.fixture(scope="module")
def expiring() -> Iterator[KafkaCluster]:
    with KafkaCluster(config=_EXPIRING) as cluster:
        yield cluster


def transactional_ids(cluster: KafkaCluster) -> set[str]:
    """Those that the transaction coordinators know."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        return {row.transactional_id for rows in admin.list_transactions().values() for row in rows}
    finally:
        admin.close()


def test_who_was_fenced_writes_nothing_more(client: Client, make: Maker) -> None:
    """However often it tries; and nothing of it is seen."""
    topic = make.name("ledger")
    first = claimed(client, topic)
    first.write([mark("g-1")])
    second = claimed(client, topic)
    for _ in range(2):
        with pytest.raises(LedgerFenced):
            first.write([mark("g-2"), Removal(mark("g-1").key)])
    with pytest.raises(LedgerFenced):
        first.claim()
    second.write([mark("g-3")])
    assert set(fresh(client, topic).marks["uid-1"]) == {"g-1", "g-3"}


def test_an_aborted_transaction_is_not_seen(client: Client, kafka: KafkaCluster, make: Maker) -> None:
    """Neither at the end of the log, nor between others, nor interleaved with one that is committed."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    ledger.write([mark("g-1")])
    one = transaction(
        kafka, topic, [pair(mark("aborted-1")), pair(Owner(installation="x", ledger="x", since=NOW))], make.name()
    )
    two = transaction(kafka, topic, [pair(mark("g-2"))], make.name())
    one.produce(topic, *reversed(pair(mark("aborted-2"))))
    one.flush(60)
    one.abort_transaction(60)
    two.commit_transaction(60)
    one.begin_transaction()
    one.produce(topic, *reversed(pair(mark("g-3"))))
    one.commit_transaction(60)
    ledger.read_on(soon())
    assert set(ledger.contents.marks["uid-1"]) == {"g-1", "g-2", "g-3"}
    transaction(kafka, topic, [pair(mark("aborted-3"))] * 50, make.name()).abort_transaction(60)
    ledger.read_on(soon())
    ledger.write([mark("g-4")])
    ledger.read_on(soon())
    assert set(ledger.contents.marks["uid-1"]) == {"g-1", "g-2", "g-3", "g-4"}
    assert fresh(client, topic) == ledger.contents


def test_an_open_transaction_hides_what_follows(client: Client, kafka: KafkaCluster, make: Maker) -> None:
    """Who must know the end of the log is told so, and waits only so long; once it ended all is read."""
    topic = make.name("ledger")
    ledger = claimed(client, topic)
    producer = transaction(kafka, topic, [pair(mark("g-1"))], make.name())
    # It waits 10 s for the end of somebody else's transaction, and then has time left to say what is in the way.
    message = refused(lambda: ledger.read_on(soon()))
    assert "a transaction has been open" in message
    ledger.note([mark("g-2")])
    refused(lambda: ledger.read_on(Deadline(1)))
    producer.commit_transaction(60)
    ledger.read_on(soon())
    assert set(ledger.contents.marks["uid-1"]) == {"g-1", "g-2"}


def test_a_predecessors_open_transaction_ends_with_the_claim(client: Client, kafka: KafkaCluster, make: Maker) -> None:
    """Nobody waits until brokers give it up."""
    topic = make.name("ledger")
    claimed(client, topic)
    transaction(kafka, topic, [pair(mark("g-1"))], settings(topic).writer)
    successor = unread(client, topic)
    successor.claim()
    assert successor.contents.marks == {}


def test_who_was_fenced_meanwhile_does_not_come_back(client: Client, make: Maker) -> None:
    """After a commit without an answer, too: it would fence the one that took over."""
    topic, losing = make.name("ledger"), LosingClient(client)
    ledger = claimed(losing, topic)  # type: ignore[arg-type]
    losing.loses = "requests"
    refused(lambda: ledger.write([mark("g-1")]))
    losing.loses = ""
    successor = unread(client, topic)
    successor.claim()
    with pytest.raises(LedgerFenced):
        ledger.read_on(soon())
    with pytest.raises(LedgerFenced):
        ledger.write([mark("g-2")])
    with pytest.raises(LedgerFenced):
        ledger.claim()
    successor.write([mark("g-3")])
    assert set(fresh(client, topic).marks["uid-1"]) == {"g-3"}


@pytest.mark.slow
def test_a_broker_that_hangs_delays_no_caller_for_long(make: Maker) -> None:
    """The write fails in time; when the broker is back, what is in the log is what is in memory."""
    with KafkaCluster() as cluster:
        client = connect(Settings((cluster.bootstrap_servers,)))
        try:
            ledger = claimed(client, "ledger")
            cluster.pause_broker(1)
            before = time.monotonic()
            refused(lambda: ledger.write([mark("g-1")], Deadline(2)))
            assert time.monotonic() - before < 60
            refused(lambda: ledger.read_on(Deadline(1)))
            cluster.resume_broker(1)
            ledger.write([mark("g-2")], soon(180))
            ledger.read_on(soon())
            assert "g-2" in ledger.contents.marks["uid-1"]
            assert fresh(client, "ledger") == ledger.contents
        finally:
            client.close()


@pytest.mark.parametrize("taken_over", [pytest.param(False, id="alone"), pytest.param(True, id="another-began-since")])
@pytest.mark.parametrize("lost", [pytest.param(False, id="known"), pytest.param(True, id="after-a-lost-answer")])
def test_an_expired_id_is_not_taken_for_another_writer(expiring: KafkaCluster, taken_over: bool, lost: bool) -> None:
    """Brokers forget an id that wrote nothing for seven days. Only a writer that began since then fences this one."""
    topic = f"ledger-{taken_over}-{lost}"
    client = connect(Settings((expiring.bootstrap_servers,)))
    losing = LosingClient(client)
    try:
        ledger = claimed(losing, topic)  # type: ignore[arg-type]
        ledger.write([mark("g-1")])
        if lost:
            losing.loses = "answers"
            refused(lambda: ledger.write([mark("g-2")], Deadline(2)))
            losing.loses = ""
        wait_for(lambda: settings(topic).writer not in transactional_ids(expiring), "the id has expired", 60, 0.5)
        if taken_over:
            claimed(client, topic).write([mark("g-3")])
            for _ in range(2):
                with pytest.raises(LedgerFenced):
                    ledger.write([mark("g-4")])
        else:
            ledger.write([mark("g-4")])
        expected = {"g-1", "g-3" if taken_over else "g-4"}
        assert set(fresh(client, topic).marks["uid-1"]) - {"g-2"} == expected
    finally:
        client.close()


def test_what_is_too_large_is_refused_whole(client: Client, make: Maker) -> None:
    """Also what was sent before it; nobody has to wait for the transaction's end, and the next write goes through."""
    topic = foreign(make)
    ledger = claimed(client, topic)
    large = KeepRequest(group="g-2", until=LATER, why=os.urandom(300_000).hex(), by="me", at=NOW)
    before = fresh(client, topic)
    changes = [*(seen(f"g-{number}") for number in range(5_000)), large]
    configured(make, topic, {"max.message.bytes": "200000"})
    assert f"max.message.bytes of the topic {topic}" in refused(lambda: ledger.write(changes))
    configured(make, topic, {"max.message.bytes": "1048588"})
    assert ledger.contents == before == fresh(client, topic)
    ledger.write([mark("g-3")])
    assert set(fresh(client, topic).marks["uid-1"]) == {"g-3"}


def test_nothing_is_written_unclaimed(client: Client, make: Maker) -> None:
    """That is a mistake in this program."""
    ledger = opened(client, settings(make.name("ledger")))
    with pytest.raises(RuntimeError):
        ledger.write([mark("g-1")])
