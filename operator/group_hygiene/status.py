"""The status of both kinds: conditions, counts, samples, and whether a change is worth a write. Pure.

Conditions follow metav1.Condition and kstatus: Ready always; Reconciling and Stalled only while True. Bounded: counts,
and at most 20 sample groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from group_hygiene import reasons
from group_hygiene.model import Activity, Coverage, Group, Keep, Outcome, OutcomeKind, Snapshot, Verdict
from group_hygiene.plan import FAILURES, Plan
from group_hygiene.policy import Action, Mode, Policy, format_duration

SAMPLE_SIZE = 20
QUIET_PERIOD = timedelta(minutes=5)
_MESSAGE_LENGTH = 1_000
# Conditions whose message somebody must read to mend what is wrong.
_TELLING = ("Ready", "LedgerReady", "EvidenceReady")
_ORDER = ("Ready", "Reconciling", "Stalled", "DeletionBlocked", "LedgerReady", "EvidenceReady")

Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a run did not come to an answer. stalled: only an edit can help, so waiting is pointless."""

    reason: str
    message: str
    stalled: bool = False


def timestamp(moment: datetime) -> str:
    """RFC 3339 with seconds, as Kubernetes writes times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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
    conditions = _Conditions(previous, policy.generation, now)
    if not snapshot.complete:
        conditions.not_ready(reasons.SNAPSHOT_INCOMPLETE, "; ".join(snapshot.incomplete[:3]))
    elif failed or failed_outcomes:
        reason, message = _first_failure(failed, failed_outcomes)
        conditions.not_ready(reason, message)
    elif policy.match.beyond:
        conditions.ready(reasons.ACCESS_LIMITED, f"{_summary(plan, outcomes)}; {_access(policy)}")
    else:
        conditions.ready(reasons.SUCCEEDED, _summary(plan, outcomes))
    if policy.action is Action.DELETE:
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
        "reasons": dict(sorted(_reason_counts(plan, by_group).items())),
        "sample": sample,
        "truncated": len(plan.verdicts) > len(sample),
    }


def told(status: Mapping[str, Any]) -> datetime | None:
    """The date of the newest mark that a policy's status shows; None = it shows none."""
    text = status.get("lastMarkedTime")
    return None if text is None else datetime.fromisoformat(text)


def _marked_time(plan: Plan, previous: Mapping[str, Any]) -> dict[str, str]:
    """What `told` reads at the next run. It stays when marks end, and never moves back."""
    newest = max((mark.since for mark in plan.marks.values()), default=None)
    dates = [timestamp(date) for date in (newest, plan.at if plan.marking else None) if date is not None]
    if previous.get("lastMarkedTime"):
        dates.append(previous["lastMarkedTime"])
    return {"lastMarkedTime": max(dates)} if dates else {}


def build_problem_status(generation: int, previous: Mapping[str, Any], problem: Problem, now: datetime) -> Status:
    """A status for an object that could not be looked at: what was seen before stays, Ready turns False."""
    conditions = _Conditions(previous, generation, now)
    conditions.not_ready(problem.reason, problem.message, stalled=problem.stalled)
    return {**previous, "observedGeneration": generation, "conditions": conditions.result()}


def build_suspended_status(generation: int, previous: Mapping[str, Any], now: datetime) -> Status:
    """A status for a suspended policy: healthy, and doing nothing."""
    conditions = _Conditions(previous, generation, now)
    conditions.ready(reasons.SUSPENDED, "suspended: nothing is looked at, alerted or deleted")
    return {**previous, "observedGeneration": generation, "conditions": conditions.result()}


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What is known of a connection's ledger. id: None = not known. problem: why nothing may be written to it."""

    topic: str
    id: str | None
    unreadable: int
    problem: Keep | None = None


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """What a connection's status shows beside its conditions.

    retention: the brokers' offsets.retention.minutes, None = not known. all_groups: None = no full list in this run.
    ledger: None = no policy needs one. has_activity: whether its spec names the tables of a pipeline.
    """

    snapshot: Snapshot
    features: Sequence[str]
    retention: timedelta | None
    all_groups: Mapping[str, Group] | None
    problem: Problem | None = None
    ledger: LedgerFacts | None = None
    has_activity: bool = False


