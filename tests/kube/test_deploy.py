"""The manifests of deploy/kustomize on a real API server: they apply, and the operator may do what it needs only."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import OVERLAYS
from tests import install_page
from tests.kube.access import can_i, wait_until_allowed

ROOT = Path(__file__).parents[2]
DEPLOY = str(OVERLAYS / "cluster-wide")
PLACE = ("-n", "kafka")
POLICY = {
    "apiVersion": "grouphygiene.io/v1alpha1",
    "kind": "GroupPolicy",
    "metadata": {"name": "rbac", "namespace": "kafka"},
    "spec": {"connectionRef": {"name": "main"}, "match": {"groups": ["a"]}, "action": "Alert"},
}


@pytest.fixture(scope="module")
def deployed(api_server: ApiServer) -> ApiServer:
    """The API server with the cluster-wide overlay applied."""
    api_server.kubectl("apply", "-k", DEPLOY)
    return api_server


@pytest.fixture(scope="module")
def as_operator(deployed: ApiServer) -> str:
    """The kubectl option that makes a call the operator's, with its own token."""
    path = deployed.kubeconfig_for_service_account("group-hygiene", "group-hygiene")
    # The authorizer reads new bindings from a watch, a moment after they are stored.
    wait_until_allowed(deployed, f"--kubeconfig={path}", "list", "grouppolicies", "-A")
    wait_until_allowed(deployed, f"--kubeconfig={path}", "get", "leases/group-hygiene", "-n", "group-hygiene")
    return f"--kubeconfig={path}"


def _deployment(server: ApiServer) -> dict[str, Any]:
    found = server.kubectl("get", "deployment", "group-hygiene", "-n", "group-hygiene", "-o", "json")
    spec: dict[str, Any] = json.loads(found.stdout)["spec"]
    return spec


def test_kustomize_builds_what_the_api_server_accepts(deployed: ApiServer) -> None:
    """Of the cluster-wide overlay, `kubectl kustomize` is valid as a whole, without an unknown field."""
    built = deployed.kubectl("kustomize", DEPLOY).stdout
    done = deployed.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=built)
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == [
        "clusterrole.rbac.authorization.k8s.io/group-hygiene-admin",
        "clusterrole.rbac.authorization.k8s.io/group-hygiene-claims",
        "clusterrole.rbac.authorization.k8s.io/group-hygiene-edit",
        "clusterrole.rbac.authorization.k8s.io/group-hygiene-operator",
        "clusterrole.rbac.authorization.k8s.io/group-hygiene-secrets",
        "clusterrole.rbac.authorization.k8s.io/group-hygiene-view",
        "clusterrolebinding.rbac.authorization.k8s.io/group-hygiene-claims",
        "clusterrolebinding.rbac.authorization.k8s.io/group-hygiene-operator",
        "deployment.apps/group-hygiene",
        "namespace/group-hygiene",
        "networkpolicy.networking.k8s.io/group-hygiene",
        "poddisruptionbudget.policy/group-hygiene",
        "role.rbac.authorization.k8s.io/group-hygiene-leader-election",
        "rolebinding.rbac.authorization.k8s.io/group-hygiene-leader-election",
        "serviceaccount/group-hygiene",
    ]


def test_metrics_are_closed(deployed: ApiServer) -> None:
    """No pod may reach the port of metrics, but for those of a namespace that deploy/prometheus names."""
    found: dict[str, Any] = {}
    for folder in (DEPLOY, ROOT / "deploy" / "prometheus"):
        built = yaml.safe_load_all(deployed.kubectl("kustomize", str(folder)).stdout)
        found |= {obj["metadata"]["name"]: obj["spec"] for obj in built if obj["kind"] == "NetworkPolicy"}
    closed, opened = found["group-hygiene"], found["group-hygiene-metrics"]
    assert (closed["policyTypes"], closed.get("ingress")) == (["Ingress"], None)
    assert [list(rule) for rule in opened["ingress"]] == [["from", "ports"]]
    assert opened["podSelector"] == closed["podSelector"]


READ, WRITE = {"get", "list", "watch"}, {"create", "update", "patch", "delete"}
CRD = "customresourcedefinitions.apiextensions.k8s.io"


