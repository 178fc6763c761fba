"""Whether brokers can carry out transactions of a transactional id: their coordinator and time limit. Reads only."""

from __future__ import annotations

from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from group_hygiene.kafka.client import Call, Client, Deadline, fault_of_code, retrying_one
from group_hygiene.kafka.cluster import partition_counts, whole_number
from group_hygiene.model.groups import NO_SUCH_TOPIC, Fault
from group_hygiene.model.snapshot import Cluster

_TOPIC = "__transaction_state"
_BROKER = 4
_LIMIT, _REPLICAS = "transaction.max.timeout.ms", "transaction.state.log.replication.factor"
# A coordinator that is being elected answers within this time; one that can't exist never does.
_COORDINATOR_S = 5.0


def problem(
    client: Client, cluster: Cluster, transactional_id: str, timeout_s: float, deadline: Deadline
) -> Fault | None:
    """Why no transaction of this id, with this timeout, can be carried out; None = nothing is known against it.

    Settings that brokers hide count as right. The coordinator is looked up only where its topic exists: the request
    would create it.
    """
    settings = _settings(client, cluster, deadline)
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


def _settings(client: Client, cluster: Cluster, deadline: Deadline) -> dict[str, str | None]:
    """The settings of one broker; none if they are hidden."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_BROKER,
        resource_name=str(next(iter(cluster.brokers), "")),
        configuration_keys=[_LIMIT, _REPLICAS],
    )
    broker = next(iter(cluster.brokers), None)
    answer = client.send(Call(broker, DescribeConfigsRequest(resources=[resource])), deadline)
    if isinstance(answer, Fault):
        return {}
    return {config.name: config.value for result in answer.results for config in result.configs}


def coordinator(client: Client, transactional_id: str, deadline: Deadline) -> int | Fault:
    """The broker that coordinates the transactions of this id, by one request."""
    request = FindCoordinatorRequest(
        key=transactional_id, key_type=CoordinatorType.TRANSACTION.value, coordinator_keys=[transactional_id]
    )
    answer = client.send(Call(None, request), deadline)
    if isinstance(answer, Fault):
        return answer
    # From v4 on there is one row for each key.
    row = answer.coordinators[0] if answer.coordinators else answer
    return fault_of_code(row.error_code) if row.error_code else int(row.node_id)


def _coordinator(client: Client, transactional_id: str, deadline: Deadline) -> Fault | None:
    found = retrying_one(lambda: coordinator(client, transactional_id, deadline), deadline)
    if not isinstance(found, Fault):
        return None
    if found.code == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
        return Fault(found.code, f"needs WRITE and DESCRIBE on the transactional id {transactional_id}")
    why = f"the partition of {_TOPIC} for {transactional_id} has no leader, or too few replicas in sync"
    return Fault(found.code, f"there is no transaction coordinator: {why}", found.retriable)
