"""The library's settings for a cluster: TLS, SASL, and which brokers may get tokens of this process's identity."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from typing import Any

from group_hygiene.errors import AuthenticationFailed, SecretProblem
from group_hygiene.kafka.aws_tokens import MskTokenProvider
from group_hygiene.kafka.oauth import TokenProvider
from group_hygiene.model import reasons
from group_hygiene.network.egress import Egress, trusting
from group_hygiene.spec.connection import Settings, Tls
from group_hygiene.spec.msk import Hosts

_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END|\Z)", re.DOTALL)
# In PEM, RSA of 8,192 bits has some 6,500 characters.
_KEY_LENGTH = 8_000
_NO_KEY = (
    "tls.certificateSecretRef and tls.privateKeySecretRef must name PEM texts that belong together, the key without a "
    "password and of at most 8192 bits"
)


def library_config(settings: Settings, timeout: float, egress: Egress | None = None) -> dict[str, Any]:
    """The library's settings for the cluster. timeout: seconds to get a token. egress: see `client.connect`.

    Raises SecretProblem for malformed PEM.
    """
    config: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "reconnect_backoff_max_ms": 1_000,
        "security_protocol": ("SASL_" if settings.sasl else "") + ("SSL" if settings.tls else "PLAINTEXT"),
        "ssl_context": client_context(settings.tls) if settings.tls else None,
    }
    sasl = settings.sasl
    if sasl is not None:
        config["sasl_mechanism"] = str(sasl.mechanism)
        if sasl.oauth is not None:
            config["sasl_oauth_token_provider"] = TokenProvider(sasl.oauth, timeout, egress)
        elif sasl.msk is not None:
            # MSK accepts the tokens of AWS's signer by this mechanism; AWS_MSK_IAM is one of Java clients.
            config["sasl_mechanism"] = "OAUTHBEARER"
            config["sasl_oauth_token_provider"] = MskTokenProvider(sasl.msk)
        else:
            config["sasl_plain_username"] = sasl.username
            config["sasl_plain_password"] = sasl.password
    return config


def token_hosts(settings: Settings) -> Hosts | None:
    """The brokers that may get tokens of this process's identity; None = any. Checks the bootstrap servers' hosts.

    Raises AuthenticationFailed with the reason IdentityNotAllowed.
    """
    hosts = settings.sasl.msk.hosts if settings.sasl is not None and settings.sasl.msk is not None else None
    if hosts is None:
        return None
    for server in settings.bootstrap_servers:
        host = server.rpartition(":")[0]
        if not hosts.include(host):
            message = (
                f"bootstrapServers: {host} may not get tokens of this AWS identity, only {', '.join(hosts.patterns)}"
            )
            raise AuthenticationFailed(message, reasons.IDENTITY_NOT_ALLOWED)
    return hosts


def client_context(tls: Tls) -> ssl.SSLContext:
    """The SSL context, with the client's certificate if there is one. Raises SecretProblem."""
    context = trusting(tls.ca, "tls.caSecretRef")
    context.check_hostname = tls.verify_hostname
    if tls.certificate is not None and tls.private_key is not None:
        _load_client_certificate(context, tls.certificate, tls.private_key.reveal())
    return context


def _load_client_certificate(context: ssl.SSLContext, certificate: str, private_key: str) -> None:
    # OpenSSL would compute for minutes: for a password, as long as the text says; and with a large key, for each login.
    keys = _KEY.findall(f"{certificate}\n{private_key}")
    if any("ENCRYPTED" in key or len(key) > _KEY_LENGTH for key in keys):
        raise SecretProblem(_NO_KEY, reasons.SECRET_INVALID)
    # OpenSSL loads a key only from a file. The file exists for that time, readable only by this user.
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(certificate.rstrip() + "\n" + private_key.rstrip() + "\n")
        context.load_cert_chain(path, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise SecretProblem(_NO_KEY, reasons.SECRET_INVALID) from error
    finally:
        os.unlink(path)
