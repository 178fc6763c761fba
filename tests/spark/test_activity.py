"""What becomes of a group's records in `activity`: all at once, in any two parts, and taken in twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from delta import DeltaTable
from deltalake import DeltaTable as Reader
from deltalake import QueryBuilder
from pyspark.sql import SparkSession

from group_hygiene.errors import Halted, PipelineError
from group_hygiene.kafka.client import Client
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.pipeline import jobs
from group_hygiene.pipeline.ingest import reading
from group_hygiene.pipeline.ingest.reading import Tables
from group_hygiene.pipeline.jobs import Job, Retention, Work, maintain, repeat
from group_hygiene.pipeline.tables import ACTIVITY, COVERAGE
from tests.spark.histories import READ_AT, Bronze, Event, classic, client, commit, epoch, member, moment, state, wiped

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
        | {"first_commit": moment(1), "last_commit": moment(3), "oldest_commit": moment(2), "commits": 3}
        | {"first_seen": moment(1.1), "offsets": {0: 4, 1: 6}, "partitions": 2, "topics": 1, "tombstoned_at": None},
    ),
    "same-offset-again": History(
        [commit(second, 7) for second in range(1, 6)],
        SIMPLE
        | {"first_commit": moment(1), "last_commit": moment(5), "oldest_commit": moment(5)}
        # The day of these commits is the one before the day of the last look.
        | {"commits": 5, "offsets": {0: 7}},
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
        SIMPLE | {"offsets": {0: 5}, "last_commit": moment(8), "oldest_commit": moment(1), "commits": 2},
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
    "consumer-left-before-its-target-was-written": History(
        [
            *(member(1, "a"), epoch(1), member(5, "a", gone=True), epoch(5)),
            state(6, "consumer-target-member", member_id="a"),
        ],
        CONSUMER | empty(5),
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
    "times-that-reads-of-the-log-bound": History(
        [
            commit(1, 5, written_after=moment(50)),
            commit(2, 6, 1, topic="payments"),
            commit(3, 7, written_after=moment(70)),
            commit(4, 8, 1, topic="payments", written_after=moment(60)),
            commit(5, 9, 2, topic="gone", written_after=moment(80)),
            commit(6, None, 2, topic="gone", written_after=moment(90)),
        ],
        SIMPLE
        | {"last_commit": moment(5), "last_commit_after": moment(80), "oldest_commit": moment(3), "state_after": None}
        | {"topics_after": {"orders": moment(70), "payments": moment(60)}},
    ),
    "times-that-clients-set": History(
        [
            commit(1, 5, record_time=moment(100)),
            commit(2, 6, 1, topic="payments", record_time=moment(62)),
            commit(3, 7, 2, topic="gone", record_time=moment(70)),
            commit(110, None, 2, topic="gone"),
        ],
        SIMPLE
        | {"last_commit": moment(3), "last_commit_after": moment(100), "oldest_commit": moment(1)}
        | {"topics_after": {"orders": moment(100)}},
    ),
    "a-time-that-a-client-set-and-a-broker-that-is-ahead": History(
        [commit(1, 5, record_time=READ_AT + timedelta(days=9))],
        SIMPLE
        | {"last_commit": moment(1), "last_commit_after": READ_AT, "oldest_commit": moment(1)}
        | {"topics_after": {"orders": READ_AT}, "first_seen": READ_AT + timedelta(days=9)},
    ),
    "empty-by-a-clock-that-is-behind": History(
        [classic(1, 1) | {"written_after": moment(50)}, commit(2), classic(5, 0) | {"written_after": moment(70)}],
        CLASSIC | empty(5) | {"state_after": moment(70), "last_commit_after": None, "topics_after": {}},
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
    "clients-of-a-classic-group": History(
        [
            classic(1, 2) | {"clients": [client("a"), client("b")]},
            classic(3, 1) | {"clients": [client("b", "rack")]},
            commit(4),
            classic(5, 0),
        ],
        CLASSIC | empty(5) | {"last_clients": [client("b", "rack")], "last_clients_at": moment(4)},
    ),
    "clients-of-members": History(
        [
            member(1, "m") | {"clients": [client("a")]},
            member(2, "n") | {"clients": [client("b")]},
            epoch(2),
            member(5, "m", gone=True),
            member(6, "n", gone=True),
            epoch(6),
        ],
        CONSUMER | empty(6) | {"last_clients": [client("b")], "last_clients_at": moment(2)},
    ),
    "clients-of-a-group-of-the-same-name": History(
        [
            classic(1, 1) | {"clients": [client("a")]},
            classic(5, 0),
            state(9, "classic", gone=True),
            commit(11),
            commit(12),
        ],
        SIMPLE | {"last_clients": None, "last_clients_at": None},
    ),
    "no-clients": History([classic(1, 1), classic(5, 0)], {"last_clients": None, "last_clients_at": None}),
    "commits-of-many-days": History(
        [commit(-40 * 86400), commit(-8 * 86400), commit(-86400), commit(1), commit(86400)],
        SIMPLE | {"commits": 4, "first_commit": moment(-40 * 86400)},
    ),
}


def plain(row: Any) -> dict[str, Any]:
    """A row of `activity`, its times in UTC, its offsets by partition, and the number of its commits."""
    fields: dict[str, Any] = {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value
        for name, value in row.asDict(recursive=True).items()
    }
    after = {topic: at.astimezone(UTC) for topic, at in (fields["topics_after"] or {}).items()}
    offsets = {offset["partition"]: offset["offset"] for offset in fields["offsets"]}
    commits = sum(fields["commits_by_day"].values())
    return fields | {"offsets": offsets, "topics_after": after, "commits": commits}


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
    bronze.write({group: events[cut:] for group, (events, cut) in cuts.items()})
    return Taken(bronze, rows(spark, warehouse))


@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in HISTORIES])
def test_row(taken: Taken, name: str) -> None:
    """The row says what the records say, wherever one run ended and the next began."""
    history = HISTORIES[name]
    for cut in range(len(history.events) + 1):
        row = taken.rows[f"{name}/{cut}"]
        assert {key: row[key] for key in history.row} == history.row, f"cut after {cut}"


def test_coverage_names_what_it_covers(spark: SparkSession, taken: Taken) -> None:
    """Which table, at which version, has all up to its last batch; deltalake reads the same rows."""
    (covered,) = COVERAGE.read(spark, taken.bronze.warehouse).collect()
    reader = Reader(ACTIVITY.path(taken.bronze.warehouse), version=covered["activity_version"])
    assert (covered["batch"], covered["activity_id"]) == (2, str(reader.metadata().id))
    query = 'select "group", last_commit, empty_since from t'
    read = QueryBuilder().register("t", reader).execute(query).read_all()
    columns = [read.column(name).to_pylist() for name in ("group", "last_commit", "empty_since")]
    wanted = {(name, row["last_commit"], row["empty_since"]) for name, row in taken.rows.items()}
    assert set(zip(*columns, strict=True)) == wanted


def test_recreated_log(spark: SparkSession, warehouse: str) -> None:
    """Of an earlier log, a group keeps its times, but neither offsets nor members nor state; lower offsets count."""
    bronze = Bronze(spark, warehouse)
    old = {"g": [commit(1, 5), commit(2, 6, 1), member(2, "a"), epoch(2)], "h": [commit(1), classic(3, 0)]}
    bronze.write({"other": [commit(1)] * 50, **old})
    bronze.offset, bronze.partitions, place = 0, 4, partition_of("g", 4)
    bronze.write({"g": [commit(9, 8)]}, era=1, log_partition=place)
    found = rows(spark, warehouse)
    wanted = SIMPLE | {"first_commit": moment(1), "last_commit": moment(9), "offsets": {0: 8}, "members": []}
    assert {key: found["g"][key] for key in wanted} == wanted
    assert (found["g"]["era"], found["g"]["log_partition"]) == (1, place)
    assert found["h"]["empty_since"] == moment(3)


def _names(partition: int) -> tuple[str, ...]:
    """Two groups whose partition of four is this one."""
    return tuple([name for number in range(100) if partition_of(name := f"g{number}", 4) == partition][:2])


@pytest.mark.parametrize("partitions", [2, 4, 7])
@pytest.mark.parametrize("first", ["some-commit", "none-commits"])
def test_a_log_that_was_recreated_with_other_partitions(
    spark: SparkSession, warehouse: str, monkeypatch: pytest.MonkeyPatch, partitions: int, first: str
) -> None:
    """In a table of many files, each group has one row, whenever it commits next, and wherever that is."""
    monkeypatch.setattr(reading, "_SMALL", 0)
    bronze = Bronze(spark, warehouse)
    bronze.partitions = 4
    for partition in range(4):
        bronze.write({name: [commit(1, 5)] for name in _names(partition)}, log_partition=partition)
    assert len(Reader(ACTIVITY.path(warehouse)).file_uris()) == 4
    bronze.offset, bronze.partitions = 0, partitions
    names = [name for partition in range(4) for name in _names(partition)]
    if first == "none-commits":
        bronze.finish(era=1)
    for second, some in ((9, names[::3]), (11, names), (13, names[1::2])):
        for name in some:
            bronze.write({name: [commit(second, second)]}, era=1, log_partition=partition_of(name, partitions))
        found = [
            (row["group"], row["last_commit"].astimezone(UTC)) for row in ACTIVITY.read(spark, warehouse).collect()
        ]
        assert len(found) == len(names)
        assert {name: moment(second) for name in some}.items() <= dict(found).items()


@pytest.mark.parametrize("split", [False, True])
def test_a_log_that_grew(spark: SparkSession, warehouse: str, monkeypatch: pytest.MonkeyPatch, split: bool) -> None:
    """What a group's records say in the partition where they were before is stale, and their offsets are no order."""
    monkeypatch.setattr(reading, "_SMALL", 0 if split else 100)
    name, home = next((name, home) for name in ("a", "b", "c", "d") if (home := partition_of(name, 4)) > 1)
    bronze = Bronze(spark, warehouse)
    bronze.partitions, bronze.offset = 2, 1000
    before = partition_of(name, 2)
    bronze.write({name: [commit(1, 5)], "x": [commit(1)]}, log_partition=before)
    bronze.partitions = 4
    for _ in range(2):
        # All of the log is read again.
        bronze.offset = 1000
        bronze.write({name: [commit(1, 5)]}, era=1, log_partition=before)
        bronze.offset = 0
        bronze.write({name: [commit(4, 7)]}, era=1, log_partition=home)
    bronze.offset = 3
    bronze.write({name: [commit(100, 9)]}, era=1, log_partition=home)
    (row,) = [row for row in ACTIVITY.read(spark, warehouse).collect() if row["group"] == name]
    assert (row["last_commit"].astimezone(UTC), row["log_partition"]) == (moment(100), home)
    assert [offset["offset"] for offset in row["offsets"]] == [9]


