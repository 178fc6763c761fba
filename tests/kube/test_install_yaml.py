"""install.yaml of a release, on an API server that has nothing of this project."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import CRDS, OVERLAYS
from tests.kube.access import wait_until_allowed
from tests.kube.charts import ROOT, Object, objects, one, pod_of

_IMAGE = "registry.example.com/hygiene/group-hygiene:1.2.3"


@pytest.fixture(scope="module")
def bare() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As make writes it, from a copy of the files that it takes."""
    folder = tmp_path_factory.mktemp("release")
    shutil.copy(ROOT / "Makefile", folder)
    for name in ("crds", "deploy/kustomize"):
        shutil.copytree(ROOT / name, folder / name)
    refused = subprocess.run(
        ["make", "--no-print-directory", "install-yaml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stdout) == (2, "set IMAGE, the operator's image\n")
    subprocess.run(
        ["make", "--no-print-directory", "install-yaml", f"IMAGE={_IMAGE}"], cwd=folder, capture_output=True, check=True
    )
    return folder / "dist" / "install.yaml"


def _names(found: list[Object]) -> set[tuple[str, str, str]]:
    return {(obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]) for obj in found}


def test_one_command_installs_all_of_it(bare: ApiServer, file: Path) -> None:
    """By the command in its first line: first the CRDs, then the operator of all namespaces with the released image."""
    (command,) = re.findall(r"^# kubectl (apply [^:]+):", file.read_text())
    done = bare.kubectl(*command.replace("install.yaml", str(file)).split())
    found = objects(file.read_text())
    assert len(done.stdout.splitlines()) == len(found)
    crds = [obj for path in sorted(CRDS.glob("*.yaml")) for obj in objects(path.read_text())]
    kustomized = objects(bare.kubectl("kustomize", str(OVERLAYS / "cluster-wide")).stdout)
    assert _names(found) == _names(crds) | _names(kustomized)
    assert found[: len(crds)] == crds
    (container,) = pod_of(one(found, "Deployment"))["spec"]["containers"]
    assert container["image"] == _IMAGE
    assert "REPLACE-WITH" not in file.read_text()


def test_it_is_complete(bare: ApiServer, file: Path) -> None:
    """The CRDs are served, the operator may read them, users' objects are accepted, and a second apply is no error."""
    bare.wait_established("-f", str(CRDS))
    account = "--as=system:serviceaccount:group-hygiene:group-hygiene"
    wait_until_allowed(bare, account, "list", "grouppolicies", "-A")
    wait_until_allowed(bare, account, "patch", "kafkaconnections", "--subresource=status", "-A")
    bare.kubectl("create", "namespace", "kafka")
    bare.kubectl("apply", "-f", str(ROOT / "examples" / "quickstart.yaml"))
    bare.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
