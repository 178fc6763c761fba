"""The Helm chart on a real API server: it renders what that takes, as the manifests have it, and refuses what is wrong.

Nothing that only a cluster with nodes shows: no pod is started here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from group_hygiene import __version__
from sandbox.helm import helm
from sandbox.kubernetes import ApiServer
from sandbox.manifests import CRDS, OVERLAYS
from sandbox.prometheus.crds import operator_crds
from tests.kube.access import make_namespaces, wait_until_allowed
from tests.kube.charts import (
    CHART,
    IMAGE,
    NAMESPACE,
    RELEASE,
    ROOT,
    VALUES,
    aggregated,
    chosen,
    objects,
    one,
    pod_of,
    rendered,
    rights,
)

RESTRICTED = "restricted-pods"
EACH_VALUES = pytest.mark.parametrize("values", list(VALUES))


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> Iterator[ApiServer]:
    """The API server with the kinds of the Prometheus Operator, the examples' namespaces, and a restricted one."""
    crds = str(operator_crds())
    api_server.kubectl("apply", "--server-side", "-f", crds)
    api_server.wait_established("-f", crds)
    make_namespaces(api_server, NAMESPACE, "team-a", RESTRICTED)
    # The one of the manifests selects its pods by other labels, and no Deployment changes that.
    api_server.kubectl("delete", "deployment", RELEASE, "-n", NAMESPACE, "--ignore-not-found")
    api_server.kubectl("label", "namespace", RESTRICTED, "pod-security.kubernetes.io/enforce=restricted")
    yield api_server
    api_server.kubectl("delete", "-f", crds)


def _kustomized(server: ApiServer, folder: Path) -> list[dict[str, Any]]:
    return objects(server.kubectl("kustomize", str(folder)).stdout)


@EACH_VALUES
def test_lint(values: str) -> None:
    """Helm has nothing to say against it."""
    done = helm("lint", "--strict", CHART, *chosen(values))
    assert done.returncode == 0, done.stdout + done.stderr


@EACH_VALUES
def test_the_api_server_takes_it(server: ApiServer, values: str) -> None:
    """All that is rendered is valid, without an unknown field."""
    text = rendered(*chosen(values))
    done = server.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=text)
    assert len(done.stdout.splitlines()) == len(objects(text))


@EACH_VALUES
def test_pods_are_restricted(server: ApiServer, values: str) -> None:
    """Each pod that it leads to passes the `restricted` standard."""
    workloads = [obj for obj in objects(rendered(*chosen(values))) if obj["kind"] in ("Deployment", "CronJob")]
    assert "Deployment" in {obj["kind"] for obj in workloads}
    assert ("CronJob" in {obj["kind"] for obj in workloads}) == (values == "pipeline")
    for workload in workloads:
        assert _refusal(server, pod_of(workload)["spec"]) is None


def test_the_pod_of_the_pipeline_is_restricted(server: ApiServer) -> None:
    """Also by the manifests; and the standard is enforced: one that may become root is refused."""
    spec = pod_of(one(_kustomized(server, ROOT / "deploy" / "pipeline"), "CronJob"))["spec"]
    assert _refusal(server, spec) is None
    refusal = _refusal(server, {**spec, "securityContext": {}})
    assert refusal is not None
    assert 'violates PodSecurity "restricted' in refusal


