"""The GroupRestore object: parses its spec into a request, and builds its status from the results. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from msgspec import field

from group_hygiene.model import reasons
from group_hygiene.model.naming import id_shown, message_shown
from group_hygiene.model.reasons import Refusal
from group_hygiene.restore.restorable import GroupResult, OutOfRange, RestoreRequest, ResultKind
from group_hygiene.spec.crds import judged
from group_hygiene.spec.fields import Decisive, ObjectRef, convert, timestamp
from group_hygiene.status.conditions import Conditions, Status, is_stalled
from group_hygiene.status.redaction import OWN, public_message

RESULTS_MAX = 100
# Reasons whose messages concern only the group, its backup and its partitions.
OWN_RESULTS = OWN | {
    *(reasons.RESTORED, reasons.PARTLY_RESTORED, reasons.VERIFIED, reasons.ALREADY_THERE, reasons.ALREADY_COMMITTED),
    *(reasons.NO_BACKUP, reasons.BACKUP_INCOMPLETE, reasons.NOT_RESTORABLE, reasons.OUT_OF_RANGE),
    *(reasons.GROUP_ACTIVE, reasons.WOULD_RESTORE, reasons.RAN_BEFORE),
    *(reasons.TOPIC_MISSING, reasons.TOPIC_RECREATED, reasons.TOPIC_IDENTITY_UNKNOWN, reasons.ACTION_NOT_GRANTED),
}
_URGENT = (ResultKind.WAITING, ResultKind.REFUSED, ResultKind.PARTLY, ResultKind.RESTORED)


class _Spec(Decisive, frozen=True, kw_only=True):
    connection_ref: ObjectRef
    groups: tuple[str, ...] = ()
    policy_ref: ObjectRef | None = None
    deleted_after: datetime | None = None
    at: datetime | None = None
    out_of_range: OutOfRange = field(name="outOfRangeOffsets")
    allow_unknown_topic_identity: bool
    overwrite_later: bool
    ttl_seconds_after_finished: int | None = None


# For this long after it was deleted, an object that is created again with the same name and spec restores nothing.
_REMEMBERED = timedelta(days=30)


def parse_restore(obj: Mapping[str, Any]) -> tuple[str, RestoreRequest]:
    """The connection's namespace/name and the request of a GroupRestore object. Raises SpecError."""
    metadata, spec = obj["metadata"], convert(judged("GroupRestore", obj), _Spec, "spec")
    here, ref, policy = metadata["namespace"], spec.connection_ref, spec.policy_ref
    asked = {key: value for key, value in obj["spec"].items() if key != "ttlSecondsAfterFinished"}
    text = json.dumps([here, metadata["name"], asked], sort_keys=True, default=str)
    origin = hashlib.sha256(text.encode()).hexdigest()[:16] + "."
    request = RestoreRequest(
        id=origin + metadata["uid"],
        origin=origin,
        # Git may create it again as soon as it is deleted.
        remembered=_REMEMBERED + timedelta(seconds=spec.ttl_seconds_after_finished or 0),
        groups=spec.groups,
        policy=f"{here}/{policy.name}" if policy else None,
        deleted_after=spec.deleted_after,
        at=spec.at,
        out_of_range=spec.out_of_range,
        allow_unknown_topic_identity=spec.allow_unknown_topic_identity,
        overwrite_later=spec.overwrite_later,
    )
    return f"{ref.namespace or here}/{ref.name}", request


def has_ttl(obj: Mapping[str, Any]) -> bool:
    """Whether it is a GroupRestore that is deleted some time after its end."""
    # One without room is stored without its spec.
    return isinstance((obj["spec"] or {}).get("ttlSecondsAfterFinished"), int)


def deletion_time(obj: Mapping[str, Any]) -> datetime | None:
    """When to delete a GroupRestore; None = it stays, or has not ended."""
    ended = (obj.get("status") or {}).get("completionTime")
    if not ended or not has_ttl(obj):
        return None
    return datetime.fromisoformat(ended) + timedelta(seconds=obj["spec"]["ttlSecondsAfterFinished"])


def build_restore_status(obj: Mapping[str, Any], results: Sequence[GroupResult] | Refusal, now: datetime) -> Status:
    """The status of a GroupRestore after an attempt, or why there was none. Pure. obj: the current object.

    Ready = every group is restored. Reconciling: some groups wait for a retry. Stalled: only a new object helps.
    """
    previous = obj.get("status") or {}
    if isinstance(results, Refusal):
        ready, stalled, reason, message = False, is_stalled(results), results.reason, results.message
        status: Status = {key: previous[key] for key in ("counts", "results", "truncated") if key in previous}
        over = stalled
    else:
        counts = Counter(result.kind for result in results)
        by_urgency = sorted(results, key=lambda result: (_URGENT.index(result.kind), result.group))
        bad = [result for result in by_urgency if result.kind is not ResultKind.RESTORED]
        waiting = bool(counts[ResultKind.WAITING])
        ready, over, stalled = not bad and bool(results), not waiting, not waiting
        reason = reasons.RESTORED if ready else reasons.NO_BACKUP
        message = (
            f"{counts[ResultKind.RESTORED]} of {len(results)} groups are restored" if results else "no backup fits"
        )
        if shown := bad or [result for result in results if result.reason == reasons.RAN_BEFORE]:
            reason, message = shown[0].reason, f"{message}; group {shown[0].group!r}: {shown[0].message}"
        status = {
            "counts": {"groups": len(results)} | {kind.lower(): counts[kind] for kind in ResultKind},
            "results": [_entry(result) for result in by_urgency[:RESULTS_MAX]],
            "truncated": len(results) > RESULTS_MAX,
        }
    conditions = Conditions(previous, obj["metadata"]["generation"], now)
    if ready:
        conditions.ready(reason, message)
    else:
        conditions.not_ready(Refusal(reason, message), stalled)
    status |= {
        "observedGeneration": obj["metadata"]["generation"],
        "startTime": previous.get("startTime") or timestamp(now),
        "conditions": conditions.result(),
    }
    return status | ({"completionTime": previous.get("completionTime") or timestamp(now)} if over else {})


def observed_again(obj: Mapping[str, Any]) -> Status | None:
    """The status of a restore that ended, after an edit of `ttlSecondsAfterFinished`; None = there was no edit.

    Else tools that follow kstatus would wait for the operator. Pure.
    """
    status, generation = obj["status"], obj["metadata"].get("generation")
    if status.get("observedGeneration") == generation:
        return None
    conditions = [{**each, "observedGeneration": generation} for each in status.get("conditions") or []]
    return {**status, "observedGeneration": generation, "conditions": conditions}


def redact_results(results: Iterable[GroupResult], namespace: str, connection: str) -> list[GroupResult]:
    """The results, redacted for an object of that namespace. connection: its namespace/name.

    A result's message contains those of its partitions, so their reasons count, too.
    """

    def redacted(result: GroupResult) -> GroupResult:
        found = {result.reason, *(partition.reason for partition in result.partitions)}
        shown = result.message if found <= OWN_RESULTS else public_message(result.reason, connection)
        return replace(result, message=shown)

    return list(results) if connection.partition("/")[0] == namespace else [redacted(result) for result in results]


def _entry(result: GroupResult) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "group": id_shown(result.group),
        "result": str(result.kind),
        "reason": str(result.reason),
        "message": message_shown(result.message),
        "partitions": len(result.partitions),
        "restoredPartitions": result.restored,
    }
    return entry | ({"backupTime": timestamp(result.saved_at)} if result.saved_at else {})
