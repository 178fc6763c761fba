"""The plan: marks, grace, order, pace, limits that abort."""

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from group_hygiene.engine.plan import VETOES, RunConditions, due_groups, max_deletions
from group_hygiene.model import reasons
from group_hygiene.model.entries import Mark
from group_hygiene.model.evidence import Protections, Verdict
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import parse_connection
from group_hygiene.spec.policy import Limits, Policy, parse_policy
from tests.unit.make import (
    NOW,
    activity,
    alert,
    delete,
    evidence,
    group,
    mark,
    match,
    plan,
    policy_object,
    refused,
    seen,
)


def _limited(per_run: int = 50, percent: int = 20, mode: str = "Enforce") -> Policy:
    return parse_policy(policy_object(mode=mode, delete={"maxPerRun": per_run, "maxPercent": percent}))


def _matches(count: int) -> list[Any]:
    return [match(f"g{number:04}") for number in range(count)]


def test_oldest_first() -> None:
    """Among equally old marks who has been unchanged for longest comes first; equal ones by name; the unseen last."""
    verdicts = [
        match("unseen", unchanged=None),
        match("b", unchanged=seen(since=NOW - timedelta(hours=80))),
        match("a", unchanged=seen(since=NOW - timedelta(hours=80))),
        refused("kept"),
        match("oldest", unchanged=seen(since=NOW - timedelta(hours=90))),
    ]
    result = plan(delete(enforce=True), verdicts)
    assert result.due == ("oldest", "a", "b", "unseen")
    assert result.actions == result.due
    assert result.refusal is None
    assert set(result.matched) == set(result.due)


def test_oldest_idle_first() -> None:
    """By the offsets log, where it tells; whatever the operator saw itself."""
    verdicts = [
        match("b", activity=activity(80), unchanged=seen(since=NOW - timedelta(hours=300))),
        match("c", unchanged=seen(since=NOW - timedelta(hours=79))),
        match("a", activity=activity(90), unchanged=None),
    ]
    assert plan(delete(enforce=True), verdicts).due == ("a", "b", "c")


@pytest.mark.parametrize(
    ("announced", "actions", "marking"),
    [
        pytest.param(None, (), ("later", "newest"), id="the-status-shows-no-mark"),
        pytest.param(timedelta(hours=30), ("later",), ("newest",), id="the-status-shows-the-older-one"),
        pytest.param(timedelta(hours=26), ("later", "newest"), (), id="the-status-shows-both"),
    ],
)
def test_a_mark_that_was_never_shown_is_made_again(
    announced: timedelta | None, actions: tuple[str, ...], marking: tuple[str, ...]
) -> None:
    """The grace period begins when users can see the mark, however old its entry in the ledger is."""
    policy = delete(enforce=True)
    dates = {"later": timedelta(hours=30), "newest": timedelta(hours=26)}
    # The status has whole seconds.
    marks = {name: mark(policy, name, NOW - age + timedelta(microseconds=5)) for name, age in dates.items()}
    result = plan(policy, map(match, dates), marks, announced=None if announced is None else NOW - announced)
    assert (result.due, result.actions) == (actions, actions)
    assert result.marking == set(marking)
    assert {name: result.due_time(name) for name in marking} == dict.fromkeys(marking, NOW + policy.grace_period)


_OFFSETS = parse_policy(policy_object("DeleteOffsets", {"idleFor": "72h"}, mode="Enforce"))


@pytest.mark.parametrize("topics", [pytest.param((), id="groups"), pytest.param(("orders",), id="offsets")])
@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        pytest.param(refused("unseen", reasons.EVIDENCE_STALE), reasons.EVIDENCE_STALE, id="not-judged"),
        pytest.param(None, reasons.SNAPSHOT_INCOMPLETE, id="not-listed"),
    ],
)
def test_a_mark_that_was_never_shown_ends_if_its_group_is_not_judged(
    topics: tuple[str, ...], verdict: Verdict | None, reason: str
) -> None:
    """Else the next announcement, of other groups, would cover it, and its old date would have come at once."""
    policy = _OFFSETS if topics else delete(enforce=True)
    since = NOW - timedelta(hours=50)
    marks = {"unseen": mark(policy, "unseen", since, topics=dict.fromkeys(topics, since))}
    verdicts = [*filter(None, [verdict]), structs.replace(match("other"), topics=frozenset(topics))]
    result = plan(policy, verdicts, marks, announced=since - timedelta(hours=1), complete=False)
    assert {name: refusal.reason for name, refusal in result.unmarking.items()} == {"unseen": reason}
    assert (set(result.marking), len(result.marks), result.newest_mark) == ({"other"}, 0, NOW)


