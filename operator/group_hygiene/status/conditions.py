"""Conditions, as metav1.Condition and kstatus have them, and the statuses that are nothing else. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from group_hygiene import reasons
from group_hygiene.durations import timestamp
from group_hygiene.model import Keep
from group_hygiene.naming import message_shown
from group_hygiene.snapshot import Coverage

# In the order in which statuses have them.
TYPES = (
    *("Ready", "Reconciling", "Stalled", "DeletionBlocked", "LedgerReady", "EvidenceReady"),
    *("Alerting", "AlertsDelivered"),
)

Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a run did not come to an answer. stalled: only an edit can help, so waiting is pointless."""

    reason: str
    message: str
    stalled: bool = False


def build_problem_status(generation: int, previous: Mapping[str, Any], problem: Problem, now: datetime) -> Status:
    """A status for an object that could not be looked at: what was seen before stays, Ready turns False."""
    conditions = Conditions(previous, generation, now)
    conditions.not_ready(problem.reason, problem.message, stalled=problem.stalled)
    return {**previous, "observedGeneration": generation, "conditions": conditions.result()}


def build_suspended_status(generation: int, previous: Mapping[str, Any], now: datetime) -> Status:
    """A status for a suspended policy: healthy, and doing nothing."""
    conditions = Conditions(previous, generation, now)
    conditions.ready(reasons.SUSPENDED, "suspended: nothing is looked at, alerted or deleted")
    return {**previous, "observedGeneration": generation, "conditions": conditions.result()}


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
        return in_order(self._new.values())


def in_order(conditions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conditions in the order in which statuses have them."""
    return sorted(conditions, key=lambda condition: TYPES.index(condition["type"]))
