"""Which requests of GroupKeeps a connection withdraws, and when each has its turn, without Kafka or an API server."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from group_hygiene import reconcile
from group_hygiene.controller.guard import Grants
from group_hygiene.controller.keeps import Keeps
from group_hygiene.controller.objects import CONNECTIONS, KEEPS, Objects
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model.entries import KeepRequest
from group_hygiene.spec.connection import Connection, parse_connection
from tests.unit.make import NOW

Object = dict[str, Any]
TEAM = "team-a"
BY_NAME = {"namespaces": {"names": [TEAM]}, "groups": ["team-a-*"], "actions": ["Keep"]}
BY_LABEL = {
    "namespaces": {"selector": {"matchLabels": {"legacy": "yes"}}},
    "groups": ["legacy-*"],
    "actions": ["Keep"],
}


@dataclass
class Clock:
    """Stands still until it is set."""

    seconds: float = 1_000.0

    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class World:
    """The objects that a connection's GroupKeeps are served by. labels: of each namespace; None = not readable."""

    labels: dict[str, str] | None = None
    clock: Clock = field(default_factory=Clock)
    objects: Objects = field(default_factory=Objects)
    written: list[Object] = field(default_factory=list)
    contents: Contents = field(default_factory=Contents)

    def keeps(self) -> Keeps:
        api = SimpleNamespace(namespace_labels=lambda _: self.labels, serves=lambda _: True, serves_all=True)
        unserved = SimpleNamespace(skip=lambda *_: None)
        grants = Grants(cast(Any, api), self.clock)
        services: Any = SimpleNamespace(
            api=api, clock=self.clock, grants=grants, objects=self.objects, unserved=unserved
        )
        return Keeps(services, cast(Any, self), "kafka", "main")

    def write(self, _plural: str, _obj: Object, new: Object) -> bool:
        self.written.append(new)
        return True

    def connection(self, name: str = "main", status: Object | None = None, **spec: Any) -> Connection:
        """A connection of the namespace kafka."""
        obj = {
            "metadata": metadata("kafka", name),
            "spec": {"bootstrapServers": ["kafka:9092"], **spec},
            "status": status or {},
        }
        self.objects.put(CONNECTIONS, obj)
        return parse_connection(obj)

    def keep(
        self, name: str, *groups: str, earlier: tuple[str, ...] = (), namespace: str = TEAM, connection: str = "main"
    ) -> None:
        """A GroupKeep, whose requests are in the ledger, also those for groups that it listed earlier."""
        reference = {"name": connection, "namespace": "kafka"}
        spec = {"connectionRef": reference, "groups": list(groups), "reason": "report"}
        self.objects.put(KEEPS, {"kind": "GroupKeep", "metadata": metadata(namespace, name), "spec": spec})
        source, by = f"{namespace}/{name}/{name}", f"GroupKeep {namespace}/{name}"
        for group in groups + earlier:
            self.contents.apply([KeepRequest(group=group, until=NOW, why="report", by=by, at=NOW, source=source)])

    def context(self, connection: Connection, cluster: str | None = "c1") -> reconcile.Context:
        """Of a run with this ledger, whose changes stay in memory."""
        memory = reconcile.Memory(
            contents=self.contents, cluster_id=cluster, ledger_topic=connection.ledger.topic, ledger_id="new"
        )
        journal = Journal(cast(Any, object()), self.contents, {})
        return reconcile.Context(cast(Any, None), connection, memory, self.clock, journal)

    def withdrawn(self, keeps: Keeps, connection: Connection, cluster: str | None = "c1") -> list[str]:
        """The groups whose requests end in a round."""
        before = set(self.contents.object_keeps)
        keeps.due(connection)
        keeps.withdraw(self.context(connection, cluster))
        return sorted(before - {name for name, of in self.contents.object_keeps.items() if of})


def metadata(namespace: str, name: str) -> Object:
    return {"namespace": namespace, "name": name, "uid": name, "generation": 1, "resourceVersion": "1"}


@pytest.mark.parametrize(
    ("labels", "access", "namespace", "expected"),
    [
        pytest.param({"legacy": "yes"}, [BY_NAME, BY_LABEL], TEAM, ["earlier", "other"], id="both-grant"),
        pytest.param({}, [BY_NAME, BY_LABEL], TEAM, ["earlier", "legacy-y", "other"], id="by-name-alone"),
        pytest.param(None, [BY_NAME, BY_LABEL], TEAM, [], id="labels-not-readable"),
        pytest.param(None, [BY_NAME | {"actions": ["Alert"]}, BY_LABEL], TEAM, [], id="right-by-label-not-readable"),
        pytest.param(None, [BY_LABEL], TEAM, [], id="no-grant-labels-not-readable"),
        pytest.param({}, [BY_LABEL], TEAM, ["earlier", "legacy-y", "other", "team-a-x"], id="no-grant"),
        pytest.param(None, [BY_NAME], TEAM, ["earlier", "legacy-y", "other"], id="labels-do-not-matter"),
        pytest.param(None, [BY_LABEL], "kafka", ["earlier"], id="own-namespace"),
    ],
)
def test_labels_that_cannot_be_read_withdraw_no_request(
    labels: dict[str, str] | None, access: list[Object], namespace: str, expected: list[str]
) -> None:
    """They may grant the rest: its requests stay until the grant is known, or until they run out."""
    world = World(labels)
    connection = world.connection(access=access)
    world.keep("k", "team-a-x", "legacy-y", "other", earlier=("earlier",), namespace=namespace)
    assert world.withdrawn(world.keeps(), connection) == expected
