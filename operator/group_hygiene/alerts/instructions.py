"""How an owner prevents the deletion of a group: the command and the link in a message. Pure.

Any Kafka client may have chosen the group's name, and a user pastes the command into a shell.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from urllib.parse import quote

from group_hygiene.alerts.situation import NAME_MAX, AlertType
from group_hygiene.alerts.state import Item, Status

_PERIOD = "30d"
# Names that need no quotes in any shell.
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.:@+-]*")
_LINK_MAX = 1_500


@dataclass(frozen=True, slots=True)
class Instruction:
    """How to keep one group: a command for a shell, and a URL. "" = there is none."""

    group: str
    command: str
    link: str


def instructions(item: Item) -> list[Instruction]:
    """For each named group that will be deleted, or would be without the dry run; only in a message to an owner."""
    warns = item.type is AlertType.GROUPS_MARKED or (item.type is AlertType.GROUPS_MATCHED and item.action != "Alert")
    if not item.owner or not warns or item.status is not Status.FIRING:
        return []
    return [
        Instruction(group, keep_command(group, item.owner, item.connection), keep_link(group, item.keep_link))
        for group in item.groups
    ]


def keep_command(group: str, owner: str, connection: str) -> str:
    """The command that keeps a group for 30 days. owner: for its reason. connection: namespace/name.

    "" = the name is truncated, or has a character that some shell interprets. Quotes differ between sh, fish,
    PowerShell and cmd.
    """
    if len(group) > NAME_MAX or not _PLAIN.fullmatch(group):
        return ""
    namespace, _, name = connection.partition("/")
    options = ["--for", _PERIOD, "--why", f"needed by {owner}", "--connection", name, "-n", namespace]
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
