"""One message to one receiver: a POST with a time limit, to an address that was checked, and no further."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import aiohttp

from group_hygiene import __version__, reasons
from group_hygiene.alerts.endpoints import Endpoint
from group_hygiene.alerts.messages import signed
from group_hygiene.egress import Egress
from group_hygiene.gate import Gate

SECONDS = 10.0
_RETRY_AFTER_MAX = 600.0
_CROWDED = "its host name was not looked up, as too many that hang are being looked up"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message did not arrive, in words that show neither URL nor token. retry_after: seconds it wants."""

    reason: str
    message: str
    retry_after: float = 0.0


async def post(endpoint: Endpoint, content: bytes, now: datetime, egress: Egress) -> Failure | None:
    """Send a body of `messages.body`; None = the receiver took it (any 2xx). Raises nothing but what cancels it.

    No redirect is followed and no proxy of the environment asked: either would lead past the check of the address.
    """
    url = endpoint.url.reveal()
    headers = {"Content-Type": "application/json", "User-Agent": f"group-hygiene/{__version__}"}
    if endpoint.token is not None:
        headers["Authorization"] = f"Bearer {endpoint.token.reveal()}"
    if endpoint.hmac is not None:
        headers |= signed(content, endpoint.hmac.reveal(), now)
    gate = Gate(egress, urlsplit(url).hostname or "")
    try:
        connector = aiohttp.TCPConnector(
            resolver=gate,
            use_dns_cache=False,
            socket_factory=gate.socket,
            force_close=True,
            # By itself it keeps one context for all; the system's authorities take a while to load.
            ssl=True if endpoint.ca is None else ssl.create_default_context(cadata=endpoint.ca),
        )
        session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=SECONDS), trust_env=False
        )
        async with session, session.post(url, data=content, headers=headers, allow_redirects=False) as answer:
            return _judged(answer, now)
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
        return Failure(reasons.RECEIVER_REFUSED, f"its host leads to {gate.refused}")
    return Failure(reasons.RECEIVER_FAILED, why)


def _judged(answer: aiohttp.ClientResponse, now: datetime) -> Failure | None:
    status = answer.status
    if 200 <= status < 300:
        return None
    hint = ", and redirects are not followed" if 300 <= status < 400 else ""
    wait = _wait(answer.headers.get("Retry-After", ""), now)
    return Failure(reasons.RECEIVER_FAILED, f"it answers {status}{hint}", wait)


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
