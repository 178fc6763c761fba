"""What a restore decides and tells, without a broker."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from group_hygiene.engine.restorable import (
    GroupResult,
    OutOfRange,
    PartitionResult,
    RestoreRequest,
    ResultKind,
    choose,
    concerns,
    decide,
    deletion_time,
    lost_topics,
    parse_restore,
    ran_before,
    warned,
)
from group_hygiene.engine.restoration import proves_deletion
from group_hygiene.errors import SpecError
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, HistoryEntry, OutcomeType, SavedOffset
from group_hygiene.model.groups import Bounds, CommittedOffset, Fault, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.of_objects import RESULTS_MAX, build_restore_status
from group_hygiene.spec.fields import timestamp
from tests.backups import backup as backup_of

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PLACE = Partition("orders", 0)
GONE = Fault("UNKNOWN_TOPIC_OR_PARTITION", "")
DENIED = Fault("TOPIC_AUTHORIZATION_FAILED", "")


def backup(**changes: Any) -> Backup:
    return backup_of("billing", {"orders": [SavedOffset(0, 5, 2, "m", None)]}, **changes)


SAVED = CommittedOffset(5, 2, "m")


@pytest.mark.parametrize(
    ("changes", "reason", "commit"),
    [
        pytest.param({}, reasons.WOULD_RESTORE, SAVED, id="free"),
        pytest.param({"now": SAVED}, reasons.ALREADY_THERE, None, id="there"),
        pytest.param({"now": CommittedOffset(6, 2, "m")}, reasons.ALREADY_COMMITTED, None, id="committed"),
        pytest.param({"now": SAVED, "id": "other"}, reasons.TOPIC_RECREATED, None, id="there-of-another-topic"),
        pytest.param(
            {"now": CommittedOffset(6, 2, "m"), "id": "other", "overwrite": True},
            reasons.TOPIC_RECREATED,
            None,
            id="later-of-another-topic",
        ),
        pytest.param({"now": SAVED, "saved_id": ""}, reasons.TOPIC_IDENTITY_UNKNOWN, None, id="there-identity-unknown"),
        pytest.param({"now": SAVED, "id": DENIED}, "TopicsUnknown", None, id="there-topic-denied"),
        pytest.param(
            {"now": SAVED, "saved_id": "", "allow": True}, reasons.ALREADY_THERE, None, id="there-identity-override"
        ),
        pytest.param(
            {"now": CommittedOffset(6, 2, "m"), "overwrite": True}, reasons.WOULD_RESTORE, SAVED, id="overwrite-later"
        ),
        pytest.param({"now": SAVED, "overwrite": True}, reasons.ALREADY_THERE, None, id="overwrite-same"),
        pytest.param(
            {"now": CommittedOffset(4, 2, "m"), "overwrite": True}, reasons.ALREADY_COMMITTED, None, id="earlier-stays"
        ),
        pytest.param(
            {"now": CommittedOffset(6, 2, "m"), "overwrite": True, "range": Bounds(6, 9), "mode": OutOfRange.CLAMP},
            reasons.ALREADY_COMMITTED,
            None,
            id="overwrite-never-skips",
        ),
        pytest.param(
            {"now": CommittedOffset(8, 2, "m"), "overwrite": True, "range": Bounds(6, 9), "mode": OutOfRange.CLAMP},
            reasons.WOULD_RESTORE,
            CommittedOffset(6, -1, "m"),
            id="overwrite-clamped",
        ),
        pytest.param(
            {"now": CommittedOffset(8, 2, "m"), "overwrite": True, "range": Bounds(6, 9)},
            reasons.OUT_OF_RANGE,
            None,
            id="overwrite-out-of-range",
        ),
        pytest.param({"id": GONE}, reasons.TOPIC_MISSING, None, id="missing"),
        pytest.param({"id": GONE, "allow": True}, reasons.TOPIC_MISSING, None, id="missing-override"),
        pytest.param({"id": DENIED}, "TopicsUnknown", None, id="topic-denied"),
        pytest.param({"id": "other"}, reasons.TOPIC_RECREATED, None, id="recreated"),
        pytest.param({"id": "other", "allow": True}, reasons.TOPIC_RECREATED, None, id="recreated-override"),
        pytest.param({"id": ""}, reasons.TOPIC_IDENTITY_UNKNOWN, None, id="identity-now"),
        pytest.param({"saved_id": ""}, reasons.TOPIC_IDENTITY_UNKNOWN, None, id="identity-before"),
        pytest.param({"saved_id": "", "allow": True}, reasons.WOULD_RESTORE, SAVED, id="identity-override"),
        pytest.param({"range": Bounds(5, 5)}, reasons.WOULD_RESTORE, SAVED, id="at-both-ends"),
        pytest.param({"range": Bounds(6, 9)}, reasons.OUT_OF_RANGE, None, id="before-start"),
        pytest.param({"range": Bounds(0, 4)}, reasons.OUT_OF_RANGE, None, id="behind-end"),
        pytest.param(
            {"range": Bounds(6, 9), "mode": OutOfRange.CLAMP},
            reasons.WOULD_RESTORE,
            CommittedOffset(6, -1, "m"),
            id="clamp",
        ),
        pytest.param({"range": GONE}, reasons.TOPIC_MISSING, None, id="no-partition"),
        pytest.param({"range": DENIED}, "OffsetsUnknown", None, id="range-unread"),
    ],
)
def test_partition_is_decided(changes: dict[str, Any], reason: str, commit: CommittedOffset | None) -> None:
    """Only a partition that is surely the same, holds the offset and has none now, or a later one, gets a commit."""
    case: dict[str, Any] = {
        "id": "id",
        "saved_id": "id",
        "range": Bounds(0, 9),
        "mode": OutOfRange.SKIP,
        "allow": False,
        "overwrite": False,
    } | changes
    request = RestoreRequest(
        id="r",
        out_of_range=case["mode"],
        allow_unknown_topic_identity=case["allow"],
        overwrite_later=case["overwrite"],
    )
    now = {PLACE: case["now"]} if "now" in case else {}
    saved, ids = backup(topic_ids={"orders": case["saved_id"]}), {"orders": case["id"]}
    (result,) = decide(saved, now, ids, {PLACE: case["range"]}, request, {PLACE})
    assert (result.partition, result.reason, result.commit) == (PLACE, reason, commit)
    assert result.present == (now.get(PLACE) if commit or reason == reasons.ALREADY_COMMITTED else None)


DAY = timedelta(days=1)
OLD, NEW = "20260228T120000-aaaaaaaa", "20260301T120000-bbbbbbbb"


@pytest.mark.parametrize(
    ("backups", "options", "expected"),
    [
        pytest.param({OLD: [backup(at=NOW - DAY)], NEW: [backup()]}, {}, NOW, id="newest"),
        pytest.param(
            {OLD: [backup(at=NOW - DAY)], NEW: [backup()]}, {"at": NOW - DAY}, NOW - DAY, id="older-asked-for"
        ),
        pytest.param(
            {NEW: [backup(at=NOW + timedelta(milliseconds=700))]},
            {"at": NOW},
            NOW + timedelta(milliseconds=700),
            id="time-as-it-was-shown",
        ),
        pytest.param({}, {}, reasons.NO_BACKUP, id="none"),
        pytest.param({NEW: [backup()]}, {"at": NOW - DAY}, reasons.NO_BACKUP, id="none-so-old"),
        pytest.param(
            {OLD: [backup(at=NOW - DAY)], NEW: [backup(parts=2)]}, {}, reasons.BACKUP_INCOMPLETE, id="part-missing"
        ),
        pytest.param(
            {OLD: [backup(at=NOW - DAY)], NEW: [backup(parts=2), None]},
            {},
            reasons.BACKUP_INCOMPLETE,
            id="part-damaged",
        ),
        pytest.param({OLD: [backup(at=NOW - DAY)], NEW: [None]}, {}, reasons.BACKUP_INCOMPLETE, id="all-damaged"),
        pytest.param({OLD: [backup(at=NOW - DAY)], NEW: [None]}, {"at": NOW - DAY}, NOW - DAY, id="damaged-is-newer"),
        pytest.param({OLD: [None], NEW: [backup()]}, {}, NOW, id="damaged-is-older"),
        pytest.param({NEW: [backup()], "?": [None]}, {}, reasons.BACKUP_INCOMPLETE, id="nobody-knows-when"),
        pytest.param({NEW: [backup()], "?": [None]}, {"at": NOW}, NOW, id="nobody-knows-when-and-older-asked-for"),
        pytest.param(
            {OLD: [backup(at=NOW - DAY)], NEW: [backup(policy="kafka/other")]},
            {"policy": "kafka/unused", "deleted_after": NOW - DAY},
            reasons.NO_BACKUP,
            id="deleted-again-by-another",
        ),
    ],
)
def test_newest_backup_or_none(
    backups: dict[str, list[Backup | None]], options: dict[str, Any], expected: datetime | str
) -> None:
    """An older backup never stands in for a newer one that is damaged, but for whoever asks for it."""
    found = choose(RestoreRequest(id="r", **options), "billing", backups)
    assert (found.at if isinstance(found, Backup) else found.reason) == expected


LATER = "20260301T130000-cccccccc"
BY_POLICY = RestoreRequest(id="r", policy="kafka/unused", deleted_after=NOW - DAY)


def rows_of(topics: dict[str, int], **changes: Any) -> Backup:
    """A backup of these offsets, of partition 0 of each topic."""
    offsets = {topic: [SavedOffset(0, offset, -1, "", None)] for topic, offset in topics.items()}
    return backup_of("billing", offsets, **changes)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        pytest.param({LATER: {OutcomeType.NOT_DELETED}}, {"orders": 9, "payments": 3}, id="never-happened"),
        pytest.param({LATER: {OutcomeType.DELETED}}, reasons.NO_BACKUP, id="happened"),
        pytest.param({LATER: {OutcomeType.OFFSETS_DELETED}}, reasons.NO_BACKUP, id="happened-to-a-part"),
        # A late request, after it was taken for one that never happened.
        pytest.param({LATER: {OutcomeType.NOT_DELETED, OutcomeType.DELETED}}, reasons.NO_BACKUP, id="happened-late"),
        pytest.param({}, reasons.NO_BACKUP, id="nobody-knows"),
        pytest.param({NEW: {OutcomeType.NOT_DELETED}}, reasons.NO_BACKUP, id="another-one-never-happened"),
    ],
)
def test_what_another_policy_did_not_delete_hides_no_backup(
    ends: dict[str, set[OutcomeType]], expected: dict[str, int] | str
) -> None:
    """Of what the policy deleted; but what the group had again by then is newer, should a part of that be gone."""
    own = rows_of({"orders": 5, "payments": 3}, id=NEW, partial=True)
    other = rows_of({"orders": 9, "users": 7}, id=LATER, at=NOW + timedelta(hours=1), policy="kafka/other")
    found = choose(BY_POLICY, "billing", {NEW: [own], LATER: [other]}, ends)
    if isinstance(found, Backup):
        assert found.id == NEW
        assert {topic: rows[0].offset for topic, rows in found.offsets.items()} == expected
    else:
        assert found.reason == expected


@pytest.mark.parametrize(
    ("ends", "at", "expected"),
    [
        pytest.param({LATER: {OutcomeType.DELETED}}, None, reasons.BACKUP_INCOMPLETE, id="a-later-deletion"),
        pytest.param({LATER: {OutcomeType.OFFSETS_DELETED}}, None, reasons.BACKUP_INCOMPLETE, id="of-offsets"),
        pytest.param({LATER: {OutcomeType.DELETED}}, NOW, NEW, id="the-earlier-one-is-requested"),
        pytest.param({LATER: {OutcomeType.NOT_DELETED}}, None, NEW, id="not-deleted"),
        pytest.param({NEW: {OutcomeType.DELETED}}, None, NEW, id="the-backups-own"),
        pytest.param({OLD: {OutcomeType.DELETED}}, None, NEW, id="an-earlier-deletion"),
    ],
)
def test_a_deletion_whose_backup_is_hidden_is_not_passed_over(
    ends: dict[str, set[OutcomeType]], at: datetime | None, expected: str
) -> None:
    """Its batch can't be read, and the outcome in a later one can: an older backup would set the group back."""
    own = rows_of({"orders": 5}, id=NEW)
    found = choose(RestoreRequest(id="r", groups=("billing",), at=at), "billing", {NEW: [own]}, ends)
    assert (found.id if isinstance(found, Backup) else found.reason) == expected


