"""Scenario: other teams' objects point to endpoints, brokers, topics, tables and groups that attack the operator."""

from __future__ import annotations

import itertools
import re
import socket
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from deltalake import write_deltalake

from testing.faults.errors import Broken, FaultsError
from testing.faults.kube import Object
from testing.faults.operators import OperatorProcess
from testing.faults.stage import Stage
from testing.faults.world import World
from testing.sandbox.kafka.fake_broker import (
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    METADATA,
    FakeBroker,
    many_descriptions,
    many_groups,
    many_topics,
)
from testing.sandbox.proc import Peak, memory_mb

# The memory limit of the operator's pod in the chart.
_MEMORY_MB = 512
_SECONDS = 120.0
_INTERVAL_SECONDS = 5.0
# How long is measured while nothing attacks, on the same machine.
_QUIET_SECONDS = 30.0
# By so much longer a policy may wait under attack: one turn of another namespace's large answers, which ends by then.
_TURN_SECONDS = 20.0
_API = "grouphygiene.io/v1alpha1"
_MB = 1 << 20
_LARGE_MB = 700
_ID_BYTES = 32_000
# Rows of answers just below 16 MiB.
_GROUPS, _TOPICS, _DESCRIPTIONS = 520_000, 560_000, 1_240_000


def hostile_objects(stage: Stage) -> None:
    """Endpoints that trickle or inflate, brokers, topics, tables and ids of other teams: the pod serves on."""
    with ExitStack() as stack:
        cluster = stack.enter_context(stage.cluster(1, message_max_bytes="16777216", offset_metadata_max_bytes="65536"))
        world = stack.enter_context(
            stage.world(
                kafka=cluster, policy={"interval": f"{_INTERVAL_SECONDS:.0f}s"}, lease=30, memory=_MEMORY_MB * _MB
            )
        )
        leader, names = world.replicas.leader(), world.abandon(4)
        quiet = max(_gaps(leader, world.name, _QUIET_SECONDS))
        peak = stack.enter_context(Peak(leader.pid))
        for attack in (_token_endpoints, _brokers, _clusters, _checkpoints, _tables, _group_ids, _restores):
            attack(world, stack)
            stage.tried += 1
        late = max(_gaps(leader, world.name, _SECONDS))
        stage.say(
            f"hostile objects: at most {late:.1f} s between two runs, {quiet:.1f} s before; at most "
            f"{memory_mb(leader.pid, 'VmHWM'):.0f} MB in the operator, up to {peak.started} readers of tables with "
            f"{peak.started_mb:.0f} MB, {peak.mb:.0f} MB together"
        )
        if not leader.alive:
            raise Broken("the operator has ended")
        if not peak.started:
            raise FaultsError("no reader of tables was seen")
        if peak.mb > _MEMORY_MB:
            raise Broken(
                f"the operator and its readers took {peak.mb:.0f} MB, more than the {_MEMORY_MB} MB of its pod"
            )
        if late > quiet + _TURN_SECONDS:
            raise Broken(f"a policy of another namespace waited for {late:.1f} s, and for {quiet:.1f} s before")
        world.until_deleted(names)


def _gaps(leader: OperatorProcess, namespace: str, seconds: float) -> list[float]:
    """Seconds between the runs of the namespace's policy, during so many seconds."""
    seen: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and leader.alive:
        with suppress(OSError):
            runs = last_runs(leader)
            if namespace in runs and runs[namespace] not in seen:
                seen.append(runs[namespace])
        time.sleep(0.5)
    if len(seen) < 3:
        raise Broken(f"the policy ran {len(seen)} times in {seconds:.0f} s")
    return [after - before for before, after in itertools.pairwise(seen)] + [time.time() - seen[-1]]


