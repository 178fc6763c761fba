"""Members of groups that no Python client can join: share groups by Kafka's own console, Streams by its protocol."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from group_hygiene.kafka.client import Client, fault_of_code
from group_hygiene.kafka.cluster import Question, ask
from group_hygiene.model.groups import Fault
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka import schemas
from tests.kafka.makers import Maker, soon


class ShareGroupHeartbeatRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Joins, stays in and leaves a share group (KIP-932). API key 76."""


class ShareGroupHeartbeatResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    pass


class StreamsGroupHeartbeatRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Joins, stays in and leaves a Streams group (KIP-1071). API key 88."""


class StreamsGroupHeartbeatResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    pass


_Topology = StreamsGroupHeartbeatRequest.Topology
_Subtopology = _Topology.Subtopology
# org.apache.kafka.common.requests.StreamsGroupHeartbeatResponse.Status
_TOPICS_TO_COME, _DELAYED = 3, 5


class ShareMember:
    """Kafka's console share consumer, in a group from `with` until it has read the one record that ends it."""

    def __init__(self, kafka: KafkaCluster, make: Maker, group: str, topic: str) -> None:
        self._kafka, self._make, self._group, self._topic = kafka, make, group, topic
        self._thread = threading.Thread(target=self._consume)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        while self._thread.is_alive():
            self._make.produce(self._topic, [(None, b"the end")])
            self._thread.join(1)

    def _consume(self) -> None:
        servers, end = self._kafka.bootstrap_servers, ("--max-messages", "1", "--timeout-ms", "600000")
        arguments = ("--bootstrap-server", servers, "--topic", self._topic, "--group", self._group, *end)
        self._kafka.tool("org.apache.kafka.tools.consumer.ConsoleShareConsumer", *arguments)


class SilentShareMember:
    """A member of a share group from `with` on that consumes nothing."""

    def __init__(self, client: Client, group: str, topic: str) -> None:
        self._client, self._group, self._topic = client, group, topic
        self._id = str(uuid.uuid4())

    def __enter__(self) -> Self:
        self._send(0)
        return self

    def __exit__(self, *_error: object) -> None:
        self._send(-1)

    def _send(self, epoch: int) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id=self._group, member_id=self._id, member_epoch=epoch, subscribed_topic_names=[self._topic]
        )
        _ask(self._client, self._group, request, _answered)


class StreamsMember:
    """A member of a Streams group that speaks its protocol and processes nothing; `parts`: made by `part`.

    It is in the group from `with` on, and has what it was given where there is anything to give.
    """

    def __init__(self, client: Client, group: str, parts: Sequence[Any]) -> None:
        self._client, self._group, self._parts = client, group, parts
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.tasks: Mapping[str, Sequence[int]] = {}

    def __enter__(self) -> Self:
        wait_for(self.beat)
        return self

    def __exit__(self, *_error: object) -> None:
        self._send(member_epoch=-1)

    def beat(self) -> bool:
        """One heartbeat; whether the coordinator has nothing new to say, be it that all is well or what is missing."""
        joining = self.epoch == 0
        rows = [{"subtopology_id": part, "partitions": list(tasks)} for part, tasks in self.tasks.items()]
        answer = self._send(
            member_epoch=self.epoch,
            rebalance_timeout_ms=120_000,
            topology=_Topology(epoch=0, subtopologies=self._parts) if joining else None,
            active_tasks=[_task(**row) for row in rows],
            standby_tasks=[],
            warmup_tasks=[],
            process_id=self.id,
            client_tags=[],
        )
        self.epoch = answer.member_epoch
        if answer.active_tasks is not None:
            self.tasks = {row.subtopology_id: row.partitions for row in answer.active_tasks}
        waits = {row.status_code for row in answer.status} & {_TOPICS_TO_COME, _DELAYED}
        return answer.active_tasks is None and not waits

    def _send(self, **fields: Any) -> Any:
        request = StreamsGroupHeartbeatRequest(
            group_id=self._group, member_id=self.id, endpoint_information_epoch=-1, **fields
        )
        return _ask(self._client, self._group, request, _answered)

    def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        """As a member: partition of a topic -> offset."""
        row_class = OffsetCommitRequest.OffsetCommitRequestTopic
        entry = row_class.OffsetCommitRequestPartition
        rows = [entry(partition_index=index, committed_offset=offset) for index, offset in offsets.items()]
        fields = {"generation_id_or_member_epoch": self.epoch, "member_id": self.id, "max_version": 9}
        topics = [row_class(name=topic, partitions=rows)]
        request = OffsetCommitRequest(group_id=self._group, topics=topics, min_version=9, **fields)
        codes = _ask(
            self._client, self._group, request, lambda answer: [p.error_code for p in answer.topics[0].partitions]
        )
        assert not any(codes), codes

    def committed(self, topic: str, partitions: int) -> list[int]:
        """What the member is told that it goes on from, -1 = nothing is committed."""
        row_class = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = [row_class.OffsetFetchRequestTopics(name=topic, partition_indexes=list(range(partitions)))]
        row = row_class(group_id=self._group, member_id=self.id, member_epoch=self.epoch, topics=topics)
        request = OffsetFetchRequest(groups=[row], min_version=9, max_version=9)
        (answered,) = _ask(self._client, self._group, request, lambda answer: answer.groups)
        assert answered.error_code == 0
        return [entry.committed_offset for entry in answered.topics[0].partitions]


def _ask(client: Client, group: str, request: Any, read: Callable[[Any], Any]) -> Any:
    """What the coordinator of the group answers."""
    question = Question[str](lambda _: request, lambda ids, response: {ids[0]: read(response)}, 1)
    answer = ask(client, {group: None}, question, soon())[group]
    assert not isinstance(answer, Fault), answer
    return answer


def _answered(response: Any) -> Any:
    return fault_of_code(response.error_code, response.error_message) if response.error_code else response


def _task(**fields: Any) -> Any:
    return StreamsGroupHeartbeatRequest.TaskIds(**fields)


def part(name: str, topics: Sequence[str], into: Sequence[str] = (), own: Mapping[str, int] | None = None) -> Any:
    """A subtopology that reads `topics` and its own repartition topics (name -> partitions), and writes `into` such."""
    own_topics = [
        _Subtopology.TopicInfo(name=topic, partitions=partitions, replication_factor=1, topic_configs=[])
        for topic, partitions in (own or {}).items()
    ]
    return _Subtopology(
        subtopology_id=name,
        source_topics=list(topics),
        source_topic_regex=[],
        state_changelog_topics=[],
        repartition_sink_topics=list(into),
        repartition_source_topics=own_topics,
        copartition_groups=[],
    )
