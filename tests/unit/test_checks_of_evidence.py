"""`idleFor`, `expiresWithin` and ExpiresFirst: what the offsets log must tell before a group matches."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from group_hygiene.engine.checks import judge
from group_hygiene.engine.checks.used import commits_outside
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity, Evidence, Need, Protections
from group_hygiene.model.groups import Group, GroupState, GroupType
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.policy import Policy
from tests.unit.make import (
    FAULT,
    NOW,
    P0,
    P1,
    activity,
    alert,
    case,
    decided,
    delete,
    evidence,
    group,
    idle,
    seen,
    simple_activity,
)

_MATCH = None
_WEEK = timedelta(days=7)
_STABLE = group(state=GroupState.STABLE)
_EVIDENCE_REASONS = sorted(reason for reason in reasons.all_reasons() if reason.startswith("Evidence"))


def _known(of: Activity | Refusal | None = None, **changes: Any) -> Evidence:
    """What the log tells, and nothing that the operator saw itself. Offsets are read, records wait."""
    return evidence(activity=activity() if of is None else of, unchanged=None, **changes)


def _case(
    name: str,
    expected: str | Need | None,
    log: Activity | Refusal | None = None,
    of: Group | None = None,
    policy: Policy | None = None,
    **changes: Any,
) -> Any:
    """A row of what an `idle` policy, or another one, decides by what the log tells."""
    return case(name, expected, policy or idle(), of, _known(log, **changes))


def _ago(hours: float) -> Any:
    return NOW - timedelta(hours=hours)


_EXPIRES = alert(expiresWithin="48h")
_SIMPLE = group(protocol_type="")
_KIP_848 = group(type=GroupType.CONSUMER)
_OF_KIP_848 = activity(type=GroupType.CONSUMER)


@pytest.mark.parametrize(
    ("policy", "group", "evidence", "expected"),
    [
        _case("abandoned-consumer", _MATCH),
        _case("just-long-enough", _MATCH, activity(72, read_at=NOW)),
        _case("not-long-enough-as-the-log-was-read", reasons.TOO_RECENT, activity(72)),
        _case("read-by-a-clock-ahead-of-ours", reasons.TOO_RECENT, activity(71.99, read_at=NOW + timedelta(minutes=4))),
        _case("not-long-enough", reasons.TOO_RECENT, activity(71.99)),
        _case("by-a-clock-ahead-of-ours", reasons.TOO_RECENT, activity(-1)),
        _case("abandoned-consumer-of-kip-848", _MATCH, _OF_KIP_848, _KIP_848),
        _case("simple-and-abandoned", _MATCH, simple_activity(), _SIMPLE),
        _case("assign-and-commit", reasons.TOO_RECENT, simple_activity(1), _SIMPLE),
        _case("alert-asks-for-no-offsets", _MATCH, policy=alert(idleFor="72h"), offsets=None),
        _case("joined-once-only-commits", reasons.TOO_RECENT, activity(100, last_commit=_ago(1))),
        _case("left-a-moment-ago", reasons.TOO_RECENT, activity(1, last_commit=_ago(100))),
        _case("records-were-lost-since", reasons.TOO_RECENT, activity(complete_since=_ago(71))),
        _case("joined-and-never-committed", _MATCH, activity(last_commit=None)),
        # What the log must tell
        case("not-read", Need.ACTIVITY, idle()),
        *(_case(f"fault-{reason}", reason, Refusal(reason, "so")) for reason in _EVIDENCE_REASONS),
        _case("empty-since-when", reasons.EVIDENCE_MISSING, activity(empty_since=None)),
        _case("kip-848-too", reasons.EVIDENCE_MISSING, replace(_OF_KIP_848, empty_since=None), _KIP_848),
        _case("simple-without-a-commit", reasons.EVIDENCE_MISSING, simple_activity(last_commit=None), _SIMPLE),
        _case("had-members-in-the-log", reasons.EVIDENCE_MISSING, activity(state="Active")),
        _case("gone-in-the-log", reasons.EVIDENCE_MISSING, activity(state="Gone")),
        _case("joined-since", reasons.EVIDENCE_MISSING, simple_activity()),
        _case("recreated-since", reasons.EVIDENCE_MISSING, activity(), _SIMPLE),
        _case("of-another-type", reasons.EVIDENCE_MISSING, _OF_KIP_848),
        _case("kip-848-records-have-no-protocol-type", _MATCH, replace(_OF_KIP_848, protocol_type=""), _KIP_848),
        # What holds beside it
        _case("in-use", reasons.NOT_EMPTY, of=group(state=GroupState.STABLE)),
        _case("offsets-for-the-backup", Need.OFFSETS, offsets=None),
        _case("offsets-unknown", reasons.OFFSETS_UNKNOWN, offsets=FAULT),
        _case("needs-no-lag", _MATCH, lag=None),
        _case("caught-up-and-left", _MATCH, lag={P0: 0, P1: 0}),
        _case("nothing-committed", _MATCH, offsets={}),
        _case("both-rules-must-hold", reasons.TOO_RECENT, policy=idle(unchangedFor="1h")),
        _case("both-and-simple", reasons.SIMPLE, simple_activity(), _SIMPLE, policy=idle(unchangedFor="1h")),
        # Clients that commit without being members
        _case("simple-needs-lag", Need.BOUNDS, simple_activity(), _SIMPLE, lag=None),
        _case("simple-of-a-silent-topic", reasons.CAUGHT_UP, simple_activity(), _SIMPLE, lag={P0: 0, P1: 0}),
        _case("simple-lag-unknown", reasons.LAG_UNKNOWN, simple_activity(), _SIMPLE, lag={P0: 0, P1: FAULT}),
        _case("simple-without-offsets", reasons.NO_OFFSETS, simple_activity(), _SIMPLE, offsets={}),
        _case(
            "simple-and-all-its-topics-are-gone",
            _MATCH,
            simple_activity(),
            _SIMPLE,
            policy=idle(deletedTopics="All"),
            lag=None,
            missing_topics=frozenset({"orders", "invoices"}),
        ),
        _case(
            "alert-on-simple-asks-for-lag-too",
            Need.OFFSETS,
            simple_activity(),
            _SIMPLE,
            policy=alert(idleFor="72h"),
            offsets=None,
        ),
        _case(
            "joined-once-and-then-assigned-on-a-silent-topic",
            reasons.CAUGHT_UP,
            activity(200, last_commit=_ago(100)),
            lag={P0: 0, P1: 0},
        ),
        # expiresWithin
        _case("expires-soon", _MATCH, activity(121), policy=_EXPIRES, retention=_WEEK),
        _case("expires-later", reasons.EXPIRES_LATER, activity(119), policy=_EXPIRES, retention=_WEEK),
        _case("any-moment", _MATCH, activity(200), policy=_EXPIRES, retention=_WEEK),
        _case(
            "commits-move-no-clock-of-a-classic-group",
            _MATCH,
            activity(160, last_commit=_ago(0), oldest_commit=_ago(0)),
            policy=_EXPIRES,
            retention=_WEEK,
        ),
        _case(
            "one-partition-of-a-simple-group",
            _MATCH,
            simple_activity(1, oldest_commit=_ago(160)),
            _SIMPLE,
            policy=_EXPIRES,
            retention=_WEEK,
        ),
        _case(
            "commits-move-that-of-a-simple-group",
            reasons.EXPIRES_LATER,
            simple_activity(160, oldest_commit=_ago(1), last_commit=_ago(1)),
            _SIMPLE,
            policy=_EXPIRES,
            retention=_WEEK,
        ),
        _case(
            "kip-848-by-its-commits",
            _MATCH,
            replace(_OF_KIP_848, empty_since=None, oldest_commit=_ago(160)),
            _KIP_848,
            policy=_EXPIRES,
            retention=_WEEK,
        ),
        _case("retention-unknown", reasons.EVIDENCE_MISSING, activity(160), policy=_EXPIRES),
        _case(
            "expiry-unknown",
            reasons.EVIDENCE_MISSING,
            activity(160, empty_since=None),
            policy=_EXPIRES,
            retention=_WEEK,
        ),
        _case(
            "expires-but-joined-since",
            reasons.EVIDENCE_MISSING,
            activity(160),
            group(state=GroupState.STABLE),
            policy=_EXPIRES,
            retention=_WEEK,
        ),
        # ExpiresFirst: a week of retention, a day of grace, ten minutes of interval
        _case("grace-too-long", reasons.EXPIRES_FIRST, activity(1), policy=idle(idleFor="144h"), retention=_WEEK),
        _case("just-in-time", reasons.TOO_RECENT, activity(1), policy=idle(idleFor="143h"), retention=_WEEK),
        _case("alert-has-no-grace", reasons.TOO_RECENT, activity(1), policy=alert(idleFor="144h"), retention=_WEEK),
        _case("alert-too-late", reasons.EXPIRES_FIRST, activity(1), policy=alert(idleFor="168h"), retention=_WEEK),
        _case(
            "commits-after-it-became-empty",
            reasons.EXPIRES_FIRST,
            activity(99, last_commit=_ago(1)),
            policy=idle(idleFor="100h"),
            retention=_WEEK,
        ),
        _case(
            "simple", reasons.EXPIRES_FIRST, simple_activity(1), _SIMPLE, policy=idle(idleFor="168h"), retention=_WEEK
        ),
        _case("retention-unknown", reasons.TOO_RECENT, activity(1), policy=idle(idleFor="400h")),
        _case("reached-it-all-the-same", _MATCH, activity(170), policy=idle(idleFor="168h"), retention=_WEEK),
        case(
            "unchanged-for-longer-than-kafka-keeps-it",
            reasons.EXPIRES_FIRST,
            delete(unchangedFor="144h"),
            unchanged=seen(1),
            retention=_WEEK,
        ),
        case("unchanged-in-time", reasons.TOO_RECENT, delete(unchangedFor="143h"), unchanged=seen(1), retention=_WEEK),
    ],
)
def test_judge(policy: Policy, group: Group, evidence: Evidence, expected: str | Need | None) -> None:
    """Each situation has one reason to keep the group, or none; what the log does not show keeps."""
    assert decided(judge(policy, group, evidence, NOW)) == expected


def test_evidence_is_asked_for_before_offsets() -> None:
    """Of groups that are in use, nothing but the tables is read."""
    nothing = Evidence(Protections())
    first = judge(idle(), group(), nothing, NOW)
    recent = judge(idle(), group(), structs.replace(nothing, activity=activity(1)), NOW)
    old = judge(idle(), group(), structs.replace(nothing, activity=activity()), NOW)
    assert list(map(decided, (first, recent, old))) == [Need.ACTIVITY, reasons.TOO_RECENT, Need.OFFSETS]


def test_messages_give_dates() -> None:
    """How long so far, and what Kafka does when."""
    recent = judge(idle(), group(), _known(activity(70.5)), NOW).refusal
    first = judge(idle(idleFor="200h"), group(), _known(activity(1), retention=_WEEK), NOW).refusal
    later = judge(alert(expiresWithin="1h"), group(), _known(activity(1), retention=_WEEK), NOW).refusal
    assert recent is not None
    assert recent.message == (
        "idle since 2030-01-28T13:30:00Z, for 70h29m of 72h when the log was read at 2030-01-31T11:59:00Z"
    )
    assert first is not None
    assert first.message == (
        "Kafka deletes its offsets by 2030-02-07T11:00:00Z, before the policy acts at "
        "2030-02-09T19:10:00Z (after idleFor)"
    )
    assert later is not None
    assert later.message == "the first of its offsets expire at 2030-02-07T11:00:00Z"


def test_idle_since_prefers_the_log() -> None:
    """What the operator saw itself is told only where the log tells nothing."""
    known = _known(activity(90))
    assert known.idle_since == _ago(90)
    assert structs.replace(known, unchanged=seen(10)).idle_since == _ago(90)
    assert structs.replace(
        known, activity=Refusal(reasons.EVIDENCE_STALE, "old"), unchanged=seen(10)
    ).idle_since == _ago(10)
    assert structs.replace(known, activity=None).idle_since is None


@pytest.mark.parametrize(
    ("changes", "outside"),
    [
        pytest.param({}, False, id="left-after-its-last-commit"),
        pytest.param({"last_commit": _ago(99)}, True, id="commits-since"),
        pytest.param({"last_commit_after": _ago(50)}, True, id="commits-since-by-a-clock-that-is-behind"),
        pytest.param({"last_commit_after": _ago(50), "state_after": _ago(50)}, False, id="read-together"),
        pytest.param({"last_commit_after": _ago(50), "state_after": _ago(40)}, False, id="left-after-a-later-read"),
        pytest.param({"empty_since": None, "last_commit_after": _ago(50)}, False, id="nobody-knows-when-it-left"),
    ],
)
def test_reads_of_the_log_order_commits_and_members(changes: dict[str, Any], outside: bool) -> None:
    """Who commits without joining is found also where its times, or the coordinator's, are wrong."""
    changed = replace(activity(100), **changes)
    assert commits_outside(_known(changed)) is outside


