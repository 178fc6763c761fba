"""Checks of DeleteOffsets: whether a group is Stable, and whether it has offsets of topics that no member reads."""

from __future__ import annotations

from datetime import datetime, timedelta

from group_hygiene.model import reasons
from group_hygiene.model.entries import REQUESTED
from group_hygiene.model.evidence import Activity, Evidence, Need
from group_hygiene.model.groups import Fault, Group, GroupState
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import format_duration, timestamp, whole_seconds
from group_hygiene.spec.policy import Action, Policy


def lives(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """Only the members of a Stable group show the topics that it reads; without members, any consumer may return."""
    if policy.action is Action.DELETE_OFFSETS and group.state is not GroupState.STABLE:
        return Refusal(reasons.NOT_STABLE, f"its state is {group.state}: only a Stable group shows what it reads")
    return None


def used_lately(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """If the tables show that no topic is idle for long enough, no requests to Kafka are needed."""
    activity = evidence.activity
    if policy.action is not Action.DELETE_OFFSETS or not isinstance(activity, Activity):
        return None
    topics = {topic for topic in activity.by_topic or () if policy.match.covers(topic)}
    if activity.by_topic is not None and (not topics or any(_is_idle(policy, evidence, t, now) for t in topics)):
        return None
    refusal = _too_recent(policy, evidence, topics, now)
    return refusal if refusal.reason == reasons.TOO_RECENT else None


def unread(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | Need | None:
    """Offsets are deleted if no member reads their topic, and no client committed for it for `idleFor`. Either alone
    may be a deployment in progress.
    """
    if policy.action is not Action.DELETE_OFFSETS:
        return None
    found = unread_topics(policy, evidence, now)
    return None if isinstance(found, frozenset) else found


def unread_topics(policy: Policy, evidence: Evidence, now: datetime) -> frozenset[str] | Refusal | Need:
    """The topics whose offsets to delete: at least one, or why there is none. Missing evidence excludes a topic."""
    offsets = evidence.offsets if evidence.offsets and not isinstance(evidence.offsets, Fault) else {}
    committed = {partition.topic for partition in offsets}
    chosen = {topic for topic in committed if policy.match.covers(topic)}
    if not chosen:
        what = "of the topics that deleteOffsets leaves" if committed else "at all"
        return Refusal(reasons.NO_OFFSETS, f"has no committed offsets {what}")
    # A client that committed them again needs them.
    again = {topic for topic, deleted in evidence.offsets_deleted.items() if deleted.until > now}
    new = chosen - again
    if not new:
        topic = min(chosen)
        until = timestamp(evidence.offsets_deleted[topic].until)
        return Refusal(
            reasons.REAPPEARED, f"offsets of {topic} were deleted before and exist again: not deleted until {until}"
        )
    idle = {topic for topic in new if _is_idle(policy, evidence, topic, now)}
    if not idle:
        return _too_recent(policy, evidence, new, now)
    subscribed = evidence.subscribed
    if subscribed is None:
        return Need.SUBSCRIBED
    if isinstance(subscribed, Fault):
        return Refusal(reasons.SUBSCRIPTION_UNKNOWN, f"the subscriptions of its members are not known: {subscribed}")
    if not idle - subscribed:
        return Refusal(reasons.SUBSCRIBED, f"its members read all of its {len(idle)} topics without recent commits")
    return frozenset(idle - subscribed)


def _is_idle(policy: Policy, evidence: Evidence, topic: str, now: datetime) -> bool:
    wanted, activity = policy.when.idle_for, evidence.activity
    if wanted is None:
        # For a user's request, `reconcile.uses` reads the offsets log.
        return policy.uid.startswith(REQUESTED)
    if not isinstance(activity, Activity):
        return False
    last = activity.used_last(topic)
    return last is not None and min(now, activity.read_at) - last >= wanted


def _too_recent(policy: Policy, evidence: Evidence, topics: set[str], now: datetime) -> Refusal:
    """The Refusal, for the topic with the oldest last commit."""
    wanted, activity = policy.when.idle_for, evidence.activity
    if not isinstance(activity, Activity) or wanted is None:
        return Refusal(reasons.EVIDENCE_MISSING, "the tables do not show when it committed")
    read_by, oldest = min(now, activity.read_at), activity.oldest_commit
    if activity.by_topic is None and oldest is not None and read_by - oldest < wanted:
        return Refusal(reasons.TOO_RECENT, f"the first of its commits that count was at {timestamp(oldest)}")
    known = [(last, topic) for topic in topics if (last := activity.used_last(topic)) is not None]
    if not known:
        return Refusal(reasons.EVIDENCE_MISSING, "the tables have no commit for any of its topics")
    last, topic = min(known)
    so_far = format_duration(whole_seconds(max(read_by - last, timedelta())))
    return Refusal(
        reasons.TOO_RECENT,
        f"its last commit for {topic} was at {timestamp(last)}, {so_far} of {format_duration(wanted)} before the log "
        "was read",
    )