def test_what_a_restore_replaced_was_deleted_by_no_policy() -> None:
    """Its later offsets are set again by a request for groups at a time, and never by one for a policy's deletions."""
    deleted = rows_of({"orders": 5}, id=NEW)
    replaced_ = replace(rows_of({"orders": 9}, id=LATER, at=NOW + timedelta(hours=1)), replaced=True)
    backups, at = {NEW: [deleted], LATER: [replaced_]}, NOW + timedelta(hours=2)
    by_policy = dataclasses.replace(BY_POLICY, at=at, overwrite_later=True)
    assert choose(by_policy, "billing", backups) == deleted
    assert not concerns(dataclasses.replace(by_policy, deleted_after=NOW + timedelta(minutes=1)), backups)
    by_name = RestoreRequest(id="r", groups=("billing",), at=at, overwrite_later=True)
    assert choose(by_name, "billing", backups) == replaced_


def test_a_request_never_chooses_what_it_replaced_itself() -> None:
    """Its later tries would undo the first one; another request may."""
    deleted = rows_of({"orders": 5}, id=NEW)
    replaced_ = rows_of({"orders": 9}, id=LATER, at=NOW + timedelta(hours=1), replaced=True, continues="r")
    backups = {NEW: [deleted], LATER: [replaced_]}
    own = RestoreRequest(id="r", groups=("billing",), at=NOW + timedelta(hours=2), overwrite_later=True)
    assert choose(own, "billing", backups) == deleted
    assert choose(dataclasses.replace(own, id="s"), "billing", backups) == replaced_


