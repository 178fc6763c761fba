"""Connections of several namespaces to brokers at the same time: parts of the open sockets, and turns to decode."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest

from group_hygiene.engine.context import Context, Memory
from group_hygiene.engine.scan import observe
from group_hygiene.errors import MemoryExhausted
from group_hygiene.kafka import library
from group_hygiene.kafka.client import Call, Client, Deadline, connect, retrying_one
from group_hygiene.kafka.cluster import read_cluster
from group_hygiene.kafka.groups import list_groups
from group_hygiene.kafka.partition import Fetched, PartitionLeader, fetch
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model.groups import Cluster, Fault, Partition
from group_hygiene.process import memory
from group_hygiene.process.clock import SystemClock
from group_hygiene.process.memory import Intake, MemoryTurns
from group_hygiene.process.sockets import OpenSockets
from group_hygiene.spec.client_settings import Settings, Tls
from group_hygiene.spec.connection import Connection
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.fake_broker import (
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    Answer,
    FakeBroker,
    many_descriptions,
    many_groups,
)
from testing.sandbox.kafka.tls import Authority
from tests.kafka.makers import Maker, soon

_MOST = 12


@pytest.fixture(autouse=True)
def open_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenSockets]:
    """As many sockets as fit into very little memory; none may be left at the end."""
    counted = OpenSockets(_MOST)
    monkeypatch.setattr(library, "OPEN_SOCKETS", counted)
    yield counted
    assert not counted._by_owner


def count(sockets: OpenSockets, owner: str) -> int:
    return len(sockets._by_owner.get(owner, []))


class Teams:
    """Connects namespaces to fake brokers."""

    def __init__(self) -> None:
        self._stack, self._turns = ExitStack(), MemoryTurns()

    def __enter__(self) -> Teams:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def client(self, owner: str, broker: FakeBroker, tls: Tls | None = None) -> Client:
        address = self._stack.enter_context(broker)
        made = connect(Settings((address,), tls), 10, intake=Intake(owner, self._turns))
        self._stack.callback(made.close)
        return made


@pytest.fixture
def teams() -> Iterator[Teams]:
    with Teams() as made:
        yield made


def faults(client: Client, seconds: float = 30) -> Mapping[int, Fault]:
    """Of a request to each broker."""
    cluster = read_cluster(client, soon())
    assert isinstance(cluster, Cluster)
    return list_groups(client, cluster, Deadline(seconds)).faults


def test_a_namespace_has_all_sockets_that_no_other_needs(teams: Teams, open_sockets: OpenSockets) -> None:
    """And no more; the message says what to do."""
    assert not faults(teams.client("team-a", FakeBroker(brokers=_MOST - 1)))
    refused = faults(teams.client("team-a", FakeBroker(brokers=20)))
    assert refused
    assert {fault.code for fault in refused.values()} <= {"MEMORY_EXHAUSTED", "NETWORK_EXCEPTION"}
    assert any("give the operator more memory" in fault.message for fault in refused.values())
    assert count(open_sockets, "team-a") <= _MOST


def test_brokers_of_one_namespace_take_no_sockets_of_others(teams: Teams, open_sockets: OpenSockets) -> None:
    """Who holds more than its part loses them to a namespace that holds less, and does not get them back."""
    greedy = teams.client("team-a", FakeBroker(brokers=50))
    assert faults(greedy)
    others = [teams.client(owner, FakeBroker(brokers=3)) for owner in ("team-b", "team-c")]
    for _ in range(2):
        for other in others:
            assert not faults(other)
        refused = faults(greedy)
        assert any(fault.code == "MEMORY_EXHAUSTED" for fault in refused.values())
        assert count(open_sockets, "team-a") <= _MOST - 6
        assert sum(each.connected for each in list(greedy._manager._conns.values())) <= _MOST - 6
    for other in others:
        assert not faults(other)


def test_a_connection_without_room_says_so(teams: Teams) -> None:
    """Before there is a client, and in a scan: MemoryExhausted, and not that brokers don't answer."""
    first = teams.client("team-a", FakeBroker(brokers=50, places=range(50)))
    context = Context(first, Connection(), Memory(), SystemClock(), Journal(None, Contents(), {}))
    with pytest.raises(MemoryExhausted, match="use fewer KafkaConnections"):
        observe(context, [], full=True)
    with pytest.raises(MemoryExhausted, match="use fewer KafkaConnections"):
        teams.client("team-a", FakeBroker())


