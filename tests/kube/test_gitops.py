"""Argo CD's health check over what a real operator wrote, and the GitOps examples on a real API server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from group_hygiene.engine.plan import EVIDENCE
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.of_objects import PASSING, build_status
from testing.sandbox import crds, flux
from testing.sandbox.helm import helm
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.lua import Health, assess
from tests import install_page
from tests.kube.access import make_namespaces
from tests.unit.make import delete, match, plan, snapshot

ROOT = Path(__file__).parents[2]
ARGOCD, GITOPS = ROOT / "deploy" / "argocd", ROOT / "examples" / "gitops"
SCRIPT = (ARGOCD / "health.lua").read_text()
FIXTURES = sorted((ARGOCD / "fixtures").glob("*/*.yaml"))
KINDS = ("KafkaConnection", "GroupPolicy", "GroupRestore", "GroupKeep")
_LIMITS = (reasons.LIMIT_EXCEEDED, reasons.TOO_MANY_CHANGES)


def _object(generation: int, observed: int | None, kind: str = "GroupPolicy", **spec: Any) -> dict[str, Any]:
    status = {} if observed is None else {"status": {"observedGeneration": observed}}
    return {"kind": kind, "metadata": {"generation": generation}, "spec": spec, **status}


def _with_conditions(obj: dict[str, Any], reason: str = "Why", **conditions: str) -> dict[str, Any]:
    shown = [{"type": kind, "status": value, "reason": reason, "message": kind} for kind, value in conditions.items()]
    return obj | {"status": obj["status"] | {"conditions": shown}}


@pytest.mark.parametrize("file", [pytest.param(path, id=f"{path.parent.name}-{path.stem}") for path in FIXTURES])
def test_health_of_what_the_operator_wrote(file: Path) -> None:
    """Each fixture is an object as a real API server had it; its folder says what its health is."""
    obj = yaml.safe_load(file.read_text())
    (health,) = assess(SCRIPT, [obj])
    assert health.status == file.parent.name
    assert health.message
    assert health.message.rstrip(": ") == health.message


def test_there_are_fixtures_of_each_health() -> None:
    """And of each kind."""
    assert {path.parent.name for path in FIXTURES} == {"Progressing", "Healthy", "Suspended", "Degraded"}
    assert {yaml.safe_load(path.read_text())["kind"] for path in FIXTURES} == set(KINDS)


@pytest.mark.parametrize(
    ("obj", "health"),
    [
        pytest.param(_object(1, None), "Progressing", id="no-status"),
        pytest.param(_object(1, -1), "Progressing", id="new"),
        pytest.param(_with_conditions(_object(2, 1), Ready="True"), "Progressing", id="edited"),
        pytest.param(_with_conditions(_object(2, 1, suspend=True), Ready="True"), "Progressing", id="just-suspended"),
        pytest.param(
            _with_conditions(_object(1, 1), Ready="False", Reconciling="True"), "Progressing", id="tried-again"
        ),
        pytest.param(_with_conditions(_object(1, 1), Ready="False", Stalled="True"), "Degraded", id="stalled"),
        pytest.param(_with_conditions(_object(1, 1, suspend=True), Ready="True"), "Suspended", id="suspended"),
        pytest.param(
            _with_conditions(_object(1, 1, suspend=True), Ready="False", Stalled="True"), "Degraded", id="wrong"
        ),
        pytest.param(
            _with_conditions(_object(1, 1, mode="Enforce"), Ready="True", DeletionBlocked="True"),
            "Healthy",
            id="a-limit-blocks",
        ),
        pytest.param(
            _with_conditions(_object(1, 1, mode="Enforce"), Ready="False", Stalled="True", DeletionBlocked="True"),
            "Degraded",
            id="blocked",
        ),
        pytest.param(
            _with_conditions(_object(1, 1, mode="Enforce"), Ready="True", DeletionBlocked="False"),
            "Healthy",
            id="not-blocked",
        ),
        pytest.param(_with_conditions(_object(1, 1, "KafkaConnection"), Ready="True"), "Healthy", id="connection"),
        pytest.param(
            _with_conditions(_object(1, 1, "GroupRestore"), Ready="False", Stalled="True"), "Degraded", id="restore"
        ),
    ],
)
def test_health_by_conditions(obj: dict[str, Any], health: str) -> None:
    """In the order of kstatus: what was not seen yet, what is stuck, what is not ready, and then the rest."""
    (found,) = assess(SCRIPT, [obj])
    assert found.status == health


def _blocked() -> dict[str, dict[str, Any]]:
    """By each reason that DeletionBlocked may have: a policy that enforces."""
    page = (ROOT / "docs" / "kinds" / "grouppolicy.md").read_text()
    (listed,) = re.findall(r"\n`DeletionBlocked`:\n(.*)\n", page)
    found = set(re.findall(r"`(\w+)`", listed)) - {"NotBlocked"}
    return {reason: _stopped(reason) for reason in sorted(found)}


def _stopped(reason: str) -> dict[str, Any]:
    """A policy that enforces with the status that the operator writes while this reason blocks its deletions."""
    policy = delete(enforce=True)
    seen = snapshot(incomplete=("broker 1: lost",)) if reason == reasons.SNAPSHOT_INCOMPLETE else snapshot()
    made = plan(policy, [match("a")], refusals=(Refusal(reason, "why"),))
    status = build_status(policy, {}, made, [], seen)
    return {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "GroupPolicy",
        "metadata": {"name": "p", "namespace": "kafka", "generation": policy.generation},
        "spec": {"mode": "Enforce"},
        "status": status,
    }


def test_only_objects_that_wait_for_a_user_are_degraded() -> None:
    """What may pass by itself is tried again."""
    policies = _blocked()
    assert set(policies) >= PASSING - EVIDENCE - {reasons.LEDGER_FENCED}
    found = {
        reason: health.status for reason, health in zip(policies, assess(SCRIPT, [*policies.values()]), strict=True)
    }
    passing = dict.fromkeys(PASSING & set(policies), "Progressing")
    # Clients of Kafka abandon groups, and can't fail the platform's own objects by that.
    assert found == dict.fromkeys(policies, "Degraded") | passing | dict.fromkeys(_LIMITS, "Healthy")


def test_a_script_that_is_wrong_is_seen() -> None:
    """The interpreter has what Argo CD opens, and no more; what is no health is an error."""
    assert assess("return {status = obj.kind}", [{"kind": "A"}, {"kind": "B"}]) == [Health("A", ""), Health("B", "")]
    for script in ("return obj.kind", "return", "no lua", "string.sub('a', 1)", "os.exit(0)", "while true do end"):
        with pytest.raises(ValueError, match=r"."):
            assess(script, [{"kind": "A"}])


@pytest.mark.slow
def test_argo_cd_keeps_other_keys_of_its_config_map(api_server: ApiServer) -> None:
    """Server-side apply adds a key for each kind to argocd-cm, each the script; what others put there stays."""
    api_server.kubectl("create", "namespace", "argocd")
    api_server.kubectl("create", "configmap", "argocd-cm", "-n", "argocd", "--from-literal=url=https://argocd.example")
    built = api_server.kubectl("kustomize", str(ARGOCD)).stdout
    api_server.kubectl("apply", "--server-side", "--field-manager=group-hygiene", "-f", "-", input=built)
    data = json.loads(api_server.kubectl("get", "configmap", "argocd-cm", "-n", "argocd", "-o", "json").stdout)["data"]
    keys = {f"resource.customizations.health.grouphygiene.io_{kind}" for kind in KINDS}
    assert data == {"url": "https://argocd.example"} | dict.fromkeys(keys, SCRIPT)


@pytest.fixture(scope="module")
def with_kinds(api_server: ApiServer) -> Iterator[ApiServer]:
    """The API server with the CRDs of Flux and of Argo CD, and the namespaces of the examples."""
    files = [word for module in (crds.ARGOCD, *crds.FLUX) for word in ("-f", str(module.crds()))]
    api_server.kubectl("apply", "--server-side", *files)
    api_server.wait_established(*files)
    make_namespaces(api_server, "flux-system", "argocd", "kafka-production", "kafka-staging", "team-a")
    yield api_server
    api_server.kubectl("delete", *files)


@pytest.mark.slow
def test_kafka_for_kind_can_be_applied(api_server: ApiServer) -> None:
    """Without an unknown field, and at the port that kind-config.yaml opens and its listener tells clients."""
    file = ROOT / "deploy" / "kind" / "kafka.yaml"
    api_server.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(file))
    (port,) = [
        mapping["hostPort"]
        for node in yaml.safe_load((ROOT / "kind-config.yaml").read_text())["nodes"]
        for mapping in node.get("extraPortMappings", [])
    ]
    assert f"nodePort: {port}}}" in file.read_text()
    assert f"OUTSIDE://127.0.0.1:{port}" in file.read_text()


FOLDERS = sorted(path.parent.relative_to(GITOPS) for path in GITOPS.rglob("kustomization.yaml"))
# Where policies are alone they have no namespace, and are applied as part of a cluster.
APPLIED = [folder for folder in FOLDERS if str(folder) != "policies"]


@pytest.mark.slow
@pytest.mark.parametrize("folder", [pytest.param(folder, id=str(folder)) for folder in APPLIED])
def test_each_folder_can_be_applied(with_kinds: ApiServer, folder: Path) -> None:
    """As Flux and Argo CD do it, server-side, without an unknown field."""
    built = with_kinds.kubectl("kustomize", str(GITOPS / folder)).stdout
    applying = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    done = with_kinds.kubectl(*applying, input=built)
    objects = list(yaml.load_all(built, yaml.CSafeLoader))
    assert len(done.stdout.splitlines()) == len(objects)
    assert all("namespace" in obj["metadata"] for obj in objects)


# Flux knows no suspended object: one that rests as it should is Current.
_TO_FLUX = {"Progressing": "InProgress", "Healthy": "Current", "Suspended": "Current", "Degraded": "Failed"}


def test_flux_judges_objects_as_argo_cd_does() -> None:
    """Without healthCheckExprs: by kstatus, as Flux has it, over the fixtures of each kind."""
    for obj in yaml.safe_load_all((GITOPS / "flux/policies.yaml").read_text()):
        assert obj["spec"]["wait"] is True
        assert "healthCheckExprs" not in obj["spec"]
    objects = {path: yaml.safe_load(path.read_text()) for path in FIXTURES}
    found = flux.assess(list(objects.values()))
    assert dict(zip(objects, found, strict=True)) == {path: _TO_FLUX[path.parent.name] for path in objects}
    blocked = _blocked()
    stopped = dict(zip(blocked, flux.assess(list(blocked.values())), strict=True))
    passing = dict.fromkeys(PASSING & set(blocked), "InProgress")
    assert stopped == dict.fromkeys(blocked, "Failed") | passing | dict.fromkeys(_LIMITS, "Current")


@pytest.mark.parametrize("cluster", sorted(path.name for path in (GITOPS / "clusters").iterdir()))
def test_the_operator_may_read_the_secrets_of_a_connection(cluster: str) -> None:
    """As by docs/install.md: the role is bound to the operator's account where the connection is."""
    built = _built(GITOPS / "clusters" / cluster)
    (connection,) = [obj for obj in built if obj["kind"] == "KafkaConnection"]
    (binding,) = [obj for obj in built if obj["kind"] == "RoleBinding"]
    assert binding["metadata"]["namespace"] == connection["metadata"]["namespace"]
    *_, words = install_page.commands()
    options = dict(word[2:].split("=") for word in words if word.startswith("--"))
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("ClusterRole", options["clusterrole"])
    namespace, account = options["serviceaccount"].split(":")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]


