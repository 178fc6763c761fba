"""One loop per connection: when to run, whom to run, and the straight line from what is due to the patched status.

`run_due` is a plain function of what the API server and Kafka say now; it runs in a thread. The asyncio part only
waits: for a wake-up, or for the next policy to fall due.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Protocol, TypeVar

from group_hygiene import reasons, reconcile, runs, status, tracing
from group_hygiene.clock import SystemClock
from group_hygiene.connection import Connection, parse_admitting, parse_connection
from group_hygiene.controller.alerting import Alerting
from group_hygiene.controller.api import CONNECTIONS, POLICIES, RESTORES, Api, Object
from group_hygiene.controller.binding import Binding, Bound
from group_hygiene.controller.guarding import Granted, Guard, Leadership
from group_hygiene.controller.link import Link, ledger_facts
from group_hygiene.controller.recorder import Recorder
from group_hygiene.controller.restores import Asked, Restores
from group_hygiene.controller.schedule import Schedule
from group_hygiene.controller.telling import Teller
from group_hygiene.controller.workers import Workers
from group_hygiene.egress import Egress
from group_hygiene.errors import ApiError, HygieneError, LedgerFenced, SpecError
from group_hygiene.metrics import Metrics
from group_hygiene.model import Outcome, OutcomeKind
from group_hygiene.plan import Plan, due_groups, make_plan
from group_hygiene.policy import Mode
from group_hygiene.snapshot import Snapshot
from group_hygiene.status import Problem
from group_hygiene.storage import Allowed

log = logging.getLogger(__name__)

T = TypeVar("T")

_DEBOUNCE_S = 0.3
_FULL_LIST_INTERVAL = timedelta(minutes=10)
_BACKOFF_START_S, _BACKOFF_CAP_S = 5.0, 120.0
_SWEEP_EVERY_S, _SWEEP_AGAIN_S = 24 * 3600.0, 600.0


class Lease(Leadership, Protocol):
    """By which one process leads."""

    def is_confirmed(self) -> bool:
        """Whether this one leads by the Lease as it is now, read again. Raises ApiError."""


@dataclass(frozen=True)
class Services:
    """What all loops share. installation: who we are to the ledgers. stopping: set when the process must end.

    activity: where a pipeline's tables may be. egress: where messages may go.
    """

    api: Api
    recorder: Recorder
    metrics: Metrics
    workers: Workers
    leadership: Lease
    installation: str
    clock: reconcile.Clock = field(default_factory=SystemClock)
    stopping: threading.Event = field(default_factory=threading.Event)
    activity: Allowed = field(default_factory=Allowed)
    egress: Egress = field(default_factory=Egress)

    def leads(self) -> bool:
        return self.leadership.seconds_left() > 0

    def may_send(self) -> bool:
        """Whether this process may tell receivers anything."""
        return self.leads() and not self.stopping.is_set()


class ConnectionLoop:
    """Serves one connection and its policies; it exists as soon as either of them does."""

    def __init__(self, namespace: str, name: str, services: Services) -> None:
        self.namespace, self.name = namespace, name
        self._services = services
        self._wake = asyncio.Event()
        self._schedule = Schedule(services.clock)
        self._teller = Teller(services.api, services.recorder, services.metrics, services.clock)
        self._binding = Binding(services.api, self._teller, services.clock, namespace, name)
        self._restores = Restores(services.api, self._teller, services.clock, namespace, name)
        self._link = Link(namespace, name, services.api, services.installation, services.activity)
        self._alerts = Alerting((namespace, name), services.api, services.metrics, services.clock, self._teller)
        self._backoff = _BACKOFF_START_S
        self._had_policies = False
        self._owed: dict[str, int] = {}
        self._sweep_at = 0.0

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Run until there is neither connection nor policy left, or the process stops."""
        with runs.about(namespace=self.namespace, connection=self.name):
            await self._run_rounds()

    async def _run_rounds(self) -> None:
        stopping = self._services.stopping
        wait: float | None = 0.0
        self._alerts.start(self._services, self._wake)
        try:
            while not stopping.is_set() and wait is not None:
                self._alerts.check()
                try:
                    await asyncio.wait_for(self._wake.wait(), timeout=wait)
                    await asyncio.sleep(_DEBOUNCE_S)
                except TimeoutError:
                    pass
                self._wake.clear()
                if not stopping.is_set():
                    wait = await self._in_thread(self._run_safely)
                if wait is None:
                    await self._alerts.finish()
                if wait is None and self._wake.is_set():
                    # Something of ours was applied while this round found nothing left.
                    wait = 0.0
            if stopping.is_set():
                await self._alerts.settle()
                await self._in_thread(self._note_last)
        finally:
            self._alerts.stop()
            self._link.close()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._services.workers.run(self.namespace, runs.inheriting(work))

    def _run_safely(self) -> float | None:
        """`run_due`, with whatever it raises turned into a later try: one team's objects must not stop the others."""
        try:
            with runs.about(run=runs.new_id()), tracing.span("run"):
                return self._run_once()
        finally:
            self._link.end_run()

    def _run_once(self) -> float | None:
        if not self._services.leads():
            # Continued after it was frozen, maybe: the process is about to end.
            return self._back_off()
        try:
            return self.run_due()
        except LedgerFenced as error:
            log.error("connection %s/%s: %s", self.namespace, self.name, error)
            raise
        except ApiError as error:
            log.warning("connection %s/%s: %s; trying again", self.namespace, self.name, error)
        except Exception as error:
            log.exception("connection %s/%s: unexpected; trying again", self.namespace, self.name)
            if isinstance(error, MemoryError):
                self._link.forget()
            try:
                self._tell_bug(error)
            except ApiError as unwritten:
                log.warning("connection %s/%s: %s", self.namespace, self.name, unwritten)
        self._link.close()
        return self._back_off()

    def _note_last(self) -> None:
        """Note what arrived since the last run: the next process would tell it again."""
        if not self._alerts.unwritten or not self._services.leads():
            return
        try:
            self._alerts.note_last(self._link.journal())
        except HygieneError as error:
            log.warning("connection %s/%s: what was told last is not noted: %s", self.namespace, self.name, error)

    def _tell_bug(self, error: Exception) -> None:
        problem = _bug(error)
        obj = self._link.read_object()
        if obj is not None:
            self._teller.problem(CONNECTIONS, obj, problem)
        bound = self._binding.bind(self._services.api.list_all(POLICIES))
        self._services.metrics.failed(self.namespace, self.name, problem.reason, [entry.policy for entry in bound])
        self._binding.tell(bound, problem)

    def run_due(self) -> float | None:
        """One round: list, observe, decide, apply, patch. Returns the seconds until the next, None = nothing left."""
        services = self._services
        connection_obj = self._link.read_object()
        every = services.api.list_all(POLICIES)
        bound, restores = self._binding.bind(every), self._restores.open()
        if connection_obj is None:
            services.metrics.forget_connection(self.namespace, self.name)
        if connection_obj is None and not bound and not restores and not self._had_policies:
            return None
        self._forget_gone(bound)
        if connection_obj is None:
            self._alerts.release()
            self._binding.tell_missing(bound)
            self._restores.tell_missing(restores)
            return self._back_off() if bound or restores else None
        active: list[Bound] = []
        asked: list[Asked] = []
        again = self._teller.take_refused()
        try:
            try:
                connection = parse_connection(connection_obj)
            except SpecError:
                # Those whom it lets in are told so below: what they were told last is no longer true.
                admitting = parse_admitting(connection_obj)
                active, asked = self._binding.active(admitting, bound), self._restores.due(admitting, restores)
                raise
            active = self._binding.active(connection, bound)
            asked = self._restores.due(connection, restores)
            self._alerts.bind(connection, active)
            self._link.connect(connection)
            due = [
                entry
                for entry in active
                if entry.policy.uid in again or self._schedule.due(entry.policy.uid, entry.policy.generation)
            ]
            full = connection.uid in again or self._schedule.due(connection.uid, connection.generation)
            if due or full or asked or self._alerts.unwritten:
                context = self._context(connection_obj, connection, active, bool(asked))
                reconcile.forget_policies(context, {obj["metadata"]["uid"] for obj in every})
                self._restores.run(
                    context, asked, lambda asked: self._guard((RESTORES, asked.obj), connection_obj, asked.granted)
                )
            if due or full:
                self._run(context, connection_obj, due, full, active)
            self._alerts.tell([entry for entry in active if entry not in due], services.clock.now())
        except HygieneError as error:
            if isinstance(error, ApiError):
                raise
            if isinstance(error, LedgerFenced) and not services.leadership.is_confirmed():
                # Another process took over. This one must not even write a status any more.
                raise
            self._restores.tell_not_ready(asked, error)
            return self._connection_failed(connection_obj, active, error)
        self._backoff = _BACKOFF_START_S
        wait = self._schedule.wait([connection.uid, *(entry.policy.uid for entry in active)])
        others = self._restores.seconds_to_wait(), self._teller.seconds_to_wait()
        return min([wait, *(each for each in others if each is not None)])

    def _context(
        self, connection_obj: Object, connection: Connection, active: Sequence[Bound], restoring: bool
    ) -> reconcile.Context:
        """Whom this run talks to, with the ledger read to its end and what earlier runs left open settled."""
        need = reconcile.Need.WRITE if restoring or self._alerts.unwritten else reconcile.Need.READ
        if any(entry.policy.enforced for entry in active) or self._alerts.needs_ledger(connection, active):
            need = reconcile.Need.MAKE
        uids = [entry.policy.uid for entry in active]
        context = self._link.open_context(connection_obj, connection, self._services.clock, need, uids)
        for uid, count in reconcile.settle(context).items():
            self._owed[uid] = self._owed.get(uid, 0) + count
        self._alerts.begin(context)
        return context

    def _sweep(self, context: reconcile.Context, observation: reconcile.Observation) -> None:
        """Take out of the ledger what is past its time, once a day: a run that may delete no group removes nothing."""
        clock = self._services.clock
        if observation.conditions.refusals or clock.monotonic() < self._sweep_at:
            return
        swept = context.journal.sweep(clock.now())
        self._sweep_at = clock.monotonic() + (_SWEEP_EVERY_S if swept else _SWEEP_AGAIN_S)

    def _run(
        self,
        context: reconcile.Context,
        connection_obj: Object,
        due: Sequence[Bound],
        full: bool,
        active: Sequence[Bound],
    ) -> None:
        """active: all policies that may delete something, whether they are due now or not."""
        services, clock = self._services, self._services.clock
        connection = context.connection
        started = clock.monotonic()
        observation = reconcile.observe(context, [entry.policy for entry in due], full)
        snapshot = observation.snapshot
        services.metrics.scanned(self.namespace, self.name, clock.monotonic() - started, snapshot)
        deleted, failure, budget = 0, None, observation.conditions.budget
        # Before the first deletion: what is due by all policies together is what the connection's maxPercent is about.
        due_by = self._due_by_policy(context, observation, due, active)
        with self._alerts.round(context.journal):
            for entry in due:
                others = frozenset().union(*(groups for uid, groups in due_by.items() if uid != entry.policy.uid))
                left = None if budget is None else budget - deleted
                told = status.told(entry.status)
                conditions = replace(observation.conditions, budget=left, due_elsewhere=others, told=told)
                seen = replace(observation, conditions=conditions)
                with runs.about(policy=entry.policy.key):
                    acted = self._act_alone(context, connection_obj, entry, seen)
                    try:
                        if isinstance(acted, Problem):
                            # What it deleted before the fault is not known: at most all that was due.
                            deleted += len(due_by[entry.policy.uid])
                            self._teller.problem(POLICIES, entry.obj, acted)
                        else:
                            plan, outcomes = acted
                            deleted += sum(outcome.kind is OutcomeKind.DELETED for outcome in outcomes)
                            self._publish(entry, plan, outcomes, snapshot)
                    except ApiError as error:
                        failure = error
        facts = status.ConnectionFacts(
            snapshot=snapshot,
            features=self._link.features(context, anew=full),
            retention=context.memory.retention,
            all_groups=observation.all_groups,
            problem=self._link.identity_problem(snapshot.cluster),
            ledger=ledger_facts(context.journal, connection.ledger.topic),
            has_activity=connection.activity is not None,
        )
        services.metrics.observed(self.namespace, self.name, facts)
        new = status.build_connection_status(connection.generation, connection_obj.get("status") or {}, facts)
        self._teller.tell(CONNECTIONS, connection_obj, new)
        if full:
            self._schedule.ran(connection.uid, connection.generation, _FULL_LIST_INTERVAL)
        if deleted:
            # So that the counts of the connection don't go on showing what is gone.
            self._schedule.forget(connection.uid)
        self._sweep(context, observation)
        if failure is not None:
            raise failure

    def _act_alone(
        self, context: reconcile.Context, connection_obj: Object, entry: Bound, observation: reconcile.Observation
    ) -> tuple[Plan, list[Outcome]] | Problem:
        """`_act`; a Problem after a fault of our own, which is no matter of other policies.

        The next run settles what is open in the ledger. Raises HygieneError; and MemoryError, after which all that is
        remembered of the connection is dropped.
        """
        try:
            return self._act(context, connection_obj, entry, observation)
        except (HygieneError, MemoryError):
            raise
        except Exception as error:
            log.exception("policy %s: unexpected; trying again at its next run", entry.policy.key)
            return _bug(error)

    def _act(
        self, context: reconcile.Context, connection_obj: Object, entry: Bound, observation: reconcile.Observation
    ) -> tuple[Plan, list[Outcome]]:
        """Decide and apply, for one policy."""
        policy, snapshot, clock = entry.policy, observation.snapshot, self._services.clock
        # Noted first: whatever fails from here on, the policy's pace is its interval.
        self._schedule.ran(policy.uid, policy.generation, policy.interval)
        marks = context.journal.contents.marks.get(policy.uid, {})
        verdicts = observation.verdicts[policy.key]
        scanned = policy.match.visible(snapshot.groups)
        plan = make_plan(policy, scanned, verdicts, observation.conditions, marks, clock.now())
        unwritten = reconcile.note_marks(context, plan)
        if unwritten is not None:
            plan = plan.halted(unwritten)
        outcomes: list[Outcome] = []
        # What was deleted and could not be written to the status yet is owed; until then nothing more is deleted.
        if plan.actions and not self._owed.get(policy.uid, 0):
            if entry.granted is None:
                raise RuntimeError("a policy runs only where its connection lets it in")
            guard = self._guard((POLICIES, entry.obj), connection_obj, entry.granted)
            outcomes = reconcile.apply(context, plan, observation, guard)
        return plan, outcomes

    def _publish(self, entry: Bound, plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot) -> None:
        """What one policy's run did, everywhere it shows; a fault of our own in it is no matter of other policies.

        Raises ApiError when the API server does not answer.
        """
        uid, key = entry.policy.uid, entry.policy.key
        for outcome in outcomes:
            log.info("policy %s: group %r: %s: %s", key, outcome.group, outcome.reason, outcome.message)
        if entry.policy.crosses_namespace:
            plan, outcomes, snapshot = status.redact_run(plan, outcomes, snapshot, f"{self.namespace}/{self.name}")
        owed = self._owed.get(uid, 0)
        self._owed[uid] = owed + sum(outcome.kind is OutcomeKind.DELETED for outcome in outcomes)
        try:
            self._services.metrics.policy_ran(plan, outcomes, self._services.clock.now().timestamp())
            self._alerts.heard(plan, outcomes, snapshot)
            new = status.build_status(entry.policy, entry.status, plan, outcomes, snapshot, owed)
            if self._teller.tell(POLICIES, entry.obj, self._alerts.in_status(entry, plan, snapshot, new)):
                del self._owed[uid]
                self._teller.run(entry.obj, new, plan, outcomes)
        except HygieneError:
            raise
        except Exception as error:
            log.exception("policy %s: what it did could not be shown; trying again at its next run", key)
            self._teller.problem(POLICIES, entry.obj, _bug(error))

    def _due_by_policy(
        self,
        context: reconcile.Context,
        observation: reconcile.Observation,
        due: Sequence[Bound],
        active: Sequence[Bound],
    ) -> dict[str, frozenset[str]]:
        """Policy uid -> the groups that it would delete now; by their marks for policies that don't run now.

        A policy that is suspended, or not let in, deletes nothing, whatever it has marked.
        """
        now, marks = self._services.clock.now(), context.journal.contents.marks
        groups = {
            entry.policy.uid: frozenset(
                name for name, mark in marks.get(entry.policy.uid, {}).items() if mark.due <= now
            )
            for entry in active
            if entry.policy.enforced
        }
        for entry in due:
            policy, verdicts = entry.policy, observation.verdicts[entry.policy.key]
            of_policy = due_groups(policy, verdicts, marks.get(policy.uid, {}), now)
            groups[policy.uid] = frozenset(of_policy if policy.mode is Mode.ENFORCE else ())
        return groups

    def _guard(self, of: tuple[str, Object], connection_obj: Object, granted: Granted) -> Guard:
        """Of a run of a policy, or of a restore: its plural and object."""
        services = self._services
        return Guard(services.api, services.leadership, services.stopping, (of, (CONNECTIONS, connection_obj)), granted)

    # What belongs to this connection

    def _forget_gone(self, bound: Sequence[Bound]) -> None:
        self._services.metrics.follow(self.namespace, self.name, [entry.policy for entry in bound])
        self._had_policies = bool(bound)
        kept = {entry.policy.uid for entry in bound}
        self._schedule.forget_all_but(kept | ({self._link.uid} if self._link.uid else set()))

    def _connection_failed(self, obj: Object, active: Sequence[Bound], error: HygieneError) -> float:
        problem = Problem(error.reason, str(error), stalled=isinstance(error, SpecError))
        self._teller.problem(CONNECTIONS, obj, problem)
        self._binding.tell_not_ready(active, error)
        self._services.metrics.failed(self.namespace, self.name, error.reason, [entry.policy for entry in active])
        self._link.close()
        return self._back_off()

    def _back_off(self) -> float:
        wait, self._backoff = self._backoff, min(self._backoff * 2, _BACKOFF_CAP_S)
        return wait * random.uniform(0.8, 1.2)


def _bug(error: Exception) -> Problem:
    """Its text may hold anything, a secret too: that stays in the log's traceback."""
    if isinstance(error, MemoryError):
        return Problem(
            reasons.MEMORY_EXHAUSTED, "the operator's memory does not hold what this run needs; it tries again"
        )
    return Problem(reasons.INTERNAL_ERROR, f"{type(error).__name__}: see the operator's log; it tries again")
