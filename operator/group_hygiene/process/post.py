"""Sends one HTTP POST to an address that a tenant configured, if `egress` allows it, with limits on time and size."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from group_hygiene.process.egress import AddressRefused, Egress, TooManyLookUps, look_up


class Gate(AbstractResolver):
    """Resolves the host of one request, and returns only allowed addresses.

    `socket` checks every address again, since a URL may have an address instead of a name. refused: why no address is
    allowed. crowded: the host was not looked up, as too many look-ups are running.
    """

    def __init__(self, egress: Egress, host: str) -> None:
        self._egress, self._host = egress, host
        self.refused: str | None = None
        self.crowded = False

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        self.refused = self._egress.refusal_of_name(self._host)
        if self.refused is not None:
            raise AddressRefused(self.refused)
        try:
            found = [_result(host, port, entry) for entry in await look_up(host, port, family)]
        except TooManyLookUps:
            self.crowded = True
            raise
        refusals = [self._egress.refusal(self._host, result["host"]) for result in found]
        allowed = [result for result, refusal in zip(found, refusals, strict=True) if refusal is None]
        if found and not allowed:
            # Only if all addresses are refused: an allowed one that is down is no refusal.
            self.refused = refusals[-1]
            raise AddressRefused(self.refused)
        return allowed

    def socket(self, info: Any) -> socket.socket:
        """A socket for an entry of `socket.getaddrinfo`. Raises AddressRefused."""
        family, kind, proto, _, place = info
        refusal = self._egress.refusal(self._host, place[0])
        if refusal is not None:
            self.refused = refusal
            raise AddressRefused(refusal)
        made = socket.socket(family, kind, proto)
        made.setblocking(False)
        return made

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


class HttpAnswer(NamedTuple):
    """body: at most one chunk longer than `HttpRequest.read`."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpRequest(NamedTuple):
    """data: a body, or the fields of a form. gate: None = any address is allowed.

    seconds: for the whole request. read: bytes of the response to read.
    """

    url: URL | str
    data: bytes | Mapping[str, str]
    headers: Mapping[str, str]
    gate: Gate | None
    context: ssl.SSLContext
    seconds: float
    read: int = 0


async def send(request: HttpRequest) -> HttpAnswer:
    """Raises errors of aiohttp, TimeoutError, OSError and ValueError; their texts may contain addresses and headers.

    Redirects and proxies of the environment are ignored: either would bypass the check of the address. The limit is on
    the whole request, as an endpoint could prolong a limit per read byte by byte. Nothing is decompressed, as the size
    would be unknown.
    """
    guarded: dict[str, Any] = {}
    if request.gate is not None:
        guarded = {"resolver": request.gate, "use_dns_cache": False, "socket_factory": request.gate.socket}
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=request.context, force_close=True, **guarded),
        # A connection has less time than the whole request, so that ConnectionTimeoutError says that nothing was sent.
        timeout=aiohttp.ClientTimeout(total=request.seconds, connect=request.seconds * 0.9),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )
    sent = session.post(request.url, data=request.data, headers=request.headers, allow_redirects=False)
    async with session, sent as answer:
        body = b""
        while len(body) < request.read and (chunk := await answer.content.readany()):
            body += chunk
        return HttpAnswer(answer.status, answer.headers, body)