def build_connection_status(generation: int, previous: Mapping[str, Any], facts: ConnectionFacts) -> Status:
    """A connection's status after a scan."""
    snapshot = facts.snapshot
    now = snapshot.taken_at
    conditions = _Conditions(previous, generation, now)
    brokers = {"answered": snapshot.answered, "expected": len(snapshot.cluster.brokers)}
    if facts.problem is not None:
        conditions.not_ready(facts.problem.reason, facts.problem.message, stalled=facts.problem.stalled)
    elif not snapshot.complete:
        conditions.not_ready(reasons.SNAPSHOT_INCOMPLETE, "; ".join(snapshot.incomplete[:3]))
    else:
        notes = "".join(f"; {note}" for note in snapshot.notes)
        conditions.ready(reasons.CONNECTED, f"{brokers['answered']} of {brokers['expected']} brokers answer{notes}")
    if facts.ledger is not None:
        why = facts.ledger.problem or Keep(reasons.LEDGER_READY, f"topic {facts.ledger.topic}")
        conditions.set("LedgerReady", facts.ledger.problem is None, why.reason, why.message)
    if facts.has_activity:
        if snapshot.coverage is not None:
            conditions.evidence(snapshot.coverage)
        else:
            conditions.leave("EvidenceReady")
    status: Status = {
        **previous,
        "observedGeneration": generation,
        "conditions": conditions.result(),
        "clusterId": previous.get("clusterId") or snapshot.cluster.id,
        "brokers": brokers,
        "features": list(facts.features),
        "lastScanTime": timestamp(now),
    }
    if facts.ledger is not None:
        status["ledger"] = _ledger(facts.ledger, previous.get("ledger") or {})
    if not facts.has_activity:
        status.pop("evidence", None)
    elif snapshot.coverage is not None:
        status["evidence"] = _evidence(snapshot.coverage)
    if facts.retention is not None:
        status["offsetsRetentionMinutes"] = facts.retention // timedelta(minutes=1)
    if facts.all_groups is not None and snapshot.complete:
        groups = facts.all_groups.values()
        status["groups"] = {
            "total": len(groups),
            "byState": dict(sorted(Counter(str(group.state) for group in groups).items())),
            "byType": dict(sorted(Counter(str(group.type) for group in groups).items())),
            "asOf": timestamp(now),
        }
    return status


def _ledger(facts: LedgerFacts, before: Mapping[str, Any]) -> dict[str, Any]:
    """The id stays while there is a problem: another ledger must not become ours by being looked at."""
    id_ = before.get("id") if facts.problem is not None else facts.id or before.get("id")
    return {"topic": facts.topic, "unreadableRecords": facts.unreadable, **({"id": id_} if id_ else {})}


def _evidence(coverage: Coverage) -> dict[str, Any]:
    as_of = {} if coverage.as_of is None else {"asOf": timestamp(coverage.as_of)}
    return {"coveredPartitions": coverage.covered, "partitions": coverage.partitions, **as_of}


def needs_write(old: Mapping[str, Any], new: Mapping[str, Any], now: datetime) -> bool:
    """Whether the difference is worth a write: at once for what people act on, else at most every five minutes."""
    if _telling(old) != _telling(new):
        return True
    if old == new:
        return False
    written = old.get("lastRunTime") or old.get("lastScanTime")
    return not written or now - datetime.fromisoformat(written) >= QUIET_PERIOD


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) that turns `old` into `new`: what vanished becomes null."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if nested := merge_patch(before, value):
                patch[key] = nested
        elif value != before or key not in old:
            patch[key] = value
    return patch


