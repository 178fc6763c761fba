"""The last client of a group in words: tenants choose these texts, so they are quoted, on one line and truncated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from group_hygiene.model.naming import printable, truncated

# In bytes of JSON: of one text, and of all texts on a client.
_TEXT_MAX, LAST_CLIENT_MAX = 100, 500
# More clients of one record are not stored; these are the columns of one.
CLIENTS_MAX = 5
CLIENT = ("client_id", "host", "instance_id", "rack_id")


class LastClient(NamedTuple):
    """A member in the last record of a group that names members, at that time.

    host: as the broker saw it, None = not stored. others: how many more members the record names, of CLIENTS_MAX.
    """

    client_id: str
    host: str | None
    instance_id: str | None
    rack_id: str | None
    others: int
    at: datetime

    @classmethod
    def of(cls, clients: Sequence[Mapping[str, Any]] | None, at: datetime | None) -> LastClient | None:
        """Of the clients in a row of `activity`, the first by its id; None = there are none."""
        if not clients or at is None:
            return None
        first = min(clients, key=lambda client: [client[name] or "" for name in CLIENT])
        fields = {name: first[name] for name in CLIENT}
        return cls(**fields | {"client_id": fields["client_id"] or "", "others": len(clients) - 1, "at": at})

    def __str__(self) -> str:
        """For example: client 'billing-7', rack 'a', from 10.1.2.3 and others."""
        named = (("instance", self.instance_id), ("rack", self.rack_id))
        parts = [f"client {_quoted(self.client_id)}" if self.client_id else "a client without an id"]
        parts += [f"{what} {_quoted(text)}" for what, text in named if text]
        text = ", ".join(parts)
        if self.host:
            # The last of the parts in quotes: no client id can forge it.
            text += f"{',' * (len(parts) > 1)} from {truncated(printable(self.host), _TEXT_MAX)}"
        if self.others:
            text += " and others" if self.others + 1 >= CLIENTS_MAX else f" and {self.others} more"
        return truncated(text, LAST_CLIENT_MAX)


def ago(time: timedelta) -> str:
    """In the largest unit that gives two or more: 41 days ago, 30 hours ago."""
    seconds = max(0, int(time.total_seconds()))
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return "just now"


def _quoted(text: str) -> str:
    return f"'{truncated(printable(text).replace(chr(39), chr(34)), _TEXT_MAX)}'"
