"""Owners: whose groups a message is about, the command and link of each group, and where owners are shown."""

from __future__ import annotations

import html
import json
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import pytest
from msgspec import structs

from group_hygiene.cli.commands import keep
from group_hygiene.cli.groups import list_table, listed_group
from group_hygiene.cli.plans import judged
from group_hygiene.engine.context import Context, Facts, Memory, evidence_of
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.evidence import Outcome, Verdict
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.alerts import AlertType, Item, Situation, Status, assess, by_owner, of_owner, owner_in
from group_hygiene.observe.messages import body, fitting, keep_command, keep_link, summary
from group_hygiene.process.clock import SystemClock
from group_hygiene.spec.connection import NO_OWNERS, Owners, ReceiverKind, parse_connection
from group_hygiene.spec.fields import timestamp
from group_hygiene.spec.patterns import Patterns, TenantPatterns
from group_hygiene.spec.policy import Policy, parse_keep
from tests.unit.make import NOW, alert, cluster, delete, group, mark, match, plan, refused, snapshot

LINK = "https://portal.example.com/keep?group={group}"
ITEM = Item(
    status=Status.FIRING,
    type=AlertType.GROUPS_MARKED,
    policy="kafka/unused",
    connection="kafka/main",
    since=NOW,
    groups={"pay-1": "", "pay.2": ""},
    total=2,
    new=2,
    action="Delete",
    mode="Enforce",
    owner="payments",
    keep_link=LINK,
)
KEEPABLE = TenantPatterns(["{namespace}_*", "pay*", "x*"])
COMMANDS = [
    "group-hygiene keep pay-1 --for 30d --why 'needed by payments' --connection main -n kafka",
    "group-hygiene keep pay.2 --for 30d --why 'needed by payments' --connection main -n kafka",
]
LINKS = ["https://portal.example.com/keep?group=pay-1", "https://portal.example.com/keep?group=pay.2"]


def owners(*without: str) -> Owners:
    """Of pay-*, core-* and all other groups. without: the names of those without a receiver."""
    entries = [
        {"name": name, "groups": [pattern], **({} if name in without else {"receiver": "chat"})}
        for name, pattern in (("payments", "pay-*"), ("core", "core-*"), ("rest", "*"))
    ]
    chat = {"name": "chat", "type": "Webhook", "webhook": {"address": "http://chat.example"}}
    return parse_connection({"spec": {"bootstrapServers": ["a:1"], "receivers": [chat], "owners": entries}}).owners


def situations(
    policy: Policy,
    verdicts: Iterable[Verdict],
    outcomes: Iterable[Outcome] = (),
    of: Owners | None = None,
    **given: Any,
) -> dict[str, Situation]:
    """The result of a run for each owner."""
    split = by_owner(plan(policy, verdicts, **given), list(outcomes), of or owners())
    return {owner_in(own.policy.uid): assess(own, theirs, snapshot()) for own, theirs in split}


def groups_of(situation: Situation) -> dict[str, list[str]]:
    """Type of alert -> the groups, without the types that have none."""
    return {str(found.type): sorted(found.groups.values()) for found in situation.findings if found.groups}


# --- which groups


def test_an_owner_gets_a_uid_and_a_receiver_of_its_own() -> None:
    """The policy with its threshold, but for the receivers."""
    policy = alert()
    (payments, _, _) = owners().notified
    own = of_owner(policy, payments)
    assert (own.uid, own.alert.receiver_names, own.key) == ("uid-1/payments", ("chat",), policy.key)
    assert (owner_in(own.uid), owner_in(policy.uid)) == ("payments", "")


