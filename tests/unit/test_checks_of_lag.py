"""`lag`, `committedOffsets: OutOfRange` and CaughtUp: what the ends of partitions say, and when nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_hygiene.engine.checks import CHAINS, judge, lag
from group_hygiene.engine.checks.lag import LagSummary, lag_summary, skipped_by_latest
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Evidence, Need, Verdict
from group_hygiene.model.groups import Bounds, CommittedOffset, Fault, Group, GroupState, Offsets, Partition
from group_hygiene.spec.policy import Action, Policy
from tests.unit.make import (
    FAULT,
    NO_TOPIC,
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
)

_MATCH = None
_P2 = Partition("orders", 1)
_STABLE = group(state=GroupState.STABLE)
_SIMPLE = group(protocol_type="")
_LAG, _RANGE = alert(lag={"atLeast": 5}), alert(committedOffsets="OutOfRange")
_BOTH = alert(lag={"atLeast": 5}, committedOffsets="OutOfRange")


def _known(first: Bounds | Fault | None, second: Bounds | Fault | None = None) -> Evidence:
    """10 is committed in the first partition and 20 in the second, where all is read unless told else."""
    bounds = {P0: first, P1: second or Bounds(0, 20)}
    return evidence(bounds={place: known for place, known in bounds.items() if known is not None}, unchanged=None)


@pytest.mark.parametrize(
    ("verdicts", "records"),
    [
        pytest.param([Verdict(group(), _known(Bounds(0, 15)), None)], "5", id="one-group"),
        pytest.param([Verdict(group(), _known(Bounds(0, 1010), Bounds(0, 21)), None)] * 2, "2,002", id="added-up"),
        pytest.param([Verdict(group(), _known(Bounds(12, 15)), None)], "3", id="without-removed-ones"),
        pytest.param([Verdict(group(), _known(Bounds(0, 10)), None)], "", id="caught-up"),
        pytest.param([Verdict(group(), _known(None), None)], "", id="not-read"),
        pytest.param([Verdict(group(), _known(FAULT, Bounds(0, 22)), None)], "2", id="as-far-as-known"),
        pytest.param([Verdict(group(), _known(Bounds(0, 15)), None, frozenset({"t"}))], "", id="offsets-of-topics"),
        pytest.param([], "", id="no-group"),
    ],
)
def test_what_latest_skips(verdicts: list[Verdict], records: str) -> None:
    """All records that wait for groups that will be deleted as a whole; nothing is said if none is known."""
    text = skipped_by_latest(verdicts)
    assert text.partition(" ")[0] == records
    assert ("auto.offset.reset=latest" in text) is bool(records)


@pytest.mark.parametrize(
    ("policy", "group", "evidence", "expected"),
    [
        # lag
        case("just-enough-lag", _MATCH, _LAG, known=_known(Bounds(0, 15))),
        case("one-record-short", reasons.LAG_BELOW, _LAG, known=_known(Bounds(0, 14))),
        case("added-up-over-partitions", _MATCH, _LAG, known=_known(Bounds(0, 12), Bounds(0, 23))),
        case("added-up-and-short", reasons.LAG_BELOW, _LAG, known=_known(Bounds(0, 12), Bounds(0, 22))),
        case("silent-topic", reasons.CAUGHT_UP, _LAG, known=_known(Bounds(0, 10))),
        case("in-use-and-behind", _MATCH, _LAG, _STABLE, known=_known(Bounds(0, 15))),
        case("in-use-and-caught-up", reasons.CAUGHT_UP, _LAG, _STABLE, known=_known(Bounds(0, 10))),
        case("never-joined", _MATCH, _LAG, _SIMPLE, known=_known(Bounds(0, 15))),
        case("retention-took-one-of-five", reasons.LAG_BELOW, _LAG, known=_known(Bounds(11, 15))),
        case("retention-left-five", _MATCH, _LAG, known=_known(Bounds(12, 17))),
        case("retention-took-all", reasons.CAUGHT_UP, _LAG, known=_known(Bounds(15, 15))),
        case("recreated-topic-is-no-lag", reasons.CAUGHT_UP, _LAG, known=_known(Bounds(0, 3))),
        case("negative-lag-is-not-added", _MATCH, _LAG, known=_known(Bounds(0, 3), Bounds(0, 25))),
        case("deleted-topic-is-no-lag", reasons.CAUGHT_UP, _LAG, known=_known(NO_TOPIC)),
        case("beside-a-deleted-topic", _MATCH, _LAG, known=_known(NO_TOPIC, Bounds(0, 25))),
        case("deleted-topics-only", reasons.CAUGHT_UP, _LAG, known=_known(NO_TOPIC, NO_TOPIC)),
        case("lag-unknown", reasons.LAG_UNKNOWN, _LAG, known=_known(FAULT)),
        case("lag-that-may-be-enough", reasons.LAG_UNKNOWN, _LAG, known=_known(FAULT, Bounds(0, 24))),
        case("enough-without-the-fault", _MATCH, _LAG, known=_known(FAULT, Bounds(0, 25))),
        case("fault-beside-a-deleted-topic", reasons.LAG_UNKNOWN, _LAG, known=_known(FAULT, NO_TOPIC)),
        case("one-partition-not-read", Need.BOUNDS, _LAG, known=_known(None)),
        case("not-read-though-enough", Need.BOUNDS, _LAG, known=_known(None, Bounds(0, 99))),
        case("nothing-read", Need.BOUNDS, _LAG, lag=None),
        case("offsets-not-read", Need.OFFSETS, _LAG, offsets=None),
        case("offsets-unknown", reasons.OFFSETS_UNKNOWN, _LAG, offsets=FAULT),
        case("never-committed", reasons.NO_OFFSETS, _LAG, offsets={}),
        # committedOffsets: OutOfRange
        case("in-range", reasons.IN_RANGE, _RANGE, known=_known(Bounds(0, 15))),
        case("at-the-begin", reasons.IN_RANGE, _RANGE, known=_known(Bounds(10, 15))),
        case("at-the-end", reasons.IN_RANGE, _RANGE, known=_known(Bounds(0, 10))),
        case("all-read-and-removed", reasons.IN_RANGE, _RANGE, known=_known(Bounds(10, 10))),
        case("below-the-begin", _MATCH, _RANGE, known=_known(Bounds(11, 15))),
        case("above-the-end", _MATCH, _RANGE, known=_known(Bounds(0, 9))),
        case("in-use-and-out-of-range", _MATCH, _RANGE, _STABLE, known=_known(Bounds(11, 15))),
        case("deleted-topic-is-not-out-of-range", reasons.IN_RANGE, _RANGE, known=_known(NO_TOPIC)),
        case("range-unknown", reasons.LAG_UNKNOWN, _RANGE, known=_known(FAULT)),
        case("out-of-range-without-the-fault", _MATCH, _RANGE, known=_known(FAULT, Bounds(0, 19))),
        case("range-not-read", Need.BOUNDS, _RANGE, known=_known(None)),
        case("nothing-to-be-out-of-range", reasons.NO_OFFSETS, _RANGE, offsets={}),
        # both
        case("behind-and-out-of-range", _MATCH, _BOTH, known=_known(Bounds(11, 16))),
        case("out-of-range-alone-is-not-both", reasons.LAG_BELOW, _BOTH, known=_known(Bounds(11, 15))),
        case("lag-alone-is-not-both", reasons.IN_RANGE, _BOTH, known=_known(Bounds(0, 15))),
        # beside other conditions, which come first
        case(
            "topics-first",
            reasons.TOPICS_EXIST,
            alert(deletedTopics="Some", lag={"atLeast": 5}),
            missing_topics=frozenset(),
            lag=None,
        ),
        case(
            "no-lag-in-deleted-topics",
            reasons.CAUGHT_UP,
            alert(deletedTopics="Some", lag={"atLeast": 1}),
            missing_topics=frozenset({"orders", "invoices"}),
            bounds={P0: NO_TOPIC, P1: NO_TOPIC},
        ),
        case("unchanged-first", reasons.TOO_RECENT, delete(lag={"atLeast": 5}), unchanged=seen(71), lag=None),
        case("idle-first", reasons.TOO_RECENT, idle(committedOffsets="OutOfRange"), activity=activity(71), lag=None),
        case("delete-with-lag", _MATCH, delete(lag={"atLeast": 5})),
        case("delete-needs-that-lag", reasons.LAG_BELOW, delete(lag={"atLeast": 6})),
        case("delete-needs-out-of-range", reasons.IN_RANGE, delete(committedOffsets="OutOfRange")),
        case("lost", _MATCH, delete(committedOffsets="OutOfRange"), bounds={P0: Bounds(11, 12), P1: Bounds(0, 21)}),
        case(
            "unchanged-needs-lag-all-the-same",
            reasons.CAUGHT_UP,
            delete(committedOffsets="OutOfRange"),
            bounds={P0: Bounds(0, 1), P1: Bounds(0, 20)},
        ),
        case(
            "idle-with-lag-needs-lag",
            reasons.CAUGHT_UP,
            idle(lag={"atLeast": 1}),
            activity=activity(),
            lag={P0: 0, P1: 0},
        ),
        case("delete-never-of-what-is-in-use", reasons.NOT_EMPTY, delete(lag={"atLeast": 5}), _STABLE),
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
    for action in (Action.DELETE, Action.ALERT):
        assert CHAINS[action][-3:] == (lag.caught_up, lag.lag, lag.in_range)


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
