"""Lines of `doctor` that a real API server decides: what may sync groups into a cluster, and who may read metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from testing.sandbox.kubernetes import ApiServer
from tests.kube.access import make_namespaces

pytestmark = pytest.mark.slow

NAMESPACE = "doctor-role"


@pytest.mark.parametrize(
    ("role", "says", "does_not_say"),
    [
        pytest.param("FailoverTarget", "FailoverTarget: ", "set spec.role", id="failover-target"),
        pytest.param("Primary", "Primary: ", "set spec.role", id="primary"),
        pytest.param(None, "not set: ", "FailoverTarget: groups", id="not-set"),
    ],
)
def test_the_role(api_server: ApiServer, role: str | None, says: str, does_not_say: str) -> None:
    """It says what the role means; without one, which replicators are not seen, and what to set."""
    make_namespaces(api_server, NAMESPACE)
    name = f"main-{role}".lower()
    spec = {"bootstrapServers": ["127.0.0.1:1"]} | ({} if role is None else {"role": role})
    connection = {"apiVersion": "grouphygiene.io/v1alpha1", "kind": "KafkaConnection", "spec": spec}
    connection["metadata"] = {"name": name, "namespace": NAMESPACE}
    api_server.kubectl("apply", "-f", "-", input=yaml.safe_dump(connection))
    line = _checked(api_server, name, "role")
    assert line["result"] == "Ok"
    assert line["found"].startswith(says)
    assert does_not_say not in line["found"]
    assert ("set spec.role: FailoverTarget" in line["found"]) is (role is None)
    api_server.kubectl("delete", "kconn", "--all", "-n", NAMESPACE)


def _checked(api_server: ApiServer, name: str, check: str) -> dict[str, str]:
    """One check of `doctor`."""
    command = [sys.executable, "-m", "group_hygiene.cli", "doctor", "--connection", name, "-n", NAMESPACE, "-o", "json"]
    environment = os.environ | {"KUBECONFIG": str(api_server.kubeconfig), "POD_NAMESPACE": NAMESPACE}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    (line,) = [line for line in json.loads(answer.stdout)["checks"] if line["check"] == check]
    return dict(line)


def test_who_may_read_metrics(api_server: ApiServer) -> None:
    """By the NetworkPolicies of the operator's namespace, which together allow what one of them allows."""
    make_namespaces(api_server, NAMESPACE)
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ours = {"matchLabels": {"app.kubernetes.io/name": "group-hygiene"}}
    other = {"matchLabels": {"app.kubernetes.io/name": "another"}}
    found = [_checked(api_server, "none", "metrics")["found"]]
    for name, spec in (
        ("another", {"podSelector": other, "policyTypes": ["Ingress"]}),
        ("egress", {"podSelector": ours, "policyTypes": ["Egress"]}),
        ("closed", {"podSelector": ours, "policyTypes": ["Ingress"]}),
        ("prometheus", {"podSelector": ours, "policyTypes": ["Ingress"], "ingress": [{"from": [monitoring]}]}),
        ("all", {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}),
    ):
        policy: dict[str, object] = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": spec}
        policy["metadata"] = {"name": name, "namespace": NAMESPACE}
        api_server.kubectl("apply", "-f", "-", input=yaml.safe_dump(policy))
        found.append(_checked(api_server, "none", "metrics")["found"])
    api_server.kubectl("delete", "networkpolicy", "--all", "-n", NAMESPACE)
    assert [text.partition(":")[0] for text in found] == [
        *("open", "open", "open", "closed"),
        f"open to the 1 peers that NetworkPolicies in {NAMESPACE} name",
        "open",
    ]
