"""Groups, members and partitions as rows of tables, and as JSON. Sends no requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from group_hygiene.cli.output import Cell, Column, Report, Table
from group_hygiene.model.groups import Fault, Group, Partition
from group_hygiene.model.snapshot import Cluster, Description, Member
from group_hygiene.spec.catalogue import CatalogueEntry, catalogue
from group_hygiene.spec.owners import Owners

_LAG = Column("LAG", number=True)
_CATALOGUE: Mapping[Column, Callable[[CatalogueEntry], Cell]] = {
    Column("PROGRAM"): lambda e: e.program,
    Column("GROUPS"): lambda e: ", ".join(e.groups) or "given by users",
    Column("COMMITS"): lambda e: e.commits,
    Column("EMPTY-AND-NEEDED"): lambda e: e.needed,
    Column("ADVICE", wide=True): lambda e: e.advice,
    Column("SEEN", wide=True): lambda e: e.seen,
}
_MEMBERS: Mapping[Column, Callable[[tuple[str, Member]], Cell]] = {
    Column("GROUP"): lambda m: m[0],
    Column("MEMBER"): lambda m: m[1].id,
    Column("HOST"): lambda m: m[1].host,
    Column("CLIENT-ID"): lambda m: m[1].client_id,
    Column("INSTANCE-ID"): lambda m: m[1].instance_id,
    Column("EPOCH", wide=True, number=True): lambda m: m[1].epoch,
    Column("PARTITIONS", number=True): lambda m: len(m[1].assignment),
    Column("ASSIGNMENT"): lambda m: _assignment(m[1].assignment),
    Column("TOPICS", wide=True): lambda m: ",".join(sorted(m[1].topics)) or None,
}


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


def list_table(
    cluster: Cluster, groups: Sequence[Group], owners: Owners, lags: Mapping[str, int | None] | None = None
) -> Table:
    """lags: for the column LAG, None = without it."""
    columns: dict[Column, Callable[[Group], Cell]] = {
        Column("GROUP"): lambda g: g.id,
        Column("STATE", coloured=True): lambda g: str(g.state),
        Column("TYPE"): lambda g: str(g.type),
        Column("PROTOCOL-TYPE"): lambda g: g.protocol_type or None,
        Column("OWNER", wide=True): lambda g: owners.of(g.id) or None,
        Column("COORDINATOR", wide=True): lambda g: _at(cluster, g.coordinator),
    }
    if lags is not None:
        columns[_LAG] = lambda g: lags.get(g.id)
    return replace(Table.of(groups, columns), watched=[(g.state, g.type, g.protocol_type) for g in groups])


def listed(cluster: Cluster, group: Group, owner: str) -> dict[str, Any]:
    """One listed group as JSON; owner only if it is known."""
    known = {"owner": owner} if owner else {}
    return _identity(group) | known | {"coordinator": _broker(cluster, group.coordinator)}


def groups_table(found: NamedGroups, positions: Positions | None = None) -> Table:
    """positions: for the column LAG, None = without it."""
    columns: dict[Column, Callable[[Description], Cell]] = {
        Column("GROUP"): lambda d: d.group.id,
        Column("COORDINATOR"): lambda d: _at(found.cluster, found.coordinators[d.group.id]),
        Column("STATE", coloured=True): lambda d: str(d.group.state),
        Column("TYPE"): lambda d: str(d.group.type),
        Column("PROTOCOL-TYPE"): lambda d: d.group.protocol_type or None,
        Column("ASSIGNOR"): lambda d: d.protocol or None,
        Column("EPOCH", number=True): lambda d: d.epoch,
        Column("MEMBERS", number=True): lambda d: len(d.members),
    }
    if positions is not None:
        columns[_LAG] = lambda d: total_lag(positions[d.group.id]) if d.group.id in positions else None
    return Table.of(found.readable.values(), columns)


def described(found: NamedGroups, name: str, description: Description, positions: Positions) -> dict[str, Any]:
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


def members_table(found: NamedGroups) -> Table:
    members = [(name, member) for name, d in found.readable.items() for member in _by_id(d.members)]
    return Table.of(members, _MEMBERS, () if members else ["no members"])


def offsets_table(positions: Positions) -> Table:
    columns: dict[Column, Callable[[tuple[str, Position]], Cell]] = {
        Column("GROUP"): lambda p: p[0],
        Column("TOPIC"): lambda p: p[1].partition.topic,
        Column("PARTITION", number=True): lambda p: p[1].partition.partition,
        Column("COMMITTED", number=True): lambda p: p[1].committed,
        Column("START", number=True): lambda p: p[1].start,
        Column("END", number=True): lambda p: p[1].end,
        _LAG: lambda p: p[1].lag,
        Column("NOTE"): lambda p: p[1].note,
        Column("MEMBER", wide=True): lambda p: p[1].member.id if p[1].member else None,
        Column("HOST", wide=True): lambda p: p[1].member.host if p[1].member else None,
        Column("CLIENT-ID", wide=True): lambda p: p[1].member.client_id if p[1].member else None,
    }
    rows = [(name, position) for name, of_group in positions.items() for position in of_group]
    return Table.of(rows, columns, () if rows else ["no committed offsets, no assigned partitions"])


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


def _by_id(members: Sequence[Member]) -> list[Member]:
    return sorted(members, key=lambda member: (member.client_id, member.id))


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
    patterns = [pattern for entry in entries for pattern in entry.groups]
    return Report({"programs": msgspec.to_builtins(entries)}, patterns, [Table.of(entries, _CATALOGUE)])
