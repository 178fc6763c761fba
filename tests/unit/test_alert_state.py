"""How a policy's alerts go on from run to run, and what a receiver gets of them: a table of what may follow what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from group_hygiene.ledger.contents import encode_value
from group_hygiene.model import reasons
from group_hygiene.model.entries import Delivered, Firing, Notice, OutcomeType, PolicyAlerts
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.alerts import (
    AlertFinding,
    AlertType,
    Item,
    Situation,
    Status,
    added,
    advance,
    assess,
    digest_of,
    pending,
    received,
)
from tests.unit.make import NOW, P0, P1, alert, delete, mark, match, plan, refused, snapshot

MATCHED, MARKED, BLOCKED, DELETED = (
    AlertType.GROUPS_MATCHED,
    AlertType.GROUPS_MARKED,
    AlertType.DELETION_BLOCKED,
    AlertType.GROUPS_DELETED,
)
LATER = NOW + timedelta(minutes=10)
BLANK = partial(Item, policy="kafka/unused", connection="kafka/main")


def matching(groups: Iterable[str], at_least: int = 1, **changes: object) -> Situation:
    """An Alert policy that these groups match."""
    found = AlertFinding(MATCHED, {digest_of(group): group for group in groups}, at_least=at_least)
    return Situation(**{"uid": "uid-1", "at": NOW, "findings": (found,), **changes})  # type: ignore[arg-type]


class Receiver:
    """A policy, and a receiver that gets each message of it."""

    def __init__(self, *situations: Situation | None) -> None:
        self.firing: dict[str, Firing] = {}
        self.delivery = Delivered("", {})
        for situation in situations:
            self.run(situation)

    def run(self, situation: Situation | None, renew: bool = False) -> list[Item]:
        """What it gets after a run. situation: None = the policy is suspended, or gone."""
        self.firing = {} if situation is None else advance(self.firing, situation)
        items = self.pending(situation is None, renew)
        for item in items:
            self.delivery = received(self.delivery, item)
        return items

    def pending(self, gone: bool = False, renew: bool = False) -> list[Item]:
        policy = None if gone else alert()
        return list(pending(policy, BLANK, self.firing, self.delivery, LATER, lambda _type: renew))


def kinds(items: Sequence[Item]) -> list[tuple[Status, AlertType]]:
    return [(item.status, item.type) for item in items]


A, AB, B, NONE = matching("a"), matching("ab"), matching("b"), matching("")
UNKNOWN = matching("", unknown=frozenset({digest_of("a")}))
UNSEEN = matching("", judged=frozenset())
SEEN = matching("", judged=frozenset({digest_of("a")}))
FIRES, ENDS = (Status.FIRING, MATCHED), (Status.RESOLVED, MATCHED)


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        pytest.param([], NONE, [], id="nothing-matches"),
        pytest.param([], A, [FIRES], id="first-match"),
        pytest.param([A], A, [], id="the-same-again"),
        pytest.param([A], AB, [FIRES], id="one-more-is-a-change"),
        pytest.param([AB], A, [], id="one-less-is-none"),
        pytest.param([AB, A], AB, [FIRES], id="one-that-comes-back-is-a-change"),
        pytest.param([A], B, [FIRES], id="another-one-instead"),
        pytest.param([A], NONE, [ENDS], id="none-left"),
        pytest.param([A, NONE], NONE, [], id="resolved-once"),
        pytest.param([A, NONE], A, [FIRES], id="again-after-it-was-resolved"),
        pytest.param([], matching("ab", at_least=3), [], id="too-few"),
        pytest.param([], matching("abc", at_least=3), [FIRES], id="just-enough"),
        pytest.param([matching("abc", at_least=3)], matching("ab", at_least=3), [ENDS], id="too-few-now"),
        pytest.param([A], matching("a", at_least=2), [ENDS], id="threshold-raised"),
        pytest.param([A], UNKNOWN, [], id="not-judged-now"),
        pytest.param([A], UNSEEN, [], id="not-listed-by-brokers-that-did-not-answer"),
        pytest.param([A], SEEN, [ENDS], id="judged-though-others-are-missing"),
        pytest.param([A, UNKNOWN], NONE, [ENDS], id="known-again-and-gone"),
        pytest.param([A, UNKNOWN], A, [], id="known-again-and-there"),
        pytest.param([], UNKNOWN, [], id="not-judged-and-never-reported"),
        pytest.param([A], None, [ENDS], id="policy-gone-or-suspended"),
        pytest.param([], None, [], id="policy-gone-that-reported-nothing"),
        pytest.param([A, None], A, [FIRES], id="policy-resumed"),
    ],
)
def test_what_follows_what(
    before: list[Situation | None], now: Situation | None, says: list[tuple[Status, AlertType]]
) -> None:
    """A change is sent once, and what only goes on is not."""
    receiver = Receiver(*before)
    assert kinds(receiver.run(now)) == says
    assert receiver.pending(now is None) == []


def test_an_alert_that_changed_is_another_one_to_an_alertmanager() -> None:
    """It tells alerts apart by their labels, and would notify of no other group in the same one."""
    (new,) = Receiver(A).run(AB)
    assert (new.replaces, new.since) == (NOW, NOW + timedelta(seconds=1)), "also in the same second"
    (ended,) = Receiver(A, AB).run(NONE)
    assert ended.since == new.since


def test_a_mark_that_ended_is_not_held() -> None:
    """Marks are in the ledger: it is known that this one ended, also if the brokers' answers are not complete."""
    marked = Situation("uid-1", NOW, (AlertFinding(MARKED, {digest_of("a"): "a"}),))
    ended = Situation("uid-1", LATER, (AlertFinding(MARKED, {}),), judged=frozenset())
    assert kinds(Receiver(marked).run(ended)) == [(Status.RESOLVED, MARKED)]


