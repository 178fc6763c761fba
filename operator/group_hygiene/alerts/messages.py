"""The bodies of messages to Alertmanager, Slack and webhooks. Pure; docs/alerts.md shows each.

Any Kafka client may have chosen the texts in them, so they are on one line, truncated, and never markup.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import count
from typing import Any

from group_hygiene import __version__
from group_hygiene.alerts.instructions import Instruction, instructions
from group_hygiene.alerts.situation import DETAIL_MAX, NAME_MAX, AlertType
from group_hygiene.alerts.state import Item, Status
from group_hygiene.model.naming import printable
from group_hygiene.spec.durations import timestamp
from group_hygiene.spec.policy import Action
from group_hygiene.spec.receivers import Kind

# Slack truncates a text at 40,000 characters.
_SLACK_MAX, _SLACK_NAMES = 30_000, 10
_OWNERS_WHOLE = 50
_SEVERITY = {AlertType.GROUPS_DELETED: "info", AlertType.TEST: "info"}


def body(kind: Kind, items: Sequence[Item], now: datetime) -> bytes:
    """One message that holds all of `items`, as the body of one POST; JSON in UTF-8.

    Of many items for owners, all but the first name no groups: a connection may have many owners and policies.
    """
    of_owners = count()
    items = [
        replace(item, groups=(), clients=()) if item.owner and next(of_owners) >= _OWNERS_WHOLE else item
        for item in items
    ]
    others = [item for item in items if item.status is not Status.REPLACED]
    content: Any = _webhook(others, now)
    if kind is Kind.ALERTMANAGER:
        content = [_alert(item, now) for item in items]
    elif kind is Kind.SLACK:
        content = {"text": _slack(others)}
    return json.dumps(content).encode()


def signed(content: bytes, key: str, now: datetime) -> dict[str, str]:
    """The headers that prove sender and time of a message: HMAC-SHA256 of `<timestamp>.<body>`."""
    timestamp = str(int(now.timestamp()))
    mac = hmac.new(key.encode(), f"{timestamp}.".encode() + content, hashlib.sha256)
    return {"X-Group-Hygiene-Timestamp": timestamp, "X-Group-Hygiene-Signature": f"sha256={mac.hexdigest()}"}


def summary(item: Item) -> str:
    """A one-line summary."""
    subject = f"policy {item.policy}" if item.policy else f"KafkaConnection {item.connection}"
    subject += f", owner {item.owner}" if item.owner else ""
    groups = f"{item.total} consumer group{'s' if item.total != 1 else ''}"
    if item.action:
        groups = Action(item.action).describe_targets(groups)
    if item.type is AlertType.TEST:
        return f"This is only a test: alerts of {subject} arrive here. Nothing needs to be done."
    if item.status is Status.REPLACED:
        return f"{subject}: {item.type}: a newer alert took its place"
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


def _new_suffix(item: Item) -> str:
    return f", {item.new} of them new" if 0 < item.new < item.total else ""


def _alert(item: Item, now: datetime) -> dict[str, Any]:
    """One alert of Alertmanager's API v2. Its labels identify it: each change of an alert has its own `since`."""
    ends = item.until if item.status in (Status.FIRING, Status.NOTICE) else max(now, item.since)
    detail = [_cut(item.detail, DETAIL_MAX)] if item.detail else []
    keep = [" ".join(filter(None, (each.command, each.link))) for each in instructions(item)]
    description = "\n".join([summary(item), *detail, _names(item), *filter(None, keep)])
    labels = {
        "alertname": str(item.type),
        "app": "group-hygiene",
        "severity": _SEVERITY.get(item.type, "warning"),
        "connection": item.connection,
        "since": timestamp(item.since),
    }
    if item.policy:
        namespace, _, name = item.policy.partition("/")
        labels |= {"namespace": namespace, "policy": name}
    if item.owner:
        labels["owner"] = item.owner
    return {
        "labels": labels,
        "annotations": {"summary": summary(item), "description": description.strip()},
        "startsAt": timestamp(item.since, "milliseconds"),
        **({} if ends is None else {"endsAt": timestamp(ends, "milliseconds")}),
    }


