"""What all statuses share: conditions, the patch of a change that is worth a write, and redaction. Pure.

Conditions follow metav1.Condition and kstatus. Objects outside the connection's namespace may show their own groups
only. A message may contain another team's data: counts of groups, topics, Secrets, buckets, brokers, groups. So only
messages that concern the group itself pass; of all others, the reason stays, and a fixed sentence replaces the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from msgspec import structs

from group_hygiene.engine.plan import Plan
from group_hygiene.errors import HygieneError
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Outcome, Verdict
from group_hygiene.model.groups import Coverage, Snapshot
from group_hygiene.model.naming import message_shown
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import timestamp

# In their order in a status.
TYPES = (
    *("Ready", "Kept", "Reconciling", "Stalled", "DeletionBlocked", "LedgerReady", "EvidenceReady", "TopicsVisible"),
    *("MayNeverMatch", "PatternsMatch", "Alerting", "AlertsDelivered"),
)

_PLACES = {kind: place for place, kind in enumerate(TYPES)}

Status = dict[str, Any]

_ANNOUNCEMENTS = frozenset({"lastMarkedTime", "lastMarkedConnection", "nextDueTime"})

# What tools understand by kstatus' rules, about the object as a whole.
_KSTATUS = frozenset({"Ready", "Reconciling", "Stalled"})
# Only an edit of the object ends these.
_STALLED = frozenset({reasons.INVALID_SPEC, reasons.CLUSTER_CHANGED})

# Shorter than a minute, so that each run of a policy that runs every minute is shown.
QUIET_PERIOD = timedelta(seconds=55)
RUN_ID = "lastRunID"
# Fields that may differ at every scan, of a status and of its `groups`: if nothing else changed, they can wait.
_QUIET = frozenset(
    {
        *("lastRunTime", "lastScanTime", RUN_ID, "nextDueTime", "nextExpiryTime", "lastMarkedConnection"),
        *("groupsByReason", "truncated", "evidence", "offsetsRetentionMinutes"),
    }
)
_QUIET_OF_GROUPS = frozenset({"scanned", "skipped", "states", "types", "asOf"})
# Conditions whose message says what is wrong.
_EXPLAINING = ("Ready", "Kept", "LedgerReady", "EvidenceReady", "TopicsVisible", "AlertsDelivered")
# Reasons whose messages contain numbers that change with every scan.
COUNTING = (reasons.LIMIT_EXCEEDED, reasons.CLUSTER_TOO_SMALL)

# Reasons whose messages concern only the policy and the group.
OWN = reasons.UNMET | frozenset(
    {
        *(reasons.OWN_GROUP, reasons.CONNECT, reasons.STREAMS, reasons.STREAMS_STATE),
        *(reasons.ID_TOO_LONG, reasons.MIRROR_MAKER, reasons.SHARE, reasons.KEEP_REQUESTED),
        *(reasons.DEAD, reasons.NOT_EMPTY, reasons.SIMPLE),
        *(reasons.NO_START_OFFSET, reasons.EVIDENCE_NOT_CONFIGURED),
        *(reasons.DELETED, reasons.OFFSETS_DELETED, reasons.BECAME_ACTIVE),
        *(reasons.RECENTLY_ACTIVE, reasons.CHANGED, reasons.GONE, reasons.PENDING_TRANSACTION),
        *(reasons.POLICY_CHANGED, reasons.STOPPING, reasons.NOT_LEADER, reasons.INTERRUPTED, reasons.DRY_RUN),
        *(reasons.TOTAL_UNKNOWN, reasons.KEEP_ENDED),
    }
)
_TEXTS = {
    reasons.PROTECTED: "the connection protects it",
    reasons.CLAIMED: "a Kubernetes object names it, or such objects could not be read",
    reasons.FAILOVER_TARGET: "the connection's role is FailoverTarget: a failover may need any group",
    reasons.REAPPEARED: "it was deleted before, and exists again: not deleted until its backup expires",
    reasons.SNAPSHOT_INCOMPLETE: "groups may be missing from the answers of the brokers",
    reasons.OFFSETS_TOPIC_GROWN: "the topic __consumer_offsets has more partitions than when brokers started: "
    "restart them",
    reasons.LIMIT_EXCEEDED: "more groups are due than maxPercent of the policy or limits.maxPercent of the "
    "KafkaConnection allow: none is deleted",
    reasons.CLUSTER_TOO_SMALL: "the cluster has fewer groups than limits.minGroups of the KafkaConnection allows",
    reasons.MEMORY_EXHAUSTED: "the operator has too little memory left for it: ask for fewer groups",
    reasons.CLUSTER_CHANGED: "the connection leads to another Kafka cluster than before",
    reasons.TOPICS_HIDDEN: "committed offsets may be hidden: a permission is missing",
    reasons.TOPICS_UNKNOWN: "which topics exist, or whether all are visible, could not be read",
}

_T = TypeVar("_T", Refusal, Outcome)


def is_stalled(refusal: Refusal) -> bool:
    """Whether an object with this refusal waits for an edit (kstatus: Stalled), and not for a retry (Reconciling)."""
    return refusal.reason in _STALLED


def build_problem_status(generation: int, previous: Mapping[str, Any], problem: Refusal, now: datetime) -> Status:
    """The status of an object that could not be processed now: Ready turns False, and all else stays."""
    conditions = Conditions(previous, generation, now)
    for kind in TYPES:
        if kind not in _KSTATUS:
            conditions.leave(kind)
    conditions.not_ready(problem)
    return {**previous, "observedGeneration": generation, "conditions": conditions.result()}


def build_suspended_status(generation: int, previous: Mapping[str, Any], now: datetime) -> Status:
    """The status of a suspended policy: healthy, but inactive."""
    conditions = Conditions(previous, generation, now)
    conditions.ready(reasons.SUSPENDED, "suspended: no scans, alerts or deletions")
    inactive = without_announcements(previous)
    return {**inactive, "observedGeneration": generation, "conditions": conditions.result()}


def without_announcements(status: Mapping[str, Any]) -> Status:
    """The status of a policy that no longer runs: it shows no date of a deletion.

    When the policy runs again, its marks are made again, and their grace period begins again.
    """
    return {key: value for key, value in status.items() if key not in _ANNOUNCEMENTS}


class Conditions:
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
            "message": message_shown(message),
            "observedGeneration": self._generation,
            "lastTransitionTime": since,
        }

    def ready(self, reason: str, message: str) -> None:
        self.set("Ready", True, reason, message)

    def not_ready(self, why: Refusal, stalled: bool = False) -> None:
        """stalled: only a user can help, even if `is_stalled` of the reason is False."""
        self.set("Ready", False, why.reason, why.message)
        self.set("Stalled" if stalled or is_stalled(why) else "Reconciling", True, why.reason, why.message)

    def evidence(self, coverage: Coverage) -> None:
        problem = coverage.problem
        if problem is not None:
            self.set("EvidenceReady", False, problem.reason, problem.message)
        else:
            covered = f"the tables cover all {coverage.partitions} partitions of the offsets log"
            self.set("EvidenceReady", True, reasons.EVIDENCE_READY, covered)

    def leave(self, kind: str) -> None:
        """Copy the previous condition: this run did not check it."""
        if kind in self._before:
            self._new[kind] = {**self._before[kind]}

    def result(self) -> list[dict[str, Any]]:
        return in_order(self._new.values())


def condition_of(status: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    return next((condition for condition in status.get("conditions") or [] if condition["type"] == kind), None)


def counted(key: str, values: Iterable[str]) -> list[dict[str, Any]]:
    """How often each value occurs, as a list of {key, count}: Kubernetes prefers lists of objects to maps."""
    return [{key: str(value), "count": count} for value, count in sorted(Counter(values).items())]


def in_order(conditions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conditions in their order in a status; those that another program wrote come last."""
    return sorted(conditions, key=lambda condition: _PLACES.get(condition["type"], len(TYPES)))


