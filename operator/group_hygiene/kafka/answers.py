"""Decodes the largest responses without the library's object per row and partition, to save time and memory.

ListGroups v3 to v5 and OffsetFetch v8, whose rows are many, by positions in the bytes; Metadata v5 to v12 and
DescribeLogDirs v1 to v5 field by field. By Apache Kafka's message definitions: a string or an array begins with its
length plus one, as a varint; each struct ends with its tagged fields (KIP-482). Pure: bytes in, records out. Bytes of
another layout raise KafkaProtocolError.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kafka.errors import KafkaProtocolError

from group_hygiene.kafka.bounds import BROKERS, Rows
from group_hygiene.kafka.client import fault_of_code
from group_hygiene.kafka.encoding import Reader
from group_hygiene.model.groups import CommittedOffset, Fault, GroupState, GroupType, Listed, Offsets, Partition
from group_hygiene.process.memory import TooMuch

_TYPES = {kind.lower(): kind for kind in GroupType}
STATES = {state.lower(): state for state in GroupState}

# Partition, offset and leader epoch; then, as one number, the metadata's length plus one, the error, the tagged fields.
_PARTITION = struct.Struct(">iqiI")
_SHORT = struct.Struct(">h")
# In that number: all bits but the one that distinguishes empty metadata from null. If they are 0, nothing follows.
_MORE = 0xFEFFFFFF
_NO_ID = uuid.UUID(int=0)
# The bytes of a row after the group id are the same for most groups, so equal ones are decoded once. A protocol type
# can be any text, so only this many are remembered.
_KNOWN = 8


@contextmanager
def _reading(data: bytes) -> Iterator[None]:
    """Raises KafkaProtocolError where the bytes are not laid out as expected."""
    try:
        yield
    except (IndexError, ValueError, struct.error) as error:
        raise KafkaProtocolError(f"an answer of {len(data)} bytes can't be decoded: {error}") from error


def listed(
    data: bytes, version: int, coordinator: int, rows: Rows, held: Callable[[str], str] = str
) -> dict[str, Listed] | Fault:
    """The groups of one broker's answer to ListGroups v3 to v5. Fields that a version lacks are Unknown or Classic.

    A coordinator lists a group twice that it loaded from two partitions of `__consumer_offsets`: see `Listed.beside`.
    rows: counts the groups. held: see `groups.list_groups`. Raises TooMuch.
    """
    with _reading(data):
        (error,) = _SHORT.unpack_from(data, 4)
        if error:
            return fault_of_code(error)
        groups: dict[str, Listed] = {}
        known: list[tuple[bytes, Listed]] = []
        reader = Reader(data, 6, flexible=True)
        for _ in rows.each(reader.count()):
            name = held(reader.text())
            other = groups.get(name)
            at = reader.at
            for rest, row in known:
                if data.startswith(rest, at):
                    reader.at += len(rest)
                    groups[name] = row
                    break
            else:
                groups[name] = _row(reader, version, coordinator)
                if len(known) < _KNOWN:
                    known.append((data[at : reader.at], groups[name]))
            if other is not None:
                groups[name] = other.beside(groups[name])
        reader.tagged()
        reader.end()
        return groups


def _row(reader: Reader, version: int, coordinator: int) -> Listed:
    kind, state = GroupType.CLASSIC, GroupState.UNKNOWN
    protocol_type = reader.text()
    if version >= 4:
        state = STATES.get(reader.text().lower(), GroupState.UNKNOWN)
    if version >= 5:
        kind = _TYPES.get(reader.text().lower(), GroupType.UNKNOWN)
    reader.tagged()
    return Listed(kind, protocol_type, state, coordinator)


class _PartitionsOfTopic(dict[int, Partition]):
    """The partitions of a topic, created on first use: one object for all groups that commit there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __missing__(self, index: int) -> Partition:
        made = self[index] = Partition(self.name, index)
        return made


def committed(data: bytes, rows: Rows) -> dict[str, Offsets | Fault]:
    """The answer to OffsetFetch v8 for each group: its committed offsets, or the first Fault of one of them.

    rows: counts groups, their offsets (not partitions without one), and topics once each. Raises TooMuch.
    """
    with _reading(data):
        reader = Reader(data, 4, flexible=True)
        topics: dict[bytes, _PartitionsOfTopic] = {}
        groups: dict[str, Offsets | Fault] = {}
        for _ in _each(reader, rows):
            name = reader.text()
            offsets: dict[Partition, CommittedOffset] = {}
            fault: Fault | None = None
            for _ in range(reader.count()):
                key = reader.take(reader.count())
                topic = topics.get(key)
                if topic is None:
                    rows.take(1)
                    topic = topics[key] = _PartitionsOfTopic(key.decode())
                found = _partitions(reader, topic, rows)
                if isinstance(found, Fault):
                    fault = fault or found
                else:
                    offsets.update(found)
                reader.tagged()
            error = reader.number(2)
            reader.tagged()
            groups[name] = fault_of_code(error) if error else fault or offsets
        reader.tagged()
        reader.end()
        return groups


def _partitions(reader: Reader, topic: _PartitionsOfTopic, rows: Rows) -> dict[Partition, CommittedOffset] | Fault:
    count = len(_each(reader, rows))
    end = reader.at + count * _PARTITION.size
    new = tuple.__new__
    plain = {
        topic[index]: new(CommittedOffset, (offset, epoch, ""))
        for index, offset, epoch, rest in _PARTITION.iter_unpack(reader.data[reader.at : end])
        if offset >= 0 and not rest & _MORE
    }
    # A longer entry would be missing here. So if all are here, each was at the position that was decoded.
    if len(plain) == count:
        reader.at = end
        return plain
    offsets: dict[Partition, CommittedOffset] = {}
    fault: Fault | None = None
    for _ in range(count):
        index, offset, epoch = reader.number(4), reader.number(8), reader.number(4)
        metadata, error = reader.text_or_null() or "", reader.number(2)
        reader.tagged()
        if error and fault is None:
            fault = fault_of_code(error).at(Partition(topic.name, index))
        elif offset >= 0:
            offsets[Partition(topic.name, index)] = CommittedOffset(offset, epoch, metadata)
    # A request may name all partitions of a cluster for each group, which has an offset in few of them.
    rows.give_back(count - len(offsets))
    return fault or offsets


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
