"""What one connection's receivers were told, and what they must hear now. Runs fill it, a courier empties it.

The latest situation of a policy wins: what came and went while a receiver did not answer is told to nobody. So what is
kept is bounded by the number of policies and receivers, whatever happens.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from group_hygiene import reasons
from group_hygiene.alerts.endpoints import Endpoint
from group_hygiene.alerts.sending import Failure
from group_hygiene.alerts.situation import News, Situation
from group_hygiene.alerts.state import Item, Route, owing, packed, step, still_owing, unpacked
from group_hygiene.entries import Change, Removal, Told
from group_hygiene.receivers import Kind

# Whose receiver (uid of a policy, or empty for the connection's) and its name.
Box = tuple[str, str]
_OWN = "policy/"
Pair = tuple[str, str]


def box_of(pair: Pair) -> Box:
    """The receiver that a pair of Told (policy uid, receiver) means."""
    uid, receiver = pair
    return (uid, receiver.removeprefix(_OWN)) if receiver.startswith(_OWN) else ("", receiver)


def receiver_name(name: str, own: bool) -> str:
    """How Told calls it."""
    return f"{_OWN}{name}" if own else name


@dataclass(frozen=True, slots=True)
class Letter:
    """One message to one receiver. before, after: by pair, what it was told, and what it was told once this arrives."""

    items: tuple[Item, ...]
    before: Mapping[Pair, Told | None]
    after: Mapping[Pair, Told | None]


# What a receiver was told that is in no spec any more is taken back, so often.
_PARTING_TRIES = 5


@dataclass
class Outbox:
    """Of one connection. All methods may be called from any thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _routes: dict[Pair, Route] = field(default_factory=dict)
    # The pairs of `_routes` by receiver: there may be thousands of either.
    _pairs: dict[Box, set[Pair]] = field(default_factory=dict)
    _live: frozenset[Pair] = frozenset()
    _endpoints: dict[Box, Endpoint | Failure] = field(default_factory=dict)
    # Of receivers that nobody is told by: their last place stays known, for what is to be taken back there.
    _missing: dict[Box, Failure] = field(default_factory=dict)
    _situations: dict[str, Situation] = field(default_factory=dict)
    _told: dict[Pair, Told] = field(default_factory=dict)
    _written: dict[Pair, Told] = field(default_factory=dict)
    _failures: dict[Box, Failure] = field(default_factory=dict)
    _partings: dict[Box, int] = field(default_factory=dict)

    def bind(self, routes: Iterable[Route], endpoints: Mapping[Box, Endpoint | Failure]) -> None:
        """Who is told of which policy from now on. Whoever is not any more hears that what it was told is over."""
        with self._lock:
            live = {(route.policy_uid, route.receiver): route for route in routes}
            self._live = frozenset(live)
            for pair, route in live.items():
                self._add(pair, route)
            boxes = {box_of(pair) for pair in live}
            lost = {box: place for box, place in endpoints.items() if isinstance(place, Failure) and box not in boxes}
            self._missing = lost
            self._endpoints |= {box: place for box, place in endpoints.items() if box not in lost}
            self._partings = {box: tries for box, tries in self._partings.items() if box not in boxes}
            for pair in [pair for pair in self._routes if pair not in live and pair not in self._told]:
                self._drop(pair)
            used = self._pairs.keys() | endpoints.keys()
            self._endpoints = {box: place for box, place in self._endpoints.items() if box in used}
            self._failures = {box: failure for box, failure in self._failures.items() if box in used}
            uids = {uid for uid, _ in live}
            self._situations = {uid: known for uid, known in self._situations.items() if uid in uids}

    def remember(self, told: Iterable[Told], connection_uid: str, connection: str) -> None:
        """Take in what the ledger says that earlier processes told of this connection (its uid, its namespace/name)."""
        with self._lock:
            for entry in told:
                pair = entry.policy_uid, entry.receiver
                if entry.connection_uid != connection_uid or pair in self._told or pair in self._written:
                    continue
                self._told[pair] = self._written[pair] = entry
                if pair not in self._routes:
                    # Nobody is told of it any more, so its kind does not matter.
                    self._add(pair, Route(*pair, Kind.WEBHOOK, entry.digest, connection_uid, connection))

    def matched(self, policy_uid: str) -> bytes | None:
        """What the receivers of a policy take for matching, see `packed`; None = nobody was told of any."""
        with self._lock:
            told = [told.firing.get(News.GROUPS_MATCHED) for (uid, _), told in self._told.items() if uid == policy_uid]
            known = [unpacked(firing.digests) for firing in told if firing is not None]
            return packed(frozenset().union(*known)) if known else None

    def heard(self, situations: Iterable[Situation]) -> None:
        """What a round found of its policies, all at once, in place of what earlier ones did."""
        with self._lock:
            live: dict[str, list[Pair]] = {}
            for pair in self._live:
                live.setdefault(pair[0], []).append(pair)
            for situation in situations:
                if situation.uid in live:
                    self._situations[situation.uid] = _since(self._situations.get(situation.uid), situation)
                for pair in live.get(situation.uid, ()):
                    self._keep(pair, owing(self._told.get(pair), situation, self._routes[pair]))

    def boxes(self) -> list[Box]:
        """Receivers that there may be something for."""
        with self._lock:
            return sorted(self._pairs)

    def letter(self, box: Box, now: datetime) -> tuple[Letter, Endpoint] | None:
        """What this receiver must hear now, and where it is; None = nothing, or nobody knows where it is."""
        with self._lock:
            items: list[Item] = []
            before: dict[Pair, Told | None] = {}
            after: dict[Pair, Told | None] = {}
            for pair in sorted(self._pairs.get(box, ())):
                route = self._routes[pair]
                situation = self._situations.get(pair[0])
                if pair in self._live and situation is None:
                    # The policy has not run in this process yet.
                    continue
                known = self._told.get(pair)
                if pair not in self._live and known is None:
                    continue
                done = step(known, situation if pair in self._live else None, route, now)
                if not done.items:
                    self._keep(pair, done.told)
                    continue
                items += done.items
                before[pair], after[pair] = known, done.told
            place = self._endpoints.get(box)
            if not items:
                # What could not be delivered came and went: nothing waits any more.
                self._failures.pop(box, None)
                return None
            if not isinstance(place, Endpoint):
                if not any(pair in self._live for pair in before):
                    self._forget(before)
                return None
            # As people look for them.
            items.sort(key=lambda item: item.policy)
            return Letter(tuple(items), before, after), place

    def delivered(self, box: Box, letter: Letter) -> None:
        """The receiver has it."""
        with self._lock:
            for pair, after in letter.after.items():
                # Groups that were deleted while it was under way are still owed.
                self._keep(pair, still_owing(after, self._told.get(pair), letter.before[pair]))
            self._failures.pop(box, None)

    def failed(self, box: Box, letter: Letter, failure: Failure) -> None:
        """It does not have it; of one that is in no spec any more, that is accepted after some tries."""
        with self._lock:
            self._failures[box] = failure
            if any(pair in self._live for pair in letter.before):
                return
            self._partings[box] = self._partings.get(box, 0) + 1
            if self._partings[box] >= _PARTING_TRIES:
                self._forget(letter.before)

    def failure(self, pair: Pair) -> Failure | None:
        """Why the receiver of this pair can't be told now; None = it can, as far as is known."""
        with self._lock:
            box = box_of(pair)
            if box in self._missing:
                return self._missing[box]
            place = self._endpoints.get(box)
            if isinstance(place, Failure):
                return place
            return self._failures.get(box)

    def unwritten(self) -> list[Change]:
        """What the ledger does not know of yet."""
        with self._lock:
            changes: list[Change] = [told for pair, told in self._told.items() if self._written.get(pair) != told]
            return changes + [Removal(told.key) for pair, told in self._written.items() if pair not in self._told]

    def written(self, changes: Iterable[Change]) -> None:
        """It knows of these, or whoever writes it will tell it."""
        with self._lock:
            for change in changes:
                if isinstance(change, Told):
                    self._written[change.policy_uid, change.receiver] = change
                else:
                    _, uid, receiver = change.key
                    self._written.pop((uid, receiver), None)

    def _add(self, pair: Pair, route: Route) -> None:
        self._routes[pair] = route
        self._pairs.setdefault(box_of(pair), set()).add(pair)

    def _drop(self, pair: Pair) -> None:
        if self._routes.pop(pair, None) is None:
            return
        box = box_of(pair)
        self._pairs[box].remove(pair)
        if not self._pairs[box]:
            del self._pairs[box]

    def _keep(self, pair: Pair, told: Told | None) -> None:
        if told is None:
            self._told.pop(pair, None)
            if pair not in self._live:
                self._drop(pair)
        else:
            self._told[pair] = told

    def _forget(self, pairs: Iterable[Pair]) -> None:
        for pair in list(pairs):
            self._keep(pair, None)


def _since(before: Situation | None, now: Situation) -> Situation:
    """What holds now, with the time since when just that is known."""
    return now if before is None or before.findings != now.findings else replace(now, at=before.at)


def no_such(name: str) -> Failure:
    """What a policy is told that names a receiver which its connection does not have."""
    return Failure(reasons.RECEIVER_NOT_FOUND, f"the KafkaConnection has no receiver {name!r}")