def test_connections_are_where_their_cluster_is() -> None:
    """A connection reads Secrets of its own namespace, and Strimzi writes them where the bootstrap Service is.

    Argo CD applies a cluster's folder there, and policies of teams refer to a connection that exists.
    """
    places: dict[str, str] = {}
    for cluster in (GITOPS / "clusters").iterdir():
        (connection,) = [obj for obj in _built(cluster) if obj["kind"] == "KafkaConnection"]
        places[cluster.name] = connection["metadata"]["namespace"]
        (server,) = connection["spec"]["bootstrapServers"]
        assert server.partition(":")[0] == f"{cluster.name}-kafka-bootstrap.{places[cluster.name]}"
        (authority,) = connection["spec"]["tls"].values()
        assert authority["name"] == f"{cluster.name}-cluster-ca-cert"
    for application in yaml.safe_load_all((GITOPS / "argocd" / "policies.yaml").read_text()):
        folder = Path(application["spec"]["source"]["path"])
        namespaces = {obj["metadata"]["namespace"] for obj in _built(GITOPS / folder)}
        assert namespaces == {application["spec"]["destination"]["namespace"]}
    references = [
        obj["spec"]["connectionRef"]
        for team in (GITOPS / "teams").iterdir()
        for obj in _built(team)
        if obj["kind"] == "GroupPolicy"
    ]
    assert references
    assert {(reference["name"], reference["namespace"]) for reference in references} <= {
        ("main", place) for place in places.values()
    }


