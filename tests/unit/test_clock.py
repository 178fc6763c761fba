"""One clock for leadership, freshness and deadlines, which goes on while the machine is suspended."""

from __future__ import annotations

import time

import pytest

from group_hygiene.clock import SystemClock
from group_hygiene.controller.leader import Leader
from group_hygiene.kafka.client import Deadline


def test_a_suspended_machine_stops_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC stands still meanwhile; what was read before is old, deadlines are over and the lead is lost."""
    deadline, before = Deadline(30), SystemClock().monotonic()
    at = time.clock_gettime(time.CLOCK_BOOTTIME) + 3600
    monkeypatch.setattr(time, "clock_gettime", lambda clock: at if clock == time.CLOCK_BOOTTIME else 0.0)
    assert deadline.left == 0
    assert SystemClock().monotonic() - before >= 3600
    assert Leader.__init__.__defaults__[-1]() == at  # type: ignore[index]
