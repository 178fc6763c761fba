"""Checks of the committed offsets: whether they are known, whether their topics exist, and when Kafka deletes them.

For DeleteOffsets: whether a group is Stable, and whether it has offsets of topics that no member reads.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from group_hygiene.engine.checks.used import commits_outside
from group_hygiene.model import reasons
from group_hygiene.model.entries import REQUESTED
from group_hygiene.model.evidence import NEVER, Activity, Evidence, Need, after
from group_hygiene.model.groups import NO_START_OFFSET, Fault, Group, GroupState, GroupType
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import format_duration, timestamp, whole_seconds
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
    """The committed offsets must have been read in full: a deletion compares them with those of this scan."""
    if evidence.offsets is None:
        return Need.OFFSETS
    if not isinstance(evidence.offsets, Fault):
        return None
    if evidence.offsets.code == NO_START_OFFSET:
        return Refusal(reasons.NO_START_OFFSET, evidence.offsets.message)
    denied = evidence.offsets.code.endswith("AUTHORIZATION_FAILED")
    reason = reasons.DENIED if denied else reasons.OFFSETS_UNKNOWN
    return Refusal(reason, f"its committed offsets could not be read: {evidence.offsets}")


def offsets_asked(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | Need | None:
    """An alert needs the committed offsets only for some conditions."""
    when = policy.when
    asks = Need.OFFSETS in when.needs or (when.idle_for is not None and commits_outside(evidence))
    return offsets_known(policy, group, evidence, now) if asks else None


def nothing_started(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """A share group that read nothing shows no start offset, as does one whose state Kafka can't read.

    Only `unchangedFor` asks again and again.
    """
    if group.type is not GroupType.SHARE or evidence.offsets or policy.when.unchanged_for is not None:
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


def lives(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """Only the members of a Stable group show the topics that it reads; without members, any consumer may return."""
    if group.state is not GroupState.STABLE:
        return Refusal(reasons.NOT_STABLE, f"its state is {group.state}: only a Stable group shows what it reads")
    return None


def used_lately(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """If the tables show that no topic is idle for long enough, no requests to Kafka are needed."""
    activity = evidence.activity
    if not isinstance(activity, Activity):
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
        # For a user's request, `engine.uses` reads the offsets log.
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


def unreadable(fault: Fault) -> Refusal:
    """Why a group whose offsets could not be read is left alone."""
    if fault.code == "UNSTABLE_OFFSET_COMMIT":
        return Refusal(reasons.PENDING_TRANSACTION, f"a transaction that commits for it is open: {fault.message}")
    if fault.code.endswith("AUTHORIZATION_FAILED"):
        return Refusal(reasons.DENIED, str(fault))
    return Refusal(reasons.OFFSETS_UNKNOWN, str(fault))