def test_topics_of_a_mark_that_were_never_shown_are_left_out() -> None:
    """Of a group that can't be judged now; what users could see stays, with its date."""
    shown, unseen = NOW - timedelta(hours=60), NOW - timedelta(hours=50)
    marks = {"a": mark(_OFFSETS, "a", shown, topics={"seen": shown, "unseen": unseen})}
    result = plan(_OFFSETS, [refused("a", reasons.NOT_STABLE)], marks, announced=shown)
    assert result.marks["a"].topics == {"seen": shown}
    assert (result.marks["a"].due, result.newest_mark) == (shown + _OFFSETS.grace_period, shown)


def test_topics_that_could_not_be_marked_are_not_announced() -> None:
    """The ledger refused their marks: those of the time before stay the newest."""
    shown = NOW - timedelta(hours=1)
    marks = {"a": mark(_OFFSETS, "a", shown, topics={"old": shown})}
    result = plan(_OFFSETS, [structs.replace(match("a"), topics=frozenset({"old", "new"}))], marks, announced=shown)
    assert result.newest_mark == NOW
    assert result.halted(Refusal(reasons.LEDGER_UNAVAILABLE, "why")).newest_mark == shown


def test_max_per_run_paces() -> None:
    """One run deletes at most maxPerRun groups, the oldest; the others stay due."""
    verdicts = [match(f"g{age}", unchanged=seen(since=NOW - timedelta(hours=100 - age))) for age in range(5)]
    result = plan(_limited(per_run=2), reversed(verdicts))
    assert result.actions == ("g0", "g1")
    assert len(result.due) == 5
    assert result.refusal is None


@pytest.mark.parametrize(
    ("due", "percent", "total", "reason"),
    [
        pytest.param(20, 20, 100, None, id="exactly-at-the-limit"),
        pytest.param(21, 20, 100, reasons.LIMIT_EXCEEDED, id="one-more"),
        pytest.param(20, 20, 99, reasons.LIMIT_EXCEEDED, id="just-over-by-a-smaller-total"),
        pytest.param(1, 20, 5, None, id="one-of-five"),
        pytest.param(1, 20, 4, reasons.LIMIT_EXCEEDED, id="one-of-four"),
        pytest.param(1, 1, 100, None, id="one-percent"),
        pytest.param(2, 1, 199, reasons.LIMIT_EXCEEDED, id="rounding-never-helps"),
        pytest.param(5, 100, 5, None, id="all-when-allowed"),
        pytest.param(5, 100, 4, reasons.LIMIT_EXCEEDED, id="more-due-than-groups"),
        pytest.param(1, 100, 0, reasons.LIMIT_EXCEEDED, id="no-groups-at-all"),
        pytest.param(1, 100, None, reasons.TOTAL_UNKNOWN, id="total-unknown"),
    ],
)
def test_max_percent_aborts(due: int, percent: int, total: int | None, reason: str | None) -> None:
    """More than maxPercent of all groups due means that none is deleted; so does a total that nobody knows."""
    result = plan(_limited(percent=percent), _matches(due), total=total)
    assert (result.refusal.reason if result.refusal else None) == reason
    assert len(result.due) == due
    assert len(result.actions) == (0 if reason else due)


def test_refusal_says_how_many() -> None:
    """The message of an exceeded limit has the numbers that somebody needs to approve it."""
    refusal = plan(_limited(), _matches(21)).refusal
    assert refusal is not None
    assert "21 of 100 groups" in refusal.message
    assert "21.0%" in refusal.message
    assert "more than 20%" in refusal.message
    assert "raise maxPercent of the policy in Git" in refusal.message


def test_percent_counts_due_before_pace() -> None:
    """maxPercent looks at all that is due, not at what maxPerRun would let through."""
    result = plan(_limited(per_run=1), _matches(21))
    assert result.refusal is not None
    assert result.actions == ()


