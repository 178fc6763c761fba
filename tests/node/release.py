"""The operator in a cluster by its chart: install it, upgrade it, remove it, and ask who leads."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from group_hygiene import __version__
from testing.sandbox.errors import SandboxError
from testing.sandbox.helm import helm
from testing.sandbox.manifests import CRDS
from testing.sandbox.node.given import Cluster
from testing.sandbox.node.requirements import program

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "group-hygiene"
# Of a cluster that is given, where it has the image from.
REPOSITORY = os.environ.get("NODE_REPOSITORY") or "localhost/group-hygiene"
IMAGE = f"{REPOSITORY}:{__version__}"
PIPELINE_IMAGE = f"{REPOSITORY}-pipeline:{__version__}"
# The release, its namespace, its Deployment and its Lease have one name.
NAME = "group-hygiene"
_SECONDS = 180


def require_current(image: str) -> None:
    """Raise SandboxError if podman's image is not made of the sources of this checkout."""
    script = [str(ROOT / "deploy" / "images" / "build.sh"), "--source"]
    wanted = subprocess.run(script, capture_output=True, text=True, check=True).stdout.strip()
    inspect = [program("podman"), "image", "inspect", image]
    done = subprocess.run(inspect, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxError(f"the image {image} is missing: run make images")
    labels = json.loads(done.stdout)[0]["Config"].get("Labels") or {}
    if labels.get("group-hygiene.source") != wanted:
        raise SandboxError(f"the image {image} is older than this checkout: run make images")


def install(cluster: Cluster, *values: str, chart: Path = CHART) -> None:
    """Install or upgrade the release with these values (`name=value`), and wait until its pods are ready."""
    apply(cluster, *values, chart=chart)
    wait_ready(cluster)


def apply(cluster: Cluster, *values: str, chart: Path = CHART) -> None:
    """The same without waiting for the pods."""
    options = [f"--set={value}" for value in (f"image.repository={REPOSITORY}", *values)]
    run(cluster, "upgrade", "--install", NAME, chart, "--create-namespace", "--take-ownership", *options)


def uninstall(cluster: Cluster) -> None:
    """Remove the release as users do, and wait until its pods are gone; it need not be there."""
    run(cluster, "uninstall", NAME, "--wait", "--ignore-not-found")
    cluster.kubectl("wait", "pod", "--for=delete", "-n", NAME, "--all", f"--timeout={_SECONDS}s")


def remove_everything(cluster: Cluster) -> None:
    """The release, its namespace, the CRDs, and with them all policies and connections."""
    uninstall(cluster)
    cluster.kubectl("delete", "namespace", NAME, "--ignore-not-found")
    cluster.kubectl("delete", "-f", str(CRDS), "--ignore-not-found")
    # Nothing that Kubernetes makes for them, or that it removes later, is left for whoever compares.
    served = ("apiservice/v1alpha1.grouphygiene.io", "--for=delete", f"--timeout={_SECONDS}s")
    cluster.kubectl("wait", *served)


def run(cluster: Cluster, *arguments: str | Path) -> None:
    """One command of helm in the namespace of the release; raises SandboxError with its error text."""
    run_as_it_is(cluster, *arguments, f"--namespace={NAME}")


def run_as_it_is(cluster: Cluster, *arguments: str | Path) -> None:
    """The same with the namespace that the arguments name, if they name one."""
    done = helm(*arguments, f"--kubeconfig={cluster.kubeconfig}")
    if done.returncode != 0:
        raise SandboxError(f"helm {arguments[0]}: {done.stderr.strip()}")


def wait_ready(cluster: Cluster) -> None:
    """Wait until all pods are those of the last upgrade, and ready."""
    cluster.kubectl("rollout", "status", f"deployment/{NAME}", "-n", NAME, f"--timeout={_SECONDS}s")


def pods(cluster: Cluster) -> list[dict[str, Any]]:
    """The pods of the operator that are not being deleted."""
    found = json.loads(cluster.kubectl("get", "pods", "-n", NAME, "-o=json").stdout)["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def restarts(cluster: Cluster) -> dict[str, int]:
    """How often each pod's container was started again."""
    return {
        pod["metadata"]["name"]: status["restartCount"]
        for pod in pods(cluster)
        for status in pod["status"].get("containerStatuses", [])
    }


def leader(cluster: Cluster) -> str:
    """The pod that holds the Lease; empty = none."""
    wanted = "-o=jsonpath={.spec.holderIdentity}"
    return cluster.kubectl("get", "lease", NAME, "-n", NAME, wanted, check=False).stdout.rpartition("_")[0]


def explain(cluster: Cluster) -> str:
    """What a failure should show: the objects, and what the operator says."""
    shown = [
        ("get", "kconn,kgp,pods,leases,events", "-A"),
        ("describe", "pods", "-n", NAME),
        ("logs", "-n", NAME, "-l", f"app.kubernetes.io/name={NAME}", "--prefix", "--tail=40"),
    ]
    return "\n".join(cluster.kubectl(*command, check=False).stdout for command in shown)
