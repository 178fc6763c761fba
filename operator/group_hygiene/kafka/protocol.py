"""Requests that kafka-python lacks, which it generates from the schemas in `schemas/`.

The schemas follow the message definitions of Apache Kafka (clients/src/main/resources/common/message).
"""

from __future__ import annotations

import struct
from typing import Any

from kafka.protocol.admin import DescribeLogDirsRequest, ListGroupsRequest
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import MetadataRequest

from group_hygiene.kafka import schemas


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


class RawAnswer:
    """The undecoded body of an answer, for `answers` and `topic_answers`."""

    __slots__ = ("body", "version")

    def __init__(self, body: bytes, version: int) -> None:
        self.body = body
        self.version = version

    @property
    def throttle_time_ms(self) -> int:
        """Required of each response by the library; the first field of those that are read raw."""
        (milliseconds,) = struct.unpack_from(">i", self.body)
        return int(milliseconds)


class _RawResponseClass:
    """Replaces the class of a response in the library: reads the header, and leaves the body undecoded."""

    def __init__(self, response_class: Any, version: int) -> None:
        self._class = response_class
        self._version = version

    def parse_header(self, buffer: Any) -> Any:
        return self._class.parse_header(buffer)

    def decode(self, buffer: Any) -> RawAnswer:
        # Its own read() would copy the bytes twice.
        return RawAnswer(bytes(memoryview(buffer)[buffer.tell() :]), self._version)


class RawHeader(RequestHeader, init=False):  # type: ignore[call-arg, misc]
    """The header of a request. The library uses it to find the class of the response."""

    def get_response_class(self) -> _RawResponseClass:
        return _RawResponseClass(super().get_response_class(), self.request_api_version)


class RawListGroupsRequest(ListGroupsRequest, init=False):  # type: ignore[call-arg, misc]
    """ListGroups that is answered by a RawAnswer, in the versions that `answers.listed` reads."""

    header_class = RawHeader

    def __init__(self, min_version: int = 3, **fields: Any) -> None:
        super().__init__(min_version=min_version, max_version=5, **fields)


class RawOffsetFetchRequest(OffsetFetchRequest, init=False):  # type: ignore[call-arg, misc]
    """OffsetFetch that is answered by a RawAnswer, in the one version that `answers.committed` reads."""

    header_class = RawHeader

    def __init__(self, **fields: Any) -> None:
        super().__init__(min_version=8, max_version=8, **fields)


class RawMetadataRequest(MetadataRequest, init=False):  # type: ignore[call-arg, misc]
    """Metadata that is answered by a RawAnswer, in the versions that `topic_answers.metadata` reads."""

    header_class = RawHeader

    def __init__(self, **fields: Any) -> None:
        super().__init__(min_version=5, max_version=12, **fields)


class RawDescribeLogDirsRequest(DescribeLogDirsRequest, init=False):  # type: ignore[call-arg, misc]
    """DescribeLogDirs that is answered by a RawAnswer, in the versions that `topic_answers.log_dirs` reads."""

    header_class = RawHeader

    def __init__(self, **fields: Any) -> None:
        super().__init__(min_version=1, max_version=5, **fields)
