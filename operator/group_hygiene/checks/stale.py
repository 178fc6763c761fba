"""Checks of DeleteOffsets: whether a group lives, and of which topics it has offsets that none of its members reads."""

from __future__ import annotations

from datetime import datetime, timedelta

from group_hygiene import reasons
from group_hygiene.durations import format_duration, timestamp, whole_seconds
from group_hygiene.model import Activity, Evidence, Fault, Group, GroupState, Keep
from group_hygiene.policy import Action, Policy


def lives(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """Only the members of a Stable group say what it reads; while it has none, nobody knows who comes back."""
    if policy.action is Action.DELETE_OFFSETS and group.state is not GroupState.STABLE:
        return Keep(reasons.NOT_STABLE, f"its state is {group.state}: only a Stable group tells what it reads")
    return None


def used_lately(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """Where the tables alone say that no topic was left for long, nothing need be asked of Kafka."""
    activity = evidence.activity
    if policy.action is not Action.DELETE_OFFSETS or not isinstance(activity, Activity):
        return None
    topics = {topic for topic in activity.by_topic or () if policy.match.covers(topic)}
    if activity.by_topic is not None and (not topics or any(_is_idle(policy, evidence, t, now) for t in topics)):
        return None
    keep = _too_recent(policy, evidence, topics, now)
    return keep if keep.reason == reasons.TOO_RECENT else None


def unread(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """Offsets go when no member reads their topic, and nobody committed for it for that long: both, as either alone may
    be a deployment under way.
    """
    if policy.action is not Action.DELETE_OFFSETS:
        return None
    found = unread_topics(policy, evidence, now)
    return found if isinstance(found, Keep) else None


def unread_topics(policy: Policy, evidence: Evidence, now: datetime) -> frozenset[str] | Keep:
    """Of which topics the offsets are to go: at least one, or why it is none. What is not known of a topic keeps it."""
    offsets = evidence.offsets if evidence.offsets and not isinstance(evidence.offsets, Fault) else {}
    committed = {partition.topic for partition in offsets}
    chosen = {topic for topic in committed if policy.match.covers(topic)}
    if not chosen:
        what = "of the topics that match.topics and excludeTopics leave" if committed else "at all"
        return Keep(reasons.NO_OFFSETS, f"has no committed offsets {what}")
    new = {topic for topic in chosen if not _deleted_before(topic, evidence, now)}
    if not new:
        topic = min(chosen)
        until = timestamp(evidence.offsets_deleted[topic].until)
        return Keep(
            reasons.REAPPEARED, f"offsets of {topic} were deleted before and are there again: kept until {until}"
        )
    idle = {topic for topic in new if _is_idle(policy, evidence, topic, now)}
    if not idle:
        return _too_recent(policy, evidence, new, now)
    subscribed = evidence.subscribed
    if subscribed is None:
        return Keep(reasons.SUBSCRIPTION_NOT_READ, "what its members subscribe to was not read")
    if isinstance(subscribed, Fault):
        return Keep(reasons.SUBSCRIPTION_UNKNOWN, f"what its members subscribe to is not known: {subscribed}")
    if not idle - subscribed:
        return Keep(reasons.SUBSCRIBED, f"its members read all of its {len(idle)} topics without recent commits")
    return frozenset(idle - subscribed)


def _deleted_before(topic: str, evidence: Evidence, now: datetime) -> bool:
    """Whoever committed them again needs them."""
    deleted = evidence.offsets_deleted.get(topic)
    return deleted is not None and deleted.until > now


def _is_idle(policy: Policy, evidence: Evidence, topic: str, now: datetime) -> bool:
    wanted, activity = policy.when.idle_for, evidence.activity
    if wanted is None or not isinstance(activity, Activity):
        return False
    last = activity.used_last(topic)
    return last is not None and min(now, activity.read_at) - last >= wanted


def _too_recent(policy: Policy, evidence: Evidence, topics: set[str], now: datetime) -> Keep:
    """For the topic that was left first."""
    wanted, activity = policy.when.idle_for, evidence.activity
    if not isinstance(activity, Activity) or wanted is None:
        return Keep(reasons.EVIDENCE_MISSING, "the tables do not tell when it committed")
    read_by, oldest = min(now, activity.read_at), activity.oldest_commit
    if activity.by_topic is None and oldest is not None and read_by - oldest < wanted:
        return Keep(reasons.TOO_RECENT, f"the first of its commits that count was at {timestamp(oldest)}")
    known = [(last, topic) for topic in topics if (last := activity.used_last(topic)) is not None]
    if not known:
        return Keep(reasons.EVIDENCE_MISSING, "the tables know of no commit for any of its topics")
    last, topic = min(known)
    so_far = format_duration(whole_seconds(max(read_by - last, timedelta())))
    return Keep(
        reasons.TOO_RECENT,
        f"its last commit for {topic} was at {timestamp(last)}, {so_far} of {format_duration(wanted)} before the log "
        "was read",
    )
