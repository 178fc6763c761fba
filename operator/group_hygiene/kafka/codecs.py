"""Unpacks the records of a batch, by each of Kafka's codecs: as a whole within a limit of bytes, or as a stream.

Brokers compress again what producers send (`compression.type`, `offsets.topic.compression.codec`), so any batch may
have any codec. The library unpacks without a limit. No I/O but a pipe; imports no client library.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap

import cramjam

from group_hygiene.process.memory import TooMuch

# org.apache.kafka.common.record.CompressionType.
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
# snappy-java's framing (SnappyCodec): a header, then blocks behind their lengths. Other clients send one bare block.
_XERIAL, _XERIAL_HEADER, _BLOCK = b"\x82SNAPPY\0", 16, struct.Struct(">i")
# Bytes of a part of a stream. The largest window of Zstandard's decoder (ZSTD_WINDOWLOG_LIMIT_DEFAULT).
_PART_BYTES, _ZSTD_WINDOW = 64 << 10, 128 << 20
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


def unpack_parts(codec: int, packed: bytes | memoryview, most: int) -> Iterator[bytes | memoryview]:
    """The unpacked records in parts of at most `most` bytes, of any sum. Takes memory for a part and `window_bytes`.

    codec: as in `unpack`, or 0: they are not compressed. Raises TooMuch for a larger block of snappy, OSError if there
    is no pipe, and ValueError, perhaps after some parts, if the rest can't be unpacked.
    """
    try:
        if not codec:
            yield from (packed[at : at + _PART_BYTES] for at in range(0, len(packed), _PART_BYTES))
        elif codec == _SNAPPY:
            for block in _snappy_blocks(packed):
                if cramjam.snappy.decompress_raw_len(block) > most:
                    raise _too_much(most)
                yield bytes(cramjam.snappy.decompress_raw(block))
        elif codec in _STREAMED:
            yield from _piped(_STREAMED[codec], packed)
        else:
            raise ValueError(f"they are compressed by an unknown codec ({codec})")
    except cramjam.DecompressionError as error:
        raise ValueError(f"their compressed bytes are damaged: {error}") from error


def window_bytes(codec: int) -> int:
    """How many bytes a decoder may hold at most while it unpacks a stream."""
    return _ZSTD_WINDOW if codec == _ZSTD else 0


def _piped(into: Callable[[bytes | memoryview, cramjam.File], int], packed: bytes | memoryview) -> Iterator[bytes]:
    """The bytes that `into` writes to a file: a thread writes to a pipe, which makes it wait for the reader.

    cramjam has no decoder that returns parts, and none holds Python's lock. If the reader stops, the pipe is
    closed, and the thread ends.
    """
    reading, writing = os.pipe()
    with ThreadPoolExecutor(1) as thread, open(reading, "rb", buffering=0) as pipe:
        try:
            # Only the thread holds it then: the pipe ends when the thread does.
            target = [cramjam.File(f"/dev/fd/{writing}", read=False, write=True)]
        finally:
            os.close(writing)
        try:
            done = thread.submit(lambda: into(packed, target.pop()))
        except RuntimeError as error:
            raise OSError(str(error)) from error
        while part := pipe.read(_PART_BYTES):
            yield part
        done.result()


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
    written = 0
    for block in _snappy_blocks(packed):
        # A block begins with its unpacked size, for which the codec would take memory.
        if cramjam.snappy.decompress_raw_len(block) > len(room) - written:
            raise cramjam.DecompressionError(_FULL)
        written += int(cramjam.snappy.decompress_raw_into(block, room[written:]))
    return written


def _snappy_blocks(packed: bytes | memoryview) -> Iterator[bytes | memoryview]:
    if packed[: len(_XERIAL)] != _XERIAL:
        yield packed
        return
    at = _XERIAL_HEADER
    while at + _BLOCK.size <= len(packed):
        (size,) = _BLOCK.unpack_from(packed, at)
        at += _BLOCK.size + size
        if size <= 0 or at > len(packed):
            break
        block = packed[at - size : at]
        if not cramjam.snappy.decompress_raw_len(block):
            # Millions of them would take seconds.
            raise ValueError("a snappy block of nothing")
        yield block
    if at != len(packed):
        raise ValueError("a snappy block that is longer than its batch")


def _too_much(most: int) -> TooMuch:
    return TooMuch(f"a batch of more than {most} bytes, unpacked, is too large to be read")


_INTO: dict[int, Callable[[bytes | memoryview, memoryview], int]] = {
    _SNAPPY: _unsnap,
    _LZ4: cramjam.lz4.decompress_into,
    _ZSTD: cramjam.zstd.decompress_into,
}
_STREAMED: dict[int, Callable[[bytes | memoryview, cramjam.File], int]] = {
    _GZIP: cramjam.gzip.decompress_into,
    _LZ4: cramjam.lz4.decompress_into,
    _ZSTD: cramjam.zstd.decompress_into,
}
