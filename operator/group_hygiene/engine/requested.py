"""Deletes groups that a user names, or some of their offsets.

The steps are those of a policy's run, with a mark that is due at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import NamedTuple

from msgspec import structs

from group_hygiene.engine.checks import judge
from group_hygiene.engine.context import Context, Observation
from group_hygiene.engine.deletion import apply, not_deleted
from group_hygiene.engine.executor import Executor, Moment
from group_hygiene.engine.marks import note_marks
from group_hygiene.engine.plan import Plan, Verdicts, make_plan
from group_hygiene.engine.scan import observe
from group_hygiene.engine.uses import Since, Uses, read_ends
from group_hygiene.kafka import brokers
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.offsets import offsets_at, start_offsets
from group_hygiene.kafka.partition import PartitionLeader, fetch_time
from group_hygiene.ledger.journal import SKEW_MAX
from group_hygiene.model import reasons
from group_hygiene.model.entries import REQUESTED, Removal
from group_hygiene.model.evidence import Outcome, Verdict
from group_hygiene.model.groups import Cluster, Fault, GroupState, GroupType, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import Duration, ObjectRef, format_duration
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import Action, AlertSpec, DeleteOffsetsSpec, Match, Mode, Policy, When

# All of them, so that a group in use is refused with a reason.
_STATES = frozenset(GroupState)
_TYPES = frozenset(GroupType) - {GroupType.UNKNOWN}


class DeletionRequest(NamedTuple):
    """The groups that a user named. by: the user.

    unused_for: groups with a record in the offsets log within this time are not deleted; None = the log is not read.
    topics: only the committed offsets of these topics are deleted, of groups in use; empty = whole groups. Then commits
    for other topics are no uses. A group is refused if the offsets of one of the topics may not be deleted.
    """

    groups: Sequence[str]
    by: str
    unused_for: timedelta | None
    backup_retention: timedelta
    topics: Sequence[str] = ()


class Judged(NamedTuple):
    """The verdict on each group that was found, and the scan.

    stop: why none may be deleted now. since: see `Uses`; None = the log is not read.
    """

    policy: Policy
    observation: Observation
    verdicts: Mapping[str, Verdict]
    stop: Refusal | None
    since: Since | None


def judge_requested(context: Context, request: DeletionRequest) -> Judged:
    """Scan, apply every check, and read the offsets log for recent uses. Changes nothing. Raises as `observe`."""
    policy, contents = _policy(request), context.journal.contents
    # In full, so that it finds out whether the offsets log has grown, also if that is not read for uses.
    observation = observe(context, [policy], full=True, whole=True)
    verdicts = dict(observation.verdicts[policy.key])
    begun = Refusal(
        reasons.INTERRUPTED,
        "an earlier deletion of it is unresolved: the operator resolves it, or a later command if a command began it "
        "more than two minutes ago",
    )
    verdicts |= {
        name: structs.replace(each, refusal=begun) for name, each in verdicts.items() if name in contents.intents
    }
    verdicts |= {name: _of_all_topics(each, policy, request, context) for name, each in verdicts.items()}
    # As if the marks were due.
    dry = structs.replace(policy, mode=Mode.DRY_RUN)
    trial = make_plan(dry, Verdicts.of(verdicts.values()), {}, observation.conditions, context.clock.now())
    since = None
    if request.unused_for is not None and trial.due:
        cluster = observation.snapshot.cluster
        since = _since(context, cluster, request.unused_for)
        uses = Uses(context, replace(trial, actions=trial.due), cluster, since)
        used = uses.read_on(context.deadline())
        verdicts |= {name: structs.replace(verdicts[name], refusal=refusal) for name, refusal in used.items()}
    return Judged(policy, observation, verdicts, trial.refusal, since)


def delete_requested(executor: Executor, judged: Judged) -> tuple[Refusal | None, list[Outcome]]:
    """Mark, save and delete the matching groups. Returns why none may be deleted, and the outcomes of the others.

    The marks are in the ledger, as evidence of the request, and are removed at the end.
    """
    context, policy, contents = executor.context, judged.policy, executor.context.journal.contents
    # The ledger is proved again: the user may have thought for hours.
    problem = judged.stop or executor.refusal(context.deadline(), Moment.OPENED)
    problem = problem or note_marks(context, _plan(context, judged))
    if problem is not None:
        return problem, []
    try:
        plan = _plan(context, judged)
        if plan.refusal is not None:
            return plan.refusal, []
        late = Refusal(reasons.LIMIT_EXCEEDED, "limits.maxPerRun of the KafkaConnection: run the command again")
        left = [not_deleted(name, late) for name in plan.due if name not in plan.actions]
        return None, apply(executor, plan, judged.observation, judged.since) + left
    finally:
        executor.record([Removal(mark.key) for mark in list(contents.marks.get(policy.uid, {}).values())])


def _plan(context: Context, judged: Judged) -> Plan:
    now, policy = context.clock.now(), judged.policy
    marks = context.journal.contents.marks.get(policy.uid, {})
    conditions = replace(judged.observation.conditions, announced=now)
    return make_plan(policy, Verdicts.of(judged.verdicts.values()), marks, conditions, now)


def _of_all_topics(verdict: Verdict, policy: Policy, request: DeletionRequest, context: Context) -> Verdict:
    """The verdict, which refuses if the offsets of one of the topics may not be deleted."""
    if not verdict.matches:
        return verdict
    now = context.clock.now()
    for topic in sorted(set(request.topics) - verdict.topics):
        alone = structs.replace(policy, match=structs.replace(policy.match, topics=Patterns.of_names([topic])))
        refusal = judge(alone, verdict.group, verdict.evidence, now).refusal
        if refusal is not None:
            return structs.replace(verdict, refusal=Refusal(refusal.reason, f"{topic}: {refusal.message}"))
    return verdict


def _policy(request: DeletionRequest) -> Policy:
    """A policy of exactly these groups. Without conditions on time: the user decides, and the offsets log is read."""
    deletion = DeleteOffsetsSpec(
        # The limits of a policy protect from patterns that match too much.
        max_per_run=len(request.groups),
        max_percent=100,
        grace_period=Duration(),
        backup_retention=Duration(seconds=request.backup_retention.total_seconds()),
    )
    return Policy(
        namespace="command-line",
        name=request.by,
        uid=f"{REQUESTED}{secrets.token_hex(8)}",
        generation=0,
        connection_ref=ObjectRef("", "command-line"),
        interval=Duration(),
        suspend=False,
        mode=Mode.ENFORCE,
        match=Match(
            groups=Patterns.of_names(request.groups),
            states=_STATES,
            types=_TYPES,
            topics=Patterns.of_names(request.topics),
        ),
        when=When(),
        action=Action.DELETE_OFFSETS if request.topics else Action.DELETE,
        delete=deletion,
        delete_offsets=deletion,
        digest="command-line",
        alert=AlertSpec(),
    )


def _since(context: Context, cluster: Cluster, unused_for: timedelta) -> Since:
    """From where on the offsets log shows the uses within this time.

    Compaction retains the last record of each key, so a use since then is always there, if no retention and no user
    deletes records from the beginning of the log. Its time is by the clock of the broker that led the partition then:
    that of the present leader is known (`Uses`), and counts if it has led the partition for all of that time.
    """
    client, now, deadline = context.client, context.clock.now(), context.deadline()
    # First, as a record that is written meanwhile comes after it.
    ends = read_ends(client, cluster, deadline)
    if isinstance(ends, Fault):
        return Since({}, {})
    begun = brokers.since_elected(client, cluster, deadline).first_ms
    earliest_ms = (now - unused_for).timestamp() * 1000
    doubtful = [i for i, (_, epoch) in cluster.leaders.items() if epoch and begun.get(i, inf) >= earliest_ms]
    answers: list[Mapping[Partition, int | Fault]] = [
        start_offsets(client, [Partition(OFFSETS_TOPIC, index) for index in ends], deadline)
    ]
    for begin in (now - unused_for, now - max(unused_for, SKEW_MAX)):
        times = {Partition(OFFSETS_TOPIC, index): int(begin.timestamp() * 1000) for index in ends}
        # Without an offset: there is no such record.
        answers.append({place: at for place, at in offsets_at(client, times, deadline).items() if at is not None})
    found: list[dict[int, int]] = []
    for answer in answers:
        found.append({place.partition: at for place, at in answer.items() if not isinstance(at, Fault)})
        if len(found[-1]) < len(answer):
            return Since({}, {})
    starts, uses, read = found
    for index, start in starts.items():
        first_ms = fetch_time(PartitionLeader(client, Partition(OFFSETS_TOPIC, index)), start, deadline) if start else 0
        # Deleted records are older than the first one that is left.
        if not isinstance(first_ms, int) or first_ms > earliest_ms:
            why = (
                f"records were deleted from {OFFSETS_TOPIC}-{index}, perhaps some within {format_duration(unused_for)}"
            )
            return Since({}, {}, why=why)
    return Since(ends | uses, ends | read | {i: starts[i] for i in doubtful}, doubtful, unused_for=unused_for)
