"""The pipeline's tables as files, without Spark: whether they equal the log, and how far a killed run had come."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from faults.offsets_log import Row, Rows, expected, read

_PLACE = ("log_partition", "log_offset", "record_ms")
# Of each table, the columns in which faults.offsets_log tells what it must hold.
TABLES = {
    "commits": (
        *(*_PLACE, "group", "topic", "partition"),
        *("committed_offset", "leader_epoch", "metadata", "commit_ms", "aborted"),
    ),
    "group_states": (
        *(*_PLACE, "kind", "group"),
        *("protocol_type", "generation", "member_id", "members", "state_ms", "gone"),
    ),
}
_GROUP = ("group", "last_commit_ms", "commits_30d")


def differences(bootstrap: str, warehouse: Path) -> list[str]:
    """What is wrong in the tables, as far as they say that they are finished; nothing = they equal the log."""
    covered, batch = told(warehouse / "ingested", "batch")
    if not covered:
        return []
    log, found = expected(read(bootstrap)), []
    for (name, columns), rows in zip(TABLES.items(), (log.commits, log.states), strict=True):
        held = _query(warehouse / name, f"SELECT {_selected(columns)} FROM t WHERE batch <= {batch}")  # noqa: S608
        found += _compared(name, held, {row for row in rows if row[1] < covered.get(row[0], 0)})
    covered, version = told(warehouse / "coverage", "activity_version")
    if covered:
        # What is trusted is not the newest version, but the one that is named there.
        sql = f"SELECT {_selected(_GROUP)} FROM t"  # noqa: S608
        found += _compared("groups", _query(warehouse / "activity", sql, version), groups(log, covered))
    return found


def groups(log: Rows, covered: dict[int, int]) -> set[Row]:
    """Every group of the log, up to these offsets, in the columns of _GROUP."""
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
    """The next run has `maintain` to do, as a day later; False = no run came so far yet."""
    try:
        diary = DeltaTable(str(warehouse / "quarantine"))
    except TableNotFoundError:
        return False
    diary.alter.set_table_properties({"grouphygiene.maintained": "0"}, raise_if_not_exists=False)
    return True


def newest(folder: Path) -> Path | None:
    return max(folder.iterdir(), key=lambda entry: entry.stat().st_mtime, default=None) if folder.exists() else None


def last_number(folder: Path) -> int:
    """The highest number that is the name of a file there."""
    names = [file.name for file in folder.iterdir()] if folder.exists() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def newest_batch(table: Path, stream: str) -> int:
    """The last batch of the stream that is in the table."""
    try:
        version = DeltaTable(str(table)).transaction_version(stream)
    except TableNotFoundError:
        return -1
    return -1 if version is None else version


def unfinished(table: Path, since: float) -> bool:
    """Files came into the table since then, and no version of it names one of them."""
    try:
        named = {Path(name).name for name in DeltaTable(str(table)).file_uris()}
    except TableNotFoundError:
        named = set()
    return any(file.stat().st_mtime >= since and file.name not in named for file in table.glob("*.parquet"))


def _query(table: Path, sql: str, version: int | None = None) -> list[Row]:
    """None where the table isn't there: it is made with its first rows."""
    try:
        opened = DeltaTable(str(table), version=version)
    except TableNotFoundError:
        return []
    answer = QueryBuilder().register("t", opened).execute(sql).read_all()
    columns: list[Any] = [answer.column(index).to_pylist() for index in range(answer.num_columns)]
    return list(zip(*columns, strict=True))


def _selected(columns: Iterable[str]) -> str:
    # A timestamp is a number of microseconds.
    times = {"record_ms": "record_time", "last_commit_ms": "last_commit"}
    return ", ".join(f"CAST({times[name]} AS BIGINT) / 1000" if name in times else f'"{name}"' for name in columns)


def told(table: Path, number: str) -> tuple[dict[int, int], int]:
    """By log partition, up to where the tables are finished, as this one says; and a number that it says with each."""
    rows = _query(table, f"SELECT log_partition, covered_to, {number} FROM t")  # noqa: S608
    return {partition: offset for partition, offset, _ in rows}, max((row[2] for row in rows), default=0)
