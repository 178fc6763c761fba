"""Parses the spec of a `GroupPolicy` into frozen records, with defaults. No I/O, no decisions.

The API server refuses most invalid specs (crds/); the checks here are for specs that it has not validated (files of the
command line, objects stored under an older CRD).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from group_hygiene.errors import SpecError
from group_hygiene.model.groups import Group, GroupState, GroupType
from group_hygiene.spec.durations import format_duration, parse_duration
from group_hygiene.spec.fields import POLICY, parse_decisive, parse_known, parse_mapping
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.receivers import parse_names

E = TypeVar("E", bound=StrEnum)

_INTERVAL_MIN, _INTERVAL_MAX = timedelta(seconds=5), timedelta(hours=24)
_PERIOD_MIN = timedelta(seconds=1)
_GRACE, _GRACE_MIN, _GRACE_MAX = timedelta(hours=24), timedelta(seconds=1), timedelta(hours=720)
_RETENTION, _RETENTION_MIN, _RETENTION_MAX = timedelta(hours=720), timedelta(hours=1), timedelta(hours=8760)
_GROUPS_AT_LEAST_MAX = 1_000_000
# Offsets are int64 in Kafka.
_RECORDS_MAX = 2**63 - 1


class Action(StrEnum):
    """The action on matching groups. DeleteOffsets deletes only their offsets of topics that they no longer read."""

    ALERT = "Alert"
    DELETE = "Delete"
    DELETE_OFFSETS = "DeleteOffsets"

    @property
    def changes(self) -> bool:
        """Whether it changes anything in Kafka, in mode Enforce."""
        return self is not Action.ALERT

    def describe_targets(self, groups: str) -> str:
        """The objects that the action deletes, for messages: the groups, or their stale offsets."""
        return f"stale offsets of {groups}" if self is Action.DELETE_OFFSETS else groups


class Mode(StrEnum):
    DRY_RUN = "DryRun"
    ENFORCE = "Enforce"


class Offsets(StrEnum):
    """A condition on a group's committed offsets. OutOfRange: a partition does not contain one of them."""

    NONE = "None"
    OUT_OF_RANGE = "OutOfRange"


class DeletedTopics(StrEnum):
    """How many of the topics for which a group committed offsets must be deleted."""

    SOME = "Some"
    ALL = "All"


class Unprotect(StrEnum):
    CONNECT = "Connect"
    STREAMS = "Streams"
    STREAMS_STATE = "StreamsState"
    MIRROR_MAKER = "MirrorMaker"
    SHARE = "Share"
    UNREADABLE_TOPICS = "UnreadableTopics"
    UNREADABLE_OFFSETS_LOG = "UnreadableOffsetsLog"


@dataclass(frozen=True, slots=True)
class Match:
    """The groups that a policy selects. within: those granted to its namespace by the connection; None = all.

    topics, exclude_topics: for DeleteOffsets, the topics whose offsets may be deleted.
    """

    groups: Patterns
    exclude: Patterns
    states: frozenset[GroupState]
    types: frozenset[GroupType]
    protocol_types: frozenset[str] | None
    unprotect: frozenset[Unprotect]
    topics: Patterns
    exclude_topics: Patterns
    within: Patterns | None = None

    def covers(self, topic: str) -> bool:
        """Whether offsets of this topic may be deleted. Exclude wins."""
        return self.topics.matches(topic) and not self.exclude_topics.matches(topic)

    @property
    def ungranted(self) -> tuple[str, ...]:
        """The patterns of `groups` that could match groups that are not granted, which `select` never returns."""
        return () if self.within is None else tuple(p for p in self.groups.sources if not self.within.covers(p))

    def visible(self, groups: Collection[str]) -> int:
        """The number of groups that the policy's namespace may see."""
        return len(groups) if self.within is None else sum(map(self.within.matches, groups))

    def select(self, groups: Mapping[str, Group]) -> Iterator[Group]:
        """The groups that the policy selects. Checks names first: most don't match.

        Checks the grant before the policy's own patterns, so that these are never matched with names of other tenants.
        """
        within = self.within
        names = (name for name in groups if (within is None or within.matches(name)) and self.groups.matches(name))
        return (group for group in map(groups.__getitem__, names) if self.selects(group))

    def selects(self, group: Group) -> bool:
        """Whether the policy selects this group. Exclude wins."""
        return (
            group.state in self.states
            and group.type in self.types
            and (self.protocol_types is None or group.protocol_type in self.protocol_types)
            and (self.within is None or self.within.matches(group.id))
            and self.groups.matches(group.id)
            and not self.exclude.matches(group.id)
        )