def test_offsets_of_an_earlier_deletion_replace_none() -> None:
    """The group goes on with a topic since: only offsets that the last deletion took replace later ones."""
    backups = {
        OLD: [rows_of({"orders": 100, "users": 7}, id=OLD, at=NOW - DAY, partial=True)],
        NEW: [rows_of({"payments": 50}, id=NEW, partial=True)],
    }
    request = RestoreRequest(id="r", groups=("billing",), overwrite_later=True)
    found = choose(request, "billing", backups)
    assert isinstance(found, Backup)
    orders, payments, users = (Partition(topic, 0) for topic in ("orders", "payments", "users"))
    bounds = dict.fromkeys((orders, payments, users), Bounds(0, 9_000))
    now = {orders: CommittedOffset(5_000), payments: CommittedOffset(60)}
    results = decide(found, now, found.topic_ids, bounds, request, {payments})
    assert {r.partition: (r.reason, r.commit) for r in results} == {
        orders: (reasons.ALREADY_COMMITTED, None),
        payments: (reasons.WOULD_RESTORE, CommittedOffset(50)),
        users: (reasons.WOULD_RESTORE, CommittedOffset(7)),
    }


def test_the_later_backup_of_one_second() -> None:
    """The rest of an id is random."""
    first, second = NOW, NOW + timedelta(milliseconds=500)
    earlier, later = f"{NEW.partition('-')[0]}-ff", f"{NEW.partition('-')[0]}-00"
    backups = {
        earlier: [rows_of({"orders": 5}, id=earlier, at=first)],
        later: [rows_of({"orders": 9}, id=later, at=second)],
    }
    found = choose(RestoreRequest(id="r", groups=("billing",)), "billing", backups, {later: {OutcomeType.DELETED}})
    assert isinstance(found, Backup)
    assert found.id == later


