"""The port of probes and metrics under a flood of clients: real sockets, and a process of its own to measure memory."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily

from group_hygiene.controller import health
from group_hygiene.controller.health import Health

ANSWERED_WITHIN = 60.0
_MIB = 1 << 20
# Prints its port and serves until its input ends. The metrics have 4 MB.
SERVER = """
import asyncio, sys
from prometheus_client import CollectorRegistry, Gauge
from group_hygiene.controller.health import Health

async def serve():
    registry = CollectorRegistry()
    Gauge("group_hygiene_filling", "x" * 4_000_000, registry=registry).set(1)
    health = Health(0, registry, lambda: True)
    await health.start()
    print(health.port, flush=True)
    beating = asyncio.create_task(beat(health))
    await asyncio.to_thread(sys.stdin.read)
    beating.cancel()
    await health.stop()

async def beat(health):
    while True:
        health.beat()
        await asyncio.sleep(1)

asyncio.run(serve())
"""


class Collector:
    """A collector that counts its calls, and waits at each until `go` is set."""

    def __init__(self) -> None:
        self.calls, self.go, self.reached = 0, threading.Event(), threading.Event()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.calls += 1
        self.reached.set()
        assert self.go.wait(ANSWERED_WITHIN)
        yield GaugeMetricFamily("group_hygiene_calls", "Calls", value=self.calls)


@contextmanager
def serving(registry: CollectorRegistry | None = None, ready: Callable[[], bool] = lambda: True) -> Iterator[Health]:
    """A server; the operator's event loop does nothing but wait."""
    made = Health(0, registry or CollectorRegistry(), ready)
    asyncio.run(made.start())
    try:
        yield made
    finally:
        asyncio.run(made.stop())


@pytest.fixture
def process() -> Iterator[tuple[int, Callable[[], int]]]:
    """The port of a server in a process of its own, and the most memory in bytes that it has had."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        port = int(running.stdout.readline())

        def most() -> int:
            found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{running.pid}/status").read_text())
            assert found is not None
            return int(found[1]) * 1024

        yield port, most


def ask(port: int, request: bytes) -> tuple[int, str]:
    """Status and content of the answer, until the server ends the connection."""
    with socket.create_connection(("127.0.0.1", port), ANSWERED_WITHIN) as client:
        client.sendall(request)
        answer = b""
        while part := client.recv(1 << 20):
            answer += part
    head, _, content = answer.decode().partition("\r\n\r\n")
    return int(head.split()[1]), content


def get(port: int, path: str) -> tuple[int, str]:
    return ask(port, f"GET {path} HTTP/1.1\r\nHost: pod\r\nUser-Agent: kube-probe/1.36\r\n\r\n".encode())


@pytest.mark.parametrize(
    ("request_", "status", "content"),
    [
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n", 200, "ok\n", id="a-probe"),
        pytest.param(b"GET /readyz HTTP/1.0\r\n\r\n", 200, "ok\n", id="http-1.0"),
        pytest.param(b"GET /healthz?verbose=1 HTTP/1.1\r\nHost: pod\r\n\r\n", 200, "ok\n", id="query"),
        pytest.param(b"HEAD /healthz HTTP/1.1\r\nHost: pod\r\n\r\n", 200, "", id="head"),
        pytest.param(b"GET /metrics/ HTTP/1.1\r\nHost: pod\r\n\r\n", 404, "there are ", id="another-path"),
        pytest.param(b"POST /healthz HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 400, "only GET", id="post"),
        pytest.param(b"GET /healthz\r\n\r\n", 400, "only GET", id="http-0.9"),
        pytest.param(b"\x16\x03\x01\x02\r\n\r\n", 400, "only GET", id="tls"),
        pytest.param(b"GET /\xff\x00 HTTP/1.1\r\n\r\n", 404, "there are ", id="any-bytes"),
        pytest.param(
            b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 9_000 + b"\r\n\r\n", 431, "the request", id="long-header"
        ),
        pytest.param(b"GET /" + b"z" * 900_000, 431, "the request", id="endless-line"),
    ],
)
def test_requests(request_: bytes, status: int, content: str) -> None:
    """What is no probe and no scrape gets an answer that says so, and the connection ends."""
    with serving() as server:
        found = ask(server.port, request_)
    assert (found[0], found[1][: len(content) or 1]) == (status, content)


def test_states() -> None:
    """Probes report a loop that is stuck, although it is, and a process that is not ready."""
    with serving(ready=lambda: False) as server:
        assert get(server.port, "/readyz") == (
            503,
            "not all objects are known and watched, or no answer about the Lease yet\n",
        )
        server._beat -= 31
        assert get(server.port, "/healthz") == (503, "stuck for 31 s\n")
        server.beat()
        assert get(server.port, "/healthz") == (200, "ok\n")


def test_a_rendering_is_for_all_readers_and_delays_no_probe() -> None:
    """250 scrapes while one is rendered are one rendering, and a probe is answered meanwhile."""
    registry, collector = CollectorRegistry(), Collector()
    collector.go.set()
    registry.register(collector)
    collector.go.clear()
    collector.reached.clear()
    before = collector.calls
    with serving(registry) as server, ExitStack() as stack:
        first = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), ANSWERED_WITHIN))
        first.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert collector.reached.wait(ANSWERED_WITHIN)
        readers = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(250)]
        for reader in readers:
            reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert get(server.port, "/healthz") == (200, "ok\n")
        collector.go.set()
        last = readers[-1]
        last.settimeout(ANSWERED_WITHIN)
        assert last.recv(15) == b"HTTP/1.1 200 OK"
    assert collector.calls == before + 1


def test_metrics_are_rendered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once they are old; until then, readers get the same."""
    registry = CollectorRegistry()
    gauge = Gauge("group_hygiene_value", "A value", registry=registry)
    with serving(registry) as server:
        monkeypatch.setattr(health, "_METRICS_AGE_S", 1e9)
        texts = [get(server.port, "/metrics")]
        gauge.set(1)
        texts.append(get(server.port, "/metrics"))
        monkeypatch.setattr(health, "_METRICS_AGE_S", 0)
        texts.append(get(server.port, "/metrics"))
    assert [status for status, _ in texts] == [200] * 3
    assert [text.splitlines()[-1] for _, text in texts] == [
        f"group_hygiene_value {value}" for value in ("0.0", "0.0", "1.0")
    ]