@dataclass(frozen=True, slots=True)
class When:
    """The conditions; a group must meet all of them. None = not set. lag_at_least: unread records in all partitions."""

    offsets: Offsets | None = None
    deleted_topics: DeletedTopics | None = None
    unchanged_for: timedelta | None = None
    idle_for: timedelta | None = None
    expires_within: timedelta | None = None
    lag_at_least: int | None = None

    @property
    def committed_none(self) -> bool:
        """Whether only groups without committed offsets match."""
        return self.offsets is Offsets.NONE

    @property
    def out_of_range(self) -> bool:
        """Whether only groups match that have an offset out of range."""
        return self.offsets is Offsets.OUT_OF_RANGE

    @property
    def asks_evidence(self) -> bool:
        """Whether it needs a pipeline's tables."""
        return self.idle_for is not None or self.expires_within is not None

    @property
    def asks_bounds(self) -> bool:
        """Whether it needs the bounds of partitions."""
        return self.lag_at_least is not None or self.out_of_range

    @property
    def asks_expiry_only(self) -> bool:
        """Whether it selects by expiry only, and not by use of the group."""
        return self.expires_within is not None and self.idle_for is None and self.unchanged_for is None


@dataclass(frozen=True, slots=True)
class Limits:
    """max_per_run: the most groups deleted in one run. max_percent: of all groups; above it none is deleted."""

    max_per_run: int = 50
    max_percent: int = 20

    def stricter(self, other: Limits | None) -> Limits:
        if other is None:
            return self
        return Limits(min(self.max_per_run, other.max_per_run), min(self.max_percent, other.max_percent))


