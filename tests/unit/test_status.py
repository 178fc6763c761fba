"""The status: conditions, counts, the bounded sample, what is worth a write, and the patch that writes it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from group_hygiene.engine.pattern_notes import PatternNote
from group_hygiene.engine.plan import EVIDENCE, SHOWN, Verdicts, make_plan
from group_hygiene.engine.plan import RunConditions as PlanConditions
from group_hygiene.engine.restorable import GroupResult, ResultKind
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.evidence import NEVER, LastClient, Outcome, Protections, Verdict
from group_hygiene.model.groups import Bounds, CommittedOffset, Coverage, GroupState, GroupType, Partition
from group_hygiene.model.naming import json_bytes
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.alerts import assess
from group_hygiene.observe.conditions import (
    Status,
    build_problem_status,
    build_suspended_status,
    changed_conditions,
    in_order,
    merge_patch,
    needs_write,
    with_run_id,
    without_announcements,
)
from group_hygiene.observe.of_objects import (
    ConnectionFacts,
    LedgerFacts,
    build_connection_status,
    build_restore_status,
    build_status,
    has_evidence,
    last_marked,
)
from group_hygiene.spec.fields import ObjectRef, timestamp
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import Policy, parse_policy
from tests.unit.make import (
    FAULT,
    NO_TOPIC,
    NOW,
    P0,
    P1,
    activity,
    alert,
    delete,
    evidence,
    group,
    idle,
    mark,
    match,
    plan,
    policy_object,
    refused,
    seen,
    snapshot,
)

_NEW: Status = {"observedGeneration": -1}
_ENFORCE = delete(enforce=True)
_NO_LEDGER = Refusal(reasons.LEDGER_UNAVAILABLE, "no ledger")
_LATER = NOW + timedelta(minutes=10)


def _status(
    policy: Policy,
    verdicts: list[Verdict],
    previous: Mapping[str, Any] = _NEW,
    outcomes: list[Outcome] | None = None,
    now: datetime = NOW,
    incomplete: tuple[str, ...] = (),
    **conditions: Any,
) -> Status:
    groups = {verdict.group.id: verdict.group for verdict in verdicts}
    look = snapshot(groups=groups, taken_at=now, incomplete=incomplete)
    return build_status(policy, previous, plan(policy, verdicts, **conditions), outcomes or [], look)


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    (found,) = [condition for condition in status["conditions"] if condition["type"] == kind]
    return dict(found)


def _kinds(status: Mapping[str, Any]) -> set[str]:
    return {condition["type"] for condition in status["conditions"]}


def _deleted(name: str) -> Outcome:
    return Outcome(name, OutcomeType.DELETED, reasons.DELETED, "deleted")


def _kept(name: str) -> Outcome:
    return Outcome(name, OutcomeType.NOT_DELETED, reasons.BECAME_ACTIVE, "its state is Stable now")


def _failed(name: str, reason: str = reasons.DELETE_FAILED) -> Outcome:
    return Outcome(name, OutcomeType.FAILED, reason, "no")


def _unprotected(reason: str, protections: Protections, **changes: Any) -> Verdict:
    return Verdict(group("a"), evidence(protections=protections, **changes), Refusal(reason, "why"))


# Conditions


def test_first_run() -> None:
    """A run that could judge everything is Ready, for the generation that it saw, and neither tries on nor is stuck."""
    status = _status(delete(), [match("a"), refused("b")])
    assert _kinds(status) == {"Ready"}
    assert _condition(status, "Ready") == {
        "type": "Ready",
        "status": "True",
        "reason": reasons.SUCCEEDED,
        "message": "1 of 2 groups match; dry run: mode Enforce would mark them, and delete them 24h later",
        "observedGeneration": 3,
        "lastTransitionTime": "2030-01-31T12:00:00Z",
    }
    assert (status["observedGeneration"], status["lastRunTime"]) == (3, "2030-01-31T12:00:00Z")


def test_transition_time_moves_with_the_status_only() -> None:
    """lastTransitionTime stays while a condition's status does, whatever else changes, and moves when it turns."""
    first = _status(_ENFORCE, [match("a")])
    second = _status(_ENFORCE, [refused("a")], first, now=_LATER)
    assert _condition(second, "Ready")["message"] != _condition(first, "Ready")["message"]
    assert _condition(second, "Ready")["lastTransitionTime"] == timestamp(NOW)
    third = _status(_ENFORCE, [refused("a")], second, now=_LATER, incomplete=("broker 1: lost",))
    assert _condition(third, "Ready")["lastTransitionTime"] == timestamp(_LATER)
    assert _condition(third, "DeletionBlocked")["lastTransitionTime"] == timestamp(NOW)


def test_trying_and_stuck_are_shown_only_while_true() -> None:
    """Reconciling and Stalled appear only while they hold, never both, and leave when all is well."""
    trying = build_problem_status(3, _NEW, Refusal(reasons.CONNECTION_NOT_FOUND, "none (yet)"), NOW)
    stuck = build_problem_status(3, trying, Refusal(reasons.INVALID_SPEC, "must"), NOW)
    assert _kinds(trying) == {"Ready", "Reconciling"}
    assert _kinds(stuck) == {"Ready", "Stalled"}
    for status, kind in ((trying, "Reconciling"), (stuck, "Stalled")):
        assert _condition(status, kind)["status"] == "True"
        assert _condition(status, "Ready")["status"] == "False"
        assert _condition(status, "Ready")["reason"] == _condition(status, kind)["reason"]
    assert _kinds(_status(delete(), [], stuck)) == {"Ready"}


def test_conditions_stay_one_of_a_kind() -> None:
    """Types are unique, as a list-map needs them, and come in a fixed order with Ready first."""
    status = _status(_ENFORCE, [match("a")], incomplete=("broker 1: lost",))
    assert [condition["type"] for condition in status["conditions"]] == ["Ready", "Reconciling", "DeletionBlocked"]


def test_deletion_blocked_is_about_mode_enforce_only() -> None:
    """Nothing deletes for an Alert policy or in a dry run, whose Ready says what would refuse the deletion."""
    refusal = Refusal(reasons.TOPICS_HIDDEN, "topics are hidden")
    blocked = _status(_ENFORCE, [match("a")], refusals=(refusal,))
    assert _kinds(_status(alert(), [match("a")], blocked, total=None)) == {"Ready"}
    status = _status(delete(), [match("a")], blocked, refusals=(refusal,))
    assert _kinds(status) == {"Ready"}
    assert _condition(status, "Ready")["status"] == "True"
    assert f"but for this: {refusal.message}" in _condition(status, "Ready")["message"]


def test_deletion_blocked_says_why() -> None:
    """What refuses a deletion is shown in DeletionBlocked."""
    refusal = Refusal(reasons.TOPICS_HIDDEN, "topics are hidden")
    blocked = _condition(_status(_ENFORCE, [match("a")], refusals=(refusal,)), "DeletionBlocked")
    assert (blocked["status"], blocked["reason"], blocked["message"]) == ("True", refusal.reason, refusal.message)


