"""The status of a `GroupPolicy` after a run that looked at the cluster. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from group_hygiene import reasons
from group_hygiene.durations import format_duration, timestamp
from group_hygiene.lag import standing_of
from group_hygiene.model import Activity, Outcome, OutcomeKind, Verdict
from group_hygiene.naming import id_shown, message_shown
from group_hygiene.plan import FAILURES, Plan
from group_hygiene.policy import Action, Mode, Policy
from group_hygiene.snapshot import Snapshot
from group_hygiene.status.conditions import Conditions, Status

SAMPLE_SIZE = 20
_TOPICS_SHOWN = 10


def build_status(
    policy: Policy,
    previous: Mapping[str, Any],
    plan: Plan,
    outcomes: Sequence[Outcome],
    snapshot: Snapshot,
    owed: int = 0,
) -> Status:
    """A policy's status after a run that looked at the cluster.

    previous: the status that the object has now. owed: deleted by earlier runs whose status could not be written.
    """
    now = snapshot.taken_at
    by_group = {outcome.group: outcome for outcome in outcomes}
    deleted = sum(outcome.kind is OutcomeKind.DELETED for outcome in outcomes)
    failed = {name: v.keep for name, v in plan.verdicts.items() if v.keep and v.keep.reason in FAILURES}
    failed_outcomes = [outcome for outcome in outcomes if outcome.kind is OutcomeKind.FAILED]
    conditions = Conditions(previous, policy.generation, now)
    if not snapshot.complete:
        conditions.not_ready(reasons.SNAPSHOT_INCOMPLETE, "; ".join(snapshot.incomplete[:3]))
    elif failed or failed_outcomes:
        reason, message = _first_failure(failed, failed_outcomes)
        conditions.not_ready(reason, message)
    else:
        reason, message = _success(plan, outcomes, snapshot)
        conditions.ready(reason, message)
    if policy.action.changes:
        refusal = plan.refusal
        reason, message = (refusal.reason, refusal.message) if refusal else (reasons.NOT_BLOCKED, "")
        conditions.set("DeletionBlocked", refusal is not None, reason, message)
    if policy.when.asks_evidence and snapshot.coverage is not None:
        conditions.evidence(snapshot.coverage)
    sample = _sample(plan, by_group)
    next_due = _next_due(plan)
    return {
        "observedGeneration": policy.generation,
        "lastRunTime": timestamp(now),
        "conditions": conditions.result(),
        "groups": {
            "scanned": plan.scanned,
            "matched": len(plan.matched),
            "marked": len(plan.marked) - deleted,
            "due": len(plan.due),
            "deleted": deleted,
            "kept": sum(not verdict.matches for verdict in plan.verdicts.values()) - len(failed),
            "failed": len(failed) + len(failed_outcomes),
        },
        "totals": {"deleted": int((previous.get("totals") or {}).get("deleted", 0)) + owed + deleted},
        **_marked_time(plan, previous),
        **({} if next_due is None else {"nextDueTime": timestamp(next_due)}),
        **({} if plan.next_expiry is None else {"nextExpiryTime": timestamp(plan.next_expiry)}),
        "reasons": dict(sorted(_reason_counts(plan, by_group).items())),
        "sample": sample,
        "truncated": len(plan.verdicts) > len(sample),
    }


def told(status: Mapping[str, Any]) -> datetime | None:
    """The date of the newest mark that a policy's status shows; None = it shows none that can be read.

    The API server takes every `date-time` of RFC 3339: small letters, and seconds of 60, which Python does not know.
    """
    try:
        date = datetime.fromisoformat(str(status.get("lastMarkedTime")).upper())
        return date.astimezone(UTC) if date.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def warns_late(plan: Plan, snapshot: Snapshot) -> str | None:
    """Why offsets may be gone before `expiresWithin` tells of them, in words; None = it tells in time.

    A group that becomes Empty right after the log was read is known when it is read again, and told at the next run.
    """
    policy, within = plan.policy, plan.policy.when.expires_within
    if within is None:
        return None
    # No offset has more time left than brokers keep it for.
    kept = min([within, *filter(None, (verdict.evidence.retention for verdict in plan.verdicts.values()))])
    max_age = snapshot.coverage.max_age if snapshot.coverage is not None else None
    if kept > policy.interval + (max_age or timedelta()):
        return None
    what = "expiresWithin" if kept == within else "offsets.retention.minutes"
    age = "" if max_age is None else f" and activity.maxAge ({format_duration(max_age)}) together"
    return (
        f"{what} ({format_duration(kept)}) is not longer than interval ({format_duration(policy.interval)}){age}: "
        "offsets may be gone before anybody is told"
    )


def _marked_time(plan: Plan, previous: Mapping[str, Any]) -> dict[str, str]:
    """What `told` reads at the next run. It stays when marks end, and never moves back."""
    newest = max((mark.newest for mark in plan.marks.values()), default=None)
    dates = [date for date in (newest, plan.at if plan.marking else None, told(previous)) if date is not None]
    return {"lastMarkedTime": timestamp(max(dates))} if dates else {}


def _success(plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot) -> tuple[str, str]:
    """Reason and message of a run that went well: what it found, and what stands in the policy's way by its spec."""
    beyond = _access(plan.policy) if plan.policy.match.beyond else None
    late = warns_late(plan, snapshot)
    reason = reasons.ACCESS_LIMITED if beyond else reasons.MAY_WARN_LATE if late else reasons.SUCCEEDED
    return reason, "; ".join(filter(None, (_summary(plan, outcomes), beyond, late)))


