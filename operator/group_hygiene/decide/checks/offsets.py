"""Checks of the committed offsets: whether they are known, whether their topics exist, and when Kafka deletes them."""

from __future__ import annotations

from datetime import datetime, timedelta

from group_hygiene.decide.checks.used import commits_outside
from group_hygiene.model import reasons
from group_hygiene.model.evidence import NEVER, Activity, Evidence, Need, after
from group_hygiene.model.groups import NO_START_OFFSET, Fault, Group, GroupType
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import timestamp
from group_hygiene.spec.policy import DeletedTopics, Policy


def expires(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | Need | None:
    """`expiresWithin` selects groups whose offsets Kafka will delete soon, whether they are in use or not."""
    within, activity = policy.when.expires_within, evidence.activity
    if within is None or not isinstance(activity, Activity):
        return None
    if evidence.retention is None:
        return Refusal(
            reasons.EVIDENCE_MISSING,
            "offsets.retention.minutes of the brokers could not be read: needs DESCRIBE_CONFIGS on the cluster",
        )
    if evidence.retention == NEVER:
        return Refusal(
            reasons.EXPIRES_LATER, "the brokers' offsets.retention.minutes is -1: they never delete its offsets"
        )
    if group.in_use:
        return _expires_in_use(group, activity, evidence, now + within)
    if activity.nothing_committed:
        return Refusal(reasons.NO_OFFSETS, "has no committed offsets that could expire")
    at = activity.first_expiry(evidence.retention)
    if at is None:
        what = "when its last member left" if activity.oldest_commit is not None else "a commit"
        return Refusal(
            reasons.EVIDENCE_MISSING, f"the log does not show {what}, so it is not known when its offsets expire"
        )
    if at - now > within:
        return Refusal(reasons.EXPIRES_LATER, f"the first of its offsets expire at {timestamp(at)}")
    return None


def _expires_in_use(group: Group, activity: Activity, evidence: Evidence, until: datetime) -> Refusal | Need | None:
    """While a group has members, only offsets of topics that none of them reads expire, each by its own commit."""
    first, retention = activity.oldest_commit, evidence.retention or timedelta()
    if first is None:
        return Refusal(reasons.NO_OFFSETS, "the log has no committed offsets of it")
    if group.type is GroupType.CLASSIC and group.protocol_type != "consumer":
        return Refusal(
            reasons.EXPIRES_LATER,
            f"it has members: until they leave, brokers delete no offsets of the protocol type {group.protocol_type}",
        )
    earliest = after(first, retention)
    if earliest > until:
        return Refusal(
            reasons.EXPIRES_LATER,
            f"it has members; offsets that they don't read expire at {timestamp(earliest)} at the earliest",
        )
    subscribed = evidence.subscribed
    if subscribed is None:
        return Need.SUBSCRIBED
    if isinstance(subscribed, Fault):
        denied = subscribed.code.endswith("AUTHORIZATION_FAILED")
        reason = reasons.DENIED if denied else reasons.SUBSCRIPTION_UNKNOWN
        return Refusal(reason, f"the topics that its members read are not known: {subscribed}")
    if activity.by_topic is None:
        return Refusal(reasons.EVIDENCE_MISSING, "when it committed for each topic was not read")
    at = activity.expiry_in_use(subscribed, retention)
    if at is None:
        return Refusal(
            reasons.EXPIRES_LATER, "its members read all topics of its old commits: while they do, they are safe"
        )
    if at > until:
        return Refusal(
            reasons.EXPIRES_LATER, f"the first of its offsets that no member reads expire at {timestamp(at)}"
        )
    return None


def offsets_known(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | Need | None:
    """The committed offsets must have been read in full, if the policy needs them."""
    when = policy.when
    asks = when.without_offsets or when.deleted_topics is not None or when.unchanged_for is not None or when.asks_bounds
    # Before a deletion, the offsets are compared with those of this scan.
    asks = asks or policy.action.changes
    if not asks and not (when.idle_for is not None and commits_outside(evidence)):
        return None
    if evidence.offsets is None:
        return Need.OFFSETS
    if not isinstance(evidence.offsets, Fault):
        return None
    if evidence.offsets.code == NO_START_OFFSET:
        return Refusal(reasons.NO_START_OFFSET, evidence.offsets.message)
    denied = evidence.offsets.code.endswith("AUTHORIZATION_FAILED")
    reason = reasons.DENIED if denied else reasons.OFFSETS_UNKNOWN
    return Refusal(reason, f"its committed offsets could not be read: {evidence.offsets}")


def nothing_started(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """A share group that read nothing shows no start offset, as does one whose state Kafka can't read.

    Only `unchangedFor` asks again and again.
    """
    needed = policy.action.changes and policy.when.unchanged_for is None
    if group.type is not GroupType.SHARE or evidence.offsets or not needed:
        return None
    return Refusal(
        reasons.NO_START_OFFSET,
        "no start offset is known: it read nothing, or Kafka can't read its state. Only unchangedFor, which asks at "
        "each scan, deletes it",
    )


def committed(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """`committedOffsets: Absent` selects groups that never committed, or whose offsets expired."""
    if policy.when.without_offsets and evidence.offsets and not isinstance(evidence.offsets, Fault):
        return Refusal(reasons.HAS_OFFSETS, f"has committed offsets for {len(evidence.offsets)} partitions")
    return None


def topics_deleted(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | Need | None:
    """`deletedTopics` selects groups with offsets of deleted topics. A group without offsets doesn't match."""
    wanted = policy.when.deleted_topics
    if wanted is None or isinstance(evidence.offsets, Fault):
        return None
    if not evidence.offsets:
        return Refusal(reasons.NO_OFFSETS, "has no committed offsets, and so no topics")
    missing = evidence.missing_topics
    if missing is None:
        return Need.MISSING_TOPICS
    if isinstance(missing, Fault):
        return Refusal(reasons.TOPICS_UNKNOWN, f"whether its topics exist could not be read: {missing}")
    topics = {partition.topic for partition in evidence.offsets}
    if not topics & missing or (wanted is DeletedTopics.ALL and not topics <= missing):
        return Refusal(reasons.TOPICS_EXIST, f"{len(topics - missing)} of its {len(topics)} topics exist")
    return None
