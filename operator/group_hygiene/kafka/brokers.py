"""Capabilities of brokers: the version of each, and transactions of a transactional id. Reads only."""

from __future__ import annotations

import time

from kafka.protocol.admin import DeleteGroupsRequest
from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions
from kafka.protocol.metadata import ApiVersionsRequest, CoordinatorType

from group_hygiene.kafka.client import CLIENT_ID, Call, Client, Deadline, Response, Results, fault_of_code, retrying
from group_hygiene.kafka.cluster import (
    OFFSETS_TOPIC,
    broker_settings,
    look_up,
    partition_counts,
    read_cluster,
    whole_number,
)
from group_hygiene.kafka.groups import ids_by_partition
from group_hygiene.kafka.offsets import epoch_ends
from group_hygiene.kafka.offsets_topic import Tail
from group_hygiene.model.groups import NO_SUCH_TOPIC, Cluster, Fault, Partition

# From this version on, brokers load a partition in which offsets precede the records of their Streams group.
_LOADS_STREAMS = (4, 3)
# The version of the request that every broker since 2.4 answers.
_VERSION = 3
# The library's table ends with 4.3. DeleteGroups v3 came with 4.4 (KIP-1331).
_SINCE_4_4 = (DeleteGroupsRequest.API_KEY, 3)
_TOPIC = "__transaction_state"
_LIMIT, _REPLICAS = "transaction.max.timeout.ms", "transaction.state.log.replication.factor"
# A transaction coordinator that is being elected answers within this time; one that can't exist never does.
_COORDINATOR_S = 5.0


def versions(client: Client, cluster: Cluster, deadline: Deadline) -> Results[int, str]:
    """Broker -> its version as its ApiVersions show it (`3.9`, never with the patch level), or the Fault."""
    request = ApiVersionsRequest(
        client_software_name=CLIENT_ID, client_software_version="unknown", max_version=_VERSION
    )

    def version_of(_: int, answer: Response) -> str | Fault:
        if answer.error_code:
            return fault_of_code(answer.error_code)
        keys = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        key, version = _SINCE_4_4
        newest = keys.get(key, (0, 0))[1] >= version
        return "4.4" if newest else ".".join(map(str, infer_broker_version_from_api_versions(keys)))

    calls = {broker: Call(broker, request) for broker in cluster.brokers}
    return Results(sorted(client.send_each(calls, deadline, version_of).items()))


def without_streams(client: Client, cluster: Cluster, deadline: Deadline) -> tuple[str, ...] | Fault:
    """The versions of brokers on which a group of the Streams protocol can't be restored; a Fault if not known.

    The restored offsets precede the group's own records in `__consumer_offsets`. Once compaction has removed the
    tombstone between them, a coordinator of 4.2.0 fails to load the whole partition (KAFKA-20254). 4.2.1 has the fix,
    but brokers don't report their patch level; which releases of 4.1 have it is not known.
    """
    found = versions(client, cluster, deadline)
    for fault in found.faults.values():
        return fault
    old = {version for version in found.ok.values() if tuple(map(int, version.split("."))) < _LOADS_STREAMS}
    return tuple(sorted(old))


def transaction_problem(
    client: Client, cluster: Cluster, transactional_id: str, timeout_s: float, deadline: Deadline
) -> Fault | None:
    """Why no transaction of this id, with this timeout, can be carried out; None = nothing is known against it.

    Settings that brokers hide count as right. The coordinator is looked up only where its topic exists: the request
    would create it.
    """
    settings = broker_settings(client, cluster, [_LIMIT, _REPLICAS], deadline)
    limit = whole_number(settings.get(_LIMIT))
    if limit is not None and limit < timeout_s * 1000:
        return Fault(
            "INVALID_TRANSACTION_TIMEOUT", f"{_LIMIT} of the brokers is {limit}, and must be {timeout_s * 1000:.0f}"
        )
    (found,) = partition_counts(client, [_TOPIC], deadline).values()
    if not isinstance(found, Fault):
        return _coordinator(client, transactional_id, Deadline(min(_COORDINATOR_S, deadline.left)))
    replicas = whole_number(settings.get(_REPLICAS))
    if found.code == NO_SUCH_TOPIC and replicas is not None and replicas > len(cluster.brokers):
        why = f"{_REPLICAS} is {replicas}, and {len(cluster.brokers)} brokers are alive"
        return Fault("COORDINATOR_NOT_AVAILABLE", f"there is no transaction coordinator: {why}")
    return None


def _coordinator(client: Client, transactional_id: str, deadline: Deadline) -> Fault | None:
    kind = CoordinatorType.TRANSACTION
    (found,) = retrying([transactional_id], lambda ids: look_up(client, ids, deadline, kind=kind), deadline).values()
    if not isinstance(found, Fault):
        return None
    if found.code == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
        return Fault(found.code, f"needs WRITE and DESCRIBE on the transactional id {transactional_id}")
    why = f"the partition of {_TOPIC} for {transactional_id} has no leader, or too few replicas in sync"
    return Fault(found.code, f"there is no transaction coordinator: {why}", found.retriable)


# Finds brokers that compute partitions of `__consumer_offsets` from an old number of them. Reads only.
#
# A broker uses the number of its start until it is restarted (KAFKA-7771, KAFKA-14418). No request returns it, but it
# shows: in the coordinators that the broker names for groups, where their partitions have different leaders; and in the
# records that it has written since it leads a partition (`Tail.grown`).

# Of these many partitions, the coordinator of a group is requested from each broker.
_ASKED = 200
_AGAIN_S = 2.0


def by_coordinators(client: Client, cluster: Cluster, deadline: Deadline) -> dict[int, str]:
    """Broker -> what shows its old number, in words: one of its answers to FindCoordinator.

    A broker whose metadata are out of date answers wrongly for a moment: only a second answer counts, while Metadata
    names the same leaders.
    """
    found = _by_coordinators(client, cluster, deadline)
    if not found:
        return {}
    time.sleep(min(_AGAIN_S, deadline.left))
    again = _by_coordinators(client, cluster, deadline)
    now = read_cluster(client, deadline)
    if isinstance(now, Fault) or now.leaders != cluster.leaders:
        return {}
    return {broker: example for broker, example in again.items() if broker in found}


def _by_coordinators(client: Client, cluster: Cluster, deadline: Deadline) -> dict[int, str]:
    ids = ids_by_partition(len(cluster.leaders), deadline)
    if isinstance(ids, Fault):
        return {}
    asked = {index: ids[index] for index in list(ids)[:_ASKED]}
    found: dict[int, str] = {}
    for broker in cluster.brokers:
        answers = look_up(client, list(asked.values()), deadline, broker).ok
        for index, name in asked.items():
            leader = cluster.leaders[index][0]
            answer = answers.get(name, leader)
            if answer != leader:
                found[broker] = (
                    f"it names broker {answer} as the coordinator of a group whose partition is "
                    f"{OFFSETS_TOPIC}-{index}, which broker {leader} leads"
                )
                break
    return found


def since_elected(client: Client, cluster: Cluster, deadline: Deadline) -> Tail:
    """The first records of each partition since its leader leads it; one answer of each is read.

    Needs READ on the topic: partitions that can't be read show nothing.
    """
    before = {Partition(OFFSETS_TOPIC, index): epoch - 1 for index, (_, epoch) in cluster.leaders.items() if epoch > 0}
    ends = epoch_ends(client, before, deadline).ok
    starts = {place.partition: end for place, end in ends.items() if end > 0}
    tail = Tail(client, cluster.leaders, starts)
    tail.peek(deadline)
    return tail
