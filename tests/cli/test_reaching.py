"""How the command line reaches a cluster: client properties, a KafkaConnection; and what it says when it can't."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from group_hygiene.cli.history import CommandGuard
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.target import open_session
from group_hygiene.engine.executor import open_ledger
from group_hygiene.kafka.client import Deadline, connect
from group_hygiene.kafka.cluster import topic_ids
from group_hygiene.kafka.offsets import committed_offsets
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.ledger.topic import find
from group_hygiene.model import reasons
from group_hygiene.model.entries import KeepRequest, Removal, SavedOffset
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.crds import load_crd
from testing.sandbox.kafka import KafkaCluster, Security
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import install_crds, use_crds
from testing.sandbox.waiting import wait_for
from tests.backups import backup
from tests.cli.conftest import Run
from tests.kafka.makers import Maker, at
from tests.kafka.permissions import CLUSTER, DESCRIBE, GROUP, TOPIC, grant

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PASSWORD = "correct-horse-battery"
FORMS = ["table", "wide", "json", "yaml", "name"]


@pytest.fixture(scope="module")
def secure() -> Iterator[KafkaCluster]:
    """TLS, SCRAM-SHA-512, and an authorizer.

    `hygiene` may describe all topics and the group `mine`; `half` the cluster, all groups and the topic `orders`.
    """
    users = {"hygiene": PASSWORD, "half": PASSWORD}
    with KafkaCluster(security=Security(tls=True, sasl="SCRAM-SHA-512", users=users, authorizer=True)) as cluster:
        make = Maker(cluster.plaintext_bootstrap)
        half = ((CLUSTER, "kafka-cluster", DESCRIBE), (GROUP, "*", DESCRIBE), (TOPIC, "orders", DESCRIBE))
        grant(make, {"hygiene": ((TOPIC, "*", DESCRIBE), (GROUP, "mine", DESCRIBE)), "half": half})
        make.topic("orders", records=5)
        make.topic("secret", records=5)
        make.simple("mine", at("orders", 2))
        make.simple("theirs", at("orders", 2) | at("secret", 1))
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
        # A list without DESCRIBE on the cluster is never known to be whole.
        assert answer.code == (1 if command == ["list"] else 0), answer.err
        assert "mine" in answer.out
        assert f"Note: {properties}: ignored: client.id\n" in answer.err
        assert PASSWORD not in answer.out + answer.err


def test_one_cluster_of_a_file(
    run: Run, secure: KafkaCluster, properties: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--cluster` wins over the environment's servers, which may be another cluster's; without it, names are listed."""
    monkeypatch.setitem(os.environ, "GROUP_HYGIENE_COMMAND_CONFIG", str(properties))
    lines = [f"here.{line}" for line in properties.read_text().replace("\\\n", "").splitlines()]
    servers = [f"here.bootstrap.servers={secure.bootstrap_servers}", "there.bootstrap.servers=127.0.0.1:1"]
    properties.write_text("\n".join([*lines, *servers]))
    unnamed = run("offsets", "mine")
    assert (unnamed.code, f"{properties} has here, there: give --cluster NAME" in unnamed.err) == (1, True)
    monkeypatch.setitem(os.environ, "GROUP_HYGIENE_BOOTSTRAP_SERVER", "127.0.0.1:1")
    answer = run("offsets", "mine", "--cluster", "here", "-o", "name")
    assert (answer.code, answer.out) == (0, "mine\n"), answer.err
    assert PASSWORD not in answer.err + run("offsets", "mine", "--cluster", "there", "-v").err


def test_what_may_not_be_seen_is_said(run: Run, secure: KafkaCluster, properties: Path) -> None:
    """Without DESCRIBE on the cluster brokers leave groups out silently: an error. So is a group that is denied."""
    where = ["--bootstrap-server", secure.bootstrap_servers, "--command-config", properties]
    answer = run("list", *where, "-o", "name")
    assert (answer.code, answer.out) == (1, "mine\n")
    assert "Error: groups may be missing: DESCRIBE on the cluster is denied" in answer.err
    partly = run("offsets", "mine", "theirs", *where, "-o", "name")
    assert (partly.code, partly.out) == (1, "mine\n")
    assert "Error: group theirs: GROUP_AUTHORIZATION_FAILED" in partly.err


