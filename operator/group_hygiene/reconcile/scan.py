"""The first half of a run: look at the cluster once, and judge. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from group_hygiene import checks, reasons, watching
from group_hygiene import memory as process_memory
from group_hygiene.checks.needed import ID_MAX
from group_hygiene.entries import Change, Covered, LogEnd, Removal, Seen, Watch
from group_hygiene.errors import MemoryExhausted, Unreachable
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.loaded import partition_of
from group_hygiene.model import (
    Fault,
    Group,
    GroupState,
    GroupType,
    Keep,
    Offsets,
    Verdict,
    fingerprint,
    offsets_retention,
)
from group_hygiene.plan import Conditions
from group_hygiene.policy import Policy
from group_hygiene.reconcile import evidence as tables
from group_hygiene.reconcile.context import (
    Context,
    Facts,
    Observation,
    evidence_of,
    read_bounds,
    read_missing_topics,
    read_protections,
    readable,
)
from group_hygiene.reconcile.saving import read_offsets
from group_hygiene.reconcile.uses import read_log_ends
from group_hygiene.reconcile.waiting import read_records
from group_hygiene.snapshot import Cluster, Coverage, Listing, Snapshot
from group_hygiene.tracing import note, traced

_WRITE_S = 2.0
# What a group takes that a policy judges: its offsets, verdict, marks and history; and how often its id is in memory as
# JSON: in a request to the tables and on its way, in a ledger's key and value and their batch.
_GROUP_BYTES, _ID_COPIES = 5_000, 4
# A group is judged that much later than the tables are read at most.
_SCAN = timedelta(minutes=10)
# Faults of a broker, as opposed to those of one group.
_LOST = frozenset({"NETWORK_EXCEPTION", "REQUEST_TIMED_OUT", "BROKER_NOT_AVAILABLE", "NO_ANSWER"})


@dataclass
class _Facts(Facts):
    """What was read so far, shared by all policies. covered: what to remember of the tables.

    older: commits from before that may be what a policy asks for, topic by topic; None = none asks.
    log_ends: of each partition of the offsets log, before the first offsets were read; None in the list = not known.
    """

    cluster: Cluster = field(kw_only=True)
    older: datetime | None = None
    coverage: Coverage | None = None
    covered: Covered | None = None
    watches: dict[str, Watch] = field(default_factory=dict)
    log_ends: list[LogEnd | None] | None = None
    seen: list[Seen] = field(default_factory=list)


@traced("scan")
def observe(context: Context, policies: Sequence[Policy], full: bool = False) -> Observation:
    """Scan the cluster once for all of `policies` and judge the groups that each selects.

    One ListGroups per broker, with what no policy asks for filtered out at the broker (all groups when `full`).
    Offsets, topics and bounds are read only for groups whose verdict hangs on them. Raises ConnectError when no broker
    answers, and MemoryExhausted where there are more groups than there is memory for.
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
    note(policies=len(policies), groups=len(listing.groups))
    selected = _select(context, policies, listing.groups, deadline)
    facts = _Facts(cluster=cluster)
    _ask_retention(context, policies, cluster, full)
    facts.older = _old_enough(policies, memory.retention, clock.now())
    _begin_looks(context, policies, facts)
    if any(selected.values()):
        topics = kafka_cluster.read_topics(client, deadline)
        groups = {group.id: group for chosen in selected.values() for group in chosen}
        facts.protections = read_protections(context, cluster, groups.values(), topics, deadline)
    verdicts = _judge_all(context, policies, selected, facts, deadline)
    if facts.coverage is None and (any(policy.when.asks_evidence for policy in policies) or (full and context.tables)):
        # Nothing hung on the tables this time; whether they are in order is told all the same.
        _read_activity(context, {}, facts, deadline)
    incomplete = _incomplete(cluster, listing, kafka_cluster.read_cluster(client, deadline), facts.offsets)
    notes = (*listing.notes, *_undescribed(listing.group_faults))
    snapshot = Snapshot(cluster, listing.groups, listing.faults, incomplete, notes, clock.now(), facts.coverage)
    stamp = _end_looks(context, policies, selected, snapshot, facts, deadline)
    unfiltered = listing.groups if not states and not types else None
    deleting = any(
        verdict.matches for policy in policies if policy.action.changes for verdict in verdicts[policy.key].values()
    )
    if policies:
        memory.due_before = deleting
    refusals = _refusals(context, snapshot, stamp)
    if deleting:
        refusals += _hidden(context, snapshot.cluster, deadline)
        if unfiltered is None:
            every = kafka_groups.list_groups(client, cluster, deadline)
            unfiltered = None if kafka_groups.unanswered(every) else every.groups
    total = None if unfiltered is None else len(unfiltered)
    limits = context.connection.limits
    conditions = Conditions(limits, total, tuple(refusals), snapshot.complete, limits.max_per_run if limits else None)
    return Observation(snapshot, verdicts, conditions, facts.protections, unfiltered)


