"""What a connection's alerts say in statuses and metrics, and to receivers; nothing is sent, and no Secret is read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from group_hygiene.controller.admission import AdmittedPolicy
from group_hygiene.controller.loop import ConnectionLoop
from group_hygiene.controller.policies import Alerting
from group_hygiene.engine.context import Memory
from group_hygiene.errors import HygieneError, LedgerFenced, LedgerProblem, SecretProblem
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, OutcomeType
from group_hygiene.model.evidence import Outcome, Verdict
from group_hygiene.observe.alerts import Item
from group_hygiene.observe.conditions import Status
from group_hygiene.observe.metrics import Metrics
from group_hygiene.observe.of_objects import build_status, is_alerting
from group_hygiene.observe.outbox import Lane, Outbox, Sender
from group_hygiene.process.clock import SystemClock
from group_hygiene.process.egress import Egress
from group_hygiene.spec.connection import Connection, parse_connection
from group_hygiene.spec.fields import SecretRef
from group_hygiene.spec.policy import Policy, parse_policy
from group_hygiene.spec.storage import Allowed
from tests.unit.make import NOW, delete, match, plan, policy_object, refused, snapshot

RECEIVER = {"name": "r", "type": "Webhook", "webhook": {"address": "http://receiver.example"}}
AWAY: dict[str, Any] = {"incomplete": ("a broker is away",)}


def connection(*receivers: dict[str, Any], **more: Any) -> Connection:
    spec = {"bootstrapServers": ["kafka-0:9092"], "receivers": list(receivers), **more}
    metadata = {"namespace": "kafka", "name": "main", "uid": "uid-c", "generation": 1}
    return parse_connection({"metadata": metadata, "spec": spec})


def alerts(at_least: int = 1, **alert: Any) -> Policy:
    return parse_policy(policy_object("Alert", {}, notify={"groupsAtLeast": at_least, **alert}))


def journal() -> Journal:
    return Journal(None, Contents(), {})


class Scene:
    """The alerts of one connection, and the status of its one policy from run to run."""

    def __init__(self, policy: Policy, where: Connection, api: Any = None) -> None:
        """api: that of Kubernetes, for receivers with Secrets."""
        self.metrics = Metrics()
        # No status is written.
        absent: Any = None
        self.outbox = Outbox("kafka/main")
        sender = Sender(self.outbox, Egress(), lambda: False, lambda: None, lambda _kind, _arrived: None)
        self.alerts = Alerting(api, self.metrics, SystemClock(), absent, sender)
        self.where, self.policy, self.journal = where, policy, journal()
        self.status: Status = {}
        self.bind()
        self.begin()

    def begin(self) -> None:
        context: Any = SimpleNamespace(journal=self.journal, connection=self.where)
        self.alerts.begin(context)

    def bind(self) -> None:
        self.alerts.bind(self.where, [self.entry])

    @property
    def entry(self) -> AdmittedPolicy:
        return AdmittedPolicy({"status": self.status}, self.policy, cast("Any", None))

    def run(self, *verdicts: Verdict, **seen: Any) -> None:
        found = plan(self.policy, verdicts)
        with self.alerts.round(self.journal):
            self.alerts.add_result(found, [], snapshot(**seen))
            new = build_status(self.policy, self.status, found, [], snapshot(**seen), 0)
            self.status = self.alerts.in_status(self.entry, found, snapshot(**seen), new)

    def receives(self, name: str = "r") -> list[Item]:
        """What the receiver is sent now, which arrives."""
        lane = Lane(name, self.policy.namespace)
        message = self.outbox.message(lane, datetime.now(UTC))
        if message is None:
            return []
        self.outbox.delivered(lane, message)
        return list(message.items)

    def hears(self) -> list[str]:
        return [str(item.status) for item in self.receives()]

    def ledger(self) -> Journal:
        """As it is when the process ends."""
        self.journal.note(self.alerts.unwritten)
        return self.journal

    @property
    def alerting(self) -> bool | None:
        return is_alerting(self.status)

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


def test_an_end_that_arrives_while_the_ledger_is_written_is_not_repeated() -> None:
    """Messages are delivered at any time, also between what a run writes into the ledger and what it reads there."""
    scene = Scene(alerts(), connection(RECEIVER))
    scene.run(match("a"))
    assert scene.hears() == ["firing"]
    ledger = scene.ledger()
    heard: list[str] = []

    class Slow(Journal):
        def note(self, changes: Sequence[Change], deadline: Deadline | None = None) -> None:
            heard.extend(scene.hears())
            super().note(changes, deadline)

    scene.alerts.bind(scene.where, [])
    scene.journal = Slow(None, ledger.contents, {})
    scene.begin()
    assert heard == ["resolved"]
    assert scene.hears() == []
    assert scene.ledger().contents.alerts == {}


class Ledger:
    """Stores changes unless it is `down`."""

    def __init__(self) -> None:
        self.stored, self.down = Contents(), False

    def note(self, changes: Sequence[Change], _deadline: Deadline | None) -> None:
        if self.down:
            raise LedgerProblem("no broker answers")
        self.stored.apply(changes)


@pytest.mark.parametrize(
    ("down", "closed", "warning"),
    [
        pytest.param(False, False, "", id="available-again"),
        pytest.param(True, False, "no broker answers", id="not-available"),
        pytest.param(False, True, "the ledger is closed", id="closed-by-a-failed-run"),
    ],
)
def test_a_stop_writes_deliveries_that_a_run_could_not_write(
    down: bool, closed: bool, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the next process repeats them. If the stop can't write them either, the log says so."""
    scene, ledger = Scene(alerts(), connection(RECEIVER)), Ledger()
    services: Any = SimpleNamespace(
        api=None,
        objects=None,
        recorder=None,
        metrics=scene.metrics,
        clock=SystemClock(),
        egress=Egress(),
        installation="i",
    )
    services.activity, services.may_send, services.leads = Allowed(), lambda: False, lambda: True
    services.status_writer = lambda: None
    loop: Any = ConnectionLoop("kafka", "main", services)
    loop._alerts, loop._link.memory = scene.alerts, Memory(ledger=cast(Any, ledger), claimed=True)
    scene.journal = loop._link.journal()
    scene.begin()
    scene.run(match("a"))
    assert scene.hears() == ["firing"]
    ledger.down = True
    scene.begin()
    assert not any(entry.delivered for entry in ledger.stored.alerts.values())
    ledger.down = down
    if closed:
        loop._link.memory.close_ledger()
    loop._note_last()
    assert any(entry.delivered for entry in ledger.stored.alerts.values()) is (warning == "")
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ([warning] if warning else [])


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

    gone = Outcome("a", OutcomeType.DELETED, reasons.DELETED, "deleted")
    run(gone, error=LedgerFenced("somebody took over"))
    assert scene.hears() == []
    run()
    assert scene.hears() == ["notice"]


