"""Groups, their committed offsets and the bounds of partitions: records, without I/O and without decisions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

import msgspec

from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal

# The leader of a partition knows no leader epochs (KIP-101): its log has a format before Kafka 0.11.
NO_LEADER_EPOCH = -1


class GroupType(StrEnum):
    """The type of a group, as in ListGroups v5 (KIP-848, KIP-932, KIP-1071)."""

    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    SHARE = "Share"
    STREAMS = "Streams"
    UNKNOWN = "Unknown"


class GroupState(StrEnum):
    """The state of a group, as in ListGroups v4 (KIP-518)."""

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


class LogPlace(NamedTuple):
    """A place in the log of a partition. leader_epoch: the one at that time.

    time_ms: the latest of the records before it that were read in that epoch, by its leader's clock; -1 = none was.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    time_ms: int = -1


class CommittedOffset(NamedTuple):
    """A group's committed offset for one partition (OffsetFetchResponse); `leader_epoch` -1 = the client gave none."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Bounds(NamedTuple):
    """The bounds of one partition (ListOffsets): the offset of its first record, and the offset after the last."""

    start: int
    end: int


Offsets = Mapping[Partition, CommittedOffset]
# The names of topics that Kafka Streams creates for an application: `<application id>-<name>-changelog`, and so on.
INTERNAL_TOPICS = ("-changelog", "-repartition")
# Characters of a group's id. Kafka accepts 32,767 bytes, but groups with longer ids are neither judged nor deleted.
ID_MAX = 1_000
# The code of a Fault: there is no such topic, or it has no such partition.
NO_SUCH_TOPIC = "UNKNOWN_TOPIC_OR_PARTITION"
# The code of a Fault: the user lacks a permission on the topic.
TOPIC_DENIED = "TOPIC_AUTHORIZATION_FAILED"
# The code of a Fault: a share group has some start offsets, and shows none for a partition with records.
NO_START_OFFSET = "NO_START_OFFSET"


@dataclass(frozen=True, slots=True)
class Fault:
    """Why there is no answer for one broker, group or partition; `reasons.Refusal` explains why that is another type.

    code: Kafka's name of the error, or one of the operator's own (NO_ANSWER). retriable: the same request may succeed.
    """

    code: str
    message: str
    retriable: bool = False

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code

    def at(self, place: object) -> Fault:
        """The same, with the place in its message."""
        return Fault(self.code, f"{place}: {self.message}", self.retriable)


class Group(msgspec.Struct, frozen=True, gc=False):
    """One listed group. `protocol_type` is empty for a *simple* group: no consumer ever joined (assign+commit)."""

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
    """The fields of a group in ListGroups except its id: equal for most groups of a broker, which share one object."""

    type: GroupType
    protocol_type: str
    state: GroupState
    coordinator: int

    def beside(self, other: Listed) -> Listed:
        """The one row of a group that is listed twice: in use if one is; else Unknown, as one of them is out of date.

        Twice: while its coordinator moves, and after `__consumer_offsets` got more partitions, when its records are in
        two of them. A coordinator also repeats a group, in the same row, after a DeleteGroups that it could not write.
        """
        if other == self:
            return self
        unused = (GroupState.EMPTY, GroupState.DEAD)
        rows = [row for row in (self, other) if row.state not in unused]
        return rows[0] if rows else self._replace(state=GroupState.UNKNOWN)


class Groups(Mapping[str, Group]):
    """Groups by id, with little memory for large clusters: each Group is created on access."""

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


def is_internal(topic: str, application: str) -> bool:
    """Whether Kafka Streams created the topic for the application of this id, by its name."""
    return topic.startswith(f"{application}-") and topic[len(application) + 1 :].endswith(INTERNAL_TOPICS)


def fingerprint(group: Group, offsets: Offsets) -> bytes:
    """16 bytes that change with the group's type, protocol type and any committed offset."""
    rows = sorted([place + offset for place, offset in offsets.items()])
    text = msgspec.json.encode((group.type.value, group.protocol_type, rows))
    return hashlib.blake2b(text, digest_size=16).digest()


# Recognizes programs by the members of their groups. Pure.
#
# Only members show their client ids and their assignor, so the operator remembers what it saw (`entries.UsedBy`).


class Program(StrEnum):
    """A program whose groups are Empty while it is stopped, and needed when it comes back."""

    CONNECT = "Connect"
    STREAMS = "Streams"


class Sighting(NamedTuple):
    """A program, and the client id of one of its members."""

    program: Program
    client_id: str