def needs_write(old: Mapping[str, Any], new: Mapping[str, Any], now: datetime) -> bool:
    """Whether to write the new status: at once if an important field changed, else at most once a minute."""
    if _important(old) != _important(new):
        return True
    if _without_run(old) == _without_run(new):
        return False
    written = old.get("lastRunTime") or old.get("lastScanTime")
    return not written or now - datetime.fromisoformat(written) >= QUIET_PERIOD


def changed_conditions(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The conditions of the new status that are new, or whose status or reason changed."""
    before = {c["type"]: (c["status"], c["reason"]) for c in old.get("conditions") or []}
    return [c for c in new.get("conditions") or [] if before.get(c["type"]) != (c["status"], c["reason"])]


def with_run_id(new: Mapping[str, Any], run: str | None) -> dict[str, Any]:
    """The status with the id of the run that writes it; None = it was no run, and the status shows no id."""
    return _without_run(new) | ({RUN_ID: run} if run else {})


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) that turns `old` into `new`: removed keys become null."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if nested := merge_patch(before, value):
                patch[key] = nested
        elif value != before or key not in old:
            patch[key] = value
    return patch


def _without_run(status: Mapping[str, Any]) -> dict[str, Any]:
    """Without the run's id, which always differs."""
    return {key: value for key, value in status.items() if key != RUN_ID}


def _important(status: Mapping[str, Any]) -> dict[str, Any]:
    """What is written at once if it changed: all fields but the quiet ones, and of a sample the groups that match.

    Messages count only if something is wrong: other messages contain numbers that change with every scan.
    """
    conditions = [
        (
            c["type"],
            c["status"],
            c["reason"],
            c["message"] if c["type"] in _EXPLAINING and c["status"] == "False" and c["reason"] not in COUNTING else "",
        )
        for c in status.get("conditions") or []
    ]
    return {key: value for key, value in status.items() if key not in _QUIET} | {
        "conditions": conditions,
        "groups": {key: count for key, count in (status.get("groups") or {}).items() if key not in _QUIET_OF_GROUPS},
        "sample": [entry["group"] for entry in status.get("sample") or [] if entry["verdict"] == "Match"],
    }


def redact(why: _T, connection: str) -> _T:
    """The same record, with a message that other namespaces may read. connection: its namespace/name."""
    return why if why.reason in OWN else replace(why, message=public_message(why.reason, connection))


def public_message(reason: str, connection: str) -> str:
    """The message for other namespaces. The connection's owner reads the rest in its status and the operator's log."""
    return _TEXTS.get(reason, f"the owner of KafkaConnection {connection} can see why")


def redact_run(
    plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot, connection: str
) -> tuple[Plan, list[Outcome], Snapshot]:
    """The plan, outcomes and snapshot of a run, redacted for the policy's namespace."""

    def verdict(of: Verdict) -> Verdict:
        # The connection's owners are its namespace's own.
        evidence = structs.replace(of.evidence, owner="")
        refusal = None if of.refusal is None else redact(of.refusal, connection)
        return structs.replace(of, evidence=evidence, refusal=refusal)

    shown = replace(
        plan,
        verdicts=plan.verdicts.changed(verdict),
        refusal=None if plan.refusal is None else redact(plan.refusal, connection),
        unmarking={name: redact(why, connection) for name, why in plan.unmarking.items()},
    )
    done = [redact(each, connection) for each in outcomes]
    seen = snapshot
    if snapshot.incomplete:
        seen = replace(seen, incomplete=(_TEXTS[reasons.SNAPSHOT_INCOMPLETE],))
    if snapshot.coverage is not None and snapshot.coverage.problem is not None:
        problem = redact(snapshot.coverage.problem, connection)
        seen = replace(seen, coverage=replace(snapshot.coverage, problem=problem))
    return shown, done, seen


def redact_problem(problem: Refusal, namespace: str, connection: str) -> Refusal:
    """A problem of the connection, redacted for an object of that namespace. connection: its namespace/name."""
    return problem if connection.partition("/")[0] == namespace else redact(problem, connection)


def connection_not_ready(error: HygieneError, namespace: str, connection: str) -> Refusal:
    """The refusal for an object of that namespace while its connection can't be used."""
    # The error may contain addresses and names of Secrets: only the connection's own namespace may see these.
    detail = f": {error}" if connection.partition("/")[0] == namespace else ""
    return Refusal(reasons.CONNECTION_NOT_READY, f"KafkaConnection {connection} is not ready: {error.reason}{detail}")
