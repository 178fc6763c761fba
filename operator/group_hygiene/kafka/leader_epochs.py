"""Leader epochs of a log (KIP-101): where the records of an epoch end in the leader's log now. Reads only.

A reader that read up to an offset in some epoch, and now finds that the epoch ends before that offset, read records
that an unclean leader election has since truncated (KIP-320).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from group_hygiene.kafka.client import NO_ANSWER, Call, Client, Deadline, fault_of_code, retrying
from group_hygiene.kafka.offsets import leaders_of
from group_hygiene.model.groups import NO_LEADER_EPOCH, Fault, LogPlace, Partition

_CONSUMER = -1


def epoch_ends(client: Client, epochs: Mapping[Partition, int], deadline: Deadline) -> dict[Partition, int | Fault]:
    """By OffsetForLeaderEpoch: the offset after the last record of this leader epoch, or of the last one before it.

    NO_LEADER_EPOCH if the leader knows neither: the log was recreated, or has an old format. Partitions whose epoch is
    NO_LEADER_EPOCH have no entry. Needs DESCRIBE on the topic.
    """
    asked = {place: epoch for place, epoch in epochs.items() if epoch != NO_LEADER_EPOCH}

    def attempt(left: list[Partition]) -> dict[Partition, int | Fault]:
        leaders = leaders_of(client, left, deadline)
        results: dict[Partition, int | Fault] = {}
        by_leader: dict[int, list[Partition]] = {}
        for place, leader in leaders.items():
            if isinstance(leader, Fault):
                results[place] = leader
            else:
                by_leader.setdefault(leader, []).append(place)
        calls = {leader: Call(leader, _request(places, asked)) for leader, places in by_leader.items()}
        for leader, answer in client.send_each(calls, deadline).items():
            answered = answer if isinstance(answer, Fault) else _ends(answer)
            for place in by_leader[leader]:
                results[place] = answered if isinstance(answered, Fault) else answered.get(place, NO_ANSWER)
        return results

    return retrying(sorted(asked), attempt, deadline) if asked else {}


def is_cut_off(client: Client, read: Mapping[Partition, LogPlace], deadline: Deadline) -> bool | Fault:
    """Whether a log lost records before the place up to which it was read: by a power failure, or an unclean election.

    To be asked after a read from there on: no other records were at offsets that were read before. A place with
    NO_LEADER_EPOCH shows nothing.
    """
    for partition, end in epoch_ends(client, {p: at.leader_epoch for p, at in read.items()}, deadline).items():
        if isinstance(end, Fault):
            return end
        if end < read[partition].offset:
            return True
    return False


def _request(places: list[Partition], epochs: Mapping[Partition, int]) -> Any:
    topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition_class = topic_class.OffsetForLeaderPartition
    by_topic: dict[str, list[Any]] = {}
    for place in places:
        entry = partition_class(partition=place.partition, leader_epoch=epochs[place])
        by_topic.setdefault(place.topic, []).append(entry)
    topics = [topic_class(topic=topic, partitions=entries) for topic, entries in by_topic.items()]
    return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics)


def _ends(answer: Any) -> dict[Partition, int | Fault]:
    return {
        Partition(topic.topic, entry.partition): fault_of_code(entry.error_code)
        if entry.error_code
        else int(entry.end_offset)
        for topic in answer.topics
        for entry in topic.partitions
    }