def _built(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def test_the_repository_fits_together() -> None:
    """Each file is part of a kustomization; Flux and Argo CD name folders that are there, Flux in an order."""
    named = {
        (folder / name).resolve()
        for folder in (GITOPS / folder for folder in FOLDERS)
        for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    }
    files = {path for path in GITOPS.rglob("*.yaml") if path.name != "kustomization.yaml"}
    assert files <= named
    steps: dict[str, Any] = {
        obj["metadata"]["name"]: obj["spec"]
        for file in (GITOPS / "flux").glob("*.yaml")
        for obj in yaml.safe_load_all(file.read_text())
        if obj["apiVersion"].startswith("kustomize.toolkit.fluxcd.io/")
    }
    paths = [spec["path"] for spec in steps.values()]
    paths += [
        obj["spec"]["source"]["path"] for obj in yaml.safe_load_all((GITOPS / "argocd/policies.yaml").read_text())
    ]
    assert all((GITOPS / path / "kustomization.yaml").is_file() for path in paths)
    order: list[str] = []
    while ready := [
        name
        for name, spec in steps.items()
        if name not in order and all(on["name"] in order for on in spec.get("dependsOn", []))
    ]:
        order += ready
    assert order == ["group-hygiene", "kafka-policies-production", "kafka-policies-team-a"]


def _release_of_flux() -> tuple[str, str, str, dict[str, Any]]:
    """Name, namespace, chart and values."""
    spec = yaml.safe_load((GITOPS / "operator" / "helmrelease.yaml").read_text())["spec"]
    return spec["releaseName"], spec["targetNamespace"], spec["chart"]["spec"]["chart"], spec["values"]


def _release_of_argo_cd() -> tuple[str, str, str, dict[str, Any]]:
    spec = yaml.safe_load((GITOPS / "argocd" / "operator.yaml").read_text())["spec"]
    chosen = spec["source"]["helm"]
    return chosen["releaseName"], spec["destination"]["namespace"], spec["source"]["path"], chosen["valuesObject"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "release", [pytest.param(_release_of_flux, id="flux"), pytest.param(_release_of_argo_cd, id="argo-cd")]
)
def test_the_chart_takes_the_values(release: Callable[[], tuple[str, str, str, dict[str, Any]]]) -> None:
    """Its account is the one to which the clusters give their Secrets, and its kinds stay when the release goes."""
    name, namespace, chart, values = release()
    chosen = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
    done = helm("template", name, ROOT / chart, f"--namespace={namespace}", *chosen)
    assert done.returncode == 0, done.stderr
    made = [obj for obj in yaml.load_all(done.stdout, yaml.CSafeLoader) if obj]
    (account,) = [obj["metadata"] for obj in made if obj["kind"] == "ServiceAccount"]
    roles = {obj["metadata"]["name"] for obj in made if obj["kind"] == "ClusterRole"}
    for cluster in (GITOPS / "clusters").iterdir():
        (binding,) = [obj for obj in _built(cluster) if obj["kind"] == "RoleBinding"]
        (subject,) = binding["subjects"]
        assert subject == {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
        assert binding["roleRef"]["name"] in roles
    kinds = [obj["metadata"] for obj in made if obj["kind"] == "CustomResourceDefinition"]
    assert len(kinds) == len(KINDS)
    assert {crd["annotations"]["helm.sh/resource-policy"] for crd in kinds} == {"keep"}
    assert {crd["annotations"]["argocd.argoproj.io/sync-options"] for crd in kinds} == {"Prune=false"}


def test_no_rollback_puts_older_crds_back() -> None:
    """Flux rolls a release back only if it has a remediation of upgrades."""
    spec = yaml.safe_load((GITOPS / "operator" / "helmrelease.yaml").read_text())["spec"]
    assert spec["values"].get("crds", {}).get("enabled") is False or "remediation" not in spec.get("upgrade", {})
