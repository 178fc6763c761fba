"""How long a batch of a purge waits between its backup and its request, from what brokers wrote into two logs.

Both times are the broker's: of the intents' append in the ledger, and of the first tombstone of their groups in
`__consumer_offsets`.
"""

import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, TopicPartition

from testing.bench.errors import BenchError
from testing.sandbox.ledger_log import Record

_TOPIC = "__consumer_offsets"
_SECONDS = 30.0
_LENGTHS = struct.Struct(">hh")
# OffsetCommitKey's version; other records have other ones.
_COMMIT = 1


def deleted_at(bootstrap: str) -> dict[str, float]:
    """Group -> when the first offset of it was deleted, in seconds since the epoch."""
    config = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer(config)
    found: dict[str, float] = {}
    try:
        for index in consumer.list_topics(_TOPIC, _SECONDS).topics[_TOPIC].partitions:
            start, end = consumer.get_watermark_offsets(TopicPartition(_TOPIC, index), timeout=_SECONDS)
            consumer.assign([TopicPartition(_TOPIC, index, start)])
            at, deadline = start, time.monotonic() + _SECONDS
            while at < end:
                messages = consumer.consume(10_000, 0.2)
                position = consumer.position([TopicPartition(_TOPIC, index)])[0].offset
                if position > at:
                    at, deadline = position, time.monotonic() + _SECONDS
                elif time.monotonic() > deadline:
                    raise BenchError(f"{_TOPIC}-{index} can't be read to its end: at {at} of {end}")
                for message in messages:
                    if message.error() is None and message.value() is None:
                        _note(message.key(), message.timestamp()[1] / 1000, found)
    finally:
        consumer.close()
    return found


def _note(key: bytes, at: float, found: dict[str, float]) -> None:
    version, length = _LENGTHS.unpack_from(key)
    if version == _COMMIT:
        found.setdefault(key[4 : 4 + length].decode(), at)


def waits(records: Iterable[Record], deleted: Mapping[str, float]) -> list[float]:
    """Of each batch the seconds from the append of its intents to the first deletion of one of its groups."""
    batches: dict[float, list[float]] = defaultdict(list)
    for record in records:
        if record.key[0] == "intent" and record.value is not None and record.key[1] in deleted:
            batches[record.at].append(deleted[record.key[1]])
    return [min(times) - at for at, times in sorted(batches.items())]
