"""Leader election with a Lease: which operator process leads, and for how long it is certain to.

It uses only the elapsed time of this machine. Setting a clock changes nothing, and times of other machines are never
read: like client-go, a process takes a Lease over once it saw it unchanged for the Lease's whole duration. This module
knows nothing of Kafka or of the operator's CRDs.
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

from group_hygiene.controller.api import Api
from group_hygiene.controller.objects import Object
from group_hygiene.errors import ApiError, Conflict, HygieneError, NotFound
from group_hygiene.process.clock import elapsed
from group_hygiene.spec.fields import timestamp

log = logging.getLogger(__name__)

NAME = "group-hygiene"
DURATION_S = 30
_MAX_TRANSITIONS = 2**31 - 1
# Single requests may fail: the API server is away if none succeeds for this long, and for that of some requests.
_OUTAGE_S, _OUTAGE_REQUESTS = 20.0, 2.5
# How much later than planned the answer to a request may come.
_LATE_S = 2.0


class Candidate:
    """One process's part in the election. `acquire`, then at once `keep` until it raises; `release` at a clean end.

    Other processes wait for `duration` seconds without a renewal. The holder tries to renew after every sixth of that,
    waits a sixth for each response, and stops after two thirds. With 30 s, its last requests have 10 s to end.
    """

    def __init__(self, api: Api, namespace: str, duration: int = DURATION_S, clock: Callable[[], float] = elapsed):
        self.identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        # True once this process has read or created the Lease: one that can't is no standby.
        self.informed = False
        self.namespace = namespace
        self._api = api
        self._duration, self._lead_seconds, self._retry = duration, duration * 2 / 3, duration / 6
        self._clock = clock
        self._lease: Object = {}
        self._until = 0.0
        # By namespace, of Leases that others hold: the version, and since when it is seen.
        self._seen: dict[str, tuple[str, float]] = {}
        self._holder = ""
        self._problem = ""
        # The last answer of the API server, and the first one after its last outage.
        self._answered = self._answers_since = clock()
        # One thread, so that a request that timed out can't overtake the next.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lease")

    def seconds_left(self) -> float:
        """Seconds for which this process is certain to lead; 0 = it must not act. Sends no request; thread-safe."""
        return max(0.0, self._until - self._clock())

    @property
    def answered_for(self) -> float:
        """Seconds from the end of the API server's last outage to its last answer about the Lease; 0 = that is late."""
        is_late = self._clock() - self._answered > self._retry + _LATE_S
        return 0.0 if is_late else self._answered - self._answers_since

    def is_confirmed(self) -> bool:
        """Whether this process leads and still holds the Lease: one request. Thread-safe. Raises ApiError."""
        try:
            return self.seconds_left() > 0 and _holder(self._read()) == self.identity
        except NotFound:
            return False

    def other_leads(self, namespace: str) -> bool:
        """Whether a process holds the Lease of another release, in that namespace: one request. Raises ApiError.

        A release that did not release it counts for as long as its Lease lasts after it is first looked at.
        """
        asked = self._clock()
        lease = self._api.find_lease(namespace, NAME, self._retry)
        return lease is not None and _holder(lease) != "" and not self._has_expired(lease, asked)

    async def acquire(self) -> None:
        """Return once this process leads. Try again after every failure."""
        while not await self._round(self._take):
            await asyncio.sleep(self._retry)
        log.info("leading: %s of Lease %s/%s", self.identity, self.namespace, NAME)

    async def keep(self) -> NoReturn:
        """Renew until that fails for too long or another process holds the Lease: then raises HygieneError."""
        # The first one is earlier if it was called late.
        pause = min(self._retry, max(0.0, self.seconds_left() - self._retry))
        while True:
            began, pause = self._clock(), min(pause, self.seconds_left())
            await asyncio.sleep(pause)
            asked = self._clock()
            if asked < self._until:
                await self._round(self._renew)
            if not self.seconds_left():
                stood = self._clock() - began - pause - self._retry
                why = f"this process did not run for {stood:.0f} s: it was suspended, or had no CPU time"
                why = self._problem or (why if stood > 0 else "the first renewal came too late")
                raise HygieneError(f"lost the leadership: not renewed for {self._lead_seconds:.0f} s: {why}")
            pause = max(0.0, asked + self._retry - self._clock())

    async def release(self) -> None:
        """Release the Lease, so that another process takes it at once. Never raises.

        Call this only when no work of this process is in progress, as the next leader does not wait.
        """
        self._until = 0.0
        try:
            await self._ask(self._release)
        except ApiError as error:
            log.info("Lease %s/%s was not released: %s", self.namespace, NAME, error)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _round(self, step: Callable[[], Object | None]) -> bool:
        """Try once; whether this process holds the Lease then. Its time counts from *before* the request was sent."""
        asked = self._clock()
        try:
            lease = await self._ask(step)
        except ApiError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("Lease %s/%s: %s; trying again", self.namespace, NAME, error)
            return False
        self._problem = ""
        now = self._clock()
        if now - self._answered >= max(_OUTAGE_S, _OUTAGE_REQUESTS * self._retry):
            self._answers_since = now
        self._answered = now
        if lease is not None:
            self._lease, self._until = lease, asked + self._lead_seconds
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
        """The Lease, if it was free or expired and this process holds it now."""
        asked = self._clock()
        try:
            lease = self._read()
        except NotFound:
            return self._create()
        self.informed = True
        holder = _holder(lease)
        if holder not in ("", self.identity) and not self._has_expired(lease, asked):
            if holder != self._holder:
                log.info("standing by: %s leads", holder)
            self._holder = holder
            return None
        try:
            return self._write(lease, self._held(lease, holder))
        except Conflict:
            return None

    def _has_expired(self, lease: Object, asked: float) -> bool:
        metadata = lease["metadata"]
        version, since = self._seen.get(metadata["namespace"], ("", 0.0))
        if metadata["resourceVersion"] != version:
            # From the response until the next request was sent: never longer than it was unchanged.
            self._seen[metadata["namespace"]] = (metadata["resourceVersion"], self._clock())
            return False
        stated = _number(lease, "leaseDurationSeconds")
        return asked - since >= max(self._duration, stated)

    def _renew(self) -> Object:
        try:
            return self._write(self._lease, {"renewTime": _now()})
        except Conflict:
            pass
        # A user edited it, or an earlier request of this process succeeded without a response.
        try:
            lease = self._read()
        except NotFound:
            raise HygieneError(f"lost the leadership: Lease {self.namespace}/{NAME} was deleted") from None
        if _holder(lease) != self.identity:
            by = _holder(lease) or "no process"
            raise HygieneError(f"lost the leadership: Lease {self.namespace}/{NAME} is held by {by}")
        return self._write(lease, self._held(lease, self.identity))

    def _release(self) -> None:
        lease = self._read()
        if _holder(lease) == self.identity:
            self._write(lease, {"holderIdentity": None, "renewTime": _now()})
            log.info("released Lease %s/%s", self.namespace, NAME)

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
            "metadata": {"name": NAME, "namespace": self.namespace},
            "spec": {**self._held({}, ""), "leaseTransitions": 0},
        }
        try:
            lease = self._api.create_lease(self.namespace, body, self._retry)
        except Conflict:
            return None
        self.informed = True
        return lease

    def _read(self) -> Object:
        return self._api.get_lease(self.namespace, NAME, self._retry)

    def _write(self, lease: Object, changes: dict[str, Any]) -> Object:
        """Replace the Lease with these changes. Raises Conflict if it changed since it was read."""
        body = {**lease, "spec": {**(lease.get("spec") or {}), **changes}}
        return self._api.replace_lease(self.namespace, NAME, body, self._retry)


def _holder(lease: Object) -> str:
    return (lease.get("spec") or {}).get("holderIdentity") or ""


def _number(lease: Object, field: str) -> int:
    return int((lease.get("spec") or {}).get(field) or 0)


def _now() -> str:
    """A MicroTime. Only people read it."""
    return timestamp(datetime.now(UTC), "microseconds")
