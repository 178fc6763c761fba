"""A real HTTP server that receives alerts, and keeps what it got; how it answers is up to the test."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from testing.sandbox.kafka.tls import Certificate


@dataclass(frozen=True)
class Request:
    """One request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """Serves on this machine until the end of its `with`. Each path has the answer of `answers`, else 200.

    An answer is a status, a status with headers, or None for one that never comes. then: what to do when a request
    has arrived at a path, before the answer. limit: longer bodies are answered with 413.
    """

    certificate: Certificate | None = None
    answers: dict[str, int | tuple[int, Mapping[str, str]] | None] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    then: dict[str, Callable[[], object]] = field(default_factory=dict)
    limit: int | None = None
    address: str = "127.0.0.1"

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(self, *_error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    @property
    def port(self) -> int:
        return int(self._runner.addresses[0][1])

    def url(self, path: str = "/") -> str:
        return f"http{'s' if self.certificate else ''}://{self.address}:{self.port}{path}"

    def at(self, path: str) -> list[Request]:
        """What arrived there, whatever was answered."""
        return [request for request in list(self.requests) if request.path == path]

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        context = None
        if self.certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.certificate.certificate, self.certificate.key)
        await web.TCPSite(self._runner, self.address, 0, ssl_context=context).start()

    async def _end(self) -> None:
        await self._runner.cleanup()
        # Whoever was never answered still waits.
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _serve(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append(Request(request.path_qs, dict(request.headers), body))
        if request.path_qs in self.then:
            self.then[request.path_qs]()
        answer = self.answers.get(request.path_qs, 200)
        if answer is None:
            await asyncio.sleep(3600)
            return web.Response()
        if self.limit is not None and len(body) > self.limit:
            answer = 413
        status, headers = (answer, {}) if isinstance(answer, int) else answer
        return web.Response(status=status, headers=headers)