def test_matches_by_owner() -> None:
    """Each owner gets its own groups and no others; one without groups gets the end of its alerts."""
    found = situations(alert(), [match("pay-1"), match("pay-2"), match("other"), refused("core-1")])
    assert {name: groups_of(each) for name, each in found.items()} == {
        "payments": {"GroupsMatched": ["pay-1", "pay-2"]},
        "core": {},
        "rest": {"GroupsMatched": ["other"]},
    }


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        pytest.param(delete(), "GroupsMatched", id="dry-run"),
        pytest.param(delete(enforce=True), "GroupsMarked", id="first-marks"),
    ],
)
def test_deletions_are_announced_by_owner(policy: Policy, kind: str) -> None:
    """By a dry run as groups that match, and by the run that marks them."""
    found = situations(policy, [match("pay-1"), match("core-1")], marks={})
    assert [groups_of(each) for each in found.values()] == [{kind: ["pay-1"]}, {kind: ["core-1"]}, {}]


def test_marks_and_deletions_by_owner() -> None:
    """With the date of the owner's first group; also a mark of a group that this scan does not show."""
    policy = delete(enforce=True)
    late, early = mark(policy, "pay-1", NOW), mark(policy, "core-1", NOW - timedelta(hours=1))
    marks = {"pay-1": late, "core-1": early, "core-hidden": mark(policy, "core-hidden", NOW)}
    gone = [Outcome("other", OutcomeType.DELETED, reasons.DELETED, "deleted")]
    verdicts = [match("pay-1"), match("core-1"), match("other")]
    found = situations(policy, verdicts, gone, marks=marks | {"other": mark(policy, "other")}, complete=False)
    assert {name: groups_of(each) for name, each in found.items()} == {
        "payments": {"GroupsMarked": ["pay-1"]},
        "core": {"GroupsMarked": ["core-1", "core-hidden"]},
        "rest": {},
    }
    assert [each.findings[0].first_due for each in found.values()] == [late.due, early.due, None]
    deleted = {name: list(each.deleted.groups) for name, each in found.items() if each.deleted}
    assert deleted == {"rest": ["other"]}


def test_no_owner_gets_what_blocks_deletions() -> None:
    """Its message may have numbers of groups of others."""
    blocked = [Refusal(reasons.TOPICS_HIDDEN, "3 topics")]
    for policy in (delete(), delete(enforce=True)):
        for each in situations(policy, [match("pay-1")], refusals=blocked).values():
            assert AlertType.DELETION_BLOCKED not in {found.type for found in each.findings}


def test_owners_without_a_receiver_get_nothing() -> None:
    """But their groups are not those of a later entry."""
    found = situations(alert(), [match("pay-1"), match("other")], of=owners("payments"))
    assert {name: groups_of(each) for name, each in found.items()} == {
        "core": {},
        "rest": {"GroupsMatched": ["other"]},
    }
    assert situations(alert(), [match("pay-1")], of=owners("payments", "core", "rest")) == {}


def test_groups_that_could_not_be_judged_are_those_of_their_owner() -> None:
    """They end no alert of that owner."""
    unknown = refused("pay-1", reasons.OFFSETS_UNKNOWN)
    found = situations(alert(), [unknown, match("core-1")])
    assert [len(found[name].unknown) for name in ("payments", "core")] == [1, 0]


# --- the messages


def test_messages_name_the_owner() -> None:
    """In the summary of each kind, in a label for routes of an Alertmanager, and in a field of a webhook."""
    assert summary(ITEM).startswith("policy kafka/unused, owner payments: 2 consumer groups will be deleted")
    over = replace(ITEM, status=Status.RESOLVED)
    assert summary(over) == "policy kafka/unused, owner payments: GroupsMarked: resolved"
    for item in (ITEM, over):
        (labelled,) = json.loads(body(ReceiverKind.ALERTMANAGER, [item], NOW))
        assert labelled["labels"]["owner"] == "payments"
        assert json.loads(body(ReceiverKind.WEBHOOK, [item], NOW))["alerts"][0]["owner"] == "payments"
    policys = replace(ITEM, owner="", keep_link="")
    (labelled,) = json.loads(body(ReceiverKind.ALERTMANAGER, [policys], NOW))
    assert "owner" not in labelled["labels"], "its alerts stay the same alerts"
    assert json.loads(body(ReceiverKind.WEBHOOK, [policys], NOW))["alerts"][0]["owner"] is None


