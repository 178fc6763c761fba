"""What Argo CD makes of real statuses: its health check, over objects as the operator and the API server have them.

With WRITE_FIXTURES in its environment it keeps them as deploy/argocd/fixtures: `make argocd-fixtures`.
"""

from __future__ import annotations

import json
import os

import pytest
import yaml

from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.lua import Health, assess
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import ROOT, Groups, Object, World, connection, policy

ARGOCD = ROOT / "deploy" / "argocd"
SCRIPT = (ARGOCD / "health.lua").read_text()

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("operator")]


def keep(obj: Object, status: str, name: str) -> None:
    if os.environ.get("WRITE_FIXTURES"):
        obj["metadata"].pop("annotations", None)
        (ARGOCD / "fixtures" / status / f"{name}.yaml").write_text(yaml.safe_dump(obj, width=150))


def test_health_follows_the_operator(world: World, kafka: KafkaCluster, groups: Groups) -> None:
    """Of each kind: waiting for another object, fine, suspended, stopped by a limit, and at an end that is none."""
    namespace, topic = world.namespace("gitops-health"), groups.topic("gitops-health")
    groups.produce(topic)
    groups.abandoned("gitops-old", topic)
    groups.produce(topic)

    def wait(kind: str, name: str, status: str, says: str, fixture: str) -> None:
        def so() -> list[Object]:
            obj = world.get(kind, namespace, name)
            (health,) = assess(SCRIPT, [obj])
            return [obj] if health.status == status and says in health.message else []

        keep(wait_for(so)[0], status, fixture)

    match = {"groups": ["gitops-*"]}
    world.apply(
        policy(namespace, "dry", match=match, delete={"maxPercent": 1}),
        policy(namespace, "resting", match=match, suspend=True),
        policy(namespace, "slow", match=match, mode="Enforce", delete={"gracePeriod": "1h"}),
        policy(namespace, "wide", match=match, mode="Enforce", delete={"maxPercent": 1}),
    )
    wait("kgp", "dry", "Progressing", "ConnectionNotFound: there is no", "policy-without-its-connection")
    main = yaml.safe_dump(connection(namespace, kafka.bootstrap_servers))
    new = json.loads(world.server.kubectl("create", "-o", "json", "-f", "-", input=main).stdout)
    assert assess(SCRIPT, [new]) == [Health("Progressing", "waits for the operator to look at it")]
    keep(new, "Progressing", "connection-not-looked-at")
    wait("kconn", "main", "Healthy", "Connected: 1 of 1 brokers answer", "connection")
    wait("kgp", "dry", "Healthy", "but for this:", "policy-dry-run-that-a-limit-would-stop")
    wait("kgp", "slow", "Healthy", "the first is due at", "policy-that-enforces")
    wait("kgp", "resting", "Suspended", "Suspended: suspended", "policy")
    wait("kgp", "wide", "Healthy", "more than 1%: none is deleted", "policy-stopped-by-a-limit")
    metadata = {"name": "nothing", "namespace": namespace}
    spec = {"connectionRef": {"name": "main"}, "groups": ["gitops-never-was"]}
    api = {"apiVersion": "grouphygiene.io/v1alpha1", "kind": "GroupRestore"}
    world.apply({**api, "metadata": metadata, "spec": spec})
    wait("kgr", "nothing", "Degraded", "NoBackup: ", "restore-without-a-backup")
    world.server.kubectl("delete", "kgp,kgr,kconn", "--all", "-n", namespace)
