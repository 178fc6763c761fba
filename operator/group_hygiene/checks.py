"""Whether one group stays: an ordered chain of pure functions `(policy, group, evidence, now) -> Keep or None`.

The chain runs from "somebody said hands off" over "it is not what the policy looks for" to "it may be in use", and the
first Keep decides. Missing evidence keeps. Four answers also say what to read next (EvidenceNotRead, OffsetsNotRead,
TopicsNotRead, LagNotRead): `reconcile.observe` reads just that, for just these groups, and judges again, so that a scan
costs what its policies ask and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from group_hygiene import reasons
from group_hygiene.model import (
    NO_SUCH_TOPIC,
    Activity,
    Evidence,
    Fault,
    Group,
    GroupState,
    GroupType,
    Keep,
    Verdict,
)
from group_hygiene.policy import Action, Policy, Topics, Unprotect, format_duration

OWN_PREFIX = "__group_hygiene"

Check = Callable[[Policy, Group, Evidence, datetime], Keep | None]


def judge(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Verdict:
    """The verdict on a group that `policy.match` selects: the first Keep of the chain, or a match."""
    for check in CHECKS:
        keep = check(policy, group, evidence, now)
        if keep is not None:
            return Verdict(group, evidence, keep)
    return Verdict(group, evidence, None)


def own_group(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """The operator never touches what it made itself."""
    if group.id.startswith(OWN_PREFIX):
        return Keep(reasons.OWN_GROUP, "belongs to group-hygiene itself")
    return None


def protected(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """The owner of the connection said that no policy may touch it."""
    if evidence.protected_by is not None:
        return Keep(reasons.PROTECTED, f"the connection protects {evidence.protected_by!r}")
    return None


def kept_on_request(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """Somebody asked for time. An Alert policy changes nothing, so it still reports the group."""
    request = evidence.keep_request
    if policy.action is not Action.DELETE or request is None or request.until <= now:
        return None
    why = f": {request.why}" if request.why else ""
    return Keep(reasons.KEPT_ON_REQUEST, f"{request.by} asked to keep it until {_time(request.until)}{why}")


def record_unreadable(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """What can't be read may have been a request to keep it, a mark, or a deletion that came to no end."""
    if policy.action is Action.DELETE and evidence.damaged is not None:
        return Keep(reasons.RECORD_UNREADABLE, f"a record about it in the ledger can't be read: {evidence.damaged}")
    return None


