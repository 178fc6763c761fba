"""What one look at a cluster sees, and what was missing: frozen records, without I/O, without an opinion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from group_hygiene.model import Fault, Group, Keep, Partition


@dataclass(frozen=True, slots=True)
class Cluster:
    """What Metadata and DescribeCluster say: who should answer, and who leads `__consumer_offsets`.

    leaders: partition of `__consumer_offsets` -> (broker, leader epoch); broker -1 = no leader.
    problems: what already makes a scan incomplete (a missing leader, a denied DESCRIBE), in words.
    """

    id: str
    brokers: Mapping[int, str]
    leaders: Mapping[int, tuple[int, int]]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """The answers to ListGroups: every group, and beside them a fault for each broker that gave no answer.

    group_faults: why the state of a listed group is not known, where brokers list none. Its state is Unknown then, and
    whatever states were asked for, it is among the groups.
    not_loaded: partitions of `__consumer_offsets` whose groups may be missing: their leader may not have loaded them.
    """

    groups: Mapping[str, Group]
    faults: Mapping[int, Fault]
    notes: tuple[str, ...] = ()
    group_faults: Mapping[str, Fault] = field(default_factory=dict)
    not_loaded: Mapping[int, Fault] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the offsets log a pipeline's tables tell. problem: why they may not decide, of all or of some groups.

    covered: of how many of the log's `partitions` they may. as_of: the earliest at which one of these was read.
    max_age: how old they may get; None = there are none.
    """

    problem: Keep | None
    covered: int
    partitions: int
    as_of: datetime | None
    max_age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One observation of a cluster. `incomplete` says in words why absence proves nothing here; empty = complete.

    coverage: None = the pipeline's tables were not looked at.
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
    def answered(self) -> int:
        return len(self.cluster.brokers) - len(self.broker_faults)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group. epoch: of the KIP-848 family only. assignment: empty where a custom assignor hides it.

    topics: what it subscribes to; of a Streams group, all that the application reads. pattern: the regular expression
    by which it subscribes at the broker (KIP-848), whose topics are not told.
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
