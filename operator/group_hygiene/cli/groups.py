"""`list`, `describe` and `offsets`: read groups, as tables and as JSON. One that fails does not hide the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import Column, Document, Report, Table, printable, working
from group_hygiene.cli.target import Session, open_session
from group_hygiene.errors import Unreachable
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.offsets import ShareOffsets, share_offsets
from group_hygiene.model.groups import (
    NO_SUCH_TOPIC,
    Cluster,
    Description,
    Fault,
    Group,
    GroupState,
    GroupType,
    Listing,
    Member,
    Offsets,
    Partition,
)
from group_hygiene.model.naming import truncated_list

if TYPE_CHECKING:
    from group_hygiene.cli.commands import ListOptions

_LAG = Column("LAG", cell=lambda d: d.get("lag"), number=True)
_STATE = Column("STATE", coloured=True)
_PROTOCOL_TYPE = Column("PROTOCOL-TYPE", cell=lambda d: d["protocolType"] or None)
_COORDINATOR = Column("COORDINATOR", cell=lambda d: d["coordinator"] and "{address} ({id})".format(**d["coordinator"]))
_LISTED = (
    Column("GROUP"),
    _STATE,
    Column("TYPE"),
    _PROTOCOL_TYPE,
    Column("OWNER", cell=lambda d: d.get("owner"), wide=True),
    _COORDINATOR._replace(wide=True),
)
_DESCRIBED = (
    Column("GROUP"),
    _COORDINATOR,
    _STATE,
    Column("TYPE"),
    _PROTOCOL_TYPE,
    Column("ASSIGNOR"),
    Column("EPOCH", number=True),
    Column("MEMBERS", cell=lambda d: len(d["members"]), number=True),
)
_MEMBERS = (
    Column("GROUP"),
    Column("MEMBER", "id"),
    Column("HOST"),
    Column("CLIENT-ID", "clientID"),
    Column("INSTANCE-ID", "instanceID"),
    Column("EPOCH", wide=True, number=True),
    Column("PARTITIONS", cell=lambda d: len(d["assignment"]), number=True),
    Column("ASSIGNMENT", cell=lambda d: _assignment(d["assignment"])),
    Column("TOPICS", cell=lambda d: ",".join(d["topics"]) or None, wide=True),
)
_OFFSETS = (
    *map(Column, ("GROUP", "TOPIC")),
    *(Column(title, number=True) for title in ("PARTITION", "COMMITTED", "START", "END", "LAG")),
    Column("NOTE"),
    Column("MEMBER", cell=lambda d: d["member"] and d["member"]["id"], wide=True),
    Column("HOST", cell=lambda d: d["member"] and d["member"]["host"], wide=True),
    Column("CLIENT-ID", cell=lambda d: d["member"] and d["member"]["clientID"], wide=True),
)
_GONE = "GROUP_ID_NOT_FOUND"
_NAMED_TOPICS = 20


@dataclass(frozen=True, slots=True)
class NamedGroups:
    """The groups that a user named: the description of each, or its fault; and notes on all of them."""

    cluster: Cluster
    descriptions: Mapping[str, Description | Fault]
    coordinators: Mapping[str, int | None]
    notes: Sequence[str]

    @property
    def readable(self) -> dict[str, Description]:
        return {name: d for name, d in sorted(self.descriptions.items()) if not isinstance(d, Fault)}


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a group in one partition. None = no such value; `fault`: why start and end are missing.

    counted_lag: the lag of a share group by its broker, which also counts out the records after its start offset that
    the group has finished.
    """

    partition: Partition
    committed: int | None
    start: int | None
    end: int | None
    topic_exists: bool
    member: Member | None
    fault: Fault | None
    counted_lag: int | None = None

    @property
    def lag(self) -> int | None:
        if self.counted_lag is not None:
            return self.counted_lag
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)

    @property
    def note(self) -> str | None:
        if not self.topic_exists:
            return "topic does not exist"
        if self.fault is not None:
            return self.fault.code
        if self.committed is not None and self.start is not None and self.end is not None:
            if self.committed > self.end:
                return "after the end"
            if self.committed < self.start:
                return "before the start"
        return None


Positions = Mapping[str, Sequence[Position]]


def total_lag(positions: Sequence[Position]) -> int | None:
    """The lag of a group in all partitions with a committed offset; None = there is none, or one's lag is not known."""
    lags = [position.lag for position in positions if position.committed is not None and position.topic_exists]
    return None if not lags or None in lags else sum(lag for lag in lags if lag is not None)


def list_table(documents: Sequence[Document], with_lag: bool = False) -> Table:
    """The groups of `listed_group`; with_lag: with the column LAG."""
    table = Table.of(documents, (*_LISTED, _LAG) if with_lag else _LISTED)
    return replace(table, watched=[(d["state"], d["type"], d["protocolType"]) for d in documents])


