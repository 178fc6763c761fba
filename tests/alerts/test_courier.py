"""The courier with real receivers: who waits for whom, what is tried again, and who may not send."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from group_hygiene import reasons
from group_hygiene.alerts import courier as module
from group_hygiene.alerts.courier import Courier, Links
from group_hygiene.alerts.endpoints import Endpoint
from group_hygiene.alerts.outbox import Box, Letter, Outbox, no_such
from group_hygiene.alerts.sending import Failure
from group_hygiene.alerts.situation import Finding, News, Situation, digest_of
from group_hygiene.alerts.state import Route
from group_hygiene.egress import parse_egress
from group_hygiene.entries import Firing, Removal, Told
from group_hygiene.receivers import Kind
from group_hygiene.secret import Hidden
from tests.receiving import Receiver

PATIENCE = 60.0


def route(receiver: str, uid: str = "uid-1") -> Route:
    return Route(uid, receiver, Kind.WEBHOOK, "here", "uid-c", "kafka/main")


def situation(groups: Iterable[str], uid: str = "uid-1", deleted: tuple[str, ...] = ()) -> Situation:
    return Situation(
        uid=uid,
        namespace="kafka",
        name=uid,
        connection="kafka/main",
        action="Alert",
        mode="DryRun",
        interval=timedelta(minutes=10),
        at=datetime.now(UTC),
        findings=(Finding(News.GROUPS_MATCHED, {digest_of(group): group for group in groups}),),
        deleted=deleted,
    )


class Scene:
    """An outbox with webhooks of one server, and a courier that runs in the test's event loop."""

    def __init__(self, server: Receiver, *names: str, uids: tuple[str, ...] = ("uid-1",)) -> None:
        self.server, self.names, self.uids = server, names, uids
        self.outbox = Outbox()
        self.leads = True
        self.told = 0
        self.counts: list[tuple[str, bool]] = []
        self.bind()

    def bind(self, *leave_out: str) -> None:
        kept = [name for name in self.names if name not in leave_out]
        places = {("", n): Endpoint(n, Kind.WEBHOOK, Hidden(self.server.url(f"/{n}"))) for n in kept}
        self.outbox.bind([route(name, uid) for name in kept for uid in self.uids], places)

    def run(self, story: Callable[[Courier], Any]) -> None:
        """Let the story happen while the courier runs."""

        def told() -> None:
            self.told += 1

        async def main() -> None:
            links = Links(
                parse_egress(["127.0.0.0/8"]),
                lambda: self.leads,
                told,
                lambda kind, arrived: self.counts.append((kind, arrived)),
            )
            courier = Courier("kafka/main", self.outbox, links)
            task = asyncio.create_task(courier.run())
            try:
                await story(courier)
                assert not task.done()
            finally:
                task.cancel()
                await asyncio.wait([task])

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
    scene.outbox.heard([situation("a")])

    async def story(courier: Courier) -> None:
        await until(lambda: scene.counts)
        # What a message shows of times are whole seconds.
        await asyncio.sleep(1.1)
        scene.outbox.heard([situation("a")])
        receiver.answers["/r"] = 200
        await until(lambda: ("webhook", True) in scene.counts)

    scene.run(story)
    assert len(receiver.at("/r")) >= 2
    assert len({request.json["id"] for request in receiver.at("/r")}) == 1


def test_one_that_hangs_holds_up_no_other(receiver: Receiver) -> None:
    """Each receiver has its own turn."""
    receiver.answers["/hangs"] = None
    scene = Scene(receiver, "hangs", "works")
    scene.outbox.heard([situation("a")])

    async def story(courier: Courier) -> None:
        await until(lambda: receiver.at("/hangs") and scene.counts)
        scene.outbox.heard([situation("ab")])
        courier.wake()
        await until(lambda: len(receiver.at("/works")) == 2)

    scene.run(story)
    assert len(receiver.at("/hangs")) == 1
    assert scene.counts == [("webhook", True)] * 2


def test_what_fails_is_tried_again_until_it_arrives(receiver: Receiver) -> None:
    """With a failure to tell of meanwhile, and none afterwards; and what arrived is not sent again."""
    receiver.answers["/r"] = 500
    scene = Scene(receiver, "r")
    scene.outbox.heard([situation("a")])

    async def story(courier: Courier) -> None:
        await until(lambda: len(receiver.at("/r")) >= 3)
        failure = scene.outbox.failure(("uid-1", "r"))
        assert isinstance(failure, Failure)
        assert scene.told == 1, "news of a failure once"
        receiver.answers["/r"] = 200
        await until(lambda: scene.outbox.failure(("uid-1", "r")) is None)
        tried = len(receiver.at("/r"))
        courier.wake()
        await asyncio.sleep(1)
        assert len(receiver.at("/r")) == tried

    scene.run(story)
    assert scene.counts[-1] == ("webhook", True)


