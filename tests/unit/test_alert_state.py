"""What a receiver must hear, given what it was told and what holds now: a table of what may follow what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import pytest

from group_hygiene import reasons
from group_hygiene.alerts.situation import Finding, News, Situation, assess, digest_of
from group_hygiene.alerts.state import Item, Route, Status, owing, step, still_owing
from group_hygiene.entries import Notice, Told, decode, encode_value
from group_hygiene.model import Keep, Outcome, OutcomeKind
from group_hygiene.receivers import Kind
from tests.unit.make import NOW, alert, delete, keep, mark, match, plan, snapshot

MATCHED, MARKED, BLOCKED, DELETED = News.GROUPS_MATCHED, News.GROUPS_MARKED, News.DELETION_BLOCKED, News.GROUPS_DELETED
LATER = NOW + timedelta(minutes=10)


def route(kind: Kind = Kind.SLACK, digest: str = "here") -> Route:
    return Route("uid-1", "chat", kind, digest, "uid-c", "kafka/main")


def matching(groups: Iterable[str], at_least: int = 1, **changes: object) -> Situation:
    """An Alert policy that these groups match."""
    found = Finding(MATCHED, {digest_of(group): group for group in groups}, at_least=at_least)
    return situation(found, **changes)


def situation(*findings: Finding, **changes: object) -> Situation:
    known: dict[str, object] = {
        "uid": "uid-1",
        "namespace": "kafka",
        "name": "litter",
        "connection": "kafka/main",
        "action": "Alert",
        "mode": "DryRun",
        "interval": timedelta(minutes=10),
        "at": NOW,
        "findings": findings,
    }
    return Situation(**(known | changes))  # type: ignore[arg-type]


def after(*situations: Situation | None, at: Route | None = None) -> Told | None:
    """What was told once all that these said arrived, one after the other."""
    told = None
    for one in situations:
        told = step(told, one, at or route(), NOW).told
    return told


def heard(items: Sequence[Item]) -> list[tuple[Status, News]]:
    return [(item.status, item.news) for item in items]


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
        pytest.param([A], AB, [FIRES], id="one-more-is-news"),
        pytest.param([AB], A, [], id="one-less-is-none"),
        pytest.param([AB, A], AB, [FIRES], id="one-that-comes-back-is-news"),
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
        pytest.param([], UNKNOWN, [], id="not-judged-and-never-told"),
        pytest.param([A], None, [ENDS], id="policy-gone-or-suspended"),
        pytest.param([], None, [], id="policy-gone-that-told-nothing"),
        pytest.param([A, None], A, [FIRES], id="policy-resumed"),
    ],
)
def test_what_follows_what(
    before: list[Situation | None], now: Situation | None, says: list[tuple[Status, News]]
) -> None:
    """News is told once; what only went on is not."""
    assert heard(step(after(*before), now, route(), LATER).items) == says


def swarm(groups: str) -> Situation:
    """Of a policy that alerts from three groups on."""
    return matching(groups, at_least=3)


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        pytest.param([], swarm("abc"), 3, id="crossed"),
        pytest.param([swarm("abc")], swarm("abcd"), None, id="one-more"),
        pytest.param([swarm("abc")], swarm("def"), None, id="others-instead"),
        pytest.param([swarm("abc"), swarm("abcd")], swarm("abcde"), None, id="not-twice-yet"),
        pytest.param([swarm("abc")], swarm("abcdef"), 3, id="twice"),
        pytest.param([swarm("abc"), swarm("abcd"), swarm("abcde")], swarm("abcdef"), 3, id="twice-step-by-step"),
        pytest.param([swarm("abc"), swarm("abcdef")], swarm("abcdefghi"), None, id="twice-of-what-was-told-last"),
        pytest.param([swarm("abc"), swarm("ab")], swarm("abc"), 3, id="crossed-again"),
    ],
)
def test_of_a_swarm_growth_is_news(before: list[Situation], now: Situation, new: int | None) -> None:
    """A program that makes a group at each start would else be told of at each run: only twice as many is news."""
    items = step(after(*before), now, route(), LATER).items
    assert heard(items) == ([] if new is None else [FIRES])
    assert [item.new for item in items] == ([] if new is None else [new])


@pytest.mark.parametrize("kind", [Kind.SLACK, Kind.ALERTMANAGER])
@pytest.mark.parametrize("before", [pytest.param([], id="first"), pytest.param([B], id="news")])
def test_what_is_tried_again_is_the_same_alert(kind: Kind, before: list[Situation]) -> None:
    """To an Alertmanager another `since` is another alert, and the one whose answer was lost would stand beside it."""
    told = after(*before, at=route(kind))
    first, again = (step(told, A, route(kind), NOW + timedelta(minutes=wait)).items for wait in (0, 5))
    assert [item.since for item in first] == [item.since for item in again]


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        pytest.param([], A, [FIRES], id="first-match"),
        pytest.param([A], A, [], id="the-same-again"),
        pytest.param([A], AB, [(Status.REPLACED, MATCHED), FIRES], id="news-takes-the-place"),
        pytest.param([A], NONE, [ENDS], id="resolved"),
    ],
)
def test_an_alertmanager_gets_another_alert_for_news(
    before: list[Situation | None], now: Situation, says: list[tuple[Status, News]]
) -> None:
    """To an Alertmanager an alert is its labels: it would tell nobody of another group in the same one."""
    told = after(*before, at=route(Kind.ALERTMANAGER))
    items = step(told, now, route(Kind.ALERTMANAGER), LATER).items
    assert heard(items) == says
    if len(says) == 2:
        assert items[0].since != items[1].since


@pytest.mark.parametrize(
    ("passed", "interval", "renewed"),
    [
        pytest.param(29, 10, False, id="soon"),
        pytest.param(31, 10, True, id="half-of-an-hour-is-over"),
        pytest.param(24 * 60, 24 * 60, False, id="daily-policy-next-day"),
        pytest.param(49 * 60, 24 * 60, True, id="daily-policy-after-two"),
    ],
)
def test_an_alertmanager_is_told_again_in_time(passed: int, interval: int, renewed: bool) -> None:
    """Long before it would take the alert for resolved: that lies at least four intervals ahead. No one else is."""
    often = matching("a", interval=timedelta(minutes=interval))
    then = NOW + timedelta(minutes=passed)
    told = after(often, at=route(Kind.ALERTMANAGER))
    done = step(told, often, route(Kind.ALERTMANAGER), then)
    assert heard(done.items) == ([(Status.RENEWED, MATCHED)] if renewed else [])
    if renewed:
        (item,) = done.items
        assert item.since == NOW, "the same alert"
        assert item.until is not None
        assert item.until >= then + 4 * often.interval
    assert step(after(often), often, route(), then).items == ()


def test_another_place_was_told_nothing() -> None:
    """A receiver whose address changed hears of everything anew; what the old place heard is not taken back there."""
    told = after(A)
    assert heard(step(told, A, route(digest="there"), LATER).items) == [FIRES]
    assert step(told, NONE, route(digest="there"), LATER) == step(None, NONE, route(digest="there"), LATER)


def test_new_groups_come_first_and_are_counted() -> None:
    """Of many, 20 are named, those first that nobody was told of."""
    told = after(matching(f"old-{i:02}" for i in range(30)))
    now = matching([*(f"old-{i:02}" for i in range(30)), "new-1", "new-2"])
    (item,) = step(told, now, route(), LATER).items
    assert set(item.groups[:2]) == {"new-1", "new-2"}
    assert (len(item.groups), item.total, item.new) == (20, 32, 2)


def test_what_is_remembered_is_bounded() -> None:
    """Of a swarm a sample stands for all: nothing is told twice, and more of the swarm is still news."""
    swarm = [f"swarm-{i}" for i in range(25_000)]
    told = after(matching(swarm))
    assert told is not None
    assert len(encode_value(told)) < 150_000
    assert step(told, matching(swarm), route(), LATER).items == ()
    assert heard(step(told, matching([*swarm, *(f"more-{i}" for i in range(50))]), route(), LATER).items) == [FIRES]


def test_what_was_told_outlives_a_restart() -> None:
    """As the ledger holds it."""
    told = after(AB, at=route(Kind.ALERTMANAGER))
    assert told is not None
    again = decode(told.key, encode_value(told))
    assert again == told
    assert isinstance(again, Told)
    assert step(again, AB, route(Kind.ALERTMANAGER), NOW).items == ()


def test_deletions_are_told_once() -> None:
    """Owed until they are delivered, those of later runs as well; then no more."""
    gone = situation(deleted=("a", "b"))
    told = owing(None, gone, route())
    told = owing(told, situation(deleted=("c",), at=LATER), route())
    done = step(told, situation(), route(), LATER)
    assert [(item.news, item.status, item.total, item.groups) for item in done.items] == [
        (DELETED, Status.NOTICE, 2, ("a", "b")),
        (DELETED, Status.NOTICE, 1, ("c",)),
    ]
    assert done.told is None
    assert step(done.told, situation(), route(), LATER).items == ()


def test_deletions_are_told_late_as_well() -> None:
    """After a day without an answer an Alertmanager gets an alert that still holds: one that is over is silent."""
    told = owing(None, situation(deleted=("a",)), route(Kind.ALERTMANAGER))
    then = NOW + timedelta(days=1)
    (item,) = step(told, situation(), route(Kind.ALERTMANAGER), then).items
    assert item.since == NOW
    assert item.until is not None
    assert item.until > then


def test_what_is_owed_is_bounded() -> None:
    """A receiver that is away for long hears of numbers, with some names."""
    told = None
    for number in range(100):
        groups = tuple(f"g-{number}-{i}" + "x" * 30_000 for i in range(50))
        told = owing(told, situation(deleted=groups, at=NOW + timedelta(minutes=number)), route())
    assert told is not None
    assert sum(notice.total for notice in told.owed) == 5_000
    assert len(told.owed) <= 4
    assert all(len(notice.groups) <= 20 for notice in told.owed)
    assert len(encode_value(told)) < 50_000, "a broker takes no record beyond a megabyte"


def test_what_is_deleted_while_a_message_is_under_way_stays_owed() -> None:
    """Only what was in the message is not owed any more."""
    sent = owing(None, situation(deleted=("a",)), route())
    present = owing(sent, situation(deleted=("b",), at=LATER), route())
    left = still_owing(None, present, sent)
    assert left is not None
    assert left.owed == (Notice(LATER, 1, ["b"]),)
    assert still_owing(None, sent, sent) is None


# --- what a run found


def test_an_alert_policy_finds_what_matches() -> None:
    """And what could not be judged, which ends nothing."""
    policy = alert()
    found = assess(plan(policy, [match("a"), keep("b"), keep("c", reasons.OFFSETS_UNKNOWN)]), [], snapshot())
    (matched, marked) = found.findings
    assert (matched.news, list(matched.groups.values())) == (MATCHED, ["a"])
    assert marked.groups == {}
    assert found.unknown == {digest_of("c")}
    assert found.judged is None
    partial = assess(plan(policy, [match("a")]), [], snapshot(incomplete=("a broker is away",)))
    assert partial.judged == frozenset({digest_of("a")})


def test_a_dry_run_finds_what_would_be_due() -> None:
    """As what matches."""
    found = assess(plan(delete(), [match("a")]), [], snapshot())
    assert [(f.news, list(f.groups.values())) for f in found.findings] == [(MATCHED, ["a"]), (MARKED, [])]


def test_enforce_finds_what_waits_and_what_went() -> None:
    """Marks with their first date, without those that the run deleted; a new date of the same group is news."""
    policy = delete(enforce=True)
    earlier, later = mark(policy, "a", NOW - timedelta(hours=2)), mark(policy, "a", NOW - timedelta(hours=1))
    gone = Outcome("b", OutcomeKind.DELETED, reasons.DELETED, "deleted")
    marks = {"a": earlier, "b": mark(policy, "b")}
    found = assess(plan(policy, [match("a"), match("b")], marks), [gone], snapshot())
    (marked,) = found.findings
    assert (marked.news, list(marked.groups.values()), marked.first_due) == (MARKED, ["a"], earlier.due)
    assert found.deleted == ("b",)
    anew = assess(plan(policy, [match("a")], {"a": later}), [], snapshot())
    assert anew.findings[0].groups.keys().isdisjoint(marked.groups)


def test_a_refusal_is_found_by_its_reason() -> None:
    """Another number in its message is no news; another reason is."""
    policy = delete(enforce=True)

    def refused(*why: str) -> Situation:
        return assess(plan(policy, [match("a")], refusals=[Keep(*why)]), [], snapshot())

    first = refused(reasons.TOPICS_HIDDEN, "3 topics")
    told = after(first)
    assert (Status.FIRING, BLOCKED) in heard(step(None, first, route(), NOW).items)
    assert step(told, refused(reasons.TOPICS_HIDDEN, "4 topics"), route(), LATER).items == ()
    assert (Status.FIRING, BLOCKED) in heard(step(told, refused(reasons.CLOCK_SKEW, "off"), route(), LATER).items)
    over = assess(plan(policy, [match("a")]), [], snapshot())
    assert heard(step(told, over, route(), LATER).items) == [(Status.RESOLVED, BLOCKED)]
