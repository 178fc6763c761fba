"""Connects the runs of one connection to its receivers, their Secrets and the ledger.

Package `alerts` writes and sends the messages; this module calls the API server and the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial

from group_hygiene.alerts.messages import Endpoint, read_endpoint
from group_hygiene.alerts.outbox import Sender
from group_hygiene.alerts.state import AlertType, Situation, advance, assess, by_owner, of_owner
from group_hygiene.controller.api import Api
from group_hygiene.controller.binding import AdmittedPolicy
from group_hygiene.controller.objects import POLICIES
from group_hygiene.controller.status_writer import StatusWriter
from group_hygiene.decide.plan import Plan
from group_hygiene.errors import HygieneError, LedgerFenced
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model.entries import Change
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.snapshot import Snapshot
from group_hygiene.model.verdicts import Outcome
from group_hygiene.process.clock import Clock
from group_hygiene.reconcile import Context
from group_hygiene.spec.access import Right, granted_to_any
from group_hygiene.spec.connection import Connection, receivers_of
from group_hygiene.spec.owners import NO_OWNERS
from group_hygiene.spec.policy import Action, Policy
from group_hygiene.spec.secret import SecretRef
from group_hygiene.status.conditions import Status
from group_hygiene.status.of_policies import is_alerting, with_alerting, with_delivery
from group_hygiene.telemetry.metrics import Metrics

# A policy may run every five seconds: its Secrets are not read each time.
_SECRET_CACHE_S = 30.0
_LAST_NOTE_S = 3.0


class Alerting:
    """The alerts of one connection. Only the thread of its runs may call this."""

    def __init__(self, api: Api, metrics: Metrics, clock: Clock, writer: StatusWriter, sender: Sender) -> None:
        self._api, self._metrics, self._clock, self._writer, self._sender = api, metrics, clock, writer, sender
        self._outbox = sender.outbox
        # Texts of Secrets, with the monotonic time when they were read. Without failures, which are read again.
        self._secrets: dict[tuple[str, SecretRef], tuple[float, str]] = {}
        # The contents of the ledger, with entries that the journal has not written yet.
        self._contents = Contents()
        # By uid: the results of the policies in this round, or in one that was fenced.
        self._found: dict[str, Situation] = {}
        self._owners = NO_OWNERS
        # Uids of policies that notify a receiver, their own or an owner's.
        self._notifying: set[str] = set()
        # Namespace and name of policies that may have a series in the metrics.
        self._shown: set[tuple[str, str]] = set()

    @property
    def unwritten(self) -> list[Change]:
        """Notifications that wait to be written into the ledger."""
        return self._outbox.changes(self._contents.alerts, self._clock.now())

    @property
    def needs_ledger(self) -> bool:
        """Whether a policy notifies a receiver: the ledger must then store what was delivered."""
        return bool(self._notifying)

    def bind(self, connection: Connection, active: Sequence[AdmittedPolicy]) -> None:
        """Read from the current specs and Secrets which receivers each policy notifies, and their addresses."""
        policies = [entry.spec for entry in active]
        self._owners, notified = connection.owners, connection.owners.notified
        self._notifying = {policy.uid for policy in policies if notified or receivers_of(connection, policy)}
        now, endpoints = self._clock.monotonic(), dict[str, Endpoint | Refusal]()
        self._secrets = {ref: known for ref, known in self._secrets.items() if now - known[0] < _SECRET_CACHE_S}
        for receiver in connection.receivers:
            try:
                endpoints[receiver.name] = read_endpoint(receiver, partial(self._secret, connection.namespace))
            except HygieneError as error:
                endpoints[receiver.name] = Refusal.of(error)
        of_owners = [of_owner(policy, owner) for policy in policies for owner in notified]
        keepable = granted_to_any(connection.access, Right.KEEP)
        self._outbox.bind(connection.uid, [*policies, *of_owners], endpoints, connection.keep_link, keepable)
        names = {(policy.namespace, policy.name) for policy in policies}
        for namespace, name in self._shown - names:
            self._metrics.alerting(namespace, name, None)
        self._shown &= names
        self._sender.wake()

    def _secret(self, namespace: str, ref: SecretRef) -> str:
        if (namespace, ref) not in self._secrets:
            self._secrets[namespace, ref] = self._clock.monotonic(), self._api.read_secret(namespace, ref)
        return self._secrets[namespace, ref][1]

    def release(self) -> None:
        """The connection is gone: its policies no longer notify a receiver."""
        self._notifying = set()
        self._outbox.bind("", [], {})
        self._sender.wake()

    def begin(self, context: Context) -> None:
        """Before policies run: use what earlier processes wrote, and write what was delivered since the last run."""
        self._contents = context.journal.contents
        self._outbox.adopt(self._contents.alerts.values())
        if changes := self.unwritten:
            context.journal.note(changes)

    def add_result(self, plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot) -> None:
        """Add the result of a policy's run. It is sent together with the results of the other policies."""
        notifies = plan.policy.action is Action.ALERT or plan.policy.uid in self._notifying
        for each, theirs in [*([(plan, outcomes)] if notifies else []), *by_owner(plan, outcomes, self._owners)]:
            self._found[each.policy.uid] = assess(each, theirs, snapshot)

    def in_status(self, entry: AdmittedPolicy, plan: Plan, snapshot: Snapshot, new: Status) -> Status:
        """The status of a policy that ran, with its conditions about alerts."""
        policy, at, found = entry.spec, snapshot.taken_at, self._found.get(entry.spec.uid)
        # Whether an alert that fired before continues, as some groups can't be judged now. After a restart without a
        # ledger its groups are unknown: any group that can't be judged may be one.
        before, matched = self._outbox.firing(policy.uid), AlertType.GROUPS_MATCHED
        goes_on = found is not None and (matched in advance(before, found) if matched in before else found.is_partial)
        new = with_alerting(new, entry.status, plan, at, goes_on)
        self._metrics.alerting(policy.namespace, policy.name, is_alerting(new))
        self._shown.add((policy.namespace, policy.name))
        return with_delivery(new, entry.status, self._failures(policy), at)

    @contextmanager
    def round(self, journal: Journal) -> Iterator[None]:
        """Send the results of the policies of a round once they have run, also when one of them failed.

        If this process was fenced, send nothing: if another process of this operator leads, it sends them.
        """
        # Results of a round that was fenced. This process still leads, so no other one has sent them.
        self._publish()
        try:
            yield
        except Exception as error:
            if not isinstance(error, LedgerFenced):
                self._send(journal)
            raise
        self._send(journal)

    def _publish(self) -> None:
        found, self._found = self._found, {}
        self._outbox.publish(found.values())

    def _send(self, journal: Journal) -> None:
        self._publish()
        journal.note(self.unwritten)
        self._sender.wake()

    def note_last(self, journal: Journal) -> Refusal | None:
        """After all runs: write what the ledger lacks, so that the next process does not repeat it.

        Returns why that failed; None = it succeeded.
        """
        journal.note(self.unwritten, Deadline(_LAST_NOTE_S))
        return journal.problem

    def write_delivery(self, entries: Sequence[AdmittedPolicy], now: datetime) -> None:
        """Update in the statuses of policies that did not run now whether their receivers can be notified."""
        for entry in entries:
            if "lastRunTime" in entry.status:
                failures = self._failures(entry.spec)
                new = with_delivery(dict(entry.status), entry.status, failures, now)
                self._writer.write(POLICIES, entry.obj, new)

    def _failures(self, policy: Policy) -> Mapping[str, Refusal | None]:
        """Receiver -> why it can't be notified; None = it can. Of the owners, too, in the connection's namespace."""
        failures: dict[str, Refusal | None] = {}
        owners = [] if policy.crosses_namespace else self._owners.notified
        for each in [policy, *(of_owner(policy, owner) for owner in owners)]:
            for name, failure in self._outbox.failures(each).items():
                failures[name] = failures.get(name) or failure
        for name, failure in failures.items():
            if failure is not None:
                # Only the connection's own namespace may read about its Secrets and addresses.
                hidden = f"receiver {name} of the KafkaConnection can't be notified"
                message = hidden if policy.crosses_namespace else f"receiver {name}: {failure.message}"
                failures[name] = Refusal(failure.reason, message)
        return failures
