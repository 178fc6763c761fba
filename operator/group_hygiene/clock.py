"""The two clocks of the operator: wall time for dates, and elapsed seconds for how long something took."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime


def elapsed() -> float:
    """Seconds since some moment, those included in which the process was stopped or the machine was suspended.

    On Linux CLOCK_BOOTTIME, as CLOCK_MONOTONIC stands still while the machine is suspended. One function for
    leadership, freshness and deadlines: their seconds are compared with each other.
    """
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class SystemClock:
    """The clocks of this machine, as `reconcile.Clock` asks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return elapsed()