def _stopped(hours: float | None, **changes: Any) -> Activity:
    """A group with members, whose last commit was so long ago; None = the log has none."""
    commit = None if hours is None else _ago(hours)
    return activity(state="Active", empty_since=None, last_commit=commit, oldest_commit=commit, **changes)


_STUCK, _LEFT = alert(idleFor="48h"), alert({"states": ["Empty"]}, idleFor="48h")


@pytest.mark.parametrize(
    ("policy", "group", "evidence", "expected"),
    [
        _case("stopped", _MATCH, _stopped(49), _STABLE, _STUCK),
        _case("commits", reasons.TOO_RECENT, _stopped(47), _STABLE, _STUCK),
        _case("commits-since-the-read", reasons.TOO_RECENT, _stopped(49, last_commit_after=_ago(1)), _STABLE, _STUCK),
        _case("records-were-lost", reasons.TOO_RECENT, _stopped(49, complete_since=_ago(1)), _STABLE, _STUCK),
        _case("never-committed", reasons.NO_OFFSETS, _stopped(None), _STABLE, _STUCK),
        _case("its-members-left-just-now", _MATCH, activity(1, last_commit=_ago(49)), policy=_STUCK),
        _case("its-members-left-after-a-commit", reasons.TOO_RECENT, activity(1), policy=_STUCK),
        _case("left-just-now", reasons.TOO_RECENT, activity(1, last_commit=_ago(49)), policy=_LEFT),
        _case("left", _MATCH, activity(49), policy=_LEFT),
        _case("not-in-use-by-the-log", reasons.EVIDENCE_MISSING, activity(49), _STABLE, _STUCK),
        _case("in-use-is-not-to-be-deleted", reasons.NOT_EMPTY, _stopped(99), _STABLE, idle()),
        _case("and-unread", _MATCH, _stopped(49), _STABLE, alert(idleFor="48h", lag={"atLeast": 1})),
        _case("no-retention-in-use", _MATCH, _stopped(199), _STABLE, alert(idleFor="198h"), retention=_WEEK),
        _case("retention-in-use", reasons.TOO_RECENT, _stopped(99), _STABLE, alert(idleFor="198h"), retention=_WEEK),
        _case("unchanged-too", reasons.NOT_EMPTY, _stopped(49), _STABLE, alert(idleFor="48h", unchangedFor="1h")),
    ],
)
def test_a_group_that_stopped_committing(
    policy: Policy, group: Group, evidence: Evidence, expected: str | Need | None
) -> None:
    """An alert that selects groups with members counts from the last commit, whether members left since or not."""
    assert decided(judge(policy, group, evidence, NOW)) == expected
