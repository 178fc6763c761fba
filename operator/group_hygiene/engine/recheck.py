"""Right before a deletion, reads all evidence about groups again, and asks each of VETOES about each. Reads only.

Slow reads (tables, topics, ends of partitions, transactions) come first. State, offsets and the end of the offsets log,
which change within seconds, come last and are valid for FRESH_S. A veto judges one group by what was read, without I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from group_hygiene.engine import checks
from group_hygiene.engine.checks.lag import asks_records, unread
from group_hygiene.engine.checks.offsets import unreadable
from group_hygiene.engine.context import (
    Context,
    Facts,
    evidence_of,
    internal_topics,
    known_offsets_or_empty,
    read_bounds,
    read_evidence,
    read_missing_topics,
    read_offsets,
    read_protections,
    read_records,
)
from group_hygiene.engine.plan import Plan, due_topics, is_outdated
from group_hygiene.engine.uses import Uses, earliest, read_start, recently_active
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.cluster import look_up
from group_hygiene.kafka.offsets_log import Commit, StateRecord
from group_hygiene.kafka.offsets_topic import Found, Tail
from group_hygiene.model import reasons
from group_hygiene.model.entries import Mark
from group_hygiene.model.evidence import Activity, Evidence, Need, Verdict
from group_hygiene.model.groups import (
    NO_SUCH_TOPIC,
    Bounds,
    Cluster,
    Description,
    Fault,
    Group,
    GroupState,
    Offsets,
    Partition,
    fingerprint,
)
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import format_duration, timestamp
from group_hygiene.spec.policy import Policy

# State and offsets may be at most this old when DeleteGroups is sent.
FRESH_S = 2.0


@dataclass(frozen=True, slots=True)
class Ready:
    """A group that may be deleted, or whose `offsets` may, with the data to save.

    coordinator: the broker that answered for it. lag: unread records of its partitions, if known. topic_ids: of its
    topics that have one. why: the reason why it is due. internal_topics: of a Streams application, with their ids.
    """

    group: Group
    coordinator: int | None
    offsets: Offsets
    lag: Mapping[Partition, int]
    topic_ids: Mapping[str, str]
    why: str
    internal_topics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """A batch of groups, and all that was read again about them.

    groups: as listed by the scan. targets: of each group, the topics whose offsets are to be deleted; None = the whole
    group is. seen: of each group, the offsets of these topics at the scan.

    pending: groups with an open transaction. topic_ids: of the topics in `seen` and `internal`. internal: of each
    group, the topics that hold its state. coordinators: None = look it up again. log_ends: of the offsets log, from
    before `pending`.

    The rest was read from `started` on, in monotonic time, and is valid for FRESH_S. late: that took longer. facts: all
    evidence for the checks. commits: of each group, its first record after the end of the pipeline's tables. used:
    groups that must not be deleted, by the log since they were first seen unchanged.
    """

    context: Context
    policy: Policy
    groups: Mapping[str, Group]
    targets: Mapping[str, frozenset[str] | None]
    seen: Mapping[str, Offsets]
    pending: Mapping[str, Refusal]
    topic_ids: Mapping[str, str | Fault]
    internal: Mapping[str, Sequence[str]]
    coordinators: Mapping[str, int | None]
    log_ends: dict[int, int]
    started: float
    late: bool
    facts: Facts
    described: Mapping[str, Description | Fault]
    commits: Mapping[str, Found | Fault | None]
    used: Mapping[str, Refusal]


@dataclass(frozen=True)
class Case:
    """One group with all evidence for a veto."""

    reads: Reads
    group: Group

    @property
    def name(self) -> str:
        return self.group.id

    @property
    def policy(self) -> Policy:
        return self.reads.policy

    @property
    def target(self) -> frozenset[str] | None:
        return self.reads.targets[self.name]

    @property
    def mark(self) -> Mark | None:
        """The current mark in the ledger: another process, or a user of the command line, may have written since."""
        return self.reads.context.journal.contents.marks.get(self.policy.uid, {}).get(self.name)

    @property
    def now(self) -> datetime:
        return self.reads.context.clock.now()

    @cached_property
    def offsets(self) -> Offsets:
        """The offsets to save and delete, by the fresh read."""
        return of_topics(known_offsets_or_empty(self.reads.facts.offsets[self.name]), self.target)

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict by all evidence, with requests to keep and other deletions from the ledger as it is now."""
        evidence = evidence_of(self.reads.context, self.policy, self.reads.facts)(self.group)
        return checks.judge(self.policy, self.group, evidence, self.now)

    @property
    def topic_ids(self) -> dict[str, str | Fault]:
        """The ids of the topics whose offsets are saved."""
        return {place.topic: self.reads.topic_ids[place.topic] for place in self.offsets}

    @property
    def state_ids(self) -> dict[str, str | Fault]:
        """The ids of the topics that hold its state."""
        return {topic: self.reads.topic_ids[topic] for topic in self.reads.internal[self.name]}

    def ready(self) -> Ready:
        places, bounds = self.offsets.items(), self.reads.facts.bounds
        return Ready(
            group=self.group,
            coordinator=self.reads.coordinators[self.name],
            offsets=self.offsets,
            lag={p: unread(known, at.offset) for p, at in places if isinstance(known := bounds[p], Bounds)},
            topic_ids=_known(self.topic_ids),
            why=why_due(self.verdict.evidence),
            internal_topics=_known(self.state_ids),
        )


