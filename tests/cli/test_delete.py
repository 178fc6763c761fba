"""`delete` on a real broker, with the ledger of an operator."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from group_hygiene.cli.history import CommandGuard
from group_hygiene.cli.target import Session
from group_hygiene.engine.context import Context, Memory
from group_hygiene.engine.executor import Executor, open_ledger
from group_hygiene.engine.marks import forget_policies
from group_hygiene.engine.recovery import has_unresolved
from group_hygiene.engine.requested import DeletionRequest, delete_requested, judge_requested
from group_hygiene.errors import LedgerProblem
from group_hygiene.kafka.changes import commit_offsets
from group_hygiene.kafka.client import Client
from group_hygiene.ledger.contents import COMMAND_WRITER, Contents, LedgerSettings
from group_hygiene.ledger.journal import Journal
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model.entries import REQUESTED, Intent, Mark
from group_hygiene.process.clock import SystemClock
from group_hygiene.spec.connection import Connection, LimitsSpec
from group_hygiene.spec.fields import parse_duration
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.cli.conftest import Answer, Run
from tests.kafka.books import configured
from tests.kafka.makers import Maker, at, soon

# kafka-python's consumers leave sockets for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")
YES = ("--yes", "--without-connection")
NOTE = "Note: not known here: protect, limits and role of the KafkaConnection"


def results(answer: Answer) -> dict[str, str]:
    """Group -> its result, or its reason if it is not deleted."""
    return {each["group"]: each["reason"] or each["result"] for each in answer.json["groups"]}


def test_a_restore_brings_a_deleted_group_back(on_ledger: Run, run: Run, kafka: KafkaCluster, make: Maker) -> None:
    """The group is gone, history names the user, and a restore commits exactly its offsets."""
    topic, group = make.topic(records=9), make.name()
    make.abandoned(group, topic, commit=at(topic, 7))
    answer = on_ledger("delete", group, "--force", "--by", "alice", *YES, "-o", "json")
    assert (answer.code, results(answer)) == (0, {group: "Deleted"}), answer.err
    assert answer.err.startswith(NOTE)
    skipped = (
        "deleted; 2 records waited for it: consumers with auto.offset.reset=latest skip these, unless it is restored"
    )
    assert answer.json["groups"][0]["message"].startswith(skipped)
    listed = run("list", "--bootstrap-server", kafka.bootstrap_servers, "--match", group, "-o", "name")
    assert listed.out == ""
    events = {each["what"]: each["by"] for each in on_ledger("history", group, "-o", "json").json["events"]}
    assert events["Deleted"] == "command-line/alice"
    restored = on_ledger("restore", group, "-o", "json")
    assert restored.json["groups"][0]["partitions"][0]["commit"] == 7


def test_a_group_in_use_is_refused(on_ledger: Run, make: Maker, ledger: Ledger) -> None:
    """Also with --force; nothing is asked, and nothing is written."""
    topic, group, absent = make.topic(records=3), make.name(), make.name()
    make.join(group, topic, commit=at(topic, 2))
    answer = on_ledger("delete", group, absent, "--force", "-o", "json")
    assert (answer.code, results(answer)) == (1, {group: "NotEmpty", absent: "Gone"})
    assert len(answer.json["errors"]) == 2
    table = on_ledger("delete", group, absent, "--force")
    assert (table.code, (table.out + table.err).count(absent)) == (1, 1)
    assert table.err.endswith("\nError: 2 groups failed: see REASON and MESSAGE in the table\n")
    ledger.read_on(soon())
    assert not ledger.contents.marks


def test_a_group_that_commits_without_members_is_refused(on_ledger: Run, make: Maker, ledger: Ledger) -> None:
    """Its state is Empty, and the offsets log shows the commit. --force deletes it."""
    topic, group = make.topic(records=3), make.name()
    make.simple(group, at(topic, 2))
    refused = on_ledger("delete", group, *YES, "-o", "json")
    assert (refused.code, results(refused)) == (1, {group: "RecentlyActive"})
    assert "it committed for" in refused.json["groups"][0]["message"]
    forced = on_ledger("delete", group, *YES, "--force", "-o", "json")
    assert (forced.code, results(forced)) == (0, {group: "Deleted"})
    ledger.read_on(soon())
    assert not any(ledger.contents.marks.values())


def test_a_group_that_a_user_asked_to_keep_is_refused(on_ledger: Run, make: Maker) -> None:
    topic, group = make.topic(records=3), make.name()
    make.simple(group, at(topic, 2))
    assert on_ledger("keep", group, "--for", "1d", "--why", "needed", "--by", "bob").code == 0
    answer = on_ledger("delete", group, *YES, "--force", "-o", "json")
    assert (answer.code, results(answer)) == (1, {group: "KeepRequested"})


def command_on(client: Client, ledger: Ledger, writer: str) -> Executor:
    """A command that writes the ledger, and has opened it."""
    settings = LedgerSettings(installation=None, writer=f"{COMMAND_WRITER}{writer}", topic=ledger._settings.topic)
    own = open_ledger(client, settings, soon(), create=False, claim=True)
    assert own is not None
    connection = Connection()
    memory = Memory(contents=own.contents, ledger=own)
    journal = Journal(own, own.contents, memory.unwritten, writable=True)
    context = Context(client, connection, memory, SystemClock(), journal)
    return Executor(context, CommandGuard(Session(client, connection)))


def test_a_setting_of_the_ledger_that_is_changed_while_the_user_thinks(
    client: Client, make: Maker, ledger: Ledger
) -> None:
    topic, group = make.topic(records=3), make.name()
    make.simple(group, at(topic, 2))
    executor = command_on(client, ledger, group)
    judged = judge_requested(executor.context, DeletionRequest((group,), "me", None, timedelta(days=1)))
    configured(make, ledger.topic, {"cleanup.policy": "delete"})
    stop, outcomes = delete_requested(executor, judged)
    configured(make, ledger.topic, {"cleanup.policy": "compact"})
    assert stop is not None
    assert (stop.reason, outcomes) == ("LedgerUnavailable", [])
    assert group in make.groups()


def test_a_commit_after_the_first_read_is_found(client: Client, make: Maker, ledger: Ledger) -> None:
    """Of the same offset, while the command waits for its user: the log is read again right before the request."""
    topic, used, unused = make.topic(records=3), make.name(), make.name()
    for name in (used, unused):
        make.simple(name, at(topic, 2))
    executor = command_on(client, ledger, used)
    request = DeletionRequest((used, unused), "me", timedelta(seconds=2), timedelta(days=1))
    # Longer ago than that, by the broker's clock.
    time.sleep(4)
    judged = judge_requested(executor.context, request)
    assert {name for name, verdict in judged.verdicts.items() if verdict.matches} == {used, unused}
    make.simple(used, at(topic, 2))
    stop, outcomes = delete_requested(executor, judged)
    assert stop is None
    assert {each.group: each.reason for each in outcomes} == {used: "RecentlyActive", unused: "Deleted"}


def test_limits_of_the_connection_are_shown_before_the_user_is_asked(
    client: Client, make: Maker, ledger: Ledger
) -> None:
    topic, group = make.topic(records=3), make.name()
    make.simple(group, at(topic, 2))
    limits = LimitsSpec(min_groups=10_000)
    connection = Connection(given_limits=limits)
    journal = Journal(ledger, ledger.contents, {})
    context = Context(client, connection, Memory(contents=ledger.contents), SystemClock(), journal)
    judged = judge_requested(context, DeletionRequest((group,), "me", None, timedelta(days=1)))
    assert judged.stop is not None
    assert judged.stop.reason == "ClusterTooSmall"


def test_marks_of_a_running_command_stay(ledger: Ledger) -> None:
    """The operator removes marks of policies that don't exist, and leaves those of commands alone for an hour."""
    now = datetime.now(UTC)
    marks = [
        Mark(policy_uid=uid, group="g", policy="p", digest="d", since=since, due=since)
        for uid, since in {
            f"{REQUESTED}new": now - timedelta(minutes=1),
            f"{REQUESTED}old": now - timedelta(hours=2),
            "gone": now,
        }.items()
    ]
    ledger.write(marks)
    connection = Connection()
    journal = Journal(ledger, ledger.contents, {}, writable=True)
    forget_policies(
        Context(ledger._client, connection, Memory(contents=ledger.contents), SystemClock(), journal), (), ()
    )
    ledger.read_on(soon())
    assert {uid for uid, each in ledger.contents.marks.items() if each} == {f"{REQUESTED}new"}


