"""A real Alertmanager, and what reaches people through it: its own webhook leads back here and is counted."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from group_hygiene.observe.alerts import AlertFinding, AlertType, Situation, digest_of
from group_hygiene.observe.messages import Endpoint, post
from group_hygiene.observe.outbox import Lane, Outbox
from group_hygiene.process.egress import parse_egress
from group_hygiene.spec.connection import ReceiverKind
from group_hygiene.spec.fields import Hidden
from testing.sandbox.alertmanager import Alertmanager
from testing.sandbox.waiting import wait_for
from tests.receiving import Receiver
from tests.unit.make import alert

pytestmark = pytest.mark.slow

EGRESS = parse_egress(["127.0.0.0/8"])
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
    """An outbox with one receiver, which gets what it is to be sent."""

    def __init__(self, alertmanager: Alertmanager) -> None:
        self.outbox = Outbox("kafka/main")
        to = Endpoint("am", ReceiverKind.ALERTMANAGER, Hidden(alertmanager.url + "/api/v2/alerts"))
        self.outbox.bind("uid-c", [structs.replace(alert(), interval=timedelta(minutes=10))], {"am": to})

    def tell(self, *groups: str, then: timedelta = timedelta()) -> int:
        """How many alerts were posted; `then`: as if so much time had passed."""
        now = datetime.now(UTC)
        finding = AlertFinding(AlertType.GROUPS_MATCHED, {digest_of(group): group for group in groups})
        self.outbox.publish([Situation("uid-1", now, (finding,))])
        lane = Lane("am", "kafka")
        message = self.outbox.message(lane, now + then)
        if message is None:
            return 0
        result = asyncio.run(post(message.to, message.content, now, EGRESS))
        assert result.failure is None
        self.outbox.delivered(lane, message)
        return len(json.loads(message.content))


def received(people: Receiver) -> list[list[str]]:
    """Per message that people got: the state of each alert in it."""
    return [sorted(alert["status"] for alert in request.json["alerts"]) for request in people.at("/people")]


def test_people_get_one_message_per_change(alertmanager: Alertmanager, people: Receiver) -> None:
    """One for the first match, none for its renewal, one for another group, one at the end."""
    sender = Sender(alertmanager)
    assert sender.tell("orders-1", "orders-2") == 1
    wait_for(lambda: len(received(people)) == 1)
    (alert,) = people.at("/people")[0].json["alerts"]
    assert alert["labels"]["alertname"] == "GroupsMatched"
    assert (alert["labels"]["namespace"], alert["labels"]["policy"]) == ("kafka", "unused")
    assert "orders-1" in alert["annotations"]["description"]
    ends = alertmanager.alerts()[0]["endsAt"]
    assert sender.tell("orders-1", "orders-2") == 0
    assert sender.tell("orders-1", "orders-2", then=timedelta(minutes=40)) == 1
    wait_for(lambda: alertmanager.alerts()[0]["endsAt"] > ends)
    # Longer than it waits for more of a group before it tells again.
    time.sleep(5)
    assert received(people) == [["firing"]], "renewed, and not told again"
    assert sender.tell("orders-1", "orders-2", "orders-3") == 2
    wait_for(lambda: len(received(people)) == 2)
    assert "firing" in received(people)[1]
    assert any(
        "orders-3" in alert["annotations"]["description"]
        for alert in people.at("/people")[1].json["alerts"]
        if alert["status"] == "firing"
    )
    assert sender.tell() == 1
    wait_for(lambda: alertmanager.alerts() == [])
    wait_for(lambda: received(people)[-1] == ["resolved"])
    time.sleep(5)
    assert len(received(people)) == 3


def test_what_is_not_renewed_ends_by_itself(alertmanager: Alertmanager, people: Receiver) -> None:
    """An alert of an operator that is gone for good does not stay for ever: it has an end."""
    sender = Sender(alertmanager)
    assert sender.tell("orders-1", then=timedelta(minutes=-59, seconds=-50)) == 1
    wait_for(lambda: ["resolved"] in received(people))
    assert alertmanager.alerts() == []