@pytest.mark.parametrize(
    ("question", "allowed"),
    [
        pytest.param("list grouppolicies -A", True, id="policies-list-everywhere"),
        pytest.param("watch grouppolicies -A", True, id="policies-watch-everywhere"),
        pytest.param("get grouppolicies -n kafka", True, id="policies-get"),
        pytest.param("list kafkaconnections -A", True, id="connections-list-everywhere"),
        pytest.param("watch kafkaconnections -A", True, id="connections-watch-everywhere"),
        pytest.param("get kafkaconnections -n kafka", True, id="connections-get"),
        pytest.param("patch grouppolicies --subresource=status -n kafka", True, id="policies-status-patch"),
        pytest.param("patch kafkaconnections --subresource=status -n kafka", True, id="connections-status-patch"),
        pytest.param("list grouprestores -A", True, id="restores-list-everywhere"),
        pytest.param("watch grouprestores -A", True, id="restores-watch-everywhere"),
        pytest.param("get grouprestores -n kafka", True, id="restores-get"),
        pytest.param("patch grouprestores --subresource=status -n kafka", True, id="restores-status-patch"),
        pytest.param("create events -n kafka", True, id="events-create"),
        pytest.param("patch events -n kafka", True, id="events-patch"),
        pytest.param("get events -n kafka", True, id="events-get"),
        pytest.param("get secrets -n group-hygiene", False, id="secrets-of-its-own-namespace-get"),
        pytest.param("get leases/group-hygiene -n group-hygiene", True, id="its-lease-get"),
        pytest.param("update leases/group-hygiene -n group-hygiene", True, id="its-lease-update"),
        pytest.param("create leases -n group-hygiene", True, id="leases-of-its-own-namespace-create"),
        pytest.param("get namespaces/kube-system", True, id="namespace-kube-system-get"),
        pytest.param("get namespaces/kafka", True, id="namespaces-get"),
        pytest.param("patch grouppolicies -n kafka", False, id="policies-patch"),
        pytest.param("update grouppolicies -n kafka", False, id="policies-update"),
        pytest.param("update grouppolicies --subresource=status -n kafka", False, id="policies-status-update"),
        pytest.param("delete grouppolicies -n kafka", False, id="policies-delete"),
        pytest.param("create grouppolicies -n kafka", False, id="policies-create"),
        pytest.param("patch kafkaconnections -n kafka", False, id="connections-patch"),
        pytest.param("delete kafkaconnections -n kafka", False, id="connections-delete"),
        *(
            pytest.param(f"{right} -n kafka", allowed, id=f"keeps-{right.replace(' ', '-')}")
            for right, allowed in {
                "list groupkeeps": True,
                "watch groupkeeps": True,
                "get groupkeeps": True,
                "patch groupkeeps --subresource=status": True,
                "create groupkeeps": False,
                "patch groupkeeps": False,
                "delete groupkeeps": False,
            }.items()
        ),
        pytest.param("create grouprestores -n kafka", False, id="restores-create"),
        pytest.param("patch grouprestores -n kafka", False, id="restores-patch"),
        pytest.param("delete grouprestores -n kafka", True, id="restores-delete"),
        pytest.param("list events -n kafka", False, id="events-list"),
        pytest.param("delete events -n kafka", False, id="events-delete"),
        pytest.param("get secrets -n kafka", False, id="secrets-of-another-namespace-get"),
        pytest.param("get secrets -A", False, id="secrets-everywhere-get"),
        pytest.param("list secrets -n group-hygiene", False, id="secrets-of-its-own-namespace-list"),
        pytest.param("watch secrets -n group-hygiene", False, id="secrets-of-its-own-namespace-watch"),
        pytest.param("patch secrets -n group-hygiene", False, id="secrets-of-its-own-namespace-patch"),
        pytest.param(f"get {CRD}/grouppolicies.grouphygiene.io", False, id="crd-get"),
        pytest.param("get grouppolicies --subresource=status -n kafka", False, id="policies-status-get"),
        pytest.param(f"list {CRD}", False, id="crd-list"),
        pytest.param(f"patch {CRD}/grouppolicies.grouphygiene.io", False, id="crd-patch"),
        pytest.param("create pods -n group-hygiene", False, id="pods-create"),
        pytest.param("get configmaps -n kafka", False, id="configmaps-get"),
        pytest.param("get leases/other -n group-hygiene", False, id="other-lease-get"),
        pytest.param("delete leases/group-hygiene -n group-hygiene", False, id="its-lease-delete"),
        pytest.param("update leases/group-hygiene -n kube-system", False, id="leases-of-another-namespace-update"),
        pytest.param("create leases -n kafka", False, id="leases-of-another-namespace-create"),
        pytest.param("list namespaces", False, id="namespaces-list"),
        pytest.param("watch namespaces", False, id="namespaces-watch"),
        pytest.param("patch namespaces/kafka", False, id="namespaces-patch"),
        pytest.param("create serviceaccounts --subresource=token -n group-hygiene", False, id="tokens-create"),
        pytest.param("* * -A", False, id="everything"),
    ],
)
def test_permission(deployed: ApiServer, as_operator: str, question: str, allowed: bool) -> None:
    """The operator's own token may do what it needs, and may not change what users wrote or read what is not for it."""
    assert can_i(deployed, as_operator, *question.split()) is allowed


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        pytest.param(
            "view", dict.fromkeys(("kafkaconnections", "grouppolicies", "grouprestores", "groupkeeps"), READ), id="view"
        ),
        pytest.param("edit", dict.fromkeys(("grouppolicies", "grouprestores", "groupkeeps"), WRITE), id="edit"),
        pytest.param("admin", {"kafkaconnections": WRITE}, id="admin"),
    ],
)
def test_what_people_may(deployed: ApiServer, role: str, allowed: dict[str, set[str]]) -> None:
    """What each role for people allows by itself; the controller manager, who adds them up, does not run here."""
    deployed.kubectl("create", "serviceaccount", role, *PLACE)
    binding = (f"--clusterrole=group-hygiene-{role}", f"--serviceaccount=kafka:{role}")
    deployed.kubectl("create", "rolebinding", f"people-{role}", *binding, *PLACE)
    who = f"--as=system:serviceaccount:kafka:{role}"
    wait_until_allowed(deployed, who, min(next(iter(allowed.values()))), next(iter(allowed)), *PLACE)
    listed = deployed.kubectl("auth", "can-i", "--list", who, *PLACE).stdout
    # Beside what everybody may: to ask what one may, and what is served.
    rows = re.findall(r"^([\w./]+) +\[\] +\[\] +\[(.*)\]$", listed, re.MULTILINE)
    own = {resource: set(verbs.split()) for resource, verbs in rows if ".k8s.io" not in resource}
    assert own == {f"{kind}.grouphygiene.io": verbs for kind, verbs in allowed.items()}


