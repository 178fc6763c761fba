"""`delete` on a real broker, with the ledger of an operator."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from group_hygiene.kafka.client import Client, connect
from group_hygiene.ledger.ledger import Ledger, LedgerSettings, open_ledger
from group_hygiene.spec.connection import Settings
from sandbox.kafka import KafkaCluster
from tests.cli.conftest import Answer, Run
from tests.kafka.makers import Maker, at, soon

# kafka-python's consumers leave sockets for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")
NOTE = "Note: not known here: protect and limits of the KafkaConnection"


@pytest.fixture(scope="module")
def client(kafka: KafkaCluster) -> Iterator[Client]:
    made = connect(Settings((kafka.bootstrap_servers,)))
    yield made
    made.close()


@pytest.fixture
def make(kafka: KafkaCluster) -> Iterator[Maker]:
    maker = Maker(kafka.bootstrap_servers)
    yield maker
    maker.close()


@pytest.fixture
def ledger(client: Client, make: Maker) -> Ledger:
    """An operator's ledger, in a topic of its own."""
    topic = make.name("ledger")
    settings = LedgerSettings(installation="theirs", writer=f"operator-{topic}", topic=topic)
    made = open_ledger(client, settings, soon(), create=True)
    assert made is not None
    made.claim()
    return made


@pytest.fixture
def on(run: Run, kafka: KafkaCluster, ledger: Ledger) -> Run:
    """`group-hygiene` with these arguments, on the broker and with that ledger."""

    def call(command: str, *arguments: object, stdin: str | None = None) -> Answer:
        where = ("--bootstrap-server", kafka.bootstrap_servers, "--ledger-topic", ledger._settings.topic)
        return run(command, *where, *arguments, stdin=stdin)

    return call


def results(answer: Answer) -> dict[str, str]:
    """Group -> its result, or its reason if it is not deleted."""
    return {each["group"]: each["reason"] or each["result"] for each in answer.json["groups"]}


def test_a_restore_brings_a_deleted_group_back(on: Run, run: Run, kafka: KafkaCluster, make: Maker) -> None:
    """The group is gone, history names the user, and a restore commits exactly its offsets."""
    topic, group = make.topic(records=9), make.name()
    make.abandoned(group, topic, commit=at(topic, 7))
    time.sleep(1.5)
    answer = on("delete", group, "--unused-for", "1s", "--by", "alice", "--yes", "-o", "json")
    assert (answer.code, results(answer)) == (0, {group: "Deleted"}), answer.err
    assert answer.err.startswith(NOTE)
    listed = run("list", "--bootstrap-server", kafka.bootstrap_servers, "--match", group, "-o", "name")
    assert listed.out == ""
    events = {each["what"]: each["by"] for each in on("history", group, "-o", "json").json["events"]}
    assert events["Deleted"] == "command-line/alice"
    restored = on("restore", group, "-o", "json")
    assert restored.json["groups"][0]["partitions"][0]["commit"] == 7


def test_a_group_in_use_is_refused(on: Run, make: Maker, ledger: Ledger) -> None:
    """Also with --force; nothing is asked, and nothing is written."""
    topic, group, absent = make.topic(records=3), make.name(), make.name()
    make.join(group, topic, commit=at(topic, 2))
    answer = on("delete", group, absent, "--force", "-o", "json")
    assert (answer.code, results(answer)) == (1, {group: "NotEmpty", absent: "Gone"})
    ledger.read_on(soon())
    assert not ledger.contents.marks


def test_a_group_that_commits_without_members_is_refused(on: Run, make: Maker, ledger: Ledger) -> None:
    """Its state is Empty, and the offsets log shows the commit. --force deletes it."""
    topic, group = make.topic(records=3), make.name()
    make.simple(group, at(topic, 2))
    refused = on("delete", group, "--yes", "-o", "json")
    assert (refused.code, results(refused)) == (1, {group: "RecentlyActive"})
    assert "it committed for" in refused.json["groups"][0]["message"]
    forced = on("delete", group, "--yes", "--force", "-o", "json")
    assert (forced.code, results(forced)) == (0, {group: "Deleted"})
    ledger.read_on(soon())
    assert not any(ledger.contents.marks.values())


def test_a_group_that_a_user_asked_to_keep_is_refused(on: Run, make: Maker) -> None:
    topic, group = make.topic(records=3), make.name()
    make.simple(group, at(topic, 2))
    assert on("keep", group, "--for", "1d", "--why", "needed", "--by", "bob").code == 0
    answer = on("delete", group, "--yes", "--force", "-o", "json")
    assert (answer.code, results(answer)) == (1, {group: "KeepRequested"})


def test_it_asks_first(on: Run, make: Maker) -> None:
    """Without a yes, and with --preview, nothing is deleted."""
    topic, group = make.topic(records=3), make.name()
    make.simple(group, at(topic, 2))
    preview = on("delete", group, "--force", "--preview", "-o", "json")
    assert (preview.code, results(preview)) == (0, {group: "WouldDelete"})
    answer = on("delete", group, "--force", stdin="n\n")
    assert answer.code == 1
    assert answer.err.endswith("Error: nothing was deleted\n")
    assert results(on("delete", group, "--force", "--preview", "-o", "json")) == {group: "WouldDelete"}
    assert "Deleted" in on("delete", group, "--force", stdin="y\n").out


def test_many_groups_and_limits(on: Run, make: Maker) -> None:
    """One that can't be deleted does not stop the others."""
    topic, names = make.topic(records=3), [make.name() for _ in range(3)]
    for name in names:
        make.simple(name, at(topic, 1))
    make.join(used := make.name(), topic, commit=at(topic, 1))
    answer = on("delete", *names, used, "--force", "--yes", "-o", "json")
    assert (answer.code, results(answer)) == (1, {**dict.fromkeys(names, "Deleted"), used: "NotEmpty"})
