"""Ledgers and what is in them, made on demand: each under a topic of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from kafka import KafkaConsumer, TopicPartition
from kafka.protocol.producer import EndTxnRequest

from group_hygiene.engine.context import Context, Memory
from group_hygiene.engine.executor import Executor, Guard, open_ledger
from group_hygiene.errors import LedgerProblem
from group_hygiene.kafka.client import Call, Client, Deadline, Response
from group_hygiene.ledger import topic as ledger_topic
from group_hygiene.ledger.contents import Contents, LedgerSettings, encode_key, encode_value
from group_hygiene.ledger.journal import Journal
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model import reasons
from group_hygiene.model.entries import (
    Backup,
    Entry,
    HistoryEntry,
    Intent,
    KeepRequest,
    Mark,
    OutcomeType,
    SavedOffset,
    Seen,
    Watch,
)
from group_hygiene.model.groups import Fault
from group_hygiene.process.clock import Clock
from group_hygiene.spec.connection import parse_connection
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.backups import backup as backup_of
from tests.kafka import makers
from tests.kafka.clients import Wrapped
from tests.kafka.makers import Maker, soon
from tests.kafka.permissions import WRITERS

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(days=30)
RIGHT = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
}


def watch(uid: str = "uid-1") -> Watch:
    return Watch(policy_uid=uid, digest="d", watched=60.0, since=NOW, at=NOW, complete_at=NOW)


def seen(group: str, uid: str = "uid-1") -> Seen:
    return Seen(connection_uid=uid, group=group, type="Classic", fingerprint=b"\x00\xff" * 8, since=NOW, watched=1.5)


def mark(group: str, uid: str = "uid-1", digest: str = "d") -> Mark:
    return Mark(policy_uid=uid, group=group, policy="ns/tidy", digest=digest, since=NOW, due=LATER)


def keep(group: str, until: datetime = LATER) -> KeepRequest:
    return KeepRequest(group=group, until=until, why="needed", by="me", at=NOW)


def intent(group: str, deletion: str = "id-1") -> Intent:
    return Intent(
        group=group,
        id=deletion,
        type="Classic",
        policy="ns/tidy",
        policy_uid="uid-1",
        generation=1,
        at=NOW,
        deadline=NOW,
        expires=LATER,
    )


def outcome(group: str, deletion: str = "id-1", expires: datetime = LATER) -> HistoryEntry:
    return HistoryEntry(
        group=group,
        id=deletion,
        at=NOW,
        what=OutcomeType.DELETED,
        reason=reasons.DELETED,
        message="",
        policy="ns/tidy",
        policy_uid="uid-1",
        generation=1,
        expires=expires,
    )


def backup(group: str, partitions: int = 2, expires: datetime = LATER) -> Backup:
    rows = [SavedOffset(index, index * 7, 3, "from host-1.example.org, ünïcode", None) for index in range(partitions)]
    return backup_of(group, {"orders": rows}, expires=expires)


EVERYTHING: tuple[Entry, ...] = (
    watch(),
    seen("g-1"),
    seen("g-2"),
    mark("g-1"),
    keep("g-3"),
    backup("g-1"),
    intent("g-1"),
    outcome("g-4"),
)


def settings(topic: str, **changes: Any) -> LedgerSettings:
    return replace(LedgerSettings(installation="ours", writer=f"{WRITERS}{topic}", topic=topic), **changes)


def opened(client: Client, wanted: LedgerSettings) -> Ledger:
    """The ledger, made if need be, and nothing written yet."""
    ledger = open_ledger(client, wanted, soon(), create=True)
    assert ledger is not None
    return ledger


def claimed(client: Client, topic: str, **changes: Any) -> Ledger:
    """The ledger of which we are the writer."""
    ledger = opened(client, settings(topic, **changes))
    ledger.claim()
    return ledger


def fresh(client: Client, topic: str) -> Contents:
    """What somebody reads who reads it for the first time."""
    return opened(client, settings(topic, installation=None)).contents


def everything(ledger: Ledger) -> set[Entry]:
    return {entry for entry in ledger.entries(lambda key: key != ("owner",), soon()) if not isinstance(entry, Backup)}


def refused(call: Callable[[], object], reason: str = reasons.LEDGER_UNAVAILABLE) -> str:
    """The message of the problem that it must raise."""
    with pytest.raises(LedgerProblem) as caught:
        call()
    assert caught.value.reason == reason
    return str(caught.value)


def configured(make: Maker, topic: str, changes: Mapping[str, str]) -> None:
    """Change settings of a topic."""
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in changes.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    for future in make.admin.incremental_alter_configs([resource]).values():
        future.result()
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)

    def is_applied() -> bool:
        found = make.admin.describe_configs([asked])[asked].result()
        return {key: found[key].value for key in changes} == dict(changes)

    wait_for(is_applied)


def foreign(make: Maker, partitions: int = 1, **changes: str) -> str:
    """A topic that somebody else made, with the settings of a ledger but for the changes."""
    name = make.name("foreign")
    config = RIGHT | {key.replace("_", "."): value for key, value in changes.items()}
    make.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result()
    wait_for(lambda: len(make.admin.list_topics(name).topics[name].partitions) == partitions)
    return name


def raw_records(kafka: KafkaCluster, topic: str) -> int:
    """How many records are in the log, markers and aborted ones left out or not, by another client."""
    place = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=None, enable_auto_commit=False)
    consumer.assign([place])
    consumer.seek_to_beginning()
    end, count = consumer.end_offsets([place])[place], 0
    while consumer.position(place) < end:
        count += sum(len(records) for records in consumer.poll(timeout_ms=200).values())
    consumer.close()
    return count


def transaction(kafka: KafkaCluster, topic: str, pairs: list[tuple[bytes, bytes | None]], name: str) -> Any:
    """Another writer's transaction, still open: its producer."""
    where = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
    producer = Producer(where | {"transactional.id": name, "transaction.timeout.ms": 600_000})
    producer.init_transactions(60)
    producer.begin_transaction()
    for key, value in pairs:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(60) == 0
    return producer


def pair(entry: Entry) -> tuple[bytes, bytes | None]:
    return encode_key(entry.key), encode_value(entry)


def unread(client: Client, topic: str) -> Ledger:
    """As `open_ledger` makes it, but not read: an open transaction would keep it waiting."""
    found = ledger_topic.find(client, topic, soon())
    assert isinstance(found, ledger_topic.TopicMetadata)
    return Ledger(client, settings(topic), found, makers.seen(client).id)


class LosingClient(Wrapped):
    """A client that loses commits, before they are sent or after: what no broker does at will."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.loses = ""

    def send(self, call: Call, deadline: Deadline) -> Response | Fault:
        lost = self.loses if isinstance(call.request, EndTxnRequest) else ""
        answer = self._client.send(call, deadline) if lost != "requests" else None
        return Fault("NETWORK_EXCEPTION", "lost") if lost else answer


def restorer(client: Client, ledger: Ledger, clock: Clock, guard: Guard) -> Executor:
    """What restores from this ledger, as a process that opened it."""
    spec = {"bootstrapServers": list(client.settings.bootstrap_servers), "scan": {"timeout": "90s"}}
    connection = parse_connection({"metadata": {"name": "main", "namespace": "kafka"}, "spec": spec})
    journal = Journal(ledger, ledger.contents, {}, writable=True)
    context = Context(client, connection, Memory(ledger=ledger, contents=ledger.contents), clock, journal)
    return Executor(context, guard)
