"""Where messages may go, and from where tables may be read: addresses that a tenant names and the operator connects to.

A tenant must not make the operator call what only the operator can reach. What is checked is the address that is
connected to, after the name was looked up: a name that leads elsewhere a moment later leads nowhere.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from group_hygiene import runs
from group_hygiene.errors import UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Where clouds keep what a machine may know of itself, passwords included, beyond what is link-local anyway: AWS (DNS,
# time and metadata) and Google over IPv6, Alibaba, Oracle and Azure.
_METADATA: tuple[Network, ...] = tuple(
    ipaddress.ip_network(place)
    for place in (
        "169.254.169.254",
        "fd00:ec2::/32",
        "fd20:ce::/64",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
    )
)
# To Linux all of it is this host.
_THIS_HOST = ipaddress.ip_network("0.0.0.0/8")
# Addresses of IPv4 at the end of such of IPv6 (RFC 6052, RFC 2765): what translates them connects to what they hold.
_TRANSLATED = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::ffff:0:0:0/96"))
# Others of IPv6 that hold one of IPv4: mapped, compatible, 6to4.
_HOLDING = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("::/96"), ipaddress.IPv6Network("2002::/16"))
# The same for a network's own translator (RFC 8215), which may have the IPv4 address in these bytes, with zeros after
# them (RFC 6052): nobody outside knows in which.
_TRANSLATED_HERE = ipaddress.IPv6Network("64:ff9b:1::/48")
_HELD_AT = ((6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12), (12, 13, 14, 15))
# What a host can be called, also before it is written in ASCII (IDNA).
_HOST = re.compile(r"[\w-]+(\.[\w-]+)*\.?")
# A look-up that hangs keeps its thread; whoever asks waits no longer than it was told to.
_LOOKUPS_MAX = 256
# Of these, for the connections of one namespace: its name server may answer nobody.
_SHARE = 32
_lookups = threading.BoundedSemaphore(_LOOKUPS_MAX)
_shares: dict[str, threading.BoundedSemaphore] = {}


class Refused(OSError):
    """An address that may not be connected to. The text says of which sort it is, and not which."""


class TooManyLookUps(OSError):
    """As many names as may be are being looked up, so this one was not."""


_NOT_LISTED = "what the operator's --allow-receiver does not name"


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
        return _NOT_LISTED if (self.hosts or self.networks) and not self._lists(host) else None

    def refusal_of_name(self, host: str) -> str | None:
        """Why a host may not be spoken to, whatever its addresses are; None = these decide. Spares a look-up."""
        return _NOT_LISTED if self.hosts and not self.networks and not self._lists(host) else None

    def _lists(self, host: str) -> bool:
        return host.rstrip(".").lower() in self.hosts


def parse_egress(entries: Iterable[str]) -> Egress:
    """Of hosts, addresses and networks in CIDR notation. Raises UsageError, also for what would never match."""
    hosts: set[str] = set()
    networks: list[Network] = []
    for entry in entries:
        try:
            network = ipaddress.ip_network(entry)
        except ValueError as error:
            if not _HOST.fullmatch(entry) or entry.replace(".", "").isdecimal():
                message = f"{entry!r} is no host name, and no address or network like 10.0.0.0/8"
                raise UsageError(message) from error
            hosts.add(entry.rstrip(".").lower())
            continue
        if _stands_for_v4(network):
            raise UsageError(f"{entry!r} stands for addresses of IPv4: give these, like 10.0.0.0/8")
        networks.append(network)
    return Egress(frozenset(hosts), tuple(networks))


def _inner(address: Address) -> Address:
    """The address of IPv4 that one of IPv6 stands for, where it does."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if any(address in network for network in _TRANSLATED) or (int(address) >> 32 == 0 and int(address) > 1):
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        # Without its zone, which no network has.
        return ipaddress.IPv6Address(int(address))
    return address


def _stands_for_v4(network: Network) -> bool:
    """Whether what is in it is judged as what it holds, so that nothing ever matches it."""
    return (
        isinstance(network, ipaddress.IPv6Network)
        and any(network.subnet_of(holding) for holding in (*_TRANSLATED, *_HOLDING))
        and _inner(network.network_address).version == 4
    )


def _held(packed: bytes) -> Iterator[Address]:
    """What an address of a network's own translator may stand for."""
    for places in _HELD_AT:
        held = ipaddress.IPv4Address(bytes(packed[at] for at in places))
        # Zeros are what another form leaves empty.
        if not any(packed[places[-1] + 1 :]) and held not in _THIS_HOST:
            yield held


def _special(address: Address) -> str | None:
    if address in _TRANSLATED_HERE:
        return next(filter(None, map(_special, _held(address.packed))), None)
    if any(address.version == network.version and address in network for network in _METADATA):
        return "an address at which a cloud tells its machines about themselves"
    if address.is_loopback or address.is_unspecified or (address.version == 4 and address in _THIS_HOST):
        return "an address of the operator itself (loopback)"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast or (address.version == 4 and address == ipaddress.IPv4Address("255.255.255.255")):
        return "an address of many (multicast)"
    return None


async def look_up(host: str, port: int, family: int = socket.AF_UNSPEC) -> list[Any]:
    """The entries of `socket.getaddrinfo`, in a daemon thread: a name server can't delay the end of the process.

    Raises OSError, and TooManyLookUps where as many names as may be are being looked up, by all or for the namespace
    that this is about (`runs.about`).
    """
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
            share.release()
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, found)

    # As many as there are namespaces with a connection.
    share = _shares.setdefault(runs.current().get("namespace", ""), threading.BoundedSemaphore(_SHARE))
    if not share.acquire(blocking=False):
        raise TooManyLookUps("too many names are being looked up for this namespace")
    if not _lookups.acquire(blocking=False):
        share.release()
        raise TooManyLookUps("too many names are being looked up")
    threading.Thread(target=work, name="look-up", daemon=True).start()
    return await answer
