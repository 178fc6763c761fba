"""Receives a list of groups that is too large to be held: what has a very long id is left out while it arrives.

Kafka accepts ids of 32,767 bytes, so a few hundred groups, which any client with a prefix of ids may create, make
a list of many megabytes. Pure: bytes in, bytes out.
"""

from __future__ import annotations

from kafka.errors import KafkaProtocolError
from kafka.protocol.schemas.fields.codecs import UnsignedVarInt32

from group_hygiene.kafka.encoding import LayoutError, Reader
from group_hygiene.model.groups import ID_MAX

# Bytes that are collected before rows are read from them. A row has at most three names of 32,767 bytes.
_AT_ONCE = 1 << 18


class LargeList:
    """The bytes of an answer to ListGroups v3 to v5, without the rows whose ids have more than ID_MAX characters.

    missing: bytes that are yet to come. left_out: rows that were dropped. held: bytes in memory. By Kafka's message
    definition ListGroupsResponse and KIP-482. `write` and `answer` raise KafkaProtocolError for another layout.
    """

    def __init__(self, size: int, version: int) -> None:
        self.missing = size
        self.left_out = 0
        # The names beside the id: the protocol type, from v4 on the state, from v5 on the type.
        self._others = version - 2
        self._unread = bytearray()
        self._start = b""
        self._rows: int | None = None
        self._left = 0
        self._whole = bytearray()

    @property
    def held(self) -> int:
        return len(self._whole) + len(self._unread)

    def write(self, data: bytes) -> int:
        """Add the bytes that come next, at most `missing`. Returns how many bytes are no longer held."""
        self.missing -= len(data)
        self._unread += data
        if self.missing and len(self._unread) < _AT_ONCE:
            return 0
        before = self.held
        self._read()
        return before - self.held

    def answer(self) -> bytes:
        """The answer as if the broker had not listed the groups that were dropped; nothing may be missing."""
        if self._rows is None or self._left:
            raise KafkaProtocolError("a list of groups ends before its last group")
        rows: bytes = UnsignedVarInt32.encode(self._rows - self.left_out + 1)
        return self._start + rows + bytes(self._whole + self._unread)

    def _read(self) -> None:
        reader = Reader(bytes(self._unread), 0, flexible=True)
        try:
            if self._rows is None:
                # The header: correlation id and tagged fields; then throttle time and error.
                reader.take(4)
                reader.tagged()
                reader.take(4 + 2)
                self._start = reader.data[: reader.at]
                self._rows = self._left = reader.announced()
        except LayoutError as error:
            raise KafkaProtocolError(f"the start of a list of groups can't be decoded: {error}") from error
        read = reader.at
        try:
            while self._left:
                name = reader.text()
                for _ in range(self._others):
                    reader.text()
                reader.tagged()
                if len(name) > ID_MAX:
                    self.left_out += 1
                else:
                    self._whole += reader.data[read : reader.at]
                read = reader.at
                self._left -= 1
        except (LayoutError, UnicodeDecodeError) as error:
            # The rest of the row is yet to come.
            if not self.missing or len(reader.data) - read >= _AT_ONCE:
                raise KafkaProtocolError(f"a group of a list can't be decoded: {error}") from error
        del self._unread[:read]