def listed_group(cluster: Cluster, group: Group, owner: str) -> dict[str, Any]:
    """One listed group as JSON; owner only if it is known."""
    known = {"owner": owner} if owner else {}
    return _identity(group) | known | {"coordinator": _broker(cluster, group.coordinator)}


def described_group(found: NamedGroups, name: str, description: Description, positions: Positions) -> dict[str, Any]:
    """One described group as JSON; `lag` and `partitions` only if its positions were requested and could be read."""
    return (
        _identity(description.group)
        | {
            "coordinator": _broker(found.cluster, found.coordinators[name]),
            "assignor": description.protocol or None,
            "epoch": description.epoch,
            "members": [
                _member(each) for each in sorted(description.members, key=lambda each: (each.client_id, each.id))
            ],
        }
        | (of_partitions(positions[name]) if name in positions else {})
    )


def of_partitions(positions: Sequence[Position]) -> dict[str, Any]:
    """The lag and the partitions of one group as JSON."""
    return {"lag": total_lag(positions), "partitions": [partition(position) for position in positions]}


def members_table(documents: Sequence[Document]) -> Table:
    """The members of the groups of `described_group`."""
    members = [{"group": each["group"]} | member for each in documents for member in each["members"]]
    return Table.of(members, _MEMBERS, () if members else ["no members"])


def offsets_table(positions: Positions) -> Table:
    rows = [{"group": name, "note": p.note} | partition(p) for name, of_group in positions.items() for p in of_group]
    return Table.of(rows, _OFFSETS, () if rows else ["no committed offsets, no assigned partitions"])


def partition(position: Position) -> dict[str, Any]:
    """One partition of a group as JSON."""
    member = position.member
    return {
        "topic": position.partition.topic,
        "partition": position.partition.partition,
        "committed": position.committed,
        "start": position.start,
        "end": position.end,
        "lag": position.lag,
        "topicExists": position.topic_exists,
        "member": None if member is None else {"id": member.id, "host": member.host, "clientID": member.client_id},
    }


def _identity(group: Group) -> dict[str, Any]:
    return {
        "group": group.id,
        "state": str(group.state),
        "type": str(group.type),
        "protocolType": group.protocol_type,
    }


def _broker(cluster: Cluster, broker: int | None) -> dict[str, Any] | None:
    return None if broker is None else {"id": broker, "address": cluster.brokers.get(broker, "")}


def _assignment(partitions: Sequence[Document]) -> str | None:
    """In the format of Kafka's own tools: `clicks(0),orders(0,1)`."""
    topics: dict[str, list[str]] = {}
    for each in partitions:
        topics.setdefault(each["topic"], []).append(str(each["partition"]))
    return ",".join(f"{topic}({','.join(numbers)})" for topic, numbers in topics.items()) or None


def _member(member: Member) -> dict[str, Any]:
    return {
        "id": member.id,
        "clientID": member.client_id,
        "host": member.host,
        "instanceID": member.instance_id,
        "epoch": member.epoch,
        "topics": sorted(member.topics),
        "assignment": [{"topic": p.topic, "partition": p.partition} for p in sorted(member.assignment)],
    }


@dataclass(frozen=True, slots=True)
class _Read:
    """The positions of groups, sorted; faults of groups without positions; notes and errors for all groups."""

    positions: Mapping[str, list[Position]]
    faults: Mapping[str, Fault]
    notes: Sequence[str]
    errors: Sequence[str]


_NOTHING_READ = _Read({}, {}, (), ())


def list_groups(chosen: ListOptions) -> Report:
    """The groups that the options select; with a lag, also reads the offsets of these."""
    fits, with_lag = chosen.fits(), chosen.lag or chosen.sort_by == "lag"
    states, types = frozenset(chain.from_iterable(chosen.states)), frozenset(chain.from_iterable(chosen.types))
    read, unread = _NOTHING_READ, list[str]()
    # Brokers have no state named Unknown.
    pushed_states = () if GroupState.UNKNOWN in states else states
    with open_session(chosen.target) as session, working("listing groups"):
        cluster = _cluster(session)
        listing = kafka_groups.list_groups(session.client, cluster, session.deadline(), pushed_states, types)
        after = kafka_cluster.read_cluster(session.client, session.deadline(), session.connection.topics_attested)
        owners = session.connection.owners
        named = [group for name, group in sorted(listing.groups.items()) if fits(name)]
        groups = [group for group in named if not states or group.state in states]
        if with_lag:
            coordinators = {group.id: group.coordinator for group in groups}
            by_type = {group.id: group.type for group in groups}
            answers = kafka_groups.describe_groups(session.client, by_type, coordinators, session.deadline())
            found = NamedGroups(cluster, answers, coordinators, ())
            read = _positions(session, found)
            unread = _errors(found, read)
    errors = [f"groups may be missing: {problem}" for problem in incomplete(cluster, listing, after)]
    errors += unknown_states(listing, named)
    # Also with a filter by state: such a group may be in any state.
    unknown = {name: fault for name, fault in sorted(listing.group_faults.items()) if fits(name)}
    errors += [f"group {printable(name)}: {fault}" for name, fault in unknown.items()]
    notes = [*listing.notes, *read.notes]
    errors += unread
    documents = [listed_group(cluster, group, owners.of(group.id)) for group in groups]
    if with_lag:
        for each in documents:
            each["lag"] = total_lag(read.positions.get(each["group"], ()))
    documents.sort(key=lambda each: _sort_key(each.get(chosen.sort_by)))
    document = {"clusterID": cluster.id, "groups": documents, "notes": notes, "errors": errors}
    table = list_table(documents, with_lag)
    return Report(document, [each["group"] for each in documents], [table], notes, errors)


