"""The certificate authorities that a TLS client trusts: those of a Secret, or the system's."""

from __future__ import annotations

import ssl

from group_hygiene.errors import SecretProblem


def trusting(ca: str | None, field: str) -> ssl.SSLContext:
    """A client's context that trusts the PEM certificates in `ca`; None = the system's authorities.

    Raises SecretProblem, naming `field`, if `ca` contains no certificate.
    """
    if ca is None:
        return ssl.create_default_context()
    # Bundles have comments in any language, but Python takes ASCII only. An empty text is an error: with it, Python
    # would trust the system's authorities.
    pem = ca.encode("ascii", errors="ignore").decode()
    try:
        if pem:
            return ssl.create_default_context(cadata=pem)
    except ssl.SSLError as error:
        raise SecretProblem(f"{field} must name PEM certificates", "SecretInvalid") from error
    raise SecretProblem(f"{field} must name PEM certificates", "SecretInvalid")
