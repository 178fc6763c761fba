"""One node for all tests of this folder, with the operator's image and a Kafka that pods reach.

A folder of its own: it needs Linux, root, and the image that `make images` builds. With NODE_KUBECONFIG, NODE_ADDRESS
and NODE_REPOSITORY (`make test-node KUBECONFIG=...` sets them) the tests run in a cluster that is there, but for those
that use the fixture `node`: they break it, or look into it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.sandbox.node import Node
from testing.sandbox.node.given import Cluster, GivenCluster
from testing.sandbox.node.kafka import NAMESPACE, NodeKafka
from testing.sandbox.place import direct
from testing.sandbox.waiting import wait_for
from tests.node import machine, release
from tests.node.release import IMAGE, REPOSITORY

# A file: the cluster is given.
_GIVEN = os.environ.get("NODE_KUBECONFIG") or None
_LEFT_OUT = pytest.StashKey[list[str]]()

__all__ = ["IMAGE", "REPOSITORY", "run_pod", "wait_for"]


@pytest.fixture(scope="session")
def files_before() -> list[machine.File]:
    """This machine before the first node starts."""
    return machine.files()


@pytest.fixture(scope="session")
def node(files_before: list[machine.File]) -> Iterator[Node]:
    """A node that is ready and has the operator's image."""
    release.require_current(IMAGE)
    with Node() as node:
        # For clients of this process, such as helm.
        os.environ.update(direct(node.address))
        node.load_image(IMAGE)
        yield node


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The node, or the cluster that is given, which has no other users."""
    if _GIVEN is None:
        yield request.getfixturevalue("node")
        return
    given = GivenCluster(Path(_GIVEN), os.environ["NODE_ADDRESS"])
    given.require_none(NAMESPACE, release.NAME, "team-a")
    yield given
    given.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")


@pytest.fixture(scope="session")
def kafka(cluster: Cluster) -> Iterator[NodeKafka]:
    """One broker with TLS and SCRAM and room for a proxy, and its Secrets and Service in the namespace kafka.

    It does not look every ten minutes for groups without offsets: their tombstones would make two reads of the offsets
    log differ.
    """
    with NodeKafka(cluster, config={"offsets.retention.check.interval.ms": "36000000"}, doors=1) as kafka:
        yield kafka


@pytest.fixture
def no_release(cluster: Cluster) -> Iterator[None]:
    """After the test, as after each other one, nothing of the operator is in the cluster but its image."""
    yield
    release.remove_everything(cluster)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a cluster that is given, leave out what needs a node of one's own; the summary names each."""
    if _GIVEN is None:
        return
    left_out = [item for item in items if "node" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    config.stash[_LEFT_OUT] = [item.nodeid for item in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Which tests were left out, and why."""
    for test in config.stash.get(_LEFT_OUT, []):
        terminalreporter.write_line(f"LEFT OUT {test}: it stops parts of its node, or looks into it")


def run_pod(cluster: Cluster, name: str, namespace: str, spec: dict[str, Any]) -> str:
    """Run a pod to its end, and return what it printed; fails unless it exits with 0."""
    metadata = {"name": name, "namespace": namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"restartPolicy": "Never", **spec}}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(pod))

    def phase() -> str:
        return cluster.kubectl("get", "pod", name, "-n", namespace, "-o=jsonpath={.status.phase}").stdout

    def explain() -> str:
        described = cluster.kubectl("describe", "pod", name, "-n", namespace, check=False).stdout
        return described + cluster.kubectl("logs", name, "-n", namespace, check=False).stdout

    wait_for(lambda: phase() in ("Succeeded", "Failed"), explain, 120)
    output = cluster.kubectl("logs", name, "-n", namespace).stdout
    assert phase() == "Succeeded", explain()
    cluster.kubectl("delete", "pod", name, "-n", namespace, "--wait=false")
    return output