def _sort_key(value: Any) -> tuple[bool, Any]:
    """Groups without the value come last; coordinators are in the order of their ids, the highest lag comes first."""
    if isinstance(value, int):
        return False, -value
    return value is None, value["id"] if isinstance(value, dict) else value or ""


def incomplete(cluster: Cluster, listing: Listing, after: Cluster | Fault) -> list[str]:
    """Why groups may be missing from a list; empty = the list is complete."""
    return kafka_groups.list_problems(cluster, listing, after, "some moved to another broker in between; list again")


def unknown_states(listing: Listing, groups: Sequence[Group]) -> list[str]:
    """An error for each of the groups whose state could not be read: no filter by state matches it."""
    faults = listing.group_faults
    return [f"group {printable(g.id)}: its state is not known: {faults[g.id]}" for g in groups if g.id in faults]


def describe(target: ChosenCluster, names: Sequence[str], members: bool, with_offsets: bool) -> Report:
    """Each named group, with its members and partitions on request."""
    with open_session(target) as session, working("describing groups"):
        found = _find(session, names)
        read = _positions(session, found) if with_offsets else _NOTHING_READ
    notes, errors = [*found.notes, *read.notes], _errors(found, read)
    groups = [described_group(found, name, d, read.positions) for name, d in found.readable.items()]
    document = {"clusterID": found.cluster.id, "groups": groups, "notes": notes, "errors": errors}
    tables = [Table.of(groups, (*_DESCRIBED, _LAG) if with_offsets else _DESCRIBED)]
    if members:
        tables.append(members_table(groups))
    if with_offsets:
        tables.append(offsets_table(read.positions))
    return Report(document, list(found.readable), tables, notes, errors)


def offsets(target: ChosenCluster, names: Sequence[str]) -> Report:
    """The partitions of each named group."""
    with open_session(target) as session, working("reading offsets"):
        found = _find(session, names)
        read = _positions(session, found)
    notes, errors = [*found.notes, *read.notes], _errors(found, read)
    groups = [{"group": name} | of_partitions(positions) for name, positions in read.positions.items()]
    document = {"clusterID": found.cluster.id, "groups": groups, "notes": notes, "errors": errors}
    return Report(document, list(read.positions), [offsets_table(read.positions)], notes, errors)


def _cluster(session: Session) -> Cluster:
    cluster = kafka_cluster.read_cluster(session.client, session.deadline(), session.connection.topics_attested)
    if isinstance(cluster, Fault):
        raise Unreachable(f"no broker answers: {cluster}")
    return cluster


def exist(session: Session, names: Sequence[str]) -> dict[str, bool | Fault]:
    """Whether each group exists; a Fault if that could not be read."""
    try:
        found = _find(session, names).descriptions
    except Unreachable as error:
        return dict.fromkeys(names, Fault("NO_ANSWER", str(error)))
    absent = _no_such_group(())
    return {
        name: described if isinstance(described, Fault) and described != absent else described != absent
        for name, described in found.items()
    }


def _find(session: Session, names: Sequence[str]) -> NamedGroups:
    """Describe the named groups. The request depends on a group's type, which only a list shows."""
    cluster, deadlines = _cluster(session), session.stage_deadlines(2)
    listing = kafka_groups.list_groups(session.client, cluster, next(deadlines))
    listed = {name: listing.groups.get(name) for name in names}
    # Brokers create the offsets topic when a client looks for a coordinator: a group that is not listed is only looked
    # for if the topic exists.
    asked = [name for name, group in listed.items() if group is not None or cluster.leaders]
    types = {name: group.type if (group := listed[name]) else GroupType.CLASSIC for name in asked}
    coordinators = {name: group.coordinator if group else None for name, group in listed.items()}
    described = kafka_groups.describe_groups(session.client, types, coordinators, next(deadlines))
    doubts = [*kafka_groups.unanswered(listing), *cluster.problems]
    descriptions: dict[str, Description | Fault] = {}
    for name in names:
        answer = described.get(name)
        if answer is None or _absent(answer, listed[name] is not None):
            answer = _no_such_group(doubts)
        descriptions[name] = answer
    notes = [*listing.notes, *(f"not every group could be listed: {doubt}" for doubt in doubts)]
    return NamedGroups(cluster, descriptions, coordinators, notes)