def test_waiting_for_a_window_is_no_problem() -> None:
    """Ready, and DeletionBlocked says when the next window opens; a real problem comes first."""
    policy = parse_policy(policy_object(mode="Enforce", delete={"windows": [{"from": "22:00", "to": "23:00"}]}))
    status = _status(policy, [match("a")])
    blocked = _condition(status, "DeletionBlocked")
    assert (blocked["status"], blocked["reason"]) == ("False", reasons.OUTSIDE_WINDOW)
    assert "the next one opens at 2030-01-31T22:00:00Z" in blocked["message"]
    assert _condition(status, "Ready")["status"] == "True"
    assert status["nextDueTime"] == status["sample"][0]["dueTime"] == "2030-01-31T22:00:00Z"
    worse = _status(policy, [match("a")], refusals=(Refusal(reasons.TOPICS_HIDDEN, "why"),))
    assert _condition(worse, "DeletionBlocked")["reason"] == reasons.TOPICS_HIDDEN


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        pytest.param(reasons.TOPICS_HIDDEN, "Stalled", id="needs-a-permission"),
        pytest.param(reasons.TOPICS_UNKNOWN, "Reconciling", id="a-broker-restarts"),
        pytest.param(reasons.LEDGER_UNAVAILABLE, "Reconciling", id="may-pass"),
        pytest.param(reasons.CLUSTER_TOO_SMALL, "Stalled", id="may-be-the-wrong-cluster"),
        pytest.param(reasons.TOTAL_UNKNOWN, "Reconciling", id="is-read-again"),
    ],
)
def test_blocked_deletions_are_not_ready(reason: str, kind: str) -> None:
    """A policy that enforces is Ready=False for what blocks it: Stalled where only a user can end that."""
    status = _status(_ENFORCE, [match("a")], refusals=(Refusal(reason, "why"),))
    assert _kinds(status) == {"Ready", kind, "DeletionBlocked"}
    for condition in (_condition(status, "Ready"), _condition(status, kind)):
        assert (condition["reason"], condition["message"]) == (reason, "why")
    assert (_condition(status, "Ready")["status"], _condition(status, kind)["status"]) == ("False", "True")
    after = _status(_ENFORCE, [match("a")], status)
    assert _kinds(after) == {"Ready", "DeletionBlocked"}


@pytest.mark.parametrize("reason", [reasons.LIMIT_EXCEEDED, reasons.TOO_MANY_CHANGES])
def test_a_limit_blocks_deletions_and_the_policy_is_ready(reason: str) -> None:
    """Many abandoned groups are no fault of the policy: else any client of Kafka could fail a Flux Kustomization."""
    status = _status(_ENFORCE, [match("a")], refusals=(Refusal(reason, "too many are due"),))
    assert _kinds(status) == {"Ready", "DeletionBlocked"}
    ready, blocked = _condition(status, "Ready"), _condition(status, "DeletionBlocked")
    assert (ready["status"], ready["reason"]) == ("True", reasons.SUCCEEDED)
    assert ready["message"].endswith("; too many are due")
    assert (blocked["status"], blocked["reason"]) == ("True", reason)


def test_incomplete_snapshot_is_not_ready() -> None:
    """When groups may be missing from the answers, the policy is not Ready, before any other failure."""
    status = _status(delete(), [refused("a", reasons.DENIED)], incomplete=("broker 1: lost", "b", "c", "d"))
    ready = _condition(status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", reasons.SNAPSHOT_INCOMPLETE)
    assert ready["message"] == "broker 1: lost; b; c"


@pytest.mark.parametrize(
    ("verdicts", "outcomes", "reason", "text"),
    [
        pytest.param([refused("a", reasons.OFFSETS_UNKNOWN)], [], reasons.OFFSETS_UNKNOWN, "group 'a'", id="offsets"),
        pytest.param([refused("a", reasons.TOPICS_UNKNOWN)], [], reasons.TOPICS_UNKNOWN, "group 'a'", id="topics"),
        pytest.param([refused("a", reasons.LAG_UNKNOWN)], [], reasons.LAG_UNKNOWN, "group 'a'", id="lag"),
        pytest.param([match("a")], [_failed("a")], reasons.DELETE_FAILED, "group 'a'", id="deletion"),
        pytest.param(
            [refused("a", reasons.LAG_UNKNOWN), refused("z", reasons.DENIED), refused("y", reasons.DENIED)],
            [],
            reasons.DENIED,
            "group 'y': seen unchanged for 1h of 72h (and 2 more groups)",
            id="denied-first-by-name",
        ),
        pytest.param(
            [refused("a", reasons.OFFSETS_UNKNOWN), match("z")],
            [_failed("z", reasons.DENIED)],
            reasons.DENIED,
            "group 'z': no (and 1 more groups)",
            id="denied-deletion-first",
        ),
    ],
)
def test_failures_are_not_ready(verdicts: list[Verdict], outcomes: list[Outcome], reason: str, text: str) -> None:
    """If no group could be judged or deleted, Ready is False; a denied permission comes before all else.

    Other groups were refused by their names or states, before anything was read of them.
    """
    others = (reasons.PROTECTED, reasons.CONNECT, reasons.NOT_EMPTY, reasons.SIMPLE, reasons.OWN_GROUP)
    status = _status(delete(), [*verdicts, *(refused(name, name) for name in others)], outcomes=outcomes)
    ready = _condition(status, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", reason)
    assert text in ready["message"]
    assert _condition(status, "Reconciling")["reason"] == reason
    assert status["groups"]["failed"] == len(verdicts) - len([v for v in verdicts if v.matches]) + len(outcomes)


@pytest.mark.parametrize(
    ("verdicts", "outcomes"),
    [
        pytest.param([refused("evil", reasons.LAG_UNKNOWN), refused("fine")], [], id="judged"),
        pytest.param([refused("evil", reasons.DENIED), match("a")], [], id="a-match"),
        pytest.param([match("evil"), match("a")], [_failed("evil", reasons.DENIED)], id="another-waits"),
        pytest.param([match("evil"), match("a")], [_failed("evil", reasons.DENIED), _kept("a")], id="deletion"),
        pytest.param(
            [match("evil"), match("a")],
            [_failed("evil"), Outcome("a", OutcomeType.DELETED, reasons.DELETED, "deleted")],
            id="one-deleted",
        ),
    ],
)
def test_one_group_fails_no_policy(verdicts: list[Verdict], outcomes: list[Outcome]) -> None:
    """Any client of Kafka can make a group that the operator may not read: Ready stays True, and names it."""
    status = _status(delete(enforce=True), verdicts, outcomes=outcomes)
    ready = _condition(status, "Ready")
    assert (ready["status"], ready["reason"]) == ("True", reasons.SUCCEEDED)
    assert "; group 'evil': " in ready["message"]
    assert status["groups"]["failed"] == 1


_HIDDEN = Refusal(reasons.DENIED, "may not list")


@pytest.mark.parametrize(
    ("verdicts", "outcomes", "reason", "kind"),
    [
        pytest.param(
            [_unprotected(reasons.FAILOVER_TARGET, Protections(), failover_target=True)],
            [],
            reasons.FAILOVER_TARGET,
            "Stalled",
            id="failover-target",
        ),
        pytest.param(
            [_unprotected(reasons.CLAIMED, Protections(claimed=_HIDDEN))],
            [],
            reasons.CLAIMED,
            "Reconciling",
            id="claims",
        ),
        pytest.param(
            [_unprotected(reasons.STREAMS, Protections(streams=None))], [], reasons.STREAMS, "Reconciling", id="topics"
        ),
        pytest.param(
            [_unprotected(reasons.MIRROR_MAKER, Protections(mirrored=None))],
            [],
            reasons.MIRROR_MAKER,
            "Reconciling",
            id="checkpoints",
        ),
        pytest.param(
            [match("a")],
            [Outcome("a", OutcomeType.NOT_DELETED, reasons.EVIDENCE_UNREADABLE, "no Read on __consumer_offsets")],
            reasons.EVIDENCE_UNREADABLE,
            "Reconciling",
            id="offsets-log",
        ),
    ],
)
def test_a_policy_that_can_delete_nothing_is_not_ready(
    verdicts: list[Verdict], outcomes: list[Outcome], reason: str, kind: str
) -> None:
    """Whatever else it selects: what is not known concerns all groups that it could delete."""
    status = _status(delete(enforce=True), [*verdicts, refused("fine")], outcomes=outcomes)
    assert _condition(status, "Ready")["reason"] == _condition(status, kind)["reason"] == reason
    assert _condition(status, "Ready")["status"] == "False"


def test_kept_on_purpose_is_no_failure() -> None:
    """A group that stays because it is used is the operator doing its work; so is a share group that read nothing."""
    verdicts = [match("a"), refused("b", reasons.NO_START_OFFSET)]
    status = _status(delete(enforce=True), verdicts, outcomes=[_kept("a")])
    assert _condition(status, "Ready")["status"] == "True"
    assert status["groups"]["failed"] == 0


def test_long_messages_are_cut() -> None:
    """No message grows beyond what a status should hold."""
    problem = Refusal(reasons.BROKERS_UNREACHABLE, "x" * 5_000)
    message = _condition(build_problem_status(3, _NEW, problem, NOW), "Ready")["message"]
    assert len(message) == 1_000
    assert message.endswith("...")


FORGED = "job\nEvents:\n  Type  Reason\n  Normal  GroupsDeleted"


def _texts(part: Any) -> list[str]:
    """All texts of a status."""
    if isinstance(part, dict):
        return [text for key, value in part.items() for text in (key, *_texts(value))]
    return [text for value in part for text in _texts(value)] if isinstance(part, list) else [str(part)]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        pytest.param(FORGED, r'"job\nEvents:\n  Type  Reason\n  Normal  GroupsDeleted"', id="line-feeds"),
        pytest.param("a\rb", r'"a\rb"', id="carriage-return"),
        pytest.param("a\x07b", r'"a\u0007b"', id="bell"),
        pytest.param("a\x1b[2Jb", r'"a\u001b[2Jb"', id="terminal-sequence"),
        pytest.param("a\u202eb", r'"a\u202eb"', id="right-to-left"),
        pytest.param("a\u2028b", r'"a\u2028b"', id="line-separator"),
        pytest.param("", '""', id="empty"),
        pytest.param('"a"', r'"\"a\""', id="looks-like-json"),
        pytest.param(r"a\nb", r"a\nb", id="backslash"),
        pytest.param("größe", "größe", id="plain"),
    ],
)
def test_a_name_stays_on_its_line(name: str, shown: str) -> None:
    """`kubectl describe` prints a status as it is: no name begins a line of its own, or looks like another."""
    status = _status(delete(enforce=True), [match(name), refused(name + "2", message=name)], outcomes=[_kept(name)])
    restored = build_restore_status(
        {"metadata": {"generation": 1}}, [GroupResult(name, ResultKind.REFUSED, reasons.NO_BACKUP, name)], NOW
    )
    assert [entry["group"] for entry in (status["sample"][0], restored["results"][0])] == [shown, shown]
    assert [text for text in _texts([status, restored]) if not text.isprintable()] == []


