"""The synthetic past keeps its promises: it is what an ingest writes, and its answers are right to the millisecond."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, COVERAGE, GROUP_STATES
from testing.bench.lives import AFTER_DAYS, RULE, Rule
from testing.bench.past import LOG_PARTITIONS, Past, write_past
from tests.spark.bronze import all_rows

GROUPS, DAYS = 1_000, 30
MS = timedelta(milliseconds=1)
Row = dict[str, Any]


class Written(NamedTuple):
    """rows: of each bronze table, in the order of the log."""

    past: Past
    warehouse: str
    commits: Sequence[Row]
    states: Sequence[Row]


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The past of 1,000 groups and 30 days, and what is in its tables."""
    warehouse = str(tmp_path_factory.mktemp("past") / "warehouse")
    return _written(spark, warehouse)


def _written(spark: SparkSession, warehouse: str) -> Written:
    past = write_past(spark, warehouse, GROUPS, DAYS)
    place = ("log_partition", "log_offset")
    commits, states = (
        table.read(spark, warehouse).orderBy(*place).toArrow().to_pylist() for table in (COMMITS, GROUP_STATES)
    )
    return Written(past, warehouse, commits, states)


def test_the_rows_are_what_an_ingest_writes(written: Written) -> None:
    """Each in the log partition of its group, by offsets that rise with the time; times are those in the records."""
    rows = sorted([*written.commits, *written.states], key=lambda row: (row["log_partition"], row["log_offset"]))
    assert len(rows) == written.past.rows
    assert {row["group"]: row["log_partition"] for row in rows} == {
        row["group"]: partition_of(row["group"], LOG_PARTITIONS) for row in rows
    }
    for _, lying in itertools.groupby(rows, key=lambda row: row["log_partition"]):
        places = [(row["log_offset"], row["record_time"]) for row in lying]
        assert [offset for offset, _ in places] == list(range(len(places)))
        assert [time for _, time in places] == sorted(time for _, time in places)
    assert all(_of(row["commit_ms"]) == row["record_time"] for row in written.commits if row["committed_offset"])
    assert all(_of(row["state_ms"]) == row["record_time"] for row in written.states if row["members"] is not None)
    assert {row["kind"] for row in written.states} == {"classic", "consumer-epoch", "consumer-member"}


