"""`idleFor`, `expiresWithin` and ExpiresFirst: what the offsets log must tell before a group matches."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from group_hygiene.decide.checks import judge
from group_hygiene.decide.checks.used import commits_outside
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity, Evidence, Protections
from group_hygiene.model.groups import Group, GroupState, GroupType
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.verdicts import Need
from group_hygiene.spec.policy import Policy
from tests.unit.make import (
    FAULT,
    NOW,
    P0,
    P1,
    activity,
    alert,
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
_EVIDENCE_REASONS = sorted(reason for reason in reasons.all_reasons() if reason.startswith("Evidence"))


def _known(of: Activity | Refusal | None = None, **changes: Any) -> Evidence:
    """What the log tells, and nothing that the operator saw itself. Offsets are read, records wait."""
    return evidence(activity=activity() if of is None else of, unchanged=None, **changes)


def _ago(hours: float) -> Any:
    return NOW - timedelta(hours=hours)


_SIMPLE = group(protocol_type="")
_KIP_848 = group(type=GroupType.CONSUMER)
_OF_KIP_848 = activity(type=GroupType.CONSUMER)


@pytest.mark.parametrize(
    ("policy", "group", "evidence", "expected"),
    [
        pytest.param(idle(), group(), _known(), _MATCH, id="abandoned-consumer"),
        pytest.param(idle(), group(), _known(activity(72, read_at=NOW)), _MATCH, id="just-long-enough"),
        pytest.param(
            idle(), group(), _known(activity(72)), reasons.TOO_RECENT, id="not-long-enough-as-the-log-was-read"
        ),
        pytest.param(
            idle(),
            group(),
            _known(activity(71.99, read_at=NOW + timedelta(minutes=4))),
            reasons.TOO_RECENT,
            id="read-by-a-clock-ahead-of-ours",
        ),
        pytest.param(idle(), group(), _known(activity(71.99)), reasons.TOO_RECENT, id="not-long-enough"),
        pytest.param(idle(), group(), _known(activity(-1)), reasons.TOO_RECENT, id="by-a-clock-ahead-of-ours"),
        pytest.param(idle(), _KIP_848, _known(_OF_KIP_848), _MATCH, id="abandoned-consumer-of-kip-848"),
        pytest.param(idle(), _SIMPLE, _known(simple_activity()), _MATCH, id="simple-and-abandoned"),
        pytest.param(idle(), _SIMPLE, _known(simple_activity(1)), reasons.TOO_RECENT, id="assign-and-commit"),
        pytest.param(alert(idleFor="72h"), group(), _known(offsets=None), _MATCH, id="alert-asks-for-no-offsets"),
        pytest.param(
            idle(),
            group(),
            _known(activity(100, last_commit=_ago(1))),
            reasons.TOO_RECENT,
            id="joined-once-only-commits",
        ),
        pytest.param(
            idle(), group(), _known(activity(1, last_commit=_ago(100))), reasons.TOO_RECENT, id="left-a-moment-ago"
        ),
        pytest.param(
            idle(), group(), _known(activity(complete_since=_ago(71))), reasons.TOO_RECENT, id="records-were-lost-since"
        ),
        pytest.param(idle(), group(), _known(activity(last_commit=None)), _MATCH, id="joined-and-never-committed"),
        # What the log must tell
        pytest.param(idle(), group(), evidence(), Need.ACTIVITY, id="not-read"),
        *(
            pytest.param(idle(), group(), _known(Refusal(reason, "so")), reason, id=f"fault-{reason}")
            for reason in _EVIDENCE_REASONS
        ),
        pytest.param(
            idle(), group(), _known(activity(empty_since=None)), reasons.EVIDENCE_MISSING, id="empty-since-when"
        ),
        pytest.param(
            idle(), _KIP_848, _known(replace(_OF_KIP_848, empty_since=None)), reasons.EVIDENCE_MISSING, id="kip-848-too"
        ),
        pytest.param(
            idle(),
            _SIMPLE,
            _known(simple_activity(last_commit=None)),
            reasons.EVIDENCE_MISSING,
            id="simple-without-a-commit",
        ),
        pytest.param(
            idle(), group(), _known(activity(state="Active")), reasons.EVIDENCE_MISSING, id="had-members-in-the-log"
        ),
        pytest.param(idle(), group(), _known(activity(state="Gone")), reasons.EVIDENCE_MISSING, id="gone-in-the-log"),
        pytest.param(idle(), group(), _known(simple_activity()), reasons.EVIDENCE_MISSING, id="joined-since"),
        pytest.param(idle(), _SIMPLE, _known(activity()), reasons.EVIDENCE_MISSING, id="made-anew-since"),
        pytest.param(idle(), group(), _known(_OF_KIP_848), reasons.EVIDENCE_MISSING, id="of-another-type"),
        pytest.param(
            idle(),
            _KIP_848,
            _known(replace(_OF_KIP_848, protocol_type="")),
            _MATCH,
            id="kip-848-records-have-no-protocol-type",
        ),
        # What holds beside it
        pytest.param(idle(), group(state=GroupState.STABLE), _known(), reasons.NOT_EMPTY, id="in-use"),
        pytest.param(
            alert(idleFor="72h"), group(state=GroupState.STABLE), _known(), reasons.NOT_EMPTY, id="alert-in-use"
        ),
        pytest.param(idle(), group(), _known(offsets=None), Need.OFFSETS, id="offsets-for-the-backup"),
        pytest.param(idle(), group(), _known(offsets=FAULT), reasons.OFFSETS_UNKNOWN, id="offsets-unknown"),
        pytest.param(idle(), group(), _known(lag=None), _MATCH, id="needs-no-lag"),
        pytest.param(idle(), group(), _known(lag={P0: 0, P1: 0}), _MATCH, id="caught-up-and-left"),
        pytest.param(idle(), group(), _known(offsets={}), _MATCH, id="nothing-committed"),
        pytest.param(idle(unchangedFor="1h"), group(), _known(), reasons.TOO_RECENT, id="both-rules-must-hold"),
        pytest.param(idle(unchangedFor="1h"), _SIMPLE, _known(simple_activity()), reasons.SIMPLE, id="both-and-simple"),
        # Clients that commit without being members
        pytest.param(idle(), _SIMPLE, _known(simple_activity(), lag=None), Need.BOUNDS, id="simple-needs-lag"),
        pytest.param(
            idle(),
            _SIMPLE,
            _known(simple_activity(), lag={P0: 0, P1: 0}),
            reasons.CAUGHT_UP,
            id="simple-of-a-silent-topic",
        ),
        pytest.param(
            idle(),
            _SIMPLE,
            _known(simple_activity(), lag={P0: 0, P1: FAULT}),
            reasons.LAG_UNKNOWN,
            id="simple-lag-unknown",
        ),
        pytest.param(
            idle(), _SIMPLE, _known(simple_activity(), offsets={}), reasons.NO_OFFSETS, id="simple-without-offsets"
        ),
        pytest.param(
            idle(deletedTopics="All"),
            _SIMPLE,
            _known(simple_activity(), lag=None, missing_topics=frozenset({"orders", "invoices"})),
            _MATCH,
            id="simple-and-all-its-topics-are-gone",
        ),
        pytest.param(
            alert(idleFor="72h"),
            _SIMPLE,
            _known(simple_activity(), offsets=None),
            Need.OFFSETS,
            id="alert-on-simple-asks-for-lag-too",
        ),
        pytest.param(
            idle(),
            group(),
            _known(activity(200, last_commit=_ago(100)), lag={P0: 0, P1: 0}),
            reasons.CAUGHT_UP,
            id="joined-once-and-then-assigned-on-a-silent-topic",
        ),
        # expiresWithin
        pytest.param(
            alert(expiresWithin="48h"), group(), _known(activity(121), retention=_WEEK), _MATCH, id="expires-soon"
        ),
        pytest.param(
            alert(expiresWithin="48h"),
            group(),
            _known(activity(119), retention=_WEEK),
            reasons.EXPIRES_LATER,
            id="expires-later",
        ),
        pytest.param(
            alert(expiresWithin="48h"), group(), _known(activity(200), retention=_WEEK), _MATCH, id="any-moment"
        ),
        pytest.param(
            alert(expiresWithin="48h"),
            group(),
            _known(activity(160, last_commit=_ago(0), oldest_commit=_ago(0)), retention=_WEEK),
            _MATCH,
            id="commits-move-no-clock-of-a-classic-group",
        ),
        pytest.param(
            alert(expiresWithin="48h"),
            _SIMPLE,
            _known(simple_activity(1, oldest_commit=_ago(160)), retention=_WEEK),
            _MATCH,
            id="one-partition-of-a-simple-group",
        ),
        pytest.param(
            alert(expiresWithin="48h"),
            _SIMPLE,
            _known(simple_activity(160, oldest_commit=_ago(1), last_commit=_ago(1)), retention=_WEEK),
            reasons.EXPIRES_LATER,
            id="commits-move-that-of-a-simple-group",
        ),
        pytest.param(
            alert(expiresWithin="48h"),
            _KIP_848,
            _known(replace(_OF_KIP_848, empty_since=None, oldest_commit=_ago(160)), retention=_WEEK),
            _MATCH,
            id="kip-848-by-its-commits",
        ),
        pytest.param(
            alert(expiresWithin="48h"), group(), _known(activity(160)), reasons.EVIDENCE_MISSING, id="retention-unknown"
        ),
        pytest.param(
            alert(expiresWithin="48h"),
            group(),
            _known(activity(160, empty_since=None), retention=_WEEK),
            reasons.EVIDENCE_MISSING,
            id="expires-nobody-knows-when",
        ),
        pytest.param(
            alert(expiresWithin="48h"),
            group(state=GroupState.STABLE),
            _known(activity(160), retention=_WEEK),
            reasons.EVIDENCE_MISSING,
            id="expires-but-joined-since",
        ),
        # ExpiresFirst: a week of retention, a day of grace, ten minutes of interval
        pytest.param(
            idle(idleFor="144h"),
            group(),
            _known(activity(1), retention=_WEEK),
            reasons.EXPIRES_FIRST,
            id="grace-too-long",
        ),
        pytest.param(
            idle(idleFor="143h"), group(), _known(activity(1), retention=_WEEK), reasons.TOO_RECENT, id="just-in-time"
        ),
        pytest.param(
            alert(idleFor="144h"),
            group(),
            _known(activity(1), retention=_WEEK),
            reasons.TOO_RECENT,
            id="alert-has-no-grace",
        ),
        pytest.param(
            alert(idleFor="168h"),
            group(),
            _known(activity(1), retention=_WEEK),
            reasons.EXPIRES_FIRST,
            id="alert-too-late",
        ),
        pytest.param(
            idle(idleFor="100h"),
            group(),
            _known(activity(99, last_commit=_ago(1)), retention=_WEEK),
            reasons.EXPIRES_FIRST,
            id="commits-after-it-became-empty",
        ),
        pytest.param(
            idle(idleFor="168h"),
            _SIMPLE,
            _known(simple_activity(1), retention=_WEEK),
            reasons.EXPIRES_FIRST,
            id="simple",
        ),
        pytest.param(idle(idleFor="400h"), group(), _known(activity(1)), reasons.TOO_RECENT, id="retention-not-told"),
        pytest.param(
            idle(idleFor="168h"), group(), _known(activity(170), retention=_WEEK), _MATCH, id="reached-it-all-the-same"
        ),
        pytest.param(
            delete(unchangedFor="144h"),
            group(),
            evidence(unchanged=seen(1), retention=_WEEK),
            reasons.EXPIRES_FIRST,
            id="unchanged-for-longer-than-kafka-keeps-it",
        ),
        pytest.param(
            delete(unchangedFor="143h"),
            group(),
            evidence(unchanged=seen(1), retention=_WEEK),
            reasons.TOO_RECENT,
            id="unchanged-in-time",
        ),
    ],
)
def test_judge(policy: Policy, group: Group, evidence: Evidence, expected: str | Need | None) -> None:
    """Each situation has one reason to keep the group, or none; what the log does not show keeps."""
    assert decided(judge(policy, group, evidence, NOW)) == expected


def test_evidence_is_asked_for_before_offsets() -> None:
    """Of groups that are in use, nothing but the tables is read."""
    nothing = Evidence(Protections())
    first = judge(idle(), group(), nothing, NOW)
    recent = judge(idle(), group(), replace(nothing, activity=activity(1)), NOW)
    old = judge(idle(), group(), replace(nothing, activity=activity()), NOW)
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
    assert replace(known, unchanged=seen(10)).idle_since == _ago(90)
    assert replace(known, activity=Refusal(reasons.EVIDENCE_STALE, "old"), unchanged=seen(10)).idle_since == _ago(10)
    assert replace(known, activity=None).idle_since is None


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
