"""The plan: order, pace, limits that abort, and how looks add up to "unchanged since"."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from group_hygiene import reasons
from group_hygiene.model import Keep, Unchanged
from group_hygiene.plan import seen_again
from group_hygiene.policy import Limits, Policy, parse_policy
from tests.unit.make import NOW, alert, delete, keep, match, plan, policy_object, seen


def _limited(per_run: int = 50, percent: int = 20, mode: str = "Enforce") -> Policy:
    return parse_policy(policy_object(mode=mode, delete={"maxPerRun": per_run, "maxPercent": percent}))


def _matches(count: int) -> list[Any]:
    return [match(f"g{number:04}") for number in range(count)]


def test_oldest_first() -> None:
    """Who has been unchanged for longest is deleted first; equal ones by name; the unseen last."""
    verdicts = [
        match("unseen", unchanged=None),
        match("b", unchanged=seen(since=NOW - timedelta(hours=80))),
        match("a", unchanged=seen(since=NOW - timedelta(hours=80))),
        keep("kept"),
        match("oldest", unchanged=seen(since=NOW - timedelta(hours=90))),
    ]
    result = plan(delete(enforce=True), verdicts)
    assert result.due == ("oldest", "a", "b", "unseen")
    assert result.actions == result.due
    assert result.refusal is None
    assert set(result.matched) == set(result.due)


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
    assert "maxPercent 20" in refusal.message


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
    result = plan(alert(), _matches(50), total=None, refusals=(Keep(reasons.NO_BACKUP, "none"),))
    assert len(result.matched) == 50
    assert (result.due, result.actions, result.refusal) == ((), (), None)


def test_refusals_come_first() -> None:
    """What forbids any deletion is said before the limits, the first of them first; nothing is deleted."""
    refusals = (Keep(reasons.CLUSTER_CHANGED, "another cluster"), Keep(reasons.NO_BACKUP, "none"))
    result = plan(_limited(), _matches(50), refusals=refusals, total=None)
    assert result.refusal == refusals[0]
    assert result.actions == ()


def test_nothing_due_is_not_refused() -> None:
    """Without anything due there is nothing to refuse, also where nothing could be deleted."""
    result = plan(_limited(), [keep("a")], refusals=(Keep(reasons.NO_BACKUP, "none"),), total=None)
    assert (result.refusal, result.due, result.scanned) == (None, (), 1)


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


_INTERVAL = timedelta(minutes=10)
_SINCE = NOW - timedelta(hours=5)
_BEFORE = Unchanged(b"same", _SINCE, timedelta(hours=4), 1_000.0)
_LATER = NOW + timedelta(days=400)


@pytest.mark.parametrize(
    ("before", "fingerprint", "now", "monotonic", "since", "observed"),
    [
        pytest.param(None, b"same", NOW, 5.0, NOW, timedelta(0), id="first-look"),
        pytest.param(
            _BEFORE, b"same", NOW, 1_600.0, _SINCE, timedelta(hours=4, minutes=10), id="adds-the-time-between"
        ),
        pytest.param(_BEFORE, b"new", NOW, 1_600.0, NOW, timedelta(0), id="changed"),
        pytest.param(_BEFORE, b"same", NOW, 2_200.0, _SINCE, timedelta(hours=4, minutes=20), id="two-intervals"),
        pytest.param(_BEFORE, b"same", NOW, 2_200.1, NOW, timedelta(0), id="more-than-two-intervals"),
        pytest.param(_BEFORE, b"same", _LATER, 1_600.0, _SINCE, timedelta(hours=4, minutes=10), id="clock-set-forward"),
        pytest.param(
            _BEFORE,
            b"same",
            _SINCE - timedelta(days=9),
            1_600.0,
            _SINCE,
            timedelta(hours=4, minutes=10),
            id="clock-set-back",
        ),
        pytest.param(_BEFORE, b"same", NOW, 1_000.0, _SINCE, timedelta(hours=4), id="same-moment"),
        pytest.param(_BEFORE, b"same", NOW, 900.0, _SINCE, timedelta(hours=4), id="never-less"),
    ],
)
def test_seen_again(
    before: Unchanged | None,
    fingerprint: bytes,
    now: datetime,
    monotonic: float,
    since: datetime,
    observed: timedelta,
) -> None:
    """Time between looks adds up by the monotonic clock; a change, or a look that was missed, starts anew."""
    expected = Unchanged(fingerprint, since, observed, monotonic)
    assert seen_again(before, fingerprint, now, monotonic, _INTERVAL) == expected


def test_seen_again_adds_up() -> None:
    """Many looks at a steady interval add up to the whole time, whatever the wall clock does."""
    known: Unchanged | None = None
    for turn in range(433):
        wall = NOW + timedelta(days=turn * (-1) ** turn)
        known = seen_again(known, b"same", wall, turn * 600.0, _INTERVAL)
    assert known is not None
    assert known.observed == timedelta(hours=72)
    assert known.since == NOW
