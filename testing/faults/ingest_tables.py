"""Reads the pipeline's tables without Spark: whether they equal the log, and how far a killed run had come."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from testing.faults.offsets_log import Row, Rows, expected, read

_PLACE = ("log_partition", "log_offset", "record_ms")
# The columns of each table that are compared with faults.offsets_log.
TABLES = {
    "commits": (
        *(*_PLACE, "group", "topic", "partition"),
        *("committed_offset", "leader_epoch", "metadata", "commit_ms", "aborted"),
    ),
    "group_states": (
        *(*_PLACE, "kind", "group"),
        *("protocol_type", "generation", "member_id", "members", "state_ms", "gone", "clients"),
    ),
}
_GROUP = ("group", "last_commit_ms", "commits_by_day")


def differences(bootstrap: str, warehouse: Path | str) -> list[str]:
    """Differences between the log and the tables, as far as these are complete; empty = they are equal."""
    covered, batch = covered_by(f"{warehouse}/coverage", "batch")
    if not covered:
        return []
    log, found = expected(read(bootstrap)), []
    for (name, columns), rows in zip(TABLES.items(), (log.commits, log.states), strict=True):
        held = _query(f"{warehouse}/{name}", f"SELECT {_selected(columns)} FROM t WHERE batch <= {batch}")  # noqa: S608
        found += _compared(name, held, {row for row in rows if row[1] < covered.get(row[0], 0)})
    # Not the newest version, but the one that coverage names.
    _, version = covered_by(f"{warehouse}/coverage", "activity_version")
    rows = _query(f"{warehouse}/activity", f"SELECT {_selected(_GROUP)} FROM t", version)  # noqa: S608
    known = [(group, last, sum(count for _, count in days)) for group, last, days in rows]
    return found + _compared("groups", known, groups(log, covered))


def groups(log: Rows, covered: dict[int, int]) -> set[Row]:
    """All groups of the log up to these offsets: name, time of the last commit, number of commits with a time."""
    commits, states = ([row for row in rows if row[1] < covered.get(row[0], 0)] for rows in (log.commits, log.states))
    times: dict[str, list[int]] = {row[4]: [] for row in states}
    for row in commits:
        times.setdefault(row[3], []).extend([] if row[9] is None else [row[9]])
    return {(group, max(made, default=None), len(made)) for group, made in times.items()}


def _compared(name: str, held: list[Row], wanted: set[Row]) -> list[str]:
    wrong = {
        "doubled": len(held) - len(set(held)),
        "lost": len(wanted - set(held)),
        "not in the log": len(set(held) - wanted),
    }
    return [f"{count} of {len(wanted)} {name} {what}" for what, count in wrong.items() if count]


def make_maintenance_due(warehouse: Path) -> bool:
    """Make `maintain` due in the next run, as a day later; False = nothing was read yet."""
    try:
        diary = DeltaTable(str(warehouse / "coverage"))
    except TableNotFoundError:
        return False
    diary.alter.set_table_properties({"grouphygiene.maintained": "0"}, raise_if_not_exists=False)
    return True


def is_changed(table: Path, since: float) -> bool:
    """Whether a version of the table was written since then."""
    return any(file.stat().st_mtime >= since for file in (table / "_delta_log").glob("*.json"))


def unfinished(table: Path, since: float) -> bool:
    """Whether files were begun since then that no version of the table includes."""
    try:
        named = {Path(name).name for name in DeltaTable(str(table)).file_uris()}
    except TableNotFoundError:
        named = set()
    return any(file.stat().st_mtime >= since and file.name not in named for file in table.glob("*.parquet"))


def _query(table: Path | str, sql: str, version: int | None = None) -> list[Row]:
    """None if the table does not exist yet."""
    try:
        opened = DeltaTable(str(table), version=version)
    except TableNotFoundError:
        return []
    answer = QueryBuilder().register("t", opened).execute(sql).read_all()
    columns: list[Any] = [map(_plain, answer.column(index).to_pylist()) for index in range(answer.num_columns)]
    return list(zip(*columns, strict=True))


def _plain(cell: Any) -> Any:
    """A list of clients as faults.offsets_log.Rows has it; a map as pairs."""
    if not isinstance(cell, list):
        return cell
    return tuple(tuple(each.values()) if isinstance(each, dict) else each for each in cell)


def _selected(columns: Iterable[str]) -> str:
    # Timestamps are in microseconds.
    times = {"record_ms": "record_time", "last_commit_ms": "last_commit"}
    return ", ".join(f"CAST({times[name]} AS BIGINT) / 1000" if name in times else f'"{name}"' for name in columns)


def covered_by(table: Path | str, number: str) -> tuple[dict[int, int], int]:
    """Log partition -> end of the complete part, by this table; and its column `number`, equal in all rows."""
    rows = _query(table, f"SELECT log_partition, covered_to, {number} FROM t")  # noqa: S608
    return {partition: offset for partition, offset, _ in rows}, max((row[2] for row in rows), default=0)
