"""The story of one run: observe -> decide -> apply. Knows Kafka and the policies; no Kubernetes, no clock of its own.

`observe` looks at a cluster once for all policies that are due. `plan.make_plan` decides for each. `apply` deletes, and
is called for a plan that has actions and for nothing else: a dry run is a run in which nobody calls it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from group_hygiene import checks, reasons
from group_hygiene.connection import Connection
from group_hygiene.errors import Unreachable
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.mirror import CHECKPOINTS_SUFFIX, Checkpoints
from group_hygiene.model import (
    Cluster,
    Description,
    Evidence,
    Fault,
    Group,
    GroupState,
    GroupType,
    Keep,
    Offsets,
    Outcome,
    OutcomeKind,
    Partition,
    Protections,
    Snapshot,
    Unchanged,
    Verdict,
    fingerprint,
)
from group_hygiene.plan import Conditions, Plan, seen_again
from group_hygiene.policy import Action, Policy

log = logging.getLogger(__name__)
backup_log = logging.getLogger("group_hygiene.backup")

_DELETE_BATCH = 20
NO_BACKUP_MESSAGE = (
    "there is no place for backups yet: nothing is deleted unless the operator runs with --allow-delete-without-backup"
)
_UNANSWERED = frozenset({"NETWORK_EXCEPTION", "REQUEST_TIMED_OUT", "NO_ANSWER"})


class Clock(Protocol):
    """Wall time for what people read, monotonic seconds for what must not be fooled by a clock that is set."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


@dataclass
class Memory:
    """What is remembered of one connection between runs. Lost with the process, which only delays.

    unchanged: policy digest key -> group -> how long it was seen unchanged.
    cluster_id: of the first answer; another one later means that the address leads elsewhere now.
    """

    unchanged: dict[tuple[str, str], dict[str, Unchanged]] = field(default_factory=dict)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    cluster_id: str | None = None

    def look(
        self, policy: Policy, before: Unchanged | None, print_: bytes, now: datetime, monotonic: float
    ) -> Unchanged:
        """What a look at an Empty group adds to what was seen of it before. Who looks only once may override this."""
        return seen_again(before, print_, now, monotonic, policy.interval)

    def forget_all_but(self, policies: Iterable[Policy]) -> None:
        kept = {_memory_key(policy) for policy in policies}
        self.unchanged = {key: value for key, value in self.unchanged.items() if key in kept}


@dataclass(frozen=True, slots=True)
class Context:
    """Whom a run talks to.

    backups: whether deleting is possible at all; claimed: group id -> the Kubernetes object that names it.
    """

    client: Client
    connection: Connection
    memory: Memory
    clock: Clock
    backups: bool
    claimed: Mapping[str, str] = field(default_factory=dict)

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
    if context.memory.cluster_id is None:
        context.memory.cluster_id = cluster.id
    states, types = ((), ()) if full else _filters(policies)
    # A broker that does not answer must not take the time that the groups of the others need.
    listing = kafka_groups.list_groups(client, cluster, Deadline(deadline.left / 2), states, types)
    selected = {
        policy.key: [group for group in listing.groups.values() if policy.match.selects(group)] for policy in policies
    }
    facts = _Facts()
    if any(selected.values()):
        facts.protections = _read_protections(context, deadline)
    verdicts = _judge_all(context, policies, selected, facts, deadline)
    incomplete = _incomplete(cluster, listing.faults, kafka_cluster.read_cluster(client, deadline))
    snapshot = Snapshot(cluster, listing.groups, listing.faults, incomplete, listing.notes, clock.now())
    for policy in policies:
        _forget_used(context.memory, policy, snapshot)
    unfiltered = listing.groups if not states and not types else None
    deleting = any(
        verdict.matches
        for policy in policies
        if policy.action is Action.DELETE
        for verdict in verdicts[policy.key].values()
    )
    conditions = Conditions(limits=context.connection.limits)
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


