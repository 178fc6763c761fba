"""Lists (KIP-518) and describes groups (KIP-40, KIP-848, KIP-932, KIP-1071); one result per group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from group_hygiene.kafka import answers
from group_hygiene.kafka.bounds import Rows
from group_hygiene.kafka.client import Call, Client, Deadline, Response, Results, fault_of_code, retrying
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, partition_counts
from group_hygiene.kafka.coordinators import Question, ask
from group_hygiene.kafka.loaded import not_loaded_before, not_loaded_since
from group_hygiene.kafka.protocol import (
    ConsumerGroupDescribeRequest,
    RawAnswer,
    RawListGroupsRequest,
    ShareGroupDescribeRequest,
    StreamsGroupDescribeRequest,
)
from group_hygiene.model.groups import ID_MAX, Fault, Group, Groups, GroupState, GroupType, Listed, Partition
from group_hygiene.model.snapshot import Cluster, Description, Listing, Member

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
) -> Listing:
    """The groups of every broker, all brokers at once; empty `states` or `types` = all.

    Brokers filter if they can (states: ListGroups v4, types: v5); older ones list all groups. Below v4 the states come
    from DescribeGroups, and a group that can't be described is listed as Unknown. `Listing.notes` says so. Before and
    after the list, `loaded` checks that each leader of `__consumer_offsets` omits no group.
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
            return _listed(broker, answer, rows)

        return client.send_each({broker: calls[broker] for broker in left}, deadline, read)

    unloaded = not_loaded_before(client, cluster, Deadline(deadline.left * _SHARE_FOR_LOADING))
    answered = retrying(calls, attempt, deadline)
    if not unloaded and not answered.faults:
        # A leader that lost a partition before it answered has omitted its groups, too.
        unloaded = not_loaded_since(client, cluster, deadline)
    rows: dict[str, Listed] = {}
    group_faults: dict[str, Fault] = {}
    for answer in answered.ok.values():
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
    chosen = {
        name: row
        for name, row in rows.items()
        if (not states or row.state in states or name in group_faults) and (not types or row.type in types)
    }
    unknown = {name: fault for name, fault in group_faults.items() if name in chosen}
    return Listing(Groups(chosen), answered.faults, tuple(notes), unknown, unloaded)


def _listed(broker: int, response: Response, rows: Rows) -> dict[str, Listed] | Fault:
    if isinstance(response, RawAnswer):
        return answers.listed(response.body, response.version, broker, rows)
    if response.error_code:
        return fault_of_code(response.error_code)
    rows.take(len(response.groups))
    return {
        row.group_id: Listed(GroupType.CLASSIC, row.protocol_type, GroupState.UNKNOWN, broker)
        for row in response.groups
    }


_STATES = {state.lower(): state for state in GroupState}


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
    state = _STATES.get(row.group_state.lower(), GroupState.UNKNOWN)
    if kind not in _NEW_PROTOCOLS:
        group = Group(row.group_id, GroupType.CLASSIC, row.protocol_type, state, -1)
        members = tuple(_classic_member(row.protocol_type, member) for member in row.members)
        return Description(group, row.protocol_data, None, members)
    sources = _sources(row.topology) if kind is GroupType.STREAMS else None
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


def _sources(topology: Any) -> dict[str, list[str]]:
    """The topics that each subtopology reads: its source topics, and the application's own repartition topics."""
    parts = topology.subtopologies if topology is not None else None
    return {
        part.subtopology_id: [*part.source_topics, *(topic.name for topic in part.repartition_source_topics)]
        for part in parts or ()
    }


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
