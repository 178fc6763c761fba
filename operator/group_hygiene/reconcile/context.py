"""Whom a run talks to, what it remembers, and what it saw: the records that `observe` and `apply` share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from group_hygiene import watching
from group_hygiene.activity import Tables
from group_hygiene.connection import Connection, Role
from group_hygiene.contents import Contents
from group_hygiene.entries import Change, Key
from group_hygiene.kafka import brokers
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.last_records import LastRecord
from group_hygiene.kafka.ledger import Ledger
from group_hygiene.kafka.mirror import Checkpoints, checkpoint_topics
from group_hygiene.model import (
    Activity,
    Bounds,
    Claims,
    Evidence,
    Fault,
    Group,
    GroupType,
    Offsets,
    Partition,
    Protections,
    Unchanged,
    Verdict,
)
from group_hygiene.plan import Conditions
from group_hygiene.policy import Policy
from group_hygiene.reconcile.journal import Journal
from group_hygiene.snapshot import Cluster, Snapshot

# How many groups are read again, saved and deleted at once at most.
BATCH = 50


class Clock(Protocol):
    """Wall time for what people read, monotonic seconds for what must not be fooled by a clock that is set."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


@dataclass
class Memory:
    """What is remembered of one connection between runs. Lost with the process, which only delays.

    contents: what the ledger says, or what it would say if there were one. unwritten: what it does not say yet.
    ledger: open, or None. claimed: whether this process writes it.
    looks: policy uid -> what only this process knows of its looks.
    intents: id of a deletion that came to no end -> monotonic time at which this process first knew of it.
    unrecorded: id of a deletion that surely happened, and may not be told in the ledger -> uid of its policy.
    cluster_id: of the first answer; another one later means that the address leads elsewhere now.
    last_records: where partitions have records that waited for somebody.
    answered_last: the id of the cluster that answered the last scan.
    due_before: whether the last scan found something that a policy would delete.
    retention: the brokers' offsets.retention.minutes; None = not known. retention_asked: whether they were asked.
    batch: how many groups can be read again and saved at once while that is fresh.
    write_bytes: of records that one request may make a coordinator write.
    """

    contents: Contents = field(default_factory=Contents)
    unwritten: dict[Key, Change] = field(default_factory=dict)
    ledger: Ledger | None = None
    claimed: bool = False
    looks: dict[str, watching.Looks] = field(default_factory=dict)
    intents: dict[str, float] = field(default_factory=dict)
    unrecorded: dict[str, str] = field(default_factory=dict)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    last_records: dict[Partition, LastRecord] = field(default_factory=dict)
    cluster_id: str | None = None
    due_before: bool = False
    answered_last: str | None = None
    retention: timedelta | None = None
    retention_asked: bool = False
    batch: int = BATCH
    write_bytes: int = kafka_offsets.WRITE_BYTES

    def meet(self, cluster_id: str) -> None:
        """Note which cluster answers. What was seen of another one says nothing of this."""
        if self.answered_last not in (None, cluster_id):
            self.contents.seen.clear()
            self.contents.watches.clear()
            self.contents.covered.clear()
            self.retention_asked = False
            self.looks.clear()
            self.last_records.clear()
            self.unwritten.clear()
        self.answered_last = cluster_id
        if self.cluster_id is None:
            self.cluster_id = cluster_id

    def unchanged(self, policy: Policy, group: str) -> Unchanged | None:
        """How long a group was seen unchanged. Who looks only once may override this."""
        seen = self.contents.seen.get(policy.uid, {}).get(group)
        return watching.unchanged(seen, self.contents.watches.get(policy.uid), self.looks.get(policy.uid))

    def close_ledger(self) -> None:
        if self.ledger is not None:
            self.ledger.close()
            self.ledger = None
        self.claimed = False


@dataclass(frozen=True, slots=True)
class Context:
    """Whom a run talks to.

    claims: asks which groups Kubernetes objects name. A run may take minutes, so what is deleted is asked for again.
    tables: of the pipeline; None = the connection has none, a Fault = why they can't be asked.
    """

    client: Client
    connection: Connection
    memory: Memory
    clock: Clock
    journal: Journal
    claims: Callable[[], Claims | Fault] = Claims
    tables: Tables | Fault | None = None

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


@dataclass
class Facts:
    """What was read of groups so far, by their ids; what is not there was not read. bounds: of all their partitions.

    records: see `Evidence`.
    """

    protections: Protections = field(default_factory=Protections)
    activity: dict[str, Activity | Fault] = field(default_factory=dict)
    offsets: dict[str, Offsets | Fault] = field(default_factory=dict)
    missing_topics: dict[str, frozenset[str] | Fault] = field(default_factory=dict)
    bounds: dict[Partition, Bounds | Fault] = field(default_factory=dict)
    subscribed: dict[str, frozenset[str] | Fault] = field(default_factory=dict)
    records: dict[Partition, int | Fault] = field(default_factory=dict)


