"""Whether a partition holds a committed record from some offset on, found from its end backwards.

The end alone does not tell: marks of transactions and records that were taken back (KIP-98) have offsets, too. Only the
heads of batches are looked at. Reads only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from group_hygiene.kafka.client import Client, Deadline, retrying
from group_hygiene.kafka.offsets import leaders_of
from group_hygiene.kafka.partition import Heads, fetch_heads
from group_hygiene.model import Fault, Partition

# How much further back each look begins: most logs end in a record, or in the mark behind one.
_FACTOR = 10


class Sought(NamedTuple):
    """What to look for in a partition that ends at `end`: records from `first` on; one at `enough` or later will do."""

    first: int
    enough: int
    end: int


class LastRecord(NamedTuple):
    """What is known of a partition that ended at `end`.

    offset: there or later is a committed record; -1 = of none is known. clear: from there to the end is none that a
    consumer of what is committed could read.
    """

    offset: int
    clear: int
    end: int

    def tells(self, first: int, end: int) -> bool | None:
        """Whether a record waits from `first` on in the partition, which ends at `end` now; None = not known."""
        if self.offset >= first:
            return True
        return False if self.end == end and self.clear <= first else None

    def added(self, other: LastRecord) -> LastRecord:
        """With what a later search found."""
        clear = min(self.clear, other.clear) if self.end == other.end else other.clear
        return LastRecord(max(self.offset, other.offset), clear, other.end)


def last_records(
    client: Client, sought: Mapping[Partition, Sought], deadline: Deadline
) -> dict[Partition, LastRecord | Fault]:
    """Search each partition backwards, all side by side: one answer each where a log ends in a record.

    TOPIC_AUTHORIZATION_FAILED is the Fault of a topic that we may not READ.
    """

    def attempt(left: list[Partition]) -> dict[Partition, LastRecord | Fault]:
        results: dict[Partition, LastRecord | Fault] = {}
        leaders: dict[Partition, int] = {}
        for place, leader in leaders_of(client, left, deadline).items():
            if isinstance(leader, Fault):
                results[place] = leader
            else:
                leaders[place] = leader
        searches = {place: _Search(place, sought[place]) for place in leaders}
        while searches:
            positions = {place: search.position for place, search in searches.items()}
            for place, answer in fetch_heads(client, positions, leaders, deadline).items():
                found = answer if isinstance(answer, Fault) else searches[place].take(answer)
                if found is not None:
                    results[place] = found
                    del searches[place]
        return results

    return retrying(sorted(sought), attempt, deadline)


@dataclass
class _Search:
    """One partition's search: it reads stretches of the log, from `began` to `until`, each before the last one."""

    place: Partition
    sought: Sought
    last: int = -1
    back: int = 1

    def __post_init__(self) -> None:
        self.until = self.sought.end
        self.began = self.position = max(self.sought.first, self.sought.end - self.back)

    def take(self, answer: Heads) -> LastRecord | Fault | None:
        """Take an answer in: what is known at last, or None = ask on from `position`."""
        first, enough, end = self.sought
        if answer.end < end:
            # A leader that took over a moment ago hides the end until its followers have it.
            return Fault("OFFSET_OUT_OF_RANGE", f"{self.place} ends at {answer.end}", retriable=True)
        if answer.last is not None:
            self.last = max(self.last, answer.last)
        if self.last >= enough:
            return LastRecord(self.last, end, end)
        if self.position < answer.position < min(self.until, answer.stable):
            self.position = answer.position
            return None
        if self.last >= 0:
            return LastRecord(self.last, self.last + 1, end)
        if self.began <= first:
            return LastRecord(-1, first, end)
        self.back *= _FACTOR
        self.until = self.began
        self.began = self.position = max(first, end - self.back)
        return None
