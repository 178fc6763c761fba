"""The pending messages to the receivers of one connection. Runs write them, a courier reads them.

Only the latest alerts of a policy are stored, so the size depends only on the number of policies and receivers.
An alert that fired and ended while a receiver did not answer is not sent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from msgspec import structs

from group_hygiene.alerts.endpoints import Endpoint
from group_hygiene.alerts.of_owners import owner_in
from group_hygiene.alerts.situation import Situation
from group_hygiene.alerts.state import Item, added, advance, pending, remaining, validity
from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, DeliveryState, Firing, Key, PolicyAlerts, Receipt, Removal
from group_hygiene.model.refusal import Refusal
from group_hygiene.spec.policy import Policy
from group_hygiene.spec.receivers import Kind

# For a receiver that left the spec: how many messages that resolve its alerts may fail.
_ATTEMPTS = 5
# How long the ledger retains an entry. It is written again when half of that is over.
_RETENTION = timedelta(days=60)


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one receiver.

    deliveries: by policy uid, the state once it is delivered. renewal: it has all firing alerts, also known ones.
    """

    to: Endpoint
    at: datetime
    items: tuple[Item, ...]
    deliveries: Mapping[str, DeliveryState]
    renewal: bool


@dataclass
class _Receiver:
    """digest: of the place of its deliveries. deliveries: by policy uid. renewed: when a renewal was delivered.

    attempts: if it left the spec, how many messages may still fail; None = it is in the spec.
    """

    place: Endpoint | Refusal
    digest: str = ""
    deliveries: dict[str, DeliveryState] = field(default_factory=dict)
    failure: Refusal | None = None
    renewed: datetime | None = None
    attempts: int | None = None


