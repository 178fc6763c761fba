"""Finds and creates the topic of a ledger, and checks its settings, as with others Kafka would delete entries.

Some services accept only few settings of a new topic (MSK Serverless:
https://docs.aws.amazon.com/msk/latest/developerguide/serverless-config.html). A ledger needs 1 partition, compaction,
the broker's times, and no unclean leader election. The other settings are left out where brokers refuse them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from kafka.protocol.metadata import CoordinatorType, MetadataRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest, ProduceRequest
from kafka.record import MemoryRecordsBuilder

from group_hygiene.kafka.client import (
    Call,
    Client,
    Deadline,
    Request,
    Response,
    fault_of_code,
    retrying_one,
    send_checked,
)
from group_hygiene.kafka.cluster import look_up, lost_brokers, topic_settings, whole_number
from group_hygiene.kafka.partition import PartitionLeader
from group_hygiene.model.groups import Fault

_UNKNOWN_TOPIC = 3
_PAUSE_SECONDS = 0.1
# Other values are Kafka's defaults.
_NEEDED = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
_SETTINGS = _NEEDED | {"unclean.leader.election.enable": "false"}
# Kafka compacts only closed segments: with its defaults, 1 GB or 7 days, opening the ledger would read all of that.
# Without the codec, a default of the brokers would make them compress each batch again; any codec can be read.
_PREFERRED = {
    "segment.bytes": str(32 * 1024 * 1024),
    "segment.ms": str(24 * 60 * 60 * 1000),
    "compression.type": "producer",
    # Brokers may have a lower limit (message.max.bytes).
    "max.message.bytes": "1048588",
}
# Of numbers, the least values. A batch of the writer has up to 700,000 bytes. A process that was away for less than an
# hour must still read that an entry was removed.
_AT_LEAST = {"max.message.bytes": 1_000_000, "delete.retention.ms": 3_600_000}
_IN_SYNC = "min.insync.replicas"
# How brokers, and policies of theirs, refuse settings of a new topic.
_SETTINGS_REFUSED = frozenset({"INVALID_CONFIG", "INVALID_REQUEST", "POLICY_VIOLATION"})

# Sends CreateTopics (`kafka.changes.create_topic`).
CreateTopic = Callable[[Client, str, int, Mapping[str, str], Deadline, bool], Fault | None]

log = logging.getLogger(__name__)


class TopicMetadata(NamedTuple):
    """A topic in a broker's metadata. id: changes when the topic is recreated (KIP-516), empty below 2.8.

    replicas: of the partition that has the fewest.
    """

    id: str
    partitions: int
    replicas: int


def find(client: Client, name: str, deadline: Deadline) -> TopicMetadata | Fault | None:
    """The topic; None = it does not exist."""
    answer = _metadata(client, name, deadline)
    if isinstance(answer, Fault):
        return answer
    (topic,) = answer.topics
    if topic.error_code == _UNKNOWN_TOPIC:
        return None
    if topic.error_code:
        return _topic_fault(fault_of_code(topic.error_code), "DESCRIBE", name)
    replicas = min((len(partition.replica_nodes) for partition in topic.partitions), default=0)
    return TopicMetadata(str(topic.topic_id or ""), len(topic.partitions), replicas)


def create(
    client: Client, name: str, replication_factor: int, deadline: Deadline, send: CreateTopic
) -> TopicMetadata | Fault:
    """Create the topic, and wait until a broker's metadata has it.

    A cluster that has fewer brokers than `replication_factor` gets as many replicas as it has brokers, but only while
    all brokers are alive that metadata names.

    If brokers refuse settings, only those that a ledger needs are sent; `check` shows whether the others are right. It
    is no Fault if another client creates the topic at the same time.
    """
    while True:
        made = _create(client, name, replication_factor, deadline, send, validate_only=False)
        if made is not None and not made.retriable:
            return made
        found = find(client, name, deadline)
        if found is not None:
            return found
        if deadline.left <= _PAUSE_SECONDS:
            return made or Fault(
                "UNKNOWN_TOPIC_OR_PARTITION", f"topic {name} was created, but no broker's metadata has it"
            )
        # Brokers learn of a topic with delay; and a topic that is being deleted still exists, though no metadata has
        # it.
        time.sleep(_PAUSE_SECONDS)


def may_create(
    client: Client, name: str, replication_factor: int, deadline: Deadline, send: CreateTopic
) -> Fault | None:
    """Why the topic could not be created, by a request that only validates (CreateTopics, validateOnly)."""
    return _create(client, name, replication_factor, deadline, send, validate_only=True)


def check(client: Client, name: str, topic: TopicMetadata, deadline: Deadline) -> str | Fault:
    """The wrong settings of the topic with the required values; empty = all are right.

    Numbers that brokers hide count as right.
    """
    settings = _settings(client, name, [*_SETTINGS, *_AT_LEAST, _IN_SYNC], deadline)
    if isinstance(settings, Fault):
        return settings
    wrong = [
        f"{key} must be {value}, not {settings.get(key)}"
        for key, value in _SETTINGS.items()
        if settings.get(key) != value
    ]
    least = _AT_LEAST | {_IN_SYNC: _needed_in_sync(topic.replicas)}
    for key, limit in least.items():
        found = whole_number(settings.get(key))
        if found is not None and found < limit:
            wrong.append(f"{key} must be at least {limit}, not {found}")
    if topic.partitions != 1:
        wrong.insert(0, f"it must have 1 partition, not {topic.partitions}")
    return "; ".join(wrong)


def codec(client: Client, name: str, deadline: Deadline) -> str | Fault:
    """The codec to which brokers convert the batches of the topic; empty = none, or they hide it."""
    settings = _settings(client, name, ["compression.type"], deadline)
    if isinstance(settings, Fault):
        return settings
    found = settings.get("compression.type")
    return "" if found in (None, "producer", "gzip") else str(found)


def _settings(client: Client, name: str, keys: list[str], deadline: Deadline) -> dict[str, str | None] | Fault:
    found = retrying_one(lambda: topic_settings(client, name, keys, deadline), deadline)
    return _topic_fault(found, "DESCRIBE_CONFIGS", name) if isinstance(found, Fault) else found


def _create(
    client: Client, name: str, replication_factor: int, deadline: Deadline, send: CreateTopic, *, validate_only: bool
) -> Fault | None:
    answer = _metadata(client, name, deadline)
    if isinstance(answer, Fault):
        return answer
    replicas = min(replication_factor, len(answer.brokers))
    lost = lost_brokers(client, deadline) if replicas < replication_factor else frozenset[int]()
    if isinstance(lost, Fault):
        return lost
    if lost:
        gone = ", ".join(map(str, sorted(lost)))
        message = f"it needs {replication_factor} replicas (ledger.replicationFactor), and brokers {gone} are gone"
        return Fault("BROKER_NOT_AVAILABLE", message)
    in_sync = {_IN_SYNC: str(_needed_in_sync(replicas))}
    whole = _SETTINGS | in_sync | _PREFERRED
    refused: Fault | None = None
    fault: Fault | None = None
    for settings in (whole, _SETTINGS | in_sync, _NEEDED | in_sync, _NEEDED):
        fault = send(client, name, replicas, settings, deadline, validate_only)
        if fault is None or fault.code not in _SETTINGS_REFUSED:
            break
        refused = fault
    if fault is not None and fault.code in _SETTINGS_REFUSED:
        needed = ", ".join(f"{key}={value}" for key, value in _NEEDED.items())
        return Fault(fault.code, f"the topic {name} needs {needed}, which the brokers refuse: {fault.message}")
    if fault is None and refused is not None and not validate_only:
        left_out = ", ".join(sorted(whole.keys() - settings.keys()))
        log.warning("topic %s has no %s of its own, as the brokers refuse them: %s", name, left_out, refused.message)
    return fault


def _needed_in_sync(replicas: int) -> int:
    """The least `min.insync.replicas`: one broker that is lost must not hold the only copy of an entry."""
    return 2 if replicas >= 3 else 1


def _metadata(client: Client, name: str, deadline: Deadline) -> Any | Fault:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)

    def attempt() -> Any | Fault:
        answer = client.send(Call(None, request), deadline)
        if not isinstance(answer, Fault):
            (topic,) = answer.topics
            # A new topic may have no leader yet.
            if topic.error_code not in (0, _UNKNOWN_TOPIC) and (fault := fault_of_code(topic.error_code)).retriable:
                return fault
        return answer

    return retrying_one(attempt, deadline)


def _topic_fault(fault: Fault, operation: str, name: str) -> Fault:
    denied = fault.code in ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")
    return Fault(fault.code, f"needs {operation} on the topic {name}") if denied else fault


# Writes records to one partition in transactions (KIP-98): all are visible or none, and one writer writes at a time.
#
# The library's producer is not suitable: its commit waits without a limit, it reports success for a commit that an
# epoch bump had emptied, and after INVALID_PRODUCER_EPOCH it requests a new producer id, and so fences the process that
# had fenced it. Here results are the brokers' answers, and every wait has a deadline.

Pair = tuple[bytes, bytes | None]

_GZIP = 1
_ALL_REPLICAS = -1
# A broker accepts batches of 1 MB by default (max.message.bytes), measured compressed; a larger record is sent alone.
_BATCH_BYTES = 700_000
# Brokers write a transaction's markers after they answer the commit, and the next transaction must wait for them.
_SETTLING_SECONDS = 0.01
_ABORT_SECONDS = 5.0
_FENCED = frozenset({"INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"})
# The coordinator forgot the transactional id, as it was not used for transactional.id.expiration.ms, or another writer
# has it with another producer id since. The answer to InitProducerId shows which.
_EXPIRED = "INVALID_PRODUCER_ID_MAPPING"
_DUPLICATE = 46
# Not a code of Kafka: see Writer.write.
MOVED = "LOG_MOVED"


class Written(NamedTuple):
    """The offsets of committed records: from `start` to before `end`; start None = there are other records in between.

    time: the broker's time of the last one, ms since the epoch; -1 where the topic has CreateTime.
    """

    start: int | None
    end: int
    time: int


class ProducerState(Enum):
    """The state of this writer's producer id and of its last transaction."""

    NEW = "it has no producer id yet"
    READY = "no transaction is open"
    UNKNOWN = "a transaction may be open, or may have been committed"
    FENCED = "another writer has the transactional id"


