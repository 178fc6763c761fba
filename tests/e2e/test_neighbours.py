"""What is wrong with one object is that object's matter: its neighbours on the same connection go on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from group_hygiene.engine.executor import open_ledger
from group_hygiene.kafka.client import Deadline, connect
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.model.entries import Delivered, Notice, PolicyAlerts
from group_hygiene.spec.client_settings import Settings
from testing.faults.errors import FaultsError
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.manifests import operators_account
from testing.sandbox.waiting import PATIENCE, wait_for
from tests.e2e.conftest import ROOT, Groups, RunningOperator, World, connection, new_world, policy, running_operator
from tests.e2e.test_group_restore import group_restore

Object = dict[str, Any]
# Each of these characters takes six bytes in JSON, and a group id may have 32,767 bytes.
LONG = "\x01" * 32_000


@contextmanager
def refused_statuses(world: World, namespace: str, *names: str) -> Iterator[None]:
    """The API server refuses each write of the status of the policies of these names."""
    rule = {
        "apiGroups": ["grouphygiene.io"],
        "apiVersions": ["v1alpha1"],
        "operations": ["UPDATE"],
        "resources": ["grouppolicies/status"],
    }
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": f"!(object.metadata.name in {json.dumps(names)})", "message": "not this one"}],
        "failurePolicy": "Fail",
    }
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    api, name = "admissionregistration.k8s.io/v1", f"refuse-{namespace}"
    world.apply(
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": selector},
        },
    )
    world.apply(policy(namespace, names[0], match={"groups": ["none-*"]}, suspend=True))
    counts = iter(range(10_000))

    def is_refused() -> bool:
        """Whether it holds, which it does a moment after it is stored."""
        patch = json.dumps({"status": {"totals": {"deleted": next(counts)}}})
        where = ("patch", "kgp", names[0], "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)
        return "not this one" in world.server.kubectl(*where, check=False).stderr

    wait_for(is_refused)
    try:
        yield
    finally:
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            world.server.kubectl("delete", kind, name)


def test_a_status_that_is_refused(world: World, kafka: KafkaCluster, operator: RunningOperator) -> None:
    """Neither of a policy that runs nor of one that only gets a status: the others run, and it is written by and by."""
    namespace = world.namespace("refused-status")
    none = {"match": {"groups": ["none-*"]}}
    suspended = policy(namespace, "suspended", suspend=True, **none)

    def is_reported(name: str) -> bool:
        return f"GroupPolicy {namespace}/{name}: its status could not be written" in operator.log()

    with refused_statuses(world, namespace, "probe", "suspended", "runs"):
        world.apply(connection(namespace, kafka.bootstrap_servers), suspended)
        world.apply(*(policy(namespace, name, **none) for name in ("runs", "fine")))
        world.wait_ready("kgp", namespace, "fine", "Succeeded")
        world.wait_ready("kconn", namespace, "main", "Connected")
        for name in ("suspended", "runs"):
            wait_for(partial(is_reported, name))
            assert "conditions" not in world.get("kgp", namespace, name)["status"]
        # A round that fails as a whole says so, and pauses longer each time.
        assert f"connection {namespace}/main: the API server" not in operator.log()
    world.wait_ready("kgp", namespace, "runs", "Succeeded")
    world.wait_ready("kgp", namespace, "suspended", "Suspended")
    world.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_ids_too_long_for_etcd(world: World, kafka: KafkaCluster, groups: Groups) -> None:
    """Twenty ids of 32 KB, six bytes a character: the status and the restore show their beginnings."""
    namespace = world.namespace("long-ids")
    topic = groups.topic("long-ids")
    names = [f"long-{number}-{LONG}" for number in range(20)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: groups.simple(name, topic), names))
    try:
        matching = {"match": {"groups": ["long-*"]}, "when": None, "action": "Alert"}
        restore = group_restore(namespace, "back", *(f"{number}-{'b' * 30_000}" for number in range(4)), of=namespace)
        world.apply(connection(namespace, kafka.bootstrap_servers), policy(namespace, "all", **matching))
        status = wait_for(lambda: world.get("kgp", namespace, "all")["status"].get("sample"))
        assert len(status) == 20
        assert all(row["group"].startswith('"long-') and row["group"].endswith("...") for row in status)
        assert len(json.dumps(status)) < 40_000
        world.apply(policy(namespace, "tidy", match={"groups": ["none-*"]}, mode="Enforce"))
        world.wait_ready("kgp", namespace, "tidy", "Succeeded")
        world.server.kubectl("create", "-f", "-", input=yaml.safe_dump(restore))
        world.wait_ready("kgr", namespace, "back", "NoBackup")
        assert len(json.dumps(world.get("kgr", namespace, "back")["status"])) < 100_000
    finally:
        world.server.kubectl("delete", "kgr,kgp,kconn", "--all", "-n", namespace)
        groups.admin.delete_groups(names)


@pytest.mark.usefixtures("operator")
def test_a_connection_newer_than_the_operator(world: World, kafka: KafkaCluster, groups: Groups) -> None:
    """An unknown field may forbid what it does: all who are let in say so, and nobody else learns of it."""
    owner, team, stranger = (world.namespace(f"newer-{name}") for name in ("owner", "team", "stranger"))
    access = [{"namespaces": {"names": [team]}, "groups": ["*"], "actions": ["Alert", "Restore"]}]
    made = connection(owner, kafka.bootstrap_servers, access=access)
    alert = {"connectionRef": {"name": "main", "namespace": owner}, "match": {"groups": ["none-*"]}, "action": "Alert"}
    alert |= {"when": None}
    world.apply(made, *(policy(namespace, "look", **alert) for namespace in (owner, team, stranger)))
    for namespace in (owner, team):
        world.wait_ready("kgp", namespace, "look", "Succeeded")
    refused = world.wait_ready("kgp", stranger, "look", "CrossNamespaceRefused")
    crd = yaml.safe_load((ROOT / "crds" / "kafkaconnections.yaml").read_text())
    try:
        newer = json.loads(json.dumps(crd))
        (version,) = newer["spec"]["versions"]
        properties = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        properties["keepEverything"] = {"type": "boolean"}
        world.apply(newer)
        wait_for(lambda: _has_field(world, made, "keepEverything"))
        world.wait_ready("kconn", owner, "main", "InvalidSpec")
        ready = world.wait_ready("kgp", owner, "look", "ConnectionNotReady")
        assert "keepEverything" in ready["message"]
        ready = world.wait_ready("kgp", team, "look", "ConnectionNotReady")
        assert "keepEverything" not in ready["message"]
        world.apply(group_restore(team, "back", "x", of=owner))
        world.wait_ready("kgr", team, "back", "ConnectionNotReady")
        assert world.condition("kgp", stranger, "look", "Ready") == refused
    finally:
        world.apply(made)
        world.apply(crd)
    for namespace in (owner, team):
        world.wait_ready("kgp", namespace, "look", "Succeeded")
    for namespace in (stranger, team, owner):
        world.server.kubectl("delete", "kgr,kgp,kconn", "--all", "-n", namespace)


def _has_field(world: World, made: Object, name: str) -> bool:
    """Whether the API server keeps that field of the connection already. Until it does, it drops or refuses it."""
    try:
        world.apply(made | {"spec": made["spec"] | {name: True}})
    except FaultsError as error:
        if "field not declared in schema" not in str(error):
            raise
        return False
    return name in world.get("kconn", made["metadata"]["namespace"], "main")["spec"]


@contextmanager
def fenced_again_and_again(kafka: KafkaCluster, transactional_id: str) -> Iterator[None]:
    """Another client begins transactions under this id, as any client may that Kafka allows Write on it."""
    over = threading.Event()

    def fence() -> None:
        while not over.wait(0.5):
            producer = Producer({"bootstrap.servers": kafka.plaintext_bootstrap, "transactional.id": transactional_id})
            producer.init_transactions(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        fencing = pool.submit(fence)
        try:
            yield
        finally:
            over.set()
            fencing.result()


@pytest.mark.slow
def test_a_client_that_fences_the_ledgers_writer(kafka: KafkaCluster, groups: Groups, tmp_path: Path) -> None:
    """It stops its own connection, which says so and deletes nothing; the process and other connections go on."""
    fenced, other = "fenced", "not-fenced"
    topic = groups.topic("fenced")
    groups.produce(topic)
    groups.abandoned("fenced-old", topic)
    groups.produce(topic)
    # Of its own: should the process end, other tests must not miss theirs.
    with (
        new_world() as world,
        running_operator(operators_account(world.server), tmp_path / "log") as operator,
    ):
        for namespace in (fenced, other):
            world.namespace(namespace)
            ledger = {"topic": f"{namespace}-ledger"}
            world.apply(connection(namespace, kafka.bootstrap_servers, ledger=ledger))
        world.apply(policy(other, "p", match={"groups": ["none-*"]}, mode="Enforce"))
        world.apply(policy(fenced, "p", match={"groups": ["none-*"]}, mode="Enforce"))
        for namespace in (fenced, other):
            world.wait_ready("kgp", namespace, "p", "Succeeded")
        installation = world.server.kubectl("get", "ns", "kube-system", "-o", "jsonpath={.metadata.uid}").stdout
        uid = world.get("kconn", fenced, "main")["metadata"]["uid"]
        with fenced_again_and_again(kafka, f"group-hygiene-{installation}-{uid}"):
            world.apply(policy(fenced, "p", match={"groups": ["fenced-*"]}, mode="Enforce", delete={"maxPercent": 100}))
            world.wait_ready("kconn", fenced, "main", "LedgerFenced")
            world.wait_ready("kgp", fenced, "p", "ConnectionNotReady")
            assert "fenced-old" in groups.names()
            world.apply(policy(other, "q", match={"groups": ["none-*"]}, mode="Enforce"))
            world.wait_ready("kgp", other, "q", "Succeeded")
            assert operator.process.poll() is None
        wait_for(lambda: "fenced-old" not in groups.names())
        assert operator.stop() == 0


def _has_run(world: World, namespace: str, name: str) -> bool:
    """Whether the policy's status is of its current generation."""
    obj = world.get("kgp", namespace, name)
    return bool(obj["status"].get("observedGeneration") == obj["metadata"]["generation"])


