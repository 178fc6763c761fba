"""Start offsets of share groups (KIP-932): read them, and set them. OffsetFetch and OffsetCommit know nothing of them.

A share group has one start offset per partition, and is done with every record before it. Which of the records after it
it is done with too, and how often others were delivered, no request tells in whole, and none can set.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from group_hygiene.kafka.client import Client, Deadline, Response, fault_of_code
from group_hygiene.kafka.coordinators import Question, ask
from group_hygiene.kafka.messages import AlterShareGroupOffsetsRequest, DescribeShareGroupOffsetsRequest
from group_hygiene.kafka.offsets import end_offsets, start_offsets
from group_hygiene.model import CommittedOffset, Fault, Offsets, Partition

# The broker asks for the state of each partition by a request of its own.
_CHUNK = 20
_LOOK_S = 0.1
# org.apache.kafka.server.share.persister.PartitionFactory
_UNSET, _DEFAULT_EPOCH = -1, 0
_UNSUPPORTED = Fault("UNSUPPORTED_VERSION", "offsets of share groups need brokers of 4.1 or later")
_NOT_ANSWERED = Fault("NO_ANSWER", "the broker's answer leaves it out")
_TOPIC_DENIED, _GROUP_DENIED = 29, 30
_WRITE_ADVICE = {_TOPIC_DENIED: "needs READ on the topic", _GROUP_DENIED: "needs READ on the group"}


@dataclass(frozen=True, slots=True)
class ShareOffsets:
    """Where a share group begins in each partition.

    started: its start offsets, without epoch and metadata, as nobody can set these. unset: partitions that are the
    group's and show no start offset, as nobody consumed of them yet (share.auto.offset.reset decides then). unsure:
    those of them that may have one: what could not be read, Kafka shows as unset in leader epoch 0, without an error
    (GroupCoordinatorService.computeShareGroupLagAndBuildResponse).
    """

    started: Offsets
    unset: frozenset[Partition]
    unsure: frozenset[Partition] = frozenset()


def share_offsets(
    client: Client, groups: Mapping[str, int | None], deadline: Deadline
) -> dict[str, ShareOffsets | Fault]:
    """The start offsets of each share group. `groups` maps id -> coordinator, None = look it up.

    A group that does not exist, or is of another type, has none, without an error. UNSUPPORTED_VERSION is the Fault of
    every group where the brokers can tell no offsets, or can tell them and not set them.
    """
    if not client.supports(AlterShareGroupOffsetsRequest):
        return dict.fromkeys(groups, _UNSUPPORTED)
    row_class = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    question = Question(
        request=lambda ids: DescribeShareGroupOffsetsRequest(groups=[row_class(group_id=i, topics=None) for i in ids]),
        answers=lambda _, response: {row.group_id: _offsets_of(row) for row in response.groups},
        chunk=_CHUNK,
    )
    return ask(client, groups, question, deadline)


def _offsets_of(row: Any) -> ShareOffsets | Fault:
    if row.error_code:
        return fault_of_code(row.error_code, row.error_message)
    started: dict[Partition, CommittedOffset] = {}
    unset: dict[Partition, int] = {}
    for topic in row.topics:
        for entry in topic.partitions:
            place = Partition(topic.topic_name, entry.partition_index)
            if entry.error_code:
                fault = fault_of_code(entry.error_code, entry.error_message)
                return Fault(fault.code, f"{place}: {fault.message}", fault.retriable)
            if entry.start_offset == _UNSET:
                unset[place] = entry.leader_epoch
            else:
                started[place] = CommittedOffset(entry.start_offset)
    unsure = {place for place, epoch in unset.items() if epoch == _DEFAULT_EPOCH}
    return ShareOffsets(started, frozenset(unset), frozenset(unsure))


def whole_offsets(client: Client, groups: Mapping[str, int | None], deadline: Deadline) -> dict[str, Offsets | Fault]:
    """The start offsets of each share group, where these are surely all that it has; else a Fault.

    A partition that may have one has none to lose as long as it holds no records. If it does, the Fault is
    NO_START_OFFSET: whether the group has a place in it, no answer tells.
    """
    found = share_offsets(client, groups, deadline)
    doubtful = {place for answer in found.values() if not isinstance(answer, Fault) for place in answer.unsure}
    starts = start_offsets(client, doubtful, deadline)
    ends = end_offsets(client, doubtful, deadline)

    def judged(answer: ShareOffsets | Fault) -> Offsets | Fault:
        if isinstance(answer, Fault):
            return answer
        for place in sorted(answer.unsure):
            start, end = starts[place], ends[place]
            if isinstance(start, Fault) or isinstance(end, Fault) or start < end:
                why = "it was not consumed yet or could not be read, for Kafka answers both alike"
                return Fault("NO_START_OFFSET", f"{place} holds records and shows no start offset: {why}")
        return answer.started

    return {name: judged(answer) for name, answer in found.items()}


def set_offsets(
    client: Client, group: str, offsets: Offsets, deadline: Deadline, coordinator: int | None = None
) -> dict[Partition, Fault | None]:
    """Set start offsets of an Empty share group, or make one that has them: for each None = set, else the Fault.

    A group with members answers NON_EMPTY_GROUP, and one of another type GROUP_ID_NOT_FOUND. Nothing is sent after the
    deadline, and nothing twice. coordinator: as last known; None = look it up.
    """
    topic_class = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    entry_class = topic_class.AlterShareGroupOffsetsRequestPartition
    topics: dict[str, list[Any]] = {}
    for place, start in offsets.items():
        entry = entry_class(partition_index=place.partition, start_offset=start.offset)
        topics.setdefault(place.topic, []).append(entry)
    rows = [topic_class(topic_name=name, partitions=entries) for name, entries in topics.items()]
    request = AlterShareGroupOffsetsRequest(group_id=group, topics=rows)
    question = Question(lambda _: request, lambda ids, response: {ids[0]: _set(response)}, 1)
    answer = ask(client, {group: coordinator}, question, deadline, retry=False)[group]
    if isinstance(answer, Fault):
        return dict.fromkeys(offsets, answer)
    return {place: answer.get(place, _NOT_ANSWERED) for place in offsets}


def wait_shown(
    client: Client, home: Mapping[str, int | None], partitions: Collection[Partition], deadline: Deadline
) -> None:
    """Wait until a group shows start offsets for these partitions, or the deadline.

    Brokers answer that they are set before they note in the group that it has them (persisterInitialize). home: the
    group's id and coordinator.
    """
    while partitions:
        (found,) = share_offsets(client, home, deadline).values()
        if isinstance(found, Fault) or found.started.keys() >= set(partitions) or deadline.left <= _LOOK_S:
            return
        time.sleep(_LOOK_S)


def _set(response: Response) -> dict[Partition, Fault | None] | Fault:
    def fault(code: int, message: str | None) -> Fault:
        return fault_of_code(code, _WRITE_ADVICE.get(code) or message)

    if response.error_code:
        return fault(response.error_code, response.error_message)
    return {
        Partition(topic.topic_name, entry.partition_index): (
            fault(entry.error_code, entry.error_message) if entry.error_code else None
        )
        for topic in response.responses
        for entry in topic.partitions
    }
