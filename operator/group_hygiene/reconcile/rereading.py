"""One more look at a group, right before its deletion: everything that decides is read again. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from group_hygiene import checks, reasons
from group_hygiene.checks.unread import asks_records
from group_hygiene.durations import format_duration, timestamp
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.coordinators import look_up
from group_hygiene.kafka.offsets_log import Commit
from group_hygiene.kafka.offsets_log import GroupState as GroupRecord
from group_hygiene.kafka.tail import Found, Place, Tail
from group_hygiene.lag import unread
from group_hygiene.model import (
    NO_SUCH_TOPIC,
    Activity,
    Bounds,
    Evidence,
    Fault,
    Group,
    GroupState,
    Keep,
    Offsets,
    Partition,
    Protections,
    Verdict,
    fingerprint,
)
from group_hygiene.plan import Plan, due_topics, is_outdated
from group_hygiene.policy import Policy
from group_hygiene.reconcile.context import (
    Context,
    Facts,
    evidence_of,
    read_bounds,
    read_missing_topics,
    read_protections,
    readable,
)
from group_hygiene.reconcile.evidence import look
from group_hygiene.reconcile.saving import internal_topics, read_offsets
from group_hygiene.reconcile.uses import Uses, words
from group_hygiene.reconcile.waiting import read_records
from group_hygiene.snapshot import Cluster, Description

# State and offsets may be this old when DeleteGroups is sent. Any older, and they say too little.
FRESH_S = 2.0


@dataclass(frozen=True, slots=True)
class Ready:
    """A group that may be deleted, or whose `offsets` may, with what is to be saved of it.

    coordinator: the broker that answered for it. lag: unread records, of those of its partitions where that is known.
    topic_ids: of those of its topics that have one. why: it is due. internal_topics: of a Streams application, with
    their ids.
    """

    group: Group
    coordinator: int | None
    offsets: Offsets
    lag: Mapping[Partition, int]
    topic_ids: Mapping[str, str]
    why: str
    internal_topics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reread:
    """What a second look says of a batch. started: monotonic time before state and offsets were asked for.

    late: it took so long that none of it holds any more.
    """

    ready: Mapping[str, Ready]
    kept: Mapping[str, Keep]
    started: float
    late: bool


def leaders_moved(context: Context, before: Cluster, deadline: Deadline) -> Keep | None:
    """Coordinators that moved since the scan may know less, or other things, than those that were asked."""
    now = kafka_cluster.read_cluster(context.client, deadline)
    if isinstance(now, Fault):
        return Keep(reasons.SNAPSHOT_INCOMPLETE, f"the cluster could not be read again before the deletion: {now}")
    if (now.id, now.leaders) != (before.id, before.leaders):
        return Keep(reasons.SNAPSHOT_INCOMPLETE, f"leaders of {kafka_cluster.OFFSETS_TOPIC} changed since the scan")
    return None


def read_again(
    context: Context, plan: Plan, cluster: Cluster, batch: Sequence[str], uses: Uses, deadline: Deadline
) -> Reread:
    """Of each group: what to save, if it is as the scan saw it and still matches and is marked; else why it stays.

    cluster: as the scan saw it, and as it is now. uses: of all groups of the run, read on here. What may
    take long comes first and what must be fresh comes last: state and offsets, right before the deletion.
    """
    client, groups = context.client, {name: plan.verdicts[name].group for name in batch}
    meant = {name: _meant(context, plan, name) for name in batch}
    seen = {name: _only(readable(plan.verdicts[name].evidence.offsets), meant[name]) for name in batch}
    told: Mapping[str, Activity | Fault] = {}
    if plan.policy.when.asks_evidence:
        older = context.clock.now() if plan.policy.by_topic else None
        told = look(context, cluster, batch, deadline, older).groups
    tail = _tail(context, cluster, told, meant)
    tail.read_on(Deadline(deadline.left / 2))
    uses.read_on(Deadline(deadline.left / 2))
    topics = kafka_cluster.read_topics(client, deadline)
    protections = read_protections(context, cluster, groups.values(), topics, deadline)
    missing = _missing_topics(context, plan.policy, seen, deadline)
    internal = _internal_topics(plan.policy, groups, topics, protections)
    named = {p.topic for offsets in seen.values() for p in offsets}
    ids = kafka_cluster.topic_ids(client, named.union(*internal.values()), deadline)
    bounds = read_bounds(client, seen.values(), Deadline(deadline.left / 2))
    before = Facts(activity=dict(told), offsets=dict(seen))
    asked = [
        seen[name]
        for name, group in groups.items()
        if asks_records(plan.policy, group, evidence_of(context, plan.policy, group, before))
    ]
    # What a scan found may be gone since.
    records = read_records(context, asked, bounds, Deadline(deadline.left / 2), anew=True)
    # A group that lives is in transactions all the time: only those that commit for the topics that are meant matter.
    wanted = None if None in meant.values() else frozenset[str]().union(*filter(None, meant.values()))
    places = partitions_of(topics, wanted)
    pending = pending_commits(context, dict.fromkeys(batch), places, deadline)
    found = look_up(client, batch, deadline)
    homes = {name: None if isinstance(home, Fault) else home for name, home in found.items()}
    started = context.clock.monotonic()
    there = [replace(group, coordinator=_broker(homes[name])) for name, group in groups.items()]
    described = kafka_groups.describe_groups(client, there, deadline)
    subscribed = {name: kafka_groups.subscribed_topics(answer) for name, answer in described.items()}
    if plan.policy.by_topic and not isinstance(places, Fault):
        committed = kafka_offsets.committed_offsets(client, homes, deadline, places, require_stable=True)
    else:
        types = {name: group.type for name, group in groups.items()}
        committed = read_offsets(client, types, homes, deadline, require_stable=True)
    # Little is left of it, as the better part was read before.
    since = tail.read_on(Deadline(FRESH_S))
    used = uses.read_on(Deadline(FRESH_S))
    late = context.clock.monotonic() - started > FRESH_S
    facts = Facts(protections, dict(told), committed, missing, bounds, subscribed, records)
    read = _Read(meant, seen, facts, described, pending, since, used, homes, ids, internal, late)
    answers = {name: _judged(context, plan.policy, group, read) for name, group in groups.items()}
    ready = {name: answer for name, answer in answers.items() if isinstance(answer, Ready)}
    kept = {name: answer for name, answer in answers.items() if isinstance(answer, Keep)}
    return Reread(ready, kept, started, late)


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read again of a batch, by group.

    meant: see `_meant`. seen: its offsets at the scan, as far as they are meant. since: see Tail. used: see Uses.
    ids: of topics.
    internal: the topics that hold its state.
    """

    meant: Mapping[str, frozenset[str] | None]
    seen: Mapping[str, Offsets]
    facts: Facts
    described: Mapping[str, Description | Fault]
    pending: Mapping[str, Keep]
    since: Mapping[str, Found | Fault | None]
    used: Mapping[str, Keep]
    homes: Mapping[str, int | None]
    ids: Mapping[str, str | Fault]
    internal: Mapping[str, Sequence[str]]
    late: bool


