"""What each receiver of one connection has yet to get, and what sends it. The ledger stores what was delivered.

Only the latest alerts of a policy are stored, so the size depends only on the number of policies and receivers.
An alert that fired and ended while a receiver did not answer is not sent.

Messages are sent concurrently with the runs: one at a time to each receiver about the policies of one namespace. So a
receiver that does not answer delays only its own messages, and the messages of one team delay none of another team's.
A process that no longer leads sends nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from msgspec import structs

from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, Delivered, Firing, Key, PolicyAlerts, Removal
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.alerts import (
    Item,
    Situation,
    Status,
    added,
    advance,
    owner_in,
    pending,
    received,
    validity,
)
from group_hygiene.observe.messages import MESSAGE_MAX, Endpoint, PostResult, fitting, post
from group_hygiene.process.egress import Egress
from group_hygiene.spec.connection import ReceiverKind
from group_hygiene.spec.patterns import NO_PATTERNS, Patterns
from group_hygiene.spec.policy import Policy

log = logging.getLogger(__name__)

# How long the ledger retains an entry. It is written again when half of that is over.
_RETENTION = timedelta(days=60)
# How many messages that end alerts may fail for a receiver that left the spec.
_LAST_TRIES = 5
_UNCONFIRMED = Refusal(
    reasons.RECEIVER_UNCONFIRMED,
    "it did not answer in time to a message that was sent several times, which may have arrived and is not sent again",
)

_PAUSE_START_S, _PAUSE_CAP_S = 5.0, 300.0
# These tries without an answer take half an hour.
_UNANSWERED_MAX, _UNANSWERED_FACTOR, _UNANSWERED_CAP_S = 6, 4, 3_600.0
# Alerts at an Alertmanager are renewed even if no policy runs because Kafka can't be reached.
_RENEWAL_CHECK_S = 300.0
# Requests to one receiver at a time.
_CONCURRENT = 4
# A receiver that does not even take a message of so many bytes is not asked to take a shorter one.
_SHORTEST = 2_000


class Lane(NamedTuple):
    """The messages to one receiver about the policies of one namespace: no other namespace's wait for them."""

    receiver: str
    namespace: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one receiver. content: the body of a POST with `items`."""

    to: Endpoint
    at: datetime
    content: bytes
    items: tuple[Item, ...]


class Outbox:
    """The outbox of one connection. All methods may be called from any thread."""

    def __init__(self, connection: str) -> None:
        """connection: namespace/name."""
        self._lock = threading.Lock()
        self.connection, self._uid = connection, ""
        self._keep_link, self._keepable = "", NO_PATTERNS
        # By name: the receivers of the spec (`_current`), and those that left it and have not received the end yet.
        self._places: dict[str, Endpoint | Refusal] = {}
        self._current: frozenset[str] = frozenset()
        # By uid of the policy, or of `of_owner`; entries also of those that are gone, until the ledger has none.
        self._policies: dict[str, Policy] = {}
        self._entries: dict[str, PolicyAlerts] = {}
        self._failures: dict[Lane, Refusal] = {}
        # By receiver, uid and type: when an Alertmanager received the alert. Unknown after a restart.
        self._renewed: dict[tuple[str, str, str], datetime] = {}

    def bind(
        self,
        uid: str,
        policies: Iterable[Policy],
        endpoints: Mapping[str, Endpoint | Refusal],
        keep_link: str = "",
        keepable: Patterns = NO_PATTERNS,
    ) -> None:
        """Use the current specs. uid ("" = as before), keep_link: of the connection. policies: also those of owners.

        endpoints: of all receivers of the connection, by name. keepable: see `Item`.
        """
        with self._lock:
            self._uid, self._keep_link, self._keepable = uid or self._uid, keep_link, keepable
            self._policies = {policy.uid: policy for policy in policies}
            self._current = frozenset(endpoints)
            self._places |= endpoints
            self._entries = {
                entry.policy_uid: self._bound(structs.replace(entry, connection_uid=self._uid))
                for entry in self._entries.values()
            }
            unfinished = {name for entry in self._entries.values() for name in _stored(entry)}
            self._places = {n: place for n, place in self._places.items() if n in self._current or n in unfinished}
            self._failures = {lane: why for lane, why in self._failures.items() if lane.receiver in self._places}
            self._renewed = {key: at for key, at in self._renewed.items() if key[1] in self._policies}

    def adopt(self, entries: Iterable[PolicyAlerts]) -> None:
        """Use the ledger's entries of this connection, as far as this process does not know better."""
        with self._lock:
            for entry in entries:
                if entry.connection_uid == self._uid:
                    known = self._entries.get(entry.policy_uid, entry)
                    delivered = entry.delivered | known.delivered
                    self._entries[entry.policy_uid] = self._bound(structs.replace(known, delivered=delivered))

    def changes(self, written: Mapping[Key, PolicyAlerts], now: datetime) -> list[Change]:
        """The changes for a ledger that has these entries."""
        changes: list[Change] = []
        with self._lock:
            for uid, entry in list(self._entries.items()):
                old, delivered = written.get(entry.key), _stored(entry)
                if delivered or (entry.firing and any(self._notifies(uid, name) for name in self._places)):
                    new = structs.replace(entry, delivered=delivered, expires=now + _RETENTION)
                    is_late = old is not None and new.expires - old.expires > _RETENTION / 2
                    if old is None or is_late or new != structs.replace(old, expires=new.expires):
                        changes.append(new)
                elif old is not None:
                    changes.append(Removal(entry.key))
                elif not entry.firing:
                    del self._entries[uid]
        return changes

    def firing(self, policy_uid: str) -> Mapping[str, Firing]:
        """The known alerts of a policy, by type."""
        with self._lock:
            entry = self._entries.get(policy_uid)
            return {} if entry is None else entry.firing

    def publish(self, situations: Iterable[Situation]) -> None:
        """Add the results of a round's policies, all at once, so that a receiver gets them in one message."""
        # Without the lock, as it may be slow: only runs change alerts, one after the other.
        alerts = [(found, advance(self.firing(found.uid), found)) for found in situations]
        with self._lock:
            for found, firing in alerts:
                policy = self._policies.get(found.uid)
                if policy is None:
                    continue
                known = self._entries.get(found.uid)
                delivered = {} if known is None else dict(known.delivered)
                for name in self._places if found.deleted else ():
                    if found.deleted and self._notifies(found.uid, name):
                        state = delivered.get(name) or self._nothing(name)
                        delivered[name] = state._replace(deleted=added(state.deleted, found.deleted))
                self._entries[found.uid] = PolicyAlerts(
                    connection_uid=self._uid,
                    policy_uid=found.uid,
                    policy=policy.key,
                    firing=firing,
                    delivered=delivered,
                    expires=found.at,
                )

    def lanes(self, now: datetime) -> set[Lane]:
        """Those with a pending message."""
        found: set[Lane] = set()
        with self._lock:
            for name in self._places:
                for entry in self._entries.values():
                    lane = Lane(name, _namespace(entry))
                    # One message is enough: there may be 100,000 entries, and others wait for the lock.
                    if lane not in found and next(self._pending(entry, name, now), None) is not None:
                        found.add(lane)
        return found

    def message(self, lane: Lane, now: datetime, limit: int = MESSAGE_MAX) -> Message | None:
        """The next message, of at most `limit` bytes; None = none is pending, or the receiver's place is not known."""
        with self._lock:
            entries = [entry for entry in self._entries.values() if _namespace(entry) == lane.namespace]
            entries.sort(key=lambda entry: (entry.policy, entry.policy_uid))
            to = self._places.get(lane.receiver)
            items = (item for entry in entries for item in self._pending(entry, lane.receiver, now))
            content, sent = (b"", []) if not isinstance(to, Endpoint) else fitting(to.kind, items, now, limit)
            if not isinstance(to, Endpoint) or not sent:
                # An alert that could not be delivered has ended.
                self._failures.pop(lane, None)
                return None
            return Message(to, now, content, tuple(sent))

    def delivered(self, lane: Lane, message: Message, confirmed: bool = True) -> None:
        """Record that the receiver has a message. confirmed: False = it did not answer, and may not have it."""
        with self._lock:
            place = self._places.get(lane.receiver)
            self._failures.pop(lane, None)
            if not isinstance(place, Endpoint) or place.digest != message.to.digest:
                # It left, or the spec has another place by now, which has received nothing.
                return
            for item in message.items:
                entry = self._entries.get(item.uid)
                if entry is None:
                    continue
                if item.status is Status.FIRING and place.kind is ReceiverKind.ALERTMANAGER:
                    self._renewed[lane.receiver, item.uid, item.type] = message.at
                state = received(entry.delivered.get(lane.receiver) or self._nothing(lane.receiver), item)
                state = state._replace(unconfirmed=not confirmed)
                self._entries[item.uid] = self._bound(
                    structs.replace(entry, delivered=entry.delivered | {lane.receiver: state})
                )

    def failed(self, lane: Lane, failure: Refusal, tries: int) -> None:
        """Record that a message did not arrive. tries: how many failed since one arrived, this one included.

        A receiver that left the spec is given up after some tries.
        """
        with self._lock:
            self._failures[lane] = failure
            if lane.receiver in self._current or tries < _LAST_TRIES:
                return
            for uid, entry in self._entries.items():
                if _namespace(entry) == lane.namespace and lane.receiver in entry.delivered:
                    delivered = entry.delivered | {lane.receiver: self._nothing(lane.receiver)}
                    self._entries[uid] = structs.replace(entry, delivered=delivered)

    def failures(self, policy: Policy) -> dict[str, Refusal | None]:
        """Receiver of a policy -> why it can't be notified; None = no failure is known."""
        named = policy.alert.receiver_names
        with self._lock:
            failures: dict[str, Refusal | None] = {name: receiver_not_found(name) for name in named or ()}
            entry = self._entries.get(policy.uid)
            for name in self._current if named is None else self._current.intersection(named):
                place, state = self._places[name], None if entry is None else entry.delivered.get(name)
                failures[name] = place if isinstance(place, Refusal) else None
                if failures[name] is None:
                    unconfirmed = _UNCONFIRMED if state is not None and state.unconfirmed else None
                    failures[name] = self._failures.get(Lane(name, policy.namespace), unconfirmed)
            return failures

    def _notifies(self, uid: str, receiver: str) -> bool:
        policy = self._policies.get(uid)
        if policy is None or receiver not in self._current:
            return False
        return policy.alert.receiver_names is None or receiver in policy.alert.receiver_names

    def _is_due(self, receiver: str, uid: str, alert_type: str, now: datetime) -> bool:
        """Whether to send an alert again to an Alertmanager."""
        place = self._places[receiver]
        if not isinstance(place, Endpoint) or place.kind is not ReceiverKind.ALERTMANAGER:
            return False
        at = self._renewed.get((receiver, uid, alert_type))
        return at is None or now - at >= validity(self._policies.get(uid)) / 2

    def _nothing(self, receiver: str) -> Delivered:
        """The state of a receiver that has received nothing."""
        place = self._places.get(receiver)
        return Delivered(place.digest if isinstance(place, Endpoint) else "", {})

    def _bound(self, entry: PolicyAlerts) -> PolicyAlerts:
        """The entry by the current specs: no alert of a policy that is gone, and nothing received at another place.

        Receivers that have received everything stay in it, since an older entry of the ledger must not replace that.
        """
        exists, delivered = entry.policy_uid in self._policies, {}
        for name, state in entry.delivered.items():
            place = self._places.get(name)
            moved = isinstance(place, Endpoint) and state.digest != place.digest
            # Without a known place, a receiver that left can't get the end.
            if name in self._current or isinstance(place, Endpoint):
                now = self._nothing(name)._replace(deleted=state.deleted) if moved else state
                delivered[name] = now if exists else now._replace(unconfirmed=False)
        return structs.replace(entry, firing=entry.firing if exists else {}, delivered=delivered)

    def _pending(self, entry: PolicyAlerts, receiver: str, now: datetime) -> Iterator[Item]:
        place, uid = self._places.get(receiver), entry.policy_uid
        if not isinstance(place, Endpoint):
            return
        policy = self._policies[uid] if self._notifies(uid, receiver) else None
        state = entry.delivered.get(receiver) or self._nothing(receiver)
        if policy is None and not state.since and state.deleted is None:
            return
        owner = owner_in(uid)
        blank = partial(
            Item,
            policy=entry.policy,
            connection=self.connection,
            action="" if policy is None else str(policy.action),
            mode="" if policy is None else str(policy.mode),
            owner=owner,
            keep_link=self._keep_link if owner else "",
            keepable=self._keepable,
            uid=uid,
        )
        firing = entry.firing if policy else {}
        yield from pending(policy, blank, firing, state, now, lambda type_: self._is_due(receiver, uid, type_, now))


