"""One more look at a group, right before its deletion: everything that decides is read again. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from group_hygiene import checks, reasons
from group_hygiene.durations import format_duration
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.coordinators import look_up
from group_hygiene.kafka.offsets_log import Commit
from group_hygiene.kafka.tail import Found, Place, Tail
from group_hygiene.model import (
    NO_SUCH_TOPIC,
    Activity,
    Cluster,
    Description,
    Evidence,
    Fault,
    Group,
    GroupState,
    Keep,
    Offsets,
    Partition,
    Protections,
    fingerprint,
)
from group_hygiene.plan import Plan
from group_hygiene.policy import Policy
from group_hygiene.reconcile.context import (
    Context,
    Facts,
    evidence_of,
    read_lag,
    read_missing_topics,
    read_protections,
    readable,
)
from group_hygiene.reconcile.evidence import look
from group_hygiene.reconcile.saving import internal_topics, read_offsets

# State and offsets may be this old when DeleteGroups is sent. Any older, and they say too little.
FRESH_S = 2.0


@dataclass(frozen=True, slots=True)
class Ready:
    """A group that may be deleted, with what is to be saved of it.

    coordinator: the broker that answered for it. topic_ids: of those of its topics that have one. why: it is due.
    internal_topics: of a Streams application, with their ids.
    """

    group: Group
    coordinator: int | None
    offsets: Offsets
    lag: Mapping[Partition, int | Fault]
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


def read_again(context: Context, plan: Plan, cluster: Cluster, batch: Sequence[str], deadline: Deadline) -> Reread:
    """Of each group: what to save, if it is as the scan saw it and still matches and is marked; else why it stays.

    cluster: as the scan saw it, and as it is now. What may take long comes first and what must be fresh comes last:
    state and offsets, right before the deletion.
    """
    client, groups = context.client, {name: plan.verdicts[name].group for name in batch}
    seen = {name: readable(plan.verdicts[name].evidence.offsets) for name in batch}
    told = look(context, cluster, batch, deadline).groups if plan.policy.when.asks_evidence else {}
    tail = _tail(context, cluster, told)
    tail.read_on(Deadline(deadline.left / 2))
    topics = kafka_cluster.read_topics(client, deadline)
    protections = read_protections(context, topics, deadline)
    missing = _missing_topics(context, plan.policy, seen, deadline)
    internal = _internal_topics(groups, topics, protections)
    named = {p.topic for offsets in seen.values() for p in offsets}
    ids = kafka_cluster.topic_ids(client, named.union(*internal.values()), deadline)
    lag = read_lag(client, seen, Deadline(deadline.left / 2))
    pending = _pending(context, dict.fromkeys(batch), topics, deadline)
    found = look_up(client, batch, deadline)
    homes = {name: None if isinstance(home, Fault) else home for name, home in found.items()}
    started = context.clock.monotonic()
    there = [replace(group, coordinator=_broker(homes[name])) for name, group in groups.items()]
    described = kafka_groups.describe_groups(client, there, deadline)
    types = {name: group.type for name, group in groups.items()}
    committed = read_offsets(client, types, homes, deadline, require_stable=True)
    # Little is left of it, as the better part was read before.
    since = tail.read_on(Deadline(FRESH_S))
    late = context.clock.monotonic() - started > FRESH_S
    facts = Facts(protections, dict(told), committed, missing, lag)
    ready: dict[str, Ready] = {}
    kept: dict[str, Keep] = {}
    for name, group in groups.items():
        offsets = committed[name]
        keep = _no_longer_marked(context, plan.policy, name)
        keep = keep or _no_longer_empty(group, described[name]) or pending.get(name)
        if keep is not None:
            kept[name] = keep
        elif isinstance(offsets, Fault):
            kept[name] = _unreadable(offsets)
        elif fingerprint(group, offsets) != fingerprint(group, seen[name]):
            kept[name] = Keep(reasons.CHANGED, "its committed offsets changed since the scan")
        elif late:
            kept[name] = Keep(reasons.OFFSETS_UNKNOWN, f"reading it again took more than {FRESH_S:.0f} s")
        else:
            # Requests to keep it, and deletions by others, come from the ledger, which was read on just now.
            evidence = evidence_of(context, plan.policy, group, facts)
            judged = checks.judge(plan.policy, group, evidence, context.clock.now()).keep
            known = {partition.topic: ids[partition.topic] for partition in offsets}
            state = {topic: ids[topic] for topic in internal[name]}
            judged = judged or _still_used(since.get(name)) or _unknown_identity(known | state)
            if judged is None:
                what = offsets, lag[name], _told(known)
                ready[name] = Ready(group, homes[name], *what, why_due(evidence), _told(state))
            else:
                kept[name] = judged
    return Reread(ready, kept, started, late)


def _internal_topics(
    groups: Mapping[str, Group], topics: Mapping[str, int] | Fault, protections: Protections
) -> dict[str, list[str]]:
    """Of each group that is a Streams application, or looks like one, the topics that hold its state."""
    if isinstance(topics, Fault):
        return {name: [] for name in groups}
    applications = protections.streams or frozenset()
    return {name: internal_topics(topics, name) if name in applications else [] for name in groups}


def _told(ids: Mapping[str, str | Fault]) -> dict[str, str]:
    return {topic: answer for topic, answer in ids.items() if isinstance(answer, str) and answer}


def why_due(evidence: Evidence) -> str:
    """What made the group a match, in words, for whoever looks at its backup."""
    seen, activity, words = evidence.unchanged, evidence.activity, []
    if isinstance(activity, Activity) and activity.idle_since is not None:
        words.append(
            f"idle since {activity.idle_since:%Y-%m-%dT%H:%M:%SZ}, by the offsets log as of "
            f"{activity.read_at:%Y-%m-%dT%H:%M:%SZ}"
        )
    if seen is not None:
        words.append(f"seen unchanged for {format_duration(seen.observed)}, since {seen.since:%Y-%m-%dT%H:%M:%SZ}")
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


def _unknown_identity(ids: Mapping[str, str | Fault]) -> Keep | None:
    """A topic that is gone has no id; one whose id can't be read would be restored blindly."""
    for topic, answer in ids.items():
        if isinstance(answer, Fault) and answer.code != NO_SUCH_TOPIC:
            return Keep(reasons.TOPICS_UNKNOWN, f"the id of topic {topic} could not be read, for the backup: {answer}")
    return None


