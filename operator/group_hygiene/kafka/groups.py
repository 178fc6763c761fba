"""Lists (KIP-518) and describes groups (KIP-40, KIP-848, KIP-932, KIP-1071); one result per group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest, OffsetForLeaderEpochRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from group_hygiene.kafka import answers
from group_hygiene.kafka.bounds import Rows
from group_hygiene.kafka.client import Call, Client, Deadline, Request, Response, Results, fault_of_code, retrying
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, PREFIX, Question, ask, ask_brokers, partition_counts
from group_hygiene.kafka.library import (
    ConsumerGroupDescribeRequest,
    RawAnswer,
    RawListGroupsRequest,
    RawOffsetFetchRequest,
    ShareGroupDescribeRequest,
    StreamsGroupDescribeRequest,
    topic_rows,
)
from group_hygiene.kafka.offsets_log import hash_of, partition_of_hash
from group_hygiene.model.groups import (
    ID_MAX,
    Cluster,
    Description,
    Fault,
    Group,
    Groups,
    GroupState,
    GroupType,
    Listed,
    Listing,
    Member,
    Offsets,
    Partition,
)

_DESCRIBE_CHUNK = 200
# The share of a list's time to wait for leaders that are loading: the groups of the others are needed, too.
_SHARE_FOR_LOADING = 0.25
# Answers to Describe if there is no group, or if the broker does not know groups of the type. INVALID_GROUP_ID: only
# Classic groups may have the empty id.
_ABSENT = frozenset({"GROUP_ID_NOT_FOUND", "UNSUPPORTED_VERSION", "INVALID_GROUP_ID"})
# A broker refuses a filter with a type that it doesn't know. All that have this filter know these.
_NAMEABLE = frozenset({GroupType.CLASSIC, GroupType.CONSUMER})
_TYPES = (GroupType.CLASSIC, GroupType.CONSUMER, GroupType.SHARE, GroupType.STREAMS)


def list_problems(before: Cluster, listing: Listing, after: Cluster | Fault, moved: str) -> list[str]:
    """Why groups may be missing from a list, by the cluster before and after it; empty = none is missing.

    A list omits the groups of a coordinator that is lost or moves, without an error. moved: the message if one moved.
    """
    problems = [*before.problems, *unanswered(listing)]
    if isinstance(after, Fault):
        problems.append(f"the cluster could not be read again after the list: {after}")
    elif after.coordinators != before.coordinators:
        problems.append(moved)
    return problems


def unanswered(listing: Listing) -> list[str]:
    """Why groups may be missing from a list, by its answers alone; empty = none is missing."""
    problems = [f"broker {broker} did not list its groups: {fault}" for broker, fault in sorted(listing.faults.items())]
    for fault, number in Counter(listing.not_loaded.values()).items():
        problems.append(f"{number} partitions of {OFFSETS_TOPIC} may not be loaded by their leaders: {fault}")
    return problems


def list_groups(
    client: Client,
    cluster: Cluster,
    deadline: Deadline,
    states: Collection[GroupState] = (),
    types: Collection[GroupType] = (),
    held: Callable[[str], str] = str,
) -> Listing:
    """The groups of every broker, all brokers at once; empty `states` or `types` = all.

    Brokers filter if they can (states: ListGroups v4, types: v5); older ones list all groups. Below v4 the states come
    from DescribeGroups, and a group that can't be described is listed as Unknown. `Listing.notes` says so. Before and
    after the list, `not_loaded_before` and `not_loaded_since` check that each leader of `__consumer_offsets` omits no
    group. held: returns the object of an id that the caller holds anyway, or the id itself: of half a million groups,
    each copy of the ids takes 40 MB.
    """
    notes: list[str] = []
    filters: dict[str, Any] = {}
    if states and client.supports(ListGroupsRequest, 4):
        filters |= {"states_filter": [str(state) for state in states], "min_version": 4}
    if types and set(types) <= _NAMEABLE and client.supports(ListGroupsRequest, 5):
        filters |= {"types_filter": [str(kind) for kind in types], "min_version": 5}
    request_class = RawListGroupsRequest if client.supports(ListGroupsRequest, 3) else ListGroupsRequest
    calls = {broker: Call(broker, request_class(**filters)) for broker in cluster.brokers}

    left_out: dict[int, int] = {}

    def attempt(left: Sequence[int]) -> dict[int, dict[str, Listed] | Fault]:
        rows = Rows()

        def read(broker: int, answer: Response) -> dict[str, Listed] | Fault:
            left_out[broker] = getattr(answer, "left_out", 0)
            return _listed(broker, answer, rows, held)

        return client.send_each({broker: calls[broker] for broker in left}, deadline, read)

    unloaded = not_loaded_before(client, cluster, Deadline(deadline.left * _SHARE_FOR_LOADING))
    answered = retrying(calls, attempt, deadline)
    if not unloaded and not answered.faults:
        # A leader that lost a partition before it answered has omitted its groups, too.
        unloaded = not_loaded_since(client, cluster, deadline)
    # Of half a million groups, each dictionary takes tens of megabytes.
    first, *others = answered.ok.values() or [{}]
    rows: dict[str, Listed] = first
    group_faults: dict[str, Fault] = {}
    for answer in others:
        twice = {name: rows[name].beside(answer[name]) for name in rows.keys() & answer.keys()}
        rows.update(answer)
        rows.update(twice)
    if long := sum(left_out.values()):
        notes.append(f"{long} groups with ids of more than {ID_MAX} characters are left out, as the list is too large")
    if not client.supports(ListGroupsRequest, 4):
        notes.append("brokers older than 2.6 list no states: each group was described")
        rows, group_faults = _with_states(client, rows, deadline)
    if types and not client.supports(ListGroupsRequest, 5):
        notes.append("brokers older than 3.8 list no types: all groups are taken for Classic")
    unwanted = [
        name
        for name, row in rows.items()
        if (states and row.state not in states and name not in group_faults) or (types and row.type not in types)
    ]
    for name in unwanted:
        del rows[name]
    unknown = {name: fault for name, fault in group_faults.items() if name in rows}
    return Listing(Groups(rows), answered.faults, tuple(notes), unknown, unloaded)


def _listed(broker: int, response: Response, rows: Rows, held: Callable[[str], str]) -> dict[str, Listed] | Fault:
    if isinstance(response, RawAnswer):
        return answers.listed(response.body, response.version, broker, rows, held)
    if response.error_code:
        return fault_of_code(response.error_code)
    rows.take(len(response.groups))
    return {
        row.group_id: Listed(GroupType.CLASSIC, row.protocol_type, GroupState.UNKNOWN, broker)
        for row in response.groups
    }


def _with_states(
    client: Client, rows: Mapping[str, Listed], deadline: Deadline
) -> tuple[dict[str, Listed], dict[str, Fault]]:
    types = {name: row.type for name, row in rows.items()}
    coordinators = {name: row.coordinator for name, row in rows.items()}
    described = describe_groups(client, types, coordinators, deadline)
    complete = {
        name: rows[name]._replace(protocol_type=answer.group.protocol_type, state=answer.group.state)
        for name, answer in described.ok.items()
    }
    return {**rows, **complete}, described.faults


def describe_groups(
    client: Client, types: Mapping[str, GroupType], coordinators: Mapping[str, int | None], deadline: Deadline
) -> Results[str, Description]:
    """State, protocol, epoch and members of each group, by the request for its type in `types`.

    coordinators: group -> its coordinator, None = look it up. DescribeGroups answers Dead for groups of the newer
    protocols and, up to v5, for groups that don't exist; from v6 on
    the latter get GROUP_ID_NOT_FOUND. The state Dead in such an answer means that the group is gone.
    """
    by_type: dict[GroupType, dict[str, int | None]] = {}
    for name, kind in types.items():
        by_type.setdefault(kind, {})[name] = coordinators[name]
    results = Results[str, Description]()
    for kind, members in by_type.items():
        results.update(ask(client, members, _describe_question(kind), deadline))
    results.update(_existing_assignments(client, results, deadline))
    return results


def find_groups(client: Client, names: Collection[str], deadline: Deadline) -> dict[str, Description | Fault | None]:
    """The same for groups of unknown types; None = there is no group of any type.

    Each Describe request returns groups of its own type only. A group may come back with another type.
    """
    found: dict[str, Description | Fault | None] = dict.fromkeys(names)
    for kind in _TYPES:
        left = [name for name, answer in found.items() if answer is None]
        described = describe_groups(client, dict.fromkeys(left, kind), dict.fromkeys(left), deadline) if left else {}
        for name, answer in described.items():
            absent = answer.code in _ABSENT if isinstance(answer, Fault) else answer.group.state is GroupState.DEAD
            found[name] = None if absent else answer
    return found


def _existing_assignments(
    client: Client, described: Results[str, Description], deadline: Deadline
) -> dict[str, Description]:
    """The Streams groups, without nonexistent partitions: a subtopology has tasks for its largest topic's
    partitions.
    """
    streams = {name: each for name, each in described.ok.items() if each.group.type is GroupType.STREAMS}
    assigned = {place.topic for answer in streams.values() for member in answer.members for place in member.assignment}
    counts = partition_counts(client, assigned, deadline)

    def exists(place: Partition) -> bool:
        count = counts[place.topic]
        return isinstance(count, Fault) or place.partition < count

    def real(member: Member) -> Member:
        return replace(member, assignment=tuple(filter(exists, member.assignment)))

    return {name: replace(answer, members=tuple(map(real, answer.members))) for name, answer in streams.items()}


_NEW_PROTOCOLS: dict[GroupType, Any] = {
    GroupType.CONSUMER: ConsumerGroupDescribeRequest,
    GroupType.SHARE: ShareGroupDescribeRequest,
    GroupType.STREAMS: StreamsGroupDescribeRequest,
}


def _describe_question(kind: GroupType) -> Question[str]:
    new = _NEW_PROTOCOLS.get(kind)
    return Question(
        request=lambda ids: DescribeGroupsRequest(groups=ids) if new is None else new(group_ids=ids),
        answers=lambda _, response: {row.group_id: _described(kind, row) for row in response.groups},
        chunk=_DESCRIBE_CHUNK,
    )


def _described(kind: GroupType, row: Any) -> Description | Fault:
    if row.error_code:
        return fault_of_code(row.error_code, row.error_message)
    state = answers.STATES.get(row.group_state.lower(), GroupState.UNKNOWN)
    if kind not in _NEW_PROTOCOLS:
        group = Group(row.group_id, GroupType.CLASSIC, row.protocol_type, state, -1)
        members = tuple(_classic_member(row.protocol_type, member) for member in row.members)
        return Description(group, row.protocol_data, None, members)
    sources: dict[str, list[str]] | None = None
    if kind is GroupType.STREAMS:
        # What each subtopology reads: its source topics, and the application's own repartition topics.
        parts = row.topology.subtopologies if row.topology is not None else None
        sources = {
            part.subtopology_id: [*part.source_topics, *(topic.name for topic in part.repartition_source_topics)]
            for part in parts or ()
        }
    # Kafka's protocol types of these groups: consumer, share and streams.
    group = Group(row.group_id, kind, kind.lower(), state, -1)
    members = tuple(_new_member(member, sources) for member in row.members)
    return Description(group, getattr(row, "assignor_name", ""), row.group_epoch, members)


def _classic_member(protocol_type: str, member: Any) -> Member:
    assignment: list[Partition] = []
    topics: tuple[str, ...] = ()
    if protocol_type == "consumer":
        # A custom assignor may write any bytes: then there is no assignment to show, which is no error.
        try:
            if member.member_assignment:
                decoded = ConsumerProtocolAssignment.decode(member.member_assignment)
                assignment = [Partition(*partition) for partition in decoded.partitions()]
            if member.member_metadata:
                topics = tuple(ConsumerProtocolSubscription.decode(member.member_metadata).topics)
        except Exception:
            assignment = []
    return Member(
        id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host,
        epoch=None,
        topics=topics,
        assignment=tuple(sorted(assignment)),
    )


def _new_member(member: Any, sources: Mapping[str, Sequence[str]] | None) -> Member:
    """sources: of a Streams group: its members have tasks, each for one partition of all topics of a subtopology."""
    if sources is not None:
        topics = {topic for part in sources.values() for topic in part}
        assignment = {
            Partition(topic, partition)
            for task in member.assignment.active_tasks
            for topic in sources.get(task.subtopology_id, ())
            for partition in task.partitions
        }
    else:
        topics = set(member.subscribed_topic_names or ())
        assignment = {
            Partition(topic.topic_name, partition)
            for topic in member.assignment.topic_partitions
            for partition in topic.partitions
        }
    return Member(
        id=member.member_id,
        instance_id=getattr(member, "instance_id", None),
        client_id=member.client_id,
        host=member.client_host,
        epoch=member.member_epoch,
        topics=tuple(sorted(topics)),
        assignment=tuple(sorted(assignment)),
        pattern=getattr(member, "subscribed_topic_regex", None) or "",
    )


def subscribed_topics(described: Description | Fault) -> frozenset[str] | Fault:
    """The topics that a group's members read; a Fault if the description does not name all of them, or not yet."""
    if isinstance(described, Fault):
        return described
    state = described.group.state
    if described.group.type is GroupType.CLASSIC and state is not GroupState.STABLE:
        # Brokers omit the members' subscriptions until then.
        return Fault("REBALANCE_IN_PROGRESS", f"it is {state}", retriable=True)
    if not described.members:
        return Fault("NO_MEMBERS", "its members have left", retriable=True)
    for member in described.members:
        if member.pattern:
            return Fault("SUBSCRIBED_BY_PATTERN", f"a member subscribes by the pattern {member.pattern!r}")
        if not member.topics:
            return Fault("SUBSCRIPTION_NOT_REPORTED", f"member {member.id!r} does not report what it reads")
    assigned = {place.topic for member in described.members for place in member.assignment}
    return frozenset(assigned.union(*(member.topics for member in described.members)))