def _stored(entry: PolicyAlerts) -> dict[str, Delivered]:
    """What the ledger stores of `delivered`: nothing of receivers that have no alert, and all deletions."""
    return {name: state for name, state in entry.delivered.items() if state.since or state.deleted or state.unconfirmed}


def _namespace(entry: PolicyAlerts) -> str:
    return entry.policy.partition("/")[0]


def receiver_not_found(name: str) -> Refusal:
    """Why a policy can't notify a receiver that its connection does not have."""
    return Refusal(reasons.RECEIVER_NOT_FOUND, f"the KafkaConnection has no receiver {name!r}")


class Sender:
    """Sends the messages of one connection. Only `wake` may be called outside the event loop."""

    def __init__(
        self,
        outbox: Outbox,
        egress: Egress,
        may_send: Callable[[], bool],
        changed: Callable[[], None],
        count: Callable[[str, bool], None],
    ) -> None:
        """may_send: whether the process leads. changed: called when the ledger or a status should show a delivery.

        count: called after each attempt with the receiver's type and whether the message arrived.
        """
        self.outbox, self._egress = outbox, egress
        self._may_send, self._changed, self._count = may_send, changed, count
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake, self._finishing = asyncio.Event(), asyncio.Event()
        self._tasks: dict[Lane, asyncio.Task[None]] = {}
        # By name of receiver.
        self._slots: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_CONCURRENT))

    def wake(self) -> None:
        """Check for messages to send. May be called from any thread."""
        # A run may end after the event loop did.
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Send messages until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                self._wake.clear()
                await self._serve_all()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RENEWAL_CHECK_S):
                        await self._wake.wait()
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def finish(self, seconds: float) -> None:
        """Wait for messages in flight, and try each pending message once, if this process may still send."""
        self._finishing.set()
        await self._serve_all()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)
        self._finishing.clear()

    async def _serve_all(self) -> None:
        # Not in the event loop, which also renews the Lease: there may be 100,000 of them.
        pending = await asyncio.to_thread(self.outbox.lanes, datetime.now(UTC))
        self._tasks = {lane: task for lane, task in self._tasks.items() if not task.done()}
        for lane in pending - self._tasks.keys():
            name = f"alerts of {self.outbox.connection} to {lane.receiver} for {lane.namespace}"
            self._tasks[lane] = asyncio.create_task(self._serve(lane), name=name)

    async def _serve(self, lane: Lane) -> None:
        """Send the pending messages of this lane, one after the other."""
        pause, limit, failed, unanswered = _PAUSE_START_S, MESSAGE_MAX, 0, 0
        try:
            while True:
                async with self._slots[lane.receiver]:
                    if not self._may_send():
                        return
                    message = await asyncio.to_thread(self.outbox.message, lane, datetime.now(UTC), limit)
                    if message is None:
                        return
                    result = await self._post(lane, message)
                if result.too_large and limit > _SHORTEST:
                    limit = len(message.content) // 2
                    continue
                # Each message in Slack is one more for its readers.
                repeats = message.to.kind is ReceiverKind.SLACK and result.unanswered
                failed, unanswered = failed + 1, unanswered + repeats
                if result.failure is None or (repeats and unanswered == _UNANSWERED_MAX):
                    self.outbox.delivered(lane, message, confirmed=result.failure is None)
                    self._changed()
                    pause, failed, unanswered = _PAUSE_START_S, 0, 0
                    continue
                self.outbox.failed(lane, result.failure, failed)
                if failed == 1:
                    self._changed()
                if self._finishing.is_set():
                    return
                wait = max(pause * random.uniform(0.8, 1.2), result.retry_after)
                log.info("%s: next try in %.0f s", self._name(lane), wait)
                factor, cap = (_UNANSWERED_FACTOR, _UNANSWERED_CAP_S) if repeats else (2, _PAUSE_CAP_S)
                pause = min(pause * factor, cap)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._finishing.wait()
        except Exception:
            log.exception("%s: error while making a message", self._name(lane))

    async def _post(self, lane: Lane, message: Message) -> PostResult:
        try:
            result = await post(message.to, message.content, message.at, self._egress)
        except Exception as error:
            # Its text may hold a URL or a token.
            log.error("%s: unexpected %s", self._name(lane), type(error).__name__)
            result = PostResult(Refusal(reasons.INTERNAL_ERROR, f"{type(error).__name__}: a bug in the operator"))
        self._count(message.to.kind, result.failure is None)
        if result.failure is None:
            log.info("%s: sent %d alerts", self._name(lane), len(message.items))
        else:
            log.warning("%s: %s", self._name(lane), result.failure.message)
        return result

    def _name(self, lane: Lane) -> str:
        return f"connection {self.outbox.connection}: receiver {lane.receiver}"
