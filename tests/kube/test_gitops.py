"""Argo CD's health check over what a real operator wrote, and the GitOps examples on a real API server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox import flux
from sandbox.flux.crds import crds as flux_crds
from sandbox.kubernetes import ApiServer
from sandbox.lua import Health, assess
from tests.kube.access import make_namespaces

ROOT = Path(__file__).parents[2]
ARGOCD, GITOPS = ROOT / "deploy" / "argocd", ROOT / "examples" / "gitops"
SCRIPT = (ARGOCD / "health.lua").read_text()
FIXTURES = sorted((ARGOCD / "fixtures").glob("*/*.yaml"))
KINDS = ("KafkaConnection", "GroupPolicy", "GroupRestore")


def _object(generation: int, observed: int | None, kind: str = "GroupPolicy", **spec: Any) -> dict[str, Any]:
    status = {} if observed is None else {"status": {"observedGeneration": observed}}
    return {"kind": kind, "metadata": {"generation": generation}, "spec": spec, **status}


def _told(obj: dict[str, Any], reason: str = "Why", **conditions: str) -> dict[str, Any]:
    told = [{"type": kind, "status": value, "reason": reason, "message": kind} for kind, value in conditions.items()]
    return obj | {"status": obj["status"] | {"conditions": told}}


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
        pytest.param(_told(_object(2, 1), Ready="True"), "Progressing", id="edited"),
        pytest.param(_told(_object(2, 1, suspend=True), Ready="True"), "Progressing", id="just-suspended"),
        pytest.param(_told(_object(1, 1), Ready="False", Reconciling="True"), "Progressing", id="tried-again"),
        pytest.param(_told(_object(1, 1), Ready="False", Stalled="True"), "Degraded", id="stalled"),
        pytest.param(_told(_object(1, 1, suspend=True), Ready="True"), "Suspended", id="suspended"),
        pytest.param(_told(_object(1, 1, suspend=True), Ready="False", Stalled="True"), "Degraded", id="wrong"),
        pytest.param(_told(_object(1, 1), Ready="True", DeletionBlocked="True"), "Healthy", id="dry-run-blocked"),
        pytest.param(
            _told(_object(1, 1, mode="Enforce"), Ready="True", DeletionBlocked="True"), "Degraded", id="blocked"
        ),
        pytest.param(
            _told(_object(1, 1, mode="Enforce"), Ready="True", DeletionBlocked="False"), "Healthy", id="not-blocked"
        ),
        pytest.param(_told(_object(1, 1, "KafkaConnection"), Ready="True"), "Healthy", id="connection"),
        pytest.param(_told(_object(1, 1, "GroupRestore"), Ready="False", Stalled="True"), "Degraded", id="restore"),
    ],
)
def test_health_by_conditions(obj: dict[str, Any], health: str) -> None:
    """In the order of kstatus: what was not seen yet, what is stuck, what is not ready, and then the rest."""
    (found,) = assess(SCRIPT, [obj])
    assert found.status == health


# What may pass without anybody, of all that forbids deletions.
PASSING = {"SnapshotIncomplete", "TotalUnknown", "LedgerUnavailable"}


def _blocked() -> dict[str, dict[str, Any]]:
    """By each reason that DeletionBlocked may have: a policy that enforces."""
    page = (ROOT / "docs" / "kinds" / "grouppolicy.md").read_text()
    (listed,) = re.findall(r"\n`DeletionBlocked`:\n(.*)\n", page)
    told = {"Ready": "True", "DeletionBlocked": "True"}
    found = set(re.findall(r"`(\w+)`", listed)) - {"NotBlocked"}
    return {reason: _told(_object(1, 1, mode="Enforce"), reason, **told) for reason in sorted(found)}


def test_only_what_waits_for_somebody_is_degraded() -> None:
    """What may pass by itself is tried again."""
    policies = _blocked()
    assert set(policies) > PASSING
    found = {
        reason: health.status for reason, health in zip(policies, assess(SCRIPT, [*policies.values()]), strict=True)
    }
    assert found == {reason: "Progressing" if reason in PASSING else "Degraded" for reason in policies}


def test_a_script_that_is_wrong_is_seen() -> None:
    """The interpreter has what Argo CD opens, and no more; what is no health is an error."""
    assert assess("return {status = obj.kind}", [{"kind": "A"}, {"kind": "B"}]) == [Health("A", ""), Health("B", "")]
    for script in ("return obj.kind", "return", "no lua", "string.sub('a', 1)", "os.exit(0)", "while true do end"):
        with pytest.raises(ValueError, match=r"."):
            assess(script, [{"kind": "A"}])


def test_argo_cd_is_told_without_losing_what_it_knows(api_server: ApiServer) -> None:
    """Server-side apply adds a key for each kind to argocd-cm, each the script; what others put there stays."""
    api_server.kubectl("create", "namespace", "argocd")
    api_server.kubectl("create", "configmap", "argocd-cm", "-n", "argocd", "--from-literal=url=https://argocd.example")
    built = api_server.kubectl("kustomize", str(ARGOCD)).stdout
    api_server.kubectl("apply", "--server-side", "--field-manager=group-hygiene", "-f", "-", input=built)
    data = json.loads(api_server.kubectl("get", "configmap", "argocd-cm", "-n", "argocd", "-o", "json").stdout)["data"]
    keys = {f"resource.customizations.health.grouphygiene.io_{kind}" for kind in KINDS}
    assert data == {"url": "https://argocd.example"} | dict.fromkeys(keys, SCRIPT)


@pytest.fixture(scope="module")
def with_flux(api_server: ApiServer) -> Iterator[ApiServer]:
    """The API server with Flux's own CRDs, and the namespaces of the examples."""
    crds = str(flux_crds())
    api_server.kubectl("apply", "--server-side", "-f", crds)
    api_server.wait_established("-f", crds)
    make_namespaces(api_server, "flux-system", "kafka-staging", "team-a")
    yield api_server
    api_server.kubectl("delete", "-f", crds)


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


