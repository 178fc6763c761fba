"""50,000 groups, with the memory that the chart gives the operator."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testing.bench.load import CONFIG
from testing.bench.purge import PREFIX, load
from testing.sandbox.node.given import Cluster
from testing.sandbox.node.kafka import NAMESPACE, NodeKafka
from testing.sandbox.waiting import wait_for
from tests.node import release

GROUPS = 50_000
_RUNS = 2
_MAX_PER_RUN = 500
_SECONDS = 600.0


@pytest.fixture
def many(cluster: Cluster, kafka: NodeKafka) -> Iterator[NodeKafka]:
    """A broker with so many abandoned groups of 10 committed partitions each, in the place of the other one."""
    with NodeKafka(cluster, config=CONFIG) as made:
        load(made.plaintext_bootstrap, GROUPS)
        yield made
    kafka.publish()


@pytest.mark.usefixtures("many", "no_release")
def test_the_default_memory_limit_holds(cluster: Cluster, record_property: Callable[[str, object], None]) -> None:
    """All groups are marked, and several runs delete: no container is ended and started again."""
    release.install(cluster, f"rbac.secretNamespaces={{{NAMESPACE}}}")
    limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in release.pods(cluster)]
    assert limits == [{"memory": "512Mi"}] * 2
    before = release.restarts(cluster)
    objects = [
        _object("KafkaConnection", "main", {**_quickstart_connection(cluster), "scan": {"timeout": "2m"}}),
        _object("GroupPolicy", "purge", _POLICY),
    ]
    cluster.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    started = time.monotonic()
    wait_for(lambda: _deleted(cluster) >= _RUNS * _MAX_PER_RUN, lambda: release.explain(cluster), _SECONDS)
    record_property("seconds until deleted", time.monotonic() - started)
    record_property("peak memory of each pod, bytes", _peaks(cluster))
    assert _status(cluster, "groups.matched") >= GROUPS - _deleted(cluster)
    # The same pods, in their first containers.
    assert release.restarts(cluster) == before == dict.fromkeys(before, 0)


_POLICY = {
    "connectionRef": {"name": "main"},
    # Two scans of so many groups are at most two intervals apart, also while other tests run.
    "interval": "20s",
    "mode": "Enforce",
    "match": {"groups": [f"{PREFIX}*"]},
    "when": {"unchangedFor": "1s"},
    "action": "Delete",
    "delete": {"gracePeriod": "1s", "maxPerRun": _MAX_PER_RUN, "maxPercent": 100},
}


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "grouphygiene.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def _quickstart_connection(cluster: Cluster) -> dict[str, Any]:
    quickstart = release.ROOT / "examples" / "quickstart.yaml"
    made = cluster.kubectl("create", "--dry-run=client", "-o=json", "-f", str(quickstart)).stdout
    return dict(json.JSONDecoder().raw_decode(made)[0]["spec"])


def _deleted(cluster: Cluster) -> int:
    return _status(cluster, "totals.deleted")


def _status(cluster: Cluster, field: str) -> int:
    shown = cluster.kubectl("get", "kgp", "purge", "-n", NAMESPACE, f"-o=jsonpath={{.status.{field}}}").stdout
    return int(shown or 0)


def _peaks(cluster: Cluster) -> list[int]:
    """As the kernel counts them, page cache included."""
    files = "/sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory/memory.max_usage_in_bytes"
    shell = f"for file in {files}; do [ ! -e $file ] || cat $file; done"
    names = [pod["metadata"]["name"] for pod in release.pods(cluster)]
    return [int(cluster.kubectl("exec", name, "-n", release.NAME, "--", "sh", "-c", shell).stdout) for name in names]
