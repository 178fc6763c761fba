"""Reads the log of one partition from its leader: its end, and the committed records in it (KIP-98).

The library's consumer can't distinguish the end of the log from the start of an open transaction; here the answer
contains both. Reads only, and does not interpret records.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import kafka.errors as kafka_errors
from kafka.protocol.consumer import FetchRequest
from kafka.record import MemoryRecords
from kafka.record.util import decode_varint

from group_hygiene.kafka.bounds import FRAME_BYTES, FetchBudget
from group_hygiene.kafka.client import (
    NO_ANSWER,
    Call,
    Client,
    Deadline,
    Request,
    Response,
    Results,
    fault_of_code,
    retrying_one,
    send_checked,
)
from group_hygiene.kafka.cluster import Question, ask_brokers, ask_topics
from group_hygiene.kafka.codecs import unpack, unpack_parts, window_bytes
from group_hygiene.kafka.library import checksum, packed_records, topic_rows, unpack_old
from group_hygiene.model.groups import NO_LEADER_EPOCH, NO_SUCH_TOPIC, Fault, Partition
from group_hygiene.process.memory import Intake, TooMuch

T = TypeVar("T")

_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
# With little memory, what an answer may have beside its first batch is less.
_FETCH_BYTES = min(8_000_000, FRAME_BYTES // 2)
# For each of many partitions at once. Processing the records of 50 such answers must take less than a second.
_EACH_BYTES = 250_000
# For each partition if only the headers of batches matter. A broker sends at least one whole batch, of any size
# (KIP-74).
_HEADERS_BYTES = 64_000
# Unpacked bytes after which the rest of an answer is skipped, and fetched again later.
_ENOUGH, _ENOUGH_OF_EACH = 8_000_000, 1_000_000
# The assumed ratio of unpacked to packed bytes of a batch, to reserve memory before unpacking.
_TYPICAL_RATIO = 20
_MARKER = struct.Struct(">hh")
# org.apache.kafka.common.protocol.Errors.THROTTLING_QUOTA_EXCEEDED.
_THROTTLED = 89


class Record(NamedTuple):
    """A record in the log; no value = a tombstone. leader_epoch: in which its leader appended it.

    value: `fetch` and `fetch_all` skip large ones of a large batch (`SKIPPED`). time_ms: by the producer's
    clock, or the broker's if the topic has LogAppendTime; -1 = it has none. producer: the id of the one in whose
    transaction it is; None = it is in none.
    """

    offset: int
    key: bytes | None
    value: bytes | None
    leader_epoch: int = NO_LEADER_EPOCH
    time_ms: int = -1
    producer: int | None = None


class Marker(NamedTuple):
    """The end of a producer's transaction in one partition. leader_epoch, time_ms: as in `Record`."""

    offset: int
    producer: int
    commits: bool
    leader_epoch: int = NO_LEADER_EPOCH
    time_ms: int = -1


class Batch(NamedTuple):
    """What identifies a batch in a log: its first offset, and its checksum."""

    offset: int
    checksum: int


class UnreadableBatch(NamedTuple):
    """A batch whose records can't be read: its first offset, and why."""

    offset: int
    why: str


class Fetched(NamedTuple):
    """The content of one answer: committed records (`fetch`) or all (`fetch_all`), and the offset to continue from.

    stable: the offset of the first record of an open transaction, or the end; no committed record is behind it.
    end: the offset after the last record that all in-sync replicas have (high watermark). hidden: batches whose records
    are missing (`fetch_readable`). markers: among the records. start: the first offset of the log. last: the batch
    before `position`; None = the answer had none.
    """

    records: list[Record]
    position: int
    stable: int
    end: int
    hidden: list[UnreadableBatch]
    markers: list[Marker]
    start: int
    last: Batch | None


