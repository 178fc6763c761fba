"""Free TCP ports of 127.0.0.1 that stay reserved while their server is down."""

import contextlib
import socket
import sys


class Ports:
    """A set of distinct ports.

    On Linux, a bound socket that never listens reserves each port: other programs don't get it, while a server that
    sets SO_REUSEADDR (Java and Go do) can listen on it repeatedly. So a killed broker can use its port again. On other
    systems, two sockets cannot share a port like that, so the ports are only chosen.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, count: int) -> list[int]:
        """Pick ports that are free now and distinct."""
        sockets = []
        for _ in range(count):
            holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            sockets.append(holder)
        ports = [int(holder.getsockname()[1]) for holder in sockets]
        if sys.platform == "linux":
            self._held += sockets
        else:
            for holder in sockets:
                holder.close()
        return ports

    def release(self) -> None:
        """Give all ports back."""
        for holder in self._held:
            with contextlib.suppress(OSError):
                holder.close()
        self._held.clear()
