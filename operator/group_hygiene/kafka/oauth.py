"""Tokens for SASL/OAUTHBEARER, by the client credentials grant (RFC 6749, section 4.4; KIP-768)."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from kafka.net.sasl.oauth import AbstractTokenProvider

from group_hygiene.errors import AuthenticationFailed
from group_hygiene.network.egress import Egress, system_authorities, trusting
from group_hygiene.spec.connection import OAuth

if TYPE_CHECKING:
    from group_hygiene.network.post import Gate, HttpRequest

_RENEW_BEFORE_S = 30.0
_TIMEOUT_MAX_S = 10.0
# A token of a real endpoint has some kilobytes; brokers take no SASL request of more than 512 KB.
_ANSWER_BYTES = 64_000
_LIFETIME_MAX_S = 24 * 3600.0


class _Answer(msgspec.Struct):
    """The fields of the answer (RFC 6749, section 5.1) that are used. expires_in: seconds."""

    access_token: str
    expires_in: float = 300.0


# Created at import, as msgspec crashes if two threads read a type's annotations at once.
_DECODER = msgspec.json.Decoder(_Answer, strict=False)


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Returns one token for all connections until shortly before it expires. Thread-safe.

    timeout: seconds for the endpoint's whole answer, at most 10. egress: which addresses it may have; None = any.
    """

    def __init__(self, oauth: OAuth, timeout: float, egress: Egress | None = None) -> None:
        self._oauth, self._egress = oauth, egress
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = 0.0
        # Without credentials before an @, as messages show it.
        parts = urlsplit(oauth.token_endpoint)
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self._context = None if oauth.ca is None else trusting(oauth.ca, "sasl.oauth.caSecretRef")
        self._timeout = min(_TIMEOUT_MAX_S, timeout)

    def token(self) -> str:
        """The current access token. Raises AuthenticationFailed with the endpoint's answer, never with a secret."""
        with self._lock:
            if time.monotonic() >= self._renew_at:
                self._token, lifetime = self._fetch()
                self._renew_at = time.monotonic() + max(1.0, min(lifetime, _LIFETIME_MAX_S) - _RENEW_BEFORE_S)
            return self._token

    def _fetch(self) -> tuple[str, float]:
        # Imported here: it takes longer to load than the rest of a command that needs no token.
        import aiohttp

        from group_hygiene.network.post import Gate, send

        gate = None if self._egress is None else Gate(self._egress, urlsplit(self._url).hostname or "")
        # Not asyncio.run: its end would wait for the thread of a name server that hangs.
        loop = asyncio.new_event_loop()
        try:
            status, _, body = loop.run_until_complete(send(self._request(gate)))
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            if gate is not None and gate.refused is not None:
                raise AuthenticationFailed(f"the token endpoint {self._shown} leads to {gate.refused}") from error
            raise AuthenticationFailed(f"the token endpoint {self._shown} does not answer") from error
        finally:
            loop.close()
        if status != 200:
            raise AuthenticationFailed(f"the token endpoint {self._shown} answers HTTP {status}")
        if len(body) > _ANSWER_BYTES:
            raise AuthenticationFailed(f"the token endpoint {self._shown} answers more than {_ANSWER_BYTES} bytes")
        try:
            answer = _DECODER.decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise AuthenticationFailed(f"the token endpoint {self._shown} answers without a token") from error
        return answer.access_token, answer.expires_in

    def _request(self, gate: Gate | None) -> HttpRequest:
        from yarl import URL

        from group_hygiene.network.post import HttpRequest

        oauth = self._oauth
        credentials = f"{oauth.client_id}:{oauth.client_secret.reveal()}".encode()
        return HttpRequest(
            URL(self._url, encoded=True),
            {"grant_type": "client_credentials", **({"scope": oauth.scope} if oauth.scope else {})},
            {
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "Authorization": "Basic " + base64.b64encode(credentials).decode("ascii"),
            },
            gate,
            self._context or system_authorities(),
            self._timeout,
            read=_ANSWER_BYTES + 1,
        )
