"""A group's lag, by its committed offsets and the bounds of their partitions, and the checks of it. Pure.

Records that retention removed are no lag: no consumer can read them. A partition of a deleted topic has no end, so it
is not counted. Lag counts offsets, as Kafka's own tools do, including those of transaction markers; `waiting` finds
whether there are records to read.

The checks come last: the bounds of partitions are read only for groups that pass all other checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from msgspec import structs

from group_hygiene.engine.checks.used import commits_outside
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Evidence, Need, Verdict
from group_hygiene.model.groups import (
    NO_SUCH_TOPIC,
    TOPIC_DENIED,
    Bounds,
    Fault,
    Group,
    GroupType,
    Offsets,
    Partition,
    is_internal,
)
from group_hygiene.model.naming import truncated_list
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.policy import Action, DeletedTopics, Policy, Unprotect


@dataclass(frozen=True, slots=True)
class LagSummary:
    """The lag of a group, as far as its partitions are known.

    unread: records that it may still read, in all partitions together. outside: the number of committed offsets that
    are out of range, so that a returning consumer is reset (auto.offset.reset). fault: why bounds are not known, so
    that both numbers may be too low; None = they are exact.
    """

    unread: int
    outside: int
    fault: Fault | None = None


def unread(bounds: Bounds, offset: int) -> int:
    """The number of records from a committed offset on that still exist."""
    return max(0, bounds.end - max(offset, bounds.start))


def lag_summary(offsets: Offsets, bounds: Mapping[Partition, Bounds | Fault]) -> LagSummary | None:
    """The lag by these bounds; None = those of some partition were not read."""
    waiting, outside, first = 0, 0, None
    for place, commit in offsets.items():
        known = bounds.get(place)
        if known is None:
            return None
        if isinstance(known, Fault):
            first = first or (None if known.code == NO_SUCH_TOPIC else known)
            continue
        start, end = known
        # A fetch from the end itself is in range.
        if commit.offset != end or start > end:
            waiting += unread(known, commit.offset)
            outside += not start <= commit.offset <= end
    return LagSummary(waiting, outside, first)


def lag_summary_of(evidence: Evidence) -> LagSummary | None:
    """`lag_summary` of the evidence about one group; None = its offsets or the bounds were not read."""
    offsets = evidence.offsets
    if offsets is None or isinstance(offsets, Fault) or evidence.bounds is None:
        return None
    return lag_summary(offsets, evidence.bounds)


def skipped_by_latest(verdicts: Iterable[Verdict]) -> str:
    """What consumers with `auto.offset.reset=latest` miss once these groups are deleted, in words; "" = nothing known.

    They begin at the end, without an error, as soon as they start without committed offsets.
    """
    found = [lag_summary_of(verdict.evidence) for verdict in verdicts if not verdict.topics]
    records = sum(lag.unread for lag in found if lag is not None)
    if not records:
        return ""
    return (
        f"{records:,} records wait for them: after the deletion, consumers with auto.offset.reset=latest skip these, "
        "unless the group is restored before they start"
    )


@dataclass(frozen=True, slots=True)
class Waiting:
    """Whether a group has unread committed records, in each existing topic for which it committed.

    silent: topics without any. fault: why that is not known of some topic. is_read: False = records that decide were
    not read yet.
    """

    silent: frozenset[str]
    fault: Fault | None = None
    is_read: bool = True


def waiting(evidence: Evidence, *, trust_ends: bool = False) -> Waiting:
    """`Waiting` by the evidence about one group. One partition with a record is enough for its topic.

    trust_ends: in a topic that the operator may not READ, offsets up to the end count as records.
    """
    found: dict[str, bool] = {}
    faults: dict[str, Fault] = {}
    unread_topics: set[str] = set()
    for place, commit in (evidence.offsets if isinstance(evidence.offsets, Mapping) else {}).items():
        known = (evidence.bounds or {}).get(place)
        if isinstance(known, Fault):
            if known.code != NO_SUCH_TOPIC:
                faults.setdefault(place.topic, known)
            continue
        found.setdefault(place.topic, False)
        if known is None or not unread(known, commit.offset):
            continue
        last = (evidence.records or {}).get(place)
        if last is None:
            unread_topics.add(place.topic)
        elif not isinstance(last, Fault):
            found[place.topic] |= last >= max(commit.offset, known.start)
        elif last.code == TOPIC_DENIED and trust_ends:
            found[place.topic] = True
        else:
            faults.setdefault(place.topic, last)
    waits = {topic for topic, has_records in found.items() if has_records}
    silent = found.keys() - waits - faults.keys() - unread_topics
    fault = next((faults[topic] for topic in sorted(faults.keys() - waits)), None)
    return Waiting(frozenset(silent), fault, unread_topics <= waits)


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
        evidence = structs.replace(evidence, offsets=from_outside or offsets)
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
