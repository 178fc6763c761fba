"""What a report tells of a cluster: each of its sections from real tables, with answers that are known."""

from __future__ import annotations

import csv
import random
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from group_hygiene.errors import PipelineError
from group_hygiene.evidence.reader import CoveredPartition, Tables, _activity
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.model.evidence import Commits
from group_hygiene.model.groups import GroupType
from group_hygiene.observe.findings import DayCounts, Findings, GroupRow, Share, StaleTopic, Unit
from group_hygiene.pipeline import survey as surveying
from group_hygiene.pipeline.survey import known, survey
from group_hygiene.pipeline.tables import ACTIVITY, COVERAGE, Place, Progress
from group_hygiene.spec.connection import ActivitySpec, GroupOwner, Owners
from group_hygiene.spec.patterns import Patterns, TenantPatterns
from tests.spark.bronze import all_rows, replace
from tests.spark.histories import START, Bronze, Event, classic, client, commit, epoch, member, moment, state, wiped

DAY = 86_400
# As histories have it: when the log was read.
READ_AT = START + timedelta(days=1)
RETENTION = timedelta(days=14)


def ago(days: float = 0, hours: float = 0) -> float:
    """The second of the histories that lies so long before the log was read."""
    return DAY - days * DAY - hours * 3600


def at(days: float = 0, hours: float = 0) -> datetime:
    return moment(ago(days, hours))


def left(commits: float, leaves: float) -> list[Event]:
    """A Classic group that committed and was left so many days ago."""
    return [classic(ago(commits + 1), 1), commit(ago(commits)), classic(ago(leaves), 0)]


def _words(count: int) -> list[str]:
    return [f"job-{letter * 3}" for letter in "abcdefghij"[:count]]


def _numbered(count: int) -> list[str]:
    return [f"job-{letter}{letter}7" for letter in "abcdefghijklmnopqrstuvwxyzABCDEF"[:count]]


def gone(days: float) -> list[Event]:
    return [*left(days + 2, days + 1), wiped(ago(days)), state(ago(days), "classic", gone=True)]


def ingest(
    spark: SparkSession, warehouse: str, *partitions: Mapping[str, Sequence[Event]], **changes: Mapping[int, Any]
) -> None:
    """Histories, by group, of each partition of the log; changes: what else `coverage` says, by column."""
    bronze = Bronze(spark, warehouse)
    bronze.partitions = len(partitions)
    for partition, groups in enumerate(partitions):
        bronze.write(groups, log_partition=partition)
    rows = sorted(COVERAGE.rows(warehouse), key=lambda row: row["log_partition"])
    for column, values in changes.items():
        for partition, value in values.items():
            rows[partition][column] = value
    COVERAGE.overwrite(warehouse, rows, COVERAGE.version(warehouse))


GROUPS: dict[str, list[Event]] = {
    "left": [left(15, 10)[0] | {"clients": [client("b"), client("a")]}, *left(15, 10)[1:]],
    "simple": [commit(ago(13)), commit(ago(12), partition=1), commit(ago(12), partition=2, topic="billing")],
    "in-use": [classic(ago(3), 2), commit(ago(hours=0.5))],
    "consumer-left": [
        *(member(ago(9), "a"), epoch(ago(9)), commit(ago(8)), member(ago(2), "a", gone=True), epoch(ago(2))),
    ],
    "consumer-in-use": [member(ago(9), "a"), epoch(ago(9)), commit(ago(8))],
    "never": [classic(ago(5), 1), classic(ago(4), 0)],
    "unknown": [commit(ago(1.5), aborted=True)],
    "simple-in-use": [commit(ago(hours=2))],
    "overdue": left(20, 16),
    "due-just-now": left(20, 14.5),
    "gone": gone(3),
}


