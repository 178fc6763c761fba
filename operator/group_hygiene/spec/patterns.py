r"""Patterns of names. No I/O.

`*` matches any characters, also none; placeholders match what `PLACEHOLDERS` says. A backslash before one of
`* \ { ^ $ ( [ . ? | !` makes it literal, and everything else matches itself; case matters. The CRDs say what no pattern
is, like a regular expression, which would match other names than its author means.
"""

from __future__ import annotations

import functools
import re
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import NamedTuple, Self

import msgspec

from group_hygiene.errors import SpecError
from group_hygiene.model.groups import ID_MAX
from group_hygiene.spec.crds import judged_part

_DAY = "(?:0[1-9]|[12][0-9]|3[01])"
# A placeholder takes as much as it can, and never less to let what follows match.
PLACEHOLDERS: Mapping[str, str] = {
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "digits": "[0-9]++",
    "hex": "[0-9a-fA-F]++",
    "date": f"[0-9]{{4}}(?:(?:0[1-9]|1[0-2]){_DAY}|-(?:0[1-9]|1[0-2])-{_DAY})",
}
# Only in patterns of tenants: the name of a namespace (RFC 1123).
_NAMESPACE = "(?P<namespace>[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)(?![-a-z0-9])"
_TOKEN = re.compile(r"\\(?P<escaped>.)|(?P<star>\*)|\{(?P<name>[a-z]+)\}|(?P<text>[^\\*{]+)")
# Where `covers` searches a character that occurs in no pattern: from the first private use area to the last plane.
_CANDIDATES = range(0xE000, 0x110000)


# A text, or an expression of the table below: tenants write patterns, so none is compiled into one of its own.
_Token = str | re.Pattern[str]
# What is between two stars: a text, or tokens with a placeholder.
_Piece = str | tuple[_Token, ...]
_EXPRESSIONS = {name: re.compile(text) for name, text in {**PLACEHOLDERS, "namespace": _NAMESPACE}.items()}
# Where each may begin behind a place: a match within a run of {digits} or {hex} ends where the one from its beginning
# does.
_BEGINNINGS = {
    expression: re.compile(f"(?<!{expression.pattern[:-2]}){expression.pattern}")
    if name in ("digits", "hex")
    else expression
    for name, expression in _EXPRESSIONS.items()
}
# The characters of the lists of patterns that are held in pieces, which take some twelve times as much memory.
_HELD_CHARACTERS = 1 << 20


def check_pattern(pattern: str, field: str = "pattern", of_tenants: bool = False) -> None:
    """of_tenants: whether it may hold `{namespace}`. Raises SpecError, which begins with `field`."""
    kind, path = ("KafkaConnection", "spec.access[].groups[]") if of_tenants else ("GroupPolicy", "spec.match.groups[]")
    judged_part(kind, path, pattern, field)


def _split(pattern: str) -> tuple[_Piece, ...]:
    r"""The pieces between the stars of a pattern: `a*b\*` -> ("a", "b*"); one piece = a pattern without a star."""
    pieces: list[list[_Token]] = [[""]]
    for token in _TOKEN.finditer(pattern):
        text, name, piece = token["escaped"] or token["text"] or "", token["name"], pieces[-1]
        if token["star"]:
            pieces.append([""])
        elif name:
            piece += (_EXPRESSIONS[name], "")
        else:
            piece[-1] += text  # type: ignore[operator]
    return tuple(tuple(filter(None, piece)) if len(piece) > 1 else str(piece[0]) for piece in pieces)


def _matches(pieces: tuple[_Piece, ...], text: str) -> bool:
    """Whether a text consists of these pieces with anything between them; a single piece is the whole text.

    Without one regular expression, which would try each piece at every place of a long name and hold the interpreter,
    so that the Lease is not renewed. The first place of each piece is sufficient, so each is searched once: a later
    match never ends before an earlier one, as each placeholder takes all that it can.
    """
    first, last = pieces[0], pieces[-1]
    at = _match(first, text, 0)
    if at < 0 or len(pieces) == 1:
        return at == len(text)
    if isinstance(last, str) and (not text.endswith(last) or at > len(text) - len(last)):
        return False
    end = len(text) - len(last) if isinstance(last, str) else len(text)
    for piece in pieces[1:-1]:
        at = _search(piece, text, at, end)
        if at < 0:
            return False
    return isinstance(last, str) or _search(last, text, at, end, at_the_end=True) >= 0


