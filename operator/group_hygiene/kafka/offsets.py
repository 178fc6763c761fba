"""Reads committed offsets (KIP-88, KIP-447, KIP-709), and where logs begin and end, also by time and by leader epoch
(KIP-101).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from kafka.protocol.consumer import ListOffsetsRequest, OffsetFetchRequest, OffsetForLeaderEpochRequest

from group_hygiene.kafka import answers
from group_hygiene.kafka.bounds import Rows
from group_hygiene.kafka.client import Client, Deadline, Request, Response, Results, fault_of_code
from group_hygiene.kafka.cluster import Question, ask, ask_brokers, by_leader, partition_counts
from group_hygiene.kafka.library import (
    AlterShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    RawOffsetFetchRequest,
    topic_rows,
)
from group_hygiene.kafka.partition import BatchHeaders, fetch_batch_headers
from group_hygiene.model.groups import (
    NO_LEADER_EPOCH,
    NO_START_OFFSET,
    CommittedOffset,
    Fault,
    LogPlace,
    Offsets,
    Partition,
)

T = TypeVar("T")

# Groups per OffsetFetch: large enough that round trips cost little, small enough for the memory of the answers.
_FETCH_CHUNK = 500
# Groups times named partitions per OffsetFetch: some 2 MB of answer.
_NAMED_PARTITIONS = 50_000
# Partitions per request to a leader: with the longest names of topics, 249 characters, some 840 KB of answer, which the
# library decodes (`bounds.DECODED_BYTES`).
_PARTITION_CHUNK = 3_000
# Bytes of records per request that writes: the broker appends them as one batch, of 1 MB at most by default
# (`cluster.offsets_write_bytes`).
WRITE_BYTES = 500_000
# At most the bytes of a record beside its names and metadata, with room for the batch's header.
_RECORD_BYTES = 100
_LATEST, _EARLIEST, _LATEST_TIME = -1, -2, -3
_WITH_LATEST_TIME = 7
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_CONSUMER = -1
UNKNOWN_TOPIC_ID = 100
# From this version on, OffsetCommit and OffsetFetch name topics by their ids (KIP-848; Kafka 4.1).
BY_TOPIC_ID = 10


def committed_offsets(
    client: Client,
    groups: Mapping[str, int | None],
    deadline: Deadline,
    partitions: Collection[Partition] | None = None,
    require_stable: bool = False,
) -> Results[str, Offsets]:
    """The committed offsets of each group, of all its partitions or of `partitions`, without those that have none.

    `groups` maps id -> coordinator, None = look it up. Batched per coordinator from OffsetFetch v8 on; one request per
    group below. With `require_stable` (v7), a partition with a pending transactional commit makes the result of its
    group a Fault UNSTABLE_OFFSET_COMMIT, but only for partitions that are named or already have a committed offset.
    """
    batched = client.supports(OffsetFetchRequest, 8)
    group_class, single = OffsetFetchRequest.OffsetFetchRequestGroup, OffsetFetchRequest.OffsetFetchRequestTopic
    topic_class = group_class.OffsetFetchRequestTopics if batched else single
    named = None
    if partitions is not None:
        # Built once for all requests: the topics of a cluster take megabytes.
        named = [topic_class(name=name, partition_indexes=some) for name, some in by_topic(partitions).items()]
    extra: dict[str, Any] = {"require_stable": True} if require_stable else {}

    def request(ids: list[str]) -> Any:
        if not batched:
            low = 7 if require_stable else 2
            return OffsetFetchRequest(group_id=ids[0], topics=named, min_version=low, max_version=7, **extra)
        members = [group_class(group_id=group, topics=named) for group in ids]
        return RawOffsetFetchRequest(groups=members, **extra)

    if not batched:
        return ask(
            client, groups, Question(request, lambda ids, response: {ids[0]: _offsets_of(response)}, 1), deadline
        )
    # An answer must stay small even if the request names many partitions for each group.
    chunk = _FETCH_CHUNK if partitions is None else _NAMED_PARTITIONS // max(1, len(partitions))
    rows = Rows()
    size = max(1, min(_FETCH_CHUNK, chunk))
    question = Question(request, lambda _, answer: answers.committed(answer.body, rows), size)
    return ask(client, groups, question, deadline)


def _offsets_of(row: Any, names: Mapping[str, str] = MappingProxyType({})) -> Offsets | Fault:
    """names: topic id -> name, if the request has ids; a topic that the broker doesn't know has no offsets."""
    if row.error_code:
        return fault_of_code(row.error_code)
    offsets: dict[Partition, CommittedOffset] = {}
    for topic in row.topics:
        name = names[str(topic.topic_id)] if names else topic.name
        for entry in topic.partitions:
            if names and entry.error_code == UNKNOWN_TOPIC_ID:
                continue
            if entry.error_code:
                return fault_of_code(entry.error_code).at(Partition(name, entry.partition_index))
            if entry.committed_offset >= 0:
                key = Partition(name, entry.partition_index)
                offsets[key] = CommittedOffset(
                    entry.committed_offset, entry.committed_leader_epoch, entry.metadata or ""
                )
    return offsets


