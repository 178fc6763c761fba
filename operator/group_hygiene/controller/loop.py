"""One loop per connection: when to run, whom to run, and the straight line from what is due to the patched status.

`run_due` is a plain function of what the API server and Kafka say now; it runs in a thread. The asyncio part only
waits: for a wake-up, or for the next policy to fall due.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from group_hygiene import reasons, reconcile, status
from group_hygiene.connection import Connection, Settings, parse_connection
from group_hygiene.controller.api import CONNECTIONS, KINDS, POLICIES, Api, Object
from group_hygiene.controller.recorder import Recorder
from group_hygiene.errors import ApiError, Conflict, ConnectError, HygieneError, NotFound, SpecError
from group_hygiene.kafka import client as kafka_client
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.metrics import Metrics
from group_hygiene.model import Cluster, Keep, Outcome, OutcomeKind
from group_hygiene.plan import Plan, make_plan
from group_hygiene.policy import Action, Policy, parse_policy
from group_hygiene.status import Problem

log = logging.getLogger(__name__)

_DEBOUNCE_S = 0.3
_FULL_LIST_INTERVAL = timedelta(minutes=10)
_CONNECT_TIMEOUT_S = 10.0
_BACKOFF_START_S, _BACKOFF_CAP_S = 5.0, 120.0
_NAMES_IN_EVENT = 10
_WRITE_ATTEMPTS = 5


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return monotonic()


@dataclass(frozen=True)
class Services:
    """What all loops share. may_delete: False forbids all deletions. stopping: set when the process must end."""

    api: Api
    recorder: Recorder
    metrics: Metrics
    executor: Executor
    may_delete: bool
    clock: reconcile.Clock = field(default_factory=SystemClock)
    stopping: threading.Event = field(default_factory=threading.Event)


@dataclass
class _Bound:
    """A policy of this connection, as listed in this run."""

    obj: Object
    policy: Policy

    @property
    def status(self) -> Mapping[str, Any]:
        return self.obj.get("status") or {}


class Schedule:
    """When each policy is due: at once when it is new or edited, then at whole multiples of its interval.

    Multiples, so that policies that were created one by one still share their scans.
    """

    def __init__(self, clock: reconcile.Clock) -> None:
        self._clock = clock
        self._next: dict[str, tuple[int, float]] = {}

    def due(self, uid: str, generation: int) -> bool:
        known = self._next.get(uid)
        return known is None or known[0] != generation or self._clock.monotonic() >= known[1]

    def ran(self, uid: str, generation: int, interval: timedelta) -> None:
        seconds = interval.total_seconds()
        wall = self._clock.now().timestamp()
        to_boundary = seconds - wall % seconds
        # Just ran a moment before the boundary: that was this boundary's run.
        wait = to_boundary if to_boundary > seconds * 0.1 else to_boundary + seconds
        self._next[uid] = (generation, self._clock.monotonic() + wait)

    def wait(self, uids: Sequence[str]) -> float:
        """Seconds until the first of them is due; one that never ran, or was forgotten, is due now."""
        now = self._clock.monotonic()
        return max(0.0, min(self._next.get(uid, (0, now))[1] for uid in uids) - now)

    def forget(self, uid: str) -> None:
        """Let it be due at the next run of anything."""
        self._next.pop(uid, None)

    def forget_all_but(self, uids: set[str]) -> None:
        self._next = {uid: value for uid, value in self._next.items() if uid in uids}


class ConnectionLoop:
    """Serves one connection and its policies; it exists as soon as either of them does."""

    def __init__(self, namespace: str, name: str, services: Services) -> None:
        self.namespace, self.name = namespace, name
        self._services = services
        self._wake = asyncio.Event()
        self._schedule = Schedule(services.clock)
        self._memory = reconcile.Memory()
        self._uid: str | None = None
        self._client: kafka_client.Client | None = None
        self._backoff = _BACKOFF_START_S
        self._features: tuple[str, ...] = ()
        self._retention: int | None = None
        self._known_policies: set[tuple[str, str]] = set()
        self._owed: dict[str, int] = {}

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Run until there is neither connection nor policy left, or the process stops."""
        stopping = self._services.stopping
        wait: float | None = 0.0
        try:
            while not stopping.is_set() and wait is not None:
                try:
                    await asyncio.wait_for(self._wake.wait(), timeout=wait)
                    await asyncio.sleep(_DEBOUNCE_S)
                except TimeoutError:
                    pass
                self._wake.clear()
                if not stopping.is_set():
                    wait = await asyncio.get_running_loop().run_in_executor(self._services.executor, self._run_safely)
                if wait is None and self._wake.is_set():
                    # Something of ours was applied while this round found nothing left.
                    wait = 0.0
        finally:
            self._disconnect()

    def _run_safely(self) -> float | None:
        """`run_due`, with whatever it raises turned into a later try: one team's objects must not stop the others."""
        try:
            return self.run_due()
        except ApiError as error:
            log.warning("connection %s/%s: %s; trying again", self.namespace, self.name, error)
        except Exception as error:
            log.exception("connection %s/%s: unexpected; trying again", self.namespace, self.name)
            try:
                self._tell_bug(error)
            except ApiError as unwritten:
                log.warning("connection %s/%s: %s", self.namespace, self.name, unwritten)
        self._disconnect()
        return self._back_off()

    def _tell_bug(self, error: Exception) -> None:
        # Its text may hold anything, a secret too: that stays in the log's traceback.
        problem = Problem(reasons.INTERNAL_ERROR, f"{type(error).__name__}: see the operator's log; it tries again")
        obj = self._get_connection()
        if obj is not None:
            self._tell_problem(CONNECTIONS, obj, problem)
        self._tell_policies(self._bind(self._services.api.list_all(POLICIES)), problem)

    def run_due(self) -> float | None:
        """One round: list, observe, decide, apply, patch. Returns the seconds until the next, None = nothing left."""
        services = self._services
        connection_obj = self._get_connection()
        bound = self._bind(services.api.list_all(POLICIES))
        if connection_obj is None and not bound and not self._known_policies:
            return None
        self._forget_gone(bound)
        if connection_obj is None:
            message = f"there is no KafkaConnection {self.namespace}/{self.name} (yet)"
            self._tell_policies(bound, Problem(reasons.CONNECTION_NOT_FOUND, message))
            return self._back_off() if bound else None
        active = self._settle_suspended(bound)
        try:
            connection = parse_connection(connection_obj)
            client = self._connect(connection)
        except HygieneError as error:
            return self._connection_failed(connection_obj, active, error)
        due = [entry for entry in active if self._schedule.due(entry.policy.uid, entry.policy.generation)]
        full = self._schedule.due(connection.uid, connection.generation)
        if due or full:
            claimed = services.api.claimed_groups() if due else {}
            context = reconcile.Context(client, connection, self._memory, services.clock, services.may_delete, claimed)
            try:
                self._run(context, connection_obj, due, full)
            except ConnectError as error:
                return self._connection_failed(connection_obj, active, error)
        self._backoff = _BACKOFF_START_S
        return self._schedule.wait([connection.uid, *(entry.policy.uid for entry in active)])

    def _run(self, context: reconcile.Context, connection_obj: Object, due: Sequence[_Bound], full: bool) -> None:
        services, clock = self._services, self._services.clock
        connection = context.connection
        started = clock.monotonic()
        observation = reconcile.observe(context, [entry.policy for entry in due], full)
        snapshot = observation.snapshot
        services.metrics.scanned(self.namespace, self.name, clock.monotonic() - started, snapshot.complete)
        deleted, failure = False, None
        for entry in due:
            try:
                deleted |= self._run_policy(context, connection_obj, entry, observation)
            except ApiError as error:
                failure = error
        self._refresh_cluster_facts(context, snapshot.cluster, full)
        facts = status.ConnectionFacts(
            snapshot, self._features, self._retention, observation.all_groups, self._identity_problem(snapshot.cluster)
        )
        new = status.build_connection_status(connection.generation, connection_obj.get("status") or {}, facts)
        self._tell(CONNECTIONS, connection_obj, new)
        if full:
            self._schedule.ran(connection.uid, connection.generation, _FULL_LIST_INTERVAL)
        if deleted:
            # So that the counts of the connection don't go on showing what is gone.
            self._schedule.forget(connection.uid)
        if failure is not None:
            raise failure

    def _run_policy(
        self, context: reconcile.Context, connection_obj: Object, entry: _Bound, observation: reconcile.Observation
    ) -> bool:
        """Decide, apply and tell, for one policy; whether it deleted anything."""
        policy, snapshot = entry.policy, observation.snapshot
        # Noted first: whatever fails from here on, the policy's pace is its interval.
        self._schedule.ran(policy.uid, policy.generation, policy.interval)
        plan = make_plan(policy, len(snapshot.groups), observation.verdicts[policy.key], observation.conditions)
        outcomes: list[Outcome] = []
        # What was deleted and could not be written to the status yet is owed; until then nothing more is deleted.
        owed = self._owed.get(policy.uid, 0)
        if plan.actions and not owed:
            outcomes = reconcile.apply(context, plan, observation, lambda: self._still_wanted(policy, connection_obj))
        for outcome in outcomes:
            log.info("policy %s: group %r: %s: %s", policy.key, outcome.group, outcome.reason, outcome.message)
        self._services.metrics.policy_ran(plan, outcomes, self._services.clock.now().timestamp())
        deleted = sum(outcome.kind is OutcomeKind.DELETED for outcome in outcomes)
        self._owed[policy.uid] = owed + deleted
        new = status.build_status(policy, entry.status, plan, outcomes, snapshot, owed)
        self._tell(POLICIES, entry.obj, new)
        del self._owed[policy.uid]
        self._record(entry, new, plan, outcomes)
        return deleted > 0

    # What belongs to this connection

    def _get_connection(self) -> Object | None:
        try:
            obj = self._services.api.get(CONNECTIONS, self.namespace, self.name)
        except NotFound:
            self._disconnect()
            self._uid = None
            self._services.metrics.forget_connection(self.namespace, self.name)
            return None
        if obj["metadata"]["uid"] != self._uid:
            # Another object of that name: nothing that was learnt about the old one holds.
            self._uid = obj["metadata"]["uid"]
            self._memory = reconcile.Memory(cluster_id=(obj.get("status") or {}).get("clusterId"))
            self._disconnect()
        return obj

    def _bind(self, objects: Sequence[Object]) -> list[_Bound]:
        """The policies that refer to this connection; those that never may get their status here, and are left out."""
        bound: list[_Bound] = []
        for obj in objects:
            namespace = obj["metadata"]["namespace"]
            reference = (obj.get("spec") or {}).get("connectionRef") or {}
            if (reference.get("namespace") or namespace, reference.get("name")) != (self.namespace, self.name):
                continue
            try:
                policy = parse_policy(obj)
            except SpecError as error:
                self._tell_problem(POLICIES, obj, Problem(reasons.INVALID_SPEC, str(error), stalled=True))
                continue
            if policy.crosses_namespace:
                message = (
                    f"connectionRef.namespace must be the policy's own namespace {policy.namespace}: "
                    f"a KafkaConnection can't be used from another one"
                )
                self._tell_problem(POLICIES, obj, Problem(reasons.CROSS_NAMESPACE, message, stalled=True))
                continue
            bound.append(_Bound(obj, policy))
        return bound

    def _settle_suspended(self, bound: Sequence[_Bound]) -> list[_Bound]:
        """Give suspended policies their status; the others are active."""
        for entry in bound:
            if entry.policy.suspend:
                now = self._services.clock.now()
                new = status.build_suspended_status(entry.policy.generation, entry.status, now)
                self._tell(POLICIES, entry.obj, new)
        return [entry for entry in bound if not entry.policy.suspend]

    def _forget_gone(self, bound: Sequence[_Bound]) -> None:
        names = {(entry.policy.namespace, entry.policy.name) for entry in bound}
        self._services.metrics.forget_policies(self._known_policies - names)
        self._known_policies = names
        self._memory.forget_all_but(entry.policy for entry in bound)
        kept = {entry.policy.uid for entry in bound}
        self._schedule.forget_all_but(kept | ({self._uid} if self._uid else set()))

    # The connection to Kafka

    def _connect(self, connection: Connection) -> kafka_client.Client:
        """Make or keep the client. Secrets are read each time, so a changed one takes effect at the next run."""
        settings: Settings = connection.settings(lambda ref: self._services.api.read_secret(connection.namespace, ref))
        if self._client is not None and self._client.settings != settings:
            self._disconnect()
        if self._client is None:
            timeout = min(_CONNECT_TIMEOUT_S, settings.timeout.total_seconds())
            self._client = kafka_client.connect(settings, timeout)
            self._features = ()
        return self._client

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _refresh_cluster_facts(self, context: reconcile.Context, cluster: Cluster, full: bool) -> None:
        if full or not self._features:
            self._features = kafka_cluster.features(context.client)
            self._retention = kafka_cluster.offsets_retention_minutes(context.client, cluster, context.deadline())

    def _identity_problem(self, cluster: Cluster) -> Problem | None:
        known = self._memory.cluster_id
        if known is None or known == cluster.id:
            return None
        message = (
            f"bootstrapServers led to cluster {known} and now lead to {cluster.id}: nothing is deleted. "
            f"If that is right, delete this KafkaConnection and apply it again"
        )
        return Problem(reasons.CLUSTER_CHANGED, message, stalled=True)

    def _connection_failed(self, obj: Object, active: Sequence[_Bound], error: HygieneError) -> float:
        problem = Problem(error.reason, str(error), stalled=isinstance(error, SpecError))
        self._tell_problem(CONNECTIONS, obj, problem)
        message = f"KafkaConnection {self.namespace}/{self.name} is not ready: {error.reason}: {error}"
        self._tell_policies(active, Problem(reasons.CONNECTION_NOT_READY, message))
        self._services.metrics.connection_down(self.namespace, self.name)
        self._disconnect()
        return self._back_off()

    def _back_off(self) -> float:
        wait, self._backoff = self._backoff, min(self._backoff * 2, _BACKOFF_CAP_S)
        return wait * random.uniform(0.8, 1.2)

    # Before a deletion

    def _still_wanted(self, policy: Policy, connection_obj: Object) -> Keep | None:
        """Read the policy and its connection again: an edit, a deletion or a stop of the operator ends the run."""
        if self._services.stopping.is_set():
            return Keep(reasons.STOPPING, "the operator is stopping")
        expected = {
            (POLICIES, policy.namespace, policy.name): (policy.uid, policy.generation),
            (CONNECTIONS, self.namespace, self.name): _version(connection_obj),
        }
        for (plural, namespace, name), version in expected.items():
            try:
                obj = self._services.api.get(plural, namespace, name)
            except ApiError as error:
                return Keep(reasons.POLICY_CHANGED, f"{KINDS[plural]} {name} could not be read again: {error}")
            if _version(obj) != version or obj["metadata"].get("deletionTimestamp"):
                return Keep(reasons.POLICY_CHANGED, f"{KINDS[plural]} {name} was edited or deleted during the run")
        return None

    # What people see

    def _tell(self, plural: str, obj: Object, new: status.Status) -> None:
        """Patch the status if the change is worth it; over an edit made meanwhile too, since what was done was done."""
        api, old = self._services.api, obj.get("status") or {}
        if not status.needs_write(old, new, self._services.clock.now()):
            return
        patch = status.merge_patch(old, new)
        for attempt in range(_WRITE_ATTEMPTS):
            try:
                api.patch_status(plural, obj, patch)
                break
            except NotFound:
                return
            except Conflict:
                if attempt == _WRITE_ATTEMPTS - 1:
                    raise
                fresh = api.get(plural, obj["metadata"]["namespace"], obj["metadata"]["name"])
                if fresh["metadata"]["uid"] != obj["metadata"]["uid"]:
                    return
                obj = fresh
        self._services.metrics.status_written(plural)
        self._record_readiness(plural, obj, old, new)

    def _tell_problem(self, plural: str, obj: Object, problem: Problem) -> None:
        generation = int(obj["metadata"].get("generation") or 0)
        old = obj.get("status") or {}
        self._tell(plural, obj, status.build_problem_status(generation, old, problem, self._services.clock.now()))

    def _tell_policies(self, bound: Sequence[_Bound], problem: Problem) -> None:
        for entry in bound:
            self._tell_problem(POLICIES, entry.obj, problem)

    def _record_readiness(self, plural: str, obj: Object, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """An Event when Ready turns, or is not True for another reason than before."""
        before, after = _ready(old), _ready(new)
        if after is None or (before and (before["status"], before["reason"]) == (after["status"], after["reason"])):
            return
        warning = after["status"] != "True"
        if before is None and not warning:
            return
        self._services.recorder.event(plural, obj, after["reason"], after["message"], warning)

    def _record(self, entry: _Bound, new: status.Status, plan: Plan, outcomes: Sequence[Outcome]) -> None:
        """Events of one run: newly matching groups, what was deleted, and why due groups may not be."""
        record = self._services.recorder.event
        before, matched = entry.status, plan.due or plan.matched
        if matched and _matching(before) != _matching(new):
            alert = plan.policy.action is Action.ALERT
            verb = "match" if alert else f"are due ({plan.policy.mode})"
            record(POLICIES, entry.obj, reasons.GROUPS_MATCHED, f"{_counted(matched)} {verb}: {_names(matched)}", alert)
        deleted = [outcome.group for outcome in outcomes if outcome.kind is OutcomeKind.DELETED]
        if deleted:
            record(POLICIES, entry.obj, reasons.GROUPS_DELETED, f"deleted {_counted(deleted)}: {_names(deleted)}")
        blocked = next((c for c in before.get("conditions") or [] if c["type"] == "DeletionBlocked"), None)
        if plan.refusal is not None and (blocked is None or blocked["reason"] != plan.refusal.reason):
            record(POLICIES, entry.obj, plan.refusal.reason, plan.refusal.message, True)


def _matching(of: Mapping[str, Any]) -> tuple[int, frozenset[str]]:
    """How many groups a status says match, and those of them that it names."""
    named = frozenset(row["group"] for row in of.get("sample") or [] if row["verdict"] == "Match")
    return (of.get("groups") or {}).get("matched", 0), named


def _version(obj: Object) -> tuple[str, int]:
    return obj["metadata"]["uid"], int(obj["metadata"].get("generation") or 0)


def _ready(of: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((condition for condition in of.get("conditions") or [] if condition["type"] == "Ready"), None)


def _counted(groups: Sequence[str]) -> str:
    return f"{len(groups)} group{'s' if len(groups) != 1 else ''}"


def _names(groups: Sequence[str]) -> str:
    more = f" and {len(groups) - _NAMES_IN_EVENT} more" if len(groups) > _NAMES_IN_EVENT else ""
    return ", ".join(repr(group) for group in groups[:_NAMES_IN_EVENT]) + more
