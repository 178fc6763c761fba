"""Scenarios: a ledger that is deleted, recreated, compacted, or contains unreadable records."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from testing.faults.enforcement import LOOK_SECONDS
from testing.faults.errors import Broken
from testing.faults.stage import Stage
from testing.faults.world import World
from testing.sandbox.ledger_log import LedgerLog
from testing.sandbox.waiting import wait_for

_COMPACTED = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}


def ledger_deleted(stage: Stage) -> None:
    """The ledger's topic is deleted: no group is deleted without it, and the connection reports it."""
    with _ledger_lost(stage, "the ledger was gone") as world:
        _delete_topic(world)
        stage.tried += 1


def ledger_recreated(stage: Stage) -> None:
    """The ledger's topic is recreated, empty, between two runs: no group is deleted until a user confirms."""
    with _ledger_lost(stage, "the ledger was another one") as world:
        _delete_topic(world)
        _make_topic(world)
        stage.tried += 1


def ledger_emptied(stage: Stage) -> None:
    """The ledger's records are deleted, but not its topic: no group is deleted."""
    with _ledger_lost(stage, "the ledger was emptied") as world:
        # Brokers refuse to delete records of a topic that is only compacted.
        _configure(world, {"cleanup.policy": "delete"})
        for emptied in world.groups.admin.delete_records([TopicPartition(world.ledger_topic, 0, -1)]).values():
            emptied.result()
        _configure(world, {"cleanup.policy": "compact"})
        stage.tried += 1
        # A process that has read the ledger may still have its marks in memory; a new one can't.
        world.succeed(world.replicas.leader())


def ledger_compacted(stage: Stage) -> None:
    """The ledger is compacted while it has marks and backups: a successor finds all valid entries."""
    with stage.world() as world:
        first = world.abandon(4)
        world.until_deleted(first)
        names = world.abandon(4)
        world.until_marked(names)
        before = len(world.ledger.read())
        _configure(world, {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001", "max.compaction.lag.ms": "100"})
        stage.tried += 1

        def compacted() -> bool:
            # The active segment is never compacted: later records roll it.
            world.run()
            return len(LedgerLog(world.groups.bootstrap, world.ledger_topic).read()) < before

        wait_for(compacted, "the ledger is compacted", 60, 1.0)
        world.succeed(world.replicas.leader())
        more = world.abandon(2)
        world.until_deleted([*names, *more])


def ledger_unreadable(stage: Stage) -> None:
    """Garbage in place of a mark blocks the deletion of its group; garbage without a key blocks no other group."""
    with stage.world() as world:
        names = world.abandon(4)
        world.until_marked(names)
        damaged, others = names[0], names[1:]
        world.truth.stays([damaged], "its entry in the ledger can't be read")
        key = json.dumps(["mark", world.auditor.policy_uid, damaged], separators=(",", ":"))
        _write(world, key.encode(), b"\xff not JSON")
        _write(world, b"\x00\x01", b"{}")
        stage.tried += 1
        world.until_deleted(others)
        world.runs_and_keeps([damaged])
        if "LedgerRecordUnreadable" not in world.reasons():
            raise Broken(f"the status does not show it: {world.summary()}")


def ledger_of_a_later_version(stage: Stage) -> None:
    """A mark of a later version of the ledger's format does not lead to a deletion."""
    with stage.world() as world:
        names = world.abandon(3)
        world.until_marked(names)
        record = world.ledger.before(("mark", world.auditor.policy_uid, names[0]), time.time())
        if record is None:
            raise Broken("it was marked, and has no mark")
        world.truth.stays([names[0]], "its mark is of a later version")
        key = json.dumps(list(record.key), separators=(",", ":"))
        _write(world, key.encode(), json.dumps({**record.value, "v": 2}).encode())
        stage.tried += 1
        world.until_deleted(names[1:])
        world.runs_and_keeps(names[:1])


def transaction_left_open(stage: Stage) -> None:
    """A client leaves a transaction open in the ledger's topic: nothing is deleted until it ends."""
    with stage.world() as world:
        names = world.abandon(3)
        world.until_marked(names)
        settings = {"transactional.id": f"stranger-{world.name}", "transaction.timeout.ms": 60_000}
        stranger = Producer({"bootstrap.servers": world.groups.bootstrap, "log_level": 0, **settings})
        stranger.init_transactions(30)
        stranger.begin_transaction()
        stranger.produce(world.ledger_topic, key=b'["keep","x"]', value=b"{}")
        stranger.flush(30)
        stage.tried += 1
        world.truth.stays(names, "a transaction was open in the ledger")
        for _ in range(2):
            world.run(seconds=90)
        if set(names) - world.groups.listed():
            raise Broken("deleted, though the end of the ledger could not be read")
        stranger.abort_transaction(30)
        world.truth.free(names)
        world.until_deleted(names)


@contextmanager
def _ledger_lost(stage: Stage, why: str) -> Iterator[World]:
    """A world with marked groups, which must stay after the ledger is damaged; the connection must report it."""
    with stage.world() as world:
        names = world.abandon(4)
        world.until_marked(names)
        world.truth.stays(names, why)
        yield world
        world.runs_and_keeps(names, 4)
        _shows(world, "LedgerReset")


def _delete_topic(world: World) -> None:
    for deleted in world.groups.admin.delete_topics([world.ledger_topic]).values():
        deleted.result()
    topics = world.groups.admin.list_topics
    wait_for(lambda: world.ledger_topic not in topics(timeout=10).topics, "the topic is gone")
    time.sleep(LOOK_SECONDS)


def _make_topic(world: World) -> None:
    topic = NewTopic(world.ledger_topic, 1, -1, config=_COMPACTED | {"unclean.leader.election.enable": "false"})
    for made in world.groups.admin.create_topics([topic]).values():
        made.result()


def _configure(world: World, settings: dict[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, world.ledger_topic, incremental_configs=entries)
    for altered in world.groups.admin.incremental_alter_configs([resource]).values():
        altered.result()


def _write(world: World, key: bytes, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": world.groups.bootstrap, "log_level": 0})
    producer.produce(world.ledger_topic, key=key, value=value, partition=0)
    producer.flush(30)


def _shows(world: World, reason: str) -> None:
    conditions = world.kube.get("KafkaConnection", world.name, "main").get("status", {}).get("conditions", [])
    if reason not in world.reasons() | {condition["reason"] for condition in conditions}:
        raise Broken(f"the status does not show {reason}: {world.summary()}")
