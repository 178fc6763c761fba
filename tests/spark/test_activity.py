"""What becomes of a group's records in `activity`: all at once, in any two parts, and taken in twice."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from deltalake import DeltaTable as Reader
from deltalake import QueryBuilder
from pyspark.sql import SparkSession

from group_hygiene.errors import PipelineError
from group_hygiene.pipeline.activity import update
from group_hygiene.pipeline.tables import ACTIVITY, COVERAGE
from tests.spark.histories import Bronze, Event, classic, commit, epoch, member, moment, state, wiped

Rows = dict[str, dict[str, Any]]


class History(NamedTuple):
    """Records of one group, and what its row must say then."""

    events: list[Event]
    row: dict[str, Any]


SIMPLE = {"type": "Classic", "protocol_type": "", "state": "Empty", "empty_since": None, "state_since": None}
CLASSIC = {"type": "Classic", "protocol_type": "consumer"}
CONSUMER = {"type": "Consumer", "protocol_type": "consumer"}


def empty(second: float) -> dict[str, Any]:
    return {"state": "Empty", "empty_since": moment(second), "state_since": moment(second), "members": []}


def active(*members: str) -> dict[str, Any]:
    return {"state": "Active", "empty_since": None, "members": list(members)}


def gone(second: float) -> dict[str, Any]:
    return {"state": "Gone", "empty_since": None, "tombstoned_at": moment(second)}


HISTORIES = {
    "simple": History(
        [commit(1, 5), commit(2, 6, 1), commit(3, 4)],
        SIMPLE
        | {"first_commit": moment(1), "last_commit": moment(3), "oldest_commit": moment(2), "commits_30d": 3}
        | {"first_seen": moment(1.1), "offsets": {0: 4, 1: 6}, "partitions": 2, "topics": 1, "tombstoned_at": None},
    ),
    "same-offset-again": History(
        [commit(second, 7) for second in range(1, 6)],
        SIMPLE
        | {"first_commit": moment(1), "last_commit": moment(5), "oldest_commit": moment(5), "commits_1d": 0}
        # The day of these commits is the one before the day of the last look.
        | {"commits_7d": 5, "offsets": {0: 7}},
    ),
    "one-partition-expired": History(
        [commit(1, 5), commit(2, 6, 1), wiped(9)],
        SIMPLE | {"offsets": {1: 6}, "last_commit": moment(2), "oldest_commit": moment(2), "tombstoned_at": None},
    ),
    "simple-all-expired": History(
        [commit(1, 5), commit(2, 6, 1), wiped(9), wiped(10, 1)],
        gone(10.1) | {"type": "Classic", "protocol_type": "", "last_commit": moment(2), "offsets": {}, "topics": 0},
    ),
    "simple-expired-and-back": History(
        [commit(1), wiped(9), commit(11, 8)],
        SIMPLE | {"offsets": {0: 8}, "first_commit": moment(1), "last_commit": moment(11)},
    ),
    "simple-deleted": History(
        [commit(1), wiped(9), state(9.5, "classic", gone=True)],
        gone(9.5) | {"type": "Classic", "protocol_type": "", "offsets": {}},
    ),
    "only-tombstones-left": History([wiped(9)], gone(9.1) | {"type": "Unknown", "last_commit": None}),
    "only-aborted": History(
        [commit(1, aborted=True)],
        {"type": "Unknown", "state": "Unknown", "last_commit": moment(1), "offsets": {}, "empty_since": None},
    ),
    "aborted-is-activity-only": History(
        [commit(1, 5), commit(8, 9, aborted=True)],
        SIMPLE | {"offsets": {0: 5}, "last_commit": moment(8), "oldest_commit": moment(1), "commits_30d": 2},
    ),
    "classic-in-use": History(
        [classic(1, 0, ""), classic(2, 2), commit(3)], CLASSIC | active() | {"first_seen": moment(2)}
    ),
    "classic-left": History(
        [classic(1, 1), commit(2), classic(5, 0)], CLASSIC | empty(5) | {"last_commit": moment(2), "offsets": {0: 1}}
    ),
    "classic-left-then-commits-alone": History(
        [classic(1, 1), classic(5, 0), commit(9)], CLASSIC | empty(5) | {"last_commit": moment(9)}
    ),
    "classic-without-its-time": History([classic(1, 1), classic(5, 0) | {"state_ms": None}], CLASSIC | empty(6)),
    "classic-came-back": History([classic(1, 1), classic(5, 0), classic(9, 1)], CLASSIC | active()),
    "classic-not-joined-yet": History(
        [commit(1), classic(2, 0, "")], SIMPLE | {"state_since": moment(2), "last_commit": moment(1)}
    ),
    "classic-offsets-expired": History([classic(1, 1), commit(2), classic(5, 0), wiped(9)], CLASSIC | empty(5)),
    "classic-deleted": History(
        [classic(1, 1), commit(2), classic(5, 0), wiped(9), state(9.5, "classic", gone=True)],
        CLASSIC | gone(9.5) | {"last_commit": moment(2), "offsets": {}},
    ),
    "classic-deleted-then-commits-alone": History(
        [classic(1, 1), classic(5, 0), state(9, "classic", gone=True), commit(11)],
        SIMPLE | {"tombstoned_at": moment(9), "last_commit": moment(11)},
    ),
    "classic-deleted-then-joined": History(
        [classic(1, 1), classic(5, 0), state(9, "classic", gone=True), classic(11, 0, ""), classic(12, 1)],
        CLASSIC | active() | {"tombstoned_at": moment(9)},
    ),
    "only-the-end-left": History(
        [state(9, "classic", gone=True)], gone(9) | {"type": "Unknown", "protocol_type": None}
    ),
    "consumer-in-use": History([member(1, "b"), member(1, "a"), epoch(1), commit(2)], CONSUMER | active("a", "b")),
    "consumer-one-left": History(
        [member(1, "a"), member(1, "b"), epoch(1), member(5, "a", gone=True), epoch(5)], CONSUMER | active("b")
    ),
    "consumer-left": History(
        [member(1, "a"), epoch(1), commit(2), member(5, "a", gone=True), epoch(5.001), commit(9)],
        CONSUMER | empty(5.001) | {"last_commit": moment(9)},
    ),
    "consumer-left-long-ago": History([epoch(5), commit(2)], CONSUMER | empty(5)),
    "consumer-came-back": History(
        [member(1, "a"), epoch(1), member(5, "a", gone=True), epoch(5), member(9, "a"), epoch(9)],
        CONSUMER | active("a"),
    ),
    "consumer-deleted": History(
        [member(1, "a"), epoch(1), member(5, "a", gone=True), epoch(5), state(9, "consumer-epoch", gone=True)],
        CONSUMER | gone(9),
    ),
    "consumer-deleted-and-back": History(
        [epoch(5), state(9, "consumer-epoch", gone=True), member(11, "z"), epoch(11)],
        CONSUMER | active("z") | {"tombstoned_at": moment(9)},
    ),
    "member-whose-end-was-compacted-away": History(
        [member(1, "a"), epoch(1), state(9, "consumer-epoch", gone=True), epoch(11)], CONSUMER | empty(11)
    ),
    "classic-becomes-consumer": History(
        [classic(1, 1), state(5, "classic", gone=True), member(5, "a"), epoch(5)], CONSUMER | active("a")
    ),
    "consumer-becomes-classic": History(
        [member(1, "a"), epoch(1), member(5, "a", gone=True), state(5, "consumer-epoch", gone=True), classic(5, 1)],
        CLASSIC | active(),
    ),
    "share": History(
        [
            member(1, "a", family="share"),
            epoch(1, "share"),
            member(5, "a", gone=True, family="share"),
            epoch(5, "share"),
        ],
        {"type": "Share", "protocol_type": "share"} | empty(5),
    ),
    "streams": History(
        [member(1, "a", family="streams"), epoch(1, "streams")],
        {"type": "Streams", "protocol_type": "streams"} | active("a"),
    ),
    "commits-of-many-days": History(
        [commit(-40 * 86400), commit(-8 * 86400), commit(-86400), commit(1), commit(86400)],
        SIMPLE | {"commits_1d": 1, "commits_7d": 3, "commits_30d": 4, "first_commit": moment(-40 * 86400)},
    ),
}


def plain(row: Any) -> dict[str, Any]:
    """A row of `activity`, its times in UTC, its offsets by partition."""
    told: dict[str, Any] = {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value
        for name, value in row.asDict(recursive=True).items()
    }
    return told | {"offsets": {offset["partition"]: offset["offset"] for offset in told["offsets"]}}


def rows(spark: SparkSession, warehouse: str) -> Rows:
    return {row["group"]: plain(row) for row in ACTIVITY.read(spark, warehouse).collect()}


class Taken(NamedTuple):
    """Every history in every two parts (group `<history>/<length of the first>`), and the tables after both."""

    bronze: Bronze
    rows: Rows


@pytest.fixture(scope="module")
def taken(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Taken:
    warehouse = str(tmp_path_factory.mktemp("activity"))
    bronze = Bronze(spark, warehouse)
    cuts = {f"{name}/{cut}": (it.events, cut) for name, it in HISTORIES.items() for cut in range(len(it.events) + 1)}
    bronze.write({group: events[:cut] for group, (events, cut) in cuts.items()})
    update(spark, warehouse)
    bronze.write({group: events[cut:] for group, (events, cut) in cuts.items()})
    update(spark, warehouse)
    return Taken(bronze, rows(spark, warehouse))


@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in HISTORIES])
def test_row(taken: Taken, name: str) -> None:
    """The row says what the records say, wherever one run ended and the next began."""
    history = HISTORIES[name]
    for cut in range(len(history.events) + 1):
        row = taken.rows[f"{name}/{cut}"]
        assert {key: row[key] for key in history.row} == history.row, f"cut after {cut}"


def test_taken_in_twice(spark: SparkSession, taken: Taken) -> None:
    """A run that ended after the MERGE and before coverage was written changes nothing when it is repeated."""
    warehouse = taken.bronze.warehouse
    path = COVERAGE.path(warehouse)
    spark.read.format("delta").option("versionAsOf", 1).load(path).write.format("delta").mode("overwrite").save(path)
    assert update(spark, warehouse).records > 0
    assert rows(spark, warehouse) == taken.rows


def test_coverage_names_what_it_covers(spark: SparkSession, taken: Taken) -> None:
    """coverage says what ingested says, and which table at which version holds that; deltalake reads the same rows."""
    (covered,) = COVERAGE.read(spark, taken.bronze.warehouse).collect()
    reader = Reader(ACTIVITY.path(taken.bronze.warehouse), version=covered["activity_version"])
    assert (covered["batch"], covered["activity_id"]) == (taken.bronze.batch, str(reader.metadata().id))
    query = 'select "group", last_commit, empty_since from t'
    read = QueryBuilder().register("t", reader).execute(query).read_all()
    columns = [read.column(name).to_pylist() for name in ("group", "last_commit", "empty_since")]
    wanted = {(name, row["last_commit"], row["empty_since"]) for name, row in taken.rows.items()}
    assert set(zip(*columns, strict=True)) == wanted


def test_unfinished_batch_waits(spark: SparkSession, warehouse: str) -> None:
    """Rows of a batch that `ingested` doesn't name yet are taken in when it does, not before."""
    bronze = Bronze(spark, warehouse)
    bronze.write({"g": [commit(1)]})
    bronze.write({"g": [commit(5)]})
    bronze.batch = 1
    bronze.finish()
    update(spark, warehouse)
    assert rows(spark, warehouse)["g"]["last_commit"] == moment(1)
    bronze.batch = 2
    bronze.finish()
    update(spark, warehouse)
    assert rows(spark, warehouse)["g"]["last_commit"] == moment(5)


