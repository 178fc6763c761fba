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
        self._next: dict[str, tuple[int, float]] = {}

    def due(self, uid: str, generation: int) -> bool:
        known = self._next.get(uid)
        return known is None or known[0] != generation or self._clock.monotonic() >= known[1]

    def ran(self, uid: str, generation: int, interval: timedelta, opens: timedelta = timedelta()) -> None:
        """opens: the time until a window of the policy opens, when it also runs; 0 = one is open."""
        seconds = interval.total_seconds()
        wall = self._clock.now().timestamp()
        to_boundary = seconds - wall % seconds
        # It ran just before the boundary: that counts as this boundary's run.
        wait = to_boundary if to_boundary > seconds * 0.1 else to_boundary + seconds
        wait = min(wait, opens.total_seconds() or wait)
        self._next[uid] = (generation, self._clock.monotonic() + wait)

    def wait(self, uids: Sequence[str]) -> float:
        """Seconds until the first of these is due. One that never ran, or was forgotten, is due now."""
        now = self._clock.monotonic()
        return max(0.0, min(self._next.get(uid, (0, now))[1] for uid in uids) - now)

    def forget(self, uid: str) -> None:
        """Make it due in the next round."""
        self._next.pop(uid, None)

    def forget_all_but(self, uids: set[str]) -> None:
        self._next = {uid: value for uid, value in self._next.items() if uid in uids}
