"""Checks of what lies after the committed offsets: whether records wait, how many, and whether the offsets are there.

They come last: where partitions begin and end is asked only of groups for which everything else holds.
"""

from __future__ import annotations

from datetime import datetime

from group_hygiene import reasons
from group_hygiene.checks.used import commits_outside
from group_hygiene.lag import Standing, standing_of, waiting
from group_hygiene.model import TOPIC_DENIED, Evidence, Fault, Group, GroupType, Keep
from group_hygiene.naming import some_of
from group_hygiene.policy import Action, Policy, Topics, Unprotect


def asks_records(policy: Policy, group: Group, evidence: Evidence) -> bool:
    """Whether `caught_up` asks about such a group: whether anybody who reads all there is would look like it."""
    when = policy.when
    if policy.action is Action.DELETE_OFFSETS:
        return False
    outside = when.idle_for is not None and commits_outside(evidence)
    # Who consumes in a share group is a member of it, on a silent topic too: Empty says that nobody does.
    if group.type is GroupType.SHARE:
        return False
    # Offsets of deleted topics only: no consumer can be reading them, and there is no end to compare with.
    if when.topics is Topics.ALL_DELETED or (when.unchanged_for is None and not outside):
        return False
    # Whether nothing committed may match, `unchanged` has said.
    return bool(evidence.offsets) or outside


def caught_up(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """A live consumer of a silent topic commits once and then never (librdkafka): only unread records tell.

    Of each topic: a group may have left one topic behind and still read another one.
    """
    if not asks_records(policy, group, evidence):
        return None
    return _fewer_unread(evidence, 1) or _nothing_to_read(policy, evidence)


def lag(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """`lag` looks for groups that left so many records unread: who reads all there is may just have a silent topic."""
    wanted = policy.when.lag_at_least
    return None if wanted is None else _fewer_unread(evidence, wanted)


def in_range(policy: Policy, group: Group, evidence: Evidence, now: datetime) -> Keep | None:
    """`outOfRange` looks for groups that retention overtook, or whose topic is another one now: they would be reset."""
    if not policy.when.out_of_range:
        return None
    found = _standing(evidence)
    if isinstance(found, Keep):
        return found
    if found.outside:
        return None
    if found.fault is not None:
        return _unknown("whether its offsets are in range", found.fault)
    return Keep(reasons.IN_RANGE, "its partitions have every offset that it committed, as far as they exist")


def _fewer_unread(evidence: Evidence, wanted: int) -> Keep | None:
    """Why the group stays where fewer records than wanted wait for it; what is enough without a fault is enough."""
    found = _standing(evidence)
    if isinstance(found, Keep):
        return found
    if found.unread >= wanted:
        return None
    if found.fault is not None:
        return _unknown("how many records wait for it" if wanted > 1 else "whether records wait for it", found.fault)
    if found.unread:
        return Keep(reasons.LAG_BELOW, f"{found.unread} records wait for it, of {wanted} or more that are asked for")
    if found.outside:
        return Keep(reasons.CAUGHT_UP, f"no records wait for it, as {found.outside} of its offsets are out of range")
    return Keep(reasons.CAUGHT_UP, "no records wait for it: a consumer of a silent topic looks just like this")


def _nothing_to_read(policy: Policy, evidence: Evidence) -> Keep | None:
    """Ends of partitions count marks of transactions too, and records that were taken back: nobody reads these."""
    found = waiting(evidence, trust_ends=Unprotect.UNREADABLE_TOPICS in policy.match.unprotect)
    if found.silent:
        return Keep(
            reasons.CAUGHT_UP,
            f"no committed records wait for it in {some_of(sorted(found.silent), 3)}: a consumer of a silent topic "
            "looks just like this",
        )
    if not found.is_read:
        return Keep(reasons.RECORDS_NOT_READ, "whether what waits for it are records was not read")
    if found.fault is None:
        return None
    keep = _unknown("whether what waits for it are records", found.fault)
    if found.fault.code != TOPIC_DENIED:
        return keep
    return Keep(keep.reason, f"{keep.message} (match.unprotect: [UnreadableTopics] to count all offsets as records)")


def _standing(evidence: Evidence) -> Standing | Keep:
    if not evidence.offsets:
        return Keep(reasons.NO_OFFSETS, "has no committed offsets, so nothing tells whether records wait for it")
    return standing_of(evidence) or Keep(reasons.LAG_NOT_READ, "where its partitions begin and end was not read")


def _unknown(what: str, fault: Fault) -> Keep:
    return Keep(reasons.LAG_UNKNOWN, f"{what} could not be read: {fault}")
