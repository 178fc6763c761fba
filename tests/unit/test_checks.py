"""The checks: for each situation the one reason that keeps a group, or a match; and what may never match."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import product
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from msgspec import structs

from group_hygiene.decide.checks import CHECKS, Check, judge
from group_hygiene.model import reasons
from group_hygiene.model.entries import KeepRequest
from group_hygiene.model.evidence import Activity, Claims, Deletion, Evidence, Protections
from group_hygiene.model.groups import Bounds, CommittedOffset, Fault, Group, GroupState, GroupType, Partition
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.verdicts import Need
from group_hygiene.spec.policy import DeletedTopics, Offsets, Policy, Unprotect, parse_policy
from tests.examples import examples
from tests.unit.make import (
    DENIED,
    FAULT,
    NO_TOPIC,
    NOW,
    OFFSETS,
    P0,
    P1,
    TOPIC_FAULT,
    activity,
    alert,
    decided,
    delete,
    evidence,
    group,
    lagging,
    policy_object,
    seen,
    simple_activity,
)

T = TypeVar("T")

_MATCH = None
_SOON = NOW + timedelta(seconds=1)
_REQUEST = KeepRequest(group="console-consumer-1", until=_SOON, why="audit", by="ann", at=NOW)
_DELETION = Deletion(NOW - timedelta(days=1), "kafka/unused", _SOON)
_CLAIM = Protections(claimed=Claims({"console-consumer-1": "ScaledObject kafka/orders"}))
_UNREAD = Refusal(reasons.CLAIMED, "no permission to list scaledobjects.keda.sh in all namespaces")
_LINK = Protections(claimed=Claims(prefixes={"console-": "ShadowLink kafka/link"}))
_STREAMS = Protections(streams=frozenset({"console-consumer-1"}))
_MIRRORED = Protections(mirrored=frozenset({"console-consumer-1"}))
_NO_TOPICS = Protections(streams=None, mirrored=None)
_ORDERS, _BOTH = frozenset({"orders"}), frozenset({"orders", "invoices"})
_STATES_IN_USE = [state for state in GroupState if state not in (GroupState.EMPTY, GroupState.DEAD)]


def _unprotect(*kinds: str) -> dict[str, Any]:
    return {"unprotect": list(kinds)}


@pytest.mark.parametrize(
    ("policy", "group", "evidence", "expected"),
    [
        pytest.param(delete(), group(), evidence(), _MATCH, id="abandoned-consumer"),
        pytest.param(delete(), group(type=GroupType.CONSUMER), evidence(), _MATCH, id="abandoned-consumer-of-kip-848"),
        pytest.param(alert(), group(), Evidence(Protections()), _MATCH, id="alert-that-asks-for-nothing"),
        # own_group
        pytest.param(delete(), group("__group_hygiene-x"), evidence(), reasons.OWN_GROUP, id="own-group"),
        pytest.param(alert(), group("__group_hygiene"), evidence(), reasons.OWN_GROUP, id="own-group-alert"),
        pytest.param(delete(), group("_group_hygiene"), evidence(), _MATCH, id="almost-own-group"),
        # id_too_long
        pytest.param(delete(), group("x" * 1_001), evidence(), reasons.ID_TOO_LONG, id="id-too-long"),
        pytest.param(
            alert(idleFor="1h"), group("\x01" * 32_767), Evidence(Protections()), reasons.ID_TOO_LONG, id="unread"
        ),
        pytest.param(delete(), group("x" * 1_000), evidence(), _MATCH, id="id-just-not-too-long"),
        # protected
        pytest.param(delete(), group(), evidence(protected_by="console-*"), reasons.PROTECTED, id="protected"),
        pytest.param(alert(), group(), evidence(protected_by="*"), reasons.PROTECTED, id="protected-from-alerts-too"),
        pytest.param(
            delete(_unprotect("Connect", "Streams", "MirrorMaker", "Share")),
            group(),
            evidence(protected_by="*"),
            reasons.PROTECTED,
            id="nothing-unprotects-what-the-connection-protects",
        ),
        # failover_target
        pytest.param(delete(), group(), evidence(failover_target=True), reasons.FAILOVER_TARGET, id="failover-target"),
        pytest.param(alert(), group(), evidence(failover_target=True), _MATCH, id="alert-of-a-failover-target"),
        pytest.param(
            delete(_unprotect("Connect", "Streams", "MirrorMaker", "Share")),
            group(),
            evidence(failover_target=True),
            reasons.FAILOVER_TARGET,
            id="nothing-unprotects-a-failover-target",
        ),
        # keep_requested
        pytest.param(delete(), group(), evidence(keep_request=_REQUEST), reasons.KEEP_REQUESTED, id="keep-requested"),
        pytest.param(
            delete(), group(), evidence(keep_request=structs.replace(_REQUEST, until=NOW)), _MATCH, id="request-is-over"
        ),
        pytest.param(alert(), group(), evidence(keep_request=_REQUEST), _MATCH, id="alert-tells-what-is-kept"),
        pytest.param(
            delete(),
            group(),
            evidence(keep_request=_REQUEST, protected_by="*"),
            reasons.PROTECTED,
            id="protect-before-a-request-that-ends",
        ),
        # record_unreadable
        pytest.param(delete(), group(), evidence(damaged="no JSON"), reasons.RECORD_UNREADABLE, id="record-unreadable"),
        pytest.param(alert(), group(), evidence(damaged="no JSON"), _MATCH, id="alert-needs-no-ledger"),
        # reappeared
        pytest.param(delete(), group(), evidence(deleted=_DELETION), reasons.REAPPEARED, id="reappeared"),
        pytest.param(
            delete(), group(), evidence(deleted=_DELETION._replace(until=NOW)), _MATCH, id="reappeared-long-ago"
        ),
        pytest.param(alert(), group(), evidence(deleted=_DELETION), _MATCH, id="alert-tells-what-reappeared"),
        pytest.param(
            delete(),
            group(state=GroupState.STABLE),
            evidence(deleted=_DELETION),
            reasons.REAPPEARED,
            id="reappeared-and-in-use",
        ),
        # claimed
        pytest.param(delete(), group(), evidence(protections=_CLAIM), reasons.CLAIMED, id="keda-scaled-to-zero"),
        pytest.param(delete(), group("other"), evidence(protections=_CLAIM), _MATCH, id="keda-names-another"),
        pytest.param(delete(), group(), evidence(protections=_LINK), reasons.CLAIMED, id="shadow-link-syncs-it"),
        pytest.param(delete(), group("other"), evidence(protections=_LINK), _MATCH, id="shadow-link-syncs-others"),
        pytest.param(
            delete(),
            group(),
            evidence(protections=Protections(claimed=_UNREAD)),
            reasons.CLAIMED,
            id="keda-objects-that-may-not-be-listed",
        ),
        # connect
        pytest.param(delete(), group("connect-sink"), evidence(), reasons.CONNECT, id="stopped-sink-connector"),
        pytest.param(delete(), group(protocol_type="connect"), evidence(), reasons.CONNECT, id="connect-worker"),
        pytest.param(delete(), group("connected"), evidence(), _MATCH, id="connect-needs-the-dash"),
        pytest.param(
            delete(_unprotect("Connect")), group("connect-sink"), evidence(), _MATCH, id="sink-connector-unprotected"
        ),
        pytest.param(
            delete(_unprotect("Streams", "MirrorMaker", "Share")),
            group("connect-sink"),
            evidence(),
            reasons.CONNECT,
            id="sink-connector-others-unprotected",
        ),
        # streams
        pytest.param(delete(), group(), evidence(protections=_STREAMS), reasons.STREAMS, id="streams-with-changelog"),
        pytest.param(delete(), group(type=GroupType.STREAMS), evidence(), reasons.STREAMS, id="streams-by-its-type"),
        pytest.param(
            alert(_unprotect("Streams")), group(), evidence(protections=_STREAMS), _MATCH, id="streams-unprotected"
        ),
        pytest.param(
            delete(_unprotect("Streams")),
            group(type=GroupType.STREAMS),
            evidence(),
            _MATCH,
            id="streams-by-its-type-unprotected",
        ),
        # streams_state
        pytest.param(
            delete(_unprotect("Streams")),
            group(),
            evidence(protections=_STREAMS),
            reasons.STREAMS_STATE,
            id="streams-unprotected-and-its-state-exists",
        ),
        pytest.param(
            delete(_unprotect("Streams")),
            group(type=GroupType.STREAMS),
            evidence(protections=_STREAMS),
            reasons.STREAMS_STATE,
            id="streams-by-its-type-and-its-state-exists",
        ),
        pytest.param(
            delete(_unprotect("Streams", "MirrorMaker")),
            group(type=GroupType.STREAMS),
            evidence(protections=_NO_TOPICS),
            reasons.STREAMS_STATE,
            id="topics-not-read-so-any-may-have-a-state",
        ),
        pytest.param(
            delete(_unprotect("Streams", "StreamsState")),
            group(),
            evidence(protections=_STREAMS),
            _MATCH,
            id="streams-unprotected-with-its-state",
        ),
        pytest.param(
            delete(_unprotect("MirrorMaker")),
            group(),
            evidence(protections=_NO_TOPICS),
            reasons.STREAMS,
            id="topics-not-read-so-any-may-be-streams",
        ),
        # mirror_maker
        pytest.param(delete(), group(), evidence(protections=_MIRRORED), reasons.MIRROR_MAKER, id="mirrored"),
        pytest.param(delete(), group("other"), evidence(protections=_MIRRORED), _MATCH, id="mirrored-another"),
        pytest.param(
            delete(),
            group(),
            evidence(protections=Protections(mirrored=None)),
            reasons.MIRROR_MAKER,
            id="checkpoints-not-read-so-any-may-be-mirrored",
        ),
        pytest.param(
            delete(_unprotect("MirrorMaker")), group(), evidence(protections=_MIRRORED), _MATCH, id="mirror-unprotected"
        ),
        pytest.param(
            delete(_unprotect("MirrorMaker", "Streams", "StreamsState")),
            group(),
            evidence(protections=_NO_TOPICS),
            _MATCH,
            id="topics-not-read-but-all-unprotected",
        ),
        # share
        pytest.param(delete(), group(type=GroupType.SHARE), evidence(), reasons.SHARE, id="share"),
        pytest.param(
            delete(_unprotect("Share")), group(type=GroupType.SHARE), evidence(), _MATCH, id="share-unprotected"
        ),
        pytest.param(
            delete(_unprotect("Share")),
            group(type=GroupType.SHARE),
            evidence(offsets=FAULT),
            reasons.OFFSETS_UNKNOWN,
            id="share-whose-offsets-are-not-known",
        ),
        pytest.param(
            delete(_unprotect("Share")),
            group(type=GroupType.SHARE),
            evidence(offsets={}),
            reasons.NO_OFFSETS,
            id="share-without-offsets",
        ),
        pytest.param(
            delete(_unprotect("Share")),
            group(type=GroupType.SHARE),
            evidence(unchanged=seen(71.99), retention=timedelta(hours=1)),
            reasons.TOO_RECENT,
            id="share-does-not-expire",
        ),
        pytest.param(
            delete(_unprotect("Share")),
            group(type=GroupType.SHARE),
            evidence(lag={P0: 0, P1: 0}),
            _MATCH,
            id="share-caught-up-for-its-consumers-are-members",
        ),
        pytest.param(alert(), group(type=GroupType.SHARE), evidence(), reasons.SHARE, id="share-alert"),
        pytest.param(
            alert(_unprotect("Share")), group(type=GroupType.SHARE), evidence(), _MATCH, id="share-alert-unprotected"
        ),
        # dead
        pytest.param(delete(), group(state=GroupState.DEAD), evidence(), reasons.DEAD, id="dead"),
        pytest.param(alert(), group(state=GroupState.DEAD), evidence(), _MATCH, id="dead-alert"),
        # not_empty
        *[
            pytest.param(delete(), group(state=state), evidence(), reasons.NOT_EMPTY, id=f"delete-of-{state}")
            for state in _STATES_IN_USE
        ],
        pytest.param(
            alert(unchangedFor="72h"),
            group(state=GroupState.STABLE),
            evidence(),
            reasons.NOT_EMPTY,
            id="alert-on-unchanged-but-stable",
        ),
        pytest.param(
            alert(unchangedFor="72h"),
            group(state=GroupState.DEAD),
            evidence(),
            reasons.NOT_EMPTY,
            id="alert-on-unchanged-but-dead",
        ),
        pytest.param(alert(), group(state=GroupState.STABLE), evidence(), _MATCH, id="alert-on-any-state"),
        # simple
        pytest.param(
            delete(), group(protocol_type=""), evidence(), reasons.SIMPLE, id="simple-consumer-empty-but-committing"
        ),
        pytest.param(
            alert(unchangedFor="72h"), group(protocol_type=""), evidence(), reasons.SIMPLE, id="simple-consumer-alert"
        ),
        pytest.param(
            alert(deletedTopics="All"),
            group(protocol_type=""),
            evidence(missing_topics=_BOTH),
            _MATCH,
            id="simple-consumer-of-deleted-topics-alert",
        ),
        # offsets_known
        pytest.param(delete(), group(), evidence(offsets=None), Need.OFFSETS, id="offsets-not-read"),
        pytest.param(delete(), group(), evidence(offsets=FAULT), reasons.OFFSETS_UNKNOWN, id="offsets-fault"),
        pytest.param(delete(), group(), evidence(offsets=DENIED), reasons.DENIED, id="offsets-denied"),
        pytest.param(
            alert(offsets="None"),
            group(),
            evidence(offsets=None),
            Need.OFFSETS,
            id="committed-none-offsets-not-read",
        ),
        pytest.param(
            alert(offsets="None"),
            group(),
            evidence(offsets=FAULT),
            reasons.OFFSETS_UNKNOWN,
            id="committed-none-offsets-fault",
        ),
        pytest.param(
            alert(deletedTopics="Some"),
            group(),
            evidence(offsets=None),
            Need.OFFSETS,
            id="topics-offsets-not-read",
        ),
        # committed
        pytest.param(alert(offsets="None"), group(), evidence(), reasons.HAS_OFFSETS, id="committed-none-has-some"),
        pytest.param(alert(offsets="None"), group(), evidence(offsets={}), _MATCH, id="committed-none"),
        pytest.param(delete(offsets="None"), group(), evidence(), reasons.HAS_OFFSETS, id="delete-none-has-some"),
        pytest.param(
            delete(offsets="None"), group(), evidence(offsets={}, lag=None), _MATCH, id="delete-committed-none"
        ),
        pytest.param(
            delete(offsets="None"),
            group(),
            evidence(offsets={}, unchanged=seen(1)),
            reasons.TOO_RECENT,
            id="delete-committed-none-too-recent",
        ),
        # topics_deleted
        pytest.param(
            alert(deletedTopics="Some"), group(), evidence(offsets={}), reasons.NO_OFFSETS, id="some-deleted-no-offsets"
        ),
        pytest.param(
            alert(deletedTopics="All"),
            group(),
            evidence(offsets={}, missing_topics=frozenset()),
            reasons.NO_OFFSETS,
            id="all-deleted-no-offsets",
        ),
        pytest.param(alert(deletedTopics="Some"), group(), evidence(), Need.MISSING_TOPICS, id="topics-not-read"),
        pytest.param(
            alert(deletedTopics="All"),
            group(),
            evidence(missing_topics=FAULT),
            reasons.TOPICS_UNKNOWN,
            id="topics-fault",
        ),
        pytest.param(alert(deletedTopics="Some"), group(), evidence(missing_topics=_ORDERS), _MATCH, id="some-deleted"),
        pytest.param(
            alert(deletedTopics="Some"),
            group(),
            evidence(missing_topics=frozenset()),
            reasons.TOPICS_EXIST,
            id="some-deleted-all-exist",
        ),
        pytest.param(
            alert(deletedTopics="Some"),
            group(),
            evidence(missing_topics=frozenset({"others"})),
            reasons.TOPICS_EXIST,
            id="some-deleted-of-another-group",
        ),
        pytest.param(
            alert(deletedTopics="All"),
            group(),
            evidence(missing_topics=_ORDERS),
            reasons.TOPICS_EXIST,
            id="all-deleted-one-exists",
        ),
        pytest.param(alert(deletedTopics="All"), group(), evidence(missing_topics=_BOTH), _MATCH, id="all-deleted"),
        # unchanged
        pytest.param(delete(), group(), evidence(unchanged=None), reasons.TOO_RECENT, id="never-seen"),
        pytest.param(delete(), group(), evidence(unchanged=seen(71.99)), reasons.TOO_RECENT, id="seen-not-long-enough"),
        pytest.param(delete(), group(), evidence(unchanged=seen(72)), _MATCH, id="seen-just-long-enough"),
        pytest.param(delete(), group(), evidence(offsets={}), reasons.NO_OFFSETS, id="unchanged-without-offsets"),
        pytest.param(
            alert(unchangedFor="72h"), group(), evidence(unchanged=seen(1)), reasons.TOO_RECENT, id="alert-too-recent"
        ),
        # caught_up
        pytest.param(delete(), group(), evidence(records=None), Need.RECORDS, id="records-not-read"),
        pytest.param(delete(), group(), evidence(records={}), Need.RECORDS, id="no-record-read"),
        pytest.param(delete(), group(), evidence(records={P0: -1, P1: -1}), reasons.CAUGHT_UP, id="no-records-wait"),
        pytest.param(
            delete(), group(), evidence(lag={P0: 9, P1: 9}, records={P0: 9, P1: 19}), reasons.CAUGHT_UP, id="all-before"
        ),
        pytest.param(
            delete(),
            group(),
            evidence(lag={P0: 9, P1: 9}, records={P0: 9, P1: 20}),
            reasons.CAUGHT_UP,
            id="a-record-waits-in-one-topic-of-two",
        ),
        pytest.param(
            delete(), group(), evidence(lag={P0: 9, P1: 9}, records={P0: 10, P1: 20}), _MATCH, id="records-in-both"
        ),
        pytest.param(
            delete(),
            group(),
            evidence(bounds=lagging({P0: 9, P1: NO_TOPIC}), records={P0: 10}),
            _MATCH,
            id="beside-a-topic-that-is-deleted",
        ),
        pytest.param(
            delete(),
            group(),
            evidence(lag={P0: 9, P1: 9}, records={P0: 10}),
            Need.RECORDS,
            id="one-not-read",
        ),
        pytest.param(
            delete(),
            group(),
            evidence(
                offsets={P0: CommittedOffset(10), Partition("orders", 1): CommittedOffset(20)},
                bounds={P0: Bounds(0, 19), Partition("orders", 1): Bounds(0, 29)},
                records={P0: 10},
            ),
            _MATCH,
            id="one-partition-of-a-topic-is-enough",
        ),
        pytest.param(
            delete(),
            group(),
            evidence(lag={P0: 9, P1: 9}, records={P0: 10, P1: FAULT}),
            reasons.LAG_UNKNOWN,
            id="records-unknown",
        ),
        pytest.param(
            delete(),
            group(),
            evidence(lag={P0: FAULT, P1: 9}, records={P1: 19}),
            reasons.CAUGHT_UP,
            id="no-records-beside-what-is-unknown",
        ),
        pytest.param(
            delete(),
            group(),
            evidence(lag={P0: 9, P1: 9}, records={P0: FAULT, P1: 20}),
            reasons.LAG_UNKNOWN,
            id="a-record-beside-what-is-unknown",
        ),
        pytest.param(
            delete(),
            group(),
            evidence(lag={P0: 9, P1: 9}, records={P0: 10, P1: TOPIC_FAULT}),
            reasons.LAG_UNKNOWN,
            id="records-that-we-may-not-read",
        ),
        pytest.param(
            delete({"unprotect": ["UnreadableTopics"]}),
            group(),
            evidence(lag={P0: 9, P1: 9}, records={P0: 10, P1: TOPIC_FAULT}),
            _MATCH,
            id="records-that-we-need-not-read",
        ),
        pytest.param(
            delete({"unprotect": ["UnreadableTopics"]}),
            group(),
            evidence(lag={P0: 9, P1: 9}, records={P0: 10, P1: FAULT}),
            reasons.LAG_UNKNOWN,
            id="records-unknown-for-another-reason",
        ),
        pytest.param(
            delete(),
            group(),
            evidence(bounds={P0: Bounds(12, 15), P1: Bounds(0, 20)}, records={P0: 11}),
            reasons.CAUGHT_UP,
            id="the-record-that-waited-was-removed",
        ),
        pytest.param(
            alert(lag={"atLeast": 5}),
            group(),
            evidence(lag={P0: 5, P1: 0}, records={P0: -1}),
            _MATCH,
            id="lag-counts-as-kafka-does",
        ),
        pytest.param(delete(), group(), evidence(lag=None), Need.BOUNDS, id="lag-not-read"),
        pytest.param(delete(), group(), evidence(lag={P0: FAULT, P1: FAULT}), reasons.LAG_UNKNOWN, id="lag-fault"),
        pytest.param(delete(), group(), evidence(lag={P0: 0, P1: 0}), reasons.CAUGHT_UP, id="silent-topic-lag-0"),
        pytest.param(delete(), group(), evidence(lag={P0: 5}), Need.BOUNDS, id="lag-of-one-partition-only"),
        pytest.param(delete(), group(), evidence(lag={P0: 0, P1: 1}), reasons.CAUGHT_UP, id="lag-in-another-topic"),
        pytest.param(delete(), group(), evidence(lag={P0: 0, P1: FAULT}), reasons.LAG_UNKNOWN, id="lag-partly-unknown"),
        pytest.param(delete(), group(), evidence(lag={P0: 5, P1: FAULT}), reasons.LAG_UNKNOWN, id="lag-of-one-topic"),
        pytest.param(
            delete(), group(), evidence(lag={P0: 0, P1: NO_TOPIC}), reasons.CAUGHT_UP, id="lag-0-and-a-deleted-topic"
        ),
        pytest.param(
            delete(), group(), evidence(lag={P0: FAULT, P1: NO_TOPIC}), reasons.LAG_UNKNOWN, id="fault-beside-deleted"
        ),
        pytest.param(
            alert(unchangedFor="72h"), group(), evidence(lag={P0: 0, P1: 0}), reasons.CAUGHT_UP, id="alert-caught-up"
        ),
        pytest.param(
            delete(deletedTopics="All"),
            group(),
            evidence(missing_topics=_BOTH, lag=None),
            _MATCH,
            id="all-topics-deleted-needs-no-lag",
        ),
        pytest.param(
            delete(deletedTopics="All"),
            group(),
            evidence(missing_topics=_BOTH, lag=None, unchanged=seen(1)),
            reasons.TOO_RECENT,
            id="all-topics-deleted-too-recent",
        ),
        pytest.param(
            delete(deletedTopics="Some"),
            group(),
            evidence(missing_topics=_ORDERS, lag={P0: NO_TOPIC, P1: 0}),
            reasons.CAUGHT_UP,
            id="some-topics-deleted-needs-lag",
        ),
    ],
)
def test_judge(policy: Policy, group: Group, evidence: Evidence, expected: str | Need | None) -> None:
    """Each situation has one reason to keep the group, or none; missing evidence and faults keep."""
    assert decided(judge(policy, group, evidence, NOW)) == expected


def test_messages_say_who_and_until_when() -> None:
    """Who is kept on request, or appeared again, is told with names and dates."""
    asked = judge(delete(), group(), evidence(keep_request=_REQUEST), NOW).refusal
    again = judge(delete(), group(), evidence(deleted=_DELETION), NOW).refusal
    assert asked is not None
    assert asked.message == "ann asked to keep it until 2030-01-31T12:00:01Z: audit"
    assert again is not None
    assert again.message == (
        "deleted by policy kafka/unused at 2030-01-30T12:00:00Z, and exists again: not deleted until "
        "2030-01-31T12:00:01Z"
    )


def test_first_check_decides() -> None:
    """Of a group that everything speaks for keeping, the reasons come in the order of the chain, one by one."""
    policy = delete(offsets="None", deletedTopics="All")
    everything = Protections(
        streams=frozenset({"connect-a"}),
        mirrored=frozenset({"connect-a"}),
        claimed=Claims({"connect-a": "KafkaConnector"}),
    )
    subject = group("__group_hygiene", type=GroupType.SHARE, protocol_type="", state=GroupState.DEAD)
    known = evidence(
        protected_by="*", protections=everything, failover_target=True, offsets=None, unchanged=None, lag=None
    )
    known = replace(known, keep_request=_REQUEST, damaged="no JSON", deleted=_DELETION)
    found: list[str | Need | None] = []

    def look() -> None:
        found.append(decided(judge(policy, subject, known, NOW)))

    look()
    subject = replace(subject, id="connect-a" * 200)
    look()
    subject = replace(subject, id="connect-a")
    look()
    settled: list[dict[str, Any]] = [{"protected_by": None}, {"failover_target": False}]
    for change in [*settled, {"keep_request": None}, {"damaged": None}, {"deleted": None}]:
        known = replace(known, **change)
        look()
    known = replace(known, protections=replace(everything, claimed=Claims()))
    look()
    steps = [["Connect"], ["Connect", "Streams"], ["Connect", "Streams", "StreamsState"]]
    for step in [*steps, ["Connect", "Streams", "StreamsState", "MirrorMaker"]]:
        policy = delete({"unprotect": step}, offsets="None", deletedTopics="All")
        look()
    subject = replace(subject, type=GroupType.CLASSIC)
    look()
    subject = replace(subject, state=GroupState.STABLE)
    look()
    subject = replace(subject, state=GroupState.EMPTY)
    look()
    subject = replace(subject, protocol_type="consumer")
    look()
    known = replace(known, offsets=OFFSETS)
    look()
    policy = delete({"unprotect": ["Connect", "Streams", "StreamsState", "MirrorMaker"]}, deletedTopics="Some")
    look()
    known = replace(known, missing_topics=_ORDERS)
    look()
    known = replace(known, unchanged=seen())
    look()
    known = replace(known, bounds=lagging({P0: 0, P1: 1}))
    look()
    known = replace(known, bounds=lagging({P0: 1, P1: 1}))
    look()
    known = replace(known, records={P1: OFFSETS[P1].offset, P0: OFFSETS[P0].offset})
    look()
    assert found == [
        reasons.OWN_GROUP,
        reasons.ID_TOO_LONG,
        reasons.PROTECTED,
        reasons.FAILOVER_TARGET,
        reasons.KEEP_REQUESTED,
        reasons.RECORD_UNREADABLE,
        reasons.REAPPEARED,
        reasons.CLAIMED,
        reasons.CONNECT,
        reasons.STREAMS,
        reasons.STREAMS_STATE,
        reasons.MIRROR_MAKER,
        reasons.SHARE,
        reasons.DEAD,
        reasons.NOT_EMPTY,
        reasons.SIMPLE,
        Need.OFFSETS,
        reasons.HAS_OFFSETS,
        Need.MISSING_TOPICS,
        reasons.TOO_RECENT,
        Need.BOUNDS,
        reasons.CAUGHT_UP,
        Need.RECORDS,
        None,
    ]


@pytest.mark.parametrize("check", [pytest.param(check, id=check.__name__) for check in CHECKS])
def test_check_is_documented(check: Check) -> None:
    """Every check says in one sentence why it exists."""
    assert check.__doc__
    assert check.__doc__.rstrip().endswith(".")


@dataclass(frozen=True)
class _Case:
    policy: Policy
    group: Group
    evidence: Evidence


def _mostly(good: Sequence[T], others: Sequence[T]) -> st.SearchStrategy[T]:
    """Three times in four what speaks for a match: a match needs many facts at once, and must happen in a test."""
    return st.integers(0, 3).flatmap(lambda turn: st.sampled_from(others if turn == 0 else good))


def _policies(action: str, unchanged_for: Sequence[str | None], idle_for: Sequence[str | None]) -> list[Policy]:
    protections: tuple[list[str], ...] = (
        [],
        ["Connect"],
        ["Streams"],
        ["MirrorMaker"],
        ["Share"],
        ["Streams", "StreamsState"],
        ["UnreadableTopics"],
        ["Connect", "Streams", "StreamsState", "MirrorMaker", "Share", "UnreadableTopics", "UnreadableOffsetsLog"],
    )
    asks = {
        "unchangedFor": unchanged_for,
        "idleFor": idle_for,
        "deletedTopics": (None, "Some", "All"),
        "offsets": (None, "None"),
    }
    lag, outside = {"lag": {"atLeast": 2}}, {"offsets": "OutOfRange"}
    # Mostly not asked: each condition more is one that most evidence fails.
    also: list[dict[str, Any]] = [{}, {}, {}, {}, {}, {}, lag, outside, lag | outside]
    return [
        parse_policy(
            policy_object(action, {k: v for k, v in zip(asks, when, strict=True) if v} | more, {"unprotect": unprotect})
        )
        for when in product(*asks.values())
        for unprotect in protections
        for more in also
        if (action == "Alert" or when[0] or when[1]) and not (when[3] and "offsets" in more)
    ]


_POLICIES = {
    "Delete": _policies("Delete", (None, "1s", "1h", "72h"), (None, "1s", "72h")),
    "Alert": _policies("Alert", (None, "1h"), (None, "72h")),
}
_NO_OFFSETS: Mapping[Partition, CommittedOffset] = {}
_GROUPS = st.builds(
    Group,
    id=_mostly(["a"], ["b", "connect-a", "__group_hygiene"]),
    type=_mostly([GroupType.CLASSIC, GroupType.CONSUMER], list(GroupType)),
    protocol_type=_mostly(["consumer"], ["", "connect"]),
    state=_mostly([GroupState.EMPTY], list(GroupState)),
    coordinator=st.just(0),
)
_PROTECTIONS = _mostly(
    [Protections(), Protections(frozenset({"b"}), frozenset({"b"}), Claims({"b": "KafkaConnector"}))],
    [
        Protections(streams=None),
        Protections(streams=frozenset({"a"})),
        Protections(mirrored=None),
        Protections(mirrored=frozenset({"a"})),
        Protections(claimed=Claims({"a": "KafkaConnector"})),
        Protections(claimed=Claims(synced={"a": "ShadowLink"})),
        Protections(claimed=Claims(prefixes={"": "ShadowLink"})),
        Protections(claimed=_UNREAD),
    ],
)
_OFFSETS_READ: list[Mapping[Partition, CommittedOffset] | Fault | None] = [
    OFFSETS,
    {P0: CommittedOffset(3)},
    _NO_OFFSETS,
]
_TOPICS_READ: list[frozenset[str] | Fault | None] = [_BOTH]
# In the last two, what was committed in one of the partitions is out of range.
_BOUNDS_READ: list[Mapping[Partition, Bounds | Fault]] = [
    lagging({P0: 1, P1: 2}),
    lagging({P0: NO_TOPIC, P1: 2}),
    {P0: Bounds(11, 13), P1: Bounds(0, 21)},
    {P0: NO_TOPIC, P1: Bounds(50, 60)},
]
_BOUNDS_THAT_KEEP: list[Mapping[Partition, Bounds | Fault] | None] = [
    None,
    lagging({P0: FAULT, P1: 2}),
    lagging({P0: 1, P1: 0}),
    lagging({}),
    lagging({P0: 5}),
    lagging({P0: 0, P1: 0}),
    lagging({P0: 0, P1: FAULT}),
    lagging({P0: NO_TOPIC, P1: NO_TOPIC}),
]
_RECORDS_THAT_KEEP: list[Mapping[Partition, int | Fault] | None] = [
    None,
    {},
    {P0: -1, P1: -1},
    {P0: 9, P1: 19},
    {P0: FAULT, P1: -1},
]
_EVIDENCE = st.builds(
    Evidence,
    protections=_PROTECTIONS,
    protected_by=_mostly([None], ["*"]),
    failover_target=_mostly([False], [True]),
    unchanged=_mostly([seen(72), seen(100)], [None, seen(0), seen(0.5), seen(71)]),
    offsets=_mostly(_OFFSETS_READ, [None, FAULT, DENIED]),
    missing_topics=_mostly(_TOPICS_READ, [None, FAULT, frozenset(), _ORDERS]),
    activity=_mostly(
        [activity(), activity(80), activity(type=GroupType.CONSUMER), simple_activity()],
        [
            None,
            Refusal(reasons.EVIDENCE_STALE, "old"),
            activity(1),
            activity(last_commit=NOW),
            activity(empty_since=None),
            activity(state="Active"),
            simple_activity(0),
            simple_activity(last_commit=None),
        ],
    ),
    retention=st.sampled_from([None, timedelta(hours=1), timedelta(days=7)]),
    bounds=_mostly(_BOUNDS_READ, _BOUNDS_THAT_KEEP),
    records=_mostly([dict.fromkeys((P0, P1), 100)], [*_RECORDS_THAT_KEEP, {P0: 10, P1: TOPIC_FAULT}]),
)


def _cases(action: str = "Delete", **wanted: Any) -> st.SearchStrategy[_Case]:
    """Any group and any evidence under any policy whose `when` has the wanted values."""
    policies = [
        policy
        for policy in _POLICIES[action]
        if all(getattr(policy.when, key) == value for key, value in wanted.items())
    ]
    return st.builds(_Case, st.sampled_from(policies), _GROUPS, _EVIDENCE)


def _matches(case: _Case) -> bool:
    return judge(case.policy, case.group, case.evidence, NOW).matches


@settings(max_examples=examples(400))
@given(_cases())
def test_delete_needs_every_proof(case: _Case) -> None:
    """Whatever is known and whatever the policy: a match for Delete has every proof that the design asks for."""
    if not _matches(case):
        return
    group, known, policy = case.group, case.evidence, case.policy
    assert group.state is GroupState.EMPTY
    assert group.type is not GroupType.SHARE or Unprotect.SHARE in policy.match.unprotect
    if Unprotect.STREAMS_STATE not in policy.match.unprotect:
        assert known.protections.streams is not None
        assert group.id not in known.protections.streams
    assert not group.id.startswith("__group_hygiene")
    assert known.protected_by is None
    assert not known.failover_target
    assert isinstance(known.protections.claimed, Claims)
    assert known.protections.claimed.owner(group.id) is None
    assert known.offsets is not None
    assert not isinstance(known.offsets, Fault)
    # Only members consume in a share group.
    shared = group.type is GroupType.SHARE
    asks_lag = not shared and (policy.when.unchanged_for is not None or group.simple)
    assert policy.when.unchanged_for or policy.when.idle_for
    if policy.when.unchanged_for is not None:
        assert not group.simple
        assert known.unchanged is not None
        assert known.unchanged.observed >= policy.when.unchanged_for
    if policy.when.idle_for is not None:
        assert isinstance(known.activity, Activity)
        assert known.activity.idle_since is not None
        assert NOW - known.activity.idle_since >= policy.when.idle_for
        assert known.activity.simple == (group.simple and group.type is GroupType.CLASSIC)
    if policy.when.deleted_topics is not None:
        assert known.offsets
        assert isinstance(known.missing_topics, frozenset)
    if asks_lag and known.offsets and policy.when.deleted_topics is not DeletedTopics.ALL:
        assert known.bounds is not None
        ends = [(known.bounds[place], commit.offset) for place, commit in known.offsets.items()]
        assert any(not isinstance(bounds, Fault) and bounds.end > offset for bounds, offset in ends)
        assert known.records is not None
        # Each of the partitions is the only one of its topic.
        lasts = [
            (known.records.get(place, -1), commit.offset)
            for place, commit in known.offsets.items()
            if known.bounds[place] != NO_TOPIC
        ]
        trusted = Unprotect.UNREADABLE_TOPICS in policy.match.unprotect
        for last, at in lasts:
            assert (last == TOPIC_FAULT and trusted) if isinstance(last, Fault) else last >= at
    if policy.when.asks_bounds:
        assert known.offsets
        assert known.bounds is not None
        places = [(known.bounds[place], commit.offset) for place, commit in known.offsets.items()]
        ranges = [(bounds, offset) for bounds, offset in places if not isinstance(bounds, Fault)]
        waiting = sum(len({*range(*bounds)} & {*range(offset, 100)}) for bounds, offset in ranges)
        assert policy.when.lag_at_least is None or waiting >= policy.when.lag_at_least
        assert not policy.when.out_of_range or any(not bounds[0] <= offset <= bounds[1] for bounds, offset in ranges)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param({}, id="plain"),
        pytest.param({"deleted_topics": DeletedTopics.ALL}, id="all-deleted"),
        pytest.param({"deleted_topics": DeletedTopics.SOME}, id="some-deleted"),
        pytest.param({"offsets": Offsets.NONE}, id="committed-none"),
        pytest.param({"lag_at_least": 2}, id="lag"),
        pytest.param({"offsets": Offsets.OUT_OF_RANGE}, id="out-of-range"),
        pytest.param(
            {"lag_at_least": 2, "offsets": Offsets.OUT_OF_RANGE, "idle_for": timedelta(hours=72)}, id="all-of-it"
        ),
        pytest.param({"idle_for": timedelta(hours=72)}, id="idle"),
        pytest.param({"idle_for": timedelta(hours=72), "unchanged_for": None}, id="idle-alone"),
    ],
)
def test_delete_does_match_something(wanted: dict[str, Any]) -> None:
    """The cases of the test above do hold matches of each kind, so it proves something."""
    # Any will do, so none is made small; the same ones each time, as this must not hang on luck.
    search = settings(phases=[Phase.generate], max_examples=20_000)
    assert find(_cases(**wanted), _matches, settings=search, random=Random(1))


@given(st.sampled_from(["Delete", "Alert"]).flatmap(_cases))
def test_reasons_are_known(case: _Case) -> None:
    """Every reason that a check gives is one of the documented ones, with a message."""
    refusal = judge(case.policy, case.group, case.evidence, NOW).refusal
    assert refusal is None or (refusal.reason in reasons.all_reasons() and refusal.message)


def test_a_missed_scan_is_reported() -> None:
    """Who waits for a count that begins anew again and again must learn why."""
    policy = delete()
    late = replace(seen(0), missed=timedelta(minutes=25))
    refusal = judge(policy, group(), evidence(unchanged=late), NOW).refusal
    assert refusal is not None
    assert refusal.message == (
        "seen unchanged for 0s of 72h: the last two scans were 25m apart, more than two intervals of 10m, "
        "so the count began again"
    )
