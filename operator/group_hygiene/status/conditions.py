"""Conditions, by metav1.Condition and kstatus, and statuses that consist only of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from group_hygiene.model import reasons
from group_hygiene.model.groups import Coverage
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