def threshold(groups: str, **changes: object) -> Situation:
    """Of a policy that alerts from three groups on."""
    return matching(groups, at_least=3, **changes)


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        pytest.param([], threshold("abc"), 3, id="crossed"),
        pytest.param([threshold("abc")], threshold("abcd"), None, id="one-more"),
        pytest.param([threshold("abc")], threshold("def"), None, id="others-instead"),
        pytest.param([threshold("abc"), threshold("abcd")], threshold("abcde"), None, id="not-twice-yet"),
        pytest.param([threshold("abc")], threshold("abcdef"), 3, id="twice"),
        pytest.param([threshold("abc"), threshold("abcd"), threshold("abcde")], threshold("abcdef"), 3, id="in-steps"),
        pytest.param([threshold("abc"), threshold("abcdef")], threshold("abcdefghi"), None, id="twice-of-the-latest"),
        pytest.param([threshold("abc"), threshold("ab")], threshold("abc"), 3, id="crossed-again"),
        pytest.param(
            [threshold("abc")], threshold("ab", unknown=frozenset({digest_of("c")})), None, id="one-is-not-judged"
        ),
    ],
)
def test_with_a_threshold_each_doubling_is_a_change(before: list[Situation], now: Situation, new: int | None) -> None:
    """A program that makes a group at each start would else be reported at each run."""
    items = Receiver(*before).run(now)
    assert [(item.status, item.new) for item in items] == ([] if new is None else [(Status.FIRING, new)])


@pytest.mark.parametrize("before", [pytest.param([], id="first"), pytest.param([B], id="changed")])
def test_what_is_tried_again_is_the_same_alert(before: list[Situation]) -> None:
    """Also after another run that found the same: an Alertmanager would take it for another alert otherwise."""
    receiver = Receiver(*before)
    receiver.firing = advance(receiver.firing, A)
    first = receiver.pending()
    receiver.firing = advance(receiver.firing, matching("a", at=LATER))
    assert receiver.pending() == first


def test_renewal_repeats_what_fires() -> None:
    """As the same alert, and nothing else."""
    receiver = Receiver()
    first = receiver.run(A)
    assert receiver.run(A, renew=True) == first
    receiver.run(NONE)
    assert receiver.run(NONE, renew=True) == []


def test_new_groups_come_first_and_are_counted() -> None:
    """Of many, 20 are named, the new ones first: also when the message is sent after a later run."""
    old = [f"old-{i:02}" for i in range(30)]
    receiver = Receiver(matching(old))
    receiver.firing = advance(receiver.firing, matching([*old, "new-1", "new-2"]))
    receiver.firing = advance(receiver.firing, matching([*old[1:], "new-2"]))
    (item,) = [item for item in receiver.pending() if item.status is Status.FIRING]
    assert list(item.groups) == ["new-2", *old[1:20]]
    assert (item.total, item.new) == (30, 2)
    receiver.firing = advance(receiver.firing, matching(["new-2"]))
    assert [(item.total, item.new) for item in receiver.pending()][-1] == (1, 1)


def test_what_is_remembered_is_bounded() -> None:
    """A sample of many groups stands for all: nothing is sent twice, and more of them still are a change."""
    many = [f"many-{i}" for i in range(25_000)]
    receiver = Receiver(matching(many))
    ids: Any = {"connection_uid": "c", "policy_uid": "u", "policy": "kafka/unused"}
    entry = PolicyAlerts(**ids, firing=receiver.firing, delivered={}, expires=NOW)
    assert len(encode_value(entry)) < 150_000
    assert receiver.run(matching(many)) == []
    more = receiver.run(matching([*many, *(f"more-{i}" for i in range(50))]))
    assert kinds(more) == [FIRES]
    assert more[0].total == 25_050


def test_deletions_are_added_up() -> None:
    """A receiver that is away for long gets their number, with some names: of what it has, no more."""
    first, second = Notice(NOW, 2, {"a": "", "b": ""}), Notice(LATER, 1, {"c": ""})
    both = added(added(None, first), second)
    assert both == Notice(LATER, 3, {"a": "", "b": "", "c": ""})

    def left(of: Notice, sent: Notice) -> Notice | None:
        (item,) = pending(None, BLANK, {}, Delivered("", {}, sent), NOW)
        return received(Delivered("", {}, of), item).deleted

    assert left(both, first) == second
    assert left(both, both) is None
    many = both
    for number in range(100):
        groups = {f"g-{number}-{i}" + "x" * 190: "" for i in range(20)}
        many = added(many, Notice(LATER, 50, groups))
    assert (many.total, len(many.groups)) == (5_003, 20)
    assert sum(map(len, many.groups)) < 5_000


