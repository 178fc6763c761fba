"""The doctor's line about what may sync groups into a cluster, by KafkaConnections on a real API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from sandbox.kubernetes import ApiServer
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
    command = [sys.executable, "-m", "group_hygiene.cli", "doctor", "--connection", name, "-n", NAMESPACE, "-o", "json"]
    environment = os.environ | {"KUBECONFIG": str(api_server.kubeconfig)}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    (line,) = [check for check in json.loads(answer.stdout)["checks"] if check["check"] == "role"]
    assert line["result"] == "Ok"
    assert line["found"].startswith(says)
    assert does_not_say not in line["found"]
    assert ("set spec.role: FailoverTarget" in line["found"]) is (role is None)
    api_server.kubectl("delete", "kconn", "--all", "-n", NAMESPACE)