def _refusal(server: ApiServer, spec: Mapping[str, Any]) -> str | None:
    """What admission says against such a pod."""
    metadata = {"name": "candidate", "namespace": RESTRICTED}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    done = server.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod), check=False)
    return done.stderr if done.returncode else None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        pytest.param(["replicaCount=two"], "at '/replicaCount': got string, want integer", id="type"),
        pytest.param(["replicas=2"], "additional properties 'replicas' not allowed", id="unknown"),
        pytest.param([], "image.repository is missing", id="no-image"),
        pytest.param(
            ["image.repository=a", "serviceAccount.create=false"], "serviceAccount.name is missing", id="no-account"
        ),
        pytest.param(["image.name=x"], "at '/image': additional properties 'name' not allowed", id="unknown-inside"),
        pytest.param(["watchNamespaces={kafka*}"], "at '/watchNamespaces/0': 'kafka*' does not match", id="pattern"),
        pytest.param(["operator.leaseDuration=5"], "at '/operator/leaseDuration': minimum: got 5, want 6", id="short"),
        pytest.param(["operator.logLevel=loud"], "at '/operator/logLevel': value must be one of 'debug'", id="level"),
        pytest.param(["image.digest=sha256:12"], "at '/image/digest': 'sha256:12' does not match", id="digest"),
        pytest.param(["monitoring.monitor=Both"], "at '/monitoring/monitor': value must be one of", id="monitor"),
        pytest.param(["pipeline.enabled=true"], "at '/pipeline/connections': minItems: got 0, want 1", id="pipeline"),
        pytest.param(
            ["pipeline.enabled=true", "pipeline.connections[0].name=main"],
            "at '/pipeline/connections/0': missing properties 'namespace', 'warehouse', 'secrets'",
            id="connection",
        ),
        pytest.param(["networkPolicy.egress.kafka.ports={0}"], "minimum: got 0, want 1", id="port"),
    ],
)
def test_wrong_values_are_refused(options: list[str], complaint: str) -> None:
    """Before anything is sent, with the place and what is wanted there."""
    done = helm("template", RELEASE, CHART, *(part for option in options for part in ("--set", option)))
    assert done.returncode != 0
    assert complaint in done.stderr


def test_the_rights_are_those_of_the_manifests(server: ApiServer) -> None:
    """The same rules for the same accounts in the same places, for each way to install, and for people."""
    wide, narrow = (_kustomized(server, OVERLAYS / name) for name in ("cluster-wide", "namespaced"))
    options = ("--set", "watchNamespaces={kafka},rbac.secretNamespaces={kafka},rbac.users=false")
    assert rights(objects(rendered())) == rights(wide)
    assert rights(objects(rendered(*options))) == rights(narrow)
    assert aggregated(objects(rendered())) == aggregated(wide) != {}
    assert aggregated(objects(rendered(*options))) == aggregated(narrow) == {}


def test_the_workloads_are_those_of_the_manifests(server: ApiServer) -> None:
    """The same pods, budget and network policy, but for names and labels."""
    wide, chart = _kustomized(server, OVERLAYS / "cluster-wide"), objects(rendered())
    for kind in ("Deployment", "PodDisruptionBudget", "NetworkPolicy", "ServiceAccount"):
        assert _plain(one(chart, kind)) == _plain(one(wide, kind))
    pipeline = one(_kustomized(server, ROOT / "deploy" / "pipeline"), "CronJob")
    name, warehouse = pipeline["metadata"]["name"], "s3a://REPLACE-WITH-YOUR-BUCKET/group-hygiene/main"
    connection = f"{{namespace: kafka, name: main, warehouse: '{warehouse}', secrets: []}}"
    options = ("--set", "pipeline.enabled=true", "--set-json", f"pipeline.connections={_json([connection])}")
    ours = json.loads(json.dumps(one(objects(rendered(*options)), "CronJob")).replace(f"{name}-main", name))
    assert _plain(ours) == _plain(pipeline)


def _json(entries: list[str]) -> str:
    return json.dumps([yaml.safe_load(entry) for entry in entries])


def _plain(obj: Any) -> Any:
    """Without the labels that tell one release from another, and what selects by them."""
    if isinstance(obj, list):
        return [_plain(entry) for entry in obj]
    if not isinstance(obj, dict):
        return obj
    return {key: _plain(value) for key, value in obj.items() if key not in ("labels", "matchLabels")}


