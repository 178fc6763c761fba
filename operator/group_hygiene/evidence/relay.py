"""An HTTP proxy for one reader of an object store: it connects to the given hosts, and to no others.

The library that reads tables resolves names, follows redirects and, without credentials, asks a cloud's metadata
service. All of that passes through this proxy, which checks each address before it connects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from group_hygiene.network.egress import Egress, look_up
from group_hygiene.spec.storage import HostPort

# Of all responses, for one read.
_BYTES_MAX = 1 << 30
_CHUNK = 1 << 16
_CONNECT_S = 5.0


class Relay:
    """Runs while it is entered. problem: why it refused or ended a connection; contains no address."""

    def __init__(self, places: Collection[HostPort], egress: Egress) -> None:
        self._places, self._egress = places, egress
        self._left = _BYTES_MAX
        self._tasks: set[asyncio.Task[None]] = set()
        self.problem: str | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_CHUNK)
        return self

    async def __aexit__(self, *_error: object) -> None:
        # CPython loses a connection that it accepts while the server closes (python/cpython#109564).
        asyncio.get_running_loop().remove_reader(self._server.sockets[0])
        await asyncio.sleep(0)
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._server.is_serving():
            writer.close()
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step closes nothing itself.
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward: asyncio.StreamWriter | None = None
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, target = head.split(b" ", 2)[:2]
            tunnel = method == b"CONNECT"
            source, onward = await self._connect(_place(target.decode("ascii"), tunnel))
            if tunnel:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                onward.write(head)
            both = (
                asyncio.create_task(self._pass(reader, onward)),
                asyncio.create_task(self._pass(source, writer, True)),
            )
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError):
            with suppress(OSError):
                writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        finally:
            ends = [writer] if onward is None else [writer, onward]
            for end in ends:
                end.close()
            # Here the task may be cancelled again.
            for end in ends:
                with suppress(OSError):
                    await end.wait_closed()

    async def _connect(self, place: HostPort) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Resolve the host, check each address and connect. Raises OSError."""
        if place not in self._places:
            self.problem = "it redirects to another host, and redirects are not followed"
            raise OSError(self.problem)
        refusal = self._egress.refusal_of_name(place.host)
        error: OSError | None = None
        for _, _, _, _, address in [] if refusal else await look_up(place.host, place.port):
            refusal = self._egress.refusal(place.host, address[0])
            if refusal is None:
                try:
                    async with asyncio.timeout(_CONNECT_S):
                        return await asyncio.open_connection(*address[:2])
                except OSError as failed:
                    error = failed
        if error is None and refusal is not None:
            self.problem = f"its host resolves to {refusal}"
        raise error or OSError("no address")

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, counted: bool = False) -> None:
        while data := await source.read(_CHUNK):
            if counted:
                self._left -= len(data)
                if self._left < 0:
                    self.problem = f"it sent more than {_BYTES_MAX >> 20} MiB"
                    return
            sink.write(data)
            await sink.drain()


def _place(target: str, tunnel: bool) -> HostPort:
    """Parse the target of a request to a proxy (RFC 9112: authority form or absolute form). Raises ValueError."""
    parts = urlsplit(f"//{target}" if tunnel else target)
    if not parts.hostname or (not tunnel and parts.scheme != "http"):
        raise ValueError("invalid request target")
    return HostPort(parts.hostname.rstrip("."), parts.port or (443 if tunnel else 80))
