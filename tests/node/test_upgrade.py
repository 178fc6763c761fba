"""An upgrade from release 0.1.0, and the way back, while the operator deletes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults.enforcement import LOOK_SECONDS, Enforcement
from sandbox.node import Node
from sandbox.node.kafka import NodeKafka
from tests.node import first_release, release
from tests.node.enforcing import SECONDS, assert_all_is_well, enforcing

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


def test_an_upgrade_from_the_first_release_and_back_costs_no_group(
    node: Node, kafka: NodeKafka, no_release: None, tmp_path: Path
) -> None:
    """By `helm upgrade` of chart and image, to today's, back, and again; the auditor finds nothing after each."""
    chart = first_release.prepare(node, tmp_path)
    secrets = f"rbac.secretNamespaces={{{_SPACE}}}"
    kafka.publish_secrets(_SPACE)

    def to_the_first_release() -> None:
        release.install(node, secrets, *first_release.VALUES, chart=chart)

    def to_today() -> None:
        release.install(node, secrets)

    to_the_first_release()
    with enforcing(node, kafka, _SPACE) as enforcement:
        for move in (to_today, to_the_first_release, to_today):
            assert_all_is_well(enforcement, _delete_during(enforcement, move))
        # Pods of each version deleted something.
        assert len(enforcement.auditor.runs()) >= 3
