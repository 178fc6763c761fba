"""How the command line reaches a cluster: client properties, a KafkaConnection; and what it says when it can't."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka.admin import ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern, ResourceType

from sandbox.kafka import KafkaCluster, Security
from sandbox.kubernetes import ApiServer
from tests.cli.conftest import Run
from tests.kafka.makers import Maker, at

ROOT = Path(__file__).parents[2]
PASSWORD = "correct-horse-battery"
FORMS = ["table", "wide", "json", "yaml", "name"]


@pytest.fixture(scope="module")
def secure() -> Iterator[KafkaCluster]:
    """TLS, SCRAM-SHA-512, and an authorizer: `hygiene` may read the cluster, topics, and groups named `mine-*`."""
    users = {"hygiene": PASSWORD}
    with KafkaCluster(security=Security(tls=True, sasl="SCRAM-SHA-512", users=users, authorizer=True)) as cluster:
        admin = KafkaAdminClient(bootstrap_servers=cluster.plaintext_bootstrap)
        allowed = [
            (ResourcePattern(ResourceType.TOPIC, "*"), ACLOperation.DESCRIBE),
            (ResourcePattern(ResourceType.GROUP, "mine"), ACLOperation.DESCRIBE),
        ]
        admin.create_acls(
            [ACL("User:hygiene", "*", operation, ACLPermissionType.ALLOW, pattern) for pattern, operation in allowed]
        )
        admin.close()
        make = Maker(cluster.plaintext_bootstrap)
        make.topic("orders", records=5)
        make.simple("mine", at("orders", 2))
        make.simple("theirs", at("orders", 2))
        yield cluster
        make.close()


@pytest.fixture
def properties(secure: KafkaCluster, tmp_path: Path) -> Path:
    """What Kafka's own tools would be given for this cluster."""
    file = tmp_path / "client.properties"
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    file.write_text(
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={jaas} \\\n  username="hygiene" password="{PASSWORD}";\n'
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secure.ca_file}\n"
        "client.id=x\n"
    )
    return file


@pytest.mark.parametrize("form", FORMS)
def test_command_config_lets_us_in(run: Run, secure: KafkaCluster, properties: Path, form: str) -> None:
    """TLS and SCRAM from the file; the password is in no form of the answer."""
    where = ["--bootstrap-server", secure.bootstrap_servers, "--command-config", properties]
    for command in (["list"], ["describe", "mine", "--members", "--offsets"], ["offsets", "mine"]):
        answer = run(*command, *where, "-o", form)
        assert answer.code == 0, answer.err
        assert "mine" in answer.out
        assert f"Note: {properties}: ignored: client.id\n" in answer.err
        assert PASSWORD not in answer.out + answer.err


def test_what_may_not_be_seen_is_said(run: Run, secure: KafkaCluster, properties: Path) -> None:
    """Without DESCRIBE on the cluster brokers leave groups out silently: a note says so. A denied group is an error."""
    where = ["--bootstrap-server", secure.bootstrap_servers, "--command-config", properties]
    answer = run("list", *where, "-o", "name")
    assert answer.out == "mine\n"
    assert "Note: groups may be missing: DESCRIBE on the cluster is denied" in answer.err
    partly = run("offsets", "mine", "theirs", *where, "-o", "name")
    assert (partly.code, partly.out) == (1, "mine\n")
    assert "Error: group theirs: GROUP_AUTHORIZATION_FAILED" in partly.err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(('password="correct', 'password="wrong'), "refuses to authenticate as 'hygiene'", id="password"),
        pytest.param(("ssl.truststore.", "ssl.nothing."), "the certificate is not trusted", id="authority"),
        pytest.param(("type=PEM", "type=JKS"), "ssl.truststore.type JKS is not supported", id="store"),
        pytest.param(
            ("ssl.truststore.location=", "ssl.truststore.location=/no"), "can't be read: No such file", id="file"
        ),
        pytest.param(("SASL_SSL", "SASL_PLAINTEXT"), "", id="no-tls"),
    ],
)
def test_failing_to_get_in(
    process: Run, secure: KafkaCluster, properties: Path, change: tuple[str, str], says: str
) -> None:
    """One sentence, no traceback, exit code 1, no password."""
    properties.write_text(properties.read_text().replace(*change))
    where = ["--bootstrap-server", secure.bootstrap_servers, "--command-config", properties]
    answer = process("list", *where, "--timeout", "5s")
    assert (answer.code, answer.out) == (1, "")
    assert says in answer.err
    assert answer.err.splitlines()[-1].startswith("Error: ")
    assert "correct-horse" not in answer.err
    assert "wrong-horse" not in answer.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param([], "which Kafka cluster? Give --bootstrap-server", id="nothing"),
        pytest.param(["--bootstrap-server", "kafka"], "'kafka' is not host:port", id="no-port"),
        pytest.param(["--bootstrap-server", "127.0.0.1:1", "--timeout", "1s"], "connection refused", id="nobody-there"),
        pytest.param(["--bootstrap-server", "a:1", "--connection", "b"], "can't be given together", id="both"),
        pytest.param(["--command-config", "/no/file"], "/no/file can't be read", id="no-file"),
        pytest.param(["--bootstrap-server", "a:1", "-n", "b"], "--namespace must only be given with", id="namespace"),
        pytest.param(["--bootstrap-server", "a:1", "--timeout", "1d"], "must be a duration", id="timeout"),
    ],
)
def test_mistakes_in_the_options(run: Run, arguments: list[str], says: str) -> None:
    """One sentence, no traceback, exit code 1: 2 is plan's."""
    answer = run("list", *arguments)
    assert answer.code == 1
    assert says in answer.err


