"""Checks of lag: whether a group has unread records, how many, and whether its offsets are in range.

They come last: the bounds of partitions are read only for groups that pass all other checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from group_hygiene.decide.checks.used import commits_outside
from group_hygiene.decide.lag import LagSummary, lag_summary_of, waiting
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Evidence, Need
from group_hygiene.model.groups import TOPIC_DENIED, Fault, Group, GroupType, is_internal
from group_hygiene.model.naming import truncated_list
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.policy import Action, DeletedTopics, Policy, Unprotect


def asks_records(policy: Policy, group: Group, evidence: Evidence) -> bool:
    """Whether `caught_up` needs unread records: whether a consumer that has read everything would look the same."""
    when = policy.when
    if policy.action is Action.DELETE_OFFSETS:
        return False
    outside = when.idle_for is not None and commits_outside(evidence)
    # Consumers of a share group are members, on a silent topic too: Empty means that there are none.
    if group.type is GroupType.SHARE:
        return False
    # Offsets of deleted topics only: no consumer can be reading them, and there is no end to compare with.
    if when.deleted_topics is DeletedTopics.ALL or (when.unchanged_for is None and not outside):
        return False
    # `unchanged` decides about groups without offsets.
    return bool(evidence.offsets) or outside


def caught_up(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | Need | None:
    """A live consumer of a silent topic commits once and then never (librdkafka): only unread records distinguish it.

    Checked for each topic: a group may have abandoned one topic and still read another one. An application's own
    internal topics don't count: only the application writes them, and reads them to the end before it stops.
    """
    if not asks_records(policy, group, evidence):
        return None
    offsets = evidence.offsets
    if isinstance(offsets, Mapping) and group.id in (evidence.protections.streams or ()):
        from_outside = {place: each for place, each in offsets.items() if not is_internal(place.topic, group.id)}
        evidence = replace(evidence, offsets=from_outside or offsets)
    return _fewer_unread(evidence, 1) or _nothing_to_read(policy, evidence)


def lag(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | Need | None:
    """`lag` selects groups with at least that many unread records: one without any may only have a silent topic."""
    wanted = policy.when.lag_at_least
    return None if wanted is None else _fewer_unread(evidence, wanted)


def in_range(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Refusal | Need | None:
    """`committedOffsets: OutOfRange` selects groups whose records retention removed, or whose topic was recreated."""
    if not policy.when.out_of_range:
        return None
    found = _lag_summary(evidence)
    if not isinstance(found, LagSummary):
        return found
    if found.outside:
        return None
    if found.fault is not None:
        return _unknown("whether its offsets are in range", found.fault)
    return Refusal(reasons.IN_RANGE, "all offsets that it committed are in range, as far as their partitions exist")


def _fewer_unread(evidence: Evidence, wanted: int) -> Refusal | Need | None:
    """A Refusal if the group has fewer unread records than `wanted`; None = enough of them are known."""
    found = _lag_summary(evidence)
    if not isinstance(found, LagSummary):
        return found
    if found.unread >= wanted:
        return None
    if found.fault is not None:
        return _unknown("how many records wait for it" if wanted > 1 else "whether records wait for it", found.fault)
    if found.unread:
        return Refusal(reasons.LAG_BELOW, f"{found.unread} records wait for it, of {wanted} or more that are asked for")
    if found.outside:
        return Refusal(reasons.CAUGHT_UP, f"no records wait for it, as {found.outside} of its offsets are out of range")
    return Refusal(reasons.CAUGHT_UP, "no records wait for it: a consumer of a silent topic looks just like this")


def _nothing_to_read(policy: Policy, evidence: Evidence) -> Refusal | Need | None:
    """Ends of partitions also count transaction markers and aborted records, which no consumer reads."""
    found = waiting(evidence, trust_ends=Unprotect.UNREADABLE_TOPICS in policy.match.unprotect)
    if found.silent:
        topics = truncated_list(sorted(found.silent), 3)
        return Refusal(
            reasons.CAUGHT_UP,
            f"no committed records wait for it in {topics}: a consumer of a silent topic looks just like this",
        )
    if not found.is_read:
        return Need.RECORDS
    if found.fault is None:
        return None
    refusal = _unknown("whether it has unread records", found.fault)
    if found.fault.code != TOPIC_DENIED:
        return refusal
    return Refusal(
        refusal.reason, f"{refusal.message} (match.unprotect: [UnreadableTopics] to count all offsets as records)"
    )


def _lag_summary(evidence: Evidence) -> LagSummary | Refusal | Need:
    if not evidence.offsets:
        return Refusal(reasons.NO_OFFSETS, "has no committed offsets, so unread records are not known")
    return lag_summary_of(evidence) or Need.BOUNDS


def _unknown(what: str, fault: Fault) -> Refusal:
    return Refusal(reasons.LAG_UNKNOWN, f"{what} could not be read: {fault}")
