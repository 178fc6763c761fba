"""`python -m testing.sandbox up`: both parts, an environment file, and nothing left at the end."""

import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from testing.sandbox.waiting import wait_for

pytestmark = pytest.mark.slow  # of what the tutorial uses

ROOT = Path(__file__).parents[2]
CONNECTIONS, POLICIES = "kafkaconnections.grouphygiene.io", "grouppolicies.grouphygiene.io"
# The first is allowed, and shows when the role is effective.
ROLES = {
    "view": {f"get {POLICIES}": True, "get configmaps": True, f"create {POLICIES}": False},
    "edit": {f"create {POLICIES}": True, "create configmaps": True, f"create {CONNECTIONS}": False},
    "admin": {f"create {CONNECTIONS}": True, f"create {POLICIES}": True, "create rolebindings": True},
}


def _says(text: str, command: list[str], folder: Path) -> bool:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout.strip() == text


def test_up_serves_until_sigterm(tmp_path: Path) -> None:
    """The environment file leads to a Kafka and an API server with the CRDs and the roles of users; it goes with them.

    A tenant with a role of Kubernetes has its rights, and those on the custom resources.
    """
    # A copy, so that a sandbox which somebody has up in this folder is left alone.
    shutil.copytree(ROOT / "testing", tmp_path / "testing")
    shutil.copytree(ROOT / "crds", tmp_path / "crds")
    roles = Path("deploy", "kustomize", "overlays", "cluster-wide", "rbac-users.yaml")
    (tmp_path / roles.parent).mkdir(parents=True)
    shutil.copy(ROOT / roles, tmp_path / roles)
    file = tmp_path / ".sandbox" / "env"
    up = subprocess.Popen(
        [sys.executable, "-m", "testing.sandbox", "up"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: file.exists() or up.poll() is not None, seconds=600)
        script = ". .sandbox/env; echo $BOOTSTRAP_SERVERS; kubectl get crds -o name"
        sourced = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert sourced.stdout.startswith("127.0.0.1:")
        assert POLICIES in sourced.stdout
        for role, rights in ROLES.items():
            create = f"kubectl create rolebinding {role} --clusterrole={role} --user={role}"
            subprocess.run(["sh", "-c", f". .sandbox/env; {create}"], cwd=tmp_path, check=True, capture_output=True)
            for right, allowed in rights.items():
                ask = ["sh", "-c", f". .sandbox/env; kubectl auth can-i {right} --as {role}"]
                wait_for(partial(_says, "yes" if allowed else "no", ask, tmp_path))
        second = [sys.executable, "-m", "testing.sandbox", "up"]
        refused = subprocess.run(second, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert "up already" in refused.stderr
    finally:
        up.send_signal(signal.SIGTERM)
        output, _ = up.communicate(timeout=300)
    assert up.returncode == 0
    assert "source .sandbox/env" in output
    assert not file.exists()
