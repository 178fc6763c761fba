"""A fake broker: a test defines its responses to some requests; it answers others like a small cluster."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache

Answer = Callable[[socket.socket, bytes], None]

# API keys (org.apache.kafka.common.protocol.ApiKeys), with the versions that it serves.
METADATA, DESCRIBE_GROUPS, LIST_GROUPS, DESCRIBE_LOG_DIRS = 3, 15, 16, 35
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
_VERSIONS, _DESCRIBE_CLUSTER, _OFFSET_FETCH = 18, 60, 9
_SERVED = {
    _VERSIONS: (3, 3),
    METADATA: (12, 12),
    DESCRIBE_GROUPS: (5, 5),
    LIST_GROUPS: (5, 5),
    DESCRIBE_LOG_DIRS: (4, 4),
    _DESCRIBE_CLUSTER: (0, 0),
    _OFFSET_FETCH: (8, 8),
    SASL_HANDSHAKE: (1, 1),
    SASL_AUTHENTICATE: (1, 1),
}


class FakeBroker:
    """Serves Kafka's protocol; `answers` handles the requests with its API keys.

    brokers: number of brokers in its metadata, all of them itself. context: for TLS with the first client; all others
    wait for the handshake. places: the partitions of `__consumer_offsets` in its metadata. first: number of metadata
    requests before the one in `answers` is used, as clients send some when they connect. request: the last one, after
    its correlation id.
    """

    def __init__(
        self,
        answers: Mapping[int, Answer] | None = None,
        brokers: int = 1,
        context: ssl.SSLContext | None = None,
        places: Sequence[int] = (),
        first: int = 0,
    ) -> None:
        self._answers, self._brokers, self._context = answers or {}, brokers, context
        self._places, self._first = places, first
        self._waiting: list[socket.socket] = []
        self.request = b""

    def __enter__(self) -> str:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=500)
        self._port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return f"127.0.0.1:{self._port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._waiting:
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                if self._context is not None:
                    if self._waiting:
                        self._waiting.append(connection)
                        continue
                    self._waiting.append(connection)
                    connection = self._context.wrap_socket(connection, server_side=True)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError), connection.makefile("rb") as requests:
            while head := requests.read(12):
                size, key, _, correlation = struct.unpack(">ihhi", head)
                self.request = requests.read(size - 8)
                identity = struct.pack(">i", correlation)
                if key == METADATA and self._first > 0:
                    self._first -= 1
                elif key in self._answers:
                    self._answers[key](connection, identity + b"\0")
                    continue
                body = self._body(key)
                # As brokers do with a request that they can't parse.
                if body is None:
                    return
                # Only ApiVersions is answered without tagged fields in the header.
                send(connection, identity + (b"" if key == _VERSIONS else b"\0") + body)

    def _body(self, key: int) -> bytes | None:
        """The answer to a request with this API key; None = it is not served."""
        bodies: dict[int, Callable[[], bytes]] = {
            _VERSIONS: self._versions,
            METADATA: self._metadata,
            LIST_GROUPS: lambda: bytes(6) + b"\1\0",
            _DESCRIBE_CLUSTER: self._describe_cluster,
        }
        return bodies[key]() if key in bodies else None

    @staticmethod
    def _versions() -> bytes:
        rows = b"".join(struct.pack(">hhhb", key, *versions, 0) for key, versions in _SERVED.items())
        return b"\0\0" + bytes([len(_SERVED) + 1]) + rows + b"\0\0\0\0" + b"\0"

    def _metadata(self) -> bytes:
        host = b"\x0a127.0.0.1"
        rows = b"".join(
            struct.pack(">i", broker) + host + struct.pack(">ibb", self._port, 0, 0) for broker in range(self._brokers)
        )
        places = b"".join(b"\0\0" + struct.pack(">iii", place, 0, 0) + b"\x01\x01\x01\0" for place in self._places)
        head = b"\0\0\x13__consumer_offsets" + bytes(16) + b"\x01"
        topic = head + varint(len(self._places) + 1) + places + bytes(4) + b"\0"
        return b"\0\0\0\0" + varint(self._brokers + 1) + rows + b"\x02c" + bytes(4) + b"\x02" + topic + b"\0"

    @staticmethod
    def _describe_cluster() -> bytes:
        return bytes(6) + b"\x01\x02c" + bytes(4) + b"\x01" + struct.pack(">i", -(2**31)) + b"\0"


def send(connection: socket.socket, frame: bytes) -> None:
    """Send an answer with its length before it."""
    connection.sendall(struct.pack(">i", len(frame)) + frame)


def varint(number: int) -> bytes:
    """An unsigned varint (KIP-482), such as an array's length plus one."""
    encoded = b""
    while number >= 0x80:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def announced(size: int, sent: int) -> Answer:
    """Announces a response of `size` bytes, and sends `sent` of them."""

    def answer(connection: socket.socket, _: bytes) -> None:
        connection.sendall(struct.pack(">i", size))
        for _part in range(sent // 1_000_000):
            connection.sendall(bytes(1_000_000))

    return answer


def rows_of(head: bytes, row: bytes, count: int, tail: bytes) -> Answer:
    """Answers with `head`, an array of so many equal rows, and `tail`."""
    body = head + varint(count + 1) + row * count + tail

    def answer(connection: socket.socket, identity: bytes) -> None:
        send(connection, identity + body)

    return answer


def many_groups(count: int) -> Answer:
    """Lists so many Empty groups with different ids."""

    def answer(connection: socket.socket, identity: bytes) -> None:
        send(connection, identity + bytes(6) + varint(count + 1) + _groups(count) + b"\0")

    return answer


@cache
def _groups(count: int) -> bytes:
    """Made when they are first sent: tests name such answers where they are imported."""
    return b"".join(b"\x08%07d\x09consumer\x06Empty\x08classic\0" % number for number in range(count))


def many_descriptions(count: int) -> Answer:
    """Describes so many groups, all of the empty name."""
    return rows_of(bytes(4), b"\0\0\1\1\1\1\1" + bytes(4) + b"\0", count, b"\0")


def many_topics(count: int) -> Answer:
    """Metadata of so many topics, all of the empty name."""
    return rows_of(bytes(4) + b"\1\1" + bytes(4), b"\0\0\1" + bytes(16) + b"\0\1" + bytes(4) + b"\0", count, b"\0")


def many_log_dirs(count: int) -> Answer:
    """Log directories with so many topics, all of the empty name."""
    head = bytes(6) + b"\2\0\0\1"
    return rows_of(head, b"\1\1\0", count, bytes(16) + b"\0\0")
