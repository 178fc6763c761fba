"""The server's end of a TLS connection that one thread reads while another one writes.

OpenSSL allows one call on a connection at a time, and Python 3.11 does not ensure that.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

_HANDSHAKE_SECONDS = 30.0
# Interval at which a waiting thread checks whether the connection was closed.
_LOOK_MS = 1000
T = TypeVar("T")


class TlsConnection:
    """A subset of the methods of a socket. The constructor does the handshake, and raises OSError."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        connection.settimeout(_HANDSHAKE_SECONDS)
        self._socket = context.wrap_socket(connection, server_side=True)
        self._socket.setblocking(False)
        self._lock = threading.Lock()

    def recv(self, size: int) -> bytes:
        """At least one byte; empty = the connection ended."""
        return self._do(lambda: self._socket.recv(size))

    def sendall(self, data: bytes) -> None:
        """Send all bytes."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._do(partial(self._socket.send, rest)) :]

    def shutdown(self, how: int) -> None:
        """As of a socket: pending reads and writes end, or fail."""
        with self._lock:
            self._socket.shutdown(how)

    def close(self) -> None:
        """As of a socket."""
        with self._lock:
            self._socket.close()

    def _do(self, operation: Callable[[], T]) -> T:
        while True:
            with self._lock:
                try:
                    return operation()
                except ssl.SSLWantReadError:
                    wanted = select.POLLIN
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
                waiting = select.poll()
                waiting.register(self._socket, wanted)
            waiting.poll(_LOOK_MS)
