"""The checks: for each situation the one reason that keeps a group, or a match; and what may never match."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, product
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from msgspec import structs

from group_hygiene.engine.checks import CHAINS, PROTECTIONS, Check, judge, needed, offsets, used
from group_hygiene.model import reasons
from group_hygiene.model.entries import KeepRequest, UsedBy
from group_hygiene.model.evidence import Activity, Claims, Deletion, Evidence, LastClient, Need, Protections
from group_hygiene.model.groups import Bounds, CommittedOffset, Fault, Group, GroupState, GroupType, Partition, Program
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.policy import Action, CommittedOffsets, DeletedTopics, Policy, Unprotect, parse_policy
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
    case,
    decided,
    delete,
    evidence,
    group,
    idle,
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
    return {"unprotect": list(kinds), **({"types": ["Classic", "Share"]} if "Share" in kinds else {})}


def _used_by(program: Program) -> UsedBy:
    return UsedBy(group="console-consumer-1", program=program, client_id="a", at=NOW)


def _last(client_id: str) -> LastClient:
    return LastClient(client_id, None, None, None, 0, NOW)


def _own(own: int, **others: int) -> dict[str, Any]:
    """How many records wait in a repartition topic of the application `console-consumer-1`, and in other topics."""
    lag = {Partition(topic, 0): unread for topic, unread in others.items()}
    lag[Partition("console-consumer-1-sums-repartition", 0)] = own
    bounds = {place: Bounds(0, 10 + unread) for place, unread in lag.items()}
    return {"offsets": dict.fromkeys(lag, CommittedOffset(10)), "bounds": bounds}


_STATE = delete(_unprotect("Streams", "StreamsState"))
_STREAMS_TOO, _BEFORE_4_3 = delete(_unprotect("Streams")), Protections(without_streams=("4.2.0",))
_SHARING, _SHARE = delete(_unprotect("Share")), group(type=GroupType.SHARE)
_STREAMS_GROUP, _STABLE, _SIMPLE = (
    group(type=GroupType.STREAMS),
    group(state=GroupState.STABLE),
    group(protocol_type=""),
)


@pytest.mark.parametrize(
    ("policy", "group", "evidence", "expected"),
    [
        case("abandoned-consumer", _MATCH),
        case("abandoned-consumer-of-kip-848", _MATCH, of=group(type=GroupType.CONSUMER)),
        case("alert-that-asks-for-nothing", _MATCH, alert(), known=Evidence(Protections())),
        # own_group
        case("own-group", reasons.OWN_GROUP, of=group("__group_hygiene-x")),
        case("own-group-alert", reasons.OWN_GROUP, alert(), group("__group_hygiene")),
        case("almost-own-group", _MATCH, of=group("_group_hygiene")),
        # id_too_long
        case("id-too-long", reasons.ID_TOO_LONG, of=group("x" * 1_001)),
        case("unread", reasons.ID_TOO_LONG, alert(idleFor="1h"), group("\x01" * 32_767), known=Evidence(Protections())),
        case("id-just-not-too-long", _MATCH, of=group("x" * 1_000)),
        # protected
        case("protected", reasons.PROTECTED, protected_by="console-*"),
        case(
            "nothing-unprotects-what-the-connection-protects",
            reasons.PROTECTED,
            delete(_unprotect("Connect", "Streams", "MirrorMaker", "Share")),
            protected_by="*",
        ),
        # failover_target
        case("failover-target", reasons.FAILOVER_TARGET, failover_target=True),
        case("alert-of-a-failover-target", _MATCH, alert(), failover_target=True),
        case(
            "nothing-unprotects-a-failover-target",
            reasons.FAILOVER_TARGET,
            delete(_unprotect("Connect", "Streams", "MirrorMaker", "Share")),
            failover_target=True,
        ),
        # keep_requested
        case("keep-requested", reasons.KEEP_REQUESTED, keep_request=_REQUEST),
        case("request-is-over", _MATCH, keep_request=structs.replace(_REQUEST, until=NOW)),
        case("alert-tells-what-is-kept", _MATCH, alert(), keep_request=_REQUEST),
        case("protect-before-a-request-that-ends", reasons.PROTECTED, keep_request=_REQUEST, protected_by="*"),
        # record_unreadable
        case("record-unreadable", reasons.RECORD_UNREADABLE, damaged="no JSON"),
        case("alert-needs-no-ledger", _MATCH, alert(), damaged="no JSON"),
        # reappeared
        case("reappeared", reasons.REAPPEARED, deleted=_DELETION),
        case("reappeared-long-ago", _MATCH, deleted=_DELETION._replace(until=NOW)),
        case("alert-tells-what-reappeared", _MATCH, alert(), deleted=_DELETION),
        case("reappeared-and-in-use", reasons.REAPPEARED, of=_STABLE, deleted=_DELETION),
        # claimed
        case("keda-scaled-to-zero", reasons.CLAIMED, protections=_CLAIM),
        case("keda-names-another", _MATCH, of=group("other"), protections=_CLAIM),
        case("shadow-link-syncs-it", reasons.CLAIMED, protections=_LINK),
        case("shadow-link-syncs-others", _MATCH, of=group("other"), protections=_LINK),
        case("keda-objects-that-may-not-be-listed", reasons.CLAIMED, protections=Protections(claimed=_UNREAD)),
        # connect
        case("stopped-sink-connector", reasons.CONNECT, of=group("connect-sink")),
        case("connect-worker", reasons.CONNECT, of=group(protocol_type="connect")),
        case("connect-needs-the-dash", _MATCH, of=group("connected")),
        case("sink-connector-unprotected", _MATCH, delete(_unprotect("Connect")), group("connect-sink")),
        case(
            "sink-connector-others-unprotected",
            reasons.CONNECT,
            delete(_unprotect("Streams", "MirrorMaker", "Share")),
            group("connect-sink"),
        ),
        case("connect-by-a-client", reasons.CONNECT, used_by=_used_by(Program.CONNECT)),
        case(
            "connect-by-a-client-unprotected", _MATCH, delete(_unprotect("Connect")), used_by=_used_by(Program.CONNECT)
        ),
        case(
            "connect-by-the-tables",
            reasons.CONNECT,
            idle(),
            activity=activity(last_client=_last("connector-consumer-orders-0")),
        ),
        # streams
        case("streams-by-a-client", reasons.STREAMS, used_by=_used_by(Program.STREAMS)),
        case(
            "streams-by-a-client-unprotected", _MATCH, delete(_unprotect("Streams")), used_by=_used_by(Program.STREAMS)
        ),
        case(
            "streams-by-the-tables",
            reasons.STREAMS,
            idle(),
            activity=activity(last_client=_last("a-StreamThread-1-consumer")),
        ),
        case("another-client-by-the-tables", _MATCH, idle(), activity=activity(last_client=_last("billing-7"))),
        case("streams-with-changelog", reasons.STREAMS, protections=_STREAMS),
        case("streams-by-its-type", reasons.STREAMS, of=_STREAMS_GROUP),
        case("streams-unprotected", _MATCH, alert(), protections=_STREAMS),
        case("streams-by-its-type-unprotected", _MATCH, delete(_unprotect("Streams")), _STREAMS_GROUP),
        # streams_state
        case(
            "streams-unprotected-and-its-state-exists",
            reasons.STREAMS_STATE,
            delete(_unprotect("Streams")),
            protections=_STREAMS,
        ),
        case(
            "streams-by-its-type-and-its-state-exists",
            reasons.STREAMS_STATE,
            delete(_unprotect("Streams")),
            _STREAMS_GROUP,
            protections=_STREAMS,
        ),
        case(
            "topics-not-read-so-any-may-have-a-state",
            reasons.STREAMS_STATE,
            delete(_unprotect("Streams", "MirrorMaker")),
            _STREAMS_GROUP,
            protections=_NO_TOPICS,
        ),
        case(
            "streams-unprotected-with-its-state",
            _MATCH,
            delete(_unprotect("Streams", "StreamsState")),
            protections=_STREAMS,
        ),
        case(
            "topics-not-read-so-any-may-be-streams",
            reasons.STREAMS,
            delete(_unprotect("MirrorMaker")),
            protections=_NO_TOPICS,
        ),
        # streams_lost
        case("streams-lost", reasons.NOT_RESTORABLE, _STREAMS_TOO, _STREAMS_GROUP, protections=_BEFORE_4_3),
        case(
            "brokers-unknown",
            reasons.NOT_RESTORABLE,
            _STREAMS_TOO,
            _STREAMS_GROUP,
            protections=Protections(without_streams=FAULT),
        ),
        case("no-streams-group", _MATCH, protections=_BEFORE_4_3),
        # lives
        case(
            "offsets-of-an-empty-group",
            reasons.NOT_STABLE,
            parse_policy(policy_object("DeleteOffsets", {"idleFor": "72h"})),
            group(),
        ),
        # mirror_maker
        case("mirrored", reasons.MIRROR_MAKER, protections=_MIRRORED),
        case("mirrored-another", _MATCH, of=group("other"), protections=_MIRRORED),
        case(
            "checkpoints-not-read-so-any-may-be-mirrored", reasons.MIRROR_MAKER, protections=Protections(mirrored=None)
        ),
        case("mirror-unprotected", _MATCH, delete(_unprotect("MirrorMaker")), protections=_MIRRORED),
        case(
            "topics-not-read-but-all-unprotected",
            _MATCH,
            delete(_unprotect("MirrorMaker", "Streams", "StreamsState")),
            protections=_NO_TOPICS,
        ),
        # share
        case("share", reasons.SHARE, of=_SHARE),
        case("share-unprotected", _MATCH, _SHARING, _SHARE),
        case("share-whose-offsets-are-not-known", reasons.OFFSETS_UNKNOWN, _SHARING, _SHARE, offsets=FAULT),
        case("share-that-read-nothing", _MATCH, _SHARING, _SHARE, offsets={}),
        case("share-that-read-nothing-lately", reasons.TOO_RECENT, _SHARING, _SHARE, offsets={}, unchanged=seen(71)),
        case(
            "share-that-read-nothing-by-the-log",
            reasons.NO_START_OFFSET,
            idle(_unprotect("Share")),
            _SHARE,
            offsets={},
            activity=activity(type=GroupType.SHARE, protocol_type="share"),
        ),
        case("alert-of-a-share-that-read-nothing", _MATCH, alert(), _SHARE, offsets={}),
        case(
            "share-with-a-start-offset-in-some-partitions",
            reasons.NO_START_OFFSET,
            _SHARING,
            _SHARE,
            offsets=Fault("NO_START_OFFSET", "orders-1 shows none"),
        ),
        case(
            "share-does-not-expire",
            reasons.TOO_RECENT,
            _SHARING,
            _SHARE,
            unchanged=seen(71.99),
            retention=timedelta(hours=1),
        ),
        case("share-caught-up-for-its-consumers-are-members", _MATCH, _SHARING, _SHARE, lag={P0: 0, P1: 0}),
        # dead
        case("dead", reasons.DEAD, of=group(state=GroupState.DEAD)),
        case("dead-alert", _MATCH, alert(), group(state=GroupState.DEAD)),
        # not_empty
        *[case(f"delete-of-{state}", reasons.NOT_EMPTY, of=group(state=state)) for state in _STATES_IN_USE],
        case("alert-on-unchanged-but-stable", reasons.NOT_EMPTY, alert(unchangedFor="72h"), _STABLE),
        case("alert-on-unchanged-but-dead", reasons.NOT_EMPTY, alert(unchangedFor="72h"), group(state=GroupState.DEAD)),
        case("alert-on-any-state", _MATCH, alert(), _STABLE),
        # simple
        case("simple-consumer-empty-but-committing", reasons.SIMPLE, of=_SIMPLE),
        case("simple-consumer-alert", reasons.SIMPLE, alert(unchangedFor="72h"), _SIMPLE),
        case(
            "simple-consumer-of-deleted-topics-alert", _MATCH, alert(deletedTopics="All"), _SIMPLE, missing_topics=_BOTH
        ),
        # offsets_known
        case("offsets-not-read", Need.OFFSETS, offsets=None),
        case("offsets-fault", reasons.OFFSETS_UNKNOWN, offsets=FAULT),
        case("offsets-denied", reasons.DENIED, offsets=DENIED),
        case("committed-none-offsets-not-read", Need.OFFSETS, alert(committedOffsets="Absent"), offsets=None),
        case("committed-none-offsets-fault", reasons.OFFSETS_UNKNOWN, alert(committedOffsets="Absent"), offsets=FAULT),
        case("topics-offsets-not-read", Need.OFFSETS, alert(deletedTopics="Some"), offsets=None),
        # committed
        case("committed-none-has-some", reasons.HAS_OFFSETS, alert(committedOffsets="Absent")),
        case("committed-none", _MATCH, alert(committedOffsets="Absent"), offsets={}),
        case("delete-none-has-some", reasons.HAS_OFFSETS, delete(committedOffsets="Absent")),
        case("delete-committed-none", _MATCH, delete(committedOffsets="Absent"), offsets={}, lag=None),
        case(
            "delete-committed-none-too-recent",
            reasons.TOO_RECENT,
            delete(committedOffsets="Absent"),
            offsets={},
            unchanged=seen(1),
        ),
        # topics_deleted
        case("some-deleted-no-offsets", reasons.NO_OFFSETS, alert(deletedTopics="Some"), offsets={}),
        case(
            "all-deleted-no-offsets",
            reasons.NO_OFFSETS,
            alert(deletedTopics="All"),
            offsets={},
            missing_topics=frozenset(),
        ),
        case("topics-not-read", Need.MISSING_TOPICS, alert(deletedTopics="Some")),
        case("topics-fault", reasons.TOPICS_UNKNOWN, alert(deletedTopics="All"), missing_topics=FAULT),
        case("some-deleted", _MATCH, alert(deletedTopics="Some"), missing_topics=_ORDERS),
        case("some-deleted-all-exist", reasons.TOPICS_EXIST, alert(deletedTopics="Some"), missing_topics=frozenset()),
        case(
            "some-deleted-of-another-group",
            reasons.TOPICS_EXIST,
            alert(deletedTopics="Some"),
            missing_topics=frozenset({"others"}),
        ),
        case("all-deleted-one-exists", reasons.TOPICS_EXIST, alert(deletedTopics="All"), missing_topics=_ORDERS),
        case("all-deleted", _MATCH, alert(deletedTopics="All"), missing_topics=_BOTH),
        # unchanged
        case("never-seen", reasons.TOO_RECENT, unchanged=None),
        case("seen-not-long-enough", reasons.TOO_RECENT, unchanged=seen(71.99)),
        case("seen-just-long-enough", _MATCH, unchanged=seen(72)),
        case("unchanged-without-offsets", reasons.NO_OFFSETS, offsets={}),
        case("alert-too-recent", reasons.TOO_RECENT, alert(unchangedFor="72h"), unchanged=seen(1)),
        # caught_up
        case("records-not-read", Need.RECORDS, records=None),
        case("no-record-read", Need.RECORDS, records={}),
        case("no-records-wait", reasons.CAUGHT_UP, records={P0: -1, P1: -1}),
        case("all-before", reasons.CAUGHT_UP, lag={P0: 9, P1: 9}, records={P0: 9, P1: 19}),
        case("a-record-waits-in-one-topic-of-two", reasons.CAUGHT_UP, lag={P0: 9, P1: 9}, records={P0: 9, P1: 20}),
        case("records-in-both", _MATCH, lag={P0: 9, P1: 9}, records={P0: 10, P1: 20}),
        case("beside-a-topic-that-is-deleted", _MATCH, bounds=lagging({P0: 9, P1: NO_TOPIC}), records={P0: 10}),
        case("one-not-read", Need.RECORDS, lag={P0: 9, P1: 9}, records={P0: 10}),
        case(
            "one-partition-of-a-topic-is-enough",
            _MATCH,
            offsets={P0: CommittedOffset(10), Partition("orders", 1): CommittedOffset(20)},
            bounds={P0: Bounds(0, 19), Partition("orders", 1): Bounds(0, 29)},
            records={P0: 10},
        ),
        case("records-unknown", reasons.LAG_UNKNOWN, lag={P0: 9, P1: 9}, records={P0: 10, P1: FAULT}),
        case("no-records-beside-what-is-unknown", reasons.CAUGHT_UP, lag={P0: FAULT, P1: 9}, records={P1: 19}),
        case("a-record-beside-what-is-unknown", reasons.LAG_UNKNOWN, lag={P0: 9, P1: 9}, records={P0: FAULT, P1: 20}),
        case(
            "records-that-we-may-not-read", reasons.LAG_UNKNOWN, lag={P0: 9, P1: 9}, records={P0: 10, P1: TOPIC_FAULT}
        ),
        case(
            "records-that-we-need-not-read",
            _MATCH,
            delete(_unprotect("UnreadableTopics")),
            lag={P0: 9, P1: 9},
            records={P0: 10, P1: TOPIC_FAULT},
        ),
        case(
            "records-unknown-for-another-reason",
            reasons.LAG_UNKNOWN,
            delete(_unprotect("UnreadableTopics")),
            lag={P0: 9, P1: 9},
            records={P0: 10, P1: FAULT},
        ),
        case(
            "the-record-that-waited-was-removed",
            reasons.CAUGHT_UP,
            bounds={P0: Bounds(12, 15), P1: Bounds(0, 20)},
            records={P0: 11},
        ),
        case("lag-counts-as-kafka-does", _MATCH, alert(lag={"atLeast": 5}), lag={P0: 5, P1: 0}, records={P0: -1}),
        case("lag-not-read", Need.BOUNDS, lag=None),
        case("lag-fault", reasons.LAG_UNKNOWN, lag={P0: FAULT, P1: FAULT}),
        case("silent-topic-lag-0", reasons.CAUGHT_UP, lag={P0: 0, P1: 0}),
        case("lag-of-one-partition-only", Need.BOUNDS, lag={P0: 5}),
        case("lag-in-another-topic", reasons.CAUGHT_UP, lag={P0: 0, P1: 1}),
        # the topics of an application
        case("its-own-topics-are-read-to-the-end", _MATCH, _STATE, protections=_STREAMS, **_own(own=0, orders=1)),
        case("its-source-too", reasons.CAUGHT_UP, _STATE, protections=_STREAMS, **_own(own=1, orders=0)),
        case("it-has-only-its-own-topics", reasons.CAUGHT_UP, _STATE, protections=_STREAMS, **_own(own=0)),
        case("no-application-has-this-topic", reasons.CAUGHT_UP, _STATE, **_own(own=0, orders=1)),
        case("lag-partly-unknown", reasons.LAG_UNKNOWN, lag={P0: 0, P1: FAULT}),
        case("lag-of-one-topic", reasons.LAG_UNKNOWN, lag={P0: 5, P1: FAULT}),
        case("lag-0-and-a-deleted-topic", reasons.CAUGHT_UP, lag={P0: 0, P1: NO_TOPIC}),
        case("fault-beside-deleted", reasons.LAG_UNKNOWN, lag={P0: FAULT, P1: NO_TOPIC}),
        case("alert-caught-up", reasons.CAUGHT_UP, alert(unchangedFor="72h"), lag={P0: 0, P1: 0}),
        case("all-topics-deleted-needs-no-lag", _MATCH, delete(deletedTopics="All"), missing_topics=_BOTH, lag=None),
        case(
            "all-topics-deleted-too-recent",
            reasons.TOO_RECENT,
            delete(deletedTopics="All"),
            missing_topics=_BOTH,
            lag=None,
            unchanged=seen(1),
        ),
        case(
            "some-topics-deleted-needs-lag",
            reasons.CAUGHT_UP,
            delete(deletedTopics="Some"),
            missing_topics=_ORDERS,
            lag={P0: NO_TOPIC, P1: 0},
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
    policy = delete(committedOffsets="Absent")
    everything = Protections(
        streams=frozenset({"connect-a"}),
        mirrored=frozenset({"connect-a"}),
        claimed=Claims({"connect-a": "KafkaConnector"}),
    )
    subject = group("__group_hygiene", type=GroupType.SHARE, protocol_type="", state=GroupState.DEAD)
    known = evidence(
        protected_by="*", protections=everything, failover_target=True, offsets=None, unchanged=None, lag=None
    )
    known = structs.replace(known, keep_request=_REQUEST, damaged="no JSON", deleted=_DELETION)
    found: list[str | Need | None] = []

    def look() -> None:
        found.append(decided(judge(policy, subject, known, NOW)))

    look()
    subject = structs.replace(subject, id="connect-a" * 200)
    look()
    subject = structs.replace(subject, id="connect-a")
    look()
    settled: list[dict[str, Any]] = [{"protected_by": None}, {"failover_target": False}]
    for change in [*settled, {"keep_request": None}, {"damaged": None}, {"deleted": None}]:
        known = structs.replace(known, **change)
        look()
    known = structs.replace(known, protections=replace(everything, claimed=Claims()))
    look()
    steps = [["Connect"], ["Connect", "Streams"], ["Connect", "Streams", "StreamsState"]]
    for step in [*steps, ["Connect", "Streams", "StreamsState", "MirrorMaker"]]:
        policy = delete({"unprotect": step}, committedOffsets="Absent")
        look()
    subject = structs.replace(subject, type=GroupType.CLASSIC)
    look()
    subject = structs.replace(subject, state=GroupState.STABLE)
    look()
    subject = structs.replace(subject, state=GroupState.EMPTY)
    look()
    subject = structs.replace(subject, protocol_type="consumer")
    look()
    known = structs.replace(known, offsets=OFFSETS)
    look()
    policy = delete({"unprotect": ["Connect", "Streams", "StreamsState", "MirrorMaker"]}, deletedTopics="Some")
    look()
    known = structs.replace(known, missing_topics=_ORDERS)
    look()
    known = structs.replace(known, unchanged=seen())
    look()
    known = structs.replace(known, bounds=lagging({P0: 0, P1: 1}))
    look()
    known = structs.replace(known, bounds=lagging({P0: 1, P1: 1}))
    look()
    known = structs.replace(known, records={P1: OFFSETS[P1].offset, P0: OFFSETS[P0].offset})
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


@pytest.mark.parametrize(
    "check",
    [pytest.param(check, id=check.__name__) for check in dict.fromkeys(chain(*CHAINS.values()))],
)
def test_check_is_documented(check: Check) -> None:
    """Every check says in one sentence why it exists."""
    assert check.__doc__
    assert check.__doc__.rstrip().endswith(".")


_PROTECTED = [
    case("protected", reasons.PROTECTED, protected_by="*"),
    case("failover-target", reasons.FAILOVER_TARGET, failover_target=True),
    case("keep", reasons.KEEP_REQUESTED, keep_request=_REQUEST),
    case("unreadable-record", reasons.RECORD_UNREADABLE, damaged="?"),
    case("reappeared", reasons.REAPPEARED, deleted=Deletion(NOW, "kafka/p", _SOON)),
    case("claimed", reasons.CLAIMED, protections=Protections(claimed=Claims({"console-consumer-1": "ScaledObject"}))),
    case("claims-unread", reasons.CLAIMED, protections=Protections(claimed=_UNREAD)),
    case("connect", reasons.CONNECT, of=group("connect-sink")),
    case("streams", reasons.STREAMS, protections=Protections(streams=frozenset({"console-consumer-1"}))),
    case("topics-unread", reasons.STREAMS, protections=Protections(streams=None)),
    case("mirrored", reasons.MIRROR_MAKER, protections=Protections(mirrored=frozenset({"console-consumer-1"}))),
    case("share", reasons.SHARE, delete({"types": ["Classic", "Share"]}), _SHARE, offsets=OFFSETS),
]


@pytest.mark.parametrize(("policy", "group", "evidence", "expected"), _PROTECTED)
def test_a_protected_group_is_watched(policy: Policy, group: Group, evidence: Evidence, expected: str) -> None:
    """What prevents a deletion prevents no alert: the groups that are worth most are among these."""
    assert decided(judge(policy, group, evidence, NOW)) == expected
    watching = alert({"types": ["Classic", "Share"]}, lag={"atLeast": 1})
    assert decided(judge(watching, group, evidence, NOW)) is None


def test_an_alert_asks_every_other_check() -> None:
    """So it can't report the operator's own groups, for example."""
    alone = {needed.streams_state, used.dead, used.not_empty, offsets.offsets_known, offsets.nothing_started}
    assert {*CHAINS[Action.DELETE]} - {*CHAINS[Action.ALERT]} == {*PROTECTIONS} | alone


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
        ["Connect", "Streams", "StreamsState", "MirrorMaker", "Share", "UnreadableTopics"],
        ["Connect", "Streams", "StreamsState", "MirrorMaker", "Share", "UnreadableTopics", "UnreadableOffsetsLog"],
    )
    asks = {
        "unchangedFor": unchanged_for,
        "idleFor": idle_for,
        "deletedTopics": (None, "Some", "All"),
        "committedOffsets": (None, "Absent"),
    }
    lag, outside = {"lag": {"atLeast": 2}}, {"committedOffsets": "OutOfRange"}
    # Mostly not asked: each condition more is one that most evidence fails.
    also: list[dict[str, Any]] = [{}, {}, {}, {}, {}, {}, lag, outside, lag | outside]
    whens = [
        {k: v for k, v in zip(asks, when, strict=True) if v} | more
        for when in product(*asks.values())
        for more in also
        if (action == "Alert" or when[0] or when[1])
        and not (when[3] and (more or when[2]))
        and not (when[2] == "All" and more)
    ]
    # The rules of the CRD cost a millisecond for each spec: each part is parsed once, and not each of all policies.
    allowed = protections if action == "Delete" else ([], ["UnreadableTopics"])
    matches = [parse_policy(policy_object(action, {"unchangedFor": "1h"}, _unprotect(*each))).match for each in allowed]
    return [
        structs.replace(policy, match=match)
        for policy in [parse_policy(policy_object(action, when)) for when in whens]
        for match in matches
        if (policy.when.unchanged_for or Unprotect.UNREADABLE_OFFSETS_LOG not in match.unprotect)
        and (action == "Delete" or not match.unprotect or policy.when.unused_for)
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
        Protections(without_streams=("4.2.0",)),
        Protections(without_streams=FAULT),
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
    used_by=_mostly([None], [_used_by(program) for program in Program]),
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
@given(st.one_of(_cases(), _cases("Alert")))
def test_checks_that_passed_need_not_be_asked_again(case: _Case) -> None:
    """A group is judged on from the check that lacked evidence, with the same verdict as from the first one."""
    read = {"offsets": ["offsets", "unchanged"], "missing_topics": ["missing_topics"], "bounds": ["bounds"]}
    read |= {"records": ["records"], "activity": [], "subscribed": []}
    unread = dict.fromkeys(name for names in read.values() for name in names)
    known, passed, done = structs.replace(case.evidence, **unread), 0, set[Need]()
    while True:
        verdict = judge(case.policy, case.group, known, NOW, passed)
        assert verdict == judge(case.policy, case.group, known, NOW)
        if verdict.need is None or verdict.need in done:
            return
        done.add(verdict.need)
        passed = verdict.passed
        found = {name: getattr(case.evidence, name) for name in read[verdict.need.name.lower()]}
        known = structs.replace(known, **found)


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
    assert group.type is not GroupType.STREAMS or known.protections.without_streams == ()
    if known.used_by is not None:
        assert Unprotect(known.used_by.program) in policy.match.unprotect
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
        pytest.param({"committed_offsets": CommittedOffsets.ABSENT}, id="committed-none"),
        pytest.param({"lag_at_least": 2}, id="lag"),
        pytest.param({"committed_offsets": CommittedOffsets.OUT_OF_RANGE}, id="out-of-range"),
        pytest.param(
            {"lag_at_least": 2, "committed_offsets": CommittedOffsets.OUT_OF_RANGE, "idle_for": timedelta(hours=72)},
            id="all-of-it",
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
    late = structs.replace(seen(0), missed=timedelta(minutes=25))
    refusal = judge(policy, group(), evidence(unchanged=late), NOW).refusal
    assert refusal is not None
    assert refusal.message == (
        "seen unchanged for 0s of 72h: the last two scans were 25m apart, more than two intervals of 10m, "
        "so the count began again"
    )