@pytest.mark.parametrize("how", [("--preview",), YES], ids=["preview", "delete"])
def test_an_unresolved_deletion_is_shown_and_the_operator_resolves_it(
    on_ledger: Run, make: Maker, ledger: Ledger, how: tuple[str, ...]
) -> None:
    """Of a command that was killed a moment ago: also an operator without a policy that deletes recovers it."""
    topic, group = make.topic(records=3), make.name()
    make.simple(group, at(topic, 2))
    now = datetime.now(UTC)
    fields: dict[str, Any] = {"at": now, "deadline": now, "expires": now + timedelta(days=1), "generation": 0}
    writer = f"{COMMAND_WRITER}killed"
    ledger.write([Intent(group=group, id="i", type="Classic", policy="p", policy_uid="u", writer=writer, **fields)])
    answer = on_ledger("delete", group, "--force", *how, "-o", "json")
    assert (answer.code, results(answer)) == (1, {group: "Interrupted"})
    ledger.read_on(soon())
    assert has_unresolved(ledger.contents, "operator")
    assert not has_unresolved(Contents(), "operator")


def test_groups_of_a_file(on_ledger: Run, make: Maker, tmp_path: Path) -> None:
    """One per line: an id that looks like options is an id."""
    topic, victim = make.topic(records=3), make.name()
    odd = f"{make.name()} --force {victim}"
    for name in (victim, odd):
        make.simple(name, at(topic, 2))
    names = tmp_path / "names"
    names.write_text(f"{odd}\n\n")
    answer = on_ledger("delete", "--from-file", names, *YES, "-o", "json")
    # Others read the names from the table of Kafka's own tool.
    make.delete_group(odd)
    assert results(answer) == {odd: "RecentlyActive"}
    assert on_ledger("delete", *YES).code == 1


