"""Decodes all commits of a batch at once, by numpy: the layouts that brokers have used for nearly all since 2.1.

Skips every other record, well-formed or not: `offsets_log.decode` decodes these. Runs in Spark's workers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from group_hygiene.kafka.record_columns import Numbers, Slices, Truths


class Commits(NamedTuple):
    """taken: for each record of the batch, whether it was decoded. columns: of these, in order; null for tombstones."""

    taken: Truths
    columns: dict[str, pa.Array]


def read_commits(key: Slices, value: Slices) -> Commits:
    """Decode the records with OffsetCommitKey v1 and OffsetCommitValue v3 or v4, or with a tombstone.

    The result equals that of `offsets_log.decode`. Raises nothing for any bytes.
    """
    group_at = key.starts + 4
    group_size = key.number(key.starts + 2, 2)
    topic_at = group_at + group_size + 2
    topic_size = key.number(topic_at - 2, 2)
    taken = key.valid & (key.number(key.starts, 2) == 1)
    taken &= (group_size >= 0) & (topic_at <= key.ends) & (topic_size >= 0) & (topic_at + topic_size + 4 == key.ends)

    # Both begin with a version, an offset of 8 bytes and an epoch of 4. Then follow the metadata's length (v3: two
    # bytes; v4: length + 1 in one byte), the metadata, a time of 8 bytes and, in v4, the number of tagged fields: none,
    # or one (tag 0, 16 bytes: the topic's id).
    given, version = value.valid, value.number(value.starts, 2)
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
            "group": _texts(key, group_at[taken], group_size[taken]),
            "topic": _texts(key, topic_at[taken], topic_size[taken]),
            "metadata": _texts(value, metadata_at[taken], np.where(live, size[taken], 0), live),
        }
    except pa.ArrowInvalid:
        # One of them is not UTF-8: the other decoder finds which.
        none = slice(0, 0)
        return read_commits(key.take(none), value.take(none))._replace(taken=np.zeros(len(taken), np.bool_))
    numbers = {
        "partition": pa.array(key.number(key.ends - 4, 4)[taken], pa.int32()),
        "committed_offset": _nullable(value.number(value.starts + 2, 8)[taken], live, pa.int64()),
        "leader_epoch": _nullable(value.number(value.starts + 10, 4)[taken], live, pa.int32()),
        "commit_ms": _nullable(value.number(time_at, 8)[taken], live, pa.int64()),
    }
    return Commits(taken, texts | numbers)


def _texts(cells: Slices, at: Numbers, size: Numbers, valid: Truths | None = None) -> pa.StringArray:
    """The texts at these positions, which ascend without overlap. Raises ArrowInvalid unless all are UTF-8."""
    if not len(size):
        return pa.array([], pa.string())
    # Every other one of the pieces between these edges. An empty text is wherever the one before it ends.
    edges = np.empty(2 * len(size), np.int64)
    edges[0::2] = np.where(size > 0, at, 0)
    edges[1::2] = np.where(size > 0, at + size, 0)
    edges = np.maximum.accumulate(edges).astype(np.int32)
    pieces = pa.StringArray.from_buffers(len(edges) - 1, pa.py_buffer(edges), pa.py_buffer(cells.data))
    _, ends, data = pieces.take(pa.array(np.arange(0, len(edges), 2))).buffers()
    held = None if valid is None else pa.array(valid).buffers()[1]
    texts = pa.StringArray.from_buffers(len(size), ends, data, held)
    texts.validate(full=True)
    return texts


def _nullable(numbers: Numbers, valid: Truths, kind: Any) -> pa.Array:
    return pa.array(numbers, kind, mask=~valid)
