"""Evidence from real tables: what they say of a group, and each way in which they may not decide."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from msgspec import structs

from group_hygiene.evidence.reader import CoveredPartition, Reading, Tables, _refusal, _Request, refused
from group_hygiene.evidence.trust import Log, activity_of, largest_coverage, refusals_by_partition
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity, Commits, LastClient
from group_hygiene.model.groups import NO_LEADER_EPOCH, Fault, GroupType
from group_hygiene.model.reasons import Refusal
from group_hygiene.process.egress import parse_egress
from group_hygiene.spec.connection import ActivitySpec, SecretName
from group_hygiene.spec.storage import Allowed, parse_grant, read_store
from tests.receiving import Receiver
from tests.warehouse import Warehouse, idle, in_use, now, simple

_LOG = Log("cluster-1", None, 50)
_HOUR = timedelta(hours=1)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path)


def _read(warehouse: Warehouse, *groups: str) -> Reading | Refusal:
    return Tables(ActivitySpec(warehouse.uri)).read(groups, 60)


def _activity(warehouse: Warehouse, group: str, log: Log = _LOG, before: Any = None) -> Activity | Refusal:
    reading = _read(warehouse, group)
    if isinstance(reading, Refusal):
        return reading
    return activity_of(group, reading, log, refusals_by_partition(reading, log, before, _HOUR, now()))


def _reading(warehouse: Warehouse) -> Reading:
    reading = _read(warehouse)
    assert isinstance(reading, Reading)
    return reading


def test_times_come_back_as_the_log_has_them(warehouse: Warehouse) -> None:
    """To the millisecond, in UTC; what the table does not know stays unknown."""
    joined, alone = idle("billing", 30), simple("o'hara", 40)
    strange = ["", "back\\slash", "a\nb", "\ue000", "\U0001f600", "%", '"', "it''s", "null"]
    warehouse.write([joined, alone, idle("other"), *map(idle, strange)], covered_to=77)
    found = _activity(warehouse, "billing")
    assert isinstance(found, Activity)
    assert (found.last_commit, found.empty_since) == (joined["last_commit"], joined["empty_since"])
    assert (found.type, found.protocol_type, found.covered_to) == (GroupType.CLASSIC, "consumer", 77)
    assert found.log_partition == partition_of("billing", 50)
    assert found.idle_since == joined["empty_since"]
    quoted = _activity(warehouse, "o'hara")
    assert isinstance(quoted, Activity)
    assert (quoted.simple, quoted.empty_since, quoted.idle_since) == (True, None, alone["last_commit"])
    others = _read(warehouse, *strange)
    assert isinstance(others, Reading)
    assert others.groups.keys() == set(strange)


A = {"client_id": "billing-7", "host": "10.1.2.3", "instance_id": None, "rack_id": "a"}


def test_the_last_client_comes_back(warehouse: Warehouse) -> None:
    """One of those in the last record that names any."""
    at = now() - timedelta(hours=200)
    clients = [A | {"client_id": "c"}, A, A | {"client_id": None}]
    known = idle("known", last_clients=clients, last_clients_at=at)
    warehouse.write([known, idle("alone", last_clients=[A], last_clients_at=at), idle("none", last_clients=[])])
    reading = _read(warehouse, "known", "alone", "none")
    assert isinstance(reading, Reading)
    assert {name: found.last_client for name, found in reading.groups.items()} == {
        "known": LastClient("", "10.1.2.3", None, "a", 2, at),
        "alone": LastClient("billing-7", "10.1.2.3", None, "a", 0, at),
        "none": None,
    }


@pytest.mark.parametrize(
    "clients",
    [
        pytest.param([A] * 6, id="too-many"),
        pytest.param([A | {"client_id": "x" * 256}], id="too-long-an-id"),
        pytest.param([A, A | {"host": "x" * 256}], id="too-long-a-host"),
    ],
)
def test_more_of_clients_than_a_pipeline_writes_is_refused(warehouse: Warehouse, clients: list[dict[str, Any]]) -> None:
    """Like any other text that is too long: another program wrote that table."""
    warehouse.write([idle("billing", last_clients=clients, last_clients_at=now())])
    found = _read(warehouse, "billing")
    assert isinstance(found, Refusal)
    assert found.reason == reasons.EVIDENCE_UNREADABLE
    assert "last clients" in found.message


def test_tables_of_a_newer_pipeline_are_not_read(warehouse: Warehouse) -> None:
    """Their columns may mean something else by then; it says what to do."""
    warehouse.write([idle("billing")], version=2)
    found = _read(warehouse, "billing")
    assert isinstance(found, Refusal)
    assert found.reason == reasons.EVIDENCE_UNREADABLE
    assert "version 2, and this operator reads version 1" in found.message


def test_topics_are_read_of_old_commits_in_use_alone(warehouse: Warehouse) -> None:
    """The first and the last commit of each; of groups that have none so old, and of all not in use, nothing."""
    aged, fresh = in_use("aged", orders=160, old=200), in_use("fresh", orders=10)
    warehouse.write([aged, fresh, in_use("none"), idle("empty", 300, offsets=aged["offsets"])])
    tables, older = Tables(ActivitySpec(warehouse.uri)), now() - timedelta(hours=120)
    names = ("aged", "fresh", "none", "empty")
    asked, unasked = tables.read(names, 60, older), tables.read(names, 60)
    assert isinstance(asked, Reading)
    assert isinstance(unasked, Reading)
    first = {offset["topic"]: offset["commit_time"] for offset in aged["offsets"] if offset["partition"] == 0}
    topics = {topic: Commits(at, at + timedelta(minutes=2)) for topic, at in first.items()}
    assert {name: found.by_topic for name, found in asked.groups.items()} == dict.fromkeys(names) | {"aged": topics}
    assert {found.by_topic for found in unasked.groups.values()} == {None}
    assert replace(asked.groups["aged"], by_topic=None) == unasked.groups["aged"]


def test_reads_of_the_log_bound_its_times(warehouse: Warehouse) -> None:
    """Of a group, and of each topic of one in use; brokers go by the times in the records all the same."""
    aged, later = in_use("aged", orders=160, old=200), now() - timedelta(hours=50)
    aged |= {"topics_after": [("orders", later), ("gone", now())]}
    warehouse.write([idle("billing", 100, last_commit_after=later), idle("left", 100, state_after=later), aged])
    reading = Tables(ActivitySpec(warehouse.uri)).read(("billing", "left", "aged"), 60, now())
    assert isinstance(reading, Reading)
    found = reading.groups
    assert (found["billing"].idle_since, found["left"].idle_since) == (later, later)
    topics = found["aged"].by_topic
    assert topics is not None
    assert topics["orders"] == Commits(min(times(aged, "orders")), later)
    assert topics["old"] == Commits(min(times(aged, "old")), max(times(aged, "old")))


def times(row: dict[str, Any], topic: str) -> list[Any]:
    return [offset["commit_time"] for offset in row["offsets"] if offset["topic"] == topic]


def _nothing(warehouse: Warehouse) -> None:
    """No pipeline ever ran."""


def _with(*rows: dict[str, Any], **changes: Any) -> Callable[[Warehouse], None]:
    """Writes these rows, or that of the group `billing`, with these changes of the whole."""
    return lambda warehouse: warehouse.write([*rows] or [idle("billing")], **changes)


def _no_coverage(warehouse: Warehouse) -> None:
    warehouse.write_activity([idle("billing")])


def _stale(warehouse: Warehouse) -> None:
    warehouse.write([idle("billing")], read_at=now() - timedelta(minutes=61))


def _from_the_future(warehouse: Warehouse) -> None:
    warehouse.write([idle("billing")], read_at=now() + timedelta(minutes=6))


def _other_cluster(warehouse: Warehouse) -> None:
    Warehouse(warehouse.folder, cluster="cluster-2").write([idle("billing")])


def _its_partition_is_not_covered(warehouse: Warehouse) -> None:
    own = partition_of("billing", 50)
    warehouse.write([idle("billing")], only=[partition for partition in range(50) if partition != own])


def _recreated_log(warehouse: Warehouse) -> None:
    warehouse.write([idle("billing")], topic_id="00000000-0000-0000-0000-000000000009")


def _older_activity_put_back(warehouse: Warehouse) -> None:
    warehouse.write_activity([idle("billing")])
    copy = shutil.copytree(warehouse.folder / "activity", warehouse.folder / "copy")
    warehouse.write([idle("billing", 1)])
    shutil.rmtree(warehouse.folder / "activity")
    copy.rename(warehouse.folder / "activity")


def _older_activity_has_later_versions(warehouse: Warehouse) -> None:
    """Whatever else writes into it, its versions get numbers that the newer one had."""
    _older_activity_put_back(warehouse)
    for _ in range(3):
        DeltaTable(warehouse.folder / "activity").alter.set_table_properties({"delta.appendOnly": "false"})


def _another_activity_table(warehouse: Warehouse) -> None:
    warehouse.write([idle("billing")])
    warehouse.write([idle("billing")])
    shutil.rmtree(warehouse.folder / "activity")
    for _ in range(5):
        warehouse.write_activity([idle("billing")])


def _data_file_is_gone(warehouse: Warehouse) -> None:
    warehouse.write([idle("billing")])
    for file in (warehouse.folder / "activity").glob("*.parquet"):
        file.unlink()


def _data_file_is_cut_off(warehouse: Warehouse) -> None:
    warehouse.write([idle("billing")])
    for file in (warehouse.folder / "activity").glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:100])


def _delta_log_is_broken(warehouse: Warehouse) -> None:
    warehouse.write([idle("billing")])
    for file in (warehouse.folder / "coverage" / "_delta_log").glob("*.json"):
        file.write_text("{")


def _other_columns(warehouse: Warehouse) -> None:
    warehouse.write([idle("billing")])
    shutil.rmtree(warehouse.folder / "coverage")
    shutil.copytree(warehouse.folder / "activity", warehouse.folder / "coverage")


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        pytest.param(_nothing, reasons.EVIDENCE_MISSING, id="missing"),
        pytest.param(_no_coverage, reasons.EVIDENCE_MISSING, id="first-run-has-not-ended"),
        pytest.param(_with(only=[]), reasons.EVIDENCE_MISSING, id="nothing-covered"),
        pytest.param(_with(read_at=None), reasons.EVIDENCE_INCOMPLETE, id="never-read-to-an-end"),
        pytest.param(_with(idle("other")), reasons.EVIDENCE_MISSING, id="group-not-in-it"),
        pytest.param(_stale, reasons.EVIDENCE_STALE, id="stale"),
        pytest.param(_from_the_future, reasons.EVIDENCE_STALE, id="from-the-future"),
        pytest.param(_other_cluster, reasons.EVIDENCE_OF_ANOTHER_CLUSTER, id="of-another-cluster"),
        pytest.param(_its_partition_is_not_covered, reasons.EVIDENCE_INCOMPLETE, id="partition-uncovered"),
        pytest.param(
            _with(idle("billing", log_partition=(partition_of("billing", 50) + 1) % 50)),
            reasons.EVIDENCE_INCOMPLETE,
            id="partitions-were-added",
        ),
        pytest.param(_older_activity_put_back, reasons.EVIDENCE_WENT_BACK, id="older-activity-put-back"),
        pytest.param(
            _older_activity_has_later_versions, reasons.EVIDENCE_WENT_BACK, id="older-activity-has-later-versions"
        ),
        pytest.param(_another_activity_table, reasons.EVIDENCE_WENT_BACK, id="another-activity-table"),
        pytest.param(_data_file_is_gone, reasons.EVIDENCE_UNREADABLE, id="data-file-gone"),
        pytest.param(_data_file_is_cut_off, reasons.EVIDENCE_UNREADABLE, id="data-file-cut-off"),
        pytest.param(_delta_log_is_broken, reasons.EVIDENCE_UNREADABLE, id="delta-log-broken"),
        pytest.param(_other_columns, reasons.EVIDENCE_UNREADABLE, id="other-columns"),
        pytest.param(_with(idle("billing", type="Quorum")), reasons.EVIDENCE_UNREADABLE, id="type-of-a-later-version"),
        pytest.param(
            _with(idle("billing"), idle("billing", 1)), reasons.EVIDENCE_UNREADABLE, id="by-two-pipelines-at-once"
        ),
    ],
)
def test_what_may_not_decide(warehouse: Warehouse, prepare: Callable[[Warehouse], None], reason: str) -> None:
    """Each defect keeps the group, with the reason that says what to mend, in one readable line."""
    prepare(warehouse)
    found = _activity(warehouse, "billing")
    assert isinstance(found, Refusal)
    assert found.reason == reason
    assert found.message
    assert len(found.message) < 400
    assert "\n" not in found.message
    assert "\x1b" not in found.message


def test_a_recreated_log_is_another_one(warehouse: Warehouse) -> None:
    """By the topic's id."""
    _recreated_log(warehouse)
    same = Log("cluster-1", "00000000-0000-0000-0000-000000000009", 50)
    assert isinstance(_activity(warehouse, "billing", same), Activity)
    other = _activity(warehouse, "billing", Log("cluster-1", "00000000-0000-0000-0000-00000000000a", 50))
    assert isinstance(other, Refusal)
    assert other.reason == reasons.EVIDENCE_INCOMPLETE


