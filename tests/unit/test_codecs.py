"""Unpacking by all of Kafka's codecs: the whole records, a stream of them, or an error, in bounded memory."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_hygiene.kafka.codecs import unpack, unpack_parts, window_bytes
from group_hygiene.process.memory import TooMuch
from tests.packing import CODECS, XERIAL_HEADER

_PARTIAL = re.compile("damaged|not one whole|longer than")
_UNPACKED = pytest.param(0, bytes, id="none")
BODY = b"".join(b"record %d " % number for number in range(3_000))
_MiB = 1 << 20


@pytest.mark.parametrize(("codec", "compress"), CODECS)
@pytest.mark.parametrize("body", [b"x", BODY, bytes(3 * _MiB)], ids=["a-byte", "text", "many-blocks"])
def test_the_limit_is_exact(codec: int, compress: Callable[[bytes], bytes], body: bytes) -> None:
    """The whole body within the limit, TooMuch one byte below it; also from a view of an answer."""
    packed = compress(body)
    assert unpack(codec, packed, len(body)) == body
    assert unpack(codec, memoryview(packed), len(body) + 1_000_000) == body
    with pytest.raises(TooMuch):
        unpack(codec, packed, len(body) - 1)


@pytest.mark.parametrize(("codec", "compress"), CODECS)
@pytest.mark.parametrize("cut", [0, 1, 3, 10, 100, 1_000])
def test_a_part_is_no_whole(codec: int, compress: Callable[[bytes], bytes], cut: int) -> None:
    """Bytes that end early, or go on behind the end, are an error, never a shorter body."""
    packed = compress(BODY)
    with pytest.raises(ValueError, match=_PARTIAL):
        unpack(codec, packed[: cut if cut < 100 else len(packed) - cut], _MiB)
    with pytest.raises(ValueError, match=_PARTIAL):
        unpack(codec, packed + b"?" * (cut + 1), _MiB)


@pytest.mark.parametrize(("codec", "compress"), [_UNPACKED, *CODECS])
@pytest.mark.parametrize("body", [BODY, bytes(3 * _MiB)], ids=["text", "many-blocks"])
def test_the_parts_are_the_whole(codec: int, compress: Callable[[bytes], bytes], body: bytes) -> None:
    """In this order, and none is large. A reader may stop after the first one."""
    parts = list(unpack_parts(codec, memoryview(compress(body)), 3 * _MiB))
    assert b"".join(parts) == body
    assert all(0 < len(part) <= 3 * _MiB for part in parts)
    assert body.startswith(next(unpack_parts(codec, compress(body), 3 * _MiB)))


@pytest.mark.parametrize(("codec", "compress"), CODECS)
@pytest.mark.parametrize("cut", [0, 1, 3, 10, 100, 1_000])
def test_a_stream_that_is_damaged(codec: int, compress: Callable[[bytes], bytes], cut: int) -> None:
    """Bytes that end early, or go on behind the end, are an error at the end of the parts."""
    packed = compress(BODY)
    for damaged in (packed[: cut if cut < 100 else len(packed) - cut], packed + b"?" * (cut + 1)):
        with pytest.raises(ValueError, match=_PARTIAL):
            list(unpack_parts(codec, damaged, _MiB))


def test_a_block_that_is_too_large() -> None:
    """A bare block of snappy has no parts."""
    with pytest.raises(TooMuch):
        list(unpack_parts(2, bytes(cramjam.snappy.compress_raw(bytes(_MiB + 1))), _MiB))


@given(st.integers(0, 6), st.binary(max_size=300))
def test_any_bytes(codec: int, packed: bytes) -> None:
    """No other exception, and never more than the limit."""
    for begun in (packed, XERIAL_HEADER + packed):
        try:
            assert len(unpack(codec, begun, 1_000)) <= 1_000
        except (ValueError, TooMuch):
            continue


@pytest.mark.parametrize(("codec", "compress"), CODECS)
@given(st.data())
def test_a_damaged_byte(codec: int, compress: Callable[[bytes], bytes], data: st.DataObject) -> None:
    """No other exception: what is not noticed here, the parser of records or the batch's checksum shows."""
    packed = bytearray(compress(BODY))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert len(unpack(codec, bytes(packed), 2 * len(BODY))) <= 2 * len(BODY)
    except (ValueError, TooMuch):
        return


def _zstd_frame(window_log: int, blocks: bytes) -> bytes:
    """RFC 8878, without the size of the content."""
    return struct.pack("<I", 0xFD2FB528) + bytes([0, (window_log - 10) << 3]) + blocks


def _zstd_block(size: int, kind: int, last: bool = False) -> bytes:
    return struct.pack("<I", size << 3 | kind << 1 | last)[:3]


_RLE = _zstd_block(1 << 17, 1) + b"a"
_EMPTY_LZ4 = bytes(cramjam.lz4.compress(b""))
_EMPTY_ZSTD = bytes(cramjam.zstd.compress(b""))
_BYTE_OF_SNAPPY = bytes(cramjam.snappy.compress_raw(b"x"))

