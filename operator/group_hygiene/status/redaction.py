"""What an object of another namespace than its connection's shows of a run: its own groups, and no more. Pure.

A message may name what is another team's: how many groups there are and how many are due, topics, Secrets, buckets,
brokers, groups. So only messages that speak of the group itself, as its checks make them, pass; of all others the
reason stays, and a sentence of ours takes the place of the message.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from group_hygiene import reasons
from group_hygiene.errors import HygieneError
from group_hygiene.model import Keep, Outcome, Verdict
from group_hygiene.plan import Plan
from group_hygiene.snapshot import Snapshot
from group_hygiene.status.conditions import Problem

# Whose messages speak of the policy and the group alone.
OWN = frozenset(
    {
        *(reasons.OWN_GROUP, reasons.CONNECT, reasons.STREAMS, reasons.STREAMS_STATE),
        *(reasons.ID_TOO_LONG, reasons.MIRROR_MAKER, reasons.SHARE, reasons.KEPT_ON_REQUEST),
        *(reasons.DEAD, reasons.NOT_EMPTY, reasons.SIMPLE, reasons.HAS_OFFSETS, reasons.NO_OFFSETS),
        *(reasons.TOPICS_EXIST, reasons.TOO_RECENT, reasons.EXPIRES_FIRST, reasons.EXPIRES_LATER, reasons.CAUGHT_UP),
        *(reasons.NOT_STABLE, reasons.SUBSCRIBED, reasons.LAG_BELOW, reasons.IN_RANGE),
        *(reasons.OFFSETS_NOT_READ, reasons.TOPICS_NOT_READ, reasons.LAG_NOT_READ, reasons.RECORDS_NOT_READ),
        *(reasons.SUBSCRIPTION_NOT_READ, reasons.EVIDENCE_NOT_READ, reasons.EVIDENCE_NOT_CONFIGURED),
        *(reasons.DELETED, reasons.OFFSETS_DELETED, reasons.BECAME_ACTIVE),
        *(reasons.RECENTLY_ACTIVE, reasons.CHANGED, reasons.GONE, reasons.PENDING_TRANSACTION),
        *(reasons.POLICY_CHANGED, reasons.STOPPING, reasons.NOT_LEADER, reasons.INTERRUPTED, reasons.DRY_RUN),
        reasons.TOTAL_UNKNOWN,
    }
)
_TEXTS = {
    reasons.PROTECTED: "the connection protects it",
    reasons.CLAIMED: "a Kubernetes object names it",
    reasons.REAPPEARED: "it was deleted before, and is there again: kept until its backup expires",
    reasons.SNAPSHOT_INCOMPLETE: "groups may be missing from the answers of the brokers",
    reasons.LIMIT_EXCEEDED: "more groups are due than delete.maxPercent of the policy or limits.maxPercent of the "
    "KafkaConnection allow: none is deleted",
    reasons.TOPICS_HIDDEN: "committed offsets may be hidden: a permission is missing",
}


def redact(why: Keep, connection: str, own: Set[str] = OWN) -> Keep:
    """connection: its namespace/name, whose owner reads the rest in its status and the operator's log.

    own: the reasons whose messages pass.
    """
    if why.reason in own:
        return why
    return Keep(why.reason, _TEXTS.get(why.reason, f"the owner of KafkaConnection {connection} can see why"))


def redact_run(
    plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot, connection: str
) -> tuple[Plan, list[Outcome], Snapshot]:
    """What a run decided, did and saw, as all that shows it to the policy's namespace may have it."""

    def verdict(of: Verdict) -> Verdict:
        return of if of.keep is None else replace(of, keep=redact(of.keep, connection))

    shown = replace(
        plan,
        verdicts={name: verdict(each) for name, each in plan.verdicts.items()},
        refusal=None if plan.refusal is None else redact(plan.refusal, connection),
        unmarking={name: redact(why, connection) for name, why in plan.unmarking.items()},
    )
    done = [replace(each, message=redact(Keep(each.reason, each.message), connection).message) for each in outcomes]
    seen = snapshot
    if snapshot.incomplete:
        seen = replace(seen, incomplete=(_TEXTS[reasons.SNAPSHOT_INCOMPLETE],))
    if snapshot.coverage is not None and snapshot.coverage.problem is not None:
        problem = redact(snapshot.coverage.problem, connection)
        seen = replace(seen, coverage=replace(snapshot.coverage, problem=problem))
    return shown, done, seen


def redact_problem(problem: Problem, namespace: str, connection: str) -> Problem:
    """A problem of the connection, as an object of that namespace shows it. connection: its namespace/name."""
    if connection.partition("/")[0] == namespace:
        return problem
    return replace(problem, message=redact(Keep(problem.reason, problem.message), connection).message)


def connection_not_ready(error: HygieneError, namespace: str, connection: str) -> Problem:
    """What an object of that namespace shows while its connection can't be used."""
    # What the error says of addresses and Secrets is for the connection's own namespace.
    detail = f": {error}" if connection.partition("/")[0] == namespace else ""
    message = f"KafkaConnection {connection} is not ready: {error.reason}{detail}"
    return Problem(reasons.CONNECTION_NOT_READY, message)