@pytest.mark.parametrize(
    ("leader_epoch", "end", "reason"),
    [
        pytest.param(5, 1000, None, id="all-is-there"),
        pytest.param(5, 2000, None, id="and-more"),
        pytest.param(5, 999, reasons.EVIDENCE_INCOMPLETE, id="its-end-is-gone"),
        pytest.param(5, NO_LEADER_EPOCH, reasons.EVIDENCE_INCOMPLETE, id="epoch-unknown-to-the-leader"),
        pytest.param(5, Fault("NO_ANSWER", "no answer"), reasons.EVIDENCE_UNREADABLE, id="no-answer"),
        pytest.param(5, None, reasons.EVIDENCE_UNREADABLE, id="not-asked"),
        pytest.param(NO_LEADER_EPOCH, None, None, id="a-log-without-epochs"),
        pytest.param(None, None, reasons.EVIDENCE_INCOMPLETE, id="tables-of-an-older-release"),
    ],
)
def test_a_log_that_lost_its_end(
    warehouse: Warehouse, leader_epoch: int | None, end: int | Fault | None, reason: str | None
) -> None:
    """Tables that hold what an unclean election has cut off since, or don't tell, decide nothing."""
    warehouse.write([idle("billing")], leader_epoch=leader_epoch)
    found = _activity(
        warehouse, "billing", replace(_LOG, epoch_ends={} if end is None else dict.fromkeys(range(50), end))
    )
    assert (found.reason if isinstance(found, Refusal) else None) == reason


