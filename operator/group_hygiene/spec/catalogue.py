"""Programs whose groups have recognizable ids: a hint for users, and no evidence. Reads catalogue.yaml."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib import resources

import msgspec

from group_hygiene.spec.patterns import Patterns


class CatalogueEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program and its groups, as catalogue.yaml describes them."""

    program: str
    groups: tuple[str, ...]
    commits: str
    needed: str
    advice: str
    seen: str


@functools.cache
def catalogue() -> Sequence[CatalogueEntry]:
    """In the order of the file."""
    data = resources.files(__package__).joinpath("catalogue.yaml").read_bytes()
    return msgspec.yaml.decode(data, type=list[CatalogueEntry])


def likely_program(group: str) -> CatalogueEntry | None:
    """The first program whose groups have ids like this."""
    patterns, entries = _patterns()
    pattern = patterns.matching(group)
    return None if pattern is None else entries[pattern]


@functools.cache
def _patterns() -> tuple[Patterns, Mapping[str, CatalogueEntry]]:
    entries = {pattern: entry for entry in catalogue() for pattern in entry.groups}
    return Patterns(list(entries)), entries
