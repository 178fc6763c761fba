"""Reads the start offsets of share groups (KIP-932), which OffsetFetch doesn't return.

A share group has one start offset per partition, and has finished every record before it. No request reads in full, or
sets, which later records it has finished and how often others were delivered. Newer brokers count those that it has not
finished (KIP-1226).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from group_hygiene.kafka.client import Client, Deadline, Results, fault_of_code
from group_hygiene.kafka.cluster import partition_counts
from group_hygiene.kafka.coordinators import Question, ask
from group_hygiene.kafka.offsets import end_offsets, start_offsets
from group_hygiene.kafka.protocol import AlterShareGroupOffsetsRequest, DescribeShareGroupOffsetsRequest
from group_hygiene.model.groups import NO_START_OFFSET, CommittedOffset, Fault, Offsets, Partition

# The broker sends one request for the state of each partition.
_CHUNK = 20
_POLL_S = 0.1
_STATE_TOPIC = "__share_group_state"
# org.apache.kafka.server.share.persister.PartitionFactory
_UNSET, _DEFAULT_EPOCH = -1, 0
_UNSUPPORTED = Fault("UNSUPPORTED_VERSION", "offsets of share groups need brokers of 4.1 or later")


@dataclass(frozen=True, slots=True)
class ShareOffsets:
    """The start offsets of a share group.

    started: its start offsets, without epoch and metadata, which no request can set. unset: partitions of the group
    without a start offset, as no consumer has read them yet (share.auto.offset.reset decides then). unsure: those of
    `unset` that may have one: Kafka shows a partition that it could not read as unset in leader epoch 0, without an
    error (GroupCoordinatorService.computeShareGroupLagAndBuildResponse). lag: the number of records up to the end that
    the group has not finished, where the broker counts them (KIP-1226).
    """

    started: Offsets
    unset: frozenset[Partition]
    unsure: frozenset[Partition] = frozenset()
    lag: Mapping[Partition, int] = field(default_factory=dict)


def share_offsets(client: Client, groups: Mapping[str, int | None], deadline: Deadline) -> Results[str, ShareOffsets]:
    """The start offsets of each share group. `groups` maps id -> coordinator, None = look it up.

    A group that does not exist, or is of another type, has none, without an error. UNSUPPORTED_VERSION is the Fault of
    every group if the brokers can't both read and set start offsets.
    """
    if not client.supports(AlterShareGroupOffsetsRequest):
        return Results(dict.fromkeys(groups, _UNSUPPORTED))
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
    lag: dict[Partition, int] = {}
    for topic in row.topics:
        for entry in topic.partitions:
            place = Partition(topic.topic_name, entry.partition_index)
            if entry.error_code:
                return fault_of_code(entry.error_code, entry.error_message).at(place)
            if entry.lag >= 0:
                lag[place] = entry.lag
            if entry.start_offset == _UNSET:
                unset[place] = entry.leader_epoch
            else:
                started[place] = CommittedOffset(entry.start_offset)
    unsure = {place for place, epoch in unset.items() if epoch == _DEFAULT_EPOCH}
    return ShareOffsets(started, frozenset(unset), frozenset(unsure), lag)


def complete_offsets(
    client: Client, groups: Mapping[str, int | None], deadline: Deadline, *, again: bool = False
) -> dict[str, Offsets | Fault]:
    """The start offsets of each share group if these are certainly complete, else a Fault.

    An unsure partition without records has no start offset to lose. If it holds records, the Fault is NO_START_OFFSET:
    no answer shows whether the group has a start offset in it. again: the caller asks at several times, so a group
    that shows no start offset at all has none, as long as all leaders of `__share_group_state` answer.
    """
    found = share_offsets(client, groups, deadline)
    unsure = {place for answer in found.ok.values() for place in answer.unsure}
    starts = start_offsets(client, unsure, deadline)
    ends = end_offsets(client, unsure, deadline)
    read_nothing = any(answer.unsure and not answer.started for answer in found.ok.values())
    readable = again and read_nothing and _state_is_led(client, deadline)

    def judged(answer: ShareOffsets | Fault) -> Offsets | Fault:
        if isinstance(answer, Fault):
            return answer
        if readable and not answer.started:
            return {}
        for place in sorted(answer.unsure):
            start, end = starts[place], ends[place]
            if isinstance(start, Fault) or isinstance(end, Fault) or start < end:
                why = "it was not consumed yet or could not be read, as Kafka answers both alike"
                return Fault(NO_START_OFFSET, f"{place} holds records and shows no start offset: {why}")
        return answer.started

    return {name: judged(answer) for name, answer in found.items()}


def _state_is_led(client: Client, deadline: Deadline) -> bool:
    """Whether the leader of each partition of `__share_group_state` answers: only these can read a start offset."""
    count = partition_counts(client, [_STATE_TOPIC], deadline)[_STATE_TOPIC]
    places = [] if isinstance(count, Fault) else [Partition(_STATE_TOPIC, index) for index in range(count)]
    return bool(places) and not end_offsets(client, places, deadline).faults


def wait_until_shown(
    client: Client, coordinators: Mapping[str, int | None], partitions: Collection[Partition], deadline: Deadline
) -> None:
    """Wait until a group shows start offsets for these partitions, or until the deadline.

    Brokers answer before the group itself shows the offsets (persisterInitialize). coordinators: the group's id -> its
    coordinator.
    """
    while partitions:
        (found,) = share_offsets(client, coordinators, deadline).values()
        if isinstance(found, Fault) or found.started.keys() >= set(partitions) or deadline.left <= _POLL_S:
            return
        time.sleep(_POLL_S)
