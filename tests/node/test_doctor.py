"""`doctor` in the operator's pod, with its account and from its network: all is well, and then something is not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from testing.sandbox.node import Node
from testing.sandbox.node.given import Cluster
from testing.sandbox.node.kafka import CLUSTER, NAMESPACE, SERVICE, USER, NodeKafka
from testing.sandbox.node.requirements import program
from testing.sandbox.waiting import wait_for
from tests.node import release

_CLOSED = 9

pytestmark = pytest.mark.usefixtures("kafka", "no_release")


class _Answer(NamedTuple):
    """What failed, as (check, found, advice), and the exit code."""

    failed: list[tuple[str, str, str]]
    exit_code: int


def _ask(cluster: Cluster) -> _Answer:
    command = ("group-hygiene", "doctor", "--connection", "main", "-n", NAMESPACE, "--timeout", "10s", "-o", "json")
    done = cluster.kubectl("exec", "-n", release.NAME, f"deploy/{release.NAME}", "--", *command, check=False)
    assert done.stdout, done.stderr
    checks = json.loads(done.stdout)["checks"]
    failed = [(each["check"], each["found"], each["advice"]) for each in checks if each["result"] == "Failed"]
    return _Answer(failed, done.returncode)


def _advice(answer: _Answer, check: str, found: str) -> str:
    """The one advice of the failures of this check whose text has these words."""
    (advice,) = {advice for name, text, advice in answer.failed if name == check and found in text}
    return advice


@contextmanager
def _without(cluster: Cluster, kind: str, name: str) -> Iterator[None]:
    """An object of the namespace of the connection is away for a while."""
    place = (kind, name, "-n", NAMESPACE)
    there: dict[str, Any] = json.loads(cluster.kubectl("get", *place, "-o=json").stdout)
    cluster.kubectl("delete", *place)
    try:
        yield
    finally:
        there["metadata"] = {
            key: there["metadata"][key]
            for key in ("name", "namespace", "labels", "annotations")
            if key in there["metadata"]
        }
        cluster.kubectl("create", "-f", "-", input=json.dumps(there))


@contextmanager
def _closed(cluster: Cluster) -> Iterator[None]:
    """Nothing answers behind the Service of the brokers."""
    place = ("endpointslice", SERVICE, "-n", NAMESPACE)
    (port,) = json.loads(cluster.kubectl("get", *place, "-o=json").stdout)["ports"]

    def set_port(number: int) -> None:
        patch = json.dumps({"ports": [port | {"port": number}]})
        cluster.kubectl("patch", *place, "--type=merge", "--patch", patch)

    set_port(_CLOSED)
    try:
        yield
    finally:
        set_port(port["port"])


@contextmanager
def _dropped(node: Node, port: int) -> Iterator[None]:
    """Packets to a port of the node vanish, as behind most firewalls: a client gets no answer at all."""
    nft = [*node.place().enter, program("nft")]
    table = ("inet", "dropped")
    drop = f"tcp dport {port} drop"
    commands = (
        ("add", "table", *table),
        ("add", "chain", *table, "input", "{ type filter hook input priority -10 ; }"),
        ("add", "rule", *table, "input", drop),
    )
    for command in commands:
        subprocess.run([*nft, *command], check=True)
    try:
        yield
    finally:
        subprocess.run([*nft, "delete", "table", *table], check=True)


def test_doctor_ends_where_packets_are_dropped(node: Node, kafka: NodeKafka) -> None:
    """Within its own timeout, with the same advice as for a port that is closed; and all is well afterwards.

    The operator may read the Secrets of the quickstart, and no others.
    """
    entry, names = "rbac.secretNamespaces[0]", f"{USER},{CLUSTER}-cluster-ca-cert"
    release.install(node, f"{entry}.namespace={NAMESPACE}", f"{entry}.names={{{names}}}")
    node.kubectl("apply", "-f", str(Path(release.ROOT, "examples", "quickstart.yaml")))
    wait_for(lambda: _ask(node) == ([], 0), lambda: f"{_ask(node)}\n{release.explain(node)}", 120)
    port = int(kafka.bootstrap_servers.partition(",")[0].rpartition(":")[2])
    with _dropped(node, port):
        answer = _ask(node)
    assert "network policies" in _advice(answer, "Kafka", "BrokersUnreachable")
    assert answer.exit_code == 12
    wait_for(lambda: _ask(node) == ([], 0), lambda: f"{_ask(node)}\n{release.explain(node)}", 120)


def test_doctor_says_what_is_wrong_and_what_to_do(cluster: Cluster) -> None:
    """A Secret that is missing, a role that is not bound, a port that is closed; and nothing once each is mended."""
    release.install(cluster, f"rbac.secretNamespaces={{{NAMESPACE}}}")
    cluster.kubectl("apply", "-f", str(Path(release.ROOT, "examples", "quickstart.yaml")))

    def is_well() -> bool:
        return _ask(cluster) == ([], 0)

    def wait_until_well() -> None:
        wait_for(is_well, lambda: f"{_ask(cluster)}\n{release.explain(cluster)}", 120)

    wait_until_well()
    with _without(cluster, "secret", USER):
        answer = _ask(cluster)
        assert "create it" in _advice(answer, "Secret", f"Secret {NAMESPACE}/{USER} does not exist")
        assert answer.exit_code == 11
    wait_until_well()
    with _without(cluster, "rolebinding", "group-hygiene-secrets"):
        wait_for(lambda: not is_well(), lambda: "the role still holds", 30)
        answer = _ask(cluster)
        assert "rbac.secretNamespaces" in _advice(answer, "Secret", "SecretForbidden")
        assert "group-hygiene-secrets" in _advice(answer, "rights in Kubernetes", f"get secrets {USER} in namespace")
        assert answer.exit_code == 10
    wait_until_well()
    with _closed(cluster):
        wait_for(lambda: not is_well(), lambda: "the port is still open", 30)
        answer = _ask(cluster)
        assert "network policies" in _advice(answer, "Kafka", "BrokersUnreachable")
        assert answer.exit_code == 12
    wait_until_well()
