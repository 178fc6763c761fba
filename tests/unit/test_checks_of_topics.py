"""DeleteOffsets: of which topics a living group's offsets may go, and why they stay otherwise."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from group_hygiene.engine.checks import judge
from group_hygiene.engine.plan import due_topics
from group_hygiene.kafka.groups import subscribed_topics
from group_hygiene.model import reasons
from group_hygiene.model.entries import KeepRequest
from group_hygiene.model.evidence import Commits, Evidence, Need
from group_hygiene.model.groups import CommittedOffset, Description, Fault, GroupState, GroupType, Member, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.policy import Policy, parse_policy
from tests.unit.make import FAULT, NOW, activity, decided, deletion, evidence, group, mark, plan, policy_object

_ALL = {"orders", "invoices"}


def stale(enforce: bool = True, match: dict[str, Any] | None = None, **settings: Any) -> Policy:
    """Offsets of what nobody read for 72h."""
    mode = "Enforce" if enforce else "DryRun"
    return parse_policy(policy_object("DeleteOffsets", {"idleFor": "72h"}, match, mode=mode, deleteOffsets=settings))


def _committed(hours: float) -> Commits:
    """For one partition that long ago, for another one long before: the later counts."""
    return Commits(NOW - timedelta(hours=hours + 1000), NOW - timedelta(hours=hours))


def _live(hours: dict[str, float] | None = None, **changes: Any) -> Evidence:
    """A group whose members read `paid`; it committed for others so long ago, by default long enough."""
    ago = {"orders": 100.0, "invoices": 100.0} if hours is None else hours
    by_topic = {topic: _committed(before) for topic, before in ago.items()}
    found = activity(state="Active", empty_since=None, last_commit=NOW, by_topic=by_topic)
    known: dict[str, Any] = {"activity": found, "subscribed": frozenset({"paid"}), "unchanged": None}
    return evidence(**(known | changes))


_STABLE = group(state=GroupState.STABLE)


@pytest.mark.parametrize(
    ("policy", "evidence", "expected"),
    [
        pytest.param(stale(), _live(), _ALL, id="nobody-reads-them"),
        pytest.param(stale(), _live({"orders": 100, "invoices": 71}), {"orders"}, id="one-was-used-not-long-ago"),
        pytest.param(stale(), _live({"orders": 100}), {"orders"}, id="the-tables-do-not-tell-of-the-other"),
        pytest.param(stale(), _live(subscribed=frozenset({"orders"})), {"invoices"}, id="one-is-read"),
        pytest.param(stale(topics=["ord*"]), _live(), {"orders"}, id="chosen-by-a-pattern"),
        pytest.param(stale(excludeTopics=["ord*"]), _live(), {"invoices"}, id="left-out-by-a-pattern"),
        pytest.param(stale(), _live(subscribed=frozenset(_ALL)), reasons.SUBSCRIBED, id="all-are-read"),
        pytest.param(stale(), _live({"orders": 71, "invoices": 1}), reasons.TOO_RECENT, id="used-not-long-ago"),
        pytest.param(stale(), _live({}), reasons.EVIDENCE_MISSING, id="the-tables-know-of-no-commit"),
        pytest.param(
            stale(), _live(activity=activity(state="Active")), reasons.EVIDENCE_MISSING, id="topics-not-asked-for"
        ),
        pytest.param(
            stale(), _live(activity=activity(1, state="Active")), reasons.TOO_RECENT, id="no-commit-is-old-enough"
        ),
        pytest.param(stale(), _live(activity=None), Need.ACTIVITY, id="tables-not-read"),
        pytest.param(
            stale(), _live(activity=Refusal(reasons.EVIDENCE_STALE, "old")), reasons.EVIDENCE_STALE, id="tables-are-old"
        ),
        pytest.param(
            stale(), _live(activity=activity(state="Gone", by_topic={})), reasons.EVIDENCE_MISSING, id="gone-in-the-log"
        ),
        pytest.param(
            stale(),
            _live(activity=activity(state="Active", complete_since=NOW, by_topic=dict.fromkeys(_ALL, _committed(200)))),
            reasons.TOO_RECENT,
            id="records-were-lost-since",
        ),
        pytest.param(stale(), _live(offsets=None), Need.OFFSETS, id="offsets-not-read"),
        pytest.param(stale(), _live(offsets=FAULT), reasons.OFFSETS_UNKNOWN, id="offsets-unknown"),
        pytest.param(stale(), _live(offsets={}), reasons.NO_OFFSETS, id="no-offsets"),
        pytest.param(stale(topics=["other"]), _live(), reasons.NO_OFFSETS, id="none-of-the-chosen-topics"),
        pytest.param(stale(), _live(subscribed=None), Need.SUBSCRIBED, id="subscriptions-not-read"),
        pytest.param(stale(), _live(subscribed=FAULT), reasons.SUBSCRIPTION_UNKNOWN, id="subscriptions-unknown"),
        pytest.param(
            stale(), _live({"orders": 1}, subscribed=None), reasons.TOO_RECENT, id="subscriptions-asked-for-last"
        ),
        pytest.param(
            stale(), _live({"orders": 1}, retention=timedelta(hours=90)), reasons.TOO_RECENT, id="before-it-expires"
        ),
        pytest.param(
            stale(), _live({"orders": 1, "invoices": 2}, offsets=None), reasons.TOO_RECENT, id="tables-are-enough"
        ),
        pytest.param(stale(), _live(protected_by="a*"), reasons.PROTECTED, id="protected"),
        pytest.param(stale(), _live(damaged="?"), reasons.RECORD_UNREADABLE, id="a-record-cannot-be-read"),
        pytest.param(
            stale(),
            _live(keep_request=KeepRequest(group="g", until=NOW + timedelta(days=1), why="", by="ada", at=NOW)),
            reasons.KEEP_REQUESTED,
            id="somebody-asked-to-keep-it",
        ),
        pytest.param(
            stale(),
            _live(offsets_deleted=dict.fromkeys(_ALL, deletion(NOW, "kafka/unused", NOW + timedelta(days=1)))),
            reasons.REAPPEARED,
            id="deleted-and-there-again",
        ),
        pytest.param(
            stale(),
            _live(offsets_deleted={"orders": deletion(NOW, "kafka/unused", NOW + timedelta(days=1))}),
            {"invoices"},
            id="one-was-deleted-before",
        ),
        pytest.param(
            stale(),
            _live(offsets_deleted=dict.fromkeys(_ALL, deletion(NOW, "kafka/unused", NOW))),
            _ALL,
            id="deleted-so-long-ago-that-it-counts-no-more",
        ),
    ],
)
def test_topics(policy: Policy, evidence: Evidence, expected: set[str] | str | Need) -> None:
    """The topics of a match, or the one reason why nothing goes; missing evidence refuses."""
    verdict = judge(policy, _STABLE, evidence, NOW)
    if isinstance(expected, set | frozenset):
        assert decided(verdict) is None
        assert verdict.topics == expected
    else:
        assert (decided(verdict), verdict.topics) == (expected, frozenset())


@pytest.mark.parametrize("state", sorted(set(GroupState) - {GroupState.STABLE}))
def test_only_a_stable_group_tells_what_it_reads(state: GroupState) -> None:
    """In no other state do brokers tell all subscriptions."""
    refusal = judge(stale(), group(state=state), _live(), NOW).refusal
    assert refusal is not None
    assert refusal.reason == (reasons.DEAD if state is GroupState.DEAD else reasons.NOT_STABLE)


_SINCE, _LATER = NOW - timedelta(hours=30), NOW - timedelta(hours=1)


@pytest.mark.parametrize(
    ("unread", "marked", "topics", "due", "marking"),
    [
        pytest.param({"a"}, None, None, set(), True, id="a-new-one-is-marked"),
        pytest.param({"a"}, {"a": _SINCE}, {"a": _SINCE}, {"a"}, False, id="what-was-marked-is-due"),
        pytest.param({"a", "b"}, {"a": _SINCE}, {"a": _SINCE, "b": NOW}, {"a"}, True, id="another-has-its-own-date"),
        pytest.param({"b"}, {"a": _SINCE, "b": _LATER}, {"b": _LATER}, set(), False, id="what-is-read-again-leaves"),
        pytest.param({"b"}, {"a": _SINCE}, {"b": NOW}, set(), True, id="and-another-one-begins-anew"),
        pytest.param({"b"}, {}, {"b": NOW}, set(), True, id="a-mark-of-the-whole-group-says-nothing"),
    ],
)
def test_a_mark_has_a_date_for_each_topic(
    unread: set[str],
    marked: dict[str, datetime] | None,
    topics: dict[str, datetime] | None,
    due: set[str],
    marking: bool,
) -> None:
    """Offsets go only when their topic was marked for as long as the grace period and matched at every run since."""
    policy = stale()
    verdict = judge(policy, _STABLE, _live(dict.fromkeys(unread, 100), offsets=_offsets(unread)), NOW)
    assert verdict.topics == unread
    marks = {} if marked is None else {_STABLE.id: mark(policy, _STABLE.id, _SINCE, topics=marked)}
    result = plan(policy, [verdict], marks)
    held = result.marks.get(_STABLE.id)
    assert (None if held is None else held.topics) == topics
    assert (bool(result.due), bool(result.marking)) == (bool(due), marking)
    if held is not None:
        assert due_topics(policy, held, verdict, NOW) == due
        assert held.since == min(held.topics.values())
    assert result.unmarking == {}


def test_a_topic_that_is_read_for_a_while_waits_again() -> None:
    """Run by run: what did not match once has no old date to come back to."""
    policy, marks = stale(), {_STABLE.id: mark(stale(), _STABLE.id, _SINCE, topics={"a": _SINCE, "b": _SINCE})}
    turn = NOW + timedelta(minutes=5)
    for unread in ({"b"}, {"a", "b"}):
        verdict = judge(policy, _STABLE, _live(dict.fromkeys(unread, 100), offsets=_offsets(unread)), NOW)
        made = plan(policy, [verdict], marks)
        marks = dict(made.marks)
    assert marks[_STABLE.id].topics == {"a": NOW, "b": _SINCE}
    assert made.at_turn(turn, None).marks[_STABLE.id].topics == {"a": turn, "b": _SINCE}


def test_the_announced_date_of_topics_stays_when_windows_are_removed() -> None:
    """The mark waited for a window: without windows in the spec, no topic is due before the date that was announced."""
    policy, date = stale(), NOW + timedelta(hours=10)
    verdict = judge(policy, _STABLE, _live({"a": 100, "b": 100}, offsets=_offsets({"a", "b"})), NOW)
    announced = mark(policy, _STABLE.id, _SINCE, due=date, topics={"a": _SINCE, "b": _LATER})
    result = plan(policy, [verdict], {_STABLE.id: announced})
    held = result.marks[_STABLE.id]
    assert (result.due, result.due_time(_STABLE.id)) == ((), date)
    assert result.newest_due(_STABLE.id) == _LATER + (date - _SINCE)
    assert due_topics(policy, held, verdict, date - timedelta(seconds=1)) == set()
    assert due_topics(policy, held, verdict, date) == {"a"}


def test_a_rebalance_ends_no_mark() -> None:
    """It passes; a group without members is not selected any more."""
    policy = stale()
    verdict = judge(policy, group(state=GroupState.PREPARING_REBALANCE), _live(), NOW)
    result = plan(policy, [verdict], {_STABLE.id: mark(policy, _STABLE.id, _SINCE, topics={"a": _SINCE})})
    assert (result.unmarking, set(result.marks), result.due) == ({}, {_STABLE.id}, ())
    assert policy.match.selects(verdict.group)
    assert not policy.match.selects(group(state=GroupState.EMPTY))


def _offsets(topics: set[str]) -> dict[Partition, CommittedOffset]:
    return {Partition(topic, 0): CommittedOffset(10) for topic in topics}


def _member(*topics: str, assigned: str = "", pattern: str = "") -> Member:
    assignment = (Partition(assigned, 0),) if assigned else ()
    return Member("m", None, "client", "host", None, topics, assignment, pattern)


@pytest.mark.parametrize(
    ("members", "subscribed"),
    [
        pytest.param([_member("a"), _member("b", assigned="c")], {"a", "b", "c"}, id="what-all-of-them-read"),
        pytest.param([_member("a"), _member("b", pattern="c.*")], "SUBSCRIBED_BY_PATTERN", id="one-by-a-pattern"),
        pytest.param([_member("a"), _member(assigned="b")], "SUBSCRIPTION_NOT_REPORTED", id="one-does-not-tell"),
        pytest.param([], "NO_MEMBERS", id="nobody-is-there"),
    ],
)
def test_what_members_read(members: list[Member], subscribed: set[str] | str) -> None:
    """All topics, or nothing is known."""
    found = subscribed_topics(Description(_STABLE, "range", None, tuple(members)))
    assert (found.code if isinstance(found, Fault) else found) == subscribed


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        pytest.param({}, True, id="empty"),
        pytest.param({"topics": [], "excludeTopics": [], "maxPerRun": 1}, True, id="defaults-and-limits"),
        pytest.param({"gracePeriod": "1d"}, True, id="grace-in-days"),
        pytest.param({"topics": ["a"]}, False, id="topics"),
        pytest.param({"excludeTopics": ["a"]}, False, id="excluded-topics"),
        pytest.param({"gracePeriod": "1h"}, False, id="grace"),
    ],
)
def test_an_edit_that_restarts_marks(settings: dict[str, Any], same: bool) -> None:
    """One that changes which offsets are deleted, or when."""
    plain = parse_policy(policy_object("DeleteOffsets", {"idleFor": "72h"}, {}, mode="Enforce"))
    assert (stale(**settings).digest == plain.digest) is same


def test_types_and_states_by_default() -> None:
    """Groups with members, of the two types of which brokers delete single offsets."""
    match = stale().match
    assert match.states == stale(match={"states": ["Stable"]}).match.states
    assert not match.states & {GroupState.EMPTY, GroupState.DEAD, GroupState.UNKNOWN}
    assert match.types == {GroupType.CLASSIC, GroupType.CONSUMER}
