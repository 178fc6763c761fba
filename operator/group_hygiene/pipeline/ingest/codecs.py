"""Decompresses the records of a batch, by all codecs of `offsets.topic.compression.codec`. Runs in Spark's workers."""

from __future__ import annotations

import struct

import pyarrow as pa

from group_hygiene.kafka.bounds import TooMuch
from group_hygiene.kafka.record_batches import unsigned

# Codecs by number; snappy has a framing of its own (xerial's snappy-java): blocks behind their lengths.
_STREAMED, _SNAPPY = {1: "gzip", 3: "lz4", 4: "zstd"}, 2
_XERIAL, _XERIAL_HEADER, _BLOCK = b"\x82SNAPPY\0", 16, struct.Struct(">i")


def unpacked(codec: int, packed: bytes, most: int) -> bytes:
    """The decompressed bytes. Raises TooMuch if they are more than `most`, ValueError if they can't be decompressed."""
    try:
        if codec == _SNAPPY:
            body = _unsnapped(packed, most)
        elif codec in _STREAMED:
            with pa.CompressedInputStream(pa.BufferReader(packed), _STREAMED[codec]) as stream:
                body = stream.read(most + 1)
        else:
            raise ValueError(f"records are compressed by an unknown codec ({codec})")
    except (OSError, struct.error, IndexError) as error:
        raise ValueError(f"compressed records can't be read: {error}") from error
    if len(body) > most:
        raise TooMuch(f"a batch of more than {most} bytes, unpacked, is too large to be read")
    return body


def _unsnapped(packed: bytes, most: int) -> bytes:
    """Blocks with xerial's framing, or one bare block; some bytes more than `most` if there are more."""
    blocks, at, body = [packed], _XERIAL_HEADER, b""
    if packed.startswith(_XERIAL):
        blocks = []
        while at < len(packed):
            (size,) = _BLOCK.unpack_from(packed, at)
            if not 0 < size <= len(packed) - at - _BLOCK.size:
                raise ValueError("a snappy block that is longer than its batch")
            at += _BLOCK.size + size
            blocks.append(packed[at - size : at])
    for block in blocks:
        # A block begins with its unpacked size.
        size, _ = unsigned(block, 0)
        if len(body) + size > most:
            return bytes(most + 1)
        body += pa.decompress(block, size, "snappy", asbytes=True)
    return body
