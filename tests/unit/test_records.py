"""Record batches parsed by numpy: the same records as kafka-python finds in them, one by one, and no damage unseen."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from group_hygiene.kafka import bounds, record_batches
from group_hygiene.kafka.partition import RawFetched
from group_hygiene.kafka.record_batches import parse
from group_hygiene.process.memory import TooMuch
from tests.packing import CODECS

Row = tuple[int, int, bytes | None, bytes | None]
Batch = tuple[int, Sequence[tuple[int, int, bytes | None, bytes | None]]]

CELLS = st.none() | st.binary(max_size=200)
TIMES = st.integers(0, 2**42)
# Of each batch: the gap before it, and of each record the gap before it, the time, the key and the value.
BATCHES = st.lists(
    st.tuples(st.integers(0, 2**40), st.lists(st.tuples(st.integers(0, 1000), TIMES, CELLS, CELLS), min_size=1)),
    max_size=30,
)


def rows(data: bytes, aborted: Sequence[tuple[int, int]] = ()) -> list[Row]:
    """All records of an answer, as `parse` finds them; those of aborted transactions without a value."""
    found: list[Row] = []
    for part in parse(RawFetched(data, list(aborted), 0)):
        numbers = part.offsets.tolist(), part.times.tolist(), part.aborted.tolist()
        for offset, time, is_aborted, key, value in zip(*numbers, part.keys.cells(), part.values.cells(), strict=True):
            found.append((offset, time, key, b"aborted" if is_aborted else value))
    return found


def by_library(data: bytes) -> list[Row]:
    return [
        (record.offset, record.timestamp, record.key, record.value)
        for batch in MemoryRecords(data)
        if not getattr(batch, "is_control_batch", False)
        for record in batch
    ]


def batch(base: int, cells: Sequence[tuple[int, int, bytes | None, bytes | None]], producer: int = -1) -> bytes:
    """A batch of format 2. cells: offset in the batch, time, key, value."""
    builder = DefaultRecordBatchBuilder(2, 0, producer >= 0, producer, 0, 0, 1 << 30)
    for delta, time, key, value in cells:
        assert builder.append(delta, time, key, value, [("name", b"text")] if delta % 3 == 0 else [])
    return changed(bytes(builder.build()), {0: struct.pack(">q", base)})


def changed(data: bytes, patches: dict[int, bytes]) -> bytes:
    """The batch with these bytes in place of others, and its checksum."""
    made = bytearray(data)
    for at, new in patches.items():
        made[at : at + len(new)] = new
    made[17:21] = struct.pack(">I", crc32c(bytes(made[21:])))
    return bytes(made)


def answer(batches: Any) -> bytes:
    data, base = b"", 0
    for gap, entries in batches:
        base += gap
        delta, cells = -1, []
        for skipped, time, key, value in entries:
            delta += 1 + skipped
            cells.append((delta, time, key, value))
        data += batch(base, cells)
        base += delta + 1
    return data


@given(BATCHES, st.integers(0, 100))
def test_the_same_as_one_by_one(batches: Any, cut: int) -> None:
    """With gaps, nulls, headers, few or many records in a batch; a batch that is cut off does not count."""
    data = answer(batches)
    assert rows(data) == by_library(data)
    if 0 < cut < len(data):
        shorter = data[:-cut]
        if MemoryRecords(shorter).has_next():
            assert rows(shorter) == by_library(shorter)
        else:
            with pytest.raises(ValueError, match="no whole batch"):
                rows(shorter)


@given(st.integers(1, 40), st.integers(1, 60))
def test_many_batches_of_several_sizes(many: int, size: int) -> None:
    """Those that numpy reads in lockstep, and the few last ones that are longer than the others."""
    batches = [
        (1, [(0, index, b"k" * (index % 150), b"v") for index in range(number % size + 1)]) for number in range(many)
    ]
    data = answer(batches)
    assert rows(data) == by_library(data)


def packed(data: bytes, codec: int, compress: Callable[[bytes], bytes]) -> bytes:
    body = compress(data[61:])
    length, attributes = struct.pack(">i", 61 - 12 + len(body)), struct.pack(">h", codec)
    return changed(data[:61] + body, {8: length, 21: attributes})


@pytest.mark.parametrize(("codec", "compress"), CODECS)
def test_codecs(codec: int, compress: Callable[[bytes], bytes]) -> None:
    """All that `offsets.topic.compression.codec` and producers know, beside batches without compression."""
    plain = [batch(at, [(delta, at, b"key", b"v" * 99) for delta in range(9)]) for at in range(0, 90, 9)]
    data = b"".join(each if index % 3 else packed(each, codec, compress) for index, each in enumerate(plain))
    assert rows(data) == by_library(b"".join(plain))


@pytest.mark.parametrize(("codec", "compress"), CODECS)
def test_a_batch_that_unpacks_to_too_much(
    codec: int, compress: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is refused, however small it came; several that are too much together are read in parts."""
    large = packed(batch(0, [(0, 0, b"k", bytes(40_000))]), codec, compress)
    data = b"".join(changed(large, {0: struct.pack(">q", at)}) for at in range(5))
    monkeypatch.setattr(bounds, "_BATCH_BYTES", 50_000)
    monkeypatch.setattr(bounds, "_FETCHED_BYTES", 50_000)
    assert len(list(parse(RawFetched(data, [], 0)))) == 3
    assert [row[0] for row in rows(data)] == list(range(5))
    # One that is too large for the operator stops no ingest.
    monkeypatch.setattr(bounds, "_BATCH_BYTES", 30_000)
    assert len(list(parse(RawFetched(data, [], 0)))) == 5
    monkeypatch.setattr(bounds, "ALONE_BYTES", 30_000)
    with pytest.raises(TooMuch):
        rows(data)


