"""One message to one receiver: a POST with a time limit to a checked address, without redirects."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import aiohttp

from group_hygiene import __version__
from group_hygiene.alerts.endpoints import Endpoint
from group_hygiene.alerts.messages import signed
from group_hygiene.model import reasons
from group_hygiene.model.refusal import Refusal
from group_hygiene.network.authorities import trusting
from group_hygiene.network.egress import Egress
from group_hygiene.network.gate import Gate
from group_hygiene.network.post import Answer, Request, send

SECONDS = 10.0
_RETRY_AFTER_MAX = 600.0
_CROWDED = "its host name was not resolved: too many slow DNS queries are in progress"


async def post(endpoint: Endpoint, content: bytes, now: datetime, egress: Egress) -> tuple[Refusal | None, float]:
    """Send a body of `messages.body`. Raises only CancelledError.

    Returns the failure, without URL and token (None = the receiver answered 2xx), and the seconds that the receiver
    asks to wait before the next try.
    """
    url = endpoint.url.reveal()
    headers = {"Content-Type": "application/json", "User-Agent": f"group-hygiene/{__version__}"}
    if endpoint.token is not None:
        headers["Authorization"] = f"Bearer {endpoint.token.reveal()}"
    if endpoint.hmac is not None:
        headers |= signed(content, endpoint.hmac.reveal(), now)
    gate = Gate(egress, urlsplit(url).hostname or "")
    try:
        # aiohttp has one default context for all requests; loading the system's authorities is slow.
        context = True if endpoint.ca is None else trusting(endpoint.ca, "ca")
        return _result(await send(Request(url, content, headers, gate, context, SECONDS)), now)
    except TimeoutError:
        why = f"it does not answer within {SECONDS:.0f} s"
    except aiohttp.ClientSSLError:
        why = "TLS fails: its certificate is not trusted, or it does not use TLS"
    except aiohttp.ClientConnectorDNSError:
        why = _CROWDED if gate.crowded else "its host name can't be resolved"
    except (aiohttp.ClientConnectorError, OSError):
        why = "the connection failed"
    except (aiohttp.ClientError, ValueError) as error:
        # Their texts contain addresses and headers.
        why = f"the request failed ({type(error).__name__})"
    if gate.refused is not None:
        return Refusal(reasons.RECEIVER_REFUSED, f"its host resolves to {gate.refused}"), 0.0
    return Refusal(reasons.RECEIVER_FAILED, why), 0.0


def _result(answer: Answer, now: datetime) -> tuple[Refusal | None, float]:
    status = answer.status
    if 200 <= status < 300:
        return None, 0.0
    hint = ", and redirects are not followed" if 300 <= status < 400 else ""
    wait = _wait(answer.headers.get("Retry-After", ""), now)
    return Refusal(reasons.RECEIVER_FAILED, f"it answers {status}{hint}"), wait


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
