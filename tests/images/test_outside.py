"""What the workflow runs in kind, on this machine's own parts: the demo's groups and checks, by kubectl's context."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.manifests import operators_account
from tests.e2e.conftest import ROOT, new_world, running_operator


def test_the_checks_hold_on_a_cluster_that_is_there(tmp_path: Path) -> None:
    """As for any user's cluster: a broker, an API server with the operator, and an empty Kafka."""
    with new_world() as world, KafkaCluster() as kafka:
        account = operators_account(world.server)
        with running_operator(account, tmp_path / "operator.log", "--lease-duration", "180"):
            argv = [sys.executable, "-m", "testing.sandbox.outside", "--bootstrap-server", kafka.bootstrap_servers]
            environment = {**os.environ, "KUBECONFIG": str(world.server.kubeconfig), "PYTHONPATH": f"{ROOT}/operator"}
            done = subprocess.run(
                [*argv, "--inside", kafka.bootstrap_servers],
                env=environment,
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 perf-consumer-{digits}" in done.stdout