@pytest.mark.parametrize(
    ("odd", "others"),
    [
        pytest.param("job\nnight", ["job\\nnight"], id="line-feed"),
        pytest.param('"job"', ["job"], id="quotes"),
        pytest.param("job\x00night", ["job\\x00night"], id="zero-byte"),
        pytest.param(" job ", ["job"], id="blanks"),
    ],
)
def test_a_listed_group_is_the_one_that_is_deleted(
    on_ledger: Run, on: Run, make: Maker, client: Client, odd: str, others: list[str]
) -> None:
    """`list -o name` names exactly the listed group to keep, delete and restore."""
    topic, tag = make.topic(records=3), f"{make.name()}-"
    for name in (odd, *others):
        commit(client, _tagged(tag, name), topic)
    group = _tagged(tag, odd)
    expression = "".join(f"\\x{ord(c):02x}" for c in group)
    listed = on("list", "--regex", expression, "-o", "name").out
    assert on_ledger("keep", "--from-file", "-", "--for", "1d", "--why", "needed", stdin=listed).code == 0
    kept = on_ledger("delete", "--from-file", "-", "--force", *YES, "-o", "json", stdin=listed)
    assert results(kept) == {group: "KeepRequested"}
    assert on_ledger("keep", "--from-file", "-", "--remove", stdin=listed).code == 0
    deleted = on_ledger("delete", "--from-file", "-", "--force", *YES, "-o", "json", stdin=listed)
    assert results(deleted) == {group: "Deleted"}
    left = on("list", "-o", "json").json["groups"]
    assert {each["group"] for each in left if tag in each["group"]} == {_tagged(tag, name) for name in others}
    assert on_ledger("restore", "--from-file", "-", "-o", "name", stdin=listed).out == listed