class Queue:
    """The queue of one connection. All methods may be called from any thread."""

    def __init__(self, connection: str) -> None:
        """connection: namespace/name."""
        self._lock = threading.Lock()
        self._connection, self._uid, self._keep_link = connection, "", ""
        self._receivers: dict[str, _Receiver] = {}
        # By uid. The alerts are known of policies that ran, or that have an entry in the ledger.
        self._policies: dict[str, Policy] = {}
        self._alerts: dict[str, dict[str, Firing]] = {}
        # By uid: the last clients, in words, of groups that a message may name. Unknown after a restart until a run.
        self._clients: dict[str, dict[str, str]] = {}

    def bind(
        self, policies: Iterable[Policy], endpoints: Mapping[str, Endpoint | Refusal], keep_link: str = ""
    ) -> None:
        """Use the current specs. policies: also those of owners (`of_owners`). keep_link: of the connection.

        endpoints: of all receivers of the connection, by name.
        """
        with self._lock:
            self._keep_link = keep_link
            self._policies = {policy.uid: policy for policy in policies}
            self._alerts = {uid: firing for uid, firing in self._alerts.items() if uid in self._policies}
            self._clients = {uid: known for uid, known in self._clients.items() if uid in self._policies}
            for name, place in endpoints.items():
                receiver = self._receivers.setdefault(name, _Receiver(place))
                receiver.place, receiver.attempts = place, None
            for name, receiver in self._receivers.items():
                if name not in endpoints and receiver.attempts is None:
                    receiver.attempts = _ATTEMPTS
            self._clean()

    def remember(
        self,
        connection_uid: str,
        entries: Iterable[PolicyAlerts | Receipt],
        written: Mapping[Key, PolicyAlerts | Receipt],
        now: datetime,
    ) -> list[Change]:
        """Use the ledger's entries that earlier processes wrote for this connection, and return the changes for it.

        Newer state of this process has priority: so has what ended since the ledger had the entries of `written`.
        Both in one step, since a message may be delivered at any time.
        """
        with self._lock:
            changes = self._unwritten(written, now)
            ended = {change.key for change in changes if isinstance(change, Removal)}
            self._uid = connection_uid
            for entry in entries:
                uid = entry.policy_uid
                if entry.connection_uid != connection_uid or entry.key in ended:
                    continue
                if isinstance(entry, PolicyAlerts):
                    if uid in self._policies:
                        self._alerts.setdefault(uid, entry.firing)
                elif entry.receiver in self._receivers and uid not in self._receivers[entry.receiver].deliveries:
                    self._receivers[entry.receiver].deliveries[uid] = entry.delivery
                    self._receivers[entry.receiver].digest = entry.digest
            return changes

    def firing(self, policy_uid: str) -> Mapping[str, Firing]:
        """The known alerts of a policy, by type."""
        with self._lock:
            return self._alerts.get(policy_uid, {})

    def publish(self, situations: Sequence[Situation]) -> None:
        """Add the results of a round's policies, all at once, so that a receiver gets them in one message."""
        situations = [found for found in situations if found.uid in self._policies]
        # Without the lock, as it may be slow: only runs change alerts, one after the other.
        alerts = dict(self._alerts)
        for found in situations:
            alerts[found.uid] = advance(alerts.get(found.uid, {}), found)
        with self._lock:
            self._alerts = alerts
            for found in situations:
                policy = self._policies[found.uid]
                for name in self._notified_by(policy) if found.deleted else ():
                    has = self._receivers[name].deliveries
                    delivery = has.get(policy.uid, DeliveryState(policy.key, {}))
                    has[policy.uid] = delivery._replace(deleted=added(delivery.deleted, found.deleted))
                self._clients[found.uid] = self._known_clients(found)

    def names(self) -> list[str]:
        """The names of receivers that may have a pending message."""
        with self._lock:
            return sorted(self._receivers)

    def message(self, name: str, now: datetime) -> Message | None:
        """The next message to this receiver; None = nothing is pending, or its place is not known."""
        with self._lock:
            receiver = self._receivers.get(name)
            if receiver is None or isinstance(receiver.place, Refusal):
                return None
            to = receiver.place
            if receiver.digest != to.digest:
                # A new place has received nothing.
                receiver.deliveries = {
                    uid: delivery._replace(since={}) for uid, delivery in receiver.deliveries.items()
                }
                receiver.digest = to.digest
                self._clean()
            policies = {uid: policy for uid, policy in self._policies.items() if name in self._notified_by(policy)}
            renewal = to.kind is Kind.ALERTMANAGER and self._is_renewal_due(receiver.renewed, policies.values(), now)
            items: list[Item] = []
            after: dict[str, DeliveryState] = {}
            for uid in sorted((policies.keys() & self._alerts.keys()) | (receiver.deliveries.keys() - policies.keys())):
                policy = policies.get(uid)
                firing = {} if policy is None else self._alerts[uid]
                delivery = (
                    receiver.deliveries[uid]
                    if policy is None
                    else receiver.deliveries.get(uid, DeliveryState(policy.key, {}))
                )
                found = pending(policy, self._connection, firing, delivery, now, renewal)
                if found:
                    items += [self._completed(uid, item) for item in found]
                    after[uid] = delivery._replace(
                        since={alert_type: alert.since for alert_type, alert in firing.items()}
                    )
            if not items:
                # The alert that could not be delivered has ended.
                receiver.failure = None
                return None
            items.sort(key=lambda item: item.policy)
            return Message(to, now, tuple(items), after, renewal)

    def sent(self, name: str, message: Message, failure: Refusal | None) -> None:
        """Record the result of a message. failure: None = the receiver has it."""
        with self._lock:
            receiver = self._receivers.get(name)
            if receiver is None:
                return
            receiver.failure = failure
            if failure is None:
                receiver.renewed = message.at if message.renewal else receiver.renewed
                for uid, delivery in message.deliveries.items():
                    left = remaining(receiver.deliveries.get(uid, delivery).deleted, delivery.deleted)
                    receiver.deliveries[uid] = delivery._replace(deleted=left)
            elif receiver.attempts is not None:
                receiver.attempts -= 1
            self._clean()

    def failures(self, policy: Policy) -> dict[str, Refusal | None]:
        """Receiver of a policy -> why it can't be notified; None = no failure is known."""
        with self._lock:
            failures: dict[str, Refusal | None] = {
                name: receiver_not_found(name) for name in policy.alert.receiver_names or ()
            }
            for name in self._notified_by(policy):
                receiver = self._receivers[name]
                failures[name] = receiver.place if isinstance(receiver.place, Refusal) else receiver.failure
            return failures

    def unwritten(self, written: Mapping[Key, PolicyAlerts | Receipt], now: datetime) -> list[Change]:
        """The changes for a ledger that has these entries."""
        with self._lock:
            return self._unwritten(written, now)

    def _unwritten(self, written: Mapping[Key, PolicyAlerts | Receipt], now: datetime) -> list[Change]:
        entries = {entry.key: entry for entry in self._entries(now + _RETENTION)}
        changed = [entry for key, entry in entries.items() if not _is_written(entry, written.get(key))]
        ours = (key for key, entry in written.items() if entry.connection_uid == self._uid)
        return [*changed, *(Removal(key) for key in ours if key not in entries)]

    def _entries(self, expires: datetime) -> Iterator[PolicyAlerts | Receipt]:
        for uid, firing in self._alerts.items():
            if firing and self._notified_by(self._policies[uid]):
                yield PolicyAlerts(policy_uid=uid, firing=firing, connection_uid=self._uid, expires=expires)
        for name, receiver in self._receivers.items():
            for uid, delivery in receiver.deliveries.items():
                yield Receipt(
                    connection_uid=self._uid,
                    receiver=name,
                    policy_uid=uid,
                    digest=receiver.digest,
                    delivery=delivery,
                    expires=expires,
                )

    def _known_clients(self, found: Situation) -> dict[str, str]:
        """The last clients of the groups that a message about this policy may name now."""
        before = self._clients.get(found.uid, {})
        named = [alert.groups for alert in self._alerts[found.uid].values()]
        states = (receiver.deliveries.get(found.uid) for receiver in self._receivers.values())
        named += [state.deleted.groups for state in states if state and state.deleted]
        shown = {group: found.client_of(group) or before.get(group, "") for groups in named for group in groups}
        return {group: client for group, client in shown.items() if client}

    def _completed(self, uid: str, item: Item) -> Item:
        """The item with the owner, the link and the last clients."""
        known = self._clients.get(uid, {})
        clients = tuple(known.get(group, "") for group in item.groups)
        owner = owner_in(uid)
        shown = clients if any(clients) else ()
        return replace(item, clients=shown, owner=owner, keep_link=self._keep_link if owner else "")

    def _notified_by(self, policy: Policy) -> list[str]:
        """Names of receivers that are in the connection's spec."""
        named = policy.alert.receiver_names
        return [n for n, r in self._receivers.items() if r.attempts is None and (named is None or n in named)]

    def _is_renewal_due(self, renewed: datetime | None, policies: Iterable[Policy], now: datetime) -> bool:
        """Whether an alert of these policies would end at an Alertmanager unless it is sent again soon."""
        firing = (policy for policy in policies if self._alerts.get(policy.uid))
        return renewed is None or any(now - renewed >= validity(policy) / 2 for policy in firing)

    def _clean(self) -> None:
        """Remove empty states, and receivers that left the spec and get no more messages."""
        for name, receiver in list(self._receivers.items()):
            receiver.deliveries = {
                uid: delivery for uid, delivery in receiver.deliveries.items() if delivery.since or delivery.deleted
            }
            is_over = not receiver.attempts or not receiver.deliveries or isinstance(receiver.place, Refusal)
            if receiver.attempts is not None and is_over:
                del self._receivers[name]


def _is_written(entry: PolicyAlerts | Receipt, known: PolicyAlerts | Receipt | None) -> bool:
    """Whether the ledger has the entry, and retains it for long enough."""
    if known is None or entry.expires - known.expires > _RETENTION / 2:
        return False
    return structs.replace(known, expires=entry.expires) == entry


def receiver_not_found(name: str) -> Refusal:
    """Why a policy can't notify a receiver that its connection does not have."""
    return Refusal(reasons.RECEIVER_NOT_FOUND, f"the KafkaConnection has no receiver {name!r}")