def _absent(described: Description | Fault, listed: bool) -> bool:
    """Whether the group does not exist: up to DescribeGroups v5, brokers describe such a group as Dead."""
    if isinstance(described, Fault):
        return described.code == _GONE
    return not listed and described.group.state is GroupState.DEAD


def _no_such_group(doubts: Sequence[str]) -> Fault:
    return Fault(
        _GONE, "there is no such group" + (f", but the list is incomplete: {'; '.join(doubts)}" if doubts else "")
    )


def _positions(session: Session, found: NamedGroups) -> _Read:
    client, deadlines = session.client, session.stage_deadlines(6)
    committing = {n: found.coordinators[n] for n, d in found.readable.items() if d.group.type is not GroupType.SHARE}
    committed = kafka_offsets.committed_offsets(client, committing, next(deadlines))
    sharing = {n: found.coordinators[n] for n in found.readable if n not in committing}
    shares = share_offsets(client, sharing, next(deadlines)) if sharing else {}
    faults = {name: answer for name, answer in (committed | shares).items() if isinstance(answer, Fault)}
    readable: dict[str, Offsets] = {n: answer for n, answer in committed.items() if not isinstance(answer, Fault)}
    readable |= {n: answer.started for n, answer in shares.items() if isinstance(answer, ShareOffsets)}
    # A group's partitions without an offset: assigned to a member, or not initialized by a share group.
    assigned = {name: {p: m for m in d.members for p in m.assignment} for name, d in found.readable.items()}
    shown = {name: {*readable[name], *assigned[name]} for name in readable}
    for name, answer in shares.items():
        if isinstance(answer, ShareOffsets):
            shown[name] |= answer.unset
    every = {p for places in shown.values() for p in places}
    counted = {name: answer.lag for name, answer in shares.items() if isinstance(answer, ShareOffsets)}
    # A sum of counted and computed numbers would be neither.
    counted = {name: lag for name, lag in counted.items() if lag.keys() >= readable[name].keys()}
    exist = kafka_cluster.topics_exist(client, {p.topic for p in every}, next(deadlines))
    ends = kafka_offsets.end_offsets(client, every, next(deadlines))
    starts = kafka_offsets.start_offsets(client, every, next(deadlines))
    hidden = kafka_cluster.hidden_topics(client, found.cluster, next(deadlines))

    def position(name: str, partition: Partition) -> Position:
        offset = readable[name].get(partition)
        start, end = starts[partition], ends[partition]
        exists = exist[partition.topic]
        fault = next((answer for answer in (end, start) if isinstance(answer, Fault)), None)
        # If the topic's existence could not be read, do not show the topic as deleted.
        if fault is not None and fault.code == NO_SUCH_TOPIC and isinstance(exists, Fault):
            fault = exists
        return Position(
            partition=partition,
            committed=None if offset is None else offset.offset,
            start=None if isinstance(start, Fault) else start,
            end=None if isinstance(end, Fault) else end,
            topic_exists=exists is not False,
            member=assigned[name].get(partition),
            fault=None if exists is False else fault,
            counted_lag=counted.get(name, {}).get(partition),
        )

    positions = {name: [position(name, p) for p in sorted(shown[name])] for name in sorted(readable)}
    notes = [
        f"group {printable(name)}: the committed offset of a share group is its start offset: it may have processed "
        "some of the records after that" + ("" if name in counted else ", which count as lag here")
        for name in sorted(shares.keys() & readable.keys())
    ]
    errors: list[str] = []
    if isinstance(hidden, Fault):
        notes.append(f"offsets of topics that may not be described may be missing: {hidden}")
    elif hidden:
        topics = truncated_list(hidden, _NAMED_TOPICS)
        errors = [f"offsets of topics that may not be described are left out: {topics} (needs DESCRIBE on each topic)"]
    return _Read(positions, faults, notes, errors)


def _errors(found: NamedGroups, read: _Read) -> list[str]:
    of_groups = {name: d for name, d in found.descriptions.items() if isinstance(d, Fault)} | dict(read.faults)
    errors = [
        f"group {printable(name)}: {fault.message if fault.code == _GONE else fault}"
        for name, fault in sorted(of_groups.items())
    ]
    for name, positions in read.positions.items():
        errors += [f"group {printable(name)}: {p.partition}: {p.fault}" for p in positions if p.fault is not None]
    return [*errors, *read.errors]
