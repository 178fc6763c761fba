"""Decodes the keys and values of records into an Arrow batch of columns.

Runs in Spark's workers: imports only `offsets_log`, numpy and pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from group_hygiene.kafka.offsets_log import BrokenRecord, Client, Commit, decode
from group_hygiene.kafka.record_columns import Numbers, Slices
from group_hygiene.pipeline.ingest.columns import read_classic_groups, read_commits

# A GroupState without its group, field by field.
_STATE = {
    "kind": pa.string(),
    "gone": pa.bool_(),
    "protocol_type": pa.string(),
    "generation": pa.int32(),
    "member_id": pa.string(),
    "members": pa.int32(),
    "state_ms": pa.int64(),
    "clients": pa.list_(pa.struct(dict.fromkeys(Client._fields, pa.string()))),
}
_ASIDE = {"key": pa.binary(), "value": pa.binary(), "error": pa.string()}
_DECODED = pa.schema(
    {
        "group": pa.string(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "committed_offset": pa.int64(),
        "leader_epoch": pa.int32(),
        "metadata": pa.string(),
        "commit_ms": pa.int64(),
        "state": pa.struct(_STATE),
        "aside": pa.struct(_ASIDE),
    }
)


def decode_all(keys: Slices, values: Slices, hosts: bool = True) -> Iterator[tuple[Numbers, pa.RecordBatch]]:
    """Decode many records: the numbers of some of them, and a row for each of these; a malformed one has `aside`.

    Nearly all commits come together, then most Classic groups, and then the other records, if there are any. Raises
    nothing.

    hosts: False = no row has a client's host, nor the value of a malformed record, which may hold one.
    """
    commits = read_commits(keys, values)
    yield np.flatnonzero(commits.taken), _batch(int(commits.taken.sum()), commits.columns)
    left = np.flatnonzero(~commits.taken)
    if len(left):
        groups = read_classic_groups(keys.take(left), values.take(left), hosts)
        count = int(groups.taken.sum())
        same = {"kind": pa.repeat("classic", count), "gone": pa.repeat(False, count)}
        fields = [pa.field(name, kind) for name, kind in _STATE.items()]
        state = pa.StructArray.from_arrays(_filled(count, fields, groups.columns | same), fields=fields)
        yield left[groups.taken], _batch(count, {"group": groups.columns["group"], "state": state})
        left = left[~groups.taken]
    if len(left):
        cells = zip(keys.take(left).cells(), values.take(left).cells(), strict=True)
        rows = [_row(key, value, hosts) for key, value in cells]
        yield left, pa.RecordBatch.from_pylist(rows, schema=_DECODED)


def _batch(count: int, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(_filled(count, _DECODED, columns), schema=_DECODED)


def _filled(count: int, fields: Iterable[pa.Field], columns: Mapping[str, pa.Array]) -> list[pa.Array]:
    return [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in fields]


def _row(key: bytes | None, value: bytes | None, hosts: bool) -> dict[str, Any]:
    try:
        record = decode(key, value)
    except BrokenRecord as broken:
        return {"aside": {"key": key, "value": value if hosts else None, "error": str(broken)}}
    if not isinstance(record, Commit):
        clients = record.clients if hosts else [client._replace(host=None) for client in record.clients]
        return {"group": record.group, "state": (*record[1:-1], clients or None)}
    row: dict[str, Any] = {"group": record.group, "topic": record.topic, "partition": record.partition}
    if not record.gone:
        row |= {"committed_offset": record.offset, "leader_epoch": record.leader_epoch}
        row |= {"metadata": record.metadata, "commit_ms": record.commit_ms}
    return row
