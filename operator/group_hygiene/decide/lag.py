"""Computes a group's lag: its committed offsets compared with the bounds of their partitions. Pure.

Records that retention removed are no lag: no consumer can read them. A partition of a deleted topic has no end, so it
is not counted. Lag counts offsets, as Kafka's own tools do, including those of transaction markers; `waiting` finds
whether there are records to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from group_hygiene.model.evidence import Evidence, Verdict
from group_hygiene.model.groups import NO_SUCH_TOPIC, TOPIC_DENIED, Bounds, Fault, Offsets, Partition


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
        waiting += unread(known, commit.offset)
        # A fetch from the end itself is in range.
        outside += not known.start <= commit.offset <= known.end
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