def _telling(status: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a change of is news: not times, not how many groups were looked at, not why groups stay.

    Messages count only where something is wrong: the others tell numbers that change with every scan.
    """
    groups = status.get("groups") or {}
    return (
        status.get("observedGeneration"),
        [
            (
                c["type"],
                c["status"],
                c["reason"],
                c["message"] if c["type"] in _TELLING and c["status"] == "False" else "",
            )
            for c in status.get("conditions") or []
        ],
        [groups.get(key) for key in ("matched", "marked", "due", "deleted", "failed", "total")],
        status.get("totals"),
        status.get("lastMarkedTime"),
        [entry["group"] for entry in status.get("sample") or [] if entry["verdict"] == "Match"],
        [status.get(key) for key in ("clusterId", "brokers", "features", "ledger")],
    )


def _summary(plan: Plan, outcomes: Sequence[Outcome]) -> str:
    matched, looked_at = len(plan.matched), len(plan.verdicts)
    text = f"{matched} of {looked_at} groups match"
    if plan.policy.action is Action.ALERT or not matched:
        return text
    if plan.policy.mode is Mode.DRY_RUN:
        refused = "" if plan.refusal is None else f", but for this: {plan.refusal.message}"
        grace = format_duration(plan.policy.grace_period)
        return f"{text}; dry run: mode Enforce would mark them, and delete them {grace} later{refused}"
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
    return f"{text}; {deleted} deleted{kept}{later}"


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
    """What matches first, in the order of deletion; then what is kept, a few of each reason before more of one."""
    due = set(plan.due)
    matched = [*plan.due, *sorted(set(plan.matched) - due, key=lambda name: (plan.due_time(name) or plan.at, name))]
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
        "group": verdict.group.id,
        "state": str(verdict.group.state),
        "type": str(verdict.group.type),
        "verdict": "Match" if verdict.matches else "Keep",
    }
    why = outcome or verdict.keep
    if why is not None:
        entry |= {"reason": why.reason, "message": _cut(why.message)}
    if verdict.evidence.unchanged is not None:
        entry["unchangedSince"] = timestamp(verdict.evidence.unchanged.since)
    activity = verdict.evidence.activity
    if isinstance(activity, Activity) and activity.idle_since is not None:
        entry["idleSince"] = timestamp(activity.idle_since)
    due_time, mark = plan.due_time(verdict.group.id), plan.marks.get(verdict.group.id)
    deleted = outcome is not None and outcome.kind is OutcomeKind.DELETED
    if due_time is not None and not deleted:
        entry |= {"markedSince": timestamp(mark.since if mark else plan.at), "dueTime": timestamp(due_time)}
    return entry


def _cut(message: str) -> str:
    return message if len(message) <= _MESSAGE_LENGTH else message[: _MESSAGE_LENGTH - 3] + "..."


class _Conditions:
    """Collects the conditions of one status; a lastTransitionTime moves only when a condition's status does."""

    def __init__(self, previous: Mapping[str, Any], generation: int, now: datetime) -> None:
        self._before = {condition["type"]: condition for condition in previous.get("conditions") or []}
        self._generation, self._now = generation, now
        self._new: dict[str, dict[str, Any]] = {}

    def set(self, kind: str, true: bool, reason: str, message: str) -> None:
        status = "True" if true else "False"
        before = self._before.get(kind)
        since = before["lastTransitionTime"] if before and before["status"] == status else timestamp(self._now)
        self._new[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": _cut(message),
            "observedGeneration": self._generation,
            "lastTransitionTime": since,
        }

    def ready(self, reason: str, message: str) -> None:
        self.set("Ready", True, reason, message)

    def not_ready(self, reason: str, message: str, stalled: bool = False) -> None:
        self.set("Ready", False, reason, message)
        self.set("Stalled" if stalled else "Reconciling", True, reason, message)

    def evidence(self, coverage: Coverage) -> None:
        why = coverage.problem or Keep(
            reasons.EVIDENCE_READY, f"the tables cover all {coverage.partitions} partitions of the offsets log"
        )
        self.set("EvidenceReady", coverage.problem is None, why.reason, why.message)

    def leave(self, kind: str) -> None:
        """As it was: nobody looked this time."""
        if kind in self._before:
            self._new[kind] = {**self._before[kind]}

    def result(self) -> list[dict[str, Any]]:
        return [self._new[kind] for kind in _ORDER if kind in self._new]