def test_the_latest_state_wins(receiver: Receiver) -> None:
    """Who was away hears of what holds when it is back, and not of what came and went."""
    receiver.answers["/r"] = 500
    scene = Scene(receiver, "r")
    scene.outbox.heard([situation("a")])

    async def story(courier: Courier) -> None:
        await until(lambda: receiver.at("/r"))
        scene.outbox.heard([situation("xyz")])
        receiver.answers["/r"] = 200
        await until(lambda: ("webhook", True) in scene.counts)
        receiver.answers["/r"] = 500
        scene.outbox.heard([situation("wxyz")])
        courier.wake()
        await until(lambda: scene.outbox.failure(("uid-1", "r")))
        scene.outbox.heard([situation("xyz")])
        await until(lambda: scene.outbox.failure(("uid-1", "r")) is None)

    scene.run(story)
    arrived = next(request for request in receiver.at("/r") if "x" in request.json["alerts"][0]["groups"])
    assert set(arrived.json["alerts"][0]["groups"]) == {"x", "y", "z"}
    assert receiver.at("/r")[-1].json["alerts"][0]["groups"][0] == "w", "came, and went before it could be told"


def test_who_does_not_lead_sends_nothing(receiver: Receiver) -> None:
    """Nor does one that loses the lead while a message waits; what it owes, the next one tells."""
    scene = Scene(receiver, "r")
    scene.leads = False
    scene.outbox.heard([situation("a", deleted=("b",))])

    async def story(courier: Courier) -> None:
        courier.wake()
        await asyncio.sleep(1)

    scene.run(story)
    assert receiver.requests == []
    (told,) = scene.outbox.unwritten()
    assert isinstance(told, Told)
    assert told.firing == {}
    assert told.owed[0].groups == ["b"]


def test_all_policies_of_a_round_are_one_message(receiver: Receiver) -> None:
    """However many."""
    uids = tuple(f"uid-{number}" for number in range(30))
    scene = Scene(receiver, "r", uids=uids)
    scene.outbox.heard([situation("a", uid) for uid in uids])

    async def story(courier: Courier) -> None:
        await until(lambda: scene.counts)
        courier.wake()
        await asyncio.sleep(0.5)

    scene.run(story)
    (request,) = receiver.at("/r")
    assert len(request.json["alerts"]) == 30


class Watched(Outbox):
    """Counts who is looked at."""

    def letter(self, box: Box, now: datetime) -> tuple[Letter, Endpoint] | None:
        looks[box[1]] += 1
        return super().letter(box, now)


looks: Counter[str] = Counter()


def test_of_many_receivers_only_who_was_busy_is_looked_at_again(receiver: Receiver) -> None:
    """What is done for one message does not grow with the number of receivers: the Lease is renewed in between."""
    names = [f"r-{number}" for number in range(30)]
    scene = Scene(receiver, *names)
    scene.outbox = Watched()
    scene.bind()
    scene.outbox.heard([situation("a")])
    looks.clear()

    async def story(courier: Courier) -> None:
        await until(lambda: len(scene.counts) == 30)
        await asyncio.sleep(0.5)

    scene.run(story)
    assert looks == dict.fromkeys(names, 2), "for the message, and whether there is more"


def test_a_process_goes_on_where_another_ended(receiver: Receiver) -> None:
    """With what the ledger says was told: nothing twice, and the end of what was is told."""
    first = Scene(receiver, "r", "gone")
    first.outbox.heard([situation("a")])

    async def until_told(courier: Courier) -> None:
        await until(lambda: len(first.counts) == 2)

    first.run(until_told)
    ledger = [change for change in first.outbox.unwritten() if isinstance(change, Told)]
    assert {told.receiver for told in ledger} == {"r", "gone"}
    first.outbox.written(ledger)
    assert first.outbox.unwritten() == []
    second = Scene(receiver, "r", "gone")
    second.bind("gone")
    second.outbox.remember(ledger, "uid-c", "kafka/main")

    async def story(courier: Courier) -> None:
        second.outbox.heard([situation("a")])
        courier.wake()
        await asyncio.sleep(0.5)
        assert len(receiver.at("/r")) == 1
        second.outbox.heard([situation("")])
        courier.wake()
        await until(lambda: len(receiver.at("/r")) == 2)
        await until(lambda: len(second.outbox.unwritten()) == 2)

    second.run(story)
    assert receiver.at("/r")[1].json["alerts"][0]["status"] == "resolved"
    assert len(receiver.at("/gone")) == 1, "where it was, the next process does not know"
    assert {change.key for change in second.outbox.unwritten() if isinstance(change, Removal)} == {
        ("told", "uid-1", "r"),
        ("told", "uid-1", "gone"),
    }