@pytest.mark.parametrize("command", [["offsets"], ["describe", "--offsets"]], ids=["offsets", "describe"])
def test_offsets_of_topics_that_may_not_be_described_are_named(
    run: Run, secure: KafkaCluster, properties: Path, command: list[str]
) -> None:
    """Brokers leave them out of their answer without an error; the rest is shown."""
    properties.write_text(properties.read_text().replace('"hygiene"', '"half"'))
    where = ["--bootstrap-server", secure.bootstrap_servers, "--command-config", properties]
    answer = run(*command, "theirs", *where, "-o", "json")
    assert [p["topic"] for p in answer.json["groups"][0]["partitions"]] == ["orders"]
    (error,) = answer.json["errors"]
    assert error.startswith("offsets of topics that may not be described are left out: __consumer_offsets, secret (")
    assert answer.code == 1
    assert "Note: not every group could be listed: topic __consumer_offsets: TOPIC_AUTHORIZATION_FAILED" in answer.err
    assert run("describe", "theirs", *where).code == 0


def test_doctor_names_each_permission_that_is_missing(run: Run, secure: KafkaCluster, properties: Path) -> None:
    """What is denied, and what can't work without it; 13. What is allowed is not named, and the password nowhere."""
    where = ["--bootstrap-server", secure.bootstrap_servers, "--command-config", properties]
    hygiene = run("doctor", *where, "-o", "json")
    assert hygiene.code == 13, hygiene.out
    shown = [(check["check"], check["result"], check["found"]) for check in hygiene.json["checks"]]
    assert ("TLS and SASL", "Ok", "over TLS, logged in by SCRAM-SHA-512 as 'hygiene'") in shown
    missing = [(check, result, found.partition(" is denied")[0]) for check, result, found in shown if "denied" in found]
    assert missing == [
        ("cluster", "Failed", "DESCRIBE on the cluster"),
        ("cluster", "Warning", "DESCRIBE_CONFIGS on the cluster"),
        ("offsets log", "Warning", "READ on __consumer_offsets"),
        ("topics", "Warning", "READ"),
        ("ledger's topic", "Warning", "on the topic __group_hygiene this"),
        ("groups", "Warning", "DELETE"),
        ("groups", "Warning", "READ"),
        ("scan", "Failed", "SnapshotIncomplete: DESCRIBE on the cluster"),
    ]
    (topics,) = [found for check, _, found in shown if check == "topics" and found.startswith("READ")]
    assert topics.endswith("in match.unprotect: then it may delete a group in use")
    assert "DELETE is denied on 1 of 1 groups checked: action Delete fails there (AuthorizationDenied)" in hygiene.out
    properties.write_text(properties.read_text().replace('"hygiene"', '"half"'))
    half = run("doctor", *where)
    assert half.code == 13
    assert "✗ topics: DESCRIBE is denied on 2 topics (__consumer_offsets, secret): no policy deletes" in half.out
    assert "DESCRIBE on the cluster" not in half.out
    assert "DELETE is denied on 2 of 2 groups" in half.out
    assert PASSWORD not in hygiene.out + half.out + hygiene.err + half.err


def test_whether_topics_are_hidden_may_be_unknown(run: Run, secure: KafkaCluster, properties: Path) -> None:
    """Then a note says which permission tells; and that the list of groups may not be whole."""
    where = ["--bootstrap-server", secure.bootstrap_servers, "--command-config", properties]
    notes = run("offsets", "mine", *where, "-o", "json").json["notes"]
    (unknown,) = [
        note for note in notes if note.startswith("offsets of topics that may not be described may be missing")
    ]
    assert unknown.endswith("needs DESCRIBE on the cluster")
    assert any(note.startswith("not every group could be listed: DESCRIBE on the cluster") for note in notes)


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
    answer = process("list", *where, "--timeout", "20s")
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
        pytest.param(
            ["--bootstrap-server", "127.0.0.1:1", "--timeout", "20s"], "connection refused", id="nobody-there"
        ),
        pytest.param(["--bootstrap-server", "a:1", "--connection", "b"], "can't be given together", id="both"),
        pytest.param(["--command-config", "/no/file"], "/no/file can't be read", id="no-file"),
        pytest.param(["--cluster", "a"], "--cluster must only be given with --command-config", id="cluster-of-no-file"),
        pytest.param(
            ["--cluster", "a", "--command-config", "f", "--bootstrap-server", "a:1"],
            "--cluster and --bootstrap-server can't be given together",
            id="cluster-and-server",
        ),
        pytest.param(
            ["--cluster", "a", "--command-config", "f", "--connection", "c"],
            "--cluster and --connection can't be given together",
            id="cluster-and-connection",
        ),
        pytest.param(["--bootstrap-server", "a:1", "-n", "b"], "--namespace must only be given with", id="namespace"),
        pytest.param(["--bootstrap-server", "a:1", "--timeout", "1w"], "is not a duration like 30d", id="timeout"),
        pytest.param(["--match", ""], "'--match': '' must not be empty", id="empty-pattern"),
    ],
)
def test_mistakes_in_the_options(run: Run, arguments: list[str], says: str) -> None:
    """One sentence, no traceback, exit code 1: 2 is plan's."""
    answer = run("list", *arguments)
    assert answer.code == 1
    assert says in answer.err


@pytest.mark.parametrize("command", [["plan"], ["explain", "mine"]], ids=["plan", "explain"])
def test_namespace_of_objects_that_name_none(run: Run, secure: KafkaCluster, command: list[str]) -> None:
    """Also without --connection, for what reads files."""
    unplaced = policy() | {"metadata": {"name": "unplaced"}}
    where = ["--bootstrap-server", secure.plaintext_bootstrap, "-n", "team"]
    answer = run(*command, *where, "-f", "-", "-o", "json", stdin=yaml.safe_dump(unplaced))
    assert [planned["namespace"] for planned in answer.json["policies"]] == ["team"], answer.err


def test_document_with_secrets_needs_them_from_elsewhere(run: Run, secure: KafkaCluster, properties: Path) -> None:
    """A file names Secrets and has none: --command-config supplies them, and the user the brokers that get them."""
    manifests = yaml.safe_dump_all([connection(secure), policy()])
    alone = run("plan", "-f", "-", stdin=manifests)
    assert alone.code == 1
    assert "a file can't supply: give --command-config FILE, or --connection NAME" in alone.err
    elsewhere = run("plan", "-f", "-", "--command-config", properties, stdin=manifests)
    assert (elsewhere.code, "is not sent to brokers that only the KafkaConnection" in elsewhere.err) == (1, True)
    where = ["--bootstrap-server", secure.bootstrap_servers, "--command-config", properties]
    answer = run("plan", "-f", "-", *where, "-o", "json", stdin=manifests)
    (planned,) = answer.json["policies"]
    assert planned["judged"] == 1
    assert answer.json["errors"] == [
        "groups may be missing: DESCRIBE on the cluster is denied, so brokers leave groups out of their lists",
        "groups may be missing: 5 partitions of __consumer_offsets may not be loaded by their leaders: "
        "GROUP_AUTHORIZATION_FAILED: needs DESCRIBE on groups group-hygiene-loaded-*",
    ]
    assert answer.code == 1


def connection(kafka: KafkaCluster) -> dict[str, Any]:
    return {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "KafkaConnection",
        "metadata": {"name": "main", "namespace": "kafka"},
        "spec": {
            "bootstrapServers": [kafka.bootstrap_servers],
            "tls": {"caSecretRef": {"name": "hygiene", "key": "ca.crt"}},
            "sasl": {
                "mechanism": "SCRAM-SHA-512",
                "username": "hygiene",
                "passwordSecretRef": {"name": "hygiene", "key": "password"},
            },
            "protect": ["mine"],
            "owners": [{"name": "team-m", "groups": ["mi*"]}],
        },
    }


def policy() -> dict[str, Any]:
    return {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "GroupPolicy",
        "metadata": {"name": "unused", "namespace": "kafka"},
        "spec": {"connectionRef": {"name": "main"}, "match": {"groups": ["*"]}, "action": "Alert"},
    }


def deleting() -> dict[str, Any]:
    """What keeps a group from deletion keeps it from no alert."""
    spec = policy()["spec"] | {"action": "Delete", "when": {"unchangedFor": "1h"}}
    return policy() | {"spec": spec}


