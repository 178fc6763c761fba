"""One message to one receiver: a POST with a time limit, to an address that was checked, and no further."""

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
_CROWDED = "its host name was not looked up, as too many that hang are being looked up"


async def post(endpoint: Endpoint, content: bytes, now: datetime, egress: Egress) -> tuple[Refusal | None, float]:
    """Send a body of `messages.body`. Raises nothing but what cancels it.

    Returns why it did not arrive, without URL and token (None = the receiver answered 2xx), and the seconds that the
    receiver asks to wait before the next try.
    """
    url = endpoint.url.reveal()
    headers = {"Content-Type": "application/json", "User-Agent": f"group-hygiene/{__version__}"}
    if endpoint.token is not None:
        headers["Authorization"] = f"Bearer {endpoint.token.reveal()}"
    if endpoint.hmac is not None:
        headers |= signed(content, endpoint.hmac.reveal(), now)
    gate = Gate(egress, urlsplit(url).hostname or "")
    try:
        # aiohttp keeps one context for all; the system's authorities take a while to load.
        context = True if endpoint.ca is None else trusting(endpoint.ca, "ca")
        return _judged(await send(Request(url, content, headers, gate, context, SECONDS)), now)
    except TimeoutError:
        why = f"it does not answer within {SECONDS:.0f} s"
    except aiohttp.ClientSSLError:
        why = "TLS fails: its certificate is not trusted, or it speaks no TLS"
    except aiohttp.ClientConnectorDNSError:
        why = _CROWDED if gate.crowded else "its host name leads to no address"
    except (aiohttp.ClientConnectorError, OSError):
        why = "it can't be connected to"
    except (aiohttp.ClientError, ValueError) as error:
        # Their texts quote addresses and headers.
        why = f"it can't be spoken to ({type(error).__name__})"
    if gate.refused is not None:
        return Refusal(reasons.RECEIVER_REFUSED, f"its host resolves to {gate.refused}"), 0.0
    return Refusal(reasons.RECEIVER_FAILED, why), 0.0


def _judged(answer: Answer, now: datetime) -> tuple[Refusal | None, float]:
    status = answer.status
    if 200 <= status < 300:
        return None, 0.0
    hint = ", and redirects are not followed" if 300 <= status < 400 else ""
    wait = _wait(answer.headers.get("Retry-After", ""), now)
    return Refusal(reasons.RECEIVER_FAILED, f"it answers {status}{hint}"), wait


def _wait(asked: str, now: datetime) -> float:
    """Seconds that a `Retry-After` asks for (RFC 9110: a number of them, or a date), within bounds."""
    if asked.isascii() and asked.isdecimal():
        return min(float(asked), _RETRY_AFTER_MAX)
    try:
        moment = parsedate_to_datetime(asked)
    except (ValueError, OverflowError):
        return 0.0
    # One that names no zone means UTC.
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return min(max((moment - now).total_seconds(), 0.0), _RETRY_AFTER_MAX)