@pytest.fixture(scope="module")
def findings(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """GROUPS, as they are told."""
    warehouse = str(tmp_path_factory.mktemp("findings"))
    ingest(spark, warehouse, GROUPS)
    return survey(spark, warehouse, RETENTION)


def row(findings: Findings, group: str) -> GroupRow:
    (found,) = (row for row in findings.rows if row.group == group)
    return found


def test_as_of_when(findings: Findings) -> None:
    """It says whose groups these are, and as of when; what others fill in is left empty."""
    assert (findings.cluster_id, findings.read_at, findings.retention) == ("cluster", READ_AT, RETENTION)
    assert (findings.began, findings.suggestions) == (None, ())


def test_counts(findings: Findings) -> None:
    """Every existing group is counted once, with its offsets; a group that is gone is not."""
    assert findings.groups == findings.listed == len(GROUPS) - 1
    assert findings.idle == sum(unit.idle for unit in findings.units) == 4
    assert findings.offsets == sum(row.partitions for row in findings.rows)
    # left, overdue and due-just-now share their partition with groups in use; billing's is simple's alone.
    assert (findings.idle_offsets, findings.left) == (6, 2)
    assert findings.topics == [Share("orders", 5, 9), Share("billing", 1, 1)]


def test_rows(findings: Findings) -> None:
    """Unused groups come first, the longest idle before others; then groups in use, and those that may be."""
    assert [row.group for row in findings.rows] == [
        *("overdue", "due-just-now", "simple", "left", "never", "consumer-left", "simple-in-use"),
        *("consumer-in-use", "unknown", "in-use"),
    ]
    assert row(findings, "simple") == GroupRow(
        group="simple",
        pattern="",
        owner="",
        program="",
        type="Classic",
        state="Empty",
        last_commit=at(12),
        idle_since=at(12),
        expires=at(-1),
        topics=2,
        partitions=3,
        behind=0,
    )
    assert row(findings, "left").last_client == "client 'a' from 10.1.2.3 and 1 more"
    unused = row(findings, "never")
    assert (unused.last_commit, unused.idle_since, unused.expires) == (None, at(4), None)
    assert (unused.topics, unused.behind) == (0, None)


def test_the_list_has_all_groups(findings: Findings) -> None:
    """As CSV, longest idle first, with a client id; unknown times are empty."""
    head, *rows = csv.reader(findings.listing.decode().splitlines())
    listed = [dict(zip(head, row, strict=True)) for row in rows]
    assert {row["group"] for row in listed} == GROUPS.keys() - {"gone"}
    assert listed[0]["group"] == "overdue"
    (left,) = (row for row in listed if row["group"] == "left")
    assert (left["last_client_id"], left["state"], left["partitions"]) == ("a", "Empty", "1")
    assert left["idle_since"].startswith(f"{at(10):%Y-%m-%d %H:%M:%S}")
    assert listed[-1]["idle_since"] == ""


def test_no_name_is_a_formula_of_a_spreadsheet(spark: SparkSession, warehouse: str) -> None:
    """In the list, such a name begins with a quote."""
    names = ["=1+1", "+a", "-a", "@a", "\ta", "\uff1da", "a=b"]
    ingest(spark, warehouse, {name: left(9, 8) for name in names})
    _, *rows = csv.reader(survey(spark, warehouse, RETENTION).listing.decode().splitlines())
    assert {row[0] for row in rows} == {"'=1+1", "'+a", "'-a", "'@a", "'\ta", "'\uff1da", "a=b"}


def test_expiring(findings: Findings) -> None:
    """By day, the groups that lose their first offsets then; not who is in use, or has time yet, or is late."""
    assert findings.expiring == {
        at(0).date(): 1,
        at(-1).date(): 1,
        at(-4).date(): 1,
        at(-6).date(): 1,
    }


def test_invalid_options(findings: Findings) -> None:
    """Each mistake is said in a sentence: a type that is not known, a retention that can't be the right one."""
    assert len(findings.notes) == 2
    assert "too few records to know the type of 1 group:" in findings.notes[0]
    assert "1 group should have lost offsets" in findings.notes[1]


def moments(made: random.Random) -> datetime | None:
    return made.choice([None, *(READ_AT - timedelta(hours=hours, milliseconds=hours) for hours in range(6))])


_TIMES = ("first_seen", "last_commit", "oldest_commit", "empty_since", "last_commit_after", "state_after")


def test_idle_and_expiring_as_the_model_has_it(spark: SparkSession) -> None:
    """Of every row that may be, each combination of its times and kinds: what the operator would decide by."""
    made = random.Random(1)
    covered = {partition: CoveredPartition("topic", 1, READ_AT, moments(made)) for partition in range(20)}
    places = {p: Place(1, READ_AT, place.complete_since, READ_AT) for p, place in covered.items()}
    progress = Progress("cluster", "topic", 0, 1, places | {20: Place(1)})
    rows = [
        {
            "group": str(number),
            "type": made.choice([it.value for it in GroupType]),
            "protocol_type": made.choice([None, "", "consumer", "connect"]),
            "state": made.choice(["Empty", "Active", "Gone", "Unknown"]),
            "log_partition": made.randrange(22),
        }
        | {name: moments(made) for name in _TIMES}
        for number in range(5_000)
    ]
    retention = timedelta(minutes=10_080)
    fields = {"log_partition": pa.int32()}
    times = pa.timestamp("us", "UTC")
    schema = pa.schema(
        [(name, fields.get(name, pa.string() if name in ("group", "type", "protocol_type", "state") else times))
         for name in rows[0]]
    )  # fmt: skip
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema))
    found = {row["group"]: row for row in known(frame, progress, retention).toArrow().to_pylist()}
    assert len(found) == len(rows)
    for each in rows:
        judged = found[each["group"]]
        if each["log_partition"] not in covered:
            assert (judged["covered"], judged["idle_since"], judged["expires"]) == (False, None, None)
            continue
        model = _activity(each | {"last_clients": None, "last_clients_at": None}, covered)
        expected = (True, model.simple, model.idle_since, model.first_expiry(retention))
        assert (judged["covered"], judged["simple"], judged["idle_since"], judged["expires"]) == expected, each


