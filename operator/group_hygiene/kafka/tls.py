"""Whom to trust over TLS: an authority from a Secret, or the system's where none is given."""

from __future__ import annotations

import ssl

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
