"""What people read: each kind of alert in words, in bounds, and harmless."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from group_hygiene.alerts.messages import body, summary
from group_hygiene.alerts.situation import AlertType
from group_hygiene.alerts.state import Item, Status
from group_hygiene.spec.receivers import Kind
from tests.unit.make import NOW

ITEM = Item(
    status=Status.FIRING,
    type=AlertType.GROUPS_MATCHED,
    policy="kafka/unused",
    connection="kafka/main",
    since=NOW,
    groups=("a", "b"),
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


@pytest.mark.parametrize("kind", Kind)
def test_messages_are_bounded(kind: Kind) -> None:
    """Kafka takes ids of 32,767 bytes: what is shown of each is cut; and Slack takes so many characters."""
    long = replace(ITEM, groups=tuple(f"{i}" + "x" * 32_000 for i in range(20)), total=5_000, detail="y" * 9_000)
    assert len(body(kind, [long], NOW)) < 12_000
    if kind is Kind.SLACK:
        text = json.loads(body(kind, [long] * 500, NOW))["text"]
        assert len(text) < 40_000
        assert text.endswith("more")


def test_slack_drops_names_before_alerts() -> None:
    """Each alert is there, and urgent ones with their groups, wherever they stand in the message."""
    common = replace(ITEM, groups=tuple(f"{i}" + "x" * 190 for i in range(10)), total=10)
    urgent = [
        replace(common, type=each, policy=f"kafka/z-{each}", groups=(f"group of {each}",), total=1, new=1)
        for each in (AlertType.GROUPS_MARKED, AlertType.DELETION_BLOCKED)
    ]
    over = replace(ITEM, status=Status.RESOLVED, policy="kafka/over")
    many = [replace(common, policy=f"kafka/p{i}") for i in range(100)]
    text = json.loads(body(Kind.SLACK, [over, *many, *urgent], NOW))["text"]
    assert all(f"policy kafka/{name}:" in text for name in ("over", *(f"p{i}" for i in range(100))))
    assert all(f"`group of {each}`" in text for each in (AlertType.GROUPS_MARKED, AlertType.DELETION_BLOCKED))
    assert text.index("policy kafka/p5:") < text.index("policy kafka/z-GroupsMarked:")
    text = json.loads(body(Kind.SLACK, [over, *many * 10, *urgent], NOW))["text"]
    assert all(summary(item) in text for item in urgent)
    kept = text.count("*[")
    assert text.endswith(f"... and {1003 - kept} more")


def test_markdown_in_a_group_or_a_detail_is_code() -> None:
    """Mattermost reads Markdown in what is made for Slack: no name may end the code that it stands in."""
    name, detail = "`@channel` ![x](http://evil)", "broker said `\n\n@all"
    item = replace(ITEM, groups=(name, ""), total=2, detail=detail)
    text = json.loads(body(Kind.SLACK, [item], NOW))["text"]
    assert text.splitlines()[1:] == ["`broker said '\\n\\n@all`", "• `'@channel' ![x](http://evil)`", "• ` `"]


def test_an_alert_of_the_api_v2() -> None:
    """Firing it has its end ahead, resolved its end is now; texts only, as labels must be."""
    firing, over = json.loads(
        body(
            Kind.ALERTMANAGER,
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
    """The fields that docs/receivers.md shows, and an id that is the same when it is sent again later."""
    first, later = (json.loads(body(Kind.WEBHOOK, [ITEM], now)) for now in (NOW, NOW + timedelta(hours=1)))
    assert set(first) == {"version", "id", "time", "sender", "test", "alerts"}
    assert first["id"] == later["id"]
    assert json.loads(body(Kind.WEBHOOK, [replace(ITEM, new=1)], NOW))["id"] != first["id"]
    assert set(first["alerts"][0]) == {
        *("status", "kind", "connection", "namespace", "policy", "action", "mode", "since", "summary", "detail"),
        *("groups", "lastClients", "total", "new", "truncated", "firstDueTime"),
        *("owner", "keepCommands", "keepLinks"),
    }


def test_last_clients_are_named() -> None:
    """Of each group whose last client is known, and no client can forge a line or notify a channel."""
    item = replace(ITEM, clients=("client 'b-7' from 10.1.2.3", ""))
    (webhook,) = json.loads(body(Kind.WEBHOOK, [item], NOW))["alerts"]
    assert webhook["lastClients"] == {"a": "client 'b-7' from 10.1.2.3"}
    # A restarted process does not know them: it is the same message.
    assert len({json.loads(body(Kind.WEBHOOK, [each], NOW))["id"] for each in (item, ITEM)}) == 1
    (alert,) = json.loads(body(Kind.ALERTMANAGER, [item], NOW))
    assert alert["annotations"]["description"].endswith("a (client 'b-7' from 10.1.2.3), b")
    assert json.loads(body(Kind.SLACK, [item], NOW))["text"].endswith("• `a` `client 'b-7' from 10.1.2.3`\n• `b`")
    hostile = replace(ITEM, clients=("x`\n• `<!channel>", "y" * 9_000))
    text = json.loads(body(Kind.SLACK, [hostile], NOW))["text"]
    assert "• `a` `x'\\n• '&lt;!channel&gt;`" in text.splitlines()
    assert len(text.splitlines()) == 3
    assert len(text) < 600


def test_a_surrogate_in_a_group_is_no_crash() -> None:
    """Bytes that are no UTF-8 reach us as such."""
    for kind in Kind:
        assert body(kind, [replace(ITEM, groups=("a\udcff", "\x1b[31m"))], NOW)


@pytest.mark.parametrize("kind", Kind)
def test_only_an_alertmanager_gets_what_was_replaced(kind: Kind) -> None:
    """To the others it would be the end of an alert that goes on."""
    content = body(kind, [replace(ITEM, status=Status.REPLACED), ITEM], NOW).decode()
    assert ("newer alert" in content) is (kind is Kind.ALERTMANAGER)
    assert "2 consumer groups match" in content