def reappeared(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """Whoever made it again needs it; and a broker can bring back what it had deleted."""
    deleted = evidence.deleted
    if policy.action is not Action.DELETE or deleted is None or deleted.until <= now:
        return None
    return Keep(
        reasons.REAPPEARED,
        f"deleted by policy {deleted.policy} at {_time(deleted.at)}, and there again: kept until "
        f"{_time(deleted.until)}",
    )


def claimed(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """A workload scaled to zero (KEDA) or a stopped connector is Empty, and needs its offsets to come back."""
    claims = evidence.protections.claimed
    if claims is None:
        return Keep(reasons.CLAIMED, "KEDA or Strimzi objects could not be listed: any of them may name it")
    owner = claims.get(group.id)
    if owner is not None:
        return Keep(reasons.CLAIMED, f"named by {owner}")
    return None


def connect(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """A stopped sink connector's group is Empty, and its offsets are where it goes on."""
    if Unprotect.CONNECT in policy.match.unprotect:
        return None
    if group.protocol_type == "connect" or group.id.startswith("connect-"):
        return Keep(reasons.CONNECT, "Kafka Connect worker or sink connector (match.unprotect: [Connect] to include)")
    return None


def streams(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """A Streams application's offsets belong to the state in its changelog topics; one without the other is loss."""
    if Unprotect.STREAMS in policy.match.unprotect:
        return None
    applications = evidence.protections.streams
    if group.type is not GroupType.STREAMS and applications is None:
        return Keep(
            reasons.STREAMS, "the list of topics could not be read: any group may be a Kafka Streams application"
        )
    if group.type is GroupType.STREAMS or (applications is not None and group.id in applications):
        return Keep(reasons.STREAMS, "Kafka Streams application (match.unprotect: [Streams] to include)")
    return None


def mirror_maker(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """MirrorMaker 2 writes only to Empty or absent groups: they look abandoned and are what a failover needs."""
    if Unprotect.MIRROR_MAKER in policy.match.unprotect:
        return None
    mirrored = evidence.protections.mirrored
    if mirrored is None:
        return Keep(
            reasons.MIRROR_MAKER,
            "a MirrorMaker 2 target whose checkpoints could not be read: any group may be mirrored",
        )
    if group.id in mirrored:
        return Keep(reasons.MIRROR_MAKER, "mirrored by MirrorMaker 2 (match.unprotect: [MirrorMaker] to include)")
    return None


def share(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """OffsetFetch shows nothing of a share group, and deleting it erases state that no backup holds (KIP-932)."""
    if group.type is not GroupType.SHARE:
        return None
    if policy.action is Action.DELETE:
        return Keep(reasons.SHARE, "share groups can't be backed up, so they are never deleted")
    if Unprotect.SHARE not in policy.match.unprotect:
        return Keep(reasons.SHARE, "share group (match.unprotect: [Share] to include)")
    return None


def dead(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """Brokers set Dead just before they drop a group, so there is nothing left to delete."""
    if group.state is GroupState.DEAD and policy.action is Action.DELETE:
        return Keep(reasons.DEAD, "already gone: the broker is dropping it")
    return None


def not_empty(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """Only an Empty group can be abandoned."""
    when = policy.when
    asks = policy.action is Action.DELETE or when.unchanged_for is not None or when.asks_evidence
    if asks and group.state is not GroupState.EMPTY:
        return Keep(reasons.NOT_EMPTY, f"its state is {group.state}")
    return None


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
    if activity.type is not group.type or (
        activity.type is GroupType.CLASSIC and activity.protocol_type != group.protocol_type
    ):
        return Keep(
            reasons.EVIDENCE_MISSING,
            f"the tables know it as {_kind(activity.type, activity.protocol_type)}, and it is "
            f"{_kind(group.type, group.protocol_type)}: it changed since, or its beginnings are not in the log",
        )
    if activity.state in ("Active", "Gone"):
        said = "had members" if activity.state == "Active" else "was gone"
        return Keep(reasons.EVIDENCE_MISSING, f"it {said} when the log was read at {_time(activity.read_at)}")
    return None


def idle(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """Nobody may have committed, in vain or not, or been a member for that long when the log was read.

    Until then and not until now: what was written since, the tables don't know.
    """
    wanted, activity = policy.when.idle_for, evidence.activity
    if wanted is None or not isinstance(activity, Activity):
        return None
    since = activity.idle_since
    if since is None:
        what = "a commit" if activity.simple else "when its last member left"
        return Keep(reasons.EVIDENCE_MISSING, f"the log does not tell {what}, so it may be in use")
    so_far = min(now, activity.read_at) - since
    if so_far >= wanted:
        return None
    due = since + wanted + _delay(policy)
    end = None if evidence.retention is None else activity.last_expiry(evidence.retention)
    if end is not None and due > end:
        return _expires_first("idleFor", due, end)
    told = f"{format_duration(_seconds(max(timedelta(), so_far)))} of {format_duration(wanted)}"
    return Keep(
        reasons.TOO_RECENT, f"idle since {_time(since)}, for {told} when the log was read at {_time(activity.read_at)}"
    )


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
    at = activity.first_expiry(evidence.retention)
    if at is None:
        what = "when its last member left" if activity.oldest_commit is not None else "a commit"
        return Keep(reasons.EVIDENCE_MISSING, f"the log does not tell {what}, so nobody knows when its offsets expire")
    if at - now > within:
        return Keep(reasons.EXPIRES_LATER, f"the first of its offsets expire at {_time(at)}")
    return None


def offsets_known(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """What a policy asks of the committed offsets must have been read, and read whole."""
    when = policy.when
    asks = when.committed_none or when.topics is not None or when.unchanged_for is not None
    # What is to be deleted is compared with what it was at the last look.
    if not asks and not (when.idle_for is not None and (policy.action is Action.DELETE or _outside(evidence))):
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


def unchanged(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """The operator must itself have seen it Empty, with the same committed offsets at every scan, for that long."""
    wanted = policy.when.unchanged_for
    if wanted is None:
        return None
    if not evidence.offsets and not policy.when.committed_none:
        return Keep(
            reasons.NO_OFFSETS, "has no committed offsets: nothing to see unchanged, and Kafka drops it by itself"
        )
    seen = evidence.unchanged
    if seen is None or seen.observed < wanted:
        if seen is not None and evidence.retention is not None:
            # It was Empty at `since` at the latest, so whatever clock Kafka takes runs since then or longer.
            due, end = seen.since + wanted + _delay(policy), seen.since + evidence.retention
            if due > end:
                return _expires_first("unchangedFor", due, end)
        so_far = format_duration(seen.observed) if seen else "0s"
        missed = "" if seen is None or seen.missed is None else _missed(policy, seen.missed)
        return Keep(reasons.TOO_RECENT, f"seen unchanged for {so_far} of {format_duration(wanted)}{missed}")
    return None


def caught_up(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """A live consumer of a silent topic commits once and then never (librdkafka): only unread records tell."""
    offsets, when = evidence.offsets, policy.when
    outside = when.idle_for is not None and _outside(evidence)
    # Offsets of deleted topics only: no consumer can be reading them, and there is no end to compare with.
    if when.topics is Topics.ALL_DELETED or (when.unchanged_for is None and not outside):
        return None
    if not offsets:
        if not outside:
            return None
        return Keep(reasons.NO_OFFSETS, "has no committed offsets, so nothing tells whether records wait for it")
    lag = evidence.lag
    if lag is None:
        return Keep(reasons.LAG_NOT_READ, "whether records wait for it was not read")
    if isinstance(lag, Fault):
        return Keep(reasons.LAG_UNKNOWN, f"whether records wait for it could not be read: {lag}")
    if any(not isinstance(behind, Fault) and behind > 0 for behind in lag.values()):
        return None
    # A deleted topic has no end to compare with: no failure, and nothing that somebody could mend.
    faults = [fault for fault in lag.values() if isinstance(fault, Fault) and fault.code != NO_SUCH_TOPIC]
    if faults:
        return Keep(reasons.LAG_UNKNOWN, f"whether records wait for it could not be read: {faults[0]}")
    return Keep(reasons.CAUGHT_UP, "no records wait for it: a consumer of a silent topic looks just like this")


def _outside(evidence: Evidence) -> bool:
    """Whether clients commit without being members: they stay unseen on a silent topic, and need not commit again.

    A group that somebody joined once keeps its protocol type, so commits after it became Empty tell.
    """
    activity = evidence.activity
    if not isinstance(activity, Activity) or activity.last_commit is None:
        return False
    return activity.simple or (activity.empty_since is not None and activity.last_commit > activity.empty_since)


def _delay(policy: Policy) -> timedelta:
    """How long after it begins to match a group is acted on at the latest."""
    return policy.interval + (policy.grace_period if policy.action is Action.DELETE else timedelta())


def _expires_first(field: str, due: datetime, end: datetime) -> Keep:
    return Keep(
        reasons.EXPIRES_FIRST,
        f"Kafka drops its offsets by {_time(end)}, before {field} and what comes after it are over at {_time(due)}",
    )


def _seconds(value: timedelta) -> timedelta:
    return timedelta(seconds=value // timedelta(seconds=1))


def _kind(type_: GroupType, protocol_type: str) -> str:
    return f"{type_} ({protocol_type or 'simple'})" if type_ is GroupType.CLASSIC else str(type_)


def _missed(policy: Policy, gap: timedelta) -> str:
    apart, interval = format_duration(_seconds(gap)), format_duration(policy.interval)
    return f": the last two looks came {apart} apart, more than two intervals of {interval}, so it began anew"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


CHECKS: tuple[Check, ...] = (
    own_group,
    protected,
    kept_on_request,
    record_unreadable,
    reappeared,
    claimed,
    connect,
    streams,
    mirror_maker,
    share,
    dead,
    not_empty,
    simple,
    evidence_known,
    idle,
    expires,
    offsets_known,
    committed,
    topics_deleted,
    unchanged,
    caught_up,
)
