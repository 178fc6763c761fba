"""Whether one group stays: an ordered chain of pure functions `(policy, group, evidence, now) -> Keep or None`.

The chain runs from "somebody said hands off" over "it is not what the policy looks for" to "it may be in use", and the
first Keep decides. Missing evidence keeps. Three answers also say what to read next (OffsetsNotRead, TopicsNotRead,
LagNotRead): `reconcile.observe` reads just that, for just these groups, and judges again, so that a scan costs what its
policies ask and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from group_hygiene import reasons
from group_hygiene.model import Evidence, Fault, Group, GroupState, GroupType, Keep, Verdict
from group_hygiene.policy import Action, Policy, Topics, Unprotect, format_duration

OWN_PREFIX = "__group_hygiene"
_NO_SUCH_TOPIC = "UNKNOWN_TOPIC_OR_PARTITION"

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
    asks = policy.action is Action.DELETE or policy.when.unchanged_for is not None
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


def offsets_known(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """What a policy asks of the committed offsets must have been read, and read whole."""
    when = policy.when
    if not when.committed_none and when.topics is None and when.unchanged_for is None:
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
        so_far = format_duration(seen.observed) if seen else "0s"
        return Keep(reasons.TOO_RECENT, f"seen unchanged for {so_far} of {format_duration(wanted)}")
    return None


def caught_up(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """A live consumer of a silent topic commits once and then never (librdkafka): only unread records tell."""
    offsets = evidence.offsets
    # Offsets of deleted topics only: no consumer can be reading them, and there is no end to compare with.
    if policy.when.unchanged_for is None or not offsets or policy.when.topics is Topics.ALL_DELETED:
        return None
    lag = evidence.lag
    if lag is None:
        return Keep(reasons.LAG_NOT_READ, "whether records wait for it was not read")
    if isinstance(lag, Fault):
        return Keep(reasons.LAG_UNKNOWN, f"whether records wait for it could not be read: {lag}")
    if any(not isinstance(behind, Fault) and behind > 0 for behind in lag.values()):
        return None
    # A deleted topic has no end to compare with: no failure, and nothing that somebody could mend.
    faults = [fault for fault in lag.values() if isinstance(fault, Fault) and fault.code != _NO_SUCH_TOPIC]
    if faults:
        return Keep(reasons.LAG_UNKNOWN, f"whether records wait for it could not be read: {faults[0]}")
    return Keep(reasons.CAUGHT_UP, "no records wait for it: a consumer of a silent topic looks just like this")


CHECKS: tuple[Check, ...] = (
    own_group,
    protected,
    claimed,
    connect,
    streams,
    mirror_maker,
    share,
    dead,
    not_empty,
    simple,
    offsets_known,
    committed,
    topics_deleted,
    unchanged,
    caught_up,
)
