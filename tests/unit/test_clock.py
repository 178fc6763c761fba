"""One clock for leadership, freshness and deadlines, which goes on while the machine is suspended."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from group_hygiene.controller.leader import Candidate
from group_hygiene.errors import NotFound
from group_hygiene.kafka.client import Deadline
from group_hygiene.process.clock import SystemClock


class Leases:
    """The Leases of an API server that has none yet, as far as a process that takes one asks for them."""

    def get_lease(self, *_: object) -> Any:
        raise NotFound("there is none")

    def create_lease(self, _namespace: str, body: Any, _seconds: float) -> Any:
        return body


def test_a_suspended_machine_stops_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC stands still meanwhile; what was read before is old, deadlines are over and the lead is lost."""
    deadline, before = Deadline(30), SystemClock().monotonic()
    leader = Candidate(Leases(), "kafka")  # type: ignore[arg-type]
    asyncio.run(leader.acquire())
    assert leader.seconds_left() > 0
    at = time.clock_gettime(time.CLOCK_BOOTTIME) + 3600
    monkeypatch.setattr(time, "clock_gettime", lambda clock: at if clock == time.CLOCK_BOOTTIME else 0.0)
    assert deadline.left == 0
    assert SystemClock().monotonic() - before >= 3600
    assert leader.seconds_left() == 0
    asyncio.run(leader.release())
