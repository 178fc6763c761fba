"""GroupKeeps without Kafka and without an API server: their requests in the ledger, and their status."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from group_hygiene.engine.checks import needed
from group_hygiene.engine.marks import keepers
from group_hygiene.ledger.contents import Contents, encode_key, encode_value, group_of
from group_hygiene.model import reasons
from group_hygiene.model.entries import HistoryEntry, KeepRequest, OutcomeType
from group_hygiene.model.group_keep import KeptGroup
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.of_objects import build_keep_status
from group_hygiene.spec.fields import ObjectRef
from tests.unit.make import NOW, delete, evidence, group

OBJECT = {"metadata": {"name": "k", "namespace": "team-a", "generation": 3}, "spec": {}, "status": {}}


def request(days: float = 7, source: str = "team-a/k/uid", by: str = "GroupKeep team-a/k") -> KeepRequest:
    return KeepRequest(group="g", until=NOW + timedelta(days=days), why="report", by=by, at=NOW, source=source)


def ledger(*requests: KeepRequest) -> Contents:
    """As it is read from the topic."""
    contents = Contents()
    for each in requests:
        contents.take(encode_key(each.key), encode_value(each))
    return contents


USER = request(days=30, source="", by="ada")


@pytest.mark.parametrize(
    ("requests", "longest"),
    [
        pytest.param([], None, id="none"),
        pytest.param([USER], USER, id="a-user"),
        pytest.param([request()], request(), id="an-object"),
        pytest.param([request(), USER], USER, id="user-longer"),
        pytest.param([USER, request(days=90)], request(days=90), id="object-longer"),
        pytest.param([request(), request(8, "b/k/other")], request(8, "b/k/other"), id="two-objects"),
    ],
)
def test_each_source_has_its_own_request(requests: list[KeepRequest], longest: KeepRequest | None) -> None:
    """None replaces another; that which lasts longest counts; and the end of one leaves the others."""
    contents = ledger(*requests)
    assert contents.keep_of("g") == longest
    for each in requests:
        contents.take(encode_key(each.key), None)
        left = [other for other in requests[requests.index(each) + 1 :]]
        assert contents.keep_of("g") == max(left, key=lambda other: other.until, default=None)


def test_expired_requests_are_forgotten() -> None:
    contents = ledger(request(1), request(3, "b/k/other"))
    contents.forget_expired(NOW + timedelta(days=2))
    assert contents.object_keeps == {"g": {"b/k/other": request(3, "b/k/other")}}
    contents.forget_expired(NOW + timedelta(days=4))
    assert contents.object_keeps == {}


def test_a_program_without_sources_deletes_no_such_group() -> None:
    """It finds the value under another key than it expects, and which group it concerns."""
    contents = Contents()
    contents.take(encode_key(request().key), encode_value(request(source="")))
    assert list(contents.damaged) == ["g"]
    assert group_of(request().key) == "g"


def ended(hours: float, what: OutcomeType = OutcomeType.DELETED, **changes: Any) -> HistoryEntry:
    """What happened to the group, so many hours after the request."""
    made = HistoryEntry(
        group="g",
        id=f"{what}-{hours}",
        at=NOW + timedelta(hours=hours),
        what=what,
        reason="",
        message="",
        policy="kafka/p",
        policy_uid="uid-p",
        generation=1,
        expires=NOW + timedelta(days=30),
    )
    return structs.replace(made, **changes)


def restored(hours: float, reason: str = reasons.RESTORED) -> HistoryEntry:
    return ended(hours, OutcomeType.RESTORED, reason=reason)


@pytest.mark.parametrize(
    ("log", "after", "hours"),
    [
        pytest.param([], None, None, id="never-deleted"),
        pytest.param([ended(-1)], -1, None, id="existed-again"),
        pytest.param([ended(-1)], None, -1, id="did-not-exist"),
        pytest.param([ended(1)], -1, 1, id="deletion-had-begun"),
        pytest.param([ended(1, OutcomeType.OFFSETS_DELETED, topics=("t",))], None, 1, id="offsets"),
        pytest.param([ended(1, OutcomeType.NOT_DELETED, reason=reasons.INTERRUPTED)], None, 1, id="in-part"),
        pytest.param([ended(1, OutcomeType.NOT_DELETED)], None, None, id="not-deleted"),
        pytest.param([ended(1), restored(2)], None, None, id="restored"),
        pytest.param([restored(2), ended(1)], None, None, id="restored-and-settled-later"),
        pytest.param([ended(1), restored(2), ended(3)], None, 3, id="deleted-again"),
        pytest.param([ended(2), restored(1)], None, 2, id="an-earlier-one-was-restored"),
        pytest.param([ended(1), restored(2, reasons.PARTLY_RESTORED)], None, 1, id="restored-in-part"),
        pytest.param([ended(1), restored(2, reasons.DENIED)], None, 1, id="a-restore-that-waits"),
    ],
)
def test_a_deletion_concerns_a_request_until_a_restore(
    log: list[HistoryEntry], after: float | None, hours: float | None
) -> None:
    """By the ledger alone, so that a restart of the operator changes nothing."""
    asked = structs.replace(request(), after=None if after is None else NOW + timedelta(hours=after))
    contents = ledger(asked)
    for each in log:
        contents.take(encode_key(each.key), encode_value(each))
    assert contents.lost(asked) == (None if hours is None else NOW + timedelta(hours=hours))
    contents.forget_expired(NOW + timedelta(days=30))
    assert (contents.lost(asked), contents.restores) == (None, {})


@pytest.mark.parametrize(
    ("uids", "expected"),
    [pytest.param({"uid"}, False, id="there"), pytest.param(set(), True, id="gone")],
)
def test_requests_of_missing_objects_are_found(uids: set[str], expected: bool) -> None:
    assert (not keepers(ledger(request(), USER)) <= uids) is expected


@pytest.mark.parametrize(
    ("namespace", "connection", "named"),
    [
        pytest.param("team-a", "kafka", True, id="own"),
        pytest.param("kafka", "kafka", True, id="of-the-connection"),
        pytest.param("team-b", "kafka", False, id="third"),
    ],
)
def test_a_third_namespace_learns_no_name(namespace: str, connection: str, named: bool) -> None:
    """Nor the reason; and that a user asked, with the name."""
    policy = structs.replace(delete(), namespace=namespace, connection_ref=ObjectRef("main", connection))
    refusal = needed.keep_requested(policy, group("g"), evidence(keep_request=request()), NOW)
    assert refusal is not None
    assert refusal.reason == reasons.KEEP_REQUESTED
    assert ("team-a" in refusal.message, "report" in refusal.message) == (named, named)
    by_user = needed.keep_requested(policy, group("g"), evidence(keep_request=USER), NOW)
    assert by_user is not None
    assert by_user.message.startswith("ada asked")


GOOD = KeptGroup("g", True, state="Empty", until=NOW)
UNKNOWN = KeptGroup("u", True, reasons.GROUP_UNKNOWN, "none", state="")
LOST = KeptGroup("l", False, reasons.ALREADY_DELETED, "deleted", state="")
UNREAD = KeptGroup("r", True, reasons.GROUP_UNREADABLE, "not read")
NOT_GRANTED = KeptGroup("n", False, reasons.ACTION_NOT_GRANTED, "not granted")
OPEN = KeptGroup("o", False, reasons.BEING_DELETED, "begun", state="Empty")


@pytest.mark.parametrize(
    ("found", "conditions", "message"),
    [
        pytest.param([GOOD], "Ready True Kept|Kept True Kept", "1 of 1 groups", id="kept"),
        pytest.param(
            [GOOD, UNKNOWN],
            "Ready False GroupUnknown|Kept False GroupUnknown|Reconciling True GroupUnknown",
            "1 of the ids are of no group, like 'u'. Correct its id, or set ignoreNotFound",
            id="unknown",
        ),
        pytest.param(
            [GOOD, UNREAD],
            "Ready False GroupUnreadable|Kept False GroupUnreadable|Reconciling True GroupUnreadable",
            "2 of 2 groups are protected; whether 1 of them exist could not be read, like 'r'",
            id="unread",
        ),
        pytest.param(
            [UNREAD, UNKNOWN],
            "Ready False GroupUnknown|Kept False GroupUnknown|Reconciling True GroupUnknown",
            "like 'u'; whether 1 of them exist could not be read, like 'r'. Correct its id, or set ignoreNotFound",
            id="unknown-and-unread",
        ),
        pytest.param(
            [GOOD, NOT_GRANTED],
            "Ready False ActionNotGranted|Kept False ActionNotGranted|Reconciling True ActionNotGranted",
            "not granted",
            id="not-granted",
        ),
        pytest.param(
            [GOOD, LOST],
            "Ready False AlreadyDeleted|Kept False AlreadyDeleted|Stalled True AlreadyDeleted",
            "1 of 2 groups are",
            id="deleted",
        ),
        pytest.param(
            [OPEN], "Ready False BeingDeleted|Kept False BeingDeleted|Reconciling True BeingDeleted", "begun", id="open"
        ),
        pytest.param(
            Refusal(reasons.LEDGER_UNAVAILABLE, "none"),
            "Ready False LedgerUnavailable|Kept False LedgerUnavailable|Reconciling True LedgerUnavailable",
            "none",
            id="no-ledger",
        ),
        pytest.param(
            Refusal(reasons.POLICY_CHANGED, "edited"),
            "Ready False PolicyChanged|Kept False PolicyChanged|Reconciling True PolicyChanged",
            "edited",
            id="edited",
        ),
        pytest.param(
            Refusal(reasons.INVALID_SPEC, "bad"),
            "Ready False InvalidSpec|Kept False InvalidSpec|Stalled True InvalidSpec",
            "bad",
            id="invalid",
        ),
        pytest.param(
            Refusal(reasons.KEEP_ENDED, "over"),
            "Ready True KeepEnded|Kept False KeepEnded",
            "over",
            id="over",
        ),
    ],
)
def test_conditions(found: Any, conditions: str, message: str) -> None:
    status = build_keep_status(OBJECT, found, datetime(2030, 1, 1, tzinfo=UTC))
    shown = "|".join(f"{each['type']} {each['status']} {each['reason']}" for each in status["conditions"])
    assert shown == conditions
    assert message in status["conditions"][0]["message"]
    assert status["observedGeneration"] == 3


def test_groups_that_are_not_protected_come_first() -> None:
    status = build_keep_status(OBJECT, [GOOD, UNKNOWN, LOST], NOW)
    assert [row["group"] for row in status["results"]] == ["l", "g", "u"]
    assert status["counts"] == {"groups": 3, "protected": 2}
    assert status["results"][2] == {
        "group": "u",
        "protected": True,
        "reason": "GroupUnknown",
        "message": "none",
        "exists": False,
    }


def test_a_group_shows_its_last_use_and_client() -> None:
    used = replace(GOOD, unchanged_since=NOW, idle_since=NOW, client="client 'billing-7'")
    (row,) = build_keep_status(OBJECT, [used], NOW)["results"]
    assert (row["unchangedSince"], row["idleSince"], row["lastClient"]) == (*[row["until"]] * 2, "client 'billing-7'")
    (row,) = build_keep_status(OBJECT, [GOOD], NOW)["results"]
    assert not {"unchangedSince", "idleSince", "lastClient"} & row.keys()


@pytest.mark.parametrize("group", [UNKNOWN, UNREAD], ids=["unknown", "unread"])
def test_a_group_that_is_yet_to_appear(group: KeptGroup) -> None:
    """It is protected, and the object says that its user knows it."""
    status = build_keep_status({**OBJECT, "spec": {"ignoreNotFound": True}}, [GOOD, group], NOW)
    assert [(each["type"], each["status"], each["reason"]) for each in status["conditions"]] == [
        ("Ready", "True", group.reason),
        ("Kept", "True", group.reason),
    ]
