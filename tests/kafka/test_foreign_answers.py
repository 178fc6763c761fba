"""Endpoints and brokers that answer slowly, without an end, or with what grows: they cost little, and no waiting.

Each test runs the client in a process of its own whose memory is limited: what would fill it, ends it.
"""

from __future__ import annotations

import gzip
import os
import socket
import ssl
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.producer import ProduceRequest
from kafka.record import MemoryRecordsBuilder

from group_hygiene.errors import ConnectError
from group_hygiene.kafka.client import Call, Client, Deadline, connect
from group_hygiene.kafka.cluster import read_cluster
from group_hygiene.kafka.groups import list_groups
from group_hygiene.model.groups import Fault
from group_hygiene.spec.client_settings import Mechanism, Sasl, Settings
from group_hygiene.spec.fields import Hidden
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.fake_broker import (
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    LIST_GROUPS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Answer,
    FakeBroker,
    announced,
    many_descriptions,
    many_groups,
    many_log_dirs,
    many_topics,
    send,
)
from testing.sandbox.kafka.tls import Authority
from tests.kafka.makers import CHECKPOINTS_SUFFIX, Maker, checkpoint_key, soon
from tests.kafka.test_connecting import listening

# Long enough for a busy machine, and far from for ever.
GIVEN_UP_AFTER = 120


# What the operator's pod may take.
POD_BYTES = 512 * 1024 * 1024