@pytest.mark.parametrize("mode", [pytest.param("DryRun", id="dry-run"), pytest.param("Enforce", id="enforce")])
def test_dry_run_has_no_actions(mode: str) -> None:
    """A dry run knows what is due and why it may not be deleted, and has nothing to do."""
    allowed, refused = plan(_limited(mode=mode), _matches(5)), plan(_limited(mode=mode), _matches(21))
    assert len(allowed.due) == 5
    assert len(allowed.actions) == (5 if mode == "Enforce" else 0)
    assert refused.refusal is not None
    assert refused.actions == ()


def test_alert_is_never_due() -> None:
    """An Alert policy has matches, and neither anything due nor a refusal, whatever forbids deletions."""
    result = plan(alert(), _matches(50), total=None, refusals=(Refusal(reasons.TOPICS_HIDDEN, "none"),))
    assert len(result.matched) == 50
    assert (result.due, result.actions, result.refusal) == ((), (), None)


def test_refusals_come_first() -> None:
    """What forbids any deletion is said before the limits, the first of them first; nothing is deleted."""
    refusals = (Refusal(reasons.CLUSTER_CHANGED, "another cluster"), Refusal(reasons.TOPICS_HIDDEN, "none"))
    result = plan(_limited(), _matches(50), refusals=refusals, total=None)
    assert result.refusal == refusals[0]
    assert result.actions == ()


def test_nothing_due_is_not_refused() -> None:
    """Without anything due there is nothing to refuse, also where nothing could be deleted."""
    result = plan(_limited(), [refused("a")], refusals=(Refusal(reasons.TOPICS_HIDDEN, "none"),), total=None)
    assert (result.refusal, result.due) == (None, ())


@pytest.mark.parametrize(
    ("limits", "actions", "refused"),
    [
        pytest.param(None, 8, False, id="none"),
        pytest.param(Limits(3, 100), 3, False, id="stricter-pace"),
        pytest.param(Limits(10_000, 10), 8, False, id="percent-at-the-limit"),
        pytest.param(Limits(10_000, 9), 0, True, id="stricter-percent"),
        pytest.param(Limits(10_000, 100), 8, False, id="looser-changes-nothing"),
    ],
)
def test_connection_limits(limits: Limits | None, actions: int, refused: bool) -> None:
    """The connection's limits count where they are stricter than the policy's."""
    result = plan(_limited(per_run=8), _matches(10), limits=limits)
    assert (len(result.actions), result.refusal is not None) == (actions, refused)


def test_connection_loosens_nothing() -> None:
    """A connection that allows more percent than the policy does not let more through."""
    assert plan(_limited(percent=5), _matches(10), limits=Limits(10_000, 100)).refusal is not None


def test_oldest_mark_first() -> None:
    """Who was marked first is deleted first, whatever was unchanged for longer."""
    policy = _limited(per_run=1)
    verdicts = [match("young", unchanged=seen(200)), match("old", unchanged=seen(72))]
    marks = {name: mark(policy, name, NOW - timedelta(hours=hours)) for name, hours in {"young": 30, "old": 31}.items()}
    result = plan(policy, verdicts, marks)
    assert result.due == ("old", "young")
    assert result.actions == ("old",)


