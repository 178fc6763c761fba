"""Groups, members and partitions as rows of tables, and as JSON. Sends no requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from group_hygiene.cli.output import Cell, Column, Report, Table
from group_hygiene.model.groups import Fault, Group, Partition
from group_hygiene.model.snapshot import Cluster, Description, Member
from group_hygiene.spec.catalogue import catalogue
from group_hygiene.spec.owners import Owners

_LIST = (
    Column("GROUP"),
    Column("STATE", coloured=True),
    Column("TYPE"),
    Column("PROTOCOL-TYPE"),
    Column("OWNER", wide=True),
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
_CATALOGUE = (
    Column("PROGRAM"),
    Column("GROUPS"),
    Column("COMMITS"),
    Column("EMPTY-AND-NEEDED"),
    Column("ADVICE", wide=True),
    Column("SEEN", wide=True),
)
_LAG = Column("LAG", number=True)
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
    _LAG,
    Column("NOTE"),
    Column("MEMBER", wide=True),
    Column("HOST", wide=True),
    Column("CLIENT-ID", wide=True),
)


@dataclass(frozen=True, slots=True)
class Found:
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
    """The lag of a group in all partitions with a committed offset; None = not known of one of them."""
    lags = [position.lag for position in positions if position.committed is not None and position.topic_exists]
    return None if None in lags else sum(lag for lag in lags if lag is not None)


def list_table(
    cluster: Cluster, groups: Sequence[Group], owners: Owners, lags: Mapping[str, int | None] | None = None
) -> Table:
    """lags: for the column LAG, None = without it."""
    rows = [
        (g.id, str(g.state), str(g.type), g.protocol_type or None, owners.of(g.id) or None, _at(cluster, g.coordinator))
        for g in groups
    ]
    if lags is None:
        return Table(_LIST, rows)
    return Table((*_LIST, _LAG), [(*row, lags.get(group.id)) for row, group in zip(rows, groups, strict=True)])


def listed(cluster: Cluster, group: Group, owner: str) -> dict[str, Any]:
    """One listed group as JSON; owner only if it is known."""
    known = {"owner": owner} if owner else {}
    return _identity(group) | known | {"coordinator": _broker(cluster, group.coordinator)}


def groups_table(found: Found, positions: Positions | None = None) -> Table:
    """positions: for the column LAG, None = without it."""
    rows = [_described_row(found, name, d) for name, d in found.readable.items()]
    if positions is None:
        return Table(_DESCRIBE, rows)
    lags = [total_lag(positions[name]) if name in positions else None for name in found.readable]
    return Table((*_DESCRIBE, _LAG), [(*row, lag) for row, lag in zip(rows, lags, strict=True)])


def described(found: Found, name: str, description: Description, positions: Positions) -> dict[str, Any]:
    """One described group as JSON; `lag` and `partitions` only if its positions were requested and could be read."""
    return (
        _identity(description.group)
        | {
            "coordinator": _broker(found.cluster, found.coordinators[name]),
            "assignor": description.protocol or None,
            "epoch": description.epoch,
            "members": [_member(member) for member in _by_id(description.members)],
        }
        | (of_partitions(positions[name]) if name in positions else {})
    )


def of_partitions(positions: Sequence[Position]) -> dict[str, Any]:
    """The lag and the partitions of one group as JSON."""
    return {"lag": total_lag(positions), "partitions": [partition(position) for position in positions]}


def members_table(found: Found) -> Table:
    rows = [_member_row(name, member) for name, d in found.readable.items() for member in _by_id(d.members)]
    return Table(_MEMBERS, rows, () if rows else ["no members"])


def offsets_table(positions: Positions) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, of_group in positions.items():
        for row in of_group:
            member = row.member
            member_columns = (None, None, None) if member is None else (member.id, member.host, member.client_id)
            numbers = (row.committed, row.start, row.end, row.lag)
            rows.append((name, row.partition.topic, row.partition.partition, *numbers, row.note, *member_columns))
    return Table(_OFFSETS, rows, () if rows else ["no committed offsets, no assigned partitions"])


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


def _at(cluster: Cluster, broker: int | None) -> str | None:
    return None if broker is None else f"{cluster.brokers.get(broker, '')} ({broker})"


def _described_row(found: Found, name: str, description: Description) -> tuple[Cell, ...]:
    group = description.group
    return (
        name,
        _at(found.cluster, found.coordinators[name]),
        str(group.state),
        str(group.type),
        group.protocol_type or None,
        description.protocol or None,
        description.epoch,
        len(description.members),
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
    """In the format of Kafka's own tools: `clicks(0),orders(0,1)`."""
    topics: dict[str, list[str]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(str(number))
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


def catalogue_report() -> Report:
    """The catalogue of programs; names: the patterns of their groups."""
    entries = catalogue()
    rows = [
        (e.program, ", ".join(e.groups) or "given by users", e.commits, e.needed, e.advice, e.seen) for e in entries
    ]
    patterns = [pattern for entry in entries for pattern in entry.groups]
    return Report({"programs": msgspec.to_builtins(entries)}, patterns, [Table(_CATALOGUE, rows)])
