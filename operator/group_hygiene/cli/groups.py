"""`list`, `describe` and `offsets`: read groups, and lay out what was read. Partial failures stand beside the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from group_hygiene.cli.options import Target
from group_hygiene.cli.output import Cell, Column, Report, Table, printable, working
from group_hygiene.cli.target import Session, open_session
from group_hygiene.errors import Unreachable
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.model import (
    Cluster,
    Description,
    Fault,
    Group,
    GroupState,
    GroupType,
    Member,
    Offsets,
    Partition,
)
from group_hygiene.policy import Patterns

# Brokers refuse the name of a type that they don't know; Classic and Consumer all with a filter know.
_NAMEABLE = frozenset({GroupType.CLASSIC, GroupType.CONSUMER})
_GONE = "GROUP_ID_NOT_FOUND"
_NO_SUCH_TOPIC = "UNKNOWN_TOPIC_OR_PARTITION"

_LIST = (
    Column("GROUP"),
    Column("STATE", coloured=True),
    Column("TYPE"),
    Column("PROTOCOL-TYPE"),
    Column("COORDINATOR", wide=True),
)
_DESCRIBE = (
    Column("GROUP"),
    Column("COORDINATOR"),
    Column("STATE", coloured=True),
    Column("TYPE"),
    Column("PROTOCOL-TYPE"),
    Column("ASSIGNOR"),
    Column("EPOCH", number=True),
    Column("MEMBERS", number=True),
)
_MEMBERS = (
    Column("GROUP"),
    Column("MEMBER"),
    Column("HOST"),
    Column("CLIENT-ID"),
    Column("INSTANCE-ID"),
    Column("EPOCH", wide=True, number=True),
    Column("PARTITIONS", number=True),
    Column("ASSIGNMENT"),
    Column("TOPICS", wide=True),
)
_OFFSETS = (
    Column("GROUP"),
    Column("TOPIC"),
    Column("PARTITION", number=True),
    Column("COMMITTED", number=True),
    Column("START", number=True),
    Column("END", number=True),
    Column("LAG", number=True),
    Column("NOTE"),
    Column("MEMBER", wide=True),
    Column("HOST", wide=True),
    Column("CLIENT-ID", wide=True),
)


@dataclass(frozen=True, slots=True)
class _Found:
    """The groups that a user named: what each is, or why it can't be said; with what holds for all of them."""

    cluster: Cluster
    descriptions: Mapping[str, Description | Fault]
    coordinators: Mapping[str, int | None]
    notes: Sequence[str]

    @property
    def readable(self) -> dict[str, Description]:
        return {name: d for name, d in sorted(self.descriptions.items()) if not isinstance(d, Fault)}


@dataclass(frozen=True, slots=True)
class _Row:
    """One partition of one group. None = there is no such value; `fault`: why start and end are missing."""

    partition: Partition
    committed: int | None
    start: int | None
    end: int | None
    topic_exists: bool
    member: Member | None
    fault: Fault | None

    @property
    def lag(self) -> int | None:
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
                return "behind the end"
            if self.committed < self.start:
                return "before the start"
        return None


def list_groups(
    target: Target, states: Collection[GroupState], types: Collection[GroupType], patterns: Sequence[str]
) -> Report:
    """Every group that fits; empty collections and patterns = all."""
    with open_session(target) as session, working("listing groups"):
        cluster = _cluster(session)
        nameable = types if set(types) <= _NAMEABLE else ()
        listing = kafka_groups.list_groups(session.client, cluster, session.deadline(), states, nameable)
        after = kafka_cluster.read_cluster(session.client, session.deadline())
    fits = Patterns(list(patterns)).matches
    groups = [
        group
        for _, group in sorted(listing.groups.items())
        if (not types or group.type in types) and (not patterns or fits(group.id))
    ]
    notes = [*listing.notes, *_doubts(cluster)]
    if not isinstance(after, Fault) and after.leaders != cluster.leaders:
        notes.append("groups may be missing: some moved to another broker in between; list again")
    errors = [f"groups are missing: broker {broker}: {fault}" for broker, fault in sorted(listing.faults.items())]
    document = {
        "clusterId": cluster.id,
        "groups": [_identity(group) | {"coordinator": _broker(cluster, group.coordinator)} for group in groups],
        "notes": notes,
        "errors": errors,
    }
    rows = [(g.id, str(g.state), str(g.type), g.protocol_type or None, _at(cluster, g.coordinator)) for g in groups]
    return Report(document, [group.id for group in groups], [Table(_LIST, rows)], notes, errors)


