"""How far a group is behind: its committed offsets held against where their partitions begin and end. Pure.

What retention removed is no lag: nobody can read it any more. A partition of a deleted topic has no end, so it counts
neither here nor there. Offsets are counted, as Kafka's own tools do, and marks of transactions have one, too: whether a
record waits that somebody could read is another question (`waiting`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from group_hygiene.model import NO_SUCH_TOPIC, TOPIC_DENIED, Bounds, Evidence, Fault, Offsets, Partition


@dataclass(frozen=True, slots=True)
class Standing:
    """How a group stands, as far as its partitions are known.

    unread: records that it may still read, of all partitions together. outside: how many of its committed offsets their
    partition does not have any more or not yet, so that a consumer that comes back is reset (auto.offset.reset).
    fault: why something is not known; then both numbers may be too low. None = they are exact.
    """

    unread: int
    outside: int
    fault: Fault | None = None


def unread(bounds: Bounds, offset: int) -> int:
    """Records from a committed offset on that are still there."""
    return max(0, bounds.end - max(offset, bounds.start))


def is_outside(bounds: Bounds, offset: int) -> bool:
    """Whether a fetch from there is out of range; the end itself is not, as all is read there."""
    return not bounds.start <= offset <= bounds.end


def standing(offsets: Offsets, bounds: Mapping[Partition, Bounds | Fault]) -> Standing | None:
    """What the bounds say of committed offsets; None = those of some partition were not read."""
    waiting, outside, first = 0, 0, None
    for place, commit in offsets.items():
        known = bounds.get(place)
        if known is None:
            return None
        if isinstance(known, Fault):
            first = first or (None if known.code == NO_SUCH_TOPIC else known)
            continue
        waiting += unread(known, commit.offset)
        outside += is_outside(known, commit.offset)
    return Standing(waiting, outside, first)


def standing_of(evidence: Evidence) -> Standing | None:
    """`standing` of what was read of one group; None = its offsets or the bounds were not read."""
    offsets = evidence.offsets
    if offsets is None or isinstance(offsets, Fault) or evidence.bounds is None:
        return None
    return standing(offsets, evidence.bounds)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Whether committed records wait for a group in each topic for which it committed, as far as the topics exist.

    silent: topics where none waits. fault: why that is not known of some topic. is_read: False = some records that
    decide were not read yet.
    """

    silent: frozenset[str]
    fault: Fault | None = None
    is_read: bool = True


def waiting(evidence: Evidence, *, trust_ends: bool = False) -> Waiting:
    """`Waiting` of what was read of one group. One partition with a record is enough for its topic.

    trust_ends: in a topic that the operator may not read, offsets up to the end count as records.
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
