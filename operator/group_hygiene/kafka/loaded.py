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

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest, OffsetForLeaderEpochRequest

from group_hygiene.kafka import answers
from group_hygiene.kafka.bounds import Rows
from group_hygiene.kafka.client import Client, Deadline, Request, Response, fault_of_code, retrying
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.coordinators import PREFIX, Question, ask_brokers
from group_hygiene.kafka.offsets_log import hash_of, partition_of_hash
from group_hygiene.kafka.protocol import RawOffsetFetchRequest, topic_rows
from group_hygiene.model.groups import Fault, Offsets, Partition
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


def _ask(
    client: Client,
    cluster: Cluster,
    ids: Mapping[int, str],
    questions: Sequence[Question[int]],
    deadline: Deadline,
    wait: bool = True,
) -> dict[int, Fault]:
    """The first Fault for each partition. A partition with a Fault is left out of the next question.

    A question's answers: for each partition a Fault, or None = confirmed.
    """
    if cluster.samples:
        leaders = {index: cluster.samples[name] for index, name in ids.items()}
    else:
        leaders = {index: leader for index, (leader, _) in cluster.leaders.items() if leader in cluster.brokers}
    faults: dict[int, Fault] = {}
    for question in questions:

        def attempt(left: Sequence[int], question: Question[int] = question) -> dict[int, Fault | None]:
            return ask_brokers(client, {index: leaders[index] for index in left}, question, deadline)

        soon = Deadline(min(deadline.left, _UNAWARE_S) if wait else 0)
        found = retrying([index for index in leaders if index not in faults], attempt, soon)
        if wait:
            loading = [index for index, fault in found.faults.items() if fault.code == _LOADING]
            found |= retrying(loading, attempt, deadline)
        faults |= found.faults
    denied = f"needs DESCRIBE on groups {PREFIX}*"
    advised = {
        i: replace(fault, message=denied) if fault.code == _GROUP_DENIED else fault for i, fault in faults.items()
    }
    return {leaders[index]: fault for index, fault in advised.items()} if cluster.samples else advised


def _epochs(cluster: Cluster) -> list[Question[int]]:
    """Whether the brokers lead in the epochs of `cluster`. None if it has no leaders."""
    if not cluster.leaders:
        return []
    topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    def request(led: Sequence[int]) -> Request:
        epochs = {index: cluster.leaders[index][1] for index in led}
        entries = {
            Partition(OFFSETS_TOPIC, index): topic_class.OffsetForLeaderPartition(
                partition=index, current_leader_epoch=epoch, leader_epoch=epoch
            )
            for index, epoch in epochs.items()
        }
        topics = topic_rows(topic_class, "topic", entries)
        return OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=topics, min_version=2)

    def fault(code: int) -> Fault:
        found = fault_of_code(code)
        # A leader in a later epoch never returns to an earlier one.
        return replace(found, retriable=found.retriable and code != _FENCED_LEADER_EPOCH)

    def answered(_: Sequence[int], response: Response) -> dict[int, Fault | None]:
        return {
            row.partition: fault(row.error_code) if row.error_code else None
            for topic in response.topics
            for row in topic.partitions
        }

    return [Question(request, answered, _CHUNK)]


def _committed(ids: Mapping[int, str]) -> Question[int]:
    """Whether all records of loaded partitions are committed; NOT_COORDINATOR: not within `offsets.commit.timeout.ms`.

    A coordinator whose high watermark moves while it loads misses that, and counts its groups as uncommitted until the
    next write to that partition (CoordinatorRuntime registers its listener after loading).
    """
    group_class = OffsetFetchRequest.OffsetFetchRequestGroup

    def request(led: Sequence[int]) -> Request:
        groups = [group_class(group_id=ids[index], topics=None) for index in led]
        return RawOffsetFetchRequest(groups=groups, require_stable=True)

    def confirmed(row: Offsets | Fault) -> Fault | None:
        if not isinstance(row, Fault):
            return None
        return replace(row, message=_UNCOMMITTED) if row.code == _NOT_COORDINATOR else row

    def answered(led: Sequence[int], response: Response) -> dict[int, Fault | None]:
        found = answers.committed(response.body, Rows())
        return {index: confirmed(found[ids[index]]) for index in led if ids[index] in found}

    return Question(request, answered, _CHUNK)


def _described(ids: Mapping[int, str]) -> Question[int]:
    """A loaded coordinator answers Dead for a group that does not exist, from v6 on GROUP_ID_NOT_FOUND (KIP-1043)."""

    def answered(led: Sequence[int], response: Response) -> dict[int, Fault | None]:
        codes = {row.group_id: row.error_code for row in response.groups}
        return {
            index: None if code in (_NONE, _GROUP_ID_NOT_FOUND) else fault_of_code(code)
            for index in led
            if (code := codes.get(ids[index])) is not None
        }

    return Question(lambda led: DescribeGroupsRequest(groups=[ids[index] for index in led]), answered, _CHUNK)


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
