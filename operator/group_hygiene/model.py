"""The records that everything passes on: frozen, without I/O, without an opinion. Of this package only `contents`."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from group_hygiene.contents import Deletion
from group_hygiene.entries import KeepRequest

# Of the pipeline's tables: written by it, and known to whoever reads them. Another one is not read (docs/upgrades.md).
TABLES_VERSION = 1
# Of a partition: its leader knows no leader epochs (formats before Kafka 0.11), so nobody can ask about them (KIP-101).
NO_LEADER_EPOCH = -1


class GroupType(StrEnum):
    """What kind of group it is, as ListGroups v5 says it (KIP-848, KIP-932, KIP-1071)."""

    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    SHARE = "Share"
    STREAMS = "Streams"
    UNKNOWN = "Unknown"


class GroupState(StrEnum):
    """The state of a group, spelled as ListGroups v4 does (KIP-518)."""

    UNKNOWN = "Unknown"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    NOT_READY = "NotReady"


class Partition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class CommittedOffset(NamedTuple):
    """What a group committed for one partition (OffsetFetchResponse); `leader_epoch` -1 = the client gave none."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Bounds(NamedTuple):
    """Where the records of one partition are (ListOffsets): the first one's offset, and the offset after the last."""

    start: int
    end: int


Offsets = Mapping[Partition, CommittedOffset]
# The code of a Fault: there is no such topic, or it has no such partition.
NO_SUCH_TOPIC = "UNKNOWN_TOPIC_OR_PARTITION"
# The code of a Fault: we lack a permission on the topic.
TOPIC_DENIED = "TOPIC_AUTHORIZATION_FAILED"


# Brokers that never drop committed offsets. Longer than anything that is compared with it.
NEVER = timedelta(days=36_500)


def offsets_retention(minutes: int | None) -> timedelta | None:
    """How long brokers keep offsets, by their offsets.retention.minutes: negative = for ever, None = not known.

    Apache Kafka takes 1 or more; compatible brokers also take -1. Longer than NEVER is for ever, too.
    """
    if minutes is None:
        return None
    return NEVER if minutes < 0 or minutes >= NEVER / timedelta(minutes=1) else timedelta(minutes=minutes)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why there is no answer for one broker, group or partition. `code` is Kafka's own name of the error."""

    code: str
    message: str
    retriable: bool = False

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


@dataclass(frozen=True, slots=True)
class Group:
    """One listed group. `protocol_type` is empty for a *simple* group, one that nobody ever joined (assign+commit)."""

    id: str
    type: GroupType
    protocol_type: str
    state: GroupState
    coordinator: int

    @property
    def simple(self) -> bool:
        return self.protocol_type == ""

    @property
    def in_use(self) -> bool:
        """Whether it has members."""
        return self.state not in (GroupState.EMPTY, GroupState.DEAD, GroupState.UNKNOWN)


class Listed(NamedTuple):
    """What ListGroups says of a group besides its id: the same for most groups of a broker, so they share it."""

    type: GroupType
    protocol_type: str
    state: GroupState
    coordinator: int


class Groups(Mapping[str, Group]):
    """Groups by id, as a scan of a large cluster can afford them: a record is made when somebody asks for it."""

    __slots__ = ("rows",)

    def __init__(self, rows: Mapping[str, Listed]) -> None:
        self.rows = rows

    def __getitem__(self, name: str) -> Group:
        return Group(name, *self.rows[name])

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Groups({dict(self)!r})"


@dataclass(frozen=True, slots=True)
class Unchanged:
    """How long the operator itself saw a group Empty with the same committed offsets, at every look (see `watching`).

    since: for people. observed: what decides; never longer than the time that has really passed.
    missed: how long after the look before the last one came, where that was so late that all began anew.
    """

    since: datetime
    observed: timedelta
    missed: timedelta | None = None


class Commits(NamedTuple):
    """When a group committed for the partitions of a topic, as far as it has their offsets: the first and the last.

    oldest: by the records, as brokers count. latest: not before it can have been, see `Activity.last_commit_after`.
    """

    oldest: datetime
    latest: datetime


