"""Parses a `GroupPolicy`, with its windows, and a `GroupKeep` into frozen records, with the CRD's defaults.

No I/O, no decisions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple, dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import field, structs

from group_hygiene.model.evidence import Need
from group_hygiene.model.group_keep import GroupKeep
from group_hygiene.model.groups import Group, GroupState, GroupType
from group_hygiene.spec.crds import judged
from group_hygiene.spec.fields import Decisive, Duration, ObjectRef, SpecPart, convert, format_duration
from group_hygiene.spec.patterns import NO_PATTERNS, Patterns


class Action(StrEnum):
    """The action on matching groups. DeleteOffsets deletes only their offsets of topics that they no longer read."""

    ALERT = "Alert"
    DELETE = "Delete"
    DELETE_OFFSETS = "DeleteOffsets"

    @property
    def changes(self) -> bool:
        """Whether it changes anything in Kafka, in mode Enforce."""
        return self is not Action.ALERT

    @property
    def member(self) -> str:
        """The field of a spec with the settings of this action. Alert has none."""
        return self[:1].lower() + self[1:]

    def describe_targets(self, groups: str) -> str:
        """The objects that the action deletes, for messages: the groups, or their stale offsets."""
        return f"stale offsets of {groups}" if self is Action.DELETE_OFFSETS else groups


class Mode(StrEnum):
    DRY_RUN = "DryRun"
    ENFORCE = "Enforce"


class CommittedOffsets(StrEnum):
    """A condition on a group's committed offsets. OutOfRange: a partition does not contain one of them."""

    ABSENT = "Absent"
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


# Protections, and the groups from which a policy may lift them.
Lifted = tuple[frozenset[Unprotect], Patterns]


class MatchSpec(Decisive, frozen=True, kw_only=True):
    """`match`, as it is given."""

    groups: Patterns
    exclude: Patterns = NO_PATTERNS
    states: frozenset[GroupState] = frozenset()
    types: frozenset[GroupType] = frozenset()
    unprotect: frozenset[Unprotect] = frozenset()


class Match(MatchSpec, frozen=True, kw_only=True):
    """The groups that a policy selects. within: those granted to its namespace by the connection; None = all.

    topics, exclude_topics: for DeleteOffsets, the topics whose offsets may be deleted.
    liftable: the protections that its namespace may lift, and from which groups; None = all.
    """

    topics: Patterns = Patterns(["*"])
    exclude_topics: Patterns = NO_PATTERNS
    within: Patterns | None = None
    liftable: tuple[Lifted, ...] | None = None

    def lifts(self, protection: Unprotect, group: str) -> bool:
        """Whether the policy lifts this protection from this group, and may do so."""
        may = self.liftable is None or any(protection in lifted and p.matches(group) for lifted, p in self.liftable)
        return protection in self.unprotect and may

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

    def includes(self, name: str) -> bool:
        """Whether the policy selects a group of this id, in whatever state. Exclude wins.

        Checks the grant before the policy's own patterns, so that these are never matched with names of other tenants.
        """
        return (
            (self.within is None or self.within.matches(name))
            and self.groups.matches(name)
            and not self.exclude.matches(name)
        )

    def selects(self, group: Group) -> bool:
        """Whether the policy selects this group."""
        return group.state in self.states and group.type in self.types and self.includes(group.id)


class Lag(Decisive, frozen=True):
    at_least: int


