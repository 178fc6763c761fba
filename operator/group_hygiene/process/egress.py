"""The addresses to which messages may be sent, and from which tables may be read; and whom a TLS client trusts there.

Tenants configure these addresses, and must not make the operator connect to addresses that only the operator can reach
(SSRF). The address is checked after the name was resolved, and then used, so DNS rebinding has no effect.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from group_hygiene.errors import SecretProblem, UsageError
from group_hygiene.process import runs

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Metadata services of clouds, which hand out credentials, beyond the link-local ones: AWS (DNS, time and metadata) and
# Google over IPv6, Alibaba, Oracle and Azure.
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
# On Linux, all of it is this host.
_THIS_HOST = ipaddress.ip_network("0.0.0.0/8")
# IPv6 networks whose addresses end with an IPv4 address (RFC 6052, RFC 2765): a translator connects to that.
_TRANSLATED = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::ffff:0:0:0/96"))
# Other IPv6 networks whose addresses contain an IPv4 address: mapped, compatible, 6to4.
_WITH_V4 = (
    ipaddress.IPv6Network("::ffff:0:0/96"),
    ipaddress.IPv6Network("::/96"),
    ipaddress.IPv6Network("2002::/16"),
)
# The same for a network's own translator (RFC 8215). The IPv4 address may be in any of these bytes, with zeros after
# them (RFC 6052).
_TRANSLATED_LOCALLY = ipaddress.IPv6Network("64:ff9b:1::/48")
_EMBEDDED_AT = ((6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12), (12, 13, 14, 15))
# Host names, also before their encoding in ASCII (IDNA).
_HOST = re.compile(r"[\w-]+(\.[\w-]+)*\.?")
# A DNS query that hangs occupies its thread, although its caller stops waiting at its own limit.
_LOOKUPS_MAX = 256
# Of these, for the connections of one namespace: its name server may be down.
_SHARE = 32
_lookups = threading.BoundedSemaphore(_LOOKUPS_MAX)
_shares: dict[str, threading.BoundedSemaphore] = {}

# Twice those of a distribution, for which OpenSSL takes 40 ms while no other thread of Python runs: if several threads
# did that at a time, the one that renews the Lease would wait for each of them.
_CERTIFICATES_MAX = 300
_ONE_AT_A_TIME = threading.Lock()


class AddressRefused(OSError):
    """The address is not allowed. The text names its category, not the address."""


class TooManyLookUps(OSError):
    """The limit of concurrent look-ups is reached, so this name was not looked up."""


_NOT_LISTED = "an address that the operator's --allow-receiver does not name"


@dataclass(frozen=True, slots=True)
class Egress:
    """hosts, networks: allowed by name or address. If any is given, all other addresses are refused."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    def refusal(self, host: str, address: str) -> str | None:
        """Why connecting to this address of a host is refused; None = it is allowed.

        An allowed name does not allow loopback, link-local and similar addresses, since its DNS entry could point to
        them. Such addresses must be allowed as addresses.
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
        """Why a host is refused, whatever its addresses are; None = its addresses decide. Saves DNS queries."""
        return _NOT_LISTED if self.hosts and not self.networks and not self._lists(host) else None

    def _lists(self, host: str) -> bool:
        return host.rstrip(".").lower() in self.hosts


def parse_egress(entries: Iterable[str]) -> Egress:
    """Parse hosts, addresses and networks in CIDR notation. Raises UsageError, also for an entry that never matches."""
    hosts: set[str] = set()
    networks: list[Network] = []
    for entry in entries:
        try:
            network = ipaddress.ip_network(entry)
        except ValueError as error:
            if not _HOST.fullmatch(entry) or entry.replace(".", "").isdecimal():
                message = f"{entry!r} is neither a host name nor an address or network like 10.0.0.0/8"
                raise UsageError(message) from error
            hosts.add(entry.rstrip(".").lower())
            continue
        if (
            isinstance(network, ipaddress.IPv6Network)
            and any(network.subnet_of(outer) for outer in (*_TRANSLATED, *_WITH_V4))
            and _inner(network.network_address).version == 4
        ):
            # Its addresses are checked as embedded IPv4 addresses, so that nothing would ever match it.
            raise UsageError(f"{entry!r} stands for IPv4 addresses: give these, like 10.0.0.0/8")
        networks.append(network)
    return Egress(frozenset(hosts), tuple(networks))


def _inner(address: Address) -> Address:
    """The IPv4 address that is embedded in an IPv6 address; the address itself if there is none."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if any(address in network for network in _TRANSLATED) or (int(address) >> 32 == 0 and int(address) > 1):
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        # Without its zone, as networks have none.
        return ipaddress.IPv6Address(int(address))
    return address


