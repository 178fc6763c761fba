"""Reads the offsets log with librdkafka, for comparison with the pipeline's tables. Does not use Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from group_hygiene.kafka.offsets_log import BrokenRecord, Commit, StateRecord, decode
from testing.sandbox.errors import NotReached

TOPIC = "__consumer_offsets"
# The only client id from which brokers accept records for an internal topic.
_INTERNAL = "__admin_client"

Row = tuple[Any, ...]


class Raw(NamedTuple):
    """A record as it is in the log; aborted: a read_committed consumer does not see it."""

    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    aborted: bool


class Rows(NamedTuple):
    """The expected rows of the bronze tables, in their columns."""

    commits: list[Row]
    states: list[Row]
    quarantine: list[Row]


def ends(bootstrap: str) -> dict[int, int]:
    """The end of each partition of the log, transaction markers included."""
    consumer = _consumer(bootstrap, "read_uncommitted")
    marks = {p: consumer.get_watermark_offsets(TopicPartition(TOPIC, p))[1] for p in _partitions(consumer)}
    consumer.close()
    return marks


def read(bootstrap: str) -> list[Raw]:
    """All current records of the log, by partition and offset."""
    committed = {place[:2] for place in _read(bootstrap, "read_committed")}
    everything = _read(bootstrap, "read_uncommitted")
    return sorted((Raw._make((*row, row[:2] not in committed)) for row in everything), key=lambda raw: raw[:2])


def _decoded(raw: Raw) -> Commit | StateRecord:
    return decode(raw.key, raw.value)


def expected(log: list[Raw], decoder: Callable[[Raw], Commit | StateRecord] = _decoded) -> Rows:
    """The rows that the tables must have for this log. decoder: raises BrokenRecord."""
    rows = Rows([], [], [])
    for raw in log:
        place = raw[:3]
        try:
            record = decoder(raw)
        except BrokenRecord:
            rows.quarantine.append((*place, raw.key, raw.value))
            continue
        if isinstance(record, Commit):
            value: Row = (None, None, None, None)
            if not record.gone:
                value = (record.offset, record.leader_epoch, record.metadata, record.commit_ms)
            rows.commits.append((*place, record.group, record.topic, record.partition, *value, raw.aborted))
        else:
            rest = (record.protocol_type, record.generation, record.member_id, record.members, record.state_ms)
            clients = tuple(map(tuple, record.clients)) or None
            rows.states.append((*place, record.kind, record.group, *rest, record.gone, clients))
    return rows


def write(bootstrap: str, partition: int, key: bytes, value: bytes | None) -> None:
    """Write a record that no coordinator would write."""
    refused: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": _INTERNAL, "log_level": 0})
    producer.produce(
        TOPIC, value, key, partition, on_delivery=lambda error, _: refused.append(error) if error else None
    )
    if producer.flush(60) or refused:
        raise NotReached(f"the broker does not take the record: {refused}")


def _read(bootstrap: str, isolation: str) -> list[Row]:
    """partition, offset, time, key, value of all records at that isolation level."""
    consumer = _consumer(bootstrap, isolation)
    left = _partitions(consumer)
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in left])
    rows: list[Row] = []
    while left:
        for message in consumer.consume(10_000, timeout=0.2):
            if message.error() is None:
                place = (message.partition(), message.offset(), message.timestamp()[1])
                rows.append((*place, message.key(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                raise KafkaException(message.error())
    consumer.close()
    return rows


def _consumer(bootstrap: str, isolation: str) -> Any:
    # The client requires a group.id; without `subscribe` and commits, it makes no group.
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader-of-the-log",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )


def _partitions(consumer: Any) -> set[int]:
    return set(consumer.list_topics(TOPIC).topics[TOPIC].partitions)
