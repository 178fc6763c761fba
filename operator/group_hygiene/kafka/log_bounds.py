"""The offsets log as its brokers tell of it: which topic it is, where its partitions begin and end. Reads no record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, read_cluster, topic_ids
from group_hygiene.kafka.offsets import decided_offsets, start_offsets
from group_hygiene.model import NO_SUCH_TOPIC, Fault, Partition


@dataclass(frozen=True, slots=True)
class LogBounds:
    """topic_id None = brokers that know none (before 2.8). No partition = no topic: no group ever committed.

    starts, ends: partition of the log -> the first offset that is still there, and the one up to which all transactions
    were decided at `asked_at` or later.
    """

    cluster_id: str
    topic_id: str | None
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    asked_at: datetime


def read_log_bounds(client: Client, deadline: Deadline) -> LogBounds | Fault:
    """All partitions, or the first Fault: of a log that is known in part nothing can be said."""
    asked_at = datetime.now(UTC)
    cluster = read_cluster(client, deadline)
    if isinstance(cluster, Fault):
        return cluster
    topic_id = topic_ids(client, [OFFSETS_TOPIC], deadline)[OFFSETS_TOPIC]
    if isinstance(topic_id, Fault):
        if topic_id.code != NO_SUCH_TOPIC:
            return topic_id
        return LogBounds(cluster.id, None, {}, {}, asked_at)
    places = [Partition(OFFSETS_TOPIC, index) for index in cluster.leaders]
    found: list[dict[int, int]] = []
    for ask in (start_offsets, decided_offsets):
        answers = ask(client, places, deadline)
        for place, answer in answers.items():
            if isinstance(answer, Fault):
                return Fault(answer.code, f"{place}: {answer.message}", answer.retriable)
        found.append({place.partition: answer for place, answer in answers.items() if isinstance(answer, int)})
    starts, ends = found
    return LogBounds(cluster.id, topic_id or None, starts, ends, asked_at)
