"""`lag`, `offsets: OutOfRange` and CaughtUp: what the ends of partitions say of committed offsets, and when nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_hygiene.decide.checks import CHECKS, judge, unread
from group_hygiene.decide.lag import LagSummary, lag_summary
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Evidence
from group_hygiene.model.groups import Bounds, CommittedOffset, Fault, Group, GroupState, Offsets, Partition
from group_hygiene.model.verdicts import Need
from group_hygiene.spec.policy import Policy
from tests.unit.make import (
    FAULT,
    NO_TOPIC,
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
)

_MATCH = None
_P2 = Partition("orders", 1)
_STABLE = group(state=GroupState.STABLE)
_SIMPLE = group(protocol_type="")
_LAG, _RANGE = alert(lag={"atLeast": 5}), alert(offsets="OutOfRange")
_BOTH = alert(lag={"atLeast": 5}, offsets="OutOfRange")


def _known(first: Bounds | Fault | None, second: Bounds | Fault | None = None) -> Evidence:
    """10 is committed in the first partition and 20 in the second, where all is read unless told else."""
    bounds = {P0: first, P1: second or Bounds(0, 20)}
    return evidence(bounds={place: known for place, known in bounds.items() if known is not None}, unchanged=None)


@pytest.mark.parametrize(
    ("policy", "group", "evidence", "expected"),
    [
        # lag
        pytest.param(_LAG, group(), _known(Bounds(0, 15)), _MATCH, id="just-enough-lag"),
        pytest.param(_LAG, group(), _known(Bounds(0, 14)), reasons.LAG_BELOW, id="one-record-short"),
        pytest.param(_LAG, group(), _known(Bounds(0, 12), Bounds(0, 23)), _MATCH, id="added-up-over-partitions"),
        pytest.param(_LAG, group(), _known(Bounds(0, 12), Bounds(0, 22)), reasons.LAG_BELOW, id="added-up-and-short"),
        pytest.param(_LAG, group(), _known(Bounds(0, 10)), reasons.CAUGHT_UP, id="silent-topic"),
        pytest.param(_LAG, _STABLE, _known(Bounds(0, 15)), _MATCH, id="in-use-and-behind"),
        pytest.param(_LAG, _STABLE, _known(Bounds(0, 10)), reasons.CAUGHT_UP, id="in-use-and-caught-up"),
        pytest.param(_LAG, _SIMPLE, _known(Bounds(0, 15)), _MATCH, id="nobody-ever-joined"),
        pytest.param(_LAG, group(), _known(Bounds(11, 15)), reasons.LAG_BELOW, id="retention-took-one-of-five"),
        pytest.param(_LAG, group(), _known(Bounds(12, 17)), _MATCH, id="retention-left-five"),
        pytest.param(_LAG, group(), _known(Bounds(15, 15)), reasons.CAUGHT_UP, id="retention-took-all"),
        pytest.param(_LAG, group(), _known(Bounds(0, 3)), reasons.CAUGHT_UP, id="topic-made-anew-is-no-lag"),
        pytest.param(_LAG, group(), _known(Bounds(0, 3), Bounds(0, 25)), _MATCH, id="negative-lag-is-not-added"),
        pytest.param(_LAG, group(), _known(NO_TOPIC), reasons.CAUGHT_UP, id="deleted-topic-is-no-lag"),
        pytest.param(_LAG, group(), _known(NO_TOPIC, Bounds(0, 25)), _MATCH, id="beside-a-deleted-topic"),
        pytest.param(_LAG, group(), _known(NO_TOPIC, NO_TOPIC), reasons.CAUGHT_UP, id="deleted-topics-only"),
        pytest.param(_LAG, group(), _known(FAULT), reasons.LAG_UNKNOWN, id="lag-unknown"),
        pytest.param(_LAG, group(), _known(FAULT, Bounds(0, 24)), reasons.LAG_UNKNOWN, id="lag-that-may-be-enough"),
        pytest.param(_LAG, group(), _known(FAULT, Bounds(0, 25)), _MATCH, id="enough-without-the-fault"),
        pytest.param(_LAG, group(), _known(FAULT, NO_TOPIC), reasons.LAG_UNKNOWN, id="fault-beside-a-deleted-topic"),
        pytest.param(_LAG, group(), _known(None), Need.BOUNDS, id="one-partition-not-read"),
        pytest.param(_LAG, group(), _known(None, Bounds(0, 99)), Need.BOUNDS, id="not-read-though-enough"),
        pytest.param(_LAG, group(), evidence(lag=None), Need.BOUNDS, id="nothing-read"),
        pytest.param(_LAG, group(), evidence(offsets=None), Need.OFFSETS, id="offsets-not-read"),
        pytest.param(_LAG, group(), evidence(offsets=FAULT), reasons.OFFSETS_UNKNOWN, id="offsets-unknown"),
        pytest.param(_LAG, group(), evidence(offsets={}), reasons.NO_OFFSETS, id="never-committed"),
        # offsets: OutOfRange
        pytest.param(_RANGE, group(), _known(Bounds(0, 15)), reasons.IN_RANGE, id="in-range"),
        pytest.param(_RANGE, group(), _known(Bounds(10, 15)), reasons.IN_RANGE, id="at-the-begin"),
        pytest.param(_RANGE, group(), _known(Bounds(0, 10)), reasons.IN_RANGE, id="at-the-end"),
        pytest.param(_RANGE, group(), _known(Bounds(10, 10)), reasons.IN_RANGE, id="all-read-and-removed"),
        pytest.param(_RANGE, group(), _known(Bounds(11, 15)), _MATCH, id="below-the-begin"),
        pytest.param(_RANGE, group(), _known(Bounds(0, 9)), _MATCH, id="above-the-end"),
        pytest.param(_RANGE, _STABLE, _known(Bounds(11, 15)), _MATCH, id="in-use-and-out-of-range"),
        pytest.param(_RANGE, group(), _known(NO_TOPIC), reasons.IN_RANGE, id="deleted-topic-is-not-out-of-range"),
        pytest.param(_RANGE, group(), _known(FAULT), reasons.LAG_UNKNOWN, id="range-unknown"),
        pytest.param(_RANGE, group(), _known(FAULT, Bounds(0, 19)), _MATCH, id="out-of-range-without-the-fault"),
        pytest.param(_RANGE, group(), _known(None), Need.BOUNDS, id="range-not-read"),
        pytest.param(_RANGE, group(), evidence(offsets={}), reasons.NO_OFFSETS, id="nothing-to-be-out-of-range"),
        # both
        pytest.param(_BOTH, group(), _known(Bounds(11, 16)), _MATCH, id="behind-and-out-of-range"),
        pytest.param(_BOTH, group(), _known(Bounds(11, 15)), reasons.LAG_BELOW, id="out-of-range-alone-is-not-both"),
        pytest.param(_BOTH, group(), _known(Bounds(0, 15)), reasons.IN_RANGE, id="lag-alone-is-not-both"),
        # beside other conditions, which come first
        pytest.param(
            alert(deletedTopics="Some", lag={"atLeast": 5}),
            group(),
            evidence(missing_topics=frozenset(), lag=None),
            reasons.TOPICS_EXIST,
            id="topics-first",
        ),
        pytest.param(
            alert(offsets="None", lag={"atLeast": 5}), group(), evidence(lag=None), reasons.HAS_OFFSETS, id="none-first"
        ),
        pytest.param(
            alert(deletedTopics="All", lag={"atLeast": 1}),
            group(),
            evidence(missing_topics=frozenset({"orders", "invoices"}), bounds={P0: NO_TOPIC, P1: NO_TOPIC}),
            reasons.CAUGHT_UP,
            id="no-lag-in-deleted-topics",
        ),
        pytest.param(
            delete(lag={"atLeast": 5}),
            group(),
            evidence(unchanged=seen(71), lag=None),
            reasons.TOO_RECENT,
            id="unchanged-first",
        ),
        pytest.param(
            idle(offsets="OutOfRange"),
            group(),
            evidence(activity=activity(71), lag=None),
            reasons.TOO_RECENT,
            id="idle-first",
        ),
        pytest.param(delete(lag={"atLeast": 5}), group(), evidence(), _MATCH, id="delete-with-lag"),
        pytest.param(delete(lag={"atLeast": 6}), group(), evidence(), reasons.LAG_BELOW, id="delete-needs-that-lag"),
        pytest.param(
            delete(offsets="OutOfRange"), group(), evidence(), reasons.IN_RANGE, id="delete-needs-out-of-range"
        ),
        pytest.param(
            delete(offsets="OutOfRange"),
            group(),
            evidence(bounds={P0: Bounds(11, 12), P1: Bounds(0, 21)}),
            _MATCH,
            id="lost",
        ),
        pytest.param(
            delete(offsets="OutOfRange"),
            group(),
            evidence(bounds={P0: Bounds(0, 1), P1: Bounds(0, 20)}),
            reasons.CAUGHT_UP,
            id="unchanged-needs-lag-all-the-same",
        ),
        pytest.param(
            idle(lag={"atLeast": 1}),
            group(),
            evidence(activity=activity(), lag={P0: 0, P1: 0}),
            reasons.CAUGHT_UP,
            id="idle-with-lag-needs-lag",
        ),
        pytest.param(
            delete(lag={"atLeast": 5}), _STABLE, evidence(), reasons.NOT_EMPTY, id="delete-never-of-what-is-in-use"
        ),
    ],
)
def test_judge(policy: Policy, group: Group, evidence: Evidence, expected: str | Need | None) -> None:
    """Each situation has one reason to keep the group, or none; missing evidence and faults keep."""
    assert decided(judge(policy, group, evidence, NOW)) == expected


@pytest.mark.parametrize(
    ("policy", "evidence", "expected"),
    [
        pytest.param(_LAG, _known(Bounds(0, 14)), "4 records wait for it, of 5 or more that are asked for", id="below"),
        pytest.param(
            _LAG,
            _known(Bounds(0, 10)),
            "no records wait for it: a consumer of a silent topic looks just like this",
            id="silent-topic",
        ),
        pytest.param(
            _LAG, _known(Bounds(0, 9)), "no records wait for it, as 1 of its offsets are out of range", id="made-anew"
        ),
        pytest.param(
            _LAG,
            _known(FAULT),
            "how many records wait for it could not be read: COORDINATOR_NOT_AVAILABLE: try later",
            id="unknown",
        ),
    ],
)
def test_messages_say_how_many(policy: Policy, evidence: Evidence, expected: str) -> None:
    """What is kept is told with its numbers, and a silent topic is never called abandoned."""
    refusal = judge(policy, group(), evidence, NOW).refusal
    assert refusal is not None
    assert refusal.message == expected


def test_ends_are_asked_last() -> None:
    """Only of groups for which everything else holds: no check that asks for less comes after these."""
    assert CHECKS[-3:] == (unread.caught_up, unread.lag, unread.in_range)


@pytest.mark.parametrize(
    ("offsets", "bounds", "expected"),
    [
        pytest.param({}, {}, LagSummary(0, 0), id="nothing"),
        pytest.param({P0: 3}, {}, None, id="not-read"),
        pytest.param(
            {P0: 3}, {P0: Bounds(0, 9), P1: FAULT}, LagSummary(6, 0), id="what-others-committed-does-not-count"
        ),
        pytest.param({P0: 3, P1: 8}, {P0: Bounds(5, 9), P1: Bounds(0, 7)}, LagSummary(4, 2), id="below-and-above"),
        pytest.param(
            {P0: 3, P1: 8}, {P0: Bounds(0, 4), P1: NO_TOPIC}, LagSummary(1, 0), id="a-deleted-topic-is-no-fault"
        ),
        pytest.param({P0: 3, P1: 8}, {P0: Bounds(0, 4), P1: FAULT}, LagSummary(1, 0, FAULT), id="known-in-part"),
        pytest.param(
            {P0: 0, P1: 0},
            {P0: Bounds(0, 2**63 - 1), P1: Bounds(0, 2**63 - 1)},
            LagSummary(2**64 - 2, 0),
            id="no-overflow",
        ),
    ],
)
def test_standing(
    offsets: Mapping[Partition, int], bounds: Mapping[Partition, Bounds | Fault], expected: LagSummary | None
) -> None:
    """Unread records added up, offsets out of range counted, and why a number may be too low."""
    assert lag_summary({place: CommittedOffset(offset) for place, offset in offsets.items()}, bounds) == expected


_PLACES = [P0, P1, _P2]
_EACH = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda ends: Bounds(min(ends), max(ends)))


@given(
    st.fixed_dictionaries({place: st.integers(0, 9).map(CommittedOffset) for place in _PLACES}),
    st.fixed_dictionaries(dict.fromkeys(_PLACES, _EACH)),
    st.sets(st.sampled_from(_PLACES)),
)
def test_a_fault_never_adds(offsets: Offsets, bounds: Mapping[Partition, Bounds], unknown: set[Partition]) -> None:
    """The numbers are those of a count record by record; with faults they are never higher, and the fault is told."""
    whole = lag_summary(offsets, bounds)
    records = [set(range(*bounds[place])) & set(range(at.offset, 10)) for place, at in offsets.items()]
    readable = [at.offset in {*range(*bounds[place]), bounds[place].end} for place, at in offsets.items()]
    assert whole == LagSummary(sum(map(len, records)), readable.count(False))
    part = lag_summary(offsets, {place: FAULT if place in unknown else known for place, known in bounds.items()})
    assert part is not None
    assert (part.unread <= whole.unread, part.outside <= whole.outside) == (True, True)
    assert (part.fault is not None) == bool(unknown)
