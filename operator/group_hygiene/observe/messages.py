"""The bodies of messages to Alertmanager, Slack and webhooks, and one request that sends one to a receiver.

Any Kafka client may have chosen the texts in a message, so they are on one line, truncated, and never markup. An owner
gets with each group how to prevent its deletion: a link, and a command that the owner pastes into a shell.
docs/alerts.md shows each form. A message is a POST with a time limit to a checked address, without redirects.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

import aiohttp
from yarl import URL

from group_hygiene import USER_AGENT, __version__
from group_hygiene.errors import SecretProblem, SpecError
from group_hygiene.model import reasons
from group_hygiene.model.naming import PLAIN, printable
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.alerts import DETAIL_MAX, NAME_MAX, AlertType, Item, Status
from group_hygiene.process.egress import Egress, system_authorities, trusting
from group_hygiene.process.post import Gate, HttpAnswer, HttpRequest, send
from group_hygiene.spec.connection import Receiver, ReceiverKind
from group_hygiene.spec.crds import API_VERSION
from group_hygiene.spec.fields import Hidden, SecretRef, timestamp
from group_hygiene.spec.patterns import NO_PATTERNS
from group_hygiene.spec.policy import Action

# Bytes of a message. Many proxies and receivers take 1 MB, nginx by default. Slack truncates a text at 40,000
# characters.
MESSAGE_MAX, _SLACK_MAX = 256_000, 30_000
_SLACK_NAMES = 10
_SEVERITY = {AlertType.GROUPS_DELETED: "info", AlertType.TEST: "info"}
_KEEP_PERIOD = timedelta(days=30)
_LINK_MAX = 1_500

# Of one request, and the most that an answer may ask to wait.
SECONDS = 10.0
_RETRY_AFTER_MAX = 600.0
_CROWDED = "its host name was not resolved: too many slow DNS queries are in progress"
_ALERTMANAGER_PATH = "/api/v2/alerts"
# Of a URL, a token or a key.
_LENGTH_MAX = 8_000
# The characters of a header's value (RFC 9110).
_TOKEN = re.compile(r"[\x21-\x7e]+")


class Instruction(NamedTuple):
    """How to keep one group: a command for a shell, and a URL. "" = there is none."""

    group: str
    command: str
    link: str


def fitting(
    kind: ReceiverKind, items: Iterable[Item], now: datetime, limit: int = MESSAGE_MAX
) -> tuple[bytes, list[Item]]:
    """The body of a message of at most `limit` bytes, and which of the first items it has; without items, none.

    An alert that is too long for a message of its own is sent without the object that keeps its groups, or without
    them.
    """
    limit = min(limit, _SLACK_MAX) if kind is ReceiverKind.SLACK else limit
    taken: list[Item] = []
    left = limit
    for item in items:
        content = body(kind, [item], now)
        left -= len(content)
        if left < 0:
            if taken:
                break
            content = body(kind, [replace(item, keepable=NO_PATTERNS)], now)
            return content if len(content) <= limit else body(kind, [replace(item, groups={})], now), [item]
        taken.append(item)
    return body(kind, taken, now), taken


def body(kind: ReceiverKind, items: Sequence[Item], now: datetime) -> bytes:
    """One message that holds all of `items`, as the body of one POST; JSON in UTF-8."""
    if kind is ReceiverKind.ALERTMANAGER:
        content: Any = [alert for item in items for alert in _alerts(item, now)]
    elif kind is ReceiverKind.SLACK:
        content = {"text": "\n".join(_slack(item, now) for item in items)}
    else:
        alerts = [_webhook_alert(item, now) for item in items]
        # A hash of the content: a message that is sent again after a lost response has the same id. Without the
        # clients, which the next run may know, and the object, which depends on the time.
        hashed = [
            {name: value for name, value in alert.items() if name not in ("lastClients", "keepObject")}
            for alert in alerts
        ]
        content = {
            "version": 1,
            "id": hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:32],
            "time": timestamp(now),
            "sender": f"group-hygiene/{__version__}",
            "test": any(item.type is AlertType.TEST for item in items),
            "alerts": alerts,
        }
    return json.dumps(content).encode()


def signature_headers(content: bytes, key: str, now: datetime) -> dict[str, str]:
    """The headers that prove sender and time of a message: HMAC-SHA256 of `<timestamp>.<body>`."""
    timestamp = str(int(now.timestamp()))
    mac = hmac.new(key.encode(), f"{timestamp}.".encode() + content, hashlib.sha256)
    return {"X-Group-Hygiene-Timestamp": timestamp, "X-Group-Hygiene-Signature": f"sha256={mac.hexdigest()}"}


def summary(item: Item) -> str:
    """A one-line summary."""
    subject = _subject(item)
    groups = f"{item.total} consumer group{'s' if item.total != 1 else ''}"
    if item.action:
        groups = Action(item.action).describe_targets(groups)
    if item.type is AlertType.TEST:
        return f"This is only a test: alerts of {subject} arrive here. Nothing needs to be done."
    if item.status is Status.RESOLVED:
        return f"{subject}: {item.type}: resolved"
    match item.type:
        case AlertType.GROUPS_MATCHED:
            dry = " (a dry run)" if item.action not in ("Alert", "") else ""
            return f"{subject}: {groups} match{dry}{_new_suffix(item)}"
        case AlertType.GROUPS_MARKED:
            due = f"; the first is due at {timestamp(item.first_due)}" if item.first_due else ""
            return f"{subject}: {groups} will be deleted, unless they are used or protected{_new_suffix(item)}{due}"
        case AlertType.DELETION_BLOCKED:
            would = "would be" if item.mode == "DryRun" else "is"
            return (
                f"{subject}: nothing {would} deleted, although {item.total or 'some'} consumer groups match or are due"
            )
        case _:
            return f"{subject}: {groups} deleted"


def _subject(item: Item) -> str:
    subject = f"policy {item.policy}" if item.policy else f"KafkaConnection {item.connection}"
    return subject + (f", owner {item.owner}" if item.owner else "")


def _new_suffix(item: Item) -> str:
    return f", {item.new} of them new" if 0 < item.new < item.total else ""


def _alerts(item: Item, now: datetime) -> list[dict[str, Any]]:
    """Alerts of Alertmanager's API v2. Labels identify an alert, and each change has its own `since`: so a changed
    alert ends the one before.
    """
    detail = [_cut(printable(item.detail), DETAIL_MAX)] if item.detail else []
    more = f" and {item.total - len(item.groups)} more" if item.groups and item.total > len(item.groups) else ""
    named = (f"{shown(group)} ({shown(client)})" if client else shown(group) for group, client in item.groups.items())
    keep = [" ".join(filter(None, (each.command, each.link))) for each in instructions(item)]
    keep += _creation(item, now)
    description = "\n".join([summary(item), *detail, ", ".join(named) + more, *filter(None, keep)]).strip()
    labels = {
        "alertname": str(item.type),
        "app": "group-hygiene",
        "severity": _SEVERITY.get(item.type, "warning"),
        "connection": item.connection,
    }
    if item.policy:
        namespace, _, name = item.policy.partition("/")
        labels |= {"namespace": namespace, "policy": name}
    if item.owner:
        labels["owner"] = item.owner

    def alert(since: datetime, ends: datetime | None, texts: dict[str, str]) -> dict[str, Any]:
        times = {"startsAt": timestamp(since, "milliseconds")}
        times |= {} if ends is None else {"endsAt": timestamp(ends, "milliseconds")}
        return {"labels": labels | {"since": timestamp(since)}, "annotations": texts, **times}

    ends = max(now, item.since) if item.status is Status.RESOLVED else item.until
    alerts = [alert(item.since, ends, {"summary": summary(item), "description": description})]
    if item.replaces is not None:
        replaced = f"{_subject(item)}: {item.type}: a newer alert took its place"
        texts = {"summary": replaced, "description": replaced}
        alerts.insert(0, alert(item.replaces, max(now, item.replaces), texts))
    return alerts


def _slack(item: Item, now: datetime) -> str:
    """Slack's mrkdwn."""
    lines = [f"*[{item.status.upper()}] {item.type}* {_escaped(summary(item))}"]
    if item.detail:
        lines.append(_code(_cut(printable(item.detail), DETAIL_MAX)))
    keep = {each.group: each for each in instructions(item)}
    for group, client in list(item.groups.items())[:_SLACK_NAMES]:
        lines.append(" ".join(["•", _code(shown(group)), *([_code(shown(client))] if client else [])]))
        how = keep.get(group)
        if how is not None and (how.command or how.link):
            command = [_code(how.command)] if how.command else []
            lines.append(" ".join([*command, *([f"<{_escaped(how.link)}>"] if how.link else [])]))
    more = item.total - min(len(item.groups), _SLACK_NAMES)
    if item.groups and more > 0:
        lines.append(f"• and {more} more")
    creation = _creation(item, now)
    if creation:
        lines += [creation[0], "```", *map(_escaped, creation[1:]), "```"]
    return "\n".join(lines)