@pytest.mark.parametrize(
    "character",
    [
        pytest.param("\x01", id="six-bytes-in-json"),
        pytest.param("<", id="escaped-by-the-api-server"),
        pytest.param("\u2028", id="a-separator"),
        pytest.param("\ue000", id="private-use"),
        pytest.param("\U0001f600", id="beyond-the-first-plane"),
        pytest.param("x", id="one-byte"),
    ],
)
def test_no_status_is_too_large_for_etcd(character: str) -> None:
    """Ids and messages of 32 KB: what is shown of each is limited in bytes of JSON, as the API server stores it."""
    names = [f"{number}-{character * (32_000 // len(character.encode()))}" for number in range(30)]
    verdicts = [refused(name, reasons.OFFSETS_UNKNOWN, name) for name in names]
    status = _status(delete(), verdicts, incomplete=(names[0],))
    assert len(status["sample"]) == 20
    for entry in status["sample"]:
        assert 1_000 < json_bytes(entry["group"]) <= 1_024
        assert json_bytes(entry["message"]) <= 1_000
        assert entry["group"].endswith("...")
        assert entry["message"].isprintable()
    for condition in status["conditions"]:
        assert json_bytes(condition["message"]) <= 1_000
    assert len(json.dumps(status, ensure_ascii=False).encode()) < 100_000


@pytest.mark.parametrize(
    ("policy", "verdicts", "outcomes", "conditions", "message"),
    [
        pytest.param(alert(), [match("a"), refused("b")], [], {}, "1 of 2 groups match", id="alert"),
        pytest.param(delete(), [refused("b")], [], {}, "0 of 1 groups match", id="nothing"),
        pytest.param(
            delete(enforce=True), [match("a")], [_deleted("a")], {}, "1 of 1 groups match; 1 deleted", id="deleted"
        ),
        pytest.param(
            delete(enforce=True),
            [match("a"), match("b")],
            [_deleted("a"), _kept("b")],
            {},
            "2 of 2 groups match; 1 marked; 1 deleted, 1 not deleted",
            id="kept-at-the-last-moment",
        ),
        pytest.param(
            _ENFORCE,
            [match("a"), match("b")],
            [],
            {"marks": {"a": mark(_ENFORCE, "a", NOW - timedelta(hours=1))}},
            "2 of 2 groups match; 2 marked, the first is due at 2030-02-01T11:00:00Z",
            id="marked",
        ),
        pytest.param(
            _ENFORCE,
            [match("a")],
            [],
            {"marks": {}, "refusals": (_NO_LEDGER,)},
            "no ledger",
            id="can't-be-marked",
        ),
        pytest.param(
            _ENFORCE,
            [match("a")],
            [],
            {"total": 2},
            "1 of 1 groups match; 1 marked; 1 of 2 groups are due (50.0%), more than 20%: none is deleted. Check them; "
            "if they are right, raise maxPercent of the policy in Git",
            id="refused",
        ),
        pytest.param(
            delete(),
            [match("a")],
            [],
            {"refusals": (_NO_LEDGER,)},
            "1 of 1 groups match; dry run: mode Enforce would mark them, and delete them 24h later, but for this: "
            "no ledger",
            id="dry-run-refused",
        ),
    ],
)
def test_summary(
    policy: Policy, verdicts: list[Verdict], outcomes: list[Outcome], conditions: dict[str, Any], message: str
) -> None:
    """Ready says in a line what the run saw and did."""
    assert _condition(_status(policy, verdicts, outcomes=outcomes, **conditions), "Ready")["message"] == message


def test_summary_of_paced_run() -> None:
    """What maxPerRun left for the next run is told."""
    verdicts = [match(f"g{number:02}") for number in range(60)]
    outcomes = [_deleted(f"g{number:02}") for number in range(50)]
    status = _status(delete(enforce=True), verdicts, outcomes=outcomes, total=1_000)
    text = "60 of 60 groups match; 10 marked; 50 deleted, 10 wait for the next run (maxPerRun)"
    assert _condition(status, "Ready")["message"] == text


