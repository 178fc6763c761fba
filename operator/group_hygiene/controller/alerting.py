"""Connects the runs of one connection to its receivers, their Secrets and the ledger.

Package `alerts` writes and sends the messages; this module calls the API server and the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from group_hygiene import status
from group_hygiene.alerts.delivery import Endpoint, read_endpoint
from group_hygiene.alerts.sender import Sender
from group_hygiene.alerts.state import AlertType, Situation, advance, assess, by_owner, of_owner
from group_hygiene.controller.api import POLICIES, Api
from group_hygiene.controller.binding import Bound
from group_hygiene.controller.status_writer import StatusWriter
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
from group_hygiene.spec.owners import NO_OWNERS
from group_hygiene.spec.policy import Action, Policy
from group_hygiene.spec.receivers import Receiver
from group_hygiene.spec.secret import SecretRef
from group_hygiene.telemetry.metrics import Metrics

# A policy may run every five seconds: its Secrets are not read each time.
_SECRET_CACHE_S = 30.0
_LAST_NOTE_S = 3.0


@dataclass
class _Secrets:
    """A cache of texts of Secrets. It stores no failures, so the next call reads that Secret again."""

    api: Api
    clock: Clock
    known: dict[tuple[str, SecretRef], tuple[float, str]] = field(default_factory=dict)

    def read(self, namespace: str, ref: SecretRef) -> str:
        now = self.clock.monotonic()
        self.known = {key: value for key, value in self.known.items() if now - value[0] < _SECRET_CACHE_S}
        if (namespace, ref) not in self.known:
            self.known[namespace, ref] = now, self.api.read_secret(namespace, ref)
        return self.known[namespace, ref][1]


class Alerting:
    """The alerts of one connection. Only the thread of its runs may call this."""

    def __init__(self, api: Api, metrics: Metrics, clock: Clock, writer: StatusWriter, sender: Sender) -> None:
        self._metrics, self._clock, self._writer, self._sender = metrics, clock, writer, sender
        self._outbox = sender.outbox
        self._secrets = _Secrets(api, clock)
        # The contents of the ledger, with entries that the journal has not written yet.
        self._contents = Contents()
        # The results of the policies in this round, or in one that was fenced.
        self._found: list[Situation] = []
        self._owners = NO_OWNERS
        # Uids of policies that notify a receiver, their own or an owner's.
        self._notifying: set[str] = set()
        # Namespace and name of policies that may have a series in the metrics.
        self._shown: set[tuple[str, str]] = set()

    @property
    def unwritten(self) -> bool:
        """Whether notifications wait to be written into the ledger."""
        return bool(self._outbox.changes(self._contents.alerts, self._clock.now()))

    @property
    def needs_ledger(self) -> bool:
        """Whether a policy notifies a receiver: the ledger must then store what was delivered."""
        return bool(self._notifying)

    def bind(self, connection: Connection, active: Sequence[Bound]) -> None:
        """Read from the current specs and Secrets which receivers each policy notifies, and their addresses."""
        policies = [entry.policy for entry in active]
        self._owners = connection.owners
        notified = bool(self._owners.notified)
        self._notifying = {policy.uid for policy in policies if notified or receivers_of(connection, policy)}
        endpoints = {receiver.name: self._endpoint(connection.namespace, receiver) for receiver in connection.receivers}
        of_owners = (each for policy in policies for each in self._of_owners(policy))
        self._outbox.bind(connection.uid, [*policies, *of_owners], endpoints, connection.keep_link)
        names = {(policy.namespace, policy.name) for policy in policies}
        for namespace, name in self._shown - names:
            self._metrics.alerting(namespace, name, None)
        self._shown &= names
        self._sender.wake()

    def release(self) -> None:
        """The connection is gone: its policies no longer notify a receiver."""
        self._notifying = set()
        self._outbox.bind("", [], {})
        self._sender.wake()

    def begin(self, context: Context) -> None:
        """Before policies run: write what was delivered since the last run, and use what earlier processes wrote."""
        self._contents = context.journal.contents
        self._outbox.adopt(self._contents.alerts.values())
        changes = self._outbox.changes(self._contents.alerts, self._clock.now())
        if changes:
            context.journal.note(changes)

    def add_result(self, plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot) -> None:
        """Add the result of a policy's run. It is sent together with the results of the other policies."""
        if plan.policy.action is Action.ALERT or plan.policy.uid in self._notifying:
            self._found.append(assess(plan, outcomes, snapshot))
        self._found += [assess(own, theirs, snapshot) for own, theirs in by_owner(plan, outcomes, self._owners)]

    def in_status(self, entry: Bound, plan: Plan, snapshot: Snapshot, new: status.Status) -> status.Status:
        """The status of a policy that ran, with its conditions about alerts."""
        policy, at = entry.policy, snapshot.taken_at
        new = status.with_alerting(new, entry.status, plan, at, self._continues(policy.uid))
        self._metrics.alerting(policy.namespace, policy.name, status.is_alerting(new))
        self._shown.add((policy.namespace, policy.name))
        return status.with_delivery(new, entry.status, self._failures(policy), at)

    def _continues(self, uid: str) -> bool:
        """Whether an alert of matching groups that fired before continues, as some groups can't be judged now."""
        found = next((found for found in self._found if found.uid == uid), None)
        if found is None:
            return False
        before = self._outbox.firing(uid)
        if AlertType.GROUPS_MATCHED not in before:
            # After a restart without a ledger its groups are unknown: any group that can't be judged may be one.
            return not found.is_complete
        return AlertType.GROUPS_MATCHED in advance(before, found)

    @contextmanager
    def round(self, journal: Journal) -> Iterator[None]:
        """Send the results of the policies of a round once they have run, also when one of them failed.

        If this process was fenced, send nothing: if another process of this operator leads, it sends them.
        """
        # Results of a round that was fenced. This process still leads, so no other one has sent them.
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
        self._outbox.publish(found)

    def _send(self, journal: Journal) -> None:
        self._publish()
        self._note(journal)
        self._sender.wake()

    def note_last(self, journal: Journal) -> Refusal | None:
        """After all runs: write what the ledger lacks, so that the next process does not repeat it.

        Returns why that failed; None = it succeeded.
        """
        self._note(journal, Deadline(_LAST_NOTE_S))
        return journal.problem

    def write_delivery(self, entries: Sequence[Bound], now: datetime) -> None:
        """Update in the statuses of policies that did not run now whether their receivers can be notified."""
        for entry in entries:
            if "lastRunTime" in entry.status:
                failures = self._failures(entry.policy)
                new = status.with_delivery(dict(entry.status), entry.status, failures, now)
                self._writer.write(POLICIES, entry.obj, new)

    def _failures(self, policy: Policy) -> Mapping[str, Refusal | None]:
        """Receiver -> why it can't be notified; None = it can."""
        failures = self._outbox.failures(policy)
        if not policy.crosses_namespace:
            for each in self._of_owners(policy):
                failures |= self._outbox.failures(each)
        for name, failure in failures.items():
            if failure is not None:
                message = f"receiver {name}: {failure.message}"
                if policy.crosses_namespace:
                    # Only the connection's own namespace may read about its Secrets and addresses.
                    message = f"receiver {name} of the KafkaConnection can't be notified"
                failures[name] = Refusal(failure.reason, message)
        return failures

    def _of_owners(self, policy: Policy) -> list[Policy]:
        """The policy as it alerts each owner with a receiver."""
        return [of_owner(policy, owner) for owner in self._owners.notified]

    def _endpoint(self, namespace: str, receiver: Receiver) -> Endpoint | Refusal:
        try:
            return read_endpoint(receiver, lambda ref: self._secrets.read(namespace, ref))
        except HygieneError as error:
            return Refusal.of(error)

    def _note(self, journal: Journal, deadline: Deadline | None = None) -> None:
        journal.note(self._outbox.changes(self._contents.alerts, self._clock.now()), deadline)