def _match(piece: _Piece, text: str, at: int) -> int:
    """The end of a piece that begins at this place of a text; -1 = it does not."""
    for token in (piece,) if isinstance(piece, str) else piece:
        if isinstance(token, str):
            if not text.startswith(token, at):
                return -1
            at += len(token)
        elif found := token.match(text, at):
            at = found.end()
        else:
            return -1
    return at


def _search(piece: _Piece, text: str, at: int, end: int, at_the_end: bool = False) -> int:
    """The end of the first match of a piece in this part of a text; -1 = none. at_the_end: of one that ends with it."""
    if isinstance(piece, str):
        place = text.find(piece, at, end)
        return -1 if place < 0 else place + len(piece)
    place = at
    while place >= 0:
        # Beyond the part, since a placeholder takes more if it can.
        found = _match(piece, text, place)
        if found >= 0 and (found == end or not at_the_end):
            return found if found <= end else -1
        place = _find(piece[0], text, place + 1)
    return -1


def _find(token: _Token, text: str, at: int) -> int:
    """The first place from `at` on where a token may begin; -1 = none."""
    if isinstance(token, str):
        return text.find(token, at)
    found = _BEGINNINGS[token].search(text, at)
    return found.start() if found else -1


class _Held(NamedTuple):
    """A list of patterns in pieces. The common forms `a` and `a*` need one lookup each for all patterns together."""

    pieces: tuple[tuple[_Piece, ...], ...]
    exact: frozenset[str]
    prefixes: tuple[str, ...]
    others: tuple[tuple[_Piece, ...], ...]


class Patterns:
    """A list of patterns; matches a name that any of them matches in full. An empty list matches nothing."""

    __slots__ = ("__weakref__", "_held", "_names", "sources")

    def __init__(self, patterns: Sequence[str], field: str = "patterns") -> None:
        """patterns: those of a judged spec, or checked by `check_pattern`."""
        # Python iterates a string by characters: `groups: abc-*` would match every group.
        if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns):
            raise SpecError(f"{field} must be a list of texts")
        self.sources = tuple(patterns)
        self._names: frozenset[str] | None = None
        self._held: _Held | None = None

    @classmethod
    def of_names(cls, names: Iterable[str]) -> Self:
        """Matches only these names; also the empty one, which no pattern of a spec matches alone."""
        made = cls([])
        made._names = frozenset(names)
        made.sources = tuple(re.sub(r"[*\\{^$(\[?|!]|\.(?=\+)", r"\\\g<0>", name) for name in sorted(made._names))
        return made

    @property
    def _in_pieces(self) -> _Held:
        """Made when it is needed, and forgotten when many others were: tenants write patterns, but no names."""
        held = self._held
        if held is None:
            pieces = tuple((name,) for name in sorted(self._names)) if self._names else tuple(map(_split, self.sources))
            exact = frozenset(p[0] for p in pieces if len(p) == 1 and isinstance(p[0], str))
            prefixes = tuple(p[0] for p in pieces if len(p) == 2 and not p[1] and isinstance(p[0], str))
            common = {*((text,) for text in exact), *((text, "") for text in prefixes)}
            held = self._held = _Held(pieces, exact, prefixes, tuple(each for each in pieces if each not in common))
            if self._names is None:
                _holding.add(self)
        return held

    def matches(self, name: str) -> bool:
        held = self._held or self._in_pieces
        if name in held.exact or name.startswith(held.prefixes):
            return True
        # Groups with longer ids are never judged, and each piece is searched in the whole id.
        if len(name) <= ID_MAX:
            # Not any(): it would create a generator for each of a million names.
            for pieces in held.others:
                if _matches(pieces, name):
                    return True
        return False

    def matching(self, name: str) -> str | None:
        """The first single pattern that matches, for messages."""
        if not self.matches(name):
            return None
        pairs = zip(self.sources, self._in_pieces.pieces, strict=True)
        return next((source for source, pieces in pairs if _matches(pieces, name)), None)

    def covers(self, pattern: str) -> bool:
        """Whether a single one of these patterns matches everything that `pattern` matches.

        Replaces each star and placeholder of `pattern` by a character that occurs in no pattern. A pattern that matches
        this text matches that character by a star, and the same star matches any other text in its place, unless a
        placeholder of it takes a part of that text: so if there is one, the answer is True for the same pattern only.
        False also if only several patterns together cover it.
        """
        wanted = _split(pattern)
        if len(wanted) == 1 and isinstance(wanted[0], str):
            return self.matches(wanted[0])
        used, all_pieces = {*pattern, *"".join(self.sources)}, self._in_pieces.pieces
        fresh = next((chr(c) for c in _CANDIDATES if chr(c) not in used), None)
        if fresh is None:
            return False
        text = "".join(
            fresh if token["star"] or token["name"] else token["escaped"] or token["text"]
            for token in _TOKEN.finditer(pattern)
        )
        plain = (pieces for pieces in all_pieces if all(isinstance(piece, str) for piece in pieces))
        return wanted in all_pieces or any(_matches(pieces, text) for pieces in plain)

    def __repr__(self) -> str:
        return f"Patterns({list(self.sources)!r})"


