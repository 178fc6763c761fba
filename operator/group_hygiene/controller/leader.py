"""Which of several operator processes acts: a Lease of our own, held by one, and for how long it is surely held.

Time is the elapsed time of this machine only. A clock that is set changes nothing, and times of other machines are
never read: another's Lease is over when *we* saw it unchanged for its whole duration, as client-go has it. This
module knows nothing of Kafka or of our kinds.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, NoReturn

from group_hygiene.controller.api import Api, Object
from group_hygiene.errors import ApiError, Conflict, HygieneError, NotFound
from group_hygiene.process.clock import elapsed
from group_hygiene.spec.durations import timestamp

log = logging.getLogger(__name__)

NAME = "group-hygiene"
DURATION_S = 30
_MAX_TRANSITIONS = 2**31 - 1


class Leader:
    """One process's part in the election. `acquire`, then `keep` until it raises; `release` at a clean end.

    Others wait for `duration` seconds without a renewal. The holder asks to renew after every sixth of that, waits a
    sixth for each answer, and stops after two thirds: what it has sent by then has ten of thirty seconds to end.
    """

    def __init__(self, api: Api, namespace: str, duration: int = DURATION_S, clock: Callable[[], float] = elapsed):
        self.identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        # True once the API server answered about the Lease: a process that may not read it is no standby.
        self.informed = False
        self._api, self._namespace = api, namespace
        self._duration, self._keeps, self._retry = duration, duration * 2 / 3, duration / 6
        self._clock = clock
        self._lease: Object = {}
        self._until = 0.0
        self._seen: tuple[str, float] = ("", 0.0)
        self._holder = ""
        self._problem = ""
        # One thread, so that a request that was given up on can't overtake the next.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lease")

    def seconds_left(self) -> float:
        """Seconds for which this process surely leads; 0 = it may not act. Arithmetic only; thread-safe."""
        return max(0.0, self._until - self._clock())

    def is_confirmed(self) -> bool:
        """Whether this process leads, also by the Lease as it is now: one request. Thread-safe. Raises ApiError."""
        try:
            return self.seconds_left() > 0 and _holder(self._read()) == self.identity
        except NotFound:
            return False

    async def acquire(self) -> None:
        """Return once this process leads. Whatever the API server answers, it is asked again."""
        while not await self._round(self._take):
            await asyncio.sleep(self._retry)
        log.info("leading: %s of Lease %s/%s", self.identity, self._namespace, NAME)

    async def keep(self) -> NoReturn:
        """Renew until that fails for too long or the Lease is not ours any more: then raises HygieneError."""
        pause = self._retry
        while True:
            await asyncio.sleep(min(pause, self.seconds_left()))
            asked = self._clock()
            if asked < self._until:
                await self._round(self._renew)
            if not self.seconds_left():
                why = self._problem or "this process stood still"
                raise HygieneError(f"lost the leadership: not renewed for {self._keeps:.0f} s: {why}")
            pause = max(0.0, asked + self._retry - self._clock())

    async def release(self) -> None:
        """Give the Lease back, so that another takes it at once. Never raises.

        Only for when nothing of this process is under way any more: the next leader does not wait then.
        """
        self._until = 0.0
        try:
            await self._ask(self._give_back)
        except ApiError as error:
            log.info("Lease %s/%s was not given back: %s", self._namespace, NAME, error)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _round(self, step: Callable[[], Object | None]) -> bool:
        """One try; whether this process holds the Lease by it, from the time *before* anything was sent."""
        asked = self._clock()
        try:
            lease = await self._ask(step)
        except ApiError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("Lease %s/%s: %s; trying again", self._namespace, NAME, error)
            return False
        self._problem = ""
        if lease is not None:
            self._lease, self._until = lease, asked + self._keeps
        return self.seconds_left() > 0

    async def _ask(self, step: Callable[[], Object | None]) -> Object | None:
        asking = asyncio.get_running_loop().run_in_executor(self._thread, step)
        try:
            async with asyncio.timeout(self._retry):
                return await asking
        except TimeoutError as error:
            raise ApiError(f"the API server does not answer within {self._retry:g} s") from error

    # The steps, each in the thread

    def _take(self) -> Object | None:
        """The Lease, when it was free or over and is ours now."""
        asked = self._clock()
        try:
            lease = self._read()
        except NotFound:
            return self._create()
        self.informed = True
        holder = _holder(lease)
        if holder not in ("", self.identity) and not self._is_over(lease, asked):
            if holder != self._holder:
                log.info("standing by: %s leads", holder)
            self._holder = holder
            return None
        try:
            return self._write(lease, self._held(lease, holder))
        except Conflict:
            return None

    def _is_over(self, lease: Object, asked: float) -> bool:
        version, since = self._seen
        if lease["metadata"]["resourceVersion"] != version:
            # Counted from the answer, and until the question: never longer than it really was.
            self._seen = (lease["metadata"]["resourceVersion"], self._clock())
            return False
        stated = _number(lease, "leaseDurationSeconds")
        return asked - since >= max(self._duration, stated)

    def _renew(self) -> Object:
        try:
            return self._write(self._lease, {"renewTime": _now()})
        except Conflict:
            pass
        # Edited by hand, or an earlier try of ours got through without its answer.
        try:
            lease = self._read()
        except NotFound:
            raise HygieneError(f"lost the leadership: Lease {self._namespace}/{NAME} was deleted") from None
        if _holder(lease) != self.identity:
            by = _holder(lease) or "nobody"
            raise HygieneError(f"lost the leadership: Lease {self._namespace}/{NAME} is held by {by}")
        return self._write(lease, self._held(lease, self.identity))

    def _give_back(self) -> None:
        lease = self._read()
        if _holder(lease) == self.identity:
            self._write(lease, {"holderIdentity": None, "renewTime": _now()})
            log.info("gave Lease %s/%s back", self._namespace, NAME)

    def _held(self, lease: Object, holder: str) -> dict[str, Any]:
        transitions = _number(lease, "leaseTransitions") + (holder != self.identity)
        mine = {"holderIdentity": self.identity, "leaseDurationSeconds": self._duration, "renewTime": _now()}
        if holder != self.identity:
            mine["acquireTime"] = mine["renewTime"]
        return {**mine, "leaseTransitions": min(transitions, _MAX_TRANSITIONS)}

    def _create(self) -> Object | None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME, "namespace": self._namespace},
            "spec": {**self._held({}, ""), "leaseTransitions": 0},
        }
        try:
            lease = self._api.create_lease(self._namespace, body, self._retry)
        except Conflict:
            return None
        self.informed = True
        return lease

    def _read(self) -> Object:
        return self._api.get_lease(self._namespace, NAME, self._retry)

    def _write(self, lease: Object, changes: dict[str, Any]) -> Object:
        """Replace what was read, if it is still as it was read (else Conflict)."""
        body = {**lease, "spec": {**(lease.get("spec") or {}), **changes}}
        return self._api.replace_lease(self._namespace, NAME, body, self._retry)


def _holder(lease: Object) -> str:
    return (lease.get("spec") or {}).get("holderIdentity") or ""


def _number(lease: Object, field: str) -> int:
    return int((lease.get("spec") or {}).get(field) or 0)


def _now() -> str:
    """For people who look at the Lease: a MicroTime."""
    return timestamp(datetime.now(UTC), "microseconds")