def test_handshakes_that_hang_count(teams: Teams, open_sockets: OpenSockets, tmp_path: Path) -> None:
    """They may be ended for others, and end with the client."""
    authority = Authority(tmp_path)
    made = authority.issue("broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    tls = Tls(Path(authority.ca).read_text(), verify_hostname=False)
    # All brokers in the metadata but the first connection wait for the handshake.
    hanging = teams.client("team-a", FakeBroker(brokers=50, context=context), tls)
    cluster = Cluster("c", dict.fromkeys(range(50), "a"), {})
    assert len(list_groups(hanging, cluster, Deadline(2)).faults) == 50
    assert count(open_sockets, "team-a") == _MOST
    assert not faults(teams.client("team-b", FakeBroker(brokers=3)))
    assert count(open_sockets, "team-a") <= _MOST - 3


def test_a_broker_that_does_not_read_leaves_no_socket_open(open_sockets: OpenSockets) -> None:
    """The library closes a connection only after what it has to send."""
    done = threading.Event()

    def answer(connection: socket.socket, identity: bytes) -> None:
        done.wait(60)

    with Teams() as teams:
        client = teams.client("team-a", FakeBroker({LIST_GROUPS: answer}))
        manager = client._manager
        ids = [f"{number:05}" + "x" * 10_000 for number in range(2_000)]
        for request in (ListGroupsRequest(), DescribeGroupsRequest(groups=ids)):
            manager.call_soon(manager.send, request, 0)
        # More than the operating system takes.
        while not any(map(_unsent, list(manager._conns.values()))):
            time.sleep(0.01)
        assert count(open_sockets, "team-a") == 1
    done.set()


def _unsent(conn: Any) -> bool:
    return conn.transport is not None and sum(map(len, list(conn.transport._write_buffer))) > 1_000_000


def _list(client: Client) -> Any:
    fault = faults(client, 3).get(0)
    return fault.message if fault else None


def _describe(client: Client) -> Any:
    # The connection that ended is made again, and until then the broker is not known.
    answer = retrying_one(lambda: client.send(Call(0, DescribeGroupsRequest(groups=["a"])), Deadline(1)), Deadline(3))
    return answer.message if isinstance(answer, Fault) else None


@pytest.mark.parametrize(
    ("large", "small", "ask"),
    [
        pytest.param({LIST_GROUPS: many_groups(5_000)}, {LIST_GROUPS: many_groups(9)}, _list, id="by-the-operator"),
        pytest.param(
            {DESCRIBE_GROUPS: many_descriptions(7_000)},
            {DESCRIBE_GROUPS: many_descriptions(9)},
            _describe,
            id="by-the-library",
        ),
    ],
)
def test_large_answers_are_decoded_in_turns(
    large: dict[int, Answer], small: dict[int, Answer], ask: Callable[[Client], Any], teams: Teams
) -> None:
    """Two at a time, one of a namespace; small ones pass at once. Only who waits has the fault."""
    waiting, other = teams.client("team-a", FakeBroker(large)), teams.client("team-b", FakeBroker(large))
    few = teams.client("team-c", FakeBroker(small))
    with memory._decoding.held("team-a", 0):
        assert "no turn came in time" in ask(waiting)
        assert ask(other) is None
        with memory._decoding.held("team-b", 0):
            third = teams.client("team-d", FakeBroker(large))
            assert "no turn came in time" in ask(third)
            assert ask(few) is None
    for each in (waiting, other, third):
        assert ask(each) is None


def test_large_batches_are_decoded_in_turns(kafka: KafkaCluster, make: Maker) -> None:
    """Without a turn they are a fault, and not an empty partition."""
    topic = make.topic()
    make.produce(topic, [(b"key", b"value")] * 3_000, 0, "gzip")
    client = connect(Settings((kafka.bootstrap_servers,)), intake=Intake("team-a", MemoryTurns()))
    leader = PartitionLeader(client, Partition(topic, 0))
    with memory._decoding.held("team-a", 0):
        found = fetch(leader, 0, Deadline(3))
        assert isinstance(found, Fault)
        assert "no turn" in found.message
    found = fetch(leader, 0, soon())
    assert isinstance(found, Fetched)
    assert len(found.records) == 3_000
    client.close()