class RawFetched(NamedTuple):
    """The bytes of one answer: whole batches up to `stable`, the last one possibly cut off.

    aborted: the first offset and the producer's id of each aborted transaction among them. stable: as in `Fetched`.
    """

    data: bytes
    aborted: list[tuple[int, int]]
    stable: int


class BatchHeaders(NamedTuple):
    """The result of reading only the headers of an answer's batches. last: a committed record is at this offset or
    later; None = the answer has none.

    position, stable, end: as in `Fetched`.
    """

    last: int | None
    position: int
    stable: int
    end: int


class PartitionLeader:
    """Sends requests to the leader of one partition, and looks it up again when it moved."""

    def __init__(self, client: Client, partition: Partition, known: dict[int, int] | None = None) -> None:
        """known: partition of the topic -> its leader. Each request for metadata adds all of its answer."""
        self.client = client
        self.partition = partition
        self._known = {} if known is None else known

    def ask(self, request: Callable[[], Request], code: Callable[[Response], int], deadline: Deadline) -> Any | Fault:
        """The answer to a request that may be sent more than once; `code` returns the partition's error in it."""

        def attempt() -> Any | Fault:
            known = self._known.get(self.partition.partition)
            broker = self._look_up(deadline) if known is None else known
            if isinstance(broker, Fault):
                return broker
            answer = send_checked(self.client, Call(broker, request()), code, deadline)
            if isinstance(answer, Fault):
                # Also without an answer: a broker that does not answer may not lead any more.
                self._known.pop(self.partition.partition, None)
            return answer

        return retrying_one(attempt, deadline)

    def _look_up(self, deadline: Deadline) -> int | Fault:
        row = ask_topics(self.client, [self.partition.topic], deadline).get(self.partition.topic, NO_ANSWER)
        if isinstance(row, Fault):
            # Brokers learn of a new topic with delay.
            return replace(row, retriable=True) if row.code == NO_SUCH_TOPIC else row
        self._known.update({entry.partition_index: entry.leader_id for entry in row.partitions if entry.leader_id >= 0})
        if (leader := self._known.get(self.partition.partition)) is not None:
            return leader
        return Fault("LEADER_NOT_AVAILABLE", f"{self.partition} has no leader", retriable=True)


def fetch(leader: PartitionLeader, position: int, deadline: Deadline, last: Batch | None = None) -> Fetched | Fault:
    """The committed records from `position` on, as many as one answer holds.

    No record, and the same position before `stable`: there are no records up to `stable`, as after compaction. The
    Fault is CORRUPT_MESSAGE for damaged bytes. A batch that is too large when unpacked is read without its large
    values. last: see `fetch_readable`.
    """
    return _whole(leader.partition, fetch_readable(leader, position, deadline, last=last, needs_values=False))


def fetch_readable(
    leader: PartitionLeader,
    position: int,
    deadline: Deadline,
    wait_ms: int = 0,
    last: Batch | None = None,
    *,
    needs_values: bool = True,
) -> Fetched | Fault:
    """As `fetch`, but a batch that can't be read is in `hidden`, and only its records are missing.

    needs_values: a batch that is too large when unpacked can't be read. wait_ms: how long the broker waits for the
    first byte. last: the batch before `position`, by an earlier answer: the Fault is OFFSET_OUT_OF_RANGE if the log has
    another one there, or none. Then it was recreated, or lost records by a power failure or an unclean election; or
    compaction rewrote that batch. Leader epochs (KIP-320) prove less: with ZooKeeper, a broker may come back in the
    same one.
    """
    unpacking = _Unpacking(leader.client.intake, deadline, _ENOUGH, needs_values)

    def parse(data: Any, _: int) -> Fetched | None:
        if last is None:
            return _records(data, position, unpacking)
        first = MemoryRecords(data.records or b"").next_batch()
        if first is None or _identity(first) != last:
            return None
        return _records(data, position, unpacking, skip=True)

    at = position - (last is not None)
    request = partial(_request, leader.partition, at, _READ_COMMITTED, wait_ms, _FETCH_BYTES)
    fetched = _fetch(leader, position, request, parse, deadline)
    if fetched is None:
        return Fault("OFFSET_OUT_OF_RANGE", f"{leader.partition} has other records before offset {position} by now")
    if last is not None and not isinstance(fetched, Fault) and fetched.position == position < fetched.stable:
        # The answer may have had no room for more.
        return fetch_readable(leader, position, deadline, wait_ms, needs_values=needs_values)
    return fetched