def _summary(plan: Plan, outcomes: Sequence[Outcome]) -> str:
    matched, looked_at = len(plan.matched), len(plan.verdicts)
    text = f"{matched} of {looked_at} groups match"
    if plan.policy.action is Action.ALERT or not matched:
        return text
    if plan.policy.mode is Mode.DRY_RUN:
        refused = "" if plan.refusal is None else f", but for this: {plan.refusal.message}"
        grace = format_duration(plan.policy.grace_period)
        them = plan.policy.action.what_of("them")
        return f"{text}; dry run: mode Enforce would mark them, and delete {them} {grace} later{refused}"
    deleted = sum(outcome.kind is OutcomeKind.DELETED for outcome in outcomes)
    marked, next_due = len(plan.marked) - deleted, _next_due(plan)
    if marked:
        text += f"; {marked} marked"
    if next_due is not None and not plan.due:
        text += f", the first is due at {timestamp(next_due)}"
    if plan.refusal is not None:
        return f"{text}; none is {'deleted' if plan.due else 'marked'}: {plan.refusal.message}"
    if not plan.due:
        return text
    waiting = len(plan.due) - len(plan.actions)
    why = "nobody was warned of some" if plan.untold else "maxPerRun"
    later = f", {waiting} wait for the next run ({why})" if waiting else ""
    kept = f", {len(outcomes) - deleted} kept" if deleted < len(outcomes) else ""
    return f"{text}; {plan.policy.action.what_of(str(deleted))} deleted{kept}{later}"


def _next_due(plan: Plan) -> datetime | None:
    """When the first of the marked groups may be deleted."""
    return min(filter(None, map(plan.due_time, (*plan.marks, *plan.marking))), default=None)


def _access(policy: Policy) -> str:
    granted = ", ".join(map(repr, policy.match.within.sources)) if policy.match.within else ""
    beyond = ", ".join(map(repr, policy.match.beyond))
    return (
        f"{beyond} reaches beyond what the KafkaConnection grants to namespace {policy.namespace} ({granted}): "
        "nothing else is looked at"
    )


def _first_failure(failed: Mapping[str, Any], outcomes: Sequence[Outcome]) -> tuple[str, str]:
    """The most urgent failure in words: what needs somebody (a denied permission) before what may pass by itself."""
    all_failures = [(keep.reason, name, keep.message) for name, keep in failed.items()]
    all_failures += [(outcome.reason, outcome.group, outcome.message) for outcome in outcomes]
    reason, name, message = min(all_failures, key=lambda failure: (failure[0] != reasons.DENIED, failure[1]))
    more = f" (and {len(all_failures) - 1} more groups)" if len(all_failures) > 1 else ""
    return reason, f"group {name!r}: {message}{more}"


def _reason_counts(plan: Plan, outcomes: Mapping[str, Outcome]) -> Counter[str]:
    counts = Counter(verdict.keep.reason for verdict in plan.verdicts.values() if verdict.keep is not None)
    counts.update(outcome.reason for outcome in outcomes.values())
    return counts


def _sample(plan: Plan, outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """What matches first, in the order of deletion or expiry; then what is kept, a few of each reason before more."""
    due = set(plan.due)
    matched = [*plan.due, *sorted(set(plan.matched) - due, key=lambda name: (plan.due_time(name) or plan.at, name))]
    if plan.policy.when.asks_expiry_only:
        matched.sort(key=lambda name: plan.verdicts[name].expires or plan.at)
    by_reason: dict[str, list[str]] = {}
    for name, verdict in sorted(plan.verdicts.items()):
        if verdict.keep is not None:
            by_reason.setdefault(verdict.keep.reason, []).append(name)
    kept: list[str] = []
    for turn in range(SAMPLE_SIZE):
        kept += [names[turn] for _, names in sorted(by_reason.items()) if turn < len(names)]
    return [_entry(plan, plan.verdicts[name], outcomes.get(name)) for name in [*matched, *kept][:SAMPLE_SIZE]]


def _entry(plan: Plan, verdict: Verdict, outcome: Outcome | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "group": id_shown(verdict.group.id),
        "state": str(verdict.group.state),
        "type": str(verdict.group.type),
        "verdict": "Match" if verdict.matches else "Keep",
    }
    if verdict.topics:
        entry["topics"] = plan.first_topics(verdict.group.id)[:_TOPICS_SHOWN]
    why = outcome or verdict.keep
    if why is not None:
        entry |= {"reason": why.reason, "message": message_shown(why.message)}
    if verdict.evidence.unchanged is not None:
        entry["unchangedSince"] = timestamp(verdict.evidence.unchanged.since)
    activity = verdict.evidence.activity
    if isinstance(activity, Activity) and activity.idle_since is not None:
        entry["idleSince"] = timestamp(activity.idle_since)
    entry |= standing_entry(plan.policy, verdict)
    if verdict.expires is not None:
        entry["expiresTime"] = timestamp(verdict.expires)
    due_time, mark = plan.due_time(verdict.group.id), plan.marks.get(verdict.group.id)
    deleted = outcome is not None and outcome.kind is OutcomeKind.DELETED
    if due_time is not None and not deleted:
        entry |= {"markedSince": timestamp(mark.since if mark else plan.at), "dueTime": timestamp(due_time)}
    return entry


def standing_entry(policy: Policy, verdict: Verdict) -> dict[str, int]:
    """`lag` in records, and `outOfRange` in partitions where there are such; empty where not asked or not all known."""
    found = standing_of(verdict.evidence) if policy.when.asks_bounds and verdict.evidence.offsets else None
    if found is None or found.fault is not None:
        return {}
    return {"lag": found.unread} | ({"outOfRange": found.outside} if found.outside else {})
