"""The operator's process: starts the parts, wakes loops on kopf's events, and ends if any part fails.

Every replica watches; only the leader runs loops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import kopf

from group_hygiene.controller.api import (
    CONNECTIONS,
    GROUP,
    KINDS,
    VERSION,
    Api,
    connection_of,
    load_config,
    own_namespace,
)
from group_hygiene.controller.health import Health
from group_hygiene.controller.leader import DURATION_S, Leader
from group_hygiene.controller.loop import ConnectionLoop
from group_hygiene.controller.recorder import Recorder
from group_hygiene.controller.services import Services
from group_hygiene.controller.workers import Workers
from group_hygiene.errors import HygieneError
from group_hygiene.network.egress import Egress
from group_hygiene.process import memory
from group_hygiene.spec.storage import Allowed
from group_hygiene.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

# A stop takes at most 20 s: runs in flight, then 5 s to release the Lease, then kopf ends, then it is cancelled.
_RUNS_END_WITHIN_S, _REST_ENDS_WITHIN_S = 12.0, 1.5
_BEAT_S = 2.0
_RETRY_CAP_S = 30


@dataclass(frozen=True)
class Options:
    """health_port: 0 = any free port. lease_namespace: None = the operator's own. lease_duration: in seconds.

    activity: where a pipeline's tables may be. egress: where alerts may be sent.
    namespaces: the operator serves only their objects; empty = all namespaces.
    """

    health_port: int = 8080
    lease_namespace: str | None = None
    lease_duration: int = DURATION_S
    activity: Allowed = field(default_factory=Allowed)
    egress: Egress = field(default_factory=Egress)
    namespaces: tuple[str, ...] = ()


class _Backoffs:
    """kopf's pauses between failed requests: endless, growing up to a limit. Each request iterates from the start."""

    def __iter__(self) -> Any:
        pause = 1
        while True:
            yield pause
            pause = min(pause * 2, _RETRY_CAP_S)