@pytest.fixture(scope="module")
def cluster(secure: KafkaCluster) -> Iterator[ApiServer]:
    """An API server with the KafkaConnection and its Secret, and an account that may read neither."""
    with ApiServer() as server:
        install_crds(server)
        server.kubectl("create", "namespace", "kafka")
        server.kubectl("create", "serviceaccount", "nobody", "-n", "kafka")
        server.kubectl("create", "serviceaccount", "reader", "-n", "kafka")
        mine = ["--resource=kafkaconnections.grouphygiene.io,secrets", "-n", "kafka"]
        server.kubectl("create", "role", "reader", "--verb=get", *mine)
        server.kubectl("create", "rolebinding", "reader", "--role=reader", "--serviceaccount=kafka:reader", *mine[1:])
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "hygiene", "namespace": "kafka"},
            "stringData": {"password": PASSWORD, "ca.crt": secure.ca_file.read_text()},
        }
        server.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([secret, connection(secure)]))
        reader = server.kubeconfig_for_service_account("kafka", "reader")
        question = ("auth", "can-i", "get", "secrets", "-n", "kafka", f"--kubeconfig={reader}")
        # The authorizer reads roles and bindings from watches, a moment after they are stored.
        wait_for(lambda: server.kubectl(*question, check=False).returncode == 0)
        yield server


def test_connection_of_the_kubernetes_cluster(
    process: Run, cluster: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address, authority and password come from Kubernetes, protection too; flags win over the environment."""
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setitem(os.environ, "GROUP_HYGIENE_BOOTSTRAP_SERVER", "nowhere:1")
    where = ["--connection", "main", "-n", "kafka"]
    assert process("list", *where, "-o", "name").out == "mine\n"
    planned = process("plan", *where, "-f", "-", stdin=yaml.safe_dump(deleting()))
    assert "Protected" in planned.out
    assert PASSWORD not in planned.out + planned.err


def test_a_command_ends_when_the_connection_is_edited(cluster: ApiServer) -> None:
    """As a policy's run: `delete` may wait for its user for an hour, and a protection is added meanwhile."""
    with open_session(ChosenCluster(connection="main", namespace="kafka", kubeconfig=cluster.kubeconfig)) as session:
        guard = CommandGuard(session)
        assert guard.refusal() is None
        for patterns in (["mine", "theirs"], ["mine"]):
            change = json.dumps({"spec": {"protect": patterns}})
            cluster.kubectl("patch", "kconn", "main", "-n", "kafka", "--type=merge", "-p", change)
            refusal = guard.refusal()
            assert refusal is not None
            assert refusal.reason == reasons.POLICY_CHANGED


@pytest.mark.parametrize(
    ("command", "group"),
    [
        pytest.param(["keep", "--for", "1h", "--why", "needed"], "theirs", id="keep"),
        pytest.param(["keep", "--remove"], "asked", id="keep-remove"),
        pytest.param(["delete", "--yes", "--force"], "theirs", id="delete"),
        pytest.param(["restore"], "gone", id="restore"),
    ],
)
def test_a_connection_that_is_being_deleted(
    run: Run, cluster: ApiServer, secure: KafkaCluster, command: list[str], group: str
) -> None:
    """Another program's finalizer holds it: no command changes anything there, as the operator doesn't."""
    client, topic = connect(Settings((secure.plaintext_bootstrap,))), "leaving"
    ours = LedgerSettings(installation="ours", writer=f"group-hygiene-{topic}", topic=topic, replication_factor=1)
    ledger = open_ledger(client, ours, Deadline(60), create=True, claim=True)
    assert ledger is not None
    now, until = datetime.now(UTC), datetime.now(UTC) + timedelta(days=1)
    request = KeepRequest(group="asked", until=until, why="needed", by="ann", at=now)
    ids = topic_ids(client, ["orders"], Deadline(60))
    rows = {"orders": [SavedOffset(0, 2, -1, "", None)]}
    ledger.write([request, backup("gone", rows, at=now, expires=until, topic_ids={"orders": str(ids["orders"])})])
    made = connection(secure)
    made["metadata"] |= {"name": topic, "finalizers": ["example.org/hold"]}
    made["spec"] = {"bootstrapServers": [secure.plaintext_bootstrap], "ledger": {"topic": topic}}
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump(made))
    cluster.kubectl("delete", "kconn", topic, "-n", "kafka", "--wait=false")
    before = committed_offsets(client, {group: None}, Deadline(60))
    try:
        answer = run(*command, group, "--connection", topic, "-n", "kafka", "--kubeconfig", cluster.kubeconfig)
        after = committed_offsets(client, {group: None}, Deadline(60))
    finally:
        released = json.dumps({"metadata": {"finalizers": None}})
        cluster.kubectl("patch", "kconn", topic, "-n", "kafka", "--type=merge", "-p", released)
    ledger.read_on(Deadline(60))
    client.close()
    assert f"KafkaConnection {topic} was edited or deleted" in answer.out + answer.err
    assert answer.code == 1
    assert ledger.contents.keeps == {"asked": request}
    assert after == before