def mark_ended(case: Case) -> Refusal | None:
    """Only a mark by the current policy, whose date has come, allows a deletion."""
    mark = case.mark
    if mark is None or mark.digest != case.policy.digest or mark.due > case.now:
        return Refusal(reasons.CHANGED, "its mark is gone from the ledger, or has changed")
    return None


def deletion_open(case: Case) -> Refusal | None:
    """An earlier request for the group may still be carried out."""
    if case.name in case.reads.context.journal.contents.intents:
        return Refusal(reasons.INTERRUPTED, "an earlier deletion of it is unresolved")
    return None


def state_changed(case: Case) -> Refusal | None:
    """A group that has members now is in use; one of another protocol type is another group."""
    described = case.reads.described[case.name]
    if isinstance(described, Fault):
        gone = described.code == "GROUP_ID_NOT_FOUND"
        return Refusal(reasons.GONE, "it is gone already") if gone else unreadable(described)
    now, by_topic = described.group, case.policy.by_topic
    if now.state is GroupState.DEAD:
        return Refusal(reasons.GONE, "it is gone already")
    if by_topic and now.state is not GroupState.STABLE:
        return Refusal(reasons.NOT_STABLE, f"its state is {now.state} now")
    if not by_topic and now.state is not GroupState.EMPTY:
        return Refusal(reasons.BECAME_ACTIVE, f"its state is {now.state} now")
    if now.protocol_type != case.group.protocol_type:
        return Refusal(reasons.CHANGED, "its protocol type changed since the scan")
    return None


def transaction_open(case: Case) -> Refusal | None:
    """A deletion would succeed and lose a pending transactional commit."""
    return case.reads.pending.get(case.name)


def offsets_changed(case: Case) -> Refusal | None:
    """A client that commits uses the group."""
    committed = case.reads.facts.offsets[case.name]
    if isinstance(committed, Fault):
        return unreadable(committed)
    if fingerprint(case.group, case.offsets) != fingerprint(case.group, case.reads.seen[case.name]):
        return Refusal(reasons.CHANGED, "its committed offsets changed since the scan")
    return None


def used_between_scans(case: Case) -> Refusal | None:
    """A consumer that joined and left between two scans appears only in the offsets log."""
    return case.reads.used.get(case.name)


def read_late(case: Case) -> Refusal | None:
    """State and offsets that are older than FRESH_S prove nothing."""
    if case.reads.late:
        return Refusal(reasons.OFFSETS_UNKNOWN, f"reading it again took more than {FRESH_S:.0f} s")
    return None


def refused_by_check(case: Case) -> Refusal | None:
    """Every check of the scan must pass again, by the evidence that was read just now."""
    return case.verdict.refusal


