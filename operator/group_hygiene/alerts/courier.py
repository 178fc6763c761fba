"""Carries messages out, beside the runs: one at a time to each receiver, with growing pauses after a failure.

A receiver that hangs holds up its own messages, and those of others only where many hang at once. Never sends what a
process may not send that does not lead any more.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from group_hygiene.alerts.endpoints import Endpoint
from group_hygiene.alerts.messages import body
from group_hygiene.alerts.outbox import Box, Letter, Outbox
from group_hygiene.alerts.sending import Failure, post
from group_hygiene.egress import Egress

log = logging.getLogger(__name__)

_PAUSE_START_S, _PAUSE_CAP_S = 5.0, 300.0
# An Alertmanager is told again in time also while no policy runs, as Kafka can't be reached.
_LOOK_S = 300.0
_AT_ONCE = 16


@dataclass(frozen=True)
class Links:
    """What a courier needs of its process. may_send: whether it leads. told: called after news of a delivery.

    count: the receiver's kind and whether a message arrived.
    """

    egress: Egress
    may_send: Callable[[], bool]
    told: Callable[[], None]
    count: Callable[[str, bool], None]


@dataclass
class _Pause:
    until: float
    length: float


class Courier:
    """Of one connection; lives in its event loop."""

    def __init__(self, where: str, outbox: Outbox, links: Links) -> None:
        self._where, self._outbox, self._links = where, outbox, links
        self._wake = asyncio.Event()
        self._pauses: dict[Box, _Pause] = {}
        self._under_way: dict[Box, asyncio.Task[None]] = {}
        # Whose message just ended, and when all are looked at again, in monotonic time.
        self._ended: set[Box] = set()
        self._all_at = 0.0
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def wake(self) -> None:
        """There may be something to send; to be called in the event loop."""
        self._all_at = 0.0
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._wake.clear()
                await self._start(self._next())
                try:
                    await asyncio.wait_for(self._wake.wait(), self._seconds_to_wait())
                except TimeoutError:
                    continue
        finally:
            for task in self._under_way.values():
                task.cancel()

    async def settle(self, seconds: float) -> None:
        """Let what is under way arrive."""
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=seconds)

    async def last_round(self, seconds: float) -> None:
        """One try for everything that is still to be said, as nobody will say it later."""
        self._pauses.clear()
        await self._start(self._outbox.boxes())
        await self.settle(seconds)

    def _next(self) -> Iterable[Box]:
        """Whom to look at: all of them after a run, and in time; else who was busy or waited."""
        now, ended = time.monotonic(), self._ended
        self._ended = set()
        if now < self._all_at:
            return ended | {box for box, pause in self._pauses.items() if pause.until <= now}
        self._all_at = now + _LOOK_S
        boxes = self._outbox.boxes()
        there = set(boxes)
        self._pauses = {box: pause for box, pause in self._pauses.items() if box in there}
        return boxes

    async def _start(self, boxes: Iterable[Box]) -> None:
        for box in boxes:
            # The Lease is renewed in this event loop: it gets its turn between thousands of receivers.
            await asyncio.sleep(0)
            pause = self._pauses.get(box)
            if box in self._under_way or (pause is not None and time.monotonic() < pause.until):
                continue
            if not self._links.may_send():
                return
            try:
                letter = self._outbox.letter(box, datetime.now(UTC))
            except Exception:
                log.exception("connection %s: receiver %s: no message could be made", self._where, box[1])
                self._pauses[box] = _Pause(time.monotonic() + _PAUSE_CAP_S, _PAUSE_CAP_S)
                continue
            if letter is None:
                self._pauses.pop(box, None)
            else:
                task = asyncio.create_task(self._send(box, *letter), name=f"alerts of {self._where}")
                self._under_way[box] = task
                task.add_done_callback(lambda _, box=box: self._end(box))  # type: ignore[misc]

    def _end(self, box: Box) -> None:
        self._under_way.pop(box, None)
        self._ended.add(box)
        self._wake.set()

    def _seconds_to_wait(self) -> float:
        now = time.monotonic()
        ends = [pause.until - now for box, pause in self._pauses.items() if box not in self._under_way]
        # One that just ended and had nothing to say does not make us run in circles.
        return max(0.0, min([self._all_at - now, *(max(1.0, left) for left in ends)]))

    async def _send(self, box: Box, letter: Letter, endpoint: Endpoint) -> None:
        async with self._slots:
            if not self._links.may_send():
                return
            now = datetime.now(UTC)
            try:
                failure = await post(endpoint, body(endpoint.kind, letter.items, now), now, self._links.egress)
            except Exception as error:
                # Its text may hold a URL or a token.
                log.error("connection %s: receiver %s: unexpected %s", self._where, box[1], type(error).__name__)
                failure = Failure("InternalError", f"{type(error).__name__}: a mistake of the operator's")
        self._links.count(endpoint.kind, failure is None)
        before = self._pauses.pop(box, None)
        if failure is None:
            log.info("connection %s: receiver %s: told of %d alerts", self._where, box[1], len(letter.items))
            self._outbox.delivered(box, letter)
        else:
            length = min(before.length * 2, _PAUSE_CAP_S) if before else _PAUSE_START_S
            wait = max(length * random.uniform(0.8, 1.2), failure.retry_after)
            self._pauses[box] = _Pause(time.monotonic() + wait, length)
            log.warning("connection %s: receiver %s: %s; again in %.0f s", self._where, box[1], failure.message, wait)
            self._outbox.failed(box, letter, failure)
        if failure is None or before is None:
            self._links.told()