def test_messages_have_the_command_and_the_link_of_each_group() -> None:
    """Ready to paste and to click."""
    (item,) = json.loads(body(ReceiverKind.WEBHOOK, [ITEM], NOW))["alerts"]
    assert item["keepCommands"] == dict(zip(ITEM.groups, COMMANDS, strict=True))
    assert item["keepLinks"] == dict(zip(ITEM.groups, LINKS, strict=True))
    (labelled,) = json.loads(body(ReceiverKind.ALERTMANAGER, [ITEM], NOW))
    last_lines = labelled["annotations"]["description"].splitlines()[-2:]
    assert last_lines == [f"{command} {link}" for command, link in zip(COMMANDS, LINKS, strict=True)]
    lines = json.loads(body(ReceiverKind.SLACK, [ITEM], NOW))["text"].splitlines()[1:]
    assert lines == ["• `pay-1`", f"`{COMMANDS[0]}` <{LINKS[0]}>", "• `pay.2`", f"`{COMMANDS[1]}` <{LINKS[1]}>"]
    assert item["keepObject"] is None, "Keep is granted to no namespace"
    bare = replace(ITEM, keep_link="")
    assert json.loads(body(ReceiverKind.WEBHOOK, [bare], NOW))["alerts"][0]["keepLinks"] == {}
    assert f"\n`{COMMANDS[0]}`\n" in json.loads(body(ReceiverKind.SLACK, [bare], NOW))["text"]


def test_messages_have_an_object_that_keeps_the_groups() -> None:
    """A team creates it in a namespace of its own. A name that a shell may interpret is only in the object itself."""
    names = ("pay-1", "pay $(x)", "pay\udcff", "x" * 201, "core-1")
    item = replace(ITEM, keepable=KEEPABLE, groups=dict.fromkeys(names, ""))
    (found,) = json.loads(body(ReceiverKind.WEBHOOK, [item], NOW))["alerts"]
    created = found["keepObject"]
    assert (created["kind"], created["metadata"]) == ("GroupKeep", {"generateName": "keep-"})
    assert parse_keep(created | {"metadata": {"namespace": "pay", "name": "keep-x", "uid": "u"}}).groups == (
        "pay-1",
        "pay $(x)",
    )
    assert created["spec"]["connectionRef"] == {"name": "main", "namespace": "kafka"}
    (labelled,) = json.loads(body(ReceiverKind.ALERTMANAGER, [item], NOW))
    slack = html.unescape(json.loads(body(ReceiverKind.SLACK, [item], NOW))["text"])
    for text in (labelled["annotations"]["description"], slack.partition("```")[2].strip("`\n")):
        command = text[text.index("kubectl create") :]
        script = f"kubectl() {{ [ \"$*\" = 'create -f -' ] && cat; }}; {command}"
        pasted = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
        assert json.loads(pasted) == created | {"spec": created["spec"] | {"groups": ["pay-1"]}}
    unsafe = replace(item, groups={"pay $(x)": ""})
    for kind in (ReceiverKind.ALERTMANAGER, ReceiverKind.SLACK):
        assert "kubectl" not in body(kind, [unsafe], NOW).decode()


@pytest.mark.parametrize("age", [timedelta(), timedelta(days=200)], ids=["new", "old"])
@pytest.mark.parametrize("hour", [0, 12, 23])
def test_the_object_keeps_the_groups_for_30_days_from_the_message(age: timedelta, hour: int) -> None:
    """However old the alert is. A message that is sent again later has the same id."""
    item, now = replace(ITEM, keepable=KEEPABLE, groups={"pay-1": ""}, since=NOW - age), NOW.replace(hour=hour)
    first, later = (json.loads(body(ReceiverKind.WEBHOOK, [item], now + timedelta(days=days))) for days in (0, 2))
    until = datetime.fromisoformat(first["alerts"][0]["keepObject"]["spec"]["until"])
    assert timedelta(days=30) <= until - now <= timedelta(days=31)
    assert first["id"] == later["id"]
    for kind in (ReceiverKind.SLACK, ReceiverKind.ALERTMANAGER):
        assert timestamp(until) in body(kind, [item], now).decode()