@pytest.mark.parametrize(
    ("status", "says"),
    [
        pytest.param({"clusterID": "former"}, ", and not to former as spec.clusterID says", id="cluster"),
        pytest.param({"pinned": "former"}, ", and not to former as spec.clusterID says", id="cluster-of-the-spec"),
        pytest.param({"ledger": {"topic": "moved", "id": "former"}}, "holds the ledger", id="ledger"),
        pytest.param({"ledger": {"topic": "before", "id": "former"}}, "the ledger is in the topic before", id="topic"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["keep", "--for", "1h", "--why", "needed"], id="keep"),
        pytest.param(["delete", "--yes", "--force"], id="delete"),
        pytest.param(["delete-offsets", "--topic", "orders", "--yes", "--force"], id="delete-offsets"),
        pytest.param(["restore"], id="restore"),
        pytest.param(["doctor"], id="doctor"),
    ],
)
def test_a_command_changes_nothing_in_another_cluster(
    run: Run,
    cluster: ApiServer,
    secure: KafkaCluster,
    command: list[str],
    status: dict[str, Any],
    says: str,
) -> None:
    """As the operator: the address may lead to other brokers than before, and the topic to another ledger."""
    client = connect(Settings((secure.plaintext_bootstrap,)))
    topic = "moved"
    ours = LedgerSettings(installation="ours", writer="group-hygiene-ours", topic=topic, replication_factor=1)
    ledger = open_ledger(client, ours, Deadline(60), create=True, claim=True)
    assert ledger is not None
    moved = connection(secure)
    moved["metadata"]["name"] = "moved"
    moved["spec"] = {"bootstrapServers": [secure.plaintext_bootstrap], "ledger": {"topic": topic}}
    moved["spec"] |= {"clusterID": status["pinned"]} if "pinned" in status else {}
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump(moved))
    status = {field: value for field, value in status.items() if field != "pinned"}
    change = json.dumps({"status": {"clusterID": None, "ledger": None} | status})
    cluster.kubectl("patch", "kconn", "moved", "-n", "kafka", "--subresource=status", "--type=merge", "-p", change)
    where = ["--connection", "moved", "-n", "kafka", "--kubeconfig", cluster.kubeconfig]
    answer = run(*command, *([] if command == ["doctor"] else ["theirs"]), *where)
    ledger.read_on(Deadline(60))
    listed = run("list", "--bootstrap-server", secure.plaintext_bootstrap, "-o", "name").out.split()
    client.close()
    if command == ["restore"] and "topic" in says:
        # A user may restore from the ledger of another topic.
        assert says not in answer.err
    else:
        # doctor checks first whose ledger it is, as the operator does.
        owned = command == ["doctor"] and says == "holds the ledger"
        assert ("belongs to the installation ours" if owned else says) in answer.out + answer.err
    assert answer.code == (10 if command == ["doctor"] else 1)
    assert ledger.contents.keeps == {}
    assert "theirs" in listed


def applied(cluster: ApiServer, kafka: KafkaCluster, namespace: str, name: str, ledger: bool) -> None:
    """A KafkaConnection whose ledger is the topic of its name, as its status says if it has one already."""
    made = connection(kafka) | {"metadata": {"name": name, "namespace": namespace}}
    made["spec"] = {"bootstrapServers": [kafka.plaintext_bootstrap], "ledger": {"topic": name, "replicationFactor": 1}}
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump(made))
    change = json.dumps({"status": {"clusterID": kafka.cluster_id} | ({"ledger": {"topic": name}} if ledger else {})})
    cluster.kubectl("patch", "kconn", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", change)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["keep", "--for", "1h", "--why", "needed", "--ignore-not-found"], id="keep"),
        pytest.param(["delete", "--yes", "--force"], id="delete"),
        pytest.param(["delete-offsets", "--topic", "orders", "--yes", "--force"], id="delete-offsets"),
    ],
)
def test_a_command_creates_the_ledger_of_a_connection(
    run: Run, cluster: ApiServer, secure: KafkaCluster, command: list[str]
) -> None:
    """Only with --create-ledger: in the topic of the spec, before its operator has needed one; then it is there."""
    name = f"new-{command[0]}"
    applied(cluster, secure, "kafka", name, ledger=False)
    call = [*command, "absent", "--connection", name, "-n", "kafka", "--kubeconfig", cluster.kubeconfig]
    client, settings = (
        connect(Settings((secure.plaintext_bootstrap,))),
        LedgerSettings(installation=None, writer="", topic=name),
    )
    assert f"there is no topic {name}" in run(*call).err
    assert open_ledger(client, settings, Deadline(60), create=False) is None
    answer = run(*call, "--create-ledger")
    assert "no ledger" not in answer.err
    ledger = open_ledger(client, settings, Deadline(60), create=False)
    assert ledger is not None
    assert ledger.contents.owner is not None, answer.err
    assert ledger.contents.keeps.keys() == ({"absent"} if command[0] == "keep" else set())
    cluster.kubectl("delete", "kconn", name, "-n", "kafka")
    client.close()


