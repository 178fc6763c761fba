"""The ingest against a real broker: what the log holds is in the tables, once, and the log does not notice."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from delta import DeltaTable
from deltalake import DeltaTable as Deltalake
from pyspark.sql import SparkSession

from group_hygiene.errors import Halted, HygieneError, PipelineError
from group_hygiene.kafka.client import Client, connect
from group_hygiene.kafka.offsets_topic import LogBounds, read_log_bounds
from group_hygiene.kafka.record_columns import Records
from group_hygiene.pipeline import store
from group_hygiene.pipeline.ingest import fetch, reading
from group_hygiene.pipeline.ingest.reading import Choices, Tables, ingest
from group_hygiene.pipeline.ingest.task import Range, Sink
from group_hygiene.pipeline.store import Table
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, COVERAGE, GROUP_STATES, RECORDS
from group_hygiene.spec.client_settings import Settings
from testing.faults.offsets_log import TOPIC, Rows, ends, expected, read
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker, at, soon
from tests.spark.bronze import coverage, covered, tables
from tests.spark.conftest import FEW_PARTITIONS


def run(spark: SparkSession, client: Client, warehouse: str, start_over: bool = False) -> Counter[str]:
    return ingest(spark, client, warehouse, lambda line: None, Choices(start_over)).written


def commit_in_transaction(bootstrap: str, group: str, topic: str, offset: int, abort: bool) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"of-{group}", "log_level": 0})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], consumer.consumer_group_metadata(), 60)
    (producer.abort_transaction if abort else producer.commit_transaction)(60)
    consumer.close()


def wait_decided(client: Client) -> None:
    """Wait until no transaction is open: the partitions get its markers after the answer to its producer."""
    wait_for(lambda: not cast(LogBounds, read_log_bounds(client, soon())).undecided_since)


def everything(make: Maker, bootstrap: str, protocols: tuple[Any, ...] = ("classic", "consumer")) -> None:
    """A log with every kind of thing in it: members, commits, tombstones, transactions."""
    topic = make.topic(records=3)
    for protocol in protocols:
        make.abandoned(make.name(protocol), topic, protocol, at(topic, 2))
    make.simple(make.name("simple"), at(topic, 1))
    gone = make.simple(make.name("gone"), at(topic, 3))
    make.delete_group(gone)
    for abort in (False, True, False):
        commit_in_transaction(bootstrap, make.name("transactional"), topic, 2, abort)
    client = connect(Settings((bootstrap,)))
    wait_decided(client)
    client.close()


@pytest.fixture(scope="module")
def filled(kafka: KafkaCluster) -> KafkaCluster:
    """The shared broker with everything in its log."""
    maker = Maker(kafka.bootstrap_servers)
    everything(maker, kafka.bootstrap_servers)
    maker.close()
    return kafka


def assert_equal(spark: SparkSession, warehouse: str, bootstrap: str, era: int = 0) -> Rows:
    """The tables hold exactly what an independent client reads in the log, which is not moving."""
    wanted = expected(read(bootstrap))
    held = tables(spark, warehouse, era)
    assert held.commits == wanted.commits
    assert held.states == wanted.states
    assert held.quarantine == wanted.quarantine
    assert covered(spark, warehouse) == ends(bootstrap)
    return held


def test_all_of_the_log_is_in_the_tables(
    spark: SparkSession, filled: KafkaCluster, client: Client, warehouse: str
) -> None:
    """Every record in its table, to the last column, those of aborted transactions marked."""
    before = datetime.now(UTC)
    written = run(spark, client, warehouse)
    held = assert_equal(spark, warehouse, filled.bootstrap_servers)
    aborted = [row[-1] for row in held.commits].count(True)
    counts = {"commits": len(held.commits), "group_states": len(held.states), "quarantine": len(held.quarantine)}
    assert written == Counter(counts | {"aborted": aborted})
    assert aborted, "an aborted transaction"
    assert any(row[6] is None for row in held.commits), "a tombstone"
    for row in coverage(spark, warehouse):
        assert before <= row.read_at.astimezone(UTC) <= datetime.now(UTC)
        assert (row.era, row.complete_since, row.cluster_id) == (0, None, filled.cluster_id)


def test_reading_leaves_no_trace(spark: SparkSession, filled: KafkaCluster, client: Client, warehouse: str) -> None:
    """No group comes from it, and no record: the log ends where it ended."""
    maker = Maker(filled.bootstrap_servers)
    groups = {group.group_id for group in maker.admin.list_consumer_groups().result().valid}
    log = ends(filled.bootstrap_servers)
    run(spark, client, warehouse)
    assert ends(filled.bootstrap_servers) == log
    assert {group.group_id for group in maker.admin.list_consumer_groups().result().valid} == groups


def test_further_runs_add_what_is_new(
    spark: SparkSession, filled: KafkaCluster, client: Client, make: Maker, warehouse: str
) -> None:
    """Nothing, if there is nothing; then the new records alone, transactions that span two runs included."""
    bootstrap = filled.bootstrap_servers
    run(spark, client, warehouse)
    assert run(spark, client, warehouse) == Counter()
    assert_equal(spark, warehouse, bootstrap)
    topic = make.topic(records=1)
    make.simple(make.name("new"), at(topic, 1))
    commit_in_transaction(bootstrap, make.name("new"), topic, 1, abort=True)
    assert run(spark, client, warehouse) == Counter(commits=2, aborted=1)
    assert_equal(spark, warehouse, bootstrap)


def test_an_open_transaction_is_read_when_it_is_decided(
    spark: SparkSession, filled: KafkaCluster, client: Client, make: Maker, warehouse: str
) -> None:
    """Until then its partition is covered up to where it began, and no further."""
    bootstrap, group = filled.bootstrap_servers, make.name("open")
    topic = make.topic(records=1)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": group, "log_level": 0})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    log = ends(bootstrap)
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), 60)
    wait_for(lambda: ends(bootstrap) != log)
    run(spark, client, warehouse)
    assert covered(spark, warehouse) == log
    producer.commit_transaction(60)
    consumer.close()
    wait_decided(client)
    assert run(spark, client, warehouse) == Counter(commits=1)
    assert_equal(spark, warehouse, bootstrap)


def test_a_log_in_many_batches(
    spark: SparkSession, filled: KafkaCluster, client: Client, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task ends after the first answer, in the middle of its partitions; each batch is complete."""
    monkeypatch.setattr(reading, "_BYTES", 1)
    said: list[str] = []
    ingest(spark, client, warehouse, said.append)
    assert_equal(spark, warehouse, filled.bootstrap_servers)
    (batch,) = {row.batch for row in coverage(spark, warehouse)}
    assert batch == len([line for line in said if line.startswith("batch ")]) > 1


