"""Adds newly ingested records to `activity`, and then updates `coverage`. The meaning of records is in `fold`.

Spark's workers do it by shards (`shards`), and the driver puts all of their files into the table in one version. Adding
the same records twice changes nothing: each row has the offset up to which it includes the log (`read_to`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from pyspark.sql import SparkSession

from group_hygiene.errors import PipelineError
from group_hygiene.model.evidence import TABLES_VERSION
from group_hygiene.pipeline import store
from group_hygiene.pipeline.activity.shards import EVERYTHING, Done, Round, Shard, Task, plan, work
from group_hygiene.pipeline.ingest.progress import refuse_incomplete, refuse_older
from group_hygiene.pipeline.store import Held, State
from group_hygiene.pipeline.tables import (
    ACTIVITY,
    COMMITS,
    COVERAGE,
    GROUP_STATES,
    INGESTED,
    PRUNED,
    QUARANTINE,
    RECORDS,
    THINNED,
)

# Records of a round, which the tasks write to their disks.
_ROUND_RECORDS = 100_000_000
# The days of `commits_by_day` before the last one.
_COUNTED = timedelta(days=30)
_ALMOST_A_DAY = timedelta(days=1) - timedelta.resolution
# Up to so many groups and new records, the table is one file.
_SMALL = 200_000
# New records, and groups with rows, of a task, which costs a fifth of a second by itself.
_LEAST_TASKS, _TASK_RECORDS, _TASK_GROUPS = 2, 1_000_000, 300_000
# Commits to `activity` without our mark may have put old rows back, except these: they change no row, or only remove
# some. A group without a row is never idle.
_HARMLESS = {"OPTIMIZE", "DELETE", "VACUUM START", "VACUUM END"}

_Rows = Sequence[dict[str, Any]]
_Moments = Mapping[int, datetime | None]


@dataclass(frozen=True, slots=True)
class Updated:
    """The result. read_at: when `activity` is complete as of; None = some partition was never read to its end.

    An open transaction holds it back. counted_from: the first day of `commits_by_day`, if it is a later one than usual:
    `maintain` had dropped commits before it.
    """

    batches: int
    records: int
    read_at: datetime | None
    counted_from: date | None = None

    def __str__(self) -> str:
        upto = "not complete yet" if self.read_at is None else f"complete as of {self.read_at:%Y-%m-%d %H:%M:%S} UTC"
        counted = "" if self.counted_from is None else f"; commits are counted from {self.counted_from} on"
        return f"{self.records:,} new records, {upto}{counted}"


class _Batches(NamedTuple):
    """Batches of one era, which are added together."""

    era: int
    first: int
    last: int


def update(spark: SparkSession, warehouse: str, history: timedelta | None = None) -> Updated:
    """Add all batches that ingest has completed since the last update; writes `coverage` last.

    history: files that are rewritten lose the groups that are gone for longer than this; None = no group.

    Raises PipelineError if nothing was ingested yet, or if another run writes at the same time; Halted if `ingested` is
    older than `coverage`.
    """
    ingested = INGESTED.rows(warehouse)
    if not ingested:
        raise PipelineError("nothing was ingested into this warehouse yet: run `group-hygiene pipeline ingest` first")
    seen, coverage = COVERAGE.version(warehouse), COVERAGE.rows(warehouse)
    if coverage:
        refuse_older(_batch(ingested[0]), _batch(coverage[0]))
    refuse_incomplete(warehouse, ingested[0]["batch"])
    versions = {table.name: table.version(warehouse) for table in RECORDS}
    read_at = max((row["read_at"] for row in ingested if row["read_at"]), default=None)
    now = read_at or datetime.now(UTC)
    complete_since: _Moments = {row["log_partition"]: row["complete_since"] for row in coverage}
    at, era = ACTIVITY.state(warehouse), coverage[0]["era"] if coverage else None
    # Without coverage, every version of the table must have our mark, including the first one.
    last = State(coverage[0]["activity_id"], coverage[0]["activity_version"]) if coverage else None
    if at is None or _went_back(warehouse, at, last or at._replace(version=-1)):
        # No reader uses the new table until coverage has its id.
        ACTIVITY.create(warehouse)
        at, coverage, era = _state(warehouse), [], ingested[0]["era"]
    first_day = usual = (now - _COUNTED).date()
    if not coverage:
        if any(PRUNED in table.settings(warehouse) for table in RECORDS):
            complete_since = {row["log_partition"]: now for row in ingested}
        settings = COMMITS.settings(warehouse)
        dropped = [datetime.fromisoformat(settings[name]) for name in (PRUNED, THINNED) if name in settings]
        # Of a day that has lost some of its commits, the number is unknown.
        first_day = max([first_day, *((until + _ALMOST_A_DAY).date() for until in dropped)])
    complete_since = _later(complete_since, {row["log_partition"]: row["complete_since"] for row in ingested})
    complete_since = _later(complete_since, _last_unread(warehouse, ingested[0]))
    records = [
        file for table in (COMMITS, GROUP_STATES) for file in table.files(warehouse, versions[table.name], "batch")
    ]
    todo, added = _todo(warehouse, coverage, ingested, records), 0
    partitions = [row["log_partition"] for row in ingested]
    for batches in todo:
        current = batches.era == ingested[0]["era"]
        # In an earlier log, a group may be in two partitions: of before and after it grew.
        moved = batches.era != era or not current
        new = sum(file.rows for file in records if file.may_have(batches.first, batches.last))
        round = Round(
            *(warehouse.rstrip("/"), ACTIVITY, ingested[0]["cluster_id"], *batches, now, first_day),
            None if history is None else now - history,
            *(versions | {ACTIVITY.name: at.version}, len(partitions) if current else None, moved, uuid4().hex),
        )
        done = _add(spark, _tasks(warehouse, at, new, partitions, moved), round)
        if changed := [each for each in done if each.files is not None]:
            removed = [path for each in changed for path in each.task.old]
            files = [file for each in changed for file in each.files or ()]
            at = at._replace(version=ACTIVITY.change(warehouse, files, at.version, removed))
        added, era = added + sum(each.records for each in done), batches.era
        strays = max((each.strays for each in done if each.strays is not None), default=None)
        complete_since = _later(complete_since, dict.fromkeys(partitions, strays))
    # If nothing was written, this is the version that was checked above, not a newer one.
    whose = {"activity_id": at.id, "activity_version": at.version, "version": TABLES_VERSION}
    # Not the current table `ingested`: it may be ahead of what was added.
    rows = [row | whose | {"complete_since": complete_since[row["log_partition"]]} for row in ingested]
    COVERAGE.overwrite(warehouse, rows, seen)
    moments = [row["read_at"] for row in ingested]
    complete = None if None in moments else min(moments)
    batches_added = max(0, ingested[0]["batch"] - (coverage[0]["batch"] if coverage else 0))
    return Updated(batches_added, added, complete, None if first_day == usual else first_day)


def _add(spark: SparkSession, tasks: Sequence[Task], round: Round) -> list[Done]:
    """Let Spark's workers write new files for all shards with records of the round."""
    done = spark.sparkContext.parallelize(tasks, len(tasks)).mapPartitions(partial(work, round=round)).collect()
    for each in done:
        if each.failure is not None:
            raise PipelineError(each.failure)
    return done