_POLICY = delete(enforce=True)
_GRACE = _POLICY.grace_period
_SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("known", "due", "marking"),
    [
        pytest.param(None, False, True, id="not-marked-yet"),
        pytest.param(mark(_POLICY, "a", NOW - _GRACE), True, False, id="just-due"),
        pytest.param(mark(_POLICY, "a", NOW - _GRACE + _SECOND), False, False, id="one-second-too-early"),
        pytest.param(mark(_POLICY, "a", NOW - 30 * _GRACE), True, False, id="long-overdue"),
        pytest.param(mark(_POLICY, "a", NOW + _SECOND), False, True, id="from-the-future"),
        pytest.param(mark(_POLICY, "a", NOW + _SECOND, due=NOW), False, True, id="from-the-future-but-due"),
        pytest.param(mark(_POLICY, "a", NOW, due=NOW), False, False, id="due-at-once"),
        pytest.param(mark(_POLICY, "a", NOW - _GRACE, due=NOW + _SECOND), False, False, id="due-later-than-grace"),
        pytest.param(mark(_POLICY, "a", digest="other"), False, True, id="of-another-digest"),
    ],
)
def test_mark_and_grace(known: Mark | None, due: bool, marking: bool) -> None:
    """A match is marked once, and due when a mark of the policy as it is now has stood for its grace period.

    No status can have shown a mark from the future: it is made again.
    """
    result = plan(_POLICY, [match("a", unchanged=seen(50 * 24))], {} if known is None else {"a": known})
    assert result.due == result.actions == (("a",) if due else ())
    assert result.marking == (frozenset("a") if marking else frozenset())
    assert result.marked == ("a",)
    assert not result.unmarking
    assert result.due_time("a") == (known.due if known and not marking else NOW + _GRACE)


_UNLISTED = Protections(
    claimed=Refusal(reasons.CLAIMED, "no permission to list scaledobjects.keda.sh in all namespaces")
)
_UNREAD_TOPICS = Protections(streams=None)
_UNREAD_MIRROR = Protections(mirrored=None)


def _kept(reason: str, protections: Protections | None = None) -> Verdict:
    return Verdict(group("a"), evidence(protections=protections or Protections()), Refusal(reason, "why"))


@pytest.mark.parametrize(
    ("verdict", "complete", "unmarked"),
    [
        pytest.param(_kept(reasons.TOO_RECENT), True, reasons.TOO_RECENT, id="changed"),
        pytest.param(_kept(reasons.NOT_EMPTY), False, reasons.NOT_EMPTY, id="in-use-though-incomplete"),
        pytest.param(_kept(reasons.KEEP_REQUESTED), True, reasons.KEEP_REQUESTED, id="keep-requested"),
        pytest.param(_kept(reasons.CAUGHT_UP), True, reasons.CAUGHT_UP, id="caught-up"),
        pytest.param(_kept(reasons.LAG_BELOW), True, reasons.LAG_BELOW, id="lag-below"),
        pytest.param(_kept(reasons.IN_RANGE), True, reasons.IN_RANGE, id="in-range"),
        pytest.param(_kept(reasons.CLAIMED), True, reasons.CLAIMED, id="claimed"),
        pytest.param(_kept(reasons.STREAMS), True, reasons.STREAMS, id="streams"),
        pytest.param(_kept(reasons.MIRROR_MAKER), True, reasons.MIRROR_MAKER, id="mirrored"),
        pytest.param(_kept(reasons.CLAIMED, _UNLISTED), True, None, id="claims-unread"),
        pytest.param(_kept(reasons.STREAMS, _UNREAD_TOPICS), True, None, id="topics-unread"),
        pytest.param(_kept(reasons.STREAMS_STATE), True, reasons.STREAMS_STATE, id="streams-state"),
        pytest.param(_kept(reasons.STREAMS_STATE, _UNREAD_TOPICS), True, None, id="topics-unread-of-an-application"),
        pytest.param(_kept(reasons.MIRROR_MAKER, _UNREAD_MIRROR), True, None, id="mirrors-unread"),
        pytest.param(_kept(reasons.OFFSETS_UNKNOWN), True, None, id="offsets-unknown"),
        pytest.param(_kept(reasons.TOPICS_UNKNOWN), True, None, id="topics-unknown"),
        pytest.param(_kept(reasons.LAG_UNKNOWN), True, None, id="lag-unknown"),
        pytest.param(_kept(reasons.DENIED), True, None, id="denied"),
        pytest.param(_kept(reasons.RECORD_UNREADABLE), True, None, id="record-unreadable"),
        pytest.param(_kept(reasons.EVIDENCE_MISSING), True, None, id="evidence-missing"),
        pytest.param(_kept(reasons.EVIDENCE_STALE), True, None, id="evidence-stale"),
        pytest.param(_kept(reasons.EVIDENCE_INCOMPLETE), True, None, id="evidence-incomplete"),
        pytest.param(_kept(reasons.EVIDENCE_OF_ANOTHER_CLUSTER), True, None, id="evidence-of-another-cluster"),
        pytest.param(_kept(reasons.EVIDENCE_WENT_BACK), True, None, id="evidence-went-back"),
        pytest.param(_kept(reasons.EVIDENCE_UNREADABLE), True, None, id="evidence-unreadable"),
        pytest.param(
            _kept(reasons.EVIDENCE_NOT_CONFIGURED), True, reasons.EVIDENCE_NOT_CONFIGURED, id="evidence-taken-away"
        ),
        pytest.param(_kept(reasons.EXPIRES_FIRST), True, reasons.EXPIRES_FIRST, id="used-and-now-too-late"),
        pytest.param(None, True, reasons.GONE, id="gone"),
        pytest.param(None, False, None, id="absent-from-an-incomplete-list"),
    ],
)
def test_unmarking(verdict: Verdict | None, complete: bool, unmarked: str | None) -> None:
    """A mark ends with a known reason; it stays, and waits, while something could not be read. None is due."""
    result = plan(_POLICY, [verdict] if verdict else [], {"a": mark(_POLICY, "a")}, complete=complete)
    assert {name: refusal.reason for name, refusal in result.unmarking.items()} == ({"a": unmarked} if unmarked else {})
    assert result.marked == (() if unmarked else ("a",))
    assert (result.due, result.actions, result.marking) == ((), (), frozenset())


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        pytest.param(delete(), reasons.DRY_RUN, id="dry-run"),
        pytest.param(alert(), reasons.POLICY_CHANGED, id="alert"),
    ],
)
def test_only_enforce_marks(policy: Policy, reason: str) -> None:
    """A policy that deletes nothing any more lets all its marks go, and makes none."""
    result = plan(policy, [match("a"), match("b")], {"a": mark(_POLICY, "a"), "gone": mark(_POLICY, "gone")})
    assert {refusal.reason for refusal in result.unmarking.values()} == {reason}
    assert set(result.unmarking) == {"a", "gone"}
    assert (result.marking, result.marked, result.actions) == (frozenset(), (), ())


