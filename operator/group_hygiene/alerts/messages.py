"""How a message looks: for an Alertmanager, for Slack, for a webhook of one's own. Pure; docs/alerts.md shows each.

Any client of Kafka may have chosen its texts: they are shown without line breaks, cut, and never as markup.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from group_hygiene import __version__
from group_hygiene.alerts.situation import DETAIL_MAX, NAME_MAX, News
from group_hygiene.alerts.state import Item, Status
from group_hygiene.model.naming import printable
from group_hygiene.spec.durations import timestamp
from group_hygiene.spec.policy import Action
from group_hygiene.spec.receivers import Kind

# Slack cuts a text at 40,000 characters.
_SLACK_MAX, _SLACK_NAMES = 30_000, 10
_SEVERITY = {News.GROUPS_DELETED: "info", News.TEST: "info"}


def body(kind: Kind, items: Sequence[Item], now: datetime) -> bytes:
    """One message that holds all of `items`, as the body of one POST; JSON in UTF-8."""
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
    who = f"policy {item.policy}" if item.policy else f"KafkaConnection {item.connection}"
    groups = f"{item.total} consumer group{'s' if item.total != 1 else ''}"
    if item.action:
        groups = Action(item.action).describe_targets(groups)
    if item.news is News.TEST:
        return f"This is only a test: alerts of {who} arrive here. Nothing needs to be done."
    if item.status is Status.REPLACED:
        return f"{who}: {item.news}: a newer alert took its place"
    if item.status is Status.RESOLVED:
        return f"{who}: {item.news}: resolved"
    match item.news:
        case News.GROUPS_MATCHED:
            dry = " (a dry run)" if item.action not in ("Alert", "") else ""
            return f"{who}: {groups} match{dry}{_of_them_new(item)}"
        case News.GROUPS_MARKED:
            due = f"; the first is due at {timestamp(item.first_due)}" if item.first_due else ""
            return f"{who}: {groups} will be deleted, unless they are used or protected{_of_them_new(item)}{due}"
        case News.DELETION_BLOCKED:
            would = "would be" if item.mode == "DryRun" else "is"
            return f"{who}: nothing {would} deleted, although {item.total or 'some'} consumer groups match or are due"
        case _:
            return f"{who}: {groups} deleted"


def _of_them_new(item: Item) -> str:
    return f", {item.new} of them new" if 0 < item.new < item.total else ""


def _alert(item: Item, now: datetime) -> dict[str, Any]:
    """One alert of Alertmanager's API v2. Its labels are what it is known by: each news has a `since` of its own."""
    ends = item.until if item.status in (Status.FIRING, Status.NOTICE) else max(now, item.since)
    description = "\n".join([summary(item), *([_cut(item.detail, DETAIL_MAX)] if item.detail else []), _names(item)])
    labels = {
        "alertname": str(item.news),
        "app": "group-hygiene",
        "severity": _SEVERITY.get(item.news, "warning"),
        "connection": item.connection,
        "since": timestamp(item.since),
    }
    if item.policy:
        namespace, _, name = item.policy.partition("/")
        labels |= {"namespace": namespace, "policy": name}
    return {
        "labels": labels,
        "annotations": {"summary": summary(item), "description": description.strip()},
        "startsAt": timestamp(item.since, "milliseconds"),
        **({} if ends is None else {"endsAt": timestamp(ends, "milliseconds")}),
    }


def _slack(items: Sequence[Item]) -> str:
    """Slack's mrkdwn. Of what is too long, names go first, and then alerts, which are counted; urgent ones stay."""
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
    """0 = an alert of something that a user may want to stop."""
    if item.status is Status.RESOLVED:
        return 2
    return 0 if item.news in (News.GROUPS_MARKED, News.DELETION_BLOCKED) else 1


def _slack_line(item: Item) -> str:
    return f"*[{item.status.upper()}] {item.news}* {_escaped(summary(item))}"


def _slack_block(item: Item) -> str:
    lines = [_slack_line(item)]
    if item.detail:
        lines.append(_code(_cut(printable(item.detail), DETAIL_MAX)))
    names = [f"• {_code(shown(group))}" for group in item.groups[:_SLACK_NAMES]]
    if item.groups and item.total > len(names):
        names.append(f"• and {item.total - len(names)} more")
    return "\n".join([*lines, *names])


def _webhook(items: Sequence[Item], now: datetime) -> dict[str, Any]:
    alerts = [_webhook_alert(item) for item in items]
    # Of what it says, so that a message that was sent again after a lost answer has the same.
    id_ = hashlib.sha256(json.dumps(alerts, sort_keys=True).encode()).hexdigest()[:32]
    test = any(item.news is News.TEST for item in items)
    return {"version": 1, "id": id_, "time": timestamp(now), "sender": f"group-hygiene/{__version__}", "test": test} | {
        "alerts": alerts
    }


def _webhook_alert(item: Item) -> dict[str, Any]:
    namespace, _, name = item.policy.partition("/")
    return {
        "status": str(item.status),
        "kind": str(item.news),
        "connection": item.connection,
        "namespace": namespace or None,
        "policy": name or None,
        "action": item.action or None,
        "mode": item.mode or None,
        "since": timestamp(item.since),
        "summary": summary(item),
        "detail": _cut(item.detail, DETAIL_MAX) or None,
        "groups": [_cut(group, NAME_MAX) for group in item.groups],
        "total": item.total,
        "new": item.new,
        "truncated": item.total > len(item.groups),
        "firstDueTime": timestamp(item.first_due) if item.first_due else None,
    }


def shown(text: str) -> str:
    r"""On one line and cut: what is not printable as an escape."""
    return _cut(printable(text), NAME_MAX)


def _names(item: Item) -> str:
    more = f" and {item.total - len(item.groups)} more" if item.groups and item.total > len(item.groups) else ""
    return ", ".join(map(shown, item.groups)) + more


def _escaped(text: str) -> str:
    """As Slack requires: else `<!channel>` in the id of a group would notify the whole channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(text: str) -> str:
    """As code, which it can't leave: where Markdown holds (Mattermost), `@channel` and links would count otherwise."""
    plain = text.replace("`", "'")
    return f"`{_escaped(plain) or ' '}`"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