def test_one_bad_partition_leaves_the_others(warehouse: Warehouse) -> None:
    """Groups elsewhere in the log are judged."""
    other = next(name for name in map(str, range(100)) if partition_of(name, 50) != partition_of("billing", 50))
    warehouse.write([idle("billing"), idle(other)], only=[partition_of(other, 50)])
    assert isinstance(_activity(warehouse, other), Activity)
    assert isinstance(_activity(warehouse, "billing"), Refusal)


def test_only_the_version_that_coverage_names_counts(warehouse: Warehouse) -> None:
    """Neither a run that has not covered yet what it merged, nor an older state that Delta put back as the newest."""
    warehouse.write([idle("billing", 50)])
    warehouse.write([idle("billing", 5)])
    five = _activity(warehouse, "billing")
    DeltaTable(warehouse.folder / "activity").restore(0)
    again = _activity(warehouse, "billing")
    assert isinstance(five, Activity)
    assert isinstance(again, Activity)
    assert again.empty_since == five.empty_since


@pytest.mark.parametrize(
    ("earlier", "reason"),
    [
        pytest.param({}, None, id="as-before"),
        pytest.param({"covered_to": 999}, None, id="further-than-before"),
        pytest.param({"covered_to": 1001}, reasons.EVIDENCE_WENT_BACK, id="less-than-before"),
    ],
)
def test_tables_must_not_go_back(warehouse: Warehouse, earlier: dict[str, Any], reason: str | None) -> None:
    """Tables that cover less than an earlier look saw are old ones, however fresh they call themselves."""
    warehouse.write([idle("billing")], **earlier)
    largest = largest_coverage(_reading(warehouse), _LOG, None, "uid-1", now())
    warehouse.write([idle("billing")])
    found = _activity(warehouse, "billing", before=largest)
    assert (found.reason if isinstance(found, Refusal) else None) == reason


