"""Endpoints and brokers that answer slowly, without an end, or with what grows: they cost little, and no waiting.

Each test runs the client in a process of its own whose memory is limited: what would fill it, ends it.
"""

from __future__ import annotations

import gzip
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.kafka.test_connecting import listening

# Long enough for a busy machine, and far from for ever.
GIVEN_UP_AFTER = 120


def limited(code: str, megabytes: int) -> str:
    """What this Python code prints, in a process that may take so much more memory than it has after its imports."""
    prelude = """
        import resource
        from datetime import timedelta

        from group_hygiene.connection import Mechanism, OAuth, Sasl, Settings
        from group_hygiene.errors import HygieneError
        from group_hygiene.kafka import cluster, groups, mirror
        from group_hygiene.kafka.client import Deadline, connect
        from group_hygiene.kafka.oauth import TokenProvider
        from group_hygiene.secret import Hidden
        import aiohttp


        def limit(megabytes):
            with open("/proc/self/statm") as file:
                most = int(file.read().split()[0]) * resource.getpagesize() + megabytes * 1_000_000
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        """
    program = f"{textwrap.dedent(prelude)}\nlimit({megabytes})\n{textwrap.dedent(code)}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=GIVEN_UP_AFTER
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _dribble(start: bytes) -> Callable[[socket.socket], None]:
    """Answers with `start`, and then a byte now and then, for ever."""

    def answer(connection: socket.socket) -> None:
        connection.recv(10_000)
        with suppress(OSError):
            connection.sendall(start)
            while True:
                time.sleep(0.2)
                connection.sendall(b"x")

    return answer


def _repeat(start: bytes, part: bytes, times: int) -> Callable[[socket.socket], None]:
    """Answers with `start` and so many parts, as fast as they are read."""

    def answer(connection: socket.socket) -> None:
        connection.recv(10_000)
        with suppress(OSError):
            connection.sendall(start)
            for _ in range(times):
                connection.sendall(part)

    return answer


_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_BOMB = gzip.compress(b'{"access_token": "' + b" " * 400_000_000 + b'"}', 9)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(_dribble(_OK + b"\r\n{"), "does not answer", id="a-byte-of-the-body-now-and-then"),
        pytest.param(_dribble(b"HTTP/1.1 200 OK\r\nX: "), "does not answer", id="a-byte-of-a-header-now-and-then"),
        pytest.param(
            _repeat(_OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(_BOMB), _BOMB, 1),
            "answers",
            id="small-gzip-of-much",
        ),
        pytest.param(_repeat(_OK + b"\r\n", b" " * 1_000_000, 2_000), "more than 64000 bytes", id="endless-body"),
        pytest.param(_repeat(_OK, b"X: " + b"y" * 1_000 + b"\r\n", 500_000), "does not answer", id="endless-headers"),
        pytest.param(_repeat(_OK + b"\r\n", b'{"a":' * 10_000, 1), "without a token", id="deep-json"),
    ],
)
def test_a_token_endpoint_has_bytes_and_time(answer: Callable[[socket.socket], None], said: str) -> None:
    """It is said that there is no token, soon, and without the memory that the answer would take."""
    with listening(answer) as address:
        printed = limited(
            f"""
            oauth = OAuth("http://{address}/token", "id", Hidden("secret"))
            try:
                TokenProvider(oauth, 2.0).token()
            except HygieneError as error:
                print(type(error).__name__, error)
            """,
            150,
        )
    assert printed.startswith("AuthenticationFailed")
    assert said in printed
