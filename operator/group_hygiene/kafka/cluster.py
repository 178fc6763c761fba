"""Reads the cluster as the operator's Kafka user sees it: brokers, topics, leaders of partitions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from itertools import count
from typing import Any, Generic

from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer import OffsetDeleteRequest, OffsetFetchRequest
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest, MetadataRequest

from group_hygiene.kafka.answers import LogDirs, Metadata, Topic, log_dirs, metadata
from group_hygiene.kafka.bounds import BROKERS, ROWS, TOO_MUCH, Rows
from group_hygiene.kafka.client import (
    NO_ANSWER,
    Call,
    Client,
    Deadline,
    K,
    R,
    Request,
    Response,
    Results,
    fault_of_code,
    retrying,
    retrying_one,
)
from group_hygiene.kafka.library import ConsumerGroupDescribeRequest, RawDescribeLogDirsRequest, RawMetadataRequest
from group_hygiene.kafka.offsets_log import partition_of
from group_hygiene.model import reasons
from group_hygiene.model.groups import NO_SUCH_TOPIC, Cluster, Fault, Partition
from group_hygiene.model.reasons import Refusal

OFFSETS_TOPIC = "__consumer_offsets"
_UNKNOWN_TOPIC, _TOPIC_DENIED = 3, 29
# For each partition of `__consumer_offsets`, `groups.ids_by_partition` searches a group id by trial.
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


def ask_topics(client: Client, topics: Iterable[str], deadline: Deadline) -> Results[str, Topic]:
    """One Metadata request by name, sent once: an answer about all topics omits those that the user may not DESCRIBE.

    For each topic its row of the answer, or its own Fault, by Kafka's code. The Fault of a topic that does not exist is
    not retriable here: the client would repeat the request until the deadline.
    """
    wanted = sorted(set(topics))
    answer = _ask_metadata(client, wanted, deadline)
    if isinstance(answer, Fault):
        return Results(dict.fromkeys(wanted, answer))
    rows = Results[str, Topic]()
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
    return _topic_rows(client, topics, deadline).converted(lambda row: len(row.partitions))


def topic_ids(client: Client, topics: Iterable[str], deadline: Deadline) -> Results[str, str]:
    """Each topic -> its id (KIP-516), or its Fault. A recreated topic has another id; below 2.8 ids are empty."""
    return _topic_rows(client, topics, deadline).converted(lambda row: str(row.topic_id or ""))


def by_leader(
    client: Client,
    partitions: Iterable[Partition],
    ask: Callable[[Mapping[Partition, int]], Mapping[Partition, R | Fault]],
    deadline: Deadline,
) -> Results[Partition, R]:
    """A result or a Fault for each partition. ask: gets each partition with the broker that leads it.

    Retriable failures are repeated until the deadline, after another lookup of the leaders.
    """

    def attempt(left: list[Partition]) -> dict[Partition, R | Fault]:
        leaders = _leaders_of(client, left, deadline)
        return {**leaders.faults, **ask(leaders.ok)}

    return retrying(sorted(partitions), attempt, deadline)


def _leaders_of(client: Client, partitions: Collection[Partition], deadline: Deadline) -> Results[Partition, int]:
    """LEADER_NOT_AVAILABLE is not retriable."""
    rows = ask_topics(client, {partition.topic for partition in partitions}, deadline)
    known = {
        Partition(topic, entry.partition_index): entry.leader_id
        for topic, row in rows.ok.items()
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
    found = topic_settings(client, OFFSETS_TOPIC, [key], deadline)
    return None if isinstance(found, Fault) else whole_number(found.get(key))


def broker_settings(client: Client, cluster: Cluster, keys: list[str], deadline: Deadline) -> dict[str, str | None]:
    """These settings of one broker; empty if DESCRIBE_CONFIGS is denied or it does not answer."""
    broker = next(iter(cluster.brokers), None)
    found = {} if broker is None else _settings(client, broker, _BROKER, str(broker), keys, deadline)
    return {} if isinstance(found, Fault) else found


def topic_settings(client: Client, name: str, keys: list[str], deadline: Deadline) -> dict[str, str | None] | Fault:
    """These settings of a topic. Sent once."""
    return _settings(client, None, _TOPIC, name, keys, deadline)


def _settings(
    client: Client, broker: int | None, kind: int, name: str, keys: list[str], deadline: Deadline
) -> dict[str, str | None] | Fault:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    answer = client.send(Call(broker, DescribeConfigsRequest(resources=[resource])), deadline)
    if isinstance(answer, Fault):
        return answer
    for result in answer.results:
        if result.error_code:
            return fault_of_code(result.error_code)
    return {config.name: config.value for result in answer.results for config in result.configs}


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
    return retrying(sorted(set(topics)), lambda left: ask_topics(client, left, deadline), deadline)


# Sends requests about many groups or partitions: in chunks, concurrently, with one result or Fault for each.
#
# `ask_brokers` sends to brokers that are known, `ask` and `ask_once` to the coordinators of groups, `by_leader` to
# the leaders of partitions. All isolate failures in the same way.

_LOOKUP_CHUNK = 1_000
_ROUNDS = 3
_SHORTEST_ROUND_S = 1.0
# Another broker may coordinate the group: look it up before the next request.
_MOVED = frozenset(
    {"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "NETWORK_EXCEPTION", "BROKER_NOT_AVAILABLE", "REQUEST_TIMED_OUT"}
)
# Prefix of group ids that no consumer uses.
PREFIX = "group-hygiene-loaded-"
# Divisible by 3, 16, 24, 50, 100 and 200, common values of offsets.topic.num.partitions. An id whose hash has a certain
# remainder modulo this number has a certain remainder modulo each divisor.
SAMPLES = 1_200
# The share of a read's time for sample groups: a new cluster has no coordinators yet, and the requests are repeated.
_SAMPLES_SHARE = 0.25


@dataclass(frozen=True)
class Question(Generic[K]):
    """A request about many groups, or about many partitions.

    request: builds the request for some keys. answers: reads a result or a Fault for each of them from the response.
    chunk: the most keys of a request.
    """

    request: Callable[[list[K]], Request]
    answers: Callable[[Sequence[K], Response], Mapping[K, Any]]
    chunk: int


def ask_brokers(
    client: Client,
    brokers: Mapping[K, int | None],
    question: Question[K],
    deadline: Deadline,
    *,
    split: bool = False,
) -> Results[K, Any]:
    """Send `question` to the broker of each group or partition, None = any: a result for exactly these.

    split: a request that fails as a whole is split in halves until the key that makes it fail is alone, and one whose
    answer is too large beside others is sent again by itself.
    """
    by_broker: dict[int | None, list[K]] = {}
    for key, broker in brokers.items():
        by_broker.setdefault(broker, []).append(key)
    chunks = [
        (broker, tuple(keys[start : start + question.chunk]))
        for broker, keys in by_broker.items()
        for start in range(0, len(keys), question.chunk)
    ]
    results: dict[K, Any] = {}
    # Each is sent together, with limits for all of its answers.
    together = [chunks] if chunks else []
    while together:
        chunks = together.pop()
        calls = {chunk: Call(chunk[0], question.request(list(chunk[1]))) for chunk in chunks}
        answers = client.send_each(calls, deadline, lambda chunk, response: question.answers(chunk[1], response))
        for (broker, keys), answer in answers.items():
            if not isinstance(answer, Fault):
                results.update({key: answer[key] for key in keys if key in answer})
            elif split and answer.code == TOO_MUCH and len(chunks) > 1:
                together.append([(broker, keys)])
            elif answer.retriable or len(keys) == 1 or not split or answer.code == TOO_MUCH:
                results.update(dict.fromkeys(keys, answer))
            else:
                half = len(keys) // 2
                together += [[(broker, keys[:half])], [(broker, keys[half:])]]
    return Results({key: results.get(key, NO_ANSWER) for key in brokers})


def ask(
    client: Client, groups: Mapping[str, int | None], question: Question[str], deadline: Deadline
) -> Results[str, Any]:
    """Send `question` to the coordinator of each group. `groups`: id -> last known coordinator, None = look it up.

    A request that fails as a whole is split in halves until the failing group is alone. Retriable failures are repeated
    until the deadline, after another lookup of the coordinator.
    """
    coordinators = dict(groups)
    # A broker that hangs delays its round: groups without an answer from other brokers need another round.
    round_seconds = max(_SHORTEST_ROUND_S, deadline.left / _ROUNDS)

    def attempt(left: list[str]) -> dict[str, Any]:
        until = Deadline(min(deadline.left, round_seconds))
        results = _ask_round(client, coordinators, left, question, until, split=True)
        coordinators.update({group: None for group, fault in results.faults.items() if fault.code in _MOVED})
        return results

    return retrying(groups, attempt, deadline)


def ask_once(
    client: Client, groups: Mapping[str, int | None], question: Question[str], deadline: Deadline
) -> Results[str, Any]:
    """As `ask`, for requests that change something: each group is asked once, and no request is split."""
    return _ask_round(client, dict(groups), list(groups), question, deadline, split=False)


def _ask_round(
    client: Client,
    coordinators: dict[str, int | None],
    groups: Sequence[str],
    question: Question[str],
    deadline: Deadline,
    *,
    split: bool,
) -> Results[str, Any]:
    """Coordinators that are None are looked up, and noted in `coordinators`."""
    found = look_up(client, [group for group in groups if coordinators[group] is None], deadline)
    coordinators.update(found.ok)
    known = {group: coordinators[group] for group in groups if group not in found.faults}
    results = ask_brokers(client, known, question, deadline, split=split)
    results.update(found.faults)
    return results


def look_up(
    client: Client,
    groups: Sequence[str],
    deadline: Deadline,
    broker: int | None = None,
    kind: CoordinatorType = CoordinatorType.GROUP,
) -> Results[str, int]:
    """The coordinator's broker id for each group: batched (KIP-699, brokers 3.0 on), else one request a group.

    broker: which one to ask; None = any. kind: TRANSACTION = `groups` are transactional ids. The result has exactly
    these, whatever the broker answers.
    """
    batched = client.supports(FindCoordinatorRequest, 4)

    def request(names: list[str]) -> Request:
        if batched:
            return FindCoordinatorRequest(key_type=kind.value, coordinator_keys=names, min_version=4)
        return FindCoordinatorRequest(key_type=kind.value, key=names[0], max_version=3)

    def found(names: Sequence[str], response: Response) -> dict[str, int | Fault]:
        rows = {row.key: row for row in response.coordinators} if batched else {names[0]: response}
        return {name: fault_of_code(row.error_code) if row.error_code else row.node_id for name, row in rows.items()}

    question = Question(request, found, _LOOKUP_CHUNK if batched else 1)
    return ask_brokers(client, dict.fromkeys(groups, broker), question, deadline)


def read_samples(client: Client, brokers: Mapping[int, str], deadline: Deadline) -> tuple[dict[str, int], list[str]]:
    """Sample id -> its coordinator, for clusters whose brokers hide `__consumer_offsets`; and why some are unknown.

    There the leaders of that topic's partitions are not known, but FindCoordinator returns, for any group id, the
    broker that coordinates it. The sample ids cover every partition if the topic has 50 partitions, Kafka's default, or
    another divisor of SAMPLES. With another number of partitions they cover a part. brokers: of the cluster's metadata.
    """
    ids = sample_ids()
    answers = retrying(ids, lambda left: look_up(client, left, deadline), Deadline(deadline.left * _SAMPLES_SHARE))
    found, faults = answers.ok, list(answers.faults.values())
    problems = [f"{len(faults)} of {len(ids)} sample groups have no coordinator: {faults[0]}"] if faults else []
    if lost := sorted(set(found.values()) - brokers.keys()):
        problems.append(f"broker {lost[0]} coordinates groups and is not in the cluster's metadata")
    return found, problems


@cache
def sample_ids() -> tuple[str, ...]:
    """One id for each remainder modulo SAMPLES, found by trial: about ten thousand ids."""
    ids: dict[int, str] = {}
    for number in count():
        if len(ids) == SAMPLES:
            break
        name = f"{PREFIX}{number}"
        ids.setdefault(partition_of(name, SAMPLES), name)
    return tuple(ids.values())


# Reads from brokers what the operator's Kafka user may do (KIP-430). Changes nothing, and attempts no operation.
#
# Brokers don't report permissions on transactional.ids, and before Kafka 2.3 none at all.

_CHUNK = 200
# The last version in which a group that does not exist is no error, so that the answer has its operations.
_ABSENT_IS_DEAD = 5
# The one bit that is set if the request did not ask, or the broker does not know.
_UNKNOWN = frozenset({31})


class Operation(IntEnum):
    """Members of org.apache.kafka.common.acl.AclOperation that matter here."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10

    def __str__(self) -> str:
        return self.name


