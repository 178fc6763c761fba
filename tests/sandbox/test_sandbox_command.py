"""`python -m sandbox up`: both parts, an environment file, and nothing left at the end."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.waiting import wait_for

pytestmark = pytest.mark.slow  # of what the tutorial uses

ROOT = Path(__file__).parents[2]
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}


def test_up_serves_until_sigterm(tmp_path: Path) -> None:
    """The environment file leads to a Kafka and an API server with the CRDs; it goes with them."""
    # A copy, so that a sandbox which somebody has up in this folder is left alone.
    shutil.copytree(ROOT / "sandbox", tmp_path / "sandbox")
    (tmp_path / "crds").mkdir()
    (tmp_path / "crds" / "things.yaml").write_text(json.dumps(CRD))
    file = tmp_path / ".sandbox" / "env"
    up = subprocess.Popen([sys.executable, "-m", "sandbox", "up"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: file.exists() or up.poll() is not None, seconds=600)
        script = ". .sandbox/env; echo $BOOTSTRAP_SERVERS; kubectl get crds -o name"
        sourced = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert sourced.stdout.startswith("127.0.0.1:")
        assert "things.example.com" in sourced.stdout
        second = [sys.executable, "-m", "sandbox", "up"]
        refused = subprocess.run(second, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert "up already" in refused.stderr
    finally:
        up.send_signal(signal.SIGTERM)
        output, _ = up.communicate(timeout=300)
    assert up.returncode == 0
    assert "source .sandbox/env" in output
    assert not file.exists()
