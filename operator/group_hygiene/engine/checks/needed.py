"""Checks for groups that must not be deleted: by request, or because being Empty is normal for such a group."""

from __future__ import annotations

from datetime import datetime

from group_hygiene.model import reasons
from group_hygiene.model.evidence import Activity, Evidence
from group_hygiene.model.groups import ID_MAX, Fault, Group, GroupType, Program, program_of
from group_hygiene.model.naming import printable
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.fields import timestamp
from group_hygiene.spec.policy import Policy, Unprotect

OWN_PREFIX = "__group_hygiene"


def own_group(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """The operator never changes groups that it created itself."""
    if group.id.startswith(OWN_PREFIX):
        return Refusal(reasons.OWN_GROUP, "belongs to group-hygiene itself")
    return None


def id_too_long(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """All data about a group repeats its id, in JSON with up to six bytes for each character."""
    if len(group.id) > ID_MAX:
        return Refusal(reasons.ID_TOO_LONG, f"its id has {len(group.id)} characters, and at most {ID_MAX} are handled")
    return None


def protected(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """The connection excludes it from all policies."""
    if evidence.protected_by is not None:
        return Refusal(reasons.PROTECTED, f"the connection protects {evidence.protected_by!r}")
    return None


def failover_target(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """On a failover target, all groups that replicators write are Empty, and Kafka does not show which these are.

    The connection's `role` protects them all, and no policy can include them.
    """
    if evidence.failover_target:
        return Refusal(
            reasons.FAILOVER_TARGET,
            "the connection's role is FailoverTarget: a failover may need any group that is synced here",
        )
    return None


def keep_requested(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """A user requested to keep it."""
    request = evidence.keep_request
    if request is None or request.until <= now:
        return None
    asker = request.asker(policy.namespace, policy.connection_namespace)
    why = f": {request.why}" if request.why and asker == request.by else ""
    return Refusal(reasons.KEEP_REQUESTED, f"{asker} asked to keep it until {timestamp(request.until)}{why}")


def record_unreadable(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """The unreadable record may be a request to keep it, a mark, or an interrupted deletion."""
    if evidence.damaged is not None:
        return Refusal(reasons.RECORD_UNREADABLE, f"a record about it in the ledger can't be read: {evidence.damaged}")
    return None


def reappeared(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """The client that created it again needs it; and a broker can bring back a deleted group."""
    deleted = evidence.deleted
    if deleted is None or deleted.until <= now:
        return None
    part = "in part " if deleted.is_partial else ""
    return Refusal(
        reasons.REAPPEARED,
        f"deleted {part}by policy {deleted.policy} at {timestamp(deleted.at)}, and exists again: not deleted until "
        f"{timestamp(deleted.until)}",
    )


def claimed(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """A workload scaled to zero (KEDA) or a stopped connector is Empty, and needs its offsets to come back."""
    claims = evidence.protections.claimed
    if isinstance(claims, Refusal):
        return Refusal(
            reasons.CLAIMED,
            "objects of KEDA, Strimzi, Knative or Redpanda could not be read: any of them may name it",
        )
    owner = claims.owner(group.id)
    if owner is not None:
        return Refusal(reasons.CLAIMED, f"named by {owner}")
    return None


def connect(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """A stopped sink connector's group is Empty, and the connector continues from its offsets.

    One with a group id of its own is known by the client ids of its tasks.
    """
    if policy.match.lifts(Unprotect.CONNECT, group.id):
        return None
    if group.protocol_type == "connect" or group.id.startswith("connect-"):
        return Refusal(
            reasons.CONNECT, "Kafka Connect worker or sink connector (match.unprotect: [Connect] to include)"
        )
    seen = _seen(evidence, Program.CONNECT)
    if seen is not None:
        return Refusal(reasons.CONNECT, f"Kafka Connect used it: {seen} (match.unprotect: [Connect] to include)")
    return None


def streams(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """A Streams application's offsets belong to the state in its changelog topics; deleting one of them loses data.

    One without state is known by its client ids or its assignor.
    """
    if policy.match.lifts(Unprotect.STREAMS, group.id):
        return None
    applications = evidence.protections.streams
    if group.type is not GroupType.STREAMS and applications is None:
        return Refusal(
            reasons.STREAMS, "the list of topics could not be read: any group may be a Kafka Streams application"
        )
    if group.type is GroupType.STREAMS or (applications is not None and group.id in applications):
        return Refusal(reasons.STREAMS, "Kafka Streams application (match.unprotect: [Streams] to include)")
    seen = _seen(evidence, Program.STREAMS)
    if seen is not None:
        return Refusal(reasons.STREAMS, f"Kafka Streams used it: {seen} (match.unprotect: [Streams] to include)")
    return None


def streams_state(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """An application whose state still exists may restart with it, and would begin at other records than it expects."""
    if policy.match.lifts(Unprotect.STREAMS_STATE, group.id):
        return None
    applications = evidence.protections.streams
    if applications is None:
        return Refusal(
            reasons.STREAMS_STATE, "the list of topics could not be read: any group may have a Streams state"
        )
    if group.id in applications:
        return Refusal(
            reasons.STREAMS_STATE,
            "its changelog or repartition topics exist: delete them first (match.unprotect: [StreamsState] to include)",
        )
    return None


def streams_lost(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """Every deletion must be restorable; but some brokers fail on a restored Streams group (KAFKA-20254)."""
    old = evidence.protections.without_streams
    if group.type is not GroupType.STREAMS or not old:
        return None
    if isinstance(old, Fault):
        return Refusal(
            reasons.NOT_RESTORABLE,
            "the versions of the brokers could not be read: some may not be able to load it after a restore",
        )
    return Refusal(
        reasons.NOT_RESTORABLE,
        f"it could not be restored: brokers of Kafka {', '.join(old)} may fail to load __consumer_offsets "
        "once a restored application has joined again (KAFKA-20254): upgrade all brokers to 4.3 first",
    )


def mirror_maker(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """MirrorMaker 2 writes only to Empty or absent groups: they appear abandoned, but a failover needs them."""
    if policy.match.lifts(Unprotect.MIRROR_MAKER, group.id):
        return None
    mirrored = evidence.protections.mirrored
    if mirrored is None:
        return Refusal(
            reasons.MIRROR_MAKER,
            "a MirrorMaker 2 target whose checkpoints could not be read to their end: any group may be mirrored",
        )
    if group.id in mirrored:
        return Refusal(reasons.MIRROR_MAKER, "mirrored by MirrorMaker 2 (match.unprotect: [MirrorMaker] to include)")
    return None


def share(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | None:
    """A backup has a share group's start offsets, but not which later records it has finished (KIP-932)."""
    if group.type is GroupType.SHARE and not policy.match.lifts(Unprotect.SHARE, group.id):
        return Refusal(reasons.SHARE, "share group (match.unprotect: [Share] to include)")
    return None


def _seen(evidence: Evidence, program: Program) -> str | None:
    """The client that shows that this program used the group: by the operator's scans, or by the tables."""
    used_by = evidence.used_by
    if used_by is not None and used_by.program is program:
        return f"{printable(used_by.client_id)!r} was a member at {timestamp(used_by.at)}"
    last = evidence.activity.last_client if isinstance(evidence.activity, Activity) else None
    found = None if last is None else program_of([last.client_id])
    return None if found is None or found.program is not program else f"its last known member is {last}"
