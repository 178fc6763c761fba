"""Compresses records as producers and brokers do, by another library than the program's."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterable

import pyarrow as pa
import pytest
from kafka.record import MemoryRecordsBuilder

Pairs = Iterable[tuple[bytes | None, bytes | None]]

_HEADER, _BLOCK = 61, 32 << 10
XERIAL_HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


def xerial(body: bytes) -> bytes:
    """As snappy-java's SnappyOutputStream writes it: blocks behind their lengths."""
    half = len(body) // 2
    return _blocks([part for part in (body[:half], body[half:]) if part])


def xerial_blocks(body: bytes) -> bytes:
    """As brokers write it: in blocks of 32 KiB."""
    return _blocks([body[at : at + _BLOCK] for at in range(0, len(body), _BLOCK)])


def _blocks(parts: Iterable[bytes]) -> bytes:
    blocks = [pa.compress(part, "snappy", asbytes=True) for part in parts]
    return XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def body_of(pairs: Pairs) -> bytes:
    """The unpacked records of a batch of these keys and values, one millisecond apart, each with a header."""
    builder = MemoryRecordsBuilder(2, 0, 2**31 - 1)
    for number, (key, value) in enumerate(pairs):
        assert builder.append(1_000 + number, key, value, [("header", b"h" * 300)]) is not None
    builder.close()
    return bytes(builder.buffer())[_HEADER:]


def streamed(codec: str) -> Callable[[bytes], bytes]:
    def compress(body: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(body)
        return bytes(sink.getvalue().to_pybytes())

    return compress


CODECS = [
    pytest.param(1, gzip.compress, id="gzip"),
    pytest.param(2, xerial, id="snappy-in-blocks"),
    pytest.param(2, lambda body: pa.compress(body, "snappy", asbytes=True), id="one-block-of-snappy"),
    pytest.param(3, streamed("lz4"), id="lz4"),
    pytest.param(4, streamed("zstd"), id="zstd"),
]
