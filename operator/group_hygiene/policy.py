"""The spec of a `GroupPolicy`, read into frozen records: patterns, durations, defaults. No I/O, no judgement.

The API server has refused most bad specs already (crds/); what is said here again serves specs that never met it
(files given to the command line, objects that were stored under an older CRD).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from group_hygiene.errors import SpecError
from group_hygiene.model import Group, GroupState, GroupType

E = TypeVar("E", bound=StrEnum)

DURATION = re.compile(r"([0-9]{1,5}(h|ms|m|s)){1,4}")
_UNITS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_INTERVAL_MIN, _INTERVAL_MAX = timedelta(seconds=5), timedelta(hours=24)
_PERIOD_MIN = timedelta(seconds=1)
_GRACE, _GRACE_MIN, _GRACE_MAX = timedelta(hours=24), timedelta(seconds=1), timedelta(hours=720)
_RETENTION, _RETENTION_MIN, _RETENTION_MAX = timedelta(hours=720), timedelta(hours=1), timedelta(hours=8760)
# Of what private use is reserved for: one of them occurs in no pattern.
_PRIVATE_USE = range(0xE000, 0xF8FF)


class Action(StrEnum):
    ALERT = "Alert"
    DELETE = "Delete"


class Mode(StrEnum):
    DRY_RUN = "DryRun"
    ENFORCE = "Enforce"


class Topics(StrEnum):
    SOME_DELETED = "SomeDeleted"
    ALL_DELETED = "AllDeleted"


class Unprotect(StrEnum):
    CONNECT = "Connect"
    STREAMS = "Streams"
    MIRROR_MAKER = "MirrorMaker"
    SHARE = "Share"


def parse_duration(
    text: str, field: str, at_least: timedelta | None = None, at_most: timedelta | None = None
) -> timedelta:
    """A Go-style duration ("72h", "1h30m", "500ms") as a timedelta.

    Raises SpecError, which names `field`, if it is none, or not within `at_least` and `at_most`.
    """
    if not isinstance(text, str) or not DURATION.fullmatch(text):
        raise SpecError(f"{field} must be a duration like 72h, 30m or 1h30m, not {text!r}")
    parts = re.findall(r"([0-9]+)(h|ms|m|s)", text)
    value = timedelta(milliseconds=sum(int(number) * _UNITS[unit] for number, unit in parts))
    if at_least is not None and value < at_least:
        raise SpecError(f"{field} must be at least {format_duration(at_least)}, not {text}")
    if at_most is not None and value > at_most:
        raise SpecError(f"{field} must be at most {format_duration(at_most)}, not {text}")
    return value


def format_duration(value: timedelta) -> str:
    """A timedelta as the shortest Go-style duration: 259200 s -> "72h", 90 s -> "1m30s", 0 -> "0s"."""
    rest = value // timedelta(milliseconds=1)
    out = ""
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if count:
            out += f"{count}{unit}"
    return out or "0s"


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


@dataclass(frozen=True, slots=True)
class Match:
    """within: what the connection grants the policy's namespace; None = everything."""

    groups: Patterns
    exclude: Patterns
    states: frozenset[GroupState]
    types: frozenset[GroupType]
    protocol_types: frozenset[str] | None
    unprotect: frozenset[Unprotect]
    within: Patterns | None = None

    @property
    def beyond(self) -> tuple[str, ...]:
        """The patterns of `groups` that could match more than is granted; only what is granted is ever selected."""
        return () if self.within is None else tuple(p for p in self.groups.sources if not self.within.covers(p))

    def visible(self, groups: Collection[str]) -> int:
        """How many of the groups the policy's namespace may know of."""
        return len(groups) if self.within is None else sum(map(self.within.matches, groups))

    def select(self, groups: Mapping[str, Group]) -> list[Group]:
        """Those of the groups that the policy has anything to say about. By their names first: most don't match."""
        names = [name for name in groups if self.groups.matches(name)]
        return [group for group in map(groups.__getitem__, names) if self.selects(group)]

    def selects(self, group: Group) -> bool:
        """Whether the policy has anything to say about this group. Exclude wins."""
        return (
            group.state in self.states
            and group.type in self.types
            and (self.protocol_types is None or group.protocol_type in self.protocol_types)
            and self.groups.matches(group.id)
            and (self.within is None or self.within.matches(group.id))
            and not self.exclude.matches(group.id)
        )


