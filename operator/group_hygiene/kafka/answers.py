"""Decodes the two largest responses, ListGroups and OffsetFetch, without the library's object per row and partition.

ListGroupsResponse v3 to v5 and OffsetFetchResponse v8, by Apache Kafka's message definitions: a string or an array
begins with its length plus one, as a varint; each struct ends with its tagged fields. Pure: bytes in, records out.
Bytes of another layout raise KafkaProtocolError.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from kafka.errors import KafkaProtocolError

from group_hygiene.kafka.bounds import Rows
from group_hygiene.kafka.client import fault_of_code
from group_hygiene.model.groups import CommittedOffset, Fault, GroupState, GroupType, Listed, Offsets, Partition

P = ParamSpec("P")
R = TypeVar("R")

_TYPES = {kind.lower(): kind for kind in GroupType}
_STATES = {state.lower(): state for state in GroupState}

# Partition, offset and leader epoch; then, as one number, the metadata's length plus one, the error, the tagged fields.
_PARTITION = struct.Struct(">iqiI")
_POSITION = struct.Struct(">iqi")
_SHORT = struct.Struct(">h")
# In that number: all bits but the one that distinguishes empty metadata from null. If they are 0, nothing follows.
_MORE = 0xFEFFFFFF
# The bytes of a row after the group id are the same for most groups, so equal ones are decoded once. A protocol type
# can be any text, so only this many are remembered.
_KNOWN = 8


def _checked(read: Callable[Concatenate[bytes, P], R]) -> Callable[Concatenate[bytes, P], R]:
    """Raises KafkaProtocolError where the bytes are not laid out as expected."""

    @functools.wraps(read)
    def checked(data: bytes, /, *arguments: P.args, **named: P.kwargs) -> R:
        try:
            return read(data, *arguments, **named)
        except (IndexError, ValueError, struct.error) as error:
            raise KafkaProtocolError(f"an answer of {len(data)} bytes can't be decoded: {error}") from error

    return checked


@_checked
def listed(data: bytes, version: int, coordinator: int, rows: Rows) -> dict[str, Listed] | Fault:
    """The groups of one broker's answer to ListGroups v3 to v5. Fields that a version lacks are Unknown or Classic.

    A coordinator lists a group twice that it loaded from two partitions of `__consumer_offsets`: see `Listed.beside`.
    rows: counts the groups. Raises TooMuch.
    """
    (error,) = _SHORT.unpack_from(data, 4)
    if error:
        return fault_of_code(error)
    groups: dict[str, Listed] = {}
    known: list[tuple[bytes, Listed]] = []
    count, at = _length(data, 6)
    rows.take(count)
    for _ in range(count):
        size = data[at]
        if 0 < size < 0x80:
            start, at = at + 1, at + size
        else:
            size, start = _length(data, at)
            at = start + size
        name = data[start:at].decode()
        other = groups.get(name)
        for rest, row in known:
            if data.startswith(rest, at):
                at += len(rest)
                groups[name] = row
                break
        else:
            start = at
            groups[name], at = _row(data, at, version, coordinator)
            if len(known) < _KNOWN:
                known.append((data[start:at], groups[name]))
        if other is not None:
            groups[name] = other.beside(groups[name])
    _end(data, at)
    return groups


def _row(data: bytes, at: int, version: int, coordinator: int) -> tuple[Listed, int]:
    kind, state = GroupType.CLASSIC, GroupState.UNKNOWN
    protocol_type, at = _text(data, at)
    if version >= 4:
        text, at = _text(data, at)
        state = _STATES.get(text.lower(), GroupState.UNKNOWN)
    if version >= 5:
        text, at = _text(data, at)
        kind = _TYPES.get(text.lower(), GroupType.UNKNOWN)
    return Listed(kind, protocol_type, state, coordinator), _skip_tags(data, at)


class _Topic(dict[int, Partition]):
    """The partitions of a topic, created on first use: one object for all groups that commit there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __missing__(self, index: int) -> Partition:
        made = self[index] = Partition(self.name, index)
        return made


@_checked
def committed(data: bytes, rows: Rows) -> dict[str, Offsets | Fault]:
    """The answer to OffsetFetch v8 for each group: its committed offsets, or the first Fault of one of them.

    rows: counts groups, their offsets, and topics once each. Raises TooMuch.
    """
    count, at = _length(data, 4)
    rows.take(count)
    topics: dict[bytes, _Topic] = {}
    groups: dict[str, Offsets | Fault] = {}
    for _ in range(count):
        name, at = _text(data, at)
        left, at = _length(data, at)
        offsets: dict[Partition, CommittedOffset] = {}
        fault: Fault | None = None
        for _ in range(left):
            size, start = _length(data, at)
            at = start + size
            topic = topics.get(data[start:at])
            if topic is None:
                rows.take(1)
                topic = topics[data[start:at]] = _Topic(data[start:at].decode())
            found, at = _partitions(data, at, topic, rows)
            if isinstance(found, Fault):
                fault = fault or found
            else:
                offsets.update(found)
            at = _skip_tags(data, at)
        (error,) = _SHORT.unpack_from(data, at)
        at = _skip_tags(data, at + 2)
        groups[name] = fault_of_code(error) if error else fault or offsets
    _end(data, at)
    return groups


def _partitions(
    data: bytes, at: int, topic: _Topic, rows: Rows
) -> tuple[dict[Partition, CommittedOffset] | Fault, int]:
    count, at = _length(data, at)
    rows.take(count)
    end = at + count * _PARTITION.size
    new = tuple.__new__
    plain = {
        topic[index]: new(CommittedOffset, (offset, epoch, ""))
        for index, offset, epoch, rest in _PARTITION.iter_unpack(data[at:end])
        if offset >= 0 and not rest & _MORE
    }
    # A longer entry would be missing here. So if all are here, each was at the position that was decoded.
    return (plain, end) if len(plain) == count else _any_partitions(data, at, count, topic)


def _any_partitions(
    data: bytes, at: int, count: int, topic: _Topic
) -> tuple[dict[Partition, CommittedOffset] | Fault, int]:
    offsets: dict[Partition, CommittedOffset] = {}
    fault: Fault | None = None
    for _ in range(count):
        index, offset, epoch = _POSITION.unpack_from(data, at)
        at += _POSITION.size
        metadata, at = _text(data, at) if data[at] else ("", at + 1)
        (error,) = _SHORT.unpack_from(data, at)
        at = _skip_tags(data, at + 2)
        if error and fault is None:
            fault = fault_of_code(error)
            fault = Fault(fault.code, f"{topic.name}-{index}: {fault.message}", fault.retriable)
        elif offset >= 0:
            offsets[Partition(topic.name, index)] = CommittedOffset(offset, epoch, metadata)
    return fault or offsets, at


def _text(data: bytes, at: int) -> tuple[str, int]:
    size, at = _length(data, at)
    return data[at : at + size].decode(), at + size


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Length and begin of a string or an array. Raises ValueError for null, or if it exceeds the data."""
    value, at = _varint(data, at)
    if not 0 < value <= len(data) - at + 1:
        raise ValueError(f"invalid length {value - 1} at byte {at}")
    return value - 1, at


def _end(data: bytes, at: int) -> None:
    if _skip_tags(data, at) != len(data):
        raise ValueError(f"it should end at byte {at}")


def _skip_tags(data: bytes, at: int) -> int:
    count, at = _varint(data, at)
    for _ in range(count):
        _, at = _varint(data, at)
        size, at = _varint(data, at)
        at += size
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"no varint at byte {at}")