class When(Decisive, frozen=True, kw_only=True):
    """The conditions; a group must meet all of them. None = not set. Each has its entry in NEEDS."""

    committed_offsets: CommittedOffsets | None = None
    deleted_topics: DeletedTopics | None = None
    unchanged_for: Duration | None = None
    idle_for: Duration | None = None
    expires_within: Duration | None = None
    # Unread records in all partitions.
    lag: Lag | None = None

    @property
    def needs(self) -> frozenset[Need]:
        """What must be read of each group before these conditions can be judged."""
        return _all_needs(self)

    def each_need(self) -> Iterator[tuple[str, Need]]:
        """Each condition that is set, by its name in the CRD, with each of its needs."""
        for name, spelled in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, name)
            if value is not None:
                yield from ((spelled, need) for need in (*NEEDS[name], *_NEEDS_OF_VALUES.get((name, value), ())))

    @property
    def lag_at_least(self) -> int | None:
        return None if self.lag is None else self.lag.at_least

    @property
    def without_offsets(self) -> bool:
        """Whether only groups without committed offsets match."""
        return self.committed_offsets is CommittedOffsets.ABSENT

    @property
    def out_of_range(self) -> bool:
        """Whether only groups match that have an offset out of range."""
        return self.committed_offsets is CommittedOffsets.OUT_OF_RANGE

    @property
    def unused_for(self) -> timedelta | None:
        """The longest time for which a group must be unused; None = it does not matter."""
        return max(filter(None, (self.unchanged_for, self.idle_for)), default=None)

    @property
    def asks_evidence(self) -> bool:
        """Whether it needs a pipeline's tables."""
        return Need.ACTIVITY in self.needs

    @property
    def asks_bounds(self) -> bool:
        """Whether it needs the bounds of partitions."""
        return Need.BOUNDS in self.needs

    @property
    def asks_expiry_only(self) -> bool:
        """Whether it selects by expiry only, and not by use of the group."""
        return self.expires_within is not None and self.unused_for is None


# Per field of `When`, what must be read of each group before the condition can be judged. The checks, the reads before
# a deletion, statuses and `backtest` follow it.
NEEDS: Mapping[str, tuple[Need, ...]] = {
    "committed_offsets": (Need.OFFSETS,),
    "deleted_topics": (Need.OFFSETS, Need.MISSING_TOPICS),
    "unchanged_for": (Need.OFFSETS,),
    "idle_for": (Need.ACTIVITY,),
    "expires_within": (Need.ACTIVITY,),
    "lag": (Need.OFFSETS, Need.BOUNDS),
}
# What only one value of a field needs besides.
_NEEDS_OF_VALUES: Mapping[tuple[str, Any], tuple[Need, ...]] = {
    ("committed_offsets", CommittedOffsets.OUT_OF_RANGE): (Need.BOUNDS,),
}


# Asked for each group.
@lru_cache(maxsize=1_000)
def _all_needs(when: When) -> frozenset[Need]:
    return frozenset(need for _, need in when.each_need())


@dataclass(frozen=True, slots=True)
class Limits:
    """max_per_run: the most groups deleted in one run. max_percent: of all groups; above it none is deleted.

    min_groups: none is deleted from a cluster with fewer groups.
    """

    max_per_run: int = 50
    max_percent: int = 20
    min_groups: int = 0

    def stricter(self, other: Limits | None) -> Limits:
        if other is None:
            return self
        return Limits(
            min(self.max_per_run, other.max_per_run),
            min(self.max_percent, other.max_percent),
            max(self.min_groups, other.min_groups),
        )


@dataclass(frozen=True, slots=True)
class Floors:
    """The least times of a policy that deletes: `limits.min...` of a connection. None = not set."""

    grace_period: timedelta | None = None
    unchanged_for: timedelta | None = None
    idle_for: timedelta | None = None
    backup_retention: timedelta | None = None

    def or_else(self, other: Floors) -> Floors:
        """With the other's floors where there is none."""
        return Floors(*(own or floor for own, floor in zip(astuple(self), astuple(other), strict=True)))

    def apply(self, policy: Policy) -> Policy:
        """The policy with at least these times, and `stricter` for each that they raise.

        Its digest then includes them, so that a changed floor restarts counts and marks.
        """
        grace, retention = (f"{policy.action.member}.{field}" for field in ("gracePeriod", "backupRetention"))
        times: dict[str, timedelta | None] = {
            "when.unchangedFor": policy.when.unchanged_for,
            "when.idleFor": policy.when.idle_for,
            grace: policy.grace_period,
            retention: policy.backup_retention,
        }
        floors = (self.unchanged_for, self.idle_for, self.grace_period, self.backup_retention)
        raised = {
            field: (own, Duration(seconds=floor.total_seconds()))
            for (field, own), floor in zip(times.items(), floors, strict=True)
            if own is not None and floor is not None and own < floor
        }
        if not policy.action.changes or not raised:
            return policy
        least = {field: floor for field, (_, floor) in raised.items()}
        notes = [
            f"{field} is {format_duration(floor)}, not {format_duration(own)}" for field, (own, floor) in raised.items()
        ]
        when = structs.replace(
            policy.when,
            unchanged_for=least.get("when.unchangedFor", policy.when.unchanged_for),
            idle_for=least.get("when.idleFor", policy.when.idle_for),
        )
        decisive = {name: floor for name, floor in least.items() if name != retention}
        text = f"{policy.digest} {sorted((field, format_duration(floor)) for field, floor in decisive.items())}"
        return structs.replace(
            policy.with_deletion(
                grace_period=least.get(grace, policy.grace_period),
                backup_retention=least.get(retention, policy.backup_retention),
            ),
            when=when,
            digest=hashlib.sha256(text.encode()).hexdigest()[:16] if decisive else policy.digest,
            stricter=(*policy.stricter, *notes),
        )