def test_both_tables_put_back_together(warehouse: Warehouse, tmp_path: Path) -> None:
    """A whole warehouse of yesterday agrees with itself, and still gives less than was seen."""
    warehouse.folder = tmp_path / "now"
    warehouse.write([idle("billing")])
    shutil.copytree(warehouse.folder, tmp_path / "yesterday")
    warehouse.write([idle("billing", 1)])
    largest = largest_coverage(_reading(warehouse), _LOG, None, "uid-1", now())
    warehouse.folder = tmp_path / "yesterday"
    found = _activity(warehouse, "billing", before=largest)
    assert isinstance(found, Refusal)
    assert found.reason == reasons.EVIDENCE_WENT_BACK


def test_tables_that_were_put_back_decide_when_they_have_read_on(warehouse: Warehouse) -> None:
    """Though their version is lower than it was: no older state covers more than was ever seen. And so they go on."""
    warehouse.write([idle("billing")])
    yesterday = shutil.copytree(warehouse.folder, warehouse.folder.with_name("yesterday"))
    for _ in range(5):
        warehouse.write([idle("billing", 1)], covered_to=1100)
    largest = largest_coverage(_reading(warehouse), _LOG, None, "uid-1", now())
    shutil.rmtree(warehouse.folder)
    yesterday.rename(warehouse.folder)
    further = {0: 1101}
    for ends, reason in (
        (None, reasons.EVIDENCE_WENT_BACK),
        (dict.fromkeys(range(50), 1100), reasons.EVIDENCE_WENT_BACK),
        (dict.fromkeys(range(50), 1100) | {1: 1099} | further, reasons.EVIDENCE_WENT_BACK),
        (dict.fromkeys(range(50), 1100) | {2: 1102} | further, None),
        (dict.fromkeys(range(50), 1100) | {2: 1102} | further, None),
    ):
        if ends is not None:
            warehouse.write([idle("billing", 2)], ends=ends)
        found = _activity(warehouse, "billing", before=largest)
        assert (found.reason if isinstance(found, Refusal) else None) == reason
        largest = largest_coverage(_reading(warehouse), _LOG, largest, "uid-1", now())


