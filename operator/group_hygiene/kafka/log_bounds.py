"""Where the partitions of `__consumer_offsets` begin and end, as brokers report it, and the topic's id.

Of the records it reads only the time of the first one of an open transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, read_cluster, topic_ids
from group_hygiene.kafka.offsets import end_offsets, epoch_ends, last_stable_offsets, start_offsets
from group_hygiene.kafka.partition import PartitionLeader, fetch_time
from group_hygiene.model.groups import NO_LEADER_EPOCH, NO_SUCH_TOPIC, Fault, Partition

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
