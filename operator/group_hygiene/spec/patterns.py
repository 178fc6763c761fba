"""Patterns of names: `*` matches any characters, `\\*` a star, everything else itself. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from group_hygiene.errors import SpecError

# Where `covers` searches a character that occurs in no pattern: from the first private use area to the last plane.
_CANDIDATES = range(0xE000, 0x110000)


def parse_pattern(pattern: str, field: str = "pattern") -> tuple[str, ...]:
    r"""The texts between the stars of a pattern: `a*b\*` -> ("a", "b*"); one text = a pattern without a star.

    `*` matches any characters, `\*` a star, `\\` a backslash, everything else itself; case-sensitive. Raises SpecError,
    which names `field`.
    """
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
    return tuple(pieces)


def _matches(pieces: tuple[str, ...], text: str) -> bool:
    """Whether a text consists of these pieces with anything between them; a single piece is the whole text.

    Without a regular expression, which would try each piece at every place of a long name and hold the interpreter, so
    that the Lease is not renewed. The first place of each piece is sufficient, so each is searched once.
    """
    if len(pieces) == 1:
        return text == pieces[0]
    first, last = pieces[0], pieces[-1]
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for piece in pieces[1:-1]:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


class Patterns:
    """A list of patterns; matches a name that any of them matches in full. An empty list matches nothing."""

    __slots__ = ("_exact", "_others", "_pieces", "_prefixes", "_used", "sources")

    def __init__(self, patterns: Sequence[str], field: str = "patterns") -> None:
        # Python iterates a string by characters: `groups: abc-*` would match every group.
        if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns):
            raise SpecError(f"{field} must be a list of texts")
        self.sources = tuple(patterns)
        self._pieces = tuple(parse_pattern(p, f"{field}[{i}]") for i, p in enumerate(self.sources))
        # The common forms `a` and `a*` need one lookup each for all patterns together.
        self._exact = frozenset(pieces[0] for pieces in self._pieces if len(pieces) == 1)
        self._prefixes = tuple(pieces[0] for pieces in self._pieces if len(pieces) == 2 and not pieces[1])
        self._others = tuple(p for p in self._pieces if len(p) > 2 or (len(p) == 2 and p[1]))
        self._used: frozenset[str] | None = None

    @classmethod
    def of_names(cls, names: Iterable[str]) -> Patterns:
        """Matches only these names; also the empty one, which no pattern of a spec matches alone."""
        made = cls([])
        made._exact = frozenset(names)
        made._pieces = tuple((name,) for name in sorted(made._exact))
        made.sources = tuple(name.replace("\\", "\\\\").replace("*", "\\*") for (name,) in made._pieces)
        return made

    def matches(self, name: str) -> bool:
        if name in self._exact or name.startswith(self._prefixes):
            return True
        # Not any(): it would create a generator for each of a million names.
        for pieces in self._others:  # noqa: SIM110
            if _matches(pieces, name):
                return True
        return False

    def matching(self, name: str) -> str | None:
        """The first single pattern that matches, for messages."""
        if not self.matches(name):
            return None
        pairs = zip(self.sources, self._pieces, strict=True)
        return next((source for source, pieces in pairs if _matches(pieces, name)), None)

    def covers(self, pattern: str) -> bool:
        """Whether a single one of these patterns matches everything that `pattern` matches.

        Replaces each star of `pattern` by a character that occurs in no pattern. A pattern that matches this text
        matches that character by a star, and the same star matches any other text in its place. So the one text
        represents all. False also if only several patterns together cover it.
        """
        if self._used is None:
            self._used = frozenset("".join(self.sources))
        fresh = next((chr(c) for c in _CANDIDATES if chr(c) not in self._used and chr(c) not in pattern), None)
        return fresh is not None and self.matches(fresh.join(parse_pattern(pattern)))

    def __repr__(self) -> str:
        return f"Patterns({list(self.sources)!r})"
