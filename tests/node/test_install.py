"""The operator is installed as users install it: what it is given becomes Ready, and what is removed is gone."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testing.sandbox.manifests import CRDS, OVERLAYS
from testing.sandbox.node.given import Cluster
from testing.sandbox.waiting import wait_for
from tests import install_page
from tests.node import release
from tests.node.objects import objects

QUICKSTART = str(release.ROOT / "examples" / "quickstart.yaml")
_READY = "-o=jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
_CRDS = {
    *(
        f"CustomResourceDefinition//{name}.grouphygiene.io"
        for name in ("kafkaconnections", "grouppolicies", "grouprestores", "groupkeeps")
    ),
    # Kubernetes' own, as long as there are CRDs of the group.
    "APIService//v1alpha1.grouphygiene.io",
}
_USERS_OBJECTS = {"KafkaConnection/kafka/main", "GroupPolicy/kafka/random-ids"}
_AS_OPERATOR = f"--as=system:serviceaccount:{release.NAME}:{release.NAME}"
# What Kubernetes makes in each namespace, and the Lease that the operator makes in its own.
_NAMESPACE = {
    f"Namespace//{release.NAME}",
    f"ConfigMap/{release.NAME}/kube-root-ca.crt",
    f"ServiceAccount/{release.NAME}/default",
    f"Lease/{release.NAME}/{release.NAME}",
}

pytestmark = pytest.mark.usefixtures("kafka", "no_release")


def _commands() -> list[list[str]]:
    """The commands of the README's section on installation, as words."""
    section = (release.ROOT / "README.md").read_text().partition("\n## Install\n")[2]
    block = re.search(r"```\w*\n(.*?)```", section, re.DOTALL)
    assert block is not None
    lines = block[1].replace("\\\n", " ").splitlines()
    return [
        shlex.split(line.replace("REGISTRY/group-hygiene", release.REPOSITORY), comments=True) for line in lines if line
    ]


def _removal_of_the_binding() -> list[str]:
    """What docs/install.md says to do after `kubectl delete -k`."""
    section = (release.ROOT / "docs" / "install.md").read_text().partition("\n## Uninstall\n")[2]
    command = re.search(r"`kubectl (delete rolebinding [^`]+)`", section.partition("\n## ")[0])
    assert command is not None
    return command[1].split()


def _wait_ready(cluster: Cluster, seconds: float = 60) -> float:
    """Until the quickstart's connection and policy are Ready: how many seconds that took. No container starts twice."""

    def ready() -> bool:
        return cluster.kubectl("get", "kconn,kgp", "-n", "kafka", _READY).stdout.split() == ["True", "True"]

    started = time.monotonic()
    wait_for(ready, lambda: release.explain(cluster), seconds)
    assert set(release.restarts(cluster).values()) == {0}
    return time.monotonic() - started


def _assert_confined(cluster: Cluster, before: dict[str, str]) -> None:
    """What was made is in no namespace, in the operator's own, or in that of the connection."""
    assert {name.split("/")[1] for name in objects(cluster).keys() - before.keys()} == {"", release.NAME, "kafka"}


def _assert_left(cluster: Cluster, before: dict[str, str], left: set[str]) -> None:
    """Wait until exactly these are there that were not; all others are there, and none was recreated."""

    def explain() -> str:
        now = objects(cluster)
        recreated = [name for name, uid in before.items() if now.get(name, uid) != uid]
        wanted = before.keys() | left
        return (
            f"too many: {sorted(now.keys() - wanted)}, missing: {sorted(wanted - now.keys())}, recreated: {recreated}"
        )

    def is_left() -> bool:
        now = objects(cluster)
        return now.keys() == before.keys() | left and before.items() <= now.items()

    wait_for(is_left, explain, 120)


