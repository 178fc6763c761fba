"""What the steps of a run share: its clients, its memory, its observation, and the evidence about a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from group_hygiene.decide import unchanged
from group_hygiene.decide.plan import RunConditions, Verdicts
from group_hygiene.decide.unchanged import ScanHistory
from group_hygiene.evidence.reader import Tables
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.mirror import Checkpoints
from group_hygiene.kafka.offsets import LastRecord
from group_hygiene.kafka.offsets_topic import Tail
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, HistoryEntry, Key
from group_hygiene.model.evidence import Activity, Claims, Evidence, Outcome, Protections
from group_hygiene.model.groups import Bounds, Fault, Group, GroupType, Offsets, Partition, Snapshot
from group_hygiene.model.reasons import Refusal
from group_hygiene.process.clock import Clock
from group_hygiene.spec.connection import Connection, Role
from group_hygiene.spec.policy import Policy

# At most this many groups are read again, saved and deleted at once.
BATCH = 50
# At most this many groups are judged at a time. What is read for one is about 5 KB.
SLICE = 4_000
# Types whose offsets OffsetCommit restores. A restored Streams group is a simple Classic one, and becomes a Streams
# group with its offsets when its first member joins (GroupMetadataManager.getOrCreateStreamsGroup).
COMMITTING = frozenset({GroupType.CLASSIC, GroupType.CONSUMER, GroupType.STREAMS})
RESTORABLE = COMMITTING | {GroupType.SHARE}

# Entries of one namespace at once, and again in an hour. What has begun is finished, even if it is more.
ENTRIES, _HOUR_S = 10_000, 3600.0


class Allowance:
    """How many entries the objects of a namespace may add to a ledger that other namespaces use, too.

    Compaction removes what was replaced or ended, but only after a day. So the log would grow by what one namespace
    marks and keeps again and again, until it can't be read in time. Only in memory: a new process counts from nothing.
    """

    def __init__(self) -> None:
        # What a namespace still has, and when that was so, in monotonic seconds.
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, namespace: str, entries: int, now: float) -> Refusal | None:
        """Count entries that the namespace is about to write; a Refusal: it must not. now: in monotonic seconds."""
        left, at = self._left.get(namespace, (ENTRIES, now))
        left = min(ENTRIES, left + (now - at) * ENTRIES / _HOUR_S)
        if left <= 0:
            wait = -left * _HOUR_S / ENTRIES / 60
            return Refusal(
                reasons.TOO_MANY_CHANGES,
                f"the policies and GroupKeeps of namespace {namespace} have written more than {ENTRIES:,} marks and "
                f"requests in an hour to the ledger that others use, too: they go on in {wait:.0f} minutes",
            )
        self._left[namespace] = left - entries, now
        return None


@dataclass
class Memory:
    """The state of one connection between runs. A restart loses it, which only causes delays.

    contents: of the ledger, or what it would contain if there were one. unwritten: changes still to be written.
    ledger: the open one, or None. ledger_topic, ledger_id: of the first one that was opened, and claimed. claimed:
    whether this process writes it.
    scan_histories: policy uid -> this process's history of its scans. last_scan: monotonic seconds of the last one that
    counted groups; None = none did. first_seconds: `ScanClock.seconds` of the first one. reads: group with a Seen ->
    `ScanClock.seconds` of the last scan that read it.
    intents: id of an unresolved deletion -> monotonic time at which this process first read of it.
    unrecorded: id of a deletion that certainly happened -> its outcome, which may not be in the ledger.
    unsent: id of an intent that this process could not read back, so that it sent nothing -> the outcome, and the keys
    of its backup.
    cluster_id: of the first answer; another one later means that the address now leads to another cluster.
    described: groups with members that were described since they had none before.
    of_keeps: the activity of groups with a request of a GroupKeep, as the tables had it at the last full scan.
    last_records: the last known record of partitions that had unread records.
    answered_last: the id of the cluster that answered the last scan.
    due_before: whether the last scan found matches of a policy that deletes.
    retention: the brokers' offsets.retention.minutes; None = not known. retention_asked: whether it was requested.
    tail: reads the offsets log for the policies with `unchangedFor`; None = the last scan could not read it.
    grown: as of the last scan, see `kafka.brokers`; grown_among: the leaders among which records were looked at for it.
    slice: how many groups a scan judges at a time, at most.
    batch: how many groups can be read again and saved at once within FRESH_S.
    write_bytes: the most bytes of records that one request may make a coordinator write.
    """

    contents: Contents = field(default_factory=Contents)
    unwritten: dict[Key, Change] = field(default_factory=dict)
    ledger: Ledger | None = None
    ledger_topic: str | None = None
    ledger_id: str | None = None
    claimed: bool = False
    scan_histories: dict[str, ScanHistory] = field(default_factory=dict)
    last_scan: float | None = None
    first_seconds: float = 0.0
    reads: dict[str, float] = field(default_factory=dict)
    intents: dict[str, float] = field(default_factory=dict)
    unrecorded: dict[str, HistoryEntry] = field(default_factory=dict)
    unsent: dict[str, tuple[Outcome, Sequence[Key]]] = field(default_factory=dict)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    last_records: dict[Partition, LastRecord] = field(default_factory=dict)
    of_keeps: dict[str, Activity] = field(default_factory=dict)
    described: set[str] = field(default_factory=set)
    cluster_id: str | None = None
    due_before: bool = False
    answered_last: str | None = None
    retention: timedelta | None = None
    retention_asked: bool = False
    tail: Tail | None = None
    grown: dict[int, str] = field(default_factory=dict)
    grown_among: Mapping[int, tuple[int, int]] | None = None
    allowance: Allowance = field(default_factory=Allowance)
    slice: int = SLICE
    batch: int = BATCH
    write_bytes: int = kafka_offsets.WRITE_BYTES

    def note_cluster(self, cluster_id: str) -> None:
        """Note which cluster answers. Observations of another cluster are dropped."""
        if self.answered_last not in (None, cluster_id):
            contents = self.contents
            noted = contents.seen, contents.watches, contents.clocks, contents.covered, contents.used_by
            for observed in (
                *noted,
                self.described,
                self.scan_histories,
                self.reads,
                self.last_records,
                self.of_keeps,
                self.unwritten,
            ):
                observed.clear()
            self.retention_asked, self.tail, self.last_scan = False, None, None
        self.answered_last = cluster_id
        if self.cluster_id is None:
            self.cluster_id = cluster_id

    def other_cluster(self, found: str) -> Refusal | None:
        """Why nothing may be changed in this cluster: the connection must lead to another one."""
        if self.cluster_id in (None, found):
            return None
        return Refusal(
            reasons.CLUSTER_CHANGED,
            f"bootstrapServers lead to cluster {found}, and not to {self.cluster_id} as spec.clusterID says or earlier "
            "answers did: nothing is changed there. If it is right, delete this KafkaConnection and apply it again, "
            "with the new clusterID if it has one",
        )

    def close_ledger(self) -> None:
        self.ledger = None
        self.claimed = False


@dataclass(frozen=True, slots=True)
class Context:
    """The clients and the state of one run.

    claims: reads which groups Kubernetes objects name. A run may take minutes, so it is called again before a deletion.
    recent_claims: the same, perhaps as it was some seconds ago, for scans; None = claims.
    tables: of the pipeline; None = the connection has none, a Refusal = why they can't be read.
    assume_unchanged: count `unchangedFor` as met by every group that this scan finds Empty, to show what a policy would
    match later. Only for commands that delete nothing.
    """

    client: Client
    connection: Connection
    memory: Memory
    clock: Clock
    journal: Journal
    claims: Callable[[], Claims | Refusal] = Claims
    recent_claims: Callable[[], Claims | Refusal] | None = None
    tables: Tables | Refusal | None = None
    assume_unchanged: bool = False

    def deadline(self) -> Deadline:
        return Deadline(self.connection.timeout.total_seconds())


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of one scan: the snapshot, each due policy's verdicts, and the conditions for the run's deletions.

    left_out: key of a policy that was not judged, and has no verdicts -> why.

    topics: whether the user may DESCRIBE all topics, as reason and message; None = this scan did not check it.
    """

    snapshot: Snapshot
    verdicts: Mapping[str, Verdicts]
    conditions: RunConditions
    protections: Protections
    all_groups: Mapping[str, Group] | None
    topics: Refusal | None = None
    left_out: Mapping[str, Refusal] = field(default_factory=dict)


