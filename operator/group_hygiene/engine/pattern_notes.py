"""Patterns of a connection and its policies that select no group, or fewer than without a dot. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from group_hygiene.model import reasons
from group_hygiene.model.groups import ID_MAX
from group_hygiene.model.naming import printable
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import Connection
from group_hygiene.spec.patterns import TenantPatterns
from group_hygiene.spec.policy import Policy

# The fields whose patterns should select a group. Those of match.groups need not: their groups may be deleted.
FIELDS = ("protect", "exclude", "access", "owners")
# How many names are compared with parts of patterns for one list of notes, which takes about a second; a placeholder is
# compared with each character.
_COMPARISONS = 2_000_000
_LINES = 50
_LITERALS = re.compile(r"(?:[^\\*{]|\\.)*")
# `.*` after a letter or digit: a dotted name, or a regular expression.
_DOTTED = re.compile(r"\\.|(?<=[0-9A-Za-z\u0080-\U0010ffff])\.\*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PatternNote:
    """place: of the pattern, as in `spec.protect[0]`. unused: whether it selects no group.

    more: how many further groups `wider` would select, the pattern without the dot.
    """

    field: str
    place: str
    pattern: str
    unused: bool
    wider: str = ""
    more: int = 0

    def __str__(self) -> str:
        unused = " selects no group" if self.unused else ""
        wider = f"; {self.wider} would select {self.more:,} more (a literal dot is \\.)" if self.more else ""
        return f"{self.place}: {self.pattern}{unused}{wider}"


def pattern_notes(connection: Connection, policies: Sequence[Policy], groups: Iterable[str]) -> list[PatternNote]:
    """The patterns to look at, if there are groups at all. groups: the ids of all groups of the cluster.

    Bounded by `_COMPARISONS`: a pattern that is not compared with all names counts as used.
    """
    names = _Names(groups)
    found = []
    for field, place, pattern in _places(connection, policies) if names.sorted else ():
        wider = _DOTTED.sub(lambda match: match[0] if match[0][0] == "\\" else "*", pattern)
        more = names.count(wider) - names.count(pattern) if wider != pattern else 0
        unused = field in FIELDS and not names.has(pattern)
        if unused or more > 0:
            found.append(PatternNote(field, place, pattern, unused, wider, max(more, 0)))
    return found


def note_lines(notes: Sequence[PatternNote]) -> list[str]:
    """The notes in a terminal, at most `_LINES`."""
    more = [f"{len(notes) - _LINES:,} more patterns are like these"] if len(notes) > _LINES else []
    return [printable(str(note)) for note in notes[:_LINES]] + more


def unused_by_field(notes: Sequence[PatternNote]) -> Mapping[str, int]:
    """Of each of FIELDS, how many patterns select no group."""
    return {field: sum(note.unused and note.field == field for note in notes) for field in FIELDS}


def unused_refusal(notes: Sequence[PatternNote]) -> Refusal:
    """The reason and message of the condition PatternsMatch of a connection."""
    if not notes:
        return Refusal(
            reasons.PATTERNS_MATCH, "no pattern of protect, exclude, access or owners was found that selects no group"
        )
    reason = reasons.PATTERNS_UNUSED if any(note.unused for note in notes) else reasons.DOT_BEFORE_STAR
    return Refusal(reason, ", ".join(map(str, sorted(notes, key=lambda note: not note.unused))))


def _places(connection: Connection, policies: Sequence[Policy]) -> Iterator[tuple[str, str, str]]:
    """Field, place and text of each pattern of group ids."""
    lists = [("protect", "spec.protect", connection.protect)]
    lists += [("access", f"spec.access[{i}].groups", entry.groups) for i, entry in enumerate(connection.access)]
    lists += [("owners", f"spec.owners[{i}].groups", each.groups) for i, each in enumerate(connection.owners.entries)]
    for policy in policies:
        lists.append(("exclude", f"GroupPolicy {policy.key} spec.match.exclude", policy.match.exclude))
        lists.append(("groups", f"GroupPolicy {policy.key} spec.match.groups", policy.match.groups))
    for field, place, patterns in lists:
        yield from ((field, f"{place}[{number}]", source) for number, source in enumerate(patterns.sources))


class _Names:
    """Names in their order, so that a pattern is compared only with those that begin as it does."""

    def __init__(self, names: Iterable[str]) -> None:
        self.sorted = sorted(names)
        self._left = _COMPARISONS

    def has(self, pattern: str) -> bool:
        return next(self._matching(pattern), None) is not None or self._left <= 0

    def count(self, pattern: str) -> int:
        return sum(1 for _ in self._matching(pattern))

    def _matching(self, pattern: str) -> Iterator[str]:
        begins = _LITERALS.match(pattern)
        prefix = re.sub(r"\\(.)", r"\1", begins[0]) if begins else ""
        matches, stars, placeholders = TenantPatterns([pattern]).matches, pattern.count("*"), pattern.count("{")
        for index in range(bisect_left(self.sorted, prefix), len(self.sorted)):
            name = self.sorted[index]
            if not name.startswith(prefix) or self._left <= 0:
                return
            self._left -= 1 + stars + placeholders * min(len(name), ID_MAX)
            if matches(name):
                yield name
