"""Reads the records of a batch that is too large to be held: all keys, and values within limits. No I/O.

Groups of many members have large records, and the codec of the offsets topic lets brokers write records that are, when
unpacked, larger than any request. Keys are enough to see which groups were used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kafka.record.util import decode_varint

from group_hygiene.kafka.client import Deadline
from group_hygiene.process.memory import TooMuch

# Instead of a value that was not held. No record of the offsets log has an empty value: to its decoder it is one that
# can't be read, and no tombstone.
SKIPPED = b""
# Of one key: several texts of 32 KiB. Of one value.
_KEY_BYTES, _VALUE_BYTES = 128 << 10, 64 << 10


class Row(NamedTuple):
    """A record of a batch (KIP-98). later_ms, delta: after the batch's first time and offset. value: may be SKIPPED."""

    later_ms: int
    delta: int
    key: bytes | None
    value: bytes | None


def read_rows(parts: Iterator[bytes | memoryview], count: int, most: int, deadline: Deadline) -> Iterator[Row]:
    """The records of a batch from its unpacked bytes, without their headers.

    count: the number of records. most: bytes of all keys, and of all values that are not skipped. Raises TooMuch for
    keys beyond their limits and at the deadline, ValueError if the bytes are not so many records.
    """
    stream, keys_left, values_left = _Stream(parts, deadline), most, most
    for _ in range(count):
        size = stream.number()
        end = stream.at + size
        # Attributes.
        stream.skip(1)
        later, delta, key_size = stream.number(), stream.number(), stream.number()
        if key_size > end - stream.at:
            raise ValueError("a key that is longer than its record")
        if key_size > min(_KEY_BYTES, keys_left):
            raise TooMuch(f"a key of {key_size} bytes in a large batch is too large to be read")
        key = stream.take(key_size) if key_size >= 0 else None
        value_size = stream.number()
        if max(0, value_size) > end - stream.at:
            raise ValueError("a value that is longer than its record")
        value = None if value_size < 0 else SKIPPED
        if 0 <= value_size <= min(_VALUE_BYTES, values_left):
            value = stream.take(value_size)
        keys_left -= len(key or b"")
        values_left -= len(value or b"")
        yield Row(later, delta, key, value)
        stream.skip(end - stream.at)
    if not stream.is_at_end():
        raise ValueError("bytes behind its records")


class _Stream:
    """Parts as one sequence of bytes. at: how many were read; of the others, few are held."""

    def __init__(self, parts: Iterator[bytes | memoryview], deadline: Deadline) -> None:
        self._parts, self._deadline = parts, deadline
        self._held = bytearray()
        self.at = 0

    def take(self, size: int) -> bytes:
        while len(self._held) < size:
            self._hold_more()
        taken = bytes(self._held[:size])
        self.skip(size)
        return taken

    def skip(self, size: int) -> None:
        self.at += size
        while len(self._held) < size:
            size -= len(self._held)
            self._held.clear()
            self._hold_more()
        del self._held[:size]

    def number(self) -> int:
        while True:
            try:
                number, size = decode_varint(self._held, 0)
            except IndexError:
                self._hold_more()
                continue
            self.skip(size)
            return int(number)

    def is_at_end(self) -> bool:
        return not self._held and next(self._parts, None) is None

    def _hold_more(self) -> None:
        if self._deadline.left <= 0:
            raise TooMuch("a large batch took too long to be read")
        part = next(self._parts, None)
        if part is None:
            raise ValueError("its records end early")
        self._held += part
