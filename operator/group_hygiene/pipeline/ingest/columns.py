"""Decodes all commits of a batch at once, by numpy: the layouts that brokers have used for nearly all since 2.1.

Skips every other record, well-formed or not: `offsets_log.decode` decodes these. Runs in Spark's workers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Numbers = npt.NDArray[np.int64]
_Truths = npt.NDArray[np.bool_]


class Commits(NamedTuple):
    """taken: for each record of the batch, whether it was decoded. columns: of these, in order; null for tombstones."""

    taken: _Truths
    columns: dict[str, pa.Array]


def read_commits(keys: pa.BinaryArray, values: pa.BinaryArray) -> Commits:
    """Decode the records with OffsetCommitKey v1 and OffsetCommitValue v3 or v4, or with a tombstone.

    The result equals that of `offsets_log.decode`. Raises nothing for any bytes.
    """
    key, value = _Bytes.of(keys), _Bytes.of(values)
    group_at = key.starts + 4
    group_size = key.number(key.starts + 2, 2)
    topic_at = group_at + group_size + 2
    topic_size = key.number(topic_at - 2, 2)
    taken = np.asarray(keys.is_valid()) & (key.number(key.starts, 2) == 1)
    taken &= (group_size >= 0) & (topic_at <= key.ends) & (topic_size >= 0) & (topic_at + topic_size + 4 == key.ends)

    # Both begin with a version, an offset of 8 bytes and an epoch of 4. Then follow the metadata's length (v3: two
    # bytes; v4: length + 1 in one byte), the metadata, a time of 8 bytes and, in v4, the number of tagged fields: none,
    # or one (tag 0, 16 bytes: the topic's id).
    given, version = np.asarray(values.is_valid()), value.number(value.starts, 2)
    newer = version == 4
    counted = np.where(newer, value.number(value.starts + 14, 1), value.number(value.starts + 14, 2))
    metadata_at = value.starts + np.where(newer, 15, 16)
    size = counted - newer
    time_at = metadata_at + size
    behind = value.ends - time_at - 8
    untagged = (behind == 1) & (value.number(time_at + 8, 1) == 0)
    tagged = (behind == 19) & (value.number(time_at + 8, 2) == 0x0100) & (value.number(time_at + 10, 1) == 16)
    whole = np.where(newer, (counted < 0x80) & (untagged | tagged), (version == 3) & (behind == 0)) & (size >= 0)
    taken &= whole | ~given
    live = given[taken]
    try:
        texts = {
            "group": key.texts(group_at[taken], group_size[taken]),
            "topic": key.texts(topic_at[taken], topic_size[taken]),
            "metadata": value.texts(metadata_at[taken], np.where(live, size[taken], 0), live),
        }
    except pa.ArrowInvalid:
        # One of them is not UTF-8: the other decoder finds which.
        return read_commits(keys.slice(0, 0), values.slice(0, 0))._replace(taken=np.zeros(len(keys), np.bool_))
    numbers = {
        "partition": pa.array(key.number(key.ends - 4, 4)[taken], pa.int32()),
        "committed_offset": _nullable(value.number(value.starts + 2, 8)[taken], live, pa.int64()),
        "leader_epoch": _nullable(value.number(value.starts + 10, 4)[taken], live, pa.int32()),
        "commit_ms": _nullable(value.number(time_at, 8)[taken], live, pa.int64()),
    }
    return Commits(taken, texts | numbers)


class _Bytes(NamedTuple):
    """The concatenated bytes of an Arrow array, and the start and end of each value in them."""

    data: npt.NDArray[np.uint8]
    starts: _Numbers
    ends: _Numbers

    @classmethod
    def of(cls, array: pa.BinaryArray) -> _Bytes:
        _, offsets, data = array.cast(pa.binary()).buffers()
        bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
        # `take` needs at least one byte.
        held = np.zeros(1, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
        return cls(held, bounds[:-1], bounds[1:])

    def number(self, at: _Numbers, size: int) -> _Numbers:
        """The signed big-endian numbers of `size` bytes at these positions; any value outside of the data."""
        places = at[:, np.newaxis] + np.arange(size)
        raw = self.data.take(places, mode="clip")
        kind = np.uint8 if size == 1 else np.dtype(f">i{size}")
        return raw.view(kind)[:, 0].astype(np.int64)

    def texts(self, at: _Numbers, size: _Numbers, valid: _Truths | None = None) -> pa.StringArray:
        """The texts at these positions, which ascend without overlap. Raises ArrowInvalid unless all are UTF-8."""
        edges = np.zeros(len(self.data) + 1, np.int8)
        some = size > 0
        edges[at[some]] = 1
        edges[(at + size)[some]] = -1
        inside = np.cumsum(edges[:-1], dtype=np.int8).view(np.bool_)
        ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(size, dtype=np.int32)])
        held = None if valid is None else pa.array(valid).buffers()[1]
        texts = pa.StringArray.from_buffers(len(size), pa.py_buffer(ends), pa.py_buffer(self.data[inside]), held)
        texts.validate(full=True)
        return texts


def _nullable(numbers: _Numbers, valid: _Truths, kind: Any) -> pa.Array:
    return pa.array(numbers, kind, mask=~valid)