@pytest.mark.slow
def test_two_releases_that_serve_all_namespaces(kafka: KafkaCluster, tmp_path: Path) -> None:
    """The second one says so and writes nothing, until the first one has released its Lease; then it serves."""
    with new_world() as world:
        world.namespace("both")
        world.server.kubectl("create", "namespace", "second")
        world.apply(connection("both", kafka.bootstrap_servers, ledger={"topic": "both-ledger"}))
        world.apply(policy("both", "p", match={"groups": ["none-*"]}, mode="Enforce", when={"unchangedFor": "24h"}))
        account, admin = operators_account(world.server), world.server.kubeconfig
        with running_operator(account, tmp_path / "first") as first:
            world.wait_ready("kgp", "both", "p", "Succeeded")
            with running_operator(admin, tmp_path / "second", "--leader-election-namespace", "second") as second:
                wait_for(lambda: "is served by the release in namespace group-hygiene" in second.log())
                for number in range(5):
                    world.apply(policy("both", "p", match={"groups": [f"none-{number}-*"]}, mode="Enforce"))
                    # The first one alone follows, and is never fenced.
                    wait_for(partial(_has_run, world, "both", "p"))
                    assert world.get("kconn", "both", "main")["status"]["servedBy"] == "group-hygiene"
                assert "LedgerFenced" not in first.log() + second.log()
                assert "Ready True" not in second.log()
                _, metrics = second.http("/metrics")
                assert 'group_hygiene_connection_up{connection="main",namespace="both"} 0.0' in metrics
                assert first.stop() == 0
                wait_for(lambda: world.get("kconn", "both", "main")["status"]["servedBy"] == "second")
                world.apply(policy("both", "q", match={"groups": ["none-*"]}, mode="Enforce"))
                world.wait_ready("kgp", "both", "q", "Succeeded")
                assert second.log().count("leaves it alone") == 1