def _placed(name: str, partition: int) -> str:
    """A group of this name whose partition of three is that one."""
    return next(group for n in range(100) if partition_of(group := f"{name}-{n}", 3) == partition)


def test_rows_as_the_operator_reads_the_tables(spark: SparkSession, warehouse: str) -> None:
    """Of real tables, through the operator's own reader: the same times; of the last partition, none."""
    parts = [{_placed(name, index): events for name, events in GROUPS.items()} for index in range(3)]
    ingest(spark, warehouse, *parts, complete_since={1: at(5)}, read_at={0: at(hours=1), 2: None})
    findings = survey(spark, warehouse, RETENTION)
    names = {row.group for row in findings.rows}
    assert names == {_placed(name, index) for name in GROUPS for index in range(3) if name != "gone"}
    reading = Tables(ActivitySpec(warehouse)).read(names, 60, older=at(7))
    operators = reading.groups  # type: ignore[union-attr]
    assert len(operators) == 2 * (len(GROUPS) - 1)
    by_topic = {name: found.by_topic for name, found in operators.items() if found.by_topic is not None}
    assert by_topic == {_placed("consumer-in-use", index): {"orders": Commits(at(8), at(8))} for index in (0, 1)}
    for each in findings.rows:
        model = operators.get(each.group)
        times = (model.idle_since, model.first_expiry(RETENTION)) if model else (None, None)
        assert (each.idle_since, each.expires) == times, each.group
    assert findings.read_at == READ_AT
    unread, lost, unknown, overdue = findings.notes
    assert unread.startswith("1 of the 3 partitions")
    assert f"the idle time of {len(GROUPS) - 1} groups is unknown" in unread
    assert "In 1 partitions" in lost
    assert f"{at(5):%Y-%m-%d %H:%M:%S} UTC" in lost
    assert "3 groups" in unknown
    assert "2 groups" in overdue