def test_a_round_that_fails_leaves_those_before_it(
    spark: SparkSession, filled: KafkaCluster, client: Client, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first read of a large log makes progress, although each run is killed."""
    monkeypatch.setattr(reading, "_BYTES", 1)
    before: dict[int, int] = {}

    def killed(line: str) -> None:
        if line.startswith("batch "):
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            ingest(spark, client, warehouse, killed)
        after = covered(spark, warehouse)
        assert sum(after.values()) > sum(before.values())
        before = after
    run(spark, client, warehouse)
    assert_equal(spark, warehouse, filled.bootstrap_servers)


class Overtaken(NamedTuple):
    """At the call of this method; first: in the first run of all."""

    method: str
    first: bool


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Overtaken("work", first=True), id="before-the-tables-of-the-first-run"),
        pytest.param(Overtaken("work", first=False), id="before-the-tables-of-a-later-run"),
        pytest.param(Overtaken("save", first=True), id="after-the-tables-of-the-first-run"),
        pytest.param(Overtaken("save", first=False), id="after-the-tables-of-a-later-run"),
    ],
)
def test_two_runs_at_once(
    spark: SparkSession, filled: KafkaCluster, client: Client, make: Maker, warehouse: str, case: Overtaken
) -> None:
    """A run that another one overtook fails, before its tables or between them and `coverage`; no record is lost."""
    if not case.first:
        run(spark, client, warehouse)
    topic = make.topic(records=3)
    make.simple(make.name("early"), at(topic, 1))
    wrapped, others = getattr(Tables, case.method), list[int]()

    def overtaken(self: Any, *args: Any) -> Any:
        # The files of the batch are written before the other run, and its row of `coverage` after it.
        files = wrapped(self, *args) if case.method == "work" else None
        if not others and (
            files is not None or args[0].batch > max((row["batch"] for row in COVERAGE.rows(warehouse)), default=0)
        ):
            others.append(1)
            make.simple(make.name("late"), at(topic, 2))
            run(spark, client, warehouse)
        return wrapped(self, *args) if files is None else files

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tables, case.method, overtaken)
        with pytest.raises(PipelineError, match="another run wrote it"):
            run(spark, client, warehouse)
    assert others
    assert_equal(spark, warehouse, filled.bootstrap_servers)
    run(spark, client, warehouse)
    assert_equal(spark, warehouse, filled.bootstrap_servers)


@pytest.mark.parametrize("first", [True, False])
def test_a_run_that_stands_still_between_two_tables(
    spark: SparkSession, filled: KafkaCluster, client: Client, make: Maker, warehouse: str, first: bool
) -> None:
    """While another one runs as a whole: it fails at its next table, and adds nothing to it."""
    if not first:
        run(spark, client, warehouse)
    topic = make.topic(records=3)
    make.abandoned(make.name("early"), topic)
    own, others = Table.change, list[int]()

    def late(self: Table, *args: Any) -> int:
        if self.name == GROUP_STATES.name and not others:
            others.append(1)
            make.abandoned(make.name("late"), topic)
            run(spark, client, warehouse)
        return own(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "change", late)
        with pytest.raises(PipelineError, match="another run wrote it"):
            run(spark, client, warehouse)
    assert_equal(spark, warehouse, filled.bootstrap_servers)
    run(spark, client, warehouse)
    assert_equal(spark, warehouse, filled.bootstrap_servers)


def test_each_batch_writes_to_each_table(
    spark: SparkSession, filled: KafkaCluster, client: Client, make: Maker, warehouse: str
) -> None:
    """Also a batch without rows for it: another run that has read more offsets as the same batch fails at any table."""
    run(spark, client, warehouse)
    before = [table.version(warehouse) for table in RECORDS]
    make.simple(make.name("only-commits"), at(make.topic(records=1), 1))
    assert run(spark, client, warehouse)["group_states"] == 0
    assert [table.version(warehouse) for table in RECORDS] == [version + 1 for version in before]


class Few:
    """Takes the records of one answer."""

    def __init__(self) -> None:
        self.full = False
        self.offsets = dict[int, int]()

    def add_records(self, partition: int, records: Records) -> None:
        self.full = True
        self.offsets[partition] = max([self.offsets.get(partition, -1), *records.offsets.tolist()])


def test_a_task_stops_after_so_many_records(client: Client, filled: KafkaCluster) -> None:
    """And says how far it came: what it has is before that offset, and nothing is missing."""
    bounds, sink = cast(LogBounds, read_log_bounds(client, soon())), Few()
    ranges = [Range(partition, bounds.starts[partition], end) for partition, end in bounds.ends.items()]
    reached = fetch.read(ranges, cast(Sink, sink), client.settings)
    first = ranges[0].partition
    assert sink.offsets.keys() == {first}
    assert sink.offsets[first] < reached[first]
    assert [reached[partition] for partition, _, _ in ranges[1:]] == [start for _, start, _ in ranges[1:]]


def test_a_table_that_can_not_be_written(
    spark: SparkSession, filled: KafkaCluster, client: Client, warehouse: str
) -> None:
    """What the worker says comes out; when it can be written, nothing is missing."""
    folder = Path(warehouse, "commits")
    folder.parent.mkdir(parents=True)
    folder.symlink_to("/dev/null/nothing")
    with pytest.raises(PipelineError, match=r"the tables at .* can't be read or written: .*Not a directory"):
        run(spark, client, warehouse)
    folder.unlink()
    run(spark, client, warehouse)
    assert_equal(spark, warehouse, filled.bootstrap_servers)


def test_a_lost_table_of_progress(spark: SparkSession, filled: KafkaCluster, client: Client, warehouse: str) -> None:
    """What is in the other tables would come twice: the user is told the way out, and nothing is written."""
    run(spark, client, warehouse)
    shutil.rmtree(COVERAGE.path(warehouse))
    held = tables(spark, warehouse)
    for _ in range(2):
        with pytest.raises(Halted, match=r"coverage is gone.*new, empty --warehouse"):
            run(spark, client, warehouse)
    assert tables(spark, warehouse) == held
    for table in (*RECORDS, ACTIVITY, COVERAGE):
        shutil.rmtree(table.path(warehouse), ignore_errors=True)
    forget(spark)
    run(spark, client, warehouse)
    assert_equal(spark, warehouse, filled.bootstrap_servers)


def test_a_lost_table_of_records(
    spark: SparkSession, filled: KafkaCluster, client: Client, make: Maker, warehouse: str
) -> None:
    """Whoever went on without it would say that all is there."""
    run(spark, client, warehouse)
    shutil.rmtree(GROUP_STATES.path(warehouse))
    forget(spark)
    make.simple(make.name("new"), at(make.topic(records=1), 1))
    before = covered(spark, warehouse)
    with pytest.raises(Halted, match=r"group_states is gone.*new, empty --warehouse"):
        run(spark, client, warehouse)
    assert covered(spark, warehouse) == before


def test_commits_alone_make_both_tables(spark: SparkSession, lonely: KafkaCluster, warehouse: str) -> None:
    """A log in which nobody ever joined a group has no record for `group_states`: it is there all the same."""
    bootstrap = lonely.bootstrap_servers
    client, maker = connect(Settings((bootstrap,))), Maker(bootstrap)
    maker.simple(maker.name("simple"), at(maker.topic(records=1), 1))
    assert run(spark, client, warehouse) == Counter(commits=1)
    assert GROUP_STATES.exists(warehouse)
    assert ACTIVITY.read(spark, warehouse).count() == 1
    maker.close()
    client.close()


def test_an_older_table_of_progress(
    spark: SparkSession, filled: KafkaCluster, client: Client, make: Maker, warehouse: str
) -> None:
    """Two batches older: what was read since may be gone from the log, so nothing is removed before it is back."""
    topic = make.topic(records=1)
    run(spark, client, warehouse)
    older = max(map(version_of, delta_log(warehouse)))
    # No table has rows of each batch.
    make.simple(make.name("new"), at(topic, 1))
    assert run(spark, client, warehouse) == Counter(commits=1)
    make.abandoned(make.name("new"), topic, commit={})
    assert set(+run(spark, client, warehouse)) == {"group_states"}
    held, newest = tables(spark, warehouse), max(map(version_of, delta_log(warehouse)))
    Deltalake(COVERAGE.path(warehouse)).restore(older)
    make.simple(make.name("new"), at(topic, 1))
    versions = {table: table.version(warehouse) for table in (*RECORDS, ACTIVITY, COVERAGE)}
    with pytest.raises(Halted, match=r"older state of coverage.*newest state"):
        run(spark, client, warehouse)
    assert tables(spark, warehouse) == held
    assert {table: table.version(warehouse) for table in versions} == versions
    Deltalake(COVERAGE.path(warehouse)).restore(newest)
    assert run(spark, client, warehouse) == Counter(commits=1)
    assert_equal(spark, warehouse, filled.bootstrap_servers)


def _emptied(warehouse: str) -> None:
    shutil.rmtree(ACTIVITY.path(warehouse))


def _made_anew(warehouse: str) -> None:
    ACTIVITY.create(warehouse, 0)


def _older_files(warehouse: str) -> None:
    for file in Path(ACTIVITY.path(warehouse), "_delta_log").iterdir():
        if file.is_file() and (file.name == "_last_checkpoint" or version_of(file) > 0):
            file.unlink()


def _older_with_later_versions(warehouse: str) -> None:
    last = ACTIVITY.version(warehouse)
    _older_files(warehouse)
    for _ in range(last + 1):
        store.set_property(ACTIVITY.path(warehouse), "delta.appendOnly", "false")


@pytest.mark.parametrize("lose", [_emptied, _made_anew, _older_files, _older_with_later_versions])
def test_a_lost_activity(
    spark: SparkSession,
    filled: KafkaCluster,
    client: Client,
    warehouse: str,
    monkeypatch: pytest.MonkeyPatch,
    lose: Callable[[str], None],
) -> None:
    """All of the log is read again, if a user says so, also if that run is killed; nothing counts as idle then."""
    run(spark, client, warehouse)
    before = {row["group"] for row in ACTIVITY.read(spark, warehouse).collect()}
    lose(warehouse)
    forget(spark)
    for _ in range(2):
        with pytest.raises(Halted, match=r"activity is not the one that coverage names.*--start-over"):
            run(spark, client, warehouse)
    now = datetime.now(UTC)
    monkeypatch.setattr(Tables, "work", killed)
    with pytest.raises(KeyboardInterrupt):
        run(spark, client, warehouse, start_over=True)
    monkeypatch.undo()
    run(spark, client, warehouse)
    assert_equal(spark, warehouse, filled.bootstrap_servers, era=1)
    assert {row["group"] for row in ACTIVITY.read(spark, warehouse).collect()} == before
    assert all(row.complete_since.astimezone(UTC) >= now for row in coverage(spark, warehouse))


def killed(*_: Any) -> Any:
    raise KeyboardInterrupt


class Crash(NamedTuple):
    """In the first batch or a later one; when `commits` had it and `group_states` not; before files were compacted.

    more: records came between the crash and the next run.
    """

    first: bool = False
    between: bool = False
    compacted: bool = False
    more: bool = False


@pytest.mark.parametrize(
    "crash",
    [
        pytest.param(Crash(first=True), id="in-the-first-batch"),
        pytest.param(Crash(first=True, more=True), id="in-the-first-batch-and-more-came"),
        pytest.param(Crash(first=True, between=True, more=True), id="in-the-first-batch-between-two-tables"),
        pytest.param(Crash(), id="in-a-later-batch"),
        pytest.param(Crash(more=True), id="in-a-later-batch-and-more-came"),
        pytest.param(Crash(compacted=True), id="in-a-later-batch-and-its-rows-share-a-file-with-others"),
    ],
)
def test_a_crash_before_the_last_write(
    spark: SparkSession,
    filled: KafkaCluster,
    client: Client,
    make: Maker,
    warehouse: str,
    crash: Crash,
) -> None:
    """Rows of a batch that is not in `coverage` are removed, and the records come again: once, with those that are new.

    In the very first batch, too: by then `coverage` exists.
    """
    before: list[Any] = []
    version = 0
    if not crash.first:
        run(spark, client, warehouse)
        before, version = coverage(spark, warehouse), max(map(version_of, delta_log(warehouse)))
        make.simple(make.name("new"), at(make.topic(records=1), 1))
    run(spark, client, warehouse)
    for file in delta_log(warehouse):
        if version_of(file) > version:
            file.unlink()
    if crash.between:
        shutil.rmtree(Path(GROUP_STATES.path(warehouse), "_delta_log"))
    forget(spark)
    if crash.compacted:
        DeltaTable.forPath(spark, COMMITS.path(warehouse)).optimize().executeCompaction()
    crashed = coverage(spark, warehouse)
    assert crashed == before or crash.first
    assert {row.batch for row in crashed} == {0 if crash.first else before[0].batch}
    if crash.more:
        make.abandoned(make.name("more"), make.topic(records=1))
    run(spark, client, warehouse)
    assert_equal(spark, warehouse, filled.bootstrap_servers)
    run(spark, client, warehouse)
    make.simple(make.name("last"), at(make.topic(records=1), 1))
    assert run(spark, client, warehouse) == Counter(commits=1)
    assert_equal(spark, warehouse, filled.bootstrap_servers)


@pytest.mark.parametrize("again", [False, True], ids=["nothing-new", "and-more-came"])
def test_an_older_state_of_all_tables(
    spark: SparkSession, filled: KafkaCluster, client: Client, make: Maker, warehouse: str, again: bool
) -> None:
    """Put back from a copy: what is missing is read again."""
    run(spark, client, warehouse)
    copy = Path(shutil.copytree(warehouse, f"{warehouse}-copy"))
    topic = make.topic(records=1)
    make.simple(make.name("new"), at(topic, 1))
    run(spark, client, warehouse)
    shutil.rmtree(warehouse)
    copy.rename(warehouse)
    forget(spark)
    if again:
        make.simple(make.name("new"), at(topic, 1))
    assert run(spark, client, warehouse) == Counter(commits=1 + again)
    assert_equal(spark, warehouse, filled.bootstrap_servers)


def forget(spark: SparkSession) -> None:
    """What a session knows of tables whose files somebody changed."""
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]


def delta_log(warehouse: str) -> set[Path]:
    """Files for each version of `coverage`."""
    return {file for file in Path(COVERAGE.path(warehouse), "_delta_log").iterdir() if file.is_file()}


def version_of(file: Path) -> int:
    return int(file.name.lstrip(".").partition(".")[0])


def test_another_cluster_is_refused(
    spark: SparkSession, filled: KafkaCluster, client: Client, other: KafkaCluster, warehouse: str
) -> None:
    """One warehouse is one cluster's."""
    run(spark, client, warehouse)
    stranger = connect(Settings((other.bootstrap_servers,)))
    with pytest.raises(Halted, match=r"a separate --warehouse for each"):
        run(spark, stranger, warehouse)
    stranger.close()
    assert_equal(spark, warehouse, filled.bootstrap_servers)


@pytest.fixture(scope="module")
def other() -> Iterator[KafkaCluster]:
    """A broker whose log may be hurt, and that soon looks for what is too old."""
    soon = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "100"}
    with KafkaCluster(config=FEW_PARTITIONS | soon) as cluster:
        yield cluster