@dataclass(frozen=True, slots=True)
class AlertSpec:
    """The receivers to notify. groups_at_least: no alert below this number of matches.

    receivers: names of receivers of the connection; None = all of them.
    """

    groups_at_least: int = 1
    receivers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """grace_period: from a group's mark to its deletion. backup_retention: how long a deleted group can be restored.

    digest: of the fields that decide which groups are deleted and when; a change starts counts and marks again.
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
    alert: AlertSpec = AlertSpec()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def enforced(self) -> bool:
        """Whether it may change something in Kafka."""
        return self.action.changes and self.mode is Mode.ENFORCE

    @property
    def by_topic(self) -> bool:
        """Whether it needs the last use of each topic of a group."""
        return self.action is Action.DELETE_OFFSETS

    @property
    def crosses_namespace(self) -> bool:
        return self.connection_namespace != self.namespace


# The states for Delete: groups in any other state have members.
_DELETABLE = frozenset({GroupState.EMPTY, GroupState.DEAD})
_DEFAULT_TYPES = (GroupType.CLASSIC, GroupType.CONSUMER)
# Brokers report subscriptions only of Stable groups.
_STABLE = frozenset({GroupState.STABLE})
# A rebalance passes, and ends no mark.
_IN_USE = frozenset(GroupState) - _DELETABLE - {GroupState.UNKNOWN, GroupState.NOT_READY}
_STATES = {Action.ALERT: frozenset(GroupState), Action.DELETE: _DELETABLE, Action.DELETE_OFFSETS: _STABLE}


def parse_policy(obj: Mapping[str, Any]) -> Policy:
    """A `GroupPolicy` object, from the API server or a YAML file, as a Policy.

    Raises SpecError, which states the requirement, for a spec that the CRD refuses.
    """
    metadata, spec = obj.get("metadata") or {}, parse_known(obj.get("spec"), "spec", POLICY)
    namespace = metadata.get("namespace") or "default"
    reference = parse_mapping(spec.get("connectionRef"), "spec.connectionRef")
    action = _enum(Action, spec.get("action"), "spec.action")
    when = _parse_when(parse_decisive(spec, "when"))
    match = _parse_match(parse_decisive(spec, "match"), action)
    if action is Action.DELETE:
        _refuse_deletion(match, when)
    elif action is Action.DELETE_OFFSETS:
        _refuse_offset_deletion(match, when)
        match = replace(match, states=_IN_USE)
    elif spec.get("delete"):
        raise SpecError("spec.delete must only be given with action Delete or DeleteOffsets")
    deletion = parse_decisive(spec, "delete")
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
        digest=_digest(spec, grace if action.changes else None),
        alert=_parse_alert(parse_mapping(spec.get("alert") or {}, "spec.alert")),
    )


def _refuse_deletion(match: Match, when: When) -> None:
    if when.unchanged_for is None and when.idle_for is None:
        raise SpecError("spec.when.idleFor or unchangedFor must be given with action Delete")
    if not match.states <= _DELETABLE:
        raise SpecError("spec.match.states must be only Empty and Dead with action Delete")


def _refuse_offset_deletion(match: Match, when: When) -> None:
    if when.idle_for is None or when != When(idle_for=when.idle_for):
        raise SpecError("spec.when must be idleFor and nothing else with action DeleteOffsets")
    if not match.states <= _STABLE:
        raise SpecError("spec.match.states must be only Stable with action DeleteOffsets")
    if not match.types <= frozenset(_DEFAULT_TYPES):
        raise SpecError("spec.match.types must be only Classic and Consumer with action DeleteOffsets")


def parse_limits(spec: Mapping[str, Any], field: str, default: Limits) -> Limits:
    """`{maxPerRun, maxPercent}`, with missing values from `default`."""
    return Limits(
        max_per_run=parse_whole(spec.get("maxPerRun", default.max_per_run), 1, 10_000, f"{field}.maxPerRun"),
        max_percent=parse_whole(spec.get("maxPercent", default.max_percent), 1, 100, f"{field}.maxPercent"),
    )


def _parse_alert(spec: Mapping[str, Any]) -> AlertSpec:
    listed = spec.get("receiverNames")
    return AlertSpec(
        groups_at_least=parse_whole(spec.get("groupsAtLeast", 1), 1, _GROUPS_AT_LEAST_MAX, "spec.alert.groupsAtLeast"),
        receivers=None if listed is None else parse_names(listed, "spec.alert.receiverNames"),
    )


def _parse_match(spec: Mapping[str, Any], action: Action) -> Match:
    groups = spec.get("groups") or []
    if not groups:
        raise SpecError("spec.match.groups must hold at least one pattern")
    unprotect = frozenset(_enum(Unprotect, u, "spec.match.unprotect") for u in spec.get("unprotect") or ())
    if Unprotect.STREAMS_STATE in unprotect and Unprotect.STREAMS not in unprotect:
        raise SpecError("spec.match.unprotect must hold Streams where it holds StreamsState")
    for key in ("topics", "excludeTopics"):
        if spec.get(key) and action is not Action.DELETE_OFFSETS:
            raise SpecError(f"spec.match.{key} must only be given with action DeleteOffsets")
    protocol_types = spec.get("protocolTypes")
    return Match(
        groups=Patterns(groups, "spec.match.groups"),
        exclude=Patterns(spec.get("exclude") or [], "spec.match.exclude"),
        states=frozenset(_enum(GroupState, s, "spec.match.states") for s in spec.get("states") or _STATES[action]),
        types=_types(spec.get("types") or _DEFAULT_TYPES),
        protocol_types=frozenset(protocol_types) if protocol_types else None,
        unprotect=unprotect,
        topics=Patterns(spec.get("topics") or ["*"], "spec.match.topics"),
        exclude_topics=Patterns(spec.get("excludeTopics") or [], "spec.match.excludeTopics"),
    )


def _types(values: Iterable[Any]) -> frozenset[GroupType]:
    types = frozenset(_enum(GroupType, value, "spec.match.types") for value in values)
    # This version can't decide about types that later versions of Kafka add.
    if GroupType.UNKNOWN in types:
        raise SpecError("spec.match.types must not hold Unknown")
    return types


def _parse_when(spec: Mapping[str, Any]) -> When:
    offsets, deleted_topics = spec.get("offsets"), spec.get("deletedTopics")
    return When(
        offsets=None if offsets is None else _enum(Offsets, offsets, "spec.when.offsets"),
        deleted_topics=(
            None if deleted_topics is None else _enum(DeletedTopics, deleted_topics, "spec.when.deletedTopics")
        ),
        unchanged_for=_period(spec, "unchangedFor"),
        idle_for=_period(spec, "idleFor"),
        expires_within=_period(spec, "expiresWithin"),
        lag_at_least=_at_least(spec.get("lag")),
    )


def _at_least(lag: Any) -> int | None:
    if lag is None:
        return None
    field = "spec.when.lag"
    return parse_whole(parse_known(lag, field, POLICY).get("atLeast"), 1, _RECORDS_MAX, f"{field}.atLeast")


def _period(spec: Mapping[str, Any], key: str) -> timedelta | None:
    text = spec.get(key)
    return None if text is None else parse_duration(text, f"spec.when.{key}", _PERIOD_MIN)


def _delay(spec: Mapping[str, Any], key: str, default: timedelta, bounds: tuple[timedelta, timedelta]) -> timedelta:
    text = spec.get(key)
    return default if text is None else parse_duration(text, f"spec.delete.{key}", *bounds)


def _digest(spec: Mapping[str, Any], grace: timedelta | None) -> str:
    """A hash of the fields that decide which groups match and when they are deleted; not of mode and limits."""
    decisive = {key: spec.get(key) for key in ("connectionRef", "match", "when", "action")}
    if grace is not None:
        decisive["gracePeriod"] = format_duration(grace)
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def parse_whole(value: Any, low: int, high: int, field: str) -> int:
    """The value, if it is a whole number from `low` to `high`; else raises SpecError, which names `field`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SpecError(f"{field} must be a whole number from {low} to {high}, not {value!r}")
    return value


def _enum(kind: type[E], value: Any, field: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise SpecError(f"{field} must be one of {', '.join(kind)}, not {value!r}") from None
