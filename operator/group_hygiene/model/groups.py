"""Groups, their committed offsets and the bounds of partitions: records, without I/O and without decisions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

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
    """Why there is no answer for one broker, group or partition; `refusal.Refusal` explains why that is another type.

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


@dataclass(frozen=True, slots=True)
class Group:
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
    rows = sorted([(*place, *offset) for place, offset in offsets.items()])
    text = repr((group.type.value, group.protocol_type, rows))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