@pytest.mark.parametrize(
    ("present", "proves"),
    [pytest.param(None, True, id="was-missing"), pytest.param(CommittedOffset(9, 2, "m"), False, id="was-replaced")],
)
def test_only_a_missing_offset_proves_a_deletion(present: CommittedOffset | None, proves: bool) -> None:
    """A later offset that a restore replaces on request was there: no deletion had taken it."""
    partition = PartitionResult(PLACE, SAVED, reasons.VERIFIED, commit=SAVED, present=present)
    result = GroupResult("billing", ResultKind.RESTORED, reasons.RESTORED, "", NOW, (partition,))
    saved = backup()
    assert proves_deletion(saved, [saved], result, was_there=True) is proves


@pytest.mark.parametrize("changes", [{"topic_ids": {"orders": "recreated"}}, {"type": "Share"}], ids=["topic", "type"])
def test_a_backup_of_another_policy_may_be_of_something_else(changes: dict[str, Any]) -> None:
    """A topic that was recreated before, or a share group of that id: its offsets say nothing of the others."""
    own = rows_of({"orders": 5}, id=NEW)
    other = rows_of({"orders": 9}, id=LATER, at=NOW + timedelta(hours=1), policy="kafka/other")
    other = replace(other, **changes)
    found = choose(BY_POLICY, "billing", {NEW: [own], LATER: [other]}, {LATER: {OutcomeType.NOT_DELETED}})
    assert found == own