def test_a_message_that_cannot_be_made_holds_up_no_other(receiver: Receiver) -> None:
    """A fault of the operator in one receiver's message: the others hear theirs, and sending goes on."""
    scene = Scene(receiver, "a-broken", "b-fine")
    scene.outbox.heard([situation("a")])
    made = scene.outbox.letter

    def letter(box: Box, now: datetime) -> tuple[Letter, Endpoint] | None:
        if box[1] == "a-broken":
            raise OverflowError("date value out of range")
        return made(box, now)

    scene.outbox.letter = letter  # type: ignore[method-assign]

    async def story(courier: Courier) -> None:
        await until(lambda: receiver.at("/b-fine"))
        scene.outbox.heard([situation("ab")])
        courier.wake()
        await until(lambda: len(receiver.at("/b-fine")) == 2)

    scene.run(story)
    assert receiver.at("/a-broken") == []


def test_another_connections_told_is_not_ours(receiver: Receiver) -> None:
    """Two connections may share a ledger: neither takes back what the other told."""
    scene = Scene(receiver, "r")
    theirs = Told(
        policy_uid="uid-9",
        receiver="r",
        digest="here",
        connection_uid="uid-other",
        policy="kafka/theirs",
        firing={"GroupsMatched": Firing(datetime.now(UTC), digest_of("a"))},
        expires=datetime.now(UTC) + timedelta(days=1),
    )
    scene.outbox.remember([theirs], "uid-c", "kafka/main")
    assert scene.outbox.unwritten() == []

    async def story(courier: Courier) -> None:
        await asyncio.sleep(0.5)

    scene.run(story)
    assert receiver.requests == []
    assert scene.outbox.unwritten() == []


def test_a_receiver_that_left_the_spec_is_given_up(receiver: Receiver) -> None:
    """It is told that all is over, some times; then it is forgotten, so that nothing grows for ever."""
    scene = Scene(receiver, "r")
    scene.outbox.heard([situation("a")])

    async def story(courier: Courier) -> None:
        await until(lambda: scene.counts)
        receiver.answers["/r"] = 500
        scene.bind("r")
        courier.wake()
        await until(lambda: scene.outbox.boxes() == [])

    scene.run(story)
    assert len(receiver.at("/r")) == 1 + 5
    assert {request.json["alerts"][0]["status"] for request in receiver.at("/r")[1:]} == {"resolved"}


def test_a_receiver_that_left_the_spec_and_is_still_named_hears_the_end(receiver: Receiver) -> None:
    """The policy's status says that there is none of that name; where it was, what was told there is taken back."""
    scene = Scene(receiver, "r")
    scene.outbox.heard([situation("a")])

    async def story(courier: Courier) -> None:
        await until(lambda: scene.counts)
        scene.outbox.bind([], {("", "r"): no_such("r")})
        courier.wake()
        await until(lambda: len(receiver.at("/r")) == 2)

    scene.run(story)
    assert receiver.at("/r")[1].json["alerts"][0]["status"] == "resolved"
    missing = scene.outbox.failure(("uid-1", "r"))
    assert missing is not None
    assert missing.reason == reasons.RECEIVER_NOT_FOUND


def test_the_documents_way_to_check_a_signature(receiver: Receiver) -> None:
    """The Python of docs/alerts.md takes what we sign, and nothing else."""
    page = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    scene = Scene(receiver, "r")
    place = Endpoint("r", Kind.WEBHOOK, Hidden(receiver.url("/r")), hmac=Hidden("key"))
    scene.outbox.bind([route("r")], {("", "r"): place})
    scene.outbox.heard([situation("a")])

    async def story(courier: Courier) -> None:
        await until(lambda: scene.counts)

    scene.run(story)
    (request,) = receiver.at("/r")
    assert names["is_genuine"](b"key", request.headers, request.body)
    assert not names["is_genuine"](b"other", request.headers, request.body)
    assert not names["is_genuine"](b"key", request.headers, request.body + b" ")
    late = {**request.headers, "X-Group-Hygiene-Timestamp": "1"}
    assert not names["is_genuine"](b"key", late, request.body)