@dataclass(frozen=True, slots=True)
class Activity:
    """What the offsets log tells of one group, up to a place in the log. A time that is None is not known.

    type, protocol_type: the group as the log last described it. state: Empty, Active, Gone or Unknown, likewise.
    first_seen: of any record. last_commit: of any partition, undone by an aborted transaction or not.
    oldest_commit: the least of the last commit times of the partitions that still have an offset.
    empty_since: when its last member left; None also where nobody ever joined it.
    log_partition: of `__consumer_offsets`. covered_to: every record before that log offset is taken in. read_at: when
    that was the end of all that was decided there. complete_since: before that moment, records were lost unread; None =
    never.
    last_commit_after, state_after: the log was read to its end then, and the last commit, or the record that says its
    state, was not there yet: it is no older, whatever the time in it, which a client or a broker's clock made up.
    by_topic: when it committed for each topic that it has offsets of. Read only of groups with members whose oldest
    commit is old enough to matter; None = not read.
    """

    type: GroupType
    protocol_type: str
    state: str
    first_seen: datetime | None
    last_commit: datetime | None
    oldest_commit: datetime | None
    empty_since: datetime | None
    log_partition: int
    covered_to: int
    read_at: datetime
    complete_since: datetime | None = None
    by_topic: Mapping[str, Commits] | None = None
    last_commit_after: datetime | None = None
    state_after: datetime | None = None

    @property
    def simple(self) -> bool:
        return self.type is GroupType.CLASSIC and self.protocol_type == ""

    def is_of_type(self, group: Group) -> bool:
        """Whether the log knows it as the type, and if that is Classic the protocol type, as which it is listed now."""
        classic = self.type is GroupType.CLASSIC
        return self.type is group.type and (not classic or self.protocol_type == group.protocol_type)

    def is_of(self, group: Group) -> bool:
        """Whether the log tells of the group as it is listed now: of its type, and with members or without."""
        with_members = self.state == "Active" if group.in_use else self.state in ("Empty", "Unknown")
        return self.is_of_type(group) and with_members

    def used_last(self, topic: str) -> datetime | None:
        """When it last committed for a topic of which it has offsets; None = that can't be known."""
        known = None if self.by_topic is None else self.by_topic.get(topic)
        return None if known is None else max(filter(None, (known.latest, self.complete_since)))

    @property
    def idle_since(self) -> datetime | None:
        """Since when nobody committed or was a member; None = that can't be known, so it may be in use.

        A group with members before it was Empty needs both times: clients skip commits of unchanged offsets
        (librdkafka), and records of KIP-848 groups carry no time at which they became Empty.
        """
        needed = self.last_commit if self.simple else self.empty_since
        if needed is None or self.type is GroupType.UNKNOWN:
            return None
        left = None if self.simple else self.state_after
        return max(filter(None, (needed, self.last_commit, self.last_commit_after, left, self.complete_since)))

    @property
    def committed_after_empty(self) -> bool:
        """Whether it committed after its last member left: by their times, or by the reads of the log between them."""
        if self.empty_since is None or self.last_commit is None:
            return False
        left = max(filter(None, (self.empty_since, self.state_after)))
        later = self.last_commit_after is not None and self.last_commit_after > left
        return later or self.last_commit > self.empty_since

    @property
    def nothing_committed(self) -> bool:
        """The log tells that no offset of it is left; False also where records were lost, so that nobody knows."""
        return self.oldest_commit is None and self.complete_since is None

    def first_expiry(self, retention: timedelta) -> datetime | None:
        """When brokers drop the first of its offsets, while it stays Empty; None = not known, or there are none.

        retention: the brokers' offsets.retention.minutes. A Classic group's clock starts when it becomes Empty, and no
        later commit moves it (ClassicGroup.offsetExpirationCondition); all others' are those of each commit.
        """
        return None if self.nothing_committed else self._expiry(self.oldest_commit, retention)

    def last_expiry(self, retention: timedelta) -> datetime | None:
        """When the last of its offsets is dropped, and the group with it; as `first_expiry`."""
        return self._expiry(self.last_commit, retention)

    def expiry_in_use(self, subscribed: Collection[str], retention: timedelta) -> datetime | None:
        """When brokers drop the first of its offsets while it has members; None = of what `by_topic` tells, none.

        subscribed: the topics that its members read. Those are safe; of any other one, each commit has its own clock
        (ConsumerGroup.offsetExpirationCondition, and ClassicGroup's for the protocol type `consumer`).
        """
        told = self.by_topic or {}
        first = min((commits.oldest for topic, commits in told.items() if topic not in subscribed), default=None)
        return None if first is None else first + retention

    def _expiry(self, commit: datetime | None, retention: timedelta) -> datetime | None:
        if self.type is GroupType.CLASSIC and not self.simple:
            return None if self.empty_since is None else self.empty_since + retention
        if commit is None:
            return None
        # What was old already when the last member left was safe until then (KIP-848).
        return max(commit + retention, self.empty_since or commit)


