"""What the receivers of a connection still have to be sent, after failures, other specs and restarts. Sends nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from group_hygiene.ledger.contents import decode, encode_value
from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, Key, Notice, PolicyAlerts, Removal
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.alerts import AlertFinding, AlertType, Situation, digest_of, of_owner
from group_hygiene.observe.messages import Endpoint
from group_hygiene.observe.outbox import Lane, Message, Outbox
from group_hygiene.spec.connection import GroupOwner, ReceiverKind
from group_hygiene.spec.fields import Hidden
from group_hygiene.spec.patterns import TenantPatterns
from group_hygiene.spec.policy import AlertSpec, Policy
from tests.unit.make import NOW, alert

FAILS = Refusal(reasons.RECEIVER_FAILED, "it answers 500")
LATER = NOW + timedelta(minutes=10)


def policy(number: int = 1, **changes: Any) -> Policy:
    return structs.replace(alert(), uid=f"uid-{number}", name=f"policy-{number}", **changes)


def receiver(name: str, kind: ReceiverKind = ReceiverKind.WEBHOOK, digest: str = "here") -> Endpoint:
    return Endpoint(name, kind, Hidden("http://receiver.example"), digest=digest)


def lane(name: str = "r") -> Lane:
    return Lane(name, "kafka")


class Scene:
    """The outbox of a connection; what its receivers get arrives, unless a test says otherwise."""

    def __init__(self, *receivers: Endpoint, policies: Sequence[Policy] = (policy(),), ledger: Any = ()) -> None:
        self.outbox = Outbox("kafka/main")
        self.written: dict[Key, PolicyAlerts] = {entry.key: entry for entry in ledger}
        self.bind(*receivers, policies=policies)
        self.outbox.adopt(ledger)

    def bind(self, *receivers: Endpoint, policies: Sequence[Policy] = (policy(),)) -> None:
        self.outbox.bind("uid-c", policies, {each.name: each for each in receivers})

    def run(self, groups: str, number: int | str = 1, at: datetime = NOW, deleted: str = "", **seen: Any) -> None:
        """A run of one policy that these groups match."""
        found = AlertFinding(AlertType.GROUPS_MATCHED, {digest_of(group): group for group in groups})
        client_of = seen.get("client_of", lambda group: "")
        notice = Notice(at, len(deleted), {group: client_of(group) for group in deleted}) if deleted else None
        self.outbox.publish([Situation(f"uid-{number}", at, (found,), notice, **seen)])

    def message(self, name: str = "r", now: datetime = NOW, namespace: str = "kafka") -> Message:
        message = self.outbox.message(Lane(name, namespace), now)
        assert message is not None
        return message

    def gets(self, name: str = "r", now: datetime = NOW, namespace: str = "kafka") -> list[str]:
        """All that is pending, in as many messages as it takes; afterwards nothing is."""
        found: list[str] = []
        while message := self.outbox.message(Lane(name, namespace), now):
            self.outbox.delivered(Lane(name, namespace), message)
            found += (str(item.status) for item in message.items)
        assert Lane(name, namespace) not in self.outbox.lanes(now)
        return found

    def has_place(self, name: str = "r") -> bool:
        return name in self.outbox._places

    def ledger(self, now: datetime = NOW) -> Collection[PolicyAlerts]:
        """What it has after this, by its JSON."""
        for change in self.unwritten(now):
            if isinstance(change, Removal):
                del self.written[change.key]
            else:
                entry = decode(change.key, encode_value(change))
                assert isinstance(entry, PolicyAlerts)
                self.written[change.key] = entry
        assert self.unwritten(now) == []
        return list(self.written.values())

    def unwritten(self, now: datetime = NOW) -> list[Change]:
        return self.outbox.changes(self.written, now)


def test_a_restart_repeats_nothing_and_sends_the_end() -> None:
    """By the ledger alone: of a policy that runs, of one that was suspended, and of one that names no receiver now."""
    policies = [policy(1), policy(2), policy(3)]
    first = Scene(receiver("r"), policies=policies)
    for number in (1, 2, 3):
        first.run("ab", number)
    assert first.gets() == ["firing"] * 3
    named = policy(3, alert=AlertSpec(receiver_names=()))
    second = Scene(receiver("r"), policies=[policy(1), named], ledger=first.ledger())
    assert second.gets() == ["resolved"] * 2
    second.run("a", at=LATER)
    assert second.gets() == []
    second.run("ac", at=LATER)
    assert second.gets() == ["firing"]
    second.run("", at=LATER)
    assert second.gets() == ["resolved"]
    assert second.ledger() == []


def test_an_owners_alerts_are_in_the_ledger_as_those_of_a_policy() -> None:
    """By its JSON: the next process repeats none, knows whose they are, and ends them if the owner is gone."""
    owner = GroupOwner(name="payments", groups=TenantPatterns(["*"]), receiver="r")
    both = [policy(1), of_owner(policy(1), owner)]
    first = Scene(receiver("r"), policies=both)
    first.run("ab", "1")
    first.run("a", "1/payments", deleted="b")
    assert first.gets() == ["firing", "firing", "notice"]
    first.run("a", "1/payments", at=LATER, deleted="c")
    ledger = first.ledger()
    second = Scene(receiver("r"), policies=both, ledger=ledger)
    assert [(item.owner, list(item.groups)) for item in second.message().items] == [("payments", ["c"])]
    assert second.gets() == ["notice"]
    third = Scene(receiver("r"), policies=[policy(1)], ledger=second.ledger())
    assert [(item.owner, item.status) for item in third.message().items] == [("payments", "resolved")]
    assert third.gets() == ["resolved"]
    assert {entry.policy_uid for entry in third.ledger()} == {"uid-1"}


def test_messages_name_last_clients() -> None:
    """Of groups that match, and of deleted ones until that is delivered; also after a restart."""
    clients = {"a": "client 'a-1'", "b": "client 'b-1'"}.get
    scene = Scene(receiver("r"))
    scene.run("ac", deleted="b", client_of=lambda group: clients(group, ""))
    shown = [{"a": "client 'a-1'", "c": ""}, {"b": "client 'b-1'"}]
    assert [item.groups for item in scene.message().items] == shown
    # Deleted groups are in no table soon.
    scene.run("ac", at=LATER)
    assert [item.groups for item in scene.message().items] == shown
    assert scene.gets() == ["firing", "notice"]
    again = Scene(receiver("new"), ledger=scene.ledger())
    again.run("a", at=LATER)
    assert [item.groups for item in again.message("new").items] == [{"a": "client 'a-1'"}]


def test_a_policy_that_is_resumed_is_not_known_until_it_ran() -> None:
    """Its alerts of before it was suspended may be over."""
    scene = Scene(receiver("r"))
    scene.run("a")
    assert scene.gets() == ["firing"]
    scene.bind(receiver("r"), policies=[])
    assert scene.gets() == ["resolved"]
    assert scene.ledger() == []
    scene.bind(receiver("r"))
    assert scene.gets() == []
    scene.run("a", at=LATER)
    assert scene.gets() == ["firing"]


def webhook_id(message: Message) -> str:
    return str(json.loads(message.content)["id"])


def test_a_message_is_the_same_after_a_restart() -> None:
    """A process that ends before it wrote that the receiver has it: by the `id` a webhook sees that it has it."""
    first = Scene(receiver("r"))
    first.run("abc")
    assert first.gets() == ["firing"]
    first.run("abcd", at=LATER, deleted="x")
    ledger = first.ledger()
    sent = webhook_id(first.message(now=LATER))
    second = Scene(receiver("r"), ledger=ledger)
    assert webhook_id(second.message(now=LATER)) == sent
    second.run("abcd", at=LATER + timedelta(hours=1))
    assert webhook_id(second.message(now=LATER)) == sent


def test_what_came_and_went_is_not_sent() -> None:
    """And it is no failure any more."""
    scene = Scene(receiver("r"))
    scene.run("a")
    scene.outbox.failed(lane(), FAILS, 1)
    assert scene.outbox.failures(policy()) == {"r": FAILS}
    scene.run("")
    assert scene.gets() == []
    assert scene.outbox.failures(policy()) == {"r": None}


def test_another_place_gets_all_that_fires() -> None:
    """And the old one gets nothing more. Another token in the Secret is the same place."""
    scene = Scene(receiver("r"))
    scene.run("a")
    assert scene.gets() == ["firing"]
    scene.bind(replace(receiver("r"), token=Hidden("t")))
    assert scene.gets() == []
    moved = Scene(receiver("r", digest="there"), ledger=scene.ledger())
    assert moved.gets() == ["firing"]
    scene.bind(receiver("r", digest="there"))
    scene.run("")
    assert scene.gets() == []
    assert scene.ledger() == []


def test_a_new_receiver_gets_what_fires_and_no_earlier_deletion() -> None:
    """Deletions are sent once, to those that were there."""
    scene = Scene(receiver("r"))
    scene.run("a", deleted="x")
    assert scene.gets() == ["firing", "notice"]
    scene.bind(receiver("r"), receiver("s"))
    assert scene.gets("s") == ["firing"]
    scene.run("a", deleted="y")
    assert (scene.gets("r"), scene.gets("s")) == (["notice"], ["notice"])


def test_deletions_stay_pending_until_they_arrive() -> None:
    """Through failures, a restart, and while a message with earlier ones is in flight."""
    scene = Scene(receiver("r"), receiver("s"))
    scene.run("", deleted="ab")
    in_flight = scene.message()
    scene.run("", at=LATER, deleted="c")
    scene.outbox.delivered(lane(), in_flight)
    second = Scene(receiver("r"), receiver("s"), ledger=scene.ledger())
    assert [item.groups for item in second.message(now=LATER).items] == [{"c": ""}], "also before it ran"
    second.run("", at=LATER)
    assert [(item.total, list(item.groups)) for item in second.message("r").items] == [(1, ["c"])]
    assert [(item.total, list(item.groups)) for item in second.message("s").items] == [(3, ["a", "b", "c"])]
    assert (second.gets("r"), second.gets("s")) == (["notice"], ["notice"])
    assert second.ledger() == []


def test_a_receiver_that_left_gets_the_end() -> None:
    """It is tried five times, and forgotten; before a restart it was at a place that nobody knows any more."""
    scene = Scene(receiver("r"))
    scene.run("a")
    assert scene.gets() == ["firing"]
    ledger = scene.ledger()
    scene.bind()
    for tries in range(1, 6):
        assert [str(item.status) for item in scene.message().items] == ["resolved"]
        scene.outbox.failed(lane(), FAILS, tries)
        # As each round does.
        scene.bind()
    assert scene.outbox.lanes(NOW) == set()
    scene.bind()
    assert not scene.has_place()
    assert scene.ledger() == []
    restarted = Scene(ledger=ledger)
    assert not restarted.has_place()
    assert restarted.ledger() == []


def test_a_receiver_that_left_a_place_that_is_not_known() -> None:
    """Its Secret could not be read when it left: there is nowhere to send the end to."""
    scene = Scene(receiver("r"))
    scene.run("a")
    assert scene.gets() == ["firing"]
    scene.outbox.bind("uid-c", [policy()], {"r": Refusal(reasons.SECRET_NOT_FOUND, "there is no Secret")})
    scene.run("")
    assert scene.gets() == []
    assert scene.has_place()
    scene.bind()
    assert not scene.has_place()


def test_a_receiver_that_left_may_still_be_named() -> None:
    """The policy's status says that there is none of that name; where it was, the alert is resolved."""
    named = policy(alert=AlertSpec(receiver_names=("r",)))
    scene = Scene(receiver("r"), policies=[named])
    scene.run("a")
    assert scene.gets() == ["firing"]
    scene.bind(policies=[named])
    failure = scene.outbox.failures(named)["r"]
    assert failure is not None
    assert failure.reason == reasons.RECEIVER_NOT_FOUND
    assert scene.gets() == ["resolved"]