# Checks that a list of groups has all groups that the leaders of `__consumer_offsets` know.
#
# The list doesn't show it. ListGroups omits, without an error, the groups of a partition whose leader was just elected
# and has not begun to load it, or could not load it (GroupCoordinatorService.listGroups,
# CoordinatorRuntime.scheduleReadAllOperation; before 4.0 GroupCoordinator.handleListGroups). Metadata names the new
# leader before that. A coordinator of 4.0 or later lists groups up to the high watermark. A new leader's high watermark
# lags until its followers have fetched, so groups that the previous leader had committed are missing.
#
# The leader of each partition must confirm: before the list, that it leads in the epoch that metadata named, has loaded
# the partition, and all records in its log are committed; after the list, that it has the partition loaded and still
# leads in the same epoch. A broker that lost a partition and got it back leads in a later epoch, whatever metadata
# says.
#
# If brokers hide `__consumer_offsets`, the coordinators of sample groups (`samples`) are asked instead. Epochs can't be
# read then, so a partition that a broker lost and got back during the list goes unnoticed.

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
    return _ask(client, cluster, ids, (*_epochs(cluster), _loaded(ids), *committed), deadline)


def not_loaded_since(client: Client, cluster: Cluster, deadline: Deadline) -> dict[int, Fault]:
    """The same for a list that has just ended, after `not_loaded_before` found nothing; each leader is asked once.

    A leader that lost a partition during the list and got it back has it in another epoch.
    """
    ids = _ids(cluster, deadline)
    if isinstance(ids, Fault):
        return dict.fromkeys(cluster.leaders, ids)
    return _ask(client, cluster, ids, (_loaded(ids), *_epochs(cluster)), deadline, wait=False)


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


def _loaded(ids: Mapping[int, str]) -> Question[int]:
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
