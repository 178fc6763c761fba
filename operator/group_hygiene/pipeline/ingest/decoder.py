"""Decodes the keys and values of records into columns of the bronze tables.

By numpy, many at once: commits, and the records of Classic groups of few members, in the layouts that brokers have used
for nearly all since 2.1. `offsets_log.decode` decodes every other record by itself, well-formed or not. Runs in Spark's
workers: imports only `offsets_log`, numpy and pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from group_hygiene.kafka.offsets_log import CLIENTS_MAX, TEXT_MAX, BrokenRecord, Commit, MemberClient, decode
from group_hygiene.kafka.record_columns import Cursor, Numbers, Slices, Truths

# The names of `tables.RECORDS`.
_COMMITS, _STATES, _QUARANTINE = "commits", "group_states", "quarantine"

# By the name of a column, its values for the records that were decoded, in order.
Columns = Mapping[str, Any]


def decode_all(keys: Slices, values: Slices, hosts: bool = True) -> Iterator[tuple[str, Numbers, Columns]]:
    """Decode many records: the name of a table, the numbers of records that belong there, and columns of their rows.

    Nearly all commits come together, then most Classic groups, and then the other records. Columns that are missing
    are null. Raises nothing.

    hosts: False = no row has a client's host, nor the value of a malformed record, which may hold one.
    """
    left = np.arange(len(keys.starts))
    for table, read in ((_COMMITS, read_commits), (_STATES, partial(read_classic_groups, hosts=hosts))):
        if not len(left):
            return
        try:
            taken, columns = read(keys, values)
        except pa.ArrowInvalid:
            # A text is not UTF-8: the other decoder finds which.
            continue
        yield table, left[taken], columns
        left, keys, values = left[~taken], keys.take(~taken), values.take(~taken)
    others: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for number, key, value in zip(left.tolist(), keys.cells(), values.cells(), strict=True):
        table, row = _row(key, value, hosts)
        others.setdefault(table, []).append((number, row))
    for table, found in others.items():
        numbers, rows = zip(*found, strict=True)
        yield table, np.array(numbers), {name: [row.get(name) for row in rows] for name in set(chain(*rows))}


def read_commits(key: Slices, value: Slices) -> tuple[Truths, Columns]:
    """Decode the records with OffsetCommitKey v1 and OffsetCommitValue v3 or v4, or with a tombstone.

    Returns for each record whether it was decoded, and columns of these, equal to the results of `offsets_log.decode`.
    Raises ArrowInvalid if a text is not UTF-8.
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
    null = ~given[taken]
    metadata = Slices(value.data, metadata_at, time_at, given)
    return taken, {
        "group": _texts(group.take(taken)),
        "topic": _texts(topic.take(taken)),
        "partition": partition[taken],
        "committed_offset": pa.array(value.number(value.starts + 2, 8)[taken], mask=null),
        "leader_epoch": pa.array(value.number(value.starts + 10, 4)[taken], mask=null),
        "metadata": _texts(metadata.take(taken)),
        "commit_ms": pa.array(value.number(time_at, 8)[taken], mask=null),
    }


def read_classic_groups(key: Slices, value: Slices, hosts: bool) -> tuple[Truths, Columns]:
    """Decode the records with GroupMetadataKey v2 and GroupMetadataValue v3, of at most CLIENTS_MAX members.

    hosts: see `decode_all`. Otherwise as `read_commits`.
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
    for cells in others:
        _texts(cells.take(taken))
    count = int(taken.sum())
    return taken, {
        "group": _texts(group.take(taken)),
        "kind": pa.repeat("classic", count),
        "gone": pa.repeat(False, count),
        "protocol_type": _texts(protocol_type.take(taken)),
        "generation": generation[taken],
        "members": members[taken],
        "state_ms": pa.array(since[taken], mask=since[taken] == -1),
        "clients": _clients(of_members, taken, members[taken], hosts),
    }


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
    fields = [texts[name] if name in texts else pa.nulls(count, pa.string()) for name in MemberClient._fields]
    offsets = pa.array(np.concatenate([[0], np.cumsum(members)]), pa.int32())
    struct = pa.StructArray.from_arrays(fields, MemberClient._fields)
    return pa.ListArray.from_arrays(offsets, struct, mask=pa.array(members == 0))


def _texts(cells: Slices) -> pa.StringArray:
    """These texts, which ascend without overlap. Raises ArrowInvalid unless all are UTF-8."""
    count, filled = len(cells.valid), cells.valid & (cells.ends > cells.starts)
    held = None if cells.valid.all() else pa.array(cells.valid).buffers()[1]
    # Every other one of the pieces between these edges. An empty text is wherever the one before it ends.
    edges = np.zeros(2 * count + 1, np.int64)
    edges[0:-1:2] = np.where(filled, cells.starts, 0)
    edges[1::2] = np.where(filled, cells.ends, 0)
    edges = np.maximum.accumulate(edges).astype(np.int32)
    pieces = pa.StringArray.from_buffers(len(edges) - 1, pa.py_buffer(edges), pa.py_buffer(cells.data))
    _, ends, data = pieces.take(pa.array(np.arange(0, 2 * count, 2))).buffers()
    texts = pa.StringArray.from_buffers(count, ends, data, held)
    texts.validate(full=True)
    return texts


def _row(key: bytes | None, value: bytes | None, hosts: bool) -> tuple[str, dict[str, Any]]:
    try:
        record = decode(key, value)
    except BrokenRecord as broken:
        return _QUARANTINE, {"key": key, "value": value if hosts else None, "error": str(broken)}
    if not isinstance(record, Commit):
        clients = record.clients if hosts else [client._replace(host=None) for client in record.clients]
        return _STATES, record._asdict() | {"clients": clients or None}
    row: dict[str, Any] = {"group": record.group, "topic": record.topic, "partition": record.partition}
    if not record.gone:
        row |= {"committed_offset": record.offset, "leader_epoch": record.leader_epoch}
        row |= {"metadata": record.metadata, "commit_ms": record.commit_ms}
    return _COMMITS, row
