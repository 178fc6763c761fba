"""Offsets: what groups committed (KIP-88, KIP-447, KIP-709) and where partitions begin and end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kafka.protocol.consumer import ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.metadata import MetadataRequest

from group_hygiene.kafka.client import Call, Client, Deadline, Response, fault_of_code, retrying
from group_hygiene.kafka.coordinators import Question, ask
from group_hygiene.model import CommittedOffset, Fault, Offsets, Partition

# Groups per OffsetFetch: large enough that the round trip does not count, small enough that answers don't pile up.
_FETCH_CHUNK = 500
# Groups times named partitions per OffsetFetch: some 2 MB of answer.
_NAMED_PARTITIONS = 50_000
_PARTITION_CHUNK = 5_000
_LATEST, _EARLIEST = -1, -2


def committed_offsets(
    client: Client,
    groups: Mapping[str, int | None],
    deadline: Deadline,
    partitions: Collection[Partition] | None = None,
    require_stable: bool = False,
) -> dict[str, Offsets | Fault]:
    """The committed offsets of each group, of all its partitions or of `partitions`; those without one are left out.

    `groups` maps id -> coordinator, None = look it up. Batched per coordinator from OffsetFetch v8 on, one request a
    group below. With `require_stable` (v7) a partition with a pending transactional commit makes its group a Fault
    UNSTABLE_OFFSET_COMMIT, but only for partitions that are named or have a committed offset already.
    """
    batched = client.supports(OffsetFetchRequest, 8)
    topics = None if partitions is None else _by_topic(partitions)
    extra: dict[str, Any] = {"require_stable": True} if require_stable else {}

    def request(ids: list[str]) -> Any:
        if not batched:
            single = OffsetFetchRequest.OffsetFetchRequestTopic
            named = None if topics is None else [single(name=t, partition_indexes=p) for t, p in topics.items()]
            low = 7 if require_stable else 2
            return OffsetFetchRequest(group_id=ids[0], topics=named, min_version=low, max_version=7, **extra)
        group_class = OffsetFetchRequest.OffsetFetchRequestGroup
        topic_class = group_class.OffsetFetchRequestTopics
        named = None if topics is None else [topic_class(name=t, partition_indexes=p) for t, p in topics.items()]
        members = [group_class(group_id=group, topics=named) for group in ids]
        return OffsetFetchRequest(groups=members, min_version=8, max_version=8, **extra)

    if batched:
        chunk = (
            _FETCH_CHUNK
            if partitions is None
            else max(1, min(_FETCH_CHUNK, _NAMED_PARTITIONS // max(1, len(partitions))))
        )
        question = Question(request, _batched_answers, chunk)
        return ask(client, groups, question, deadline)
    results: dict[str, Offsets | Fault] = {}
    for group, coordinator in groups.items():
        alone = Question(request, lambda r, g=group: {g: _offsets_of(r)}, 1)  # type: ignore[misc]
        results.update(ask(client, {group: coordinator}, alone, deadline))
    return results


def _batched_answers(response: Response) -> dict[str, Offsets | Fault]:
    return {row.group_id: _offsets_of(row) for row in response.groups}


def _offsets_of(row: Any) -> Offsets | Fault:
    if row.error_code:
        return fault_of_code(row.error_code)
    offsets: dict[Partition, CommittedOffset] = {}
    for topic in row.topics:
        name = topic.name
        for entry in topic.partitions:
            if entry.error_code:
                fault = fault_of_code(entry.error_code)
                return Fault(fault.code, f"{name}-{entry.partition_index}: {fault.message}", fault.retriable)
            if entry.committed_offset >= 0:
                key = Partition(name, entry.partition_index)
                offsets[key] = CommittedOffset(
                    entry.committed_offset, entry.committed_leader_epoch, entry.metadata or ""
                )
    return offsets


def end_offsets(client: Client, partitions: Iterable[Partition], deadline: Deadline) -> dict[Partition, int | Fault]:
    """The offset after the last record that a read_uncommitted consumer can see (high watermark), of each partition."""
    return _list_offsets(client, partitions, deadline, _LATEST)


def start_offsets(client: Client, partitions: Iterable[Partition], deadline: Deadline) -> dict[Partition, int | Fault]:
    """The offset of the first record that retention or DeleteRecords left (log start), of each partition."""
    return _list_offsets(client, partitions, deadline, _EARLIEST)


def _list_offsets(
    client: Client, partitions: Iterable[Partition], deadline: Deadline, timestamp: int
) -> dict[Partition, int | Fault]:
    wanted = sorted(set(partitions))

    def attempt(left: list[Partition]) -> dict[Partition, int | Fault]:
        leaders = _leaders(client, {partition.topic for partition in left}, deadline)
        results: dict[Partition, int | Fault] = {}
        by_leader: dict[int, list[Partition]] = {}
        for partition in left:
            leader = leaders.get(partition) if not isinstance(leaders, Fault) else leaders
            if isinstance(leader, Fault):
                results[partition] = leader
            elif leader is None:
                results[partition] = Fault("UNKNOWN_TOPIC_OR_PARTITION", str(partition))
            else:
                by_leader.setdefault(leader, []).append(partition)
        calls = {
            (leader, start): Call(leader, _list_offsets_request(members[start : start + _PARTITION_CHUNK], timestamp))
            for leader, members in by_leader.items()
            for start in range(0, len(members), _PARTITION_CHUNK)
        }
        for (leader, start), answer in client.send_each(calls, deadline).items():
            if isinstance(answer, Fault):
                results.update(dict.fromkeys(by_leader[leader][start : start + _PARTITION_CHUNK], answer))
                continue
            for topic in answer.topics:
                for entry in topic.partitions:
                    key = Partition(topic.name, entry.partition_index)
                    results[key] = fault_of_code(entry.error_code) if entry.error_code else entry.offset
        return results

    return retrying(wanted, attempt, deadline)


def _list_offsets_request(partitions: list[Partition], timestamp: int) -> Any:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    partition_class = topic_class.ListOffsetsPartition
    topics = [
        topic_class(name=name, partitions=[partition_class(partition_index=p, timestamp=timestamp) for p in indexes])
        for name, indexes in _by_topic(partitions).items()
    ]
    return ListOffsetsRequest(isolation_level=0, topics=topics, min_version=1)


def _leaders(client: Client, topics: set[str], deadline: Deadline) -> dict[Partition, int | Fault] | Fault:
    named = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(topics)]
    answer = client.send(Call(None, MetadataRequest(topics=named, allow_auto_topic_creation=False)), deadline)
    if isinstance(answer, Fault):
        return answer
    leaders: dict[Partition, int | Fault] = {}
    for topic in answer.topics:
        for entry in topic.partitions:
            key = Partition(topic.name, entry.partition_index)
            leaders[key] = fault_of_code(entry.error_code) if entry.leader_id < 0 else entry.leader_id
    return leaders


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics
