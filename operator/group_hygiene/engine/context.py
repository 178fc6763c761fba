"""What the steps of a run share: its clients, its memory, its observation, the evidence about a group, and its reads.

The reads are of offsets, topics, bounds, records, protections and the pipeline's tables: scans make them, and so does a
deletion, once more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from group_hygiene.engine import unchanged
from group_hygiene.engine.checks.lag import unread
from group_hygiene.engine.plan import RunConditions, Verdicts
from group_hygiene.engine.unchanged import ScanHistory
from group_hygiene.evidence.reader import Tables
from group_hygiene.evidence.trust import Log, activity_of, largest_coverage, refusals_by_partition
from group_hygiene.kafka import brokers
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, topic_ids
from group_hygiene.kafka.mirror import Checkpoints, checkpoint_topics
from group_hygiene.kafka.offsets import LastRecord, SearchRange, epoch_ends, last_records
from group_hygiene.kafka.offsets_topic import Tail
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model import entries, reasons
from group_hygiene.model.entries import Backup, Change, HistoryEntry, Key
from group_hygiene.model.evidence import Activity, Claims, Evidence, Outcome, Protections
from group_hygiene.model.groups import (
    INTERNAL_TOPICS,
    TOPIC_DENIED,
    Bounds,
    Cluster,
    Coverage,
    Fault,
    Group,
    GroupType,
    Offsets,
    Partition,
    Snapshot,
    is_internal,
)
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

# One unread record is enough, and most partitions have one: the search begins with one partition of a topic, and
# multiplies the number each round.
_FACTOR = 4


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
    """The state of one connection between runs. A restart loses it, which only causes delays."""

    # Of the ledger, or what it would contain if there were one; and changes still to be written.
    contents: Contents = field(default_factory=Contents)
    unwritten: dict[Key, Change] = field(default_factory=dict)
    # The open one, or None; topic and id of the first one that was opened; whether this process writes it.
    ledger: Ledger | None = None
    ledger_topic: str | None = None
    ledger_id: str | None = None
    claimed: bool = False
    # Policy uid -> this process's history of its scans.
    scan_histories: dict[str, ScanHistory] = field(default_factory=dict)
    # Monotonic seconds of the last scan that counted groups, None = none did; and `ScanClock.seconds` of the first one.
    last_scan: float | None = None
    first_seconds: float = 0.0
    # Group with a Seen -> `ScanClock.seconds` of the last scan that read it.
    reads: dict[str, float] = field(default_factory=dict)
    # Id of an unresolved deletion -> monotonic time at which this process first read of it.
    intents: dict[str, float] = field(default_factory=dict)
    # Id of a deletion that certainly happened -> its outcome, which may not be in the ledger.
    unrecorded: dict[str, HistoryEntry] = field(default_factory=dict)
    # Id of an intent that this process could not read back, so that it sent nothing -> the outcome, and the keys of its
    # backup.
    unsent: dict[str, tuple[Outcome, Sequence[Key]]] = field(default_factory=dict)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    # The last known record of partitions that had unread records.
    last_records: dict[Partition, LastRecord] = field(default_factory=dict)
    # The activity of groups with a request of a GroupKeep, as the tables had it at the last full scan.
    of_keeps: dict[str, Activity] = field(default_factory=dict)
    # Groups with members that were described since they had none before.
    described: set[str] = field(default_factory=set)
    # Of the first answer: another one later means that the address now leads to another cluster.
    cluster_id: str | None = None
    # Whether the last scan found matches of a policy that deletes; the id of the cluster that answered it.
    due_before: bool = False
    answered_last: str | None = None
    # The brokers' offsets.retention.minutes, None = not known; and whether it was requested.
    retention: timedelta | None = None
    retention_asked: bool = False
    # Reads the offsets log for the policies with `unchangedFor`; None = the last scan could not read it.
    tail: Tail | None = None
    # As of the last scan, see `kafka.brokers`; and the leaders among which records were looked at for it.
    grown: dict[int, str] = field(default_factory=dict)
    grown_among: Mapping[int, tuple[int, int]] | None = None
    allowance: Allowance = field(default_factory=Allowance)
    # How many groups a scan judges at a time, at most; and how many can be read again and saved at once within FRESH_S.
    slice: int = SLICE
    batch: int = BATCH
    # The most bytes of records that one request may make a coordinator write.
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


def evidence_of(context: Context, policy: Policy, facts: Facts) -> Callable[[Group], Evidence]:
    """A function that returns the evidence about a group, for one policy and one scan.

    It is from `facts`, the connection's spec, the ledger and the operator's own scans.
    """
    contents, memory, connection = context.journal.contents, context.memory, context.connection
    watch, clock = contents.watches.get(policy.uid), contents.clocks.get(connection.uid)
    history = memory.scan_histories.get(policy.uid)
    is_target = connection.role is Role.FAILOVER_TARGET

    def evidence(group: Group) -> Evidence:
        name = group.id
        seen = contents.seen.get(connection.uid, {}).get(name)
        if context.assume_unchanged:
            known = unchanged.assumed(seen, policy)
        else:
            known = unchanged.unchanged(seen, watch, clock, history, policy)
        return Evidence(
            protections=facts.protections,
            protected_by=connection.protect.matching(name),
            failover_target=is_target,
            keep_request=contents.keep_of(name),
            used_by=contents.used_by.get(name),
            deleted=contents.deletions.get(name),
            damaged=contents.damaged.get(name),
            unchanged=known,
            offsets=facts.offsets.get(name),
            missing_topics=facts.missing_topics.get(name),
            bounds=facts.bounds,
            records=facts.records,
            activity=facts.activity.get(name),
            retention=memory.retention,
            subscribed=facts.subscribed.get(name),
            offsets_deleted=contents.offset_deletions.get(name, {}),
            owner=connection.owners.of(name),
        )

    return evidence


def read_protections(
    context: Context,
    cluster: Cluster,
    groups: Mapping[str, Group],
    topics: Mapping[str, int] | Fault,
    deadline: Deadline,
    claims: Callable[[], Claims | Refusal],
) -> Protections:
    """The protections by topics, checkpoints and Kubernetes objects. A source that can't be read protects all groups.

    groups: at least those to judge. claims: returns the groups that Kubernetes objects name. The versions of the
    brokers are read only for Streams groups.
    """
    old: tuple[str, ...] | Fault = ()
    streams = mirrored = None
    if any(group.type is GroupType.STREAMS for group in groups.values()):
        old = brokers.without_streams(context.client, cluster, deadline)
    if not isinstance(topics, Fault):
        streams = _applications(topics, groups)
        checkpoints = checkpoint_topics(topics, context.connection.checkpoint_topics)
        # Another program may write as many as it likes: the rest of the scan has its time.
        found = context.memory.checkpoints.read(context.client, checkpoints, Deadline(deadline.left / 4))
        mirrored = None if isinstance(found, Fault) else found
    with deadline.paused():
        claimed = claims()
    if isinstance(claimed, Claims) and context.connection.role is Role.PRIMARY:
        # Without those of ShadowLinks, which don't name their target.
        claimed = Claims(claimed.named)
    return Protections(streams, mirrored, claimed, old)


def _applications(topics: Iterable[str], ids: Iterable[str]) -> frozenset[str]:
    """The ids for which a topic `<id>-<name>-changelog` or `<id>-<name>-repartition` may exist."""
    owned = sorted(topic.rpartition("-")[0] for topic in topics if topic.endswith(INTERNAL_TOPICS))

    def owns(name: str) -> bool:
        # The place of the prefix in the order: topics that begin with it follow.
        at = bisect_left(owned, f"{name}-")
        return at < len(owned) and owned[at].startswith(f"{name}-")

    return frozenset(filter(owns, ids))


def read_offsets(
    client: Client,
    types: Mapping[str, GroupType],
    coordinators: Mapping[str, int | None],
    deadline: Deadline,
    require_stable: bool = False,
) -> dict[str, Offsets | Fault]:
    """All offsets of each group, by its type in `types`. coordinators: group -> its coordinator, None = look it up.

    For scans, and right before a deletion: a share group that shows no start offset at all counts as one without any.
    """
    sharing = {name: coordinators[name] for name, kind in types.items() if kind is GroupType.SHARE}
    committing = {name: coordinators[name] for name in types if name not in sharing}
    found = kafka_offsets.complete_offsets(client, sharing, deadline, again=True) if sharing else {}
    return found | kafka_offsets.committed_offsets(client, committing, deadline, require_stable=require_stable)


def current_offsets(
    client: Client,
    kind: str,
    coordinators: Mapping[str, int | None],
    places: Collection[Partition],
    deadline: Deadline,
) -> Offsets | Fault:
    """The current offsets of one group (its id -> coordinator) for these partitions; a Fault if a commit is pending."""
    if kind == GroupType.SHARE:
        (shared,) = kafka_offsets.complete_offsets(client, coordinators, deadline).values()
        if isinstance(shared, Fault):
            return shared
        return {place: shared[place] for place in places if place in shared}
    (found,) = kafka_offsets.committed_offsets(client, coordinators, deadline, places, require_stable=True).values()
    return found


def restored_offsets(
    client: Client, backup: Backup, coordinator: int | None, places: Collection[Partition], deadline: Deadline
) -> Offsets | Fault:
    """The current offsets of a backup's group for these partitions; by the backup's topic ids if brokers support it.

    No Fault if a commit is pending.
    """
    coordinators = {backup.group: coordinator}
    if backup.type == GroupType.SHARE:
        return current_offsets(client, backup.type, coordinators, places, deadline)
    return kafka_offsets.committed_by_topic_id(client, coordinators, places, backup.topic_ids, deadline)


def internal_topics(topics: Iterable[str], group: str) -> list[str]:
    """The topics that Kafka Streams created for the application of this id, by their names."""
    return sorted(topic for topic in topics if is_internal(topic, group))


def read_bounds(
    client: Client, committed: Iterable[Iterable[Partition]], deadline: Deadline
) -> dict[Partition, Bounds | Fault]:
    """The start and end of every partition of these offsets. Each partition is requested once.

    Call this after reading the offsets: against an older end, a newer offset would appear out of range.
    """
    partitions = {partition for partitions in committed for partition in partitions}
    starts = kafka_offsets.start_offsets(client, partitions, Deadline(deadline.left / 2))
    ends = kafka_offsets.end_offsets(client, partitions, deadline)
    return {place: _bounds(starts[place], ends[place]) for place in partitions}


def read_missing_topics(
    client: Client, topics: Mapping[str, Set[str]], deadline: Deadline
) -> dict[str, frozenset[str] | Fault]:
    """group -> those of its topics that do not exist; a Fault if that is not known for one of them.

    A Fault of a topic affects only the groups that committed there.
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


