"""Record batches as bytes, as brokers store them: where each begins, and the numbers in them. Pure.

Of format 2 (KIP-98) unless said otherwise; `partition` reads whole answers of a few records by the library.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

_LENGTH = struct.Struct(">i")
_LENGTH_AT, _OVERHEAD, _MAGIC_AT, _CRC_AT, _CHECKED_FROM = 8, 12, 16, 17, 21
# Before the records; formats 0 and 1 have at least 14 bytes behind the length.
HEADER_BYTES = 61
_LEAST = 14
_MARKER = struct.Struct(">hh")


def is_old(data: bytes | memoryview, at: int) -> bool:
    """Whether the batch there is of a format before Kafka 0.11 (magic 0 or 1)."""
    return data[at + _MAGIC_AT] < 2


def batch_starts(data: bytes) -> list[int]:
    """The start of each whole batch, and the end of the last one. Those of format 2 have the correct checksum.

    Raises ValueError otherwise, for newer formats, and if there are bytes but no whole batch.
    """
    starts, at, view = list[int](), 0, memoryview(data)
    while at + _OVERHEAD <= len(data):
        length = _LENGTH.unpack_from(data, at + _LENGTH_AT)[0]
        end = at + _OVERHEAD + length
        if length < _LEAST:
            raise ValueError(f"a batch of {length} bytes")
        if end > len(data):
            break
        if not is_old(data, at):
            if data[at + _MAGIC_AT] > 2 or end - at < HEADER_BYTES:
                raise ValueError("a batch of an unknown format, or without a whole header")
            if crc32c(view[at + _CHECKED_FROM : end]) != int.from_bytes(view[at + _CRC_AT : at + _CHECKED_FROM]):
                raise ValueError(f"the batch at offset {int.from_bytes(view[at : at + 8])} fails its checksum")
        starts.append(at)
        at = end
    if data and not starts:
        raise ValueError("the answer contains no whole batch")
    return [*starts, at]


def unsigned(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number there (7 bits a byte), and the position after it. Raises IndexError or ValueError."""
    value = shift = 0
    while (byte := data[at]) >= 0x80:
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if shift > 63:
            raise ValueError("a number of more than ten bytes")
    return value | byte << shift, at + 1


def signed(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """As `unsigned`, in zigzag encoding."""
    value, at = unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at


def aborts(data: bytes, batch: int) -> bool:
    """Whether the first record of the control batch there aborts a transaction (ControlRecordType)."""
    _, at = signed(data, batch + HEADER_BYTES)
    # Attributes of one byte, the time, the offset and the key.
    at += 1
    for _ in range(3):
        size, at = signed(data, at)
    return size >= _MARKER.size and _MARKER.unpack_from(data, at)[1] == 0
