"""Writes changed statuses, and Events when a condition changes or groups are marked or deleted. Decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from group_hygiene.controller.api import KINDS, Api
from group_hygiene.controller.objects import CONNECTIONS, POLICIES, Object, Objects, connection_of, key_of
from group_hygiene.controller.recorder import Recorder
from group_hygiene.decide.lag import skipped_by_latest
from group_hygiene.decide.plan import Plan
from group_hygiene.errors import Conflict, NotFound, Refused
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.naming import truncated_list
from group_hygiene.model.reasons import Refusal
from group_hygiene.process import runs
from group_hygiene.process.clock import Clock
from group_hygiene.spec.fields import format_duration
from group_hygiene.spec.policy import Action, Mode, Policy
from group_hygiene.status.conditions import Status, build_problem_status, condition_of, without_announcements
from group_hygiene.status.patch import changed_conditions, merge_patch, needs_write, signed
from group_hygiene.telemetry.metrics import Metrics

# Conditions that become Events, and their status that is a warning.
_WARNS = {"Ready": "False", "EvidenceReady": "False", "MayNeverMatch": "True"}
_NAMES_IN_EVENT, _TOPICS_IN_EVENT = 10, 3
_WRITE_ATTEMPTS = 5
_AGAIN_S = 10.0

log = logging.getLogger(__name__)


class StatusWriter:
    """Writes statuses and Events of the objects that one loop serves.

    lease_namespace: a connection's status shows it, so that other releases know who serves the connection.
    """

    def __init__(
        self, api: Api, objects: Objects, recorder: Recorder, metrics: Metrics, clock: Clock, lease_namespace: str
    ) -> None:
        self._api, self._objects, self._recorder, self._served_by = api, objects, recorder, lease_namespace
        self._metrics, self._clock = metrics, clock
        # uid of an object whose status was refused -> when it is due again, in monotonic seconds.
        self._refused: dict[str, float] = {}

    def write(self, plural: str, obj: Object, new: Status) -> bool:
        """Patch the status if the change needs a write, even if the object was edited since it was read.

        False = the API server refuses the status of this object, which is due again soon (`take_refused`). Raises
        ApiError if the API server does not answer.
        """
        metadata = obj["metadata"]
        if plural == CONNECTIONS:
            new = {**new, "servedBy": self._served_by}
        name = f"{KINDS[plural]} {metadata['namespace']}/{metadata['name']}"
        # Before the write, which may be refused: then the log alone has the cause.
        for condition in changed_conditions(obj.get("status") or {}, new):
            log.info("%s: %s", name, "{type} {status} {reason}: {message}".format(**condition).removesuffix(": "))
        try:
            self._patch(plural, obj, new)
        except Refused as error:
            log.warning("%s: its status could not be written: %s; trying again", name, error)
            self._metrics.status_refused(plural, key_of(obj) if plural == POLICIES else None)
            self._recorder.event(plural, obj, reasons.STATUS_REFUSED, f"its status is out of date: {error}", True)
            self._refused[metadata["uid"]] = self._clock.monotonic() + _AGAIN_S
            return False
        return True

    def take_refused(self) -> set[str]:
        """Return and forget the uids of objects whose refused status must be written again now."""
        now = self._clock.monotonic()
        due = {uid for uid, at in self._refused.items() if at <= now}
        self._refused = {uid: at for uid, at in self._refused.items() if uid not in due}
        return due

    def seconds_to_wait(self) -> float | None:
        """Seconds until the next refused status is due; None = there is none."""
        now = self._clock.monotonic()
        return min((max(0.0, at - now) for at in self._refused.values()), default=None)

    def _patch(self, plural: str, obj: Object, new: Status) -> None:
        api, old = self._api, obj.get("status") or {}
        if not needs_write(old, new, self._clock.now()):
            return
        patch = merge_patch(old, signed(new, runs.current().get("run")))
        try:
            for attempt in range(_WRITE_ATTEMPTS):
                try:
                    # The next round sees it, even if the watch is late.
                    self._objects.put(plural, api.patch_status(plural, obj, patch))
                    break
                except Conflict:
                    if attempt == _WRITE_ATTEMPTS - 1:
                        raise
                fresh = api.get(plural, obj["metadata"]["namespace"], obj["metadata"]["name"])
                if fresh["metadata"]["uid"] != obj["metadata"]["uid"]:
                    return
                obj = fresh
        except NotFound:
            # It was deleted since it was read, maybe after a conflict.
            return
        self._metrics.status_written(plural)
        self._record_conditions(plural, obj, old, new)

    def write_problem(self, plural: str, obj: Object, problem: Refusal, is_active: bool = True) -> None:
        """is_active: False for a policy that does not run until an object is edited, so that its marks end.

        So do those that it got by another connection than the one that has the problem.
        """
        generation = int(obj["metadata"].get("generation") or 0)
        old = obj.get("status") or {}
        marked_by = old.get("lastMarkedConnection")
        stays = is_active and (marked_by is None or marked_by == "/".join(connection_of(obj)))
        previous = old if stays else without_announcements(old)
        self.write(plural, obj, build_problem_status(generation, previous, problem, self._clock.now()))

    def _record_conditions(self, plural: str, obj: Object, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Record an Event if Ready's status or reason changed, and one for each other new warning of the run."""
        had_ready, ready = condition_of(old, "Ready"), condition_of(new, "Ready")
        for condition in changed_conditions(old, new):
            kind, reason = condition["type"], condition["reason"]
            warning = kind in _WARNS and condition["status"] == _WARNS[kind]
            is_shown = kind == "Ready" and (warning or had_ready is not None)
            if is_shown or (warning and (ready is None or ready["reason"] != reason)):
                self._recorder.event(plural, obj, reason, condition["message"], warning)

    def record_changes(self, obj: Object, plan: Plan, outcomes: Sequence[Outcome]) -> bool:
        """Record the Events of the marks and deletions of one run. Returns whether an Event shows new marks."""
        record, shows_marks = self._recorder.event, False
        if plan.marking:
            marked = sorted(plan.marking)
            when = f"after {format_duration(plan.policy.grace_period)}, unless they are used or protected"
            message = f"{_counted(plan.policy, marked)} will be deleted {when}: {_names(plan, marked)}"
            skipped = skipped_by_latest(plan.verdicts[group] for group in marked)
            message += f"; {skipped}" if skipped else ""
            shows_marks = record(POLICIES, obj, reasons.GROUPS_MARKED, message, True)
        deleted = [outcome.group for outcome in outcomes if outcome.kind is OutcomeType.DELETED]
        if deleted:
            message = f"deleted {_counted(plan.policy, deleted)}: {_names(plan, deleted)}"
            record(POLICIES, obj, reasons.GROUPS_DELETED, message)
        return shows_marks

    def record_findings(self, obj: Object, new: Status, plan: Plan) -> None:
        """Record the Events of new matches, and of why due groups are not deleted, after the status shows them."""
        record = self._recorder.event
        before, enforced = obj.get("status") or {}, plan.policy.mode is Mode.ENFORCE
        alert = plan.policy.action is Action.ALERT
        matched = plan.due or plan.matched
        changed = len(matched) >= plan.policy.alert.groups_at_least and _matching(before) != _matching(new)
        if matched and (alert or not enforced) and changed:
            verb = "match" if alert else "would be deleted (DryRun)"
            message = f"{_counted(plan.policy, matched)} {verb}: {_names(plan, matched)}"
            record(POLICIES, obj, reasons.GROUPS_MATCHED, message, alert)
        blocked, ready = condition_of(before, "DeletionBlocked"), condition_of(new, "Ready")
        if plan.blocked is None or (ready is not None and ready["reason"] == plan.blocked.reason):
            # Ready is then False for the same reason, which already is an Event.
            return
        if blocked is None or blocked["reason"] != plan.blocked.reason:
            record(POLICIES, obj, plan.blocked.reason, plan.blocked.message, True)


def _matching(of: Mapping[str, Any]) -> tuple[int, frozenset[str]]:
    """The number of matching groups in a status, and the names of those in its sample."""
    named = frozenset(row["group"] for row in of.get("sample") or [] if row["verdict"] == "Match")
    return (of.get("groups") or {}).get("matched", 0), named


def _counted(policy: Policy, groups: Sequence[str]) -> str:
    return policy.action.describe_targets(f"{len(groups)} group{'s' if len(groups) != 1 else ''}")


def _names(plan: Plan, groups: Sequence[str]) -> str:
    def shown(group: str) -> str:
        topics = sorted(plan.verdicts[group].topics) if group in plan.verdicts else []
        return repr(group) + (f" ({truncated_list(topics, _TOPICS_IN_EVENT)})" if topics else "")

    return truncated_list(groups, _NAMES_IN_EVENT, shown)