def known_offsets_or_empty(offsets: Offsets | Fault | None) -> Offsets:
    """The offsets; none if they were not or could not be read."""
    return {} if offsets is None or isinstance(offsets, Fault) else offsets


@dataclass(frozen=True, slots=True)
class TableEvidence:
    """The result of one read of the tables."""

    groups: Mapping[str, Activity | Refusal]
    coverage: Coverage
    # The new entry of the ledger; None = leave the ledger as it is.
    largest: entries.LargestCoverage | None = None
    # Partition of the log -> the offset up to which they have every record; only of partitions of this log.
    covered: Mapping[int, int] = field(default_factory=dict)


def read_evidence(
    context: Context, cluster: Cluster, groups: Collection[str], deadline: Deadline, older: datetime | None = None
) -> TableEvidence:
    """Read the tables once for all these groups, in half of the time: the rest of the run needs the other half.

    older: see `reader.Tables.read`.
    """
    tables, partitions = context.tables, len(cluster.leaders)
    if tables is None:
        refusal = Refusal(
            reasons.EVIDENCE_NOT_CONFIGURED, "the KafkaConnection has no activity: when it was used is unknown"
        )
        return _nothing(groups, refusal, partitions)
    if isinstance(tables, Refusal):
        return _nothing(groups, tables, partitions)
    topic_id = topic_ids(context.client, [OFFSETS_TOPIC], Deadline(deadline.left / 2))[OFFSETS_TOPIC]
    if isinstance(topic_id, Fault):
        refusal = Refusal(reasons.EVIDENCE_UNREADABLE, f"the id of {OFFSETS_TOPIC}: {topic_id}")
        return _nothing(groups, refusal, partitions)
    reading = tables.read(groups, deadline.left / 2, older)
    if isinstance(reading, Refusal):
        return _nothing(groups, reading, partitions)
    epochs = {
        Partition(OFFSETS_TOPIC, index): place.leader_epoch
        for index, place in reading.covered.items()
        if place.leader_epoch is not None and index < partitions
    }
    ends = {p.partition: end for p, end in epoch_ends(context.client, epochs, Deadline(deadline.left / 2)).items()}
    log = Log(cluster.id, topic_id or None, partitions, ends)
    now, uid = context.clock.now(), context.connection.uid
    before = context.journal.contents.covered.get(uid)
    refusals = refusals_by_partition(reading, log, before, tables.spec.max_age, now)
    answers = {name: activity_of(name, reading, log, refusals) for name in groups}
    good = [place.read_at for partition, place in reading.covered.items() if partition not in refusals]
    problem = refusals[min(refusals)] if refusals else None
    coverage = Coverage(problem, partitions - len(refusals), partitions, min(good, default=None), tables.spec.max_age)
    # Old tables are a start, too.
    unusable = {partition for partition, why in refusals.items() if why.reason != reasons.EVIDENCE_STALE}
    covered = {p: place.to for p, place in reading.covered.items() if p < partitions and p not in unusable}
    return TableEvidence(answers, coverage, largest_coverage(reading, log, before, uid, now), covered)