HOSTILE = [
    pytest.param(1, "gzip.compress(bytes(256 << 20), 1)", "TooMuch", id="gzip-of-zeros"),
    pytest.param(2, "bytes(cramjam.snappy.compress_raw(bytes(256 << 20)))", "TooMuch", id="snappy-of-zeros"),
    pytest.param(3, "bytes(cramjam.lz4.compress(bytes(256 << 20)))", "TooMuch", id="lz4-of-zeros"),
    pytest.param(4, "bytes(cramjam.zstd.compress(bytes(256 << 20)))", "TooMuch", id="zstd-of-zeros"),
    pytest.param(2, repr(b"\xff\xff\xff\xff\x0f" + b"x" * 20), "TooMuch", id="snappy-that-declares-4-GiB"),
    pytest.param(2, repr(b"\x80\x80\x80\x08" + b"x" * 20), "ValueError", id="snappy-that-declares-16-MiB"),
    pytest.param(2, f"{XERIAL_HEADER + struct.pack('>i', 1)!r} + b'\\0' * 8_000_000", "ValueError", id="empty-blocks"),
    pytest.param(
        2,
        f"{XERIAL_HEADER!r} + {struct.pack('>i', len(_BYTE_OF_SNAPPY)) + _BYTE_OF_SNAPPY!r} * 1_000_000",
        "1000000",
        id="snappy-in-very-small-blocks",
    ),
    pytest.param(2, repr(XERIAL_HEADER + struct.pack(">i", 2**31 - 1) + b"x"), "ValueError", id="a-block-of-2-GiB"),
    pytest.param(2, repr(XERIAL_HEADER + struct.pack(">i", -5) + b"x" * 9), "ValueError", id="a-negative-block"),
    pytest.param(3, f"{_EMPTY_LZ4!r} * 500_000", "0", id="many-empty-lz4-frames"),
    pytest.param(4, f"{_EMPTY_ZSTD!r} * 800_000", "0", id="many-empty-zstd-frames"),
    pytest.param(3, repr(struct.pack("<II", 0x184D2A50, 2**32 - 1)), "ValueError", id="an-lz4-frame-to-skip-of-4-GiB"),
    pytest.param(
        4, f"{_zstd_frame(27, b'')!r} + {_RLE!r} * 500_000", "TooMuch", id="zstd-without-an-end-in-a-window-of-128-MiB"
    ),
    pytest.param(4, repr(_zstd_frame(31, _RLE)), "ValueError", id="zstd-in-a-window-of-2-GiB"),
    pytest.param(4, f"{_zstd_frame(27, _zstd_block(1, 0, True) + b'x')!r} * 500_000", "500000", id="many-windows"),
    pytest.param(5, "b''", "ValueError", id="an-unknown-codec"),
]


@pytest.mark.parametrize(("codec", "packed", "result"), HOSTILE)
def test_hostile_bytes_take_bounded_memory(codec: int, packed: str, result: str) -> None:
    """The limit of the operator's batches, 16 MiB: as much again for a window, and some for the interpreter.

    The time is that of the CPU: a busy machine takes longer.
    """
    found, seconds, peak = _measured(f"packed = {packed}", f"len(unpack({codec}, packed, 16 << 20))")
    assert found == result
    assert seconds < 10
    assert peak < 40 * _MiB


@pytest.mark.parametrize(
    ("codec", "pack"),
    [
        pytest.param(0, "body", id="none"),
        pytest.param(1, "gzip.compress(body, 1)", id="gzip"),
        pytest.param(2, "xerial_blocks(body)", id="snappy"),
        pytest.param(3, "bytes(cramjam.lz4.compress(body))", id="lz4"),
        pytest.param(4, "bytes(cramjam.zstd.compress(body))", id="zstd"),
    ],
)
def test_a_large_batch_takes_bounded_memory(codec: int, pack: str) -> None:
    """All keys around a value of 200 MB are read; neither its bytes nor the unpacked ones are held."""
    prepared = f"""
    from tests.packing import body_of, xerial_blocks
    keys = [b"group-%d" % number for number in range(10_001)]
    body = body_of([(key, bytes(200_000_000) if key == b"group-5000" else b"value") for key in keys])
    packed = {pack}
    del body
    """
    parts = f"unpack_parts({codec}, packed, 16 << 20)"
    found, seconds, peak = _measured(
        prepared, f"[row.key for row in read_rows({parts}, len(keys), 16 << 20, Deadline(60))] == keys"
    )
    assert found == "True"
    assert seconds < 10
    assert peak < 20 * _MiB


@pytest.mark.parametrize(
    ("frame", "result"),
    [
        pytest.param(_zstd_frame(27, b""), "ValueError", id="as-large-as-may-be"),
        pytest.param(_zstd_frame(28, b""), "ValueError", id="too-large"),
    ],
)
def test_a_window_has_a_limit(frame: bytes, result: str) -> None:
    """Of a stream, too, which fills it: 1 GB without an end."""
    found, _, peak = _measured(f"packed = {frame!r} + {_RLE!r} * 8_000", "sum(map(len, unpack_parts(4, packed, 1)))")
    assert found == result
    assert peak < window_bytes(4) + 20 * _MiB


def _measured(prepared: str, expression: str) -> tuple[str, float, int]:
    """What an expression is in another process, or its error; its seconds of CPU, and the bytes of memory it takes."""
    program = f"""
    import gzip, resource, time, cramjam
    from group_hygiene.kafka.client import Deadline
    from group_hygiene.kafka.codecs import unpack, unpack_parts
    from group_hygiene.kafka.partition import read_rows
    from group_hygiene.process.memory import TooMuch
    {prepared.strip()}
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    before, begun = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize(), time.process_time()
    try:
        print({expression})
    except (TooMuch, ValueError) as error:
        print(type(error).__name__)
    print(time.process_time() - begun)
    peaks = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    print(int(peaks[0].split()[1]) * 1024 - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=120
    )
    found, seconds, peak = done.stdout.split()
    return found, float(seconds), int(peak)
