"""Whether the leaders of `__consumer_offsets` have loaded the partitions that they lead.

A list of groups doesn't show it. ListGroups asks the coordinators that exist: it leaves out, without an error, the
groups of a partition whose leader was just elected and has not begun to load it, or could not load it
(GroupCoordinatorService.listGroups, CoordinatorRuntime.scheduleReadAllOperation; before 4.0
GroupCoordinator.handleListGroups). Metadata names the new leader before that. DescribeGroups has an error for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count

from kafka.protocol.admin import DescribeGroupsRequest

from group_hygiene.kafka.client import Call, Client, Deadline, fault_of_code, retrying
from group_hygiene.model import Fault
from group_hygiene.snapshot import Cluster

# Of ids that no consumer uses, one for each partition.
PREFIX = "group-hygiene-loaded-"
_CHUNK = 200
_LOADING = "COORDINATOR_LOAD_IN_PROGRESS"
# Brokers follow the metadata one after another.
_UNAWARE_S = 2.0
_NONE, _GROUP_DENIED, _GROUP_ID_NOT_FOUND = 0, 30, 69


def not_loaded(client: Client, cluster: Cluster, deadline: Deadline, wait: bool = True) -> dict[int, Fault]:
    """Partition of `__consumer_offsets` -> why its leader may not have loaded it; empty = all leaders have.

    Asks each leader, in one DescribeGroups for up to 200 partitions, for a group of each partition that does not exist.
    Only a coordinator that has loaded the partition knows that: it answers Dead, from v6 on GROUP_ID_NOT_FOUND
    (KIP-1043). Partitions without a leader are left out: they are a problem of the cluster already. Needs DESCRIBE on
    groups that begin with PREFIX.

    wait: ask again, until the deadline where a leader is loading, and for two seconds where one does not know yet that
    it leads; otherwise each is asked once.
    """
    leaders = {index: leader for index, (leader, _) in cluster.leaders.items() if leader in cluster.brokers}
    ids = ids_by_partition(len(cluster.leaders))

    def attempt(left: Sequence[int]) -> dict[int, Fault | None]:
        of_leader: dict[int, list[int]] = {}
        for index in left:
            of_leader.setdefault(leaders[index], []).append(index)
        chunks = [
            (leader, tuple(led[start : start + _CHUNK]))
            for leader, led in of_leader.items()
            for start in range(0, len(led), _CHUNK)
        ]
        calls = {
            each: Call(each[0], DescribeGroupsRequest(groups=[ids[index] for index in each[1]])) for each in chunks
        }
        results: dict[int, Fault | None] = {}
        for (_, led), answer in client.send_each(calls, deadline).items():
            if isinstance(answer, Fault):
                results.update(dict.fromkeys(led, answer))
            else:
                codes = {row.group_id: row.error_code for row in answer.groups}
                results.update({index: _fault(codes[ids[index]]) for index in led if ids[index] in codes})
        return results

    soon = Deadline(min(deadline.left, _UNAWARE_S))
    answers = retrying(leaders, attempt, soon if wait else Deadline(0))
    if wait:
        loading = [index for index, answer in answers.items() if isinstance(answer, Fault) and answer.code == _LOADING]
        answers |= retrying(loading, attempt, deadline)
    return {index: answer for index, answer in answers.items() if answer is not None}


def partition_of(group: str, partitions: int) -> int:
    """Where in `__consumer_offsets` a group's records are (GroupCoordinatorService.partitionFor, String.hashCode)."""
    code = 0
    units = group.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    # Utils.abs: the one number that has no counterpart is 0.
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def _fault(code: int) -> Fault | None:
    if code in (_NONE, _GROUP_ID_NOT_FOUND):
        return None
    fault = fault_of_code(code)
    return replace(fault, message=f"needs DESCRIBE on groups {PREFIX}*") if code == _GROUP_DENIED else fault


@lru_cache(maxsize=4)
def ids_by_partition(partitions: int) -> Mapping[int, str]:
    """Partition of `__consumer_offsets` -> a group id that nobody uses and whose records would be there."""
    found: dict[int, str] = {}
    numbers = count()
    while len(found) < partitions:
        name = f"{PREFIX}{next(numbers)}"
        found.setdefault(partition_of(name, partitions), name)
    return found
