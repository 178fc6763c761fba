"""One loop per connection. `run_due` is one round: from the objects in the API server to their new statuses.

A round runs in a thread. The asyncio part only waits: for a wake-up, or until the next policy is due.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from group_hygiene.controller.admission import AdmittedPolicy, internal_error, parsed
from group_hygiene.controller.link import Link
from group_hygiene.controller.objects import CONNECTIONS, KEEPS, POLICIES, RESTORES, Object
from group_hygiene.controller.policies import Alerting, Policies
from group_hygiene.controller.services import Services
from group_hygiene.controller.turns import Asked, Keeping, Keeps, Restores
from group_hygiene.engine import marks, recovery
from group_hygiene.engine.context import Context
from group_hygiene.errors import ApiError, HygieneError, LedgerFenced, SpecError
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.conditions import connection_not_ready
from group_hygiene.observe.outbox import Outbox, Sender
from group_hygiene.process import runs
from group_hygiene.spec.connection import Connection
from group_hygiene.spec.policy import Policy

log = logging.getLogger(__name__)

T = TypeVar("T")

_DEBOUNCE_S = 0.3
_BACKOFF_START_S, _BACKOFF_CAP_S = 5.0, 120.0
# Pauses of a connection whose ledger another process writes: two operators that take it back at once write statuses of
# each other's runs all the time.
_FENCED_START_S, _FENCED_CAP_S = 30.0, 300.0
# Between two reads of the Lease of another release that serves the connection.
_QUIET_S = 15.0
# How long messages may take to arrive after the connection is gone, and when the process stops.
_LAST_MESSAGES_S, _IN_FLIGHT_S = 12.0, 2.0
# How long the last write into the ledger may take.
_LAST_NOTE_S = 3.0


@dataclass(frozen=True)
class _Served:
    """A connection, and the policies and restores that it admits. obj: its object.

    active: policies. asked, keeping: restores and keeps that are due. invalid: the error in the connection's spec; then
    nothing runs.
    """

    obj: Object
    connection: Connection
    active: Sequence[AdmittedPolicy]
    asked: Sequence[Asked]
    keeping: Sequence[Keeping]
    invalid: SpecError | None = None


class ConnectionLoop:
    """Serves one connection and its policies. It exists while the connection does."""

    def __init__(self, namespace: str, name: str, services: Services) -> None:
        self.namespace, self.name = namespace, name
        self._services = services
        self._wake = asyncio.Event()
        self._writer = services.status_writer()
        self._restores = Restores(services, self._writer, namespace, name)
        self._keeps = Keeps(services, self._writer, namespace, name)
        self._link = Link(namespace, services.api, services.installation, services.activity)
        outbox, count = Outbox(f"{namespace}/{name}"), partial(services.metrics.alert_sent, namespace, name)
        self._sender = Sender(outbox, services.egress, services.may_send, self._wake.set, count)
        self._alerts = Alerting(services.api, services.metrics, services.clock, self._writer, self._sender)
        self._policies = Policies(services, self._link, self._writer, self._alerts)
        self._backoff = _BACKOFF_START_S
        self._fenced_s, self._fenced_until, self._fenced_generation = _FENCED_START_S, -math.inf, 0
        self._quiet = False
        # Since when a round runs or waits for a thread, in monotonic seconds; None = none does.
        self.busy_since: float | None = None

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Run until the connection is gone, or the process stops."""
        with runs.about(namespace=self.namespace, connection=self.name):
            stopping = self._services.stopping
            wait: float | None = 0.0
            sending = asyncio.create_task(self._sender.run(), name=f"alerts of {self.namespace}/{self.name}")
            try:
                while not stopping.is_set() and wait is not None:
                    try:
                        async with asyncio.timeout(wait):
                            await self._wake.wait()
                        await asyncio.sleep(_DEBOUNCE_S)
                    except TimeoutError:
                        pass
                    self._wake.clear()
                    if not stopping.is_set():
                        wait = await self._in_thread(self._run_safely)
                    if wait is None:
                        await self._sender.finish(_LAST_MESSAGES_S)
                        # The last messages were counted.
                        self._services.metrics.forget_connection(self.namespace, self.name)
                    if wait is None and self._wake.is_set():
                        # A user applied an object while this round found nothing left.
                        wait = 0.0
                if stopping.is_set():
                    await self._sender.finish(_IN_FLIGHT_S)
                    await self._in_thread(self._note_last)
            finally:
                sending.cancel()
                self._link.close()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        self.busy_since = self.busy_since or time.monotonic()
        return await self._services.workers.run(self.namespace, runs.inheriting(work))

    def _run_safely(self) -> float | None:
        """Call `run_due`, and try again after any error: one team's objects must not stop those of others."""
        try:
            with runs.about(run=runs.new_id()):
                return self._run_once()
        finally:
            self._link.end_run()

    def _run_once(self) -> float | None:
        if not self._services.leads():
            # The process may have been suspended; it is about to end.
            return self._back_off()
        try:
            wait = self.run_due()
            self._progressed()
            return wait
        except LedgerFenced as error:
            log.error("connection %s/%s: %s", self.namespace, self.name, error)
            raise
        except ApiError as error:
            log.warning("connection %s/%s: %s; trying again", self.namespace, self.name, error)
        except Exception as error:
            log.exception("connection %s/%s: unexpected; trying again", self.namespace, self.name)
            self._progressed()
            if isinstance(error, MemoryError):
                self._link.forget()
            try:
                self._report_internal_error(error)
            except ApiError as unwritten:
                log.warning("connection %s/%s: %s", self.namespace, self.name, unwritten)
            except Exception:
                log.exception("connection %s/%s: no status could be written", self.namespace, self.name)
        self._link.close()
        return self._back_off()

    def _progressed(self) -> None:
        """A round has ended, and not for want of the API server."""
        self.busy_since = None
        self._services.progress.made()

    def _note_last(self) -> None:
        """Record the delivered messages that the ledger lacks: otherwise the next process sends them again."""
        failed = self._alerts.needs_ledger and bool(self._link.memory.unwritten)
        if not (failed or self._alerts.unwritten) or not self._services.leads():
            return
        try:
            journal = self._link.journal()
            journal.note(self._alerts.unwritten, Deadline(_LAST_NOTE_S))
            problem = journal.problem
        except LedgerFenced as error:
            problem = Refusal.of(error)
        if problem is not None:
            log.warning(
                "connection %s/%s: could not record delivered messages, so the next process may send them again: %s",
                self.namespace,
                self.name,
                problem.message,
            )

    def _report_internal_error(self, error: Exception) -> None:
        """Report it to the connection and to the policies that it admits: the others may not learn that it exists."""
        problem = internal_error(error)
        obj = self._services.objects.get(CONNECTIONS, self.namespace, self.name)
        if obj is None:
            return
        self._writer.write_problem(CONNECTIONS, obj, problem)
        connection, _ = parsed(obj)
        _, active = self._services.bind(connection)
        self._services.metrics.failed(self.namespace, self.name, problem.reason, [entry.spec for entry in active])
        for entry in active:
            self._writer.write_problem(POLICIES, entry.obj, problem)

    def run_due(self) -> float | None:
        """One round: read the objects and run what is due. Returns the seconds until the next; None = nothing is left.

        Raises ApiError, and LedgerFenced if another process leads: this process must then write nothing, not even a
        status.
        """
        obj = self._services.objects.get(CONNECTIONS, self.namespace, self.name)
        self._link.follow(obj)
        if obj is None:
            self._forget_others([])
            self._services.metrics.forget_connection(self.namespace, self.name)
            self._alerts.release()
            return None
        if self._is_served_by_another(obj):
            return _QUIET_S
        connection, invalid = parsed(obj)
        pause = self._fenced_until - self._services.clock.monotonic()
        if pause > 0 and connection.generation == self._fenced_generation:
            return pause
        (bound, active), restores = self._services.bind(connection), self._restores.open(connection)
        self._forget_others(bound)
        again = self._writer.take_refused()
        asked = self._restores.due(connection, restores)
        keeping = self._keeps.due(connection)
        served = _Served(obj, connection, active, asked, keeping, invalid)
        if served.invalid is not None:
            return self._connection_failed(served, served.invalid)
        try:
            self._alerts.bind(connection, active)
            self._link.connect(connection)
            due = self._policies.due(obj, connection, active, again)
            if due or served.asked or keeping or self._keeps_ended or self._alerts.unwritten:
                context = self._open_context(served)
                if self._services.objects.is_complete:
                    # The marks of a policy end with its deletion, also while a finalizer keeps its object there.
                    objects = self._services.objects
                    marks.forget_policies(context, objects.active_uids(POLICIES), objects.uids(CONNECTIONS))
                self._keeps.withdraw(context)
                self._keeps.run(
                    context, keeping, lambda each: self._services.guard(KEEPS, each.obj, obj, each.granted), active
                )
                self._restores.run(
                    context,
                    served.asked,
                    lambda asked: self._services.guard(RESTORES, asked.obj, obj, asked.granted),
                )
                if due:
                    self._policies.run(context, due)
            self._alerts.write_delivery(
                [entry for entry in active if entry not in due.policies], self._services.clock.now()
            )
        except ApiError:
            raise
        except LedgerFenced as error:
            if not self._services.leadership.is_confirmed():
                raise
            self._connection_failed(served, error)
            return self._leave_ledger(connection)
        except HygieneError as error:
            return self._connection_failed(served, error)
        self._backoff = _BACKOFF_START_S
        waits = (
            self._policies.seconds_to_wait(connection, active),
            self._restores.seconds_to_wait(),
            self._keeps.seconds_to_wait(),
            self._writer.seconds_to_wait(),
        )
        return min(wait for wait in waits if wait is not None)

    def _is_served_by_another(self, obj: Object) -> bool:
        """Whether another release serves the connection: this one then changes nothing, not even a status.

        An operator of some namespaces may not ask, and can't write the ledger of another installation.
        """
        name, own = (obj.get("status") or {}).get("servedBy"), self._services.leadership
        quiet = name not in (None, own.namespace) and self._services.api.serves_all and own.other_leads(name)
        if quiet:
            self._services.metrics.failed(self.namespace, self.name, reasons.LEDGER_FENCED)
            self._link.close()
        if quiet and not self._quiet:
            found = f"is served by the release in namespace {name}: this one in {own.namespace} leaves it alone"
            log.error("connection %s/%s %s. Remove one of them", self.namespace, self.name, found)
        self._quiet = quiet
        return quiet

    @property
    def _keeps_ended(self) -> bool:
        """Whether requests of GroupKeeps have to be withdrawn."""
        return self._keeps.have_ended(self._link.memory.contents)

    def _open_context(self, served: _Served) -> Context:
        """Read the ledger to its end, and recover deletions that an earlier run left open."""
        connection, active = served.connection, served.active
        need = (
            recovery.LedgerNeed.WRITE
            if served.asked or self._keeps_ended or self._alerts.unwritten
            else recovery.LedgerNeed.READ
        )
        if any(entry.spec.enforced for entry in active) or self._alerts.needs_ledger or served.keeping:
            need = recovery.LedgerNeed.CREATE
        uids = [entry.spec.uid for entry in active]
        context = self._link.open_context(served.obj, connection, self._services.clock, need, uids)
        self._policies.add_deleted(recovery.recover_intents(context))
        self._alerts.begin(context)
        return context

    def _forget_others(self, bound: Sequence[Policy]) -> None:
        """Forget policies that no longer belong to the connection."""
        self._services.metrics.follow(self.namespace, self.name, bound)
        bound_uids = {policy.uid for policy in bound}
        self._policies.forget_all_but(bound_uids | ({self._link.uid} if self._link.uid else set()))

    def _connection_failed(self, served: _Served, error: HygieneError) -> float:
        self._restores.report_not_ready(served.asked, error)
        self._keeps.report_not_ready(served.keeping, error)
        self._writer.write_problem(CONNECTIONS, served.obj, Refusal.of(error))
        for entry in served.active:
            problem = connection_not_ready(error, entry.spec.namespace, served.connection.key)
            self._writer.write_problem(POLICIES, entry.obj, problem)
        policies = [entry.spec for entry in served.active]
        self._services.metrics.failed(self.namespace, self.name, error.reason, policies)
        self._link.close()
        return self._back_off()

    def _leave_ledger(self, connection: Connection) -> float:
        """Another process writes the ledger: the pause before it is taken back, unless the connection is edited."""
        now = self._services.clock.monotonic()
        again = now - self._fenced_until < _FENCED_CAP_S
        self._fenced_s = min(self._fenced_s * 2, _FENCED_CAP_S) if again else _FENCED_START_S
        self._fenced_until, self._fenced_generation = now + self._fenced_s, connection.generation
        return self._fenced_s

    def _back_off(self) -> float:
        wait, self._backoff = self._backoff, min(self._backoff * 2, _BACKOFF_CAP_S)
        return wait * random.uniform(0.8, 1.2)
