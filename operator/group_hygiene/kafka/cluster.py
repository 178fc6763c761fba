"""Reads the cluster as the operator's Kafka user sees it: brokers, topics, leaders of partitions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetDeleteRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from group_hygiene.kafka.answers import LogDirs, Metadata, Topic, log_dirs, metadata
from group_hygiene.kafka.bounds import BROKERS, ROWS, TOO_MUCH, Rows
from group_hygiene.kafka.client import NO_ANSWER, Call, Client, Deadline, Results, fault_of_code, retrying, retrying_one
from group_hygiene.kafka.coordinators import Question, ask_brokers, read_samples
from group_hygiene.kafka.permissions import Operation, on_cluster
from group_hygiene.kafka.protocol import ConsumerGroupDescribeRequest, RawDescribeLogDirsRequest, RawMetadataRequest
from group_hygiene.model import reasons
from group_hygiene.model.groups import NO_SUCH_TOPIC, Fault, Partition
from group_hygiene.model.refusal import Refusal
from group_hygiene.model.snapshot import Cluster

OFFSETS_TOPIC = "__consumer_offsets"
_UNKNOWN_TOPIC, _TOPIC_DENIED = 3, 29
# For each partition of `__consumer_offsets`, `loaded` searches a group id by trial.
_PARTITIONS = 10_000
# Of topics and their partitions, in one answer to Metadata, or in those of all brokers to DescribeLogDirs.
_TOPIC_ROWS = ROWS // 2
# org.apache.kafka.common.config.ConfigResource.Type.
_TOPIC, _BROKER = 2, 4
# Faults of a DescribeLogDirs that the brokers refuse to this user or to every client, and would refuse again.
_REFUSED = frozenset({"CLUSTER_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION"})


def read_cluster(client: Client, deadline: Deadline, attested: bool = False) -> Cluster | Fault:
    """Brokers, cluster id and the leaders of `__consumer_offsets`, read from a broker now.

    `Cluster.problems` says why groups may be missing from lists: a partition has no leader, or DESCRIBE on the cluster
    is denied, so that brokers omit groups without an error (KIP-430 shows that).

    attested: if brokers hide `__consumer_offsets`, read the coordinators of sample ids instead (`Cluster.samples`). On
    a cluster without that topic, this makes brokers create it, as the first consumer does.
    """
    answer = _metadata(client, [OFFSETS_TOPIC], deadline)
    if isinstance(answer, Fault):
        return answer
    if len(answer.brokers) > BROKERS:
        return Fault(TOO_MUCH, f"{len(answer.brokers)} brokers, and at most {BROKERS} are asked")
    partitions = sum(len(topic.partitions) for topic in answer.topics)
    if partitions > _PARTITIONS:
        return Fault(TOO_MUCH, f"{partitions} partitions of {OFFSETS_TOPIC}, and at most {_PARTITIONS} are read")
    brokers = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
    leaders: dict[int, tuple[int, int]] = {}
    hidden = attested and any(topic.error_code in (_UNKNOWN_TOPIC, _TOPIC_DENIED) for topic in answer.topics)
    samples, problems = read_samples(client, brokers, deadline) if hidden else ({}, [])
    for topic in answer.topics:
        if topic.error_code not in (0, _UNKNOWN_TOPIC) and not hidden:
            problems.append(f"topic {OFFSETS_TOPIC}: {fault_of_code(topic.error_code)}")
        for partition in topic.partitions:
            leaders[partition.partition_index] = (partition.leader_id, partition.leader_epoch)
            if partition.leader_id not in brokers:
                problems.append(f"{OFFSETS_TOPIC}-{partition.partition_index} has no leader")
    # The number of partitions determines the partition of a group's records: none may be omitted, or named twice.
    if sorted(leaders) != list(range(partitions)):
        return Fault("INVALID_PARTITIONS", f"the metadata does not name the partitions of {OFFSETS_TOPIC} from 0 on")
    operations = on_cluster(client, deadline)
    if isinstance(operations, Fault):
        problems.append(f"permissions on the cluster could not be read: {operations}")
    elif operations is not None and Operation.DESCRIBE not in operations:
        problems.append("DESCRIBE on the cluster is denied, so brokers leave groups out of their lists")
    topic_id = next((str(topic.topic_id or "") for topic in answer.topics), "")
    return Cluster(answer.cluster_id, brokers, leaders, tuple(problems), samples, topic_id)


def read_topics(client: Client, deadline: Deadline) -> dict[str, int] | Fault:
    """Every topic that the user may DESCRIBE -> its number of partitions."""
    answer = _metadata(client, None, deadline)
    if isinstance(answer, Fault):
        return answer
    return {topic.name: len(topic.partitions) for topic in answer.topics if topic.error_code == 0}


def read_identity(client: Client, deadline: Deadline) -> Cluster | Fault:
    """The id of the cluster and its brokers, without leaders."""
    answer = _metadata(client, [], deadline)
    if isinstance(answer, Fault):
        return answer
    return Cluster(answer.cluster_id, {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}, {})


def lost_brokers(client: Client, deadline: Deadline) -> frozenset[int] | Fault:
    """The brokers that have replicas of visible topics, and are not alive."""
    answer = _metadata(client, None, deadline)
    if isinstance(answer, Fault):
        return answer
    return answer.replica_nodes - {broker.node_id for broker in answer.brokers}


def _ask_topics(client: Client, topics: Iterable[str], deadline: Deadline) -> dict[str, Topic | Fault]:
    """One Metadata request by name, sent once: an answer about all topics omits those that the user may not DESCRIBE.

    For each topic its row of the answer, or its own Fault, by Kafka's code. The Fault of a topic that does not exist is
    not retriable here: the client would repeat the request until the deadline.
    """
    wanted = sorted(set(topics))
    answer = _ask_metadata(client, wanted, deadline)
    if isinstance(answer, Fault):
        return dict.fromkeys(wanted, answer)
    rows: dict[str, Topic | Fault] = {}
    for row in answer.topics:
        fault = fault_of_code(row.error_code) if row.error_code else None
        absent = row.error_code == _UNKNOWN_TOPIC
        rows[row.name] = row if fault is None else replace(fault, retriable=fault.retriable and not absent)
    return rows


def topics_exist(client: Client, topics: Iterable[str], deadline: Deadline) -> dict[str, bool | Fault]:
    """Whether each topic exists, or the Fault: a topic that the user may not DESCRIBE may exist."""
    rows = _topic_rows(client, topics, deadline)
    faults = {topic: False if fault.code == NO_SUCH_TOPIC else fault for topic, fault in rows.faults.items()}
    return {topic: faults.get(topic, True) for topic in rows}


def partition_counts(client: Client, topics: Iterable[str], deadline: Deadline) -> Results[str, int]:
    """The number of partitions of each topic, or the Fault."""
    rows = _topic_rows(client, topics, deadline)
    return Results({topic: row if isinstance(row, Fault) else len(row.partitions) for topic, row in rows.items()})


def topic_ids(client: Client, topics: Iterable[str], deadline: Deadline) -> Results[str, str]:
    """Each topic -> its id (KIP-516), or its Fault. A recreated topic has another id; below 2.8 ids are empty."""
    rows = _topic_rows(client, topics, deadline)
    return Results({topic: row if isinstance(row, Fault) else str(row.topic_id or "") for topic, row in rows.items()})


def leaders_of(client: Client, partitions: Collection[Partition], deadline: Deadline) -> Results[Partition, int]:
    """The broker that leads each partition. LEADER_NOT_AVAILABLE is not retriable."""
    rows = _ask_topics(client, {partition.topic for partition in partitions}, deadline)
    known = {
        Partition(topic, entry.partition_index): entry.leader_id
        for topic, row in rows.items()
        if not isinstance(row, Fault)
        for entry in row.partitions
    }

    def leader(partition: Partition) -> int | Fault:
        row = rows.get(partition.topic, NO_ANSWER)
        if isinstance(row, Fault):
            return row
        if partition not in known:
            return Fault(NO_SUCH_TOPIC, str(partition))
        # A partition may stay offline for long: waiting for a leader would use up the scan's time.
        return Fault("LEADER_NOT_AVAILABLE", f"{partition} has no leader") if known[partition] < 0 else known[partition]

    return Results({partition: leader(partition) for partition in partitions})


def ask_leaders(
    client: Client, partitions: Iterable[Partition], question: Question[Partition], deadline: Deadline
) -> Results[Partition, Any]:
    """Send `question` to the leader of each partition.

    Retriable failures are repeated until the deadline, after another lookup of the leaders.
    """

    def attempt(left: list[Partition]) -> dict[Partition, Any]:
        leaders = leaders_of(client, left, deadline)
        return {**leaders.faults, **ask_brokers(client, leaders.ok, question, deadline)}

    return retrying(sorted(partitions), attempt, deadline)


def hidden_topics(client: Client, cluster: Cluster, deadline: Deadline) -> tuple[str, ...] | Fault:
    """Topics with data on the brokers' disks that Metadata does not show to the user, by DescribeLogDirs of all topics.

    OffsetFetch omits their committed offsets without an error, so a backup would be partial. Also a Fault if visible
    topics have replicas on a broker that is gone: its disks can't be checked. `is_refused` shows whether brokers refuse
    the request.
    """
    calls = {broker: Call(broker, RawDescribeLogDirsRequest(topics=None)) for broker in cluster.brokers}

    def attempt(left: Sequence[int]) -> dict[int, LogDirs | Fault]:
        rows = Rows(_TOPIC_ROWS)
        return client.send_each(
            {b: calls[b] for b in left}, deadline, lambda _, answer: log_dirs(answer.body, answer.version, rows)
        )

    on_disk, refused = set[str](), list[Fault]()
    for broker, found in retrying(calls, attempt, deadline).items():
        if not isinstance(found, Fault) and not found.error_code:
            on_disk |= found.topics
            continue
        fault = found if isinstance(found, Fault) else fault_of_code(found.error_code)
        if not is_refused(fault):
            return Fault(fault.code, f"broker {broker} does not show its disks: {fault.message}", fault.retriable)
        refused.append(fault)
    if refused and on_disk:
        # No refusal that an attestation may replace: what the others show must not be ignored.
        return Fault("UNKNOWN_SERVER_ERROR", "some brokers refuse DescribeLogDirs, and others answer it")
    if refused:
        return refused[0]
    # Without DESCRIBE on the cluster, DescribeLogDirs answers an empty list, without an error.
    if not on_disk and (cluster.leaders or cluster.samples):
        return Fault("CLUSTER_AUTHORIZATION_FAILED", "DescribeLogDirs shows no topics: needs DESCRIBE on the cluster")
    answer = _metadata(client, None, deadline)
    if isinstance(answer, Fault):
        return answer
    rows = [topic for topic in answer.topics if not topic.error_code]
    if lost := sorted(answer.replica_nodes - cluster.brokers.keys()):
        return Fault("BROKER_NOT_AVAILABLE", f"broker {lost[0]} is gone, and a topic that it alone has may be hidden")
    suspects = on_disk - {topic.name for topic in rows} - {"__cluster_metadata"}
    # A topic that was deleted between the two answers is not hidden.
    exist = topics_exist(client, suspects, deadline)
    return tuple(sorted(topic for topic in suspects if exist[topic] is not False))


def visibility_refusal(fault: Fault) -> Refusal:
    """Why no group is deleted after a Fault of `hidden_topics`: a broker that does not answer may do so soon."""
    reason = reasons.TOPICS_HIDDEN if is_refused(fault) else reasons.TOPICS_UNKNOWN
    return Refusal(reason, f"whether topics are hidden could not be read: {fault}")


def is_refused(fault: Fault) -> bool:
    """Whether a Fault of `hidden_topics` means that the brokers refuse DescribeLogDirs, now and later."""
    return fault.code in _REFUSED


def features(client: Client) -> tuple[str, ...]:
    """Features that older brokers lack, by ApiVersions; the names are part of the status."""
    known = {
        "ListGroupsStateFilter": client.supports(ListGroupsRequest, 4),
        "ListGroupsTypeFilter": client.supports(ListGroupsRequest, 5),
        "BatchedOffsetFetch": client.supports(OffsetFetchRequest, 8),
        "RequireStable": client.supports(OffsetFetchRequest, 7),
        "BatchedFindCoordinator": client.supports(FindCoordinatorRequest, 4),
        "DescribeAbsentGroups": client.supports(DescribeGroupsRequest, 6),
        "ConsumerGroupDescribe": client.supports(ConsumerGroupDescribeRequest),
        "OffsetDelete": client.supports(OffsetDeleteRequest),
        "TopicIds": client.supports(MetadataRequest, 10),
    }
    return tuple(name for name, there in known.items() if there)


def offsets_retention_minutes(client: Client, cluster: Cluster, deadline: Deadline) -> int | None:
    """`offsets.retention.minutes` of one broker; None if DESCRIBE_CONFIGS is denied or no broker answers."""
    key = "offsets.retention.minutes"
    return whole_number(broker_settings(client, cluster, [key], deadline).get(key))


def offsets_write_bytes(client: Client, deadline: Deadline) -> int | None:
    """`max.message.bytes` of `__consumer_offsets`; None if DESCRIBE_CONFIGS is denied or no broker answers.

    A coordinator appends all changes of a request in an offsets partition as one batch. If the batch is larger than
    this, it appends nothing and answers UNKNOWN_SERVER_ERROR (CoordinatorRuntime; RecordTooLargeException).
    """
    key = "max.message.bytes"
    return whole_number(_settings(client, None, _TOPIC, OFFSETS_TOPIC, [key], deadline).get(key))


def broker_settings(client: Client, cluster: Cluster, keys: list[str], deadline: Deadline) -> dict[str, str | None]:
    """These settings of one broker; empty if DESCRIBE_CONFIGS is denied or it does not answer."""
    broker = next(iter(cluster.brokers), None)
    return {} if broker is None else _settings(client, broker, _BROKER, str(broker), keys, deadline)


def _settings(
    client: Client, broker: int | None, kind: int, name: str, keys: list[str], deadline: Deadline
) -> dict[str, str | None]:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    answer = client.send(Call(broker, DescribeConfigsRequest(resources=[resource])), deadline)
    results = [] if isinstance(answer, Fault) else answer.results
    return {config.name: config.value for result in results if not result.error_code for config in result.configs}


def whole_number(text: str | None) -> int | None:
    """A setting as a number, possibly -1; None if it is no whole number, or has more digits than a Java long."""
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,19}", text) else None


def _metadata(client: Client, topics: list[str] | None, deadline: Deadline) -> Metadata | Fault:
    return retrying_one(lambda: _ask_metadata(client, topics, deadline), deadline)


def _ask_metadata(client: Client, topics: list[str] | None, deadline: Deadline) -> Metadata | Fault:
    """topics: None = all. Sent once."""
    named = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    request = RawMetadataRequest(topics=named, allow_auto_topic_creation=False)
    return client.send_each(
        {None: Call(None, request)},
        deadline,
        lambda _, answer: metadata(answer.body, answer.version, Rows(_TOPIC_ROWS)),
    )[None]


def _topic_rows(client: Client, topics: Iterable[str], deadline: Deadline) -> Results[str, Topic]:
    return retrying(sorted(set(topics)), lambda left: _ask_topics(client, left, deadline), deadline)