def _read_protections(context: Context, deadline: Deadline) -> Protections:
    topics = kafka_cluster.read_topics(context.client, deadline)
    if isinstance(topics, Fault):
        return Protections(streams=None, mirrored=None, claimed=context.claimed)
    streams = frozenset(
        prefix
        for topic in topics
        if topic.endswith(("-changelog", "-repartition"))
        for prefix in _dash_prefixes(topic.rpartition("-")[0])
    )
    checkpoints = [topic for topic in topics if topic.endswith(CHECKPOINTS_SUFFIX)]
    mirrored = context.memory.checkpoints.read(context.client, checkpoints, deadline)
    return Protections(streams, None if isinstance(mirrored, Fault) else mirrored, context.claimed)


def _dash_prefixes(name: str) -> list[str]:
    """`a-b-c` -> `a`, `a-b`: every application id that a topic `<id>-<something>-changelog` may belong to."""
    parts = name.split("-")
    return ["-".join(parts[:count]) for count in range(1, len(parts))]


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
        unchanged=context.memory.unchanged.get(_memory_key(policy), {}).get(group.id),
        offsets=facts.offsets.get(group.id),
        missing_topics=facts.missing_topics.get(group.id),
        lag=facts.lag.get(group.id),
    )


def _read_offsets(context: Context, groups: Mapping[str, Group], facts: _Facts, deadline: Deadline) -> None:
    coordinators: dict[str, int | None] = {name: group.coordinator for name, group in groups.items()}
    facts.offsets.update(kafka_offsets.committed_offsets(context.client, coordinators, deadline))


def _read_missing_topics(context: Context, groups: Mapping[str, Group], facts: _Facts, deadline: Deadline) -> None:
    topics = {name: {partition.topic for partition in _readable(facts.offsets.get(name))} for name in groups}
    missing = kafka_cluster.missing_topics(context.client, set().union(*topics.values()), deadline)
    for name in groups:
        facts.missing_topics[name] = missing if isinstance(missing, Fault) else missing & topics[name]


def _read_lag(context: Context, groups: Mapping[str, Group], facts: _Facts, deadline: Deadline) -> None:
    committed = {name: _readable(facts.offsets.get(name)) for name in groups}
    facts.lag.update(_lag(context.client, committed, deadline))


def _lag(
    client: Client, committed: Mapping[str, Offsets], deadline: Deadline
) -> dict[str, Mapping[Partition, int | Fault]]:
    """group -> partition -> records after the committed offset (0 where the offset lies behind the end)."""
    ends = kafka_offsets.end_offsets(client, {p for offsets in committed.values() for p in offsets}, deadline)
    return {
        name: {p: _behind(ends[p], offset.offset) for p, offset in offsets.items()}
        for name, offsets in committed.items()
    }


def _behind(end: int | Fault, offset: int) -> int | Fault:
    return end if isinstance(end, Fault) else max(0, end - offset)


def _readable(offsets: Offsets | Fault | None) -> Offsets:
    return {} if offsets is None or isinstance(offsets, Fault) else offsets


_READERS: Mapping[str, Callable[[Context, Mapping[str, Group], _Facts, Deadline], None]] = {
    reasons.OFFSETS_NOT_READ: _read_offsets,
    reasons.TOPICS_NOT_READ: _read_missing_topics,
    reasons.LAG_NOT_READ: _read_lag,
}


def _look_again(
    context: Context, policies: Sequence[Policy], selected: Mapping[str, list[Group]], facts: _Facts
) -> None:
    """Note, for each policy that asks, which groups are Empty with the same committed offsets as at its last scan."""
    now, monotonic = context.clock.now(), context.clock.monotonic()
    for policy in policies:
        if policy.when.unchanged_for is None:
            continue
        seen = context.memory.unchanged.setdefault(_memory_key(policy), {})
        for group in selected[policy.key]:
            offsets = facts.offsets.get(group.id)
            if group.state is not GroupState.EMPTY:
                seen.pop(group.id, None)
            elif offsets is not None and not isinstance(offsets, Fault):
                print_ = fingerprint(group, offsets)
                seen[group.id] = context.memory.look(policy, seen.get(group.id), print_, now, monotonic)