@pytest.mark.parametrize(
    ("verb", "group", "resource", "allowed"),
    [
        pytest.param("list", "keda.sh", "scaledobjects", True, id="keda-list"),
        pytest.param("list", "kafka.strimzi.io", "kafkaconnectors", True, id="strimzi-connectors-list"),
        pytest.param("list", "keda.sh", "scaledjobs", True, id="keda-jobs-list"),
        pytest.param("get", "apps", "deployments", True, id="deployments-get"),
        pytest.param("list", "apps", "deployments", False, id="deployments-list"),
        pytest.param("get", "", "configmaps", False, id="configmaps-get"),
        pytest.param("list", "sources.knative.dev", "kafkasources", True, id="knative-sources-list"),
        pytest.param(
            "list", "internal.kafka.eventing.knative.dev", "consumergroups", True, id="knative-consumer-groups-list"
        ),
        pytest.param("list", "cluster.redpanda.com", "shadowlinks", True, id="redpanda-links-list"),
        pytest.param("watch", "keda.sh", "scaledobjects", False, id="keda-watch"),
        pytest.param("patch", "keda.sh", "scaledobjects", False, id="keda-patch"),
        pytest.param("list", "kafka.strimzi.io", "kafkausers", False, id="strimzi-users-list"),
        pytest.param("delete", "kafka.strimzi.io", "kafkaconnectors", False, id="strimzi-connectors-delete"),
    ],
)
def test_permission_on_kinds_of_others(
    deployed: ApiServer, as_operator: str, verb: str, group: str, resource: str, allowed: bool
) -> None:
    """The same for kinds that are not installed here, which `kubectl auth can-i` refuses to name."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": verb, "group": group, "resource": resource}},
    }
    shown = ("--validate=false", "-o", "jsonpath={.status.allowed}")
    done = deployed.kubectl("create", "-f", "-", *shown, as_operator, input=json.dumps(review))
    assert done.stdout == str(allowed).lower()


def test_operators_calls(deployed: ApiServer, as_operator: str) -> None:
    """The calls of one run, really made: list everywhere, read one, write an event."""
    deployed.kubectl("apply", "-f", "-", input=json.dumps(POLICY))
    listed = deployed.kubectl(
        "get", "grouppolicies,kafkaconnections,grouprestores,groupkeeps", "-A", "-o", "name", as_operator
    )
    assert "grouppolicy.grouphygiene.io/rbac" in listed.stdout.split()
    patch = ("--type=merge", "-p", '{"status": {"observedGeneration": 1}}')
    refused = deployed.kubectl("patch", "grouppolicy", "rbac", *PLACE, *patch, as_operator, check=False)
    assert "forbidden" in refused.stderr
    policy = json.loads(deployed.kubectl("get", "grouppolicy", "rbac", *PLACE, "-o", "json", as_operator).stdout)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "rbac.groups-matched", "namespace": "kafka"},
        "involvedObject": {
            "apiVersion": "grouphygiene.io/v1alpha1",
            "kind": "GroupPolicy",
            "name": "rbac",
            "namespace": "kafka",
            "uid": policy["metadata"]["uid"],
        },
        "type": "Normal",
        "reason": "GroupsMatched",
        "message": "3 groups match",
        "count": 1,
    }
    deployed.kubectl("create", "-f", "-", as_operator, input=json.dumps(event))
    deployed.kubectl("patch", "event", "rbac.groups-matched", *PLACE, "-p", '{"count": 2}', as_operator)
    deployed.kubectl("delete", "grouppolicy", "rbac", *PLACE)


def test_documented_binding_opens_one_namespace(deployed: ApiServer, as_operator: str) -> None:
    """The last command of docs/install.md (in another namespace here) lets the operator read Secrets there only.

    And the overlay for that namespace alone can be applied over it: no binding would have to refer to another role.
    """
    program, *words = install_page.commands()[-1]
    assert (program, words[:2]) == ("kubectl", ["create", "rolebinding"])
    words[words.index("kafka")] = "other-kafka"
    deployed.kubectl("create", "namespace", "other-kafka")
    deployed.kubectl(*words)
    wait_until_allowed(deployed, as_operator, "get", "secrets", "-n", "other-kafka")
    assert not can_i(deployed, as_operator, "get", "secrets", "-n", "kafka")
    narrow = deployed.kubectl("kustomize", str(OVERLAYS / "namespaced")).stdout
    moved = narrow.replace("namespace: kafka\n", "namespace: other-kafka\n")
    deployed.kubectl("apply", "--dry-run=server", "-f", "-", input=moved)


@pytest.mark.parametrize(
    ("container", "violation"),
    [
        pytest.param({}, None, id="as-it-is"),
        pytest.param(
            {"securityContext": {"allowPrivilegeEscalation": True}}, "allowPrivilegeEscalation", id="escalating"
        ),
        pytest.param({"securityContext": {}}, "unrestricted capabilities", id="with-capabilities"),
    ],
)
def test_pod_is_restricted(deployed: ApiServer, container: dict[str, Any], violation: str | None) -> None:
    """The operator's pod passes the `restricted` standard, which its namespace enforces on every pod."""
    template = _deployment(deployed)["template"]
    spec = {**template["spec"], "containers": [{**template["spec"]["containers"][0], **container}]}
    metadata = {**template["metadata"], "name": "candidate", "namespace": "group-hygiene"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    done = deployed.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod), check=False)
    if violation is None:
        assert done.returncode == 0, done.stderr
    else:
        assert 'violates PodSecurity "restricted' in done.stderr
        assert violation in done.stderr


def test_update_leaves_one_to_lead(deployed: ApiServer) -> None:
    """Two replicas, none of which an update stops before a new one is ready; the Lease is in their own namespace."""
    spec = _deployment(deployed)
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "RollingUpdate")
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (container,) = spec["template"]["spec"]["containers"]
    variables = {entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in container["env"]}
    assert variables == {"POD_NAMESPACE": "metadata.namespace"}


def test_container(deployed: ApiServer) -> None:
    """It cannot write but to /tmp, which is memory, and its probes ask the port that it names."""
    pod = _deployment(deployed)["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["operator"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"http": 8080}
    probes = {name: container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert {name: (get["path"], get["port"]) for name, get in probes.items()} == {
        "livenessProbe": ("/healthz", "http"),
        "readinessProbe": ("/readyz", "http"),
    }
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {
        mount["mountPath"]: volumes[mount["name"]]["emptyDir"]["medium"] for mount in container["volumeMounts"]
    } == {"/tmp": "Memory"}