def test_mark_of_an_older_policy_ends() -> None:
    """What was marked before an edit, and can't be judged now, is not marked any more."""
    old = {"a": mark(_POLICY, "a", digest="old"), "b": mark(_POLICY, "b", digest="old")}
    result = plan(_POLICY, [_kept(reasons.OFFSETS_UNKNOWN)], old, complete=False)
    assert {name: refusal.reason for name, refusal in result.unmarking.items()} == dict.fromkeys(
        ("a", "b"), reasons.POLICY_CHANGED
    )


@pytest.mark.parametrize(
    ("reason", "marks"),
    [
        pytest.param(reasons.LEDGER_UNAVAILABLE, False, id="ledger-unavailable"),
        pytest.param(reasons.LEDGER_RESET, False, id="ledger-reset"),
        pytest.param(reasons.LEDGER_OWNED, False, id="ledger-of-another"),
        pytest.param(reasons.LEDGER_FENCED, False, id="ledger-fenced"),
        pytest.param(reasons.CLOCK_SKEW, False, id="clock-skew"),
        pytest.param(reasons.CLUSTER_CHANGED, False, id="another-cluster"),
        pytest.param(reasons.TOPICS_HIDDEN, True, id="topics-hidden"),
        pytest.param(reasons.SNAPSHOT_INCOMPLETE, True, id="incomplete"),
    ],
)
def test_marking_while_refused(reason: str, marks: bool) -> None:
    """A refused run deletes nothing and still warns, unless a mark could not be kept or would bear a wrong date."""
    refusal = Refusal(reason, "why")
    result = plan(_POLICY, [match("old"), match("new")], {"old": mark(_POLICY, "old")}, refusals=(refusal,))
    assert result.actions == ()
    assert result.refusal == refusal
    assert result.marking == (frozenset(["new"]) if marks else frozenset())
    nothing_due = plan(_POLICY, [match("new")], {}, refusals=(refusal,))
    assert nothing_due.refusal == (None if marks else refusal)