def test_what_is_remembered_never_falls() -> None:
    """Per partition the furthest of all looks; a log that was made anew begins anew, another cluster adds nothing."""
    first = Reading(
        "cluster-1",
        "t",
        7,
        {
            0: CoveredPartition("a", 10, now(), leader_epoch=NO_LEADER_EPOCH),
            1: CoveredPartition("a", 20, now(), leader_epoch=NO_LEADER_EPOCH),
        },
    )
    log = Log("cluster-1", "a", 2)
    largest = largest_coverage(first, log, None, "uid-1", now())
    assert largest is not None
    assert (largest.to, largest.table, largest.version) == ({0: 10, 1: 20}, "t", 7)
    less = Reading(
        "cluster-1",
        "t",
        6,
        {
            0: CoveredPartition("a", 11, now(), leader_epoch=NO_LEADER_EPOCH),
            1: CoveredPartition("a", 19, now(), leader_epoch=NO_LEADER_EPOCH),
        },
    )
    later = largest_coverage(less, log, largest, "uid-1", now())
    assert later is not None
    assert (later.to, later.version) == ({0: 11, 1: 20}, 7)
    recreated = Reading(
        "cluster-1",
        "t",
        8,
        {
            0: CoveredPartition("b", 1, now(), leader_epoch=NO_LEADER_EPOCH),
            1: CoveredPartition("a", 500, now(), leader_epoch=NO_LEADER_EPOCH),
        },
    )
    begun = largest_coverage(recreated, Log("cluster-1", "b", 2), later, "uid-1", now())
    assert begun is not None
    assert begun.to == {0: 1}
    assert largest_coverage(Reading("cluster-2", "t", 9, {}), log, largest, "uid-1", now()) is None
    assert refusals_by_partition(first, log, structs.replace(largest, table="other", version=99), _HOUR, now()) == {}


@pytest.mark.parametrize(
    ("group", "partition"),
    [
        # By `Utils.abs(group.hashCode()) % 50` in Java.
        pytest.param("", 0, id="empty"),
        pytest.param("a", 47, id="one-letter"),
        pytest.param("console-consumer-48213", None, id="ordinary"),
        pytest.param("polygenelubricants", 0, id="the-number-without-a-counterpart"),
        pytest.param("\U0001f600", None, id="beyond-the-first-plane"),
    ],
)
def test_partition_of_a_group_is_javas(group: str, partition: int | None) -> None:
    """As Kafka's coordinator places it: String.hashCode over UTF-16, without its sign."""
    if partition is None:
        code = 0
        for unit in memoryview(group.encode("utf-16-le")).cast("H"):
            code = (code * 31 + unit) % 2**32
        partition = abs(code - 2**32 if code >= 2**31 else code) % 50
    assert partition_of(group, 50) == partition