@pytest.fixture
def lonely() -> Iterator[KafkaCluster]:
    """A broker in whose log is nothing yet."""
    with KafkaCluster(config=FEW_PARTITIONS) as cluster:
        yield cluster


def test_a_log_without_groups(spark: SparkSession, other: KafkaCluster, warehouse: str) -> None:
    """Where no group ever committed there is no topic: empty tables, no error; later runs read what comes."""
    bootstrap = other.bootstrap_servers
    client = connect(Settings((bootstrap,)))
    assert run(spark, client, warehouse) == Counter()
    assert all(table.read(spark, warehouse).isEmpty() for table in (*RECORDS, COVERAGE))
    maker = Maker(bootstrap)
    everything(maker, bootstrap)
    maker.close()
    run(spark, client, warehouse)
    client.close()
    assert_equal(spark, warehouse, bootstrap)


def test_a_log_that_was_hurt(spark: SparkSession, other: KafkaCluster, warehouse: str) -> None:
    """Records deleted unread, then the topic created anew: an error that says the way out, which keeps history."""
    bootstrap = other.bootstrap_servers
    client, maker = connect(Settings((bootstrap,))), Maker(bootstrap)
    topic = maker.topic(records=1)
    maker.simple(maker.name("simple"), at(topic, 1))
    run(spark, client, warehouse)
    kept = tables(spark, warehouse)

    group = maker.simple(maker.name("unread"), at(topic, 1))
    delete_all_records(maker, bootstrap)
    for _ in range(2):
        with pytest.raises(Halted, match=r"deleted before they were read\. .*--start-over"):
            run(spark, client, warehouse)
    assert tables(spark, warehouse) == kept
    maker.simple(group, at(topic, 1))
    now = datetime.now(UTC)
    assert run(spark, client, warehouse, start_over=True) == Counter(commits=1)
    held = tables(spark, warehouse)
    assert held.commits == sorted(kept.commits + expected(read(bootstrap)).commits, key=lambda row: row[:2])
    since = [row.complete_since for row in coverage(spark, warehouse)]
    assert [moment is not None and moment.astimezone(UTC) >= now for moment in since].count(True) == 1
    assert run(spark, client, warehouse) == Counter()

    recreate(maker)
    maker.simple(maker.name("after"), at(topic, 1))
    with pytest.raises(Halted, match=r"recreated.*--start-over"):
        run(spark, client, warehouse)
    assert run(spark, client, warehouse, start_over=True) == Counter(commits=1)
    assert tables(spark, warehouse) == held
    assert_equal(spark, warehouse, bootstrap, era=1)
    assert all(row.complete_since.astimezone(UTC) >= now for row in coverage(spark, warehouse))
    assert COMMITS.read(spark, warehouse).count() == len(held.commits) + 1
    maker.close()
    client.close()


