"""The evidence about one group when it is judged: records, without I/O and without decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from group_hygiene.model import reasons
from group_hygiene.model.entries import KeepRequest, OutcomeType, UsedBy
from group_hygiene.model.groups import Bounds, Fault, Group, GroupType, Offsets, Partition
from group_hygiene.model.naming import printable, truncated
from group_hygiene.model.reasons import Refusal

# The last client of a group in words: tenants choose these texts, so they are quoted, on one line and truncated.

# In bytes of JSON: of one text, and of all texts on a client.
_TEXT_MAX, LAST_CLIENT_MAX = 100, 500
# More clients of one record are not stored; these are the columns of one.
CLIENTS_MAX = 5
CLIENT = ("client_id", "host", "instance_id", "rack_id")


class LastClient(NamedTuple):
    """A member in the last record of a group that names members, at that time.

    host: as the broker saw it, None = not stored. others: how many more members the record names, of CLIENTS_MAX.
    """

    client_id: str
    host: str | None
    instance_id: str | None
    rack_id: str | None
    others: int
    at: datetime

    @classmethod
    def of(cls, clients: Sequence[Mapping[str, Any]] | None, at: datetime | None) -> LastClient | None:
        """Of the clients in a row of `activity`, the first by its id; None = there are none."""
        if not clients or at is None:
            return None
        first = min(clients, key=lambda client: [client[name] or "" for name in CLIENT])
        fields = {name: first[name] for name in CLIENT}
        return cls(**fields | {"client_id": fields["client_id"] or "", "others": len(clients) - 1, "at": at})

    def __str__(self) -> str:
        """For example: client 'billing-7', rack 'a', from 10.1.2.3 and others."""
        named = (("instance", self.instance_id), ("rack", self.rack_id))
        parts = [f"client {_quoted(self.client_id)}" if self.client_id else "a client without an id"]
        parts += [f"{what} {_quoted(text)}" for what, text in named if text]
        text = ", ".join(parts)
        if self.host:
            # The last of the parts in quotes: no client id can forge it.
            text += f"{',' * (len(parts) > 1)} from {truncated(printable(self.host), _TEXT_MAX)}"
        if self.others:
            text += " and others" if self.others + 1 >= CLIENTS_MAX else f" and {self.others} more"
        return truncated(text, LAST_CLIENT_MAX)


def ago(time: timedelta) -> str:
    """In the largest unit that gives two or more: 41 days ago, 30 hours ago."""
    seconds = max(0, int(time.total_seconds()))
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return "just now"


def _quoted(text: str) -> str:
    return f"'{truncated(printable(text).replace(chr(39), chr(34)), _TEXT_MAX)}'"


# The version of the pipeline's tables. Tables of another version are not read (docs/upgrades.md).
TABLES_VERSION = 1
# Each version of `activity` that a batch of the pipeline wrote has a transaction of this application in Delta's log,
# with the batch's number: in a copy of earlier, later versions get the same numbers again.
ACTIVITY_WRITER = "group-hygiene"


# Brokers never delete committed offsets. Longer than any duration that is compared with it.
NEVER = timedelta(days=36_500)


def offsets_retention(minutes: int | None) -> timedelta | None:
    """How long brokers retain offsets, by their offsets.retention.minutes: negative = for ever, None = not known.

    Apache Kafka accepts 1 or more; compatible brokers also accept -1. Longer than NEVER is for ever, too.
    """
    if minutes is None:
        return None
    return NEVER if minutes < 0 or minutes >= NEVER / timedelta(minutes=1) else timedelta(minutes=minutes)


class Unchanged(msgspec.Struct, frozen=True, gc=False):
    """How long the operator saw a group Empty with the same committed offsets, at every scan: see `engine.unchanged`.

    since: for messages. observed: for decisions; never longer than the time that has really passed.
    missed: the time between the last two scans, if it was so long that the count began again.
    """

    since: datetime
    observed: timedelta
    missed: timedelta | None = None


class Commits(NamedTuple):
    """The first and the last time at which a group committed for the partitions of a topic for which it has offsets.

    oldest: by the timestamps in the records, as brokers count. latest: see `Activity.last_commit_after`.
    """

    oldest: datetime
    latest: datetime


@dataclass(frozen=True, slots=True)
class Activity:
    """The history of one group in the offsets log, up to an offset. A time that is None is not known."""

    # The group as the log last described it. state: Empty, Active, Gone or Unknown.
    type: GroupType
    protocol_type: str
    state: str
    # Of any record.
    first_seen: datetime | None
    # Of any partition, even in an aborted transaction.
    last_commit: datetime | None
    # The least of the last commit times of the partitions that still have an offset.
    oldest_commit: datetime | None
    # When its last member left; None also if no consumer ever joined it.
    empty_since: datetime | None
    # Of `__consumer_offsets`.
    log_partition: int
    # Every record before this log offset is included.
    covered_to: int
    # When that was the last stable offset.
    read_at: datetime
    # Before this time, records were lost unread; None = none were.
    complete_since: datetime | None = None
    # When it committed for each topic for which it has offsets. Read only for groups with members whose oldest commit
    # is old enough to matter; None = not read.
    by_topic: Mapping[str, Commits] | None = None
    # The last commit, or the record of its state, is newer, whatever its timestamp, which a client or a wrong clock may
    # have set: the log was read to its end then, without it, or its record has that time.
    last_commit_after: datetime | None = None
    state_after: datetime | None = None
    # For people; no decision depends on it. None = not known, or none.
    last_client: LastClient | None = None

    @property
    def simple(self) -> bool:
        return self.type is GroupType.CLASSIC and self.protocol_type == ""

    def is_of_type(self, group: Group) -> bool:
        """Whether its type in the log, and for Classic its protocol type, are those of the listed group."""
        classic = self.type is GroupType.CLASSIC
        return self.type is group.type and (not classic or self.protocol_type == group.protocol_type)

    def is_of(self, group: Group) -> bool:
        """Whether its type and state in the log fit the listed group."""
        with_members = self.state == "Active" if group.in_use else self.state in ("Empty", "Unknown")
        return self.is_of_type(group) and with_members

    def used_last(self, topic: str) -> datetime | None:
        """When it last committed for a topic for which it has offsets; None = not known."""
        known = None if self.by_topic is None else self.by_topic.get(topic)
        return None if known is None else max(filter(None, (known.latest, self.complete_since)))

    @property
    def committed_last(self) -> datetime | None:
        """When it last committed; None = the log has no commit of it."""
        known = filter(None, (self.last_commit, self.last_commit_after, self.complete_since))
        return None if self.last_commit is None else max(known)

    @property
    def idle_since(self) -> datetime | None:
        """Since when it has had no commit and no member; None = not known, so it may be in use.

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
        """Whether it committed after its last member left: by the timestamps, or by reads of the log in between."""
        if self.empty_since is None or self.last_commit is None:
            return False
        left = max(filter(None, (self.empty_since, self.state_after)))
        later = self.last_commit_after is not None and self.last_commit_after > left
        return later or self.last_commit > self.empty_since

    def last_use(self, now: datetime) -> str | None:
        """When it was last used, and its client, in words; None = neither is known."""
        since, client = self.idle_since, self.last_client
        if since is None:
            return None if client is None else f"its last known member is {client}"
        used = f"last used {ago(now - since)}"
        if since == self.complete_since:
            used += " or earlier"
        # A client that commits without joining leaves no name in the log.
        if self.simple:
            return f"{used} by a client that did not join it"
        if client is None:
            return used
        if self.committed_after_empty:
            return f"{used} by a client that did not join it; its last member was {client}"
        # A record of a Classic group names all members. Those of other types name one, which joined or changed last.
        return f"{used} by {client}" if self.type is GroupType.CLASSIC else f"{used}; the last to join was {client}"

    @property
    def nothing_committed(self) -> bool:
        """Whether the log proves that it has no offsets; False also if records were lost, so that it is not known."""
        return self.oldest_commit is None and self.complete_since is None

    def first_expiry(self, retention: timedelta) -> datetime | None:
        """When brokers delete the first of its offsets, while it stays Empty; None = not known, or there are none.

        retention: the brokers' offsets.retention.minutes. It begins when a Classic group becomes Empty, regardless of
        later commits (ClassicGroup.offsetExpirationCondition); for all others it begins with each commit.
        """
        return None if self.nothing_committed else self._expiry(self.oldest_commit, retention)

    def last_expiry(self, retention: timedelta) -> datetime | None:
        """When brokers delete the last of its offsets, and the group with it; as `first_expiry`."""
        return self._expiry(self.last_commit, retention)

    def expiry_in_use(self, subscribed: Collection[str], retention: timedelta) -> datetime | None:
        """When brokers delete the first of its offsets while it has members; None = none of those in `by_topic`.

        subscribed: the topics that its members read, whose offsets don't expire. For others, the retention begins with
        each commit (ConsumerGroup.offsetExpirationCondition, and ClassicGroup's for the protocol type `consumer`).
        """
        by_topic = self.by_topic or {}
        first = min((commits.oldest for topic, commits in by_topic.items() if topic not in subscribed), default=None)
        return None if first is None else after(first, retention)

    def _expiry(self, commit: datetime | None, retention: timedelta) -> datetime | None:
        if self.type is GroupType.CLASSIC and not self.simple:
            return None if self.empty_since is None else after(self.empty_since, retention)
        if commit is None:
            return None
        # An old offset did not expire before the last member left (KIP-848).
        return max(after(commit, retention), self.empty_since or commit)