def _select(
    context: Context, policies: Sequence[Policy], groups: Mapping[str, Group], deadline: Deadline
) -> dict[str, list[Group]]:
    """The groups that each policy selects, once there is memory to judge them. Raises MemoryExhausted."""
    made: dict[str, Group] = {}
    selected: dict[str, list[Group]] = {}
    for policy in policies:
        # By their names first: a group that several policies select is made once.
        names = [group.id for group in policy.match.select(groups)]
        needed = sum(map(_group_bytes, names))
        try:
            context.client.intake.reserve(needed, f"{len(names)} groups to be judged", deadline.left / 2)
        except process_memory.TooMuch as error:
            raise MemoryExhausted(str(error)) from error
        made.update((name, groups[name]) for name in names if name not in made)
        selected[policy.key] = [made[name] for name in names]
    return selected


def _group_bytes(name: str) -> int:
    """What a group of this id takes once it is judged."""
    if len(name) > ID_MAX:
        return _GROUP_BYTES
    return _GROUP_BYTES + _ID_COPIES * len(msgspec.json.encode(name))


def _filters(policies: Sequence[Policy]) -> tuple[frozenset[GroupState], frozenset[GroupType]]:
    """What ListGroups may leave out for all of the policies; empty = nothing."""
    states = frozenset[GroupState]().union(*(policy.match.states for policy in policies))
    types = frozenset[GroupType]().union(*(policy.match.types for policy in policies))
    every_state = states >= frozenset(GroupState)
    # A broker refuses the name of a type that it doesn't know; Classic and Consumer all with a filter know.
    nameable = types <= {GroupType.CLASSIC, GroupType.CONSUMER}
    return frozenset() if every_state else states, types if nameable else frozenset()


def _old_enough(policies: Sequence[Policy], retention: timedelta | None, now: datetime) -> datetime | None:
    """Which commits may matter by their topic: those from before that moment; None = no policy asks."""
    moments = [now + _SCAN - policy.when.idle_for for policy in policies if policy.by_topic and policy.when.idle_for]
    if retention is not None:
        within = [policy.when.expires_within for policy in policies if policy.when.expires_within is not None]
        moments += [now + each + _SCAN - retention for each in within]
    return max(moments, default=None)


def _incomplete(
    cluster: Cluster, listing: Listing, after: Cluster | Fault, offsets: Mapping[str, Offsets | Fault]
) -> tuple[str, ...]:
    """Why groups or offsets may be missing; empty = nothing is."""
    moved = f"leaders of {kafka_cluster.OFFSETS_TOPIC} changed during the scan"
    problems = kafka_groups.left_out(cluster, listing, after, moved)
    if listing.groups and not cluster.leaders:
        problems.append(f"there are groups, but the broker that was asked knows no topic {kafka_cluster.OFFSETS_TOPIC}")
    lost = [fault for fault in offsets.values() if isinstance(fault, Fault) and fault.code in _LOST]
    if lost:
        problems.append(f"a broker was lost while offsets were read, of {len(lost)} groups: {lost[0]}")
    return tuple(dict.fromkeys(problems))


def _undescribed(faults: Mapping[str, Fault]) -> tuple[str, ...]:
    """Groups that are there, in a state that could not be read: no policy that deletes selects them."""
    if not faults:
        return ()
    name, fault = min(faults.items())
    return (f"the states of {len(faults)} groups are not known, so none of them is deleted: {name}: {fault}",)


