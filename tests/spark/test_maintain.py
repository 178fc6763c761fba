"""What maintain drops, what it must not, and what the next run makes of what is left."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from deltalake import DeltaTable as Reader
from deltalake import QueryBuilder, Schema
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import SparkSession

from group_hygiene.pipeline.backtest.replay import Steps
from group_hygiene.pipeline.backtest.tally import extent, lives
from group_hygiene.pipeline.jobs import Retention, maintain
from group_hygiene.pipeline.store import Table
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, COVERAGE, QUARANTINE, RECORDS, activity_at, read_coverage
from tests.spark.histories import HOUR, START, Bronze, commit, milliseconds, moment, wiped


def groups(spark: SparkSession, warehouse: str, table: Table) -> list[str]:
    return sorted(row["group"] for row in table.read(spark, warehouse).select("group").collect())


def complete_since(spark: SparkSession, warehouse: str) -> datetime | None:
    (row,) = COVERAGE.read(spark, warehouse).collect()
    since: Any = row["complete_since"]
    return None if since is None else since.astimezone(UTC)


def since(second: float) -> Retention:
    """Keeps what is younger than that moment of the histories."""
    return Retention(history=datetime.now(UTC) - moment(second))


def test_what_is_old_goes_and_what_is_needed_stays(spark: SparkSession, warehouse: str) -> None:
    """Old records are dropped; `activity` has what they said. A group that is gone leaves it with the next commits."""
    bronze = Bronze(spark, warehouse)
    bronze.write({"old": [commit(1)], "both": [commit(1), commit(100)], "gone": [commit(1), wiped(2)]})
    assert maintain(spark, warehouse, since(50))
    assert groups(spark, warehouse, COMMITS) == ["both"]
    assert groups(spark, warehouse, ACTIVITY) == ["both", "gone", "old"]
    # The log was read a day after the start.
    bronze.history = timedelta(days=1) - (moment(50) - START)
    bronze.write({"late": [commit(3)]})
    assert groups(spark, warehouse, ACTIVITY) == ["both", "late", "old"]
    assert complete_since(spark, warehouse) is None
    (covered,) = COVERAGE.read(spark, warehouse).collect()
    reader = Reader(ACTIVITY.path(warehouse), version=covered["activity_version"])
    read = QueryBuilder().register("t", reader).execute('select "group" from t').read_all()
    assert sorted(read.column("group").to_pylist()) == ["both", "late", "old"]


def test_old_versions_of_activity_are_removed(spark: SparkSession, warehouse: str) -> None:
    """But not the one that coverage names, also if a run that was killed wrote a later one."""
    bronze = Bronze(spark, warehouse)
    for second in (1, 2, 3):
        bronze.write({"g": [commit(second)]})
    covered = COVERAGE.rows(warehouse)
    bronze.write({"g": [commit(4)]})
    COVERAGE.overwrite(warehouse, covered, COVERAGE.version(warehouse))
    maintain(spark, warehouse, Retention(activity=timedelta(0)))
    assert len(list(Path(ACTIVITY.path(warehouse)).glob("*.parquet"))) == 2
    rows = activity_at(spark, warehouse, read_coverage(warehouse)[1]).collect()
    assert [row["last_commit"].astimezone(UTC) for row in rows] == [moment(3)]


def test_files_of_old_versions_are_removed(spark: SparkSession, warehouse: str) -> None:
    """In every table, a file that left it, or never was in it, goes after the retention, and no earlier."""
    Bronze(spark, warehouse).write({"g": [commit(1)]})
    now, left, never = datetime.now(UTC).timestamp(), dict[Path, bool](), dict[Path, bool]()
    for table in (*RECORDS, COVERAGE, ACTIVITY):
        folder, removed = Path(table.path(warehouse)), list[AddAction | RemoveAction]()
        for age in (1, 3):
            for files, name in ((left, f"left-{age}.parquet"), (never, f"never-{age}.parquet")):
                path = folder / name
                path.write_bytes(b"PAR1")
                os.utime(path, (now - age * HOUR, now - age * HOUR))
                files[path] = age < 2
            removed.append(RemoveAction(f"left-{age}.parquet", True, int((now - age * HOUR) * 1000)))
        schema = Schema.from_arrow(table.schema)
        Reader(str(folder)).create_write_transaction(removed, "append", schema)
    two = timedelta(hours=2)
    assert maintain(spark, warehouse, Retention(files=two, activity=two))
    stayed = {path: path.exists() for path in left}
    assert stayed == left
    assert {path: path.exists() for path in never} == never


def test_a_table_without_old_rows_is_not_written(spark: SparkSession, warehouse: str) -> None:
    """By maintain, on any day: also a day that has only its first and its last commits stays as it is."""
    Bronze(spark, warehouse).write(
        {name: [commit(HOUR * 24 * day + hour) for day in range(5) for hour in (1, 2)] for name in ("a", "b")}
    )
    assert maintain(spark, warehouse, every(0))

    def files() -> list[str]:
        return sorted(held.path for held in COMMITS.files(warehouse, COMMITS.version(warehouse), "batch"))

    before = files()
    for day in range(1, 5):
        assert maintain(spark, warehouse, every(HOUR * 24 * day))
    assert files() == before


def test_of_old_days_the_first_and_the_last_commits_stay(spark: SparkSession, warehouse: str) -> None:
    """Of each place apart, of tombstones and of aborted commits, too; and nothing of a later day is dropped.

    A later run takes the days since then. What a backtest by days reads is the same as before.
    """
    hours = [HOUR * hour for hour in range(1, 60)]
    others = [commit(HOUR * 2, partition=1), *(commit(HOUR * hour + 1, aborted=True) for hour in (3, 4, 5))]
    others += [wiped(HOUR * hour + 2) for hour in (6, 7, 8)]
    late = commit(HOUR * 5 + 3, commit_ms=milliseconds(HOUR * 11.5))
    events = sorted([*map(commit, hours), *others, late], key=lambda event: event["record_time"])
    Bronze(spark, warehouse).write({"g": events})
    reach = extent(warehouse)
    days = Steps(datetime(2026, 11, 21, tzinfo=UTC), timedelta(days=1), 3)
    before = sorted(map(str, lives(spark, warehouse, reach, days).collect()))
    # Noon of the second day: the first one has ended.
    assert maintain(spark, warehouse, every(HOUR * 24))
    times = sorted((row["record_time"].astimezone(UTC) - START) / timedelta(hours=1) for row in rows(spark, warehouse))
    first = [1, 2, 3, 5, 5, 6, 8, 11]
    assert [round(time, 2) for time in times if time < 12] == first
    assert [int(time) for time in times if time >= 12] == list(range(12, 60))
    assert sorted(map(str, lives(spark, warehouse, reach, days).collect())) == before
    assert maintain(spark, warehouse, every(HOUR * 48))
    times = sorted((row["record_time"].astimezone(UTC) - START) / timedelta(hours=1) for row in rows(spark, warehouse))
    assert [int(time) for time in times if time >= 12] == [12, 35, *range(36, 60)]
    assert sorted(map(str, lives(spark, warehouse, reach, days).collect())) == before


def every(second: float) -> Retention:
    """Keeps every commit that is younger than that moment of the histories."""
    return Retention(history=timedelta(days=10_000), commits=datetime.now(UTC) - moment(second))


def rows(spark: SparkSession, warehouse: str) -> list[Any]:
    return COMMITS.read(spark, warehouse).collect()


def test_not_more_often_than_asked(spark: SparkSession, warehouse: str) -> None:
    """It is done when it was not done for so long; without a limit, always; without tables, or for new ones, never."""
    assert not maintain(spark, warehouse)
    Bronze(spark, warehouse).finish()
    assert not maintain(spark, warehouse, at_most_every=timedelta(days=1))
    assert maintain(spark, warehouse, at_most_every=timedelta(microseconds=1))
    assert not maintain(spark, warehouse, at_most_every=timedelta(days=1))
    assert maintain(spark, warehouse)


def test_records_that_could_not_be_read(spark: SparkSession, warehouse: str) -> None:
    """Each may have been a commit of any group of its partition: they count as active then, for good."""
    bronze = Bronze(spark, warehouse)
    broken = {"table": QUARANTINE, "key": b"k", "value": b"v", "error": "why"}
    bronze.write({"g": [commit(1)], "": [broken | {"record_time": moment(second)} for second in (7, 5)]})
    assert complete_since(spark, warehouse) == moment(7)
    maintain(spark, warehouse, since(50))
    assert QUARANTINE.read(spark, warehouse).isEmpty()
    bronze.write({"g": [commit(9)]})
    assert complete_since(spark, warehouse) == moment(7)