def test_deletions_are_sent_late_as_well() -> None:
    """After a day without an answer an Alertmanager gets an alert that still holds: one that is over is silent."""
    then = NOW + timedelta(days=1)
    delivery = Delivered("", {}, Notice(NOW, 2, {"a": "", "b": ""}))
    (item,) = pending(delete(enforce=True), BLANK, {}, delivery, then)
    assert (item.type, item.status, item.total, list(item.groups)) == (DELETED, Status.NOTICE, 2, ["a", "b"])
    assert item.since == NOW
    assert item.until is not None
    assert item.until > then


# --- what a run found


def test_an_alert_policy_finds_what_matches() -> None:
    """And what could not be judged, which ends nothing."""
    policy = alert()
    found = assess(plan(policy, [match("a"), refused("b"), refused("c", reasons.OFFSETS_UNKNOWN)]), [], snapshot())
    (matched, marked) = found.findings
    assert (matched.type, list(matched.groups.values())) == (MATCHED, ["a"])
    assert marked.groups == {}
    assert found.unknown == {digest_of("c")}
    assert found.judged is None
    partial = assess(plan(policy, [match("a")]), [], snapshot(incomplete=("a broker is away",)))
    assert partial.judged == frozenset({digest_of("a")})


def test_a_dry_run_finds_what_would_be_due() -> None:
    """As what matches."""
    found = assess(plan(delete(), [match("a")]), [], snapshot())
    assert [(f.type, list(f.groups.values())) for f in found.findings] == [(MATCHED, ["a"]), (MARKED, [])]


def test_enforce_finds_what_waits_and_what_went() -> None:
    """Marks with their first date, without those that the run deleted; a new date of the same group is news."""
    policy = delete(enforce=True)
    earlier, later = mark(policy, "a", NOW - timedelta(hours=2)), mark(policy, "a", NOW - timedelta(hours=1))
    gone = Outcome("b", OutcomeType.DELETED, reasons.DELETED, "deleted")
    marks = {"a": earlier, "b": mark(policy, "b")}
    found = assess(plan(policy, [match("a"), match("b")], marks), [gone], snapshot())
    (marked,) = found.findings
    assert (marked.type, list(marked.groups.values()), marked.first_due) == (MARKED, ["a"], earlier.due)
    assert found.deleted == Notice(NOW, 1, {"b": ""})
    assessed = assess(plan(policy, [match("a")], {"a": later}), [], snapshot())
    assert assessed.findings[0].groups.keys().isdisjoint(marked.groups)


def test_a_mark_says_what_waits_for_the_groups() -> None:
    """By the lag when they were marked; another lag later is no change of the alert, also if it is not known then."""
    policy = delete(enforce=True)
    marks = {"a": mark(policy, "a", NOW - timedelta(hours=2))}
    (first,) = assess(plan(policy, [match("a")], marks), [], snapshot()).findings
    assert first.detail.startswith(
        "5 records wait for them: after the deletion, consumers with auto.offset.reset=latest"
    )
    receiver = Receiver(assess(plan(policy, [match("a")], marks), [], snapshot()))
    before = receiver.firing
    for lag in ({P0: 900, P1: 0}, None):
        assert receiver.run(assess(plan(policy, [match("a", lag=lag)], marks), [], snapshot())) == []
        assert receiver.firing == before


def test_no_receiver_hears_that_a_dry_run_would_be_blocked() -> None:
    """It deletes nothing anyway: receivers get its matches only."""
    situation = assess(plan(delete(), [match("a")], total=1), [], snapshot())
    assert kinds(Receiver().run(situation)) == [(Status.FIRING, MATCHED)]


def test_a_refusal_is_found_by_its_reason() -> None:
    """Another number in its message is no news; another reason is."""
    policy = delete(enforce=True)

    def refused(*why: str) -> Situation:
        return assess(plan(policy, [match("a")], refusals=[Refusal(*why)]), [], snapshot())

    receiver = Receiver()
    assert (Status.FIRING, BLOCKED) in kinds(receiver.run(refused(reasons.TOPICS_HIDDEN, "3 topics")))
    assert receiver.run(refused(reasons.TOPICS_HIDDEN, "4 topics")) == []
    firing = receiver.firing[BLOCKED]
    assert "4 topics" in firing.detail, "a renewal shows the latest"
    assert (list(firing.groups), firing.total, firing.new) == (["a"], 1, 0), "the groups that are due"
    receiver.run(refused(reasons.TOPICS_HIDDEN, "x" * 1_000_000))
    assert len(receiver.firing[BLOCKED].detail) < 1_100, "a broker takes no record beyond a megabyte"
    assert (Status.FIRING, BLOCKED) in kinds(receiver.run(refused(reasons.CLOCK_SKEW, "off")))
    over = assess(plan(policy, [match("a")]), [], snapshot())
    assert kinds(receiver.run(over)) == [(Status.RESOLVED, BLOCKED)]