def _tasks(warehouse: str, at: State, new: int, partitions: Collection[int], moved: bool) -> list[Task]:
    """new: records. moved: whether groups may be in other partitions than before."""
    held = ACTIVITY.files(warehouse, at.version, "log_partition")
    files = {
        file.path: EVERYTHING if None in (file.least, file.most) else Shard(file.least, file.most) for file in held
    }
    groups = sum(file.rows for file in held)
    split = len(files) > 1 or new + groups > _SMALL
    number = math.ceil(new / _TASK_RECORDS + groups / _TASK_GROUPS)
    return plan(files, partitions, split, moved, max(_LEAST_TASKS, number))


def _state(warehouse: str) -> State:
    if (state := ACTIVITY.state(warehouse)) is None:
        raise PipelineError(f"the table {ACTIVITY.name} was removed while it was written: run this again")
    return state


def _todo(warehouse: str, coverage: _Rows, ingested: _Rows, records: Collection[Held]) -> list[_Batches]:
    """The batches to add, by era. records: files of records, with their batches."""
    before, era, last = (coverage[0]["batch"] if coverage else 0), ingested[0]["era"], ingested[0]["batch"]
    if era == (coverage[0]["era"] if coverage else 0):
        return _rounds(records, _Batches(era, before + 1, last)) if last > before else []
    ends: dict[int, list[int]] = {}
    for table in (COMMITS, GROUP_STATES):
        for row in store.rows(
            table.path(warehouse),
            "SELECT era, min(batch) AS first, max(batch) AS last FROM t "  # noqa: S608
            f"WHERE batch BETWEEN {before + 1} AND {last} GROUP BY era",
        ):
            ends.setdefault(row["era"], []).extend((row["first"], row["last"]))
    # Also without records of the current log: rows of the earlier one move to the files of their partitions.
    ends.setdefault(era, [last + 1, last])
    todo = [_Batches(era, min(of_era), max(of_era)) for era, of_era in sorted(ends.items())]
    return [*todo[:-1], *_rounds(records, todo[-1])]


