"""The operator uses every right that it is given, and needs few outside of the namespaces that it serves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import testing.faults.groups
from group_hygiene.controller.api import claim_rights, rights
from group_hygiene.controller.claims import KINDS
from testing.faults.rights import NEEDED_BY, STORIES, Stage, asked, granted, timed
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import OVERLAYS, install
from testing.sandbox.waiting import PATIENCE, wait_for
from tests.e2e.conftest import ROOT, Groups, RunningOperator, World, connection, doctor, policy, running_operator
from tests.e2e.ledger_reader import ledger_entries
from tests.kube.access import wait_until_allowed

NAME = "rights"
# Of an operator that serves one namespace, what it is given and may not come to in the story of it below.
NOT_IN_THE_STORY = {
    *(("get secrets", "kafka"), ("get grouprestores", "kafka"), ("patch grouprestores/status", "kafka")),
    ("delete grouprestores", "kafka"),
    *(("get groupkeeps", "kafka"), ("patch groupkeeps/status", "kafka")),
    *(("get events", "kafka"), ("patch events", "kafka"), ("update leases", "group-hygiene")),
    *((f"list {plural}", "") for _, plural in KINDS),
    *(("get deployments", ""), ("get statefulsets", "")),
    # Labels are asked for only where policies of another namespace that it serves use a connection.
    ("get namespaces", "kafka"),
    # A ClusterRole for the one Namespace kube-system; the log names a Namespace as if it were in itself.
    ("get namespaces", ""),
}


def test_the_operator_uses_all_of_its_rights(
    world: World, kafka: KafkaCluster, groups: Groups, operator: RunningOperator
) -> None:
    """By the API server's log, with a story for each right; and what the docs say of them is what is granted."""
    place = world.server, testing.faults.groups.Groups(groups.bootstrap), kafka.bootstrap_servers
    alive = partial(lambda process: process.poll() is None, operator.process)
    stages = [Stage(*place, f"{NAME}-{index}", alive, PATIENCE) for index, _ in enumerate(STORIES)]
    try:
        with ThreadPoolExecutor() as pool:
            assert all(pool.map(timed, STORIES, stages))
    finally:
        for namespace in world.server.kubectl("get", "namespaces", "-o", "name").stdout.split():
            if f"/{NAME}-" in namespace:
                world.server.kubectl("delete", "kgr,kgp,kconn", "--all", "-n", namespace.partition("/")[2])
    rights = {str(right) for right in granted(world.server)}
    assert {right for right, _ in asked(world.server, "allow")} >= rights
    page = (ROOT / "docs" / "security.md").read_text()
    section = page.partition("\n## Rights of the operator\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` *\| `([\w/]+)`", section, re.MULTILINE)
    assert rights == {f"{verb} {resource}" for verb, resource in rows} == set(NEEDED_BY)


@pytest.fixture
def narrow(kafka: KafkaCluster, tmp_path: Path) -> Iterator[tuple[World, RunningOperator]]:
    """An operator with the namespaced overlay: its roles, and the arguments of its Deployment."""
    with ApiServer(audit_log=True) as server:
        for namespace in ("kafka", "elsewhere"):
            server.kubectl("create", "namespace", namespace)
        install(server, "namespaced")
        rendered = yaml.safe_load_all(server.kubectl("kustomize", str(OVERLAYS / "namespaced")).stdout)
        (pod,) = [obj["spec"]["template"]["spec"] for obj in rendered if obj["kind"] == "Deployment"]
        name, *arguments = pod["containers"][0]["args"]
        assert name == "operator"
        account = server.kubeconfig_for_service_account("group-hygiene", "group-hygiene")
        for question in (
            "list grouppolicies -n kafka",
            "get namespaces/kube-system -n kube-system",
            "create leases -n group-hygiene",
        ):
            wait_until_allowed(server, f"--kubeconfig={account}", *question.split())
        with running_operator(account, tmp_path / "log", *arguments, "--lease-duration", "180") as process:
            yield World(server), process


def test_the_doctor_asks_for_each_right_that_something_needs() -> None:
    found = rights("kafka", "group-hygiene", "group-hygiene", ["password"], by_label=True, everywhere=True)
    found += claim_rights(KINDS)
    assert {f"{right.verb} {right.resource}" for right in found} == set(NEEDED_BY)


@pytest.mark.slow
def test_some_namespaces_need_no_more_than_roles_in_them(
    narrow: tuple[World, RunningOperator], kafka: KafkaCluster, groups: Groups
) -> None:
    """It deletes in the namespace that it serves, leaves others alone, and asks for nothing that it may not have."""
    world, operator = narrow
    topic = groups.topic("narrow")
    groups.produce(topic)
    groups.abandoned("narrow-old", topic)
    groups.produce(topic)
    deleting: dict[str, Any] = {"match": {"groups": ["narrow-*"]}, "mode": "Enforce", "delete": {"maxPercent": 100}}
    outside = {"connectionRef": {"name": "main", "namespace": "elsewhere"}}
    ledger: dict[str, Any] = {"topic": "hygiene-narrow", "replicationFactor": 1}
    world.apply(
        connection("elsewhere", kafka.bootstrap_servers, ledger={"topic": "hygiene-elsewhere"}),
        policy("elsewhere", "p", **deleting),
        connection("kafka", kafka.bootstrap_servers, ledger=ledger),
        policy("kafka", "outside", **(deleting | outside)),
        policy("kafka", "p", **deleting),
    )
    wait_for(lambda: "narrow-old" not in groups.names())
    refused = world.wait_ready("kgp", "kafka", "outside", "CrossNamespaceRefused")
    assert "elsewhere/main" in refused["message"]
    assert "conditions" not in world.get("kgp", "elsewhere", "p").get("status", {})
    # It is an installation of its own: another one here may serve other namespaces.
    uid = world.server.kubectl("get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}").stdout
    owners = [e["installation"] for e in ledger_entries(groups.bootstrap, ledger["topic"]) if e["kind"] == "owner"]
    assert owners == [f"{uid}-group-hygiene"]
    assert asked(world.server, "forbid") == set()
    used = asked(world.server, "allow")
    assert {(str(right), right.where) for right in granted(world.server)} - used <= NOT_IN_THE_STORY
    assert ("get namespaces", "kube-system") in used
    ours = {(right, where) for right, where in used if "kafkaconn" in right or "group" in right}
    assert {where for _, where in ours} == {"kafka"}
    assert operator.process.poll() is None
    wide = {right.role.rpartition("/")[2] for right in granted(world.server) if not right.where}
    assert wide == {"group-hygiene-claims", "group-hygiene-installation"}
    one_object = "-o=jsonpath={.rules[*].resourceNames}"
    named = world.server.kubectl("get", "clusterrole", "group-hygiene-installation", one_object).stdout
    assert named == '["kube-system"]'
    # Nor does the doctor miss anything there.
    of = "--service-account", "group-hygiene/group-hygiene"
    code, checks, text = doctor(world.server.kubeconfig, "kafka", *of)
    assert code == 0, text
    assert {check["result"] for check in checks} == {"Ok"}, text
    # Nor does the operator's own account, which may not read CRDs or list policies of other namespaces.
    own = world.server.kubeconfig_for_service_account("group-hygiene", "group-hygiene")
    code, checks, text = doctor(own, "kafka")
    assert code == 0, text
    assert {check["result"] for check in checks} == {"Ok"}, text
