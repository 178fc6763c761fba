"""Wires the runs of one connection to its receivers: who gets what, by which Secrets, and what the ledger learns of it.

What is said and how it gets there is in `alerts`; here are the API server and the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from group_hygiene import status
from group_hygiene.alerts.courier import Courier
from group_hygiene.alerts.endpoints import Endpoint, read_endpoint
from group_hygiene.alerts.situation import News, Situation, assess
from group_hygiene.alerts.state import advance
from group_hygiene.controller.api import POLICIES, Api
from group_hygiene.controller.binding import Bound
from group_hygiene.controller.status_writer import Teller
from group_hygiene.decide.plan import Plan
from group_hygiene.errors import HygieneError, LedgerFenced
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.snapshot import Snapshot
from group_hygiene.model.verdicts import Outcome
from group_hygiene.process.clock import Clock
from group_hygiene.reconcile import Context
from group_hygiene.spec.connection import Connection, receivers_of
from group_hygiene.spec.policy import Action, Policy
from group_hygiene.spec.receivers import Receiver
from group_hygiene.spec.secret import SecretRef
from group_hygiene.telemetry.metrics import Metrics

# A policy may run every five seconds: the API server is not asked each time.
_SECRET_KEPT_S = 30.0
_LAST_NOTE_S = 3.0


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
    """Of one connection; for the thread of its runs."""

    def __init__(self, api: Api, metrics: Metrics, clock: Clock, teller: Teller, courier: Courier) -> None:
        self._metrics, self._clock, self._teller, self._courier = metrics, clock, teller, courier
        self._queue = courier.queue
        self._secrets = _Secrets(api, clock)
        # What the ledger has, or will have once the journal can write it.
        self._contents = Contents()
        # What policies found in this round, or in one that was fenced.
        self._found: list[Situation] = []
        # Uids of policies that name a receiver.
        self._notifying: set[str] = set()
        # Namespace and name of policies that may have a series in the metrics.
        self._shown: set[tuple[str, str]] = set()

    @property
    def unwritten(self) -> bool:
        """Whether there is something that the ledger should learn."""
        return bool(self._queue.unwritten(self._contents.alerts, self._clock.now()))

    @property
    def needs_ledger(self) -> bool:
        """Whether a receiver is notified of something, so that it must be remembered."""
        return bool(self._notifying)

    def bind(self, connection: Connection, active: Sequence[Bound]) -> None:
        """Take who is notified of which policy, and where that is, by the specs and Secrets as they are now."""
        policies = [entry.policy for entry in active]
        self._notifying = {policy.uid for policy in policies if receivers_of(connection, policy)}
        endpoints = {receiver.name: self._endpoint(connection.namespace, receiver) for receiver in connection.receivers}
        self._queue.bind(policies, endpoints)
        names = {(policy.namespace, policy.name) for policy in policies}
        for namespace, name in self._shown - names:
            self._metrics.alerting(namespace, name, None)
        self._shown &= names
        self._courier.wake()

    def release(self) -> None:
        """The connection is gone, and its policies notify no receiver any more."""
        self._notifying = set()
        self._queue.bind([], {})
        self._courier.wake()

    def begin(self, context: Context) -> None:
        """Before policies run: write what was delivered since the last run, then read what earlier processes wrote."""
        self._note(context.journal)
        self._contents = context.journal.contents
        self._queue.remember(context.connection.uid, self._contents.alerts.values())

    def heard(self, plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot) -> None:
        """Keep what a run of a policy found, to be sent with what the others find."""
        if plan.policy.action is Action.ALERT or plan.policy.uid in self._notifying:
            self._found.append(assess(plan, outcomes, snapshot))

    def in_status(self, entry: Bound, plan: Plan, snapshot: Snapshot, new: status.Status) -> status.Status:
        """The status of a policy that ran, with what it says of alerts."""
        policy, at = entry.policy, snapshot.taken_at
        new = status.with_alerting(new, entry.status, plan, at, self._goes_on(policy.uid))
        self._metrics.alerting(policy.namespace, policy.name, status.is_alerting(new))
        self._shown.add((policy.namespace, policy.name))
        return status.with_delivery(new, entry.status, self._failures(policy), at)

    def _goes_on(self, uid: str) -> bool:
        """Whether an alert of matching groups goes on if it fired before: some can't be judged now."""
        found = next((found for found in self._found if found.uid == uid), None)
        if found is None:
            return False
        before = self._queue.firing(uid)
        if News.GROUPS_MATCHED not in before:
            # After a restart without a ledger its groups are not known any more: all may be among those.
            return not found.is_complete
        return News.GROUPS_MATCHED in advance(before, found)

    @contextmanager
    def round(self, journal: Journal) -> Iterator[None]:
        """Once the policies of a round have run, send what they found, also when one of them failed.

        Not when somebody else writes the ledger: if that is another process of ours, it sends this.
        """
        # Of a round that was fenced. There is a next one, so it was no other process of ours.
        self._publish()
        try:
            yield
        except LedgerFenced:
            raise
        except Exception:
            self._send(journal)
            raise
        self._send(journal)

    def _publish(self) -> None:
        found, self._found = self._found, []
        self._queue.publish(found)

    def _send(self, journal: Journal) -> None:
        self._publish()
        self._note(journal)
        self._courier.wake()

    def note_last(self, journal: Journal) -> None:
        """After all runs: write what was delivered since the last one, so that the next process does not repeat it."""
        self._note(journal, Deadline(_LAST_NOTE_S))

    def tell(self, entries: Sequence[Bound], now: datetime) -> None:
        """Write into the statuses of policies that did not run now whether their receivers can be notified."""
        for entry in entries:
            if "lastRunTime" in entry.status:
                failures = self._failures(entry.policy)
                new = status.with_delivery(dict(entry.status), entry.status, failures, now)
                self._teller.tell(POLICIES, entry.obj, new)

    def _failures(self, policy: Policy) -> Mapping[str, Refusal | None]:
        """Receiver -> why it can't be notified; None = it can."""
        failures = self._queue.failures(policy)
        for name, failure in failures.items():
            if failure is not None:
                message = f"receiver {name}: {failure.message}"
                if policy.crosses_namespace:
                    # What it says of Secrets and addresses is for the connection's own namespace.
                    message = f"receiver {name} of the KafkaConnection can't be notified"
                failures[name] = Refusal(failure.reason, message)
        return failures

    def _endpoint(self, namespace: str, receiver: Receiver) -> Endpoint | Refusal:
        try:
            return read_endpoint(receiver, lambda ref: self._secrets.read(namespace, ref))
        except HygieneError as error:
            return Refusal.of(error)

    def _note(self, journal: Journal, deadline: Deadline | None = None) -> None:
        changes = self._queue.unwritten(self._contents.alerts, self._clock.now())
        if changes:
            journal.note(changes, deadline)
