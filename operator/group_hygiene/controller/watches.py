"""The sessions of kopf's watches: whether each watch is open, and no pause that the API server asks for.

kopf raises its ready flag before it has listed anything, retries a refused list for ever, and waits as long as a
`Retry-After` header says. So every request passes here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any

import aiohttp
import kopf

from group_hygiene.model.naming import message_shown

log = logging.getLogger(__name__)

_PAUSE_CAP_S = 30.0
# A watch that is closed for so long is reported: until then, the API server may just restart.
DOWN_S = 60.0


class Watches:
    """plurals: what is watched. One per process, for its event loop."""

    def __init__(self, plurals: tuple[str, ...]) -> None:
        # Plural -> namespace of a watch that is not open ("" = all) -> since when, in monotonic seconds.
        self._closed: dict[str, dict[str, float]] = {plural: {"": time.monotonic()} for plural in plurals}
        self._problems: dict[str, str] = {}
        self._opened: set[str] = set()

    def is_open(self, plural: str) -> bool:
        """Whether its watches are open, or have been closed for less than a minute."""
        opened = plural in self._opened
        return opened and all(time.monotonic() - since < DOWN_S for since in list(self._closed[plural].values()))

    def is_listed(self, plural: str) -> bool:
        """Whether its watches are open now: all objects have been listed then."""
        return plural in self._opened and not self._closed[plural]

    def problem(self, plural: str) -> str:
        return self._problems.get(plural, "the API server has not answered yet")

    async def login(self, **arguments: Any) -> kopf.AiohttpSession | None:
        """A login handler of kopf: the credentials of the process, in a session that passes every request here."""
        info = await asyncio.to_thread(partial(kopf.login_via_client, **arguments))
        if info is None:
            return None
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
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
        if plural in self._closed and plural not in self._opened:
            # Which namespaces there are shows with the first requests.
            closed.pop("", None)
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
                    self._opened.add(plural)
                return response
            problem = f"{verb} {plural} {where}: the API server answers {response.status} {response.reason}"
            if response.status == 403:
                problem = f"no permission to {verb} {plural}.grouphygiene.io {where}"
            if self._problems.get(plural) != problem:
                log.warning("%s; trying again", message_shown(problem))
            self._problems[plural] = problem
            if response.status != 429:
                return response
            response.release()
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_CAP_S)