@pytest.mark.parametrize(
    ("changes", "warns"),
    [
        pytest.param({}, True, id="marked"),
        pytest.param({"type": AlertType.GROUPS_MATCHED, "mode": "DryRun"}, True, id="dry-run"),
        pytest.param({"type": AlertType.GROUPS_MATCHED, "action": "Alert"}, False, id="alert-deletes-nothing"),
        pytest.param({"type": AlertType.GROUPS_DELETED, "status": Status.NOTICE}, False, id="deleted-already"),
        pytest.param({"status": Status.RESOLVED}, False, id="resolved"),
        pytest.param({"owner": ""}, False, id="to-the-policys-receivers"),
    ],
)
def test_only_warnings_to_owners_have_instructions(changes: dict[str, Any], warns: bool) -> None:
    """Where nothing is deleted, there is nothing to prevent."""
    item = replace(ITEM, keepable=KEEPABLE, **changes)
    (found,) = json.loads(body(ReceiverKind.WEBHOOK, [item], NOW))["alerts"]
    assert {bool(found[name]) for name in ("keepCommands", "keepLinks", "keepObject")} == {warns}
    for kind, command in product((ReceiverKind.ALERTMANAGER, ReceiverKind.SLACK), ("group-hygiene keep", "kubectl")):
        assert (command in body(kind, [item], NOW).decode()) is warns


@pytest.mark.parametrize(
    "group",
    [
        pytest.param("pay-1", id="plain"),
        pytest.param("app.v2_a:b@c+d", id="signs"),
        pytest.param("--remove", id="option"),
        pytest.param("-n", id="short-option"),
        pytest.param("--", id="end-of-options"),
        pytest.param("x" * 200, id="longest"),
    ],
)
def test_a_shell_gives_the_command_exactly_this_group(group: str) -> None:
    """A client of Kafka chose the name: it is one argument, and no option; and all that `keep` requires is there."""
    command = keep_command(group, "payments", "kafka/main")
    shown = subprocess.run(["sh", "-c", f'printf "%s\\0" {command}'], capture_output=True, check=True).stdout
    program, name, *words = shown.decode().split("\0")[:-1]
    assert [program, name, *words] == shlex.split(command)
    assert (program, name) == ("group-hygiene", "keep")
    with keep.make_context("keep", words) as context:
        given = context.params
    assert (given["names"], given["period"], given["why"]) == ((group,), timedelta(days=30), "needed by payments")
    assert (given["connection"], given["namespace"], given["remove"]) == ("main", "kafka", False)


@pytest.mark.parametrize(
    "group",
    [
        pytest.param("a`; curl evil; `", id="backtick"),
        pytest.param("", id="empty"),
        pytest.param("a b", id="blank"),
        pytest.param("x\\'\"; touch /tmp/x; #", id="quotes-of-fish"),
        pytest.param("x\u2019; calc; \u2019", id="quotes-of-powershell"),
        pytest.param("a&calc", id="cmd"),
        pytest.param("=ls", id="zsh"),
        pytest.param("größe-☃", id="unicode"),
        pytest.param("a\nrm -rf ~", id="line-break"),
        pytest.param("a\u202eb", id="bidirectional"),
        pytest.param("a\x1b[31m", id="terminal-control"),
        pytest.param("a\udcff", id="no-utf-8"),
        pytest.param("x" * 201, id="truncated"),
    ],
)
def test_no_command_for_a_name_that_is_not_safe_to_paste(group: str) -> None:
    """Shells differ in what quotes protect, and a truncated name is that of another group."""
    assert keep_command(group, "payments", "kafka/main") == ""
    for kind in ReceiverKind:
        assert "kubectl" not in body(kind, [replace(ITEM, keepable=Patterns(["*"]), groups={group: ""})], NOW).decode()
        assert "group-hygiene keep" not in body(kind, [replace(ITEM, groups={group: ""}, total=1)], NOW).decode()