@pytest.mark.parametrize("shown", [False, True])
def test_a_run_that_may_not_mark_shows_only_marks_that_were_shown(shown: bool) -> None:
    """Else the next run would take an old mark for one that users could see since its old date."""
    date = NOW - timedelta(hours=30)
    refusals, announced = (Refusal(reasons.CLOCK_SKEW, "why"),), date if shown else None
    result = plan(_POLICY, [match("a")], {"a": mark(_POLICY, "a", date)}, refusals=refusals, announced=announced)
    assert result.newest_mark == (date if shown else None)
    assert set(result.marks) == ({"a"} if shown else set())
    assert (result.actions, result.marking, dict(result.unmarking)) == ((), frozenset(), {})


def test_another_cluster_ends_no_mark() -> None:
    """What the wrong cluster lists says nothing of the groups that are marked."""
    refusals = (Refusal(reasons.CLUSTER_CHANGED, "why"),)
    assert not plan(_POLICY, [], {"a": mark(_POLICY, "a")}, refusals=refusals).unmarking


def test_incomplete_deletes_nothing() -> None:
    """An incomplete snapshot refuses by itself, also if nobody put it among the refusals."""
    result = plan(_POLICY, [match("a")], complete=False)
    assert result.refusal is not None
    assert result.refusal.reason == reasons.SNAPSHOT_INCOMPLETE
    assert result.actions == ()


def test_halted() -> None:
    """A plan whose marks can't be written deletes nothing and marks nothing."""
    why = Refusal(reasons.LEDGER_UNAVAILABLE, "why")
    result = plan(_POLICY, [match("old"), match("new")], {"old": mark(_POLICY, "old")}).halted(why)
    assert (result.actions, result.marking, result.refusal, result.marked) == ((), frozenset(), why, ("old",))


@pytest.mark.parametrize(
    ("budget", "actions"),
    [
        pytest.param(None, 8, id="none"),
        pytest.param(20, 8, id="enough"),
        pytest.param(3, 3, id="less-is-left"),
        pytest.param(0, 0, id="used-up"),
        pytest.param(-1, 0, id="never-negative"),
    ],
)
def test_budget(budget: int | None, actions: int) -> None:
    """What other policies of the run have deleted counts against the connection's maxPerRun."""
    made = plan(_limited(per_run=8), _matches(10)).at_turn(NOW, budget)
    assert made.actions == made.due[:actions]


def test_a_new_mark_has_the_date_of_the_turn() -> None:
    """Other policies may delete for a while between the decision and the mark; older marks keep their dates."""
    turn = NOW + timedelta(minutes=5)
    policy = delete(enforce=True)
    made = plan(policy, [match("old"), match("new")], {"old": mark(policy, "old")}).at_turn(turn, None)
    assert made.due_time("new") == turn + policy.grace_period
    assert made.due_time("old") == NOW
    assert made.marking == {"new"}


@pytest.mark.parametrize(
    ("elsewhere", "refused"),
    [
        pytest.param({f"other{n}" for n in range(10)}, False, id="together-at-the-limit"),
        pytest.param({f"other{n}" for n in range(11)}, True, id="together-over-it"),
        pytest.param({f"g{n:04}" for n in range(10)}, False, id="the-same-groups-count-once"),
    ],
)
def test_percent_of_all_policies(elsewhere: set[str], refused: bool) -> None:
    """The connection's maxPercent holds for what all its policies would delete together."""
    result = plan(_limited(percent=100), _matches(10), limits=Limits(10_000, 20), due_elsewhere=elsewhere)
    assert (result.refusal is not None) is refused
    assert bool(result.actions) is not refused
    if result.refusal is not None:
        assert "raise limits.maxPercent of the KafkaConnection" in result.refusal.message


@pytest.mark.parametrize(
    ("total", "reason"),
    [
        pytest.param(99, reasons.CLUSTER_TOO_SMALL, id="one-less"),
        pytest.param(100, None, id="enough"),
        pytest.param(None, reasons.TOTAL_UNKNOWN, id="total-unknown"),
    ],
)
def test_a_cluster_with_few_groups(total: int | None, reason: str | None) -> None:
    """Below the connection's minGroups nothing is deleted, and nothing else: groups are marked, and stay due."""
    result = plan(_limited(), _matches(1), total=total, limits=Limits(10_000, 100, min_groups=100))
    assert (result.refusal.reason if result.refusal else None) == reason
    assert len(result.due) == 1
    assert len(result.actions) == (0 if reason else 1)
    if total == 99 and result.refusal is not None:
        assert "99 groups, fewer than 100" in result.refusal.message
        assert "lower limits.minGroups of the KafkaConnection in Git" in result.refusal.message


