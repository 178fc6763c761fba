"""OAUTHBEARER as the sandbox's brokers check it: unsecured tokens (RFC 7515 appendix A.5), and an endpoint for them.

A broker without further settings uses Kafka's own OAuthBearerUnsecuredValidatorCallbackHandler: it accepts any token
with a subject that is not expired. So this tests how a client gets and sends tokens, not the security of a broker.
"""

import base64
import hmac
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from testing.sandbox.kafka.tls import Certificate

LIFETIME_SECONDS = 3600


def unsecured_token(subject: str, lifetime: float = LIFETIME_SECONDS) -> str:
    """A token for that principal name; `lifetime` in seconds."""
    now = time.time()
    claims = {"sub": subject, "iat": now, "exp": now + lifetime}
    return ".".join([*(_base64(json.dumps(part).encode()) for part in ({"alg": "none"}, claims)), ""])


class TokenEndpoint:
    """An OAuth 2.0 token endpoint (RFC 6749, client credentials grant) for clients given as id -> secret.

    Takes the secret as HTTP basic authentication or in the form. With a certificate it speaks HTTPS.
    """

    def __init__(
        self, clients: Mapping[str, str], *, certificate: Certificate | None = None, lifetime: float = LIFETIME_SECONDS
    ) -> None:
        self.asked = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(dict(clients), lifetime))
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.certificate, certificate.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self._server.server_port}/token"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="token-endpoint", daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self, clients: dict[str, str], lifetime: float) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.asked += 1
                size = int(self.headers.get("Content-Length", 0))
                form = dict(urllib.parse.parse_qsl(self.rfile.read(size).decode()))
                client, secret = _credentials(self.headers.get("Authorization", ""), form)
                if form.get("grant_type") != "client_credentials":
                    self._answer(400, {"error": "unsupported_grant_type"})
                elif not hmac.compare_digest(clients.get(client, "").encode(), secret.encode()) or not secret:
                    self._answer(401, {"error": "invalid_client"})
                else:
                    token = unsecured_token(client, lifetime)
                    granted = {"access_token": token, "token_type": "Bearer", "expires_in": int(lifetime)}
                    self._answer(200, granted)

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_arguments: object) -> None:
                """Say nothing: tests read stderr."""

        return Handler


def _credentials(authorization: str, form: Mapping[str, str]) -> tuple[str, str]:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() == "basic":
        client, _, secret = base64.b64decode(encoded).decode().partition(":")
        # RFC 6749 section 2.3.1: both parts are form-encoded first.
        return urllib.parse.unquote_plus(client), urllib.parse.unquote_plus(secret)
    return form.get("client_id", ""), form.get("client_secret", "")


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
