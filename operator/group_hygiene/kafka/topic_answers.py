"""Decodes answers about all topics, Metadata and DescribeLogDirs, without the library's object for every partition.

MetadataResponse v5 to v12 and DescribeLogDirsResponse v1 to v5, by Apache Kafka's message definitions. Pure: bytes in,
records out. Bytes of another layout raise KafkaProtocolError.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kafka.errors import KafkaProtocolError

from group_hygiene.kafka.bounds import BROKERS, Rows, TooMuch
from group_hygiene.kafka.encoding import LayoutError, Reader

_NO_ID = uuid.UUID(int=0)


class Broker(NamedTuple):
    node_id: int
    host: str
    port: int


class TopicPartition(NamedTuple):
    """The names are those of Kafka's message definition; leader_epoch: -1 = not known (before v7)."""

    partition_index: int
    leader_id: int
    leader_epoch: int


class Topic(NamedTuple):
    """topic_id: None = the broker gave none (before v10)."""

    error_code: int
    name: str
    topic_id: uuid.UUID | None
    partitions: tuple[TopicPartition, ...]


class Metadata(NamedTuple):
    """replica_nodes: the brokers that have a replica of any partition of these topics, at most BROKERS."""

    brokers: tuple[Broker, ...]
    cluster_id: str
    topics: tuple[Topic, ...]
    replica_nodes: frozenset[int]


class LogDirs(NamedTuple):
    """error_code: the first one of the answer or a directory, 0 = none. topics: those in directories without an
    error.
    """

    error_code: int
    topics: frozenset[str]


def metadata(data: bytes, version: int, rows: Rows) -> Metadata:
    """The answer to Metadata v5 to v12. rows: counts brokers, topics and partitions.

    Raises TooMuch, also if more than BROKERS brokers have replicas.
    """
    with _reading(data):
        reader = Reader(data, 4, flexible=version >= 9)
        brokers = tuple(_broker(reader) for _ in _each(reader, rows))
        cluster_id = reader.text_or_null() or ""
        # The controller.
        reader.take(4)
        replicas: set[int] = set()
        topics = tuple(_topic(reader, version, rows, replicas) for _ in _each(reader, rows))
        if 8 <= version <= 10:
            reader.take(4)
        reader.tagged()
        reader.end()
        return Metadata(brokers, cluster_id, topics, frozenset(replicas))


def _broker(reader: Reader) -> Broker:
    broker = Broker(reader.number(4), reader.text(), reader.number(4))
    reader.text_or_null()
    reader.tagged()
    return broker


def _topic(reader: Reader, version: int, rows: Rows, replicas: set[int]) -> Topic:
    """Adds to `replicas`."""
    error, name = reader.number(2), reader.text_or_null() or ""
    identity = uuid.UUID(bytes=reader.take(16)) if version >= 10 else _NO_ID
    reader.take(1)
    partitions: list[TopicPartition] = []
    for _ in _each(reader, rows):
        reader.take(2)
        index, leader = reader.number(4), reader.number(4)
        epoch = reader.number(4) if version >= 7 else -1
        partitions.append(TopicPartition(index, leader, epoch))
        # Each is on another broker.
        count = reader.count()
        if count <= BROKERS:
            replicas.update(reader.number(4) for _ in range(count))
        if max(count, len(replicas)) > BROKERS:
            raise TooMuch(f"more than {BROKERS} brokers have replicas")
        # In sync, and offline.
        for _ in range(2):
            reader.take(4 * reader.count())
        reader.tagged()
    if version >= 8:
        reader.take(4)
    reader.tagged()
    return Topic(error, name, None if identity == _NO_ID else identity, tuple(partitions))


def log_dirs(data: bytes, version: int, rows: Rows) -> LogDirs:
    """The answer to DescribeLogDirs v1 to v5. rows: counts directories, topics and partitions. Raises TooMuch."""
    with _reading(data):
        reader = Reader(data, 4, flexible=version >= 2)
        error = reader.number(2) if version >= 3 else 0
        topics: set[str] = set()
        for _ in _each(reader, rows):
            error = reader.number(2) or error
            reader.text()
            for _ in _each(reader, rows):
                topics.add(reader.text())
                for _ in _each(reader, rows):
                    reader.take(4 + 8 + 8 + 1)
                    reader.tagged()
                reader.tagged()
            reader.take((16 if version >= 4 else 0) + (1 if version >= 5 else 0))
            reader.tagged()
        reader.tagged()
        reader.end()
        return LogDirs(error, frozenset(topics))


def _each(reader: Reader, rows: Rows) -> range:
    count = reader.count()
    rows.take(count)
    return range(count)


@contextmanager
def _reading(data: bytes) -> Iterator[None]:
    try:
        yield
    except (LayoutError, ValueError) as error:
        raise KafkaProtocolError(f"an answer of {len(data)} bytes can't be decoded: {error}") from error