def committed_by_topic_id(
    client: Client,
    coordinators: Mapping[str, int | None],
    partitions: Collection[Partition],
    topic_ids: Mapping[str, str],
    deadline: Deadline,
) -> Offsets | Fault:
    """The committed offsets of one group for partitions of the topics with these ids, not of other topics of that name.

    Topics without an id, and all topics on brokers before 4.1 (OffsetFetch v10), are requested by name. coordinators:
    the group's id and coordinator, None = look it up.
    """
    by_id, by_name = split(client, OffsetFetchRequest, partitions, topic_ids)
    found: dict[Partition, CommittedOffset] = {}
    if by_name:
        (named,) = committed_offsets(client, coordinators, deadline, by_name).values()
        if isinstance(named, Fault):
            return named
        found |= named
    if not by_id:
        return found
    group_class = OffsetFetchRequest.OffsetFetchRequestGroup
    topic_class = group_class.OffsetFetchRequestTopics
    rows = [topic_class(topic_id=topic_ids[t], partition_indexes=indexes) for t, indexes in by_topic(by_id).items()]
    names = {topic_ids[place.topic]: place.topic for place in by_id}

    def request(ids: list[str]) -> Any:
        groups = [group_class(group_id=group, topics=rows) for group in ids]
        return OffsetFetchRequest(groups=groups, min_version=BY_TOPIC_ID, max_version=BY_TOPIC_ID)

    def read(ids: Sequence[str], response: Response) -> dict[str, Offsets | Fault]:
        return {row.group_id: _offsets_of(row, names) for row in response.groups}

    (identified,) = ask(client, coordinators, Question(request, read, 1), deadline).values()
    return identified if isinstance(identified, Fault) else found | identified


def split(
    client: Client, request_class: Any, partitions: Iterable[Partition], topic_ids: Mapping[str, str]
) -> tuple[list[Partition], list[Partition]]:
    """The partitions whose topics a request can name by id, and the others."""
    known = topic_ids if client.supports(request_class, BY_TOPIC_ID) else {}
    by_id = [place for place in partitions if place.topic in known]
    return by_id, [place for place in partitions if place.topic not in known]


def record_bytes(group: str, topic: str = "", metadata: str = "") -> int:
    """The largest size of a record of the offsets log in the broker's batch: a commit or a tombstone."""
    return _RECORD_BYTES + len(group.encode()) + len(topic) + len(metadata.encode())


def write_chunks(group: str, places: Mapping[Partition, str], write_bytes: int) -> Iterator[list[Partition]]:
    """The partitions (each with its metadata), in order, in chunks of at most `write_bytes` bytes of records."""
    return in_chunks(
        {place: record_bytes(group, place.topic, metadata) for place, metadata in places.items()}, write_bytes
    )


