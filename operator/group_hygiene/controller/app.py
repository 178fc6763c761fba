"""The operator as a process: wires the parts, wakes loops on kopf's events, and ends as a whole when any part fails."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import kopf

from group_hygiene.controller.api import CONNECTIONS, GROUP, POLICIES, VERSION, Api, load_config
from group_hygiene.controller.health import Health
from group_hygiene.controller.loop import ConnectionLoop, Services
from group_hygiene.controller.recorder import Recorder
from group_hygiene.errors import HygieneError
from group_hygiene.metrics import Metrics

log = logging.getLogger(__name__)

# One for each connection that runs at the same time; a thread is made when it is needed.
_WORKERS = 64
_STOP_WITHIN_S = 20.0
_BEAT_S = 2.0
_RETRY_CAP_S = 30


@dataclass(frozen=True)
class Options:
    """health_port 0 = any free port. allow_delete_without_backup: without it, nothing is deleted (yet)."""

    health_port: int = 8080
    allow_delete_without_backup: bool = False


class _Backoffs:
    """kopf's pauses between failed requests: growing, capped, without an end; iterated afresh for each request."""

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
        self._failure: BaseException | None = None
        self._loops: dict[tuple[str, str], tuple[ConnectionLoop, asyncio.Task[None]]] = {}
        self._seen: dict[tuple[str, str, str], tuple[str, int]] = {}

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped. Raises HygieneError when the CRDs are missing or there is no API server to talk to."""
        api = Api(load_config())
        await self._check_crds(api)
        executor = ThreadPoolExecutor(_WORKERS, thread_name_prefix="reconcile")
        may_delete = self._options.allow_delete_without_backup
        self._services = Services(api, Recorder(api), self._metrics, executor, may_delete)
        if may_delete:
            log.warning("--allow-delete-without-backup: groups are deleted with no backup but a line in this log")
        health = Health(self._options.health_port, self._metrics.registry, self._ready.is_set)
        await health.start()
        log.info("serving /healthz, /readyz and /metrics on port %d", health.port)
        self._handle_signals()
        watch = self._guard(asyncio.create_task(self._watch(), name="watch"))
        beat = self._guard(asyncio.create_task(self._beat(health), name="heartbeat"))
        await self._stop.wait()
        log.info("stopping")
        self._services.stopping.set()
        for loop, _ in self._loops.values():
            loop.wake()
        tasks = [task for _, task in self._loops.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_WITHIN_S - 5)
        for task in (watch, beat, *tasks):
            task.cancel()
        await asyncio.wait([watch, beat, *tasks], timeout=4)
        executor.shutdown(wait=False, cancel_futures=True)
        await health.stop()
        log.info("stopped")
        if self._failure is not None:
            raise self._failure

    async def _check_crds(self, api: Api) -> None:
        missing = await asyncio.to_thread(api.missing_crds)
        if missing:
            raise HygieneError(
                f"not installed on this API server: {', '.join(missing)}. Apply the files in crds/ first"
            )

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
        for plural in (CONNECTIONS, POLICIES):
            kopf.on.event(GROUP, VERSION, plural, registry=registry)(self._on_event)
        ready = asyncio.create_task(self._announce(flag := asyncio.Event()))
        try:
            await kopf.operator(
                registry=registry,
                settings=settings,
                standalone=True,
                clusterwide=True,
                ready_flag=flag,
                stop_flag=self._stop,
            )
        finally:
            ready.cancel()
        # kopf raises when a watch fails. It returns when it was told to stop, maybe by a signal that only it saw.
        self._stop.set()

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    async def _announce(self, flag: asyncio.Event) -> None:
        await flag.wait()
        # kopf took the signals for itself when it started; ours let runs in flight come to an end first.
        self._handle_signals()
        self._ready.set()
        log.info("watching %s and %s in all namespaces", CONNECTIONS, POLICIES)

    async def _on_event(self, event: Any, body: Any, resource: Any, **_: Any) -> None:
        """An object was added, edited or deleted: wake the loop of its connection. Our own status is no news."""
        metadata = body["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        key, version = (resource.plural, namespace, name), (metadata["uid"], int(metadata.get("generation") or 0))
        if event["type"] == "DELETED":
            self._seen.pop(key, None)
        elif self._seen.get(key) == version:
            return
        else:
            self._seen[key] = version
        if resource.plural == POLICIES:
            reference = (body.get("spec") or {}).get("connectionRef") or {}
            namespace, name = reference.get("namespace") or namespace, reference.get("name") or ""
        self._wake(namespace, name)

    def _wake(self, namespace: str, name: str) -> None:
        key = (namespace, name)
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
        """End the process when a part of it dies: a half-dead operator looks healthy and does nothing."""

        def done(finished: asyncio.Task[None]) -> None:
            if finished.cancelled() or (not endless and finished.exception() is None):
                return
            if not self._stop.is_set():
                self._failure = finished.exception() or RuntimeError(f"{finished.get_name()} ended")
                log.critical("%s failed, so the operator ends", finished.get_name(), exc_info=finished.exception())
                self._stop.set()

        task.add_done_callback(done)
        return task


def run(options: Options) -> None:
    """Run the operator until SIGTERM or SIGINT."""

    async def main() -> None:
        await Operator(options).run()

    asyncio.run(main())