@pytest.mark.slow
def test_a_lease_of_a_tenant_is_no_release(kafka: KafkaCluster, tmp_path: Path) -> None:
    """The role `edit` may create Leases: one of the operator's name, held for ever, has no effect."""
    with new_world() as world:
        world.namespace("tenant")
        renewed = "2026-01-01T00:00:00.000000Z"
        spec = {"holderIdentity": "another", "leaseDurationSeconds": 2**31 - 1, "renewTime": renewed}
        lease = {"metadata": {"name": "group-hygiene", "namespace": "tenant"}, "spec": spec}
        world.apply({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease})
        world.apply(connection("tenant", kafka.bootstrap_servers, ledger={"topic": "tenant-ledger"}))
        with running_operator(operators_account(world.server), tmp_path / "log"):
            world.apply(policy("tenant", "p", match={"groups": ["none-*"]}, mode="Enforce"))
            world.wait_ready("kgp", "tenant", "p", "Succeeded")


@pytest.mark.slow
def test_a_time_in_a_ledger_that_no_sum_may_have(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Somebody writes it into a ledger of their own: it is unreadable, and the operator goes on, also after a start."""
    namespace, topic = "far-future", "far-future-ledger"
    far = Notice(datetime.max.replace(tzinfo=UTC), 1, {"g": ""})
    with new_world() as world:
        account = operators_account(world.server)
        world.namespace(namespace)
        world.apply(connection(namespace, kafka.bootstrap_servers, ledger={"topic": topic}))
        with running_operator(account, tmp_path / "log-1") as operator:
            world.apply(policy(namespace, "p", match={"groups": ["none-*"]}, mode="Enforce"))
            world.wait_ready("kgp", namespace, "p", "Succeeded")
            alerts = PolicyAlerts(
                connection_uid=world.get("kconn", namespace, "main")["metadata"]["uid"],
                policy_uid="u",
                policy="ns/p",
                firing={},
                delivered={"r": Delivered("d", {}, far)},
                expires=datetime.now(UTC) + timedelta(days=1),
            )
            client = connect(Settings((kafka.plaintext_bootstrap,)))
            settings = LedgerSettings(installation=None, writer="somebody", topic=topic)
            ledger = open_ledger(client, settings, Deadline(PATIENCE), create=False, claim=True)
            assert ledger is not None
            ledger.write([alerts])
            client.close()
            wait_for(lambda: world.get("kconn", namespace, "main")["status"]["ledger"].get("unreadableRecords"))
            assert operator.stop() == 0
        with running_operator(account, tmp_path / "log-2") as operator:
            world.apply(policy(namespace, "q", match={"groups": ["none-*"]}, mode="Enforce"))
            world.wait_ready("kgp", namespace, "q", "Succeeded")
            assert operator.stop() == 0


@pytest.mark.slow
def test_a_fault_of_the_operator_in_one_policy(kafka: KafkaCluster, tmp_path: Path) -> None:
    """A policy that can't be run, or whose results can't be shown, says so; the others of its round go on."""
    namespace = "fault-in-policy"
    program = Path(__file__).with_name("failing_operator.py")
    # Of its own: the operator that other tests share would write the status.
    with (
        new_world() as world,
        running_operator(operators_account(world.server), tmp_path / "log", start=[str(program)]) as operator,
    ):
        world.namespace(namespace)
        world.apply(connection(namespace, kafka.bootstrap_servers))
        world.apply(
            *(policy(namespace, name, match={"groups": ["none-*"]}) for name in ("a-broken", "a-undecided", "b-fine"))
        )
        ready = world.wait_ready("kgp", namespace, "a-broken", "InternalError")
        assert "OverflowError" in ready["message"]
        ready = world.wait_ready("kgp", namespace, "a-undecided", "InternalError")
        assert "ZeroDivisionError" in ready["message"]
        world.wait_ready("kgp", namespace, "b-fine", "Succeeded")
        assert f"connection {namespace}/main: unexpected" not in operator.log()