def describe(target: Target, names: Sequence[str], members: bool, with_offsets: bool) -> Report:
    """Each named group, with its members and its partitions where asked."""
    with open_session(target) as session, working("describing groups"):
        found = _find(session, names)
        partitions, faults = _partitions(session, found) if with_offsets else ({}, {})
    errors = _errors(found, faults, partitions)
    document = {
        "clusterId": found.cluster.id,
        "groups": [
            _identity(d.group)
            | {
                "coordinator": _broker(found.cluster, found.coordinators[name]),
                "assignor": d.protocol or None,
                "epoch": d.epoch,
                "members": [_member(member) for member in _by_id(d.members)],
            }
            | ({"partitions": [_partition(row) for row in partitions[name]]} if name in partitions else {})
            for name, d in found.readable.items()
        ],
        "notes": list(found.notes),
        "errors": errors,
    }
    tables = [Table(_DESCRIBE, [_described(found, name, d) for name, d in found.readable.items()])]
    if members:
        rows = [_member_row(name, member) for name, d in found.readable.items() for member in _by_id(d.members)]
        tables.append(Table(_MEMBERS, rows, () if rows else ["no members"]))
    if with_offsets:
        tables.append(_offsets_table(partitions))
    return Report(document, list(found.readable), tables, found.notes, errors)


def offsets(target: Target, names: Sequence[str]) -> Report:
    """Each partition of each named group."""
    with open_session(target) as session, working("reading offsets"):
        found = _find(session, names)
        partitions, faults = _partitions(session, found)
    errors = _errors(found, faults, partitions)
    document = {
        "clusterId": found.cluster.id,
        "groups": [
            {"group": name, "partitions": [_partition(row) for row in rows]} for name, rows in partitions.items()
        ],
        "notes": list(found.notes),
        "errors": errors,
    }
    return Report(document, list(partitions), [_offsets_table(partitions)], found.notes, errors)


def _cluster(session: Session) -> Cluster:
    cluster = kafka_cluster.read_cluster(session.client, session.deadline())
    if isinstance(cluster, Fault):
        raise Unreachable(f"no broker answers: {cluster}")
    return cluster


def _doubts(cluster: Cluster) -> list[str]:
    return [f"groups may be missing: {problem}" for problem in cluster.problems]


def _find(session: Session, names: Sequence[str]) -> _Found:
    """Describe the named groups. Which request a group needs hangs on its type, which only a list tells."""
    cluster, deadline = _cluster(session), session.deadline()
    listing = kafka_groups.list_groups(session.client, cluster, deadline)
    wanted = {name: listing.groups.get(name) or _unlisted(name) for name in names}
    described = kafka_groups.describe_groups(session.client, wanted.values(), deadline)
    coordinators: dict[str, int | None] = {}
    descriptions: dict[str, Description | Fault] = {}
    doubts = [f"broker {broker} gave no list: {fault}" for broker, fault in sorted(listing.faults.items())]
    doubts += cluster.problems
    for name, group in wanted.items():
        listed = name in listing.groups
        answer = described[name]
        descriptions[name] = _no_such_group(doubts) if _absent(answer, listed) else answer
        coordinators[name] = group.coordinator if listed else None
    return _Found(cluster, descriptions, coordinators, listing.notes)


def _unlisted(name: str) -> Group:
    return Group(name, GroupType.CLASSIC, "", GroupState.UNKNOWN, -1)


def _absent(described: Description | Fault, listed: bool) -> bool:
    """Brokers call a group that isn't there Dead, up to DescribeGroups v5."""
    if isinstance(described, Fault):
        return described.code == _GONE
    return not listed and described.group.state is GroupState.DEAD


def _no_such_group(doubts: Sequence[str]) -> Fault:
    return Fault(_GONE, "there is no such group" + (f", as far as can be seen: {'; '.join(doubts)}" if doubts else ""))


