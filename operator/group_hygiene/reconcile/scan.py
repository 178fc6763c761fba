"""The first half of a run: look at the cluster once, and judge. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from group_hygiene import checks, reasons
from group_hygiene.errors import Unreachable
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import (
    Cluster,
    Evidence,
    Fault,
    Group,
    GroupState,
    GroupType,
    Keep,
    Offsets,
    Partition,
    Protections,
    Snapshot,
    Verdict,
    fingerprint,
)
from group_hygiene.plan import Conditions
from group_hygiene.policy import Action, Policy
from group_hygiene.reconcile.context import (
    Context,
    Memory,
    Observation,
    memory_key,
    read_lag,
    read_protections,
    readable,
)

NO_BACKUP_MESSAGE = (
    "there is no place for backups yet: nothing is deleted unless the operator runs with --allow-delete-without-backup"
)


@dataclass
class _Facts:
    """What was read of the groups so far, shared by all policies."""

    offsets: dict[str, Offsets | Fault] = field(default_factory=dict)
    missing_topics: dict[str, frozenset[str] | Fault] = field(default_factory=dict)
    lag: dict[str, Mapping[Partition, int | Fault]] = field(default_factory=dict)
    protections: Protections = field(default_factory=Protections)


def observe(context: Context, policies: Sequence[Policy], full: bool = False) -> Observation:
    """Scan the cluster once for all of `policies` and judge the groups that each selects.

    One ListGroups per broker, with what no policy asks for filtered out at the broker (all groups when `full`).
    Offsets, topics and lag are read only for groups whose verdict hangs on them. Raises ConnectError when no broker
    answers.
    """
    client, clock, deadline = context.client, context.clock, context.deadline()
    cluster = kafka_cluster.read_cluster(client, deadline)
    if isinstance(cluster, Fault):
        raise Unreachable(f"no broker answers: {cluster}")
    memory = context.memory
    memory.meet(cluster.id)
    # Something was due the last time: ask for all groups at once, as the total will be needed again.
    states, types = ((), ()) if full or memory.due_before else _filters(policies)
    # A broker that does not answer must not take the time that the groups of the others need.
    listing = kafka_groups.list_groups(client, cluster, Deadline(deadline.left / 2), states, types)
    selected = {policy.key: policy.match.select(listing.groups) for policy in policies}
    facts = _Facts()
    if any(selected.values()):
        facts.protections = read_protections(context, kafka_cluster.read_topics(client, deadline))
    verdicts = _judge_all(context, policies, selected, facts, deadline)
    incomplete = _incomplete(cluster, listing.faults, kafka_cluster.read_cluster(client, deadline))
    snapshot = Snapshot(cluster, listing.groups, listing.faults, incomplete, listing.notes, clock.now())
    for policy in policies:
        _forget_used(memory, policy, snapshot)
    unfiltered = listing.groups if not states and not types else None
    deleting = any(
        verdict.matches
        for policy in policies
        if policy.action is Action.DELETE
        for verdict in verdicts[policy.key].values()
    )
    conditions = Conditions(limits=context.connection.limits)
    if policies:
        memory.due_before = deleting
    if deleting:
        conditions, unfiltered = _conditions(context, snapshot, unfiltered, deadline)
    return Observation(snapshot, verdicts, conditions, facts.protections, unfiltered)


def _filters(policies: Sequence[Policy]) -> tuple[frozenset[GroupState], frozenset[GroupType]]:
    """What ListGroups may leave out for all of the policies; empty = nothing."""
    states = frozenset[GroupState]().union(*(policy.match.states for policy in policies))
    types = frozenset[GroupType]().union(*(policy.match.types for policy in policies))
    every_state = states >= frozenset(GroupState)
    # A broker refuses the name of a type that it doesn't know; Classic and Consumer all with a filter know.
    nameable = types <= {GroupType.CLASSIC, GroupType.CONSUMER}
    return frozenset() if every_state else states, types if nameable else frozenset()


def _incomplete(cluster: Cluster, faults: Mapping[int, Fault], after: Cluster | Fault) -> tuple[str, ...]:
    """Why groups may be missing from the lists: a moved or lost coordinator takes its groups along, silently."""
    problems = [*cluster.problems, *(f"broker {broker}: {fault}" for broker, fault in sorted(faults.items()))]
    if isinstance(after, Fault):
        problems.append(f"the cluster could not be read again after the scan: {after}")
    elif after.leaders != cluster.leaders:
        problems.append(f"leaders of {kafka_cluster.OFFSETS_TOPIC} changed during the scan")
    return tuple(dict.fromkeys(problems))


def _judge_all(
    context: Context,
    policies: Sequence[Policy],
    selected: Mapping[str, list[Group]],
    facts: _Facts,
    deadline: Deadline,
) -> dict[str, dict[str, Verdict]]:
    """Judge, read what the verdicts say is missing, and judge those groups again, until nothing more is asked for."""
    verdicts: dict[str, dict[str, Verdict]] = {policy.key: {} for policy in policies}
    open_groups = {policy.key: selected[policy.key] for policy in policies}
    done: set[tuple[str, str]] = set()
    while True:
        wanted: dict[str, dict[str, Group]] = {}
        for policy in policies:
            for group in open_groups[policy.key]:
                verdict = checks.judge(policy, group, _evidence(context, policy, group, facts), context.clock.now())
                verdicts[policy.key][group.id] = verdict
                asks = verdict.keep.reason if verdict.keep else ""
                if asks in _READERS and (asks, group.id) not in done:
                    wanted.setdefault(asks, {})[group.id] = group
        if not wanted:
            return verdicts
        for reason, groups in wanted.items():
            _READERS[reason](context, groups, facts, deadline)
        if reasons.OFFSETS_NOT_READ in wanted:
            _look_again(context, policies, selected, facts)
        done |= {(reason, name) for reason, groups in wanted.items() for name in groups}
        read = {name for groups in wanted.values() for name in groups}
        open_groups = {key: [group for group in groups if group.id in read] for key, groups in open_groups.items()}


def _evidence(context: Context, policy: Policy, group: Group, facts: _Facts) -> Evidence:
    return Evidence(
        protections=facts.protections,
        protected_by=context.connection.protect.matching(group.id),
        unchanged=context.memory.unchanged.get(memory_key(policy), {}).get(group.id),
        offsets=facts.offsets.get(group.id),
        missing_topics=facts.missing_topics.get(group.id),
        lag=facts.lag.get(group.id),
    )


def _read_offsets(context: Context, groups: Mapping[str, Group], facts: _Facts, deadline: Deadline) -> None:
    coordinators: dict[str, int | None] = {name: group.coordinator for name, group in groups.items()}
    facts.offsets.update(kafka_offsets.committed_offsets(context.client, coordinators, deadline))


def _read_missing_topics(context: Context, groups: Mapping[str, Group], facts: _Facts, deadline: Deadline) -> None:
    topics = {name: {partition.topic for partition in readable(facts.offsets.get(name))} for name in groups}
    missing = kafka_cluster.missing_topics(context.client, set().union(*topics.values()), deadline)
    for name in groups:
        facts.missing_topics[name] = missing if isinstance(missing, Fault) else missing & topics[name]


def _read_lags(context: Context, groups: Mapping[str, Group], facts: _Facts, deadline: Deadline) -> None:
    committed = {name: readable(facts.offsets.get(name)) for name in groups}
    facts.lag.update(read_lag(context.client, committed, deadline))


_READERS: Mapping[str, Callable[[Context, Mapping[str, Group], _Facts, Deadline], None]] = {
    reasons.OFFSETS_NOT_READ: _read_offsets,
    reasons.TOPICS_NOT_READ: _read_missing_topics,
    reasons.LAG_NOT_READ: _read_lags,
}


def _look_again(
    context: Context, policies: Sequence[Policy], selected: Mapping[str, list[Group]], facts: _Facts
) -> None:
    """Note, for each policy that asks, which groups are Empty with the same committed offsets as at its last scan."""
    now, monotonic = context.clock.now(), context.clock.monotonic()
    for policy in policies:
        if policy.when.unchanged_for is None:
            continue
        seen = context.memory.unchanged.setdefault(memory_key(policy), {})
        for group in selected[policy.key]:
            offsets = facts.offsets.get(group.id)
            if group.state is not GroupState.EMPTY:
                seen.pop(group.id, None)
            elif offsets is not None and not isinstance(offsets, Fault):
                print_ = fingerprint(group, offsets)
                seen[group.id] = context.memory.look(policy, seen.get(group.id), print_, now, monotonic)


def _forget_used(memory: Memory, policy: Policy, snapshot: Snapshot) -> None:
    """Drop groups that this scan did not list as Empty: `unchanged` means Empty at every scan.

    `_look_again` never sees them: a Delete policy selects Empty groups only. A group that an incomplete list leaves out
    may still be unused: it only starts anew.
    """
    seen = memory.unchanged.get(memory_key(policy), {})
    for name in list(seen):
        group = snapshot.groups.get(name)
        if group is None or group.state is not GroupState.EMPTY:
            del seen[name]


def _conditions(
    context: Context, snapshot: Snapshot, unfiltered: Mapping[str, Group] | None, deadline: Deadline
) -> tuple[Conditions, Mapping[str, Group] | None]:
    """What must hold for any deletion in this run; asked only when something matches."""
    refusals: list[Keep] = []
    known, found = context.memory.cluster_id, snapshot.cluster.id
    if known != found:
        refusals.append(Keep(reasons.CLUSTER_CHANGED, f"the address led to cluster {known}, and now leads to {found}"))
    if not context.may_delete:
        refusals.append(Keep(reasons.NO_BACKUP, NO_BACKUP_MESSAGE))
    if not snapshot.complete:
        refusals.append(Keep(reasons.SNAPSHOT_INCOMPLETE, "; ".join(snapshot.incomplete[:3])))
    hidden = kafka_cluster.hidden_topics(context.client, snapshot.cluster, deadline)
    if isinstance(hidden, Fault):
        refusals.append(Keep(reasons.TOPICS_HIDDEN, f"whether topics are hidden from us could not be read: {hidden}"))
    elif hidden:
        shown = ", ".join(hidden[:3]) + (", ..." if len(hidden) > 3 else "")
        message = f"DESCRIBE is denied on {len(hidden)} topics ({shown}), so committed offsets may be hidden"
        refusals.append(Keep(reasons.TOPICS_HIDDEN, message))
    if unfiltered is None:
        listing = kafka_groups.list_groups(context.client, snapshot.cluster, deadline)
        unfiltered = None if listing.faults else listing.groups
    total = None if unfiltered is None else len(unfiltered)
    return Conditions(context.connection.limits, total, tuple(refusals)), unfiltered