@pytest.mark.parametrize("namespace", ["kafka", "elsewhere"])
def test_other_namespaces_learn_nothing_of_a_receiver(namespace: str) -> None:
    """Why it can't be told may name hosts and Secrets: beyond the connection's namespace only the reason is said."""
    scene = Scene(structs.replace(alerts(receiverNames=["gone"]), namespace=namespace), connection())
    new = scene.alerts.in_status(scene.entry, plan(scene.policy, []), snapshot(), {"observedGeneration": 3})
    (condition,) = (c for c in new["conditions"] if c["type"] == "AlertsDelivered")
    assert condition["reason"] == reasons.RECEIVER_NOT_FOUND
    assert ("no receiver" in condition["message"]) is (namespace == "kafka")
    assert condition["lastTransitionTime"] == NOW.strftime("%Y-%m-%dT%H:%M:%SZ")


# --- owners


def owned(**patterns: list[str]) -> Connection:
    """A connection with the receivers r and chat; chat is that of each owner, given by the patterns of its groups."""
    entries = [{"name": name, "groups": groups, "receiver": "chat"} for name, groups in patterns.items()]
    chat = {**RECEIVER, "name": "chat"}
    return connection(RECEIVER, chat, owners=entries, keepLink="https://portal.example/{group}")


OWNED = owned(payments=["pay-*"], core=["core-*"])
NAMED = alerts(receiverNames=["r"])


