"""What is needed to reach one receiver, its Secrets read. No network."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit, urlunsplit

from group_hygiene import reasons
from group_hygiene.errors import SecretProblem
from group_hygiene.receivers import Kind, Receiver
from group_hygiene.secret import Hidden, SecretRef

_PATH = "/api/v2/alerts"
# As RFC 9110 wants a header's value to be.
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """url: what is posted to. ca: PEM, None = the system's authorities."""

    name: str
    kind: Kind
    url: Hidden
    token: Hidden | None = None
    hmac: Hidden | None = None
    ca: str | None = None


def read_endpoint(receiver: Receiver, read_secret: Callable[[SecretRef], str]) -> Endpoint:
    """The receiver with its Secrets, read by `read_secret`. Raises SecretProblem, which shows no value."""

    def read(ref: SecretRef | None) -> Hidden | None:
        # `kubectl create secret --from-file` and echo leave a line end that no password has.
        return None if ref is None else Hidden(read_secret(ref).rstrip("\r\n"))

    url, token, key = read(receiver.url), read(receiver.token), read(receiver.hmac)
    ca = read(receiver.ca)
    text = (receiver.address or "") if url is None else url.reveal()
    parts = _split(text)
    if parts is None:
        raise _invalid(receiver, receiver.url, "is no http or https URL")
    if token is not None and not _TOKEN.fullmatch(token.reveal()):
        raise _invalid(receiver, receiver.token, "is no token: it must be printable ASCII without spaces")
    if token is not None and "@" in parts.netloc:
        raise _invalid(receiver, receiver.url, "holds a user, which can't be beside a token")
    if key is not None and not key.reveal():
        raise _invalid(receiver, receiver.hmac, "is empty")
    if ca is not None:
        try:
            ssl.create_default_context(cadata=ca.reveal())
        except (ssl.SSLError, ValueError):
            raise _invalid(receiver, receiver.ca, "is no certificate in PEM") from None
    if receiver.kind is Kind.ALERTMANAGER and not parts.path.rstrip("/").endswith(_PATH):
        text = urlunsplit(parts._replace(path=parts.path.rstrip("/") + _PATH))
    return Endpoint(receiver.name, receiver.kind, Hidden(text), token, key, None if ca is None else ca.reveal())


def _split(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    return parts if fits and not re.search(r"[\s\x00-\x1f]", text) else None


def _invalid(receiver: Receiver, ref: SecretRef | None, what: str) -> SecretProblem:
    where = "its address" if ref is None else f"key {ref.key!r} of Secret {ref.name}"
    return SecretProblem(f"receiver {receiver.name}: {where} {what}", reasons.SECRET_INVALID)