@pytest.mark.parametrize(
    ("earlier", "later", "merged"),
    [
        pytest.param("Classic", "Classic", True, id="same"),
        # A group may change its protocol while it is Empty, and keeps its offsets (KIP-848, KIP-1071).
        pytest.param("Classic", "Consumer", True, id="changed-its-protocol"),
        pytest.param("Consumer", "Classic", True, id="changed-it-back"),
        pytest.param("Classic", "Streams", True, id="changed-to-Streams"),
        pytest.param("Share", "Share", True, id="share"),
        pytest.param("Share", "Consumer", False, id="after-a-share-group"),
        pytest.param("Consumer", "Share", False, id="before-a-share-group"),
    ],
)
def test_start_offsets_are_no_committed_offsets(earlier: str, later: str, merged: bool) -> None:
    """A share group of the same id was another group, whose offsets say nothing of this one's."""
    before = rows_of({"orders": 5}, id=OLD, at=NOW - DAY, type=earlier, partial=True)
    last = rows_of({"payments": 3}, id=NEW, type=later, partial=True)
    found = choose(RestoreRequest(id="r", groups=("billing",)), "billing", {OLD: [before], NEW: [last]})
    assert isinstance(found, Backup)
    assert set(found.offsets) == ({"orders", "payments"} if merged else {"payments"})


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([backup()], True, id="its-own"),
        pytest.param([backup(policy="kafka/other")], False, id="another-policy"),
        pytest.param([backup(at=NOW - DAY)], False, id="before"),
        pytest.param([backup(parts=2), None], True, id="part-damaged"),
        pytest.param([backup(parts=2, policy="kafka/other"), None], False, id="part-damaged-of-another"),
        pytest.param([None], True, id="nobody-knows-whose"),
    ],
)
def test_groups_of_a_policy(parts: list[Backup | None], expected: bool) -> None:
    """Those that it deleted since then, and those of which that can't be read: none is left out in silence."""
    request = RestoreRequest(id="r", policy="kafka/unused", deleted_after=NOW)
    assert concerns(request, {NEW: parts}) is expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param("id-1", [], id="as-it-was"),
        pytest.param("id-2", ["a-x-changelog"], id="made-anew"),
        pytest.param(Fault("UNKNOWN_TOPIC_OR_PARTITION", ""), ["a-x-changelog"], id="gone"),
        pytest.param("", ["a-x-changelog"], id="no-id-any-more"),
    ],
)
def test_lost_topics(now: str | Fault, expected: list[str]) -> None:
    """An internal topic counts only as long as it is the very same; what is not known is no answer."""
    saved = backup(internal_topics={"a-x-changelog": "id-1"})
    assert lost_topics(saved, {"a-x-changelog": now}) == expected
    unknown = lost_topics(saved, {"a-x-changelog": Fault("REQUEST_TIMED_OUT", "no answer in time")})
    assert unknown == Fault("REQUEST_TIMED_OUT", "topic a-x-changelog: no answer in time")
    message = warned(result(ResultKind.RESTORED), expected).message
    assert ("its state is gone" in message) == bool(expected)


def an_object(spec: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, Any]:
    metadata = {"name": "r", "namespace": "kafka", "uid": "uid-1", "generation": 1}
    return {"metadata": metadata, "spec": {"connectionRef": {"name": "main"}} | spec, "status": status}