def _slack(items: Sequence[Item]) -> str:
    """Slack's mrkdwn. If it is too long, names are omitted first, then less urgent alerts, which are counted."""
    by_urgency = sorted(range(len(items)), key=lambda at: _urgency(items[at]))
    blocks: dict[int, str] = {}
    left = _SLACK_MAX
    for block_of in (_slack_line, _slack_block):
        for at in by_urgency:
            block = block_of(items[at])
            longer = len(block) + 1 - (len(blocks[at]) + 1 if at in blocks else 0)
            if longer <= left:
                blocks[at] = block
                left -= longer
    more = [f"... and {len(items) - len(blocks)} more"] if len(blocks) < len(items) else []
    return "\n".join([*(blocks[at] for at in sorted(blocks)), *more])


def _urgency(item: Item) -> int:
    """0 = a user may want to stop what it reports."""
    if item.status is Status.RESOLVED:
        return 2
    return 0 if item.type in (AlertType.GROUPS_MARKED, AlertType.DELETION_BLOCKED) else 1


def _slack_line(item: Item) -> str:
    return f"*[{item.status.upper()}] {item.type}* {_escaped(summary(item))}"


def _slack_block(item: Item) -> str:
    lines = [_slack_line(item)]
    if item.detail:
        lines.append(_code(_cut(printable(item.detail), DETAIL_MAX)))
    named = _with_clients(item)[:_SLACK_NAMES]
    keep = {each.group: _slack_instruction(each) for each in instructions(item)}
    for group, client in named:
        lines.append(" ".join(["•", _code(shown(group)), *([_code(shown(client))] if client else [])]))
        lines += filter(None, [keep.get(group)])
    if item.groups and item.total > len(named):
        lines.append(f"• and {item.total - len(named)} more")
    return "\n".join(lines)


def _slack_instruction(how: Instruction) -> str:
    command = [_code(how.command)] if how.command else []
    return " ".join([*command, *([f"<{_escaped(how.link)}>"] if how.link else [])])


def _webhook(items: Sequence[Item], now: datetime) -> dict[str, Any]:
    alerts = [_webhook_alert(item) for item in items]
    # A hash of the content: a message that is sent again after a lost response has the same id. Without the clients,
    # which a restarted process does not know.
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
        "lastClients": {_cut(group, NAME_MAX): shown(client) for group, client in _with_clients(item) if client},
        "keepCommands": {each.group: each.command for each in keep if each.command},
        "keepLinks": {each.group: each.link for each in keep if each.link},
        "total": item.total,
        "new": item.new,
        "truncated": item.total > len(item.groups),
        "firstDueTime": timestamp(item.first_due) if item.first_due else None,
    }


def shown(text: str) -> str:
    r"""On one line and truncated, with escapes for characters that are not printable."""
    return _cut(printable(text), NAME_MAX)


def _names(item: Item) -> str:
    more = f" and {item.total - len(item.groups)} more" if item.groups and item.total > len(item.groups) else ""
    named = (f"{shown(group)} ({shown(client)})" if client else shown(group) for group, client in _with_clients(item))
    return ", ".join(named) + more


def _with_clients(item: Item) -> list[tuple[str, str]]:
    """Its groups with their last clients, "" = not known."""
    return list(zip(item.groups, item.clients or ("",) * len(item.groups), strict=True))


def _escaped(text: str) -> str:
    """With Slack's escapes: else `<!channel>` in a group's id would notify the whole channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(text: str) -> str:
    """As code, without backticks: Mattermost reads Markdown, where `@channel` and links would work otherwise."""
    plain = text.replace("`", "'")
    return f"`{_escaped(plain) or ' '}`"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