def _tagged(tag: str, name: str) -> str:
    """A name that no other test has, and that begins as `name` does."""
    return f"{name[:1]}{tag}{name[1:]}"


def test_the_group_with_the_empty_id(on_ledger: Run, on: Run, make: Maker, client: Client, tmp_path: Path) -> None:
    """Kafka has it; a line of a file names it, and an empty argument, as of an unset variable, does not."""
    topic, names = make.topic(records=3), tmp_path / "names"
    commit(client, "", topic)
    names.write_text(on("list", "--regex", "", "-o", "name").out)
    assert names.read_text() == '""\n'
    assert 'a line "" of --from-file names' in on_ledger("keep", "", "--for", "1d", "--why", "needed").err
    assert on_ledger("keep", "--from-file", names, "--for", "1d", "--why", "needed").code == 0
    assert on_ledger("keep", "--from-file", names, "--remove").code == 0
    answer = on_ledger("delete", "--from-file", names, "--force", *YES, "-o", "json")
    assert (answer.code, results(answer)) == (0, {"": "Deleted"}), answer.err
    restored = on_ledger("restore", "--from-file", names)
    assert restored.code == 0, restored
    make.delete_group("")


def commit(client: Client, group: str, topic: str) -> None:
    """Make a simple group of any id, which other clients refuse."""
    wait_for(lambda: not any(commit_offsets(client, group, at(topic, 2), soon()).values()))


def test_it_asks_first(on_ledger: Run, make: Maker) -> None:
    """Without a yes, and with --preview, nothing is deleted."""
    topic, group = make.topic(records=3), make.name()
    make.simple(group, at(topic, 2))
    preview = on_ledger("delete", group, "--force", "--preview", "-o", "json")
    assert (preview.code, results(preview)) == (0, {group: "WouldDelete"})
    answer = on_ledger("delete", group, "--force", stdin="n\n")
    assert answer.code == 1
    assert answer.err.startswith(NOTE)
    assert answer.err.endswith("Error: nothing was deleted\n")
    ended = on_ledger("delete", group, "--force", stdin="")
    assert ended.code == 1
    assert ended.err.endswith("Error: nothing was deleted: give --yes, or run it at a terminal (kubectl exec -it)\n")
    assert results(on_ledger("delete", group, "--force", "--preview", "-o", "json")) == {group: "WouldDelete"}
    assert "Deleted" in on_ledger("delete", group, "--force", stdin="y\n").out


@pytest.mark.parametrize("command", [("delete", "g"), ("delete-offsets", "g", "--topic", "t")])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--yes"], "--yes needs --connection NAME or --connection-file FILE", id="yes"),
        pytest.param(["--connection", "main", "--connection-file", "f"], "can't be given together", id="two"),
        pytest.param([*YES, "--connection-file", "f"], "--without-connection can't be given with", id="with"),
    ],
)
def test_it_does_not_skip_protection_silently(
    run: Run, command: tuple[str, ...], arguments: list[str], message: str
) -> None:
    """Without a question, the user names the KafkaConnection, or says that there is none."""
    where = () if "--connection" in arguments else ("--bootstrap-server", "localhost:1")
    answer = run(*command, *where, *arguments)
    assert answer.code == 1
    assert message in answer.err


def test_protection_of_a_connection_in_a_file(on_ledger: Run, make: Maker, ledger: Ledger, tmp_path: Path) -> None:
    """The file's KafkaConnection protects the group."""
    topic, group, entries = make.topic(records=3), make.name(), ledger._settings.topic
    make.simple(group, at(topic, 2))
    file = tmp_path / "connection.yaml"
    file.write_text(
        "apiVersion: grouphygiene.io/v1alpha1\nkind: KafkaConnection\n"
        "metadata: {name: main, namespace: kafka}\n"
        f"spec: {{bootstrapServers: ['localhost:1'], protect: [{group}], ledger: {{topic: {entries}}}}}\n"
    )
    answer = on_ledger("delete", group, "--force", "--yes", "--connection-file", file, "-o", "json")
    assert answer.code == 1, answer.err
    assert results(answer) == {group: "Protected"}, answer.err


