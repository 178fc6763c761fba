"""What a connection's alerts say in statuses and metrics, and to receivers; nothing is sent, and no Secret is read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from group_hygiene import status
from group_hygiene.alerts.courier import Courier, CourierContext
from group_hygiene.alerts.queue import Queue
from group_hygiene.controller.alerting import Alerting
from group_hygiene.controller.binding import Bound
from group_hygiene.errors import HygieneError, LedgerFenced
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.verdicts import Outcome, OutcomeKind, Verdict
from group_hygiene.network.egress import Egress
from group_hygiene.process.clock import SystemClock
from group_hygiene.spec.connection import Connection, parse_connection
from group_hygiene.spec.policy import Policy, parse_policy
from group_hygiene.telemetry.metrics import Metrics
from tests.unit.make import NOW, delete, match, plan, policy_object, refused, snapshot

RECEIVER = {"name": "r", "type": "Webhook", "webhook": {"address": "http://receiver.example"}}
AWAY: dict[str, Any] = {"incomplete": ("a broker is away",)}


def connection(*receivers: dict[str, Any]) -> Connection:
    spec = {"bootstrapServers": ["kafka-0:9092"], "receivers": list(receivers)}
    metadata = {"namespace": "kafka", "name": "main", "uid": "uid-c", "generation": 1}
    return parse_connection({"metadata": metadata, "spec": spec})


def alerts(at_least: int = 1, **alert: Any) -> Policy:
    return parse_policy(policy_object("Alert", {}, alert={"groupsAtLeast": at_least, **alert}))


def journal() -> Journal:
    return Journal(None, Contents(), {})


class Scene:
    """The alerts of one connection, and the status of its one policy from run to run."""

    def __init__(self, policy: Policy, where: Connection) -> None:
        self.metrics = Metrics()
        # For addresses that are in the spec the API server is not asked, and no status is written.
        absent: Any = None
        self.queue = Queue("kafka/main")
        context = CourierContext(Egress(), lambda: False, lambda: None, lambda _kind, _arrived: None)
        courier = Courier("kafka/main", self.queue, context)
        self.alerts = Alerting(absent, self.metrics, SystemClock(), absent, courier)
        self.where, self.policy, self.journal = where, policy, journal()
        self.status: status.Status = {}
        self.bind()
        self.begin()

    def begin(self) -> None:
        context: Any = SimpleNamespace(journal=self.journal, connection=self.where)
        self.alerts.begin(context)

    def bind(self) -> None:
        self.alerts.bind(self.where, [self.entry])

    @property
    def entry(self) -> Bound:
        return Bound({"status": self.status}, self.policy)

    def run(self, *verdicts: Verdict, **seen: Any) -> None:
        found = plan(self.policy, verdicts)
        with self.alerts.round(self.journal):
            self.alerts.add_result(found, [], snapshot(**seen))
            new = status.build_status(self.policy, self.status, found, [], snapshot(**seen), 0)
            self.status = self.alerts.in_status(self.entry, found, snapshot(**seen), new)

    def hears(self) -> list[str]:
        """What the receiver is sent now, which arrives."""
        message = self.queue.message("r", datetime.now(UTC))
        if message is None:
            return []
        self.queue.sent("r", message, None)
        return [str(item.status) for item in message.items]

    def ledger(self) -> Journal:
        """As it is when the process ends."""
        self.alerts.note_last(self.journal)
        return self.journal

    @property
    def alerting(self) -> bool | None:
        return status.is_alerting(self.status)

    @property
    def series(self) -> float | None:
        labels = {"namespace": "kafka", "policy": "unused"}
        return self.metrics.registry.get_sample_value("group_hygiene_alerting", labels)


def unknown(name: str) -> Verdict:
    return refused(name, reasons.OFFSETS_UNKNOWN)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("verdicts", "seen", "goes_on"),
    [
        pytest.param([match("a"), unknown("b")], {}, True, id="not-judged-now"),
        pytest.param([match("a")], AWAY, True, id="not-listed-now"),
        pytest.param([match("a"), refused("b"), unknown("c")], {}, False, id="another-one-is-not-judged"),
        pytest.param([match("a"), refused("b")], AWAY, False, id="judged-though-others-are-missing"),
        pytest.param([match("a"), refused("b")], {}, False, id="over"),
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
        ledger, before = scene.ledger(), scene.status
        scene = Scene(scene.policy, scene.where)
        scene.journal, scene.status = ledger, before
        scene.begin()
    for _ in range(2):
        scene.run(*verdicts, **seen)
        assert scene.alerting is goes_on
    assert scene.hears() == ([] if goes_on else ["resolved"])


def test_what_is_over_does_not_come_back() -> None:
    """The ledger still has what a receiver got when the next run reads it, also if it was opened again meanwhile."""
    scene = Scene(alerts(), connection(RECEIVER))
    scene.run(match("a"))
    assert scene.hears() == ["firing"]
    scene.ledger()
    scene.run(refused("a"))
    assert scene.hears() == ["resolved"]
    scene.journal = Journal(None, Contents(alerts=dict(scene.journal.contents.alerts)), {})
    assert len(scene.journal.contents.alerts) == 1
    scene.begin()
    assert scene.hears() == []
    assert scene.journal.contents.alerts == {}


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
    scene.run(refused("a"))
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
        pytest.param(HygieneError("the API server is away"), ["firing"], id="sent"),
        pytest.param(LedgerFenced("another process took over"), [], id="sent-by-another-process"),
    ],
)
def test_a_policy_that_fails_holds_up_no_other(error: HygieneError, heard: list[str]) -> None:
    """What was found before it failed is told, unless this process may say nothing more."""
    scene = Scene(alerts(), connection(RECEIVER))

    def run() -> None:
        with scene.alerts.round(journal()):
            scene.alerts.add_result(plan(scene.policy, [match("a")]), [], snapshot())
            raise error

    with pytest.raises(type(error)):
        run()
    assert scene.hears() == heard


def test_a_round_after_a_fenced_one_sends_both() -> None:
    """No other process of ours fenced it if this one goes on: what it deleted is known to nobody else."""
    scene = Scene(parse_policy(policy_object("Delete", mode="Enforce")), connection(RECEIVER))

    def run(*outcomes: Outcome, error: Exception | None = None) -> None:
        with suppress(LedgerFenced), scene.alerts.round(journal()):
            scene.alerts.add_result(plan(scene.policy, []), outcomes, snapshot())
            if error is not None:
                raise error

    gone = Outcome("a", OutcomeKind.DELETED, reasons.DELETED, "deleted")
    run(gone, error=LedgerFenced("somebody took over"))
    assert scene.hears() == []
    run()
    assert scene.hears() == ["notice"]


@pytest.mark.parametrize("namespace", ["kafka", "elsewhere"])
def test_other_namespaces_learn_nothing_of_a_receiver(namespace: str) -> None:
    """Why it can't be told may name hosts and Secrets: beyond the connection's namespace only the reason is said."""
    scene = Scene(replace(alerts(receiverNames=["gone"]), namespace=namespace), connection())
    new = scene.alerts.in_status(scene.entry, plan(scene.policy, []), snapshot(), {"observedGeneration": 3})
    (condition,) = (c for c in new["conditions"] if c["type"] == "AlertsDelivered")
    assert condition["reason"] == reasons.RECEIVER_NOT_FOUND
    assert ("no receiver" in condition["message"]) is (namespace == "kafka")
    assert condition["lastTransitionTime"] == NOW.strftime("%Y-%m-%dT%H:%M:%SZ")