def test_what_a_worker_can_not_read(other: KafkaCluster) -> None:
    """Offsets that are deleted, or not there yet; a broker that does not answer: an error that says so."""
    settings = Settings((other.bootstrap_servers,))
    client, maker = connect(settings), Maker(other.bootstrap_servers)
    maker.simple(maker.name("simple"), at(maker.topic(records=1), 1))
    end = max(ends(other.bootstrap_servers).items(), key=lambda item: item[1])
    delete_all_records(maker, other.bootstrap_servers)

    def failure(settings: Settings, offsets: Range) -> str:
        with pytest.raises(HygieneError) as raised:
            fetch.read([offsets], cast(Sink, Few()), settings)
        return str(raised.value)

    assert "lost records, or was recreated, while it was read" in failure(settings, Range(end[0], 0, end[1]))
    assert "ends earlier than a moment ago" in failure(settings, Range(end[0], end[1], end[1] + 9))
    assert "127.0.0.1:1" in failure(Settings(("127.0.0.1:1",), timeout=timedelta(seconds=1)), Range(0, 0, 1))
    maker.close()
    client.close()


def delete_all_records(maker: Maker, bootstrap: str) -> None:
    """By a policy that nobody should give that topic: no broker takes a request to delete its records."""
    wrong = {"cleanup.policy": "delete", "retention.ms": "1"}
    configure(maker, [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in wrong.items()])
    wait_for(lambda: not read(bootstrap))
    configure(maker, [ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)])
    configure(maker, [ConfigEntry("retention.ms", "", incremental_operation=AlterConfigOpType.DELETE)])