def _webhook_alert(item: Item, now: datetime) -> dict[str, Any]:
    namespace, _, name = item.policy.partition("/")
    keep = instructions(item)
    return {
        "status": str(item.status),
        "kind": str(item.type),
        "connection": item.connection,
        "namespace": namespace or None,
        "policy": name or None,
        "owner": item.owner or None,
        "action": item.action or None,
        "mode": item.mode or None,
        "since": timestamp(item.since),
        "summary": summary(item),
        "detail": _cut(item.detail, DETAIL_MAX) or None,
        "groups": [_cut(group, NAME_MAX) for group in item.groups],
        "lastClients": {_cut(group, NAME_MAX): shown(client) for group, client in item.groups.items() if client},
        "keepCommands": {each.group: each.command for each in keep if each.command},
        "keepLinks": {each.group: each.link for each in keep if each.link},
        "keepObject": keep_object(item, now),
        "total": item.total,
        "new": item.new,
        "truncated": item.total > len(item.groups),
        "firstDueTime": timestamp(item.first_due) if item.first_due else None,
    }


def shown(text: str) -> str:
    r"""On one line and truncated, with escapes for characters that are not printable."""
    return _cut(printable(text), NAME_MAX)


def _threatened(item: Item) -> Iterable[str]:
    """The named groups that will be deleted, or would be without the dry run; only in a message to an owner."""
    warns = item.type is AlertType.GROUPS_MARKED or (item.type is AlertType.GROUPS_MATCHED and item.action != "Alert")
    return item.groups if item.owner and warns and item.status is Status.FIRING else ()