def evidence_of(context: Context, policy: Policy, group: Group, facts: Facts) -> Evidence:
    """What was read of a group, with what is known of it unread: the connection's word, the ledger's, our own looks."""
    contents = context.journal.contents
    return Evidence(
        protections=facts.protections,
        protected_by=context.connection.protect.matching(group.id),
        failover_target=context.connection.role is Role.FAILOVER_TARGET,
        keep_request=contents.keeps.get(group.id),
        deleted=contents.deletions.get(group.id),
        damaged=contents.damaged.get(group.id),
        unchanged=context.memory.unchanged(policy, group.id),
        offsets=facts.offsets.get(group.id),
        missing_topics=facts.missing_topics.get(group.id),
        bounds=facts.bounds,
        records=facts.records,
        activity=facts.activity.get(group.id),
        retention=context.memory.retention,
        subscribed=facts.subscribed.get(group.id),
        offsets_deleted=contents.offset_deletions.get(group.id, {}),
    )


def read_protections(
    context: Context,
    cluster: Cluster,
    groups: Collection[Group],
    topics: Mapping[str, int] | Fault,
    deadline: Deadline,
) -> Protections:
    """What topics, checkpoints and Kubernetes objects say of who is needed; what can't be read protects everybody.

    groups: those to judge. Of which version the brokers are is asked only for Streams groups.
    """
    old: tuple[str, ...] | Fault = ()
    if any(group.type is GroupType.STREAMS for group in groups):
        old = brokers.without_streams(context.client, cluster, deadline)
    if isinstance(topics, Fault):
        return Protections(streams=None, mirrored=None, claimed=_claims(context), without_streams=old)
    streams = _applications(topics, (group.id for group in groups))
    checkpoints = checkpoint_topics(topics, context.connection.checkpoint_topics)
    mirrored = context.memory.checkpoints.read(context.client, checkpoints, deadline)
    return Protections(streams, None if isinstance(mirrored, Fault) else mirrored, _claims(context), old)


def _claims(context: Context) -> Claims | Fault:
    """What Kubernetes objects name; a ShadowLink does not say which cluster it writes, so a connection's role may."""
    found = context.claims()
    if isinstance(found, Fault) or context.connection.role is not Role.PRIMARY:
        return found
    return Claims(found.named)


def _applications(topics: Iterable[str], ids: Iterable[str]) -> frozenset[str]:
    """Those of the ids that a topic `<id>-<something>-changelog` or `-repartition` may belong to."""
    owned = sorted(topic.rpartition("-")[0] for topic in topics if topic.endswith(("-changelog", "-repartition")))

    def owns(name: str) -> bool:
        # Where it would stand in the order: those that begin with it come next.
        at = bisect_left(owned, f"{name}-")
        return at < len(owned) and owned[at].startswith(f"{name}-")

    return frozenset(filter(owns, ids))


def read_bounds(
    client: Client, committed: Iterable[Iterable[Partition]], deadline: Deadline
) -> dict[Partition, Bounds | Fault]:
    """Where every partition of these offsets begins and ends: each is asked once, whoever committed there.

    To be read after the offsets: by an older end, who has read on since would look as if out of range.
    """
    partitions = {partition for partitions in committed for partition in partitions}
    starts = kafka_offsets.start_offsets(client, partitions, Deadline(deadline.left / 2))
    ends = kafka_offsets.end_offsets(client, partitions, deadline)
    return {place: _bounds(starts[place], ends[place]) for place in partitions}


def read_missing_topics(
    client: Client, topics: Mapping[str, Set[str]], deadline: Deadline
) -> dict[str, frozenset[str] | Fault]:
    """group -> those of its topics that do not exist; a Fault if that can't be said of one of them.

    A topic whose existence is not known is a matter of the groups that committed there, and of no others.
    """
    exist = kafka_cluster.topics_exist(client, set().union(*topics.values()), deadline)

    def missing(names: Set[str]) -> frozenset[str] | Fault:
        for name in sorted(names):
            found = exist[name]
            if isinstance(found, Fault):
                return replace(found, message=f"topic {name}: {found.message}")
        return frozenset(name for name in names if exist[name] is False)

    return {group: missing(names) for group, names in topics.items()}


def _bounds(start: int | Fault, end: int | Fault) -> Bounds | Fault:
    if isinstance(start, Fault):
        return start
    return end if isinstance(end, Fault) else Bounds(start, end)


def readable(offsets: Offsets | Fault | None) -> Offsets:
    """The offsets, or none where they were not or could not be read."""
    return {} if offsets is None or isinstance(offsets, Fault) else offsets