def limited(code: str) -> str:
    """What this Python code prints, in a process that may take no more memory than the operator's pod."""
    prelude = f"""
        import resource

        resource.setrlimit(resource.RLIMIT_AS, ({POD_BYTES}, {POD_BYTES}))
        from group_hygiene.spec.client_settings import Mechanism, OAuth, Sasl, Settings
        from group_hygiene.errors import HygieneError
        from group_hygiene.kafka import cluster, groups, mirror, offsets
        from group_hygiene.kafka.client import Deadline, connect
        from group_hygiene.kafka.login import TokenProvider
        from group_hygiene.model.groups import Fault
        from group_hygiene.spec.fields import Hidden
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=GIVEN_UP_AFTER,
        # By default each thread has its own heap, of which most is never used.
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _dribble(start: bytes) -> Callable[[socket.socket], None]:
    """Answers with `start`, and then a byte now and then, for ever."""

    def answer(connection: socket.socket) -> None:
        connection.recv(10_000)
        with suppress(OSError):
            connection.sendall(start)
            while True:
                time.sleep(0.2)
                connection.sendall(b"x")

    return answer


def _repeat(start: bytes, part: bytes, times: int) -> Callable[[socket.socket], None]:
    """Answers with `start` and so many parts, as fast as they are read."""

    def answer(connection: socket.socket) -> None:
        connection.recv(10_000)
        with suppress(OSError):
            connection.sendall(start)
            for _ in range(times):
                connection.sendall(part)

    return answer


_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def _bomb(connection: socket.socket) -> None:
    """Answers with a small gzip of much: members of equal bytes, as to compress all of them would take seconds."""
    body = gzip.compress(b'{"access_token": "') + gzip.compress(b" " * 4_000_000) * 100 + gzip.compress(b'"}')
    _repeat(_OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body), body, 1)(connection)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(_dribble(_OK + b"\r\n{"), "does not answer", id="a-byte-of-the-body-now-and-then"),
        pytest.param(
            _dribble(b"HTTP/1.1 200 OK\r\nX: "),
            "does not answer",
            id="a-byte-of-a-header-now-and-then",
            marks=pytest.mark.slow,
        ),
        pytest.param(_bomb, "answers", id="small-gzip-of-much"),
        pytest.param(_repeat(_OK + b"\r\n", b" " * 1_000_000, 2_000), "more than 64000 bytes", id="endless-body"),
        pytest.param(
            _repeat(_OK, b"X: " + b"y" * 1_000 + b"\r\n", 500_000),
            "does not answer",
            id="endless-headers",
            marks=pytest.mark.slow,
        ),
        pytest.param(_repeat(_OK + b"\r\n", b'{"a":' * 10_000, 1), "without a token", id="deep-json"),
    ],
)
def test_a_token_endpoint_has_bytes_and_time(answer: Callable[[socket.socket], None], said: str) -> None:
    """It is said that there is no token, soon, and without the memory that the answer would take."""
    with listening(answer) as address:
        printed = limited(
            f"""
            oauth = OAuth("http://{address}/token", "id", Hidden("secret"))
            try:
                TokenProvider(oauth, 2.0).token()
            except HygieneError as error:
                print(type(error).__name__, error)
            """
        )
    assert printed.startswith("AuthenticationFailed")
    assert said in printed


def _batch(records: Iterable[tuple[bytes, bytes, int]]) -> bytes:
    """A batch, by gzip, of records with this key, value, and so many empty headers."""
    builder, now = MemoryRecordsBuilder(2, 1, 2**31 - 1), time.time_ns() // 1_000_000
    for key, value, headers in records:
        # The broker may delete older records at any moment.
        assert builder.append(now, key, value, [("", b"")] * headers) is not None
    builder.close()
    return bytes(builder.buffer())


def _produce(client: Client, topic: str, batch: bytes) -> None:
    topic_class = ProduceRequest.TopicProduceData
    place = topic_class.PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=60_000,
        topic_data=[topic_class(name=topic, partition_data=[place])],
        max_version=11,
    )
    answer = client.send(Call(None, request), soon())
    assert not isinstance(answer, Fault)
    assert answer.responses[0].partition_responses[0].error_code == 0


_KEY = checkpoint_key("orders", "t", 0)


@pytest.mark.parametrize(
    ("records", "found"),
    [
        pytest.param([(_KEY, bytes(1_000_000), 0)] * 250, "frozenset({'orders'})", id="values"),
        pytest.param([(bytes(1_000_000), b"", 0)] * 250, "too large to be read", id="keys"),
        pytest.param([(_KEY, b"", 6_000_000)], "frozenset({'orders'})", id="headers", marks=pytest.mark.slow),
    ],
)
def test_a_small_batch_of_much_is_unpacked_to_a_bound(
    client: Client, kafka: KafkaCluster, make: Maker, records: list[tuple[bytes, bytes, int]], found: str
) -> None:
    """Any client may write to a topic of MirrorMaker's name: large keys are not read, other bytes don't matter."""
    topic = make.topic(make.name("source") + CHECKPOINTS_SUFFIX, partitions=1)
    batch = _batch(records)
    assert len(batch) < 1_000_000
    _produce(client, topic, batch)
    printed = limited(
        f"""
        client = connect(Settings(("{kafka.bootstrap_servers}",)))
        print(mirror.Checkpoints().read(client, ["{topic}"], Deadline(60)))
        client.close()
        """
    )
    assert found in printed


@pytest.mark.parametrize(
    ("broker", "found"),
    [
        pytest.param(FakeBroker({LIST_GROUPS: many_groups(1_100_000)}), "ANSWER_TOO_LARGE", id="one"),
        pytest.param(
            FakeBroker({LIST_GROUPS: announced(490_000_000, 490_000_000)}), "can't be decoded", id="one-that-is-no-list"
        ),
        pytest.param(
            FakeBroker({LIST_GROUPS: announced(16_000_000, 15_000_000)}, brokers=50),
            "ANSWERS_TOO_LARGE",
            id="many",
            marks=pytest.mark.slow,
        ),
        pytest.param(FakeBroker({LIST_GROUPS: many_groups(500_000)}, brokers=20), "ANSWERS_TOO_LARGE", id="rows"),
        pytest.param(
            FakeBroker({LIST_GROUPS: announced(2_000_000, 0)}), "REQUEST_TIMED_OUT", id="never", marks=pytest.mark.slow
        ),
        pytest.param(FakeBroker(brokers=1_001), "at most 1000", id="brokers"),
        pytest.param(FakeBroker(places=range(50_000)), "at most 10000 are read", id="partitions"),
        pytest.param(FakeBroker(places=(0, 2)), "does not name the partitions", id="a-partition-left-out"),
        pytest.param(FakeBroker(places=(0, 1, 1)), "does not name the partitions", id="a-partition-twice"),
    ],
)
def test_brokers_have_bytes_and_time(broker: FakeBroker, found: str) -> None:
    """Who answers too much, or never, is a fault, in the memory that the pod has."""
    with broker as address:
        printed = limited(
            f"""
            client = connect(Settings(("{address}",)))
            seen = cluster.read_cluster(client, Deadline(20))
            print(seen if isinstance(seen, Fault) else groups.list_groups(client, seen, Deadline(20)).faults)
            client.close()
            """
        )
    assert found in printed


def test_half_a_million_groups_of_one_broker_are_listed() -> None:
    """With the memory that the pod has by default."""
    with FakeBroker({LIST_GROUPS: many_groups(500_000)}) as address:
        printed = limited(
            f"""
            client = connect(Settings(("{address}",)))
            listed = groups.list_groups(client, cluster.read_cluster(client, Deadline(20)), Deadline(20))
            print(len(listed.groups), listed.faults)
            client.close()
            """
        )
    assert "500000 {}" in printed


def test_no_name_is_looked_up_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer takes seconds for each broker, in the thread of all its connections."""
    looked_up = []

    def slow(host: str, *_: Any) -> Any:
        looked_up.append(host)
        time.sleep(0.6)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    with FakeBroker(brokers=20, places=range(20)) as address:
        client = connect(Settings((address,)), timeout=10)
        cluster = read_cluster(client, soon())
        assert not isinstance(cluster, Fault)
        monkeypatch.setattr(socket, "getaddrinfo", slow)
        listing = list_groups(client, cluster, Deadline(1))
        client.close()
    assert len(listing.faults) >= len(cluster.brokers) - 1
    assert 0 < len(looked_up) < 10


