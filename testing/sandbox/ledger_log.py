"""The committed records of a ledger's topic, read by another Kafka client, as plain JSON.

The history is incomplete: compaction may have removed replaced records.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from testing.sandbox.errors import NotReached

_SECONDS = 30.0


@dataclass(frozen=True)
class Record:
    """at: the broker's time, in seconds. value: None = a tombstone; a text = not JSON."""

    offset: int
    at: float
    key: tuple[str, ...]
    value: Any


class LedgerLog:
    """The committed records of one topic; each `read` continues."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._config = {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": False,
            "log_level": 0,
        }
        self.records: list[Record] = []
        self._by_key: dict[tuple[str, ...], list[Record]] = {}
        self._by_group: dict[tuple[str, ...], list[Record]] = {}
        self._next = 0

    def read(self) -> list[Record]:
        """All committed records; empty if the topic does not exist. Raises NotReached."""
        consumer = Consumer(self._config)
        try:
            place = TopicPartition(self._topic, 0)
            try:
                start, end = consumer.get_watermark_offsets(place, timeout=_SECONDS)
            except KafkaException:
                return self.records
            consumer.assign([TopicPartition(self._topic, 0, max(self._next, start))])
            deadline = time.monotonic() + _SECONDS
            while self._next < end:
                message = consumer.poll(0.2)
                position = consumer.position([place])[0].offset
                if message is not None and message.error() is None:
                    self._take(_record(message))
                    self._next = message.offset() + 1
                    deadline = time.monotonic() + _SECONDS
                elif position >= end:
                    # Only transaction markers are left.
                    self._next = end
                if time.monotonic() > deadline:
                    raise NotReached(f"{self._topic} can't be read to its end: at {self._next} of {end}")
        finally:
            consumer.close()
        return self.records

    def latest(self) -> dict[tuple[str, ...], Record]:
        """The last record of each key that has a value, as of the last `read`."""
        return {key: records[-1] for key, records in self._by_key.items() if records[-1].value is not None}

    def before(self, key: tuple[str, ...], at: float) -> Record | None:
        """The valid record of a key at a time; None = there was none, or it had ended."""
        found = [record for record in self._by_key.get(key, ()) if record.at <= at]
        return found[-1] if found and found[-1].value is not None else None

    def compacted(self, key: tuple[str, ...]) -> bool:
        """Whether the first remaining record of an entry is its tombstone."""
        return key in self._by_key and self._by_key[key][0].value is None

    def stands(self, record: Record) -> bool:
        """Whether it is the last record of its key."""
        return self._by_key[record.key][-1] is record

    def of(self, kind: str, group: str) -> list[Record]:
        """Every record with a value whose key begins with a kind and a group, in order."""
        return [record for record in self._by_group.get((kind, group), ()) if record.value is not None]

    def _take(self, record: Record) -> None:
        self.records.append(record)
        self._by_key.setdefault(record.key, []).append(record)
        if len(record.key) > 1:
            self._by_group.setdefault(record.key[:2], []).append(record)


def _record(message: Any) -> Record:
    at = message.timestamp()[1] / 1000
    try:
        key = tuple(json.loads(message.key() or b"[]"))
    except ValueError:
        key = ("?",)
    value = message.value()
    try:
        value = None if value is None else json.loads(value)
    except ValueError:
        value = repr(value)
    return Record(message.offset(), at, key or ("?",), value)
