"""Finds out by plain sockets, without kafka-python, why connecting to an address failed."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence

from group_hygiene.errors import ConnectError, TLSFailed

UNRESOLVED = "does not resolve"
_NO_TLS = (
    "speaks Kafka without TLS: name the port of a listener with TLS, or connect without TLS (no spec.tls, or "
    "security.protocol PLAINTEXT or SASL_PLAINTEXT)"
)
_MAX_S, _MIN_S = 3.0, 1.0
# ApiVersions, version 0, correlation 1, without a client id: a Kafka broker answers it before authentication.
_API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000001 ffff")


def probe(
    servers: Sequence[str], context: ssl.SSLContext | None, with_sasl: bool, seconds: float
) -> dict[str, str | ConnectError]:
    """The result for each of the servers (host:port): a text, or the error that explains why connecting failed.

    All at once, for `seconds`, but at least 1 and at most 3. with_sasl: the failed attempt used SASL.
    """
    seconds = min(_MAX_S, max(_MIN_S, seconds))
    found: dict[str, str | ConnectError] = {}

    def run(server: str) -> None:
        found[server] = _probe(server, context, with_sasl, seconds)

    # No pool: its shutdown would wait for a resolver that hangs.
    threads = [threading.Thread(target=run, args=(server,), daemon=True) for server in servers]
    end = time.monotonic() + seconds + 0.2
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return {server: found.get(server, f"no answer within {seconds:.0f} s") for server in servers}


def _probe(server: str, context: ssl.SSLContext | None, with_sasl: bool, seconds: float) -> str | ConnectError:
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    end = time.monotonic() + seconds
    connected = False
    try:
        with socket.create_connection((host, int(port)), timeout=seconds) as raw:
            connected = True
            raw.settimeout(max(0.1, end - time.monotonic()))
            if context is None:
                if _speaks_kafka(raw):
                    return "speaks Kafka but refuses connections" + ("" if with_sasl else " without SASL, it seems")
                wants = "TLS" if with_sasl else "TLS or SASL"
                return f"accepts connections but does not speak Kafka in plain text (does it want {wants}?)"
            with context.wrap_socket(raw, server_hostname=host):
                wants = "a client certificate" if with_sasl else "SASL or a client certificate"
                return f"speaks TLS but does not answer Kafka requests (does it want {wants}?)"
    except ssl.SSLCertVerificationError as error:
        return TLSFailed(f"{server}: the certificate is not trusted: {error.verify_message}")
    except (ssl.SSLError, ConnectionError) as error:
        if connected and context is not None and _is_plain(host, int(port), end):
            return TLSFailed(f"{server} {_NO_TLS}")
        if isinstance(error, ssl.SSLError):
            return TLSFailed(f"{server}: the TLS handshake fails: {error.reason or error}")
        return (error.strerror or str(error)).lower()
    except socket.gaierror:
        return f"the name {host} {UNRESOLVED}"
    except TimeoutError:
        does = "accepts connections but gives no answer" if connected else "no answer to a TCP connect"
        return f"{does} within {seconds:.0f} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except (ValueError, OverflowError):
        return "that can't be a host name and port"


def _is_plain(host: str, port: int, end: float) -> bool:
    """Whether the listener speaks Kafka without TLS."""
    seconds = max(0.1, end - time.monotonic())
    try:
        with socket.create_connection((host, port), timeout=seconds) as raw:
            return _speaks_kafka(raw)
    except OSError:
        return False


def _speaks_kafka(raw: socket.socket) -> bool:
    raw.sendall(_API_VERSIONS)
    try:
        answer = raw.recv(8)
    except ConnectionError:
        return False
    return answer[4:] == _API_VERSIONS[8:12]