# Counts and sample


def test_counts() -> None:
    """Each judged group is counted once as matched, kept or failed; totals grow from what they were."""
    verdicts = [
        match("a"),
        match("b"),
        refused("c"),
        refused("d", reasons.CAUGHT_UP),
        refused("e", reasons.LAG_UNKNOWN),
    ]
    previous = {**_NEW, "totals": {"deleted": 40}}
    status = _status(delete(enforce=True), verdicts, previous, [_deleted("a"), _kept("b")])
    counts = {"scanned": 5, "matched": 2, "marked": 1, "due": 2, "deleted": 1, "skipped": 2, "failed": 1}
    assert status["groups"] == counts
    assert status["totals"] == {"deleted": 41}
    found = ("BecameActive", "CaughtUp", "Deleted", "LagUnknown", "TooRecent")
    assert status["groupsByReason"] == [{"reason": reason, "count": 1} for reason in found]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param(delete(enforce=True), {"due": 1}, id="enforce"),
        pytest.param(delete(), {"wouldDelete": 1}, id="dry-run"),
        pytest.param(alert(), {}, id="alert"),
    ],
)
def test_due_is_of_policies_that_enforce(policy: Policy, expected: dict[str, int]) -> None:
    """In a dry run nothing is due, and an alert has neither of the two numbers."""
    status = _status(policy, [match("a")])
    assert {key: status["groups"][key] for key in ("due", "wouldDelete") if key in status["groups"]} == expected


def test_totals_accumulate() -> None:
    """Totals start at nothing and add up over runs, and a run that deletes nothing leaves them."""
    first = _status(delete(enforce=True), [match("a")], outcomes=[_deleted("a")])
    second = _status(delete(enforce=True), [match("b")], first, [_deleted("b")])
    third = _status(delete(enforce=True), [], second)
    assert [status["totals"]["deleted"] for status in (first, second, third)] == [1, 2, 2]


def test_sample_is_bounded_with_matches_first() -> None:
    """At most 20 groups: what matches in the order of deletion, then some of each reason to keep."""
    old = [match(f"m{n}", unchanged=seen(since=NOW - timedelta(hours=100 + n))) for n in range(3)]
    kept = [refused(f"a{n:03}") for n in range(100)] + [refused("z", reasons.CAUGHT_UP)]
    status = _status(delete(), [*kept, *old], total=1_000)
    names = [entry["group"] for entry in status["sample"]]
    assert names[:3] == ["m2", "m1", "m0"]
    assert names[3:6] == ["z", "a000", "a001"]
    assert len(names) == len(set(names)) == 20
    assert status["truncated"] is True


@pytest.mark.parametrize(
    ("count", "truncated"), [pytest.param(20, False, id="all-shown"), pytest.param(21, True, id="one-more")]
)
def test_truncated(count: int, truncated: bool) -> None:
    """truncated says whether more groups were judged than are shown."""
    status = _status(alert(), [match(f"g{number}") for number in range(count)])
    assert (len(status["sample"]), status["truncated"]) == (20, truncated)


@pytest.mark.parametrize(
    ("when", "bounds", "expected"),
    [
        pytest.param({"lag": {"atLeast": 1}}, {P0: Bounds(0, 15), P1: Bounds(0, 20)}, {"lag": 5}, id="lag"),
        pytest.param(
            {"committedOffsets": "OutOfRange"},
            {P0: Bounds(11, 15), P1: Bounds(0, 19)},
            {"lag": 4, "outOfRangePartitions": 2},
            id="range",
        ),
        pytest.param({"lag": {"atLeast": 1}}, {P0: Bounds(0, 15), P1: NO_TOPIC}, {"lag": 5}, id="deleted-topic"),
        pytest.param({"lag": {"atLeast": 1}}, {P0: Bounds(0, 15), P1: FAULT}, {}, id="no-number-that-may-be-too-low"),
        pytest.param({"lag": {"atLeast": 1}}, {P0: Bounds(0, 15)}, {}, id="not-all-read"),
        pytest.param({"lag": {"atLeast": 1}}, None, {}, id="not-read"),
        pytest.param({"deletedTopics": "Some"}, {P0: Bounds(0, 15), P1: Bounds(0, 20)}, {"lag": 5}, id="not-asked"),
    ],
)
def test_sample_tells_lag(when: dict[str, Any], bounds: Any, expected: dict[str, int]) -> None:
    """Beside the state, records and partitions out of range, where the policy asks and both numbers are exact."""
    (entry,) = _status(alert(**when), [match("a", bounds=bounds)])["sample"]
    assert entry["state"] == "Empty"
    assert {key: entry[key] for key in ("lag", "outOfRangePartitions") if key in entry} == expected
    ends = {place: each.end for place, each in (bounds or {}).items() if isinstance(each, Bounds)}
    shown = {Partition(row["topic"], row["partition"]): row for row in entry["offsets"]}
    assert {place: row["committedOffset"] for place, row in shown.items()} == {P0: 10, P1: 20}
    assert {place: row["endOffset"] for place, row in shown.items() if "endOffset" in row} == ends


def test_a_sample_shows_the_first_offsets() -> None:
    """Of a match or an Empty group, three of them, and the number of all; of one in use none, as they change often."""
    offsets = {Partition("orders", number): CommittedOffset(number) for number in range(5)}
    found = [Verdict(group("a"), evidence(offsets=offsets), None)]
    stays = [Verdict(group("b"), evidence(offsets=offsets), Refusal(reasons.CAUGHT_UP, ""))]
    in_use = group("c", state=GroupState.STABLE)
    used = [Verdict(in_use, evidence(offsets=offsets), Refusal(reasons.NOT_EMPTY, ""))]
    *empty, other = _status(delete(), found + stays + used)["sample"]
    for entry in empty:
        assert entry["partitions"] == 5
        assert [(row["partition"], row["committedOffset"]) for row in entry["offsets"]] == [(0, 0), (1, 1), (2, 2)]
    assert [entry["group"] for entry in empty] == ["a", "b"]
    assert not {"offsets", "partitions"} & other.keys()


def test_lag_alone_is_no_change() -> None:
    """It changes with every scan of a group in use: the status waits for the quiet period."""
    before, after = (_status(alert(lag={"atLeast": 1}), [match("a", lag={P0: behind, P1: 0})]) for behind in (5, 6))
    assert before != after
    assert not needs_write(before, after, NOW + timedelta(seconds=30))


def test_sample_entries() -> None:
    """An entry tells group, state, type and verdict, and why it stays; an outcome says it better than the verdict."""
    stable = Verdict(
        group("c", state=GroupState.STABLE, type=GroupType.CONSUMER),
        evidence(unchanged=None),
        Refusal("NotEmpty", "is"),
    )
    status = _status(delete(enforce=True), [match("a"), match("b"), stable], outcomes=[_kept("a")])
    since = timestamp(NOW - timedelta(hours=72))
    common = {
        "state": "Empty",
        "type": "Classic",
        "verdict": "Match",
        "unchangedSince": since,
        "markedSince": timestamp(NOW - timedelta(hours=24)),
        "dueTime": timestamp(NOW),
        "lag": 5,
        "partitions": 2,
        "offsets": [
            {"topic": "invoices", "partition": 1, "committedOffset": 20, "endOffset": 21},
            {"topic": "orders", "partition": 0, "committedOffset": 10, "endOffset": 14},
        ],
    }
    assert status["sample"] == [
        {**common, "group": "a", "reason": "BecameActive", "message": "its state is Stable now"},
        {**common, "group": "b"},
        {
            "group": "c",
            "state": "Stable",
            "type": "Consumer",
            "verdict": "Skip",
            "reason": "NotEmpty",
            "message": "is",
        },
    ]