def said(items: list[Item]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Owner, status and groups."""
    return [(item.owner, str(item.status), tuple(item.groups)) for item in items]


def restarted(scene: Scene, where: Connection | None = None) -> Scene:
    """The next process, with the ledger and the status that this one left."""
    ledger = scene.ledger()
    following = Scene(scene.policy, where or scene.where)
    following.journal, following.status = ledger, scene.status
    following.begin()
    return following


def test_owners_get_only_their_groups() -> None:
    """The policy's own receivers get all of them, as without owners."""
    scene = Scene(NAMED, OWNED)
    scene.run(match("pay-1"), match("core-1"), match("other"), refused("pay-2"))
    assert said(scene.receives("r")) == [("", "firing", ("core-1", "other", "pay-1"))]
    items = scene.receives("chat")
    assert said(items) == [("core", "firing", ("core-1",)), ("payments", "firing", ("pay-1",))]
    assert {item.keep_link for item in items} == {"https://portal.example/{group}"}
    scene.run(match("pay-1"), match("pay-2"), match("core-1"), match("other"))
    assert said(scene.receives("chat")) == [("payments", "firing", ("pay-2", "pay-1"))]
    scene.run(match("other"))
    assert said(scene.receives("chat")) == [("core", "resolved", ()), ("payments", "resolved", ())]


def test_a_receiver_of_both_gets_both() -> None:
    """A policy without receiverNames notifies all receivers, also those of owners."""
    scene = Scene(alerts(), OWNED)
    scene.run(match("pay-1"), match("other"))
    both = [("", "firing", ("other", "pay-1")), ("payments", "firing", ("pay-1",))]
    assert said(scene.receives("chat")) == both


def test_a_policy_chooses_no_receivers_of_owners() -> None:
    """With receiverNames [] it notifies its owners all the same, and needs the ledger for that."""
    scene = Scene(alerts(receiverNames=[]), OWNED)
    assert scene.alerts.needs_ledger
    scene.run(match("pay-1"), match("other"))
    assert (said(scene.receives("r")), said(scene.receives("chat"))) == ([], [("payments", "firing", ("pay-1",))])
    assert not Scene(alerts(receiverNames=[]), connection(RECEIVER)).alerts.needs_ledger


def test_the_threshold_counts_the_groups_of_the_owner() -> None:
    """An owner with fewer groups gets no message."""
    scene = Scene(alerts(at_least=2, receiverNames=["r"]), OWNED)
    scene.run(match("pay-1"), match("pay-2"), match("core-1"))
    assert said(scene.receives("chat")) == [("payments", "firing", ("pay-1", "pay-2"))]


def test_owners_after_a_restart() -> None:
    """Nothing is repeated, groups that match now are new, and the end is sent; then the ledger has no entry."""
    scene = Scene(NAMED, OWNED)
    scene.run(match("pay-1"), match("core-1"))
    assert len(said(scene.receives("chat"))) == 2
    scene = restarted(scene)
    scene.run(match("pay-1"), match("core-1"), match("core-2"))
    assert said(scene.receives("chat")) == [("core", "firing", ("core-2", "core-1"))]
    scene = restarted(scene)
    scene.receives("r")
    scene.run()
    assert said(scene.receives("chat")) == [("core", "resolved", ()), ("payments", "resolved", ())]
    scene.receives("r")
    assert scene.ledger().contents.alerts == {}


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    "after",
    [
        pytest.param(owned(core=["core-*"]), id="owner-removed"),
        pytest.param(structs.replace(OWNED, group_owners=()), id="all-owners-removed"),
        pytest.param(owned(pay=["pay-*"], core=["core-*"]), id="owner-renamed"),
    ],
)
def test_an_owner_that_is_gone_fires_no_more(restarts: bool, after: Connection) -> None:
    """Its alert is resolved at its receiver, also by the next process, and the ledger forgets it."""
    scene = Scene(NAMED, OWNED)
    scene.run(match("pay-1"), match("other"))
    assert said(scene.receives("chat")) == [("payments", "firing", ("pay-1",))]
    if restarts:
        scene = restarted(scene, after)
    else:
        scene.where = after
        scene.bind()
    assert said(scene.receives("chat")) == [("payments", "resolved", ())]
    scene.run(match("pay-1"), match("other"))
    assert "payments" not in {owner for owner, _, _ in said(scene.receives("chat"))}
    assert not [key for key in scene.ledger().contents.alerts if key[-1].endswith("/payments")]