def _forget_used(memory: Memory, policy: Policy, snapshot: Snapshot) -> None:
    """Drop groups that are listed as anything but Empty, whoever asked for such, and those that a complete list lacks.

    `_look_again` never sees them: a Delete policy selects Empty groups only. An incomplete list proves nothing of what
    it lacks.
    """
    seen = memory.unchanged.get(_memory_key(policy), {})
    for name in list(seen):
        group = snapshot.groups.get(name)
        if snapshot.complete if group is None else group.state is not GroupState.EMPTY:
            del seen[name]


def _memory_key(policy: Policy) -> tuple[str, str]:
    return policy.uid, policy.digest


def _conditions(
    context: Context, snapshot: Snapshot, unfiltered: Mapping[str, Group] | None, deadline: Deadline
) -> tuple[Conditions, Mapping[str, Group] | None]:
    """What must hold for any deletion in this run; asked only when something matches."""
    refusals: list[Keep] = []
    known, found = context.memory.cluster_id, snapshot.cluster.id
    if known != found:
        refusals.append(Keep(reasons.CLUSTER_CHANGED, f"the address led to cluster {known}, and now leads to {found}"))
    if not context.backups:
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


def apply(
    context: Context, plan: Plan, observation: Observation, still_wanted: Callable[[], Keep | None]
) -> list[Outcome]:
    """Delete `plan.actions`, a few at a time, each re-read right before; one outcome per group.

    `still_wanted` is asked before each batch whether the policy still says so (uid and generation) and whether we may
    go on; its Keep ends the run. What changed since the scan is kept with the reason; the broker has the last word.
    """
    outcomes: list[Outcome] = []
    actions = list(plan.actions)
    while actions:
        stop = still_wanted()
        if stop is not None:
            outcomes += [Outcome(name, OutcomeKind.KEPT, stop.reason, stop.message) for name in actions]
            break
        batch, actions = actions[:_DELETE_BATCH], actions[_DELETE_BATCH:]
        outcomes += _delete_batch(context, plan, observation, batch)
    return outcomes


def _delete_batch(context: Context, plan: Plan, observation: Observation, batch: Sequence[str]) -> list[Outcome]:
    deadline = context.deadline()
    outcomes: list[Outcome] = []
    ready: dict[str, int | None] = {}
    for name, answer in _re_read(context, plan, batch, observation, deadline).items():
        if isinstance(answer, Keep):
            outcomes.append(_kept(name, answer))
            continue
        _log_backup(plan.policy, name, answer)
        ready[name] = None
    results = kafka_groups.delete_groups(context.client, ready, deadline) if ready else {}
    for name, result in results.items():
        unanswered = isinstance(result, Fault) and result.code in _UNANSWERED
        done = unanswered and _is_gone(context, plan.verdicts[name].group)
        outcomes.append(_deleted(name, None if done else result))
    return outcomes


def _re_read(
    context: Context, plan: Plan, batch: Sequence[str], observation: Observation, deadline: Deadline
) -> dict[str, Offsets | Keep]:
    """For each group what it has committed now, if it is as the scan saw it and still matches; else why it stays."""
    client, policy = context.client, plan.policy
    described = kafka_groups.describe_groups(client, [plan.verdicts[name].group for name in batch], deadline)
    results: dict[str, Offsets | Keep] = {}
    empty: dict[str, int | None] = {}
    for name in batch:
        keep = _no_longer_empty(plan.verdicts[name].group, described[name])
        if keep is None:
            empty[name] = None
        else:
            results[name] = keep
    if not empty:
        return results
    committed = kafka_offsets.committed_offsets(client, empty, deadline, require_stable=True)
    pending = _pending(client, empty, deadline)
    lag = _lag(client, {name: _readable(committed[name]) for name in empty}, deadline)
    for name in empty:
        offsets, before = committed[name], plan.verdicts[name]
        unstable = pending.get(name)
        if unstable is not None:
            results[name] = unstable
        elif isinstance(offsets, Fault):
            results[name] = _unreadable(offsets)
        elif fingerprint(before.group, offsets) != fingerprint(before.group, _readable(before.evidence.offsets)):
            results[name] = Keep(reasons.CHANGED, "its committed offsets changed since the scan")
        else:
            evidence = replace(before.evidence, offsets=offsets, lag=lag[name], protections=observation.protections)
            keep = checks.judge(policy, before.group, evidence, context.clock.now()).keep
            results[name] = offsets if keep is None else keep
    return results


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