def test_it_creates_a_ledger_that_an_operator_takes_over(
    run: Run, kafka: KafkaCluster, client: Client, make: Maker
) -> None:
    """Only with --create-ledger, not for a preview; with the backup, and with the ledger's id for the operator."""
    topic, group, name = make.topic(records=9), make.name(), make.name("ledger")
    make.abandoned(group, topic, commit=at(topic, 7))

    def call(command: str, *arguments: str) -> Answer:
        where = ("--bootstrap-server", kafka.bootstrap_servers, "--ledger-topic", name)
        return run(command, group, *where, "-o", "json", *arguments)

    assert "there is no topic" in call("delete", "--force", *YES).err
    preview = call("delete", "--force", "--preview", "--create-ledger")
    assert (preview.code, results(preview)) == (0, {group: "WouldDelete"}), preview.err
    assert name not in make.admin.list_topics().topics
    answer = call("delete", "--force", "--create-ledger", *YES)
    assert (answer.code, results(answer)) == (0, {group: "Deleted"}), answer.err
    assert call("restore").json["groups"][0]["partitions"][0]["commit"] == 7
    settings = LedgerSettings(installation="theirs", writer=f"operator-{name}", topic=name)
    created = open_ledger(client, replace(settings, installation=None), soon(), create=False)
    operators = open_ledger(client, settings, soon(), create=True, claim=True)
    assert created is not None
    assert operators is not None
    assert created.id == operators.id
    assert results(call("delete", "--force", "--create-ledger", *YES)) == {group: "Reappeared"}
    operators.read_on(soon())
    assert operators.contents.owner is not None
    assert operators.contents.owner.installation == "theirs"
    with pytest.raises(LedgerProblem, match="belongs to the installation theirs"):
        open_ledger(client, replace(settings, installation="others"), soon(), create=False)


def test_one_that_is_in_use_stops_no_other(on_ledger: Run, make: Maker) -> None:
    topic, names = make.topic(records=3), [make.name() for _ in range(3)]
    for name in names:
        make.simple(name, at(topic, 1))
    make.join(used := make.name(), topic, commit=at(topic, 1))
    answer = on_ledger("delete", *names, used, "--force", *YES, "-o", "json")
    assert (answer.code, results(answer)) == (1, {**dict.fromkeys(names, "Deleted"), used: "NotEmpty"})


def test_offsets_of_a_topic_that_no_member_reads_are_deleted_and_restored(
    on_ledger: Run, run: Run, kafka: KafkaCluster, make: Maker
) -> None:
    """The group and its other offsets stay. A restore waits until the group has no members."""
    left, read, group = make.topic(records=9), make.topic(records=9), make.name()
    make.simple(group, at(left, 4))
    make.join(group, read, commit=at(read, 7))
    preview = on_ledger("delete-offsets", group, "--topic", left, "--force", "--preview", "-o", "json")
    assert (preview.code, results(preview)) == (0, {group: "WouldDelete"}), preview.err
    answer = on_ledger("delete-offsets", group, "--topic", left, "--force", *YES, "-o", "json")
    assert (answer.code, results(answer)) == (0, {group: "OffsetsDeleted"}), answer.err
    assert committed(run, kafka, group) == {read: 7}
    assert results(on_ledger("restore", group, "-o", "json")) == {group: "GroupActive"}
    make.leave(group)
    on_ledger("restore", group)
    assert committed(run, kafka, group) == {left: 4, read: 7}


def committed(run: Run, kafka: KafkaCluster, group: str) -> dict[str, int]:
    """Topic -> committed offset of its only partition."""
    answer = run("offsets", "--bootstrap-server", kafka.bootstrap_servers, group, "-o", "json")
    (found,) = answer.json["groups"]
    return {row["topic"]: row["committed"] for row in found["partitions"] if row["committed"] is not None}


