"""What our Kafka user may do, as brokers tell it beside other answers (KIP-430). Tries nothing out, changes nothing.

What brokers can't be asked is not here: whether we may write under a transactional.id; below Kafka 2.3 anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.metadata import MetadataRequest

from group_hygiene.kafka.client import Call, Client, Deadline, Response, fault_of_code, retrying
from group_hygiene.kafka.cluster import UNKNOWN_OPERATIONS, cluster_operations
from group_hygiene.kafka.coordinators import Question, ask
from group_hygiene.model import Fault

_CHUNK = 200
# The last version in which a group that does not exist is no error, and so has its operations told.
_ABSENT_IS_DEAD = 5


class Operation(IntEnum):
    """org.apache.kafka.common.acl.AclOperation, of those that matter here."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10

    def __str__(self) -> str:
        return self.name


# What may be done; None = the brokers don't tell.
Allowed = frozenset[int] | None


def on_cluster(client: Client, deadline: Deadline) -> Allowed | Fault:
    """What we may do on the cluster itself."""
    operations = cluster_operations(client, deadline)
    return operations if isinstance(operations, Fault) else _known(operations)


def on_topics(client: Client, deadline: Deadline) -> Mapping[str, Allowed] | Fault:
    """What we may do on each topic that we may DESCRIBE; of others brokers say nothing."""
    if not client.supports(MetadataRequest, 8):
        return {}
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=True)
    answer = retrying([None], lambda _: client.send_each({None: Call(None, request)}, deadline), deadline)[None]
    if isinstance(answer, Fault):
        return answer
    return {row.name: _known(row.authorized_operations) for row in answer.topics if not row.error_code}


def on_groups(client: Client, groups: Iterable[str], deadline: Deadline) -> Mapping[str, Allowed | Fault]:
    """What we may do on each of the groups, whether it exists or not; a group that is denied is a Fault."""
    question = Question(_describe, lambda _, response: _told(response), _CHUNK)
    return ask(client, dict.fromkeys(groups), question, deadline)


def _describe(groups: list[str]) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=groups, include_authorized_operations=True, max_version=_ABSENT_IS_DEAD)


def _told(response: Response) -> dict[str, Allowed | Fault]:
    return {
        row.group_id: fault_of_code(row.error_code) if row.error_code else _known(row.authorized_operations)
        for row in response.groups
    }


def _known(operations: Iterable[int] | int | None) -> Allowed:
    # A number is the library's default, of answers in a version without the field.
    if operations is None or isinstance(operations, int):
        return None
    found = frozenset(operations)
    return None if found == UNKNOWN_OPERATIONS else found