def instructions(item: Item) -> list[Instruction]:
    """For each group that its owner may want to keep."""
    return [
        Instruction(group, keep_command(group, item.owner, item.connection), keep_link(group, item.keep_link))
        for group in _threatened(item)
    ]


def keep_object(item: Item, now: datetime) -> dict[str, Any] | None:
    """A GroupKeep of the named groups for at least 30 days after the message, until the end of a day (UTC).

    It is for `kubectl create`, which gives it the namespace of its user.

    Only of groups for which a namespace may have the right, without names that are truncated or no UTF-8. None = there
    is none, or nothing to prevent.
    """
    whole = (name for name in _threatened(item) if name and len(name) <= NAME_MAX)
    names = [name for name in whole if name.encode("utf-8", "ignore").decode() == name and item.keepable.matches(name)]
    if not names:
        return None
    namespace, _, name = item.connection.partition("/")
    # A message that is sent again within a day is most often the same.
    end = (now + _KEEP_PERIOD + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    until, why = timestamp(end), f"needed by {item.owner}"
    reference = {"name": name, "namespace": namespace}
    return {
        "apiVersion": API_VERSION,
        "kind": "GroupKeep",
        "metadata": {"generateName": "keep-"},
        "spec": {"connectionRef": reference, "groups": names, "reason": why, "until": until},
    }


def _creation(item: Item, now: datetime) -> list[str]:
    """A line of text, and the lines of a command of a shell that creates the object of `keep_object`; [] = none.

    Only with names that no shell interprets, as one without here-documents takes each line for a command.
    """
    found = keep_object(item, now)
    names = [] if found is None else [name for name in found["spec"]["groups"] if PLAIN.fullmatch(name)]
    if found is None or not names:
        return []
    text = json.dumps(found | {"spec": found["spec"] | {"groups": names}})
    return [
        "To keep these, in the namespace of a team that may; they are protected once kubectl get kgk shows KEPT True:",
        *("kubectl create -f - <<'END'", text, "END"),
    ]


def keep_command(group: str, owner: str, connection: str) -> str:
    """The command that keeps a group for 30 days. owner: for its reason. connection: namespace/name.

    "" = the name is truncated, or has a character that some shell interprets. Quotes differ between sh, fish,
    PowerShell and cmd.
    """
    if len(group) > NAME_MAX or not PLAIN.fullmatch(group):
        return ""
    namespace, _, name = connection.partition("/")
    options = ["--for", f"{_KEEP_PERIOD.days}d", "--why", f"needed by {owner}", "--connection", name, "-n", namespace]
    words = [*options, "--", group] if group.startswith("-") else [group, *options]
    return shlex.join(["group-hygiene", "keep", *words])


def keep_link(group: str, template: str) -> str:
    """The URL of a group. template: `keepLink` of the connection.

    "" = there is none, the name is truncated or a step of a path, or the URL would be long.
    """
    if len(group) > NAME_MAX or group in (".", ".."):
        return ""
    link = template.replace("{group}", quote(group.encode("utf-8", "surrogatepass"), safe=""))
    return link if len(link) <= _LINK_MAX else ""


def _escaped(text: str) -> str:
    """With Slack's escapes: else `<!channel>` in a group's id would notify the whole channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(text: str) -> str:
    """As code, without backticks: Mattermost reads Markdown, where `@channel` and links would work otherwise."""
    plain = text.replace("`", "'")
    return f"`{_escaped(plain) or ' '}`"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


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
    if receiver.kind is ReceiverKind.ALERTMANAGER and not parts.path.rstrip("/").endswith(_ALERTMANAGER_PATH):
        text = urlunsplit(parts._replace(path=parts.path.rstrip("/") + _ALERTMANAGER_PATH))
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
        headers |= signature_headers(content, endpoint.hmac.reveal(), now)
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
