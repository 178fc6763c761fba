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
from testing.sandbox.crds import PROMETHEUS
from testing.sandbox.helm import helm
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import CRDS, OVERLAYS
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
    crds = str(PROMETHEUS.crds())
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
        pytest.param(
            ["rbac.secretNamespaces[0].namespace=kafka"],
            "at '/rbac/secretNamespaces/0': missing property 'names'",
            id="secrets-without-names",
        ),
        pytest.param(["extraVolumes[0].name=tmp"], "at '/extraVolumes/0/name': 'not' failed", id="volume-twice"),
        pytest.param(["networkPolicy.egress.kafka.ports={0}"], "minimum: got 0, want 1", id="port"),
        pytest.param(["image.repository=a/b:1.0"], "at '/image/repository': 'a/b:1.0' does not match", id="tag-twice"),
        pytest.param(["image.repository=https://a/b"], "at '/image/repository': 'https://a/b' does not", id="scheme"),
        pytest.param(["pipeline.image.repository=a/b@sha256:1"], "at '/pipeline/image/repository'", id="digest-twice"),
        pytest.param(["fullnameOverride=My_Name"], "at '/fullnameOverride': 'My_Name' does not match", id="name"),
        pytest.param(["podDisruptionBudget.minAvailable=half"], "at '/podDisruptionBudget/minAvailable'", id="budget"),
        pytest.param(["livenessProbe.successThreshold=2"], "properties 'successThreshold' not allowed", id="probe"),
        pytest.param(["strategy.type=Canary"], "at '/strategy/type': value must be one of", id="strategy"),
        pytest.param(["operator.logFormat=xml"], "at '/operator/logFormat': value must be one of", id="log"),
        pytest.param(["commonLabels.a=1"], "at '/commonLabels/a': got number, want string", id="label"),
        pytest.param(["topologySpreadConstraints[0].maxSkew=1"], "missing properties 'topologyKey'", id="spread"),
        pytest.param(["serviceAccount.name=a_b"], "at '/serviceAccount/name': 'a_b' does not match", id="account"),
    ],
)
def test_wrong_values_are_refused(options: list[str], complaint: str) -> None:
    """Before anything is sent, with the place and what is wanted there."""
    done = helm("template", RELEASE, CHART, *(part for option in options for part in ("--set", option)))
    assert done.returncode != 0
    assert complaint in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["enabled=true", "global.registry=x"], id="of-a-chart-that-depends-on-it"),
        pytest.param(["rbac.secretNamespaces=null"], id="null-for-an-empty-list"),
        pytest.param(["image.repository=localhost:5000/team/group-hygiene"], id="registry-with-port"),
        pytest.param(["image.repository=REPLACE-WITH-YOUR-REGISTRY/group_hygiene--a.b"], id="odd-repository"),
    ],
)
def test_values_that_are_taken(options: list[str]) -> None:
    """Also those that other charts and tools add."""
    assert "kind: Deployment" in rendered(*(part for option in options for part in ("--set", option)))