def test_problem_keeps_what_was_seen() -> None:
    """An object that can't be looked at keeps its counts and the time of its last run."""
    before = _status(_ENFORCE, [match("a")])
    status = build_problem_status(4, before, Refusal(reasons.CONNECTION_NOT_READY, "down"), _LATER)
    assert {key: status[key] for key in ("groups", "sample", "lastRunTime", "totals")} == {
        key: before[key] for key in ("groups", "sample", "lastRunTime", "totals")
    }
    assert status["observedGeneration"] == 4
    assert _condition(status, "Ready")["lastTransitionTime"] == timestamp(_LATER)
    assert _condition(status, "DeletionBlocked") == _condition(before, "DeletionBlocked")


def test_conditions_of_other_programs_come_last() -> None:
    """Whoever may patch a status may add some; they end no run."""
    theirs = {"type": "Theirs", "status": "True"}
    assert in_order([theirs, {"type": "Alerting"}, {"type": "Ready"}])[-1] is theirs


def test_suspended_is_healthy() -> None:
    """A suspended policy is Ready with the reason Suspended, and keeps its counts."""
    before = _status(delete(), [match("a")])
    status = build_suspended_status(4, before, _LATER)
    assert (_condition(status, "Ready")["status"], _condition(status, "Ready")["reason"]) == ("True", "Suspended")
    assert (status["observedGeneration"], status["groups"]) == (4, before["groups"])


def test_marks_in_the_sample() -> None:
    """What is due comes first, then what is due next; a new mark shows the date it is given, a deleted group none."""
    names = ("new", "due", "soon", "deleted")
    hours = {"due": 30, "soon": 20, "deleted": 40}
    marks = {name: mark(_ENFORCE, name, NOW - timedelta(hours=ago)) for name, ago in hours.items()}
    status = _status(_ENFORCE, [match(name) for name in names], outcomes=[_deleted("deleted")], marks=marks)
    shown = [(entry["group"], entry.get("markedSince"), entry.get("dueTime")) for entry in status["sample"]]
    assert shown == [
        ("deleted", None, None),
        ("due", "2030-01-30T06:00:00Z", "2030-01-31T06:00:00Z"),
        ("soon", "2030-01-30T16:00:00Z", "2030-01-31T16:00:00Z"),
        ("new", "2030-01-31T12:00:00Z", "2030-02-01T12:00:00Z"),
    ]
    assert status["groups"]["marked"] == 3
    assert "nextDueTime" not in _status(_ENFORCE, [refused("a")])
    assert _status(_ENFORCE, [match("new")], marks={})["nextDueTime"] == "2030-02-01T12:00:00Z"