# For policies of other namespaces than the connection's, where it sets no floor of its own.
FLOORS_OF_TENANTS = Floors(timedelta(hours=24), timedelta(hours=24), timedelta(hours=24), timedelta(days=7))


class AlertSpec(SpecPart, frozen=True, kw_only=True):
    """`notify`: the receivers to notify. groups_at_least: no alert below this number of matches.

    receiver_names: of the connection; None = all of them.
    """

    groups_at_least: int = 1
    receiver_names: tuple[str, ...] | None = None


class DeleteSpec(Decisive, frozen=True, kw_only=True):
    """`delete`. grace_period: from a group's mark to its deletion.

    backup_retention: how long a deleted group can be restored. windows: when it may delete; empty = always.
    """

    max_per_run: int
    max_percent: int
    grace_period: Duration
    backup_retention: Duration
    windows: tuple[Window, ...] = ()


class DeleteOffsetsSpec(DeleteSpec, frozen=True, forbid_unknown_fields=True):
    """`deleteOffsets`. topics, exclude_topics: whose offsets may be deleted; without patterns in `topics`, of all."""

    topics: Patterns = NO_PATTERNS
    exclude_topics: Patterns = NO_PATTERNS


class PolicySpec(Decisive, frozen=True, kw_only=True):
    """`action` is the discriminator of a union, `delete` and `deleteOffsets` are its members."""

    connection_ref: ObjectRef
    match: MatchSpec
    when: When = When()
    action: Action
    mode: Mode
    interval: Duration
    suspend: bool
    delete: DeleteSpec
    delete_offsets: DeleteOffsetsSpec
    alert: AlertSpec = field(name="notify")


class Policy(PolicySpec, frozen=True, kw_only=True):
    """A GroupPolicy with the CRD's defaults. stricter: what its connection makes stricter than its spec.

    digest: of the fields that decide which groups are deleted and when; a change starts counts and marks again.
    """

    match: Match
    namespace: str
    name: str
    uid: str
    generation: int
    digest: str
    stricter: tuple[str, ...] = ()

    @property
    def connection_namespace(self) -> str:
        return self.connection_ref.namespace or self.namespace

    @property
    def connection_name(self) -> str:
        return self.connection_ref.name

    @property
    def connection_key(self) -> str:
        """NAMESPACE/NAME of its KafkaConnection."""
        return f"{self.connection_namespace}/{self.connection_name}"

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def _deletion(self) -> DeleteSpec:
        """The member for its action; Alert has none, and needs none of these fields."""
        return self.delete_offsets if self.by_topic else self.delete

    @property
    def limits(self) -> Limits:
        return Limits(self._deletion.max_per_run, self._deletion.max_percent)

    @property
    def grace_period(self) -> timedelta:
        return self._deletion.grace_period

    @property
    def backup_retention(self) -> timedelta:
        return self._deletion.backup_retention

    @property
    def windows(self) -> tuple[Window, ...]:
        return self._deletion.windows

    def with_deletion(self, **changes: Any) -> Policy:
        """With these fields of the member for its action."""
        member = "delete_offsets" if self.by_topic else "delete"
        return structs.replace(self, **{member: structs.replace(self._deletion, **changes)})

    @property
    def stricter_note(self) -> str:
        """`stricter` as a text; "" = nothing."""
        notes = ", ".join(self.stricter)
        return f"by the limits and access of its KafkaConnection, {notes}" if notes else ""

    @property
    def enforced(self) -> bool:
        """Whether it may change something in Kafka."""
        return self.action.changes and self.mode is Mode.ENFORCE

    @property
    def counts_commits(self) -> bool:
        """Whether `idleFor` counts from the last commit, with or without members since."""
        return self.action is Action.ALERT and bool(self.match.states - _DELETABLE)

    @property
    def by_topic(self) -> bool:
        """Whether it needs the last use of each topic of a group."""
        return self.action is Action.DELETE_OFFSETS

    @property
    def crosses_namespace(self) -> bool:
        return self.connection_namespace != self.namespace


