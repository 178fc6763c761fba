"""The second half of a run: delete, each group read again right before. The only code that changes a cluster."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from group_hygiene import checks, reasons
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import (
    Cluster,
    Description,
    Fault,
    Group,
    GroupState,
    Keep,
    Offsets,
    Outcome,
    OutcomeKind,
    Partition,
    fingerprint,
)
from group_hygiene.plan import Plan
from group_hygiene.policy import Policy
from group_hygiene.reconcile.context import Context, Observation, read_lag, read_protections, readable

backup_log = logging.getLogger("group_hygiene.backup")

_DELETE_BATCH = 20
# State and offsets may be this old when DeleteGroups is sent. Any older, and they say too little.
_FRESH_S = 2.0
_UNANSWERED = frozenset({"NETWORK_EXCEPTION", "REQUEST_TIMED_OUT", "NO_ANSWER"})


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
    moved = _leaders_moved(context, observation.snapshot.cluster, deadline)
    if moved is not None:
        return [_kept(name, moved) for name in batch]
    outcomes: list[Outcome] = []
    ready: dict[str, int | None] = {}
    for name, answer in _read_again(context, plan, batch, deadline).items():
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


def _leaders_moved(context: Context, before: Cluster, deadline: Deadline) -> Keep | None:
    """Coordinators that moved since the scan may know less, or other things, than those that were asked."""
    now = kafka_cluster.read_cluster(context.client, deadline)
    if isinstance(now, Fault):
        return Keep(reasons.SNAPSHOT_INCOMPLETE, f"the cluster could not be read again before the deletion: {now}")
    if (now.id, now.leaders) != (before.id, before.leaders):
        return Keep(reasons.SNAPSHOT_INCOMPLETE, f"leaders of {kafka_cluster.OFFSETS_TOPIC} changed since the scan")
    return None


def _read_again(context: Context, plan: Plan, batch: Sequence[str], deadline: Deadline) -> dict[str, Offsets | Keep]:
    """For each group what it has committed now, if it is as the scan saw it and still matches; else why it stays.

    What may take long comes first and what must be fresh comes last: state and offsets, right before the deletion.
    """
    client, groups = context.client, {name: plan.verdicts[name].group for name in batch}
    seen = {name: readable(plan.verdicts[name].evidence.offsets) for name in batch}
    topics = kafka_cluster.read_topics(client, deadline)
    protections = read_protections(context, topics)
    missing = _missing_topics(context, plan.policy, seen, deadline)
    lag = read_lag(client, seen, Deadline(deadline.left / 2))
    pending = _pending(context, dict.fromkeys(batch), topics, deadline)
    started = context.clock.monotonic()
    described = kafka_groups.describe_groups(client, [replace(g, coordinator=-1) for g in groups.values()], deadline)
    committed = kafka_offsets.committed_offsets(client, dict.fromkeys(batch), deadline, require_stable=True)
    late = context.clock.monotonic() - started > _FRESH_S
    results: dict[str, Offsets | Keep] = {}
    for name, group in groups.items():
        offsets = committed[name]
        keep = _no_longer_empty(group, described[name]) or pending.get(name)
        if keep is not None:
            results[name] = keep
        elif isinstance(offsets, Fault):
            results[name] = _unreadable(offsets)
        elif fingerprint(group, offsets) != fingerprint(group, seen[name]):
            results[name] = Keep(reasons.CHANGED, "its committed offsets changed since the scan")
        elif late:
            results[name] = Keep(reasons.OFFSETS_UNKNOWN, f"reading it again took more than {_FRESH_S:.0f} s")
        else:
            evidence = replace(
                plan.verdicts[name].evidence,
                offsets=offsets,
                lag=lag[name],
                missing_topics=missing.get(name),
                protections=protections,
            )
            judged = checks.judge(plan.policy, group, evidence, context.clock.now()).keep
            results[name] = offsets if judged is None else judged
    return results


def _missing_topics(
    context: Context, policy: Policy, seen: Mapping[str, Offsets], deadline: Deadline
) -> dict[str, frozenset[str] | Fault]:
    """Whether the topics are still gone, where the policy asks: one may have been made again since the scan."""
    if policy.when.topics is None:
        return {}
    topics = {name: {partition.topic for partition in offsets} for name, offsets in seen.items()}
    missing = kafka_cluster.missing_topics(context.client, set().union(*topics.values()), deadline)
    return {name: missing if isinstance(missing, Fault) else missing & topics[name] for name in seen}


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
