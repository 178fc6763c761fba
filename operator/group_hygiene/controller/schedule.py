"""When each policy is due, and when each GroupRestore and GroupKeep has its turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from group_hygiene.controller.binding import Admitted, S
from group_hygiene.process.clock import Clock

_NEVER = float("-inf")
# The pause before objects that had no turn in a round.
_REST_S = 1.0


class Schedule:
    """When each policy is due: at once when it is new or edited, then at whole multiples of its interval,
    and when a window opens.

    With multiples, policies that were created at different times still share their scans.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # uid -> the generation that ran, and in monotonic seconds when the next run is due, and when the last one was.
        self._next: dict[str, tuple[int, float, float]] = {}

    def due(self, uid: str, generation: int, pause: float = 0.0) -> bool:
        """pause: the least seconds between two runs, also if it was edited in between."""
        now, known = self._clock.monotonic(), self._next.get(uid)
        if known is None or now >= known[1]:
            return True
        ran_generation, at, ran = known
        if ran_generation != generation:
            at = min(at, ran + pause)
            self._next[uid] = (ran_generation, at, ran)
        return now >= at

    def ran(self, uid: str, generation: int, interval: timedelta, opens: timedelta = timedelta()) -> None:
        """opens: the time until a window of the policy opens, when it also runs; 0 = one is open."""
        seconds = interval.total_seconds()
        wall = self._clock.now().timestamp()
        to_boundary = seconds - wall % seconds
        # It ran just before the boundary: that counts as this boundary's run.
        wait = to_boundary if to_boundary > seconds * 0.1 else to_boundary + seconds
        wait = min(wait, opens.total_seconds() or wait)
        now = self._clock.monotonic()
        self._next[uid] = (generation, now + wait, now)

    def wait(self, uids: Sequence[str]) -> float:
        """Seconds until the first of these is due. One that never ran, or was forgotten, is due now."""
        now = self._clock.monotonic()
        return max(0.0, min(self._next.get(uid, (0, now, now))[1] for uid in uids) - now)

    def forget(self, uid: str) -> None:
        """Make it due in the next round."""
        self._next.pop(uid, None)

    def forget_all_but(self, uids: set[str]) -> None:
        self._next = {uid: value for uid, value in self._next.items() if uid in uids}


class _Next(NamedTuple):
    """at: in monotonic seconds. pause: before it. edition: of the object and its connection, when it was planned."""

    at: float
    pause: float
    edition: object


class Turns:
    """The turns of the GroupRestores or GroupKeeps of one connection.

    Namespaces take turns, and in each of them the object that was tried longest ago comes first.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next: dict[str, _Next] = {}
        # The last try of each uid, and of each namespace, in monotonic seconds.
        self._tried: dict[str, float] = {}
        self._served: dict[str, float] = {}
        # The uids that were due in this round and were not tried yet.
        self._left: set[str] = set()

    def in_order(self, objects: Iterable[Admitted[S]]) -> list[Admitted[S]]:
        """Those that are due now, in the order of their turns."""
        of_namespace: Counter[str] = Counter()
        turns: dict[str, tuple[int, float]] = {}
        oldest = sorted(objects, key=lambda each: self._tried.get(each.uid, _NEVER))
        for each in oldest:
            turns[each.uid] = of_namespace[each.namespace], self._served.get(each.namespace, _NEVER)
            of_namespace[each.namespace] += 1
        self._left = set(turns)
        return sorted(oldest, key=lambda each: turns[each.uid])

    def note_tried(self, each: Admitted[Any]) -> None:
        self._tried[each.uid] = self._served[each.namespace] = self._clock.monotonic()
        self._left.discard(each.uid)

    def plan(self, uid: str, edition: object, pause: float, wait: float) -> None:
        """The next turn comes after `wait` seconds. pause: to be doubled if it fails again."""
        self._next[uid] = _Next(self._clock.monotonic() + wait, pause, edition)

    def pause(self, uid: str, edition: object) -> float | None:
        """The pause that was planned last for this edition; None = none was."""
        known = self._next.get(uid)
        return known.pause if known is not None and known.edition == edition else None

    def is_due(self, uid: str, edition: object) -> bool:
        return self.pause(uid, edition) is None or self._next[uid].at <= self._clock.monotonic()

    def seconds_to_wait(self) -> float | None:
        """Seconds until the next turn; None = there is none."""
        if self._left:
            return _REST_S
        now = self._clock.monotonic()
        return min((max(0.0, planned.at - now) for planned in self._next.values()), default=None)

    def forget(self, uid: str) -> None:
        self._next.pop(uid, None)
        self._tried.pop(uid, None)

    def begin_round(self, uids: Collection[str], namespaces: Collection[str]) -> None:
        """Forget all but these. Those that are due have their turns in this round, or are left."""
        self._left.clear()
        for uid in [uid for uid in {*self._next, *self._tried} if uid not in uids]:
            self.forget(uid)
        self._served = {name: at for name, at in self._served.items() if name in namespaces}
