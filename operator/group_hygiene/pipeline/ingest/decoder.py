"""Decodes the keys and values of records into columns of the bronze tables.

Runs in Spark's workers: imports only `offsets_log`, numpy and pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from group_hygiene.kafka.offsets_log import BrokenRecord, Commit, decode
from group_hygiene.kafka.record_columns import Numbers, Slices
from group_hygiene.pipeline.ingest.columns import read_classic_groups, read_commits

# The names of `tables.RECORDS`.
_COMMITS, _STATES, _QUARANTINE = "commits", "group_states", "quarantine"


def decode_all(keys: Slices, values: Slices, hosts: bool = True) -> Iterator[tuple[str, Numbers, Mapping[str, Any]]]:
    """Decode many records: the name of a table, the numbers of records that belong there, and columns of their rows.

    Nearly all commits come together, then most Classic groups, and then the other records. Columns that are missing
    are null. Raises nothing.

    hosts: False = no row has a client's host, nor the value of a malformed record, which may hold one.
    """
    commits = read_commits(keys, values)
    yield _COMMITS, np.flatnonzero(commits.taken), commits.columns
    left = np.flatnonzero(~commits.taken)
    if not len(left):
        return
    groups = read_classic_groups(keys.take(left), values.take(left), hosts)
    same = {"kind": "classic", "gone": False}
    count = int(groups.taken.sum())
    yield _STATES, left[groups.taken], groups.columns | {name: pa.repeat(one, count) for name, one in same.items()}
    left = left[~groups.taken]
    others: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for number, key, value in zip(left.tolist(), keys.take(left).cells(), values.take(left).cells(), strict=True):
        table, row = _row(key, value, hosts)
        others.setdefault(table, []).append((number, row))
    for table, found in others.items():
        numbers, rows = zip(*found, strict=True)
        yield table, np.array(numbers), {name: [row.get(name) for row in rows] for name in set(chain(*rows))}


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
