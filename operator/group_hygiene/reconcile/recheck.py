"""Right before a deletion, reads all evidence again and asks each of `vetoes.VETOES`. Reads only.

Slow reads (tables, topics, ends of partitions, transactions) come first. State, offsets and the end of the offsets log,
which change within seconds, come last and are valid for FRESH_S.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from group_hygiene.decide.checks.unread import asks_records
from group_hygiene.decide.plan import Plan, due_topics
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.cluster import look_up
from group_hygiene.kafka.offsets_log import Commit
from group_hygiene.kafka.offsets_log import StateRecord as GroupRecord
from group_hygiene.kafka.offsets_topic import Found, Tail
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity
from group_hygiene.model.groups import Cluster, Fault, Offsets, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.reconcile.context import (
    Context,
    Facts,
    evidence_of,
    internal_topics,
    read_bounds,
    read_missing_topics,
    read_offsets,
    read_protections,
    readable,
)
from group_hygiene.reconcile.evidence import read_evidence
from group_hygiene.reconcile.unread import read_records
from group_hygiene.reconcile.uses import Uses
from group_hygiene.reconcile.vetoes import FRESH_S, VETOES, Case, Reads, Ready, of_topics, unreadable
from group_hygiene.reconcile.window import read_start


@dataclass(frozen=True, slots=True)
class Rechecked:
    """The result of reading a batch again. started: monotonic time before state and offsets were requested.

    late: the reads took longer than FRESH_S, so no group may be deleted. log_ends: see `Intent`.
    """

    ready: Mapping[str, Ready]
    refused: Mapping[str, Refusal]
    started: float
    late: bool
    log_ends: dict[int, int]


def leaders_moved(context: Context, before: Cluster, deadline: Deadline) -> Refusal | None:
    """Coordinators that moved since the scan may have other groups than those that the scan asked."""
    now = kafka_cluster.read_cluster(context.client, deadline, context.connection.topics_attested)
    if isinstance(now, Fault):
        return Refusal(reasons.SNAPSHOT_INCOMPLETE, f"the cluster could not be read again before the deletion: {now}")
    if (now.id, now.coordinators) != (before.id, before.coordinators):
        return Refusal(reasons.SNAPSHOT_INCOMPLETE, f"leaders of {kafka_cluster.OFFSETS_TOPIC} changed since the scan")
    return None


def recheck(
    context: Context, plan: Plan, cluster: Cluster, batch: Sequence[str], uses: Uses, deadline: Deadline
) -> Rechecked:
    """Read a batch of due groups again, and ask each of VETOES: for each group what to save, or a Refusal.

    cluster: as in the scan, and unchanged since. uses: of all groups of the run; reads on here.
    """
    reads = _read(context, plan, cluster, batch, uses, deadline)
    if isinstance(reads, Refusal):
        return Rechecked({}, dict.fromkeys(batch, reads), context.clock.monotonic(), False, {})
    cases = {name: Case(reads, group) for name, group in reads.groups.items()}
    found = {name: next(filter(None, (veto(case) for veto in VETOES)), None) for name, case in cases.items()}
    refused = {name: refusal for name, refusal in found.items() if refusal is not None}
    ready = {name: case.ready() for name, case in cases.items() if name not in refused}
    return Rechecked(ready, refused, reads.started, reads.late, reads.log_ends)


def _read(
    context: Context, plan: Plan, cluster: Cluster, batch: Sequence[str], uses: Uses, deadline: Deadline
) -> Reads | Refusal:
    client, policy = context.client, plan.policy
    groups = {name: plan.verdicts[name].group for name in batch}
    targets = {name: _target_topics(context, plan, name) for name in batch}
    seen = {name: of_topics(readable(plan.verdicts[name].evidence.offsets), targets[name]) for name in batch}
    activity, tail = _read_tables(context, plan, cluster, targets, deadline)
    uses.read_on(Deadline(deadline.left / 2))
    topics = kafka_cluster.read_topics(client, deadline)
    protections = read_protections(context, cluster, groups, topics, deadline, context.claims)
    facts = Facts(protections=protections, activity=activity, offsets=dict(seen))
    committed = {name: {place.topic for place in offsets} for name, offsets in seen.items()}
    if policy.when.deleted_topics is not None:
        # One may have been created again since the scan.
        facts.missing_topics = read_missing_topics(client, committed, deadline)
    # The topics that hold the state of each group that is, or appears to be, a Streams application.
    applications = (protections.streams if not policy.by_topic else None) or frozenset()
    listed = () if isinstance(topics, Fault) else topics
    internal = {name: internal_topics(listed, name) if name in applications else [] for name in groups}
    needed = set[str]().union(*committed.values(), *internal.values())
    topic_ids = kafka_cluster.topic_ids(client, needed, deadline)
    facts.bounds = read_bounds(client, seen.values(), Deadline(deadline.left / 2))
    # For groups whose checks need them; records that a scan found may be gone since.
    evidence = {name: evidence_of(context, policy, group, facts) for name, group in groups.items()}
    asking = [name for name, group in groups.items() if asks_records(policy, group, evidence[name])]
    read_records(context, asking, facts, Deadline(deadline.left / 2), reread=True)
    # A group that is in use is in transactions all the time: only those that commit for its target topics matter.
    wanted = frozenset[str]().union(*(names or () for names in targets.values()))
    partitions = partitions_of(topics, wanted if policy.by_topic else None)
    # What comes from here on is read once more before the request, within FRESH_S. Only then it is asked which
    # transactions are open: one that begins later is behind these ends.
    log_ends = read_start(context, cluster, deadline)
    if isinstance(log_ends, Refusal):
        return log_ends
    pending = pending_commits(context, dict.fromkeys(groups), partitions, deadline)
    coordinators = {**dict.fromkeys(groups), **look_up(client, list(groups), deadline).ok}
    started = context.clock.monotonic()
    types = {name: group.type for name, group in groups.items()}
    described = kafka_groups.describe_groups(client, types, coordinators, deadline)
    offsets: Mapping[str, Offsets | Fault]
    if policy.by_topic and not isinstance(partitions, Fault):
        offsets = kafka_offsets.committed_offsets(client, coordinators, deadline, partitions, require_stable=True)
    else:
        offsets = read_offsets(client, types, coordinators, deadline, require_stable=True)
    subscribed = {name: kafka_groups.subscribed_topics(answer) for name, answer in described.items()}
    # Most of the log was read before.
    commits = _after_tables(targets, activity, tail, Deadline(FRESH_S))
    used = uses.read_on(Deadline(FRESH_S))
    return Reads(
        context=context,
        policy=policy,
        groups=groups,
        targets=targets,
        seen=seen,
        pending=pending,
        topic_ids=topic_ids,
        internal=internal,
        coordinators=coordinators,
        log_ends=log_ends,
        started=started,
        facts=replace(facts, offsets=offsets, subscribed=subscribed),
        described=described,
        commits=commits,
        used=used,
        late=context.clock.monotonic() - started > FRESH_S,
    )


def _target_topics(context: Context, plan: Plan, name: str) -> frozenset[str] | None:
    """The topics whose offsets are to be deleted now, as they were marked; None = the whole group is."""
    if not plan.policy.by_topic:
        return None
    mark = context.journal.contents.marks.get(plan.policy.uid, {}).get(name)
    if mark is None:
        return frozenset()
    return due_topics(plan.policy, mark, plan.verdicts[name], context.clock.now())


def _read_tables(
    context: Context, plan: Plan, cluster: Cluster, targets: Mapping[str, frozenset[str] | None], deadline: Deadline
) -> tuple[dict[str, Activity | Refusal], Tail | None]:
    """What the pipeline's tables know of the groups, and the reader of the offsets log from their end on."""
    if not plan.policy.when.asks_evidence:
        return {}, None
    older = context.clock.now() if plan.policy.by_topic else None
    groups = {name: plan.verdicts[name].group for name in targets}
    found = read_evidence(context, cluster, groups, deadline, older)
    tail = Tail(context.client, cluster.leaders, found.covered) if found.covered else None
    _after_tables(targets, found.groups, tail, Deadline(deadline.left / 2))
    return dict(found.groups), tail


