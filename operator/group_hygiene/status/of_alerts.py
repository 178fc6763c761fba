"""The conditions of a policy's alerts: Alerting and AlertsDelivered. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from group_hygiene.decide.plan import Plan
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.policy import Action
from group_hygiene.status.conditions import Conditions, Status, condition_of, in_order

ALERTING, DELIVERED = "Alerting", "AlertsDelivered"


def with_alerting(new: Status, previous: Mapping[str, Any], plan: Plan, at: datetime, goes_on: bool) -> Status:
    """The status of a run with the condition Alerting, which only policies with action Alert have.

    goes_on: whether an alert that fired before goes on because some groups could not be judged now.
    """
    if plan.policy.action is not Action.ALERT:
        return new
    conditions = Conditions(previous, new["observedGeneration"], at)
    matched, wanted = len(plan.matched), plan.policy.alert.groups_at_least
    if matched >= wanted:
        conditions.set(ALERTING, True, reasons.GROUPS_MATCHED, _counted(matched))
    elif is_alerting(previous) and goes_on:
        conditions.leave(ALERTING)
    elif matched:
        few = f"{_counted(matched)}; notify.groupsAtLeast is {wanted}"
        conditions.set(ALERTING, False, reasons.TOO_FEW_GROUPS, few)
    else:
        conditions.set(ALERTING, False, reasons.NO_GROUPS_MATCHED, "no group matches")
    return _put(new, ALERTING, conditions)


def with_delivery(
    new: Status, previous: Mapping[str, Any], failures: Mapping[str, Refusal | None], now: datetime
) -> Status:
    """The status with the condition AlertsDelivered. failures: by receiver; empty = the condition is left out."""
    conditions = Conditions(previous, new["observedGeneration"], now)
    failing = [failure for _, failure in sorted(failures.items()) if failure is not None]
    if failing:
        more = f" (and {len(failing) - 1} more of {len(failures)} receivers)" if len(failing) > 1 else ""
        conditions.set(DELIVERED, False, failing[0].reason, failing[0].message + more)
    elif failures:
        count = f"{len(failures)} receiver{'s' if len(failures) != 1 else ''}"
        conditions.set(DELIVERED, True, reasons.ALL_DELIVERED, f"{count}, no message that could not be delivered")
    return _put(new, DELIVERED, conditions)


def is_alerting(status: Mapping[str, Any]) -> bool | None:
    """Whether the policy alerts, by its status; None = the status does not have the condition."""
    found = condition_of(status, ALERTING)
    return None if found is None else found["status"] == "True"


def _put(new: Status, kind: str, conditions: Conditions) -> Status:
    others = [condition for condition in new.get("conditions") or [] if condition["type"] != kind]
    return {**new, "conditions": in_order([*others, *conditions.result()])}


def _counted(groups: int) -> str:
    return f"{groups} group{'s' if groups != 1 else ''} match{'' if groups != 1 else 'es'}"