def test_object_is_parsed() -> None:
    """Names are of the object's namespace, and times have their zone."""
    spec = {"policyRef": {"name": "unused"}, "deletedAfter": "2026-03-01T12:00:00Z", "outOfRangeOffsets": "Clamp"}
    connection, request = parse_restore(an_object(spec))
    assert connection == "kafka/main"
    assert request == RestoreRequest(
        id=f"{request.origin}uid-1",
        origin=request.origin,
        remembered=timedelta(days=30),
        policy="kafka/unused",
        deleted_after=NOW,
        out_of_range=OutOfRange.CLAMP,
    )
    other = {"connectionRef": {"name": "main", "namespace": "other"}, "groups": ["a"]}
    assert parse_restore(an_object(other))[0] == "other/main"


@pytest.mark.parametrize(
    ("metadata", "spec", "follows"),
    [
        pytest.param({"uid": "uid-2"}, {}, True, id="created-again"),
        pytest.param({"uid": "uid-2"}, {"ttlSecondsAfterFinished": 5}, True, id="another-ttl"),
        pytest.param({}, {}, False, id="itself"),
        pytest.param({"uid": "uid-2", "name": "s"}, {}, False, id="another-name"),
        pytest.param({"uid": "uid-2", "namespace": "other"}, {}, False, id="another-namespace"),
        pytest.param({"uid": "uid-2"}, {"groups": ["a", "b"]}, False, id="another-group"),
        pytest.param({"uid": "uid-2"}, {"at": "2026-03-01T12:00:00Z"}, False, id="another-time"),
    ],
)
def test_an_object_follows_an_earlier_one(metadata: dict[str, Any], spec: dict[str, Any], follows: bool) -> None:
    """With the same name and spec, and another uid."""
    first, later = an_object({"groups": ["a"]}), an_object({"groups": ["a"]} | spec)
    later["metadata"] |= metadata
    assert parse_restore(later)[1].follows(parse_restore(first)[1].id) is follows


def test_a_command_follows_nothing() -> None:
    """Each call of `restore` is a request of its own."""
    assert not RestoreRequest(id="b", groups=("a",)).follows("a")


_EARLIER = HistoryEntry(
    group="a",
    id="o.1",
    at=NOW,
    what=OutcomeType.RESTORED,
    reason=reasons.RESTORED,
    message="",
    policy="kafka/p",
    policy_uid="p",
    generation=1,
    expires=NOW + DAY,
)


@pytest.mark.parametrize(
    ("groups", "ready", "reason"),
    [
        pytest.param(["a"], "True", "RanBefore", id="all-were-restored"),
        pytest.param(["a", "b"], "False", "RanBefore", id="one-was-not"),
    ],
)
def test_the_status_says_that_an_earlier_object_ran(groups: list[str], ready: str, reason: str) -> None:
    """It is over, shows when the earlier one ran, and how to run it again."""
    results = [ran_before(name, {"a": _EARLIER}) for name in groups]
    status = build_restore_status(an_object({"groups": groups}), results, NOW + DAY)
    (shown,) = [condition for condition in status["conditions"] if condition["type"] == "Ready"]
    assert (shown["status"], shown["reason"]) == (ready, reason)
    assert (timestamp(NOW) in shown["message"]) is (ready == "True")
    assert "to run it again, give it another name" in shown["message"]
    assert "completionTime" in status


