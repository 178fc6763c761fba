"""The operator's HTTP server: `/healthz` (its event loop runs), `/readyz` (it leads or stands by), `/metrics`."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_STUCK_S = 30.0


class Health:
    """Serves on `port` of all interfaces; 0 = any free port of 127.0.0.1, which `start` then stores in `port`."""

    def __init__(self, port: int, registry: CollectorRegistry, ready: Callable[[], bool]) -> None:
        self.port = port
        self._registry = registry
        self._ready = ready
        self._beat = time.monotonic()
        self._runner: web.AppRunner | None = None

    def beat(self) -> None:
        """Call this from the event loop at least every few seconds."""
        self._beat = time.monotonic()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        # On all interfaces, each address family would get a different free port: use one loopback address only.
        site = web.TCPSite(self._runner, host=None if self.port else "127.0.0.1", port=self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        stuck = time.monotonic() - self._beat
        return (
            web.Response(text="ok\n")
            if stuck < _STUCK_S
            else web.Response(status=503, text=f"stuck for {stuck:.0f} s\n")
        )

    async def _readyz(self, request: web.Request) -> web.Response:
        return (
            web.Response(text="ok\n")
            if self._ready()
            else web.Response(status=503, text="not watching yet, or no answer about the Lease yet\n")
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
