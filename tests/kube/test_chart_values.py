"""The chart with unusual values: Helm lints and renders it, the API server takes all of it, and each value arrives.

The rows of `CASES` are values and what must hold for the objects of the release, which is named after the row.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.sandbox.crds import PROMETHEUS
from testing.sandbox.helm import helm
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.waiting import wait_for
from tests.kube.access import make_namespaces
from tests.kube.charts import CHART, IMAGE, NAMESPACE, Object, objects, one, pod_of

DASHBOARD = CHART.parents[1] / "grafana" / "dashboard.json"
_NAMESPACES = (NAMESPACE, "kafka", "team-a", "2024", "null")
_CONNECTION = {"namespace": "kafka", "name": "main", "warehouse": "s3a://x", "secrets": ["a"]}
_PIPELINE = {"pipeline": {"enabled": True, "connections": [_CONNECTION]}}
_MONITORED = {"monitoring": {"monitor": "PodMonitor", "labels": {"release": "own"}, "rules": {"enabled": True}}}
_TERM = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "kubernetes.io/hostname"}
_SPREAD = {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
_HOSTS = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
_SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "{{ .Release.Name }}-extra"}}
_TEXT = "apiVersion: v1\nkind: Secret\nmetadata: {name: '{{ include \"group-hygiene.fullname\" . }}-extra'}\n"


def _deployment(found: list[Object]) -> Object:
    return one(found, "Deployment")


def _pod(found: list[Object]) -> Object:
    pod: Object = pod_of(_deployment(found))["spec"]
    return pod


def _container(found: list[Object]) -> Object:
    (container,) = _pod(found)["containers"]
    return dict(container)


def _budget(found: list[Object]) -> Object:
    spec = one(found, "PodDisruptionBudget")["spec"]
    return {key: spec[key] for key in ("maxUnavailable", "minAvailable") if key in spec}


def _metadata(found: list[Object]) -> list[Object]:
    """Of each object, and of each template of pods."""
    pods = [pod_of(obj)["metadata"] for obj in found if obj["kind"] in ("Deployment", "CronJob")]
    return [*(obj["metadata"] for obj in found), *pods]


def _labels(found: list[Object], key: str) -> set[Any]:
    return {metadata.get("labels", {}).get(key) for metadata in _metadata(found)}


def _test_pod(found: list[Object]) -> Object:
    return dict(one(found, "Pod")["spec"])


Check = Callable[[list[Object]], Any]
# Values, and what is asked of the objects with its answer.
CASES: dict[str, tuple[Object, Check, Any]] = {
    "labels-of-all": ({"commonLabels": {"cost": "x"}, **_PIPELINE}, lambda found: _labels(found, "cost"), {"x"}),
    "labels-of-all-replace-none": (
        {"commonLabels": {"app.kubernetes.io/instance": "x"}, **_MONITORED},
        lambda found: _labels(found, "app.kubernetes.io/instance"),
        {"labels-of-all-replace-none"},
    ),
    "a-label-twice": (
        {"commonLabels": {"release": "all"}, **_MONITORED},
        lambda found: one(found, "PodMonitor")["metadata"]["labels"]["release"],
        "own",
    ),
    "labels-of-crds": (
        {"commonLabels": {"cost": "x"}, "commonAnnotations": {"note": "y"}, "crds": {"enabled": True}},
        lambda found: [
            (obj["metadata"]["labels"]["cost"], sorted(obj["metadata"]["annotations"]))
            for obj in found
            if obj["kind"] == "CustomResourceDefinition"
        ],
        [("x", ["argocd.argoproj.io/sync-options", "helm.sh/resource-policy", "note"])] * 4,
    ),
    "labels-that-look-like-numbers": (
        {"commonLabels": {"team": "007", "on": "true"}, "podLabels": {"year": "2024"}},
        lambda found: pod_of(_deployment(found))["metadata"]["labels"].items() >= {("team", "007"), ("on", "true")},
        True,
    ),
    "annotations-of-all": (
        {"commonAnnotations": {"note": "a: b\n# c"}, **_PIPELINE},
        lambda found: {obj["metadata"]["annotations"]["note"] for obj in found},
        {"a: b\n# c"},
    ),
    "annotations-of-all-leave-pods": (
        {"commonAnnotations": {"note": "x"}, "podAnnotations": {"a": "b"}},
        lambda found: pod_of(_deployment(found))["metadata"]["annotations"],
        {"a": "b", "kubectl.kubernetes.io/default-container": "operator"},
    ),
    "annotations-of-the-deployment": (
        {"deploymentAnnotations": {"reloader": "true"}, "commonAnnotations": {"reloader": "false"}},
        lambda found: _deployment(found)["metadata"]["annotations"],
        {"reloader": "true"},
    ),
    "annotations-of-the-account": (
        {"serviceAccount": {"annotations": {"role": "a"}}, "commonAnnotations": {"b": "c"}},
        lambda found: one(found, "ServiceAccount")["metadata"]["annotations"],
        {"role": "a", "b": "c"},
    ),
    "null-for-mappings": (
        dict.fromkeys(
            (
                *("commonLabels", "commonAnnotations", "deploymentAnnotations", "podLabels", "podAnnotations"),
                *("strategy", "livenessProbe", "readinessProbe", "startupProbe", "podDisruptionBudget", "extraObjects"),
            )
        ),
        lambda found: [_container(found)[probe] for probe in ("livenessProbe", "readinessProbe")],
        [{"httpGet": {"path": path, "port": "http"}} for path in ("/healthz", "/readyz")],
    ),
    "log-of-json": (
        {"operator": {"logFormat": "json", "logLevel": "warning"}},
        lambda found: _container(found)["args"],
        ["operator", "--log-level=warning", "--log-format=json"],
    ),
    "spread-by-default": (
        {},
        lambda found: [
            (entry["maxSkew"], entry["topologyKey"], entry["labelSelector"]["matchLabels"])
            for entry in _pod(found)["topologySpreadConstraints"]
        ],
        [
            (
                1,
                "kubernetes.io/hostname",
                {"app.kubernetes.io/name": "group-hygiene", "app.kubernetes.io/instance": "spread-by-default"},
            )
        ],
    ),
    "spread-over-zones": (
        {"topologySpreadConstraints": [_SPREAD, {**_HOSTS, "labelSelector": {"matchLabels": {"a": "b"}}}]},
        lambda found: [
            sorted(entry["labelSelector"]["matchLabels"]) for entry in _pod(found)["topologySpreadConstraints"]
        ],
        [["app.kubernetes.io/instance", "app.kubernetes.io/name"], ["a"]],
    ),
    "no-spread": ({"topologySpreadConstraints": []}, lambda found: "topologySpreadConstraints" in _pod(found), False),
    "recreate": (
        {"strategy": {"type": "Recreate"}},
        lambda found: _deployment(found)["spec"]["strategy"],
        {"type": "Recreate"},
    ),
    "rolling-by-percent": (
        {"strategy": {"rollingUpdate": {"maxUnavailable": "50%", "maxSurge": 0}}},
        lambda found: _deployment(found)["spec"]["strategy"],
        {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "50%", "maxSurge": 0}},
    ),
    "probes": (
        {"livenessProbe": {"periodSeconds": 60}, "readinessProbe": {"initialDelaySeconds": 0, "failureThreshold": 9}},
        lambda found: [_container(found)[probe] for probe in ("livenessProbe", "readinessProbe")],
        [
            {
                "httpGet": {"path": "/healthz", "port": "http"},
                **{"periodSeconds": 60, "timeoutSeconds": 5, "failureThreshold": 6},
            },
            {
                "httpGet": {"path": "/readyz", "port": "http"},
                **{"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 9, "initialDelaySeconds": 0},
            },
        ],
    ),
    "no-startup-probe": ({}, lambda found: "startupProbe" in _container(found), False),
    "startup-probe": (
        {"startupProbe": {"failureThreshold": 30}},
        lambda found: _container(found)["startupProbe"],
        {"httpGet": {"path": "/healthz", "port": "http"}, "failureThreshold": 30},
    ),
    "budget-by-default": ({}, _budget, {"maxUnavailable": 1}),
    "budget-of-percent": ({"podDisruptionBudget": {"maxUnavailable": "50%"}}, _budget, {"maxUnavailable": "50%"}),
    "budget-of-available": ({"podDisruptionBudget": {"minAvailable": 1}}, _budget, {"minAvailable": 1}),
    "budget-of-none-available": ({"podDisruptionBudget": {"minAvailable": 0}}, _budget, {"minAvailable": 0}),
    "no-budget": (
        {"podDisruptionBudget": {"enabled": False}},
        lambda found: "PodDisruptionBudget" in {obj["kind"] for obj in found},
        False,
    ),
    "extra-object": (
        {"extraObjects": [{**_SERVICE, "spec": {"ports": [{"port": 1}]}}], "operator": {"extraArgs": ["{{ x }}"]}},
        lambda found: [obj["metadata"]["name"] for obj in found if obj["kind"] == "Service"][:1],
        ["extra-object-extra"],
    ),
    "extra-text": (
        {"extraObjects": [_TEXT, "{{- if false }}never{{ end }}"], "fullnameOverride": "hygiene"},
        lambda found: one(found, "Secret")["metadata"]["name"],
        "hygiene-extra",
    ),
    "dashboard": (
        {"monitoring": {"dashboard": {"enabled": True, "annotations": {"grafana_folder": "Kafka"}}}},
        lambda found: (
            (obj := one(found, "ConfigMap"))["metadata"]["labels"]["grafana_dashboard"],
            obj["metadata"]["annotations"],
            json.loads(obj["data"]["group-hygiene.json"]),
        ),
        ("1", {"grafana_folder": "Kafka"}, json.loads(DASHBOARD.read_text())),
    ),
    "dashboard-of-another-sidecar": (
        {"monitoring": {"dashboard": {"enabled": True, "labels": {"grafana_dashboard": None, "dash": "yes"}}}},
        lambda found: one(found, "ConfigMap")["metadata"]["labels"].keys() & {"dash", "grafana_dashboard"},
        {"dash"},
    ),
    "no-replica": ({"replicaCount": 0}, lambda found: _deployment(found)["spec"]["replicas"], 0),
    "a" * 53: ({}, lambda found: len(_deployment(found)["metadata"]["name"]), 40),
    "2024": ({}, lambda found: _labels(found, "app.kubernetes.io/instance"), {"2024"}),
    "1.0-a.b": ({}, lambda found: _deployment(found)["metadata"]["name"], "1.0-a.b-group-hygiene"),
    "named-true": (
        {"nameOverride": "true", **_PIPELINE},
        lambda found: _labels(found, "app.kubernetes.io/name"),
        {"true", "true-test", "true-pipeline"},
    ),
    "odd-namespaces": (
        {"watchNamespaces": ["2024", "null"], "rbac": {"secretNamespaces": ["2024"]}},
        lambda found: {obj["metadata"]["namespace"] for obj in found if obj["kind"] == "RoleBinding"},
        {"2024", "null", NAMESPACE},
    ),
    "everything-off": (
        {
            "rbac": {"claims": False, "users": False, "installation": False},
            "watchNamespaces": ["kafka"],
            "networkPolicy": {"enabled": False},
            "serviceAccount": {"create": False, "name": "mine"},
        },
        lambda found: {obj["kind"] for obj in found},
        {"Deployment", "PodDisruptionBudget", "Role", "RoleBinding", "Service", "Pod"},
    ),
    "no-security-contexts": (
        {"podSecurityContext": None, "securityContext": None, "resources": {"limits": None}},
        lambda found: ("securityContext" in _pod(found), _container(found)["resources"].keys()),
        (False, {"requests"}),
    ),
    "everything-about-pods": (
        {
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_TERM]}},
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"arch": "arm64"},
            "priorityClassName": "system-cluster-critical",
            "imagePullSecrets": [{"name": "a"}],
            "extraVolumes": [{"name": "ca", "secret": {"secretName": "ca"}}],
            "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
            "operator": {"env": [{"name": "A", "value": "1"}], "envFrom": [{"secretRef": {"name": "b"}}]},
        },
        lambda found: [_test_pod(found)[key] for key in ("tolerations", "nodeSelector", "imagePullSecrets")],
        [[{"operator": "Exists"}], {"arch": "arm64"}, [{"name": "a"}]],
    ),
    "a-digest": (
        {"image": {"repository": "localhost:5000/a/b", "digest": f"sha256:{'0' * 64}", "tag": "ignored"}},
        lambda found: {_container(found)["image"], _test_pod(found)["containers"][0]["image"]},
        {f"localhost:5000/a/b@sha256:{'0' * 64}"},
    ),
}


def _helm(*arguments: str | Path, values: Object) -> str:
    """What Helm prints for the chart with these values."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(json.dumps(values))
        file.flush()
        image = () if "image" in values else IMAGE
        done = helm(*arguments, CHART, "--namespace", NAMESPACE, *image, "--values", file.name)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def _rendered(name: str) -> str:
    """The objects of a release with the values of this row; without the CRDs, unless the row is about them."""
    return _helm("template", name, values={"crds": {"enabled": False}, **CASES[name][0]})