def test_a_receiver_that_comes_back_goes_on() -> None:
    """What it has got while it was in the spec is not sent again."""
    scene = Scene(receiver("r"))
    scene.run("a")
    assert scene.gets() == ["firing"]
    scene.bind()
    scene.bind(receiver("r"))
    assert scene.gets() == []
    scene.run("")
    assert scene.gets() == ["resolved"]
    scene.bind()
    assert not scene.has_place(), "it has nothing that could end"


@pytest.mark.parametrize(
    ("passed", "interval", "renewed"),
    [
        pytest.param(29, 10, False, id="soon"),
        pytest.param(31, 10, True, id="half-of-an-hour-is-over"),
        pytest.param(24 * 60, 24 * 60, False, id="daily-policy-next-day"),
        pytest.param(49 * 60, 24 * 60, True, id="daily-policy-after-two"),
    ],
)
def test_an_alertmanager_gets_it_again_in_time(passed: int, interval: int, renewed: bool) -> None:
    """Long before it would end the alert, which is at least four intervals ahead; no other receiver does."""
    often = policy(interval=timedelta(minutes=interval))
    scene = Scene(receiver("am", ReceiverKind.ALERTMANAGER), receiver("r"), policies=[often])
    scene.run("a")
    assert (scene.gets("am"), scene.gets("r")) == (["firing"], ["firing"])
    then = NOW + timedelta(minutes=passed)
    assert scene.gets("r", then) == []
    message = scene.outbox.message(lane("am"), then)
    assert (message is not None) is renewed
    if message is not None:
        (item,) = message.items
        assert item.since == NOW, "the same alert"
        assert item.until is not None
        assert item.until >= then + 4 * often.interval
        assert scene.gets("am", then) == ["firing"]
        assert scene.gets("am", then + timedelta(minutes=1)) == []


