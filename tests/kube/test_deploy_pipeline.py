"""The manifests of deploy/pipeline on a real API server: they apply, and give the pipeline what it needs and no more.

No image is built and no pod is started here.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from testing.sandbox.kubernetes import ApiServer
from tests.kube.access import can_i, make_namespaces, wait_until, wait_until_allowed

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "pipeline"
ACCOUNT = "group-hygiene-pipeline"
SPARK = "group-hygiene-spark"


@pytest.fixture(scope="module")
def deployed(api_server: ApiServer) -> Iterator[ApiServer]:
    """The API server with deploy/pipeline and what Spark on Kubernetes needs beside it."""
    make_namespaces(api_server, SPARK)
    places = ("-k", str(DEPLOY)), ("-f", str(DEPLOY / "spark-rbac.yaml"))
    for place in places:
        api_server.kubectl("apply", "--validate=strict", *place)
    yield api_server
    for place in places:
        api_server.kubectl("delete", *place)


@pytest.fixture(scope="module")
def as_pipeline(deployed: ApiServer) -> str:
    """The kubectl option that makes a call that of the CronJob's pods, with their own token."""
    option = f"--kubeconfig={deployed.kubeconfig_for_service_account('kafka', ACCOUNT)}"
    wait_until_allowed(deployed, option, "get", "kafkaconnections/main", "-n", "kafka")
    return option


@pytest.fixture(scope="module")
def as_driver(deployed: ApiServer) -> str:
    """The same for the driver of Spark on Kubernetes."""
    option = f"--kubeconfig={deployed.kubeconfig_for_service_account(SPARK, f'{ACCOUNT}-driver')}"
    wait_until_allowed(deployed, option, "get", "kafkaconnections/main", "-n", "kafka")
    wait_until_allowed(deployed, option, "create", "pods", "-n", SPARK)
    return option


_READS = [
    pytest.param("get kafkaconnections/main -n kafka", True, id="connection-get"),
    pytest.param("get secrets/group-hygiene -n kafka", True, id="secrets-that-are-named-get"),
    pytest.param("get secrets -n kafka", False, id="other-secrets-get"),
    pytest.param("list secrets -n kafka", False, id="secrets-list"),
    pytest.param("get secrets -n default", False, id="secrets-of-others"),
    pytest.param("get kafkaconnections -n kafka", False, id="other-connections"),
    pytest.param("get kafkaconnections -n default", False, id="connections-of-others"),
    pytest.param("patch kafkaconnections -n kafka", False, id="connection-patch"),
    pytest.param("patch kafkaconnections --subresource=status -n kafka", False, id="status-patch"),
    pytest.param("list grouppolicies -n kafka", False, id="policies"),
    pytest.param("create pods -n default", False, id="pods-elsewhere"),
    # Strimzi's brokers and their disks are there.
    pytest.param("create pods -n kafka", False, id="pods-of-the-connection-create"),
    pytest.param("delete pods -n kafka", False, id="pods-of-the-connection-delete"),
    pytest.param("deletecollection pods -n kafka", False, id="pods-of-the-connection-deletecollection"),
    pytest.param("delete persistentvolumeclaims -n kafka", False, id="disks-of-the-connection-delete"),
    pytest.param("delete services -n kafka", False, id="services-of-the-connection-delete"),
    pytest.param("update configmaps -n kafka", False, id="configmaps-of-the-connection-update"),
    pytest.param("* * -A", False, id="everything"),
]


@pytest.mark.parametrize(("question", "allowed"), _READS)
def test_permission(deployed: ApiServer, as_pipeline: str, question: str, allowed: bool) -> None:
    """The CronJob reads its connection and the Secrets that the connection names, and nothing else."""
    assert can_i(deployed, as_pipeline, *question.split()) is allowed


@pytest.mark.parametrize(
    ("question", "allowed"),
    [
        *_READS,
        pytest.param(f"create pods -n {SPARK}", True, id="executors-create"),
        pytest.param(f"deletecollection services -n {SPARK}", True, id="executors-clean-up"),
        pytest.param(f"patch pods -n {SPARK}", False, id="pods-patch"),
        pytest.param(f"delete persistentvolumeclaims -n {SPARK}", False, id="disks-delete"),
        pytest.param(f"get secrets -n {SPARK}", False, id="secrets-of-its-own-namespace-get"),
    ],
)
def test_permission_of_the_driver(deployed: ApiServer, as_driver: str, question: str, allowed: bool) -> None:
    """It reads the same, and creates executors in Spark's namespace only."""
    assert can_i(deployed, as_driver, *question.split()) is allowed


