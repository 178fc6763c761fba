"""One Metadata request to one broker, in bytes, without a Kafka client.

Metadata version 1 (KIP-4), which every version from 0.10 to 4.x answers.
"""

import socket
import struct

_METADATA = 3
_VERSION = 1


def known_brokers(
    port: int, timeout: float = 2.0, client_id: str = "sandbox", address: str = "127.0.0.1"
) -> dict[int, int] | None:
    """Broker id -> port, in the metadata of the broker on this plaintext port.

    None if it does not answer yet, or knows no controller.
    """
    try:
        with socket.create_connection((address, port), timeout=timeout) as connection:
            connection.settimeout(timeout)
            # An empty list of topics: only the brokers are returned.
            name = client_id.encode()
            body = struct.pack(f">hhih{len(name)}si", _METADATA, _VERSION, 0, len(name), name, 0)
            connection.sendall(struct.pack(">i", len(body)) + body)
            size = struct.unpack(">i", _read(connection, 4))[0]
            return _brokers(_read(connection, size)[4:])
    except (OSError, struct.error):
        return None


def _brokers(answer: bytes) -> dict[int, int] | None:
    (count,) = struct.unpack_from(">i", answer)
    at = 4
    brokers = {}
    for _ in range(count):
        node, host = struct.unpack_from(">ih", answer, at)
        at += 6 + host
        port, rack = struct.unpack_from(">ih", answer, at)
        at += 6 + max(rack, 0)
        brokers[node] = port
    (controller,) = struct.unpack_from(">i", answer, at)
    return brokers if controller >= 0 else None


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        data += chunk
    return data
