"""When each policy is due. Depends only on a clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from group_hygiene.process.clock import Clock


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
