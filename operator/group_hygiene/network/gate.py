"""The resolver and the socket of one HTTP request, limited to addresses that `egress` allows."""

from __future__ import annotations

import socket
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from group_hygiene.network.egress import AddressRefused, Egress, TooManyLookUps, look_up


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
        """A socket for an entry of `socket.getaddrinfo`. Raises Refused."""
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