@pytest.mark.slow
def test_a_hundred_thousand_groups(warehouse: Warehouse) -> None:
    """One query answers for a thousand candidates of 100,000 groups, and one for all of them."""
    row = idle("")
    warehouse.write({**row, "group": f"group-{number}"} for number in range(100_000))
    some = [f"group-{number}" for number in range(0, 100_000, 100)]
    reading = _read(warehouse, *some, "group-of-nobody")
    assert isinstance(reading, Reading)
    assert reading.groups.keys() == set(some)
    every = _read(warehouse, *(f"group-{number}" for number in range(100_000)))
    assert isinstance(every, Reading)
    assert len(every.groups) == 100_000


def test_a_store_that_hangs_delays_no_caller() -> None:
    """The caller gets its answer in time, and what read for it is gone."""
    before = _children()
    with Receiver(answers={"/b/x/coverage/_delta_log/_last_checkpoint": None}) as receiver:
        texts = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ALLOW_HTTP": "true"}
        store = read_store("s3://b/x", "bucket", {**texts, "AWS_ENDPOINT_URL": receiver.url().rstrip("/")})
        tables = Tables(ActivitySpec("s3://b/x", secret_ref=SecretName("bucket")), store, parse_egress(["127.0.0.1"]))
        for _ in range(2):
            found = tables.read(["billing"], 4)
            assert isinstance(found, Refusal)
            assert found.reason == reasons.EVIDENCE_UNREADABLE
            assert "did not answer within 4 s" in found.message
    assert _children() <= before


def _children() -> set[str]:
    """The processes that this one has started, and that are there."""
    return {child for task in Path("/proc/self/task").glob("*/children") for child in task.read_text().split()}


def test_no_error_shows_a_secret() -> None:
    """Object stores quote the request that failed, with whatever signed it."""
    options = {"AZURE_STORAGE_SAS_TOKEN": "sig=to/ken", "AWS_SECRET_ACCESS_KEY": "hunter2"}
    error = OSError("GET http://x/y?sig=to%2Fken&se=1 (hunter2)\n \x1b[31mdenied\x1b[0m sig=to/ken")
    found = _refusal(_Request("s3://bucket/main", options, (), None), error)
    assert found.message == "the tables can't be read: GET http://x/y?*** (***) denied ***"


def test_no_group_id_blinds_the_others(warehouse: Warehouse) -> None:
    """Any text may be an id: as long as can be, of all characters for private use, or none that UTF-8 can write."""
    strange = ["".join(map(chr, range(0xE000, 0xF900))), "','", "\ud800", "a" * 32_000, "\0"]
    written = [name for name in strange if name != "\ud800"]
    warehouse.write([idle("billing"), *map(idle, written)])
    reading = _read(warehouse, "billing", *strange)
    assert isinstance(reading, Reading)
    assert reading.groups.keys() == {"billing", *written}


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        pytest.param("s3://bucket/main", True, id="object-store"),
        pytest.param("{dir}/main", True, id="inside"),
        pytest.param("file://{dir}/main", True, id="inside-as-url"),
        pytest.param("{dir}", True, id="the-folder-itself"),
        pytest.param("{dir}-more/main", False, id="beside"),
        pytest.param("{dir}/../main", False, id="out-by-dots"),
        pytest.param("{dir}/%2e%2e/main", True, id="no-escapes-in-a-path"),
        pytest.param("file://{dir}/%2e%2e/main", False, id="out-by-escapes"),
        pytest.param("{dir}/link/main", False, id="out-by-a-link"),
        pytest.param("/etc", False, id="elsewhere"),
    ],
)
def test_paths_only_where_they_are_allowed(tmp_path: Path, uri: str, allowed: bool) -> None:
    """A KafkaConnection names a path of the operator's machine only in folders that were opened for that."""
    folder = tmp_path / "warehouse"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    spec, grants = ActivitySpec(uri.format(dir=folder)), (parse_grant("kafka=s3://bucket/main"),)
    assert (refused(spec, "kafka", Allowed((folder,), grants)) is None) is allowed
    assert (refused(spec, "kafka", Allowed(identity=grants)) is None) is (not spec.local)
