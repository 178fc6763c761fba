"""Checks that a list of groups has all groups that the leaders of `__consumer_offsets` know.

The list doesn't show it. ListGroups omits, without an error, the groups of a partition whose leader was just elected
and has not begun to load it, or could not load it (GroupCoordinatorService.listGroups,
CoordinatorRuntime.scheduleReadAllOperation; before 4.0 GroupCoordinator.handleListGroups). Metadata names the new
leader before that. A coordinator of 4.0 or later lists groups up to the high watermark. A new leader's high watermark
lags until its followers have fetched, so groups that the previous leader had committed are missing.

The leader of each partition must confirm: before the list, that it leads in the epoch that metadata named, has loaded
the partition, and all records in its log are committed; after the list, that it has the partition loaded and still
leads in the same epoch. A broker that lost a partition and got it back leads in a later epoch, whatever metadata says.

If brokers hide `__consumer_offsets`, the coordinators of sample groups (`samples`) are asked instead. Epochs can't be
read then, so a partition that a broker lost and got back during the list goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest, OffsetForLeaderEpochRequest

from group_hygiene.kafka import answers
from group_hygiene.kafka.bounds import Rows
from group_hygiene.kafka.client import Call, Client, Deadline, Request, Response, fault_of_code, retrying
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.partitions import hash_of, partition_of_hash
from group_hygiene.kafka.protocol import RawOffsetFetchRequest
from group_hygiene.kafka.samples import PREFIX
from group_hygiene.model.groups import Fault
from group_hygiene.model.snapshot import Cluster

_CHUNK = 200
_LOADING, _NOT_COORDINATOR = "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"
_UNCOMMITTED = "loaded, but not all records count as committed: the next commit of any group in the partition ends that"
# For how long a broker may lag behind the metadata.
_UNAWARE_S = 2.0
_GROUP_DENIED = "GROUP_AUTHORIZATION_FAILED"
_NONE, _GROUP_ID_NOT_FOUND, _FENCED_LEADER_EPOCH = 0, 69, 74
_CONSUMER = -1


def not_loaded_before(client: Client, cluster: Cluster, deadline: Deadline) -> dict[int, Fault]:
    """Partition of `__consumer_offsets` -> why a list that begins now may lack its groups; empty = it can't.

    Asks each leader about its partitions, up to 200 in a request: whether it leads in the epoch in `cluster`
    (OffsetForLeaderEpoch v2, KIP-320); for a nonexistent group of each partition (DescribeGroups), which only a
    coordinator that has loaded the partition answers; and for the offsets of that group. With `require_stable` a
    coordinator of 4.0 or later answers once all that it had loaded or written is committed
    (GroupCoordinatorService.fetchAllOffsets). Brokers before 3.0 have no OffsetFetch for several groups and no such
    coordinator. Needs DESCRIBE on `__consumer_offsets` and on groups that begin with PREFIX. Partitions without a
    leader have no entry: `Cluster.problems` has them.

    Repeats the requests until the deadline while a leader is loading, and for two seconds if it does not know yet that
    it leads.

    If the cluster has `samples`, the keys are their coordinators instead of partitions.
    """
    ids = _ids(cluster, deadline)
    if isinstance(ids, Fault):
        return dict.fromkeys(cluster.leaders, ids)
    committed = [_committed(ids)] if client.supports(OffsetFetchRequest, 8) else []
    return _ask(client, cluster, ids, (*_epochs(cluster), _described(ids), *committed), deadline)


def not_loaded_since(client: Client, cluster: Cluster, deadline: Deadline) -> dict[int, Fault]:
    """The same for a list that has just ended, after `not_loaded_before` found nothing; each leader is asked once.

    A leader that lost a partition during the list and got it back has it in another epoch.
    """
    ids = _ids(cluster, deadline)
    if isinstance(ids, Fault):
        return dict.fromkeys(cluster.leaders, ids)
    return _ask(client, cluster, ids, (_described(ids), *_epochs(cluster)), deadline, wait=False)


def _ids(cluster: Cluster, deadline: Deadline) -> dict[int, str] | Fault:
    """Partition -> a group id that no consumer uses; for hidden partitions the sample ids, numbered."""
    if cluster.samples:
        return dict(enumerate(cluster.samples))
    return ids_by_partition(len(cluster.leaders), deadline)


@dataclass(frozen=True)
class _Question:
    """A request to a leader. answers: for each partition in the response a Fault, or None = confirmed."""

    request: Callable[[Sequence[int]], Request]
    answers: Callable[[Response], Mapping[int, Fault | None]]


def _ask(
    client: Client,
    cluster: Cluster,
    ids: Mapping[int, str],
    questions: Sequence[_Question],
    deadline: Deadline,
    wait: bool = True,
) -> dict[int, Fault]:
    """The first Fault for each partition. A partition with a Fault is left out of the next question."""
    if cluster.samples:
        leaders = {index: cluster.samples[name] for index, name in ids.items()}
    else:
        leaders = {index: leader for index, (leader, _) in cluster.leaders.items() if leader in cluster.brokers}
    faults: dict[int, Fault] = {}
    for question in questions:

        def attempt(left: Sequence[int], question: _Question = question) -> dict[int, Fault | None]:
            of_leader: dict[int, list[int]] = {}
            for index in left:
                of_leader.setdefault(leaders[index], []).append(index)
            chunks = [
                (leader, tuple(led[start : start + _CHUNK]))
                for leader, led in of_leader.items()
                for start in range(0, len(led), _CHUNK)
            ]
            calls = {each: Call(each[0], question.request(each[1])) for each in chunks}
            results: dict[int, Fault | None] = {}
            for (_, led), answer in client.send_each(calls, deadline).items():
                results.update(dict.fromkeys(led, answer) if isinstance(answer, Fault) else question.answers(answer))
            return results

        soon = Deadline(min(deadline.left, _UNAWARE_S) if wait else 0)
        found = retrying([index for index in leaders if index not in faults], attempt, soon)
        if wait:
            loading = [index for index, answer in found.items() if answer is not None and answer.code == _LOADING]
            found |= retrying(loading, attempt, deadline)
        faults |= {index: _advised(answer) for index, answer in found.items() if answer is not None}
    return {leaders[index]: fault for index, fault in faults.items()} if cluster.samples else faults


def _epochs(cluster: Cluster) -> list[_Question]:
    """Whether the brokers lead in the epochs of `cluster`. None if it has no leaders."""
    if not cluster.leaders:
        return []
    topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition_class = topic_class.OffsetForLeaderPartition

    def request(led: Sequence[int]) -> Request:
        epochs = {index: cluster.leaders[index][1] for index in led}
        partitions = [
            partition_class(partition=index, current_leader_epoch=epoch, leader_epoch=epoch)
            for index, epoch in epochs.items()
        ]
        topics = [topic_class(topic=OFFSETS_TOPIC, partitions=partitions)]
        return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics, min_version=2)

    def fault(code: int) -> Fault:
        found = fault_of_code(code)
        # A leader in a later epoch never returns to an earlier one.
        return replace(found, retriable=found.retriable and code != _FENCED_LEADER_EPOCH)

    def answered(response: Response) -> dict[int, Fault | None]:
        return {
            row.partition: fault(row.error_code) if row.error_code else None
            for topic in response.topics
            for row in topic.partitions
        }

    return [_Question(request, answered)]


def _committed(ids: Mapping[int, str]) -> _Question:
    """Whether all records of loaded partitions are committed; NOT_COORDINATOR: not within `offsets.commit.timeout.ms`.

    A coordinator whose high watermark moves while it loads misses that, and counts its groups as uncommitted until the
    next write to that partition (CoordinatorRuntime registers its listener after loading).
    """
    indexes = {name: index for index, name in ids.items()}
    group_class = OffsetFetchRequest.OffsetFetchRequestGroup

    def answered(response: Response) -> dict[int, Fault | None]:
        found = answers.committed(response.body, Rows())
        return {
            indexes[name]: _uncommitted(row) if isinstance(row, Fault) else None
            for name, row in found.items()
            if name in indexes
        }

    return _Question(
        lambda led: RawOffsetFetchRequest(
            groups=[group_class(group_id=ids[index], topics=None) for index in led], require_stable=True
        ),
        answered,
    )


def _described(ids: Mapping[int, str]) -> _Question:
    """A loaded coordinator answers Dead for a group that does not exist, from v6 on GROUP_ID_NOT_FOUND (KIP-1043)."""
    indexes = {name: index for index, name in ids.items()}

    def answered(response: Response) -> dict[int, Fault | None]:
        codes = {row.group_id: row.error_code for row in response.groups}
        return {
            indexes[name]: None if code in (_NONE, _GROUP_ID_NOT_FOUND) else fault_of_code(code)
            for name, code in codes.items()
            if name in indexes
        }

    return _Question(lambda led: DescribeGroupsRequest(groups=[ids[index] for index in led]), answered)


def _uncommitted(fault: Fault) -> Fault:
    return replace(fault, message=_UNCOMMITTED) if fault.code == _NOT_COORDINATOR else fault


def _advised(fault: Fault) -> Fault:
    return replace(fault, message=f"needs DESCRIBE on groups {PREFIX}*") if fault.code == _GROUP_DENIED else fault


# Endings of ids with their hashes: the hash of an id follows from those of its two parts.
_ENDINGS = tuple((text, hash_of(text)) for text in (f"{number:03}" for number in range(1_000)))
_SHIFT = 31**3


def ids_by_partition(partitions: int, deadline: Deadline) -> dict[int, str] | Fault:
    """Partition of `__consumer_offsets` -> a group id that no consumer uses and whose records would be there.

    Searches by trial: some hundred thousand ids for 10,000 partitions. The Fault is REQUEST_TIMED_OUT if the deadline
    passes.
    """
    found: dict[int, str] = {}
    for number in count():
        if len(found) == partitions:
            break
        if deadline.left <= 0:
            return Fault("REQUEST_TIMED_OUT", f"{partitions} group ids were not found in time", retriable=True)
        start = f"{PREFIX}{number}"
        shifted = hash_of(start) * _SHIFT
        for ending, code in _ENDINGS:
            found.setdefault(partition_of_hash((shifted + code) & 0xFFFFFFFF, partitions), start + ending)
    return found