def test_batches_are_a_compacted_log_and_then_a_day_each(written: Written) -> None:
    """The first one ends with the begin of the past, and holds one record of each key.

    What a transaction wrote that was aborted takes the place of nothing.
    """
    past, rows = written.past, [*written.commits, *written.states]
    assert {row["batch"] for row in rows} == set(range(1, DAYS + AFTER_DAYS + 2))
    for row in rows:
        days = -(-(row["record_time"] - past.start) // timedelta(days=1))
        assert row["batch"] == max(days, 0) + 1, row
    first = [row for row in rows if row["batch"] == 1]
    keys = [(row["group"], *map(row.get, ("partition", "aborted", "kind", "member_id"))) for row in first]
    assert len(set(keys)) == len(keys)
    assert GROUPS / 20 < len({row["group"] for row in first}) < GROUPS / 4
    assert max(row["record_time"] for row in rows) < past.read_at == past.end + timedelta(days=AFTER_DAYS)


def test_activity_takes_it(written: Written, spark: SparkSession) -> None:
    """`activity` and `coverage` are those of the pipeline, up to the last batch, and know every group."""
    activity, coverage = all_rows(spark, written.warehouse, ACTIVITY), COVERAGE.rows(written.warehouse)
    assert len(activity) == len({row["group"] for row in activity}) == GROUPS
    assert {row["group"] for row in activity if row["state"] == "Unknown"} == set()
    assert len(coverage) == LOG_PARTITIONS
    assert {(row["batch"], row["read_at"], row["complete_since"]) for row in coverage} == {
        (DAYS + AFTER_DAYS + 1, written.past.read_at, None)
    }
    ends: dict[int, int] = {}
    for row in [*written.commits, *written.states]:
        ends[row["log_partition"]] = max(ends.get(row["log_partition"], 0), row["log_offset"] + 1)
    assert {row["log_partition"]: row["covered_to"] for row in coverage} == ends


@pytest.mark.parametrize(
    ("pattern", "type_", "states"),
    [
        pytest.param(r"steady-classic-\d+", "Classic", ["Active"], id="steady-classic"),
        pytest.param(r"steady-consumer-\d+", "Consumer", ["Active"], id="steady-consumer"),
        pytest.param(r"assigned-\d+", "Classic", ["Empty"], id="assigned"),
        pytest.param(r"nightly-classic-\d+", "Classic", ["Empty", "Active"], id="nightly-classic"),
        pytest.param(r"nightly-consumer-\d+", "Consumer", ["Empty", "Active"], id="nightly-consumer"),
        pytest.param(r"seasonal-(classic|quiet)-\d+", "Classic", ["Empty", "Active"], id="seasonal-classic"),
        pytest.param(r"seasonal-(consumer|quiet-consumer)-\d+", "Consumer", ["Empty", "Active"], id="seasonal-kip-848"),
        pytest.param(r"seasonal-(simple|aborted|simple-aborted)-\d+", "Classic", ["Empty", "Active"], id="commits"),
        pytest.param(r"seasonal-reset-\d+", "Consumer", ["Empty", "Active"], id="seasonal-reset"),
        pytest.param(r"expired-(classic|simple)-\d+", "Classic", ["Gone", "Empty"], id="expired-classic"),
        pytest.param(r"expired-consumer-\d+", "Consumer", ["Gone", "Empty"], id="expired-consumer"),
        pytest.param(r"expired-\w+-then-simple-\d+", "Classic", ["Gone", "Empty"], id="expired-then-simple"),
        pytest.param(r"expired-(classic|simple)-then-joined-\d+", "Classic", ["Gone", "Empty"], id="expired-joined"),
        pytest.param(r"expired-classic-then-aborted-\d+", "Classic", ["Gone", "Empty"], id="expired-then-aborted"),
        pytest.param(r"edge-[a-z-]+-\d+", None, ["Empty"], id="edge"),
        pytest.param(r"perf-consumer-\d+", "Classic", ["Empty"], id="perf"),
        pytest.param(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "Consumer", ["Empty"], id="uuid"),
        pytest.param(r"preview-[0-9a-f]{8}-checkout", "Classic", ["Empty"], id="preview"),
        pytest.param(r"anonymous\.[0-9a-f-]{36}", "Classic", ["Empty"], id="anonymous"),
    ],
)
def test_kinds(written: Written, spark: SparkSession, pattern: str, type_: str | None, states: list[str]) -> None:
    """Each kind is there, of the type that its name says, and in these states; in the first one some are."""
    rows = ACTIVITY.read(spark, written.warehouse).where(F.col("group").rlike(f"^{pattern}$")).collect()
    found = {row.state for row in rows}
    assert states[0] in found
    assert found <= set(states)
    assert type_ is None or {row.type for row in rows} == {type_}


def test_most_groups_are_unused_and_live_for_minutes_once(written: Written) -> None:
    """About three quarters, of more groups; each is used within half an hour."""
    times: dict[str, list[datetime]] = {}
    for row in [*written.commits, *written.states]:
        times.setdefault(row["group"], []).append(row["record_time"])
    known = ("steady-", "assigned-", "nightly-", "seasonal-", "expired-", "edge-")
    unused = {group: seen for group, seen in times.items() if not group.startswith(known)}
    assert 0.65 < len(unused) / GROUPS < 0.8
    assert all(max(seen) - min(seen) <= timedelta(minutes=30) for seen in unused.values())


def test_what_is_written_is_the_same_each_time(written: Written, spark: SparkSession, warehouse: str) -> None:
    """Otherwise no two figures could be compared, and no wrong answer looked at again."""
    again = _written(spark, warehouse)
    assert again.commits == written.commits
    assert again.states == written.states
    assert _answers(again.past, RULE) == _answers(written.past, RULE)


@pytest.mark.parametrize(
    ("kind", "regrets"),
    [
        pytest.param("back-at", 0, id="back-when-it-would-be-deleted"),
        pytest.param("back-before", 0, id="back-a-millisecond-before"),
        pytest.param("back-after", 1, id="back-a-millisecond-after"),
        pytest.param("idle-at", 1, id="idle-for-exactly-long-enough"),
        pytest.param("idle-less", 0, id="idle-for-a-millisecond-less"),
        pytest.param("again-at", 1, id="the-second-time-back-when-it-would-be-deleted"),
        pytest.param("again-after", 2, id="the-second-time-back-a-millisecond-after"),
        pytest.param("again-idle-at", 2, id="the-second-time-idle-for-exactly-long-enough"),
        pytest.param("again-idle-less", 1, id="the-second-time-idle-for-a-millisecond-less"),
        pytest.param("gone-at", 0, id="dropped-by-kafka-when-it-would-be-deleted"),
        pytest.param("gone-after", 1, id="dropped-by-kafka-a-millisecond-after"),
    ],
)
def test_a_millisecond_decides(written: Written, kind: str, regrets: int) -> None:
    """Groups of each family lie exactly where the rule turns, on one side or the other."""
    counts: dict[str, int] = {}
    for group in {row["group"] for row in [*written.commits, *written.states]}:
        family, _, _ = group.removeprefix("edge-").rpartition("-")
        if group.startswith("edge-") and family.partition("-")[2] == kind:
            counts[group] = 0
    for group, _, _ in _answers(written.past, RULE)[1]:
        if group in counts:
            counts[group] += 1
    assert len(counts) == (4 if kind.startswith("gone") else 6)
    assert set(counts.values()) == {regrets}, counts


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("rule", "begin", "end"),
    [
        pytest.param(RULE, 0, 30, id="the-benchs"),
        pytest.param(RULE, 0, 35, id="up-to-the-last-read"),
        pytest.param(RULE, 3.3, 24.1, id="a-part-of-it"),
        pytest.param(Rule(48 * HOUR, 24 * HOUR, 120 * HOUR, 24 * HOUR), 0, 30, id="hasty"),
        pytest.param(Rule(100 * HOUR, 30 * HOUR, 130 * HOUR, 7 * HOUR), 0, 30, id="nothing-divides-by-the-step"),
        pytest.param(Rule(2 * HOUR, 60 * HOUR, 120 * HOUR, 24 * HOUR), 0, 30, id="used-and-idle-again-between-steps"),
        pytest.param(Rule(162 * HOUR, 4 * HOUR, 720 * HOUR, 4 * HOUR), 0, 30, id="until-kafka-drops-it"),
    ],
)
def test_the_answers_are_right(written: Written, rule: Rule, begin: float, end: float) -> None:
    """Whoever goes step by step, and at each reads all records up to then, comes to the same deletions and regrets."""
    start, last = (written.past.start + timedelta(days=days) for days in (begin, end))
    found = [
        deletion
        for group, records in _by_group(written).items()
        for deletion in _replayed(group, records, rule, start, last)
    ]
    deleted, regrets = written.past.deleted(*rule, start, last), written.past.regrets(*rule, start, last)
    assert deleted == {(group, at) for group, at, _ in found}
    assert regrets == {(group, at, back) for group, at, back in found if back is not None}
    assert len(deleted) > len(regrets) > 10


