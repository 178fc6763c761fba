"""The sender with real receivers: who waits for whom, what is tried again, and who may not send."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from group_hygiene.model import reasons
from group_hygiene.model.entries import Notice, PolicyAlerts
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe import alerts, messages
from group_hygiene.observe import outbox as module
from group_hygiene.observe.alerts import AlertFinding, AlertType, Situation, digest_of
from group_hygiene.observe.messages import MESSAGE_MAX, Endpoint
from group_hygiene.observe.outbox import Lane, Message, Outbox, Sender
from group_hygiene.process.egress import Egress, parse_egress
from group_hygiene.spec.connection import ReceiverKind
from group_hygiene.spec.fields import Hidden
from group_hygiene.spec.policy import Policy
from tests.receiving import Receiver
from tests.unit.make import alert

PATIENCE = 60.0


def policy(uid: str = "uid-1") -> Policy:
    return structs.replace(alert(), uid=uid, name=uid)


def situation(groups: Iterable[str], uid: str = "uid-1", deleted: tuple[str, ...] = ()) -> Situation:
    now = datetime.now(UTC)
    found = AlertFinding(AlertType.GROUPS_MATCHED, {digest_of(group): group for group in groups})
    return Situation(uid, now, (found,), Notice(now, len(deleted), dict.fromkeys(deleted, "")) if deleted else None)


class Scene:
    """An outbox with webhooks of one server, and a sender that runs in the test's event loop."""

    def __init__(
        self, server: Receiver, *names: str, uids: tuple[str, ...] = ("uid-1",), outbox: Outbox | None = None
    ) -> None:
        self.server, self.names, self.uids = server, names, uids
        self.outbox = outbox or Outbox("kafka/main")
        self.leads = True
        self.changes = 0
        self.counts: list[tuple[str, bool]] = []
        self.bind()

    def bind(self, *leave_out: str) -> None:
        kept = [name for name in self.names if name not in leave_out]
        places = {n: Endpoint(n, ReceiverKind.WEBHOOK, Hidden(self.server.url(f"/{n}"))) for n in kept}
        self.outbox.bind("uid-c", map(policy, self.uids), places)

    def failure(self, name: str) -> Refusal | None:
        return self.outbox.failures(policy())[name]

    def run(self, story: Callable[[Sender], Any]) -> None:
        """Let the story happen while the sender runs."""

        def changed() -> None:
            self.changes += 1

        async def main() -> None:
            sender = Sender(
                self.outbox,
                parse_egress(["127.0.0.0/8"]),
                lambda: self.leads,
                changed,
                lambda kind, arrived: self.counts.append((kind, arrived)),
            )
            task = asyncio.create_task(sender.run())
            try:
                await story(sender)
                assert not task.done()
            finally:
                task.cancel()
                await asyncio.wait([task])
                # Messages on their way are cancelled, too, and then their connections end.
                await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
                await asyncio.sleep(0)

        asyncio.run(main())


