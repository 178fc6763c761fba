"""The bodies of messages to Alertmanager, Slack and webhooks. Pure; docs/alerts.md shows each.

Any Kafka client may have chosen the texts in them, so they are on one line, truncated, and never markup. An owner gets
with each group how to prevent its deletion: a link, and a command that the owner pastes into a shell.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote

from group_hygiene import __version__
from group_hygiene.alerts.state import DETAIL_MAX, NAME_MAX, AlertType, Item, Status
from group_hygiene.model.naming import PLAIN, printable
from group_hygiene.spec.connection import ReceiverKind
from group_hygiene.spec.crds import API_VERSION
from group_hygiene.spec.fields import timestamp
from group_hygiene.spec.patterns import NO_PATTERNS
from group_hygiene.spec.policy import Action

# Bytes of a message. Many proxies and receivers take 1 MB, nginx by default. Slack truncates a text at 40,000
# characters.
MESSAGE_MAX, _SLACK_MAX = 256_000, 30_000
_SLACK_NAMES = 10
_SEVERITY = {AlertType.GROUPS_DELETED: "info", AlertType.TEST: "info"}
_KEEP_PERIOD = timedelta(days=30)
_LINK_MAX = 1_500


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
        content = {"text": "\n".join(map(_slack, items))}
    else:
        content = _webhook(items, now)
    return json.dumps(content).encode()


def signed(content: bytes, key: str, now: datetime) -> dict[str, str]:
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
    keep += _creation(item)
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


def _slack(item: Item) -> str:
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
    creation = _creation(item)
    if creation:
        lines += [creation[0], "```", *map(_escaped, creation[1:]), "```"]
    return "\n".join(lines)


def _webhook(items: Sequence[Item], now: datetime) -> dict[str, Any]:
    alerts = [_webhook_alert(item) for item in items]
    # A hash of the content: a message that is sent again after a lost response has the same id. Without the clients,
    # which the next run may know.
    content = [{name: value for name, value in alert.items() if name != "lastClients"} for alert in alerts]
    id_ = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
    test = any(item.type is AlertType.TEST for item in items)
    return {"version": 1, "id": id_, "time": timestamp(now), "sender": f"group-hygiene/{__version__}", "test": test} | {
        "alerts": alerts
    }


def _webhook_alert(item: Item) -> dict[str, Any]:
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
        "keepObject": keep_object(item),
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


def keep_object(item: Item) -> dict[str, Any] | None:
    """A GroupKeep of the named groups for 30 days, for `kubectl create`, which gives it the namespace of its user.

    Only of groups for which a namespace may have the right, without names that are truncated or no UTF-8. None = there
    is none, or nothing to prevent.
    """
    whole = (name for name in _threatened(item) if name and len(name) <= NAME_MAX)
    names = [name for name in whole if name.encode("utf-8", "ignore").decode() == name and item.keepable.matches(name)]
    if not names:
        return None
    namespace, _, name = item.connection.partition("/")
    # Not by the present time: a message that is sent again is the same.
    until, why = timestamp(item.since + _KEEP_PERIOD), f"needed by {item.owner}"
    reference = {"name": name, "namespace": namespace}
    return {
        "apiVersion": API_VERSION,
        "kind": "GroupKeep",
        "metadata": {"generateName": "keep-"},
        "spec": {"connectionRef": reference, "groups": names, "reason": why, "until": until},
    }


def _creation(item: Item) -> list[str]:
    """A line of text, and the lines of a command of a shell that creates the object of `keep_object`; [] = none.

    Only with names that no shell interprets, as one without here-documents takes each line for a command.
    """
    found = keep_object(item)
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