def _partitions(session: Session, found: _Found) -> tuple[dict[str, list[_Row]], dict[str, Fault]]:
    """Per group its rows, sorted; and beside them why a group has none."""
    client, deadline = session.client, session.deadline()
    committed = kafka_offsets.committed_offsets(
        client, {name: found.coordinators[name] for name in found.readable}, deadline
    )
    faults = {name: answer for name, answer in committed.items() if isinstance(answer, Fault)}
    readable: dict[str, Offsets] = {n: answer for n, answer in committed.items() if not isinstance(answer, Fault)}
    assigned = {name: {p: m for m in d.members for p in m.assignment} for name, d in found.readable.items()}
    every = {p for name, answer in readable.items() for p in (*answer, *assigned[name])}
    missing = kafka_cluster.missing_topics(client, {p.topic for p in every}, deadline)
    ends = kafka_offsets.end_offsets(client, every, deadline)
    starts = kafka_offsets.start_offsets(client, every, deadline)

    def row(name: str, partition: Partition) -> _Row:
        offset = readable[name].get(partition)
        start, end = starts[partition], ends[partition]
        gone = not isinstance(missing, Fault) and partition.topic in missing
        fault = next((answer for answer in (end, start) if isinstance(answer, Fault)), None)
        # Whether it exists could not be read: then "unknown" must not look like "deleted".
        if fault is not None and fault.code == _NO_SUCH_TOPIC and isinstance(missing, Fault):
            fault = missing
        return _Row(
            partition=partition,
            committed=None if offset is None else offset.offset,
            start=None if isinstance(start, Fault) else start,
            end=None if isinstance(end, Fault) else end,
            topic_exists=not gone,
            member=assigned[name].get(partition),
            fault=None if gone else fault,
        )

    rows = {name: [row(name, p) for p in sorted({*readable[name], *assigned[name]})] for name in sorted(readable)}
    return rows, faults


def _errors(found: _Found, faults: Mapping[str, Fault], partitions: Mapping[str, Sequence[_Row]]) -> list[str]:
    of_groups = {name: d for name, d in found.descriptions.items() if isinstance(d, Fault)} | dict(faults)
    errors = [f"group {printable(name)}: {_said(fault)}" for name, fault in sorted(of_groups.items())]
    for name, rows in partitions.items():
        errors += [f"group {printable(name)}: {row.partition}: {row.fault}" for row in rows if row.fault is not None]
    return errors


def _said(fault: Fault) -> str:
    return fault.message if fault.code == _GONE else str(fault)


def _identity(group: Group) -> dict[str, Any]:
    return {
        "group": group.id,
        "state": str(group.state),
        "type": str(group.type),
        "protocolType": group.protocol_type,
    }


def _broker(cluster: Cluster, broker: int | None) -> dict[str, Any] | None:
    return None if broker is None else {"id": broker, "address": cluster.brokers.get(broker, "")}


def _at(cluster: Cluster, broker: int | None) -> str | None:
    return None if broker is None else f"{cluster.brokers.get(broker, '')} ({broker})"


def _described(found: _Found, name: str, described: Description) -> tuple[Cell, ...]:
    group = described.group
    return (
        name,
        _at(found.cluster, found.coordinators[name]),
        str(group.state),
        str(group.type),
        group.protocol_type or None,
        described.protocol or None,
        described.epoch,
        len(described.members),
    )


def _by_id(members: Sequence[Member]) -> list[Member]:
    return sorted(members, key=lambda member: (member.client_id, member.id))


def _member_row(name: str, member: Member) -> tuple[Cell, ...]:
    return (
        name,
        member.id,
        member.host,
        member.client_id,
        member.instance_id,
        member.epoch,
        len(member.assignment),
        _assignment(member.assignment),
        ",".join(sorted(member.topics)) or None,
    )


def _assignment(partitions: Sequence[Partition]) -> str | None:
    """As Kafka's own tools write it: `clicks(0),orders(0,1)`."""
    topics: dict[str, list[str]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(str(partition))
    return ",".join(f"{topic}({','.join(numbers)})" for topic, numbers in topics.items()) or None


def _member(member: Member) -> dict[str, Any]:
    return {
        "id": member.id,
        "clientId": member.client_id,
        "host": member.host,
        "instanceId": member.instance_id,
        "epoch": member.epoch,
        "topics": sorted(member.topics),
        "assignment": [{"topic": p.topic, "partition": p.partition} for p in sorted(member.assignment)],
    }


def _partition(row: _Row) -> dict[str, Any]:
    member = row.member
    return {
        "topic": row.partition.topic,
        "partition": row.partition.partition,
        "committed": row.committed,
        "start": row.start,
        "end": row.end,
        "lag": row.lag,
        "topicExists": row.topic_exists,
        "member": None if member is None else {"id": member.id, "host": member.host, "clientId": member.client_id},
    }


def _offsets_table(partitions: Mapping[str, Sequence[_Row]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, of_group in partitions.items():
        for row in of_group:
            member = row.member
            who = (None, None, None) if member is None else (member.id, member.host, member.client_id)
            numbers = (row.committed, row.start, row.end, row.lag)
            rows.append((name, row.partition.topic, row.partition.partition, *numbers, row.note, *who))
    return Table(_OFFSETS, rows, () if rows else ["no committed offsets, no assigned partitions"])
