"""Names and untrusted texts in messages: truncated and on one line. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# In bytes of JSON. etcd accepts objects of at most 1.5 MiB, and an Event's message may have 1,024 bytes.
MESSAGE_MAX, _ID_SHOWN_MAX = 1_000, 1_024
# Names that need no quotes in any shell.
PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.:@+-]*")


def truncated_list(things: Sequence[T], most: int, shown: Callable[[T], str] = str) -> str:
    """The first `most` things, each formatted by `shown`: "a, b and 3 more"."""
    more = f" and {len(things) - most} more" if len(things) > most else ""
    return ", ".join(map(shown, things[:most])) + more


# A cell of CSV that begins with one of these is a formula for spreadsheets; some accept those of full width, too.
FORMULAS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def printable(text: str) -> str:
    r"""The text on one line, with unprintable characters as escapes, like `\n` and `\u202e`, for terminals.

    Kafka accepts any character in a group id, and messages quote texts of brokers, users and tenants.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def truncated(text: str, most: int) -> str:
    """The text, truncated to at most `most` bytes of JSON: whole, or its beginning and `...`."""
    # Each character takes at least one byte.
    if len(text) <= most and json_bytes(text) <= most:
        return text
    left, end = most - 3, 0
    while (left := left - json_bytes(text[end])) >= 0:
        end += 1
    return text[:end] + "..."


def message_shown(text: str) -> str:
    """A message for statuses and Events: on one line, of at most MESSAGE_MAX bytes."""
    return truncated(printable(text[: MESSAGE_MAX + 1]), MESSAGE_MAX)


def id_line(text: str) -> str:
    """The text itself if it is printable and does not begin with a quote; else a JSON string in ASCII.

    So no id looks like another one, nor like several lines: `kubectl describe` prints texts of a status as they are.
    """
    return text if text.isprintable() and text and not text.startswith('"') else json.dumps(text)


def id_shown(group: str) -> str:
    """A name from Kafka for statuses, by `id_line`. A group's id may have 32,767 bytes, and each takes six in JSON."""
    return truncated(id_line(group), _ID_SHOWN_MAX)


def json_bytes(text: str) -> int:
    """The size of a text in JSON, without quotes, as an API server stores it: Go escapes <, > and &, too."""
    plain = len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")) - 2
    return plain + 5 * sum(map(text.count, "<>&")) + 3 * sum(map(text.count, "\u2028\u2029"))