def test_the_newest_mark_is_shown() -> None:
    """What the next run reads: it moves with new marks, stays when marks end, never moves back, and is news."""
    first = _status(_ENFORCE, [match("new")], marks={})
    assert first["lastMarkedTime"] == "2030-01-31T12:00:00Z"
    assert last_marked(first, _ENFORCE) == NOW
    assert _status(_ENFORCE, [match("old")])["lastMarkedTime"] < first["lastMarkedTime"]
    assert _status(_ENFORCE, [match("old")], previous=first)["lastMarkedTime"] == first["lastMarkedTime"]
    assert _status(_ENFORCE, [refused("a")], previous=first)["lastMarkedTime"] == first["lastMarkedTime"]
    assert last_marked(_status(_ENFORCE, [refused("a")]), _ENFORCE) is None
    assert last_marked(first, structs.replace(_ENFORCE, connection_ref=ObjectRef("another", "kafka"))) is None
    assert last_marked(build_suspended_status(3, first, NOW), _ENFORCE) is None
    assert last_marked(without_announcements(first), _ENFORCE) is None
    assert needs_write(first, {**first, "lastMarkedTime": "2030-01-31T12:00:01Z"}, NOW)


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("2030-01-31t12:00:00z", NOW),
        ("2030-01-31T13:00:00+01:00", NOW),
        ("2030-01-31T12:00:00.000000001Z", NOW),
        ("2030-01-31T12:00:60Z", None),
        ("2030-01-31T12:00:00", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_a_date_of_another_writer(date: Any, expected: datetime | None) -> None:
    """Whatever stands in a status: what can't be read shows no mark, and the next status has a date again."""
    shown = {"lastMarkedTime": date, "lastMarkedConnection": _ENFORCE.connection_key}
    assert last_marked(shown, _ENFORCE) == expected
    after = _status(_ENFORCE, [match("old")], previous=shown)
    assert after["lastMarkedTime"] == _status(_ENFORCE, [match("old")], previous=after)["lastMarkedTime"]
    assert last_marked(after, _ENFORCE) is not None


def test_access_limited() -> None:
    """A pattern that reaches beyond the grant keeps the policy Ready, with a reason and the patterns in words."""
    policy = structs.replace(_ENFORCE, match=structs.replace(_ENFORCE.match, within=Patterns(["team-a-*"])))
    ready = _condition(_status(policy, [match("team-a-1")]), "Ready")
    assert (ready["status"], ready["reason"]) == ("True", reasons.ACCESS_LIMITED)
    assert "'*' reaches beyond what the KafkaConnection grants to namespace kafka ('team-a-*')" in ready["message"]
    inside = structs.replace(_ENFORCE, match=structs.replace(_ENFORCE.match, within=Patterns(["*"])))
    assert _condition(_status(inside, [match("a")]), "Ready")["reason"] == reasons.SUCCEEDED


def test_timestamp_is_utc() -> None:
    """Times are RFC 3339 in UTC with seconds."""
    assert timestamp(datetime.fromisoformat("2030-01-31T14:00:00.999+02:00")) == "2030-01-31T12:00:00Z"


# Evidence


def _covered(problem: Refusal | None = None, covered: int = 50, as_of: datetime | None = NOW) -> Coverage:
    return Coverage(problem, covered, 50, as_of)


_STALE = Refusal(reasons.EVIDENCE_STALE, "partition 7 of __consumer_offsets was read last at ...")


def test_evidence_of_a_policy() -> None:
    """EvidenceReady is there where the policy asks; when it is False, the policy is Ready, and keeps its groups."""
    asks = idle(enforce=True)
    known = evidence(activity=activity(90), unchanged=None)
    look = plan(asks, [Verdict(group("a"), known, None)])
    good = build_status(asks, _NEW, look, [], snapshot(coverage=_covered()))
    assert (_condition(good, "EvidenceReady")["status"], _condition(good, "Ready")["status"]) == ("True", "True")
    assert good["sample"][0]["idleSince"] == timestamp(NOW - timedelta(hours=90))
    assert "lastClient" not in good["sample"][0]
    client = LastClient("billing-7\n", "10.1.2.3", None, None, 2, NOW)
    named = plan(asks, [Verdict(group("a"), evidence(activity=activity(90, last_client=client)), None)])
    (entry,) = build_status(asks, _NEW, named, [], snapshot(coverage=_covered()))["sample"]
    assert entry["lastClient"] == "client 'billing-7\\n' from 10.1.2.3 and 2 more"
    assert "unchangedSince" not in good["sample"][0]
    plain = build_status(delete(), _NEW, plan(delete(), []), [], snapshot(coverage=_covered()))
    assert "EvidenceReady" not in _kinds(plain)


_PASSING = {
    *(reasons.EVIDENCE_MISSING, reasons.EVIDENCE_STALE, reasons.EVIDENCE_INCOMPLETE, reasons.EVIDENCE_UNREADABLE),
    reasons.EVIDENCE_WENT_BACK,
}


@pytest.mark.parametrize("reason", sorted(EVIDENCE))
@pytest.mark.parametrize(
    ("covered", "kept", "known", "ready"),
    [
        pytest.param(0, 2, 0, False, id="nothing-covered"),
        pytest.param(0, 0, 0, False, id="nothing-covered-and-no-group"),
        pytest.param(49, 2, 0, False, id="no-selected-group"),
        pytest.param(50, 2, 0, False, id="no-selected-group-of-whole-tables"),
        pytest.param(49, 2, 1, True, id="some-groups"),
        pytest.param(49, 0, 1, True, id="other-groups"),
        pytest.param(50, 1, 1, True, id="some-groups-of-whole-tables"),
    ],
)
def test_a_policy_without_evidence(reason: str, covered: int, kept: int, known: int, ready: bool) -> None:
    """Ready means that it can judge: not where the tables answer for none of its groups. Stalled where only an edit
    helps; kstatus and Argo CD take Stalled for failed, Reconciling for in progress. The condition, the gauge and the
    Event name the same reason.
    """
    asks, why = idle(enforce=True), Refusal(reason, "because")
    verdicts = [refused(f"a{number}", reason) for number in range(kept)]
    verdicts += [Verdict(group(f"b{number}"), evidence(activity=activity(90)), None) for number in range(known)]
    ran = plan(asks, verdicts)
    seen = snapshot(coverage=_covered(why if covered < 50 else None, covered))
    new = build_status(asks, _NEW, ran, [], seen)
    condition = _condition(new, "EvidenceReady")
    assert (condition["status"], condition["reason"]) == ("False", reason)
    assert _condition(new, "Ready")["status"] == ("True" if ready else "False")
    waits = "Reconciling" if reason in _PASSING else "Stalled"
    assert _kinds(new) & {"Reconciling", "Stalled"} == (set() if ready else {waits})
    assert ready or _condition(new, "Ready")["reason"] == _condition(new, waits)["reason"] == reason
    assert has_evidence(ran, seen) is ready
    assert needs_write(build_status(asks, _NEW, plan(asks, []), [], snapshot(coverage=_covered())), new, NOW)
    assert new["groups"]["failed"] == 0


def test_groups_that_stay_anyway_need_no_evidence() -> None:
    """A policy whose groups are all protected can judge them."""
    asks = idle(enforce=True)
    status = build_status(asks, _NEW, plan(asks, [refused("a", reasons.PROTECTED)]), [], snapshot(coverage=_covered()))
    assert (_condition(status, "Ready")["status"], _condition(status, "EvidenceReady")["status"]) == ("True", "True")


@pytest.mark.parametrize(
    ("days", "type_", "retention", "expected"),
    [
        pytest.param(30, GroupType.CLASSIC, timedelta(days=7), True, id="longer-than-the-retention"),
        pytest.param(7, GroupType.CONSUMER, timedelta(days=7), True, id="with-grace"),
        pytest.param(3, GroupType.CLASSIC, timedelta(days=7), False, id="shorter"),
        pytest.param(30, GroupType.CLASSIC, NEVER, False, id="no-retention"),
        pytest.param(30, GroupType.CLASSIC, None, False, id="not-known"),
        pytest.param(30, GroupType.SHARE, timedelta(days=7), False, id="share"),
    ],
)
def test_a_policy_that_may_never_match(
    days: int, type_: GroupType, retention: timedelta | None, expected: bool
) -> None:
    """The condition has both times; it is there only while it is True, and leaves the policy Ready."""
    policy = delete(unchangedFor=f"{24 * days}h")
    stays = Verdict(group("a", type=type_), evidence(retention=retention), Refusal(reasons.EXPIRES_FIRST, ""))
    status = _status(policy, [stays])
    assert _condition(status, "Ready")["status"] == "True"
    assert ("MayNeverMatch" in _kinds(status)) is expected
    if expected:
        condition = _condition(status, "MayNeverMatch")
        assert condition["reason"] == reasons.EXPIRES_FIRST
        assert "brokers delete its offsets after 168h (offsets.retention.minutes)" in condition["message"]
        assert f"acts {24 * days + 24}h10m after a group's last use" in condition["message"]


def test_evidence_of_a_connection() -> None:
    """How much the tables cover, as of the last look; gone with `activity`."""
    first = build_connection_status(2, _NEW, _facts(has_activity=True, snapshot=snapshot(coverage=_covered())))
    assert _condition(first, "EvidenceReady")["status"] == "True"
    assert first["evidence"] == {"coveredPartitions": 50, "partitions": 50, "asOf": timestamp(NOW)}
    without_scans = build_connection_status(2, first, _facts(has_activity=True))
    assert _condition(without_scans, "EvidenceReady") == _condition(first, "EvidenceReady")
    assert without_scans["evidence"] == first["evidence"]
    missing = snapshot(coverage=Coverage(Refusal(reasons.EVIDENCE_MISSING, "no tables"), 0, 50, None))
    bad = build_connection_status(2, first, _facts(has_activity=True, snapshot=missing))
    assert _condition(bad, "EvidenceReady")["reason"] == reasons.EVIDENCE_MISSING
    assert bad["evidence"] == {"coveredPartitions": 0, "partitions": 50}
    assert needs_write(first, bad, NOW)
    gone = build_connection_status(2, bad, _facts())
    assert "evidence" not in gone
    assert _kinds(gone) == {"Ready"}


# The connection


def _facts(**changes: Any) -> ConnectionFacts:
    known: dict[str, Any] = {
        "snapshot": snapshot(),
        "features": ["A"],
        "retention": timedelta(days=7),
        "all_groups": None,
    }
    return ConnectionFacts(**{**known, **changes})


def test_ledger_of_a_connection() -> None:
    """LedgerReady is there while a policy needs a ledger; a problem never changes which ledger is ours."""
    assert _kinds(build_connection_status(2, _NEW, _facts())) == {"Ready"}
    good = build_connection_status(2, _NEW, _facts(ledger=LedgerFacts("hygiene", "id-1", 0)))
    assert _condition(good, "LedgerReady")["status"] == "True"
    assert good["ledger"] == {"topic": "hygiene", "id": "id-1", "unreadableRecords": 0}
    few = Refusal(reasons.FEW_REPLICAS, "one replica")
    noted = build_connection_status(2, good, _facts(ledger=LedgerFacts("hygiene", "id-1", 0, few_replicas=few)))
    assert [_condition(noted, "LedgerReady")[field] for field in ("status", "reason", "message")] == [
        *("True", reasons.FEW_REPLICAS, "one replica")
    ]
    both = LedgerFacts("hygiene", "id-1", 0, Refusal(reasons.LEDGER_UNAVAILABLE, "no"), few)
    assert _condition(build_connection_status(2, good, _facts(ledger=both)), "LedgerReady")["status"] == "False"
    reset = LedgerFacts("hygiene", "id-2", 3, Refusal(reasons.LEDGER_RESET, "another ledger"))
    bad = build_connection_status(2, good, _facts(ledger=reset))
    assert _condition(bad, "LedgerReady")["status"] == "False"
    assert _condition(bad, "LedgerReady")["reason"] == reasons.LEDGER_RESET
    assert bad["ledger"] == {"topic": "hygiene", "id": "id-1", "unreadableRecords": 3}
    assert needs_write(good, bad, NOW)
    assert build_connection_status(2, bad, _facts())["ledger"] == bad["ledger"]


def test_patterns_of_a_connection() -> None:
    """PatternsMatch names what selects nothing, stays if a scan does not compare, and never changes Ready."""
    good = build_connection_status(2, _NEW, _facts(patterns=[]))
    assert (_condition(good, "PatternsMatch")["status"], _kinds(good)) == ("True", {"Ready", "PatternsMatch"})
    note = PatternNote("protect", "spec.protect[0]", "pay.*", unused=True, wider="pay*", more=3)
    bad = build_connection_status(2, good, _facts(patterns=[note]))
    condition = _condition(bad, "PatternsMatch")
    assert (condition["status"], condition["reason"]) == ("False", "PatternsUnused")
    assert condition["message"].startswith("spec.protect[0]: pay.* selects no group; pay* would select 3 more")
    assert _condition(bad, "Ready")["status"] == "True"
    assert needs_write(good, bad, NOW)
    assert _condition(build_connection_status(2, bad, _facts()), "PatternsMatch") == condition


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        pytest.param(reasons.TOPICS_ATTESTED, "True", id="attested"),
        pytest.param(reasons.TOPICS_VISIBLE, "True", id="the-brokers-confirm-it"),
        pytest.param(reasons.TOPICS_HIDDEN, "False", id="the-brokers-contradict-it"),
    ],
)
def test_an_attestation_shows_in_the_status(reason: str, status: str) -> None:
    """TopicsVisible is there while the spec attests, stays if a scan does not check it, and is written at once."""
    before = build_connection_status(2, _NEW, _facts(attests=True))
    assert _kinds(before) == {"Ready"}
    checked = build_connection_status(2, before, _facts(attests=True, topics=Refusal(reason, "why")))
    condition = _condition(checked, "TopicsVisible")
    assert (condition["status"], condition["reason"], condition["message"]) == (status, reason, "why")
    assert needs_write(before, checked, NOW)
    later = build_connection_status(2, checked, _facts(attests=True))
    assert _condition(later, "TopicsVisible") == condition
    another = build_connection_status(2, later, _facts(attests=True, topics=Refusal(reason, "another")))
    assert needs_write(later, another, NOW) == (status == "False")
    assert _kinds(build_connection_status(2, later, _facts(topics=Refusal(reason, "why")))) == {"Ready"}


