"""The manifests of deploy/prometheus on a real API server with the Prometheus Operator's own CRDs.

The Prometheus Operator itself is not run: what it makes of them is not seen here.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.sandbox.crds import PROMETHEUS
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import OVERLAYS

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
PLACE = ("-n", "group-hygiene")


@pytest.fixture(scope="module")
def deployed(api_server: ApiServer) -> Iterator[ApiServer]:
    """The API server with deploy/prometheus, and the operator's Deployment beside it."""
    crds = str(PROMETHEUS.crds())
    # They are too long for the annotation of a client-side apply.
    api_server.kubectl("apply", "--server-side", "-f", crds)
    api_server.wait_established("-f", crds)
    api_server.kubectl("apply", "-k", str(OVERLAYS / "cluster-wide"))
    api_server.kubectl("apply", "--validate=strict", "-k", str(DEPLOY / "prometheus"))
    yield api_server
    api_server.kubectl("delete", "-f", crds)


def _get(server: ApiServer, kind: str) -> dict[str, Any]:
    found = server.kubectl("get", kind, "group-hygiene", *PLACE, "-o", "json")
    spec: dict[str, Any] = json.loads(found.stdout)["spec"]
    return spec


def test_the_api_server_stores_all_rules(deployed: ApiServer) -> None:
    """No field is unknown to the CRD of PrometheusRule, and none is dropped."""
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())["groups"]
    assert _get(deployed, "prometheusrules.monitoring.coreos.com")["groups"] == groups


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        pytest.param({"for": "10 minutes"}, "for in body should match", id="duration"),
        pytest.param({"labels": {"severity": 1}}, "labels.severity in body must be of type string", id="label"),
    ],
)
def test_the_crd_refuses_what_is_wrong(deployed: ApiServer, edit: dict[str, Any], complaint: str) -> None:
    """That it takes ours means something."""
    wrong = yaml.safe_load((DEPLOY / "prometheus" / "prometheusrule.yaml").read_text())
    wrong["spec"]["groups"][0]["rules"][0] |= edit
    refused = deployed.kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(wrong), check=False)
    assert refused.returncode != 0
    assert complaint in refused.stderr


def test_the_servicemonitor_finds_the_pods(deployed: ApiServer) -> None:
    """By way of a Service, in the overlay that has it in place of the PodMonitor, beside the same rules."""
    text = deployed.kubectl("kustomize", str(OVERLAYS / "service-monitor")).stdout
    deployed.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=text)
    objects = {obj["kind"]: obj for obj in yaml.safe_load_all(text)}
    assert set(objects) == {"NetworkPolicy", "Service", "ServiceMonitor", "PrometheusRule"}
    service, monitor = objects["Service"], objects["ServiceMonitor"]["spec"]
    pod = _get(deployed, "deployments.apps")["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (port,), (endpoint,) = service["spec"]["ports"], monitor["endpoints"]
    assert port["targetPort"] in {entry["name"] for entry in pod["spec"]["containers"][0]["ports"]}
    (of_pods,) = _get(deployed, "podmonitors.monitoring.coreos.com")["podMetricsEndpoints"]
    assert endpoint == {**of_pods, "port": port["name"]}


def test_the_podmonitor_finds_the_pods(deployed: ApiServer) -> None:
    """By their labels and the name of their port; and leaves the label `namespace` of the metrics as it is."""
    monitor = _get(deployed, "podmonitors.monitoring.coreos.com")
    template = _get(deployed, "deployments.apps")["template"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    ports = [port["name"] for container in template["spec"]["containers"] for port in container["ports"]]
    assert ports == [endpoint["port"]]
    assert endpoint["path"] == "/metrics"
    assert endpoint["honorLabels"] is True
