"""Checks of whether the group is in use: by its state, the offsets log and the operator's scans."""

from __future__ import annotations

from datetime import datetime, timedelta

from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity, Evidence, Need, after
from group_hygiene.model.groups import Group, GroupState, GroupType
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import format_duration, timestamp, whole_seconds
from group_hygiene.spec.policy import Policy


def dead(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """Brokers set Dead just before they remove a group, so there is nothing left to delete."""
    if group.state is GroupState.DEAD:
        return Refusal(reasons.DEAD, "already gone: the broker is removing it")
    return None


def not_empty(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """Only an Empty group can be abandoned."""
    return None if group.state is GroupState.EMPTY else Refusal(reasons.NOT_EMPTY, f"its state is {group.state}")


def in_use(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """An alert may also concern a group in use: that it stopped committing, or that offsets of topics that it no longer
    reads expire.
    """
    when = policy.when
    if when.unchanged_for is None:
        commits = group.in_use and group.type in (GroupType.CLASSIC, GroupType.CONSUMER)
        if commits or not when.asks_evidence:
            return None
    return not_empty(policy, group, evidence, now)


def simple(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """Groups of assign+commit consumers (Flink, Iceberg, scripts) are always Empty: unchanged offsets prove nothing."""
    if policy.when.unchanged_for is not None and group.simple:
        return Refusal(
            reasons.SIMPLE,
            "no consumer ever joined it: its consumers assign and commit, and it stays Empty while in use, or a tool "
            "made it (--reset-offsets): only idleFor can judge it",
        )
    return None


def evidence_known(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | Need | None:
    """Only the offsets log shows when a group last committed: outdated tables, or tables of another log, do not."""
    if not policy.when.asks_evidence:
        return None
    activity = evidence.activity
    if activity is None:
        return Need.ACTIVITY
    if isinstance(activity, Refusal):
        return activity
    if not activity.is_of_type(group):
        return Refusal(
            reasons.EVIDENCE_MISSING,
            f"the tables know it as {_kind(activity.type, activity.protocol_type)}, and it is "
            f"{_kind(group.type, group.protocol_type)}: it changed since, or its first records are not in the log",
        )
    state = {"Active": "had members", "Gone": "was gone", "Empty": "was Empty"}.get(activity.state, "was not described")
    if not activity.is_of(group):
        return Refusal(reasons.EVIDENCE_MISSING, f"it {state} when the log was read at {timestamp(activity.read_at)}")
    return None


def idle(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """When the log was read, the group must have had no commit, even an aborted one, and no member for `idleFor`; for
    an alert on groups with members, too, no commit.

    Up to that read and not up to now: the tables don't have later records.
    """
    wanted, activity = policy.when.idle_for, evidence.activity
    if wanted is None or not isinstance(activity, Activity):
        return None
    if policy.counts_commits and activity.committed_last is None:
        return Refusal(reasons.NO_OFFSETS, "the log has no commit of it")
    since = activity.committed_last if policy.counts_commits else activity.idle_since
    if since is None:
        what = "a commit" if activity.simple else "when its last member left"
        return Refusal(reasons.EVIDENCE_MISSING, f"the log does not show {what}, so it may be in use")
    so_far = min(now, activity.read_at) - since
    if so_far >= wanted:
        return None
    due = after(since, wanted + latest(policy))
    retention = None if group.in_use else evidence.retention
    end = None if retention is None else activity.last_expiry(retention)
    if end is not None and due > end:
        return expires_first("idleFor", due, end)
    progress = f"{format_duration(whole_seconds(max(timedelta(), so_far)))} of {format_duration(wanted)}"
    return Refusal(
        reasons.TOO_RECENT,
        f"idle since {timestamp(since)}, for {progress} when the log was read at {timestamp(activity.read_at)}",
    )


def unchanged(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """The operator must have seen it Empty with the same committed offsets at every scan for `unchangedFor`."""
    wanted = policy.when.unchanged_for
    if wanted is None:
        return None
    sharing = group.type is GroupType.SHARE
    # Kafka removes no share group, and all who read in one are members.
    if not evidence.offsets and not policy.when.without_offsets and not sharing:
        return Refusal(
            reasons.NO_OFFSETS, "has no committed offsets: nothing to compare, and Kafka removes it by itself"
        )
    seen = evidence.unchanged
    if seen is None or seen.observed < wanted:
        if seen is not None and evidence.retention is not None and not sharing:
            # It was Empty at `since` at the latest, so Kafka's retention time began then or earlier.
            due, end = seen.since + wanted + latest(policy), seen.since + evidence.retention
            if due > end:
                return expires_first("unchangedFor", due, end)
        so_far = format_duration(seen.observed) if seen else "0s"
        missed = "" if seen is None or seen.missed is None else _missed(policy, seen.missed)
        return Refusal(reasons.TOO_RECENT, f"seen unchanged for {so_far} of {format_duration(wanted)}{missed}")
    return None


def commits_outside(evidence: Evidence) -> bool:
    """Whether clients commit without being members: on a silent topic they are invisible, and need not commit again.

    A group that a consumer joined once retains its protocol type, so commits after it became Empty show them.
    """
    activity = evidence.activity
    if not isinstance(activity, Activity) or activity.last_commit is None:
        return False
    return activity.simple or activity.committed_after_empty


def latest(policy: Policy) -> timedelta:
    """The longest time from a group's first match to the policy's action."""
    return policy.interval + (policy.grace_period if policy.action.changes else timedelta())


def expires_first(field: str, due: datetime, end: datetime) -> Refusal:
    return Refusal(
        reasons.EXPIRES_FIRST,
        f"Kafka deletes its offsets by {timestamp(end)}, before the policy acts at {timestamp(due)} (after {field})",
    )


def _kind(type_: GroupType, protocol_type: str) -> str:
    return f"{type_} ({protocol_type or 'simple'})" if type_ is GroupType.CLASSIC else str(type_)


def _missed(policy: Policy, gap: timedelta) -> str:
    apart, interval = format_duration(whole_seconds(gap)), format_duration(policy.interval)
    return f": the last two scans were {apart} apart, more than two intervals of {interval}, so the count began again"