def test_each_alert_is_renewed_in_its_own_time() -> None:
    """Messages about others put off no renewal; a restart renews all, as the same alerts."""
    daily, often = policy(1, interval=timedelta(days=1)), policy(2, interval=timedelta(minutes=10))
    scene = Scene(receiver("am", ReceiverKind.ALERTMANAGER), policies=[daily, often])
    scene.run("a", 1)
    scene.run("a", 2)
    assert scene.gets("am") == ["firing", "firing"]
    then = NOW + timedelta(minutes=20)
    scene.run("ab", 1, at=then)
    assert scene.gets("am", then) == ["firing"]
    assert scene.gets("am", NOW + timedelta(minutes=29)) == []
    message = scene.message("am", NOW + timedelta(minutes=30))
    assert [(item.policy, item.since) for item in message.items] == [("kafka/policy-2", NOW)]
    restarted = Scene(receiver("am", ReceiverKind.ALERTMANAGER), policies=[daily, often], ledger=scene.ledger())
    assert [item.since for item in restarted.message("am").items] == [then, NOW]


def test_a_message_is_about_one_namespace() -> None:
    """A team's many alerts are several messages of its own, and the owner's alert is in none of them."""
    team = [structs.replace(policy(number), namespace="team") for number in range(2, 152)]
    scene = Scene(receiver("r"), policies=[policy(1), *team])
    scene.run("a", 1)
    for each in team:
        scene.outbox.publish([long_names(each.uid)])
    assert scene.outbox.lanes(NOW) == {lane(), Lane("r", "team")}
    assert [item.policy for item in scene.message().items] == ["kafka/policy-1"]
    message = scene.message(namespace="team")
    assert 1 < len(message.items) < 150
    assert len(message.content) <= 256_000
    assert {item.policy.partition("/")[0] for item in message.items} == {"team"}
    scene.outbox.failed(Lane("r", "team"), FAILS, 1)
    assert scene.outbox.failures(policy(1)) == {"r": None}
    assert scene.outbox.failures(team[0]) == {"r": FAILS}
    assert scene.gets(namespace="team") == ["firing"] * 150
    assert scene.gets() == ["firing"]


