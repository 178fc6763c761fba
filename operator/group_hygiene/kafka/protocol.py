"""Requests that kafka-python lacks, which it generates from the schemas in `schemas/`.

The schemas follow the message definitions of Apache Kafka (clients/src/main/resources/common/message).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kafka.protocol.admin import DescribeLogDirsRequest, ListGroupsRequest
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import MetadataRequest

from group_hygiene.kafka import schemas
from group_hygiene.model.groups import Partition


class ConsumerGroupDescribeRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Describe groups of the KIP-848 protocol, for which DescribeGroups answers Dead. API key 69."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    pass


class ShareGroupDescribeRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Describe share groups (KIP-932). API key 77."""


class ShareGroupDescribeResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    pass


class StreamsGroupDescribeRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Describe Streams groups (KIP-1071). API key 89."""


class StreamsGroupDescribeResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    pass


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Read the start offsets of share groups (KIP-932), from v1 on with lag (KIP-1226). API key 90."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    pass


class AlterShareGroupOffsetsRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Set the start offsets of an Empty share group, or create one with them (KIP-932). API key 91."""


class AlterShareGroupOffsetsResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    pass


def topic_rows(
    row_class: Any, field: str, entries: Mapping[Partition, Any], ids: Mapping[str, str] = MappingProxyType({})
) -> list[Any]:
    """The rows of a request, one for each topic: its name or id in `field`, and the entries of its partitions."""
    topics: dict[str, list[Any]] = {}
    for place, entry in entries.items():
        topics.setdefault(place.topic, []).append(entry)
    return [row_class(partitions=rows, **{field: ids.get(topic, topic)}) for topic, rows in topics.items()]


class RawAnswer(NamedTuple):
    """The undecoded body of an answer, for `answers`. left_out: groups that `long_ids` dropped from it."""

    body: bytes
    version: int
    left_out: int

    @property
    def throttle_time_ms(self) -> int:
        """Required of each response by the library; the first field of those that are read raw."""
        (milliseconds,) = struct.unpack_from(">i", self.body)
        return int(milliseconds)


class _RawResponseClass:
    """Replaces the class of a response in the library: reads the header, and leaves the body undecoded."""

    def __init__(self, response_class: Any, version: int, left_out: int) -> None:
        self._class = response_class
        self._version = version
        self._left_out = left_out

    def parse_header(self, buffer: Any) -> Any:
        return self._class.parse_header(buffer)

    def decode(self, buffer: Any) -> RawAnswer:
        # Its own read() would copy the bytes twice.
        return RawAnswer(bytes(memoryview(buffer)[buffer.tell() :]), self._version, self._left_out)


class RawHeader(RequestHeader, init=False):  # type: ignore[call-arg, misc]
    """The header of a request. The library uses it to find the class of the response."""

    left_out = 0

    def get_response_class(self) -> _RawResponseClass:
        return _RawResponseClass(super().get_response_class(), self.request_api_version, self.left_out)


class _Raw:
    """A request that is answered by a RawAnswer. versions: the first and the last one that `answers` reads."""

    header_class = RawHeader
    versions: tuple[int, int]

    def __init__(self, **fields: Any) -> None:
        first, last = self.versions
        super().__init__(**{"min_version": first, "max_version": last} | fields)


class RawListGroupsRequest(_Raw, ListGroupsRequest, init=False):  # type: ignore[call-arg, misc]
    versions = (3, 5)


class RawOffsetFetchRequest(_Raw, OffsetFetchRequest, init=False):  # type: ignore[call-arg, misc]
    versions = (8, 8)


class RawMetadataRequest(_Raw, MetadataRequest, init=False):  # type: ignore[call-arg, misc]
    versions = (5, 12)


class RawDescribeLogDirsRequest(_Raw, DescribeLogDirsRequest, init=False):  # type: ignore[call-arg, misc]
    versions = (1, 5)
