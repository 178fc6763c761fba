"""Writes changed statuses, and Events when a condition changes or groups are marked or deleted. Decides nothing.

An Event is one object per reason and message; when it happens again, its count increases.

`Unserved` writes the statuses of policies, restores and keeps that don't run: suspended, not valid, not admitted. It
deletes restores that ended `ttlSecondsAfterFinished` ago, and notes edits of that field. It has one thread for all;
namespaces take turns, so that the objects of one delay no status of another for longer than one request. The rounds of
connections wait for none of these writes.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from group_hygiene.controller.admission import Grants, isolated, parsed
from group_hygiene.controller.api import KINDS, Api
from group_hygiene.controller.objects import (
    CONNECTIONS,
    KEEPS,
    POLICIES,
    RESTORES,
    USERS,
    Key,
    Object,
    Objects,
    connection_of,
    is_over,
    key_of,
    refuse_unusable,
)
from group_hygiene.engine.checks.lag import skipped_by_latest
from group_hygiene.engine.plan import Plan
from group_hygiene.engine.restorable import deletion_time, has_ttl, parse_restore
from group_hygiene.errors import ApiError, Conflict, HygieneError, NotFound, Refused, SpecError
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.naming import message_shown, truncated_list
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.conditions import (
    Status,
    build_problem_status,
    build_suspended_status,
    changed_conditions,
    condition_of,
    merge_patch,
    needs_write,
    with_run_id,
    without_announcements,
)
from group_hygiene.observe.metrics import Metrics
from group_hygiene.observe.of_objects import build_keep_status, build_restore_status, observed_again
from group_hygiene.process import runs
from group_hygiene.process.clock import Clock
from group_hygiene.spec.connection import Right, admit, admit_right
from group_hygiene.spec.crds import API_VERSION, GROUP
from group_hygiene.spec.fields import format_duration, timestamp
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import Action, Mode, Policy, parse_keep, parse_policy

log = logging.getLogger(__name__)

COMPONENT = "group-hygiene"
# The run that recorded it last. Not in the message, as each run would then create another Event.
RUN_ANNOTATION = f"{GROUP}/run-id"
_BURST, _REFILL_S = 25.0, 10.0

# Conditions that become Events, and their status that is a warning.
_WARNS = {"Ready": "False", "EvidenceReady": "False", "MayNeverMatch": "True"}
_NAMES_IN_EVENT, _TOPICS_IN_EVENT = 10, 3
_WRITE_ATTEMPTS = 5
_WRITE_AGAIN_S = 10.0

# Labels of a namespace may grant something later, and a status may have been refused.
_CHECK_AGAIN_S = 60.0


class Recorder:
    """Writes Events for objects: at most 25 at once per object, then one every 10 s. Thread-safe; never raises."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._tokens: dict[str, tuple[float, float]] = {}

    def event(self, plural: str, obj: Mapping[str, Any], reason: str, message: str, warning: bool = False) -> bool:
        """Record `reason` on `obj`. The same reason and message again only increases the count of the first Event.

        Returns whether the API server has it.
        """
        metadata = obj["metadata"]
        if not self._take_token(metadata["uid"]):
            return False
        message = message_shown(message)
        digest = hashlib.sha256(f"{metadata['uid']}/{reason}/{message}".encode()).hexdigest()[:16]
        name, namespace = f"{metadata['name'][:200].rstrip('.-')}.{digest}", metadata["namespace"]
        now = timestamp(datetime.now(UTC))
        run = runs.current().get("run")
        annotations = {RUN_ANNOTATION: run} if run else {}
        body = {
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KINDS[plural],
                "namespace": namespace,
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "source": {"component": COMPONENT},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            try:
                self._api.create_event(namespace, body)
            except Conflict:
                count = self._api.get_event_count(namespace, name) + 1
                again = {"count": count, "lastTimestamp": now, "metadata": {"annotations": annotations}}
                self._api.patch_event(namespace, name, again)
        except ApiError as error:
            log.warning("an Event for %s/%s was not recorded: %s", namespace, metadata["name"], error)
            return False
        return True

    def forget(self, uid: str) -> None:
        with self._lock:
            self._tokens.pop(uid, None)

    def _take_token(self, uid: str) -> bool:
        now = time.monotonic()
        with self._lock:
            tokens, since = self._tokens.get(uid, (_BURST, now))
            tokens = min(_BURST, tokens + (now - since) / _REFILL_S)
            if tokens < 1:
                self._tokens[uid] = (tokens, now)
                return False
            self._tokens[uid] = (tokens - 1, now)
            return True


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
            self._refused[metadata["uid"]] = self._clock.monotonic() + _WRITE_AGAIN_S
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
        patch = merge_patch(old, with_run_id(new, runs.current().get("run")))
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


class Unserved:
    """`check` and `skip` are thread-safe. `run` is the thread's function, and ends when the process stops.

    may_write: whether this process may write statuses now.
    """

    def __init__(
        self,
        api: Api,
        objects: Objects,
        grants: Grants,
        writer: StatusWriter,
        may_write: Callable[[], bool],
        stopping: threading.Event,
    ) -> None:
        self._api, self._objects, self._grants, self._writer = api, objects, grants, writer
        self._may_write, self._stopping = may_write, stopping
        self._changed = threading.Condition()
        # Namespace -> plural and key of the objects to check; the namespace whose turn is next comes first.
        self._queue: dict[str, dict[tuple[str, Key], None]] = {}
        # Those that don't run -> the resourceVersion that was checked.
        self._checked: dict[tuple[str, Key], str] = {}

    def check(self, plural: str, key: Key) -> None:
        """Find out whether a connection runs this object, which may be gone, and write its status if none does."""
        with self._changed:
            self._queue.setdefault(key[0], {})[plural, key] = None
            self._changed.notify()

    def check_naming(self, connection: Key) -> None:
        """Of all objects that name this connection."""
        for plural in USERS:
            for key in self._objects.naming(plural, *connection):
                self.check(plural, key)

    def skip(self, plural: str, key: Key) -> None:
        """The loop of its connection skips this object. An earlier round may have written its status since."""
        listed = self._objects.listed(plural, key)
        if (listed.version if listed else None) != self._checked.get((plural, key)):
            self.check(plural, key)

    def run(self) -> None:
        again = time.monotonic() + _CHECK_AGAIN_S
        while not self._stopping.is_set():
            with self._changed:
                if not self._queue:
                    self._changed.wait(max(0.0, again - time.monotonic()))
                # However busy others keep it.
                if time.monotonic() >= again:
                    again = time.monotonic() + _CHECK_AGAIN_S
                    # Refused ones are among these, as long as they exist.
                    self._writer.take_refused()
                    for plural, key in self._checked:
                        self._queue.setdefault(key[0], {})[plural, key] = None
                if not self._queue:
                    continue
                namespace = next(iter(self._queue))
                waiting = self._queue.pop(namespace)
                plural, key = next(iter(waiting))
                del waiting[plural, key]
                if waiting:
                    # Its next turn comes after those of the others.
                    self._queue[namespace] = waiting
            if self._may_write():
                self._write(plural, key)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _write(self, plural: str, key: Key) -> None:
        what = f"{plural} {key[0]}/{key[1]}"
        try:
            obj, now = self._objects.get(plural, *key), datetime.now(UTC)
            problem = None if obj is None or is_over(obj) else isolated(what, self._problem, plural, obj)
            edited = observed_again(obj) if obj is not None and is_over(obj) else None
            if obj is None or (problem is None and edited is None and not has_ttl(obj)):
                self._checked.pop((plural, key), None)
                return
            # One with a time to live is checked until it is gone: it ends without a change that is followed.
            self._checked[plural, key] = obj["metadata"]["resourceVersion"]
            if problem is None:
                due = deletion_time(obj)
                if due is not None and due <= now:
                    # One that was edited meanwhile is checked again.
                    with suppress(NotFound, Conflict):
                        self._api.delete(plural, obj)
                        log.info("GroupRestore %s/%s: deleted, as its ttlSecondsAfterFinished are over", *key)
                elif edited is not None:
                    self._writer.write(plural, obj, edited)
                return
            if plural == RESTORES:
                self._writer.write(RESTORES, obj, build_restore_status(obj, problem, now))
            elif plural == KEEPS:
                self._writer.write(KEEPS, obj, build_keep_status(obj, problem, now))
            elif problem.reason == reasons.SUSPENDED:
                generation = int(obj["metadata"].get("generation") or 0)
                self._writer.write(POLICIES, obj, build_suspended_status(generation, obj["status"], now))
            else:
                self._writer.write_problem(POLICIES, obj, problem, is_active=False)
        except HygieneError as error:
            log.warning("%s: %s; trying again", what, error)
        except Exception:
            log.exception("%s: no status could be written", what)

    def _problem(self, plural: str, obj: Object) -> Refusal | None:
        """Why no connection runs the object; None = one does. Raises ApiError."""
        namespace, (of, name) = obj["metadata"]["namespace"], connection_of(obj)
        try:
            refuse_unusable(obj)
            policy = parse_policy(obj) if plural == POLICIES else None
            groups: Sequence[str] = ()
            if policy is not None:
                right, groups = Right(policy.action.value), policy.match.groups.sources
            elif plural == RESTORES:
                right, groups = Right.RESTORE, Patterns.of_names(parse_restore(obj)[1].groups).sources
            else:
                right, groups = Right.KEEP, Patterns.of_names(parse_keep(obj).groups).sources
            found = self._objects.get(CONNECTIONS, of, name)
            if found is None and namespace == of:
                return Refusal(reasons.CONNECTION_NOT_FOUND, f"there is no KafkaConnection {of}/{name} (yet)")
            connection = None if found is None else parsed(found)[0]
            given = None if connection is None else self._grants.of(connection, namespace).grant
            # Other namespaces see the same whether it exists or grants them nothing.
            admit_right(f"{of}/{name}", namespace, given, right, groups)
            if policy is not None and connection is not None and admit(connection, policy, given).suspend:
                return Refusal(reasons.SUSPENDED, "suspended")
        except SpecError as error:
            # Not stalled if the connection refuses: an edit of the connection can help, too.
            return Refusal.of(error)
        return None