def test_a_request_binds_all_connections_to_the_cluster(run: Run, cluster: ApiServer, secure: KafkaCluster) -> None:
    """Two KafkaConnections with ledgers of their own: a request by one of them protects the group from both.

    Another user's request in the ledger of the other one is neither removed nor shortened.
    """
    client, ledgers = connect(Settings((secure.plaintext_bootstrap,))), dict[str, Any]()
    for name in ("first", "second"):
        ours = LedgerSettings(installation="ours", writer=f"group-hygiene-{name}", topic=name, replication_factor=1)
        ledgers[name] = open_ledger(client, ours, Deadline(60), create=True, claim=True)
        applied(cluster, secure, "kafka", name, ledger=True)
    where, other = (
        ["theirs", "--connection", name, "-n", "kafka", "--kubeconfig", cluster.kubeconfig] for name in ledgers
    )

    def asked() -> list[str]:
        for ledger in ledgers.values():
            ledger.read_on(Deadline(60))
        found = (ledger.contents.keeps.get("theirs") for ledger in ledgers.values())
        return ["" if each is None else each.why for each in found]

    kept = run("keep", *where, "--for", "1h", "--why", "needed")
    assert (kept.code, asked()) == (0, ["needed", "needed"]), kept.err
    removed = run("keep", *where, "--remove")
    assert (removed.code, asked()) == (0, ["", ""]), removed.err
    assert run("keep", *other, "--for", "9h", "--why", "another").code == 0
    ledgers["first"].write([Removal(("keep", "theirs"))])
    removed = run("keep", *where, "--remove")
    assert (removed.code, asked()) == (0, ["", "another"]), removed.err
    kept = run("keep", *where, "--for", "1h", "--why", "needed", "--replace")
    assert (kept.code, asked()) == (0, ["needed", "another"]), kept.err
    cluster.kubectl("delete", "kconn", *ledgers, "-n", "kafka")
    client.close()


def test_a_request_and_connections_without_a_ledger(run: Run, cluster: ApiServer, secure: KafkaCluster) -> None:
    """They can't see it: an error until --create-ledger creates it; a note where another namespace names the topic."""
    client = connect(Settings((secure.plaintext_bootstrap,)))
    cluster.kubectl("create", "namespace", "tenant")
    applied(cluster, secure, "kafka", "third", ledger=True)
    applied(cluster, secure, "kafka", "fourth", ledger=False)
    applied(cluster, secure, "tenant", "fifth", ledger=False)
    where = ["theirs", "--connection", "third", "-n", "kafka", "--kubeconfig", cluster.kubeconfig]
    ours = LedgerSettings(installation="ours", writer="group-hygiene-third", topic="third", replication_factor=1)
    open_ledger(client, ours, Deadline(60), create=True, claim=True)
    kept = run("keep", *where, "--for", "1h", "--why", "needed")
    assert kept.code == 1
    assert "has no ledger yet, so its policies will not see this: add --create-ledger" in kept.err
    kept = run("keep", *where, "--for", "2h", "--why", "needed", "--create-ledger")
    assert kept.code == 0, kept.err
    assert "KafkaConnection tenant/fifth to this cluster has no ledger yet" in kept.err
    # Their status was refused: they may be to the same cluster.
    unseen = connection(secure) | {"spec": {"bootstrapServers": [secure.plaintext_bootstrap]}}
    for place in ("tenant", "kafka"):
        unseen["metadata"] = {"name": "unseen", "namespace": place}
        cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump(unseen))
        kept = run("keep", *where, "--for", "2h", "--why", "needed")
        assert (kept.code, f"KafkaConnection {place}/unseen: its status shows no cluster" in kept.err) == (0, True)
        if place == "tenant":
            cluster.kubectl("delete", "kconn", "unseen", "-n", place)
    found = open_ledger(
        client, replace(ours, writer="group-hygiene-fourth", topic="fourth"), Deadline(60), create=False
    )
    assert found is not None
    before = found.contents.keeps["theirs"]
    # By one whose status does not show the cluster, too.
    where[2] = "unseen"
    kept = run("keep", *where, "--for", "5h", "--why", "needed", "--create-ledger")
    assert kept.code == 0, kept.err
    found.read_on(Deadline(60))
    assert found.contents.keeps["theirs"].until > before.until
    cluster.kubectl("delete", "kconn", "unseen", "-n", "kafka")
    assert find(client, "fifth", Deadline(60)) is None
    cluster.kubectl("delete", "kconn", "third", "fourth", "-n", "kafka")
    cluster.kubectl("delete", "namespace", "tenant", "--wait=false")
    client.close()


