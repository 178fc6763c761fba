"""How far a group is behind: its committed offsets held against where their partitions begin and end. Pure.

What retention removed is no lag: nobody can read it any more. A partition of a deleted topic has no end, so it counts
neither here nor there. Offsets are counted, as Kafka's own tools do, and marks of transactions have one, too: whether a
record waits that somebody could read is another question (`waits`).
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


def waits(evidence: Evidence) -> bool | Fault | None:
    """Whether a committed record waits in some partition; None = not read, a Fault = why it is not known.

    Of a topic that we may not read, what seems to wait has to do.
    """
    missing, first = False, None
    for place, commit in (evidence.offsets if isinstance(evidence.offsets, Mapping) else {}).items():
        known = (evidence.bounds or {}).get(place)
        if isinstance(known, Fault):
            first = first or (None if known.code == NO_SUCH_TOPIC else known)
            continue
        if known is None or not unread(known, commit.offset):
            continue
        last = (evidence.records or {}).get(place)
        if isinstance(last, Fault):
            if last.code == TOPIC_DENIED:
                return True
            first = first or last
        elif last is None:
            missing = True
        elif last >= max(commit.offset, known.start):
            return True
    return None if missing else first or False
