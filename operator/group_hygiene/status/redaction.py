"""Redacts messages for objects outside the connection's namespace, which may show their own groups only. Pure.

A message may contain another team's data: counts of groups, topics, Secrets, buckets, brokers, groups. So only messages
that concern the group itself pass; of all others, the reason stays, and a fixed sentence replaces the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from group_hygiene.decide.plan import Plan
from group_hygiene.errors import HygieneError
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Outcome, Verdict
from group_hygiene.model.groups import Snapshot
from group_hygiene.model.reasons import Refusal

# Reasons whose messages concern only the policy and the group.
OWN = frozenset(
    {
        *(reasons.OWN_GROUP, reasons.CONNECT, reasons.STREAMS, reasons.STREAMS_STATE),
        *(reasons.ID_TOO_LONG, reasons.MIRROR_MAKER, reasons.SHARE, reasons.KEEP_REQUESTED),
        *(reasons.DEAD, reasons.NOT_EMPTY, reasons.SIMPLE, reasons.HAS_OFFSETS, reasons.NO_OFFSETS),
        *(reasons.TOPICS_EXIST, reasons.TOO_RECENT, reasons.EXPIRES_FIRST, reasons.EXPIRES_LATER, reasons.CAUGHT_UP),
        *(reasons.NOT_STABLE, reasons.SUBSCRIBED, reasons.LAG_BELOW, reasons.IN_RANGE),
        reasons.NO_START_OFFSET,
        reasons.EVIDENCE_NOT_CONFIGURED,
        *(reasons.DELETED, reasons.OFFSETS_DELETED, reasons.BECAME_ACTIVE),
        *(reasons.RECENTLY_ACTIVE, reasons.CHANGED, reasons.GONE, reasons.PENDING_TRANSACTION),
        *(reasons.POLICY_CHANGED, reasons.STOPPING, reasons.NOT_LEADER, reasons.INTERRUPTED, reasons.DRY_RUN),
        *(reasons.TOTAL_UNKNOWN, reasons.KEEP_ENDED),
    }
)
_TEXTS = {
    reasons.PROTECTED: "the connection protects it",
    reasons.CLAIMED: "a Kubernetes object names it, or such objects could not be read",
    reasons.FAILOVER_TARGET: "the connection's role is FailoverTarget: a failover may need any group",
    reasons.REAPPEARED: "it was deleted before, and exists again: not deleted until its backup expires",
    reasons.SNAPSHOT_INCOMPLETE: "groups may be missing from the answers of the brokers",
    reasons.OFFSETS_TOPIC_GROWN: "the topic __consumer_offsets has more partitions than when brokers started: "
    "restart them",
    reasons.LIMIT_EXCEEDED: "more groups are due than maxPercent of the policy or limits.maxPercent of the "
    "KafkaConnection allow: none is deleted",
    reasons.CLUSTER_TOO_SMALL: "the cluster has fewer groups than limits.minGroups of the KafkaConnection allows",
    reasons.MEMORY_EXHAUSTED: "the operator has too little memory left for it: ask for fewer groups",
    reasons.TOPICS_HIDDEN: "committed offsets may be hidden: a permission is missing",
    reasons.TOPICS_UNKNOWN: "which topics exist, or whether all are visible, could not be read",
}


_T = TypeVar("_T", Refusal, Outcome)


def redact(why: _T, connection: str) -> _T:
    """The same record, with a message that other namespaces may read. connection: its namespace/name."""
    return why if why.reason in OWN else replace(why, message=public_message(why.reason, connection))


def public_message(reason: str, connection: str) -> str:
    """The message for other namespaces. The connection's owner reads the rest in its status and the operator's log."""
    return _TEXTS.get(reason, f"the owner of KafkaConnection {connection} can see why")


def redact_run(
    plan: Plan, outcomes: Sequence[Outcome], snapshot: Snapshot, connection: str
) -> tuple[Plan, list[Outcome], Snapshot]:
    """The plan, outcomes and snapshot of a run, redacted for the policy's namespace."""

    def verdict(of: Verdict) -> Verdict:
        # The connection's owners are its namespace's own.
        evidence = replace(of.evidence, owner="")
        return replace(of, evidence=evidence, refusal=None if of.refusal is None else redact(of.refusal, connection))

    shown = replace(
        plan,
        verdicts=plan.verdicts.changed(verdict),
        refusal=None if plan.refusal is None else redact(plan.refusal, connection),
        unmarking={name: redact(why, connection) for name, why in plan.unmarking.items()},
    )
    done = [redact(each, connection) for each in outcomes]
    seen = snapshot
    if snapshot.incomplete:
        seen = replace(seen, incomplete=(_TEXTS[reasons.SNAPSHOT_INCOMPLETE],))
    if snapshot.coverage is not None and snapshot.coverage.problem is not None:
        problem = redact(snapshot.coverage.problem, connection)
        seen = replace(seen, coverage=replace(snapshot.coverage, problem=problem))
    return shown, done, seen


def redact_problem(problem: Refusal, namespace: str, connection: str) -> Refusal:
    """A problem of the connection, redacted for an object of that namespace. connection: its namespace/name."""
    return problem if connection.partition("/")[0] == namespace else redact(problem, connection)


def connection_not_ready(error: HygieneError, namespace: str, connection: str) -> Refusal:
    """The refusal for an object of that namespace while its connection can't be used."""
    # The error may contain addresses and names of Secrets: only the connection's own namespace may see these.
    detail = f": {error}" if connection.partition("/")[0] == namespace else ""
    return Refusal(reasons.CONNECTION_NOT_READY, f"KafkaConnection {connection} is not ready: {error.reason}{detail}")