def last_runs(leader: OperatorProcess) -> dict[str, float]:
    """Namespace -> when its policy last ran, by the operator's own metrics."""
    (port,) = re.findall(r"/metrics on port (\d+)\s", leader.log())[-1:] or ("0",)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = {}
    for line in text.splitlines():
        if line.startswith("group_hygiene_policy_last_run_timestamp_seconds{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            found[labels["namespace"]] = float(line.rpartition(" ")[2])
    return found


def _team(world: World, name: str, connection: Object, **policy: Any) -> str:
    """A namespace with a connection and a policy of its own; its name."""
    namespace = f"{world.name}-{name}"
    world.kube.namespace(namespace)
    spec: Object = {"connectionRef": {"name": "main"}, "interval": "5s", "mode": "DryRun", "action": "Delete"}
    spec |= {"match": {"groups": ["*"]}, "when": {"unchangedFor": "1s"}} | policy
    for kind, body in (("KafkaConnection", {"scan": {"timeout": "30s"}} | connection), ("GroupPolicy", spec)):
        metadata = {"name": "main", "namespace": namespace}
        world.kube.apply({"apiVersion": _API, "kind": kind, "metadata": metadata, "spec": body})
    return namespace


def _servers(world: World) -> list[str]:
    return world.kafka.plaintext_bootstrap.split(",")


# Token endpoints


def _token_endpoints(world: World, stack: ExitStack) -> None:
    """One that sends a byte every two seconds, one whose answer inflates to a gigabyte, one that never ends."""
    squeeze = zlib.compressobj(9, wbits=31)
    block = bytes(_MB)
    bomb = b"".join(squeeze.compress(block) for _ in range(_LARGE_MB)) + squeeze.flush()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

    def trickle(peer: socket.socket) -> None:
        peer.sendall(head + b"Content-Length: 100000\r\n\r\n")
        while True:
            peer.sendall(b" ")
            time.sleep(2)

    def inflate(peer: socket.socket) -> None:
        peer.sendall(head + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb)

    def endless(peer: socket.socket) -> None:
        peer.sendall(head + b"\r\n")
        while True:
            peer.sendall(block)

    for index, answer in enumerate((trickle, trickle, inflate, endless)):
        port = stack.enter_context(_listening(answer))
        secret = {"name": "token", "key": "secret"}
        oauth = {"tokenEndpoint": f"http://127.0.0.1:{port}/token", "clientID": "a", "clientSecretRef": secret}
        sasl = {"mechanism": "OAUTHBEARER", "oauth": oauth}
        namespace = _team(world, f"token-{index}", {"bootstrapServers": _servers(world), "sasl": sasl})
        world.secret("token", {"secret": "s3cret"}, namespace)


# Brokers


def _brokers(world: World, stack: ExitStack) -> None:
    """What a broker sends: a frame of 500 MB, a frame a byte at a time, nothing."""

    def large(peer: socket.socket) -> None:
        peer.recv(1024)
        peer.sendall((500 * _MB).to_bytes(4, "big"))
        for _ in range(500):
            peer.sendall(bytes(_MB))
        time.sleep(_SECONDS)

    def slow(peer: socket.socket) -> None:
        peer.recv(1024)
        peer.sendall((1000).to_bytes(4, "big"))
        while True:
            peer.sendall(b"\0")
            time.sleep(2)

    def silent(peer: socket.socket) -> None:
        while peer.recv(1024):
            pass

    for index, answer in enumerate((large, slow, silent)):
        port = stack.enter_context(_listening(answer))
        _team(world, f"broker-{index}", {"bootstrapServers": [f"127.0.0.1:{port}"]})


def _clusters(world: World, stack: ExitStack) -> None:
    """Clusters whose answers are not too large by their bytes, and would be hundreds of megabytes as objects."""
    places = range(50)
    metadata = {METADATA: many_topics(_TOPICS)}
    descriptions = {LIST_GROUPS: many_groups(1_000), DESCRIBE_GROUPS: many_descriptions(_DESCRIPTIONS)}
    fakes = [FakeBroker(metadata, first=1 + index % 3) for index in range(3)]
    fakes += [FakeBroker(descriptions, places=places) for _ in range(3)]
    fakes += [FakeBroker({LIST_GROUPS: many_groups(_GROUPS)}, brokers=1 + index) for index in range(4)]
    for index, fake in enumerate(fakes):
        _team(world, f"cluster-{index}", {"bootstrapServers": [stack.enter_context(fake)]})


# Topics


def _checkpoints(world: World, _stack: ExitStack) -> None:
    """A topic that looks like MirrorMaker's, with one record that inflates to hundreds of megabytes."""
    config = {"bootstrap.servers": world.groups.bootstrap, "log_level": 0, "compression.type": "gzip"}
    producer = Producer({**config, "message.max.bytes": 1_000_000_000, "queue.buffering.max.kbytes": 2_000_000})
    producer.produce(world.groups.topic("evil.checkpoints.internal", 1, 0), bytes(_LARGE_MB * _MB), b"k", partition=0)
    if producer.flush(_SECONDS):
        raise FaultsError("the record could not be written")
    for index in range(4):
        _team(world, f"checkpoints-{index}", {"bootstrapServers": _servers(world)})


# Tables


def _tables(world: World, _stack: ExitStack) -> None:
    """Tables of a few kilobytes whose equal rows take gigabytes, and tables with a log of 300 MB."""
    count = 10_000
    texts, times = pa.array(["x" * 100] * count), pa.array([0] * count, pa.timestamp("us", tz="UTC"))
    numbers = pa.array([1] * count, pa.int64())
    columns = {"cluster_id": texts, "topic_id": texts, "activity_id": texts, "read_at": times, "complete_since": times}
    columns |= {name: numbers.cast(pa.int32()) for name in ("log_partition", "version")}
    part = pa.table(columns | {"covered_to": numbers, "activity_version": numbers}).to_batches()[0]
    folder = world.tables / "hostile"
    write_deltalake(folder / "coverage", pa.RecordBatchReader.from_batches(part.schema, (part for _ in range(2_000))))
    swollen = world.tables / "swollen"
    write_deltalake(swollen / "coverage", pa.Table.from_batches([part]))
    with next((swollen / "coverage" / "_delta_log").glob("*.json")).open("a") as log:
        log.write('\n{"commitInfo":{"operation":"' + "x" * 300 * _MB + '"}}')
    for index, uri in enumerate((folder, swollen, swollen, swollen)):
        activity = {"uri": str(uri), "maxAge": "1h"}
        connection = {"bootstrapServers": _servers(world), "activity": activity}
        _team(world, f"tables-{index}", connection, when={"idleFor": "1h"})


# Groups and objects


def _group_ids(world: World, _stack: ExitStack) -> None:
    """Ids as long as Kafka takes them, in characters that JSON and SQL escape, and patterns that match slowly."""
    ids = [f"{'a' * (_ID_BYTES // 2)}{index}{chr(1) * (_ID_BYTES // 2)}" for index in range(24)]
    ids.append("\ue000" * (19_000 // 3))
    world.groups.abandon({name: {(world.topic, 0): 1} for name in ids})
    world.truth.made({name: {(world.topic, 0): 1} for name in ids})
    _team(world, "status", {"bootstrapServers": _servers(world)})
    patterns = ["*" + "a*" * 120 + f"b{index}" for index in range(64)]
    _team(world, "patterns", {"bootstrapServers": _servers(world)}, match={"groups": patterns})


def _restores(world: World, _stack: ExitStack) -> None:
    """Many restores at once, of groups that were never deleted."""
    namespace = _team(world, "restores", {"bootstrapServers": _servers(world)})
    for index in range(100):
        metadata = {"name": f"r-{index}", "namespace": namespace}
        spec = {"connectionRef": {"name": "main"}, "groups": [f"nothing-{index}"]}
        world.kube.apply({"apiVersion": _API, "kind": "GroupRestore", "metadata": metadata, "spec": spec})


@contextmanager
def _listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port of this machine where each client gets this answer."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                peer, _ = server.accept()
                threading.Thread(target=talk, args=(peer,), daemon=True).start()

    def talk(peer: socket.socket) -> None:
        with suppress(OSError), peer:
            answer(peer)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield int(server.getsockname()[1])
    finally:
        server.close()
