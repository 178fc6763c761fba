"""Reads the offsets log for records of groups from a given offset on, including open and aborted transactions.

Reads only. Does not decide which records matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.offsets_log import BrokenRecord, Commit, GroupState, decode
from group_hygiene.kafka.partition import Record, fetch_all
from group_hygiene.model.groups import Fault, Partition

# Partitions per round: this many answers are in memory at once.
_AT_ONCE = 16


class Place(NamedTuple):
    """A partition of the log, and the first offset to read there."""

    partition: int
    offset: int


class Found(NamedTuple):
    """The first record of a group at or after its place."""

    place: Place
    record: Commit | GroupState


class Tail:
    """Reads the log of some groups from their places on; each `read_on` continues to the current end of the log."""

    def __init__(
        self,
        client: Client,
        groups: Mapping[str, Place],
        leaders: Mapping[int, int],
        matters: Callable[[Commit | GroupState], bool] = lambda record: True,
    ) -> None:
        """leaders: partition of the log -> the broker that leads it. matters: which records of the groups count."""
        self._client = client
        self._matters = matters
        self._groups = groups
        self._leaders = {
            Partition(OFFSETS_TOPIC, place.partition): leaders.get(place.partition, -1) for place in groups.values()
        }
        self._positions: dict[Partition, int] = {}
        for index, offset in groups.values():
            partition = Partition(OFFSETS_TOPIC, index)
            self._positions[partition] = min(offset, self._positions.get(partition, offset))
        self._found: dict[str, Found] = {}
        self._faults: dict[Partition, Fault] = {}

    def read_on(self, deadline: Deadline) -> dict[str, Found | Fault | None]:
        """The result for each group so far: its first record, None = there is none, or the Fault.

        OFFSET_OUT_OF_RANGE: the log begins after the place, or ends before it. CORRUPT_MESSAGE: some record of the
        partition, of any group, can't be read. Also a Fault: the deadline passed. A Fault is permanent.
        """
        ends: dict[Partition, int] = {}
        left = self._unknown()
        while left:
            answers = fetch_all(
                self._client, {place: self._positions[place] for place in left[:_AT_ONCE]}, self._leaders, deadline
            )
            for place, read in answers.items():
                answer = read
                if not isinstance(answer, Fault) and answer.end < self._positions[place]:
                    # A new leader hides the end until its followers have it.
                    answer = Fault("OFFSET_OUT_OF_RANGE", f"{place} ends at {answer.end}", retriable=True)
                if isinstance(answer, Fault):
                    self._faults[place] = answer
                    continue
                self._take(place, answer.records)
                ends.setdefault(place, answer.end)
                if answer.position == self._positions[place]:
                    # Compaction has removed all records up to the end.
                    ends[place] = answer.position
                self._positions[place] = answer.position
            left = [place for place in self._unknown() if place not in ends or self._positions[place] < ends[place]]
        return {name: self._known(name, place) for name, place in self._groups.items()}

    def reached(self, partition: int) -> int:
        """The offset up to which a partition of the log was read."""
        return self._positions[Partition(OFFSETS_TOPIC, partition)]

    def _unknown(self) -> list[Partition]:
        """Partitions with a group that has no result yet."""
        waiting = {place.partition for name, place in self._groups.items() if name not in self._found}
        return [place for place in self._positions if place.partition in waiting and place not in self._faults]

    def _take(self, place: Partition, records: Iterable[Record]) -> None:
        for row in records:
            try:
                record = decode(row.key, row.value)
            except BrokenRecord as broken:
                self._faults[place] = Fault("CORRUPT_MESSAGE", f"{place} at offset {row.offset}: {broken}")
                return
            since = self._groups.get(record.group)
            if since is None or since.partition != place.partition or row.offset < since.offset:
                continue
            if self._matters(record):
                self._found.setdefault(record.group, Found(Place(place.partition, row.offset), record))

    def _known(self, name: str, place: Place) -> Found | Fault | None:
        return self._found.get(name) or self._faults.get(Partition(OFFSETS_TOPIC, place.partition))