def _pending(client: Client, groups: Mapping[str, int | None], deadline: Deadline) -> dict[str, Keep]:
    """Groups with a transactional commit that is not decided: DeleteGroups would succeed and lose it (KIP-447).

    A fetch of "all partitions" leaves out a partition that has nothing but a pending commit, so each is asked by name.
    """
    topics = kafka_cluster.read_topics(client, deadline)
    if isinstance(topics, Fault):
        return dict.fromkeys(groups, Keep(reasons.OFFSETS_UNKNOWN, f"topics could not be read: {topics}"))
    every = [Partition(topic, index) for topic, count in topics.items() for index in range(count)]
    answers = kafka_offsets.committed_offsets(client, groups, deadline, every, require_stable=True)
    return {name: _unreadable(answer) for name, answer in answers.items() if isinstance(answer, Fault)}


def _unreadable(fault: Fault) -> Keep:
    if fault.code == "UNSTABLE_OFFSET_COMMIT":
        return Keep(reasons.PENDING_TRANSACTION, f"a transaction that commits for it is open: {fault.message}")
    if fault.code.endswith("AUTHORIZATION_FAILED"):
        return Keep(reasons.DENIED, str(fault))
    return Keep(reasons.OFFSETS_UNKNOWN, str(fault))


def _log_backup(policy: Policy, name: str, offsets: Offsets) -> None:
    """The committed offsets, one JSON line per group, before it is deleted: what a restore needs to know."""
    rows = [[p.topic, p.partition, o.offset, o.leader_epoch, o.metadata] for p, o in sorted(offsets.items())]
    backup_log.info("%s", json.dumps({"policy": policy.key, "group": name, "offsets": rows}, ensure_ascii=True))


def _is_gone(context: Context, group: Group) -> bool:
    """After a delete request without an answer: whether it was carried out."""
    anywhere = replace(group, coordinator=-1)
    described = kafka_groups.describe_groups(context.client, [anywhere], context.deadline())[group.id]
    if isinstance(described, Fault):
        return described.code == "GROUP_ID_NOT_FOUND"
    return described.group.state is GroupState.DEAD


def _kept(name: str, keep: Keep) -> Outcome:
    failed = keep.reason in (reasons.DENIED, reasons.OFFSETS_UNKNOWN)
    return Outcome(name, OutcomeKind.FAILED if failed else OutcomeKind.KEPT, keep.reason, keep.message)


def _deleted(name: str, fault: Fault | None) -> Outcome:
    if fault is None:
        return Outcome(name, OutcomeKind.DELETED, reasons.DELETED, "deleted")
    if fault.code == "NON_EMPTY_GROUP":
        return Outcome(name, OutcomeKind.KEPT, reasons.BECAME_ACTIVE, "somebody joined it just now")
    if fault.code == "GROUP_ID_NOT_FOUND":
        return Outcome(name, OutcomeKind.KEPT, reasons.GONE, "it is gone already")
    if fault.code == "GROUP_AUTHORIZATION_FAILED":
        return Outcome(name, OutcomeKind.FAILED, reasons.DENIED, "needs DELETE on the group")
    return Outcome(name, OutcomeKind.FAILED, reasons.DELETE_FAILED, str(fault))