def test_offsets_in_use_stay(on_ledger: Run, make: Maker) -> None:
    """Those of a topic that a member reads, of one with a commit in the log lately, and of a group without members."""
    left, read, group, empty = make.topic(records=3), make.topic(records=3), make.name(), make.name()
    make.simple(group, at(left, 2))
    make.simple(empty, at(left, 2))
    make.join(group, read, commit=at(read, 1))
    for topic, more, reason in (
        (read, ["--force"], {group: "Subscribed", empty: "NotStable"}),
        (left, [], {group: "RecentlyActive", empty: "NotStable"}),
        (make.topic(), ["--force"], {group: "NoOffsets", empty: "NotStable"}),
        # One topic of several.
        (left, ["--topic", read, "--force"], {group: "Subscribed", empty: "NotStable"}),
        (left, ["--topic", "mistyped", "--force"], {group: "NoOffsets", empty: "NotStable"}),
    ):
        answer = on_ledger("delete-offsets", group, empty, "--topic", topic, *more, *YES, "-o", "json")
        assert (answer.code, results(answer)) == (1, reason), answer.err


class Since(SystemClock):
    """Stands still at the time of its creation, or so many minutes later."""

    def __init__(self, minutes: float = 0) -> None:
        self._now = super().now() + timedelta(minutes=minutes)

    def now(self) -> datetime:
        return self._now


def test_commits_for_other_topics_are_no_use_of_a_topic(
    kafka: KafkaCluster, client: Client, make: Maker, ledger: Ledger
) -> None:
    """A group in use commits all the time. Commits for the topic itself count, and changes of the group's members."""
    left, read, group = make.topic(records=9), make.topic(records=9), make.name()
    make.simple(group, at(left, 4))
    joining = datetime.now(UTC)
    make.join(group, read)
    between = datetime.now(UTC)
    make.commit(group, at(read, 7))
    clock = Since()
    connection = Connection()
    journal = Journal(ledger, ledger.contents, {})
    context = Context(client, connection, Memory(contents=ledger.contents), clock, journal)
    request = DeletionRequest((group,), "me", clock.now() - between, timedelta(days=1), (left,))
    verdict = judge_requested(context, request).verdicts[group]
    assert verdict.matches, verdict.refusal
    for since in (joining, joining - timedelta(hours=1)):
        refusal = judge_requested(context, request._replace(unused_for=clock.now() - since)).verdicts[group].refusal
        assert refusal is not None
        assert refusal.reason == "RecentlyActive"
        assert "a record of its members" in refusal.message, "the last record"
        assert ": it is deleted without --force at " in refusal.message


@pytest.mark.parametrize(
    ("minutes", "unused_for", "reason"),
    [
        pytest.param(0, "1s", None, id="in-time"),
        pytest.param(0, "1h", "RecentlyActive", id="in-time-and-used"),
        pytest.param(4, "1s", None, id="a-little-behind"),
        pytest.param(4, "1h", "RecentlyActive", id="a-little-behind-and-used"),
        pytest.param(6, "1s", "ClockUnknown", id="behind"),
        pytest.param(120, "1h", "ClockUnknown", id="hours-behind"),
        pytest.param(-6, "1s", "RecentlyActive", id="ahead"),
    ],
)
def test_the_clock_of_each_broker_must_be_known(
    client: Client, make: Maker, ledger: Ledger, minutes: float, unused_for: str, reason: str | None
) -> None:
    """Uses are looked up by the times of records. A broker whose last record is not of now may be wrong, or idle.

    A use that shows nevertheless is the reason; and with `--force` no clock matters.
    """
    topic, group = make.topic(records=9), make.name()
    make.simple(group, at(topic, 4))
    time.sleep(1.1)
    make.simple(make.name("other"), at(topic, 4))
    connection = Connection()
    journal = Journal(ledger, ledger.contents, {})
    context = Context(client, connection, Memory(contents=ledger.contents), Since(minutes), journal)
    request = DeletionRequest((group,), "me", parse_duration(unused_for, "unusedFor"), timedelta(days=1))
    refusal = judge_requested(context, request).verdicts[group].refusal
    assert (refusal and refusal.reason) == reason, refusal
    assert judge_requested(context, request._replace(unused_for=None)).verdicts[group].matches
