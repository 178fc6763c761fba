"""Reads the offsets log for records of groups from given offsets on, including open and aborted transactions.

Reads only. Every partition is read, as no request shows in which one a broker puts a group's records: brokers compute
it from the number of partitions at their start (GroupCoordinatorService; KAFKA-7771, KAFKA-14418), and metadata names
the current number. Does not decide which records matter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, read_cluster, topic_ids
from group_hygiene.kafka.offsets import end_offsets, epoch_ends, last_stable_offsets, start_offsets
from group_hygiene.kafka.offsets_log import BrokenRecord, Commit, StateRecord, decode, group_of, partition_of
from group_hygiene.kafka.partition import Fetched, Marker, PartitionLeader, Record, fetch_all, fetch_time
from group_hygiene.model.groups import (
    NO_LEADER_EPOCH,
    NO_SUCH_TOPIC,
    SIGNS,
    CommittedOffset,
    Fault,
    Partition,
    Sighting,
    program_of,
)

# Partitions per round: the answers for this many are in memory at once.
_AT_ONCE = 16
# Clients choose these ids. More groups than this, and those with longer ids, wait until they are described.
_PROGRAMS_MAX, _ID_MAX = 1_000, 255


def read_to_end(
    client: Client,
    leaders: Mapping[int, tuple[int, int]],
    positions: dict[int, int],
    take: Callable[[int, Fetched], Fault | None],
    deadline: Deadline,
) -> dict[int, Fault]:
    """Read these partitions of the log from their positions, which are moved, to the current end.

    take: called with each answer; a Fault ends the partition. Returns why partitions were not read to their end.
    """
    faults: dict[int, Fault] = {}
    ends: dict[int, int] = {}
    left, alone = list(positions), list[int]()
    while left or alone:
        some, left = left[:_AT_ONCE], left[_AT_ONCE:]
        if not some:
            some = [alone.pop()]
        asked = {index: positions[index] for index in some}
        for index, answer in fetch_all(client, OFFSETS_TOPIC, asked, leaders, deadline).items():
            if isinstance(answer, Fault):
                faults[index] = answer
                continue
            if answer.end < asked[index]:
                # A new leader hides the end until its followers have it.
                message = f"{OFFSETS_TOPIC}-{index} ends at {answer.end}"
                faults[index] = Fault("OFFSET_OUT_OF_RANGE", message, retriable=True)
                continue
            if (fault := take(index, answer)) is not None:
                faults[index] = fault
                continue
            positions[index] = answer.position
            if answer.position < ends.setdefault(index, answer.end):
                if answer.position > asked[index]:
                    left.append(index)
                elif len(some) > 1:
                    # It may only have a large batch. Alone, an empty answer means that there is no record.
                    alone.append(index)
    return faults


class Found(NamedTuple):
    """A record of a group. time_ms: by the clock of the broker that led the partition then."""

    partition: int
    offset: int
    time_ms: int
    # None: its value can't be read.
    record: Commit | StateRecord | None


class Tail:
    """Reads all partitions of the log from `begun` on; each `read_on` continues to the current end of the log.

    leaders: partition -> its leader and the leader epoch, as in `Cluster`. A partition that another broker leads later,
    or the same one in a later epoch, can't be read: a new Tail is needed. begun, positions: partition -> the offset of
    the first record that was, or will be, read.
    faults: why the last `read_on` did not reach the end of a partition. OFFSET_OUT_OF_RANGE: the log begins after its
    position, or, if retriable, ends before it. CORRUPT_MESSAGE: a record can't be read, and may be of any group.
    first_ms, last_ms: partition -> the time of the first and the last record that its leader wrote since it leads, of
    those that were read; by the leader's clock, as no client writes to this log. latest_ms: the latest time of
    these records and of the ends of transactions among them; `engine.uses` adds that of earlier records.
    programs: group -> the program whose member a record of the group has named since `take_programs`, of any group.
    grown: broker that computes partitions from an old number of them -> a record that shows it, in words.
    """

    def __init__(self, client: Client, leaders: Mapping[int, tuple[int, int]], starts: Mapping[int, int]) -> None:
        """starts: partition -> offset. A partition that is missing there is read from its start: it is new."""
        self.leaders = leaders
        self.begun = {index: starts.get(index, 0) for index in leaders}
        self.positions = dict(self.begun)
        self.faults: dict[int, Fault] = {}
        self.grown: dict[int, str] = {}
        self.first_ms: dict[int, int] = {}
        self.last_ms: dict[int, int] = {}
        self.latest_ms: dict[int, int] = {}
        self.programs: dict[str, Sighting] = {}
        self._client = client
        # Of each group, the last record in each partition.
        self._found: dict[str, dict[int, Found]] = {}

    def read_on(
        self,
        wanted: Callable[[str], bool],
        deadline: Deadline,
        matters: Callable[[Commit | StateRecord], bool] = lambda record: True,
    ) -> None:
        """Read to the current end. Remembers the last record of each wanted group in each partition, if it matters."""
        self.faults = read_to_end(
            self._client,
            self.leaders,
            self.positions,
            lambda index, answer: self._take(index, answer, wanted, matters),
            deadline,
        )

    def peek(self, deadline: Deadline) -> None:
        """Read one answer of each partition, for `grown` and `first_ms`. Later reads begin where they did before."""
        indexes = list(self.leaders)
        for first in range(0, len(indexes), _AT_ONCE):
            asked = {index: self.positions[index] for index in indexes[first : first + _AT_ONCE]}
            for index, answer in fetch_all(self._client, OFFSETS_TOPIC, asked, self.leaders, deadline).ok.items():
                self._take(index, answer, lambda group: False, lambda record: True)

    def use(self, group: str, since: Mapping[int, int]) -> Found | None:
        """A record of the group at or after these offsets; a partition that is missing there counts from its start."""
        found = self._found.get(group, {}).values()
        return next((each for each in found if each.offset >= since.get(each.partition, 0)), None)

    def used(self, since: Mapping[int, int]) -> list[str]:
        """The groups with a record at or after these offsets."""
        return [name for name in self._found if self.use(name, since)]

    def answer(self, group: str, since: Mapping[int, int]) -> Found | Fault | None:
        """As `use`; the Fault of some partition if there is no such record, as there may be one."""
        return self.use(group, since) or next(iter(self.faults.values()), None)

    def take_programs(self) -> dict[str, Sighting]:
        """The programs, which are then forgotten."""
        taken, self.programs = self.programs, {}
        return taken

    def retain(self, wanted: Callable[[str], bool]) -> None:
        """Forget all other groups."""
        self._found = {name: found for name, found in self._found.items() if wanted(name)}

    def _take(
        self,
        index: int,
        answer: Fetched,
        wanted: Callable[[str], bool],
        matters: Callable[[Commit | StateRecord], bool],
    ) -> Fault | None:
        epoch = self.leaders[index][1]
        rows: list[Record | Marker] = [*answer.records, *answer.markers]
        times = [row.time_ms for row in rows if row.leader_epoch == epoch]
        self.latest_ms[index] = max([*times, self.latest_ms.get(index, -1)])
        for row in answer.records:
            if row.leader_epoch == epoch:
                self.last_ms[index] = row.time_ms
                self.first_ms.setdefault(index, row.time_ms)
            try:
                group = group_of(row.key)
            except BrokenRecord as broken:
                return Fault("CORRUPT_MESSAGE", f"{OFFSETS_TOPIC}-{index} at offset {row.offset}: {broken}")
            # The hash of a long id takes long. A broker with an old number of partitions shows itself by other ids.
            if len(group) <= _ID_MAX and _partition_of(group, len(self.leaders)) != index:
                self._note_misplaced(index, group, row)
            if any(sign in (row.value or b"") for sign in SIGNS):
                self._note_program(group, row)
            if wanted(group):
                record = _decoded(row)
                if record is None or matters(record):
                    self._found.setdefault(group, {})[index] = Found(index, row.offset, row.time_ms, record)
        return None

    def _note_program(self, group: str, row: Record) -> None:
        if len(group) > _ID_MAX or len(self.programs) >= _PROGRAMS_MAX:
            return
        record = _decoded(row)
        clients = record.clients if isinstance(record, StateRecord) else ()
        if (found := program_of([client.client_id for client in clients])) is not None:
            self.programs[group] = found

    def _note_misplaced(self, index: int, group: str, row: Record) -> None:
        leader, epoch = self.leaders[index]
        # In an earlier epoch, the broker may have had another number of partitions: it has been restarted since.
        if row.leader_epoch != epoch or leader in self.grown:
            return
        record = _decoded(row)
        if record is not None and record.by_client:
            self.grown[leader] = (
                f"since it leads {OFFSETS_TOPIC}-{index} (epoch {epoch}), it put a record into it that belongs into "
                f"partition {_partition_of(group, len(self.leaders))} of {len(self.leaders)}"
            )


# Clients choose ids, and all connections share this memory.
_partition_of = lru_cache(maxsize=10_000)(partition_of)


def _decoded(row: Record) -> Commit | StateRecord | None:
    try:
        return decode(row.key, row.value)
    except BrokenRecord:
        return None


# Finds in the offsets log what groups committed right before their offsets were deleted. Reads only.


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


# Where the partitions of `__consumer_offsets` begin and end, as brokers report it, and the topic's id.
#
# Of the records it reads only the time of the first one of an open transaction.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LogBounds:
    """topic_id: None = the brokers know none (before 2.8). No partitions = no topic: no group ever committed.

    starts, ends: partition of the log -> its first offset, and its last stable offset at `asked_at` or later.
    undecided_since: of each partition with an open transaction, the time of its first record, by the broker's clock.
    leader_epochs: of each partition then; NO_LEADER_EPOCH = its log holds none (formats before 0.11).
    """

    cluster_id: str
    topic_id: str | None
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    asked_at: datetime
    undecided_since: Mapping[int, datetime] = field(default_factory=dict)
    leader_epochs: Mapping[int, int] = field(default_factory=dict)


def read_log_bounds(client: Client, deadline: Deadline) -> LogBounds | Fault:
    """The bounds of all partitions, or the first Fault: bounds of a part of the log prove nothing."""
    asked_at = datetime.now(UTC)
    cluster = read_cluster(client, deadline)
    if isinstance(cluster, Fault):
        return cluster
    topic_id = topic_ids(client, [OFFSETS_TOPIC], deadline)[OFFSETS_TOPIC]
    if isinstance(topic_id, Fault):
        if topic_id.code != NO_SUCH_TOPIC:
            return topic_id
        return LogBounds(cluster.id, None, {}, {}, asked_at)
    epochs = {Partition(OFFSETS_TOPIC, index): epoch for index, (_, epoch) in cluster.leaders.items()}
    found: list[dict[int, int]] = []
    # In this order: a record that was written before the request for the end, and is after the last stable offset, is
    # undecided.
    for ask in (start_offsets, end_offsets, last_stable_offsets):
        answers = ask(client, epochs, deadline)
        for place, fault in answers.faults.items():
            return fault.at(place)
        found.append({place.partition: answer for place, answer in answers.ok.items()})
    starts, written, ends = found
    undecided: dict[int, datetime] = {}
    for index in (index for index, end in ends.items() if end < written[index]):
        time_ms = fetch_time(PartitionLeader(client, Partition(OFFSETS_TOPIC, index)), ends[index], deadline)
        if isinstance(time_ms, Fault):
            return time_ms
        if time_ms is not None:
            undecided[index] = _EPOCH + timedelta(milliseconds=time_ms)
    epoch_limits = epoch_ends(client, epochs, deadline)
    for place, fault in epoch_limits.faults.items():
        return fault.at(place)
    known = {
        place.partition: NO_LEADER_EPOCH if end == NO_LEADER_EPOCH else epochs[place]
        for place, end in epoch_limits.ok.items()
    }
    return LogBounds(cluster.id, topic_id or None, starts, ends, asked_at, undecided, known)