def test_a_named_kubeconfig(process: Run, cluster: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """--kubeconfig wins over $KUBECONFIG, in each command that reads Kubernetes."""
    monkeypatch.setitem(os.environ, "KUBECONFIG", "/nowhere")
    named = ["-n", "kafka", "--kubeconfig", str(cluster.kubeconfig)]
    assert process("list", "--connection", "main", *named, "-o", "name").out == "mine\n"
    assert "KafkaConnection kafka/main has no receivers" in process("alert", "test", "main", *named).err
    checks = process("doctor", "--connection", "main", *named, "-o", "json").json["checks"]
    assert [each["result"] for each in checks if each["check"] == "API server"] == ["Ok"]


def test_owners_of_the_connection(
    process: Run, cluster: ApiServer, secure: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In -o wide and in JSON; a KafkaConnection in the files has other owners. Without a connection there are none."""
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(cluster.kubeconfig))
    where = ["--connection", "main", "-n", "kafka"]
    header, row = process("list", *where, "-o", "wide").out.splitlines()
    assert row[header.index("OWNER") :].split()[0] == "team-m"
    (listed,) = process("list", *where, "-o", "json").json["groups"]
    assert listed["owner"] == "team-m"
    _, _, header, row = process(
        "plan", *where, "-f", "-", "-o", "wide", stdin=yaml.safe_dump(policy())
    ).out.splitlines()
    assert row[header.index("OWNER") :].split()[0] == "team-m"
    edited = connection(secure)
    edited["spec"]["owners"][0]["name"] = "team-n"
    files = yaml.safe_dump_all([edited, policy()])
    (planned,) = process("plan", *where, "-f", "-", "-o", "json", stdin=files).json["policies"]
    assert [group["owner"] for group in planned["groups"]] == ["team-n"]
    open_to_all = ["--bootstrap-server", secure.plaintext_bootstrap]
    assert all("owner" not in group for group in process("list", *open_to_all, "-o", "json").json["groups"])


@pytest.mark.parametrize(
    ("mode", "when", "result"),
    [
        pytest.param("Enforce", {"unchangedFor": "72h"}, "Failed", id="may-delete-a-group-in-use"),
        pytest.param("Enforce", {"idleFor": "72h"}, "Warning", id="asks-the-tables"),
        pytest.param("DryRun", {"unchangedFor": "72h"}, "Warning", id="dry-run"),
    ],
)
def test_doctor_fails_where_a_group_in_use_may_be_deleted(
    process: Run, cluster: ApiServer, monkeypatch: pytest.MonkeyPatch, mode: str, when: dict[str, str], result: str
) -> None:
    """Without READ on topics, unchangedFor takes marks of transactions for records that wait."""
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(cluster.kubeconfig))
    deleting = policy()
    deleting["spec"] |= {"action": "Delete", "mode": mode, "when": when}
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump(deleting))
    try:
        answer = process("doctor", "--connection", "main", "-n", "kafka", "-o", "json")
    finally:
        cluster.kubectl("delete", "kgp", "unused", "-n", "kafka")
    (topics,) = [c for c in answer.json["checks"] if c["check"] == "topics" and c["found"].startswith("READ")]
    assert topics["result"] == result, answer.out


def test_namespace_of_the_kubeconfig(process: Run, cluster: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without -n that of the current context counts, as for kubectl; for objects in files that name none, too."""
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(cluster.kubeconfig_for_service_account("kafka", "reader")))
    unplaced = policy()
    del unplaced["metadata"]["namespace"]
    answer = process("plan", "--connection", "main", "-f", "-", "-o", "json", stdin=yaml.safe_dump(unplaced))
    assert [planned["namespace"] for planned in answer.json["policies"]] == ["kafka"], answer.err


def test_connection_chooses_its_own_policies(process: Run, cluster: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies of another connection are left out with a note; where there are no others, that is an error."""
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(cluster.kubeconfig))
    other = policy()
    other["metadata"]["name"] = "other"
    other["spec"]["connectionRef"]["name"] = "elsewhere"
    where = ["plan", "--connection", "main", "-n", "kafka", "-f", "-", "-o", "json"]
    answer = process(*where, stdin=yaml.safe_dump_all([policy(), other]))
    assert [planned["name"] for planned in answer.json["policies"]] == ["unused"]
    assert "GroupPolicy kafka/other: ignored, refers to KafkaConnection kafka/elsewhere" in answer.json["notes"]
    assert not any("in none of the files" in note for note in answer.json["notes"])
    none = process(*where, stdin=yaml.safe_dump(other))
    assert (none.code, none.out) == (1, "")
    assert "no GroupPolicy in the files refers to KafkaConnection kafka/main, only to kafka/elsewhere" in none.err


SCALED_OBJECTS = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: scaledobjects.keda.sh}
spec:
  group: keda.sh
  scope: Namespaced
  names: {kind: ScaledObject, plural: scaledobjects}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""


def test_claims_that_may_not_be_listed(
    process: Run, secure: KafkaCluster, cluster: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is kept: said once, as an error, with the permission that is needed."""
    use_crds(cluster, yaml.safe_load(SCALED_OBJECTS))
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(cluster.kubeconfig_for_service_account("kafka", "reader")))
    where = ["plan", "--connection", "main", "-n", "kafka", "-f", "-", "-o", "json"]
    unprotected = connection(secure)
    del unprotected["spec"]["protect"]
    more = deleting() | {"metadata": {"name": "more", "namespace": "kafka"}}
    two = yaml.safe_dump_all([unprotected, deleting(), more])
    answer = process(*where, stdin=two)
    said = [error for error in answer.json["errors"] if "not all objects that may name groups could be read" in error]
    assert len(said) == 1
    assert "no permission to list scaledobjects.keda.sh in all namespaces" in said[0]
    assert answer.code == 1
    doctor = ["doctor", "--connection", "main", "-n", "kafka", "-o", "json"]
    own = {check["check"]: check for check in process(*doctor).json["checks"]}
    assert own["objects that name groups"]["result"] == "Warning"
    assert own["objects that name groups"]["found"].endswith(
        "no permission to list scaledobjects.keda.sh in all namespaces"
    )
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(cluster.kubeconfig))
    allowed = process(*where, stdin=two)
    assert "not all objects" not in allowed.err
    # Of another account it is among the rights that it lacks, whatever we may do ourselves.
    asked = process(*doctor, "--service-account", "kafka/reader").json["checks"]
    (lacks,) = [check for check in asked if check["check"] == "rights in Kubernetes"]
    assert (lacks["result"], "no group is deleted" in lacks["found"]) == ("Failed", True)
    (listed,) = [check for check in asked if check["check"] == "objects that name groups"]
    assert listed["result"] == "Ok"


@pytest.mark.parametrize(
    ("account", "name", "says"),
    [
        pytest.param("admin", "absent", "Error: there is no KafkaConnection kafka/absent", id="absent"),
        pytest.param("nobody", "main", "Error: you may not read KafkaConnection kafka/main", id="denied"),
        pytest.param(None, "main", "Error: no Kubernetes API server is configured", id="no-kubeconfig"),
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


def test_a_command_changes_nothing_with_an_older_crd(cluster: ApiServer) -> None:
    """The API server drops fields of the connection that it lacks, such as protections."""

    def refusal() -> Refusal | None:
        with open_session(
            ChosenCluster(connection="main", namespace="kafka", kubeconfig=cluster.kubeconfig)
        ) as session:
            return CommandGuard(session).refusal()

    crd = load_crd("KafkaConnection")
    older = copy.deepcopy(crd)
    del older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["protect"]
    try:
        use_crds(cluster, older)
        found = wait_for(refusal)
        assert found.reason == reasons.CRD_OUTDATED
        assert "it lacks spec.protect" in found.message
    finally:
        use_crds(cluster, crd)
        wait_for(lambda: refusal() is None)