def long_names(uid: str) -> Situation:
    groups = [f"{number}-" + "\x01" * 220 for number in range(24)]
    found = AlertFinding(AlertType.GROUPS_MATCHED, {digest_of(group): group for group in groups})
    return Situation(uid, NOW, (found,))


def test_what_may_have_arrived_is_not_sent_again() -> None:
    """But the status says so until the receiver answers to another message about that policy, also after a restart."""
    scene = Scene(receiver("r"))
    scene.run("a", deleted="b")
    scene.outbox.delivered(lane(), scene.message(), confirmed=False)
    assert scene.gets() == []
    again = Scene(receiver("r"), ledger=scene.ledger())
    assert again.gets() == []
    for each in (scene, again):
        failure = each.outbox.failures(policy())["r"]
        assert failure is not None
        assert failure.reason == reasons.RECEIVER_UNCONFIRMED
        each.run("", at=LATER)
        assert each.gets() == ["resolved"]
        assert each.outbox.failures(policy()) == {"r": None}
        assert each.ledger() == []


def test_what_arrived_at_the_place_before_did_not_at_this_one() -> None:
    """A message in flight while the address is edited."""
    scene = Scene(receiver("r"))
    scene.run("a")
    in_flight = scene.message()
    scene.bind(receiver("r", digest="there"))
    scene.outbox.delivered(lane(), in_flight)
    assert scene.gets() == ["firing"]


