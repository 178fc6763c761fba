"""Whether anything that a consumer could read waits for groups: asked of as few partitions as will tell. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.last_records import LastRecord, Sought, last_records
from group_hygiene.lag import unread
from group_hygiene.model import TOPIC_DENIED, Bounds, Fault, Offsets, Partition
from group_hygiene.reconcile.context import Context

# One record is enough, and most partitions have it: one of a topic is asked first, and so many more each time.
_FACTOR = 4


def read_records(
    context: Context,
    committed: Iterable[Offsets],
    bounds: Mapping[Partition, Bounds | Fault],
    deadline: Deadline,
    anew: bool = False,
) -> dict[Partition, int | Fault]:
    """Of the partitions where records seem to wait: see `Evidence.records`. One record decides for a group's topic.

    bounds: read after the offsets. anew: what an earlier scan found is not good enough.
    """
    known: dict[Partition, LastRecord | Fault] = {} if anew else {**_remembered(context, bounds)}
    left = [places for offsets in committed for places in _places_by_topic(offsets, bounds)]
    many = 1
    while True:
        sought: dict[Partition, Sought] = {}
        left = [places for places in left if not any(_enough(known.get(place), *at) for place, at in places.items())]
        for places in left:
            open_places = [place for place, at in places.items() if not _told(known.get(place), *at)]
            for place in open_places[:many]:
                first, end = places[place]
                other = sought.get(place, Sought(first, first, end))
                sought[place] = Sought(min(first, other.first), max(first, other.enough), end)
        if not sought:
            break
        for place, found in last_records(context.client, sought, deadline).items():
            before = known.get(place)
            if isinstance(before, LastRecord) and isinstance(found, LastRecord):
                known[place] = before.added(found)
            else:
                known[place] = found
        many *= _FACTOR
    context.memory.last_records.update(
        {place: found for place, found in known.items() if isinstance(found, LastRecord)}
    )
    return {place: found if isinstance(found, Fault) else found.offset for place, found in known.items()}


def _remembered(context: Context, bounds: Mapping[Partition, Bounds | Fault]) -> dict[Partition, LastRecord]:
    """What is known of these partitions; not of a log that lost it, or is shorter than it was: it was made anew."""
    memory = context.memory.last_records
    for place, now in bounds.items():
        before = memory.get(place)
        if before is None or isinstance(now, Fault):
            continue
        if now.end < before.end or (before.offset >= 0 and now.start > before.offset):
            del memory[place]
    return {place: memory[place] for place in bounds if place in memory}


def _places_by_topic(
    offsets: Offsets, bounds: Mapping[Partition, Bounds | Fault]
) -> list[dict[Partition, tuple[int, int]]]:
    """For each topic where records seem to wait, its partitions, most records first -> from which offset on, and to
    which end."""
    rows = [
        (place, max(commit.offset, known.start), known.end)
        for place, commit in offsets.items()
        if isinstance(known := bounds.get(place), Bounds) and unread(known, commit.offset)
    ]
    rows.sort(key=lambda row: (row[1] - row[2], row[0]))
    topics: dict[str, dict[Partition, tuple[int, int]]] = {}
    for place, first, end in rows:
        topics.setdefault(place.topic, {})[place] = (first, end)
    return list(topics.values())


def _told(known: LastRecord | Fault | None, first: int, end: int) -> bool:
    return isinstance(known, Fault) or (known is not None and known.tells(first, end) is not None)


def _enough(known: LastRecord | Fault | None, first: int, end: int) -> bool:
    """Where one partition may not be read, none of its topic may."""
    if isinstance(known, Fault):
        return known.code == TOPIC_DENIED
    return known is not None and known.tells(first, end) is True
