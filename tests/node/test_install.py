"""The operator is installed as the README says, and what it is given becomes Ready."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.helm import helm
from sandbox.node import Node
from tests.node.conftest import REPOSITORY, wait_for

ROOT = Path(__file__).parents[2]
_READY = "-o=jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"


def _commands() -> list[list[str]]:
    """The commands of the README's section about a cluster, as words."""
    section = (ROOT / "README.md").read_text().partition("\n## On a cluster\n")[2]
    block = re.search(r"```\w*\n(.*?)```", section, re.DOTALL)
    assert block is not None
    lines = block[1].replace("\\\n", " ").splitlines()
    return [shlex.split(line.replace("REGISTRY/group-hygiene", REPOSITORY), comments=True) for line in lines if line]


@pytest.mark.usefixtures("kafka")
def test_the_commands_of_the_readme_lead_to_ready_within_a_minute(
    node: Node, record_property: Callable[[str, object], None]
) -> None:
    """KafkaConnection and GroupPolicy of the quickstart, from `helm install` on; no container starts twice."""
    install, apply, get, _ = _commands()
    assert install[:2] == ["helm", "install"]
    done = helm(*install[1:], f"--kubeconfig={node.kubeconfig}")
    assert done.returncode == 0, done.stderr
    assert apply[:2] == ["kubectl", "apply"]
    node.kubectl(*apply[1:])

    def ready() -> bool:
        return node.kubectl(*get[1:], _READY).stdout.split() == ["True", "True"]

    def explain() -> str:
        shown = [("get", "kconn,kgp,pods,events", "-A"), ("logs", "-n", "group-hygiene", "deploy/group-hygiene")]
        return "\n".join(node.kubectl(*command, check=False).stdout for command in shown)

    record_property("seconds until Ready", wait_for(ready, 60, explain))
    pods = json.loads(node.kubectl("get", "pods", "-n", "group-hygiene", "-o=json").stdout)["items"]
    assert [status["restartCount"] for pod in pods for status in pod["status"]["containerStatuses"]] == [0, 0]