@pytest.mark.parametrize("mechanism", [Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512])
@pytest.mark.parametrize(
    ("iterations", "proven"),
    [
        pytest.param("1", False, id="one"),
        pytest.param("4095", False, id="one-less-than-kafkas-clients-accept"),
        pytest.param("4096,i=1", False, id="twice"),
        pytest.param("-1", False, id="negative"),
        pytest.param("x", False, id="no-number"),
        pytest.param("50001", False, id="so-many-that-logins-take-long"),
        pytest.param("1000001", False, id="more-than-the-library-accepts"),
        pytest.param("50000", True, id="the-most"),
        pytest.param("4096", True, id="the-least"),
    ],
)
def test_a_broker_gets_no_weak_proof_of_a_password(mechanism: Mechanism, iterations: str, proven: bool) -> None:
    """Few iterations of SCRAM would let the broker, or a listener before it, guess the password from the proof; many
    take time that no deadline limits.
    """
    proofs = list[bytes]()

    def handshake(connection: socket.socket, identity: bytes) -> None:
        send(connection, identity[:4] + struct.pack(f">hih{len(mechanism)}s", 0, 1, len(mechanism), mechanism.encode()))

    def authenticate(connection: socket.socket, identity: bytes) -> None:
        if b",p=" in broker.request:
            proofs.append(broker.request)
            raise OSError
        first = b"r=" + broker.request.rpartition(b"r=")[2] + b"x,s=c2FsdA==,i=" + iterations.encode()
        send(connection, identity[:4] + struct.pack(">hhi", 0, -1, len(first)) + first + bytes(8))

    broker = FakeBroker({SASL_HANDSHAKE: handshake, SASL_AUTHENTICATE: authenticate})
    login = Sasl(mechanism, "user", Hidden("never-seen"))
    with broker as address, pytest.raises(ConnectError) as failed:
        connect(Settings((address,), sasl=login), timeout=10)
    assert bool(proofs) is proven
    assert "never-seen" not in str(failed.value)
    refused = f"it asks for SCRAM with {iterations.rpartition('=')[2]} iterations: 4096 to 50000 are accepted"
    assert str(failed.value).endswith(refused) is (iterations in ("1", "4095", "4096,i=1", "-1", "50001"))