@pytest.mark.parametrize("name", list(CASES))
def test_unusual_values(name: str) -> None:
    """Helm lints and renders them, and they are where they belong; no key stands twice in a mapping."""
    values, check, expected = CASES[name]
    _helm("lint", "--strict", values=values)
    assert check(objects(_rendered(name))) == expected
    for document in yaml.compose_all(_rendered(name), yaml.CSafeLoader):
        assert _twice(document) == []


def _twice(node: yaml.Node | None) -> list[str]:
    """The keys that stand twice in a mapping."""
    if isinstance(node, yaml.SequenceNode):
        return [key for entry in node.value for key in _twice(entry)]
    if not isinstance(node, yaml.MappingNode):
        return []
    keys = [key.value for key, _ in node.value]
    return [key for key in keys if keys.count(key) > 1] + [key for _, value in node.value for key in _twice(value)]


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> Iterator[ApiServer]:
    """The API server with the CRDs of the Prometheus Operator, and the namespaces of the rows."""
    crds = str(PROMETHEUS.crds())
    api_server.kubectl("apply", "--server-side", "-f", crds)
    api_server.wait_established("-f", crds)
    make_namespaces(api_server, *_NAMESPACES)
    yield api_server
    api_server.kubectl("delete", "-f", crds)


def test_the_api_server_takes_all_of_them(server: ApiServer) -> None:
    """Without an unknown or invalid field; the pod of `helm test` meets the standard `restricted`."""
    server.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
    # One row says that its pods have no security contexts.
    text = "\n---\n".join(_rendered(name) for name in CASES if name != "no-security-contexts")
    done = server.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=text)
    assert len(done.stdout.splitlines()) == len(objects(text))


