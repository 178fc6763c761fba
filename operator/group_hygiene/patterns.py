"""Patterns of names: `*` is any run of characters, `\\*` a star, all else itself. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence

from group_hygiene.errors import SpecError

# Of what private use is reserved for: one of them occurs in no pattern.
_PRIVATE_USE = range(0xE000, 0xF8FF)


def pattern_to_regex(pattern: str, field: str = "pattern") -> str:
    r"""One pattern as the source of a regular expression, to be matched in full.

    `*` is any run of characters, `\*` a literal star, `\\` a literal backslash, all else itself; case-sensitive.
    """
    pieces = _literals(pattern, field)
    if len(pieces) == 1:
        return re.escape(pieces[0])
    first, *between, last = pieces
    # Each piece between two stars at its first place, for good: `*a*a*a*a*b` with plain `.*` would try every
    # combination of places, and hold up the whole process over one long group id.
    found = "".join(f"(?>.*?{re.escape(piece)})" for piece in between if piece)
    return f"{re.escape(first)}{found}.*{re.escape(last)}"


def _literals(pattern: str, field: str) -> list[str]:
    r"""The texts between the stars of a pattern: `a*b\*` -> ["a", "b*"]."""
    if not pattern:
        raise SpecError(f"{field} must not be empty")
    pieces = [""]
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            following = next(characters, "")
            if following not in ("*", "\\"):
                raise SpecError(rf"{field} {pattern!r}: a backslash must be followed by * or \ (as in \*)")
            pieces[-1] += following
        elif character == "*":
            pieces.append("")
        else:
            pieces[-1] += character
    return pieces


class Patterns:
    """A list of patterns; matches a group id that any of them matches in full. An empty list matches nothing."""

    __slots__ = ("_match", "sources")

    def __init__(self, patterns: Sequence[str], field: str = "patterns") -> None:
        # A lone text is a list of one-character patterns to Python: `groups: abc-*` would match every group.
        if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns):
            raise SpecError(f"{field} must be a list of texts")
        self.sources = tuple(patterns)
        regexes = [pattern_to_regex(p, f"{field}[{i}]") for i, p in enumerate(self.sources)]
        # \Z and not $: a group id may end in a newline. DOTALL: it may hold one anywhere.
        self._match = re.compile(rf"(?:{'|'.join(regexes)})\Z", re.DOTALL).match if regexes else None

    def matches(self, group_id: str) -> bool:
        return self._match is not None and self._match(group_id) is not None

    def matching(self, group_id: str) -> str | None:
        """The first single pattern that matches, for messages."""
        if not self.matches(group_id):
            return None
        return next((p for p in self.sources if Patterns([p]).matches(group_id)), None)

    def covers(self, pattern: str) -> bool:
        """Whether one of these patterns by itself matches everything that `pattern` does.

        Put a character that occurs in none of them for each star of `pattern`: what matches this text must take that
        character by a star, and the same star takes whatever else may stand in its place. So the one text stands for
        all. That several patterns together cover it is not found out: then the answer is False.
        """
        used = set("".join(self.sources)) | set(pattern)
        fresh = next(chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        return self.matches(fresh.join(_literals(pattern, "pattern")))

    def __repr__(self) -> str:
        return f"Patterns({list(self.sources)!r})"