# org.apache.kafka.connect.runtime.Worker.baseConsumerConfigs, and ClientUtils and StreamsPartitionAssignor of Streams.
_CONNECT = re.compile(r"connector-consumer-.+-[0-9]+\Z", re.DOTALL)
_STREAMS = re.compile(r".-StreamThread-[0-9]+-consumer\Z", re.DOTALL)
_STREAMS_ASSIGNOR = "stream"
# One of these is in each of those client ids.
SIGNS = (b"connector-consumer-", b"-StreamThread-")


def program_of(client_ids: Iterable[str], assignor: str = "") -> Sighting | None:
    """The program that members with these client ids belong to; None = another one. assignor: "" = not known."""
    ids = sorted(client_ids)
    for program, pattern in ((Program.CONNECT, _CONNECT), (Program.STREAMS, _STREAMS)):
        found = next(filter(pattern.search, ids), None)
        if found is not None:
            return Sighting(program, found)
    return Sighting(Program.STREAMS, ids[0]) if ids and assignor == _STREAMS_ASSIGNOR else None


# The result of one scan of a cluster, and why it may be incomplete: frozen records, without I/O or decisions.


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster by Metadata and DescribeCluster: its brokers, and the leaders of `__consumer_offsets`.

    leaders: partition of `__consumer_offsets` -> (broker, leader epoch); broker -1 = no leader.
    topic_id: of that topic, another one once it is recreated; empty below 2.8, or if it is hidden.
    samples: only if the brokers hide that topic: ids of groups that don't exist -> the broker that coordinates them.
    problems: why a scan is incomplete already (a missing leader, a denied DESCRIBE), in words.
    """

    id: str
    brokers: Mapping[int, str]
    leaders: Mapping[int, tuple[int, int]]
    problems: tuple[str, ...] = ()
    samples: Mapping[str, int] = field(default_factory=dict)
    topic_id: str = ""

    @property
    def coordinators(self) -> tuple[Mapping[int, tuple[int, int]], Mapping[str, int]]:
        """The brokers that coordinate groups, to be compared with those of another scan."""
        return self.leaders, self.samples


@dataclass(frozen=True, slots=True)
class Listing:
    """The answers to ListGroups: every group, and a Fault for each broker without an answer.

    group_faults: why the state of a listed group is not known, on brokers that list no states. Such a group is included
    with the state Unknown, whatever states were requested.
    not_loaded: partitions of `__consumer_offsets` whose groups may be missing: their leader may not have loaded them.
    If the topic is hidden, coordinators that may not have loaded a partition.
    """

    groups: Mapping[str, Group]
    faults: Mapping[int, Fault]
    notes: tuple[str, ...] = ()
    group_faults: Mapping[str, Fault] = field(default_factory=dict)
    not_loaded: Mapping[int, Fault] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How far a pipeline's tables cover the offsets log. problem: why they can't be trusted, for all or some groups.

    covered: the number of the log's `partitions` for which they can. as_of: the earliest time at which one of these was
    read. max_age: the largest accepted age; None = there are no tables.
    """

    problem: Refusal | None
    covered: int
    partitions: int
    as_of: datetime | None
    max_age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One observation of a cluster. incomplete: why groups may be missing, in words; empty = complete.

    coverage: None = the pipeline's tables were not read.
    """

    cluster: Cluster
    groups: Mapping[str, Group]
    broker_faults: Mapping[int, Fault]
    incomplete: tuple[str, ...]
    notes: tuple[str, ...]
    taken_at: datetime
    coverage: Coverage | None = None

    @property
    def complete(self) -> bool:
        return not self.incomplete

    @property
    def refusal(self) -> Refusal:
        """Why nothing may be deleted, if it is not complete: the first three causes."""
        return Refusal(reasons.SNAPSHOT_INCOMPLETE, "; ".join(self.incomplete[:3]))

    @property
    def answered(self) -> int:
        return len(self.cluster.brokers) - len(self.broker_faults)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group. epoch: of the KIP-848 family only. assignment: empty if a custom assignor hides it.

    topics: its subscription; in a Streams group, all that the application reads. pattern: the regular expression by
    which it subscribes at the broker (KIP-848), which does not report the topics.
    """

    id: str
    instance_id: str | None
    client_id: str
    host: str
    epoch: int | None
    topics: tuple[str, ...]
    assignment: tuple[Partition, ...]
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class Description:
    """One described group. protocol: the assignor; epoch: the group epoch of the KIP-848 family, None for Classic."""

    group: Group
    protocol: str
    epoch: int | None
    members: tuple[Member, ...]