def fetch_raw(leader: PartitionLeader, position: int, deadline: Deadline) -> RawFetched | Fault:
    """The batches from the one with `position` on, with their aborted transactions, as many as one answer holds.

    No byte: there is no record up to `stable`, as after compaction.
    """

    def parse(data: Any, _: int) -> RawFetched:
        return RawFetched(bytes(data.records or b""), _begun(data), data.last_stable_offset)

    request = partial(_request, leader.partition, position, _READ_COMMITTED, 0, _FETCH_BYTES)
    return _fetch(leader, position, request, parse, deadline)


def read_old_batch(data: memoryview, most: int) -> list[Record]:
    """The records of one batch of a format before Kafka 0.11 (magic 0 or 1), which has no transactions.

    most: bytes, unpacked; the library would unpack it without a limit. Raises TooMuch beyond that, ValueError if the
    batch is damaged.
    """
    try:
        batch = MemoryRecords(data).next_batch()
        if not batch.validate_crc():
            raise ValueError(f"the batch at offset {batch.base_offset} fails its checksum")
        unpack_old(batch, most)
        times = ((record, record.timestamp) for record in batch)
        return [Record(row.offset, row.key, row.value, time_ms=-1 if at is None else at) for row, at in times]
    except (kafka_errors.KafkaError, AssertionError, IndexError, struct.error) as error:
        raise ValueError(f"a batch of an old format can't be read: {error}") from error


def fetch_all(
    client: Client, topic: str, positions: Mapping[int, int], leaders: Mapping[int, tuple[int, int]], deadline: Deadline
) -> Results[int, Fetched]:
    """The records of a topic's partitions from these positions on, committed or not, as many as one answer holds.

    leaders: partition -> its leader and the leader epoch; the Fault is FENCED_LEADER_EPOCH in a later one. Each leader
    gets one request. No record, and the same position: there are no records up to `end`, if no other partition was
    requested. Else the first batch may only be too large beside the others: for an answer (KIP-74), or unpacked. One
    that is too large by itself is read without its large values.
    """
    topic_class = FetchRequest.FetchTopic
    unpacking = _Unpacking(client.intake, deadline, _ENOUGH_OF_EACH, needs_values=False)

    def request(indexes: list[int]) -> Request:
        entries = {
            Partition(topic, index): topic_class.FetchPartition(
                partition=index,
                current_leader_epoch=leaders[index][1],
                fetch_offset=positions[index],
                partition_max_bytes=_EACH_BYTES,
            )
            for index in indexes
        }
        # Enough for all: partitions beyond the limit would look empty.
        return _fetch_request(topic_rows(topic_class, "topic", entries), _EACH_BYTES * len(entries))

    def read(indexes: Sequence[int], answer: Response) -> dict[int, Fetched | Fault]:
        rows = {row.partition_index: row for each in answer.responses for row in each.partitions}
        results: dict[int, Fetched | Fault] = {}
        for index in indexes:
            # A client that exceeds a quota gets an answer without partitions (KIP-219).
            code = answer.error_code or (rows[index].error_code if index in rows else _THROTTLED)
            row = fault_of_code(code) if code else rows[index]
            place = Partition(topic, index)
            parsed = _parsed(place, positions[index], row, lambda data, start: _records(data, start, unpacking))
            results[index] = _whole(place, parsed)
        return results

    brokers = {index: leaders[index][0] for index in positions}
    return ask_brokers(client, brokers, Question(request, read, chunk=max(1, len(brokers))), deadline)


