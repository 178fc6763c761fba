"""Where messages may go. A tenant names the receiver: it must not make the operator call what only the operator can.

What is checked is the address that is connected to, after the name was looked up: a name that leads elsewhere a moment
later leads nowhere.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from group_hygiene.errors import UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Where clouds keep what a machine may know of itself, passwords included, beyond what is link-local anyway: AWS over
# IPv6, Alibaba, Oracle and Azure.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"))
)
# To Linux all of it is this host.
_THIS_HOST = ipaddress.ip_network("0.0.0.0/8")
# Addresses of IPv4 within such of IPv6 (RFC 6052): what translates them connects to what they hold.
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
# A look-up that hangs keeps its thread; whoever asks waits no longer than it was told to.
_LOOKUPS_MAX = 32
_lookups = threading.BoundedSemaphore(_LOOKUPS_MAX)


class Refused(OSError):
    """An address that messages may not go to. The text says of which sort it is, and not which."""


@dataclass(frozen=True, slots=True)
class Egress:
    """hosts, networks: what was allowed by name or address. With any of them, nothing else is reached."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    def refusal(self, host: str, address: str) -> str | None:
        """Why a host may not be spoken to at this address; None = it may.

        A name that is allowed does not allow loopback, link-local and the like: who answers for the name could lead it
        there. Their addresses must be allowed themselves.
        """
        found = _inner(ipaddress.ip_address(address))
        named = any(found.version == network.version and found in network for network in self.networks)
        if named:
            return None
        sort = _special(found)
        if sort is not None:
            return f"{sort}; the operator's --allow-receiver does not name it"
        if (self.hosts or self.networks) and host.rstrip(".").lower() not in self.hosts:
            return "not among what the operator's --allow-receiver names"
        return None


def parse_egress(entries: Iterable[str]) -> Egress:
    """Of hosts, addresses and networks in CIDR notation. Raises UsageError."""
    hosts: set[str] = set()
    networks: list[Network] = []
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry))
            continue
        except ValueError as error:
            if "/" in entry or ":" in entry or not entry.strip() or entry.replace(".", "").isdecimal():
                message = f"{entry!r} is no host name, and no address or network like 10.0.0.0/8"
                raise UsageError(message) from error
        hosts.add(entry.rstrip(".").lower())
    return Egress(frozenset(hosts), tuple(networks))


def _inner(address: Address) -> Address:
    """The address of IPv4 that one of IPv6 stands for, where it does."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _TRANSLATED or (int(address) >> 32 == 0 and int(address) > 1):
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        # Without its zone, which no network has.
        return ipaddress.IPv6Address(int(address))
    return address


def _special(address: Address) -> str | None:
    if address in _METADATA:
        return "an address at which a cloud tells its machines about themselves"
    if address.is_loopback or address.is_unspecified or (address.version == 4 and address in _THIS_HOST):
        return "an address of the operator itself (loopback)"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast or (address.version == 4 and address == ipaddress.IPv4Address("255.255.255.255")):
        return "an address of many (multicast)"
    return None


class Gate(AbstractResolver):
    """Looks up the host of one request, and lets through only addresses that it may go to.

    `socket` sees every address that is connected to, also where the URL has one instead of a name.
    """

    def __init__(self, egress: Egress, host: str) -> None:
        self._egress, self._host = egress, host
        self.refused: str | None = None

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = [_result(host, port, entry) for entry in await _look_up(host, port, family)]
        allowed = [result for result in found if self._refusal(result["host"]) is None]
        if found and not allowed:
            raise Refused(self.refused)
        return allowed

    def socket(self, info: Any) -> socket.socket:
        """A socket for an address (as `socket.getaddrinfo` tells them). Raises Refused."""
        family, kind, proto, _, place = info
        if self._refusal(place[0]) is not None:
            raise Refused(self.refused)
        made = socket.socket(family, kind, proto)
        made.setblocking(False)
        return made

    def _refusal(self, address: str) -> str | None:
        why = self._egress.refusal(self._host, address)
        self.refused = why or self.refused
        return why

    async def close(self) -> None:
        pass


def _result(host: str, port: int, entry: Any) -> ResolveResult:
    family, _, proto, _, place = entry
    return ResolveResult(
        hostname=host,
        host=place[0],
        port=port,
        family=family,
        proto=proto,
        flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    )


async def _look_up(host: str, port: int, family: int) -> list[Any]:
    """`socket.getaddrinfo` in a thread that nobody waits for, so that a name server can't hold up the process's end."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Any]] = loop.create_future()

    def tell(found: list[Any] | OSError) -> None:
        if answer.done():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def work() -> None:
        try:
            found: list[Any] | OSError = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
        except OSError as error:
            found = error
        except UnicodeError:
            found = OSError("no name that can be looked up")
        finally:
            _lookups.release()
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, found)

    if not _lookups.acquire(blocking=False):
        raise OSError("too many names are being looked up")
    threading.Thread(target=work, name="receiver look-up", daemon=True).start()
    return await answer