async def until(what: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not what():
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses as of somebody in a hurry."""
    monkeypatch.setattr(module, "_PAUSE_START_S", 0.1)
    monkeypatch.setattr(module, "_PAUSE_CAP_S", 0.4)


def test_a_message_that_is_sent_again_is_the_same(receiver: Receiver) -> None:
    """Also when the policy ran again meanwhile and found the same: whoever got it twice knows it by its id."""
    receiver.answers["/r"] = 500
    scene = Scene(receiver, "r")
    scene.outbox.publish([situation("a")])

    async def story(sender: Sender) -> None:
        await until(lambda: scene.counts)
        # What a message shows of times are whole seconds.
        await asyncio.sleep(1.1)
        scene.outbox.publish([situation("a")])
        receiver.answers["/r"] = 200
        await until(lambda: ("webhook", True) in scene.counts)

    scene.run(story)
    assert len(receiver.at("/r")) >= 2
    assert len({request.json["id"] for request in receiver.at("/r")}) == 1


def test_it_ends_when_it_is_cancelled_as_it_wakes(receiver: Receiver) -> None:
    """The operator's own end waits for it."""

    async def main() -> None:
        sender = Sender(Outbox("kafka/main"), Egress(), lambda: True, lambda: None, lambda _kind, _arrived: None)
        task = asyncio.create_task(sender.run())
        # It waits for something to send.
        await asyncio.sleep(0.1)
        sender.wake()
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
        assert task.cancelled()

    asyncio.run(main())


def test_one_that_hangs_holds_up_no_other(receiver: Receiver) -> None:
    """Each receiver has its own turn."""
    receiver.answers["/hangs"] = None
    scene = Scene(receiver, "hangs", "works")
    scene.outbox.publish([situation("a")])

    async def story(sender: Sender) -> None:
        await until(lambda: receiver.at("/hangs") and scene.counts)
        scene.outbox.publish([situation("ab")])
        sender.wake()
        await until(lambda: len(receiver.at("/works")) == len(scene.counts) == 2)

    scene.run(story)
    assert len(receiver.at("/hangs")) == 1
    assert scene.counts == [("webhook", True)] * 2


def test_what_fails_is_tried_again_until_it_arrives(receiver: Receiver) -> None:
    """With a failure to tell of meanwhile, and none afterwards; and what arrived is not sent again."""
    receiver.answers["/r"] = 500
    scene = Scene(receiver, "r")
    scene.outbox.publish([situation("a")])

    async def story(sender: Sender) -> None:
        await until(lambda: len(receiver.at("/r")) >= 3)
        failure = scene.failure("r")
        assert isinstance(failure, Refusal)
        assert scene.changes == 1, "the status learns of a failure once"
        receiver.answers["/r"] = 200
        await until(lambda: scene.failure("r") is None)
        tried = len(receiver.at("/r"))
        sender.wake()
        await asyncio.sleep(1)
        assert len(receiver.at("/r")) == tried

    scene.run(story)
    assert scene.counts[-1] == ("webhook", True)


def test_the_latest_state_wins(receiver: Receiver) -> None:
    """A receiver that was away gets what holds when it is back, and not what came and went."""
    receiver.answers["/r"] = 500
    scene = Scene(receiver, "r", uids=("uid-1", "uid-2"))
    scene.outbox.publish([situation("a"), situation("a", "uid-2")])

    async def story(sender: Sender) -> None:
        await until(lambda: receiver.at("/r"))
        scene.outbox.publish([situation("xyz"), situation("", "uid-2")])
        receiver.answers["/r"] = 200
        await until(lambda: ("webhook", True) in scene.counts)

    scene.run(story)
    (item,) = receiver.at("/r")[-1].json["alerts"]
    assert (item["policy"], set(item["groups"])) == ("uid-1", {"x", "y", "z"})


def test_who_does_not_lead_sends_nothing(receiver: Receiver) -> None:
    """Nor does one that loses the lead while a message waits; what it owes, the next one tells."""
    scene = Scene(receiver, "r")
    scene.leads = False
    scene.outbox.publish([situation("a", deleted=("b",))])

    async def story(sender: Sender) -> None:
        sender.wake()
        await asyncio.sleep(1)

    scene.run(story)
    assert receiver.requests == []
    (entry,) = scene.outbox.changes({}, datetime.now(UTC))
    assert isinstance(entry, PolicyAlerts)
    assert entry.delivered["r"].since == {}
    assert entry.delivered["r"].deleted is not None
    assert entry.delivered["r"].deleted.groups == {"b": ""}


def test_all_policies_of_a_round_are_one_message(receiver: Receiver) -> None:
    """However many."""
    uids = tuple(f"uid-{number}" for number in range(30))
    scene = Scene(receiver, "r", uids=uids)
    scene.outbox.publish([situation("a", uid) for uid in uids])

    async def story(sender: Sender) -> None:
        await until(lambda: scene.counts)
        sender.wake()
        await asyncio.sleep(0.5)

    scene.run(story)
    (request,) = receiver.at("/r")
    assert len(request.json["alerts"]) == 30


class Watched(Outbox):
    """Counts for which receivers it is asked."""

    def __init__(self) -> None:
        super().__init__("kafka/main")
        self.asked: Counter[str] = Counter()

    def message(self, lane: Lane, now: datetime, limit: int = MESSAGE_MAX) -> Message | None:
        self.asked[lane.receiver] += 1
        return super().message(lane, now, limit)


def test_a_message_causes_no_work_for_other_receivers(receiver: Receiver) -> None:
    """The Lease is renewed in the same event loop."""
    names, outbox = [f"r-{number}" for number in range(8)], Watched()
    scene = Scene(receiver, *names, outbox=outbox)
    scene.outbox.publish([situation("a")])

    async def story(sender: Sender) -> None:
        await until(lambda: len(scene.counts) == 8)
        await asyncio.sleep(0.5)

    scene.run(story)
    assert outbox.asked == dict.fromkeys(names, 2), "for the message, and whether there is more"


def test_a_process_goes_on_where_another_ended(receiver: Receiver) -> None:
    """With what the ledger has: nothing is sent twice, and the end is sent."""
    first = Scene(receiver, "r", "gone")
    first.outbox.publish([situation("a")])

    async def until_sent(sender: Sender) -> None:
        await until(lambda: len(first.counts) == 2)

    first.run(until_sent)
    ledger = [entry for entry in first.outbox.changes({}, datetime.now(UTC)) if isinstance(entry, PolicyAlerts)]
    assert [entry.delivered.keys() for entry in ledger] == [{"r", "gone"}]
    second = Scene(receiver, "r", "gone")
    second.bind("gone")
    second.outbox.adopt(ledger)

    async def story(sender: Sender) -> None:
        second.outbox.publish([situation("a")])
        sender.wake()
        await asyncio.sleep(0.5)
        assert len(receiver.at("/r")) == 1
        second.outbox.publish([situation("")])
        sender.wake()
        await until(lambda: len(receiver.at("/r")) == 2)
        await until(lambda: second.counts)

    second.run(story)
    assert receiver.at("/r")[1].json["alerts"][0]["status"] == "resolved"
    assert len(receiver.at("/gone")) == 1, "where it was, the next process does not know"


class Broken(Outbox):
    """Fails to make a message for one receiver, at first."""

    broken = True

    def message(self, lane: Lane, now: datetime, limit: int = MESSAGE_MAX) -> Message | None:
        if lane.receiver == "a-broken" and self.broken:
            raise OverflowError("date value out of range")
        return super().message(lane, now, limit)


class Noting(Outbox):
    """Notes in which threads it searches for messages."""

    def __init__(self, connection: str) -> None:
        super().__init__(connection)
        self.threads: set[int] = set()

    def lanes(self, now: datetime) -> set[Lane]:
        self.threads.add(threading.get_ident())
        return super().lanes(now)

    def message(self, lane: Lane, now: datetime, limit: int = MESSAGE_MAX) -> Message | None:
        self.threads.add(threading.get_ident())
        return super().message(lane, now, limit)


def test_no_search_for_messages_is_in_the_event_loop(receiver: Receiver) -> None:
    """With many policies it takes a while, and the Lease is renewed in that loop."""
    outbox = Noting("kafka/main")
    scene = Scene(receiver, "r", outbox=outbox)
    scene.outbox.publish([situation("a")])

    async def story(sender: Sender) -> None:
        await until(lambda: receiver.at("/r"))
        assert outbox.threads
        assert threading.get_ident() not in outbox.threads

    scene.run(story)


def test_a_message_that_cannot_be_made_holds_up_no_other(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    """An error of the operator in one receiver's message: the others get theirs, and it gets its own afterwards."""
    outbox = Broken("kafka/main")
    scene = Scene(receiver, "a-broken", "b-fine", outbox=outbox)
    scene.outbox.publish([situation("a")])

    async def story(sender: Sender) -> None:
        await until(lambda: receiver.at("/b-fine"))
        scene.outbox.publish([situation("ab")])
        sender.wake()
        await until(lambda: len(receiver.at("/b-fine")) == 2)
        assert receiver.at("/a-broken") == []
        outbox.broken = False
        sender.wake()
        await until(lambda: receiver.at("/a-broken"))

    scene.run(story)
    assert "connection kafka/main: receiver a-broken: error while making a message" in caplog.text


def test_a_receiver_that_left_the_spec_is_given_up(receiver: Receiver) -> None:
    """It is sent the end of all alerts, some times; then it is forgotten, so that nothing grows for ever."""
    scene = Scene(receiver, "r")
    scene.outbox.publish([situation("a")])

    async def story(sender: Sender) -> None:
        await until(lambda: scene.counts)
        receiver.answers["/r"] = 500
        scene.bind("r")
        sender.wake()
        await until(lambda: not scene.outbox.lanes(datetime.now(UTC)))

    scene.run(story)
    assert len(receiver.at("/r")) == 1 + 5
    assert {request.json["alerts"][0]["status"] for request in receiver.at("/r")[1:]} == {"resolved"}


def test_a_connection_that_is_gone_sends_the_end_without_a_pause(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to a receiver that failed a moment ago, once; one that fails still holds it up no longer."""
    monkeypatch.setattr(module, "_PAUSE_START_S", 3600.0)
    monkeypatch.setattr(module, "_PAUSE_CAP_S", 3600.0)
    scene = Scene(receiver, "back", "away", "works")
    scene.outbox.publish([situation("a")])

    async def story(sender: Sender) -> None:
        await until(lambda: len(scene.counts) == 3)
        receiver.answers |= {"/back": 500, "/away": 500}
        scene.outbox.publish([situation("ab")])
        sender.wake()
        await until(lambda: len(scene.counts) == 6)
        receiver.answers["/back"] = 200
        scene.outbox.bind("uid-c", [], {})
        async with asyncio.timeout(PATIENCE):
            await sender.finish(PATIENCE)

    scene.run(story)
    assert {name: len(receiver.at(f"/{name}")) for name in scene.names} == {"back": 3, "away": 3, "works": 3}
    assert all(receiver.at(f"/{name}")[-1].json["alerts"][0]["status"] == "resolved" for name in scene.names)


def test_a_process_that_stops_lets_messages_arrive(receiver: Receiver) -> None:
    """And sends no more; one that hangs or waits for its next try does not hold it up."""
    receiver.answers |= {"/hangs": None, "/fails": 500}
    scene = Scene(receiver, "hangs", "fails", "works")
    scene.outbox.publish([situation("a")])

    async def story(sender: Sender) -> None:
        receiver.then["/works"] = lambda: setattr(scene, "leads", False)
        await until(lambda: all(receiver.at(f"/{name}") for name in scene.names))
        started = asyncio.get_running_loop().time()
        await sender.finish(2.0)
        assert asyncio.get_running_loop().time() - started < 8
        assert ("webhook", True) in scene.counts
        tried = len(receiver.requests)
        sender.wake()
        await asyncio.sleep(1)
        assert len(receiver.requests) == tried

    scene.run(story)


def test_an_alertmanager_gets_it_again_although_no_policy_runs(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while Kafka can't be reached: it would end the alert else."""
    monkeypatch.setattr(module, "_RENEWAL_CHECK_S", 0.1)
    monkeypatch.setattr(alerts, "_VALID_MIN", timedelta(seconds=1))
    scene = Scene(receiver)
    to = Endpoint("am", ReceiverKind.ALERTMANAGER, Hidden(receiver.url("/am")))
    scene.outbox.bind("uid-c", [structs.replace(policy(), interval=timedelta(0))], {"am": to})
    scene.outbox.publish([situation("a")])

    async def story(sender: Sender) -> None:
        await until(lambda: len(receiver.at("/am")) == 3)

    scene.run(story)
    first, *again = [request.json[0] for request in receiver.at("/am")]
    assert all(alert["labels"] == first["labels"] for alert in again)
    assert all(alert["endsAt"] > first["endsAt"] for alert in again)


def test_the_documents_way_to_check_a_signature(receiver: Receiver) -> None:
    """The Python of docs/alerts.md takes what we sign, and nothing else."""
    page = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    scene = Scene(receiver, "r")
    place = Endpoint("r", ReceiverKind.WEBHOOK, Hidden(receiver.url("/r")), hmac=Hidden("key"))
    scene.outbox.bind("uid-c", [policy()], {"r": place})
    scene.outbox.publish([situation("a")])

    async def story(sender: Sender) -> None:
        await until(lambda: scene.counts)

    scene.run(story)
    (request,) = receiver.at("/r")
    assert names["is_genuine"](b"key", request.headers, request.body)
    assert not names["is_genuine"](b"other", request.headers, request.body)
    assert not names["is_genuine"](b"key", request.headers, request.body + b" ")
    late = {**request.headers, "X-Group-Hygiene-Timestamp": "1"}
    assert not names["is_genuine"](b"key", late, request.body)


def named(*groups: str, uid: str = "uid-1") -> Situation:
    """As `situation`, with whole names instead of letters."""
    now = datetime.now(UTC)
    return Situation(uid, now, (AlertFinding(AlertType.GROUPS_MATCHED, {digest_of(group): group for group in groups}),))


LONG = [f"{number}-" + "\x01" * 220 for number in range(24)]


def test_many_alerts_of_a_team_delay_no_other_team(receiver: Receiver) -> None:
    """A receiver behind a proxy that takes 100 KB: the team's alerts arrive in shorter messages, each once, and the
    alert of the owner in a message of its own.
    """
    receiver.limit = 100_000
    scene = Scene(receiver, "r")
    team = [
        structs.replace(alert(), uid=f"t-{number}", name=f"p-{number:03}", namespace="team") for number in range(60)
    ]
    to = Endpoint("r", ReceiverKind.WEBHOOK, Hidden(receiver.url("/r")))
    scene.outbox.bind("uid-c", [policy(), *team], {"r": to})
    scene.outbox.publish([situation("a"), *(named(*LONG, uid=each.uid) for each in team)])
    taken = [policy().name, *(each.name for each in team)]

    def arrived() -> list[str]:
        return [item["policy"] for r in receiver.at("/r") if len(r.body) <= 100_000 for item in r.json["alerts"]]

    async def story(sender: Sender) -> None:
        await until(lambda: len(arrived()) >= len(taken))
        await until(lambda: not scene.outbox.lanes(datetime.now(UTC)))

    scene.run(story)
    assert sorted(arrived()) == sorted(taken)
    assert all(len({item["namespace"] for item in r.json["alerts"]}) == 1 for r in receiver.at("/r"))
    assert max(len(request.body) for request in receiver.at("/r")) <= MESSAGE_MAX
    assert scene.failure("r") is None


def test_an_alert_that_is_too_long_arrives_without_its_groups(receiver: Receiver) -> None:
    """Their number is in it; a receiver that takes nothing at all fails as others do, after a few shorter messages."""
    receiver.limit = 3_000
    scene = Scene(receiver, "r")
    scene.outbox.publish([named(*LONG)])

    async def story(sender: Sender) -> None:
        await until(lambda: ("webhook", True) in scene.counts)
        receiver.limit = 0
        scene.outbox.publish([named(*LONG, "one-more")])
        sender.wake()
        await until(lambda: scene.failure("r") is not None)

    scene.run(story)
    item = next(r.json["alerts"][0] for r in receiver.at("/r") if len(r.body) <= 3_000)
    assert (item["groups"], item["total"], item["truncated"]) == ([], 24, True)
    assert len(receiver.at("/r")) < 25


def test_a_slow_chat_gets_a_message_a_bounded_number_of_times(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes each message, and answers too late: readers see some repeats, the status says so, and the next alert is
    sent. A webhook, which recognizes a message that it has, gets it until it answers.
    """
    monkeypatch.setattr(messages, "SECONDS", 0.3)
    monkeypatch.setattr(module, "_UNANSWERED_CAP_S", 0.1)
    receiver.answers |= {"/chat": None, "/hook": None}
    scene = Scene(receiver)
    places = {
        "chat": Endpoint("chat", ReceiverKind.SLACK, Hidden(receiver.url("/chat"))),
        "hook": Endpoint("hook", ReceiverKind.WEBHOOK, Hidden(receiver.url("/hook"))),
    }
    scene.outbox.bind("uid-c", [policy()], places)
    scene.outbox.publish([situation("a")])

    async def story(sender: Sender) -> None:
        await until(lambda: len(receiver.at("/hook")) > 8)
        failure = scene.failure("chat")
        assert failure is not None
        assert failure.reason == reasons.RECEIVER_UNCONFIRMED
        assert len(receiver.at("/chat")) == 6
        receiver.answers |= {"/chat": 200, "/hook": 200}
        scene.outbox.publish([situation("ab")])
        sender.wake()
        await until(lambda: scene.failure("chat") is None)
        await until(lambda: scene.failure("hook") is None)

    scene.run(story)
    assert len(receiver.at("/chat")) == 7
    assert "2 consumer groups match, 1 of them new" in receiver.at("/chat")[-1].json["text"]