def fetch_batch_headers(
    client: Client, positions: Mapping[Partition, int], leaders: Mapping[Partition, int], deadline: Deadline
) -> dict[Partition, BatchHeaders | Fault]:
    """The headers of each partition's batches from its position on, as many as one small answer holds; asked once.

    The same position: there is no committed record up to `stable`. Works for any message format and codec.
    """
    calls = {
        partition: Call(leaders[partition], _request(partition, position, _READ_COMMITTED, 0, _HEADERS_BYTES))
        for partition, position in positions.items()
    }
    return client.send_each(
        calls,
        deadline,
        lambda partition, answer: _parsed(partition, positions[partition], _only(answer), _batch_headers),
    )


def fetch_time(leader: PartitionLeader, position: int, deadline: Deadline) -> int | Fault | None:
    """The time of the first record from `position` on, committed or not, in ms since the epoch; None = there is none.

    From the header of its batch, without unpacking: by the producer's clock, or the broker's if the topic has
    LogAppendTime.
    """
    request = partial(_request, leader.partition, position, _READ_UNCOMMITTED, 0, _HEADERS_BYTES)
    return _fetch(leader, position, request, _time, deadline)


def _fetch(
    leader: PartitionLeader,
    position: int,
    request: Callable[[], Request],
    parse: Callable[[Any, int], T],
    deadline: Deadline,
) -> T | Fault:
    return _parsed(leader.partition, position, _only(leader.ask(request, _fetch_error, deadline)), parse)


def _request(partition: Partition, position: int, isolation: int, wait_ms: int, size: int) -> Request:
    topic_class = FetchRequest.FetchTopic
    place = topic_class.FetchPartition(partition=partition.partition, fetch_offset=position, partition_max_bytes=size)
    return _fetch_request([topic_class(topic=partition.topic, partitions=[place])], size, isolation, wait_ms)


def _fetch_request(topics: list[Any], size: int, isolation: int = _READ_UNCOMMITTED, wait_ms: int = 0) -> Request:
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=size,
        isolation_level=isolation,
        topics=topics,
        # From v11 on, a broker may send the reader to a follower instead (KIP-392): by an answer without an error and
        # without records, which here means that there are none.
        max_version=10,
    )


class _Unpacking:
    """Unpacks batches of answers within the limits. enough: bytes after which the rest of an answer is skipped."""

    def __init__(self, intake: Intake, deadline: Deadline, enough: int, needs_values: bool) -> None:
        self.needs_values = needs_values
        self._budget, self._intake, self._deadline = FetchBudget(), intake, deadline
        self._enough = enough
        # Whether the next batch has all of the limits for itself.
        self.is_fresh = True

    def is_enough(self, size: int) -> bool:
        """Whether to skip the rest of an answer after so many unpacked bytes of it, or for lack of time."""
        return size >= self._enough or self._deadline.left <= 0

    @contextmanager
    def turn(self, batch: Any, size: int) -> Iterator[None]:
        """Unpack a batch of an answer of `size` bytes. Raises TooMuch if it lacks memory, or time for a turn."""
        if batch.compression_type:
            expected = min(self._budget.largest, batch.size_in_bytes * _TYPICAL_RATIO)
            self._intake.take(expected, self._deadline.left)
            # Each record becomes objects, however little it was.
            size = max(size, expected, batch.records_count * 64)
        with self._intake.decoding(size, self._deadline.left):
            yield

    def body(self, batch: Any) -> bytes:
        """The records of a batch as bytes. Raises TooMuch if they do not fit, ValueError if they are damaged."""
        most, packed = self._budget.largest, packed_records(batch)
        codec = batch.compression_type
        body = unpack(codec, packed, most) if codec else bytes(packed[: most + 1])
        self._budget.take(len(body), batch.records_count)
        self.is_fresh = False
        return body

    def large_records(self, batch: Any) -> Iterator[Record]:
        """The records of a batch that does not fit, without large values. Keys and values each count as a whole batch.

        Raises TooMuch if these don't fit or take too long, ValueError or OSError if they can't be read.
        """
        most, codec = self._budget.largest, batch.compression_type
        for records in (batch.records_count, 0):
            self._budget.take(most, records)
        self._intake.take(2 * most + window_bytes(codec), self._deadline.left)
        self.is_fresh = False
        parts = unpack_parts(codec, packed_records(batch), most)
        producer = batch.producer_id if batch.is_transactional else None
        for row in read_rows(parts, batch.records_count, most, self._deadline):
            yield _record(batch, producer, *row)