class _Readiness(BaseHTTPRequestHandler):
    """/readyz of an operator that is ready, and of one that is not yet."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 503)
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("path", "exit_code", "output"),
    [
        pytest.param("/readyz", 0, "ok\n", id="ready"),
        pytest.param("/not-yet", 1, "HTTP Error 503: Service Unavailable\n", id="not-ready"),
        pytest.param("", 1, "Connection refused>\n", id="no-operator"),
    ],
)
def test_what_the_pod_of_helm_test_runs(path: str, exit_code: int, output: str) -> None:
    """It ends well only if /readyz answers that the operator is ready."""
    (container,) = _test_pod(objects(_rendered("budget-by-default")))["containers"]
    python, option, script, url, seconds = container["command"]
    assert (python, option, seconds) == ("python", "-c", "60")
    assert url == f"http://test-budget-by-default-group-hygiene.{NAMESPACE}.svc:8080/readyz"
    with HTTPServer(("127.0.0.1", 0), _Readiness) as answering:
        thread = threading.Thread(target=answering.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{answering.server_port if path else 9}{path}"
        done = subprocess.run(
            [sys.executable, option, script, address, "0"], capture_output=True, text=True, check=False
        )
        answering.shutdown()
        thread.join()
    assert done.returncode == exit_code
    assert (done.stdout + done.stderr).endswith(output)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_helm_test(server: ApiServer, phase: str) -> None:
    """The pod may reach the operator's port while the test runs, and only then; a pod that failed stays for its log.

    No node is there: the pod ends when this test says so.
    """
    release, name = f"tested-{phase.lower()}", f"test-tested-{phase.lower()}-group-hygiene"
    place = ("--kubeconfig", str(server.kubeconfig), "--namespace", "team-a")
    made = helm("install", release, CHART, *place, *IMAGE, "--set", "crds.enabled=false")
    assert made.returncode == 0, made.stderr
    of_the_test = (
        "get",
        "pod,service,networkpolicy",
        "-n",
        "team-a",
        "-o",
        "name",
        "-l",
        "app.kubernetes.io/name=group-hygiene-test",
    )
    assert server.kubectl(*of_the_test).stdout == ""
    with ThreadPoolExecutor() as pool:
        testing = pool.submit(helm, "test", release, *place, "--timeout=60s")
        try:
            wait_for(lambda: f"pod/{name}\n" in server.kubectl(*of_the_test).stdout, "the pod of the test")
            assert f"networkpolicy.networking.k8s.io/{name}\n" in server.kubectl(*of_the_test).stdout
        finally:
            status = json.dumps({"status": {"phase": phase}})
            server.kubectl("patch", "pod", name, "-n", "team-a", "--subresource=status", "-p", status)
        done = testing.result()
    assert (done.returncode == 0) == (phase == "Succeeded"), done.stdout + done.stderr
    left = server.kubectl(*of_the_test).stdout.split()
    assert left == ([] if phase == "Succeeded" else [f"pod/{name}"])
    assert helm("uninstall", release, *place).returncode == 0
    server.kubectl("delete", "pod", name, "-n", "team-a", "--ignore-not-found")


def test_the_network_policy_of_helm_test() -> None:
    """It selects the operator's pods, and lets in the pod of the test alone, to the port of /readyz."""
    found = objects(_rendered("budget-by-default"))
    policy = next(
        obj for obj in found if obj["metadata"]["name"].startswith("test-") and obj["kind"] == "NetworkPolicy"
    )
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= _labels_of_pods(found)["Deployment"].items()
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": "http"}]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"].items() <= _labels_of_pods(found)["Pod"].items()
    assert not peer["podSelector"]["matchLabels"].items() <= _labels_of_pods(found)["Deployment"].items()
    (service,) = [obj for obj in found if obj["kind"] == "Service"]
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"]


def _labels_of_pods(found: list[Object]) -> dict[str, Object]:
    return {
        "Deployment": pod_of(_deployment(found))["metadata"]["labels"],
        "Pod": one(found, "Pod")["metadata"]["labels"],
    }
