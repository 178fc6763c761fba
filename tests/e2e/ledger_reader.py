"""The ledger as any program can read it: a topic of JSON. For comparing what the operator says with what it wrote."""

from __future__ import annotations

import json
from typing import Any

from kafka import KafkaConsumer, TopicPartition


def ledger_entries(bootstrap: str, topic: str = "__group_hygiene") -> list[dict[str, Any]]:
    """The values of all committed records that are no tombstones, oldest first."""
    partition = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False)
    try:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        values: list[dict[str, Any]] = []
        while consumer.position(partition) < end:
            for record in consumer.poll(500).get(partition, []):
                if record.value is not None:
                    values.append(json.loads(record.value))
        return values
    finally:
        consumer.close()


def outcomes(bootstrap: str, group: str, topic: str = "__group_hygiene") -> list[tuple[str, str]]:
    """What became of a group, and why, oldest first."""
    entries = ledger_entries(bootstrap, topic)
    return [(e["what"], e["reason"]) for e in entries if e["kind"] == "outcome" and e["group"] == group]
