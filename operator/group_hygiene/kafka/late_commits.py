"""Finds in the offsets log what groups committed right before their offsets were deleted. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.offsets_log import BrokenRecord, Commit, StateRecord, decode, group_of
from group_hygiene.kafka.partition import Fetched, Marker, Record
from group_hygiene.kafka.tail import read_to_end
from group_hygiene.model.groups import CommittedOffset, Fault, Partition


class Late(NamedTuple):
    """What a group committed before the tombstones of its offsets. Pure.

    offsets: the last commit of each that a tombstone ended; the deletion of a large group leaves several tombstones.
    open: the number of transactions that had offsets for it and had not ended at its last tombstone: brokers drop these
    with the group.
    """

    offsets: Mapping[Partition, CommittedOffset]
    open: int


class GroupLog:
    """Folds the records of one group in one partition of the log, in their order. Pure.

    A commit in a transaction counts from the transaction's marker on, unless a later record has replaced it by then
    (OffsetMetadataManager.replayEndTransactionMarker).
    """

    def __init__(self) -> None:
        self.first: Commit | StateRecord | None = None
        # The places whose offsets were deleted, and whether anything of the group was.
        self.gone: set[Partition] = set()
        self.is_gone = False
        # Commits, by the order of their records.
        self._latest: dict[Partition, tuple[int, CommittedOffset]] = {}
        self._pending: dict[int, dict[Partition, tuple[int, CommittedOffset]]] = {}
        self._late: dict[Partition, CommittedOffset] = {}
        self._open = self._records = 0

    def take(self, record: Commit | StateRecord, producer: int | None) -> None:
        """producer: of its transaction."""
        self.first = self.first or record
        self._records += 1
        if record.gone:
            self.is_gone, self._open = True, len(self._pending)
        if isinstance(record, StateRecord):
            return
        place = Partition(record.topic, record.partition)
        if record.offset is None:
            # A tombstone in a transaction does not occur.
            self.gone.add(place)
            if place in self._latest:
                _, self._late[place] = self._latest.pop(place)
            return
        offset = CommittedOffset(record.offset, record.leader_epoch, record.metadata)
        into = self._latest if producer is None else self._pending.setdefault(producer, {})
        into[place] = self._records, offset

    def end(self, marker: Marker) -> None:
        """A producer's transaction ends."""
        for place, commit in self._pending.pop(marker.producer, {}).items():
            if marker.commits and commit > self._latest.get(place, (0,)):
                self._latest[place] = commit

    def late(self) -> Late:
        return Late(self._late, self._open)


class LateCommits:
    """Reads all partitions of the log on from `starts`, for some groups."""

    def __init__(
        self,
        client: Client,
        leaders: Mapping[int, tuple[int, int]],
        starts: Mapping[str, Mapping[int, int]],
        matters: Callable[[Commit | StateRecord], bool] = lambda record: True,
    ) -> None:
        """leaders: as in `Cluster`; set again once they moved. starts: group -> partition of the log -> offset.

        matters: which records count.
        """
        self.leaders = leaders
        self._client, self._starts, self._matters = client, starts, matters
        self._positions = {index: min(at.get(index, 0) for at in starts.values()) for index in leaders if starts}
        self._logs: dict[int, dict[str, GroupLog]] = {}

    def read_on(self, deadline: Deadline) -> Fault | None:
        """Read to the current end; the Fault of a partition that could not be read so far."""
        faults = read_to_end(self._client, self.leaders, self._positions, self._take, deadline)
        return next(iter(faults.values()), None)

    def first(self, group: str) -> Commit | StateRecord | None:
        """A record of the group; None = there is none."""
        return next((log.first for log in self._of(group)), None)

    def late(self, group: str) -> Late:
        """What the group committed before its offsets were deleted. Its records may be in several partitions."""
        found = [log.late() for log in self._of(group)]
        offsets = dict(chain.from_iterable(each.offsets.items() for each in found))
        return Late(offsets, sum(each.open for each in found))

    def shows(self, group: str, gone: Collection[Partition]) -> bool:
        """Whether the group's offsets for these places were seen to be deleted; without places, anything of it."""
        found = frozenset(chain.from_iterable(log.gone for log in self._of(group)))
        return found.issuperset(gone) if gone else any(log.is_gone for log in self._of(group))

    def _of(self, group: str) -> Iterator[GroupLog]:
        return (logs[group] for logs in self._logs.values() if group in logs)

    def _take(self, index: int, answer: Fetched) -> Fault | None:
        logs = self._logs.setdefault(index, {})
        rows: list[Record | Marker] = [*answer.records, *answer.markers]
        for row in sorted(rows, key=lambda row: row.offset):
            if isinstance(row, Marker):
                for log in logs.values():
                    log.end(row)
                continue
            try:
                group = group_of(row.key)
                if row.offset < self._starts.get(group, {}).get(index, 0) or group not in self._starts:
                    continue
                record = decode(row.key, row.value)
            except BrokenRecord as broken:
                return Fault("CORRUPT_MESSAGE", f"{OFFSETS_TOPIC}-{index} at offset {row.offset}: {broken}")
            if self._matters(record):
                logs.setdefault(group, GroupLog()).take(record, row.producer)
        return None
