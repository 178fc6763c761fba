"""The two clocks of the operator: wall time for dates, elapsed seconds for durations."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Protocol


def elapsed() -> float:
    """Seconds since some moment, including time in which the process was stopped or the machine suspended.

    CLOCK_BOOTTIME on Linux, as CLOCK_MONOTONIC stops while the machine is suspended. One function for leadership,
    freshness and deadlines, since their seconds are compared with each other.
    """
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Clock(Protocol):
    """Wall time for dates; monotonic seconds for durations, which setting the clock does not change."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return elapsed()
