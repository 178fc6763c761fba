"""Checks of the committed offsets themselves: whether they are known, of what they are, and when Kafka drops them."""

from __future__ import annotations

from datetime import datetime, timedelta

from group_hygiene import reasons
from group_hygiene.checks.used import commits_outside
from group_hygiene.durations import timestamp
from group_hygiene.model import NEVER, Activity, Evidence, Fault, Group, GroupType, Keep
from group_hygiene.policy import Policy, Topics


def expires(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """`expiresWithin` looks for groups whose offsets Kafka will soon drop, whether somebody needs them or not."""
    within, activity = policy.when.expires_within, evidence.activity
    if within is None or not isinstance(activity, Activity):
        return None
    if evidence.retention is None:
        return Keep(
            reasons.EVIDENCE_MISSING,
            "offsets.retention.minutes of the brokers could not be read: needs DESCRIBE_CONFIGS on the cluster",
        )
    if evidence.retention == NEVER:
        return Keep(reasons.EXPIRES_LATER, "the brokers' offsets.retention.minutes is -1: they never drop its offsets")
    if group.in_use:
        return _expires_in_use(group, activity, evidence, now + within)
    if activity.nothing_committed:
        return Keep(reasons.NO_OFFSETS, "has no committed offsets: there is nothing that could expire")
    at = activity.first_expiry(evidence.retention)
    if at is None:
        what = "when its last member left" if activity.oldest_commit is not None else "a commit"
        return Keep(reasons.EVIDENCE_MISSING, f"the log does not tell {what}, so nobody knows when its offsets expire")
    if at - now > within:
        return Keep(reasons.EXPIRES_LATER, f"the first of its offsets expire at {timestamp(at)}")
    return None


def _expires_in_use(group: Group, activity: Activity, evidence: Evidence, until: datetime) -> Keep | None:
    """While a group has members, only offsets of topics that none of them reads expire, each by its own commit."""
    first, retention = activity.oldest_commit, evidence.retention or timedelta()
    if first is None:
        return Keep(reasons.NO_OFFSETS, "the log tells of no committed offsets of it")
    if group.type is GroupType.CLASSIC and group.protocol_type != "consumer":
        return Keep(
            reasons.EXPIRES_LATER,
            f"it has members: until they leave, brokers drop nothing of the protocol type {group.protocol_type}",
        )
    if first + retention > until:
        return Keep(
            reasons.EXPIRES_LATER,
            f"it has members; what they don't read expires at {timestamp(first + retention)} at first",
        )
    subscribed = evidence.subscribed
    if subscribed is None:
        return Keep(reasons.SUBSCRIPTION_NOT_READ, "which topics its members read was not read")
    if isinstance(subscribed, Fault):
        denied = subscribed.code.endswith("AUTHORIZATION_FAILED")
        reason = reasons.DENIED if denied else reasons.SUBSCRIPTION_UNKNOWN
        return Keep(reason, f"which topics its members read is not known: {subscribed}")
    if activity.by_topic is None:
        return Keep(reasons.EVIDENCE_MISSING, "when it committed for each topic was not read")
    at = activity.expiry_in_use(subscribed, retention)
    if at is None:
        return Keep(
            reasons.EXPIRES_LATER, "its members read all topics of its old commits: while they do, they are safe"
        )
    if at > until:
        return Keep(reasons.EXPIRES_LATER, f"the first of its offsets that no member reads expire at {timestamp(at)}")
    return None


def offsets_known(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """What a policy asks of the committed offsets must have been read, and read whole."""
    when = policy.when
    asks = when.committed_none or when.topics is not None or when.unchanged_for is not None or when.asks_bounds
    # What is to be deleted is compared with what it was at the last look.
    if not asks and not (when.idle_for is not None and (policy.action.changes or commits_outside(evidence))):
        return None
    if evidence.offsets is None:
        return Keep(reasons.OFFSETS_NOT_READ, "its committed offsets were not read")
    if isinstance(evidence.offsets, Fault):
        denied = evidence.offsets.code.endswith("AUTHORIZATION_FAILED")
        reason = reasons.DENIED if denied else reasons.OFFSETS_UNKNOWN
        return Keep(reason, f"its committed offsets could not be read: {evidence.offsets}")
    return None


def committed(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """`committed: None` looks for groups that never committed, or whose offsets expired."""
    if policy.when.committed_none and evidence.offsets and not isinstance(evidence.offsets, Fault):
        return Keep(reasons.HAS_OFFSETS, f"has committed offsets for {len(evidence.offsets)} partitions")
    return None


def topics_deleted(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """`topics` looks for offsets of topics that are gone. No offsets at all say nothing about topics."""
    wanted = policy.when.topics
    if wanted is None or isinstance(evidence.offsets, Fault):
        return None
    if not evidence.offsets:
        return Keep(reasons.NO_OFFSETS, "has no committed offsets, so no topic to look at")
    missing = evidence.missing_topics
    if missing is None:
        return Keep(reasons.TOPICS_NOT_READ, "whether its topics exist was not read")
    if isinstance(missing, Fault):
        return Keep(reasons.TOPICS_UNKNOWN, f"whether its topics exist could not be read: {missing}")
    topics = {partition.topic for partition in evidence.offsets}
    if not topics & missing or (wanted is Topics.ALL_DELETED and not topics <= missing):
        return Keep(reasons.TOPICS_EXIST, f"{len(topics - missing)} of its {len(topics)} topics exist")
    return None