def test_connections_beyond_the_limit_end_the_oldest() -> None:
    """Clients that only connect keep no probe out, however many, and those of before are ended."""
    with serving() as server, ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 30)) for _ in range(300)]
        assert get(server.port, "/healthz") == (200, "ok\n")
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""


def test_connections_of_the_last_moment_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stops while it accepts them leaves no socket and no transport open.

    Other sockets that are found meanwhile are those of kafka-python's consumers (see `filterwarnings`).
    """
    left: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: left.append(str(found.exc_value)))
    ports = list[int]()
    for clients in range(30):
        with ExitStack() as stack:
            with serving() as server:
                ports.append(server.port)
                for _ in range(clients):
                    stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            gc.collect()
    of_others = re.compile(r"unclosed <socket\.socket .*laddr=\('[0-9.]+', (\d+)\)")
    assert [text for text in left if not (found := of_others.match(text)) or int(found[1]) in ports] == []


@pytest.mark.parametrize(
    "sent", [pytest.param(b"", id="nothing"), pytest.param(b"GET /healthz HTTP/1.1\r\nX: ", id="part")]
)
def test_a_request_has_limited_time(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """Also if a byte arrives now and then."""
    monkeypatch.setattr(health, "_SECONDS", 0.5)
    with serving() as server, closing(socket.create_connection(("127.0.0.1", server.port), 30)) as client:
        with suppress(OSError):
            while True:
                client.sendall(sent or b"x")
                time.sleep(0.05)
                client.settimeout(0.01)
                with suppress(TimeoutError):
                    if client.recv(1) == b"":
                        break
        assert get(server.port, "/healthz") == (200, "ok\n")


def _unfinished_headers(client: socket.socket) -> None:
    for _ in range(120):
        client.sendall(b"X: " + b"y" * 7_990 + b"\r\n")


def _a_scrape_that_is_not_read(client: socket.socket) -> None:
    client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize("flood", [_unfinished_headers, _a_scrape_that_is_not_read])
def test_a_flood_takes_no_memory(
    process: tuple[int, Callable[[], int]], flood: Callable[[socket.socket], None]
) -> None:
    """450 clients that send 960 KB of headers each, or read nothing of 4 MB of metrics; a probe passes meanwhile."""
    port, most = process
    get(port, "/metrics")
    before = most()
    with ExitStack() as stack:
        for _ in range(450):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), ANSWERED_WITHIN))
            # What may be left of its time is enough.
            client.settimeout(1)
            with suppress(OSError):
                client.sendall(b"GET /healthz HTTP/1.1\r\n" if flood is _unfinished_headers else b"")
                flood(client)
        assert get(port, "/healthz") == (200, "ok\n")
    assert most() - before < 24 * _MIB