def _judged(context: Context, policy: Policy, group: Group, read: _Read) -> Ready | Keep:
    name, meant, committed = group.id, read.meant[group.id], read.facts.offsets[group.id]
    keep = _no_longer_marked(context, policy, name)
    keep = keep or _another_state(policy, group, read.described[name]) or read.pending.get(name)
    now = _only(readable(committed), meant)
    keep = keep or _moved(group, committed, read.seen[name], now) or read.used.get(name)
    if keep is not None:
        return keep
    if read.late:
        return Keep(reasons.OFFSETS_UNKNOWN, f"reading it again took more than {FRESH_S:.0f} s")
    # Requests to keep it, and deletions by others, come from the ledger, which was read on just now.
    evidence = evidence_of(context, policy, group, read.facts)
    verdict = checks.judge(policy, group, evidence, context.clock.now())
    known = {partition.topic: read.ids[partition.topic] for partition in now}
    state = {topic: read.ids[topic] for topic in read.internal[name]}
    keep = verdict.keep or _no_longer_meant(context, policy, meant, verdict)
    keep = keep or _still_used(read.since.get(name)) or _unknown_identity(known | state, meant is not None)
    lag = _lag(now, read.facts.bounds)
    return keep or Ready(group, read.homes[name], now, lag, _told(known), why_due(evidence), _told(state))