def _after_tables(
    targets: Mapping[str, frozenset[str] | None],
    activity: Mapping[str, Activity | Refusal],
    tail: Tail | None,
    deadline: Deadline,
) -> dict[str, Found | Fault | None]:
    """Of each group that the tables describe, a record that they do not cover yet. tail: from their end on.

    For a group in use, only commits for its target topics count: it commits for others all the time.
    """
    names = {name for name, known in activity.items() if isinstance(known, Activity)}
    if tail is None or not names:
        return {}

    def matters(record: Commit | GroupRecord) -> bool:
        topics = targets[record.group]
        return topics is None or (isinstance(record, Commit) and record.topic in topics)

    tail.read_on(names.__contains__, deadline, matters)
    return {name: tail.answer(name, tail.begun) for name in names}


def partitions_of(topics: Mapping[str, int] | Fault, wanted: frozenset[str] | None = None) -> list[Partition] | Fault:
    """All partitions of the `wanted` topics, None = of all topics. topics: name -> number of partitions."""
    if isinstance(topics, Fault):
        return topics
    return [
        Partition(topic, index)
        for topic, count in topics.items()
        if wanted is None or topic in wanted
        for index in range(count)
    ]


def pending_commits(
    context: Context, groups: Mapping[str, int | None], partitions: Collection[Partition] | Fault, deadline: Deadline
) -> dict[str, Refusal]:
    """Groups with a pending transactional commit: a deletion would succeed and lose it (KIP-447).

    groups: id -> coordinator, None = look it up. A fetch of "all partitions" omits a partition that has only a pending
    commit, so the request names each partition.
    """
    if isinstance(partitions, Fault):
        return dict.fromkeys(groups, Refusal(reasons.OFFSETS_UNKNOWN, f"topics could not be read: {partitions}"))
    answers = kafka_offsets.committed_offsets(context.client, groups, deadline, partitions, require_stable=True)
    return {name: unreadable(fault) for name, fault in answers.faults.items()}
