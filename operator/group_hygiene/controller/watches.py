"""The sessions of kopf's watches: whether each watch is open, and no pause that the API server asks for.

kopf raises its ready flag before it has listed anything, retries a refused list for ever, and waits as long as a
`Retry-After` header says. So every request passes here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from functools import partial
from typing import Any

import aiohttp
import kopf

from group_hygiene import USER_AGENT
from group_hygiene.model.naming import message_shown
from group_hygiene.spec.crds import GROUP

log = logging.getLogger(__name__)

_PAUSE_CAP_S = 30.0
# A watch that is closed for so long is reported: until then, the API server may just restart.
DOWN_S = 60.0


class Watches:
    """plurals: what is watched, in each of `namespaces`; none = all together. One per process, for its event loop."""

    def __init__(self, plurals: Collection[str], namespaces: Collection[str] = ()) -> None:
        self._namespaces = frozenset(namespaces or ("",))
        # Plural -> namespace of a watch that is not open ("" = all) -> since when, in monotonic seconds.
        self._closed = {plural: dict.fromkeys(self._namespaces, time.monotonic()) for plural in plurals}
        # Plural and namespace of watches that have never been open.
        self._new = {(plural, namespace) for plural in plurals for namespace in self._namespaces}
        self._problems: dict[str, str] = {}

    def is_open(self, plural: str) -> bool:
        """Whether its watches are open, or have been closed for less than a minute after they were open."""
        return not any(
            (plural, namespace) in self._new or time.monotonic() - since >= DOWN_S
            for namespace, since in list(self._closed[plural].items())
        )

    @property
    def served(self) -> frozenset[str]:
        """The namespaces ("" = all) without those where something has not been watched for a minute."""
        now = time.monotonic()
        closed = [list(each.items()) for each in self._closed.values()]
        return self._namespaces - {name for each in closed for name, since in each if now - since >= DOWN_S}

    @property
    def serves_all(self) -> bool:
        return self.served == self._namespaces

    def are_listed(self) -> bool:
        """Whether namespaces are served, and all their watches are open: all objects were listed then."""
        served = self.served
        return bool(served) and not any(served & each.keys() for each in self._closed.values())

    @property
    def problems(self) -> str:
        return "; ".join(self._problems.values()) or "the API server has not answered yet"

    async def login(self, **arguments: Any) -> kopf.AiohttpSession | None:
        """A login handler of kopf: the credentials of the process, in a session that passes every request here."""
        info = await asyncio.to_thread(partial(kopf.login_via_client, **arguments))
        if info is None:
            return None
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers() | {"User-Agent": USER_AGENT},
            trust_env=info.trust_env,
            proxy=info.proxy_url,
            middlewares=(self._pass,),
        )
        return kopf.AiohttpSession(
            server=info.server, default_namespace=info.default_namespace, aiohttp_session=session
        )

    async def _pass(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        parts = request.url.path.split("/")
        plural, namespace = parts[-1], parts[-2] if "namespaces" in parts else ""
        is_watch, pause = request.url.query.get("watch") == "true", 1.0
        verb, where = "watch" if is_watch else "list", f"in namespace {namespace}" if namespace else "in all namespaces"
        closed = self._closed.get(plural, {})
        closed.setdefault(namespace, time.monotonic())
        while True:
            try:
                response = await handler(request)
            except (OSError, aiohttp.ClientError, TimeoutError) as error:
                self._problems[plural] = f"the API server does not answer: {type(error).__name__}"
                raise
            if response.status < 400:
                if is_watch and plural in self._closed:
                    closed.pop(namespace, None)
                    self._new.discard((plural, namespace))
                return response
            problem = f"{verb} {plural} {where}: the API server answers {response.status} {response.reason}"
            if response.status == 403:
                problem = f"no permission to {verb} {plural}.{GROUP} {where}"
            if self._problems.get(plural) != problem:
                log.warning("%s; trying again", message_shown(problem))
            self._problems[plural] = problem
            if response.status != 429:
                return response
            response.release()
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_CAP_S)
