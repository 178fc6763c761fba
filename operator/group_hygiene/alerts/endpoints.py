"""The address and the credentials of one receiver, with its Secrets read. No network."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit, urlunsplit

from yarl import URL

from group_hygiene.errors import SecretProblem, SpecError
from group_hygiene.model import reasons
from group_hygiene.network.authorities import trusting
from group_hygiene.spec.receivers import Kind, Receiver
from group_hygiene.spec.secret import Hidden, SecretRef

_PATH = "/api/v2/alerts"
# The characters of a header's value (RFC 9110).
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """url: the target of the POST. ca: PEM, None = the system's authorities. digest: see Receiver.digest."""

    name: str
    kind: Kind
    url: Hidden
    token: Hidden | None = None
    hmac: Hidden | None = None
    ca: str | None = None
    digest: str = ""


def read_endpoint(receiver: Receiver, read_secret: Callable[[SecretRef], str]) -> Endpoint:
    """The receiver with its Secrets, read by `read_secret`.

    Raises SecretProblem, which shows no value, or SpecError for an invalid address. Neither names the receiver.
    """

    def read(ref: SecretRef | None) -> Hidden | None:
        return None if ref is None else Hidden.trimmed(read_secret(ref))

    url, token, key = read(receiver.url), read(receiver.token), read(receiver.hmac)
    ca = read(receiver.ca)
    text = (receiver.address or "") if url is None else url.reveal()
    parts = _split(text)
    if parts is None:
        raise _invalid(receiver.url, "is no http or https URL")
    if token is not None and not _TOKEN.fullmatch(token.reveal()):
        raise _invalid(receiver.token, "is no token: it must be printable ASCII without spaces")
    if token is not None and "@" in parts.netloc:
        raise _invalid(receiver.url, "contains a user, which excludes a token")
    if key is not None and not key.reveal():
        raise _invalid(receiver.hmac, "is empty")
    if ca is not None:
        try:
            trusting(ca.reveal(), "ca")
        except SecretProblem:
            raise _invalid(receiver.ca, "is no certificate in PEM") from None
    if receiver.kind is Kind.ALERTMANAGER and not parts.path.rstrip("/").endswith(_PATH):
        text = urlunsplit(parts._replace(path=parts.path.rstrip("/") + _PATH))
    trusted = None if ca is None else ca.reveal()
    return Endpoint(receiver.name, receiver.kind, Hidden(text), token, key, trusted, receiver.digest)


def _split(text: str) -> SplitResult | None:
    try:
        # As strict as the HTTP client, which would fail with each message.
        URL(text)
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except (ValueError, IndexError):
        # yarl raises IndexError for some, such as `http://][]@?@`.
        return None
    return parts if fits and not re.search(r"[\s\x00-\x1f]", text) else None


def _invalid(ref: SecretRef | None, what: str) -> SecretProblem | SpecError:
    if ref is None:
        return SpecError(f"its address {what}")
    return SecretProblem(f"key {ref.key!r} of Secret {ref.name} {what}", reasons.SECRET_INVALID)
