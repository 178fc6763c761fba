"""The certificate authorities that a TLS client trusts: those of a Secret, or the system's."""

from __future__ import annotations

import os
import ssl
import threading
from functools import lru_cache

from group_hygiene.errors import SecretProblem

# Twice those of a distribution, for which OpenSSL takes 40 ms while no other thread of Python runs: if several threads
# did that at a time, the one that renews the Lease would wait for each of them.
_CERTIFICATES_MAX = 300
_ONE_AT_A_TIME = threading.Lock()


def trusting(ca: str | None, field: str) -> ssl.SSLContext:
    """A client's context that trusts the PEM certificates in `ca`; None = the system's authorities.

    Raises SecretProblem, naming `field`, if `ca` contains no certificate, or too many. May wait for other callers.
    """
    if ca is None:
        return ssl.create_default_context()
    # Bundles have comments in any language, but Python takes ASCII only. An empty text is an error: with it, Python
    # would trust the system's authorities.
    pem = ca.encode("ascii", errors="ignore").decode()
    if pem.count("-----BEGIN ") > _CERTIFICATES_MAX:
        raise SecretProblem(f"{field} must name at most {_CERTIFICATES_MAX} certificates", "SecretInvalid")
    try:
        if pem:
            with _ONE_AT_A_TIME:
                return ssl.create_default_context(cadata=pem)
    except ssl.SSLError as error:
        raise SecretProblem(f"{field} must name PEM certificates", "SecretInvalid") from error
    raise SecretProblem(f"{field} must name PEM certificates", "SecretInvalid")


def system_authorities() -> ssl.SSLContext:
    """A client's context that trusts the system's authorities as they are now. Shared: don't change it.

    Loading them takes 50 ms, so it is done again only if their file or folder changed.
    """
    paths = ssl.get_default_verify_paths()
    return _system_authorities(tuple((path, *_version(path)) for path in (paths.cafile, paths.capath) if path))


@lru_cache(maxsize=1)
def _system_authorities(_: tuple[tuple[str | int, ...], ...]) -> ssl.SSLContext:
    return ssl.create_default_context()


def _version(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size