def test_another_connections_entries_are_not_ours() -> None:
    """Two connections may share a ledger: neither resolves or removes what the other one sent."""
    theirs = Scene(receiver("r"), policies=[policy(9)])
    theirs.run("a", 9)
    assert theirs.gets() == ["firing"]
    ours = Scene(receiver("r"))
    ours.outbox.bind("uid-ours", [policy()], {"r": receiver("r")})
    ours.outbox.adopt(theirs.ledger())
    assert ours.gets() == []
    assert ours.outbox.changes(theirs.written, NOW) == []


def test_a_ledger_that_comes_late() -> None:
    """What this process knows is newer; of what it does not know, the ledger has the latest."""
    before = Scene(receiver("r"), policies=[policy(1), policy(2)])
    before.run("a", 1)
    before.run("a", 2)
    assert before.gets() == ["firing", "firing"]
    scene = Scene(receiver("r"), policies=[policy(1), policy(2)])
    scene.run("ab", 1, at=LATER)
    assert scene.gets() == ["firing"]
    scene.outbox.adopt(before.ledger())
    scene.written = before.written
    scene.run("a", 2, at=LATER)
    scene.run("ab", 1, at=LATER + timedelta(minutes=1))
    assert scene.gets() == []
    kept = {entry.key: entry for entry in scene.ledger()}
    alerts = kept["policy-alerts", "uid-c", "uid-1"]
    assert isinstance(alerts, PolicyAlerts)
    assert alerts.firing[AlertType.GROUPS_MATCHED].since == LATER


def test_only_what_is_sent_reaches_the_ledger() -> None:
    """The alerts of a policy that notifies no receiver are nobody's but its status's."""
    scene = Scene(receiver("r"), policies=[policy(alert=AlertSpec(receiver_names=()))])
    scene.run("a")
    assert scene.unwritten() == []
    assert scene.outbox.firing("uid-1")
    scene.bind(receiver("r"))
    scene.run("a")
    assert {entry.key for entry in scene.ledger()} == {("policy-alerts", "uid-c", "uid-1")}
    assert scene.gets() == ["firing"]
    (entry,) = scene.ledger()
    assert entry.delivered.keys() == {"r"}


def test_entries_stay_while_something_fires() -> None:
    """They are written again only when half of the time is over for which the ledger keeps them."""
    scene = Scene(receiver("r"))
    scene.run("a")
    scene.gets()
    assert len(scene.ledger()) == 1
    for days, written in ((1, 0), (29, 0), (31, 1), (60, 0), (62, 1)):
        now = NOW + timedelta(days=days)
        scene.run("a", at=now)
        changes = scene.unwritten(now)
        assert len(changes) == written, days
        assert all(entry.expires > now + timedelta(days=29) for entry in scene.ledger(now))


def test_no_record_grows_with_the_number_of_policies() -> None:
    """A broker takes no record beyond a megabyte, and then nothing could be written, and nothing deleted."""
    policies = [policy(number) for number in range(2_000)]
    scene = Scene(receiver("r"), policies=policies)
    for number in range(2_000):
        scene.run("a", number, deleted="b")
    assert len(scene.gets()) == 4_000
    assert max(len(encode_value(entry)) for entry in scene.ledger()) < 1_000


def test_a_message_is_in_order() -> None:
    """By the names of policies; those that are gone by now have nothing in it."""
    scene = Scene(receiver("r"), policies=[structs.replace(policy(1), name="z"), structs.replace(policy(2), name="a")])
    for number in (1, 2, 3):
        scene.run("a", number)
    assert [item.policy for item in scene.message().items] == ["kafka/a", "kafka/z"]


def test_failures_name_what_is_wrong() -> None:
    """A receiver that is missing, whose Secret can't be read, and that answers no; the others can be notified."""
    outbox, secret = Outbox("kafka/main"), Refusal(reasons.SECRET_NOT_FOUND, "there is no Secret")
    named = policy(alert=AlertSpec(receiver_names=("r", "s", "gone")))
    outbox.bind("uid-c", [named], {"r": receiver("r"), "s": secret, "t": receiver("t")})
    found = outbox.failures(named)
    assert (found["r"], found["s"]) == (None, secret)
    assert found["gone"] is not None
    assert found["gone"].reason == reasons.RECEIVER_NOT_FOUND
    assert outbox.failures(policy()) == {"r": None, "s": secret, "t": None}