@pytest.mark.parametrize("folder", [pytest.param(folder, id=str(folder)) for folder in APPLIED])
def test_each_folder_can_be_applied(with_flux: ApiServer, folder: Path) -> None:
    """As Flux and Argo CD do it, server-side, without an unknown field."""
    built = with_flux.kubectl("kustomize", str(GITOPS / folder)).stdout
    applying = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    done = with_flux.kubectl(*applying, input=built)
    objects = list(yaml.safe_load_all(built))
    assert len(done.stdout.splitlines()) == len(objects)
    assert all("namespace" in obj["metadata"] for obj in objects)


# Flux knows no suspended object: one that rests as it should is Current.
_TO_FLUX = {"Progressing": "InProgress", "Healthy": "Current", "Suspended": "Current", "Degraded": "Failed"}


def test_flux_judges_policies_as_argo_cd_does() -> None:
    """The healthCheckExprs of the example, the same for each folder, by Flux's own evaluator, over the fixtures."""
    checks = [
        obj["spec"]["healthCheckExprs"] for obj in yaml.safe_load_all((GITOPS / "flux/policies.yaml").read_text())
    ]
    ((expressions,), *others) = checks
    assert others == [[expressions]] * len(others)
    assert expressions["kind"] == "GroupPolicy"
    fixtures = [(path, yaml.safe_load(path.read_text())) for path in FIXTURES]
    policies = {path: obj for path, obj in fixtures if obj["kind"] == "GroupPolicy"}
    assert {path.parent.name for path in policies} == set(_TO_FLUX)
    found = flux.assess(expressions, list(policies.values()))
    assert dict(zip(policies, found, strict=True)) == {path: _TO_FLUX[path.parent.name] for path in policies}
    blocked = _blocked()
    stopped = dict(zip(blocked, flux.assess(expressions, list(blocked.values())), strict=True))
    assert stopped == {reason: "InProgress" if reason in PASSING else "Failed" for reason in blocked}
    with pytest.raises(ValueError, match="Syntax error"):
        flux.assess({"current": "status."}, [])


@pytest.mark.parametrize("cluster", sorted(path.name for path in (GITOPS / "clusters").iterdir()))
def test_the_operator_may_read_the_secrets_of_a_connection(cluster: str) -> None:
    """The role that the operator's manifests bring is bound to its account where the connection is."""
    built = _built(GITOPS / "clusters" / cluster)
    (connection,) = [obj for obj in built if obj["kind"] == "KafkaConnection"]
    (binding,) = [obj for obj in built if obj["kind"] == "RoleBinding"]
    assert binding["metadata"]["namespace"] == connection["metadata"]["namespace"]
    shipped = _built(ROOT / "deploy" / "kustomize" / "overlays" / "cluster-wide")
    (example,) = [
        obj for obj in shipped if obj["kind"] == "RoleBinding" and obj["roleRef"]["name"] == "group-hygiene-secrets"
    ]
    assert {key: binding[key] for key in ("roleRef", "subjects")} == {
        key: example[key] for key in ("roleRef", "subjects")
    }


def _built(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def test_the_repository_fits_together() -> None:
    """Each file is part of a kustomization; Flux names folders that are there, in an order without a circle."""
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
    for spec in steps.values():
        root = ROOT if spec["sourceRef"]["name"] == "group-hygiene" else GITOPS
        # Without a kustomization Flux takes all that is below.
        assert (root / spec["path"] / "kustomization.yaml").is_file() or spec["path"] == "./crds"
    built = _built(ROOT / steps["group-hygiene"]["path"])
    (deployment,) = [obj for obj in built if obj["kind"] == "Deployment"]
    (image,) = {
        container["image"].partition(":")[0] for container in deployment["spec"]["template"]["spec"]["containers"]
    }
    assert [entry["name"] for entry in steps["group-hygiene"]["images"]] == [image]
    order: list[str] = []
    while ready := [
        name
        for name, spec in steps.items()
        if name not in order and all(on["name"] in order for on in spec.get("dependsOn", []))
    ]:
        order += ready
    assert order == ["group-hygiene-kinds", "group-hygiene", "kafka-policies-production", "kafka-policies-team-a"]
