"""Worlds of other versions of Kafka, with ZooKeeper, and an upgrade under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from testing.sandbox.kafka.cluster import Alteration
from testing.sandbox.kafka.jars import VERSIONS
from testing.sandbox.kafka.layout import CONTROLLER_ID
from testing.worlds.changes import OFFSETS, configured, restarted, rolling_restart
from testing.worlds.life import Life
from testing.worlds.world import Cluster, Moment, Refuses, World, config

_OLD, _NEW = "3.9.1", VERSIONS[0]


@contextmanager
def _upgraded(life: Life) -> Iterator[None]:
    """Controller and brokers are upgraded one by one."""
    for node in (CONTROLLER_ID, *life.kafka.broker_ids):
        restarted(life, node, Alteration(version=_NEW))
    yield


WORLDS = (
    *(
        World("versions", f"kafka-{version.replace('.', '-')}", f"Kafka {version}", Cluster(version))
        for version in VERSIONS[1:]
    ),
    World("versions", "kafka-2-8-2-of-3", "three brokers of Kafka 2.8.2 with ZooKeeper", Cluster("2.8.2", brokers=3)),
    World("versions", "zookeeper-3-9-1", "Kafka 3.9.1 with ZooKeeper", Cluster("3.9.1", zookeeper=True)),
    World(
        "versions",
        "zookeeper-3-9-1-of-3",
        "three brokers of Kafka 3.9.1 with ZooKeeper, restarted one by one after the first deletions",
        Cluster("3.9.1", brokers=3, zookeeper=True),
        change=rolling_restart,
        moment=Moment.DELETED,
        alone=True,
    ),
    World(
        "versions",
        "old-messages",
        "log.message.format.version=0.10.2 on Kafka 2.8.2: no transactions",
        Cluster("2.8.2", config=config(log_message_format_version="0.10.2")),
        expected=Refuses("LedgerUnavailable", "format", ends=True),
    ),
    World(
        "versions",
        "old-messages-of-offsets",
        "message.format.version=0.10.2 of __consumer_offsets alone, on Kafka 2.8.2",
        Cluster("2.8.2"),
        change=configured(OFFSETS, message_format_version="0.10.2"),
        moment=Moment.MARKED,
        # `delete --force` reads no log.
        expected=Refuses("EvidenceUnreadable", "old format", ends=True, everywhere=False),
        settings=("message.format.version",),
    ),
    World(
        "versions",
        "messages-down-converted",
        "log.message.downconversion.enable=false on Kafka 2.8.2",
        Cluster("2.8.2", config=config(log_message_downconversion_enable="false")),
    ),
    World(
        "versions",
        "upgrade-under-way",
        f"controller and brokers are upgraded from {_OLD} to {_NEW} one by one, while groups are marked",
        Cluster(_OLD, brokers=3),
        change=_upgraded,
        moment=Moment.MARKED,
        alone=True,
    ),
)