def _whole(partition: Partition, fetched: Fetched | Fault) -> Fetched | Fault:
    """A Fault if a batch of the answer can't be read."""
    if isinstance(fetched, Fault) or not fetched.hidden:
        return fetched
    batch = fetched.hidden[0]
    return Fault("CORRUPT_MESSAGE", f"{partition}: the batch at offset {batch.offset} can't be read: {batch.why}")


def _parsed(partition: Partition, position: int, answer: Any | Fault, parse: Callable[[Any, int], T]) -> T | Fault:
    """answer: the partition's part of it."""
    if isinstance(answer, Fault):
        denied = answer.code == "TOPIC_AUTHORIZATION_FAILED"
        return Fault(answer.code, f"needs READ on the topic {partition.topic}") if denied else answer
    try:
        return parse(answer, position)
    except (kafka_errors.KafkaError, TooMuch, ValueError, IndexError, struct.error) as error:
        return Fault("CORRUPT_MESSAGE", f"{partition} at offset {position}: {error}")


def _only(answer: Response | Fault) -> Any | Fault:
    """The part of the one partition that was requested."""
    if isinstance(answer, Fault):
        return answer
    error = _fetch_error(answer)
    return fault_of_code(error) if error else answer.responses[0].partitions[0]


def _fetch_error(answer: Response) -> int:
    if answer.error_code:
        return int(answer.error_code)
    # A client that exceeds a quota gets an answer without the partition (KIP-219), which is not an empty partition.
    if not answer.responses:
        return _THROTTLED
    return int(answer.responses[0].partitions[0].error_code)


def _identity(batch: Any) -> Batch:
    return Batch(batch.base_offset, checksum(batch))


def _records(data: Any, position: int, unpacking: _Unpacking, skip: bool = False) -> Fetched:
    """skip: without the first batch."""
    start, last = position, None
    records: list[Record] = []
    hidden: list[UnreadableBatch] = []
    markers: list[Marker] = []
    size = 0
    for batch, committed, damage in islice(_batches(data, oldest=2), int(skip), None):
        # The header of a batch that fails its checksum is not reliable: the batch after it shows where it ends.
        then, why = batch.base_offset + 1 if damage else batch.next_offset, damage
        if not damage and batch.is_control_batch and batch.base_offset >= start:
            commits = not any(_aborts(marker) for marker in _unpacked(batch, bytes(packed_records(batch))))
            known = batch.leader_epoch, batch.max_timestamp
            markers.append(Marker(batch.base_offset, batch.producer_id, commits, *known))
        if committed and not damage:
            is_large = False
            with unpacking.turn(batch, len(data.records)):
                try:
                    body = unpacking.body(batch)
                    # The first batch may begin before the position.
                    records += [row for row in _unpacked(batch, body) if row.offset >= start]
                    size += len(body)
                except TooMuch as error:
                    if not unpacking.is_fresh:
                        # It is read by a later request.
                        break
                    why, is_large = str(error), not unpacking.needs_values
                except (ValueError, IndexError) as error:
                    why = str(error)
            if is_large:
                # Only here: until then the error holds memory for the unpacked bytes.
                why = ""
                try:
                    records += [row for row in unpacking.large_records(batch) if row.offset >= start]
                except (TooMuch, ValueError, IndexError, OSError) as error:
                    why = str(error)
                # The rest is read by a later request.
                size = sys.maxsize
        if why:
            hidden.append(UnreadableBatch(batch.base_offset, why))
        position = max(position + bool(damage), then)
        last = _identity(batch)
        if unpacking.is_enough(size):
            break
    return Fetched(
        *(records, position, data.last_stable_offset, data.high_watermark, hidden, markers),
        *(data.log_start_offset, last),
    )


