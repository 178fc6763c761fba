"""Tokens for SASL/OAUTHBEARER, by the client credentials grant (RFC 6749, section 4.4; KIP-768)."""

from __future__ import annotations

import base64
import threading
import time
from urllib.parse import urlsplit

import urllib3
from kafka.net.sasl.oauth import AbstractTokenProvider

from group_hygiene.connection import OAuth
from group_hygiene.errors import AuthenticationFailed
from group_hygiene.kafka.tls import trusting

_RENEW_BEFORE_S = 30.0
_TIMEOUT_MAX_S = 10.0


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Gives one token to all connections until shortly before it expires. Thread-safe.

    timeout: seconds that the endpoint has for its answer, if that is less than 10.
    """

    def __init__(self, oauth: OAuth, timeout: float) -> None:
        self._oauth = oauth
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = 0.0
        # Without what may stand before an @: messages show it.
        parts = urlsplit(oauth.token_endpoint)
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        context = trusting(oauth.ca, "sasl.oauth.ca")
        limit = urllib3.Timeout(total=min(_TIMEOUT_MAX_S, timeout))
        self._http = urllib3.PoolManager(ssl_context=context, retries=False, timeout=limit)

    def token(self) -> str:
        """The current access token. Raises AuthenticationFailed with what the endpoint said, never with a secret."""
        with self._lock:
            if time.monotonic() >= self._renew_at:
                self._token, lifetime = self._fetch()
                self._renew_at = time.monotonic() + max(1.0, lifetime - _RENEW_BEFORE_S)
            return self._token

    def _fetch(self) -> tuple[str, float]:
        oauth = self._oauth
        fields = {"grant_type": "client_credentials", **({"scope": oauth.scope} if oauth.scope else {})}
        credentials = f"{oauth.client_id}:{oauth.client_secret.reveal()}".encode()
        headers = {"Authorization": "Basic " + base64.b64encode(credentials).decode("ascii")}
        try:
            answer = self._http.request(
                "POST", oauth.token_endpoint, fields=fields, headers=headers, encode_multipart=False
            )
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise AuthenticationFailed(f"the token endpoint {self._shown} does not answer") from error
        if answer.status != 200:
            raise AuthenticationFailed(f"the token endpoint {self._shown} answers HTTP {answer.status}")
        try:
            body = answer.json()
            return str(body["access_token"]), float(body.get("expires_in", 300))
        except (ValueError, KeyError, TypeError) as error:
            raise AuthenticationFailed(f"the token endpoint {self._shown} answers without a token") from error
