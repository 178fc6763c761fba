"""Checks of whether anybody uses the group: its state, and what the log and our own looks tell."""

from __future__ import annotations

from datetime import datetime, timedelta

from group_hygiene import reasons
from group_hygiene.durations import format_duration, timestamp, whole_seconds
from group_hygiene.model import Activity, Evidence, Fault, Group, GroupState, GroupType, Keep
from group_hygiene.policy import Action, Policy


def dead(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """Brokers set Dead just before they drop a group, so there is nothing left to delete."""
    if group.state is GroupState.DEAD and policy.action.changes:
        return Keep(reasons.DEAD, "already gone: the broker is dropping it")
    return None


def not_empty(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """Only an Empty group can be abandoned; but one in use can lose offsets of topics that it no longer reads."""
    when = policy.when
    if policy.action is Action.DELETE_OFFSETS:
        return None
    asks = policy.action is Action.DELETE or when.unchanged_for is not None or when.asks_evidence
    if not asks or group.state is GroupState.EMPTY:
        return None
    expires_in_use = group.in_use and group.type in (GroupType.CLASSIC, GroupType.CONSUMER)
    if expires_in_use and policy.action is Action.ALERT and when.asks_expiry_only:
        return None
    return Keep(reasons.NOT_EMPTY, f"its state is {group.state}")


def simple(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """Assign+commit consumers (Flink, Iceberg, scripts) are Empty all their life: unchanged offsets prove nothing."""
    if policy.when.unchanged_for is not None and group.simple:
        return Keep(
            reasons.SIMPLE, "nobody ever joined it: its consumers assign and commit, and stay Empty while in use"
        )
    return None


def evidence_known(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """Only the offsets log tells when a group last committed: tables that are old, or of another log, say nothing."""
    if not policy.when.asks_evidence:
        return None
    activity = evidence.activity
    if activity is None:
        return Keep(reasons.EVIDENCE_NOT_READ, "what the pipeline's tables say of it was not read")
    if isinstance(activity, Fault):
        return Keep(activity.code, activity.message)
    if not activity.is_of_type(group):
        return Keep(
            reasons.EVIDENCE_MISSING,
            f"the tables know it as {_kind(activity.type, activity.protocol_type)}, and it is "
            f"{_kind(group.type, group.protocol_type)}: it changed since, or its beginnings are not in the log",
        )
    said = {"Active": "had members", "Gone": "was gone", "Empty": "was Empty"}.get(activity.state, "was not described")
    if not activity.is_of(group):
        return Keep(reasons.EVIDENCE_MISSING, f"it {said} when the log was read at {timestamp(activity.read_at)}")
    return None


def idle(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """Nobody may have committed, in vain or not, or been a member for that long when the log was read.

    Until then and not until now: what was written since, the tables don't know.
    """
    wanted, activity = policy.when.idle_for, evidence.activity
    if wanted is None or not isinstance(activity, Activity) or policy.action is Action.DELETE_OFFSETS:
        return None
    since = activity.idle_since
    if since is None:
        what = "a commit" if activity.simple else "when its last member left"
        return Keep(reasons.EVIDENCE_MISSING, f"the log does not tell {what}, so it may be in use")
    so_far = min(now, activity.read_at) - since
    if so_far >= wanted:
        return None
    due = since + wanted + latest(policy)
    end = None if evidence.retention is None else activity.last_expiry(evidence.retention)
    if end is not None and due > end:
        return expires_first("idleFor", due, end)
    told = f"{format_duration(whole_seconds(max(timedelta(), so_far)))} of {format_duration(wanted)}"
    return Keep(
        reasons.TOO_RECENT,
        f"idle since {timestamp(since)}, for {told} when the log was read at {timestamp(activity.read_at)}",
    )


def unchanged(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """The operator must itself have seen it Empty, with the same committed offsets at every scan, for that long."""
    wanted = policy.when.unchanged_for
    if wanted is None:
        return None
    sharing = group.type is GroupType.SHARE
    if not evidence.offsets and not policy.when.committed_none:
        why_not = "nothing to see unchanged" + ("" if sharing else ", and Kafka drops it by itself")
        return Keep(reasons.NO_OFFSETS, f"has no committed offsets: {why_not}")
    seen = evidence.unchanged
    if seen is None or seen.observed < wanted:
        # Kafka drops no share group.
        if seen is not None and evidence.retention is not None and not sharing:
            # It was Empty at `since` at the latest, so whatever clock Kafka takes runs since then or longer.
            due, end = seen.since + wanted + latest(policy), seen.since + evidence.retention
            if due > end:
                return expires_first("unchangedFor", due, end)
        so_far = format_duration(seen.observed) if seen else "0s"
        missed = "" if seen is None or seen.missed is None else _missed(policy, seen.missed)
        return Keep(reasons.TOO_RECENT, f"seen unchanged for {so_far} of {format_duration(wanted)}{missed}")
    return None


def commits_outside(evidence: Evidence) -> bool:
    """Whether clients commit without being members: they stay unseen on a silent topic, and need not commit again.

    A group that somebody joined once keeps its protocol type, so commits after it became Empty tell.
    """
    activity = evidence.activity
    if not isinstance(activity, Activity) or activity.last_commit is None:
        return False
    return activity.simple or activity.committed_after_empty


def latest(policy: Policy) -> timedelta:
    """How long after it begins to match a group is acted on at the latest."""
    return policy.interval + (policy.grace_period if policy.action.changes else timedelta())


def expires_first(field: str, due: datetime, end: datetime) -> Keep:
    return Keep(
        reasons.EXPIRES_FIRST,
        f"Kafka drops its offsets by {timestamp(end)}, before {field} and what comes after it are over at "
        f"{timestamp(due)}",
    )


def _kind(type_: GroupType, protocol_type: str) -> str:
    return f"{type_} ({protocol_type or 'simple'})" if type_ is GroupType.CLASSIC else str(type_)


def _missed(policy: Policy, gap: timedelta) -> str:
    apart, interval = format_duration(whole_seconds(gap)), format_duration(policy.interval)
    return f": the last two looks came {apart} apart, more than two intervals of {interval}, so it began anew"