def in_chunks(sizes: Mapping[T, int], limit: int) -> Iterator[list[T]]:
    """The items, in order, in chunks whose sizes add up to at most `limit`; each chunk has at least one item."""
    chunk: list[T] = []
    total = 0
    for item, size in sizes.items():
        if chunk and total + size > limit:
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size
    if chunk:
        yield chunk


def end_offsets(client: Client, partitions: Iterable[Partition], deadline: Deadline) -> Results[Partition, int]:
    """The high watermark of each partition: the offset after the last record for read_uncommitted consumers."""
    return _list_offsets(client, dict.fromkeys(partitions, _LATEST), deadline)


def last_stable_offsets(client: Client, partitions: Iterable[Partition], deadline: Deadline) -> Results[Partition, int]:
    """The last stable offset of each partition: the first record of an open transaction, or the end."""
    return _list_offsets(client, dict.fromkeys(partitions, _LATEST), deadline, isolation=_READ_COMMITTED)


def start_offsets(client: Client, partitions: Iterable[Partition], deadline: Deadline) -> Results[Partition, int]:
    """The log start offset of each partition."""
    return _list_offsets(client, dict.fromkeys(partitions, _EARLIEST), deadline)


def offsets_at(
    client: Client, times: Mapping[Partition, int], deadline: Deadline
) -> dict[Partition, int | Fault | None]:
    """The offset of the first record with this timestamp (ms since the epoch) or a later one; None = there is none."""
    answers = _list_offsets(client, times, deadline)
    return {place: None if answer == -1 else answer for place, answer in answers.items()}


def latest_times(client: Client, partitions: Iterable[Partition], deadline: Deadline) -> Results[Partition, int]:
    """The latest time of all records (ms since the epoch), -1 = no record.

    Empty: brokers before 3.0 don't return it (KIP-734).
    """
    if not client.supports(ListOffsetsRequest, _WITH_LATEST_TIME):
        return Results()
    wanted = dict.fromkeys(partitions, _LATEST_TIME)
    return _list_offsets(client, wanted, deadline, field="timestamp", version=_WITH_LATEST_TIME)


def _list_offsets(
    client: Client,
    timestamps: Mapping[Partition, int],
    deadline: Deadline,
    *,
    isolation: int = _READ_UNCOMMITTED,
    field: str = "offset",
    version: int = 2,
) -> Results[Partition, int]:
    """field: what to take of an answer for a partition. version: the oldest one; the isolation level came with v2."""
    topic_class = ListOffsetsRequest.ListOffsetsTopic

    def request(places: list[Partition]) -> Any:
        row_class = topic_class.ListOffsetsPartition
        rows = {place: row_class(partition_index=place.partition, timestamp=timestamps[place]) for place in places}
        topics = topic_rows(topic_class, "name", rows)
        return ListOffsetsRequest(isolation_level=isolation, topics=topics, min_version=version)

    def read(topic: Any, row: Any) -> tuple[Partition, int]:
        return Partition(topic.name, row.partition_index), int(getattr(row, field))

    return _from_leaders(client, timestamps, request, read, deadline)


def _from_leaders(
    client: Client,
    partitions: Iterable[Partition],
    request: Callable[[list[Partition]], Request],
    read: Callable[[Any, Any], tuple[Partition, int]],
    deadline: Deadline,
) -> Results[Partition, int]:
    """read: the partition and its result, from a row of the answer and the row of its topic."""

    def results(_: Sequence[Partition], answer: Response) -> dict[Partition, int | Fault]:
        rows = [(row.error_code, *read(topic, row)) for topic in answer.topics for row in topic.partitions]
        return {place: fault_of_code(error) if error else result for error, place, result in rows}

    question = Question(request, results, _PARTITION_CHUNK)
    return by_leader(client, partitions, lambda leaders: ask_brokers(client, leaders, question, deadline), deadline)