def test_the_guide_takes_less_than_half_an_hour() -> None:
    """With its limits of policy and connection together, for 3,000 of 4,000 groups; with a wait for the first run."""
    page = (Path(__file__).parents[2] / "docs" / "first-clean-up.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    connection, policy, enforce, first, raised = blocks
    policy["spec"] |= enforce
    policy["spec"]["delete"] = policy["spec"].get("delete", {}) | first["delete"]
    connection["spec"]["limits"] |= raised["limits"]
    parsed, limits = parse_policy(policy), parse_connection(connection).limits
    conditions = RunConditions(limits=limits, total=4_000)
    assert not [veto for veto in VETOES if veto(parsed.limits, [str(number) for number in range(3_000)], conditions)]
    runs = -(-3_000 // max_deletions(parsed.limits, conditions))
    assert runs * parsed.interval < timedelta(minutes=30)


# NOW is a Thursday, 12:00 UTC.
_EVENING = [{"days": ["Monday", "Thursday"], "from": "22:00", "to": "04:00"}]
_NOON = [{"from": "11:00", "to": "13:00"}]


@pytest.mark.parametrize(
    ("windows", "hours", "refused", "due"),
    [
        pytest.param(_NOON, 48, None, NOW - timedelta(hours=24), id="open"),
        pytest.param(_EVENING, 48, "opens at 2030-01-31T22:00:00Z", NOW + timedelta(hours=10), id="not-yet-open"),
        pytest.param([*_EVENING, *_NOON], 48, None, NOW - timedelta(hours=24), id="one-of-two-is-open"),
        pytest.param(_NOON, 20, None, NOW + timedelta(hours=23), id="due-after-the-window-of-today"),
        pytest.param(_EVENING, 20, None, NOW + timedelta(hours=10), id="due-before-the-window-of-today"),
        pytest.param([], 48, None, NOW - timedelta(hours=24), id="no-windows"),
    ],
)
def test_windows(windows: list[Any], hours: int, refused: str | None, due: datetime) -> None:
    """Outside of its windows a policy deletes nothing, and dates move to the next one; marks go on."""
    policy = parse_policy(policy_object(mode="Enforce", delete={"windows": windows}))
    since = NOW - timedelta(hours=hours)
    result = plan(policy, [match("old"), match("new")], {"old": mark(policy, "old", since)})
    assert result.refusal is None
    assert result.marking == {"new"}
    assert result.due_time("old") == due
    assert (result.outside.message if result.outside else "").endswith(refused or "")
    assert (result.outside is not None) is (refused is not None)
    assert result.actions == (("old",) if hours == 48 and not refused else ())


def test_an_announced_date_stays_when_windows_are_removed() -> None:
    """A mark's date was in a window: without that window the group is still not deleted before its date."""
    policy = parse_policy(policy_object(mode="Enforce"))
    announced = mark(policy, "old", NOW - timedelta(hours=48), due=NOW + timedelta(hours=10))
    result = plan(policy, [match("old")], {"old": announced})
    assert (result.due, result.due_time("old")) == ((), NOW + timedelta(hours=10))


def test_a_dry_run_needs_no_window() -> None:
    """What mode Enforce would delete does not depend on the time of day."""
    policy = parse_policy(policy_object(delete={"windows": _EVENING}))
    result = plan(policy, [match("a")])
    assert (result.due, result.outside) == (("a",), None)


def test_due_groups_is_what_the_plan_has() -> None:
    """Asked ahead for all policies, so that each can count what the others have due."""
    verdicts = {name: match(name) for name in ("a", "b")}
    marks = {"a": mark(_POLICY, "a")}
    assert due_groups(_POLICY, verdicts, marks, NOW) == ("a",) == plan(_POLICY, verdicts.values(), marks).due
    assert due_groups(delete(), verdicts, {}, NOW) == ("a", "b")
    assert due_groups(_POLICY, verdicts, {"a": mark(_POLICY, "a", digest="other")}, NOW) == ()