@pytest.mark.parametrize("era", [0, 1])
def test_a_use_in_an_unexpected_partition_is_a_use_of_any_group(
    spark: SparkSession, warehouse: str, monkeypatch: pytest.MonkeyPatch, era: int
) -> None:
    """A broker puts records by the number of partitions at its start. No group counts as idle since before that."""
    monkeypatch.setattr(reading, "_SMALL", 0)
    bronze = Bronze(spark, warehouse)
    bronze.partitions = 4
    if era:
        bronze.write({_names(1)[0]: [commit(0)]}, log_partition=1)
    bronze.offset = 0
    bronze.write({_names(2)[0]: [commit(1)]}, era=era, log_partition=2)
    bronze.write({_names(3)[0]: [commit(50, 5)]}, era=era, log_partition=0)
    # The last run has nothing new, and forgets nothing.
    for _ in range(2):
        since = {row["log_partition"]: row["complete_since"] for row in COVERAGE.rows(warehouse)}
        assert since == dict.fromkeys(range(4), moment(50.1))
        assert _names(3)[0] not in rows(spark, warehouse)
        bronze.finish(era=era)


def _restored(spark: SparkSession, path: str) -> None:
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 1").collect()


def _overwritten(spark: SparkSession, path: str) -> None:
    older = spark.read.format("delta").option("versionAsOf", 1).load(path)
    older.write.format("delta").mode("overwrite").save(path)