def test_document_with_secrets_needs_them_from_elsewhere(run: Run, secure: KafkaCluster, properties: Path) -> None:
    """A file names Secrets and has none: --command-config supplies them."""
    manifests = yaml.safe_dump_all([connection(secure), policy()])
    alone = run("plan", "-f", "-", stdin=manifests)
    assert alone.code == 1
    assert "a file can't supply: give --command-config FILE, or --connection NAME" in alone.err
    answer = run("plan", "-f", "-", "--command-config", properties, "-o", "name", stdin=manifests)
    assert (answer.code, answer.out) == (0, ""), answer.err


def connection(kafka: KafkaCluster) -> dict[str, Any]:
    return {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "KafkaConnection",
        "metadata": {"name": "main", "namespace": "kafka"},
        "spec": {
            "bootstrapServers": [kafka.bootstrap_servers],
            "tls": {"ca": {"name": "hygiene", "key": "ca.crt"}},
            "sasl": {
                "mechanism": "SCRAM-SHA-512",
                "username": "hygiene",
                "password": {"name": "hygiene", "key": "password"},
            },
            "protect": ["mine"],
        },
    }


def policy() -> dict[str, Any]:
    return {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "GroupPolicy",
        "metadata": {"name": "litter", "namespace": "kafka"},
        "spec": {"connectionRef": {"name": "main"}, "match": {"groups": ["*"]}, "action": "Alert"},
    }


@pytest.fixture(scope="module")
def cluster(secure: KafkaCluster) -> Iterator[ApiServer]:
    """An API server with the KafkaConnection and its Secret, and an account that may read neither."""
    with ApiServer() as server:
        server.kubectl("apply", "-f", str(ROOT / "crds"))
        server.kubectl("wait", "--for=condition=Established", "-f", str(ROOT / "crds"), "--timeout=30s")
        server.kubectl("create", "namespace", "kafka")
        server.kubectl("create", "serviceaccount", "nobody", "-n", "kafka")
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "hygiene", "namespace": "kafka"},
            "stringData": {"password": PASSWORD, "ca.crt": secure.ca_file.read_text()},
        }
        server.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([secret, connection(secure)]))
        yield server


def test_connection_of_the_kubernetes_cluster(
    process: Run, cluster: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address, authority and password come from Kubernetes, protection too; flags win over the environment."""
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setitem(os.environ, "GROUP_HYGIENE_BOOTSTRAP_SERVER", "nowhere:1")
    where = ["--connection", "main", "-n", "kafka"]
    assert process("list", *where, "-o", "name").out == "mine\n"
    planned = process("plan", *where, "-f", "-", stdin=yaml.safe_dump(policy()))
    assert "Protected" in planned.out
    assert PASSWORD not in planned.out + planned.err


@pytest.mark.parametrize(
    ("account", "name", "says"),
    [
        pytest.param("admin", "absent", "Error: there is no KafkaConnection kafka/absent", id="absent"),
        pytest.param("nobody", "main", "Error: you may not read KafkaConnection kafka/main", id="denied"),
        pytest.param(None, "main", "Error: no Kubernetes API server to talk to", id="no-kubeconfig"),
    ],
)
def test_connection_that_cannot_be_read(
    process: Run, cluster: ApiServer, monkeypatch: pytest.MonkeyPatch, account: str | None, name: str, says: str
) -> None:
    """One sentence, exit code 1."""
    if account == "admin":
        kubeconfig = cluster.kubeconfig
    elif account is not None:
        kubeconfig = cluster.kubeconfig_for_service_account("kafka", account)
    else:
        kubeconfig = Path("/no/kubeconfig")
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(kubeconfig))
    answer = process("list", "--connection", name, "-n", "kafka")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(says)
