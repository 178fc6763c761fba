"""TLS as a client: whom to trust, an authority from a Secret or the system's, and who we are."""

from __future__ import annotations

import os
import ssl
import tempfile

from group_hygiene.connection import Tls
from group_hygiene.errors import SecretProblem


def trusting(ca: str | None, field: str) -> ssl.SSLContext:
    """A client's context that trusts the PEM certificates in `ca`; None = the system's authorities.

    Raises SecretProblem, naming `field`, where `ca` holds none.
    """
    if ca is None:
        return ssl.create_default_context()
    # Bundles name their authorities in comments, in any language; Python takes ASCII only. An empty text must not get
    # through: with it Python trusts the system's authorities, as if nobody had asked for one in particular.
    pem = ca.encode("ascii", errors="ignore").decode()
    try:
        if pem:
            return ssl.create_default_context(cadata=pem)
    except ssl.SSLError as error:
        raise SecretProblem(f"{field} must hold PEM certificates", "SecretInvalid") from error
    raise SecretProblem(f"{field} must hold PEM certificates", "SecretInvalid")


def client_context(tls: Tls) -> ssl.SSLContext:
    """That of a connection to brokers, with the client's certificate where there is one. Raises SecretProblem."""
    context = trusting(tls.ca, "tls.ca")
    context.check_hostname = tls.verify_hostname
    if tls.certificate is not None and tls.private_key is not None:
        _load_client_certificate(context, tls.certificate, tls.private_key.reveal())
    return context


def _load_client_certificate(context: ssl.SSLContext, certificate: str, private_key: str) -> None:
    # OpenSSL loads a key from a file only. It is there, readable by us alone, for as long as that takes.
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(certificate.rstrip() + "\n" + private_key.rstrip() + "\n")
        context.load_cert_chain(path, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        message = (
            "tls.certificate and tls.privateKey must be PEM texts that belong together, the key without a password"
        )
        raise SecretProblem(message, "SecretInvalid") from error
    finally:
        os.unlink(path)
