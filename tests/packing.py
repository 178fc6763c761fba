"""Compresses records as producers and brokers do, by another library than the program's."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable

import pyarrow as pa
import pytest

XERIAL_HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


def xerial(body: bytes) -> bytes:
    """As snappy-java's SnappyOutputStream writes it: blocks behind their lengths."""
    half = len(body) // 2
    blocks = [pa.compress(part, "snappy", asbytes=True) for part in (body[:half], body[half:]) if part]
    return XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


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
