"""One node for all tests of this folder, with the operator's image and a Kafka that pods reach.

A folder of its own: it needs Linux, root, and the image that `make images` builds.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandbox.node import Node
from sandbox.node.kafka import NodeKafka
from sandbox.place import direct
from tests.node import release
from tests.node.release import IMAGE, REPOSITORY

__all__ = ["IMAGE", "REPOSITORY", "run_pod", "wait_for"]


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A node that is ready and has the operator's image."""
    with Node() as node:
        # For clients of this process, such as helm.
        os.environ.update(direct(node.address))
        node.load_image(IMAGE)
        yield node


@pytest.fixture(scope="session")
def kafka(node: Node) -> Iterator[NodeKafka]:
    """One broker with TLS and SCRAM and room for a proxy, and its Secrets and Service in the namespace kafka."""
    with NodeKafka(node, doors=1) as kafka:
        yield kafka


@pytest.fixture
def no_release(node: Node) -> Iterator[None]:
    """Before and after the test, nothing of the operator is on the node but its image."""
    release.remove_everything(node)
    yield
    release.remove_everything(node)


def wait_for(condition: Callable[[], bool], seconds: float, explain: Callable[[], str]) -> float:
    """Ask every half second until it holds, and return how many seconds that took; fails with `explain()`."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, explain()
        time.sleep(0.5)
    return time.monotonic() - started


def run_pod(node: Node, name: str, namespace: str, spec: dict[str, Any]) -> str:
    """Run a pod to its end, and return what it printed; fails unless it exits with 0."""
    metadata = {"name": name, "namespace": namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"restartPolicy": "Never", **spec}}
    node.kubectl("apply", "-f", "-", input=json.dumps(pod))

    def phase() -> str:
        return node.kubectl("get", "pod", name, "-n", namespace, "-o=jsonpath={.status.phase}").stdout

    def explain() -> str:
        described = node.kubectl("describe", "pod", name, "-n", namespace, check=False).stdout
        return described + node.kubectl("logs", name, "-n", namespace, check=False).stdout

    wait_for(lambda: phase() in ("Succeeded", "Failed"), 120, explain)
    output = node.kubectl("logs", name, "-n", namespace).stdout
    assert phase() == "Succeeded", explain()
    node.kubectl("delete", "pod", name, "-n", namespace, "--wait=false")
    return output