def test_a_partition_that_was_read_long_before_the_others(spark: SparkSession, warehouse: str) -> None:
    """Its groups may have been used since, which nobody else would say."""
    ingest(spark, warehouse, {"b": left(9, 8)}, {"a": left(9, 8)}, read_at={0: at(3)})
    (note,) = survey(spark, warehouse, RETENTION).notes
    assert note.startswith("1 partitions")
    assert f"{at(3):%Y-%m-%d %H:%M:%S} UTC" in note


def test_behind(spark: SparkSession, warehouse: str) -> None:
    """How far others are ahead on its own partitions: nothing of what nobody else reads, and None if that is all."""
    groups = {
        "front": [commit(1, 100, 0), commit(1, 50, 1)],
        "back": [commit(2, 40, 0), commit(2, 20, 1), commit(2, 1_000, 0, topic="mine")],
        "beside": [commit(3, 100, 0), commit(3, 7, 0, topic="others")],
        "alone": [commit(4, 5, 0, topic="nobody")],
        "without": [classic(1, 1), classic(2, 0)],
        "after-one-that-is-gone": [commit(5, 30, 0, topic="left")],
        "gone": [classic(1, 1), commit(2, 70, topic="left"), classic(3, 0), state(4, "classic", gone=True)],
        "active": [classic(1, 1), commit(2, 90, 0)],
        "was-further": [commit(6, 200, 1), commit(7, 45, 1)],
    }
    ingest(spark, warehouse, groups)
    findings = survey(spark, warehouse, RETENTION)
    assert {row.group: row.behind for row in findings.rows} == {
        "front": 0,
        "back": 90,
        "beside": 0,
        "alone": None,
        "without": None,
        "after-one-that-is-gone": 40,
        "active": 10,
        "was-further": 5,
    }


def test_stale_topics(spark: SparkSession, warehouse: str) -> None:
    """Who is in use, and left a topic alone for a week; not who left all of them, is gone, or reads a part of it."""

    def old(days: float, partition: int = 0, topic: str = "old") -> Event:
        return commit(ago(days), 1, partition, topic=topic)

    groups = {
        "two-topics": [classic(ago(40), 1), old(20), old(9, 1), old(30, 0, "older"), commit(ago(0.5))],
        "simple": [old(7), commit(ago(6.9))],
        "a-part-of-it": [old(20), old(6, 1), commit(ago(1))],
        "not-for-a-week": [old(6.99), commit(ago(1))],
        "all-of-them": [old(20), commit(ago(7))],
        "gone": [classic(ago(30), 1), old(20), commit(ago(1)), classic(ago(0.5), 0), state(ago(0.4), "classic", True)],
        "its-offset-is-gone": [old(20), commit(ago(2), None, topic="old"), commit(ago(1))],
    }
    ingest(spark, warehouse, groups)
    findings = survey(spark, warehouse, RETENTION)
    assert findings.stale == [
        StaleTopic("two-topics", "older", 1, at(30), at(0.5)),
        StaleTopic("two-topics", "old", 2, at(9), at(0.5)),
        StaleTopic("simple", "old", 1, at(7), at(6.9)),
    ]
    assert (findings.stale_total, findings.stale_topics) == (3, 2)


