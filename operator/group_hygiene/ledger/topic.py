"""Finds and creates the topic of a ledger, and checks its settings, as with others Kafka would delete entries."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from kafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest

from group_hygiene.kafka.client import Call, Client, Deadline, fault_of_code, retrying
from group_hygiene.model.groups import Fault

_UNKNOWN_TOPIC = 3
_ALREADY_EXISTS = 36
_NOT_CONTROLLER = 41
_TOPIC_RESOURCE = 2
_PAUSE_SECONDS = 0.1
_CREATE_MS = 3_000
_SETTINGS = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
}
# Kafka compacts only closed segments: with its defaults, 1 GB or 7 days, opening the ledger would read all of that.
_SEGMENTS = {"segment.bytes": str(32 * 1024 * 1024), "segment.ms": str(24 * 60 * 60 * 1000)}


class Topic(NamedTuple):
    """A topic in a broker's metadata. id: changes when the topic is recreated (KIP-516), empty below 2.8."""

    id: str
    partitions: int


def find(client: Client, name: str, deadline: Deadline) -> Topic | Fault | None:
    """The topic; None = it does not exist."""
    answer = _metadata(client, name, deadline)
    if isinstance(answer, Fault):
        return answer
    (topic,) = answer.topics
    if topic.error_code == _UNKNOWN_TOPIC:
        return None
    if topic.error_code:
        return _topic_fault(topic.error_code, "DESCRIBE", name)
    return Topic(str(topic.topic_id or ""), len(topic.partitions))


def create(client: Client, name: str, replication_factor: int, deadline: Deadline) -> Topic | Fault:
    """Create the topic, with at most as many replicas as there are brokers, and wait until a broker's metadata has it.

    It is no Fault if another client creates it at the same time.
    """
    while True:
        made = _create(client, name, replication_factor, deadline)
        if made is not None and not made.retriable:
            return made
        found = find(client, name, deadline)
        if found is not None:
            return found
        if deadline.left <= _PAUSE_SECONDS:
            return made or Fault(
                "UNKNOWN_TOPIC_OR_PARTITION", f"topic {name} was created, but no broker's metadata has it"
            )
        # Brokers learn of a topic with delay; and a topic that is being deleted still exists, though no metadata has
        # it.
        time.sleep(_PAUSE_SECONDS)


def may_create(client: Client, name: str, deadline: Deadline) -> Fault | None:
    """Why the topic could not be created, by a request that only validates (CreateTopics, validateOnly)."""
    return _create(client, name, 1, deadline, validate_only=True)


def check(client: Client, name: str, topic: Topic, deadline: Deadline) -> str | Fault:
    """The wrong settings of the topic with the required values; empty = all are right."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=list(_SETTINGS)
    )

    def attempt(_: object) -> dict[None, Any | Fault]:
        answer = client.send(Call(None, DescribeConfigsRequest(resources=[resource])), deadline)
        if isinstance(answer, Fault):
            return {None: answer}
        (result,) = answer.results
        if result.error_code:
            return {None: _topic_fault(result.error_code, "DESCRIBE_CONFIGS", name)}
        return {None: {config.name: config.value for config in result.configs}}

    settings = retrying([None], attempt, deadline)[None]
    if isinstance(settings, Fault):
        return settings
    wrong = [
        f"{key} must be {value}, not {settings.get(key)}"
        for key, value in _SETTINGS.items()
        if settings.get(key) != value
    ]
    if topic.partitions != 1:
        wrong.insert(0, f"it must have 1 partition, not {topic.partitions}")
    return "; ".join(wrong)


def _create(
    client: Client, name: str, replication_factor: int, deadline: Deadline, validate_only: bool = False
) -> Fault | None:
    answer = _metadata(client, name, deadline)
    if isinstance(answer, Fault):
        return answer
    replicas = min(replication_factor, len(answer.brokers))
    settings = _SETTINGS | _SEGMENTS | {"min.insync.replicas": "2" if replicas >= 3 else "1"}
    topic_class = CreateTopicsRequest.CreatableTopic
    topic = topic_class(
        name=name,
        num_partitions=1,
        replication_factor=replicas,
        assignments=[],
        configs=[topic_class.CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=_CREATE_MS, validate_only=validate_only)
    created = client.send(Call(answer.controller_id, request), deadline)
    if isinstance(created, Fault):
        return created
    (row,) = created.topics
    if row.error_code in (0, _ALREADY_EXISTS):
        return None
    fault = _topic_fault(row.error_code, "CREATE", name)
    if row.error_code == _NOT_CONTROLLER:
        return Fault(fault.code, "the controller moved", retriable=True)
    message = "" if fault.message.startswith("needs") else row.error_message
    return Fault(fault.code, message or fault.message, fault.retriable)


def _metadata(client: Client, name: str, deadline: Deadline) -> Any | Fault:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)

    def attempt(_: object) -> dict[None, Any | Fault]:
        answer = client.send(Call(None, request), deadline)
        if not isinstance(answer, Fault):
            (topic,) = answer.topics
            # A new topic may have no leader yet.
            if topic.error_code not in (0, _UNKNOWN_TOPIC) and (fault := fault_of_code(topic.error_code)).retriable:
                return {None: fault}
        return {None: answer}

    return retrying([None], attempt, deadline)[None]


def _topic_fault(code: int, operation: str, name: str) -> Fault:
    fault = fault_of_code(code)
    denied = fault.code in ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")
    return Fault(fault.code, f"needs {operation} on the topic {name}") if denied else fault
