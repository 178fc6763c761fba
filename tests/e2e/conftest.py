"""The operator as a real process, under the account and roles of deploy/, between a real API server and Kafka."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import CommitFailedError, KafkaError, NoError, RebalanceInProgressError
from kafka.structs import OffsetAndMetadata

from testing.faults.kube import Kube
from testing.sandbox.kafka import KafkaCluster, Security
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import install, operators_account
from testing.sandbox.waiting import PATIENCE, wait_for

ROOT = Path(__file__).parents[2]
PASSWORD = "correct-horse-battery"
Object = dict[str, Any]
_API = "grouphygiene.io/v1alpha1"
_PLURALS = {"kconn": "kafkaconnections", "kgp": "grouppolicies", "kgr": "grouprestores", "kgk": "groupkeeps"}
# Where the shared operator may send messages: 127.0.0.1 is refused, as it is to any operator by default.
RECEIVING = "127.0.0.2"
# For tests of other things than the least times of tenants.
FLOORS = {"minGracePeriod": "1s", "minUnchangedFor": "1s", "minIdleFor": "1s", "minBackupRetention": "1h"}


class World:
    """The API server with everything of crds/ and deploy/ applied."""

    def __init__(self, server: ApiServer) -> None:
        self.server, self._kube = server, Kube(server)
        # Those that `namespace` made, in their order.
        self.namespaces: list[str] = []

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Apply them: first those of other CRDs than ours, by kubectl, which takes ten times the CPU."""
        others = [obj for obj in objects if obj["apiVersion"] != _API]
        if others:
            self.server.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(others))
        for obj in objects:
            if obj["apiVersion"] == _API:
                self._kube.apply(dict(obj))

    def get(self, kind: str, namespace: str, name: str) -> Object:
        """The object; `kind` is a short name of one of our CRDs. Without kubectl, since tests ask again and again."""
        found = self._kube.call("GET", f"{_path(kind, namespace)}/{name}")
        # As kubectl shows it.
        found["metadata"].pop("managedFields", None)
        return found

    def condition(self, kind: str, namespace: str, name: str, condition: str) -> Object | None:
        conditions = self.get(kind, namespace, name).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == condition), None)

    def wait_ready(self, kind: str, namespace: str, name: str, reason: str, timeout: float = PATIENCE) -> Object:
        """Wait until Ready has this reason; returns the condition."""

        def ready() -> Object | None:
            found = self.condition(kind, namespace, name, "Ready")
            return found if found is not None and found["reason"] == reason else None

        def explain() -> str:
            return f"Ready of {namespace}/{name} is {self.condition(kind, namespace, name, 'Ready')}, not {reason}"

        return dict(wait_for(ready, explain, timeout))

    def namespace(self, name: str, secrets: bool = True) -> str:
        """A namespace, in which the operator may read Secrets as docs tell users to allow it."""
        objects: list[Object] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}]
        if secrets:
            account = {"kind": "ServiceAccount", "name": "group-hygiene", "namespace": "group-hygiene"}
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "group-hygiene-secrets"}
            metadata = {"name": "group-hygiene-secrets", "namespace": name}
            api = "rbac.authorization.k8s.io/v1"
            objects.append(
                {"apiVersion": api, "kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": [account]}
            )
        self.apply(*objects)
        self.namespaces.append(name)
        return name

    def clear(self, namespace: str) -> None:
        """Delete its policies and connections, so that the operator scans no longer for them."""
        for kind in ("kgp", "kconn"):
            self._kube.call("DELETE", _path(kind, namespace))

    def events(self, namespace: str) -> list[Object]:
        return list(self._kube.call("GET", f"/api/v1/namespaces/{namespace}/events")["items"])


def _path(kind: str, namespace: str) -> str:
    return f"/apis/{_API}/namespaces/{namespace}/{_PLURALS[kind]}"


def connection(namespace: str, bootstrap: str, **spec: Any) -> Object:
    servers = bootstrap.split(",")
    return {
        "apiVersion": _API,
        "kind": "KafkaConnection",
        "metadata": {"name": "main", "namespace": namespace},
        "spec": {"bootstrapServers": servers, **spec},
    }


def policy(namespace: str, name: str, **spec: Any) -> Object:
    """A policy that deletes what was unchanged for 3 s and marked for 1 s, but for what `spec` says otherwise."""
    base = {
        "connectionRef": {"name": "main"},
        "interval": "5s",
        "match": {"groups": ["*"]},
        "when": {"unchangedFor": "3s"},
        "action": "Delete",
    }
    merged = {key: value for key, value in (base | spec).items() if value is not None}
    if merged["action"] == "Delete":
        merged["delete"] = {"gracePeriod": "1s"} | merged.get("delete", {})
    return {
        "apiVersion": _API,
        "kind": "GroupPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": merged,
    }


