"""Groups, members and partitions as rows of tables, and as JSON. Sends no requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from group_hygiene.cli.output import Column, Document, Report, Table
from group_hygiene.model.groups import Cluster, Description, Fault, Group, Member, Partition
from group_hygiene.spec.patterns import catalogue

_LAG = Column("LAG", cell=lambda d: d.get("lag"), number=True)
_STATE = Column("STATE", coloured=True)
_PROTOCOL_TYPE = Column("PROTOCOL-TYPE", cell=lambda d: d["protocolType"] or None)
_COORDINATOR = Column("COORDINATOR", cell=lambda d: _at(d["coordinator"]))
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
_CATALOGUE = (
    Column("PROGRAM"),
    Column("GROUPS", cell=lambda d: ", ".join(d["groups"]) or "given by users"),
    Column("COMMITS"),
    Column("EMPTY-AND-NEEDED", "needed"),
    Column("ADVICE", wide=True),
    Column("SEEN", wide=True),
)


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
    """The groups of `listed`; with_lag: with the column LAG."""
    table = Table.of(documents, (*_LISTED, _LAG) if with_lag else _LISTED)
    return replace(table, watched=[(d["state"], d["type"], d["protocolType"]) for d in documents])


def listed(cluster: Cluster, group: Group, owner: str) -> dict[str, Any]:
    """One listed group as JSON; owner only if it is known."""
    known = {"owner": owner} if owner else {}
    return _identity(group) | known | {"coordinator": _broker(cluster, group.coordinator)}


def groups_table(documents: Sequence[Document], with_lag: bool) -> Table:
    """The groups of `described`; with_lag: with the column LAG."""
    return Table.of(documents, (*_DESCRIBED, _LAG) if with_lag else _DESCRIBED)


def described(found: NamedGroups, name: str, description: Description, positions: Positions) -> dict[str, Any]:
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
    """The members of the groups of `described`."""
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


def _at(broker: Document | None) -> str | None:
    return None if broker is None else f"{broker['address']} ({broker['id']})"


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


def catalogue_report() -> Report:
    """The catalogue of programs; names: the patterns of their groups."""
    entries = msgspec.to_builtins(catalogue())
    patterns = [pattern for entry in entries for pattern in entry["groups"]]
    return Report({"programs": entries}, patterns, [Table.of(entries, _CATALOGUE)])
