"""Asks each broker of a cluster for its version."""

from __future__ import annotations

from collections.abc import Mapping

from kafka.protocol.admin import DeleteGroupsRequest
from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions
from kafka.protocol.metadata import ApiVersionsRequest

from group_hygiene.kafka.client import CLIENT_ID, Call, Client, Deadline, fault_of_code
from group_hygiene.model.groups import Fault
from group_hygiene.model.snapshot import Cluster

# From this version on, brokers load a partition in which offsets precede the records of their Streams group.
_LOADS_STREAMS = (4, 3)
# The version of the request that every broker since 2.4 answers.
_VERSION = 3
# The library's table ends with 4.3. DeleteGroups v3 came with 4.4 (KIP-1331).
_SINCE_4_4 = (DeleteGroupsRequest.API_KEY, 3)


def versions(client: Client, cluster: Cluster, deadline: Deadline) -> Mapping[int, str | Fault]:
    """Broker -> its version as its ApiVersions show it (`3.9`, never with the patch level), or the Fault."""
    request = ApiVersionsRequest(
        client_software_name=CLIENT_ID, client_software_version="unknown", max_version=_VERSION
    )
    answers = client.send_each({broker: Call(broker, request) for broker in cluster.brokers}, deadline)
    found: dict[int, str | Fault] = {}
    for broker, answer in sorted(answers.items()):
        if isinstance(answer, Fault):
            found[broker] = answer
        elif answer.error_code:
            found[broker] = fault_of_code(answer.error_code)
        else:
            keys = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
            key, version = _SINCE_4_4
            newest = keys.get(key, (0, 0))[1] >= version
            found[broker] = "4.4" if newest else ".".join(map(str, infer_broker_version_from_api_versions(keys)))
    return found


def without_streams(client: Client, cluster: Cluster, deadline: Deadline) -> tuple[str, ...] | Fault:
    """The versions of brokers on which a group of the Streams protocol can't be restored; a Fault if not known.

    The restored offsets precede the group's own records in `__consumer_offsets`. Once compaction has removed the
    tombstone between them, a coordinator of 4.2.0 fails to load the whole partition (KAFKA-20254). 4.2.1 has the fix,
    but brokers don't report their patch level; which releases of 4.1 have it is not known.
    """
    found = versions(client, cluster, deadline)
    for version in found.values():
        if isinstance(version, Fault):
            return version
    return tuple(sorted({str(version) for version in found.values() if _number(str(version)) < _LOADS_STREAMS}))


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
