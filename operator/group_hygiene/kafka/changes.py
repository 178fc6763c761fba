"""The requests that change Kafka: DeleteGroups (KIP-229), OffsetDelete (KIP-496), OffsetCommit, AlterShareGroupOffsets
(KIP-932) and CreateTopics. Only `engine.executor` imports this module.

Each request is sent once: brokers may have carried out one without an answer. The callers name only as many partitions
as fit into one write of the broker (`offsets.write_chunks`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest, DeleteGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetDeleteRequest
from kafka.protocol.metadata import MetadataRequest

from group_hygiene.kafka.client import NO_ANSWER, Call, Client, Deadline, Response, fault_of_code, retrying_one
from group_hygiene.kafka.cluster import Question, ask_once
from group_hygiene.kafka.library import AlterShareGroupOffsetsRequest, topic_rows
from group_hygiene.kafka.offsets import BY_TOPIC_ID, UNKNOWN_TOPIC_ID, split
from group_hygiene.model.groups import Fault, Offsets, Partition

_DELETE_CHUNK = 50
_CREATE_MS = 3_000
_ALREADY_EXISTS, _NOT_CONTROLLER = 36, 41
_TOPIC_DENIED, _GROUP_DENIED, _CLUSTER_DENIED = 29, 30, 31
# The advice for a refused request, by its API key and the error code.
_ADVICE = {
    (DeleteGroupsRequest.API_KEY, _GROUP_DENIED): "needs DELETE on the group",
    (OffsetDeleteRequest.API_KEY, _TOPIC_DENIED): "needs READ on the topic",
    (OffsetDeleteRequest.API_KEY, _GROUP_DENIED): "needs DELETE on the group",
    (OffsetCommitRequest.API_KEY, _TOPIC_DENIED): "needs READ on the topic",
    (OffsetCommitRequest.API_KEY, _GROUP_DENIED): "needs READ on the group",
    (OffsetCommitRequest.API_KEY, UNKNOWN_TOPIC_ID): "the topic was deleted or recreated",
    (AlterShareGroupOffsetsRequest.API_KEY, _TOPIC_DENIED): "needs READ on the topic",
    (AlterShareGroupOffsetsRequest.API_KEY, _GROUP_DENIED): "needs READ on the group",
}


def delete_groups(client: Client, groups: Mapping[str, int | None], deadline: Deadline) -> dict[str, Fault | None]:
    """Delete each group by one request to its coordinator: None = deleted, else the Fault.

    Never repeats a request: the broker may have carried out one without an answer, and by the time of a second one a
    consumer may use the group. NON_EMPTY_GROUP is the broker's own check; GROUP_ID_NOT_FOUND = already gone.
    """
    question = Question(
        request=lambda ids: DeleteGroupsRequest(groups_names=ids),
        answers=lambda _, response: {
            row.group_id: _fault(response, row) if row.error_code else None for row in response.results
        },
        chunk=_DELETE_CHUNK,
    )
    return ask_once(client, groups, question, deadline)


def delete_offsets(
    client: Client,
    group: str,
    partitions: Collection[Partition],
    deadline: Deadline,
    coordinator: int | None = None,
) -> dict[Partition, Fault | None]:
    """Delete a group's committed offsets (KIP-496): for each partition None = none is left, else the Fault.

    coordinator: the last known one; None = look it up. GROUP_SUBSCRIBED_TO_TOPIC is the Fault of a partition whose
    topic a member subscribes to; UNSUPPORTED_VERSION that of all partitions on brokers older than 2.4.
    """
    row_class = OffsetDeleteRequest.OffsetDeleteRequestTopic
    entry_class = row_class.OffsetDeleteRequestPartition
    entries = {place: entry_class(partition_index=place.partition) for place in partitions}
    request = OffsetDeleteRequest(group_id=group, topics=topic_rows(row_class, "name", entries))
    return _send(client, {group: coordinator}, partitions, request, deadline)


def commit_offsets(
    client: Client,
    group: str,
    offsets: Offsets,
    deadline: Deadline,
    coordinator: int | None = None,
    topic_ids: Mapping[str, str] = MappingProxyType({}),
) -> dict[Partition, Fault | None]:
    """Commit as an assign+commit consumer does (generation -1): for each partition None = committed, else the Fault.

    coordinator: the last known one; None = look it up. Sends nothing after the deadline, and nothing twice: the broker
    may have carried out a commit without an answer. A group with members answers UNKNOWN_MEMBER_ID. If the group is
    absent, the broker creates a simple group, even under the id of a deleted share group. topic_ids: name -> id of the
    topics of these offsets; brokers with OffsetCommit v10 (Kafka 4.1) refuse another topic of that name with
    UNKNOWN_TOPIC_ID.
    """
    by_id, by_name = split(client, OffsetCommitRequest, offsets, topic_ids)
    row_class = OffsetCommitRequest.OffsetCommitRequestTopic
    entries = {
        place: row_class.OffsetCommitRequestPartition(
            partition_index=place.partition,
            committed_offset=commit.offset,
            committed_leader_epoch=commit.leader_epoch,
            committed_metadata=commit.metadata,
        )
        for place, commit in offsets.items()
    }
    named = topic_rows(row_class, "name", {place: entries[place] for place in by_name})
    request = OffsetCommitRequest(group_id=group, topics=named, max_version=BY_TOPIC_ID - 1)
    results = _send(client, {group: coordinator}, by_name, request, deadline)
    identified = topic_rows(row_class, "topic_id", {place: entries[place] for place in by_id}, topic_ids)
    request = OffsetCommitRequest(group_id=group, topics=identified, min_version=BY_TOPIC_ID, max_version=BY_TOPIC_ID)
    names = {topic_ids[place.topic]: place.topic for place in by_id}
    return results | _send(client, {group: coordinator}, by_id, request, deadline, names)


def set_share_offsets(
    client: Client, group: str, offsets: Offsets, deadline: Deadline, coordinator: int | None = None
) -> dict[Partition, Fault | None]:
    """Set start offsets of an Empty share group, or create one with them: for each None = set, else the Fault.

    A group with members answers NON_EMPTY_GROUP, and one of another type GROUP_ID_NOT_FOUND. Sends nothing after the
    deadline, and nothing twice. coordinator: the last known one; None = look it up.
    """
    topic_class = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    entry_class = topic_class.AlterShareGroupOffsetsRequestPartition
    entries = {
        place: entry_class(partition_index=place.partition, start_offset=start.offset)
        for place, start in offsets.items()
    }
    request = AlterShareGroupOffsetsRequest(group_id=group, topics=topic_rows(topic_class, "topic_name", entries))
    return _send(client, {group: coordinator}, offsets, request, deadline)


def _send(
    client: Client,
    coordinators: Mapping[str, int | None],
    places: Collection[Partition],
    request: Any,
    deadline: Deadline,
    names: Mapping[str, str] = MappingProxyType({}),
) -> dict[Partition, Fault | None]:
    """Send one request about these partitions to a group's coordinator; without partitions nothing.

    coordinators: the one group, and its coordinator; None = look it up. names: topic id -> name, if the request names
    ids.
    """
    if not places:
        return {}

    def written(ids: Sequence[str], response: Response) -> dict[str, dict[Partition, Fault | None] | Fault]:
        if getattr(response, "error_code", 0):
            return {ids[0]: _fault(response, response)}
        # AlterShareGroupOffsets has other names for these.
        shares = hasattr(response, "responses")
        return {
            ids[0]: {
                Partition(name, entry.partition_index): _fault(response, entry) if entry.error_code else None
                for topic in (response.responses if shares else response.topics)
                for name in [names[str(topic.topic_id)] if names else topic.topic_name if shares else topic.name]
                for entry in topic.partitions
            }
        }

    (answer,) = ask_once(client, coordinators, Question(lambda _: request, written, 1), deadline).values()
    return {place: answer if isinstance(answer, Fault) else answer.get(place, NO_ANSWER) for place in places}


def _fault(response: Response, row: Any) -> Fault:
    """row: the part of the response with the error."""
    advice = _ADVICE.get((response.API_KEY, row.error_code))
    return fault_of_code(row.error_code, advice or getattr(row, "error_message", None))


def create_topic(
    client: Client,
    name: str,
    replicas: int,
    configs: Mapping[str, str],
    deadline: Deadline,
    validate_only: bool,
) -> Fault | None:
    """Create a topic with one partition; with `validate_only`, the controller only checks the request. None = done, or
    the topic exists already.
    """
    topic_class = CreateTopicsRequest.CreatableTopic
    topic = topic_class(
        name=name,
        num_partitions=1,
        replication_factor=replicas,
        assignments=[],
        configs=[topic_class.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=_CREATE_MS, validate_only=validate_only)
    answer = retrying_one(lambda: client.send(Call(None, MetadataRequest(topics=[])), deadline), deadline)
    if not isinstance(answer, Fault):
        answer = client.send(Call(answer.controller_id, request), deadline)
    if isinstance(answer, Fault):
        return answer
    (row,) = answer.topics
    if row.error_code in (0, _ALREADY_EXISTS):
        return None
    if row.error_code == _NOT_CONTROLLER:
        return Fault("NOT_CONTROLLER", "the controller moved", retriable=True)
    denied = row.error_code in (_TOPIC_DENIED, _CLUSTER_DENIED)
    return fault_of_code(row.error_code, f"needs CREATE on the topic {name}" if denied else row.error_message)