@traced("judge")
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
                verdict = checks.judge(policy, group, evidence_of(context, policy, group, facts), context.clock.now())
                verdicts[policy.key][group.id] = verdict
                asks = verdict.keep.reason if verdict.keep else ""
                if asks in _READERS and (asks, group.id) not in done:
                    wanted.setdefault(asks, {})[group.id] = group
        if not wanted:
            return verdicts
        # Last of all, so that it is asked once, and that no offset is newer than the end it is held against.
        waiting = wanted.pop(reasons.LAG_NOT_READ, {}) if len(wanted) > 1 else {}
        for reason, groups in wanted.items():
            _READERS[reason](context, groups, facts, deadline)
        if reasons.OFFSETS_NOT_READ in wanted:
            _look_again(context, policies, selected, facts)
        done |= {(reason, name) for reason, groups in wanted.items() for name in groups}
        again = {name for groups in (*wanted.values(), waiting) for name in groups}
        open_groups = {key: [group for group in groups if group.id in again] for key, groups in open_groups.items()}


def _ask_retention(context: Context, policies: Sequence[Policy], cluster: Cluster, full: bool) -> None:
    """How long brokers keep offsets: asked once, and again at each full look."""
    asks = any(policy.when.asks_evidence or policy.when.unchanged_for is not None for policy in policies)
    if full or (asks and not context.memory.retention_asked):
        minutes = kafka_cluster.offsets_retention_minutes(context.client, cluster, context.deadline())
        context.memory.retention = offsets_retention(minutes)
        context.memory.retention_asked = True


@traced("evidence")
def _read_activity(context: Context, groups: Mapping[str, Group], facts: _Facts, deadline: Deadline) -> None:
    look = tables.look(context, facts.cluster, groups, deadline, facts.older)
    facts.activity.update(look.groups)
    facts.coverage = look.coverage
    if look.mark is not None:
        facts.covered = look.mark
        context.journal.contents.apply([look.mark])


@traced("offsets")
def _read_offsets(context: Context, groups: Mapping[str, Group], facts: _Facts, deadline: Deadline) -> None:
    if facts.watches and facts.log_ends is None:
        facts.log_ends = read_log_ends(context.client, facts.cluster, Deadline(deadline.left / 2))
    homes: dict[str, int | None] = {name: group.coordinator for name, group in groups.items()}
    types = {name: group.type for name, group in groups.items()}
    facts.offsets.update(read_offsets(context.client, types, homes, deadline))


def _read_missing_topics(context: Context, groups: Mapping[str, Group], facts: _Facts, deadline: Deadline) -> None:
    topics = {name: {partition.topic for partition in readable(facts.offsets.get(name))} for name in groups}
    facts.missing_topics.update(read_missing_topics(context.client, topics, deadline))


def _read_bounds(context: Context, groups: Mapping[str, Group], facts: _Facts, deadline: Deadline) -> None:
    committed = [readable(facts.offsets.get(name)) for name in groups]
    facts.bounds.update(read_bounds(context.client, committed, deadline))


def _read_records(context: Context, groups: Mapping[str, Group], facts: _Facts, deadline: Deadline) -> None:
    committed = [readable(facts.offsets.get(name)) for name in groups]
    facts.records.update(read_records(context, committed, facts.bounds, deadline))


def _read_subscriptions(context: Context, groups: Mapping[str, Group], facts: _Facts, deadline: Deadline) -> None:
    described = kafka_groups.describe_groups(context.client, groups.values(), deadline)
    facts.subscribed.update({name: kafka_groups.subscribed_topics(answer) for name, answer in described.items()})


_READERS: Mapping[str, Callable[[Context, Mapping[str, Group], _Facts, Deadline], None]] = {
    reasons.EVIDENCE_NOT_READ: _read_activity,
    reasons.OFFSETS_NOT_READ: _read_offsets,
    reasons.TOPICS_NOT_READ: _read_missing_topics,
    reasons.LAG_NOT_READ: _read_bounds,
    reasons.RECORDS_NOT_READ: _read_records,
    reasons.SUBSCRIPTION_NOT_READ: _read_subscriptions,
}


def _begin_looks(context: Context, policies: Sequence[Policy], facts: _Facts) -> None:
    """A further look of each policy that asks how long groups are unchanged."""
    memory, clock = context.memory, context.clock
    for policy in policies:
        if policy.when.unchanged_for is not None:
            looks = memory.looks.setdefault(policy.uid, watching.Looks())
            before = context.journal.contents.watches.get(policy.uid)
            facts.watches[policy.uid] = watching.look(before, policy, clock.now(), clock.monotonic(), looks)


def _look_again(
    context: Context, policies: Sequence[Policy], selected: Mapping[str, list[Group]], facts: _Facts
) -> None:
    """Note, for each policy that asks, which groups are Empty with the same committed offsets as at its last look.

    Only in memory until the look is over.
    """
    now, contents = context.clock.now(), context.journal.contents
    for policy in policies:
        watch = facts.watches.get(policy.uid)
        if watch is None:
            continue
        contents.apply([watch])
        known, looks = contents.seen.get(policy.uid, {}), context.memory.looks[policy.uid]
        for group in selected[policy.key]:
            offsets = facts.offsets.get(group.id)
            if group.state is GroupState.EMPTY and offsets is not None and not isinstance(offsets, Fault):
                ends = facts.log_ends or []
                end = ends[partition_of(group.id, len(ends))] if ends else None
                observed = watching.Observed(fingerprint(group, offsets), end)
                seen = watching.seen_again(known.get(group.id), watch, looks, group.id, observed, now)
                if seen is not None:
                    facts.seen.append(seen)
                    contents.apply([seen])


def _end_looks(
    context: Context,
    policies: Sequence[Policy],
    selected: Mapping[str, list[Group]],
    snapshot: Snapshot,
    facts: _Facts,
    deadline: Deadline,
) -> datetime | None:
    """Write what the looks of this scan found; the broker's time of that, None where nothing is written.

    A Seen means Empty at every look: one of a group that is listed in another state ends here, and so does that of a
    group which a complete list leaves out.
    """
    changes: list[Change] = [] if facts.covered is None else [facts.covered]
    for policy in policies:
        watch = facts.watches.get(policy.uid)
        if watch is None:
            continue
        unread = {
            group.id
            for group in selected[policy.key]
            if group.state is GroupState.EMPTY and isinstance(facts.offsets.get(group.id), Fault)
        }
        seen = context.journal.contents.seen.get(policy.uid, {})
        if not snapshot.complete:
            unread |= {name for name in seen if name not in snapshot.groups}
        watch, ended = watching.finish(watch, context.memory.looks[policy.uid], seen, unread)
        changes += [watch, *(Removal(("seen", policy.uid, name)) for name in ended)]
    # A ledger whose broker hangs must not hold up the scan by more than this.
    return context.journal.note([*facts.seen, *changes], Deadline(max(_WRITE_S, deadline.left)))


def _refusals(context: Context, snapshot: Snapshot, stamp: datetime | None) -> list[Keep]:
    """What forbids any deletion in this run, as far as it is known without asking more."""
    refusals: list[Keep] = []
    known, found = context.memory.cluster_id, snapshot.cluster.id
    if known != found:
        refusals.append(Keep(reasons.CLUSTER_CHANGED, f"the address led to cluster {known}, and now leads to {found}"))
    if context.journal.problem is not None:
        refusals.append(context.journal.problem)
    # A run that has nothing to write, as no policy looks, is told of no time, and deletes nothing.
    contents = context.journal.contents
    if stamp is not None or (context.journal.writable and (contents.watches or contents.covered)):
        skew = context.journal.skew(context.clock.now())
        if skew is not None:
            refusals.append(skew)
    if not snapshot.complete:
        refusals.append(Keep(reasons.SNAPSHOT_INCOMPLETE, "; ".join(snapshot.incomplete[:3])))
    return refusals


def _hidden(context: Context, cluster: Cluster, deadline: Deadline) -> list[Keep]:
    """Topics that we may not see have offsets that no backup would hold. Asked only when something matches."""
    hidden = kafka_cluster.hidden_topics(context.client, cluster, deadline)
    if isinstance(hidden, Fault):
        return [Keep(reasons.TOPICS_HIDDEN, f"whether topics are hidden from us could not be read: {hidden}")]
    if not hidden:
        return []
    shown = ", ".join(hidden[:3]) + (", ..." if len(hidden) > 3 else "")
    message = f"DESCRIBE is denied on {len(hidden)} topics ({shown}), so committed offsets may be hidden"
    return [Keep(reasons.TOPICS_HIDDEN, message)]