def epoch_ends(client: Client, epochs: Mapping[Partition, int], deadline: Deadline) -> Results[Partition, int]:
    """By OffsetForLeaderEpoch: the offset after the last record of this leader epoch, or of the last one before it.

    NO_LEADER_EPOCH if the leader knows neither: the log was recreated, or has an old format. Partitions whose epoch is
    NO_LEADER_EPOCH have no entry. Needs DESCRIBE on the topic.
    """
    topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    def request(places: list[Partition]) -> Any:
        row_class = topic_class.OffsetForLeaderPartition
        rows = {place: row_class(partition=place.partition, leader_epoch=epochs[place]) for place in places}
        return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topic_rows(topic_class, "topic", rows))

    def read(topic: Any, row: Any) -> tuple[Partition, int]:
        return Partition(topic.topic, row.partition), int(row.end_offset)

    asked = [place for place, epoch in epochs.items() if epoch != NO_LEADER_EPOCH]
    return _from_leaders(client, asked, request, read, deadline)


def is_cut_off(client: Client, read: Mapping[Partition, LogPlace], deadline: Deadline) -> bool | Fault:
    """Whether a log lost records before the place up to which it was read: by a power failure, or an unclean election.

    To be asked after a read from there on: no other records were at offsets that were read before. A reader that read
    up to an offset in some epoch, and now finds that the epoch ends before that offset, read records that are truncated
    since (KIP-320). A place with NO_LEADER_EPOCH shows nothing.
    """
    ends = epoch_ends(client, {place: at.leader_epoch for place, at in read.items()}, deadline)
    for partition, end in ends.items():
        if isinstance(end, Fault):
            return end
        if end < read[partition].offset:
            return True
    return False


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


# Reads the start offsets of share groups (KIP-932), which OffsetFetch doesn't return.
#
# A share group has one start offset per partition, and has finished every record before it. No request reads in full,
# or sets, which later records it has finished and how often others were delivered. Newer brokers count those that it
# has not finished (KIP-1226).

# The broker sends one request for the state of each partition.
_CHUNK = 20
_POLL_S = 0.1
_STATE_TOPIC = "__share_group_state"
# org.apache.kafka.server.share.persister.PartitionFactory
_UNSET, _DEFAULT_EPOCH = -1, 0
_UNSUPPORTED = Fault("UNSUPPORTED_VERSION", "offsets of share groups need brokers of 4.1 or later")


@dataclass(frozen=True, slots=True)
class ShareOffsets:
    """The start offsets of a share group.

    started: its start offsets, without epoch and metadata, which no request can set. unset: partitions of the group
    without a start offset, as no consumer has read them yet (share.auto.offset.reset decides then). unsure: those of
    `unset` that may have one: Kafka shows a partition that it could not read as unset in leader epoch 0, without an
    error (GroupCoordinatorService.computeShareGroupLagAndBuildResponse). lag: the number of records up to the end that
    the group has not finished, where the broker counts them (KIP-1226).
    """

    started: Offsets
    unset: frozenset[Partition]
    unsure: frozenset[Partition] = frozenset()
    lag: Mapping[Partition, int] = field(default_factory=dict)


def share_offsets(client: Client, groups: Mapping[str, int | None], deadline: Deadline) -> Results[str, ShareOffsets]:
    """The start offsets of each share group. `groups` maps id -> coordinator, None = look it up.

    A group that does not exist, or is of another type, has none, without an error. UNSUPPORTED_VERSION is the Fault of
    every group if the brokers can't both read and set start offsets.
    """
    if not client.supports(AlterShareGroupOffsetsRequest):
        return Results(dict.fromkeys(groups, _UNSUPPORTED))
    row_class = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    question = Question(
        request=lambda ids: DescribeShareGroupOffsetsRequest(groups=[row_class(group_id=i, topics=None) for i in ids]),
        answers=lambda _, response: {row.group_id: _share_offsets_of(row) for row in response.groups},
        chunk=_CHUNK,
    )
    return ask(client, groups, question, deadline)


