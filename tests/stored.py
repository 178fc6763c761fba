"""The tables of a warehouse as rows that say nothing of the run which wrote them: to compare those of two runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

# When and by which run something was read, written or decided.
_OF_THE_RUN = {
    "activity_id",
    "activity_version",
    "first_read_at",
    "last_commit_after",
    "read_at",
    "state_after",
    "stream",
    "topics_after",
    "updated_at",
    "written_after",
}
TABLES = ("activity", "commits", "coverage", "group_states")


def rows(
    warehouse: str, variables: Mapping[str, str] | None = None, tables: Collection[str] = TABLES
) -> dict[str, list[str]]:
    """By table, its rows in order, each as text. variables: what leads to an object store."""
    return {name: _rows(f"{warehouse}/{name}", dict(variables or {})) for name in tables}


def _rows(uri: str, options: dict[str, str]) -> list[str]:
    table = DeltaTable(uri, storage_options=options)
    names = sorted({field.name for field in table.schema().fields} - _OF_THE_RUN)
    selected = ", ".join(f'"{name}"' for name in names)
    query = f"SELECT {selected} FROM t"  # noqa: S608
    found: list[dict[str, Any]] = pa.table(QueryBuilder().register("t", table).execute(query)).to_pylist()
    return sorted(repr({name: _ordered(value) for name, value in row.items()}) for row in found)


def _ordered(value: Any) -> Any:
    """Lists without an order of their own: of offsets, and of the entries of a map."""
    return sorted(value, key=repr) if isinstance(value, list) else value