def _unpacked(batch: Any, body: bytes) -> Iterator[Record]:
    """The records in the body of a batch (KIP-98), without their headers. Raises ValueError or IndexError."""
    at = 0
    producer = batch.producer_id if batch.is_transactional else None
    for _ in range(batch.records_count):
        size, at = decode_varint(body, at)
        end = at + size
        if size <= 0 or end > len(body):
            raise ValueError(f"a record of {size} bytes")
        # After the attributes, one byte.
        later, at = decode_varint(body, at + 1)
        delta, at = decode_varint(body, at)
        key, at = _bytes(body, at, end)
        value, at = _bytes(body, at, end)
        yield _record(batch, producer, later, delta, key, value)
        at = end
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes behind its records")


def _record(batch: Any, producer: int | None, later: int, delta: int, key: bytes | None, value: bytes | None) -> Record:
    time_ms = batch.max_timestamp if batch.timestamp_type else batch.first_timestamp + later
    return Record(batch.base_offset + delta, key, value, batch.leader_epoch, time_ms, producer)


def _bytes(body: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = decode_varint(body, at)
    if size < 0:
        return None, at
    if at + size > end:
        raise ValueError("a key or a value that is longer than its record")
    return body[at : at + size], at + size


def _batch_headers(data: Any, position: int) -> BatchHeaders:
    last: int | None = None
    for batch, committed, damage in _batches(data, oldest=0):
        if damage:
            raise ValueError(f"the batch at offset {batch.base_offset} {damage}")
        # In formats without transactions (magic 0 and 1) a batch has the offset of its last record. In format 2,
        # compaction retains the first and last offset, also of removed records and of empty batches.
        old = batch.magic < 2
        known = batch.base_offset if old else batch.base_offset + batch.records_count - 1
        if committed and (old or batch.records_count):
            last = known if last is None else max(last, known)
        position = max(position, batch.base_offset + 1 if old else batch.next_offset)
    return BatchHeaders(last, position, data.last_stable_offset, data.high_watermark)


def _time(data: Any, position: int) -> int | None:
    for batch, _, damage in _batches(data, oldest=2):
        if damage:
            raise ValueError(f"the batch at offset {batch.base_offset} {damage}")
        # The first batch may end before the position.
        if batch.next_offset > position:
            return int(batch.max_timestamp if batch.timestamp_type else batch.first_timestamp)
    return None


def _batches(data: Any, oldest: int) -> Iterator[tuple[Any, bool, str]]:
    """Each batch, whether it holds committed records, and why it can't be read (empty = it can).

    A read_committed answer names the aborted transactions. oldest: the oldest accepted format (magic).
    """
    begun = _begun(data)
    aborted: set[int] = set()
    batches = MemoryRecords(data.records or b"")
    if data.records and not batches.has_next():
        raise ValueError("the answer contains no whole batch")
    for batch in batches:
        if batch.magic < oldest or not batch.validate_crc():
            yield batch, True, "is of an old format" if batch.magic < oldest else "fails its checksum"
            continue
        if batch.magic < 2:
            yield batch, True, ""
            continue
        while begun and begun[0][0] <= batch.last_offset:
            aborted.add(begun.pop(0)[1])
        if batch.is_control_batch:
            if any(_aborts(marker) for marker in _unpacked(batch, bytes(packed_records(batch)))):
                aborted.discard(batch.producer_id)
            yield batch, False, ""
        else:
            yield batch, not (batch.is_transactional and batch.producer_id in aborted), ""


def _begun(data: Any) -> list[tuple[int, int]]:
    """The first offset and the producer's id of each aborted transaction that an answer names, in order."""
    return sorted(
        (transaction.first_offset, transaction.producer_id) for transaction in data.aborted_transactions or []
    )


def _aborts(marker: Record) -> bool:
    """Whether the record of a control batch aborts a transaction (ControlRecordType)."""
    return marker.key is not None and _MARKER.unpack_from(marker.key)[1] == 0


# Reads the records of a batch that is too large to be held: all keys, and values within limits. No I/O.
#
# Groups of many members have large records, and the codec of the offsets topic lets brokers write records that are,
# when unpacked, larger than any request. Keys are enough to see which groups were used.

# Instead of a value that was not held. No record of the offsets log has an empty value: to its decoder it is one that
# can't be read, and no tombstone.
SKIPPED = b""
# Of one key: several texts of 32 KiB. Of one value.
_KEY_BYTES, _VALUE_BYTES = 128 << 10, 64 << 10


class LargeBatchRow(NamedTuple):
    """A record of a batch (KIP-98). later_ms, delta: after the batch's first time and offset. value: may be SKIPPED."""

    later_ms: int
    delta: int
    key: bytes | None
    value: bytes | None


def read_rows(
    parts: Iterator[bytes | memoryview], count: int, most: int, deadline: Deadline
) -> Iterator[LargeBatchRow]:
    """The records of a batch from its unpacked bytes, without their headers.

    count: the number of records. most: bytes of all keys, and of all values that are not skipped. Raises TooMuch for
    keys beyond their limits and at the deadline, ValueError if the bytes are not so many records.
    """
    stream, keys_left, values_left = _Stream(parts, deadline), most, most
    for _ in range(count):
        size = stream.number()
        end = stream.at + size
        # Attributes.
        stream.skip(1)
        later, delta, key_size = stream.number(), stream.number(), stream.number()
        if key_size > end - stream.at:
            raise ValueError("a key that is longer than its record")
        if key_size > min(_KEY_BYTES, keys_left):
            raise TooMuch(f"a key of {key_size} bytes in a large batch is too large to be read")
        key = stream.take(key_size) if key_size >= 0 else None
        value_size = stream.number()
        if max(0, value_size) > end - stream.at:
            raise ValueError("a value that is longer than its record")
        value = None if value_size < 0 else SKIPPED
        if 0 <= value_size <= min(_VALUE_BYTES, values_left):
            value = stream.take(value_size)
        keys_left -= len(key or b"")
        values_left -= len(value or b"")
        yield LargeBatchRow(later, delta, key, value)
        stream.skip(end - stream.at)
    if not stream.is_at_end():
        raise ValueError("bytes behind its records")


class _Stream:
    """Parts as one sequence of bytes. at: how many were read; of the others, few are held."""

    def __init__(self, parts: Iterator[bytes | memoryview], deadline: Deadline) -> None:
        self._parts, self._deadline = parts, deadline
        self._held = bytearray()
        self.at = 0

    def take(self, size: int) -> bytes:
        while len(self._held) < size:
            self._hold_more()
        taken = bytes(self._held[:size])
        self.skip(size)
        return taken

    def skip(self, size: int) -> None:
        self.at += size
        while len(self._held) < size:
            size -= len(self._held)
            self._held.clear()
            self._hold_more()
        del self._held[:size]

    def number(self) -> int:
        while True:
            try:
                number, size = decode_varint(self._held, 0)
            except IndexError:
                self._hold_more()
                continue
            self.skip(size)
            return int(number)

    def is_at_end(self) -> bool:
        return not self._held and next(self._parts, None) is None

    def _hold_more(self) -> None:
        if self._deadline.left <= 0:
            raise TooMuch("a large batch took too long to be read")
        part = next(self._parts, None)
        if part is None:
            raise ValueError("its records end early")
        self._held += part
