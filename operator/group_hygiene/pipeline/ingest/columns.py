"""Decodes many records at once, by numpy: commits, and the records of Classic groups of few members.

These are of the layouts that brokers have used for nearly all since 2.1. Every other record is skipped, well-formed or
not: `offsets_log.decode` decodes these. Runs in Spark's workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from group_hygiene.kafka.offsets_log import CLIENTS_MAX, TEXT_MAX, Client
from group_hygiene.kafka.record_columns import Cursor, Numbers, Slices, Truths

_NONE = slice(0, 0)


class Decoded(NamedTuple):
    """taken: for each record of the batch, whether it was decoded. columns: of these, in order; null for tombstones."""

    taken: Truths
    columns: dict[str, pa.Array]


def read_commits(key: Slices, value: Slices) -> Decoded:
    """Decode the records with OffsetCommitKey v1 and OffsetCommitValue v3 or v4, or with a tombstone.

    The result equals that of `offsets_log.decode`. Raises nothing for any bytes.
    """
    keys = Cursor(key)
    known = keys.number(2) == 1
    group, topic, partition = keys.text(), keys.text(), keys.number(4)
    taken = known & keys.whole()

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
    metadata = Slices(value.data, metadata_at, time_at, given)
    try:
        texts = {
            name: _texts(cells.take(taken))
            for name, cells in {"group": group, "topic": topic, "metadata": metadata}.items()
        }
    except pa.ArrowInvalid:
        # One of them is not UTF-8: the other decoder finds which.
        return read_commits(key.take(_NONE), value.take(_NONE))._replace(taken=taken & False)
    numbers = {
        "partition": pa.array(partition[taken], pa.int32()),
        "committed_offset": _nullable(value.number(value.starts + 2, 8)[taken], live, pa.int64()),
        "leader_epoch": _nullable(value.number(value.starts + 10, 4)[taken], live, pa.int32()),
        "commit_ms": _nullable(value.number(time_at, 8)[taken], live, pa.int64()),
    }
    return Decoded(taken, texts | numbers)


def read_classic_groups(key: Slices, value: Slices, hosts: bool) -> Decoded:
    """Decode the records with GroupMetadataKey v2 and GroupMetadataValue v3, of at most CLIENTS_MAX members.

    The columns are `group`, and a GroupState's that are not the same for all of them. hosts: see decoder.decode_all.
    Otherwise as `read_commits`.
    """
    keys, values = Cursor(key), Cursor(value)
    known = (keys.number(2) == 2) & (values.number(2) == 3)
    group = keys.text()
    known &= keys.whole()
    protocol_type, generation = values.text(), values.number(4)
    # The assignor, and the leader of the group.
    others = [values.text(nullable=True), values.text(nullable=True)]
    since, members = values.number(8), values.number(4)
    taken, rows, left = np.zeros(len(known), np.bool_), np.flatnonzero(known), members[known]
    of_members, values = list[tuple[Numbers, dict[str, Slices]]](), values.part(known)
    for number in range(CLIENTS_MAX + 1):
        taken[rows[values.whole() & (left == number)]] = True
        more = left > number
        values, rows, left = values.part(more), rows[more], left[more]
        if not len(rows):
            break
        names = ("member", "instance_id", "client_id", "host")
        texts = {name: values.text(nullable=name == "instance_id") for name in names}
        for name in names[1:]:
            # Longer ones are cut off.
            values.fits &= texts[name].ends - texts[name].starts <= TEXT_MAX
        of_members.append((rows, texts))
        # The time-outs of rebalances and of sessions; the subscription and the assignment.
        values.number(8)
        values.text(width=4)
        values.text(width=4)
    try:
        for cells in others:
            _texts(cells.take(taken))
        columns = {"group": _texts(group.take(taken)), "protocol_type": _texts(protocol_type.take(taken))}
        columns["clients"] = _clients(of_members, taken, members[taken], hosts)
    except pa.ArrowInvalid:
        return read_classic_groups(key.take(_NONE), value.take(_NONE), hosts)._replace(taken=taken & False)
    columns["generation"] = pa.array(generation[taken], pa.int32())
    columns["members"] = pa.array(members[taken], pa.int32())
    columns["state_ms"] = _nullable(since[taken], since[taken] != -1, pa.int64())
    return Decoded(taken, columns)


def _clients(
    of_members: Sequence[tuple[Numbers, dict[str, Slices]]], taken: Truths, members: Numbers, hosts: bool
) -> pa.ListArray:
    """of_members: for the first, the second member and so on, the records that have one, and its texts."""
    texts = dict[str, pa.StringArray]()
    for name in of_members[0][1] if of_members else ():
        cells = [each[name].take(taken[rows]) for rows, each in of_members]
        joined = [np.concatenate([getattr(each, side) for each in cells]) for side in ("starts", "ends", "valid")]
        order = np.argsort(joined[0])
        starts, ends, valid = (column[order] for column in joined)
        if name == "host":
            # Java writes an address as `name/address`, mostly without the name.
            starts += cells[0].data[starts] == ord("/")
        texts[name] = _texts(Slices(cells[0].data, starts, ends, valid))
    if not hosts:
        texts.pop("host", None)
    count = int(members.sum())
    fields = [texts[name] if name in texts else pa.nulls(count, pa.string()) for name in Client._fields]
    offsets = pa.array(np.concatenate([[0], np.cumsum(members)]), pa.int32())
    struct = pa.StructArray.from_arrays(fields, Client._fields)
    return pa.ListArray.from_arrays(offsets, struct, mask=pa.array(members == 0))


def _texts(cells: Slices) -> pa.StringArray:
    """These texts, which ascend without overlap. Raises ArrowInvalid unless all are UTF-8."""
    count, filled = len(cells.valid), cells.valid & (cells.ends > cells.starts)
    held = None if cells.valid.all() else pa.array(cells.valid).buffers()[1]
    if not filled.any():
        return pa.StringArray.from_buffers(count, pa.py_buffer(np.zeros(count + 1, np.int32)), pa.py_buffer(b""), held)
    # Every other one of the pieces between these edges. An empty text is wherever the one before it ends.
    edges = np.empty(2 * count, np.int64)
    edges[0::2] = np.where(filled, cells.starts, 0)
    edges[1::2] = np.where(filled, cells.ends, 0)
    edges = np.maximum.accumulate(edges).astype(np.int32)
    pieces = pa.StringArray.from_buffers(len(edges) - 1, pa.py_buffer(edges), pa.py_buffer(cells.data))
    _, ends, data = pieces.take(pa.array(np.arange(0, len(edges), 2))).buffers()
    texts = pa.StringArray.from_buffers(count, ends, data, held)
    texts.validate(full=True)
    return texts


def _nullable(numbers: Numbers, valid: Truths, kind: Any) -> pa.Array:
    return pa.array(numbers, kind, mask=~valid)