class Groups:
    """Makes groups on a broker by real clients; over the listener that may do everything."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.bootstrap = cluster.plaintext_bootstrap
        self.admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        # The first look-up makes the broker create __consumer_offsets; its partitions get their coordinators by and by.
        wait_for(self._coordinators_are_there)

    def close(self) -> None:
        self.admin.close()

    def topic(self, name: str) -> str:
        self.admin.create_topics([NewTopic(name, 1, 1)])
        self.admin.wait_for_topics([name], timeout_ms=PATIENCE * 1000)
        return name

    def produce(self, topic: str, records: int = 5) -> None:
        with_records = KafkaProducer(bootstrap_servers=self.bootstrap)
        for _ in range(records):
            with_records.send(topic, b"x")
        with_records.flush()
        with_records.close()

    def abandoned(self, name: str, topic: str) -> None:
        """A group that joined, read all there is, committed and left; records wait for it once more are produced."""
        place, failed = TopicPartition(topic, 0), [""]

        def commits() -> bool:
            # By another member each time: the client may not find back to a group that rebalances.
            with closing(self.member(name, topic)) as consumer:
                try:
                    # By number: what was assigned just now may have no position yet, and nothing would be committed.
                    consumer.commit({place: OffsetAndMetadata(consumer.end_offsets([place])[place], "", -1)})
                except (CommitFailedError, RebalanceInProgressError) as error:
                    failed.append(repr(error))
                    return False
            return True

        wait_for(commits, lambda: f"{name} could not commit: {failed[-1]}")

    def member(self, name: str, topic: str, client_id: str = "member") -> KafkaConsumer:
        """A member that has its partitions; it lives until it is closed."""
        consumer = KafkaConsumer(
            group_id=name,
            client_id=client_id,
            bootstrap_servers=self.bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            # It stays without being polled, and hears of new topics soon.
            max_poll_interval_ms=3_600_000,
            metadata_max_age_ms=1_000,
        )
        # A leader of the group that has no metadata of the topic yet assigns nothing.
        wait_for(lambda: consumer.partitions_for_topic(topic), f"{name} knows no partition of {topic}")
        consumer.subscribe([topic])
        wait_for(lambda: consumer.poll(500) or consumer.assignment(), f"{name} was assigned nothing")
        return consumer

    def simple(self, name: str, topic: str, offset: int = 0) -> None:
        """A commit as assign+commit consumers do it."""
        place = TopicPartition(topic, 0)
        assert self.admin.alter_group_offsets(name, {place: OffsetAndMetadata(offset, "", -1)}) == {place: NoError}

    def names(self) -> set[str]:
        return {group["group_id"] for group in self.admin.list_groups()}

    def _coordinators_are_there(self) -> bool:
        try:
            for number in range(40):
                self.admin.list_group_offsets(f"nobody-{number}")
            self.admin.list_groups()
        except KafkaError:
            return False
        return True


class RunningOperator:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    def log(self) -> str:
        return self._log.read_text()

    @property
    def port(self) -> int:
        found = wait_for(lambda: re.search(r"/metrics on port (\d+)[\s\"]", self.log()))
        return int(found[1])

    def http(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def kill(self, server: ApiServer, namespace: str) -> None:
        """As by kill -9; its Lease in this namespace goes too, so that the next operator need not wait for its end."""
        self.process.kill()
        self.process.wait()
        server.kubectl("delete", "lease", "group-hygiene", "-n", namespace)


def scans(operator: RunningOperator, namespace: str) -> int:
    """How often the operator scanned for the namespace's connection, as its metric says."""
    series = f'group_hygiene_scan_duration_seconds_count{{connection="main",namespace="{namespace}"}} '
    return int(float(operator.http("/metrics")[1].partition(series)[2].partition("\n")[0]))


@contextmanager
def running_operator(
    kubeconfig: Path, log: Path, *arguments: str, start: Sequence[str] = ("-m", "group_hygiene.cli")
) -> Iterator[RunningOperator]:
    """`group-hygiene operator` as a process of its own, ended at the end; `start`: what Python runs."""
    command = [sys.executable, *start, "operator", "--health-port", "0", *arguments]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(ROOT / "operator")}
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        yield RunningOperator(process, log)
    except BaseException as error:
        if process.poll() is not None:
            error.add_note(f"the operator had ended, with {process.returncode}")
        raise
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def doctor(kubeconfig: Path, namespace: str, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """`group-hygiene doctor` on the connection `main` there: exit code, checks, and all that it printed."""
    command = [sys.executable, "-m", "group_hygiene.cli", "doctor", "-o", "json", "-n", namespace]
    command += ["--connection", "main", *arguments]
    where = {"KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(ROOT / "operator")}
    done = subprocess.run(command, env={**os.environ, **where}, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["checks"], done.stdout + done.stderr


@contextmanager
def new_world() -> Iterator[World]:
    """An API server with everything installed."""
    with ApiServer(audit_log=True) as server:
        install(server)
        yield World(server)


@pytest.fixture(scope="package")
def world() -> Iterator[World]:
    with new_world() as made:
        yield made


@pytest.fixture(scope="package")
def service_account(world: World) -> Path:
    """A kubeconfig with exactly the rights that deploy/ gives to the operator."""
    return operators_account(world.server)


@pytest.fixture
def cleared(world: World) -> Iterator[None]:
    """At the end, the operator has nothing more to do in the namespaces that the test made."""
    before = len(world.namespaces)
    yield
    for namespace in world.namespaces[before:]:
        world.clear(namespace)


@pytest.fixture(scope="package")
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture(scope="package")
def groups(kafka: KafkaCluster) -> Iterator[Groups]:
    made = Groups(kafka)
    yield made
    made.close()


@pytest.fixture(scope="package")
def secure_kafka() -> Iterator[KafkaCluster]:
    """A broker with TLS, SCRAM-SHA-512 and an authorizer that denies by default."""
    users = {"group-hygiene": PASSWORD}
    with KafkaCluster(security=Security(tls=True, sasl="SCRAM-SHA-512", users=users, authorizer=True)) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the shared operator may read tables of the pipeline."""
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="package")
def operator(
    world: World, service_account: Path, tables: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningOperator]:
    """One operator that most tests share, each in a namespace of its own."""
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    # A lease that outlives a restart of the API server also on a machine that is busy.
    allowed = ("--allow-local-activity", str(tables), "--allow-receiver", RECEIVING)
    options = ("--log-level", "debug", "--lease-duration", "180", *allowed)
    with running_operator(service_account, log, *options) as process:
        yield process
        assert process.process.poll() is None, f"the operator died:\n{process.log()[-3000:]}"
