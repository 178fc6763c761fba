"""The operator's HTTP server: `/healthz` (its event loop runs), `/readyz` (it leads or stands by), `/metrics`.

It has a thread and an event loop of its own, so no client delays the Lease or a run, and a stuck loop is reported. Not
aiohttp, uvicorn or waitress: none limits both connections and the time for headers, and at its limit of connections a
server must end an old one, as the next one may be the kubelet's probe.
"""

from __future__ import annotations

import asyncio
import math
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from http import HTTPStatus
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_STUCK_S = 30.0
# With more connections the oldest ends. Each has as many bytes for its request, twice as many in a buffer, and the
# kernel's buffers; and this time until its last byte is sent.
_CONNECTIONS, _REQUEST_BYTES, _KERNEL_BYTES, _SECONDS = 64, 8 << 10, 32 << 10, 10.0
# Connections that the kernel holds until they are accepted.
_WAITING = 1024
_METRICS_AGE_S = 1.0
_CHUNK = 16 << 10
_REQUEST_LINE = re.compile(rb"(GET|HEAD) (/[^ ?]*)(?:\?[^ ]*)? HTTP/1\.[01]\r\n")
_TEXT = "text/plain; charset=utf-8"
_BAD_REQUEST = (HTTPStatus.BAD_REQUEST, b"only GET and HEAD of /healthz, /readyz and /metrics\n", _TEXT)
_TOO_LARGE = (HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"the request is too large\n", _TEXT)

_Answer = tuple[HTTPStatus, bytes, str]


class Health:
    """Serves on `port` of all interfaces; 0 = any free port of 127.0.0.1, which `start` then stores in `port`."""

    def __init__(self, port: int, registry: CollectorRegistry, ready: Callable[[], bool]) -> None:
        self.port = port
        self._registry = registry
        self._ready = ready
        self._beat = time.monotonic()
        self._rendering: asyncio.Task[bytes] | None = None
        self._rendered_at = 0.0
        # The oldest first.
        self._connections: dict[asyncio.Task[None], None] = {}

    def beat(self) -> None:
        """Call this from the operator's event loop at least every few seconds."""
        self._beat = time.monotonic()

    async def start(self) -> None:
        """Serve from now on. Raises OSError if the port can't be had."""
        dual = bool(self.port) and socket.has_dualstack_ipv6()
        address, family = ("" if self.port else "127.0.0.1", self.port), socket.AF_INET6 if dual else socket.AF_INET
        listener = socket.create_server(address, family=family, dualstack_ipv6=dual)
        # Connections inherit them. Memory of the kernel's buffers counts as the pod's.
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            listener.setsockopt(socket.SOL_SOCKET, buffer, _KERNEL_BYTES)
        self.port = listener.getsockname()[1]
        serving = Future[None]()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(listener, serving),), daemon=True)
        self._thread.start()
        await asyncio.wrap_future(serving)

    async def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        await asyncio.to_thread(self._thread.join)

    async def _serve(self, listener: socket.socket, serving: Future[None]) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        # backlog: asyncio accepts as many connections before it reads from any. With all that there may be, one could
        # end before its request is read.
        server = await asyncio.start_server(
            self._accept, sock=listener, limit=_REQUEST_BYTES, backlog=_CONNECTIONS // 4
        )
        listener.listen(_WAITING)
        serving.set_result(None)
        async with server:
            await self._stopped.wait()
            # A connection on its way to `_accept`, so many steps of asyncio, would not be closed by a closed server.
            self._loop.remove_reader(listener)
            for _ in range(4):
                await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._connections[task] = None
        if len(self._connections) > _CONNECTIONS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        try:
            # CancelledError ends here, too: nothing but this connection is cancelled.
            with suppress(asyncio.CancelledError, TimeoutError, OSError, asyncio.IncompleteReadError):
                async with asyncio.timeout(_SECONDS):
                    await self._respond(reader, writer)
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        only_head = False
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            status, content, kind = _TOO_LARGE
        else:
            found = _REQUEST_LINE.match(request)
            only_head = found is not None and found[1] == b"HEAD"
            status, content, kind = await self._answer(found[2].decode("latin-1")) if found else _BAD_REQUEST
        writer.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        # Piece by piece, each once the one before is with the kernel: asyncio copies what a client does not read.
        writer.transport.set_write_buffer_limits(0)
        for start in range(0, 0 if only_head else len(content), _CHUNK):
            writer.write(content[start : start + _CHUNK])
            await writer.drain()
        writer.write_eof()
        await writer.drain()
        # Closed with unread bytes, or before the client has the answer, the connection would be reset.
        while await reader.read(_CHUNK):
            pass

    async def _answer(self, path: str) -> _Answer:
        if path == "/metrics":
            return HTTPStatus.OK, await self._render(), CONTENT_TYPE_LATEST
        if path == "/healthz":
            stuck = time.monotonic() - self._beat
            why = f"stuck for {stuck:.0f} s\n" if stuck >= _STUCK_S else ""
        elif path == "/readyz":
            why = "" if self._ready() else "not all objects are known and watched, or no answer about the Lease yet\n"
        else:
            return HTTPStatus.NOT_FOUND, b"there are /healthz, /readyz and /metrics\n", _TEXT
        return HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK, (why or "ok\n").encode(), _TEXT

    async def _render(self) -> bytes:
        """The metrics, at most a second old. One rendering, in a thread, is for all readers."""
        if self._rendering is None or time.monotonic() - self._rendered_at >= _METRICS_AGE_S:
            self._rendering = asyncio.create_task(asyncio.to_thread(generate_latest, self._registry))
            self._rendered_at = math.inf
            self._rendering.add_done_callback(self._note_rendered)
        return await asyncio.shield(self._rendering)

    def _note_rendered(self, _: asyncio.Task[bytes]) -> None:
        self._rendered_at = time.monotonic()
