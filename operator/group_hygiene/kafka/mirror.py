"""Which groups MirrorMaker 2 mirrors into this cluster, by the checkpoints that it writes (KIP-382).

MirrorMaker commits translated offsets only for groups that are Empty or absent here, so that a failover finds them.
The record key of a checkpoint begins with the group id (org.apache.kafka.connect.mirror.Checkpoint.KEY_SCHEMA).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping

import kafka.errors as kafka_errors
from kafka import KafkaConsumer, TopicPartition

from group_hygiene.kafka.client import Client, Deadline, fault_of, library_config
from group_hygiene.kafka.cluster import topic_ids
from group_hygiene.model import Fault

# DefaultReplicationPolicy builds the name with replication.policy.separator, by default a dot.
_CHECKPOINTS = re.compile(r".[^a-zA-Z0-9]checkpoints[^a-zA-Z0-9]internal\Z")


def is_checkpoints(topic: str) -> bool:
    """Whether MirrorMaker 2 writes its checkpoints to a topic of this name."""
    return _CHECKPOINTS.search(topic) is not None


class Checkpoints:
    """Remembers what was read, so that each look costs only what is new. Ids are kept for good: too many is safe."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, TopicPartition], int] = {}
        self._groups: set[str] = set()

    def read(self, client: Client, topics: Iterable[str], deadline: Deadline) -> frozenset[str] | Fault:
        """All group ids named by checkpoints up to the topics' ends, or the Fault that kept us from reading them."""
        wanted = sorted(topic for topic in topics if is_checkpoints(topic))
        if not wanted:
            return frozenset()
        ids = topic_ids(client, wanted, deadline)
        if isinstance(ids, Fault):
            return ids
        try:
            consumer = KafkaConsumer(
                **library_config(client.settings), group_id=None, enable_auto_commit=False, auto_offset_reset="earliest"
            )
        except kafka_errors.KafkaError as error:
            return fault_of(error)
        try:
            return self._read(consumer, ids, deadline)
        except kafka_errors.KafkaError as error:
            return fault_of(error)
        finally:
            consumer.close()

    def _read(self, consumer: KafkaConsumer, ids: Mapping[str, str], deadline: Deadline) -> frozenset[str] | Fault:
        partitions: list[TopicPartition] = []
        for topic in ids:
            found = consumer.partitions_for_topic(topic)
            if not found:
                return Fault("UNKNOWN_TOPIC_OR_PARTITION", f"topic {topic}")
            partitions += [TopicPartition(topic, partition) for partition in sorted(found)]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        for partition in partitions:
            # A topic that was made anew is unread: its id tells, and below 2.8 an end before our position.
            start = self._positions.get((ids[partition.topic], partition), 0)
            consumer.seek(partition, start if start <= ends[partition] else 0)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            if deadline.left <= 0:
                return Fault("REQUEST_TIMED_OUT", f"reading {', '.join(ids)} took too long", retriable=True)
            for records in consumer.poll(timeout_ms=200).values():
                self._groups.update(group for record in records if (group := _group_of(record.key)) is not None)
        self._positions.update({(ids[p.topic], p): consumer.position(p) for p in partitions})
        return frozenset(self._groups)


def _group_of(key: bytes | None) -> str | None:
    if key is None or len(key) < 2:
        return None
    (length,) = struct.unpack_from(">h", key)
    if length < 0 or len(key) < 2 + length:
        return None
    return key[2 : 2 + length].decode("utf-8", errors="replace")