def test_units(spark: SparkSession, warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By pattern, owner and program, with groups that are gone; most idle offsets first, then most groups."""
    monkeypatch.setattr(surveying, "_UNITS", 4)
    groups = {
        "perf-consumer-10001": left(9, 8),
        "perf-consumer-10002": [*left(8, 7), commit(ago(9), partition=3)],
        "perf-consumer-10003": gone(8),
        "perf-consumer-10004": [commit(ago(6))],
        "job-20260101-a": gone(1),
        "job-20260102-a": gone(2),
        "b": left(2, 1),
        "a": left(20, 19),
        "c-of-another": [commit(ago(2)), wiped(ago(1))],
    }
    ingest(spark, warehouse, groups)
    owners = Owners(
        [
            GroupOwner(name="load", groups=TenantPatterns(["perf-*"])),
            GroupOwner(name="{namespace}", groups=TenantPatterns(["c-of-{namespace}"])),
        ]
    )
    findings = survey(spark, warehouse, RETENTION, owners)
    day = READ_AT.date()

    def days(*counts: tuple[int, int]) -> dict[date, int]:
        return {day - timedelta(days=before): groups for before, groups in counts}

    perf, single, jobs, others = findings.units
    assert perf == Unit(
        pattern="perf-consumer-{digits}",
        owner="load",
        program="kafka-consumer-perf-test",
        seen=4,
        groups=3,
        idle=2,
        offsets=4,
        idle_offsets=3,
        idle_since=at(8),
        came=1,
        went=0,
        cleaned=0,
        new=days((11, 1), (10, 1), (9, 1), (6, 1)),
        made=True,
    )
    assert list(perf.new) == sorted(perf.new)
    assert (single.key, single.groups, single.idle, single.made) == (("", "", ""), 2, 1, False)
    assert (jobs.pattern, jobs.seen, jobs.groups, jobs.went) == ("job-{date}-a", 2, 0, 2)
    assert (others.key, others.groups) == (("", "another", ""), 0)
    assert [row.unit for row in findings.rows if row.group.startswith("perf")] == 3 * [perf.key]
    assert findings.others == 0
    assert findings.owners == [Share("load", 2, 3), Share("", 1, 2)]


def test_what_came_and_went(spark: SparkSession, warehouse: str) -> None:
    """Since a time; a group that went before its offsets could expire was deleted by a client."""
    groups = {
        "old": left(9, 8),
        "new": left(2, 1),
        "expired": [commit(ago(20)), wiped(ago(5))],
        "deleted": [commit(ago(8)), wiped(ago(5))],
        "deleted-before": [commit(ago(12)), wiped(ago(10))],
    }
    ingest(spark, warehouse, groups)
    findings = survey(spark, warehouse, RETENTION)
    assert (findings.since, findings.came, findings.went, findings.cleaned) == (at(7), 1, 2, 1)
    findings = survey(spark, warehouse, RETENTION, since=at(11))
    assert (findings.since, findings.came, findings.went, findings.cleaned) == (at(11), 3, 3, 2)


def test_groups_by_day(spark: SparkSession, warehouse: str) -> None:
    """Each day since the first: those that existed, and of these, those whose last use was 7 days before or earlier."""
    groups = {"a": [commit(ago(12))], "b": [commit(ago(11))], "c": [commit(ago(10)), wiped(ago(2))]}
    ingest(spark, warehouse, groups)
    counts = [(1, 0), (2, 0), *5 * [(3, 0)], (3, 1), (3, 2), (3, 3), (2, 2), (2, 2), (2, 2)]
    first = at(12).date()
    expected = [DayCounts(first + timedelta(days=n), *count) for n, count in enumerate(counts)]
    assert survey(spark, warehouse, RETENTION).days == expected


def test_committers(spark: SparkSession, warehouse: str) -> None:
    """The most commits of the last 7 days first; not those of earlier days, nor of groups that are gone."""
    groups = {
        "busy": [commit(ago(3, hours=n)) for n in range(5)],
        "was-busy": [*(commit(ago(9, hours=n)) for n in range(9)), commit(ago(1))],
        "gone": [*(commit(ago(3, hours=n)) for n in range(9)), wiped(ago(1))],
        "quiet": left(20, 10),
    }
    ingest(spark, warehouse, groups)
    assert survey(spark, warehouse, RETENTION).committers == [("busy", 5), ("was-busy", 1)]


UUIDS = [f"{n:08x}-{n * 7:04x}-4a4a-bbbb-{n * 99:012x}" for n in range(1, 5)]


@pytest.mark.parametrize(
    ("names", "pattern", "made"),
    [
        pytest.param([f"run-{number}" for number in range(10_000, 10_010)], "run-{digits}", True, id="numbers"),
        pytest.param([f"svc-{letter * 3}" for letter in "abcdefghijklmnopqrstuv"], "svc-*", False, id="words"),
        pytest.param([f"v2-{letter * 3}" for letter in "abcdefghijklmnopqrstuv"], "v2-*", False, id="words-behind-2"),
        # 28 of 35, and of one more.
        pytest.param([*_words(7), *_numbered(28)], "job-*", True, id="80-percent"),
        pytest.param([*_words(8), *_numbered(28)], "job-*", False, id="less"),
        pytest.param(["billing-3"], "", False, id="alone"),
        pytest.param([f"anonymous.{it}" for it in UUIDS], "anonymous.{uuid}", True, id="uuids"),
        pytest.param(
            [f"a-{it}-of-{n}0000-b" for n, it in enumerate(UUIDS, 1)], "a-{uuid}-of-{digits}-b", True, id="two"
        ),
        pytest.param([f"load-{'0a1b2c3d4e'[n:]}f9" for n in range(3)], "load-{hex}", True, id="hex"),
        pytest.param([f"day-2026-01-{n:02}.x" for n in range(1, 5)], "day-{date}.x", True, id="dates"),
        pytest.param([f"n{number}\\5" for number in range(10_000, 10_003)], "n{digits}\\\\5", True, id="escaped"),
        pytest.param(["run-10001", "run-10002", "run-20260101T1200"], "run-*", True, id="one-does-not-fit"),
    ],
)
def test_names_that_a_program_made(
    spark: SparkSession, warehouse: str, names: Sequence[str], pattern: str, made: bool
) -> None:
    """Nearly all have digits where the star is; digits that the pattern has too are no sign of it.

    A placeholder is in place of the star if all names fit: the pattern still matches them all.
    """
    ingest(spark, warehouse, {name: left(9, 8) for name in names})
    (found,) = survey(spark, warehouse, RETENTION).units
    assert (found.pattern, found.seen, found.made) == (pattern, len(names), made)
    assert not pattern or all(map(Patterns([pattern]).matches, names))


def test_a_share_for_each(spark: SparkSession, warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is no room for all: some of each unit, and only then the longest idle."""
    for name, value in {"_ROWS": 4, "_SHARE": 2}.items():
        monkeypatch.setattr(surveying, name, value)
    groups = {
        **{f"leftover-{number}": left(200, 100) for number in range(10_000, 10_030)},
        "one": left(30, 20),
        "other": left(30, 19),
        "active": [classic(ago(3), 1), commit(ago(2))],
    }
    ingest(spark, warehouse, groups)
    rows = [row.group for row in survey(spark, warehouse, RETENTION).rows]
    assert rows == ["leftover-10000", "leftover-10001", "one", "other"]
    monkeypatch.setattr(surveying, "_ROWS", 100)
    rows = [row.group for row in survey(spark, warehouse, RETENTION).rows]
    assert len(rows) == len(groups)
    assert rows[:3] == ["leftover-10000", "leftover-10001", "leftover-10002"]
    assert rows[-1] == "active"


def test_all_the_same_to_the_second(spark: SparkSession, warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is the same each time: what is alike in all else goes by its name, and the cut does too."""
    monkeypatch.setattr(surveying, "_ROWS", 3)
    monkeypatch.setattr(surveying, "_STALE", 2)
    alike = [commit(ago(20), topic="old"), commit(ago(1))]
    ingest(spark, warehouse, {name: alike for name in ("d", "b", "e", "a", "c")})
    findings = survey(spark, warehouse, RETENTION)
    assert [row.group for row in findings.rows] == ["a", "b", "c"]
    assert [stale.group for stale in findings.stale] == ["a", "b"]
    assert findings.stale_total == 5


def test_everything_is_gone(spark: SparkSession, warehouse: str) -> None:
    """Nothing is there, and what was is told."""
    ingest(spark, warehouse, {"x-10001": gone(2), "x-10002": gone(1)})
    findings = survey(spark, warehouse, RETENTION)
    assert (findings.groups, findings.listed, findings.rows, findings.expiring) == (0, 0, [], {})
    assert [(it.pattern, it.seen, it.groups) for it in findings.units] == [("x-{digits}", 2, 0)]
    assert (findings.stale, findings.stale_total, findings.notes) == ([], 0, [])


def test_while_a_run_is_under_way(spark: SparkSession, warehouse: str) -> None:
    """What is in `activity` and not in `coverage` yet is later than the moment that all of this is as of."""
    ingest(spark, warehouse, {"a": left(9, 8)})
    rows = COVERAGE.rows(warehouse)
    before = survey(spark, warehouse, RETENTION)
    row = all_rows(spark, warehouse, ACTIVITY)[0] | {"group": "b", "commits_by_day": {}}
    replace(spark, warehouse, ACTIVITY, [row])
    assert [row.group for row in survey(spark, warehouse, RETENTION).rows] == ["a"]
    assert survey(spark, warehouse, RETENTION) == before
    # An older one, or another, is not what was read.
    COVERAGE.overwrite(warehouse, [each | {"activity_version": 9} for each in rows], COVERAGE.version(warehouse))
    with pytest.raises(PipelineError, match="coverage names version 9"):
        survey(spark, warehouse, RETENTION)
    COVERAGE.overwrite(warehouse, [each | {"activity_id": "other"} for each in rows], COVERAGE.version(warehouse))
    with pytest.raises(PipelineError, match="the next run of the pipeline corrects that"):
        survey(spark, warehouse, RETENTION)


def test_nothing_to_tell_of(spark: SparkSession, warehouse: str) -> None:
    """Each step that is missing is said, and what to do about it."""
    with pytest.raises(PipelineError, match=r"there are no tables at .* yet: run `group-hygiene pipeline run` first"):
        survey(spark, warehouse, RETENTION)
    Bronze(spark, warehouse).finish()
    with pytest.raises(PipelineError, match="the tables hold no group yet"):
        survey(spark, warehouse, RETENTION)
    rows = COVERAGE.rows(warehouse)
    COVERAGE.overwrite(warehouse, [row | {"read_at": None} for row in rows], COVERAGE.version(warehouse))
    with pytest.raises(PipelineError, match="never read to its end yet"):
        survey(spark, warehouse, RETENTION)
    COVERAGE.overwrite(warehouse, [], COVERAGE.version(warehouse))
    with pytest.raises(PipelineError, match="the tables cover nothing yet"):
        survey(spark, warehouse, RETENTION)
    shutil.rmtree(ACTIVITY.path(warehouse))
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    with pytest.raises(PipelineError, match=r"there are no tables at .* yet"):
        survey(spark, warehouse, RETENTION)


def test_a_group_is_idle_by_the_read_of_its_partition(spark: SparkSession, warehouse: str) -> None:
    """Not by that of another one, which was read later: until then it may have been used again."""
    ingest(
        spark,
        warehouse,
        {"fresh": left(9, 8)},
        {"unread": left(8, 7.5), "longer": left(9, 8)},
        read_at={1: READ_AT - timedelta(hours=20)},
    )
    findings = survey(spark, warehouse, RETENTION)
    assert findings.idle == findings.days[-1].idle == len(["fresh", "longer"])


def test_nothing_stays_in_memory(spark: SparkSession, warehouse: str) -> None:
    """What it held for itself is let go, also where it fails."""
    ingest(spark, warehouse, {"a": left(9, 8)})
    survey(spark, warehouse, RETENTION)
    replace(spark, warehouse, ACTIVITY, [])
    version = ACTIVITY.version(warehouse)
    COVERAGE.overwrite(
        warehouse,
        [row | {"activity_version": version} for row in COVERAGE.rows(warehouse)],
        COVERAGE.version(warehouse),
    )
    with pytest.raises(PipelineError, match="no group"):
        survey(spark, warehouse, RETENTION)
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()


def test_times_are_in_utc(findings: Findings) -> None:
    """Whatever this machine's time zone is."""
    times = [
        time for row in findings.rows for time in (row.last_commit, row.idle_since, row.expires) if time is not None
    ]
    assert {time.utcoffset() for time in [findings.read_at, *times]} == {timedelta()}
    assert findings.read_at.tzinfo is UTC