@dataclass(frozen=True, slots=True)
class Claims:
    """What Kubernetes objects of other products say of groups: each id or prefix -> the object.

    named: groups that their workloads use. synced, prefixes: groups that Redpanda ShadowLinks write on their targets.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    synced: Mapping[str, str] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)

    def owner(self, group: str) -> str | None:
        """The object that names a group."""
        exact = self.named.get(group) or self.synced.get(group)
        if exact is not None or not group.startswith(tuple(self.prefixes)):
            return exact
        return next(owner for prefix, owner in self.prefixes.items() if group.startswith(prefix))


@dataclass(frozen=True, slots=True)
class Protections:
    """What else says that a group is needed, for the whole cluster.

    streams: ids, of the groups to judge, that own topics named `<id>-*-changelog` or `<id>-*-repartition`; None =
        topics could not be read.
    mirrored: ids that MirrorMaker 2 checkpoints name; None = this is a mirror target whose checkpoints were not read.
    claimed: what Kubernetes objects of other products name; a Fault = such objects may be
        there, but could not be read.
    without_streams: the versions of brokers that could not have a group of the Streams protocol back; empty = all
        could, or there is no such group to judge.
    """

    streams: frozenset[str] | None = frozenset()
    mirrored: frozenset[str] | None = frozenset()
    claimed: Claims | Fault = field(default_factory=Claims)
    without_streams: tuple[str, ...] | Fault = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known about one group when it is judged. None = not read (yet); a Fault = could not be read.

    protected_by: the connection's `protect` pattern that covers the group.
    failover_target: whether the connection says that groups of another cluster are synced into this one.
    keep_request: somebody's request to leave it alone, as the ledger has it.
    deleted: its last deletion by this operator, if the ledger still knows it.
    damaged: why a record about it in the ledger can't be read.
    missing_topics: those of the committed topics that the cluster says do not exist.
    bounds: of all committed partitions, if they were read; of what other groups committed, too (see `lag`).
    records: of partitions where records seem to wait, an offset at or after which a committed record is; -1 = none is
        from the committed offset on. Of as many of them as it takes to tell (see `lag.waiting`).
    activity: a Fault's code is one of the reasons that begin with Evidence.
    retention: the brokers' offsets.retention.minutes.
    subscribed: the topics that its members read.
    offsets_deleted: topic -> the last deletion of its offsets by this operator, if the ledger still knows it.
    """

    protections: Protections
    protected_by: str | None = None
    failover_target: bool = False
    keep_request: KeepRequest | None = None
    deleted: Deletion | None = None
    damaged: str | None = None
    unchanged: Unchanged | None = None
    offsets: Offsets | Fault | None = None
    missing_topics: frozenset[str] | Fault | None = None
    bounds: Mapping[Partition, Bounds | Fault] | None = None
    records: Mapping[Partition, int | Fault] | None = None
    activity: Activity | Fault | None = None
    retention: timedelta | None = None
    subscribed: frozenset[str] | Fault | None = None
    offsets_deleted: Mapping[str, Deletion] = field(default_factory=dict)

    @property
    def idle_since(self) -> datetime | None:
        """Since when nobody uses it: by the offsets log where that tells, else as far as our own looks go."""
        told = self.activity.idle_since if isinstance(self.activity, Activity) else None
        return told or (self.unchanged.since if self.unchanged else None)

    def used_since(self, moment: datetime, topic: str | None = None) -> bool:
        """Whether the log, or the operator's own scans, show a use of the group at that moment or later.

        topic: only commits for this topic count. The log has brokers' time (see `Journal.skew`).
        """
        activity = self.activity if isinstance(self.activity, Activity) else None
        if topic is not None:
            uses = [activity.used_last(topic) if activity else None]
        else:
            uses = [activity.idle_since if activity else None, self.unchanged.since if self.unchanged else None]
        return any(use >= moment for use in uses if use is not None)


@dataclass(frozen=True, slots=True)
class Keep:
    """A check's answer: this group stays. `reason` is a constant of `reasons`."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one policy says of one group that its `match` selects: Match (keep is None), or Keep with its reason.

    topics: of a match of DeleteOffsets, those whose offsets are to go.
    """

    group: Group
    evidence: Evidence
    keep: Keep | None
    topics: frozenset[str] = frozenset()

    @property
    def matches(self) -> bool:
        return self.keep is None

    @property
    def expires(self) -> datetime | None:
        """When brokers drop the first of the group's offsets, as far as was found out; None = not known, or never."""
        activity, retention = self.evidence.activity, self.evidence.retention
        if not isinstance(activity, Activity) or retention is None or not activity.is_of(self.group):
            return None
        if not self.group.in_use:
            return activity.first_expiry(retention)
        subscribed = self.evidence.subscribed
        if subscribed is None or isinstance(subscribed, Fault):
            return None
        return activity.expiry_in_use(subscribed, retention)


class OutcomeKind(StrEnum):
    DELETED = "Deleted"
    KEPT = "Kept"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to one group in one run; for Kept and Failed with the reason.

    topics: those whose offsets were deleted, where the group stays.
    """

    group: str
    kind: OutcomeKind
    reason: str
    message: str
    topics: tuple[str, ...] = ()


def fingerprint(group: Group, offsets: Offsets) -> bytes:
    """16 bytes that are the same only while the group's type, protocol type and every committed offset are."""
    rows = sorted([(*place, *offset) for place, offset in offsets.items()])
    text = repr((group.type.value, group.protocol_type, rows))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
