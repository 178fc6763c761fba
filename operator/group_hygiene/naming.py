"""Names and foreign texts in a sentence: some of many, on one line, not too long. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


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
