"""Parses the record batches of an answer by numpy: where each key and value is, and whether it was aborted (KIP-98).

No I/O. A record begins with its length: those of one batch are found one after the other, but those of all batches at
once. `partition` reads answers of a few records by the library.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from kafka.record.util import decode_varint

from group_hygiene.kafka import bounds
from group_hygiene.kafka.bounds import FetchBudget
from group_hygiene.kafka.codecs import unpack
from group_hygiene.kafka.partition import RawFetched, Record, read_old_batch
from group_hygiene.kafka.record_columns import Numbers, Records, Slices, Truths
from group_hygiene.process.memory import TooMuch

# org.apache.kafka.common.record.DefaultRecordBatch.
_HEADER = np.dtype(
    [
        *(("base_offset", ">i8"), ("length", ">i4"), ("partition_epoch", ">i4"), ("magic", "i1"), ("crc", ">u4")),
        *(("attributes", ">i2"), ("last_delta", ">i4"), ("first_time", ">i8"), ("max_time", ">i8")),
        *(("producer", ">i8"), ("producer_epoch", ">i2"), ("sequence", ">i4"), ("count", ">i4")),
    ]
)
_CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
# Offset, length of the rest, leader epoch, magic, checksum of what follows. Formats before Kafka 0.11 (magic 0 and 1)
# have the offset, the length and the magic in the same places.
_START, _OVERHEAD, _MAGIC = struct.Struct(">qiiBI"), 12, 2
# Formats 0 and 1 have at least 14 bytes behind the length. A record has at least 7 bytes.
_LEAST_BATCH, _LEAST_RECORD = 14, 7
_MARKER = struct.Struct(">hh")
# Behind the data, so that a number that is cut off ends there, and no position is behind the array.
_PADDING = bytes(64)


def parse(answer: RawFetched) -> Iterator[Records]:
    """All whole batches of the answer, one by one or so many at a time that they are within `FetchBudget`.

    Raises ValueError or IndexError for damaged bytes, TooMuch for a batch that is too large when unpacked.
    """
    data, starts = answer.data + _PADDING, _batch_starts(answer.data)
    places = np.array([starts[:-1], starts[1:]], np.int64)
    raw = np.frombuffer(data, np.uint8)
    heads = raw.take(places[0][:, np.newaxis] + np.arange(_HEADER.itemsize), mode="clip").view(_HEADER)[:, 0]
    # A sum with a large array of another byte order may have that order, which Arrow does not take.
    heads = heads.astype(_HEADER.newbyteorder("="))
    old = heads["magic"] < _MAGIC
    aborted = _are_aborted(answer, heads, starts, old)
    first = 0
    while first < len(heads):
        # Successive batches of the same kind.
        stop = first + int(np.argmax(np.append(old[first:] != old[first], True)))
        if old[first]:
            found = _old_records([memoryview(data)[at:end] for at, end in places[:, first:stop].T.tolist()])
            first += len(found)
            offsets, keys, values, _, times, _ = zip(*(record for batch in found for record in batch), strict=True)
            numbers = np.array(offsets, np.int64), np.array(times, np.int64), np.zeros(len(offsets), np.bool_)
            yield Records(*numbers, Slices.of(keys), Slices.of(values), offsets[-1] + 1)
        else:
            body, at, ends = _bodies(data, places[:, first:stop], heads[first:stop])
            part = slice(first, first := first + len(at))
            yield _records(body, at, ends, heads[part], aborted[part])


def _are_aborted(answer: RawFetched, heads: npt.NDArray[Any], starts: list[int], old: Truths) -> Truths:
    """Whether each batch is of an aborted transaction: as a consumer finds out with read_committed."""
    found = np.zeros(len(heads), np.bool_)
    waiting, producers = list(answer.aborted), set[int]()
    last, attributes = heads["base_offset"] + heads["last_delta"], np.where(old, 0, heads["attributes"])
    for index in np.flatnonzero(attributes & _TRANSACTIONAL).tolist() if waiting else ():
        while waiting and waiting[0][0] <= last[index]:
            producers.add(waiting.pop(0)[1])
        producer = int(heads["producer"][index])
        if not attributes[index] & _CONTROL:
            found[index] = producer in producers
        elif heads["count"][index] and _aborts(answer.data, starts[index]):
            producers.discard(producer)
    return found


def _bodies(data: bytes, places: Numbers, heads: npt.NDArray[Any]) -> tuple[bytes, Numbers, Numbers]:
    """The unpacked records of the first batches, as many as the limits allow, and where those of each begin and end."""
    codecs = heads["attributes"] & _CODEC
    if not codecs.any():
        many = max(1, int(np.searchsorted(np.cumsum(heads["count"]), bounds.RECORDS, "right")))
        return data, places[0][:many] + _HEADER.itemsize, places[1][:many]
    budget, bodies = FetchBudget(), list[bytes]()
    for (start, end), codec, count in zip(places.T.tolist(), codecs.tolist(), heads["count"].tolist(), strict=True):
        packed = data[start + _HEADER.itemsize : end]
        try:
            body = unpack(codec, packed, budget.largest if bodies else bounds.ALONE_BYTES) if codec else packed
            if bodies:
                budget.take(len(body), count)
        except TooMuch:
            if not bodies:
                raise
            break
        bodies.append(body)
    ends = np.cumsum([len(body) for body in bodies])
    return b"".join([*bodies, _PADDING]), np.append(0, ends[:-1]), ends


def _records(data: bytes, at: Numbers, ends: Numbers, heads: npt.NDArray[Any], aborted: Truths) -> Records:
    """at, ends: of the records of each batch in the data, which has padding."""
    counts = heads["count"].astype(np.int64)
    if ((counts < 0) | (counts * _LEAST_RECORD > ends - at)).any():
        raise ValueError("a batch with fewer records than it says")
    begins, last_deltas = heads["base_offset"].astype(np.int64), heads["last_delta"].astype(np.int64)
    # Otherwise the rows of an answer would not be bounded by its offsets, and some would be read twice.
    if (counts > last_deltas + 1).any() or (begins[1:] <= (begins + last_deltas)[:-1]).any():
        raise ValueError("batches with more records than offsets, or that overlap")
    body = np.frombuffer(data, np.uint8)
    place, stop = _lengths(body, at, ends, counts)
    batch = np.repeat(np.arange(len(heads)), counts)
    # After the attributes, one byte.
    time_delta, place = _varints(body, place + 1)
    offset_delta, place = _varints(body, place)
    keys, place = _slices(body, place, stop)
    values, _ = _slices(body, place, stop)
    if ((offset_delta < 0) | (offset_delta > last_deltas[batch])).any() or (
        np.diff(offset_delta)[np.diff(batch) == 0] <= 0
    ).any():
        raise ValueError("a record outside of its batch's offsets, or before the one that it follows")
    attributes = heads["attributes"][batch]
    times = heads["first_time"][batch] + time_delta
    times = np.where(attributes & _APPEND_TIME, heads["max_time"][batch], times)
    offsets, last = heads["base_offset"][batch] + offset_delta, heads[-1]
    then = int(last["base_offset"]) + int(last["last_delta"]) + 1
    return Records(offsets, times, aborted[batch], keys, values, then).take((attributes & _CONTROL) == 0)


def _lengths(body: npt.NDArray[np.uint8], at: Numbers, ends: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """For each record the position after its length, and its end."""
    starts, stops = np.empty((2, counts.sum()), np.int64)
    row, at = np.cumsum(counts) - counts, at.copy()
    active, step = np.flatnonzero(counts), 0
    while len(active):
        size, then = _varints(body, at[active])
        if ((size <= 0) | (size > ends[active] - then)).any():
            raise ValueError("a record that is longer than its batch")
        starts[row[active] + step] = then
        stops[row[active] + step] = at[active] = then + size
        step += 1
        active = active[counts[active] > step]
    if (at != ends).any():
        raise ValueError("bytes behind the records of a batch")
    return starts, stops


def _slices(body: npt.NDArray[np.uint8], at: Numbers, stop: Numbers) -> tuple[Slices, Numbers]:
    """A key or a value of each record, and the positions after it."""
    size, at = _varints(body, at)
    end = at + np.maximum(size, 0)
    if (np.maximum(size, 0) > stop - at).any():
        raise ValueError("a key or a value that is longer than its record")
    return Slices(body, at, end, size >= 0), end


def _varints(body: npt.NDArray[np.uint8], at: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers at these positions (zigzag, 7 bits a byte), and the positions after them."""
    byte = body[at]
    value, at = (byte & 0x7F).astype(np.uint64), at + 1
    more, shift = np.flatnonzero(byte & 0x80), 7
    while len(more):
        if shift > 63:
            raise ValueError("a number of more than ten bytes")
        byte = body[at[more]]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[more] += 1
        more, shift = more[(byte & 0x80) != 0], shift + 7
    one = np.uint64(1)
    return ((value >> one) ^ (np.uint64(0) - (value & one))).view(np.int64), at