@dataclass
class Facts:
    """The evidence read so far, by group id; a missing entry was not read. bounds: of all partitions of the groups.

    records: see `Evidence`.
    """

    protections: Protections = field(default_factory=Protections)
    activity: dict[str, Activity | Refusal] = field(default_factory=dict)
    offsets: dict[str, Offsets | Fault] = field(default_factory=dict)
    missing_topics: dict[str, frozenset[str] | Fault] = field(default_factory=dict)
    bounds: dict[Partition, Bounds | Fault] = field(default_factory=dict)
    subscribed: dict[str, frozenset[str] | Fault] = field(default_factory=dict)
    records: dict[Partition, int | Fault] = field(default_factory=dict)


def evidence_of(context: Context, policy: Policy, group: Group, facts: Facts) -> Evidence:
    """The evidence about a group: `facts`, the connection's spec, the ledger and the operator's own scans."""
    contents = context.journal.contents
    uid = context.connection.uid
    seen = contents.seen.get(uid, {}).get(group.id)
    if context.assume_unchanged:
        known = unchanged.assumed(seen, policy)
    else:
        known = unchanged.unchanged(
            seen,
            contents.watches.get(policy.uid),
            contents.clocks.get(uid),
            context.memory.scan_histories.get(policy.uid),
            policy,
        )
    return Evidence(
        protections=facts.protections,
        protected_by=context.connection.protect.matching(group.id),
        failover_target=context.connection.role is Role.FAILOVER_TARGET,
        keep_request=contents.keep_of(group.id),
        used_by=contents.used_by.get(group.id),
        deleted=contents.deletions.get(group.id),
        damaged=contents.damaged.get(group.id),
        unchanged=known,
        offsets=facts.offsets.get(group.id),
        missing_topics=facts.missing_topics.get(group.id),
        bounds=facts.bounds,
        records=facts.records,
        activity=facts.activity.get(group.id),
        retention=context.memory.retention,
        subscribed=facts.subscribed.get(group.id),
        offsets_deleted=contents.offset_deletions.get(group.id, {}),
        owner=context.connection.owners.of(group.id),
    )
