"""Unpacks the records of a batch, by each of Kafka's codecs and within a limit of bytes.

Brokers compress again what producers send (`compression.type`, `offsets.topic.compression.codec`), so any batch may
have any codec. The library unpacks without a limit. No I/O; imports no client library.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from mmap import mmap

import cramjam

from group_hygiene.process.memory import TooMuch

# org.apache.kafka.common.record.CompressionType.
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
# snappy-java's framing (SnappyCodec): a header, then blocks behind their lengths. Other clients send one bare block.
_XERIAL, _XERIAL_HEADER, _BLOCK = b"\x82SNAPPY\0", 16, struct.Struct(">i")
# cramjam's error if the output does not fit into the memory it was given.
_FULL = "failed to write whole buffer"


def unpack(codec: int, packed: bytes | memoryview, most: int) -> bytes:
    """The unpacked records. Raises TooMuch if they are more than `most` bytes, ValueError if they can't be unpacked.

    codec: its number in the attributes of a batch, not 0. Takes memory for the unpacked bytes and a window of the same
    size, and for no more, whatever size the packed bytes declare.
    """
    if codec == _GZIP:
        return _gunzip(packed, most)
    into = _INTO.get(codec)
    if into is None:
        raise ValueError(f"they are compressed by an unknown codec ({codec})")
    # The system provides only those of its pages that are written to.
    room = memoryview(mmap(-1, most + 1))[:most]
    try:
        return bytes(room[: into(packed, room)])
    except cramjam.DecompressionError as error:
        if _FULL in str(error):
            raise _too_much(most) from None
        raise ValueError(f"their compressed bytes are damaged: {error}") from error


def _gunzip(packed: bytes | memoryview, most: int) -> bytes:
    member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        body = member.decompress(packed, most + 1)
    except zlib.error as error:
        raise ValueError(f"their compressed bytes are damaged: {error}") from error
    if len(body) > most:
        raise _too_much(most)
    if not member.eof or member.unused_data:
        raise ValueError("their compressed bytes are not one whole")
    return body


def _unsnap(packed: bytes | memoryview, room: memoryview) -> int:
    """The number of unpacked bytes, which are written to `room`."""
    if packed[: len(_XERIAL)] != _XERIAL:
        return _unsnap_block(packed, room)
    at, written = _XERIAL_HEADER, 0
    while at + _BLOCK.size <= len(packed):
        (size,) = _BLOCK.unpack_from(packed, at)
        at += _BLOCK.size + size
        if size <= 0 or at > len(packed):
            break
        unpacked = _unsnap_block(packed[at - size : at], room[written:])
        if not unpacked:
            # Millions of them would take seconds.
            raise ValueError("a snappy block of nothing")
        written += unpacked
    if at != len(packed):
        raise ValueError("a snappy block that is longer than its batch")
    return written


def _unsnap_block(block: bytes | memoryview, room: memoryview) -> int:
    # A block begins with its unpacked size, for which the codec would take memory.
    if cramjam.snappy.decompress_raw_len(block) > len(room):
        raise cramjam.DecompressionError(_FULL)
    return int(cramjam.snappy.decompress_raw_into(block, room))


def _too_much(most: int) -> TooMuch:
    return TooMuch(f"a batch of more than {most} bytes, unpacked, is too large to be read")


_INTO: dict[int, Callable[[bytes | memoryview, memoryview], int]] = {
    _SNAPPY: _unsnap,
    _LZ4: cramjam.lz4.decompress_into,
    _ZSTD: cramjam.zstd.decompress_into,
}
