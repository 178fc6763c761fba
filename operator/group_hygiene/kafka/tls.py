"""TLS settings of a connection to brokers: the authorities to trust, and the client's certificate."""

from __future__ import annotations

import os
import ssl
import tempfile

from group_hygiene.errors import SecretProblem
from group_hygiene.model import reasons
from group_hygiene.network.authorities import trusting
from group_hygiene.spec.connection import Tls


def client_context(tls: Tls) -> ssl.SSLContext:
    """The SSL context, with the client's certificate if there is one. Raises SecretProblem."""
    context = trusting(tls.ca, "tls.caSecretRef")
    context.check_hostname = tls.verify_hostname
    if tls.certificate is not None and tls.private_key is not None:
        _load_client_certificate(context, tls.certificate, tls.private_key.reveal())
    return context


def _load_client_certificate(context: ssl.SSLContext, certificate: str, private_key: str) -> None:
    # OpenSSL loads a key only from a file. The file exists for that time, readable only by this user.
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(certificate.rstrip() + "\n" + private_key.rstrip() + "\n")
        context.load_cert_chain(path, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        message = (
            "tls.certificateSecretRef and tls.privateKeySecretRef must name PEM texts that belong together, "
            "the key without a password"
        )
        raise SecretProblem(message, reasons.SECRET_INVALID) from error
    finally:
        os.unlink(path)