def test_the_pipeline_may_read_what_it_is_told() -> None:
    """One connection by its name, and the Secrets that are named; where none is, no Secret."""
    granted = rights(objects(rendered(*chosen("pipeline"))))
    (account,) = [entry for entry in granted if entry[0].startswith("kafka/")]
    connection, secrets = json.loads(account[3])
    assert account[0] == "kafka/group-hygiene-pipeline-main"
    assert (connection["resourceNames"], connection["verbs"]) == (["main"], ["get"])
    assert (secrets["resourceNames"], secrets["verbs"]) == (["group-hygiene", "my-cluster-cluster-ca-cert"], ["get"])
    none = objects(rendered(*chosen("pipeline"), "--set-json", "pipeline.connections[0].secrets=[]"))
    (account,) = [entry for entry in rights(none) if entry[0].startswith("kafka/")]
    assert json.loads(account[3]) == [connection]


def test_what_selects_the_pods() -> None:
    """Everything that finds the operator's pods by labels finds them, and not those of the pipeline."""
    everything = objects(rendered(*chosen("service-monitor"))) + objects(rendered(*chosen("monitoring")))
    labels = pod_of(next(obj for obj in everything if obj["kind"] == "Deployment"))["metadata"]["labels"]
    selectors = [
        obj["spec"].get("podSelector", obj["spec"].get("selector"))
        for obj in everything
        if obj["kind"] in ("Deployment", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor", "Service")
    ]
    assert len(selectors) == 8
    pipeline = pod_of(one(objects(rendered(*chosen("pipeline"))), "CronJob"))["metadata"]["labels"]
    for selector in selectors:
        wanted = selector.get("matchLabels", selector)
        assert wanted.items() <= labels.items()
        assert not wanted.items() <= pipeline.items()
    found = one(everything, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert found.items() <= one(everything, "Service")["metadata"]["labels"].items()


def test_metrics_are_scraped_as_by_the_manifests(server: ApiServer) -> None:
    """Either monitor as in the manifests; and the rules are those of rules.yaml, with the runbook where it is said."""
    for values, folder, kind in (
        ("monitoring", ROOT / "deploy" / "prometheus", "PodMonitor"),
        ("service-monitor", OVERLAYS / "service-monitor", "ServiceMonitor"),
    ):
        ours = one(objects(rendered(*chosen(values))), kind)
        assert _plain(ours) == _plain(one(_kustomized(server, folder), kind))
    rules = (ROOT / "deploy" / "prometheus" / "rules.yaml").read_text()
    assert one(objects(rendered(*chosen("service-monitor"))), "PrometheusRule")["spec"] == yaml.safe_load(rules)
    moved = rules.replace("docs/runbook.md#", "https://docs.example.com/group-hygiene/runbook.md#")
    made = one(objects(rendered(*chosen("monitoring"))), "PrometheusRule")
    assert made["spec"] == yaml.safe_load(moved)
    assert made["metadata"]["labels"]["release"] == "kube-prometheus-stack"


def test_the_way_out_can_be_narrowed() -> None:
    """To DNS, the API server, Kafka and receivers, each with its ports; otherwise nothing is said about it."""
    assert one(objects(rendered()), "NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]
    spec = one(objects(rendered(*chosen("locked-down"))), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert [[(port["protocol"], port["port"]) for port in rule["ports"]] for rule in spec["egress"]] == [
        [("UDP", 53), ("TCP", 53)],
        [("TCP", 6443)],
        [("TCP", 9093)],
        [("TCP", 443)],
    ]
    assert all(rule["to"] for rule in spec["egress"])
    for ports in ("null", "[]"):
        without = rendered(*chosen("locked-down"), "--set-json", f"networkPolicy.egress.dns.ports={ports}")
        assert one(objects(without), "NetworkPolicy")["spec"]["egress"] == spec["egress"][1:]


def test_the_arguments_of_the_operator() -> None:
    """Each value that is one becomes an option; what is the default is left to the program."""
    values = "operator.leaseDuration=60,operator.allowReceivers={a.example.com},operator.logLevel=debug"
    values += ",operator.allowActivityIdentity[0].namespace=kafka,operator.allowActivityIdentity[0].uri=s3://b/x"
    container = pod_of(one(objects(rendered("--set", values, *chosen("namespaced"))), "Deployment"))["spec"][
        "containers"
    ][0]
    assert container["args"] == [
        "operator",
        "--namespace=kafka",
        "--namespace=team-a",
        "--lease-duration=60",
        "--allow-activity-identity=kafka=s3://b/x",
        "--allow-receiver=a.example.com",
        "--log-level=debug",
    ]


def test_the_chart_has_the_version_of_the_project() -> None:
    """And so the image that it asks for."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_chart_brings_the_kinds() -> None:
    """Those of crds/, as they are; they stay when the release is removed, unless that is not wanted."""
    for keep in ("true", "false"):
        made = [
            obj
            for obj in objects(rendered("--set", f"crds.enabled=true,crds.keep={keep}"))
            if obj["kind"] == "CustomResourceDefinition"
        ]
        for obj in made:
            annotations = obj["metadata"].pop("annotations", {})
            assert annotations.get("helm.sh/resource-policy") == ("keep" if keep == "true" else None)
        assert made == [obj for file in sorted(CRDS.glob("*.yaml")) for obj in objects(file.read_text())]


def test_the_chart_holds_files_and_no_links() -> None:
    """Flux leaves links out of what it packs. `make chart` copies what stands elsewhere, too."""
    assert [path for path in CHART.rglob("*") if path.is_symlink()] == []
    copies = {CHART / "files" / "crds" / file.name: file for file in CRDS.glob("*.yaml")}
    copies[CHART / "files" / "rules.yaml"] = ROOT / "deploy" / "prometheus" / "rules.yaml"
    assert {path for path in (CHART / "files").rglob("*") if path.is_file()} == copies.keys()
    assert [path.name for path, source in copies.items() if path.read_bytes() != source.read_bytes()] == []


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield path + key, value


def test_the_readme_has_each_value_with_its_default() -> None:
    """One row each, and none for what is no value."""
    rows = re.findall(
        r"^\| `([\w.]+)` *\| (?:`(.*?)`)? *\| (.+?) *\|$", (CHART / "README.md").read_text(), re.MULTILINE
    )
    assert [(name, yaml.safe_load(default)) for name, default, _ in rows] == list(
        _leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
    )
    assert [name for name, _, text in rows if not text.endswith(".")] == []


def test_helm_installs_and_upgrades_it(server: ApiServer) -> None:
    """For real: a release is made, changed and removed; the kinds, and so everybody's policies, stay."""
    place = ("--kubeconfig", str(server.kubeconfig), "--namespace", "installed")
    wide, narrow = "rbac.secretNamespaces={team-a}", "watchNamespaces={team-a},replicaCount=1"
    # The kinds are there already, by kubectl: a release takes over only what it is told to.
    adopt = (*IMAGE, "--take-ownership")
    refused = helm("install", "hygiene", CHART, *place, *IMAGE, "--create-namespace")
    assert "cannot be imported into the current release" in refused.stderr
    made = helm("install", "hygiene", CHART, *place, "--create-namespace", "--set", wide, *adopt)
    assert made.returncode == 0, made.stderr
    assert "The operator serves all namespaces." in made.stdout
    assert "It may read Secrets in: installed, team-a." in made.stdout
    second = helm("install", "hygiene", CHART, *place[:-1], "team-a", *IMAGE, "--set", "crds.enabled=false")
    assert "cannot be imported into the current release" in second.stderr
    # A binding in a namespace that both ways need can't be made to refer to another kind of role.
    for options in (f"{wide},{narrow}", wide, narrow):
        changed = helm("upgrade", "hygiene", CHART, *place, *IMAGE, "--set", options)
        assert changed.returncode == 0, changed.stderr
    assert "The operator serves team-a." in changed.stdout
    assert "It may read Secrets in: no namespace (rbac.secretNamespaces)." in changed.stdout
    kinds, ours = "deployment,role,clusterrolebinding", ("-l", "app.kubernetes.io/instance=hygiene")
    names = server.kubectl("get", kinds, "-A", "-o", "name", *ours)
    assert set(names.stdout.split()) == {
        "clusterrolebinding.rbac.authorization.k8s.io/hygiene-group-hygiene-claims",
        "clusterrolebinding.rbac.authorization.k8s.io/hygiene-group-hygiene-installation",
        "deployment.apps/hygiene-group-hygiene",
        "role.rbac.authorization.k8s.io/hygiene-group-hygiene-leader-election",
        "role.rbac.authorization.k8s.io/hygiene-group-hygiene-operator",
    }
    removed = helm("uninstall", "hygiene", *place)
    assert removed.returncode == 0, removed.stderr
    server.kubectl("get", "kconn,kgp,kgr", "-A")


def test_a_namespace_that_is_missing_is_named_before_anything_is_made(server: ApiServer) -> None:
    """Each that values name, at an upgrade too; a name that stands in two of them is one message for each."""
    place = ("--kubeconfig", str(server.kubeconfig), "--namespace", "early", "--create-namespace", "--take-ownership")
    values = (
        "watchNamespaces={kafka,no-1,early},rbac.secretNamespaces={no-1,no-2},pipeline.enabled=true,"
        "pipeline.connections[0].namespace=no-3,pipeline.connections[0].name=a,pipeline.connections[0].warehouse=s3a://w,"
        "pipeline.connections[0].secrets={x}"
    )
    refused = helm("upgrade", "--install", "early", CHART, *place, *IMAGE, "--set", values)
    missing = "no-1 (of watchNamespaces), no-1 (of rbac.secretNamespaces), no-2 (of rbac.secretNamespaces), "
    assert f"create them first: {missing}no-3 (of pipeline.connections)" in refused.stderr
    assert server.kubectl("get", "namespace", "early", check=False).returncode != 0
    assert "early" not in helm("list", "--all", *place[:4]).stdout


def test_some_namespaces_need_no_right_on_the_cluster(server: ApiServer) -> None:
    """Who may do all in these namespaces, and nothing elsewhere, installs it without the kinds and ClusterRoles."""
    server.kubectl("create", "namespace", "narrow")
    namespaces = ("narrow", "kafka", "team-a")
    may = ("--clusterrole=cluster-admin", "--user=installer")
    for namespace in namespaces:
        server.kubectl("create", "rolebinding", "installer", *may, "-n", namespace)
        wait_until_allowed(server, "--as=installer", "create", "roles", "-n", namespace)
    place = ("--kubeconfig", str(server.kubeconfig), "--namespace", "narrow", "--kube-as-user", "installer")
    refused = helm("install", "narrow", CHART, *place, *chosen("namespaced"), "--set", "crds.enabled=true")
    assert 'cannot get resource "customresourcedefinitions"' in refused.stderr
    made = helm("install", "narrow", CHART, *place, *chosen("namespaced"))
    assert made.returncode == 0, made.stderr
    assert helm("uninstall", "narrow", *place).returncode == 0
    for namespace in namespaces:
        server.kubectl("delete", "rolebinding", "installer", "-n", namespace)


def test_how_the_kinds_are_upgraded(server: ApiServer) -> None:
    """What docs/install.md says works over what Helm, or kubectl, once installed; without it nothing would change."""
    command = "kubectl apply --server-side --force-conflicts -f crds/"
    assert command in (ROOT / "docs" / "install.md").read_text()
    (old,) = objects((CRDS / "grouprestores.yaml").read_text())
    old["metadata"]["name"], old["spec"]["group"] = "grouprestores.upgrade.example.com", "upgrade.example.com"
    new = json.dumps(old)
    old["spec"]["versions"][0]["additionalPrinterColumns"] = []
    server.kubectl("create", "--field-manager=helm", "-f", "-", input=json.dumps(old))
    try:
        arguments = [part for part in command.split()[1:] if part != "crds/"]
        alone = server.kubectl(*(a for a in arguments if a != "--force-conflicts"), "-", input=new, check=False)
        assert "conflict" in alone.stderr
        server.kubectl(*arguments, "-", input=new)
        found = json.loads(server.kubectl("get", "crd", "grouprestores.upgrade.example.com", "-o", "json").stdout)
        assert found["spec"]["versions"][0]["additionalPrinterColumns"]
    finally:
        server.kubectl("delete", "crd", "grouprestores.upgrade.example.com")
