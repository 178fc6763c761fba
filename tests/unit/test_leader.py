"""Renewals of the Lease: when they start, and what the error says when they fail. More: tests/kube/test_leader.py."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from group_hygiene.controller.api import Api
from group_hygiene.controller.leader import Candidate
from group_hygiene.errors import ApiError, HygieneError, NotFound
from group_hygiene.process.clock import elapsed

# A process leads for 4 s after a renewal, and renews after 1 s.
DURATION = 6


class _Api:
    """Holds one Lease. problem: raised instead of an answer."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.renewals: list[float] = []
        self.problem: ApiError | None = None

    def get_lease(self, namespace: str, name: str, timeout: float) -> dict[str, Any]:
        if self.lease is None:
            raise NotFound("there is none")
        return self.lease

    def create_lease(self, namespace: str, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        self.lease = body
        return body

    def replace_lease(self, namespace: str, name: str, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        self.renewals.append(elapsed())
        if self.problem is not None:
            raise self.problem
        self.lease = body
        return body


class _Clock:
    def __init__(self) -> None:
        self.skipped = 0.0

    def __call__(self) -> float:
        return elapsed() + self.skipped


def _leader(api: _Api, clock: _Clock) -> Candidate:
    return Candidate(cast(Api, api), "kafka", DURATION, clock)


@pytest.mark.parametrize(
    "idle", [pytest.param(0.0, id="at-once"), pytest.param(2.5, id="late"), pytest.param(3.5, id="nearly-too-late")]
)
def test_the_first_renewal_is_in_time(idle: float) -> None:
    """`keep` renews before the lead ends, also if it is called late; it never renews in a busy loop."""

    async def story() -> None:
        api, clock = _Api(), _Clock()
        leader = _leader(api, clock)
        await leader.acquire()
        clock.skipped = idle
        keep = asyncio.create_task(leader.keep())
        await asyncio.sleep(2.2)
        assert not keep.done()
        assert 1 <= len(api.renewals) <= 3
        assert leader.seconds_left() > 2
        keep.cancel()

    asyncio.run(story())


def test_failing_renewals_are_the_reason() -> None:
    """They are repeated with pauses until the lead ends."""

    async def story() -> None:
        api, clock = _Api(), _Clock()
        leader = _leader(api, clock)
        await leader.acquire()
        api.problem = ApiError("the API server answers 503")
        clock.skipped = 3.2
        with pytest.raises(HygieneError, match="not renewed for 4 s: the API server answers 503"):
            await leader.keep()
        assert len(api.renewals) == 1

    asyncio.run(story())


def test_only_a_process_that_stood_still_is_called_suspended() -> None:
    """A first renewal that comes too late has another cause than time that the process did not see pass."""

    async def story() -> None:
        clock = _Clock()
        late = _leader(_Api(), clock)
        await late.acquire()
        clock.skipped = 5
        with pytest.raises(HygieneError, match="the first renewal came too late"):
            await late.keep()
        suspended = _leader(_Api(), clock)
        await suspended.acquire()
        keep = asyncio.create_task(suspended.keep())
        await asyncio.sleep(0.5)
        clock.skipped += 60
        with pytest.raises(HygieneError, match=r"did not run for (59|60) s: it was suspended, or had no CPU time"):
            await keep

    asyncio.run(story())
