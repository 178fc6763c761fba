"""The status of a GroupKeep. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from group_hygiene.model import reasons
from group_hygiene.model.group_keep import KeptGroup
from group_hygiene.model.naming import id_shown, message_shown
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import timestamp
from group_hygiene.status.conditions import Conditions, Status

# Only a user of the object's namespace can help, by a restore or fewer groups. A grant comes by an edit of the
# connection: as for policies, the operator waits for it.
_FOR_USERS = frozenset({reasons.ALREADY_DELETED, reasons.TOO_MANY_KEEPS})


def build_keep_status(obj: Mapping[str, Any], found: Sequence[KeptGroup] | Refusal, now: datetime) -> Status:
    """The status of a GroupKeep after its requests were read back, or why they were not. obj: the current object.

    Kept and Ready are True if no policy and no command deletes any of its groups from now on. A group that does not
    exist is most often a typing error, so Kept is False unless the object says so, also while that can't be read; one
    that the operator deleted needs a restore first. An object that is over is Ready, as nothing is wrong with it.
    """
    conditions = Conditions(obj.get("status") or {}, obj["metadata"]["generation"], now)
    status: Status = {"observedGeneration": obj["metadata"]["generation"]}
    if isinstance(found, Refusal):
        bad: Refusal | None = found
    else:
        lost = [each for each in found if not each.protected]
        absent = [each for each in found if each.reason == reasons.GROUP_UNKNOWN]
        unread = [each for each in found if each.reason == reasons.GROUP_UNREADABLE]
        message = f"{len(found) - len(lost)} of {len(found)} groups are protected"
        bad = Refusal(lost[0].reason, f"{message}; group {lost[0].group!r}: {lost[0].message}") if lost else None
        if absent:
            message += f"; {len(absent)} of the ids are of no group, like {absent[0].group!r}"
        if unread:
            message += f"; whether {len(unread)} of them exist could not be read, like {unread[0].group!r}"
        reason, protected = next((each.reason for each in absent + unread), reasons.KEPT), message
        if reason != reasons.KEPT and bad is None and not obj["spec"].get("ignoreNotFound"):
            advice = ". Correct its id, or set ignoreNotFound if it is yet to appear" if absent else ""
            bad = Refusal(reason, message + advice)
        status |= {
            "counts": {"groups": len(found), "protected": len(found) - len(lost)},
            "results": [_entry(each) for each in sorted(found, key=lambda each: (each.protected, each.group))],
        }
    if bad is None:
        conditions.ready(reason, protected)
        conditions.set("Kept", True, reason, protected)
    else:
        if bad.reason == reasons.KEEP_ENDED:
            conditions.ready(bad.reason, bad.message)
        else:
            conditions.not_ready(bad, stalled=not isinstance(found, Refusal) and bad.reason in _FOR_USERS)
        conditions.set("Kept", False, bad.reason, bad.message)
    return status | {"conditions": conditions.result()}


def _entry(of: KeptGroup) -> dict[str, Any]:
    entry: dict[str, Any] = {"group": id_shown(of.group), "protected": of.protected}
    if of.reason:
        entry |= {"reason": of.reason, "message": message_shown(". ".join(filter(None, (of.message, of.remedy))))}
    if of.state is not None:
        entry |= {"exists": bool(of.state)} | ({"state": of.state} if of.state else {})
    if of.unchanged_since is not None:
        entry["unchangedSince"] = timestamp(of.unchanged_since)
    if of.idle_since is not None:
        entry["idleSince"] = timestamp(of.idle_since)
    if of.client:
        entry["lastClient"] = of.client
    if of.until is not None:
        entry["until"] = timestamp(of.until)
    if of.due is not None:
        entry |= {"dueTime": timestamp(of.due)} | ({"policy": of.policy} if of.policy else {})
    if of.due_reason is not None:
        entry["dueReason"] = str(of.due_reason)
    return entry
