"""All commits of a batch at once, by numpy: of the layouts in which brokers have written nearly all of them since 2.1.

Knows what is whole, and nothing of why something else is not: whatever it leaves out is for `offsets_log.decode`.
Runs in Spark's workers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Numbers = npt.NDArray[np.int64]
_Truths = npt.NDArray[np.bool_]


class Commits(NamedTuple):
    """taken: by record of the batch, whether it is here. columns: of these, in their order; null = a tombstone's."""

    taken: _Truths
    columns: dict[str, pa.Array]


def read_commits(keys: pa.BinaryArray, values: pa.BinaryArray) -> Commits:
    """What those records say that are commits: OffsetCommitKey v1, OffsetCommitValue v3 and v4.

    As `offsets_log.decode` reads each of them. Raises nothing, whatever the bytes are.
    """
    key, value = _Bytes.of(keys), _Bytes.of(values)
    group_at = key.starts + 4
    group_size = key.number(key.starts + 2, 2)
    topic_at = group_at + group_size + 2
    topic_size = key.number(topic_at - 2, 2)
    taken = np.asarray(keys.is_valid()) & (key.number(key.starts, 2) == 1)
    taken &= (group_size >= 0) & (topic_at <= key.ends) & (topic_size >= 0) & (topic_at + topic_size + 4 == key.ends)

    # Both begin with a version, an offset of 8 bytes and an epoch of 4. Then v3 counts the metadata's bytes in two
    # bytes, v4 in one, and by one too many; behind it, both have a time of 8, and v4 the number of tagged fields: none,
    # or one (number 0, of 16 bytes: the topic's id).
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
        # One of them is no UTF-8: which one, the other decoder tells.
        return read_commits(keys.slice(0, 0), values.slice(0, 0))._replace(taken=np.zeros(len(keys), np.bool_))
    numbers = {
        "partition": pa.array(key.number(key.ends - 4, 4)[taken], pa.int32()),
        "committed_offset": _nullable(value.number(value.starts + 2, 8)[taken], live, pa.int64()),
        "leader_epoch": _nullable(value.number(value.starts + 10, 4)[taken], live, pa.int32()),
        "commit_ms": _nullable(value.number(time_at, 8)[taken], live, pa.int64()),
    }
    return Commits(taken, texts | numbers)


class _Bytes(NamedTuple):
    """The bytes of an Arrow array, side by side, and where each of its values begins and ends among them."""

    data: npt.NDArray[np.uint8]
    starts: _Numbers
    ends: _Numbers

    @classmethod
    def of(cls, array: pa.BinaryArray) -> _Bytes:
        _, offsets, data = array.cast(pa.binary()).buffers()
        bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
        # One more byte, so that there is one to be looked at where there are none.
        held = np.zeros(1, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
        return cls(held, bounds[:-1], bounds[1:])

    def number(self, at: _Numbers, size: int) -> _Numbers:
        """The signed big-endian numbers of `size` bytes that begin there. Outside of the data, any."""
        places = at[:, np.newaxis] + np.arange(size)
        raw = self.data.take(places, mode="clip")
        kind = np.uint8 if size == 1 else np.dtype(f">i{size}")
        return raw.view(kind)[:, 0].astype(np.int64)

    def texts(self, at: _Numbers, size: _Numbers, valid: _Truths | None = None) -> pa.StringArray:
        """The texts that begin there, in ascending order, apart from each other. Raises ArrowInvalid for no UTF-8."""
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
