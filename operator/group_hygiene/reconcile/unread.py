"""Finds out whether groups have unread records, by requests for as few partitions as possible. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from group_hygiene.decide.lag import unread
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.offsets import LastRecord, SearchRange, last_records
from group_hygiene.model.groups import TOPIC_DENIED, Bounds, Fault, Offsets, Partition
from group_hygiene.reconcile.context import Context, Facts, readable

# One record is enough, and most partitions have one: the search begins with one partition of a topic, and multiplies
# the number each round.
_FACTOR = 4


def read_records(
    context: Context, groups: Iterable[str], facts: Facts, deadline: Deadline, reread: bool = False
) -> None:
    """Read `facts.records` for partitions that appear to have unread records. One record decides for a group's topic.

    facts: with bounds that were read after the offsets. reread: don't use results of earlier scans.
    """
    bounds = facts.bounds
    known: dict[Partition, LastRecord | Fault] = {} if reread else {**_remembered(context, bounds)}
    committed = [readable(facts.offsets.get(name)) for name in groups]
    left = [places for offsets in committed for places in _places_by_topic(offsets, bounds)]
    many = 1
    while True:
        sought: dict[Partition, SearchRange] = {}
        left = [places for places in left if not any(_enough(known.get(place), *at) for place, at in places.items())]
        for places in left:
            open_places = [place for place, at in places.items() if not _is_known(known.get(place), *at)]
            for place in open_places[:many]:
                first, end = places[place]
                other = sought.get(place, SearchRange(first, first, end))
                sought[place] = SearchRange(min(first, other.first), max(first, other.enough), end)
        if not sought:
            break
        for place, found in last_records(context.client, sought, deadline).items():
            before = known.get(place)
            if isinstance(before, LastRecord) and isinstance(found, LastRecord):
                known[place] = before.merged(found)
            else:
                known[place] = found
        many *= _FACTOR
    context.memory.last_records.update(
        {place: found for place, found in known.items() if isinstance(found, LastRecord)}
    )
    facts.records.update({place: found if isinstance(found, Fault) else found.offset for place, found in known.items()})


def _remembered(context: Context, bounds: Mapping[Partition, Bounds | Fault]) -> dict[Partition, LastRecord]:
    """Results of earlier scans, except for a log that lost the record or is shorter: it was recreated."""
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
    """Per topic with apparently unread records: partition -> (first unread offset, end), most records first."""
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


def _is_known(known: LastRecord | Fault | None, first: int, end: int) -> bool:
    return isinstance(known, Fault) or (known is not None and known.has_record(first, end) is not None)


def _enough(known: LastRecord | Fault | None, first: int, end: int) -> bool:
    """If the user may not READ one partition, it may not READ any of the topic."""
    if isinstance(known, Fault):
        return known.code == TOPIC_DENIED
    return known is not None and known.has_record(first, end) is True