@pytest.mark.parametrize(
    ("group", "encoded"),
    [
        pytest.param("pay-1", "pay-1", id="plain"),
        pytest.param("a b/c?d=e&f#g%h", "a%20b%2Fc%3Fd%3De%26f%23g%25h", id="reserved"),
        pytest.param("<!channel>|x`\n{group}", "%3C%21channel%3E%7Cx%60%0A%7Bgroup%7D", id="markup"),
        pytest.param("größe", "gr%C3%B6%C3%9Fe", id="unicode"),
        pytest.param("a\udcff", "a%ED%B3%BF", id="no-utf-8"),
    ],
)
def test_the_link_encodes_the_group(group: str, encoded: str) -> None:
    """No name of a group can change the address or the other parameters."""
    assert keep_link(group, LINK) == LINK.replace("{group}", encoded)
    assert (
        f"<{LINK.replace('{group}', encoded)}>"
        in json.loads(body(ReceiverKind.SLACK, [replace(ITEM, groups={group: ""}, total=1)], NOW))["text"]
    )


def test_no_link_without_a_template_or_for_a_truncated_name() -> None:
    """A part of a name may be the name of another group."""
    assert keep_link("a", "") == ""
    assert keep_link("x" * 201, LINK) == ""
    assert keep_link("☃" * 200, LINK) == "", "too long"
    assert keep_link("..", LINK) == "", "browsers take it for a step of the path"


@pytest.mark.parametrize("kind", ReceiverKind)
def test_messages_to_owners_are_bounded(kind: ReceiverKind) -> None:
    """With the longest names and the longest link."""
    long = replace(
        ITEM,
        groups={"&" * 190 + str(i): "" for i in range(20)},
        total=5_000,
        keep_link="https://a/" + "b" * 1000 + "{group}",
    )
    assert len(body(kind, [long], NOW)) < 200_000
    assert len(fitting(kind, [long] * 5_000, NOW)[0]) <= 256_000
    if kind is ReceiverKind.SLACK:
        assert len(json.loads(fitting(kind, [long] * 100, NOW)[0])["text"]) <= 30_000


# --- where the owner is shown


@pytest.mark.parametrize("name", ["pay-1", "other"])
def test_evidence_has_the_owner(name: str) -> None:
    """By the patterns of the connection, for every policy."""
    nothing: Any = None
    connection = structs.replace(
        parse_connection({"spec": {"bootstrapServers": ["a:1"]}}), group_owners=owners("payments").entries
    )
    context = Context(nothing, connection, Memory(), SystemClock(), Journal(None, Contents(), {}))
    for policy in (alert(), structs.replace(alert(), namespace="elsewhere")):
        assert evidence_of(context, policy, Facts())(group(name)).owner == {"pay-1": "payments", "other": "rest"}[name]


def test_commands_show_the_owner() -> None:
    """A column of -o wide, and a field of the JSON if there is an owner."""
    groups = [group("pay-1"), group("other")]
    table = list_table([listed_group(cluster(), each, owners().of(each.id)) for each in groups])
    (at,) = (index for index, column in enumerate(table.columns) if column.title == "OWNER" and column.wide)
    assert [row[at] for row in table.rows] == ["payments", "rest"]
    none = list_table([listed_group(cluster(), each, NO_OWNERS.of(each.id)) for each in groups])
    assert [row[at] for row in none.rows] == [None, None]
    assert [listed_group(cluster(), groups[0], owner).get("owner") for owner in ("payments", "")] == ["payments", None]
    verdicts = [match("pay-1", owner="payments"), match("other")]
    assert [judged("a", verdict, NOW).get("owner") for verdict in verdicts] == ["payments", None]