def _merged(spark: SparkSession, path: str) -> None:
    older = spark.read.format("delta").option("versionAsOf", 1).load(path)
    merge = DeltaTable.forPath(spark, path).alias("t").merge(older.alias("s"), "t.group = s.group")
    merge.whenMatchedUpdateAll().whenNotMatchedBySourceDelete().execute()


def _doubled(spark: SparkSession, path: str) -> None:
    rows = spark.read.format("delta").load(path)
    rows.localCheckpoint().write.format("delta").mode("append").save(path)


@pytest.fixture(scope="module")
def ready(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A warehouse after two runs, to be copied: then version 1 of `activity` lacks the second."""
    warehouse = str(tmp_path_factory.mktemp("ready"))
    bronze = Bronze(spark, warehouse)
    for second in (1, 5):
        bronze.write({"g": [commit(second)], f"only-{second}": [commit(second)]})
    return warehouse


@pytest.mark.parametrize("change", [_overwritten, _merged, _restored, _doubled])
def test_rows_that_others_changed(
    spark: SparkSession, ready: str, warehouse: str, change: Callable[[SparkSession, str], None]
) -> None:
    """In whatever way, older rows or further ones: the next run begins with those that coverage names."""
    shutil.copytree(ready, warehouse)
    before = rows(spark, warehouse)
    change(spark, ACTIVITY.path(warehouse))
    bronze = Bronze(spark, warehouse)
    bronze.offset = 4
    bronze.write({"new": [commit(7)]})
    found = rows(spark, warehouse)
    assert ACTIVITY.read(spark, warehouse).count() == 4
    assert {name: row for name, row in found.items() if name != "new"} == before


def test_a_run_that_was_killed_and_the_maintenance(
    spark: SparkSession, ready: str, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is in all tables but coverage is added again, once, also after maintain has removed old files."""
    shutil.copytree(ready, warehouse)
    bronze = Bronze(spark, warehouse)
    bronze.offset = 4
    new = {"g": [commit(11), wiped(12)]}
    monkeypatch.setattr(COVERAGE.__class__, "overwrite", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bronze.write(new)
    monkeypatch.undo()
    assert rows(spark, warehouse)["g"]["commits"] == 3
    maintain(spark, warehouse, Retention(history=datetime.now(UTC) - moment(20), activity=timedelta(0)))
    bronze.offset = 4
    bronze.write(new)
    bronze.write({"h": [commit(21)]})
    found = rows(spark, warehouse)
    assert {group: row["commits"] for group, row in found.items()} == {"g": 3, "h": 1, "only-1": 1, "only-5": 1}


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


class Enough(Exception):
    """Ends what would go on."""


def test_rounds_go_on_after_a_fault_that_passes(
    spark: SparkSession, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported, and the next round does the work; where a user must decide, and after a single round, it ends."""
    said: list[str] = []
    faults = iter([PipelineError("not now"), Enough(), Halted("never"), PipelineError("not now")])

    def broken(*_: Any) -> Any:
        raise next(faults)

    monkeypatch.setattr(jobs, "ingest", broken)
    every, once = (Work([Job.INGEST], str(tmp_path), every=every) for every in (timedelta(milliseconds=1), None))
    for work, ends in ((every, Enough), (every, Halted), (once, PipelineError)):
        with pytest.raises(ends):
            repeat(spark, client, work, said.append, tmp_path / "spark.log")
    assert said == ["failed, will retry: not now"]


def test_another_run_meanwhile(
    spark: SparkSession, ready: str, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that another one overtakes never adds to what that one wrote: it is told, and all is as if it was not."""
    shutil.copytree(ready, warehouse)
    bronze = Bronze(spark, warehouse)
    bronze.offset = 4
    own = Tables.add

    def overtaken(self: Tables, *given: Any) -> Any:
        monkeypatch.undo()
        other = Bronze(spark, warehouse)
        for second in (11, 21):
            other.offset = second
            other.write({"g": [commit(second)]})
        return own(self, *given)

    monkeypatch.setattr(Tables, "add", overtaken)
    with pytest.raises(PipelineError, match=r"another run wrote .* run this one again"):
        bronze.write({"g": [commit(13)], "new": [commit(13), commit(14)]})
    found = rows(spark, warehouse)
    assert {group: (row["last_commit"], row["commits"]) for group, row in found.items()} == {
        "g": (moment(21), 4),
        "only-1": (moment(1), 1),
        "only-5": (moment(5), 1),
    }


def test_a_broken_file(spark: SparkSession, ready: str, warehouse: str) -> None:
    """One line that names the tables, as for all that can't be read; when the file is back, it goes on."""
    shutil.copytree(ready, warehouse)
    bronze = Bronze(spark, warehouse)
    file = Path(Reader(ACTIVITY.path(warehouse)).file_uris()[0])
    whole = file.read_bytes()
    for broken in (whole[: len(whole) // 2], b""):
        file.write_bytes(broken)
        bronze.offset = 4
        with pytest.raises(PipelineError, match=r"^the tables at .* can't be read or written: .*$"):
            bronze.write({"g": [commit(11)]})
    file.write_bytes(whole)
    bronze.offset = 4
    bronze.write({"g": [commit(11)]})
    assert rows(spark, warehouse)["g"]["last_commit"] == moment(11)
