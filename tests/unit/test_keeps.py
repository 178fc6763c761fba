"""Which requests of GroupKeeps a connection withdraws, and when each has its turn, without Kafka or an API server."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from group_hygiene.controller import turns as module
from group_hygiene.controller.admission import Grants
from group_hygiene.controller.objects import CONNECTIONS, KEEPS, Objects
from group_hygiene.controller.turns import Keeps
from group_hygiene.engine.context import Context, Memory
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.entries import KeepRequest, Owner
from group_hygiene.model.groups import Fault
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


DENIED = Fault("GROUP_AUTHORIZATION_FAILED", "kafka-1.example.org:9092 denies it")
GUARD: Any = SimpleNamespace(refusal=lambda: None, seconds_left=lambda: 60.0)


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

    def connection(self, name: str = "main", shown: str | None = None, generation: int = 1, **spec: Any) -> Connection:
        """A connection of the namespace kafka. shown: the id of the ledger in its status."""
        obj = {"metadata": metadata("kafka", name, generation), "spec": {"bootstrapServers": ["kafka:9092"], **spec}}
        obj |= {"status": {"ledger": {"id": shown}} if shown else {}}
        self.objects.put(CONNECTIONS, obj)
        return parse_connection(obj)

    def parsed(self) -> Connection:
        """The connection main, as a round finds it."""
        obj = self.objects.get(CONNECTIONS, "kafka", "main")
        assert obj is not None
        return parse_connection(obj)

    def keep(
        self,
        name: str,
        *groups: str,
        earlier: tuple[str, ...] = (),
        namespace: str = TEAM,
        connection: str = "main",
        generation: int = 1,
    ) -> None:
        """A GroupKeep, whose requests are in the ledger, also those for groups that it listed earlier."""
        reference = {"name": connection, "namespace": "kafka"}
        spec = {"connectionRef": reference, "groups": list(groups), "reason": "report"}
        self.objects.put(KEEPS, {"kind": "GroupKeep", "metadata": metadata(namespace, name, generation), "spec": spec})
        source, by = f"{namespace}/{name}/{name}", f"GroupKeep {namespace}/{name}"
        for group in groups + earlier:
            self.contents.apply(
                [KeepRequest(group=group, until=NOW + timedelta(days=7), why="report", by=by, at=NOW, source=source)]
            )

    def context(self, connection: Connection) -> Context:
        """Of a run in which Kafka denies each request. The changes of the ledger stay in memory."""
        client = SimpleNamespace(send_each=lambda calls, *_: dict.fromkeys(calls, DENIED), supports=lambda *_: True)
        journal = Journal(cast(Any, SimpleNamespace(read_on=lambda _: None)), self.contents, {})
        memory = Memory(contents=self.contents)
        return Context(cast(Any, client), connection, memory, self.clock, journal)

    def withdrawn(self, keeps: Keeps, connection: Connection) -> list[str]:
        """The groups whose requests end in a round."""
        before = set(self.contents.object_keeps)
        keeps.due(connection)
        has_ended = keeps.have_ended(self.contents)
        keeps.withdraw(self.context(connection))
        ended = sorted(before - {name for name, of in self.contents.object_keeps.items() if of})
        assert ended or not has_ended
        return ended


def metadata(namespace: str, name: str, generation: int = 1) -> Object:
    return {"namespace": namespace, "name": name, "uid": name, "generation": generation, "resourceVersion": "1"}


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


@pytest.mark.parametrize(
    ("owner", "status", "other", "expected"),
    [
        pytest.param("new", "old", {"ledger": "new"}, [], id="its-status-is-newer-than-ours"),
        pytest.param("new", "new", {"ledger": "old", "spec": "new"}, [], id="its-status-is-older-than-ours"),
        pytest.param("new", "old", {"ledger": "old", "spec": "new"}, [], id="both-statuses-are-older"),
        pytest.param("new", "new", {}, [], id="it-has-none-yet"),
        pytest.param("new", None, {"ledger": "other"}, ["g"], id="another-one"),
        pytest.param("new", "new", {"ledger": "new", "spec": "other"}, ["g"], id="its-owner-confirmed-another-one"),
        pytest.param(None, "new", {"ledger": "other"}, [], id="ours-is-not-known"),
    ],
)
def test_one_connection_withdraws_no_request_of_another_one_of_its_ledger(
    owner: str | None, status: str | None, other: Object, expected: list[str]
) -> None:
    """Statuses show the ledger before it was recreated for a while, each for its own."""
    world = World()
    connection = world.connection(shown=status)
    confirmed: Object = {"ledger": {"id": other["spec"]}} if "spec" in other else {}
    world.connection("second", other.get("ledger"), **confirmed)
    world.keep("k", "g", namespace="kafka", connection="second")
    if owner is not None:
        world.contents.apply([Owner(installation="i", ledger=owner, since=NOW, cluster="c", start=0)])
    assert world.withdrawn(world.keeps(), connection) == expected


def test_a_group_that_cannot_be_read() -> None:
    """Its request protects it; whether there is such a group is not known, so Kept is not True."""
    world = World()
    connection, keeps = world.connection(), world.keeps()
    world.keep("k", "billing", namespace="kafka")
    keeps.run(world.context(connection), keeps.due(connection), lambda _: GUARD, [])
    (status,) = world.written
    (row,) = status["results"]
    assert (row["protected"], row["reason"], "exists" in row) == (True, reasons.GROUP_UNREADABLE, False)
    assert (DENIED.code in row["message"], "9092" in row["message"]) == (True, False)
    assert {(each["type"], each["status"]) for each in status["conditions"]} >= {("Kept", "False"), ("Ready", "False")}
    assert keeps.seconds_to_wait() == 2


@pytest.mark.parametrize("namespace", ["kafka", TEAM])
def test_the_pauses_grow_until_an_edit(namespace: str) -> None:
    """Each round parses the connection again; only an edit, of either object, or another grant begins again."""
    world = World({})
    connection, keeps, group = world.connection(access=[BY_NAME, BY_LABEL]), world.keeps(), "team-a-x"

    def waits() -> list[float | None]:
        found = list[float | None]()
        for _ in range(3):
            keeps.run(world.context(connection), keeps.due(world.parsed()), lambda _: GUARD, [])
            found.append(keeps.seconds_to_wait())
            world.clock.seconds += found[-1] or 0
        return found

    world.keep("k", group, namespace=namespace)
    assert waits() == [2, 4, 8]
    assert waits() == [16, 32, 60]
    world.clock.seconds -= 59
    assert keeps.due(world.parsed()) == []
    world.keep("k", group, namespace=namespace, generation=2)
    assert waits() == [2, 4, 8]
    world.connection(access=[BY_NAME], generation=2)
    assert waits() == [2, 4, 8]
    world.connection(access=[BY_NAME, BY_LABEL], generation=2)
    world.labels = {"legacy": "yes"}
    world.clock.seconds += 30
    assert waits()[0] == (2 if namespace == TEAM else 16)


def test_those_that_had_no_time_have_their_turn_in_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long policies and other keeps wait: until it has its turn, nothing protects its groups."""
    monkeypatch.setattr(module, "_KEEPS_S", 0.0)
    world = World()
    connection, keeps = world.connection(), world.keeps()
    for name in ("a", "b", "c"):
        world.keep(name, "billing", namespace="kafka")
    waits = list[float | None]()
    for _ in range(3):
        keeps.run(world.context(connection), keeps.due(connection), lambda _: GUARD, [])
        waits.append(keeps.seconds_to_wait())
    assert (len(world.written), waits) == (3, [1, 1, 2])
