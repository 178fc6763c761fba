"""What the commands say to users who lack rights: what to ask for, and what their own namespace can do without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from testing.sandbox.kafka import KafkaCluster, Security
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import install_crds
from tests.cli.conftest import Run
from tests.kafka.makers import Maker, at
from tests.kafka.permissions import DESCRIBE, GROUP, TOPIC, grant
from tests.kube.access import wait_until_allowed

pytestmark = pytest.mark.slow

PASSWORD = "correct-horse-battery"
API = "grouphygiene.io/v1alpha1"
POLICY = {
    "apiVersion": API,
    "kind": "GroupPolicy",
    "metadata": {"name": "unused", "namespace": "kafka"},
    "spec": {
        "connectionRef": {"name": "main"},
        "match": {"groups": ["mine", "theirs"]},
        "when": {"unchangedFor": "72h"},
        "action": "Delete",
    },
}
_PLAN = ("plan", "-f", "-")
_EXPLAIN = ("explain", "mine", "-f", "-")
_HISTORY = ("history", "mine")
# Of a tenant who plans, explains and asks for the history; and of the others that read a KafkaConnection.
COMMANDS = [
    *(_PLAN, _EXPLAIN, _HISTORY),
    *(("list",), ("describe", "mine"), ("offsets", "mine"), ("restore", "mine"), ("delete", "mine", "--yes")),
    *(("delete-offsets", "mine", "--topic", "orders", "--yes"), ("keep", "mine", "--remove")),
]


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """Of two accounts of the namespace `team`: `nobody` has no rights, `viewer` may read connections, but no Secrets.

    The account `own` is of the namespace of the connection, without rights.
    """
    with ApiServer() as server:
        install_crds(server)
        for namespace in ("kafka", "team"):
            server.kubectl("create", "namespace", namespace)
        for namespace, account in (("team", "nobody"), ("team", "viewer"), ("kafka", "own")):
            server.kubectl("create", "serviceaccount", account, "-n", namespace)
        server.kubectl("create", "role", "view", "--verb=get", "--resource=kafkaconnections", "-n", "kafka")
        server.kubectl("create", "rolebinding", "view", "--role=view", "--serviceaccount=team:viewer", "-n", "kafka")
        reference = {"name": "login", "key": "password"}
        sasl = {"mechanism": "SCRAM-SHA-512", "username": "operator", "passwordSecretRef": reference}
        metadata, spec = {"name": "main", "namespace": "kafka"}, {"bootstrapServers": ["kafka:9093"], "sasl": sasl}
        obj = {"apiVersion": API, "kind": "KafkaConnection", "metadata": metadata, "spec": spec | {"tls": {}}}
        server.kubectl("apply", "-f", "-", input=yaml.safe_dump(obj))
        viewer = f"--kubeconfig={server.kubeconfig_for_service_account('team', 'viewer')}"
        wait_until_allowed(server, viewer, "get", "kafkaconnections", "-n", "kafka")
        yield server


@pytest.mark.parametrize("command", [pytest.param(command, id=command[0]) for command in COMMANDS])
@pytest.mark.parametrize(
    ("account", "lacks"),
    [
        pytest.param("team/nobody", "kafkaconnections", id="connection"),
        pytest.param("team/viewer", "secrets", id="secrets"),
        pytest.param("kafka/own", "kafkaconnections", id="connection-of-its-namespace"),
    ],
)
def test_what_to_ask_for(run: Run, server: ApiServer, command: tuple[str, ...], account: str, lacks: str) -> None:
    """The Kubernetes right, by its verb and resource; and the entry of spec.access, with which none is needed."""
    namespace, _, name = account.partition("/")
    where = ("--kubeconfig", server.kubeconfig_for_service_account(namespace, name), "-n", "kafka")
    answer = run(*command, "--connection", "main", *where, stdin=json.dumps(POLICY))
    assert (answer.code, answer.out) == (1, "")
    assert f"ask for get on {lacks} in namespace kafka. " in answer.err
    entry = '{namespaces: {names: ["team"]}, groups: [...], actions: [Alert, Keep, Restore]}'
    assert (f"once its owner adds {entry} to spec.access" in answer.err) is (namespace == "team")
    for what in ("a GroupPolicy with action Alert", "a GroupKeep", "a GroupRestore", "--command-config"):
        assert what in answer.err


@pytest.fixture(scope="module")
def secure() -> Iterator[KafkaCluster]:
    """A broker with an authorizer. The user `team` may describe all topics and the group `mine`."""
    security = Security(tls=True, sasl="SCRAM-SHA-512", users={"team": PASSWORD}, authorizer=True)
    with KafkaCluster(security=security) as cluster:
        make = Maker(cluster.plaintext_bootstrap)
        grant(make, {"team": ((TOPIC, "*", DESCRIBE), (GROUP, "mine", DESCRIBE))})
        make.topic("orders", records=5)
        make.topic("__group_hygiene", records=1)
        make.simple("mine", at("orders", 2))
        make.simple("theirs", at("orders", 2))
        yield cluster
        make.close()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        pytest.param(_PLAN, "DESCRIBE on the cluster is denied", id="plan"),
        pytest.param(_EXPLAIN, "DESCRIBE on the cluster is denied", id="explain"),
        pytest.param(_HISTORY, "needs DESCRIBE_CONFIGS on the topic __group_hygiene", id="history"),
        pytest.param(("list",), "DESCRIBE on the cluster is denied", id="list"),
        pytest.param(("offsets", "theirs"), "needs DESCRIBE on the group", id="offsets"),
        pytest.param(("restore", "mine"), "needs DESCRIBE_CONFIGS on the topic __group_hygiene", id="restore"),
    ],
)
def test_a_kafka_user_with_few_rights(
    run: Run, secure: KafkaCluster, tmp_path: Path, command: tuple[str, ...], says: str
) -> None:
    """Of a team: each command names the right in Kafka that it lacks."""
    file = tmp_path / "client.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    file.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secure.ca_file}\n"
        f'sasl.jaas.config={module} required username="team" password="{PASSWORD}";\n'
    )
    where = ("--bootstrap-server", secure.bootstrap_servers, "--command-config", file)
    answer = run(*command, *where, stdin=json.dumps(POLICY))
    assert answer.code == 1
    assert says in answer.err