def configure(maker: Maker, entries: list[Any]) -> None:
    """Set it, and wait until the broker has heard of it."""
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)
    maker.admin.incremental_alter_configs([resource])[resource].result()
    asked = ConfigResource(ResourceType.TOPIC, TOPIC)
    values = {entry.name: entry.value for entry in entries if entry.value}

    def heard() -> bool:
        found = maker.admin.describe_configs([asked])[asked].result()
        return all(found[name].value == value for name, value in values.items())

    wait_for(heard)


def recreate(maker: Maker) -> None:
    """The broker makes the topic anew as soon as somebody asks for a group's coordinator."""
    maker.admin.delete_topics([TOPIC])[TOPIC].result()


@pytest.mark.parametrize("codec", [1, 2, 3, 4], ids=["gzip", "snappy", "lz4", "zstd"])
def test_compressed_logs(spark: SparkSession, warehouse: str, codec: int) -> None:
    """By each codec of `offsets.topic.compression.codec`, as a broker compresses."""
    with KafkaCluster(config=FEW_PARTITIONS | {"offsets.topic.compression.codec": str(codec)}) as cluster:
        fill_and_compare(spark, cluster, warehouse)


def test_a_log_in_the_format_before_transactions(spark: SparkSession, warehouse: str) -> None:
    """As a broker with that setting writes it, compressed or not: it has neither transactions nor leader epochs."""
    for codec in ("0", "1", "2", "3"):
        old = {"log.message.format.version": "0.10.2", "offsets.topic.compression.codec": codec}
        with KafkaCluster("2.8.2", config=FEW_PARTITIONS | old) as cluster:
            maker = Maker(cluster.bootstrap_servers)
            topic = maker.topic(records=3)
            maker.abandoned(maker.name("classic"), topic, "classic", at(topic, 2))
            gone = maker.simple(maker.name("gone"), at(topic, 3))
            maker.delete_group(gone)
            maker.close()
            compare(spark, cluster, f"{warehouse}-{codec}")