def test_connection_status() -> None:
    """A connection shows its cluster, brokers, features, retention, and groups by state and type of a full list."""
    groups = {
        "a": group("a"),
        "b": group("b", state=GroupState.STABLE),
        "c": group("c", type=GroupType.SHARE),
    }
    status = build_connection_status(2, _NEW, _facts(all_groups=groups, snapshot=snapshot(notes=("old brokers",))))
    assert _condition(status, "Ready")["message"] == "2 of 2 brokers answer; old brokers"
    assert (status["clusterID"], status["features"], status["offsetsRetentionMinutes"]) == ("cluster-1", ["A"], 10_080)
    assert status["brokers"] == {"answered": 2, "expected": 2}
    assert status["groups"] == {
        "total": 3,
        "states": [{"state": "Empty", "count": 2}, {"state": "Stable", "count": 1}],
        "types": [{"type": "Classic", "count": 2}, {"type": "Share", "count": 1}],
        "asOf": "2030-01-31T12:00:00Z",
    }


def test_connection_keeps_groups_of_the_last_full_list() -> None:
    """Neither a filtered nor an incomplete list changes the counts; an unknown retention keeps the known one."""
    before = build_connection_status(2, _NEW, _facts(all_groups={"a": group("a")}))
    partial = snapshot(incomplete=("broker 1: lost",), broker_faults={1: FAULT})
    filtered = build_connection_status(2, before, _facts(retention=None))
    incomplete = build_connection_status(2, before, _facts(all_groups={}, snapshot=partial))
    assert filtered["groups"] == incomplete["groups"] == before["groups"]
    assert filtered["offsetsRetentionMinutes"] == 10_080
    assert incomplete["brokers"] == {"answered": 1, "expected": 2}
    assert _condition(incomplete, "Ready")["reason"] == reasons.SNAPSHOT_INCOMPLETE


def test_connection_remembers_its_cluster() -> None:
    """The cluster id of the first answer stays, and a problem is shown before what the snapshot says."""
    problem = Refusal(reasons.CLUSTER_CHANGED, "another one")
    before = {**_NEW, "clusterID": "cluster-0"}
    status = build_connection_status(2, before, _facts(problem=problem, snapshot=snapshot(incomplete=("x",))))
    assert status["clusterID"] == "cluster-0"
    assert _kinds(status) == {"Ready", "Stalled"}
    assert _condition(status, "Stalled")["reason"] == reasons.CLUSTER_CHANGED


# Writing


_OLD = _status(delete(), [match("a"), refused("b")])


def _again(verdicts: list[Verdict], after: timedelta, **changes: Any) -> tuple[Status, datetime]:
    return {**_status(delete(), verdicts, _OLD, now=NOW + after), **changes}, NOW + after


@pytest.mark.parametrize(
    ("new", "now", "write"),
    [
        pytest.param(_OLD, NOW + timedelta(hours=9), False, id="nothing"),
        pytest.param({**_OLD, "lastRunID": "b"}, NOW + timedelta(hours=9), False, id="run-alone"),
        pytest.param(*_again([match("a"), refused("b")], timedelta(seconds=30)), False, id="time-alone"),
        pytest.param(*_again([match("a"), refused("b")], timedelta(seconds=54)), False, id="time-just-before-a-minute"),
        pytest.param(*_again([match("a"), refused("b")], timedelta(minutes=1)), True, id="time-after-a-minute"),
        pytest.param(
            *_again([match("a"), refused("b", "CaughtUp")], timedelta(seconds=30)), False, id="reason-to-keep"
        ),
        pytest.param(
            *_again([match("a"), refused("b", "CaughtUp")], timedelta(minutes=1)), True, id="reason-after-a-minute"
        ),
        pytest.param(*_again([match("a"), *map(refused, "bcd")], timedelta(seconds=30)), False, id="more-groups-kept"),
        pytest.param(
            *_again([match("a"), *map(refused, "bcd")], timedelta(minutes=2)), True, id="more-kept-after-a-minute"
        ),
        pytest.param(*_again([match("c"), refused("b")], timedelta(seconds=30)), True, id="another-match"),
        pytest.param(*_again([match("a"), match("b")], timedelta(seconds=30)), True, id="more-matches"),
        pytest.param(*_again([refused("a"), refused("b")], timedelta(seconds=30)), True, id="no-match"),
        pytest.param(*_again([match("a"), refused("b", "LagUnknown")], timedelta(seconds=30)), True, id="failure"),
        pytest.param(
            *_again([match("a"), refused("b")], timedelta(seconds=30), observedGeneration=4), True, id="generation"
        ),
        pytest.param(
            *_again([match("a"), refused("b")], timedelta(seconds=30), totals={"deleted": 1}), True, id="totals"
        ),
        pytest.param(
            *_again([match("a"), refused("b")], timedelta(seconds=30), another=1), True, id="field-of-a-later-version"
        ),
    ],
)
def test_needs_write(new: Status, now: datetime, write: bool) -> None:
    """What people act on is written at once; times and what else changes all the time at most once a minute."""
    assert needs_write(_OLD, new, now) is write