def after(moment: datetime, duration: timedelta) -> datetime:
    """The sum, or the latest time that a datetime can hold.

    Below Kafka 4.0, clients may choose the times of their commits, so the sum may be out of range.
    """
    try:
        return moment + duration
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Claims:
    """The groups that Kubernetes objects of other products name: each id or prefix -> the object.

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
    """Other evidence in the cluster that groups are needed.

    streams: ids of judged groups that own topics named `<id>-*-changelog` or `<id>-*-repartition`; None = topics could
        not be read.
    mirrored: ids that MirrorMaker 2 checkpoints name; None = this is a mirror target whose checkpoints were not read.
    claimed: groups that Kubernetes objects of other products name; a Refusal = such objects may exist, but could not be
    read.
    without_streams: versions of brokers on which a group of the Streams protocol can't be restored; empty = none, or
        there is no such group to judge.
    """

    streams: frozenset[str] | None = frozenset()
    mirrored: frozenset[str] | None = frozenset()
    claimed: Claims | Refusal = field(default_factory=Claims)
    without_streams: tuple[str, ...] | Fault = ()


class Deletion(NamedTuple):
    """The last deletion of a group, or of its offsets of a topic: its time, its policy, and until when it counts.

    is_partial: it was interrupted, and the group has been used since.
    """

    at: datetime
    policy: str
    until: datetime
    is_partial: bool = False


class Evidence(msgspec.Struct, frozen=True, gc=False):
    """The evidence about one group when it is judged. None = not read (yet); a Fault or Refusal = not readable."""

    protections: Protections
    # The connection's `protect` pattern that covers the group.
    protected_by: str | None = None
    # Whether the connection's role is FailoverTarget.
    failover_target: bool = False
    # A user's request to keep the group, from the ledger.
    keep_request: KeepRequest | None = None
    # The program that a scan saw in it, from the ledger.
    used_by: UsedBy | None = None
    # Its last deletion by this operator, if the ledger still has it.
    deleted: Deletion | None = None
    # Why a record about it in the ledger can't be read.
    damaged: str | None = None
    unchanged: Unchanged | None = None
    offsets: Offsets | Fault | None = None
    # Its committed topics that do not exist.
    missing_topics: frozenset[str] | Fault | None = None
    # Of all committed partitions, if they were read, also those of other groups (see `lag`).
    bounds: Mapping[Partition, Bounds | Fault] | None = None
    # For partitions that appear to have unread records, an offset at or after which there is a committed record; -1 =
    # there is none from the committed offset on. Only of as many partitions as necessary: `engine.checks.lag.waiting`.
    records: Mapping[Partition, int | Fault] | None = None
    # A Refusal has one of the reasons that begin with Evidence.
    activity: Activity | Refusal | None = None
    # The brokers' offsets.retention.minutes.
    retention: timedelta | None = None
    # The topics that its members read.
    subscribed: frozenset[str] | Fault | None = None
    # Topic -> the last deletion of its offsets by this operator, if the ledger still has it.
    offsets_deleted: Mapping[str, Deletion] = msgspec.field(default_factory=dict)
    # Of the connection's `owners`, "" = none. No check depends on it.
    owner: str = ""

    @property
    def idle_since(self) -> datetime | None:
        """Since when it is not in use: by the offsets log if known, else by the operator's own scans."""
        known = self.activity.idle_since if isinstance(self.activity, Activity) else None
        return known or (self.unchanged.since if self.unchanged else None)

    def used_since(self, moment: datetime, topic: str | None = None) -> bool:
        """Whether the log, or the operator's own scans, show a use of the group at that time or later.

        topic: only commits for this topic count. The log has the brokers' time (see `Journal.skew`).
        """
        activity = self.activity if isinstance(self.activity, Activity) else None
        if topic is not None:
            uses = [activity.used_last(topic) if activity else None]
        else:
            uses = [activity.idle_since if activity else None, self.unchanged.since if self.unchanged else None]
        return any(use >= moment for use in uses if use is not None)