class _Holding:
    """Makes the lists that have been in pieces for the longest time forget them, while all together are large."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lists: deque[tuple[weakref.ref[Patterns], int]] = deque()
        self._characters = 0

    def add(self, patterns: Patterns) -> None:
        with self._lock:
            self._lists.append((weakref.ref(patterns), sum(map(len, patterns.sources))))
            self._characters += self._lists[-1][1]
            while self._characters > _HELD_CHARACTERS and len(self._lists) > 1:
                oldest, characters = self._lists.popleft()
                self._characters -= characters
                if (old := oldest()) is not None:
                    old._held = None


_holding = _Holding()
NO_PATTERNS = Patterns([])


def is_like_a_pattern(name: str) -> bool:
    """Whether a user who gives this as the id of a group may mean a pattern. Kafka allows any character in ids."""
    return "*" in name or "{" in name


class TenantPatterns(Patterns):
    """Patterns of a connection about its tenants' groups, which may hold `{namespace}`: the name of any namespace."""

    __slots__ = ()

    def of_namespace(self, namespace: str) -> Patterns:
        """With this namespace in place of `{namespace}`."""
        return of_namespace(self.sources, namespace)

    def namespace_of(self, name: str) -> str:
        """What `{namespace}` of the first pattern that matches stands for; "" = it has none, or none matches."""
        pieces = next((pieces for pieces in self._in_pieces.pieces if _matches(pieces, name)), ())
        wanted = _EXPRESSIONS["namespace"]
        for number, piece in enumerate(pieces):
            if not isinstance(piece, str) and wanted in piece:
                place, is_last, until = 0, number == len(pieces) - 1, piece.index(wanted)
                while (end := _match(piece, name, place)) < 0 or (is_last and end != len(name)):
                    place = _find(piece[0], name, place + 1)
                return name[_match(piece[:until], name, place) : _match(piece[: until + 1], name, place)]
        return ""


@functools.lru_cache(maxsize=256)
def of_namespace(sources: tuple[str, ...], namespace: str) -> Patterns:
    """`TenantPatterns` of these texts with a namespace. Remembers the last ones, which each policy needs in a round."""
    return Patterns(
        [
            re.sub(r"\\.|\{namespace\}", lambda found: namespace if found[0][0] == "{" else found[0], source)
            for source in sources
        ]
    )


# Programs whose groups have recognizable ids: a hint for users, and no evidence. Reads catalogue.yaml.


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
