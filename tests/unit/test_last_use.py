"""When a group was last used, and its client, in words: as exact as the log, and no client can forge a text."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from group_hygiene.model.evidence import LAST_CLIENT_MAX, LastClient, ago
from group_hygiene.model.groups import GroupType
from group_hygiene.model.naming import json_bytes
from tests.unit.make import NOW, activity, simple_activity

CLIENT = LastClient("billing-7", "10.1.2.3", None, None, 0, NOW)
BY = "client 'billing-7' from 10.1.2.3"


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        pytest.param({}, BY, id="plain"),
        pytest.param({"host": None}, "client 'billing-7'", id="without-hosts"),
        pytest.param({"client_id": ""}, "a client without an id from 10.1.2.3", id="without-an-id"),
        pytest.param({"others": 2}, f"{BY} and 2 more", id="of-several"),
        pytest.param({"others": 4}, f"{BY} and others", id="of-many"),
        pytest.param(
            {"instance_id": "i-1", "rack_id": "eu-1a"},
            "client 'billing-7', instance 'i-1', rack 'eu-1a', from 10.1.2.3",
            id="static-member-with-rack",
        ),
        pytest.param({"client_id": "a\nb\u202e"}, "client 'a\\nb\\u202e' from 10.1.2.3", id="on-one-line"),
        pytest.param(
            {"client_id": "x' from 10.9.9.9"}, "client 'x\" from 10.9.9.9' from 10.1.2.3", id="no-forged-host"
        ),
        pytest.param({"host": "h\x1b[31m"}, "client 'billing-7' from h\\x1b[31m", id="a-host-of-a-strange-table"),
    ],
)
def test_a_client_in_words(changes: dict[str, Any], shown: str) -> None:
    assert str(CLIENT._replace(**changes)) == shown


def test_a_client_is_bounded() -> None:
    """By bytes of JSON, whatever its texts."""
    long = "\u202e" * 300
    shown = str(LastClient(long, long, long, long, 4, NOW))
    assert json_bytes(shown) <= LAST_CLIENT_MAX
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((-5, "just now"), (119, "just now"), (120, "2 minutes ago"), (7199, "119 minutes ago")),
        *((7200, "2 hours ago"), (172_799, "47 hours ago"), (172_800, "2 days ago"), (41 * 86_400, "41 days ago")),
    ],
)
def test_ago(seconds: int, shown: str) -> None:
    assert ago(timedelta(seconds=seconds)) == shown


DAYS = 41 * 24


@pytest.mark.parametrize(
    ("known", "says"),
    [
        pytest.param(activity(DAYS, last_client=CLIENT), f"last used 41 days ago by {BY}", id="classic"),
        pytest.param(
            activity(DAYS, last_client=CLIENT, type=GroupType.CONSUMER),
            f"last used 41 days ago; the last to join was {BY}",
            id="consumer-may-have-had-other-members",
        ),
        pytest.param(activity(DAYS), "last used 41 days ago", id="by-an-older-pipeline"),
        pytest.param(
            simple_activity(DAYS), "last used 41 days ago by a client that did not join it", id="simple-names-no-client"
        ),
        pytest.param(
            activity(DAYS, last_client=CLIENT, last_commit=NOW - timedelta(days=3)),
            f"last used 3 days ago by a client that did not join it; its last member was {BY}",
            id="committed-after-its-last-member-left",
        ),
        pytest.param(
            activity(DAYS, last_client=CLIENT, complete_since=NOW - timedelta(days=9)),
            f"last used 9 days ago or earlier by {BY}",
            id="records-were-lost",
        ),
        pytest.param(
            activity(DAYS, last_client=CLIENT, state="Active", empty_since=None),
            f"its last known member is {BY}",
            id="in-use",
        ),
        pytest.param(activity(DAYS, state="Active", empty_since=None), None, id="nothing-known"),
    ],
)
def test_last_use(known: Any, says: str | None) -> None:
    """What the log shows, and no more."""
    assert known.last_use(NOW) == says