@pytest.mark.slow
def test_it_needs_both_of_its_rights(deployed: ApiServer, as_pipeline: str, tmp_path: Path) -> None:
    """With them a run gets as far as the brokers, of which there are none; without either it says what it lacks."""
    reference = {"name": "group-hygiene", "key": "password"}
    sasl = {"mechanism": "SCRAM-SHA-512", "username": "hygiene", "passwordSecretRef": reference}
    spec = {"bootstrapServers": ["127.0.0.1:1"], "sasl": sasl, "scan": {"timeout": "5s"}}
    connection = {"apiVersion": "grouphygiene.io/v1alpha1", "kind": "KafkaConnection", "spec": spec}
    metadata = {"name": "main", "namespace": "kafka"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {**metadata, "name": "group-hygiene"}}
    secret["stringData"] = {"password": "x"}
    made = json.dumps({"apiVersion": "v1", "kind": "List", "items": [secret, connection | {"metadata": metadata}]})
    deployed.kubectl("apply", "-f", "-", input=made)
    kubeconfig = as_pipeline.partition("=")[2]
    try:
        assert "127.0.0.1:1: connection refused" in _run(kubeconfig, tmp_path)
        role = json.loads(deployed.kubectl("get", "role", ACCOUNT, "-n", "kafka", "-o", "json").stdout)
        for rule in role["rules"]:
            (resource,) = rule["resources"]
            asked = f"{resource}/{rule['resourceNames'][0]}" if "resourceNames" in rule else resource
            others = [other for other in role["rules"] if other is not rule]
            patch = ("patch", "role", ACCOUNT, "-n", "kafka", "--type=merge", "-p")
            deployed.kubectl(*patch, json.dumps({"rules": others}))
            wait_until(deployed, as_pipeline, False, "get", asked, "-n", "kafka")
            assert "you may not read" in _run(kubeconfig, tmp_path)
            deployed.kubectl(*patch, json.dumps({"rules": role["rules"]}))
            wait_until(deployed, as_pipeline, True, "get", asked, "-n", "kafka")
    finally:
        deployed.kubectl("delete", "-f", "-", input=made)


def _run(kubeconfig: str, folder: Path) -> str:
    """What a run of the pipeline with this account says as it fails."""
    arguments = ("--connection", "main", "--namespace", "kafka", "--warehouse", str(folder / "warehouse"))
    command = [sys.executable, "-m", "group_hygiene.cli", "pipeline", "run", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "operator"), "KUBECONFIG": kubeconfig}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize(
    "question",
    ["get secrets -n kafka", "get kafkaconnections -n kafka", f"list pods -n {SPARK}", f"get secrets -n {SPARK}"],
)
def test_executors_may_do_nothing(deployed: ApiServer, question: str) -> None:
    """The driver sends them what they need."""
    path = deployed.kubeconfig_for_service_account(SPARK, f"{ACCOUNT}-executor")
    assert not can_i(deployed, f"--kubeconfig={path}", *question.split())


def _arguments() -> dict[str, list[str]]:
    """By manifest, what each hands to `group-hygiene`."""
    (job,) = yaml.safe_load_all((DEPLOY / "cronjob.yaml").read_text())
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    (application,) = yaml.safe_load_all((DEPLOY / "sparkapplication.yaml").read_text())
    submitted = (DEPLOY / "spark-submit.sh").read_text().partition('__main__.py" \\\n')[2]
    return {
        "cronjob.yaml": container["args"][1:],
        "sparkapplication.yaml": application["spec"]["driverArgs"],
        "spark-submit.sh": shlex.split(submitted),
    }


@pytest.mark.parametrize(("name", "arguments"), [pytest.param(*each, id=each[0]) for each in _arguments().items()])
def test_the_tool_knows_the_arguments(name: str, arguments: list[str]) -> None:
    """Every option of a manifest is one of the command: another one would fail in the pod only."""
    assert arguments[:2] == ["pipeline", "run"]
    command = [sys.executable, "-m", "group_hygiene.cli", *arguments, "--help"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "operator")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wrong = subprocess.run([*command, "--no-such"], env=environment, capture_output=True, text=True, check=False)
    assert wrong.returncode != 0
    assert "No such option" in wrong.stderr