def _tail(context: Context, cluster: Cluster, told: Mapping[str, Activity | Fault]) -> Tail:
    places = {
        name: Place(activity.log_partition, activity.covered_to)
        for name, activity in told.items()
        if isinstance(activity, Activity)
    }
    return Tail(context.client, places, {index: broker for index, (broker, _) in cluster.leaders.items()})


def _still_used(answer: Found | Fault | None) -> Keep | None:
    """What the log says after the place up to which the tables tell of it: whatever that is, they are out of date."""
    if isinstance(answer, Found):
        where = f"offset {answer.place.offset} of {kafka_cluster.OFFSETS_TOPIC}-{answer.place.partition}"
        return Keep(reasons.RECENTLY_ACTIVE, f"{_words(answer)}, at {where}, which the tables do not cover yet")
    if isinstance(answer, Fault):
        reason = reasons.EVIDENCE_UNREADABLE
        if answer.code == "OFFSET_OUT_OF_RANGE":
            reason = reasons.EVIDENCE_INCOMPLETE
        return Keep(reason, f"the end of {kafka_cluster.OFFSETS_TOPIC}, which the tables do not cover yet: {answer}")
    return None


def _words(found: Found) -> str:
    record = found.record
    if not isinstance(record, Commit):
        return f"the log tells of its members ({record.kind})"
    partition = Partition(record.topic, record.partition)
    return f"its offset of {partition} was deleted" if record.gone else f"it committed for {partition}"


def _missing_topics(
    context: Context, policy: Policy, seen: Mapping[str, Offsets], deadline: Deadline
) -> dict[str, frozenset[str] | Fault]:
    """Whether the topics are still gone, where the policy asks: one may have been made again since the scan."""
    if policy.when.topics is None:
        return {}
    topics = {name: {partition.topic for partition in offsets} for name, offsets in seen.items()}
    return read_missing_topics(context.client, topics, deadline)


def _no_longer_empty(group: Group, described: Description | Fault) -> Keep | None:
    if isinstance(described, Fault):
        if described.code == "GROUP_ID_NOT_FOUND":
            return Keep(reasons.GONE, "it is gone already")
        return _unreadable(described)
    now = described.group
    if now.state is GroupState.DEAD:
        return Keep(reasons.GONE, "it is gone already")
    if now.state is not GroupState.EMPTY:
        return Keep(reasons.BECAME_ACTIVE, f"its state is {now.state} now")
    if now.protocol_type != group.protocol_type:
        return Keep(reasons.CHANGED, "its protocol type changed since the scan")
    return None


def _pending(
    context: Context, groups: Mapping[str, int | None], topics: Mapping[str, int] | Fault, deadline: Deadline
) -> dict[str, Keep]:
    """Groups with a transactional commit that is not decided: DeleteGroups would succeed and lose it (KIP-447).

    A fetch of "all partitions" leaves out a partition that has nothing but a pending commit, so each is asked by name.
    """
    if isinstance(topics, Fault):
        return dict.fromkeys(groups, Keep(reasons.OFFSETS_UNKNOWN, f"topics could not be read: {topics}"))
    every = [Partition(topic, index) for topic, count in topics.items() for index in range(count)]
    answers = kafka_offsets.committed_offsets(context.client, groups, deadline, every, require_stable=True)
    return {name: _unreadable(answer) for name, answer in answers.items() if isinstance(answer, Fault)}


def _unreadable(fault: Fault) -> Keep:
    if fault.code == "UNSTABLE_OFFSET_COMMIT":
        return Keep(reasons.PENDING_TRANSACTION, f"a transaction that commits for it is open: {fault.message}")
    if fault.code.endswith("AUTHORIZATION_FAILED"):
        return Keep(reasons.DENIED, str(fault))
    return Keep(reasons.OFFSETS_UNKNOWN, str(fault))
