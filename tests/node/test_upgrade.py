"""An upgrade from release 0.1.0 while the operator deletes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from faults.enforcement import LOOK_SECONDS, Enforcement
from sandbox.manifests import CRDS
from sandbox.node import Node
from sandbox.node.kafka import NodeKafka
from tests.node import first_release, release
from tests.node.enforcing import CONNECTION, SECONDS, assert_all_is_well, enforcing

_SPACE = "upgraded"
_GROUPS_AT_A_TIME = 40


def _delete_during(enforcement: Enforcement, what: Callable[[], None]) -> list[str]:
    """Let the policy delete groups, run by run, until something is done."""
    names = enforcement.abandon(_GROUPS_AT_A_TIME)
    enforcement.until_marked(names, SECONDS)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(what)
        while not running.done():
            names += enforcement.abandon(_GROUPS_AT_A_TIME)
            enforcement.run(running.done, SECONDS)
            time.sleep(LOOK_SECONDS)
        running.result()
    return names


def _program(node: Node) -> str:
    """Where the code lies that a pod of the operator runs."""
    python = ("/opt/group-hygiene/bin/python", "-c", "import group_hygiene; print(group_hygiene.__file__)")
    # Of the pods, some may be those of another version that are about to end.
    pod = max(release.pods(node), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))["metadata"]["name"]
    return node.kubectl("exec", pod, "-n", release.NAME, "--", *python).stdout


def _crds(node: Node) -> dict[str, Any]:
    """The specs of the CRDs, by name."""
    found = json.loads(node.kubectl("get", "-f", str(CRDS), "-o=json").stdout)["items"]
    return {crd["metadata"]["name"]: crd["spec"] for crd in found}


def test_an_upgrade_from_the_first_release_and_back_costs_no_group(
    node: Node, kafka: NodeKafka, no_release: None, tmp_path: Path
) -> None:
    """By `helm upgrade` of CRDs, chart and image, then the connection with the new names of its fields.

    In between the API server drops the old names, so nothing can connect, and nothing is deleted. As docs/upgrades.md
    says, the way back is by the image alone and leaves the CRDs: the first release refuses the new names.
    """
    chart = first_release.prepare(node, tmp_path)
    secrets = f"rbac.secretNamespaces={{{_SPACE}}}"
    kafka.publish_secrets(_SPACE)
    release.install(node, secrets, *first_release.VALUES, chart=chart)
    with enforcing(node, kafka, _SPACE, first_release.CONNECTION) as enforcement:
        names = enforcement.abandon(_GROUPS_AT_A_TIME)
        enforcement.until_marked(names, SECONDS)
        assert_all_is_well(enforcement, names)

        def to_today() -> None:
            release.install(node, secrets)
            assert _program(node).startswith("/opt/group-hygiene/")

        def upgrade() -> None:
            to_today()
            known = enforcement.connection_object()
            enforcement.kube.apply({**known, "spec": {**known["spec"], **CONNECTION}})

        def back_and_forth() -> None:
            before = _crds(node)
            release.install(node, secrets, *first_release.VALUES)
            assert _program(node).startswith("/opt/first-release/")
            assert _crds(node) == before
            to_today()

        assert _program(node).startswith("/opt/first-release/")
        for move in (upgrade, back_and_forth):
            assert_all_is_well(enforcement, _delete_during(enforcement, move))
        # Pods of each version deleted something.
        assert len(enforcement.auditor.runs()) >= 2