def used_since_marked(case: Case) -> Refusal | None:
    """Users were not warned about a group, or a topic of it, that was used after it was marked."""
    mark, target = case.mark, case.target
    if mark is None:
        return Refusal(reasons.CHANGED, "its mark is gone from the ledger")
    if target is None:
        if not is_outdated(case.policy, mark, case.verdict):
            return None
        since = case.verdict.evidence.idle_since
        until = "" if since is None else f", until {timestamp(since)}"
        again = earliest("it is marked again, and due", case.now, case.policy.grace_period)
        return Refusal(reasons.RECENTLY_ACTIVE, f"it was used after it was marked{until}{again}")
    if target and target <= due_topics(case.policy, mark, case.verdict, case.now):
        return None
    return Refusal(reasons.CHANGED, "of the topics that it was marked for, some are in use again")


def used_after_tables(case: Case) -> Refusal | None:
    """A record of the group that the tables do not cover yet makes them outdated."""
    answer = case.reads.commits.get(case.name)
    if isinstance(answer, Found):
        note = ", which the tables do not cover yet"
        return recently_active(answer, "it matches again", case.policy.when.unused_for, note)
    if isinstance(answer, Fault):
        cut_off = answer.code == "OFFSET_OUT_OF_RANGE"
        return Refusal(
            reasons.EVIDENCE_INCOMPLETE if cut_off else reasons.EVIDENCE_UNREADABLE,
            f"the end of {kafka_cluster.OFFSETS_TOPIC}, which the tables do not cover yet: {answer}",
        )
    return None


def topic_unidentified(case: Case) -> Refusal | None:
    """Without a topic's id, a restore could not detect a recreated topic. A topic that is gone has no id.

    Brokers delete the offsets of a topic that is gone, so DeleteOffsets does not.
    """
    for topic, answer in (case.topic_ids | case.state_ids).items():
        if not isinstance(answer, Fault):
            continue
        if answer.code != NO_SUCH_TOPIC:
            message = f"the id of topic {topic} could not be read, for the backup: {answer}"
            return Refusal(reasons.TOPICS_UNKNOWN, message)
        if case.target is not None:
            return Refusal(reasons.GONE, f"topic {topic} is gone: brokers drop its offsets by themselves")
    return None


# A group is deleted if none of them refuses; the first that does gives the reason.
VETOES: tuple[Callable[[Case], Refusal | None], ...] = (
    mark_ended,
    deletion_open,
    state_changed,
    transaction_open,
    offsets_changed,
    used_between_scans,
    read_late,
    refused_by_check,
    used_since_marked,
    used_after_tables,
    topic_unidentified,
)


def of_topics(offsets: Offsets, topics: frozenset[str] | None) -> Offsets:
    return offsets if topics is None else {place: at for place, at in offsets.items() if place.topic in topics}


def _known(ids: Mapping[str, str | Fault]) -> dict[str, str]:
    return {topic: answer for topic, answer in ids.items() if isinstance(answer, str) and answer}


def why_due(evidence: Evidence) -> str:
    """Why the group matched, in words, for its backup."""
    seen, activity, parts = evidence.unchanged, evidence.activity, []
    if isinstance(activity, Activity) and activity.idle_since is not None:
        parts.append(
            f"idle since {timestamp(activity.idle_since)}, by the offsets log as of {timestamp(activity.read_at)}"
        )
    if seen is not None:
        parts.append(f"seen unchanged for {format_duration(seen.observed)}, since {timestamp(seen.since)}")
    return "; ".join(parts)


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
    seen = {
        name: of_topics(known_offsets_or_empty(plan.verdicts[name].evidence.offsets), targets[name]) for name in batch
    }
    activity, tail = _read_tables(context, plan, cluster, targets, deadline)
    uses.read_on(Deadline(deadline.left / 2))
    topics = kafka_cluster.read_topics(client, deadline)
    protections = read_protections(context, cluster, groups, topics, deadline, context.claims)
    facts = Facts(protections=protections, activity=activity, offsets=dict(seen))
    committed = {name: {place.topic for place in offsets} for name, offsets in seen.items()}
    if Need.MISSING_TOPICS in policy.when.needs:
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
    evidence = dict(zip(groups, map(evidence_of(context, policy, facts), groups.values()), strict=True))
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

    def matters(record: Commit | StateRecord) -> bool:
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