def _rounds(records: Collection[Held], batches: _Batches) -> list[_Batches]:
    """The batches in parts of a number of records: a run that fails repeats no more than one of them."""
    by_last = Counter[int]()
    for file in records:
        if file.may_have(batches.first, batches.last):
            by_last[batches.last if file.most is None else min(file.most, batches.last)] += file.rows
    rounds, first, found = list[_Batches](), batches.first, 0
    for last, many in sorted(by_last.items()):
        found += many
        if found > _ROUND_RECORDS and last < batches.last:
            rounds.append(_Batches(batches.era, first, last))
            first, found = last + 1, 0
    return [*rounds, _Batches(batches.era, first, batches.last)]


def _went_back(warehouse: str, now: State, last: State) -> bool:
    """Whether it is another table than `coverage` names, or an older state of it, or another program wrote to it."""
    if now.id != last.id or now.version < last.version:
        return True
    count = now.version - last.version
    since = store.history(ACTIVITY.path(warehouse), count) if count else []
    known = [row for row in since if row["operation"] in _HARMLESS or row.get("userMetadata") == store.MARK]
    # Delta's history has a retention: a commit that is no longer in it may have been anything.
    return len(known) < count


def _last_unread(warehouse: str, ingested: Mapping[str, Any]) -> dict[int, datetime | None]:
    """By log partition, the time of the last malformed record: it may have been of any of the partition's groups."""
    rows = store.rows(
        QUARANTINE.path(warehouse),
        "SELECT log_partition, max(record_time) AS recorded, max(written_after) AS after FROM t "  # noqa: S608
        f"WHERE batch <= {ingested['batch']} AND era = {ingested['era']} GROUP BY log_partition",
    )
    times = {row["log_partition"]: [each for each in (row["recorded"], row["after"]) if each] for row in rows}
    return {partition: max(found, default=None) for partition, found in times.items()}


def _later(one: _Moments, other: _Moments) -> _Moments:
    """By log partition, the later time; None = never."""
    both = {
        partition: [moment for moment in (one.get(partition), other.get(partition)) if moment is not None]
        for partition in one.keys() | other.keys()
    }
    return {partition: max(moments, default=None) for partition, moments in both.items()}


def _batch(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["era"], row["batch"]