def test_the_commands_of_the_readme_lead_to_ready_within_a_minute(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    """Each command as it stands there, and `doctor` finds nothing that failed; the minute begins before the first one.

    `helm uninstall` leaves the CRDs, the users' objects, and the namespace with the Lease.
    """
    before = objects(cluster)
    install, apply, get, doctor = _commands()
    assert [words[0] for words in (install, apply, get, doctor)] == ["helm", "kubectl", "kubectl", "kubectl"]
    started = time.monotonic()
    release.run_as_it_is(cluster, *install[1:])
    cluster.kubectl(*apply[1:])
    _wait_ready(cluster, 60 - (time.monotonic() - started))
    record_property("seconds until Ready", time.monotonic() - started)
    assert "random-ids" in cluster.kubectl(*get[1:]).stdout
    found = cluster.kubectl(*doctor[1:], check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.startswith("✓ API server")
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
    """Pod Security `restricted` lets its pods in, they run as a user without a name, and write to few namespaces.

    `helm test` runs in a pod there, too, and leaves nothing.
    """
    before = objects(cluster)
    cluster.kubectl("create", "namespace", release.NAME)
    cluster.kubectl("label", "namespace", release.NAME, "pod-security.kubernetes.io/enforce=restricted")
    privileged = ("run", "refused", "-n", release.NAME, f"--image={release.IMAGE}", "--privileged")
    refused = cluster.kubectl(*privileged, check=False)
    assert 'violates PodSecurity "restricted' in refused.stderr
    release.install(cluster, *values)
    cluster.kubectl("apply", "-f", QUICKSTART)
    _wait_ready(cluster)
    assert cluster.kubectl("exec", "-n", release.NAME, f"deploy/{release.NAME}", "--", "id", "-u").stdout == f"{user}\n"
    release.run(cluster, "test", release.NAME)
    _assert_confined(cluster, before)
    release.uninstall(cluster)
    _assert_left(cluster, before, _CRDS | _USERS_OBJECTS | _NAMESPACE)


@pytest.mark.parametrize("overlay", ["cluster-wide", "namespaced"])
def test_the_overlays_of_kustomize(cluster: Cluster, tmp_path: Path, overlay: str) -> None:
    """By the kustomization and the commands of docs/install.md; `kubectl delete -k` leaves CRDs and users' objects."""
    before = objects(cluster)
    content = install_page.kustomization()
    assert content["resources"] == ["../deploy/kustomize/overlays/cluster-wide"]
    content["resources"] = [os.path.relpath(OVERLAYS / overlay, tmp_path.resolve())]
    content["images"][0]["newName"] = release.REPOSITORY
    (tmp_path / "kustomization.yaml").write_text(json.dumps(content))
    crds, apply, bind = install_page.commands()
    cluster.kubectl(*crds[1:])
    cluster.kubectl(*(str(tmp_path) if word == install_page.FOLDER else word for word in apply[1:]))
    if overlay == "cluster-wide":
        cluster.kubectl(*bind[1:])
    cluster.kubectl("apply", "-f", QUICKSTART)
    _wait_ready(cluster)
    _assert_confined(cluster, before)
    cluster.kubectl("delete", "-k", str(tmp_path))
    if overlay == "cluster-wide":
        cluster.kubectl(*_removal_of_the_binding())
    _assert_left(cluster, before, _CRDS | _USERS_OBJECTS)


@pytest.fixture
def team(cluster: Cluster) -> Iterator[str]:
    """Another namespace, and what an administrator creates before a release without rights on the cluster."""
    administrator = str(OVERLAYS / "namespaced" / "rbac-installation.yaml")
    cluster.kubectl("create", "namespace", "team-a")
    cluster.kubectl("apply", "--server-side", "-f", str(CRDS))
    cluster.kubectl("apply", "-f", administrator)
    yield "team-a"
    cluster.kubectl("delete", "-f", administrator)
    cluster.kubectl("delete", "namespace", "team-a")


def test_the_example_of_values_for_some_namespaces(cluster: Cluster, team: str) -> None:
    """By values/namespaced.yaml: a connection becomes Ready in one namespace, and elsewhere nothing is looked at."""
    values = release.CHART.parent / "values" / "namespaced.yaml"
    options = (f"--values={values}", f"--set=image.repository={release.REPOSITORY}")
    release.run(cluster, "install", release.NAME, release.CHART, "--create-namespace", *options)
    release.wait_ready(cluster)
    cluster.kubectl("apply", "-f", QUICKSTART)
    _wait_ready(cluster)
    assert cluster.kubectl("auth", "can-i", "get", "secrets", "-n", team, _AS_OPERATOR, check=False).stdout == "no\n"
    assert cluster.kubectl("auth", "can-i", "list", "kgp", "-n", team, _AS_OPERATOR).stdout == "yes\n"
    assert cluster.kubectl("auth", "can-i", "list", "kgp", "-A", _AS_OPERATOR, check=False).stdout == "no\n"
    release.uninstall(cluster)


def test_users_get_the_rights_of_their_roles(cluster: Cluster) -> None:
    """Kubernetes adds the chart's ClusterRoles to its own: view, edit and admin allow what the docs say."""
    release.apply(cluster, "rbac.secretNamespaces={kafka}")
    may = {
        "view": {"get kgp"},
        "edit": {"get kgp", "create kgp", "create kgr"},
        "admin": {"get kgp", "create kgp", "create kgr", "create kconn"},
    }
    for role, allowed in may.items():
        binding = ("rolebinding", f"people-{role}", "-n", "kafka")
        cluster.kubectl("create", *binding, f"--clusterrole={role}", f"--user={role}")

        def granted(role: str = role) -> set[str]:
            return {
                question
                for question in may["admin"]
                if cluster.kubectl(
                    *("auth", "can-i", *question.split(), "-n", "kafka", f"--as={role}"), check=False
                ).stdout
                == "yes\n"
            }

        wait_for(lambda: granted() == allowed, lambda: f"{granted()} instead of {allowed}", 30)  # noqa: B023
        cluster.kubectl("delete", *binding)
