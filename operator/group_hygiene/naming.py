"""Names in a sentence: some of many, and how many more. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def some_of(things: Sequence[T], most: int, shown: Callable[[T], str] = str) -> str:
    """The first `most` of them, each as `shown` has it: "a, b and 3 more"."""
    more = f" and {len(things) - most} more" if len(things) > most else ""
    return ", ".join(map(shown, things[:most])) + more