def _answers(past: Past, rule: Rule) -> tuple[set[Any], set[Any]]:
    return past.deleted(*rule, past.start, past.end), past.regrets(*rule, past.start, past.end)


def _by_group(written: Written) -> Mapping[str, Sequence[Row]]:
    rows = sorted([*written.commits, *written.states], key=lambda row: (row["group"], row["log_offset"]))
    return {group: list(records) for group, records in itertools.groupby(rows, key=lambda row: row["group"])}


@dataclass
class _Seen:
    """What records say of one group. since: when it became Empty; None = nobody ever joined it, or members are in."""

    there: bool = False
    members: int = 0
    since: datetime | None = None
    committed: datetime | None = None
    partitions: set[int] = field(default_factory=set)
    joined: bool = False

    def read(self, row: Row) -> None:
        kind, time = row.get("kind"), row["record_time"]
        if kind is None and row["committed_offset"] is None:
            self.partitions.discard(row["partition"])
            self.there = self.there and (self.joined or bool(self.partitions))
        elif kind is None:
            self.committed = max(self.committed or time, time)
            if not row["aborted"]:
                self.there = True
                self.partitions.add(row["partition"])
        elif kind == "consumer-member":
            self.count(0 if row["gone"] else 1, time)
        elif row["gone"]:
            self.there = self.joined = False
            self.since = None
        elif kind == "classic":
            self.count(row["members"], time)
        else:
            # Of the first read, it may be all that is left of a group.
            self.count(self.members, time)

    def count(self, members: int, time: datetime) -> None:
        self.there = self.joined = True
        self.members = members
        self.since = None if members else time

    def idle_since(self) -> datetime | None:
        """None = it is in use, or not there."""
        if not self.there or self.members:
            return None
        return max(moment for moment in (self.since, self.committed) if moment is not None)


def _alive(row: Row) -> bool:
    if row.get("kind") is None:
        return row["committed_offset"] is not None
    return bool(row["members"]) or (row["kind"] == "consumer-member" and not row["gone"])


def _replayed(
    group: str, records: Sequence[Row], rule: Rule, start: datetime, end: datetime
) -> Iterator[tuple[str, datetime, datetime | None]]:
    """(group, deleted at, came back at), as the operator would have it: a run each step, and a memory of its own."""
    marked: datetime | None = None
    deleted: datetime | None = None
    now = start
    while now <= end:
        seen = _Seen()
        for row in records:
            if row["record_time"] <= now:
                seen.read(row)
        idle_since = seen.idle_since()
        matches = idle_since is not None and now - idle_since >= rule.idle_for
        if deleted is not None:
            back = any(_alive(row) and deleted < row["record_time"] <= now for row in records)
            matches = matches and back and now >= deleted + rule.backup_retention
        marked = (marked or now) if matches else None
        if marked is not None and now >= marked + rule.grace:
            later = [row["record_time"] for row in records if _alive(row) and row["record_time"] > now]
            yield group, now, min(later, default=None)
            deleted, marked = now, None
        now += rule.step


def _of(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + milliseconds * MS
