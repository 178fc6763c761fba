"""The operator is installed as users install it: what it is given becomes Ready, and what is removed is gone."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.manifests import CRDS, OVERLAYS
from sandbox.node.given import Cluster
from tests.node import release
from tests.node.conftest import wait_for
from tests.node.objects import objects

QUICKSTART = str(release.ROOT / "examples" / "quickstart.yaml")
_READY = "-o=jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
_CRDS = {
    *(
        f"CustomResourceDefinition//{name}.grouphygiene.io"
        for name in ("kafkaconnections", "grouppolicies", "grouprestores")
    ),
    # Kubernetes' own, as long as there are CRDs of the group.
    "APIService//v1alpha1.grouphygiene.io",
}
_USERS_OBJECTS = {"KafkaConnection/kafka/main", "GroupPolicy/kafka/console-litter"}
# What Kubernetes makes in each namespace, and the Lease that the operator makes in its own.
_NAMESPACE = {
    f"Namespace//{release.NAME}",
    f"ConfigMap/{release.NAME}/kube-root-ca.crt",
    f"ServiceAccount/{release.NAME}/default",
    f"Lease/{release.NAME}/{release.NAME}",
}

pytestmark = pytest.mark.usefixtures("kafka", "no_release")


def _commands() -> list[list[str]]:
    """The commands of the README's section about a cluster, as words."""
    section = (release.ROOT / "README.md").read_text().partition("\n## On a cluster\n")[2]
    block = re.search(r"```\w*\n(.*?)```", section, re.DOTALL)
    assert block is not None
    lines = block[1].replace("\\\n", " ").splitlines()
    return [
        shlex.split(line.replace("REGISTRY/group-hygiene", release.REPOSITORY), comments=True) for line in lines if line
    ]


def _wait_ready(cluster: Cluster, seconds: float = 120) -> float:
    """Until the quickstart's connection and policy are Ready: how many seconds that took. No container starts twice."""

    def ready() -> bool:
        return cluster.kubectl("get", "kconn,kgp", "-n", "kafka", _READY).stdout.split() == ["True", "True"]

    took = wait_for(ready, seconds, lambda: release.explain(cluster))
    assert set(release.restarts(cluster).values()) == {0}
    return took


def _assert_confined(cluster: Cluster, before: set[str]) -> None:
    """What was made is in no namespace, in the operator's own, or in that of the connection."""
    assert {name.split("/")[1] for name in objects(cluster) - before} == {"", release.NAME, "kafka"}


def _assert_left(cluster: Cluster, before: set[str], left: set[str]) -> None:
    """Wait until exactly these are there that were not, and all others are."""

    def explain() -> str:
        now = objects(cluster)
        return f"too many: {sorted(now - before - left)}, missing: {sorted((before | left) - now)}"

    wait_for(lambda: objects(cluster) == before | left, 120, explain)


def test_the_commands_of_the_readme_lead_to_ready_within_a_minute(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    """And `helm uninstall` leaves the kinds, the users' objects, and the namespace with the Lease."""
    before = objects(cluster)
    install, apply, get, _ = _commands()
    assert install[:2] == ["helm", "install"]
    assert release.NAME in install
    release.run(cluster, *install[1:])
    assert apply[:2] == ["kubectl", "apply"]
    assert get == ["kubectl", "get", "kconn,kgp", "-n", "kafka"]
    cluster.kubectl(*apply[1:])
    record_property("seconds until Ready", _wait_ready(cluster, 60))
    release.uninstall(cluster)
    _assert_left(cluster, before, _CRDS | _USERS_OBJECTS | _NAMESPACE)


@pytest.mark.parametrize(
    ("values", "user"),
    [
        pytest.param(["rbac.secretNamespaces={kafka}"], 65532, id="as-it-is"),
        pytest.param(
            [
                "rbac.secretNamespaces={kafka}",
                "podSecurityContext.runAsUser=1000680000",
                "podSecurityContext.runAsGroup=0",
                "podSecurityContext.fsGroup=1000680000",
            ],
            1000680000,
            id="as-openshift-does-it",
        ),
        pytest.param(["rbac.secretNamespaces={kafka}", "watchNamespaces={kafka}"], 65532, id="for-one-namespace"),
    ],
)
def test_the_chart_in_a_restricted_namespace(cluster: Cluster, values: list[str], user: int) -> None:
    """Pod Security `restricted` lets its pods in, they run as a user without a name, and write to few namespaces."""
    before = objects(cluster)
    cluster.kubectl("create", "namespace", release.NAME)
    cluster.kubectl("label", "namespace", release.NAME, "pod-security.kubernetes.io/enforce=restricted")
    release.install(cluster, *values)
    cluster.kubectl("apply", "-f", QUICKSTART)
    _wait_ready(cluster)
    assert cluster.kubectl("exec", "-n", release.NAME, f"deploy/{release.NAME}", "--", "id", "-u").stdout == f"{user}\n"
    _assert_confined(cluster, before)
    release.uninstall(cluster)
    _assert_left(cluster, before, _CRDS | _USERS_OBJECTS | _NAMESPACE)


@pytest.mark.parametrize("overlay", ["cluster-wide", "namespaced"])
def test_the_overlays_of_kustomize(cluster: Cluster, tmp_path: Path, overlay: str) -> None:
    """With the image that a kustomization of one's own names; `kubectl delete -k` leaves kinds and users' objects."""
    before = objects(cluster)
    images = [{"name": "group-hygiene", "newName": release.REPOSITORY}]
    resources = [os.path.relpath(OVERLAYS / overlay, tmp_path.resolve())]
    (tmp_path / "kustomization.yaml").write_text(json.dumps({"resources": resources, "images": images}))
    binding = (OVERLAYS.parent / "base" / "rbac-secrets.yaml").read_text().partition("\n# ---\n")[2]
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
    cluster.kubectl("apply", "-k", str(tmp_path))
    if overlay == "cluster-wide":
        cluster.kubectl("apply", "-f", "-", input=binding.replace("# ", ""))
    cluster.kubectl("apply", "-f", QUICKSTART)
    _wait_ready(cluster)
    _assert_confined(cluster, before)
    cluster.kubectl("delete", "-k", str(tmp_path))
    cluster.kubectl("delete", "rolebinding", "group-hygiene-secrets", "-n", "kafka", "--ignore-not-found")
    _assert_left(cluster, before, _CRDS | _USERS_OBJECTS)