@dataclass(frozen=True, slots=True)
class When:
    """The conditions, all of which must hold; None = not asked."""

    committed_none: bool = False
    topics: Topics | None = None
    unchanged_for: timedelta | None = None
    idle_for: timedelta | None = None
    expires_within: timedelta | None = None

    @property
    def asks_evidence(self) -> bool:
        """Whether only a pipeline's tables can tell."""
        return self.idle_for is not None or self.expires_within is not None


@dataclass(frozen=True, slots=True)
class Limits:
    """max_per_run: groups deleted in one run at most. max_percent: of all groups of the cluster, else none is."""

    max_per_run: int = 50
    max_percent: int = 20

    def stricter(self, other: Limits | None) -> Limits:
        if other is None:
            return self
        return Limits(min(self.max_per_run, other.max_per_run), min(self.max_percent, other.max_percent))


@dataclass(frozen=True, slots=True)
class Policy:
    """grace_period: from a group's mark to its deletion. backup_retention: how long a deleted group can be restored.

    digest: of what decides which groups are deleted and when; a difference starts observations and marks anew.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    connection_namespace: str
    connection_name: str
    interval: timedelta
    suspend: bool
    mode: Mode
    match: Match
    when: When
    action: Action
    limits: Limits
    grace_period: timedelta
    backup_retention: timedelta
    digest: str

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def crosses_namespace(self) -> bool:
        return self.connection_namespace != self.namespace


# Kafka's own states. Delete never looks beyond the first two: everything else has members.
_DELETABLE = frozenset({GroupState.EMPTY, GroupState.DEAD})
_DEFAULT_TYPES = (GroupType.CLASSIC, GroupType.CONSUMER)


def parse_policy(obj: Mapping[str, Any]) -> Policy:
    """A `GroupPolicy` object, as the API server or a YAML file gives it, as a Policy.

    Raises SpecError, whose text says what must be, for a spec that the CRD would have refused.
    """
    metadata, spec = obj.get("metadata") or {}, parse_mapping(obj.get("spec"), "spec")
    namespace = metadata.get("namespace") or "default"
    reference = parse_mapping(spec.get("connectionRef"), "spec.connectionRef")
    action = _enum(Action, spec.get("action"), "spec.action")
    when = _parse_when(parse_mapping(spec.get("when") or {}, "spec.when"))
    match = _parse_match(parse_mapping(spec.get("match"), "spec.match"), action)
    if action is Action.DELETE:
        if when.unchanged_for is None and when.idle_for is None:
            raise SpecError("spec.when.idleFor or unchangedFor must be given with action Delete")
        if not match.states <= _DELETABLE:
            raise SpecError("spec.match.states must be only Empty and Dead with action Delete")
        if GroupType.SHARE in match.types:
            raise SpecError("spec.match.types must not hold Share with action Delete")
    elif spec.get("delete"):
        raise SpecError("spec.delete must only be given with action Delete")
    deletion = parse_mapping(spec.get("delete") or {}, "spec.delete")
    grace = _delay(deletion, "gracePeriod", _GRACE, (_GRACE_MIN, _GRACE_MAX))
    return Policy(
        namespace=namespace,
        name=metadata.get("name") or "",
        uid=metadata.get("uid") or "",
        generation=int(metadata.get("generation") or 0),
        connection_namespace=reference.get("namespace") or namespace,
        connection_name=reference.get("name") or "",
        interval=parse_duration(spec.get("interval", "10m"), "spec.interval", _INTERVAL_MIN, _INTERVAL_MAX),
        suspend=bool(spec.get("suspend", False)),
        mode=_enum(Mode, spec.get("mode", "DryRun"), "spec.mode"),
        match=match,
        when=when,
        action=action,
        limits=parse_limits(deletion, "spec.delete", Limits()),
        grace_period=grace,
        backup_retention=_delay(deletion, "backupRetention", _RETENTION, (_RETENTION_MIN, _RETENTION_MAX)),
        digest=_digest(spec, grace if action is Action.DELETE else None),
    )


def parse_limits(spec: Mapping[str, Any], field: str, default: Limits) -> Limits:
    """`{maxPerRun, maxPercent}` with what is left out taken from `default`."""
    return Limits(
        max_per_run=parse_whole(spec.get("maxPerRun", default.max_per_run), 1, 10_000, f"{field}.maxPerRun"),
        max_percent=parse_whole(spec.get("maxPercent", default.max_percent), 1, 100, f"{field}.maxPercent"),
    )


def _parse_match(spec: Mapping[str, Any], action: Action) -> Match:
    groups = spec.get("groups") or []
    if not groups:
        raise SpecError("spec.match.groups must hold at least one pattern")
    default_states = _DELETABLE if action is Action.DELETE else frozenset(GroupState)
    protocol_types = spec.get("protocolTypes")
    return Match(
        groups=Patterns(groups, "spec.match.groups"),
        exclude=Patterns(spec.get("exclude") or [], "spec.match.exclude"),
        states=frozenset(_enum(GroupState, s, "spec.match.states") for s in spec.get("states") or default_states),
        types=_types(spec.get("types") or _DEFAULT_TYPES),
        protocol_types=frozenset(protocol_types) if protocol_types else None,
        unprotect=frozenset(_enum(Unprotect, u, "spec.match.unprotect") for u in spec.get("unprotect") or ()),
    )


def _types(values: Iterable[Any]) -> frozenset[GroupType]:
    types = frozenset(_enum(GroupType, value, "spec.match.types") for value in values)
    # What a type is that came after this program, nobody here knows: nothing may be decided about it.
    if GroupType.UNKNOWN in types:
        raise SpecError("spec.match.types must not hold Unknown")
    return types


def _parse_when(spec: Mapping[str, Any]) -> When:
    committed, topics = spec.get("committed"), spec.get("topics")
    if committed not in (None, "None"):
        raise SpecError(f"spec.when.committed must be None, not {committed!r}")
    return When(
        committed_none=committed == "None",
        topics=_enum(Topics, topics, "spec.when.topics") if topics is not None else None,
        unchanged_for=_period(spec, "unchangedFor"),
        idle_for=_period(spec, "idleFor"),
        expires_within=_period(spec, "expiresWithin"),
    )


def _period(spec: Mapping[str, Any], key: str) -> timedelta | None:
    text = spec.get(key)
    return None if text is None else parse_duration(text, f"spec.when.{key}", _PERIOD_MIN)


def _delay(spec: Mapping[str, Any], key: str, default: timedelta, bounds: tuple[timedelta, timedelta]) -> timedelta:
    text = spec.get(key)
    return default if text is None else parse_duration(text, f"spec.delete.{key}", *bounds)


def _digest(spec: Mapping[str, Any], grace: timedelta | None) -> str:
    """Of what decides which groups match, and when they are deleted; mode and limits do not."""
    decisive = {key: spec.get(key) for key in ("connectionRef", "match", "when", "action")}
    if grace is not None:
        decisive["gracePeriod"] = format_duration(grace)
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def parse_mapping(value: Any, field: str) -> Mapping[str, Any]:
    """The value, if it is a mapping; raises SpecError, which names `field`, if not."""
    if not isinstance(value, Mapping):
        raise SpecError(f"{field} must be given, as a mapping")
    return value


def parse_whole(value: Any, low: int, high: int, field: str) -> int:
    """The value, if it is a whole number from `low` to `high`; raises SpecError, which names `field`, if not."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SpecError(f"{field} must be a whole number from {low} to {high}, not {value!r}")
    return value


def _enum(kind: type[E], value: Any, field: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise SpecError(f"{field} must be one of {', '.join(kind)}, not {value!r}") from None