class Operator:
    """One operator process; `run` returns after a signal or `stop`, and raises when a part of it failed."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._metrics = Metrics()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._stop_watching = asyncio.Event()
        self._failure: BaseException | None = None
        self._loops: dict[tuple[str, str], tuple[ConnectionLoop, asyncio.Task[None]]] = {}
        self._waiting: set[tuple[str, str]] = set()
        self._seen: dict[tuple[str, str, str], tuple[str, int]] = {}

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped. Raises HygieneError if the CRDs are missing or no API server is configured."""
        api = Api(load_config(), self._options.namespaces)
        await self._check_crds(api)
        workers = Workers()
        namespace = self._options.lease_namespace or own_namespace()
        of = namespace if self._options.namespaces else ""
        installation = await asyncio.to_thread(api.installation_id, of)
        # It has its own client, so that other requests do not delay it.
        self._leader = Leader(Api(load_config(retries=False)), namespace, self._options.lease_duration)
        self._metrics.show_leadership(self._leads)
        self._services = Services(
            api,
            Recorder(api),
            self._metrics,
            workers,
            self._leader,
            installation,
            activity=self._options.activity,
            egress=self._options.egress,
        )
        health = Health(self._options.health_port, self._metrics.registry, self._is_ready)
        await health.start()
        log.info("serving /healthz, /readyz and /metrics on port %d", health.port)
        self._handle_signals()
        watch = self._guard(asyncio.create_task(self._watch(), name="watch"))
        beat = self._guard(asyncio.create_task(self._beat(health), name="heartbeat"))
        lead = self._guard(asyncio.create_task(self._lead(), name="leader election"))
        await self._stop.wait()
        log.info("stopping")
        self._services.stopping.set()
        for loop, _ in self._loops.values():
            loop.wake()
        tasks = [task for _, task in self._loops.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=_RUNS_END_WITHIN_S)
        lead.cancel()
        # The thread of a cancelled task may still be running.
        in_flight = [task for task in tasks if not task.done() or task.cancelled()]
        if in_flight:
            log.warning("%d runs have not ended: the Lease is not released and expires", len(in_flight))
        else:
            await self._leader.release()
        await health.stop()
        # Stop kopf only now: when it ends, it cancels all tasks that were started after it, runs in flight too. Do not
        # cancel it while it ends: that made it hang.
        self._stop_watching.set()
        await asyncio.wait([watch], timeout=_REST_ENDS_WITHIN_S)
        for task in (watch, beat, *tasks):
            task.cancel()
        await asyncio.wait([watch, beat, lead, *tasks], timeout=_REST_ENDS_WITHIN_S)
        workers.stop()
        log.info("stopped")
        if in_flight:
            _exit(0 if self._failure is None else 1)
        if self._failure is not None:
            raise self._failure

    async def _check_crds(self, api: Api) -> None:
        missing = await asyncio.to_thread(api.missing_crds)
        if missing:
            raise HygieneError(
                f"CRDs not installed on this API server: {', '.join(missing)}. Apply the files in crds/ first"
            )

    def _leads(self) -> bool:
        return self._leader.seconds_left() > 0

    def _is_ready(self) -> bool:
        """Whether this process watches objects and has read or created the Lease."""
        return self._ready.is_set() and self._leader.informed

    async def _lead(self) -> None:
        await self._leader.acquire()
        waiting, self._waiting = self._waiting, set()
        for namespace, name in sorted(waiting):
            self._wake(namespace, name)
        await self._leader.keep()

    async def _watch(self) -> None:
        registry = kopf.OperatorRegistry()
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.watching.server_timeout = 300
        settings.watching.connect_timeout = 5
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 5
        settings.networking.error_backoffs = _Backoffs()
        kopf.on.login(registry=registry)(kopf.login_via_client)
        for plural in KINDS:
            kopf.on.event(GROUP, VERSION, plural, registry=registry)(self._on_event)
        ready = asyncio.create_task(self._announce(flag := asyncio.Event()))
        try:
            await kopf.operator(
                registry=registry,
                settings=settings,
                standalone=True,
                # Without an identity kopf asks for the user's name, and a container's user may have none.
                identity=cast(Any, "group-hygiene"),
                clusterwide=not self._options.namespaces,
                namespaces=self._options.namespaces,
                ready_flag=flag,
                stop_flag=self._stop_watching,
            )
        finally:
            ready.cancel()
        # kopf raises when a watch fails. It returns after a stop, maybe by a signal that only kopf received.
        self._stop.set()

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    async def _announce(self, flag: asyncio.Event) -> None:
        await flag.wait()
        # kopf replaced the signal handlers when it started; the operator's own handlers let runs in flight end first.
        self._handle_signals()
        self._ready.set()
        where = ", ".join(self._options.namespaces) or "all namespaces"
        log.info("watching %s in %s", ", ".join(KINDS), where)

    async def _on_event(self, event: Any, body: Any, resource: Any, **_: Any) -> None:
        """An object was added, edited or deleted: wake the loop of its connection. Ignore changes of status only."""
        metadata = body["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        key, version = (resource.plural, namespace, name), (metadata["uid"], int(metadata.get("generation") or 0))
        if event["type"] == "DELETED":
            self._seen.pop(key, None)
            self._services.recorder.forget(metadata["uid"])
        elif self._seen.get(key) == version:
            return
        else:
            self._seen[key] = version
        if resource.plural != CONNECTIONS:
            namespace, name = connection_of(body)
        if name:
            self._wake(namespace, name)

    def _wake(self, namespace: str, name: str) -> None:
        key = (namespace, name)
        if not self._leads() or self._stop.is_set():
            self._waiting.add(key)
            return
        running = self._loops.get(key)
        if running is None or running[1].done():
            loop = ConnectionLoop(namespace, name, self._services)
            task = asyncio.create_task(loop.run(), name=f"connection {namespace}/{name}")
            self._loops[key] = (loop, self._guard(task, endless=False))
        else:
            running[0].wake()

    async def _beat(self, health: Health) -> None:
        while True:
            health.beat()
            await asyncio.sleep(_BEAT_S)

    def _guard(self, task: asyncio.Task[None], endless: bool = True) -> asyncio.Task[None]:
        """End the process when a part of it fails: otherwise the operator seems healthy but does nothing."""

        def done(finished: asyncio.Task[None]) -> None:
            if finished.cancelled() or (not endless and finished.exception() is None):
                return
            failure = finished.exception() or RuntimeError(f"{finished.get_name()} ended")
            if not self._stop.is_set():
                self._failure = failure
                # A HygieneError explains itself; other errors need the traceback.
                trace = None if isinstance(failure, HygieneError) else failure
                log.critical("%s: %s: the operator ends", finished.get_name(), failure, exc_info=trace)
                self._stop.set()

        task.add_done_callback(done)
        return task


def _exit(code: int) -> NoReturn:
    """End the process while threads still run: Python would wait for each of them, also for requests that hang."""
    logging.shutdown()
    os._exit(code)


def run(options: Options) -> None:
    """Run the operator until SIGTERM or SIGINT. Raises HygieneError."""

    memory.return_freed()

    async def main() -> None:
        await Operator(options).run()

    asyncio.run(main())
