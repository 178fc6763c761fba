"""What a connection's alerts say in statuses and metrics, and to receivers; nothing is sent, and no Secret is read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from group_hygiene import reasons, reconcile, status
from group_hygiene.alerts.outbox import Box, Outbox
from group_hygiene.clock import SystemClock
from group_hygiene.connection import Connection, parse_connection
from group_hygiene.contents import Contents
from group_hygiene.controller.alerting import Alerting
from group_hygiene.controller.binding import Bound
from group_hygiene.errors import HygieneError, LedgerFenced
from group_hygiene.metrics import Metrics
from group_hygiene.model import Verdict
from group_hygiene.policy import Policy, parse_policy
from tests.unit.make import NOW, delete, keep, match, plan, policy_object, snapshot

RECEIVER = {"name": "r", "webhook": {"address": "http://receiver.example"}}
AWAY: dict[str, Any] = {"incomplete": ("a broker is away",)}


def connection(*receivers: dict[str, Any]) -> Connection:
    spec = {"bootstrapServers": ["kafka-0:9092"], "receivers": list(receivers)}
    metadata = {"namespace": "kafka", "name": "main", "uid": "uid-c", "generation": 1}
    return parse_connection({"metadata": metadata, "spec": spec})


def alerts(at_least: int = 1, **alert: Any) -> Policy:
    return parse_policy(policy_object("Alert", {}, alert={"groupsAtLeast": at_least, **alert}))


def journal() -> reconcile.Journal:
    return reconcile.Journal(None, Contents(), {})


class Scene:
    """The alerts of one connection, and the status of its one policy from run to run."""

    def __init__(self, policy: Policy, where: Connection) -> None:
        self.metrics = Metrics()
        # Of addresses that are in the spec the API server is not asked, and nobody's status is written.
        nobody: Any = None
        self.alerts = Alerting(("kafka", "main"), nobody, self.metrics, SystemClock(), nobody)
        self.where, self.policy = where, policy
        self.status: status.Status = {}
        self.bind()

    @property
    def outbox(self) -> Outbox:
        return self.alerts._outbox

    def bind(self) -> None:
        self.alerts.bind(self.where, [self.entry])

    @property
    def entry(self) -> Bound:
        return Bound({"status": self.status}, self.policy)

    def run(self, *verdicts: Verdict, **seen: Any) -> None:
        found = plan(self.policy, verdicts)
        with self.alerts.round(journal()):
            self.alerts.heard(found, [], snapshot(**seen))
            new = status.build_status(self.policy, self.status, found, [], snapshot(**seen), 0)
            self.status = self.alerts.in_status(self.entry, found, snapshot(**seen), new)

    def hears(self) -> list[str]:
        """What the receiver is told now, which arrives."""
        found = self.outbox.letter(("", "r"), datetime.now(UTC))
        if found is None:
            return []
        letter, _ = found
        self.outbox.delivered(("", "r"), letter)
        return [str(item.status) for item in letter.items]

    @property
    def alerting(self) -> bool | None:
        return status.is_alerting(self.status)

    @property
    def series(self) -> float | None:
        labels = {"namespace": "kafka", "policy": "litter"}
        return self.metrics.registry.get_sample_value("group_hygiene_alerting", labels)


def unknown(name: str) -> Verdict:
    return keep(name, reasons.OFFSETS_UNKNOWN)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("verdicts", "seen", "goes_on"),
    [
        pytest.param([match("a"), unknown("b")], {}, True, id="not-judged-now"),
        pytest.param([match("a")], AWAY, True, id="not-listed-now"),
        pytest.param([match("a"), keep("b"), unknown("c")], {}, False, id="another-one-is-not-judged"),
        pytest.param([match("a"), keep("b")], AWAY, False, id="judged-though-others-are-missing"),
        pytest.param([match("a"), keep("b")], {}, False, id="over"),
    ],
)
def test_status_and_receivers_say_the_same(
    restarted: bool, verdicts: list[Verdict], seen: dict[str, Any], goes_on: bool
) -> None:
    """Whether an alert goes on while groups are out of sight, also in the next process."""
    scene = Scene(alerts(at_least=2), connection(RECEIVER))
    scene.run(match("a"), match("b"))
    assert (scene.alerting, scene.hears()) == (True, ["firing"])
    if restarted:
        ledger, before = scene.outbox._told.values(), scene.status
        scene = Scene(scene.policy, scene.where)
        scene.outbox.remember(ledger, "uid-c", "kafka/main")
        scene.status = before
    for _ in range(2):
        scene.run(*verdicts, **seen)
        assert scene.alerting is goes_on
    assert scene.hears() == ([] if goes_on else ["resolved"])


def test_without_receivers_a_restart_ends_no_alert() -> None:
    """Nobody remembers what it alerted of: it goes on until all groups are in sight again."""
    scene = Scene(alerts(), connection())
    scene.run(match("a"))
    before = scene.status
    scene = Scene(scene.policy, scene.where)
    scene.status = before
    for _ in range(2):
        scene.run(unknown("a"))
        assert scene.alerting is True
    scene.run(keep("a"))
    assert scene.alerting is False


def test_what_alerts_no_more_has_no_series() -> None:
    """A policy whose action was edited: nobody should read for ever that it alerts."""
    scene = Scene(alerts(), connection())
    scene.run(match("a"))
    assert scene.series == 1
    scene.policy = delete()
    scene.bind()
    scene.run(match("a"))
    assert scene.series is None
    scene.bind()
    assert scene.series is None


@pytest.mark.parametrize(
    ("error", "heard"),
    [
        pytest.param(HygieneError("the API server is away"), ["firing"], id="told"),
        pytest.param(LedgerFenced("another process took over"), [], id="told-by-another-process"),
    ],
)
def test_a_policy_that_fails_holds_up_no_other(error: HygieneError, heard: list[str]) -> None:
    """What was found before it failed is told, unless this process may say nothing more."""
    scene = Scene(alerts(), connection(RECEIVER))

    def run() -> None:
        with scene.alerts.round(journal()):
            scene.alerts.heard(plan(scene.policy, [match("a")]), [], snapshot())
            raise error

    with pytest.raises(type(error)):
        run()
    assert scene.hears() == heard


def test_sending_goes_on_after_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    """What ended the sending of one connection ends nothing else: it is logged, and begins again."""
    scene = Scene(alerts(), connection(RECEIVER))
    post: Any = SimpleNamespace(egress=None, may_send=lambda: False)

    async def story() -> None:
        broken, boxes = scene.outbox.boxes, iter([OverflowError("date value out of range")])

        def once() -> list[Box]:
            for error in boxes:
                raise error
            return broken()

        scene.outbox.boxes = once  # type: ignore[method-assign]
        scene.alerts.start(post, asyncio.Event())
        for _ in range(2):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            scene.alerts.check()
        assert scene.alerts._task is not None
        assert not scene.alerts._task.done()
        scene.alerts.stop()

    asyncio.run(story())
    assert "connection kafka/main: sending alerts ended" in caplog.text
    assert "OverflowError" in caplog.text


@pytest.mark.parametrize("namespace", ["kafka", "elsewhere"])
def test_other_namespaces_learn_nothing_of_a_receiver(namespace: str) -> None:
    """Why it can't be told may name hosts and Secrets: beyond the connection's namespace only the reason is said."""
    scene = Scene(replace(alerts(receivers=[{"name": "gone"}]), namespace=namespace), connection())
    new = scene.alerts.in_status(scene.entry, plan(scene.policy, []), snapshot(), {"observedGeneration": 3})
    (told,) = (c for c in new["conditions"] if c["type"] == "AlertsDelivered")
    assert told["reason"] == reasons.RECEIVER_NOT_FOUND
    assert ("no receiver" in told["message"]) is (namespace == "kafka")
    assert told["lastTransitionTime"] == NOW.strftime("%Y-%m-%dT%H:%M:%SZ")