def _share_offsets_of(row: Any) -> ShareOffsets | Fault:
    if row.error_code:
        return fault_of_code(row.error_code, row.error_message)
    started: dict[Partition, CommittedOffset] = {}
    unset: dict[Partition, int] = {}
    lag: dict[Partition, int] = {}
    for topic in row.topics:
        for entry in topic.partitions:
            place = Partition(topic.topic_name, entry.partition_index)
            if entry.error_code:
                return fault_of_code(entry.error_code, entry.error_message).at(place)
            if entry.lag >= 0:
                lag[place] = entry.lag
            if entry.start_offset == _UNSET:
                unset[place] = entry.leader_epoch
            else:
                started[place] = CommittedOffset(entry.start_offset)
    unsure = {place for place, epoch in unset.items() if epoch == _DEFAULT_EPOCH}
    return ShareOffsets(started, frozenset(unset), frozenset(unsure), lag)


def complete_offsets(
    client: Client, groups: Mapping[str, int | None], deadline: Deadline, *, again: bool = False
) -> dict[str, Offsets | Fault]:
    """The start offsets of each share group if these are certainly complete, else a Fault.

    An unsure partition without records has no start offset to lose. If it holds records, the Fault is NO_START_OFFSET:
    no answer shows whether the group has a start offset in it. again: the caller asks at several times, so a group
    that shows no start offset at all has none, as long as all leaders of `__share_group_state` answer.
    """
    found = share_offsets(client, groups, deadline)
    unsure = {place for answer in found.ok.values() for place in answer.unsure}
    starts = start_offsets(client, unsure, deadline)
    ends = end_offsets(client, unsure, deadline)
    read_nothing = any(answer.unsure and not answer.started for answer in found.ok.values())
    readable = False
    if again and read_nothing:
        # Whether the leader of each partition of that topic answers: only these can read a start offset.
        count = partition_counts(client, [_STATE_TOPIC], deadline)[_STATE_TOPIC]
        places = [] if isinstance(count, Fault) else [Partition(_STATE_TOPIC, index) for index in range(count)]
        readable = bool(places) and not end_offsets(client, places, deadline).faults

    def judged(answer: ShareOffsets | Fault) -> Offsets | Fault:
        if isinstance(answer, Fault):
            return answer
        if readable and not answer.started:
            return {}
        for place in sorted(answer.unsure):
            start, end = starts[place], ends[place]
            if isinstance(start, Fault) or isinstance(end, Fault) or start < end:
                why = "it was not consumed yet or could not be read, as Kafka answers both alike"
                return Fault(NO_START_OFFSET, f"{place} holds records and shows no start offset: {why}")
        return answer.started

    return {name: judged(answer) for name, answer in found.items()}


def wait_until_shown(
    client: Client, coordinators: Mapping[str, int | None], partitions: Collection[Partition], deadline: Deadline
) -> None:
    """Wait until a group shows start offsets for these partitions, or until the deadline.

    Brokers answer before the group itself shows the offsets (persisterInitialize). coordinators: the group's id -> its
    coordinator.
    """
    while partitions:
        (found,) = share_offsets(client, coordinators, deadline).values()
        if isinstance(found, Fault) or found.started.keys() >= set(partitions) or deadline.left <= _POLL_S:
            return
        time.sleep(_POLL_S)


# Finds out whether a partition holds a committed record from some offset on, by a search backwards from its end.
#
# The end alone does not show it: transaction markers and aborted records (KIP-98) have offsets, too. The search reads
# only the headers of batches. Reads only.

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

    def search_all(leaders: Mapping[Partition, int]) -> dict[Partition, LastRecord | Fault]:
        results: dict[Partition, LastRecord | Fault] = {}
        searches = {place: _Search(place, sought[place]) for place in leaders}
        while searches:
            positions = {place: search.position for place, search in searches.items()}
            for place, answer in fetch_batch_headers(client, positions, leaders, deadline).items():
                found = answer if isinstance(answer, Fault) else searches[place].take(answer)
                if found is not None:
                    results[place] = found
                    del searches[place]
        return results

    return by_leader(client, sought, search_all, deadline)


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
