"""Names and foreign texts in a sentence: some of many, on one line, not too long. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# In bytes of JSON. etcd takes 1.5 MiB for an object as a whole, and an Event's message may have 1,024 bytes.
MESSAGE_MAX, ID_MAX = 1_000, 1_024


def some_of(things: Sequence[T], most: int, shown: Callable[[T], str] = str) -> str:
    """The first `most` of them, each as `shown` has it: "a, b and 3 more"."""
    more = f" and {len(things) - most} more" if len(things) > most else ""
    return ", ".join(map(shown, things[:most])) + more


def printable(text: str) -> str:
    r"""On one line, and unable to change a terminal: what is not printable as an escape, like `\n` and `\u202e`.

    Kafka takes any character in a group id, and brokers, users and tenants write what messages quote.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def shortened(text: str, most: int) -> str:
    """A text that takes at most so many bytes in JSON: whole, or its beginning and `...`."""
    # No character takes less than a byte.
    if len(text) <= most and json_bytes(text) <= most:
        return text
    left, end = most - 3, 0
    while (left := left - json_bytes(text[end])) >= 0:
        end += 1
    return text[:end] + "..."


def message_shown(text: str) -> str:
    """A message as statuses and Events have it: on one line, of at most MESSAGE_MAX bytes."""
    return shortened(printable(text[: MESSAGE_MAX + 1]), MESSAGE_MAX)


def id_shown(group: str) -> str:
    """A group's id as statuses have it. Kafka takes up to 32,767 bytes, each of which may take six in JSON."""
    return shortened(group, ID_MAX)


def json_bytes(text: str) -> int:
    """How many bytes of JSON a text takes, without quotes, where an API server stores it: Go escapes <, > and & too."""
    plain = len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")) - 2
    return plain + 5 * sum(map(text.count, "<>&")) + 3 * sum(map(text.count, "\u2028\u2029"))
