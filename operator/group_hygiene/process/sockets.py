"""The open sockets to brokers: they take a bounded part of this process's memory, in equal parts for namespaces.

A broker's answer may name many brokers, and the library opens a connection to each of them.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from group_hygiene.process.memory import LIMIT, TooMuch

# Memory of one open socket, rounded up. Measured with kafka-python 3.0.12 as the growth of resident memory by 800
# connections after a request by each: 20.5 KB per socket without TLS, and 44.5 KB with TLS.
SOCKET_BYTES = 48 << 10
# All sockets together may take this share of the process's memory.
_SHARE = 16


class OpenSocket:
    """A socket that counts for its owner, from before it connects until `OpenSockets.remove`."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.socket: socket.socket | None = None
        self.is_over = False


class OpenSockets:
    """Counts sockets by owner. If there are `most`, each owner may have an equal part of them. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._by_owner: dict[str, list[OpenSocket]] = {}

    def add(self, owner: str) -> OpenSocket:
        """Count one more socket. If that is too many, shut down one of the owner that has most.

        Raises TooMuch if there are as many as allowed, and this owner has its part of them.
        """
        added = OpenSocket(owner)
        with self._lock:
            own = self._by_owner.setdefault(owner, [])
            if sum(map(len, self._by_owner.values())) >= self._most:
                if len(own) >= self._most // len(self._by_owner):
                    self._forget_empty(owner)
                    raise TooMuch(
                        "the connections to brokers of this namespace take their part of the operator's memory, and "
                        "the rest is used: give the operator more memory, or use fewer KafkaConnections, or clusters "
                        "with fewer brokers, in this namespace"
                    )
                ended = max(self._by_owner.values(), key=len).pop(0)
                ended.is_over = True
                if ended.socket is not None:
                    # An SSLSocket's own method first ends the encryption, also for what another thread sends then.
                    with suppress(OSError):
                        socket.socket.shutdown(ended.socket, socket.SHUT_RDWR)
            own.append(added)
        return added

    def connected(self, added: OpenSocket, sock: socket.socket) -> None:
        """The socket to shut down if another owner needs its place. Raises TooMuch if one needed it before."""
        with self._lock:
            if added.is_over:
                raise TooMuch("the connections of another namespace needed the memory for this one")
            added.socket = sock

    def remove(self, added: OpenSocket) -> None:
        """Must be called before the socket is closed: until then, `add` may shut it down. May be called again."""
        with self._lock:
            own = self._by_owner.get(added.owner, [])
            if added in own:
                own.remove(added)
            added.socket = None
            self._forget_empty(added.owner)

    def _forget_empty(self, owner: str) -> None:
        if owner in self._by_owner and not self._by_owner[owner]:
            del self._by_owner[owner]


OPEN_SOCKETS = OpenSockets(LIMIT // _SHARE // SOCKET_BYTES)
