"""Deletes groups that a user names: the steps of a policy's run, with a mark that is due at once."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from group_hygiene.decide.plan import Plan, make_plan
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.offsets import offsets_at
from group_hygiene.kafka.partitions import partition_of
from group_hygiene.kafka.tail import Found, Place, Tail
from group_hygiene.model import reasons
from group_hygiene.model.entries import Removal
from group_hygiene.model.groups import Fault, GroupState, GroupType, Partition
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.snapshot import Cluster
from group_hygiene.model.verdicts import Outcome, Verdict
from group_hygiene.reconcile.context import Context, Observation
from group_hygiene.reconcile.delete_requests import not_deleted
from group_hygiene.reconcile.deletion import Guard, apply
from group_hygiene.reconcile.marks import note_marks
from group_hygiene.reconcile.scan import observe
from group_hygiene.reconcile.uses import describe
from group_hygiene.spec.durations import format_duration
from group_hygiene.spec.patterns import Patterns, exactly
from group_hygiene.spec.policy import Action, AlertSpec, Limits, Match, Mode, Policy, When

# All of them, so that a group in use is refused with a reason.
_STATES = frozenset(GroupState)
_TYPES = frozenset(GroupType) - {GroupType.UNKNOWN}


class DeletionRequest(NamedTuple):
    """The groups that a user named. by: the user.

    unused_for: groups with a record in the offsets log within this time are not deleted; None = the log is not read.
    """

    groups: Sequence[str]
    by: str
    unused_for: timedelta | None
    backup_retention: timedelta


class Judged(NamedTuple):
    """The verdict on each group that was found, and the scan."""

    policy: Policy
    observation: Observation
    verdicts: Mapping[str, Verdict]


def judge_requested(context: Context, request: DeletionRequest) -> Judged:
    """Scan, apply every check, and read the offsets log for recent uses. Changes nothing. Raises as `observe`."""
    policy = _policy(request)
    observation = observe(context, [policy])
    verdicts = dict(observation.verdicts[policy.key])
    if request.unused_for is not None:
        matching = [name for name, verdict in verdicts.items() if verdict.matches]
        now, cluster = context.clock.now(), observation.snapshot.cluster
        uses = _uses(context.client, cluster, matching, now, request.unused_for, context.deadline())
        verdicts |= {name: replace(verdicts[name], refusal=refusal) for name, refusal in uses.items()}
    return Judged(policy, observation, verdicts)


def delete_requested(context: Context, judged: Judged, guard: Guard) -> tuple[Refusal | None, list[Outcome]]:
    """Mark, save and delete the matching groups. Returns why none may be deleted, and the outcomes of the others.

    The marks are in the ledger, as evidence of the request, and are removed at the end.
    """
    policy, contents = judged.policy, context.journal.contents
    marked = _plan(context, judged)
    problem = marked.refusal or note_marks(context, marked)
    if problem is not None:
        return problem, []
    try:
        plan = _plan(context, judged)
        if plan.refusal is not None:
            return plan.refusal, []
        late = Refusal(reasons.LIMIT_EXCEEDED, "limits.maxPerRun of the KafkaConnection: run the command again")
        left = [not_deleted(name, late) for name in plan.due if name not in plan.actions]
        return None, apply(context, plan, judged.observation, guard) + left
    finally:
        context.journal.record([Removal(mark.key) for mark in list(contents.marks.get(policy.uid, {}).values())])


def _plan(context: Context, judged: Judged) -> Plan:
    now, policy = context.clock.now(), judged.policy
    marks = context.journal.contents.marks.get(policy.uid, {})
    conditions = replace(judged.observation.conditions, announced=now)
    return make_plan(policy, judged.verdicts, marks, conditions, now)


def _policy(request: DeletionRequest) -> Policy:
    """A policy of exactly these groups. Without conditions on time: the user decides, and the offsets log is read."""
    return Policy(
        namespace="command-line",
        name=request.by,
        uid=f"command-line-{secrets.token_hex(8)}",
        generation=0,
        connection_namespace="command-line",
        connection_name="",
        interval=timedelta(),
        suspend=False,
        mode=Mode.ENFORCE,
        match=Match(groups=Patterns([exactly(name) for name in request.groups]), states=_STATES, types=_TYPES),
        when=When(),
        action=Action.DELETE,
        # The limits of a policy protect from patterns that match too much.
        limits=Limits(max_per_run=len(request.groups), max_percent=100),
        grace_period=timedelta(),
        backup_retention=request.backup_retention,
        digest="command-line",
        alert=AlertSpec(),
    )


def _uses(
    client: Client, cluster: Cluster, names: Collection[str], now: datetime, period: timedelta, deadline: Deadline
) -> dict[str, Refusal]:
    """The groups with a record in the offsets log within the period, or for which that could not be read.

    Compaction retains the last record of each key, so a use within the period is always there.
    """
    count = len(cluster.leaders)
    if cluster.samples or not count:
        hidden = Refusal(reasons.EVIDENCE_UNREADABLE, f"whether it was used lately: brokers hide {OFFSETS_TOPIC}")
        return dict.fromkeys(names, hidden)
    numbers = {name: partition_of(name, count) for name in names}
    begin = int((now - period).timestamp() * 1000)
    starts = offsets_at(client, dict.fromkeys((Partition(OFFSETS_TOPIC, n) for n in numbers.values()), begin), deadline)
    found = {name: starts[Partition(OFFSETS_TOPIC, number)] for name, number in numbers.items()}
    places = {name: Place(numbers[name], start) for name, start in found.items() if isinstance(start, int)}
    answers = Tail(client, places, {index: broker for index, (broker, _) in cluster.leaders.items()}).read_on(deadline)
    refusals: dict[str, Refusal] = {}
    for name, start in found.items():
        answer = start if isinstance(start, Fault) else answers.get(name)
        if isinstance(answer, Found):
            why = f"within the last {format_duration(period)} {describe(answer)}"
            refusals[name] = Refusal(reasons.RECENTLY_ACTIVE, why)
        elif isinstance(answer, Fault):
            refusals[name] = Refusal(reasons.EVIDENCE_UNREADABLE, f"whether it was used lately: {answer}")
    return refusals
