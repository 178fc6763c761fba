"""What people read: each kind of alert in words, in bounds, and harmless."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from group_hygiene.observe.alerts import AlertType, Item, Status
from group_hygiene.observe.messages import MESSAGE_MAX, body, fitting, summary
from group_hygiene.spec.connection import ReceiverKind
from tests.unit.make import NOW

ITEM = Item(
    status=Status.FIRING,
    type=AlertType.GROUPS_MATCHED,
    policy="kafka/unused",
    connection="kafka/main",
    since=NOW,
    groups={"a": "", "b": ""},
    total=2,
    new=2,
    action="Alert",
    mode="DryRun",
)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({}, "policy kafka/unused: 2 consumer groups match", id="matched"),
        pytest.param({"total": 1, "new": 1}, "policy kafka/unused: 1 consumer group match", id="one"),
        pytest.param({"new": 1}, "policy kafka/unused: 2 consumer groups match, 1 of them new", id="one-is-new"),
        pytest.param({"action": "Delete"}, "policy kafka/unused: 2 consumer groups match (a dry run)", id="dry-run"),
        pytest.param(
            {"type": AlertType.GROUPS_MARKED, "action": "Delete", "mode": "Enforce", "first_due": NOW},
            "policy kafka/unused: 2 consumer groups will be deleted, unless they are used or protected; "
            "the first is due at 2030-01-31T12:00:00Z",
            id="marked",
        ),
        pytest.param(
            {"type": AlertType.GROUPS_MARKED, "action": "DeleteOffsets", "mode": "Enforce"},
            "policy kafka/unused: stale offsets of 2 consumer groups will be deleted, "
            "unless they are used or protected",
            id="offsets-marked",
        ),
        pytest.param(
            {"type": AlertType.DELETION_BLOCKED, "action": "Delete", "mode": "Enforce"},
            "policy kafka/unused: nothing is deleted, although 2 consumer groups match or are due",
            id="blocked",
        ),
        pytest.param(
            {"type": AlertType.GROUPS_DELETED, "status": Status.NOTICE, "action": "Delete"},
            "policy kafka/unused: 2 consumer groups deleted",
            id="deleted",
        ),
        pytest.param({"status": Status.RESOLVED}, "policy kafka/unused: GroupsMatched: resolved", id="resolved"),
    ],
)
def test_summary(changes: dict[str, Any], says: str) -> None:
    """One line that says who, what and how many."""
    assert summary(replace(ITEM, **changes)) == says


@pytest.mark.parametrize("kind", ReceiverKind)
def test_messages_are_bounded(kind: ReceiverKind) -> None:
    """Kafka takes ids of 32,767 bytes: what is shown of each is cut; and Slack takes so many characters."""
    long = replace(ITEM, groups={f"{i}" + "x" * 32_000: "" for i in range(20)}, total=5_000, detail="y" * 9_000)
    assert len(body(kind, [long], NOW)) < 12_000
    content, sent = fitting(kind, [long] * 500, NOW)
    assert 1 <= len(sent) < 500
    assert len(content) <= (30_000 if kind is ReceiverKind.SLACK else MESSAGE_MAX)
    assert content == body(kind, sent, NOW)


@pytest.mark.parametrize("kind", ReceiverKind)
@pytest.mark.parametrize("limit", [1, 2_000, 40_000, MESSAGE_MAX])
def test_many_alerts_are_several_messages(kind: ReceiverKind, limit: int) -> None:
    """Each within the limit as long as that can be, in order, and all alerts arrive once. One alert that is too long
    has no groups, but their number.
    """
    long = replace(ITEM, groups={f"{i}" + "\x01" * 190: "y" * 200 for i in range(20)}, total=20, detail="z" * 900)
    items = [replace(long, policy=f"kafka/p-{i:02}") if i % 3 else replace(ITEM, policy="kafka/p") for i in range(60)]
    left, arrived = items, list[Item]()
    while left:
        content, sent = fitting(kind, left, NOW, limit)
        assert len(content) <= min(limit, 30_000 if kind is ReceiverKind.SLACK else limit) or len(sent) == 1
        assert sent == left[: len(sent)]
        assert "x01" not in content.decode() or len(content) <= limit
        assert "consumer groups match" in content.decode()
        arrived, left = arrived + sent, left[len(sent) :]
    assert arrived == items
    assert fitting(kind, [], NOW, limit)[1] == []


def test_markdown_in_a_group_or_a_detail_is_code() -> None:
    """Mattermost reads Markdown in what is made for Slack: no name may end the code that it stands in."""
    name, detail = "`@channel` ![x](http://evil)", "broker said `\n\n@all"
    item = replace(ITEM, groups={name: "", "": ""}, total=2, detail=detail)
    text = json.loads(body(ReceiverKind.SLACK, [item], NOW))["text"]
    assert text.splitlines()[1:] == ["`broker said '\\n\\n@all`", "• `'@channel' ![x](http://evil)`", "• ` `"]


def test_a_detail_forges_no_line_of_an_alert() -> None:
    """An Alertmanager's templates print the description as it is."""
    (alert,) = json.loads(
        fitting(ReceiverKind.ALERTMANAGER, [replace(ITEM, detail="no\nwatchdog: ok\a\u202e")], NOW, 9_000)[0]
    )
    assert r"no\nwatchdog: ok\x07\u202e" in alert["annotations"]["description"].split("\n")


