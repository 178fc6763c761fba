"""Sends one HTTP POST to an address that a tenant configured, with limits on its time and its response."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
from yarl import URL

from group_hygiene.network.gate import Gate


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
