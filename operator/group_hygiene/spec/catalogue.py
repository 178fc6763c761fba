"""Programs whose groups have recognizable ids: a hint for users, and no evidence. Reads catalogue.yaml."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from importlib import resources

import msgspec

_PLACEHOLDERS = {r"\{uuid\}": "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", r"\{digits\}": "[0-9]+", r"\*": ".+"}


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program and its groups, as catalogue.yaml describes them."""

    program: str
    groups: tuple[str, ...]
    commits: str
    needed: str
    advice: str
    seen: str


@functools.cache
def catalogue() -> Sequence[Entry]:
    """In the order of the file."""
    data = resources.files(__package__).joinpath("catalogue.yaml").read_bytes()
    return msgspec.yaml.decode(data, type=list[Entry])


def looks_like(group: str) -> Entry | None:
    """The first program whose groups have ids like this."""
    found = _expression().fullmatch(group)
    return None if found is None or found.lastgroup is None else catalogue()[int(found.lastgroup.removeprefix("e"))]


@functools.cache
def _expression() -> re.Pattern[str]:
    """All patterns as one expression, with a group for each entry."""
    alternatives = []
    for number, entry in enumerate(catalogue()):
        expression = "|".join(map(re.escape, entry.groups))
        for placeholder, text in _PLACEHOLDERS.items():
            expression = expression.replace(placeholder, text)
        if expression:
            alternatives.append(f"(?P<e{number}>{expression})")
    return re.compile("|".join(alternatives), re.DOTALL)