def _embedded(packed: bytes) -> Iterator[Address]:
    """The IPv4 addresses that an address of a network's own translator may stand for."""
    for places in _EMBEDDED_AT:
        embedded = ipaddress.IPv4Address(bytes(packed[at] for at in places))
        # An address of zeros comes from bytes that another form leaves empty.
        if not any(packed[places[-1] + 1 :]) and embedded not in _THIS_HOST:
            yield embedded


def _special(address: Address) -> str | None:
    if address in _TRANSLATED_LOCALLY:
        return next(filter(None, map(_special, _embedded(address.packed))), None)
    if any(address.version == network.version and address in network for network in _METADATA):
        return "an address of a cloud's metadata service"
    if address.is_loopback or address.is_unspecified or (address.version == 4 and address in _THIS_HOST):
        return "an address of the operator itself (loopback)"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast or (address.version == 4 and address == ipaddress.IPv4Address("255.255.255.255")):
        return "a multicast or broadcast address"
    return None


async def look_up(host: str, port: int, family: int = socket.AF_UNSPEC) -> list[Any]:
    """The entries of `socket.getaddrinfo`, from a daemon thread: a name server can't delay the end of the process.

    Raises OSError, and TooManyLookUps at the limit of concurrent look-ups, in total or for the current namespace
    (`runs.about`).
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Any]] = loop.create_future()

    def resolve(found: list[Any] | OSError) -> None:
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
            found = OSError("invalid host name")
        finally:
            _lookups.release()
            share.release()
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve, found)

    # One for each namespace with a connection.
    share = _shares.setdefault(runs.current().get("namespace", ""), threading.BoundedSemaphore(_SHARE))
    if not share.acquire(blocking=False):
        raise TooManyLookUps("too many names are being looked up for this namespace")
    if not _lookups.acquire(blocking=False):
        share.release()
        raise TooManyLookUps("too many names are being looked up")
    threading.Thread(target=work, name="look-up", daemon=True).start()
    return await answer


def trusting(ca: str | None, field: str) -> ssl.SSLContext:
    """A client's context that trusts the PEM certificates in `ca`; None = the system's authorities.

    Raises SecretProblem, naming `field`, if `ca` contains no certificate, or too many. May wait for other callers.
    """
    if ca is None:
        return ssl.create_default_context()
    # Bundles have comments in any language, but Python takes ASCII only. An empty text is an error: with it, Python
    # would trust the system's authorities.
    pem = ca.encode("ascii", errors="ignore").decode()
    if pem.count("-----BEGIN ") > _CERTIFICATES_MAX:
        raise SecretProblem(f"{field} must name at most {_CERTIFICATES_MAX} certificates", "SecretInvalid")
    try:
        if pem:
            with _ONE_AT_A_TIME:
                return ssl.create_default_context(cadata=pem)
    except ssl.SSLError as error:
        raise SecretProblem(f"{field} must name PEM certificates", "SecretInvalid") from error
    raise SecretProblem(f"{field} must name PEM certificates", "SecretInvalid")


def system_authorities() -> ssl.SSLContext:
    """A client's context that trusts the system's authorities as they are now. Shared: don't change it.

    Loading them takes 50 ms, so it is done again only if their file or folder changed.
    """
    paths = ssl.get_default_verify_paths()
    return _system_authorities(tuple((path, *_version(path)) for path in (paths.cafile, paths.capath) if path))


@lru_cache(maxsize=1)
def _system_authorities(_: tuple[tuple[str | int, ...], ...]) -> ssl.SSLContext:
    return ssl.create_default_context()


def _version(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size
