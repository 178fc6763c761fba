"""The result of one scan of a cluster, and why it may be incomplete: frozen records, without I/O or decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from group_hygiene.model import reasons
from group_hygiene.model.groups import Fault, Group, Partition
from group_hygiene.model.refusal import Refusal


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
