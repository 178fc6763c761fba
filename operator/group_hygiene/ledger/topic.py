"""Finds and creates the topic of a ledger, and checks its settings, as with others Kafka would delete entries.

Some services accept only few settings of a new topic (MSK Serverless:
https://docs.aws.amazon.com/msk/latest/developerguide/serverless-config.html). A ledger needs 1 partition, compaction,
the broker's times, and no unclean leader election. The other settings are left out where brokers refuse them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.metadata import MetadataRequest

from group_hygiene.kafka.client import Call, Client, Deadline, fault_of_code, retrying_one
from group_hygiene.kafka.cluster import lost_brokers, whole_number
from group_hygiene.model.groups import Fault

_UNKNOWN_TOPIC = 3
_TOPIC_RESOURCE = 2
_PAUSE_SECONDS = 0.1
# Other values are Kafka's defaults.
_NEEDED = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
_SETTINGS = _NEEDED | {"unclean.leader.election.enable": "false"}
# Kafka compacts only closed segments: with its defaults, 1 GB or 7 days, opening the ledger would read all of that.
# Without the codec, a default of the brokers would make them compress each batch again; any codec can be read.
_PREFERRED = {
    "segment.bytes": str(32 * 1024 * 1024),
    "segment.ms": str(24 * 60 * 60 * 1000),
    "compression.type": "producer",
    # Brokers may have a lower limit (message.max.bytes).
    "max.message.bytes": "1048588",
}
# Of numbers, the least values. A batch of the writer has up to 700,000 bytes. A process that was away for less than an
# hour must still read that an entry was removed.
_AT_LEAST = {"max.message.bytes": 1_000_000, "delete.retention.ms": 3_600_000}
_IN_SYNC = "min.insync.replicas"
# How brokers, and policies of theirs, refuse settings of a new topic.
_SETTINGS_REFUSED = frozenset({"INVALID_CONFIG", "INVALID_REQUEST", "POLICY_VIOLATION"})

# Sends CreateTopics (`kafka.changes.create_topic`).
CreateTopic = Callable[[Client, str, int, Mapping[str, str], Deadline, bool], Fault | None]

log = logging.getLogger(__name__)


class TopicMetadata(NamedTuple):
    """A topic in a broker's metadata. id: changes when the topic is recreated (KIP-516), empty below 2.8.

    replicas: of the partition that has the fewest.
    """

    id: str
    partitions: int
    replicas: int


def find(client: Client, name: str, deadline: Deadline) -> TopicMetadata | Fault | None:
    """The topic; None = it does not exist."""
    answer = _metadata(client, name, deadline)
    if isinstance(answer, Fault):
        return answer
    (topic,) = answer.topics
    if topic.error_code == _UNKNOWN_TOPIC:
        return None
    if topic.error_code:
        return _topic_fault(topic.error_code, "DESCRIBE", name)
    replicas = min((len(partition.replica_nodes) for partition in topic.partitions), default=0)
    return TopicMetadata(str(topic.topic_id or ""), len(topic.partitions), replicas)


def create(
    client: Client, name: str, replication_factor: int, deadline: Deadline, send: CreateTopic
) -> TopicMetadata | Fault:
    """Create the topic, and wait until a broker's metadata has it.

    A cluster that has fewer brokers than `replication_factor` gets as many replicas as it has brokers, but only while
    all brokers are alive that metadata names.

    If brokers refuse settings, only those that a ledger needs are sent; `check` shows whether the others are right. It
    is no Fault if another client creates the topic at the same time.
    """
    while True:
        made = _create(client, name, replication_factor, deadline, send, validate_only=False)
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


def may_create(
    client: Client, name: str, replication_factor: int, deadline: Deadline, send: CreateTopic
) -> Fault | None:
    """Why the topic could not be created, by a request that only validates (CreateTopics, validateOnly)."""
    return _create(client, name, replication_factor, deadline, send, validate_only=True)


def check(client: Client, name: str, topic: TopicMetadata, deadline: Deadline) -> str | Fault:
    """The wrong settings of the topic with the required values; empty = all are right.

    Numbers that brokers hide count as right.
    """
    settings = _settings(client, name, [*_SETTINGS, *_AT_LEAST, _IN_SYNC], deadline)
    if isinstance(settings, Fault):
        return settings
    wrong = [
        f"{key} must be {value}, not {settings.get(key)}"
        for key, value in _SETTINGS.items()
        if settings.get(key) != value
    ]
    least = _AT_LEAST | {_IN_SYNC: _needed_in_sync(topic.replicas)}
    for key, limit in least.items():
        found = whole_number(settings.get(key))
        if found is not None and found < limit:
            wrong.append(f"{key} must be at least {limit}, not {found}")
    if topic.partitions != 1:
        wrong.insert(0, f"it must have 1 partition, not {topic.partitions}")
    return "; ".join(wrong)


def codec(client: Client, name: str, deadline: Deadline) -> str | Fault:
    """The codec to which brokers convert the batches of the topic; empty = none, or they hide it."""
    settings = _settings(client, name, ["compression.type"], deadline)
    if isinstance(settings, Fault):
        return settings
    found = settings.get("compression.type")
    return "" if found in (None, "producer", "gzip") else str(found)


def _settings(client: Client, name: str, keys: list[str], deadline: Deadline) -> dict[str, str | None] | Fault:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=keys
    )

    def attempt() -> dict[str, str | None] | Fault:
        answer = client.send(Call(None, DescribeConfigsRequest(resources=[resource])), deadline)
        if isinstance(answer, Fault):
            return answer
        (result,) = answer.results
        if result.error_code:
            return _topic_fault(result.error_code, "DESCRIBE_CONFIGS", name)
        return {config.name: config.value for config in result.configs}

    return retrying_one(attempt, deadline)


def _create(
    client: Client, name: str, replication_factor: int, deadline: Deadline, send: CreateTopic, *, validate_only: bool
) -> Fault | None:
    answer = _metadata(client, name, deadline)
    if isinstance(answer, Fault):
        return answer
    replicas = min(replication_factor, len(answer.brokers))
    lost = lost_brokers(client, deadline) if replicas < replication_factor else frozenset[int]()
    if isinstance(lost, Fault):
        return lost
    if lost:
        gone = ", ".join(map(str, sorted(lost)))
        message = f"it needs {replication_factor} replicas (ledger.replicationFactor), and brokers {gone} are gone"
        return Fault("BROKER_NOT_AVAILABLE", message)
    in_sync = {_IN_SYNC: str(_needed_in_sync(replicas))}
    whole = _SETTINGS | in_sync | _PREFERRED
    refused: Fault | None = None
    fault: Fault | None = None
    for settings in (whole, _SETTINGS | in_sync, _NEEDED | in_sync, _NEEDED):
        fault = send(client, name, replicas, settings, deadline, validate_only)
        if fault is None or fault.code not in _SETTINGS_REFUSED:
            break
        refused = fault
    if fault is not None and fault.code in _SETTINGS_REFUSED:
        needed = ", ".join(f"{key}={value}" for key, value in _NEEDED.items())
        return Fault(fault.code, f"the topic {name} needs {needed}, which the brokers refuse: {fault.message}")
    if fault is None and refused is not None and not validate_only:
        left_out = ", ".join(sorted(whole.keys() - settings.keys()))
        log.warning("topic %s has no %s of its own, as the brokers refuse them: %s", name, left_out, refused.message)
    return fault


def _needed_in_sync(replicas: int) -> int:
    """The least `min.insync.replicas`: one broker that is lost must not hold the only copy of an entry."""
    return 2 if replicas >= 3 else 1


def _metadata(client: Client, name: str, deadline: Deadline) -> Any | Fault:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)

    def attempt() -> Any | Fault:
        answer = client.send(Call(None, request), deadline)
        if not isinstance(answer, Fault):
            (topic,) = answer.topics
            # A new topic may have no leader yet.
            if topic.error_code not in (0, _UNKNOWN_TOPIC) and (fault := fault_of_code(topic.error_code)).retriable:
                return fault
        return answer

    return retrying_one(attempt, deadline)


def _topic_fault(code: int, operation: str, name: str) -> Fault:
    fault = fault_of_code(code)
    denied = fault.code in ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")
    return Fault(fault.code, f"needs {operation} on the topic {name}") if denied else fault
