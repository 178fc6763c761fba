"""Finds out whether a partition holds a committed record from some offset on, by a search backwards from its end.

The end alone does not show it: transaction markers and aborted records (KIP-98) have offsets, too. The search reads
only the headers of batches. Reads only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from group_hygiene.kafka.client import Client, Deadline, Results, retrying
from group_hygiene.kafka.cluster import leaders_of
from group_hygiene.kafka.partition import BatchHeaders, fetch_batch_headers
from group_hygiene.model.groups import Fault, Partition

# How much further back each step begins: most logs end in a record, or in the marker after one.
_FACTOR = 10
# Answers of 64 KB, or one larger batch, per search: aborted transactions can fill a log of any length.
_ANSWERS_MAX = 1_000


class SearchRange(NamedTuple):
    """What to search in a partition that ends at `end`: records from `first` on; one at `enough` or later suffices."""

    first: int
    enough: int
    end: int


class LastRecord(NamedTuple):
    """The result of a search in a partition that ended at `end`.

    offset: a committed record is at this offset or later; -1 = none is known. clear: from this offset to the end there
    is no record that a read_committed consumer could read.
    """

    offset: int
    clear: int
    end: int

    def has_record(self, first: int, end: int) -> bool | None:
        """Whether a record waits from `first` on in the partition, which ends at `end` now; None = not known."""
        if self.offset >= first:
            return True
        return False if self.end == end and self.clear <= first else None

    def merged(self, other: LastRecord) -> LastRecord:
        """This result merged with that of a later search."""
        clear = min(self.clear, other.clear) if self.end == other.end else other.clear
        return LastRecord(max(self.offset, other.offset), clear, other.end)


def last_records(
    client: Client, sought: Mapping[Partition, SearchRange], deadline: Deadline
) -> Results[Partition, LastRecord]:
    """Search all partitions backwards, concurrently: a log that ends in a record takes one request.

    TOPIC_AUTHORIZATION_FAILED is the Fault of a topic that the user may not READ, TOO_MANY_BATCHES that of a search
    that found no record in the headers that one search may read.
    """

    def attempt(left: list[Partition]) -> dict[Partition, LastRecord | Fault]:
        leaders = leaders_of(client, left, deadline)
        results: dict[Partition, LastRecord | Fault] = {**leaders.faults}
        led = leaders.ok
        searches = {place: _Search(place, sought[place]) for place in led}
        while searches:
            positions = {place: search.position for place, search in searches.items()}
            for place, answer in fetch_batch_headers(client, positions, led, deadline).items():
                found = answer if isinstance(answer, Fault) else searches[place].take(answer)
                if found is not None:
                    results[place] = found
                    del searches[place]
        return results

    return retrying(sorted(sought), attempt, deadline)


@dataclass
class _Search:
    """The search in one partition. Reads sections of the log, from `began` to `until`, each before the previous one."""

    place: Partition
    sought: SearchRange
    last: int = -1
    back: int = 1
    answers: int = 0

    def __post_init__(self) -> None:
        self.until = self.sought.end
        self.began = self.position = max(self.sought.first, self.sought.end - self.back)

    def take(self, answer: BatchHeaders) -> LastRecord | Fault | None:
        """Process an answer: the result of the search, or None = continue from `position`."""
        first, enough, end = self.sought
        self.answers += 1
        if answer.end < end:
            # A new leader hides the end until its followers have it.
            return Fault("OFFSET_OUT_OF_RANGE", f"{self.place} ends at {answer.end}", retriable=True)
        if answer.last is not None:
            self.last = max(self.last, answer.last)
        if self.last >= enough:
            return LastRecord(self.last, end, end)
        if self.answers >= _ANSWERS_MAX:
            message = (
                f"{self.place}: no committed record in the headers of its last batches, by {self.answers} requests"
            )
            return Fault("TOO_MANY_BATCHES", message)
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