def _internal_topics(
    policy: Policy, groups: Mapping[str, Group], topics: Mapping[str, int] | Fault, protections: Protections
) -> dict[str, list[str]]:
    """Of each group that is a Streams application, or looks like one, the topics that hold its state."""
    if isinstance(topics, Fault) or policy.by_topic:
        return {name: [] for name in groups}
    applications = protections.streams or frozenset()
    return {name: internal_topics(topics, name) if name in applications else [] for name in groups}


def _moved(group: Group, committed: Offsets | Fault, seen: Offsets, now: Offsets) -> Keep | None:
    if isinstance(committed, Fault):
        return _unreadable(committed)
    if fingerprint(group, now) != fingerprint(group, seen):
        return Keep(reasons.CHANGED, "its committed offsets changed since the scan")
    return None


def _meant(context: Context, plan: Plan, name: str) -> frozenset[str] | None:
    """The topics whose offsets are to go now, as they were marked; None = the whole group is."""
    if not plan.policy.by_topic:
        return None
    mark = context.journal.contents.marks.get(plan.policy.uid, {}).get(name)
    if mark is None:
        return frozenset()
    return due_topics(plan.policy, mark, plan.verdicts[name], context.clock.now())


def _only(offsets: Offsets, topics: frozenset[str] | None) -> Offsets:
    return offsets if topics is None else {place: at for place, at in offsets.items() if place.topic in topics}


def _no_longer_meant(context: Context, policy: Policy, meant: frozenset[str] | None, verdict: Verdict) -> Keep | None:
    """Whether the group, or one of the topics, was used after it was marked, by what was read again just now."""
    mark = context.journal.contents.marks[policy.uid][verdict.group.id]
    if meant is None:
        used = is_outdated(policy, mark, verdict)
        return Keep(reasons.RECENTLY_ACTIVE, "it was used after it was marked") if used else None
    if meant and meant <= due_topics(policy, mark, verdict, context.clock.now()):
        return None
    return Keep(reasons.CHANGED, "of the topics that it was marked for, some are in use again")


def _lag(offsets: Offsets, bounds: Mapping[Partition, Bounds | Fault]) -> dict[Partition, int]:
    found = {place: (bounds[place], commit.offset) for place, commit in offsets.items()}
    return {place: unread(known, offset) for place, (known, offset) in found.items() if not isinstance(known, Fault)}


def _told(ids: Mapping[str, str | Fault]) -> dict[str, str]:
    return {topic: answer for topic, answer in ids.items() if isinstance(answer, str) and answer}


def why_due(evidence: Evidence) -> str:
    """What made the group a match, in words, for whoever looks at its backup."""
    seen, activity, words = evidence.unchanged, evidence.activity, []
    if isinstance(activity, Activity) and activity.idle_since is not None:
        words.append(
            f"idle since {timestamp(activity.idle_since)}, by the offsets log as of {timestamp(activity.read_at)}"
        )
    if seen is not None:
        words.append(f"seen unchanged for {format_duration(seen.observed)}, since {timestamp(seen.since)}")
    return "; ".join(words)


def _broker(home: int | None) -> int:
    return -1 if home is None else home


def _no_longer_marked(context: Context, policy: Policy, name: str) -> Keep | None:
    """What the ledger says now: another process, or somebody at a command line, may have written in between."""
    contents = context.journal.contents
    mark = contents.marks.get(policy.uid, {}).get(name)
    if mark is None or mark.digest != policy.digest or mark.due > context.clock.now():
        return Keep(reasons.CHANGED, "its mark is gone from the ledger, or is another one")
    if name in contents.intents:
        return Keep(reasons.INTERRUPTED, "an earlier deletion of it has not come to its end")
    return None


def _unknown_identity(ids: Mapping[str, str | Fault], needed: bool) -> Keep | None:
    """A topic that is gone has no id; one whose id can't be read would be restored blindly.

    needed: a topic that is gone is no case for us; brokers drop its offsets by themselves.
    """
    for topic, answer in ids.items():
        if isinstance(answer, Fault) and answer.code == NO_SUCH_TOPIC and needed:
            return Keep(reasons.GONE, f"topic {topic} is gone: brokers drop its offsets by themselves")
        if isinstance(answer, Fault) and answer.code != NO_SUCH_TOPIC:
            return Keep(reasons.TOPICS_UNKNOWN, f"the id of topic {topic} could not be read, for the backup: {answer}")
    return None