class Writer:
    """The only writer with a transactional id, until another one begins. For one thread."""

    def __init__(self, leader: PartitionLeader, transactional_id: str, timeout: float) -> None:
        """timeout: seconds after which the coordinator aborts a transaction that was left open."""
        self._leader = leader
        self._client: Client = leader.client
        self._id = transactional_id
        self._timeout_ms = int(timeout * 1000)
        self._coordinator: int | None = None
        self._producer = (-1, -1)
        self._sequence = 0
        self.state = ProducerState.NEW

    def begin(self, deadline: Deadline) -> Fault | None:
        """Become the writer: the broker fences the previous one and aborts its open transaction.

        In state UNKNOWN, ends the last transaction as the same writer. A fenced writer stays fenced.
        """
        if self.state is ProducerState.UNKNOWN:
            fault = self._end(False, deadline)
            # Nothing to abort: the commit had succeeded, or the id has expired.
            if fault is not None and fault.code not in ("INVALID_TXN_STATE", _EXPIRED):
                return self._failed(fault)
        answer = self._ask(self._init_request, lambda response: int(response.error_code), deadline)
        if isinstance(answer, Fault):
            return self._failed(answer)
        self._producer = (answer.producer_id, answer.producer_epoch)
        self._sequence = 0
        self.state = ProducerState.READY
        return None

    def write(self, records: Sequence[Pair], deadline: Deadline, at: int | None = None) -> Written | Fault:
        """Write all records in one transaction. After a Fault, `state` shows whether they are certainly not visible.

        at: the offset at which the records must begin, without other records in between; else the transaction is
        aborted, and the Fault's code is MOVED.
        """
        if self.state is not ProducerState.READY:
            return Fault("INVALID_TXN_STATE", self.state.value)
        self.state = ProducerState.UNKNOWN
        written = self._send(records, deadline)
        if isinstance(written, Fault) and written.code == _EXPIRED:
            fault = self.begin(deadline)
            if fault is not None:
                return fault
            self.state = ProducerState.UNKNOWN
            written = self._send(records, deadline)
        if isinstance(written, Written) and at is not None and written.start != at:
            fault = self._end(False, deadline)
            if fault is not None:
                return self._failed(fault)
            self.state = ProducerState.READY
            return Fault(MOVED, "others wrote meanwhile")
        if isinstance(written, Fault):
            # Abort now: otherwise readers wait until the coordinator aborts it.
            if self._failed(written).code not in _FENCED:
                self._end(False, Deadline(_ABORT_SECONDS))
            return written
        fault = self._end(True, deadline)
        if fault is not None:
            return self._failed(fault)
        self.state = ProducerState.READY
        return written

    def _send(self, records: Sequence[Pair], deadline: Deadline) -> Written | Fault:
        fault = self._ask(self._add_request, _added, deadline)
        if isinstance(fault, Fault):
            return fault
        start: int | None = None
        end = time_ms = -1
        for count, batch in self._batches(records):
            answer = self._produce(batch, deadline)
            if isinstance(answer, Fault):
                return answer
            self._sequence += count
            offset, time_ms = answer
            if end == -1:
                start = offset
            elif offset != end:
                start = None
            end = offset + count
        return Written(start if start != -1 else None, end, time_ms)

    def _batches(self, records: Sequence[Pair]) -> Iterator[tuple[int, bytearray]]:
        """The number of records, and their bytes as a batch; `_sequence` must be increased before the next one."""
        at = 0
        while at < len(records):
            builder = MemoryRecordsBuilder(2, _GZIP, _BATCH_BYTES, 0, True, *self._producer, self._sequence)
            first, now = at, int(time.time() * 1000)
            while at < len(records) and builder.append(now, *records[at]) is not None:
                at += 1
            builder.close()
            yield at - first, builder.buffer()

    def _produce(self, batch: bytearray, deadline: Deadline) -> tuple[int, int] | Fault:
        """Offset and time of a batch in the log. By its sequence, a batch that is sent twice is appended once."""
        topic_class = ProduceRequest.TopicProduceData
        topic, index = self._leader.partition

        def request() -> Request:
            place = topic_class.PartitionProduceData(index=index, records=batch)
            return ProduceRequest(
                transactional_id=self._id,
                acks=_ALL_REPLICAS,
                timeout_ms=max(1, int(deadline.left * 1000)),
                topic_data=[topic_class(name=topic, partition_data=[place])],
                # From v12 on the leader adds the partition to the transaction, in another protocol.
                max_version=11,
            )

        def code(answer: Response) -> int:
            found = answer.responses[0].partition_responses[0].error_code
            return 0 if found == _DUPLICATE else int(found)

        answer = self._leader.ask(request, code, deadline)
        if isinstance(answer, Fault):
            return self._advised(answer)
        row = answer.responses[0].partition_responses[0]
        return (-1 if row.error_code else row.base_offset), row.log_append_time_ms

    def _end(self, commit: bool, deadline: Deadline) -> Fault | None:
        def request() -> Request:
            producer_id, epoch = self._producer
            return EndTxnRequest(
                transactional_id=self._id,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=commit,
                max_version=3,
            )

        answer = self._ask(request, lambda response: int(response.error_code), deadline)
        return answer if isinstance(answer, Fault) else None

    def _init_request(self) -> Request:
        # With the current id and epoch, the coordinator detects whether another writer began in between (KIP-360).
        producer_id, epoch = self._producer
        return InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            min_version=3 if producer_id >= 0 else 0,
            max_version=5,
        )

    def _add_request(self) -> Request:
        topic_class = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        topic, index = self._leader.partition
        producer_id, epoch = self._producer
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[topic_class(name=topic, partitions=[index])],
            max_version=3,
        )

    def _ask(self, request: Callable[[], Request], code: Callable[[Response], int], deadline: Deadline) -> Any | Fault:
        """Send a request to the transaction coordinator, repeatedly if necessary: each of these may be sent twice."""

        def attempt() -> Any | Fault:
            broker: int | Fault | None = self._coordinator
            if broker is None:
                broker = look_up(self._client, [self._id], deadline, kind=CoordinatorType.TRANSACTION)[self._id]
            if isinstance(broker, Fault):
                return broker
            answer = send_checked(self._client, Call(broker, request()), code, deadline)
            while isinstance(answer, Fault) and answer.code == "CONCURRENT_TRANSACTIONS" and deadline.left > 0:
                time.sleep(_SETTLING_SECONDS)
                answer = send_checked(self._client, Call(broker, request()), code, deadline)
            self._coordinator = None if isinstance(answer, Fault) else broker
            return answer

        answer = retrying_one(attempt, deadline)
        return self._advised(answer) if isinstance(answer, Fault) else answer

    def _advised(self, fault: Fault) -> Fault:
        """The Fault with the permission or setting that is needed."""
        needed = {
            "TOPIC_AUTHORIZATION_FAILED": f"needs WRITE on the topic {self._leader.partition.topic}",
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": f"needs WRITE and DESCRIBE on the transactional id {self._id}",
            "CLUSTER_AUTHORIZATION_FAILED": "needs IDEMPOTENT_WRITE on the cluster",
            "MESSAGE_SIZE_TOO_LARGE": f"max.message.bytes of the topic {self._leader.partition.topic} is too small",
        }.get(fault.code)
        return Fault(fault.code, needed) if needed else fault

    def _failed(self, fault: Fault) -> Fault:
        if fault.code in _FENCED:
            self.state = ProducerState.FENCED
        return fault


def _added(answer: Response) -> int:
    for topic in answer.results_by_topic_v3_and_below:
        for place in topic.results_by_partition:
            if place.partition_error_code:
                return int(place.partition_error_code)
    return 0