# The verdict on one group, and its outcome in a run: records, without I/O.


class Need(Enum):
    """The field of `Evidence` that must be read before a check can decide; until then its `refusal` counts."""

    ACTIVITY = Refusal(reasons.EVIDENCE_UNREADABLE, "the pipeline's tables were not read for it")
    OFFSETS = Refusal(reasons.OFFSETS_UNKNOWN, "its committed offsets were not read")
    MISSING_TOPICS = Refusal(reasons.TOPICS_UNKNOWN, "the existence of its topics was not read")
    BOUNDS = Refusal(reasons.LAG_UNKNOWN, "the bounds of its partitions were not read")
    RECORDS = Refusal(reasons.LAG_UNKNOWN, "whether it has unread records was not read")
    SUBSCRIBED = Refusal(reasons.SUBSCRIPTION_UNKNOWN, "the subscriptions of its members were not read")

    @property
    def refusal(self) -> Refusal:
        return self.value


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """A policy's verdict on a group that its `match` selects. refusal: why it does not match; None = it matches.

    topics: for DeleteOffsets, those whose offsets are to be deleted. need: the missing evidence. passed: the number of
    checks before the one that needs it.
    """

    group: Group
    evidence: Evidence
    refusal: Refusal | None
    topics: frozenset[str] = frozenset()
    need: Need | None = None
    passed: int = 0

    @property
    def matches(self) -> bool:
        return self.refusal is None

    @property
    def expires(self) -> datetime | None:
        """When brokers delete the first of the group's offsets; None = not known, or never."""
        activity, retention = self.evidence.activity, self.evidence.retention
        if not isinstance(activity, Activity) or retention is None or not activity.is_of(self.group):
            return None
        if not self.group.in_use:
            return activity.first_expiry(retention)
        subscribed = self.evidence.subscribed
        if subscribed is None or isinstance(subscribed, Fault):
            return None
        return activity.expiry_in_use(subscribed, retention)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one group in one run: Deleted, NotDeleted or Failed; for the last two with the reason.

    topics: those whose offsets were deleted, if the group stays.
    """

    group: str
    kind: OutcomeType
    reason: str
    message: str
    topics: tuple[str, ...] = ()