def _nothing(groups: Collection[str], refusal: Refusal, partitions: int) -> TableEvidence:
    return TableEvidence(dict.fromkeys(groups, refusal), Coverage(refusal, 0, partitions, None))


def read_records(
    context: Context, groups: Iterable[str], facts: Facts, deadline: Deadline, reread: bool = False
) -> None:
    """Read `facts.records` for partitions that appear to have unread records. One record decides for a group's topic.

    facts: with bounds that were read after the offsets. reread: don't use results of earlier scans.
    """
    bounds = facts.bounds
    known: dict[Partition, LastRecord | Fault] = {} if reread else {**_remembered(context, bounds)}
    committed = [known_offsets_or_empty(facts.offsets.get(name)) for name in groups]
    left = [places for offsets in committed for places in _places_by_topic(offsets, bounds)]
    many = 1
    while True:
        sought: dict[Partition, SearchRange] = {}
        left = [places for places in left if not any(_enough(known.get(place), *at) for place, at in places.items())]
        for places in left:
            open_places = [
                place
                for place, at in places.items()
                if (last := known.get(place)) is None or (isinstance(last, LastRecord) and last.has_record(*at) is None)
            ]
            for place in open_places[:many]:
                first, end = places[place]
                other = sought.get(place, SearchRange(first, first, end))
                sought[place] = SearchRange(min(first, other.first), max(first, other.enough), end)
        if not sought:
            break
        for place, found in last_records(context.client, sought, deadline).items():
            before = known.get(place)
            if isinstance(before, LastRecord) and isinstance(found, LastRecord):
                known[place] = before.merged(found)
            else:
                known[place] = found
        many *= _FACTOR
    context.memory.last_records.update(
        {place: found for place, found in known.items() if isinstance(found, LastRecord)}
    )
    facts.records.update({place: found if isinstance(found, Fault) else found.offset for place, found in known.items()})


