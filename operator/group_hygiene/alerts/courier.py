"""Sends messages concurrently with the runs: one at a time to each receiver, with backoff after a failure.

A receiver that does not answer delays only its own messages. A process that no longer leads sends nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from group_hygiene.alerts.delivery import post
from group_hygiene.alerts.messages import body
from group_hygiene.alerts.queue import Message, Queue
from group_hygiene.model import reasons
from group_hygiene.model.refusal import Refusal
from group_hygiene.network.egress import Egress

log = logging.getLogger(__name__)

_PAUSE_START_S, _PAUSE_CAP_S = 5.0, 300.0
# Alerts at an Alertmanager are renewed even if no policy runs because Kafka can't be reached.
_RENEWAL_CHECK_S = 300.0


@dataclass(frozen=True)
class CourierContext:
    """The parts of the process that a courier uses. may_send: whether the process leads.

    changed: called when the ledger or a status should show the result of a delivery. count: called after each attempt
    with the receiver's type and whether the message arrived.
    """

    egress: Egress
    may_send: Callable[[], bool]
    changed: Callable[[], None]
    count: Callable[[str, bool], None]


class Courier:
    """Sends the messages of one connection. Only `wake` may be called outside the event loop."""

    def __init__(self, connection: str, queue: Queue, context: CourierContext) -> None:
        """connection: namespace/name."""
        self.queue = queue
        self._connection, self._context = connection, context
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake, self._finishing = asyncio.Event(), asyncio.Event()
        # By name of receiver.
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def wake(self) -> None:
        """Check for messages to send. May be called from any thread."""
        # A run may end after the event loop did.
        with suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Send messages until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                self._wake.clear()
                self._serve_all()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RENEWAL_CHECK_S):
                        await self._wake.wait()
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def finish(self, seconds: float) -> None:
        """Wait for messages in flight, and try each pending message once, if this process may still send."""
        self._finishing.set()
        self._serve_all()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)
        self._finishing.clear()

    def _serve_all(self) -> None:
        self._tasks = {name: task for name, task in self._tasks.items() if not task.done()}
        for name in self.queue.names():
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(
                    self._serve(name), name=f"alerts of {self._connection} to {name}"
                )

    async def _serve(self, name: str) -> None:
        """Send the pending messages of this receiver, one after the other."""
        pause = _PAUSE_START_S
        try:
            while self._context.may_send():
                message = self.queue.message(name, datetime.now(UTC))
                if message is None:
                    return
                wait = await self._send(name, message, pause)
                if wait and self._finishing.is_set():
                    return
                pause = min(pause * 2, _PAUSE_CAP_S) if wait else _PAUSE_START_S
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._finishing.wait()
        except Exception:
            log.exception("connection %s: receiver %s: error while making a message", self._connection, name)

    async def _send(self, name: str, message: Message, pause: float) -> float:
        """Returns the seconds to wait before the next message."""
        to = message.to
        try:
            failure, retry_after = await post(
                to, body(to.kind, message.items, message.at), message.at, self._context.egress
            )
        except Exception as error:
            # Its text may hold a URL or a token.
            log.error("connection %s: receiver %s: unexpected %s", self._connection, name, type(error).__name__)
            failure = Refusal(reasons.INTERNAL_ERROR, f"{type(error).__name__}: a bug in the operator")
            retry_after = 0.0
        self._context.count(to.kind, failure is None)
        if failure is None:
            log.info("connection %s: receiver %s: sent %d alerts", self._connection, name, len(message.items))
            self.queue.sent(name, message, None)
            self._context.changed()
            return 0.0
        wait = max(pause * random.uniform(0.8, 1.2), retry_after)
        log.warning("connection %s: receiver %s: %s; next try in %.0f s", self._connection, name, failure.message, wait)
        self.queue.sent(name, message, failure)
        if pause == _PAUSE_START_S:
            self._context.changed()
        return wait
