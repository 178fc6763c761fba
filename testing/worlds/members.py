"""Members that no raw request of `faults.groups` makes: of KIP-848 groups and of share groups (KIP-932)."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, Producer, ShareConsumer

from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.offsets import share_offsets
from group_hygiene.model.groups import Fault
from testing.faults.errors import FaultsError
from testing.faults.groups import Groups
from testing.worlds.commands import apart

_SECONDS = 60.0
_TRIES = 3


def visit(bootstrap: str, group: str, topic: str, protocol: str = "classic") -> None:
    """A consumer joins, and leaves without a commit."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol, "log_level": 0}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    consumer.subscribe([topic])
    end = time.monotonic() + _SECONDS
    while not consumer.assignment():
        consumer.poll(0.1)
        if time.monotonic() > end:
            raise FaultsError(f"a consumer could not join {group}")
    consumer.close()


def abandon_share(groups: Groups, group: str, topic: str) -> None:
    """A share consumer accepts records of a topic with one partition, and leaves: the group has a start offset.

    In a process of its own, since librdkafka's share consumer sometimes ends its process by a failed assertion.
    """
    what = f"making share group {group}"
    if not any(apart(_accept_share, (groups.bootstrap, group, topic), 2 * _SECONDS, what) == 0 for _ in range(_TRIES)):
        raise FaultsError(f"{what} failed {_TRIES} times")
    # Unread records, without which the group would be caught up.
    groups.produce(topic, partitions=1, records=1)


def _accept_share(bootstrap: str, group: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    consumer.subscribe([topic])
    end, read = time.monotonic() + _SECONDS, False
    while not read:
        # A new share group begins at the end of its topic (share.auto.offset.reset=latest).
        producer.produce(topic, b"x", partition=0)
        producer.flush(_SECONDS)
        read = any(message.error() is None for message in consumer.poll(0.5))
        if time.monotonic() > end:
            raise FaultsError(f"share group {group} could not be made")
    consumer.commit_sync(10)
    consumer.close()


def start_offsets(client: Client, group: str) -> Mapping[tuple[str, int], int]:
    """The start offsets of a share group."""
    found = share_offsets(client, {group: None}, Deadline(_SECONDS))[group]
    if isinstance(found, Fault):
        raise FaultsError(f"start offsets of {group}: {found}")
    return {(place.topic, place.partition): row.offset for place, row in found.started.items()}
