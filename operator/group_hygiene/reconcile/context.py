"""Whom a run talks to, what it remembers, and what it saw: the records that `observe` and `apply` share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from group_hygiene.connection import Connection
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.mirror import Checkpoints, is_checkpoints
from group_hygiene.model import Fault, Group, Offsets, Partition, Protections, Snapshot, Unchanged, Verdict
from group_hygiene.plan import Conditions, seen_again
from group_hygiene.policy import Policy


class Clock(Protocol):
    """Wall time for what people read, monotonic seconds for what must not be fooled by a clock that is set."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


@dataclass
class Memory:
    """What is remembered of one connection between runs. Lost with the process, which only delays.

    unchanged: policy digest key -> group -> how long it was seen unchanged.
    cluster_id: of the first answer; another one later means that the address leads elsewhere now.
    answered_last: the id of the cluster that answered the last scan.
    due_before: whether the last scan found something that a policy would delete.
    """

    unchanged: dict[tuple[str, str], dict[str, Unchanged]] = field(default_factory=dict)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    cluster_id: str | None = None
    due_before: bool = False
    answered_last: str | None = None

    def meet(self, cluster_id: str) -> None:
        """Note which cluster answers. What was seen of another one says nothing of this."""
        if self.answered_last != cluster_id:
            self.unchanged.clear()
        self.answered_last = cluster_id
        if self.cluster_id is None:
            self.cluster_id = cluster_id

    def look(
        self, policy: Policy, before: Unchanged | None, print_: bytes, now: datetime, monotonic: float
    ) -> Unchanged:
        """What a look at an Empty group adds to what was seen of it before. Who looks only once may override this."""
        return seen_again(before, print_, now, monotonic, policy.interval)

    def forget_all_but(self, policies: Iterable[Policy]) -> None:
        kept = {memory_key(policy) for policy in policies}
        self.unchanged = {key: value for key, value in self.unchanged.items() if key in kept}


@dataclass(frozen=True, slots=True)
class Context:
    """Whom a run talks to.

    may_delete: False forbids every deletion. claimed: group id -> the Kubernetes object that names it; None = unknown.
    """

    client: Client
    connection: Connection
    memory: Memory
    clock: Clock
    may_delete: bool
    claimed: Mapping[str, str] | None = field(default_factory=dict)

    def deadline(self) -> Deadline:
        return Deadline(self.connection.timeout.total_seconds())


@dataclass(frozen=True, slots=True)
class Observation:
    """What one scan saw: the snapshot, each due policy's verdicts, and what holds for any deletion in this run."""

    snapshot: Snapshot
    verdicts: Mapping[str, Mapping[str, Verdict]]
    conditions: Conditions
    protections: Protections
    all_groups: Mapping[str, Group] | None


def memory_key(policy: Policy) -> tuple[str, str]:
    """What a policy's observations are filed under: an edit of what decides (see Policy.digest) starts them anew."""
    return policy.uid, policy.digest


def read_protections(context: Context, topics: Mapping[str, int] | Fault) -> Protections:
    """What topics, checkpoints and Kubernetes objects say of who is needed; what can't be read protects everybody."""
    if isinstance(topics, Fault):
        return Protections(streams=None, mirrored=None, claimed=context.claimed)
    streams = frozenset(
        prefix
        for topic in topics
        if topic.endswith(("-changelog", "-repartition"))
        for prefix in _dash_prefixes(topic.rpartition("-")[0])
    )
    checkpoints = [topic for topic in topics if is_checkpoints(topic)]
    mirrored = context.memory.checkpoints.read(context.client, checkpoints, context.deadline())
    return Protections(streams, None if isinstance(mirrored, Fault) else mirrored, context.claimed)


def _dash_prefixes(name: str) -> list[str]:
    """`a-b-c` -> `a`, `a-b`: every application id that a topic `<id>-<something>-changelog` may belong to."""
    parts = name.split("-")
    return ["-".join(parts[:count]) for count in range(1, len(parts))]


def read_lag(
    client: Client, committed: Mapping[str, Offsets], deadline: Deadline
) -> dict[str, Mapping[Partition, int | Fault]]:
    """group -> partition -> offsets after the committed one that still hold something (not what retention removed)."""
    partitions = {partition for offsets in committed.values() for partition in offsets}
    starts = kafka_offsets.start_offsets(client, partitions, Deadline(deadline.left / 2))
    ends = kafka_offsets.end_offsets(client, partitions, deadline)
    return {
        name: {p: _behind(starts[p], ends[p], offset.offset) for p, offset in offsets.items()}
        for name, offsets in committed.items()
    }


def _behind(start: int | Fault, end: int | Fault, offset: int) -> int | Fault:
    if isinstance(start, Fault):
        return start
    return end if isinstance(end, Fault) else max(0, end - max(offset, start))


def readable(offsets: Offsets | Fault | None) -> Offsets:
    """The offsets, or none where they were not or could not be read."""
    return {} if offsets is None or isinstance(offsets, Fault) else offsets
