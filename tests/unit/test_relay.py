"""The proxy of a reader of an object store ends with every connection that it accepted."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from group_hygiene.evidence.reader import Relay
from group_hygiene.process.egress import Egress, parse_egress
from group_hygiene.spec.storage import HostPort


@pytest.mark.parametrize("steps", range(8))
def test_a_connection_that_comes_as_it_ends_is_closed(steps: int) -> None:
    """Also one that was accepted, and that it has no time to serve. steps: of the event loop before it ends."""

    async def main() -> bytes:
        async with Relay((), Egress()) as relay:
            client = socket.create_connection(("127.0.0.1", int(relay.url.rpartition(":")[2])))
            client.settimeout(60)
            for _ in range(steps):
                await asyncio.sleep(0)
        with client:
            try:
                return await asyncio.to_thread(client.recv, 1)
            except ConnectionResetError:
                return b""

    assert asyncio.run(main()) == b""


def test_both_ends_of_a_tunnel_are_closed_though_one_takes_nothing() -> None:
    """A reader that stops reading leaves no connection to the object store behind."""

    async def main() -> None:
        arrived: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()

        async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(64 << 20))
            await arrived.put(reader)
            with suppress(OSError):
                await writer.drain()
            writer.close()

        store = await asyncio.start_server(pour, "127.0.0.1", 0)
        port = store.sockets[0].getsockname()[1]
        async with Relay((HostPort("127.0.0.1", port),), parse_egress(["127.0.0.0/8"])) as relay:
            client = socket.create_connection(("127.0.0.1", int(relay.url.rpartition(":")[2])))
            client.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
            source = await arrived.get()
            await asyncio.sleep(0.5)
            client.shutdown(socket.SHUT_WR)
            # The end for the client is closed, as far as what it was sent lets it.
            await asyncio.sleep(0.5)
        # With data that it did not take the connection is reset.
        with suppress(ConnectionResetError):
            async with asyncio.timeout(10):
                assert await source.read() == b""
        client.close()
        store.close()

    asyncio.run(main())