def test_log_that_began_anew(spark: SparkSession, warehouse: str) -> None:
    """Of an earlier log, a group keeps its times, but neither offsets nor members nor state; lower offsets count."""
    bronze = Bronze(spark, warehouse)
    old = {"g": [commit(1, 5), commit(2, 6, 1), member(2, "a"), epoch(2)], "h": [commit(1), classic(3, 0)]}
    bronze.write({"other": [commit(1)] * 50, **old})
    update(spark, warehouse)
    bronze._offset = 0
    bronze.write({"g": [commit(9, 8)]}, era=1, log_partition=3)
    update(spark, warehouse)
    found = rows(spark, warehouse)
    wanted = SIMPLE | {"first_commit": moment(1), "last_commit": moment(9), "offsets": {0: 8}, "members": []}
    assert {key: found["g"][key] for key in wanted} == wanted
    assert (found["g"]["era"], found["g"]["log_partition"], found["g"]["read_to"]) == (1, 3, 1)
    assert found["h"]["empty_since"] == moment(3)


def test_older_state_of_the_table(spark: SparkSession, warehouse: str) -> None:
    """After somebody put an older state of `activity` back, the next run takes in once more what that lacks."""
    bronze = Bronze(spark, warehouse)
    for second in (1, 5, 9):
        bronze.write({"g": [commit(second)], f"only-{second}": [commit(second)]})
        update(spark, warehouse)
    before = rows(spark, warehouse)
    path = ACTIVITY.path(warehouse)
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 1").collect()
    assert set(rows(spark, warehouse)) == {"g", "only-1"}
    update(spark, warehouse)
    assert rows(spark, warehouse) == before


def test_nothing_ingested(spark: SparkSession, tmp_path: Path) -> None:
    """Without an ingest, the user is told to run one."""
    with pytest.raises(PipelineError, match="pipeline ingest"):
        update(spark, str(tmp_path))