# The states for Delete: groups in any other state have members.
_DELETABLE = frozenset({GroupState.EMPTY, GroupState.DEAD})
_DEFAULT_TYPES = {
    **dict.fromkeys((Action.DELETE, Action.DELETE_OFFSETS), frozenset({GroupType.CLASSIC, GroupType.CONSUMER})),
    Action.ALERT: frozenset(GroupType) - {GroupType.UNKNOWN},
}
# A rebalance passes, and ends no mark.
_IN_USE = frozenset(GroupState) - _DELETABLE - {GroupState.UNKNOWN, GroupState.NOT_READY}


def parse_policy(obj: Mapping[str, Any]) -> Policy:
    """A `GroupPolicy` object, from the API server or a YAML file, as a Policy.

    Raises SpecError, which states the requirement, for a spec that the CRD refuses, or that can't be judged.
    """
    metadata = obj.get("metadata") or {}
    spec = convert(judged("GroupPolicy", obj, ("delete", "deleteOffsets", "notify")), PolicySpec, "spec")
    namespace, ref = metadata.get("namespace") or "default", spec.connection_ref
    return Policy(
        **structs.asdict(spec)
        | {"match": _match(spec), "connection_ref": ObjectRef(ref.name, ref.namespace or namespace)},
        namespace=namespace,
        name=metadata.get("name") or "",
        uid=metadata.get("uid") or "",
        generation=int(metadata.get("generation") or 0),
        digest=_digest(spec, namespace),
    )


def _match(spec: PolicySpec) -> Match:
    """With defaults, which depend on the action. DeleteOffsets also observes groups that rebalance."""
    given, offsets = spec.match, spec.delete_offsets
    states = {Action.ALERT: frozenset(GroupState), Action.DELETE: _DELETABLE, Action.DELETE_OFFSETS: _IN_USE}
    return Match(
        **structs.asdict(given)
        | {
            "states": (given.states if spec.action is not Action.DELETE_OFFSETS else None) or states[spec.action],
            "types": given.types or _DEFAULT_TYPES[spec.action],
        },
        topics=offsets.topics if offsets.topics.sources else Patterns(["*"]),
        exclude_topics=offsets.exclude_topics,
    )


def _digest(spec: PolicySpec, namespace: str) -> str:
    """A hash of the fields that decide which groups match and when they are deleted; not of mode and limits.

    The same for each spelling of a spec, like 3d and 72h, and for a default that is given. Omitted fields without a
    default are not part of it: a later version with more fields must not restart marks.
    """
    ref, given, offsets = spec.connection_ref, spec.match, spec.delete_offsets
    states = given.states or (_DELETABLE if spec.action is Action.DELETE else frozenset())
    match = structs.replace(given, states=states, types=given.types or _DEFAULT_TYPES[spec.action])
    decisive: dict[str, Any] = {
        "connection": [ref.namespace or namespace, ref.name],
        "action": spec.action,
        "match": _in_one_form(match),
        "when": _in_one_form(spec.when),
    }
    if spec.action is Action.DELETE:
        decisive["gracePeriod"] = format_duration(spec.delete.grace_period)
    if spec.action is Action.DELETE_OFFSETS:
        decisive["gracePeriod"] = format_duration(offsets.grace_period)
        decisive["topics"] = [_in_one_form(offsets.topics) or ["*"], _in_one_form(offsets.exclude_topics)]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