# The allowed operations; None = the brokers don't report them.
Allowed = frozenset[int] | None


def on_cluster(client: Client, deadline: Deadline) -> Allowed | Fault:
    """The user's operations on the cluster itself: from DescribeCluster (2.8 on), before that from Metadata v8-10."""
    if client.supports(DescribeClusterRequest):
        request: Any = DescribeClusterRequest(include_cluster_authorized_operations=True)
    elif client.supports(MetadataRequest, 8):
        request = MetadataRequest(topics=[], include_cluster_authorized_operations=True, max_version=10)
    else:
        return None
    answer = retrying_one(lambda: client.send(Call(None, request), deadline), deadline)
    if isinstance(answer, Fault):
        return answer
    if getattr(answer, "error_code", 0):
        return fault_of_code(answer.error_code)
    return _known(answer.authorized_operations)


def on_topics(client: Client, deadline: Deadline) -> Mapping[str, Allowed] | Fault:
    """The user's operations on each topic that it may DESCRIBE; brokers don't report the others."""
    if not client.supports(MetadataRequest, 8):
        return {}
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=True)
    answer = retrying_one(lambda: client.send(Call(None, request), deadline), deadline)
    if isinstance(answer, Fault):
        return answer
    return {row.name: _known(row.authorized_operations) for row in answer.topics if not row.error_code}


def on_groups(client: Client, groups: Iterable[str], deadline: Deadline) -> Mapping[str, Allowed | Fault]:
    """The user's operations on each group, whether it exists or not; a Fault if the user may not DESCRIBE it."""
    question = Question(
        request=lambda ids: DescribeGroupsRequest(
            groups=ids, include_authorized_operations=True, max_version=_ABSENT_IS_DEAD
        ),
        answers=lambda _, response: {
            row.group_id: fault_of_code(row.error_code) if row.error_code else _known(row.authorized_operations)
            for row in response.groups
        },
        chunk=_CHUNK,
    )
    return ask(client, dict.fromkeys(groups), question, deadline)


def _known(operations: Iterable[int] | int | None) -> Allowed:
    # A number is the library's default for versions without the field.
    if operations is None or isinstance(operations, int):
        return None
    found = frozenset(operations)
    return None if found == _UNKNOWN else found
