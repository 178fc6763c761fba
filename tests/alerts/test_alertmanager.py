"""A real Alertmanager, and what reaches people through it: its own webhook leads back here and is counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from group_hygiene.alerts.endpoints import Endpoint
from group_hygiene.alerts.messages import body
from group_hygiene.alerts.sending import post
from group_hygiene.alerts.situation import Finding, News, Situation, digest_of
from group_hygiene.alerts.state import Route, step
from group_hygiene.egress import parse_egress
from group_hygiene.entries import Told
from group_hygiene.receivers import Kind
from group_hygiene.secret import Hidden
from sandbox.alertmanager import Alertmanager
from tests.receiving import Receiver

EGRESS = parse_egress(["127.0.0.0/8"])
ROUTE = Route("uid-1", "am", Kind.ALERTMANAGER, "here", "uid-c", "kafka/main")
PATIENCE = 120.0


def configuration(people: Receiver) -> dict[str, Any]:
    """As users have it, but for its times: resolved is told too, groups by alertname and policy."""
    route = {"receiver": "people", "group_by": ["alertname", "namespace", "policy"]}
    times = {"group_wait": "1s", "group_interval": "2s", "repeat_interval": "24h"}
    hooks = [{"url": people.url("/people"), "send_resolved": True}]
    return {"route": route | times, "receivers": [{"name": "people", "webhook_configs": hooks}]}


@pytest.fixture
def people() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def alertmanager(people: Receiver) -> Iterator[Alertmanager]:
    with Alertmanager(configuration(people)) as running:
        yield running


class Sender:
    """Sends what `step` says, and remembers what was told."""

    def __init__(self, alertmanager: Alertmanager) -> None:
        self.to = Endpoint("am", Kind.ALERTMANAGER, Hidden(alertmanager.url + "/api/v2/alerts"))
        self.told: Told | None = None

    def tell(self, *groups: str, then: timedelta = timedelta()) -> int:
        """How many alerts were posted; `then`: as if so much time had passed."""
        now = datetime.now(UTC)
        finding = Finding(News.GROUPS_MATCHED, {digest_of(group): group for group in groups})
        situation = Situation(
            uid="uid-1",
            namespace="kafka",
            name="litter",
            connection="kafka/main",
            action="Alert",
            mode="DryRun",
            interval=timedelta(minutes=10),
            at=now,
            findings=(finding,),
        )
        done = step(self.told, situation, ROUTE, now + then)
        self.told = done.told
        if done.items:
            assert asyncio.run(post(self.to, body(self.to.kind, done.items, now + then), now, EGRESS)) is None
        return len(done.items)


def wait_for(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (answer := what()):
        assert time.monotonic() < deadline, f"still {answer!r}"
        time.sleep(0.1)
    return answer


def told(people: Receiver) -> list[list[str]]:
    """Per message that people got: the state of each alert in it."""
    return [sorted(alert["status"] for alert in request.json["alerts"]) for request in people.at("/people")]


def test_people_get_one_message_per_news(alertmanager: Alertmanager, people: Receiver) -> None:
    """One for the first match, none for its renewal, one for another group, one at the end."""
    sender = Sender(alertmanager)
    assert sender.tell("orders-1", "orders-2") == 1
    wait_for(lambda: len(told(people)) == 1)
    (alert,) = people.at("/people")[0].json["alerts"]
    assert alert["labels"]["alertname"] == "GroupsMatched"
    assert (alert["labels"]["namespace"], alert["labels"]["policy"]) == ("kafka", "litter")
    assert "orders-1" in alert["annotations"]["description"]
    ends = alertmanager.alerts()[0]["endsAt"]
    assert sender.tell("orders-1", "orders-2") == 0
    assert sender.tell("orders-1", "orders-2", then=timedelta(minutes=40)) == 1
    wait_for(lambda: alertmanager.alerts()[0]["endsAt"] > ends)
    # Longer than it waits for more of a group before it tells again.
    time.sleep(5)
    assert told(people) == [["firing"]], "renewed, and not told again"
    assert sender.tell("orders-1", "orders-2", "orders-3") == 2
    wait_for(lambda: len(told(people)) == 2)
    assert "firing" in told(people)[1]
    assert any(
        "orders-3" in alert["annotations"]["description"]
        for alert in people.at("/people")[1].json["alerts"]
        if alert["status"] == "firing"
    )
    assert sender.tell() == 1
    wait_for(lambda: alertmanager.alerts() == [])
    wait_for(lambda: told(people)[-1] == ["resolved"])
    time.sleep(5)
    assert len(told(people)) == 3


def test_what_is_not_renewed_ends_by_itself(alertmanager: Alertmanager, people: Receiver) -> None:
    """An alert of an operator that is gone for good does not stay for ever: it has an end."""
    sender = Sender(alertmanager)
    assert sender.tell("orders-1", then=timedelta(minutes=-59, seconds=-50)) == 1
    wait_for(lambda: ["resolved"] in told(people))
    assert alertmanager.alerts() == []