def test_a_group_with_another_owner_moves_to_its_messages() -> None:
    """As the patterns say at the next run."""
    scene = Scene(NAMED, OWNED)
    scene.run(match("pay-1"))
    assert said(scene.receives("chat")) == [("payments", "firing", ("pay-1",))]
    scene.where = owned(core=["core-*", "pay-*"], payments=["pay-*"])
    scene.bind()
    assert said(scene.receives("chat")) == []
    scene.run(match("pay-1"))
    assert said(scene.receives("chat")) == [("core", "firing", ("pay-1",)), ("payments", "resolved", ())]


def test_a_suspended_policy_ends_the_alerts_of_owners() -> None:
    """As those of its own receivers."""
    scene = Scene(NAMED, OWNED)
    scene.run(match("pay-1"))
    assert said(scene.receives("chat")) == [("payments", "firing", ("pay-1",))]
    scene.alerts.bind(scene.where, [])
    assert said(scene.receives("chat")) == [("payments", "resolved", ())]
    assert not scene.alerts.needs_ledger


def test_owners_get_their_deletions() -> None:
    """Once, and only of their groups."""
    scene = Scene(parse_policy(policy_object("Delete", mode="Enforce", notify={"receiverNames": []})), OWNED)
    gone = [Outcome(name, OutcomeType.DELETED, reasons.DELETED, "deleted") for name in ("pay-1", "other")]
    with scene.alerts.round(scene.journal):
        scene.alerts.add_result(plan(scene.policy, []), gone, snapshot())
    (notice,) = scene.receives("chat")
    assert (notice.type, notice.owner, tuple(notice.groups), notice.total) == (
        "GroupsDeleted",
        "payments",
        ("pay-1",),
        1,
    )
    assert scene.receives("chat") == []


@pytest.mark.parametrize("namespace", ["kafka", "elsewhere"])
def test_failures_of_owners_receivers(namespace: str) -> None:
    """The status of a policy shows them in the connection's namespace; another one has no part in its owners."""

    def read_secret(_namespace: str, _ref: SecretRef) -> str:
        raise SecretProblem("there is no Secret gone", "SecretNotFound")

    gone = {"name": "s", "type": "Slack", "slack": {"urlSecretRef": {"name": "gone", "key": "url"}}}
    silent = {"name": "core", "groups": ["core-*"]}
    where = connection(gone, owners=[silent, {"name": "payments", "groups": ["pay-*"], "receiver": "s"}])
    policy = structs.replace(alerts(receiverNames=[]), namespace=namespace)
    scene = Scene(policy, where, SimpleNamespace(read_secret=read_secret))
    new = scene.alerts.in_status(scene.entry, plan(scene.policy, []), snapshot(), {"observedGeneration": 3})
    found = [c["reason"] for c in new["conditions"] if c["type"] == "AlertsDelivered"]
    assert found == (["SecretNotFound"] if namespace == "kafka" else [])