def test_the_documented_dns_of_openshift() -> None:
    """docs/install.md has a value that the chart takes: its namespace, and both ports over both protocols."""
    (value,) = re.findall(r"^`(\{to: .*openshift-dns.*\})`", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    dns = json.dumps(yaml.safe_load(value))
    made = objects(
        rendered("--set", "networkPolicy.egress.enabled=true", "--set-json", f"networkPolicy.egress.dns={dns}")
    )
    rule = one(made, "NetworkPolicy")["spec"]["egress"][0]
    assert rule["to"] == yaml.safe_load(value)["to"]
    assert {(port["protocol"], port["port"]) for port in rule["ports"]} == {
        (protocol, port) for protocol in ("TCP", "UDP") for port in (53, 5353)
    }


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


def test_the_pods_of_the_pipeline_take_what_those_of_the_operator_take() -> None:
    """Volumes, labels and where they run, by values of their own; no label of the chart is replaced."""
    mount = {"name": "core-site", "mountPath": "/etc/hadoop"}
    own: dict[str, Any] = {
        "extraVolumes": [{"name": "core-site", "configMap": {"name": "core-site"}}],
        "extraVolumeMounts": [mount],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "batch",
        "podAnnotations": {"note": "x"},
        "podLabels": {"team": "x", "app.kubernetes.io/name": "y"},
    }
    options = [part for name, value in own.items() for part in ("--set-json", f"pipeline.{name}={json.dumps(value)}")]
    found = objects(rendered(*chosen("pipeline"), *options))
    plain, pod = (pod_of(one(made, "CronJob")) for made in (objects(rendered(*chosen("pipeline"))), found))
    assert pod["metadata"]["labels"] == {"team": "x", **plain["metadata"]["labels"]}
    assert pod["metadata"]["annotations"] == own["podAnnotations"]
    spec = pod["spec"]
    assert (spec["affinity"], spec["priorityClassName"]) == (own["affinity"], own["priorityClassName"])
    assert spec["volumes"] == [*plain["spec"]["volumes"], *own["extraVolumes"]]
    (container,) = spec["containers"]
    assert container["volumeMounts"] == [*plain["spec"]["containers"][0]["volumeMounts"], mount]
    assert one(found, "Deployment") == one(objects(rendered(*chosen("pipeline"))), "Deployment")


def test_the_maintenance_may_have_a_job_of_its_own() -> None:
    """Then the pipeline only reads. It has its own memory and disk, and needs no connection."""
    own = {"schedule": "5 3 * * *", "memory": "8g", "tmpSize": "500Gi", "extraArgs": ["--keep-history=30d"]}
    found = objects(rendered(*chosen("pipeline"), "--set-json", f"pipeline.maintenance={json.dumps(own)}"))
    usual = one(objects(rendered(*chosen("pipeline"))), "CronJob")
    reads, maintains = [obj for obj in found if obj["kind"] == "CronJob"]
    assert [obj["metadata"]["name"] for obj in (reads, maintains)] == [
        "group-hygiene-pipeline-main",
        "group-hygiene-maintain-main",
    ]
    assert json.loads(json.dumps(reads).replace('"ingest"', '"run"')) == usual
    assert maintains["spec"]["schedule"] == own["schedule"]
    spec = pod_of(maintains)["spec"]
    assert spec["containers"][0]["args"] == [
        *("group-hygiene", "pipeline", "maintain"),
        *(
            "--warehouse=s3a://my-bucket/group-hygiene/main",
            "--memory=8g",
            "--log-file=/tmp/spark.log",
            "--keep-history=30d",
        ),
    ]
    assert spec["volumes"][0]["emptyDir"]["sizeLimit"] == "500Gi"
    assert spec["serviceAccountName"] == pod_of(usual)["spec"]["serviceAccountName"]


def test_the_pipeline_may_read_its_configuration() -> None:
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


def test_secrets_may_be_read_only_where_values_say_so() -> None:
    """Not in the operator's own namespace either; all Secrets of a namespace, or those that are named."""
    account = f"{NAMESPACE}/{RELEASE}"

    def granted(entries: list[Any], watched: list[str]) -> dict[str, list[str] | None]:
        options = (f"rbac.secretNamespaces={json.dumps(entries)}", f"watchNamespaces={json.dumps(watched)}")
        found = rights(objects(rendered(*(part for option in options for part in ("--set-json", option)))))
        rules = {
            namespace: json.loads(text) for who, _, namespace, text in found if who == account and "secrets" in text
        }
        assert all(rule["verbs"] == ["get"] for (rule,) in rules.values())
        return {namespace: rule.get("resourceNames") for namespace, (rule,) in rules.items()}

    some = {"namespace": "team-a", "names": ["kafka-user", "chat"]}
    for watched in ([], ["kafka", "team-a", NAMESPACE]):
        assert granted([], watched) == {}
        assert granted(["kafka", some], watched) == {"kafka": None, "team-a": ["kafka-user", "chat"]}
        assert granted([NAMESPACE], watched) == {NAMESPACE: None}


def test_connections_with_long_names_have_their_own_pipelines() -> None:
    """A name is cut to what a CronJob may have; the rest still counts, in names of Kubernetes' form."""
    names = [f"{'a' * 35}-{end}" for end in ("one", "two")] + [f"{'b' * 20}.{'c' * 30}", "main"]
    connections = _json([f"{{namespace: kafka, name: {name}, warehouse: 's3a://x', secrets: []}}" for name in names])
    found = objects(rendered("--set", "pipeline.enabled=true", "--set-json", f"pipeline.connections={connections}"))
    jobs = [obj["metadata"]["name"] for obj in found if obj["kind"] == "CronJob"]
    assert len(set(jobs)) == len(names)
    assert jobs[-1] == "group-hygiene-pipeline-main"
    for name in jobs:
        assert len(name) <= 52
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", name)


def test_each_pipeline_may_have_a_cloud_identity_of_its_own() -> None:
    """Annotations of a connection are added to those of all pipelines, and replace equal keys."""
    fields = "namespace: kafka, warehouse: 's3a://x', secrets: []"
    own = "serviceAccount: {annotations: {role: own}}"
    found = objects(
        rendered(
            *("--set", "pipeline.enabled=true,pipeline.serviceAccount.annotations.role=shared"),
            *(
                "--set-json",
                f"pipeline.connections={_json([f'{{name: a, {fields}}}', f'{{name: b, {fields}, {own}}}'])}",
            ),
        )
    )
    accounts = [
        obj["metadata"] for obj in found if obj["kind"] == "ServiceAccount" and "pipeline" in obj["metadata"]["name"]
    ]
    assert sorted((account["name"][-1], account["annotations"]["role"]) for account in accounts) == [
        ("a", "shared"),
        ("b", "own"),
    ]


def test_entries_given_twice_are_refused() -> None:
    """Both would be the same Role."""
    secrets = _json(["{namespace: kafka, names: [a]}", "{namespace: kafka, names: [b]}"])
    connections = _json(["{namespace: kafka, name: main, warehouse: 's3a://x', secrets: []}"] * 2)
    for option, complaint in (
        (f"rbac.secretNamespaces={secrets}", "rbac.secretNamespaces has namespace kafka twice"),
        (f"pipeline.connections={connections}", "pipeline.connections has kafka/main twice"),
    ):
        enabled = f"pipeline.enabled={str(option.startswith('pipeline')).lower()}"
        done = helm("template", RELEASE, CHART, *IMAGE, "--set", enabled, "--set-json", option)
        assert done.returncode != 0
        assert complaint in done.stderr


def test_namespaces_that_look_like_numbers() -> None:
    """Names are texts, also where YAML would take them for something else."""
    odd = ["2024", "on", "1e3", "null"]
    connection = f"{{namespace: '{odd[0]}', name: main, warehouse: 's3a://x', secrets: [a]}}"
    options = [f"watchNamespaces={json.dumps(odd)}", f"rbac.secretNamespaces={json.dumps(odd)}"]
    options += [f"pipeline.connections={_json([connection])}", "pipeline.enabled=true"]
    found = objects(rendered("--namespace", "007", *(part for option in options for part in ("--set-json", option))))
    named = [obj["metadata"]["namespace"] for obj in found if "namespace" in obj["metadata"]]
    named += [subject["namespace"] for obj in found for subject in obj.get("subjects", [])]
    assert set(named) == {*odd, "007"}
    arguments = pod_of(one(found, "Deployment"))["spec"]["containers"][0]["args"]
    assert [f"--namespace={name}" for name in odd] == arguments[1:]


def test_labels_of_ones_own_replace_none_of_the_charts() -> None:
    """A key would stand twice in a mapping, which a strict reader refuses, and selectors would miss the pods."""
    own = {"app.kubernetes.io/name": "x", "app.kubernetes.io/instance": "y", "team": "z"}
    annotations = {"kubectl.kubernetes.io/default-container": "x", "note": "z"}
    options = ("--set-json", f"podLabels={json.dumps(own)}", "--set-json", f"podAnnotations={json.dumps(annotations)}")
    text = rendered(*options)
    (deployment,) = [part for part in text.split("\n---\n") if "\nkind: Deployment\n" in part]
    template = deployment.partition("\n  template:\n")[2]
    for key in (*own, *annotations):
        assert len(re.findall(rf"^ +{re.escape(key)}:", template.partition("\n    spec:\n")[0], re.MULTILINE)) == 1
    metadata = pod_of(one(objects(text), "Deployment"))["metadata"]
    assert (metadata["labels"]["team"], metadata["annotations"]["note"]) == ("z", "z")
    assert metadata["labels"]["app.kubernetes.io/name"] == RELEASE


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


def test_metrics_are_closed() -> None:
    """By default no pod may reach the port; a value opens it to Prometheus' namespace alone."""
    spec = one(objects(rendered()), "NetworkPolicy")["spec"]
    assert (spec["policyTypes"], spec.get("ingress")) == (["Ingress"], None)
    for values in ("networkPolicy.prometheusNamespace=monitoring", None):
        spec = one(objects(rendered("--set", values) if values else rendered(*chosen("locked-down"))), "NetworkPolicy")[
            "spec"
        ]
        (rule,) = spec["ingress"]
        (peer,) = rule["from"]
        assert rule["ports"] == [{"protocol": "TCP", "port": "http"}]
        assert peer == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    for monitor in ("monitoring", "service-monitor"):
        assert one(objects(rendered(*chosen(monitor))), "NetworkPolicy")["spec"]["ingress"] == [rule]
    peer = '{"podSelector":{"matchLabels":{"a":"b"}}}'
    more = rendered("--set", "networkPolicy.prometheusNamespace=x", "--set-json", f"networkPolicy.ingressFrom=[{peer}]")
    assert len(one(objects(more), "NetworkPolicy")["spec"]["ingress"][0]["from"]) == 2


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
    for index, role in enumerate(("", ",operator.allowMskIdentity[1].roleARN=arn:aws:iam::111122223333:role/a")):
        values += (
            f",operator.allowMskIdentity[{index}].namespace=kafka,operator.allowMskIdentity[{index}].host=*.b.c{role}"
        )
    container = pod_of(one(objects(rendered("--set", values, *chosen("namespaced"))), "Deployment"))["spec"][
        "containers"
    ][0]
    assert container["args"] == [
        "operator",
        "--namespace=kafka",
        "--namespace=team-a",
        "--lease-duration=60",
        "--allow-activity-identity=kafka=s3://b/x",
        "--allow-msk-identity=kafka=*.b.c",
        "--allow-msk-identity=kafka=*.b.c,arn:aws:iam::111122223333:role/a",
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
            kept = {"helm.sh/resource-policy": "keep", "argocd.argoproj.io/sync-options": "Prune=false"}
            assert annotations == (kept if keep == "true" else {})
        assert made == [obj for file in sorted(CRDS.glob("*.yaml")) for obj in objects(file.read_text())]


def test_the_chart_holds_files_and_no_links() -> None:
    """Flux leaves links out of what it packs. `make chart` copies what stands elsewhere, too."""
    assert [path for path in CHART.rglob("*") if path.is_symlink()] == []
    copies = {CHART / "files" / "crds" / file.name: file for file in CRDS.glob("*.yaml")}
    copies[CHART / "files" / "rules.yaml"] = ROOT / "deploy" / "prometheus" / "rules.yaml"
    copies[CHART / "files" / "dashboard.json"] = ROOT / "deploy" / "grafana" / "dashboard.json"
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
    assert "It may read Secrets in: team-a." in made.stdout
    assert "kubectl exec -n installed deploy/hygiene-group-hygiene -- group-hygiene doctor " in made.stdout
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