def _remembered(context: Context, bounds: Mapping[Partition, Bounds | Fault]) -> dict[Partition, LastRecord]:
    """Results of earlier scans, except for a log that lost the record or is shorter: it was recreated."""
    memory = context.memory.last_records
    for place, now in bounds.items():
        before = memory.get(place)
        if before is None or isinstance(now, Fault):
            continue
        if now.end < before.end or (before.offset >= 0 and now.start > before.offset):
            del memory[place]
    return {place: memory[place] for place in bounds if place in memory}


def _places_by_topic(
    offsets: Offsets, bounds: Mapping[Partition, Bounds | Fault]
) -> list[dict[Partition, tuple[int, int]]]:
    """Per topic with apparently unread records: partition -> (first unread offset, end), most records first."""
    rows = [
        (place, max(commit.offset, known.start), known.end)
        for place, commit in offsets.items()
        if isinstance(known := bounds.get(place), Bounds) and unread(known, commit.offset)
    ]
    rows.sort(key=lambda row: (row[1] - row[2], row[0]))
    topics: dict[str, dict[Partition, tuple[int, int]]] = {}
    for place, first, end in rows:
        topics.setdefault(place.topic, {})[place] = (first, end)
    return list(topics.values())


def _enough(known: LastRecord | Fault | None, first: int, end: int) -> bool:
    """If the user may not READ one partition, it may not READ any of the topic."""
    if isinstance(known, Fault):
        return known.code == TOPIC_DENIED
    return known is not None and known.has_record(first, end) is True
