"""The history of one group, as a backtest makes it of its records."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import datetime
from typing import Any

import pyarrow as pa

from group_hygiene.pipeline.backtest.replay import History, moments_of, replay
from group_hygiene.pipeline.ingest.fold import Moments
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, GROUP_STATES

# The columns of `Moments.rows`.
_SCHEMA = pa.unify_schemas(
    [
        *(pa.schema([field.with_nullable(True) for field in table.schema]) for table in (COMMITS, GROUP_STATES)),
        pa.schema({"slice": pa.int32(), "first_ms": pa.int64(), "used": pa.bool_(), "own": pa.bool_()}),
    ]
)


def replayed(
    name: str, records: Iterable[Mapping[str, Any]], start: datetime, complete_since: datetime | None = None
) -> History:
    """records: of this group, in the order of the log, with the columns of `Moments.rows` that differ between them."""
    same = {"group": name, "era": 0, "log_partition": 0, "own": True}
    rows = [same | {"log_offset": offset} | dict(record) for offset, record in enumerate(records)]
    with tempfile.TemporaryDirectory() as spill, closing(Moments(spill)) as moments:
        found = moments.rows(pa.array([name]), pa.Table.from_pylist(rows, _SCHEMA), ACTIVITY.schema.empty_table())
    ((_, of_group),) = moments_of(found)
    return replay(name, of_group, start, complete_since)