def test_a_status_names_the_run_that_wrote_it() -> None:
    """That of the one before goes, also where the run that writes has no id."""
    before = with_run_id(_OLD, "a")
    assert before == {**_OLD, "lastRunID": "a"}
    assert merge_patch(before, with_run_id(before, "b")) == {"lastRunID": "b"}
    assert merge_patch(before, with_run_id(before, None)) == {"lastRunID": None}


def test_needs_write_of_refusal_numbers() -> None:
    """A refusal whose numbers move with the size of the cluster is no news; its coming and going is."""
    verdicts = [match("a"), refused("b")]
    small = _status(_ENFORCE, verdicts, total=1)
    assert not needs_write(small, _status(_ENFORCE, verdicts, small, total=2), NOW)
    assert needs_write(small, _status(_ENFORCE, verdicts, small, total=100), NOW)


def test_needs_write_of_another_problem() -> None:
    """A problem whose text changes is written at once: another broker, another cause."""
    first = build_problem_status(3, _OLD, Refusal(reasons.BROKERS_UNREACHABLE, "kafka-0"), NOW)
    second = build_problem_status(3, first, Refusal(reasons.BROKERS_UNREACHABLE, "kafka-1"), NOW)
    assert needs_write(first, second, NOW)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"clusterID": "x"}, id="cluster"),
        pytest.param({"brokers": {"answered": 1, "expected": 2}}, id="brokers"),
        pytest.param({"features": []}, id="features"),
        pytest.param({"groups": {"total": 1}}, id="total"),
    ],
)
def test_needs_write_of_connection(changes: dict[str, Any]) -> None:
    """What a connection knows of its cluster is written at once when it changes; the time of a scan is not."""
    old = build_connection_status(2, _NEW, _facts())
    quiet = build_connection_status(2, old, _facts(snapshot=snapshot(taken_at=NOW + timedelta(seconds=30))))
    assert not needs_write(old, quiet, NOW + timedelta(seconds=30))
    assert needs_write(old, {**old, **changes}, NOW + timedelta(seconds=30))


def test_needs_write_of_first_status() -> None:
    """A new object gets its status at once."""
    assert needs_write(_NEW, _OLD, NOW)
    assert needs_write({}, {"lastRunTime": timestamp(NOW)}, NOW)


def _apply(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2, to the letter."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _apply(result.get(key), value)
    return result


_LEAVES = st.booleans() | st.integers(0, 2) | st.sampled_from(["", "x"])
_KEYS = st.sampled_from(["a", "b", "c"])
_JSON = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_KEYS, inner, max_size=3), max_leaves=8
)
_OBJECTS = st.dictionaries(_KEYS, _JSON, max_size=3)


@given(old=_OBJECTS, new=_OBJECTS)
@example(old={"a": {"b": 1}}, new={"a": {}})
@example(old={"a": {}}, new={})
@example(old={}, new={"a": {}})
@example(old={"a": {"b": {"c": 1}}}, new={"a": {"b": 1}})
@example(old={"a": [{"b": 1}]}, new={"a": [{}]})
def test_merge_patch(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Applied to the old object as RFC 7386 says, the patch gives the new one; of equal objects it is empty."""
    patch = merge_patch(old, new)
    assert _apply(old, patch) == new
    assert (patch == {}) is (old == new)


def test_merge_patch_is_small() -> None:
    """Only what differs is sent."""
    old = {"same": {"x": 1}, "deep": {"stays": 1, "goes": 2}, "list": [1, 2]}
    new = {"same": {"x": 1}, "deep": {"stays": 1, "comes": 3}, "list": [1]}
    assert merge_patch(old, new) == {"deep": {"goes": None, "comes": 3}, "list": [1]}


@pytest.mark.parametrize(
    ("before", "after", "logged"),
    [
        pytest.param(None, ("True", "Succeeded", "1 of 2"), True, id="the-first"),
        pytest.param(("True", "Succeeded", "1 of 2"), ("True", "Succeeded", "2 of 2"), False, id="another-number"),
        pytest.param(("True", "Succeeded", ""), ("False", "ClockSkew", "2h apart"), True, id="another-status"),
        pytest.param(("False", "ClockSkew", ""), ("False", "LedgerReset", ""), True, id="another-reason"),
    ],
)
def test_changed_conditions(before: tuple[str, str, str] | None, after: tuple[str, str, str], logged: bool) -> None:
    """What the log shows once: a new condition, and one with another status or reason."""

    def status(row: tuple[str, str, str]) -> dict[str, Any]:
        return {"conditions": [dict(zip(("type", "status", "reason", "message"), ("Ready", *row), strict=True))]}

    new = status(after)
    assert changed_conditions({} if before is None else status(before), new) == (new["conditions"] if logged else [])


_REASONS = (reasons.TOO_RECENT, reasons.DENIED, reasons.OFFSETS_UNKNOWN, reasons.NOT_EMPTY, None)


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.sampled_from(_REASONS), max_size=39),
    st.randoms(use_true_random=False),
    st.sets(st.text("abc", min_size=1, max_size=3), max_size=5),
)
def test_a_reduced_scan_shows_what_a_whole_one_shows(
    found: dict[str, str | None], order: Any, marked: set[str]
) -> None:
    """Whatever the order in which slices bring the groups: the same plan, status and alerts."""
    judged = [match(name) if why is None else refused(name, why) for name, why in found.items()]
    marks = {name: mark(_ENFORCE, name) for name in marked}
    conditions = PlanConditions(total=1_000, announced=NOW)
    made = []
    for reduced in (False, True):
        order.shuffle(judged)
        verdicts = Verdicts(marks, whole=not reduced)
        for verdict in judged:
            verdicts.add(verdict)
        assert len(verdicts) <= len(found)
        ran = make_plan(_ENFORCE, verdicts, marks, conditions, NOW)
        look = snapshot(incomplete=("a broker did not answer",))
        situation = assess(ran, [], look)
        # Whole plans differ in the order of their verdicts only.
        made.append((replace(ran, verdicts=Verdicts()), build_status(_ENFORCE, {}, ran, [], look), replace(situation)))
    assert made[0] == made[1]


def test_a_reduced_scan_retains_little() -> None:
    """Of each reason the first groups, besides matches and marked groups."""
    verdicts = Verdicts({"z": mark(_ENFORCE, "z")})
    for number in reversed(range(1_000)):
        verdicts.add(refused(f"g{number:03}", reasons.OFFSETS_UNKNOWN if number % 2 else reasons.TOO_RECENT))
    verdicts.add(refused("z"))
    verdicts.add(match("m"))
    assert sorted(verdicts) == [*(f"g{number:03}" for number in range(2 * SHOWN)), "m", "z"]
    assert (verdicts.judged, len(verdicts.unknown), verdicts.by_reason.total()) == (1_002, 500, 1_001)
