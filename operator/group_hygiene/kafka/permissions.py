"""Reads from brokers what the operator's Kafka user may do (KIP-430). Changes nothing, and attempts no operation.

Brokers don't report permissions on transactional.ids, and before Kafka 2.3 none at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from kafka.protocol.admin import DescribeClusterRequest, DescribeGroupsRequest
from kafka.protocol.metadata import MetadataRequest

from group_hygiene.kafka.client import Call, Client, Deadline, fault_of_code, retrying_one
from group_hygiene.kafka.coordinators import Question, ask
from group_hygiene.model.groups import Fault

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