def _tail(
    context: Context,
    cluster: Cluster,
    told: Mapping[str, Activity | Fault],
    meant: Mapping[str, frozenset[str] | None],
) -> Tail:
    """Of a group that lives, only commits for the topics that are `meant` count: it commits for others all the time."""
    places = {
        name: Place(activity.log_partition, activity.covered_to)
        for name, activity in told.items()
        if isinstance(activity, Activity)
    }

    def matters(record: Commit | GroupRecord) -> bool:
        topics = meant[record.group]
        return topics is None or (isinstance(record, Commit) and record.topic in topics)

    leaders = {index: broker for index, (broker, _) in cluster.leaders.items()}
    return Tail(context.client, places, leaders, matters)


def _still_used(answer: Found | Fault | None) -> Keep | None:
    """What the log says after the place up to which the tables tell of it: whatever that is, they are out of date."""
    if isinstance(answer, Found):
        return Keep(reasons.RECENTLY_ACTIVE, f"{words(answer)}, which the tables do not cover yet")
    if isinstance(answer, Fault):
        reason = reasons.EVIDENCE_UNREADABLE
        if answer.code == "OFFSET_OUT_OF_RANGE":
            reason = reasons.EVIDENCE_INCOMPLETE
        return Keep(reason, f"the end of {kafka_cluster.OFFSETS_TOPIC}, which the tables do not cover yet: {answer}")
    return None


def _missing_topics(
    context: Context, policy: Policy, seen: Mapping[str, Offsets], deadline: Deadline
) -> dict[str, frozenset[str] | Fault]:
    """Whether the topics are still gone, where the policy asks: one may have been made again since the scan."""
    if policy.when.topics is None:
        return {}
    topics = {name: {partition.topic for partition in offsets} for name, offsets in seen.items()}
    return read_missing_topics(context.client, topics, deadline)


def _another_state(policy: Policy, group: Group, described: Description | Fault) -> Keep | None:
    if isinstance(described, Fault):
        if described.code == "GROUP_ID_NOT_FOUND":
            return Keep(reasons.GONE, "it is gone already")
        return _unreadable(described)
    now = described.group
    if now.state is GroupState.DEAD:
        return Keep(reasons.GONE, "it is gone already")
    if policy.by_topic and now.state is not GroupState.STABLE:
        return Keep(reasons.NOT_STABLE, f"its state is {now.state} now")
    if not policy.by_topic and now.state is not GroupState.EMPTY:
        return Keep(reasons.BECAME_ACTIVE, f"its state is {now.state} now")
    if now.protocol_type != group.protocol_type:
        return Keep(reasons.CHANGED, "its protocol type changed since the scan")
    return None


def partitions_of(topics: Mapping[str, int] | Fault, wanted: frozenset[str] | None = None) -> list[Partition] | Fault:
    """Every partition there is, of the `wanted` topics, None = of all. topics: name -> number of partitions."""
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
) -> dict[str, Keep]:
    """Groups with a transactional commit that is not decided: a deletion would succeed and lose it (KIP-447).

    groups: id -> coordinator, None = look it up. A fetch of "all partitions" leaves out a partition that has nothing
    but a pending commit, so each is asked by name.
    """
    if isinstance(partitions, Fault):
        return dict.fromkeys(groups, Keep(reasons.OFFSETS_UNKNOWN, f"topics could not be read: {partitions}"))
    answers = kafka_offsets.committed_offsets(context.client, groups, deadline, partitions, require_stable=True)
    return {name: _unreadable(answer) for name, answer in answers.items() if isinstance(answer, Fault)}


def _unreadable(fault: Fault) -> Keep:
    if fault.code == "UNSTABLE_OFFSET_COMMIT":
        return Keep(reasons.PENDING_TRANSACTION, f"a transaction that commits for it is open: {fault.message}")
    if fault.code.endswith("AUTHORIZATION_FAILED"):
        return Keep(reasons.DENIED, str(fault))
    return Keep(reasons.OFFSETS_UNKNOWN, str(fault))