def test_numbers_of_large_answers_have_the_byte_order_of_this_machine() -> None:
    """Which Arrow needs. numpy adds in place where an array is large."""
    (records,) = parse(RawFetched(batch(7, [(delta, 1, b"k", b"v") for delta in range(50_000)]), [], 0))
    for numbers in (records.offsets, records.times):
        assert pa.array(numbers).to_pylist() == numbers.tolist()
    assert records.offsets.tolist() == list(range(7, 50_007))


def test_many_records_without_a_codec_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(batch(at, [(delta, at, b"key", b"v") for delta in range(9)]) for at in range(0, 90, 9))
    monkeypatch.setattr(bounds, "RECORDS", 20)
    assert [len(part.offsets) for part in parse(RawFetched(data, [], 0))] == [18] * 5
    monkeypatch.setattr(bounds, "RECORDS", 5)
    assert [len(part.offsets) for part in parse(RawFetched(data, [], 0))] == [9] * 10


def old(magic: int, codec: int, base: int, cells: Sequence[tuple[int, bytes | None, bytes | None]]) -> bytes:
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 30)
    for index, (time, key, value) in enumerate(cells):
        assert builder.append(base + index if magic == 0 or not codec else index, timestamp=time, key=key, value=value)
    data = bytearray(builder.build())
    if magic and codec:
        # A broker gives the wrapper the offset of its last record.
        data[:8] = struct.pack(">q", base + len(cells) - 1)
    return bytes(data)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_formats_of_the_past(magic: int, codec: int) -> None:
    """Before, between and behind batches of today's."""
    cells = [(7, b"a", b"b"), (8, None, b"c"), (9, b"d", None)]
    data = old(magic, codec, 5, cells) + old(magic, codec, 8, cells) + batch(20, [(0, 3, b"k", None)])
    data += old(magic, codec, 30, cells) + batch(40, [(0, 3, b"k", b"v")])
    wanted = [(offset, -1 if time is None else time, key, value) for offset, time, key, value in by_library(data)]
    assert rows(data) == wanted
    assert [row[0] for row in wanted] == [5, 6, 7, 8, 9, 10, 20, 30, 31, 32, 40]
    broken = bytearray(data)
    broken[20] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        rows(bytes(broken))


