"""When brokers drop offsets by themselves, by the type and state of a group; and whether a policy tells in time."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from group_hygiene.engine.checks import judge
from group_hygiene.engine.scan import _old_enough
from group_hygiene.kafka.cluster import whole_number
from group_hygiene.kafka.groups import subscribed_topics
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity, Commits, Evidence, Need, Verdict, offsets_retention
from group_hygiene.model.groups import Coverage, Description, Fault, Group, GroupState, GroupType, Member
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.metrics import Metrics
from group_hygiene.observe.of_objects import build_status, warns_late
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import Action, Policy, parse_policy
from tests.unit.make import (
    DENIED,
    FAULT,
    NOW,
    activity,
    alert,
    case,
    decided,
    delete,
    evidence,
    group,
    idle,
    plan,
    policy_object,
    seen,
    simple_activity,
    snapshot,
)

_WEEK, _MATCH = timedelta(days=7), None
_CONSUMER: dict[str, Any]
_STREAMS: dict[str, Any]
_CONSUMER, _STREAMS = {"type": GroupType.CONSUMER}, {"type": GroupType.STREAMS, "protocol_type": "streams"}


def _ago(hours: float) -> datetime:
    return NOW - timedelta(hours=hours)


def _in(hours: float) -> datetime:
    return NOW + timedelta(hours=hours)


def _times(**hours_ago: float | None) -> dict[str, Any]:
    return {name: None if hours is None else _ago(hours) for name, hours in hours_ago.items()}


@pytest.mark.parametrize(
    ("known", "first", "last"),
    [
        pytest.param(activity(100), _in(68), _in(68), id="classic-by-when-it-became-empty"),
        pytest.param(
            activity(100, **_times(oldest_commit=300, last_commit=1)),
            _in(68),
            _in(68),
            id="classic-whatever-it-commits",
        ),
        pytest.param(activity(100, empty_since=None), None, None, id="classic-empty-since-when"),
        pytest.param(activity(100, protocol_type="connect"), _in(68), _in(68), id="connect-is-classic"),
        pytest.param(
            simple_activity(oldest_commit=_ago(100), last_commit=_ago(1)), _in(68), _in(167), id="simple-by-each-commit"
        ),
        pytest.param(
            activity(1, **_CONSUMER, **_times(oldest_commit=100, last_commit=50)),
            _in(68),
            _in(118),
            id="kip-848-by-each-commit",
        ),
        pytest.param(
            activity(1, **_CONSUMER, **_times(oldest_commit=300, last_commit=200)),
            _ago(1),
            _ago(1),
            id="kip-848-safe-until-the-last-member-left",
        ),
        pytest.param(
            activity(1, **_CONSUMER, **_times(oldest_commit=300, last_commit=50)),
            _ago(1),
            _in(118),
            id="kip-848-some-old-some-new",
        ),
        pytest.param(
            activity(1, **_STREAMS, **_times(oldest_commit=100, last_commit=50)),
            _in(68),
            _in(118),
            id="streams-as-kip-848",
        ),
        pytest.param(
            activity(1, **_CONSUMER, **_times(empty_since=None, oldest_commit=100, last_commit=50)),
            _in(68),
            _in(118),
            id="kip-848-empty-since-when",
        ),
        pytest.param(
            activity(1, type=GroupType.SHARE, **_times(oldest_commit=None, last_commit=None)), None, None, id="share"
        ),
        pytest.param(activity(100, oldest_commit=None), None, _in(68), id="nothing-is-committed"),
        pytest.param(
            activity(100, oldest_commit=None, complete_since=_ago(200)), _in(68), _in(68), id="records-were-lost"
        ),
    ],
)
def test_expiry_of_an_empty_group(known: Activity, first: datetime | None, last: datetime | None) -> None:
    """Each type of group has its own clock; what the log does not show has none."""
    assert (known.first_expiry(_WEEK), known.last_expiry(_WEEK)) == (first, last)


_TOPICS = {"orders": _ago(300), "invoices": _ago(160), "old": _ago(200)}


def _committed(oldest: Mapping[str, datetime]) -> dict[str, Commits]:
    """For a partition then, and for others of the topic all the time: the first expires."""
    return {topic: Commits(at, NOW) for topic, at in oldest.items()}


def _in_use(hours: float = 300, by_topic: Mapping[str, datetime] | None = None, **changes: Any) -> Activity:
    """A group with members whose oldest commit is so old."""
    fields = {"state": "Active", "empty_since": None, "oldest_commit": _ago(hours), "last_commit": _ago(0), **changes}
    return activity(hours, by_topic=_committed(_TOPICS if by_topic is None else by_topic), **fields)


@pytest.mark.parametrize(
    ("subscribed", "expected"),
    [
        pytest.param({"orders", "old", "invoices"}, None, id="all-are-read"),
        pytest.param({"orders", "old"}, _in(8), id="one-is-not"),
        pytest.param({"orders"}, _ago(32), id="the-oldest-of-those-that-are-not"),
        pytest.param({"orders", "old", "new"}, _in(8), id="and-one-without-a-commit"),
        pytest.param(set(), _ago(132), id="none-is"),
    ],
)
def test_expiry_of_a_group_in_use(subscribed: set[str], expected: datetime | None) -> None:
    """What members read is safe, however old; of everything else the oldest commit is the first to go."""
    assert _in_use().expiry_in_use(subscribed, _WEEK) == expected


def _soon(**match: Any) -> Policy:
    return alert(match, expiresWithin="48h")


def _known(found: Activity, subscribed: frozenset[str] | Fault | None = None, **changes: Any) -> Evidence:
    return evidence(activity=found, subscribed=subscribed, retention=_WEEK, unchanged=None, **changes)


_STABLE = group(state=GroupState.STABLE)
_ORDERS, _ALL = frozenset({"orders", "old"}), frozenset({*_TOPICS, "new"})


def _case(
    name: str,
    expected: str | Need | None,
    log: Activity,
    subscribed: frozenset[str] | Fault | None = None,
    of: Group = _STABLE,
    policy: Policy | None = None,
) -> Any:
    """A row of what a policy with expiresWithin decides by what the log tells and what the members read."""
    return case(name, expected, policy or _soon(), of, _known(log, subscribed))


@pytest.mark.parametrize(
    ("policy", "group", "evidence", "expected"),
    [
        _case("an-unread-topic", _MATCH, _in_use(), _ORDERS),
        _case(
            "of-a-kip-848-group-too",
            _MATCH,
            _in_use(**_CONSUMER),
            _ORDERS,
            of=structs.replace(_STABLE, type=GroupType.CONSUMER),
        ),
        _case("all-are-read", reasons.EXPIRES_LATER, _in_use(), _ALL),
        _case(
            "not-yet",
            reasons.EXPIRES_LATER,
            _in_use(by_topic={"orders": _ago(300), "old": _ago(119)}),
            frozenset({"orders"}),
        ),
        _case("too-recent-to-ask-any-further", reasons.EXPIRES_LATER, _in_use(119)),
        _case("asks-what-is-read", Need.SUBSCRIBED, _in_use(121)),
        _case("what-is-read-unknown", reasons.SUBSCRIPTION_UNKNOWN, _in_use(), FAULT),
        _case("what-is-read-denied", reasons.DENIED, _in_use(), DENIED),
        _case("no-topics", reasons.EVIDENCE_MISSING, replace(_in_use(), by_topic=None), _ORDERS),
        _case("nothing-committed", reasons.NO_OFFSETS, _in_use(oldest_commit=None)),
        _case(
            "brokers-know-no-topics-of-a-connect-group",
            reasons.EXPIRES_LATER,
            _in_use(protocol_type="connect"),
            frozenset(),
            of=group(protocol_type="connect", state=GroupState.STABLE),
            policy=_soon(),
        ),
        _case("joined-since", reasons.EVIDENCE_MISSING, activity(160)),
        _case("unclear", reasons.EVIDENCE_MISSING, replace(_in_use(), state="Unknown"), _ORDERS),
        _case("left-since", reasons.EVIDENCE_MISSING, _in_use(), _ORDERS, of=group()),
        _case("being-dropped", reasons.NOT_EMPTY, _in_use(), _ORDERS, of=group(state=GroupState.DEAD)),
        _case("state-unknown", reasons.NOT_EMPTY, _in_use(), _ORDERS, of=group(state=GroupState.UNKNOWN)),
        _case(
            "streams-in-use-is-not-judged",
            reasons.NOT_EMPTY,
            _in_use(**_STREAMS),
            _ORDERS,
            of=group(type=GroupType.STREAMS, protocol_type="streams", state=GroupState.STABLE),
            policy=_soon(types=["Streams"]),
        ),
        _case(
            "in-use-and-committing",
            reasons.TOO_RECENT,
            _in_use(),
            _ORDERS,
            policy=alert(expiresWithin="48h", idleFor="1h"),
        ),
        _case("never-to-be-deleted", reasons.NOT_EMPTY, _in_use(), _ORDERS, policy=idle(expiresWithin="48h")),
        _case(
            "nor-by-a-policy-that-was-let-through",
            reasons.NOT_EMPTY,
            _in_use(),
            _ORDERS,
            policy=structs.replace(_soon(), action=Action.DELETE),
        ),
        _case("empty-without-offsets", reasons.NO_OFFSETS, activity(160, oldest_commit=None), of=group()),
        _case(
            "share-groups-have-none",
            reasons.NO_OFFSETS,
            activity(160, type=GroupType.SHARE, oldest_commit=None),
            of=group(type=GroupType.SHARE, protocol_type="share"),
            policy=_soon(types=["Classic", "Share"]),
        ),
        _case(
            "kip-848-at-the-next-check-of-the-broker",
            _MATCH,
            activity(100, **_CONSUMER, **_times(oldest_commit=200)),
            of=group(type=GroupType.CONSUMER),
        ),
    ],
)
def test_judge(policy: Policy, group: Group, evidence: Evidence, expected: str | Need | None) -> None:
    """A group in use matches only by offsets that no member reads, and only where all of that is known."""
    assert decided(judge(policy, group, evidence, NOW)) == expected


def _member(*topics: str, **changes: Any) -> Member:
    return replace(Member("m", None, "c", "/h", None, topics, ()), **changes)


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        pytest.param(Description(_STABLE, "range", None, (_member("a"), _member("b", "a"))), {"a", "b"}, id="of-all"),
        pytest.param(Description(_STABLE, "range", None, (_member("a"), _member())), None, id="one-does-not-tell"),
        pytest.param(
            Description(group(type=GroupType.CONSUMER, state=GroupState.STABLE), "", 3, (_member("a", pattern="b.*"),)),
            None,
            id="by-a-pattern",
        ),
        pytest.param(
            Description(group(state=GroupState.PREPARING_REBALANCE), "", None, (_member("a"),)), None, id="rebalancing"
        ),
        pytest.param(
            Description(group(type=GroupType.CONSUMER, state=GroupState.RECONCILING), "", 3, (_member("a"),)),
            {"a"},
            id="kip-848-reconciling",
        ),
        pytest.param(Description(_STABLE, "range", None, ()), None, id="no-members"),
        pytest.param(FAULT, None, id="no-answer"),
    ],
)
def test_subscribed_topics(described: Description | Fault, expected: set[str] | None) -> None:
    """All that any member reads; a fault where that may not be all."""
    topics = subscribed_topics(described)
    assert (None if isinstance(topics, Fault) else set(topics)) == expected


def test_only_old_commits_are_asked_for() -> None:
    """Those that can expire within the longest time that a policy asks for, with some time for the scan itself."""
    policies = [alert(expiresWithin="48h"), alert(expiresWithin="1h"), delete()]
    older = _old_enough(policies, _WEEK, NOW)
    assert older is not None
    assert _ago(120) < older < _ago(119)
    assert _old_enough(policies, None, NOW) is None
    assert _old_enough([delete(), idle()], _WEEK, NOW) is None


# What people see


def _verdict(name: str, hours: float, refusal: Refusal | None = None, **changes: Any) -> Verdict:
    """Of a group that loses its offsets so many hours from now."""
    return Verdict(group(name), _known(activity(168 - hours), **changes), refusal)


def _later(name: str) -> Verdict:
    return _verdict(name, 1, Refusal(reasons.EXPIRES_LATER, "later"))


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        pytest.param(_verdict("a", 5), _in(5), id="empty"),
        pytest.param(Verdict(group(), evidence(), None), None, id="no-tables"),
        pytest.param(Verdict(group(), evidence(activity=FAULT, retention=_WEEK), None), None, id="tables-do-not-tell"),
        pytest.param(Verdict(group(), evidence(activity=activity()), None), None, id="retention-unknown"),
        pytest.param(Verdict(group(protocol_type=""), _known(activity()), None), None, id="made-anew-since"),
        pytest.param(Verdict(group(), _known(_in_use()), None), None, id="left-since"),
        pytest.param(Verdict(_STABLE, _known(activity()), None), None, id="joined-since"),
        pytest.param(Verdict(_STABLE, _known(_in_use()), None), None, id="in-use-what-it-reads-unread"),
        pytest.param(Verdict(_STABLE, _known(_in_use(), FAULT), None), None, id="in-use-what-it-reads-unknown"),
        pytest.param(Verdict(_STABLE, _known(_in_use(), _ORDERS), None), _in(8), id="in-use"),
        pytest.param(Verdict(_STABLE, _known(_in_use(), _ALL), None), None, id="in-use-and-safe"),
    ],
)
def test_expires(verdict: Verdict, expected: datetime | None) -> None:
    """A date is told only where the tables tell of the group as it is."""
    assert verdict.expires == expected


def test_status_tells_what_goes_first() -> None:
    """The first expiry of all that match, and that of each sample group, in that order."""
    verdicts = [_verdict("a", 9), _verdict("b", 3), _later("c"), _verdict("d", 5)]
    status = build_status(_soon(), {}, plan(_soon(), verdicts), [], snapshot())
    assert status["nextExpiryTime"] == "2030-01-31T15:00:00Z"
    shown = [(entry["group"], entry["expiresTime"]) for entry in status["sample"]]
    assert shown[:3] == [(n, f"2030-01-31T{h}:00:00Z") for n, h in (("b", 15), ("d", 17), ("a", 21))]
    assert shown[3][0] == "c"
    nothing = build_status(_soon(), status, plan(_soon(), [_later("c")]), [], snapshot())
    assert "nextExpiryTime" not in nothing


def test_metric_tells_what_goes_first() -> None:
    """As a moment in seconds; it is gone with the last group that matches, and with the policy."""
    metrics, labels = Metrics(), {"namespace": "kafka", "policy": "unused"}

    def shown() -> float | None:
        name = "group_hygiene_offsets_first_expiry_timestamp_seconds"
        return metrics.registry.get_sample_value(name, labels)

    metrics.policy_ran(plan(_soon(), [_verdict("a", 9), _verdict("b", 3), _later("c")]), [], 1.0)
    assert shown() == _in(3).timestamp()
    metrics.policy_ran(plan(_soon(), [_later("c")]), [], 2.0)
    assert shown() is None
    metrics.policy_ran(plan(_soon(), [_verdict("a", 9)]), [], 3.0)
    assert shown() == _in(9).timestamp()
    metrics.forget_policies([("kafka", "unused")])
    assert shown() is None


@pytest.mark.parametrize("policy", [alert(), delete(), idle()], ids=["alert", "unchanged", "idle"])
def test_only_who_asks_tells_what_goes_first(policy: Policy) -> None:
    """Facts are shared: what others ask in the same look would come and go with their intervals. Entries show them."""
    metrics, verdicts = Metrics(), [_verdict("a", 9), _verdict("b", 3)]
    made = plan(policy, verdicts)
    status = build_status(policy, {}, made, [], snapshot())
    assert made.next_expiry is None
    assert "nextExpiryTime" not in status
    expiries = {entry["group"]: entry["expiresTime"] for entry in status["sample"]}
    assert expiries == {"a": "2030-01-31T21:00:00Z", "b": "2030-01-31T15:00:00Z"}
    for ran in (plan(_soon(), verdicts), made):
        metrics.policy_ran(ran, [], 1.0)
    shown = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    assert "group_hygiene_offsets_first_expiry_timestamp_seconds" not in shown


def _policy(within: str, interval: str) -> Policy:
    return parse_policy(policy_object("Alert", {"expiresWithin": within}, interval=interval))


@pytest.mark.parametrize(
    ("within", "interval", "max_age", "retention", "expected"),
    [
        pytest.param("48h", "1h", timedelta(hours=2), _WEEK, None, id="in-time"),
        pytest.param("3h1m", "1h", timedelta(hours=2), _WEEK, None, id="just-in-time"),
        pytest.param("3h", "1h", timedelta(hours=2), _WEEK, "expiresWithin (3h) is not longer", id="too-short"),
        pytest.param("1h", "1h", None, _WEEK, "expiresWithin (1h) is not longer", id="too-short-for-its-interval"),
        pytest.param("3h", "1h", timedelta(hours=2), None, "expiresWithin (3h)", id="retention-unknown"),
        pytest.param(
            "48h",
            "1h",
            timedelta(hours=2),
            timedelta(hours=3),
            "offsets.retention.minutes (3h) is not longer than interval (1h) and activity.maxAge (2h) together",
            id="brokers-keep-offsets-for-too-short",
        ),
    ],
)
def test_warns_late(
    within: str, interval: str, max_age: timedelta | None, retention: timedelta | None, expected: str | None
) -> None:
    """A run that may come too late says so, in words and as the reason of Ready, and is Ready all the same."""
    policy = _policy(within, interval)
    made = plan(policy, [Verdict(group(), evidence(activity=activity(), retention=retention), None)])
    look = snapshot(coverage=Coverage(None, 1, 1, NOW, max_age))
    late = warns_late(made, look)
    assert late is None if expected is None else late is not None and late.startswith(expected)
    ready = build_status(policy, {}, made, [], look)["conditions"][0]
    assert (ready["type"], ready["status"]) == ("Ready", "True")
    assert ready["reason"] == (reasons.SUCCEEDED if expected is None else reasons.MAY_WARN_LATE)
    assert late is None or late in ready["message"]


def test_late_warnings_are_reported_beside_limited_access() -> None:
    """One of them is the reason; both are in the message."""
    granted = structs.replace(_policy("5m", "1h").match, within=Patterns(["a-*"], "access"))
    policy = structs.replace(_policy("5m", "1h"), match=granted)
    ready = build_status(policy, {}, plan(policy, []), [], snapshot())["conditions"][0]
    assert ready["reason"] == reasons.ACCESS_LIMITED
    assert "reaches beyond what" in ready["message"]
    assert "expiresWithin (5m) is not longer than interval (1h): offsets may be gone" in ready["message"]


def test_no_other_policy_warns_late() -> None:
    """Only `expiresWithin` is a promise to tell before something happens."""
    assert warns_late(plan(delete(), []), snapshot(coverage=Coverage(None, 1, 1, NOW, timedelta(days=1)))) is None


@pytest.mark.parametrize("moment", [datetime.max.replace(tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)])
def test_times_of_clients(moment: datetime) -> None:
    """Below Kafka 4.0, a client could give its commit any time: this stops no run."""
    last = datetime.max.replace(tzinfo=UTC)
    absurd = simple_activity(last_commit=moment, oldest_commit=moment)
    assert (absurd.first_expiry(_WEEK), absurd.last_expiry(_WEEK)) == (last, last)
    assert replace(absurd, by_topic={"t": Commits(moment, moment)}).expiry_in_use(set(), _WEEK) == last
    assert replace(absurd, protocol_type="consumer", empty_since=moment).first_expiry(_WEEK) == last


@pytest.mark.parametrize("when", [{"idleFor": "240h"}, {"expiresWithin": "48h"}, {"unchangedFor": "1h"}])
@pytest.mark.parametrize("moment", [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)])
@pytest.mark.parametrize("used", [False, True])
def test_policies_judge_times_of_clients(when: dict[str, Any], moment: datetime, used: bool) -> None:
    """Under any policy, such a commit raises no error, which would affect other groups."""
    times: dict[str, Any] = {"last_commit": moment, "oldest_commit": moment, "by_topic": {"t": Commits(moment, moment)}}
    known = activity(state="Active", empty_since=None, **times) if used else simple_activity(**times)
    of = group(state=GroupState.STABLE) if used else group(protocol_type="")
    judge(alert(**when), of, evidence(activity=known, retention=_WEEK, subscribed=frozenset()), NOW)


def test_offsets_that_never_expire() -> None:
    """offsets.retention.minutes -1: nothing is overtaken by Kafka, and nothing expires soon."""
    never = offsets_retention(-1)
    assert never is not None
    known = evidence(activity=activity(1), unchanged=seen(1), retention=never)
    policies = [delete(), idle(), alert(expiresWithin="48h")]
    found = [judge(policy, group(), known, NOW).refusal for policy in policies]
    assert [refusal and refusal.reason for refusal in found] == [
        reasons.TOO_RECENT,
        reasons.TOO_RECENT,
        reasons.EXPIRES_LATER,
    ]
    in_use = judge(
        policies[2], group(state=GroupState.STABLE), structs.replace(known, activity=activity(state="Active")), NOW
    )
    assert in_use.refusal is not None
    assert in_use.refusal.reason == reasons.EXPIRES_LATER
    assert offsets_retention(None) is None
    assert offsets_retention(10_080) == timedelta(days=7)
    # Longer than a date can be, and than a timedelta: brokers may answer anything.
    for minutes in (99_999_999_999, 2**63 - 1):
        assert offsets_retention(minutes) == never


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10080", 10080),
        ("-1", -1),
        ("0", 0),
        ("", None),
        (None, None),
        ("-", None),
        ("1.5", None),
        ("1_000", None),
        ("\u0663", None),
        ("9" * 20, None),
    ],
)
def test_settings_as_brokers_write_them(text: str | None, value: int | None) -> None:
    """-1 is a number: brokers that never drop offsets say so. Anything but a whole number says nothing."""
    assert whole_number(text) == value
