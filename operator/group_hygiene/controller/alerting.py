"""Wires the runs of one connection to its receivers: who gets what, by which Secrets, and what the ledger learns of it.

What is said and how it gets there is in `alerts`; here are the API server, the ledger and the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from group_hygiene import status
from group_hygiene.alerts.courier import Courier, Links
from group_hygiene.alerts.endpoints import Endpoint, read_endpoint
from group_hygiene.alerts.outbox import Box, Outbox, box_of, no_such, receiver_name
from group_hygiene.alerts.sending import Failure
from group_hygiene.alerts.situation import Situation, assess
from group_hygiene.alerts.state import Route, packed, unpacked
from group_hygiene.connection import Connection, receivers_of
from group_hygiene.controller.api import POLICIES, Api
from group_hygiene.controller.binding import Bound
from group_hygiene.controller.telling import Teller
from group_hygiene.egress import Egress
from group_hygiene.errors import HygieneError, LedgerFenced
from group_hygiene.kafka.client import Deadline
from group_hygiene.metrics import Metrics
from group_hygiene.model import Keep, Outcome
from group_hygiene.plan import Plan
from group_hygiene.policy import Action, Policy
from group_hygiene.receivers import Receiver
from group_hygiene.reconcile import Clock, Context, Journal
from group_hygiene.secret import SecretRef
from group_hygiene.snapshot import Snapshot

log = logging.getLogger(__name__)

# A policy may run every five seconds, and have receivers of its own: the API server is not asked each time.
_SECRET_KEPT_S = 30.0
_LAST_WORDS_S = 12.0
# Together far less than a process has to stop.
_SETTLE_S, _LAST_NOTE_S = 2.0, 3.0


class Post(Protocol):
    """What the process says of sending: where it may go, and whether this process may send now."""

    @property
    def egress(self) -> Egress: ...

    def may_send(self) -> bool: ...


@dataclass
class _Secrets:
    """Texts of Secrets, as read a moment ago. What could not be read is asked for again."""

    api: Api
    clock: Clock
    known: dict[tuple[str, SecretRef], tuple[float, str]] = field(default_factory=dict)

    def read(self, namespace: str, ref: SecretRef) -> str:
        now = self.clock.monotonic()
        self.known = {key: value for key, value in self.known.items() if now - value[0] < _SECRET_KEPT_S}
        if (namespace, ref) not in self.known:
            self.known[namespace, ref] = now, self.api.read_secret(namespace, ref)
        return self.known[namespace, ref][1]


class Alerting:
    """Of one connection. What runs call is for their thread; `start`, `finish` and `stop` for the event loop."""

    def __init__(self, where: tuple[str, str], api: Api, metrics: Metrics, clock: Clock, teller: Teller) -> None:
        """where: namespace and name of the connection."""
        self._where, self._metrics, self._teller = where, metrics, teller
        self._secrets = _Secrets(api, clock)
        self._outbox = Outbox()
        self._found: list[Situation] = []
        self._alerting: set[tuple[str, str]] = set()
        # Policy uid -> the groups that alerted last (see `packed`), and how many of them are out of sight.
        self._matched: dict[str, bytes] = {}
        self._held: dict[str, int] = {}
        # Policy uid -> who is told of it: names, and whether they are receivers of its own.
        self._told_of: dict[str, list[tuple[str, bool]]] = {}
        self._courier: Courier | None = None
        self._task: asyncio.Task[None] | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None

    # In the event loop

    def start(self, post: Post, told: asyncio.Event) -> None:
        """Begin to send; sets `told` when the ledger or a status should learn what became of it."""

        def count(kind: str, arrived: bool) -> None:
            self._metrics.alert_sent(*self._where, kind, arrived)

        links = Links(post.egress, post.may_send, told.set, count)
        self._courier = Courier("/".join(self._where), self._outbox, links)
        self._event_loop = asyncio.get_running_loop()
        self._task = self._run(self._courier)

    def _run(self, courier: Courier) -> asyncio.Task[None]:
        return asyncio.create_task(courier.run(), name=f"alerts of {'/'.join(self._where)}")

    def check(self) -> None:
        """Go on sending after an error of our own, which is no matter of other connections."""
        if self._courier is not None and self._task is not None and self._task.done():
            log.error("connection %s: sending alerts ended", "/".join(self._where), exc_info=self._task.exception())
            self._task = self._run(self._courier)

    async def finish(self) -> None:
        """The connection is gone: say once that what was told is over."""
        if self._courier is not None:
            await self._courier.last_round(_LAST_WORDS_S)

    async def settle(self) -> None:
        """The process stops: let what is under way arrive, so that it can be noted."""
        if self._courier is not None:
            await self._courier.settle(_SETTLE_S)

    def stop(self) -> None:
        """What is not delivered now is delivered by the next process, as the ledger knows."""
        if self._task is not None:
            self._task.cancel()

    # In the thread of a run

    @property
    def unwritten(self) -> bool:
        """Whether there is something that the ledger should learn."""
        return bool(self._outbox.unwritten())

    def needs_ledger(self, connection: Connection, active: Sequence[Bound]) -> bool:
        """Whether somebody is told something, so that it must be remembered."""
        return any(True for entry in active for _ in receivers_of(connection, entry.policy))

    def bind(self, connection: Connection, active: Sequence[Bound]) -> None:
        """Who is told of which policy, and where that is, by the specs and Secrets as they are now."""
        routes: list[Route] = []
        endpoints: dict[Box, Endpoint | Failure] = {
            ("", receiver.name): self._endpoint(connection.namespace, receiver) for receiver in connection.receivers
        }
        self._told_of = {entry.policy.uid: [] for entry in active}
        for entry in active:
            policy = entry.policy
            for name, receiver, own in receivers_of(connection, policy):
                self._told_of[policy.uid].append((name, own))
                pair = policy.uid, receiver_name(name, own)
                if receiver is None:
                    endpoints[box_of(pair)] = no_such(name)
                    continue
                routes.append(Route(*pair, receiver.kind, receiver.digest, connection.uid, connection.key))
                if own:
                    endpoints[box_of(pair)] = self._endpoint(policy.namespace, receiver)
        self._matched = {uid: known for uid, known in self._matched.items() if uid in self._told_of}
        self._held = {uid: held for uid, held in self._held.items() if uid in self._told_of}
        self._outbox.bind(routes, endpoints)
        names = {(entry.policy.namespace, entry.policy.name) for entry in active}
        for namespace, name in self._alerting - names:
            self._metrics.alerting(namespace, name, None)
        self._alerting &= names
        self._wake()

    def release(self) -> None:
        """The connection is gone, and its policies tell nobody anything any more."""
        self._told_of = {}
        self._outbox.bind([], {})
        self._wake()

    def begin(self, context: Context) -> None:
        """Before policies run: what earlier processes told, and what was told since the last run."""
        self._outbox.remember(context.journal.contents.told.values(), context.connection.uid, context.connection.key)
        self._note(context.journal)

    def heard(self, plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot) -> None:
        """Keep what a run of a policy found, to be told with what the others find."""
        uid, alerts = plan.policy.uid, plan.policy.action is Action.ALERT
        if not alerts and not self._told_of.get(uid):
            return
        situation = assess(plan, outcomes, snapshot)
        if self._told_of.get(uid):
            self._found.append(situation)
        if alerts:
            self._held[uid] = self._hold(plan.policy, situation)

    def _hold(self, policy: Policy, situation: Situation) -> int:
        """How many groups that matched before may match still: by the rule by which its receivers are told."""
        matched, wanted = situation.matched, policy.alert.groups_at_least
        before = self._matched[policy.uid] if policy.uid in self._matched else self._outbox.matched(policy.uid)
        if before is None and not situation.sees_all and len(matched) < wanted:
            # Nobody knows any more what it alerted of before a restart: it may be all that is out of sight.
            return wanted
        held = situation.held(unpacked(before or b""))
        self._matched[policy.uid] = packed((*matched, *held))
        return len(held)

    def in_status(self, entry: Bound, plan: Plan, snapshot: Snapshot, new: status.Status) -> status.Status:
        """The status of a policy that ran, with what it says of alerts."""
        new = status.with_alerting(new, entry.status, plan, snapshot.taken_at, self._held.get(entry.policy.uid, 0))
        namespace, name = entry.policy.namespace, entry.policy.name
        fires = status.is_alerting(new)
        self._metrics.alerting(namespace, name, fires)
        if fires is None:
            self._alerting.discard((namespace, name))
        else:
            self._alerting.add((namespace, name))
        return status.with_delivery(new, entry.status, self._failures(entry.policy), snapshot.taken_at)

    @contextmanager
    def round(self, journal: Journal) -> Iterator[None]:
        """Once the policies of a round have run, tell what they found, also when one of them failed.

        Not when somebody else writes the ledger: if that is another process of ours, it reports this.
        """
        # Of a round that was fenced. There is a next one, so it was no other process of ours.
        left, self._found = self._found, []
        self._outbox.heard(left)
        try:
            yield
        except LedgerFenced:
            raise
        except Exception:
            self._send(journal)
            raise
        self._send(journal)

    def _send(self, journal: Journal) -> None:
        found, self._found = self._found, []
        self._outbox.heard(found)
        self._note(journal)
        self._wake()

    def note_last(self, journal: Journal) -> None:
        """After all runs: what arrived since the last one, so that the next process does not repeat it."""
        self._note(journal, Deadline(_LAST_NOTE_S))

    def tell(self, entries: Sequence[Bound], now: datetime) -> None:
        """Whether the receivers of policies that did not run now can be told, in their statuses."""
        for entry in entries:
            if "lastRunTime" in entry.status:
                failures = self._failures(entry.policy)
                new = status.with_delivery(dict(entry.status), entry.status, failures, now)
                self._teller.tell(POLICIES, entry.obj, new)

    def _failures(self, policy: Policy) -> Mapping[str, Keep | None]:
        """Receiver -> why it can't be told of this policy; None = it can."""
        failures: dict[str, Keep | None] = {}
        for name, own in self._told_of.get(policy.uid, ()):
            failure = self._outbox.failure((policy.uid, receiver_name(name, own)))
            message = "" if failure is None else f"receiver {name}: {failure.message}"
            if failure is not None and not own and policy.crosses_namespace:
                # What it says of Secrets and addresses is for the connection's own namespace.
                message = f"receiver {name} of the KafkaConnection can't be told"
            failures[name] = None if failure is None else Keep(failure.reason, message)
        return failures

    def _endpoint(self, namespace: str, receiver: Receiver) -> Endpoint | Failure:
        try:
            return read_endpoint(receiver, lambda ref: self._secrets.read(namespace, ref))
        except HygieneError as error:
            return Failure(error.reason, str(error))

    def _note(self, journal: Journal, deadline: Deadline | None = None) -> None:
        changes = self._outbox.unwritten()
        if changes:
            journal.note(changes, deadline)
            self._outbox.written(changes)

    def _wake(self) -> None:
        if self._event_loop is None or self._courier is None:
            return
        # A run may end after the process's event loop did.
        with suppress(RuntimeError):
            self._event_loop.call_soon_threadsafe(self._courier.wake)
