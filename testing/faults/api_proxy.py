"""A proxy before the API server, one for each operator process: it can disconnect the process, or act at a request.

The process uses HTTP without TLS, so that the proxy can read requests; the proxy uses TLS to the API server.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from testing.faults.kafka_proxy import When

T = TypeVar("T")
_CHUNK = 65536
_START_SECONDS = 10.0


@dataclass
class ApiRule:
    """An action at one request. matches: called with method and path. do: called once, in a separate thread."""

    matches: Callable[[str, str], bool]
    when: When
    do: Callable[[], None]


def patches_status(method: str, path: str) -> bool:
    """The write of a policy's status."""
    return method == "PATCH" and "/grouppolicies/" in path and path.partition("?")[0].endswith("/status")


def refusing(code: int, *headers: str, message: str = "refused") -> bytes:
    """An answer of the API server with this status code."""
    body = json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code})
    lines = (f"HTTP/1.1 {code} {HTTPStatus(code).phrase}", "Content-Type: application/json", *headers)
    return "\r\n".join((*lines, f"Content-Length: {len(body)}", "", body)).encode()


class ApiProxy:
    """Listens on 127.0.0.1:`port`."""

    def __init__(self, server: tuple[str, int], authority: Path) -> None:
        self._server = server
        self._trust = ssl.create_default_context(cafile=str(authority))
        self._rules: list[ApiRule] = []
        # The answer to a request in place of the API server's, by method and path; None = the API server answers.
        self.answer: Callable[[str, str], bytes | None] = lambda method, path: None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener = self._ask(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = int(self._listener.sockets[0].getsockname()[1])

    def rule(self, rule: ApiRule) -> ApiRule:
        self._loop.call_soon_threadsafe(self._rules.append, rule)
        return rule

    def clear(self) -> None:
        """Remove all rules."""
        self._loop.call_soon_threadsafe(self._rules.clear)

    def cut(self) -> None:
        """Stop all traffic in both directions, without closing connections."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def mend(self) -> None:
        """Let traffic pass again, including what was sent meanwhile, as TCP retransmits it."""
        self._loop.call_soon_threadsafe(self._flowing.set)

    def close(self) -> None:
        async def end() -> None:
            self._listener.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            # A closed transport ends in a later step of the loop.
            await asyncio.sleep(0.1)

        self._ask(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_SECONDS)
        self._loop.close()

    def _ask(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(_START_SECONDS)

    async def _serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._tasks.add(task)
        try:
            await self._flowing.wait()
            host, port = self._server
            server, to_server = await asyncio.open_connection(host, port, ssl=self._trust)
            stops: list[ApiRule] = []
            back = asyncio.create_task(self._back(server, to_client, stops))
            try:
                while True:
                    await self._forward(client, to_client, to_server, stops)
            finally:
                back.cancel()
                to_server.close()
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            to_client.close()

    async def _forward(
        self, client: StreamReader, to_client: StreamWriter, to_server: StreamWriter, stops: list[ApiRule]
    ) -> None:
        head = await client.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        sizes = [int(line.partition(":")[2]) for line in lines if line.lower().startswith("content-length:")]
        body = await client.readexactly(sizes[0]) if sizes else b""
        await self._flowing.wait()
        if (answer := self.answer(method, path)) is not None:
            to_client.write(answer)
            await to_client.drain()
            return
        found = [rule for rule in self._rules if rule.matches(method, path)][:1]
        for rule in found:
            self._rules.remove(rule)
            if rule.when is When.BEFORE:
                await asyncio.to_thread(rule.do)
            else:
                stops.append(rule)
        to_server.write(head + body)
        await to_server.drain()

    async def _back(self, server: StreamReader, to_client: StreamWriter, stops: list[ApiRule]) -> None:
        try:
            while chunk := await server.read(_CHUNK):
                await self._flowing.wait()
                fired, stops[:] = list(stops), []
                for rule in fired:
                    if rule.when is When.BETWEEN:
                        await asyncio.to_thread(rule.do)
                to_client.write(chunk)
                await to_client.drain()
                for rule in fired:
                    if rule.when is When.AFTER:
                        await asyncio.to_thread(rule.do)
        except OSError:
            pass
        finally:
            to_client.close()