def _in_one_form(value: Any) -> Any:
    """A part of a spec without omitted fields, with durations formatted, and with lists sorted, whose order does not
    matter.
    """
    if isinstance(value, SpecPart):
        fields = {name: _in_one_form(field) for name, field in structs.asdict(value).items()}
        return {name: form for name, form in fields.items() if form not in (None, [], {})}
    if isinstance(value, Patterns):
        return sorted(set(value.sources))
    if isinstance(value, frozenset):
        return sorted(value)
    return format_duration(value) if isinstance(value, timedelta) else value


# When deletions may happen: weekly windows of wall-clock time. No I/O, no clock of its own.
#
# A time of day that the clock skips (daylight saving) counts as that much later; one that occurs twice counts as the
# first of the two.


class Weekday(StrEnum):
    """In the order of `datetime.weekday`."""

    MONDAY = "Monday"
    TUESDAY = "Tuesday"
    WEDNESDAY = "Wednesday"
    THURSDAY = "Thursday"
    FRIDAY = "Friday"
    SATURDAY = "Saturday"
    SUNDAY = "Sunday"


# A window may be empty on the one day of the year at which the clock skips it.
_DAYS_AHEAD = 15
_WEEKDAYS = tuple(Weekday)


class Window(Decisive, frozen=True, kw_only=True):
    """Opens at `start` on each of `days`, and closes at `end`, on the next day if that is not later than `start`.

    days: empty = every day. time_zone: a name of the IANA time zone database.
    """

    days: frozenset[Weekday] = frozenset()
    start: str = field(name="from")
    end: str = field(name="to")
    time_zone: str = "UTC"

    def __str__(self) -> str:
        days = ", ".join(day for day in Weekday if day in self.days) or "every day"
        return f"{days} {self.start} to {self.end} {self.time_zone}"

    def around(self, now: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The next times (opens, closes) in UTC, in their order, from the day before `now` on; none that is empty."""
        zone, start, end = ZoneInfo(self.time_zone), time.fromisoformat(self.start), time.fromisoformat(self.end)
        today, overnight = now.astimezone(zone).date(), timedelta(days=end <= start)
        for day in (today + timedelta(days=ahead) for ahead in range(-1, _DAYS_AHEAD)):
            if self.days and _WEEKDAYS[day.weekday()] not in self.days:
                continue
            opens, closes = _moment(day, start, zone), _moment(day + overnight, end, zone)
            if opens < closes:
                yield opens, closes


# All marks of one run have the same date.
@lru_cache(maxsize=1_000)
def next_open(windows: tuple[Window, ...], now: datetime) -> datetime:
    """The first moment from `now` on at which one of the windows is open: `now` if one is, or if there are none."""
    if not windows:
        return now
    times = (
        next(((opens, closes) for opens, closes in window.around(now) if now < closes), None) for window in windows
    )
    # If there were none in all of these days, none would be open now.
    return max(now, min((span[0] for span in times if span), default=now + timedelta(days=_DAYS_AHEAD)))


def _moment(day: date, at: time, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, at, zone).astimezone(UTC)


# The spec of a GroupKeep, parsed.

GROUPS_MAX = 100


class _KeepSpec(Decisive, frozen=True, kw_only=True):
    connection_ref: ObjectRef
    groups: tuple[str, ...]
    reason: str
    until: datetime | None = None
    ignore_not_found: bool


def parse_keep(obj: Mapping[str, Any]) -> GroupKeep:
    """Raises SpecError."""
    metadata, spec = obj["metadata"], convert(judged("GroupKeep", obj), _KeepSpec, "spec")
    return GroupKeep(metadata["namespace"], metadata["name"], metadata["uid"], spec.groups, spec.reason, spec.until)
