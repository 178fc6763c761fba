"""Sends messages concurrently with the runs: one at a time to each receiver about the policies of one namespace.

So a receiver that does not answer delays only its own messages, and the messages of one team delay none of another
team's. A process that no longer leads sends nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from group_hygiene.alerts.delivery import PostResult, post
from group_hygiene.alerts.messages import MESSAGE_MAX
from group_hygiene.alerts.outbox import Lane, Message, Outbox
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.network.egress import Egress
from group_hygiene.spec.connection import ReceiverKind

log = logging.getLogger(__name__)

_PAUSE_START_S, _PAUSE_CAP_S = 5.0, 300.0
# These tries without an answer take half an hour.
_UNANSWERED_MAX, _UNANSWERED_FACTOR, _UNANSWERED_CAP_S = 6, 4, 3_600.0
# Alerts at an Alertmanager are renewed even if no policy runs because Kafka can't be reached.
_RENEWAL_CHECK_S = 300.0
# Requests to one receiver at a time.
_CONCURRENT = 4
# A receiver that does not even take a message of so many bytes is not asked to take a shorter one.
_SHORTEST = 2_000


class Sender:
    """Sends the messages of one connection. Only `wake` may be called outside the event loop."""

    def __init__(
        self,
        outbox: Outbox,
        egress: Egress,
        may_send: Callable[[], bool],
        changed: Callable[[], None],
        count: Callable[[str, bool], None],
    ) -> None:
        """may_send: whether the process leads. changed: called when the ledger or a status should show a delivery.

        count: called after each attempt with the receiver's type and whether the message arrived.
        """
        self.outbox, self._egress = outbox, egress
        self._may_send, self._changed, self._count = may_send, changed, count
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake, self._finishing = asyncio.Event(), asyncio.Event()
        self._tasks: dict[Lane, asyncio.Task[None]] = {}
        # By name of receiver.
        self._slots: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_CONCURRENT))

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
                await self._serve_all()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RENEWAL_CHECK_S):
                        await self._wake.wait()
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def finish(self, seconds: float) -> None:
        """Wait for messages in flight, and try each pending message once, if this process may still send."""
        self._finishing.set()
        await self._serve_all()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)
        self._finishing.clear()

    async def _serve_all(self) -> None:
        # Not in the event loop, which also renews the Lease: there may be 100,000 of them.
        pending = await asyncio.to_thread(self.outbox.lanes, datetime.now(UTC))
        self._tasks = {lane: task for lane, task in self._tasks.items() if not task.done()}
        for lane in pending - self._tasks.keys():
            name = f"alerts of {self.outbox.connection} to {lane.receiver} for {lane.namespace}"
            self._tasks[lane] = asyncio.create_task(self._serve(lane), name=name)

    async def _serve(self, lane: Lane) -> None:
        """Send the pending messages of this lane, one after the other."""
        pause, limit, failed, unanswered = _PAUSE_START_S, MESSAGE_MAX, 0, 0
        try:
            while True:
                async with self._slots[lane.receiver]:
                    if not self._may_send():
                        return
                    message = await asyncio.to_thread(self.outbox.message, lane, datetime.now(UTC), limit)
                    if message is None:
                        return
                    result = await self._post(lane, message)
                if result.too_large and limit > _SHORTEST:
                    limit = len(message.content) // 2
                    continue
                # Each message in Slack is one more for its readers.
                repeats = message.to.kind is ReceiverKind.SLACK and result.unanswered
                failed, unanswered = failed + 1, unanswered + repeats
                if result.failure is None or (repeats and unanswered == _UNANSWERED_MAX):
                    self.outbox.delivered(lane, message, confirmed=result.failure is None)
                    self._changed()
                    pause, failed, unanswered = _PAUSE_START_S, 0, 0
                    continue
                self.outbox.failed(lane, result.failure, failed)
                if failed == 1:
                    self._changed()
                if self._finishing.is_set():
                    return
                wait = max(pause * random.uniform(0.8, 1.2), result.retry_after)
                log.info("%s: next try in %.0f s", self._name(lane), wait)
                factor, cap = (_UNANSWERED_FACTOR, _UNANSWERED_CAP_S) if repeats else (2, _PAUSE_CAP_S)
                pause = min(pause * factor, cap)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._finishing.wait()
        except Exception:
            log.exception("%s: error while making a message", self._name(lane))

    async def _post(self, lane: Lane, message: Message) -> PostResult:
        try:
            result = await post(message.to, message.content, message.at, self._egress)
        except Exception as error:
            # Its text may hold a URL or a token.
            log.error("%s: unexpected %s", self._name(lane), type(error).__name__)
            result = PostResult(Refusal(reasons.INTERNAL_ERROR, f"{type(error).__name__}: a bug in the operator"))
        self._count(message.to.kind, result.failure is None)
        if result.failure is None:
            log.info("%s: sent %d alerts", self._name(lane), len(message.items))
        else:
            log.warning("%s: %s", self._name(lane), result.failure.message)
        return result

    def _name(self, lane: Lane) -> str:
        return f"connection {self.outbox.connection}: receiver {lane.receiver}"
