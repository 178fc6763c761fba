"""`keep`, `restore` and `history` on a real broker with a ledger that an operator owns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer

from group_hygiene.engine.executor import open_ledger
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model import reasons
from group_hygiene.model.entries import (
    Change,
    HistoryEntry,
    Intent,
    KeepRequest,
    Mark,
    OutcomeType,
    Removal,
    SavedOffset,
)
from group_hygiene.model.groups import CommittedOffset, Partition
from group_hygiene.process.clock import SystemClock
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.backups import backup
from tests.cli.conftest import Run
from tests.kafka.books import configured
from tests.kafka.makers import Maker, at, soon

NOW = datetime.now(UTC).replace(microsecond=0)
LATER = NOW + timedelta(days=30)
# kafka-python's consumers leave sockets for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")


def deleted(client: Client, group: str, topic: str, offset: int = 3, **changes: Any) -> list[Change]:
    """What the ledger holds of a group that a policy deleted just now."""
    ids = kafka_cluster.topic_ids(client, [topic], soon())
    kept: dict[str, Any] = {"at": NOW, "expires": LATER, "topic_ids": {topic: str(ids[topic])}}
    saved = backup(group, {topic: [SavedOffset(0, offset, -1, "", None)]}, **(kept | changes))
    outcome = HistoryEntry(
        group=group,
        id="id-1",
        at=NOW,
        what=OutcomeType.DELETED,
        reason=reasons.DELETED,
        message="deleted",
        policy="kafka/unused",
        policy_uid="uid-1",
        generation=1,
        expires=LATER,
    )
    return [saved, outcome]


def keeps(ledger: Ledger) -> dict[str, KeepRequest]:
    """The requests as the operator reads them."""
    ledger.read_on(soon())
    return ledger.contents.keeps


def existing(make: Maker) -> str:
    """A group."""
    return make.simple(make.name(), at(make.topic(records=3), 2))


def test_keep_reaches_the_operator(on_ledger: Run, ledger: Ledger, make: Maker) -> None:
    """With who, why and until when, and in which ledger; the operator goes on writing, as no process took its place."""
    group = existing(make)
    answer = on_ledger("keep", group, "--for", "1d12h", "--why", "needed", "--by", "me")
    assert answer.code == 0
    assert answer.err.startswith("Note: the change is in this ledger only")
    request = keeps(ledger)[group]
    assert (request.by, request.why, request.until - request.at) == ("me", "needed", timedelta(hours=36))
    until = request.until.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert answer.out.splitlines()[1].split() == [group, until, "36h", "me", "needed"]
    ledger.write([Mark(policy_uid="u", group=group, policy="p", digest="d", since=NOW, due=LATER)])
    assert ledger.contents.owner is not None
    assert ledger.contents.owner.installation == "theirs"


@pytest.mark.parametrize(
    ("end", "says"),
    [
        pytest.param(None, "its deletion had begun and has no outcome yet", id="stays-open"),
        pytest.param({"what": OutcomeType.DELETED}, "was deleted just now", id="deleted"),
        pytest.param(
            {"what": OutcomeType.NOT_DELETED, "reason": reasons.INTERRUPTED},
            "some of its offsets were deleted",
            id="a-part-of-it",
        ),
        pytest.param(
            {"what": OutcomeType.OFFSETS_DELETED, "topics": ("t",)}, "some of its offsets were deleted", id="offsets"
        ),
        pytest.param({"what": OutcomeType.NOT_DELETED, "reason": reasons.KEEP_REQUESTED}, "", id="kept"),
    ],
)
def test_keep_says_what_a_deletion_took_meanwhile(
    on_ledger: Run, ledger: Ledger, make: Maker, end: dict[str, Any] | None, says: str
) -> None:
    """One that had begun before: whatever became of it, or may yet become of it, nobody is told that all is kept."""
    group = existing(make)
    fields: dict[str, Any] = {"group": group, "id": "id-1", "at": NOW, "policy": "kafka/unused", "policy_uid": "uid-1"}
    fields |= {"generation": 1, "expires": LATER}
    intent = Intent(type="Classic", deadline=NOW, **fields)
    ledger.write([intent])

    def operate() -> None:
        """As the operator does, once it sees the request."""
        wait_for(lambda: group in keeps(ledger))
        if end is not None:
            ledger.write([HistoryEntry(message="", **fields | {"reason": str(end["what"])} | end), Removal(intent.key)])

    with ThreadPoolExecutor(1) as pool:
        operating = pool.submit(operate)
        answer = on_ledger("keep", group, "--for", "1d", "--why", "needed", "--by", "me")
        operating.result()
    assert group in keeps(ledger)
    assert (says in answer.err, answer.code) == (True, 1 if says else 0), answer.err


def test_keep_is_not_shortened_by_accident(on_ledger: Run, ledger: Ledger, make: Maker) -> None:
    """Who asked for longer is named, and is not overwritten unless that is said; other groups get theirs."""
    group, other = existing(make), existing(make)
    on_ledger("keep", group, "--for", "30d", "--why", "needed", "--by", "anna")
    until = keeps(ledger)[group].until
    answer = on_ledger("keep", group, other, "--for", "1d", "--why", "mine", "--by", "ben", "-o", "json")
    assert answer.code == 1
    assert f"group {group}: anna asked to keep it until" in answer.err
    assert [row["group"] for row in answer.json["protected"]] == [other]
    assert (keeps(ledger)[group].by, keeps(ledger)[group].until) == ("anna", until)
    assert on_ledger("keep", group, "--for", "1d", "--why", "mine", "--by", "ben", "--replace").code == 0
    assert keeps(ledger)[group].by == "ben"
    assert on_ledger("keep", group, "--for", "60d", "--why", "longer", "--by", "eve").code == 0


@pytest.mark.parametrize("days", [-2, 2], ids=["behind", "ahead"])
def test_keep_counts_by_the_clock_of_the_broker(
    on_ledger: Run, ledger: Ledger, make: Maker, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """Also from a computer whose clock is wrong: a day is a day, and a request that lasts longer is not shortened."""
    group, longer, shorter = existing(make), existing(make), existing(make)
    began = datetime.now(UTC)
    for name, hours in ((longer, 36), (shorter, 12)):
        until = began + timedelta(hours=hours)
        ledger.write([KeepRequest(group=name, until=until, why="needed", by="anna", at=began)])
    monkeypatch.setattr(SystemClock, "now", lambda _: datetime.now(UTC) + timedelta(days=days))
    answer = on_ledger("keep", group, longer, shorter, "--for", "24h", "--why", "needed", "--by", "me", "-o", "json")
    assert f"the clock of this computer and that of the broker are {abs(days) * 24 - 1}h" in answer.err or (
        f"{abs(days) * 24}h" in answer.err
    )
    # The broker may be the one that is wrong: then they end too early once it is right.
    assert any("they end too early" in error for error in answer.json["errors"]) is (days > 0)
    assert f"group {longer}: anna asked to keep it until" in answer.err
    assert (answer.code, [row["group"] for row in answer.json["protected"]]) == (1, [group, shorter])
    assert on_ledger("keep", shorter, "--for", "24h", "--why", "needed", "--by", "me").code == (1 if days > 0 else 0)
    requests = keeps(ledger)
    assert requests[longer].by == "anna"
    for name in (group, shorter):
        assert timedelta(0) <= requests[name].at - began + timedelta(seconds=1) < timedelta(minutes=10)
        assert requests[name].until - requests[name].at == timedelta(hours=24)


@pytest.mark.parametrize(
    ("was", "says"),
    [
        pytest.param("never", "there is no such group; the request protects it if it appears", id="never-was"),
        pytest.param("deleted", "there is no such group: kafka/unused deleted it at", id="deleted"),
        pytest.param("gone", "there is no such group; the request", id="gone"),
    ],
)
def test_keep_of_a_group_that_does_not_exist(
    on_ledger: Run, client: Client, ledger: Ledger, make: Maker, was: str, says: str
) -> None:
    """`keep` reports it and fails, although the request is written: users must not rely on it."""
    group, topic = make.name(), make.topic(records=3)
    if was == "deleted":
        ledger.write(deleted(client, group, topic))
    elif was == "gone":
        make.simple(group, at(topic, 2))
        make.delete_group(group)
    asked = ("keep", group, "--for", "1d", "--why", "needed", "--by", "me", "-o", "json")
    answer = on_ledger(*asked)
    assert (answer.code, f"Error: group {group}: {says}" in answer.err) == (1, True), answer.err
    assert (answer.json["protected"][0]["exists"], group in keeps(ledger)) == (False, True)
    ignored = on_ledger(*asked, "--ignore-not-found")
    assert (ignored.code, f"Note: group {group}: {says}" in ignored.err) == (0, True), ignored.err


def test_keep_before_the_first_deletion(on_ledger: Run, run: Run, kafka: KafkaCluster, make: Maker) -> None:
    """Without a ledger it says what to do; with --create-ledger the operator takes the request over."""
    group, topic = existing(make), make.name("ledger")
    where = ("--bootstrap-server", kafka.bootstrap_servers, "--ledger-topic", topic)
    asked = ("keep", group, *where, "--for", "1d", "--why", "needed", "--by", "me")
    refused = run(*asked)
    assert (refused.code, "--create-ledger of keep and delete" in refused.err) == (1, True)
    assert topic not in make.admin.list_topics().topics
    assert run(*asked, "--create-ledger").code == 0
    client = connect(Settings((kafka.bootstrap_servers,)))
    settings = LedgerSettings(installation="theirs", writer=f"operator-{topic}", topic=topic)
    theirs = open_ledger(client, settings, soon(), create=False, claim=True)
    assert theirs is not None
    assert (group in theirs.contents.keeps, theirs.contents.owner and theirs.contents.owner.installation) == (
        True,
        "theirs",
    )
    client.close()


def test_keep_is_removed(on_ledger: Run, ledger: Ledger, make: Maker) -> None:
    """And a group that nobody asked to keep is told."""
    group, other = existing(make), make.name()
    assert (
        on_ledger("keep", group, "--for", "30d", "--why", "needed", "-o", "json").json["protected"][0]["for"] == "720h"
    )
    answer = on_ledger("keep", group, other, "--remove", "-o", "json")
    assert (answer.code, answer.json["removed"]) == (0, [group])
    assert f"group {other}: there is no request to keep it" in answer.err
    assert group not in keeps(ledger)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(("keep", "a"), "--for and --why must be given", id="keep-nothing"),
        pytest.param(("keep", "", "--for", "1d", "--why", "x"), "GROUP must not be empty", id="keep-empty-name"),
        pytest.param(("keep", "--for", "1d", "--why", "x"), "a GROUP, or --from-file with groups", id="keep-no-name"),
        pytest.param(("keep", "a", "--for", "1d", "--why", " "), "--for and --why must be given", id="keep-blank"),
        pytest.param(("keep", "a", "--for", "2w", "--why", "x"), "1d12h: use days, like 14d", id="keep-week"),
        pytest.param(("keep", "a", "--for", "0s", "--why", "x"), "from 1ms to 3650d", id="keep-zero"),
        pytest.param(("keep", "a", "--for", "9999d", "--why", "x"), "from 1ms to 3650d", id="keep-long"),
        pytest.param(("keep", "a", "--remove", "--for", "1d"), "--remove can't be given with", id="keep-remove"),
        pytest.param(("restore",), "or --policy must be given", id="restore-nothing"),
        pytest.param(("restore", "a", "--policy", "k/l"), "or --policy must be given", id="restore-both"),
        pytest.param(("restore", "--policy", "k/l"), "--deleted-after must be given", id="restore-no-time"),
        pytest.param(("restore", "a", "--at", "noon"), "is not a time like", id="restore-noon"),
        pytest.param(("restore", "a", "--at", "2030-01-31T12:00:00"), "has no time zone", id="restore-no-zone"),
        pytest.param(("history", "--since", "soon"), "is not a duration like", id="history-since"),
        pytest.param(("history", "--policy", "unused"), "--policy must be NAMESPACE/NAME", id="history-policy"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, arguments: tuple[str, ...], says: str) -> None:
    """Before any cluster is asked."""
    answer = run(*arguments, "--bootstrap-server", "localhost:1")
    assert answer.code == 1
    assert says in answer.err


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("history",), id="history"),
        pytest.param(("keep", "a", "--for", "1d", "--why", "x"), id="keep"),
        pytest.param(("restore", "a"), id="restore"),
    ],
)
def test_cluster_without_ledger(run: Run, kafka: KafkaCluster, make: Maker, arguments: tuple[str, ...]) -> None:
    """It is told, and none is made."""
    topic = make.name("none")
    answer = run(*arguments, "--bootstrap-server", kafka.bootstrap_servers, "--ledger-topic", topic)
    assert answer.code == 1
    assert f"this cluster has no ledger: there is no topic {topic}" in answer.err
    assert topic not in make.admin.list_topics().topics


@pytest.mark.parametrize(
    ("command", "options"),
    [
        pytest.param("keep", ("--for", "1d", "--why", "x"), id="keep"),
        pytest.param("keep", ("--remove",), id="keep-remove"),
        pytest.param("restore", (), id="restore"),
        pytest.param("delete", ("--yes", "--force", "--without-connection"), id="delete"),
        pytest.param("delete-offsets", ("--yes", "--force", "--without-connection"), id="delete-offsets"),
    ],
)
def test_a_ledger_whose_settings_are_wrong(
    on_ledger: Run, client: Client, ledger: Ledger, make: Maker, command: str, options: tuple[str, ...]
) -> None:
    """Each command refuses as the operator does, and names the setting; once it is set back, the command succeeds."""
    topic, group, wanted, gone = make.topic(records=5), make.name("old"), make.name("wanted"), make.name("gone")
    make.abandoned(group, topic)
    asked = KeepRequest(group=wanted, until=LATER, why="needed", by="ann", at=NOW)
    if command == "delete-offsets":
        # They are of a topic that no member reads.
        make.join(group, make.topic(records=1))
    ledger.write([*deleted(client, gone, topic), asked])
    name = {"keep": wanted, "restore": gone}.get(command, group)
    before = kafka_offsets.committed_offsets(client, {group: None, wanted: None, gone: None}, Deadline(60))
    more = ["--ignore-not-found", "--replace"] if "--why" in options else []
    arguments = (*options, *(["--topic", topic] if command == "delete-offsets" else more))
    configured(make, ledger.topic, {"cleanup.policy": "delete"})
    answer = on_ledger(command, name, *arguments)
    assert answer.code == 1
    assert "cleanup.policy must be compact, not delete" in answer.err
    assert keeps(ledger) == {wanted: asked}
    assert kafka_offsets.committed_offsets(client, {group: None, wanted: None, gone: None}, Deadline(60)) == before
    configured(make, ledger.topic, {"cleanup.policy": "compact"})
    answer = on_ledger(command, name, *arguments)
    assert answer.code == 0, answer.err
    after = kafka_offsets.committed_offsets(client, {group: None, wanted: None, gone: None}, Deadline(60))
    assert (keeps(ledger) != {wanted: asked}, after != before) == (command == "keep", command != "keep")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "says"),
    [
        pytest.param(
            {"transaction.state.log.replication.factor": "3"}, "there is no transaction coordinator", id="none"
        ),
        pytest.param({"transaction.max.timeout.ms": "30000"}, "transaction.max.timeout.ms of the brokers", id="short"),
    ],
)
def test_brokers_without_transactions(run: Run, config: dict[str, str], says: str) -> None:
    """Each command refuses as the operator does, also before there is a ledger, and creates none; `doctor` fails."""
    with KafkaCluster(config=config) as kafka:
        make = Maker(kafka.bootstrap_servers)
        group = existing(make)
        before = set(make.admin.list_topics().topics) | {"__transaction_state"}
        for command, *options in (
            ("keep", "--for", "1d", "--why", "x", "--create-ledger"),
            ("keep", "--remove"),
            ("restore",),
            ("delete", "--yes", "--force", "--without-connection", "--create-ledger"),
        ):
            answer = run(command, group, "--bootstrap-server", kafka.bootstrap_servers, *options)
            assert (answer.code, says in answer.err) == (1, True), (command, answer.err)
        answer = run("doctor", "--bootstrap-server", kafka.bootstrap_servers, "-o", "json")
        failed = {each["check"]: each["found"] for each in answer.json["checks"] if each["result"] == "Failed"}
        assert (answer.code, list(failed), says in failed["transactions"]) == (14, ["transactions"], True)
        assert group in make.groups()
        assert set(make.admin.list_topics().topics) <= before
        make.close()


def test_restore_previews_and_restores(on_ledger: Run, client: Client, ledger: Ledger, make: Maker) -> None:
    """The preview changes nothing, then the offset is there, and history tells of both."""
    topic, group = make.topic(records=5), make.name()
    ledger.write(deleted(client, group, topic))
    preview = on_ledger("restore", group, "--preview")
    assert (preview.code, preview.err) == (0, "")
    assert "WouldRestore" in preview.out
    assert group not in make.groups()
    done = on_ledger("restore", group, "-o", "json")
    assert done.code == 0
    (result,) = done.json["groups"]
    assert (result["result"], result["partitions"][0]["reason"]) == ("Restored", "Verified")
    committed = kafka_offsets.committed_offsets(client, {group: None}, soon())[group]
    assert committed == {Partition(topic, 0): CommittedOffset(3)}
    events = on_ledger("history", group, "-o", "json").json["events"]
    assert {event["what"] for event in events} == {"Restored", "Deleted"}


def test_restore_of_a_policy(on_ledger: Run, client: Client, ledger: Ledger, make: Maker) -> None:
    """All groups that it deleted since, and none if there are none."""
    topic, group = make.topic(records=5), make.name()
    ledger.write(deleted(client, group, topic))
    options = ("restore", "--policy", "kafka/unused", "-o", "name", "--deleted-after")
    assert on_ledger(*options, NOW.isoformat()).out == f"{group}\n"
    late = on_ledger(*options, LATER.isoformat())
    assert (late.code, late.out) == (1, "")
    assert "no backup of a group that kafka/unused deleted" in late.err


def test_restore_of_active_group_fails(on_ledger: Run, client: Client, ledger: Ledger, make: Maker) -> None:
    """It says what to do, once, and commits nothing."""
    topic, group = make.topic(records=5), make.name()
    ledger.write(deleted(client, group, topic))
    make.join(group, topic)
    answer = on_ledger("restore", group)
    assert answer.code == 1
    assert (answer.out + answer.err).count("its state is Stable: stop its members first") == 1
    assert answer.err == "Error: 1 group failed: see REASON and MESSAGE in the table\n"
    as_json = on_ledger("restore", group, "-o", "json")
    says = f"group {group}: GroupActive: its state is Stable: stop its members first"
    assert (as_json.json["errors"], as_json.err) == ([says], f"Error: {says}\n")
    assert kafka_offsets.committed_offsets(client, {group: None}, soon())[group] == {}


def test_restore_leaves_what_is_committed(on_ledger: Run, client: Client, ledger: Ledger, make: Maker) -> None:
    """Somebody began anew: nothing is overwritten."""
    topic, group = make.topic(records=5), make.name()
    ledger.write(deleted(client, group, topic))
    make.simple(group, at(topic, 1))
    answer = on_ledger("restore", group)
    assert (answer.code, "AlreadyCommitted" in answer.out) == (1, True)
    assert kafka_offsets.committed_offsets(client, {group: None}, soon())[group] == at(topic, 1)


def test_records_that_a_client_with_latest_skipped(
    on_ledger: Run, kafka: KafkaCluster, client: Client, make: Maker
) -> None:
    """After a deletion it skips what waited and commits later; --overwrite-later shows that, and brings it back."""
    topic, group = make.topic(records=5), make.name()
    make.abandoned(group, topic, commit=at(topic, 2))
    assert on_ledger("delete", group, "--force", "--yes", "--without-connection", "--by", "me").code == 0
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "enable.auto.commit": False}
    read: list[int] = []

    def consume(until: int) -> None:
        """Read up to the offset, commit, and leave."""
        consumer = Consumer(settings | {"auto.offset.reset": "latest"})
        consumer.subscribe([topic])

        def arrived() -> bool:
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                read.append(message.offset())
            elif consumer.assignment() and not read:
                make.produce(topic, [(None, b"new")])
            return bool(read) and read[-1] >= until

        wait_for(arrived)
        consumer.commit(asynchronous=False)
        consumer.close()

    consume(5)
    assert min(read) >= 5
    skipped = on_ledger("restore", group)
    assert (
        skipped.code,
        "--overwrite-later (overwriteLater of a GroupRestore) replaces later offsets" in skipped.out,
    ) == (1, True)
    preview = on_ledger("restore", group, "--overwrite-later", "--preview")
    assert (preview.code, "records from 2 on are delivered again" in preview.out) == (0, True)
    assert on_ledger("restore", group, "--overwrite-later").code == 0
    last = max(read)
    read.clear()
    consume(last)
    assert read[:3] == [2, 3, 4]


def test_history_tells_all(on_ledger: Run, client: Client, ledger: Ledger, make: Maker) -> None:
    """What was done and why, marks and requests as they are now, and whether there is a whole backup."""
    topic = make.topic()
    ledger.write(
        [
            *deleted(client, "whole", topic),
            *deleted(client, "broken", topic, parts=2),
            Mark(policy_uid="u", group="marked", policy="kafka/unused", digest="d", since=NOW, due=LATER),
            KeepRequest(group="kept", until=LATER, why="needed", by="me", at=NOW),
        ]
    )
    until = LATER.strftime("%Y-%m-%dT%H:%M:%SZ")
    events = {event["group"]: event for event in on_ledger("history", "-o", "json").json["events"]}
    assert {name: event["what"] for name, event in events.items()} == {
        "whole": "Deleted",
        "broken": "Deleted",
        "marked": "Marked",
        "kept": "KeepRequested",
    }
    assert (events["whole"]["backupUntil"], events["broken"]["backupUntil"]) == (until, None)
    assert (events["marked"]["until"], events["marked"]["by"]) == (until, "kafka/unused")
    assert (events["kept"]["until"], events["kept"]["message"]) == (until, "needed")
    assert on_ledger("history", "kept", "marked", "-o", "name").out.split() == ["marked", "kept"]
    assert yaml.safe_load(on_ledger("history", "whole", "-o", "yaml").out)["events"][0]["reason"] == "Deleted"


def test_history_of_a_policy(on_ledger: Run, client: Client, ledger: Ledger, make: Maker) -> None:
    """Its marks and deletions, and no entry of another policy or of a user."""
    topic = make.topic()
    marked = Mark(policy_uid="v", group="marked", policy="kafka/other", digest="d", since=NOW, due=LATER)
    request = KeepRequest(group="kept", until=LATER, why="needed", by="me", at=NOW)
    ledger.write([*deleted(client, "whole", topic), marked, request])
    assert on_ledger("history", "--policy", "kafka/unused", "-o", "name").out == "whole\n"
    assert on_ledger("history", "--policy", "kafka/other", "--since", "7d", "-o", "name").out == "marked\n"
    assert on_ledger("history", "whole", "--policy", "kafka/other").out == "no entries\n"


def test_history_since(on_ledger: Run, client: Client, ledger: Ledger, make: Maker) -> None:
    """What is older is left out, but not a mark or a request that still counts."""
    topic, before = make.topic(), NOW - timedelta(days=8)
    old = deleted(client, "old", topic)[1]
    assert isinstance(old, HistoryEntry)
    ledger.write(
        [
            HistoryEntry(
                **{name: getattr(old, name) for name in old.__struct_fields__ if name not in ("v", "at")}, at=before
            ),
            *deleted(client, "new", topic),
            KeepRequest(group="kept", until=LATER, why="needed", by="me", at=before),
            KeepRequest(group="over", until=before, why="needed", by="me", at=before),
        ]
    )
    assert on_ledger("history", "--since", "7d", "-o", "name").out.split() == ["new", "kept"]
