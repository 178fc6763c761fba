"""One receiver: its address and credentials, from its Secrets, and one message to it.

A message is a POST with a time limit to a checked address, without redirects.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

import aiohttp
from yarl import URL

from group_hygiene import USER_AGENT
from group_hygiene.alerts.messages import signed
from group_hygiene.errors import SecretProblem, SpecError
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.network.authorities import system_authorities, trusting
from group_hygiene.network.egress import Egress
from group_hygiene.network.post import Gate, HttpAnswer, HttpRequest, send
from group_hygiene.spec.connection import Receiver, ReceiverKind
from group_hygiene.spec.fields import Hidden, SecretRef

SECONDS = 10.0
_RETRY_AFTER_MAX = 600.0
_CROWDED = "its host name was not resolved: too many slow DNS queries are in progress"
_PATH = "/api/v2/alerts"
# Of a URL, a token or a key.
_LENGTH_MAX = 8_000
# The characters of a header's value (RFC 9110).
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """url: the target of the POST. ca: PEM, None = the system's authorities. digest: see Receiver.digest."""

    name: str
    kind: ReceiverKind
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

    def read_short(ref: SecretRef | None) -> Hidden | None:
        text = read(ref)
        if text is not None and len(text) > _LENGTH_MAX:
            raise _invalid(ref, f"is longer than {_LENGTH_MAX} characters")
        return text

    url, token, key = read_short(receiver.url), read_short(receiver.token), read_short(receiver.hmac)
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
            raise _invalid(receiver.ca, "has no certificate in PEM, or too many") from None
    if receiver.kind is ReceiverKind.ALERTMANAGER and not parts.path.rstrip("/").endswith(_PATH):
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


class PostResult(NamedTuple):
    """The result of a POST. failure: without URL and token; None = the receiver answered 2xx.

    retry_after: the seconds that the receiver asks to wait before the next try. too_large: it takes only shorter
    messages. unanswered: it may have the message.
    """

    failure: Refusal | None
    retry_after: float = 0.0
    too_large: bool = False
    unanswered: bool = False


async def post(endpoint: Endpoint, content: bytes, now: datetime, egress: Egress) -> PostResult:
    """Send a body of `messages.body`. Raises only CancelledError."""
    url = endpoint.url.reveal()
    headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT}
    if endpoint.token is not None:
        headers["Authorization"] = f"Bearer {endpoint.token.reveal()}"
    if endpoint.hmac is not None:
        headers |= signed(content, endpoint.hmac.reveal(), now)
    gate, unanswered = Gate(egress, urlsplit(url).hostname or ""), False
    try:
        # Not aiohttp's own context, which has the system's authorities of this process's start.
        context = system_authorities() if endpoint.ca is None else await asyncio.to_thread(trusting, endpoint.ca, "ca")
        return _result(await send(HttpRequest(url, content, headers, gate, context, SECONDS)), now)
    except aiohttp.ConnectionTimeoutError:
        why = f"it can't be connected to within {SECONDS:.0f} s"
    except TimeoutError:
        why, unanswered = f"it does not answer within {SECONDS:.0f} s", True
    except aiohttp.ClientSSLError:
        why = "TLS fails: its certificate is not trusted, or it does not use TLS"
    except aiohttp.ClientConnectorDNSError:
        why = _CROWDED if gate.crowded else "its host name can't be resolved"
    except aiohttp.ServerDisconnectedError:
        why, unanswered = "the connection ended without an answer", True
    except OSError as error:
        why = "the connection failed"
        unanswered = isinstance(error, aiohttp.ClientOSError) and not isinstance(error, aiohttp.ClientConnectorError)
    except (aiohttp.ClientError, ValueError) as error:
        # Their texts contain addresses and headers.
        why = f"the request failed ({type(error).__name__})"
    if gate.refused is not None:
        return PostResult(Refusal(reasons.RECEIVER_REFUSED, f"its host resolves to {gate.refused}"))
    return PostResult(Refusal(reasons.RECEIVER_FAILED, why), unanswered=unanswered)


def _result(answer: HttpAnswer, now: datetime) -> PostResult:
    if 200 <= answer.status < 300:
        return PostResult(None)
    hint = ", and redirects are not followed" if 300 <= answer.status < 400 else ""
    failure = Refusal(reasons.RECEIVER_FAILED, f"it answers {answer.status}{hint}")
    return PostResult(
        failure,
        _wait(answer.headers.get("Retry-After", ""), now),
        too_large=answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        # A gateway that gave up waiting for the receiver.
        unanswered=answer.status == HTTPStatus.GATEWAY_TIMEOUT,
    )


def _wait(retry_after: str, now: datetime) -> float:
    """The seconds of a `Retry-After` (RFC 9110: seconds or a date), limited."""
    if retry_after.isascii() and retry_after.isdecimal():
        return min(float(retry_after), _RETRY_AFTER_MAX)
    try:
        moment = parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return 0.0
    # A date without a zone is in UTC.
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return min(max((moment - now).total_seconds(), 0.0), _RETRY_AFTER_MAX)
