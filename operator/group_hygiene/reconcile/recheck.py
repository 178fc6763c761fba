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
from group_hygiene.kafka.coordinators import look_up
from group_hygiene.kafka.offsets_log import Commit
from group_hygiene.kafka.offsets_log import StateRecord as GroupRecord
from group_hygiene.kafka.tail import Found, Tail
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity, Protections
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.snapshot import Cluster
from group_hygiene.reconcile.context import (
    Context,
    Facts,
    evidence_of,
    read_bounds,
    read_missing_topics,
    read_protections,
    readable,
)
from group_hygiene.reconcile.evidence import read_evidence
from group_hygiene.reconcile.saved_offsets import internal_topics, read_offsets
from group_hygiene.reconcile.unread import read_records
from group_hygiene.reconcile.uses import Uses
from group_hygiene.reconcile.vetoes import (
    FRESH_S,
    VETOES,
    Case,
    FreshReads,
    Ready,
    Scope,
    SlowReads,
    of_topics,
    unreadable,
)
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
    policy, groups = plan.policy, {name: plan.verdicts[name].group for name in batch}
    targets = {name: _target_topics(context, plan, name) if policy.by_topic else None for name in batch}
    seen = {name: of_topics(readable(plan.verdicts[name].evidence.offsets), targets[name]) for name in batch}
    scope = Scope(context, policy, cluster, groups, targets, seen)
    slow = _read_slow(scope, uses, deadline)
    log_ends = slow.log_ends
    if isinstance(log_ends, Refusal):
        return Rechecked({}, dict.fromkeys(batch, log_ends), context.clock.monotonic(), False, {})
    fresh = _read_fresh(scope, slow, uses, deadline)
    ready: dict[str, Ready] = {}
    refused: dict[str, Refusal] = {}
    for name in batch:
        case = Case(scope, groups[name], slow, fresh)
        refusal = next(filter(None, (veto(case) for veto in VETOES)), None)
        if refusal is not None:
            refused[name] = refusal
        else:
            ready[name] = case.ready()
    return Rechecked(ready, refused, fresh.started, fresh.late, log_ends)


def _read_slow(scope: Scope, uses: Uses, deadline: Deadline) -> SlowReads:
    context, policy, groups, seen = scope.context, scope.policy, scope.groups, scope.seen
    activity: dict[str, Activity | Refusal] = {}
    since: Mapping[int, int] = {}
    if policy.when.asks_evidence:
        older = context.clock.now() if policy.by_topic else None
        evidence_now = read_evidence(context, scope.cluster, groups, deadline, older)
        activity, since = dict(evidence_now.groups), evidence_now.covered
    tail = Tail(context.client, scope.cluster.leaders, since) if since else None
    _after_tables(scope, activity, tail, Deadline(deadline.left / 2))
    uses.read_on(Deadline(deadline.left / 2))
    topics = kafka_cluster.read_topics(context.client, deadline)
    facts = Facts(
        protections=read_protections(context, scope.cluster, groups, topics, deadline, context.claims),
        activity=activity,
        offsets=dict(seen),
    )
    committed = {name: {place.topic for place in offsets} for name, offsets in seen.items()}
    if policy.when.deleted_topics is not None:
        # One may have been created again since the scan.
        facts.missing_topics = read_missing_topics(context.client, committed, deadline)
    internal = _internal_topics(scope, topics, facts.protections)
    needed = set[str]().union(*committed.values(), *internal.values())
    topic_ids = kafka_cluster.topic_ids(context.client, needed, deadline)
    facts.bounds = read_bounds(context.client, seen.values(), Deadline(deadline.left / 2))
    # For groups whose checks need them; records that a scan found may be gone since.
    evidence = {name: evidence_of(context, policy, group, facts) for name, group in groups.items()}
    asking = [name for name, group in groups.items() if asks_records(policy, group, evidence[name])]
    read_records(context, asking, facts, Deadline(deadline.left / 2), reread=True)
    # A group that is in use is in transactions all the time: only those that commit for its target topics matter.
    targets = frozenset[str]().union(*(names or () for names in scope.targets.values()))
    partitions = partitions_of(topics, targets if policy.by_topic else None)
    # What comes from here on is read once more before the request, within FRESH_S. Only then it is asked which
    # transactions are open: one that begins later is behind these ends.
    log_ends = read_start(context, scope.cluster, deadline)
    pending = pending_commits(context, dict.fromkeys(groups), partitions, deadline)
    brokers = look_up(context.client, list(groups), deadline)
    coordinators = {name: None if isinstance(broker, Fault) else broker for name, broker in brokers.items()}
    return SlowReads(facts, partitions, pending, topic_ids, internal, tail, coordinators, log_ends)


def _read_fresh(scope: Scope, slow: SlowReads, uses: Uses, deadline: Deadline) -> FreshReads:
    context, groups, coordinators = scope.context, scope.groups, slow.coordinators
    started = context.clock.monotonic()
    types = {name: group.type for name, group in groups.items()}
    described = kafka_groups.describe_groups(context.client, types, coordinators, deadline)
    if scope.policy.by_topic and not isinstance(slow.partitions, Fault):
        offsets = kafka_offsets.committed_offsets(
            context.client, coordinators, deadline, slow.partitions, require_stable=True
        )
    else:
        offsets = read_offsets(context.client, types, coordinators, deadline, require_stable=True)
    subscribed = {name: kafka_groups.subscribed_topics(answer) for name, answer in described.items()}
    facts = replace(slow.facts, offsets=offsets, subscribed=subscribed)
    # Most of the log was read before.
    commits = _after_tables(scope, slow.facts.activity, slow.tail, Deadline(FRESH_S))
    used = uses.read_on(Deadline(FRESH_S))
    late = context.clock.monotonic() - started > FRESH_S
    return FreshReads(started, facts, described, commits, used, late)


def _target_topics(context: Context, plan: Plan, name: str) -> frozenset[str]:
    """The topics whose offsets are to be deleted now, as they were marked."""
    mark = context.journal.contents.marks.get(plan.policy.uid, {}).get(name)
    if mark is None:
        return frozenset()
    return due_topics(plan.policy, mark, plan.verdicts[name], context.clock.now())


def _internal_topics(scope: Scope, topics: Mapping[str, int] | Fault, protections: Protections) -> dict[str, list[str]]:
    """The topics that hold the state of each group that is, or appears to be, a Streams application."""
    if isinstance(topics, Fault) or scope.policy.by_topic:
        return {name: [] for name in scope.groups}
    applications = protections.streams or frozenset()
    return {name: internal_topics(topics, name) if name in applications else [] for name in scope.groups}


def _after_tables(
    scope: Scope, activity: Mapping[str, Activity | Refusal], tail: Tail | None, deadline: Deadline
) -> dict[str, Found | Fault | None]:
    """Of each group that the tables describe, a record that they do not cover yet. tail: from their end on.

    For a group in use, only commits for its target topics count: it commits for others all the time.
    """
    names = {name for name, known in activity.items() if isinstance(known, Activity)}
    if tail is None or not names:
        return {}

    def matters(record: Commit | GroupRecord) -> bool:
        topics = scope.targets[record.group]
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
    return {name: unreadable(answer) for name, answer in answers.items() if isinstance(answer, Fault)}