def test_a_log_that_was_compacted(spark: SparkSession, warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the broker's own cleaner: what it left is read, over gaps of any size."""
    often = {
        "log.cleaner.enable": "true",
        "log.cleaner.backoff.ms": "100",
        "offsets.topic.segment.bytes": str(1 << 20),
        "log.cleaner.min.cleanable.ratio": "0.01",
    }
    monkeypatch.setattr(reading, "_BYTES", 1)
    with KafkaCluster(config=FEW_PARTITIONS | often) as cluster:
        bootstrap = cluster.bootstrap_servers
        maker = Maker(bootstrap)
        topic, group = maker.topic(records=1), maker.name("often")
        everything(maker, bootstrap)
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
        written = 0

        def is_compacted() -> bool:
            nonlocal written
            for _ in range(500):
                consumer.commit(offsets=[TopicPartition(topic, 0, 1, "m" * 3000)], asynchronous=False)
            written += 500
            return len(read(bootstrap)) < written

        wait_for(is_compacted, seconds=120)
        consumer.close()
        maker.close()
        settle(bootstrap)
        compare(spark, cluster, warehouse)


def settle(bootstrap: str) -> None:
    """Wait until the cleaner removes nothing more."""
    sizes = [0, 1, 2]

    def same() -> bool:
        sizes.append(len(read(bootstrap)))
        time.sleep(1)
        return len(set(sizes[-3:])) == 1

    wait_for(same, seconds=120)


def fill_and_compare(spark: SparkSession, cluster: KafkaCluster, warehouse: str) -> None:
    maker = Maker(cluster.bootstrap_servers)
    everything(maker, cluster.bootstrap_servers)
    maker.close()
    compare(spark, cluster, warehouse)


def compare(spark: SparkSession, cluster: KafkaCluster, warehouse: str) -> None:
    client = connect(Settings((cluster.bootstrap_servers,)))
    run(spark, client, warehouse)
    client.close()
    held = assert_equal(spark, warehouse, cluster.bootstrap_servers)
    assert held.commits
    assert held.states