@pytest.mark.parametrize(
    ("broker", "call", "found"),
    [
        pytest.param(
            FakeBroker({DESCRIBE_GROUPS: many_descriptions(1_240_000)}),
            "groups.describe_groups(client, {'a': GroupType.CLASSIC}, {'a': 0}, Deadline(20))",
            "_TOO_LARGE",
            id="descriptions",
        ),
        pytest.param(
            FakeBroker({METADATA: many_topics(560_000)}, first=1),
            "cluster.read_topics(client, Deadline(20))",
            "more than",
            id="topics",
        ),
        pytest.param(
            FakeBroker({DESCRIBE_LOG_DIRS: many_log_dirs(1_200_000)}),
            "cluster.hidden_topics(client, cluster.read_cluster(client, Deadline(20)), Deadline(20))",
            "more than",
            id="directories",
        ),
    ],
)
def test_an_answer_of_many_rows_is_not_decoded(broker: FakeBroker, call: str, found: str) -> None:
    """Rows of a few bytes each, in an answer that is not too large by its bytes: as objects they would fill the pod."""
    with broker as address:
        printed = limited(
            f"""
            from group_hygiene.model.groups import Group, GroupState, GroupType

            client = connect(Settings(("{address}",)))
            print({call})
            client.close()
            """
        )
    assert found in printed


@pytest.mark.slow
def test_connections_together_have_the_memory_of_one_pod() -> None:
    """Four brokers with 500,000 groups each, scanned side by side: one fits at a time, and what does not is a fault."""
    with ExitStack() as stack:
        brokers = [FakeBroker({LIST_GROUPS: many_groups(500_000)}) for _ in range(4)]
        addresses = [stack.enter_context(broker) for broker in [*brokers, FakeBroker({LIST_GROUPS: many_groups(9)})]]
        printed = limited(
            f"""
            import threading
            from concurrent.futures import ThreadPoolExecutor
            from group_hygiene.process.memory import Intake, MemoryTurns

            threading.stack_size(1 << 20)
            turns, small = MemoryTurns(), threading.Event()

            def scan(address):
                intake = Intake(address, turns)
                client = connect(Settings((address,)), intake=intake)
                seen = groups.list_groups(client, cluster.read_cluster(client, Deadline(60)), Deadline(60))
                if len(seen.groups) > 9:
                    small.wait(60)
                client.close()
                count, codes = len(seen.groups), {{fault.code for fault in seen.faults.values()}}
                del seen
                intake.end()
                return count, codes

            *large, last = {addresses}
            with ThreadPoolExecutor(5) as threads:
                running = [threads.submit(scan, address) for address in large]
                print("small", scan(last))
                small.set()
                for each in running:
                    print("large", each.result())
            """
        )
    lines = printed.splitlines()
    assert lines[0] == "small (9, set())"
    assert len(lines) == 5
    assert set(lines[1:]) <= {"large (500000, set())", "large (0, {'ANSWERS_TOO_LARGE'})"}
    # Whoever has the first turn finds the memory that it needs.
    assert "large (500000, set())" in lines


@pytest.mark.slow
def test_the_metadata_that_the_library_asks_for_has_a_bound() -> None:
    """Before there is a client, too."""
    with FakeBroker({METADATA: announced(490_000_000, 490_000_000)}) as address:
        printed = limited(
            f"""
            try:
                connect(Settings(("{address}",)), 5)
            except HygieneError as error:
                print(type(error).__name__)
            """
        )
    assert printed.strip() == "Unreachable"


def test_a_second_handshake_that_hangs_keeps_the_timeout(tmp_path: Path) -> None:
    """The library has no limit for it, and connects again to a broker that ends the connection."""
    answers: dict[int, Answer] = {METADATA: lambda connection, _: connection.shutdown(socket.SHUT_RDWR)}
    assert _connect_by_tls(answers, tmp_path) == "Unreachable"


def test_of_several_servers_the_connection_that_stands_is_used(tmp_path: Path) -> None:
    """A second one would wait for its handshake."""
    assert _connect_by_tls({}, tmp_path) == "connected"


def _connect_by_tls(answers: Mapping[int, Answer], scratch: Path) -> str:
    """What becomes of connecting to a broker that answers one handshake, named beside a server that does not exist."""
    authority = Authority(scratch)
    made = authority.issue("broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    with FakeBroker(answers, context=context) as address:
        printed = limited(
            f"""
            from pathlib import Path
            from group_hygiene.spec.client_settings import Tls

            tls = Tls(Path("{authority.ca}").read_text(), verify_hostname=False)
            try:
                connect(Settings(("{address}", "127.0.0.1:1"), tls), 3).close()
                print("connected")
            except HygieneError as error:
                print(type(error).__name__)
            """
        )
    return printed.strip()
