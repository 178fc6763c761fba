"""What Argo CD makes of real statuses: its health check, over objects as the operator and the API server have them."""

from __future__ import annotations

import pytest

from sandbox.kafka import KafkaCluster
from sandbox.lua import Health, assess
from tests.e2e.conftest import ROOT, Groups, World, connection, policy, wait_for

SCRIPT = (ROOT / "deploy" / "argocd" / "health.lua").read_text()

pytestmark = pytest.mark.usefixtures("operator")


def test_health_follows_the_operator(world: World, kafka: KafkaCluster, groups: Groups) -> None:
    """Of each kind: waiting for another object, fine, suspended, stopped by a limit, and at an end that is none."""
    namespace, topic = world.namespace("gitops-health"), groups.topic("gitops-health")
    groups.produce(topic)
    groups.abandoned("gitops-old", topic)
    groups.produce(topic)

    def wait(kind: str, name: str, status: str, says: str) -> None:
        def so() -> list[Health]:
            found = assess(SCRIPT, [world.get(kind, namespace, name)])
            return [health for health in found if health.status == status and says in health.message]

        wait_for(so)

    match = {"groups": ["gitops-*"]}
    world.apply(
        policy(namespace, "dry", match=match, delete={"maxPercent": 1}),
        policy(namespace, "resting", match=match, suspend=True),
        policy(namespace, "wide", match=match, mode="Enforce", delete={"maxPercent": 1}),
    )
    wait("kgp", "dry", "Progressing", "ConnectionNotFound: there is no KafkaConnection")
    world.apply(connection(namespace, kafka.bootstrap_servers))
    wait("kconn", "main", "Healthy", "Connected: 1 of 1 brokers answer")
    wait("kgp", "dry", "Healthy", "but for this:")
    wait("kgp", "resting", "Suspended", "Suspended: suspended")
    wait("kgp", "wide", "Degraded", "LimitExceeded: ")
    metadata = {"name": "nothing", "namespace": namespace}
    spec = {"connectionRef": {"name": "main"}, "groups": ["gitops-never-was"]}
    api = {"apiVersion": "grouphygiene.io/v1alpha1", "kind": "GroupRestore"}
    world.apply({**api, "metadata": metadata, "spec": spec})
    wait("kgr", "nothing", "Degraded", "NoBackup: ")
    world.server.kubectl("delete", "kgp,kgr,kconn", "--all", "-n", namespace)