def test_an_alert_of_the_api_v2() -> None:
    """Firing it has its end ahead, resolved its end is now; texts only, as labels must be."""
    firing, over = json.loads(
        body(
            ReceiverKind.ALERTMANAGER,
            [
                replace(ITEM, until=NOW + timedelta(hours=1)),
                replace(ITEM, status=Status.RESOLVED, since=NOW - timedelta(hours=2)),
            ],
            NOW,
        )
    )
    assert (firing["startsAt"], firing["endsAt"]) == ("2030-01-31T12:00:00.000Z", "2030-01-31T13:00:00.000Z")
    assert over["endsAt"] == "2030-01-31T12:00:00.000Z"
    assert all(isinstance(value, str) and value for value in firing["labels"].values())
    assert firing["labels"]["severity"] == "warning"


def test_the_shape_of_a_webhook() -> None:
    """The fields that docs/alerts.md shows, and an id that is the same when it is sent again later."""
    first, later = (json.loads(body(ReceiverKind.WEBHOOK, [ITEM], now)) for now in (NOW, NOW + timedelta(hours=1)))
    assert set(first) == {"version", "id", "time", "sender", "test", "alerts"}
    assert first["id"] == later["id"]
    assert json.loads(body(ReceiverKind.WEBHOOK, [replace(ITEM, new=1)], NOW))["id"] != first["id"]
    assert set(first["alerts"][0]) == {
        *("status", "kind", "connection", "namespace", "policy", "action", "mode", "since", "summary", "detail"),
        *("groups", "lastClients", "total", "new", "truncated", "firstDueTime"),
        *("owner", "keepCommands", "keepLinks", "keepObject"),
    }


def test_last_clients_are_named() -> None:
    """Of each group whose last client is known, and no client can forge a line or notify a channel."""
    item = replace(ITEM, groups={"a": "client 'b-7' from 10.1.2.3", "b": ""})
    (webhook,) = json.loads(body(ReceiverKind.WEBHOOK, [item], NOW))["alerts"]
    assert webhook["lastClients"] == {"a": "client 'b-7' from 10.1.2.3"}
    # The next run may know other ones: it is the same message.
    assert len({json.loads(body(ReceiverKind.WEBHOOK, [each], NOW))["id"] for each in (item, ITEM)}) == 1
    (alert,) = json.loads(body(ReceiverKind.ALERTMANAGER, [item], NOW))
    assert alert["annotations"]["description"].endswith("a (client 'b-7' from 10.1.2.3), b")
    assert json.loads(body(ReceiverKind.SLACK, [item], NOW))["text"].endswith(
        "• `a` `client 'b-7' from 10.1.2.3`\n• `b`"
    )
    hostile = replace(ITEM, groups={"a": "x`\n• `<!channel>", "b": "y" * 9_000})
    text = json.loads(body(ReceiverKind.SLACK, [hostile], NOW))["text"]
    assert "• `a` `x'\\n• '&lt;!channel&gt;`" in text.splitlines()
    assert len(text.splitlines()) == 3
    assert len(text) < 600


def test_a_surrogate_in_a_group_is_no_crash() -> None:
    """Bytes that are no UTF-8 reach us as such."""
    for kind in ReceiverKind:
        assert body(kind, [replace(ITEM, groups={"a\udcff": "", "\x1b[31m": ""})], NOW)


@pytest.mark.parametrize("kind", ReceiverKind)
def test_only_an_alertmanager_gets_what_was_replaced(kind: ReceiverKind) -> None:
    """To the others it would be the end of an alert that goes on."""
    content = body(kind, [replace(ITEM, replaces=NOW - timedelta(hours=1))], NOW).decode()
    assert ("newer alert" in content) is (kind is ReceiverKind.ALERTMANAGER)
    assert "2 consumer groups match" in content
    if kind is ReceiverKind.ALERTMANAGER:
        before, after = json.loads(content)
        assert before["labels"] == after["labels"] | {"since": "2030-01-31T11:00:00Z"}
        assert before["endsAt"] == "2030-01-31T12:00:00.000Z"