@pytest.mark.parametrize("magic", [0, 1])
def test_a_batch_of_the_past_that_unpacks_to_too_much(magic: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is refused as one of today."""
    monkeypatch.setattr(bounds, "ALONE_BYTES", 50_000)
    assert len(rows(old(magic, 1, 0, [(7, b"a", bytes(40_000))]))) == 1
    with pytest.raises(TooMuch):
        rows(old(magic, 1, 0, [(7, b"a", bytes(60_000))]))


def marker(base: int, producer: int, commits: bool) -> bytes:
    data = batch(base, [(0, 1, struct.pack(">hh", 0, commits), struct.pack(">hi", 0, 0))], producer)
    return changed(data, {21: struct.pack(">h", 0x30)})


def test_aborted_transactions() -> None:
    """From the first offset that the answer names to the producer's marker; others, and markers, are not affected."""
    one, other = 7, 8
    cells = [(0, 1, b"k", b"v"), (1, 1, b"k", b"v")]
    data = batch(0, cells, one) + batch(2, cells, other) + batch(4, cells) + marker(6, one, commits=False)
    data += batch(7, cells, one) + marker(9, other, commits=True) + marker(10, one, commits=True)
    data += batch(11, cells, one) + batch(13, cells, other) + marker(15, one, commits=False)
    found = {offset: value == b"aborted" for offset, _, _, value in rows(data, [(0, one), (11, one)])}
    assert [offset for offset, aborted in found.items() if aborted] == [0, 1, 11, 12]
    assert list(found) == [0, 1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 14]
    # Where a fetch begins in the middle of a transaction, its first offset is before the answer.
    assert [row[0] for row in rows(batch(11, cells, one), [(0, one)]) if row[3] == b"aborted"] == [11, 12]


def test_an_aborted_transaction_of_one_record() -> None:
    """Its first offset is its last one."""
    data = batch(5, [(0, 1, b"k", b"v")], 7) + marker(6, 7, commits=False)
    assert rows(data, [(5, 7)]) == [(5, 1, b"k", b"aborted")]


def test_the_time_of_the_broker() -> None:
    """With LogAppendTime, all records of a batch have the time of its header."""
    data = changed(batch(0, [(0, 5, b"k", b"v"), (1, 9, b"k", b"v")]), {21: struct.pack(">h", 8)})
    assert [row[1] for row in rows(data)] == [9, 9]


def test_a_batch_without_records() -> None:
    """Compaction leaves one of a producer's last batch: it says where to go on."""
    empty = changed(batch(10, [(4, 1, b"", b"")])[:61], {8: struct.pack(">i", 49), 57: struct.pack(">i", 0)})
    (part,) = parse(RawFetched(empty, [], 0))
    assert (len(part.offsets), part.next) == (0, 15)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(batch(0, [(0, 1, b"k", b"v")]) * 2, id="a-batch-twice"),
        pytest.param(batch(5, [(0, 1, b"k", b"v")]) + batch(4, [(0, 1, b"k", b"v")]), id="a-batch-before-the-last-one"),
        pytest.param(changed(batch(0, [(0, 1, b"k", b"v")] * 3), {23: bytes(4)}), id="more-records-than-offsets"),
        pytest.param(batch(0, [(0, 1, b"k", b"v"), (0, 1, b"k", b"v"), (2, 1, b"k", b"v")]), id="an-offset-twice"),
        pytest.param(
            changed(batch(0, [(0, 1, b"k", b"v"), (4, 1, b"k", b"v")]), {23: b"\0\0\0\3"}), id="beyond-its-end"
        ),
    ],
)
def test_offsets_bound_the_records(data: bytes) -> None:
    """No record is read twice, and an answer has no more records than offsets, whatever a broker sends."""
    with pytest.raises(ValueError, match="offsets"):
        rows(data)


DATA = answer([(0, [(0, 1, b"key", b"value")] * 3)] * 15)


@given(st.integers(61, len(DATA) // 15 - 1), st.integers(1, 255), st.integers(1, 15))
def test_damage(at: int, flip: int, many: int) -> None:
    """An error, never another record: by the checksum; and if that is right too, by the bytes themselves, or none."""
    size = len(DATA) // 15
    broken = bytearray(DATA[: size * many])
    broken[at] ^= flip
    with pytest.raises(ValueError, match="checksum"):
        rows(bytes(broken))
    lying = changed(bytes(broken[:size]), {}) + bytes(broken[size:])
    try:
        found = rows(lying)
    except (ValueError, IndexError):
        return
    assert [row[0] for row in found[3:]] == [row[0] for row in rows(DATA[: size * many])[3:]]


def test_what_is_none() -> None:
    """No bytes are no records; a length that can't be, and formats that are not known, are errors."""
    assert rows(b"") == []
    for data in (b"\0" * 100, DATA[:16] + b"\3" + DATA[17:]):
        with pytest.raises(ValueError, match="a batch of"):
            rows(data)
    two = batch(0, [(0, 1, b"k", b"v"), (1, 1, b"k", b"v")])
    with pytest.raises(ValueError, match="bytes behind the records"):
        rows(changed(two, {57: struct.pack(">i", 1)}))
    with pytest.raises(ValueError, match="fewer records than it says"):
        rows(changed(two, {57: struct.pack(">i", 1 << 30)}))
    with pytest.raises(ValueError, match="codec"):
        rows(changed(batch(0, [(0, 1, b"k", b"v")]), {21: struct.pack(">h", 5)}))


def test_numbers_of_any_length() -> None:
    """As kafka-python's encoder writes them."""
    import numpy as np
    from kafka.record.util import encode_varint

    numbers = [0, -1, 1, 63, -64, 64, 2**31, -(2**31), 2**62, -(2**63), 2**63 - 1]
    data, places = bytearray(), []
    for number in numbers:
        places.append(len(data))
        encode_varint(number, data.append)
    ends = [*places[1:], len(data)]
    found, then = record_batches._varints(np.frombuffer(bytes(data) + bytes(64), np.uint8), np.array(places))
    assert (found.tolist(), then.tolist()) == (numbers, ends)