def test_an_unreadable_outcome_counts_as_one() -> None:
    """Of an earlier object: it may have restored the group."""
    assert ran_before("a", {"a": None}).kind is ResultKind.REFUSED


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        pytest.param({"ttlSecondsAfterFinished": 60}, {"completionTime": "2026-03-01T12:00:00Z"}, 60, id="after-it"),
        pytest.param({"ttlSecondsAfterFinished": 0}, {"completionTime": "2026-03-01T12:00:00Z"}, 0, id="at-once"),
        pytest.param({"ttlSecondsAfterFinished": 0}, {}, None, id="not-over"),
        pytest.param({"ttlSecondsAfterFinished": 0}, None, None, id="not-seen"),
        pytest.param({}, {"completionTime": "2026-03-01T12:00:00Z"}, None, id="no-ttl"),
    ],
)
def test_when_a_restore_is_deleted(spec: dict[str, Any], status: dict[str, Any] | None, expected: int | None) -> None:
    """Only one that ended, and only if it says so."""
    due = deletion_time(an_object(spec, status))
    assert due == (None if expected is None else NOW + timedelta(seconds=expected))


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="neither"),
        pytest.param({"groups": ["a"], "policyRef": {"name": "l"}, "deletedAfter": "2026-03-01T12:00:00Z"}, id="both"),
        pytest.param({"policyRef": {"name": "l"}}, id="no-time"),
        pytest.param(
            {"policyRef": {"name": "l"}, "deletedAfter": "2026-03-01T12:00:00Z", "at": "2026-03-01T12:59:59+01:00"},
            id="before-the-deletions",
        ),
        pytest.param({"groups": ["a"], "at": "noon"}, id="noon"),
        pytest.param({"groups": ["a"], "at": "2026-03-01T12:00:00"}, id="no-zone"),
        pytest.param({"groups": ["a"], "outOfRangeOffsets": "Earliest"}, id="of-a-later-version"),
    ],
)
def test_object_is_refused(spec: dict[str, Any]) -> None:
    """What the CRD would have refused, too."""
    with pytest.raises(SpecError, match="must"):
        parse_restore(an_object(spec))


def result(kind: ResultKind, name: str = "a") -> GroupResult:
    return GroupResult(name, kind, f"Because{kind}", "why")


@pytest.mark.parametrize(
    ("results", "conditions", "reason", "over"),
    [
        pytest.param([result(ResultKind.RESTORED)], {"Ready": "True"}, "Restored", True, id="restored"),
        pytest.param(
            [result(ResultKind.REFUSED), result(ResultKind.WAITING, "b")],
            {"Ready": "False", "Reconciling": "True"},
            "BecauseWaiting",
            False,
            id="waiting",
        ),
        pytest.param(
            [result(ResultKind.RESTORED), result(ResultKind.PARTLY, "b")],
            {"Ready": "False", "Stalled": "True"},
            "BecausePartly",
            True,
            id="partly",
        ),
        pytest.param([], {"Ready": "False", "Stalled": "True"}, "NoBackup", True, id="none"),
        pytest.param(
            Refusal("ConnectionNotFound", "no"),
            {"Ready": "False", "Reconciling": "True"},
            "ConnectionNotFound",
            False,
            id="problem",
        ),
        pytest.param(
            Refusal("InvalidSpec", "no"),
            {"Ready": "False", "Stalled": "True"},
            "InvalidSpec",
            True,
            id="problem-for-good",
        ),
    ],
)
def test_status_says_how_it_stands(
    results: list[GroupResult] | Refusal, conditions: dict[str, str], reason: str, over: bool
) -> None:
    """Conditions as kstatus reads them, the most urgent reason, and whether it is over."""
    status = build_restore_status(an_object({}), results, NOW)
    assert {c["type"]: c["status"] for c in status["conditions"]} == conditions
    assert {c["reason"] for c in status["conditions"]} == {reason}
    assert ("completionTime" in status) is over


def test_status_is_bounded_and_goes_on() -> None:
    """At most 100 results, those that need somebody first; times of the first try and of a transition stay."""
    many = [result(ResultKind.RESTORED, f"g-{number:03}") for number in range(150)] + [result(ResultKind.WAITING, "z")]
    status = build_restore_status(an_object({}), many, NOW)
    assert status["counts"] == {"groups": 151, "restored": 150, "partly": 0, "refused": 0, "waiting": 1}
    assert (len(status["results"]), status["truncated"]) == (RESULTS_MAX, True)
    assert status["results"][0]["group"] == "z"
    later = NOW + timedelta(hours=1)
    again = build_restore_status(an_object({}, status), many, later)
    assert again == status
    done = build_restore_status(an_object({}, again), many[:1], later)
    assert done["startTime"] == "2026-03-01T12:00:00Z"
    assert done["completionTime"] == done["conditions"][0]["lastTransitionTime"] == "2026-03-01T13:00:00Z"