def _old_records(batches: list[memoryview]) -> list[list[Record]]:
    """The records of the first batches of an old format, one by one, as many as the limits allow; at least of one."""
    budget, found = FetchBudget(), list[list[Record]]()
    for batch in batches:
        try:
            records = read_old_batch(batch, budget.largest if found else bounds.ALONE_BYTES)
            if found:
                budget.take(sum(len(record.key or b"") + len(record.value or b"") for record in records), len(records))
        except TooMuch:
            if not found:
                raise
            break
        found.append(records)
    return found


def _batch_starts(data: bytes) -> list[int]:
    """The start of each whole batch, and the end of the last one. Those of format 2 have the correct checksum.

    Raises ValueError otherwise, for newer formats, and if there are bytes but no whole batch.
    """
    starts, at, view, size = list[int](), 0, memoryview(data), len(data)
    # Names of this function are found in half the time.
    unpack, body, least, checksum_of = _START.unpack_from, _START.size, _HEADER.itemsize - _OVERHEAD, crc32c
    while at + body <= size:
        offset, length, _, magic, checksum = unpack(data, at)
        end = at + _OVERHEAD + length
        if length < _LEAST_BATCH:
            raise ValueError(f"a batch of {length} bytes")
        if end > size:
            break
        if magic >= _MAGIC:
            if magic > _MAGIC or length < least:
                raise ValueError("a batch of an unknown format, or without a whole header")
            if checksum_of(view[at + body : end]) != checksum:
                raise ValueError(f"the batch at offset {offset} fails its checksum")
        starts.append(at)
        at = end
    if data and not starts:
        raise ValueError("the answer contains no whole batch")
    return [*starts, at]


def _aborts(data: bytes, batch: int) -> bool:
    """Whether the first record of the control batch there aborts a transaction (ControlRecordType)."""
    _, at = decode_varint(data, batch + _HEADER.itemsize)
    # Attributes of one byte, the time, the offset and the key.
    at += 1
    for _ in range(3):
        size, at = decode_varint(data, at)
    return bool(size >= _MARKER.size and _MARKER.unpack_from(data, at)[1] == 0)
