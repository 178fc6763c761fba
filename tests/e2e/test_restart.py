"""An operator that is stopped or killed: what it knew is in the ledger, so that the next one goes on with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import install_crds
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import Groups, Object, World, connection, policy, running_operator

NAMESPACE = "restarted"
# Killed, it leaves its Lease behind, and the next one waits for its end.
FLAGS = ("--leader-election-namespace", "default")


@pytest.fixture(scope="module")
def other() -> Iterator[World]:
    """An API server of its own: the operators of these tests must be the only ones."""
    with ApiServer() as server:
        install_crds(server)
        yield World(server)


def dates(world: World) -> dict[str, str] | None:
    """What the policy's status says of its group: unchanged, marked and due since when; None = not marked."""
    sample = world.get("kgp", NAMESPACE, "p").get("status", {}).get("sample") or [{}]
    return (
        {key: sample[0][key] for key in ("unchangedSince", "markedSince", "dueTime")}
        if ("markedSince" in sample[0])
        else None
    )


def dates_of_a_new_run(world: World, max_per_run: int) -> dict[str, str] | None:
    """The dates by a status of the operator that runs now: a changed limit makes it write one, and decides nothing."""
    patch = f'{{"spec":{{"delete":{{"maxPerRun":{max_per_run}}}}}}}'
    world.server.kubectl("patch", "kgp", "p", "-n", NAMESPACE, "--type=merge", "-p", patch)

    def written() -> bool:
        obj: Object = world.get("kgp", NAMESPACE, "p")
        return bool(obj["status"]["observedGeneration"] == obj["metadata"]["generation"])

    wait_for(written)
    return dates(world)


def test_dates_outlive_the_process(other: World, kafka: KafkaCluster, groups: Groups, tmp_path: Path) -> None:
    """Since when a group is unchanged and marked, and when it is due, stay as they are: after a stop and a kill -9."""
    other.namespace(NAMESPACE, secrets=False)
    topic = groups.topic("restarted")
    groups.produce(topic)
    groups.abandoned("restarted-old", topic)
    groups.produce(topic)
    delete = {"gracePeriod": "1h", "maxPercent": 100}
    other.apply(
        connection(NAMESPACE, kafka.bootstrap_servers, ledger={"topic": "restarted-ledger"}),
        # Two looks further apart than two intervals count as missed ones: a kill must be shorter. Edits make it look.
        policy(NAMESPACE, "p", match={"groups": ["restarted-*"]}, mode="Enforce", interval="5m", delete=delete),
    )
    kubeconfig = other.server.kubeconfig
    with running_operator(kubeconfig, tmp_path / "log-1", *FLAGS) as first:
        numbers = itertools.count(1)
        before = wait_for(lambda: dates_of_a_new_run(other, next(numbers)))
        assert dates_of_a_new_run(other, 41) == before, "nor does a rescan move them"
        assert first.stop() == 0
    with running_operator(kubeconfig, tmp_path / "log-2", *FLAGS) as second:
        assert dates_of_a_new_run(other, 42) == before
        second.kill(other.server, "default")
    with running_operator(kubeconfig, tmp_path / "log-3", *FLAGS) as third:
        assert dates_of_a_new_run(other, 43) == before
        assert third.stop() == 0
    assert "restarted-old" in groups.names()


def test_everything_can_be_deleted_without_an_operator(other: World) -> None:
    """With no operator running, a policy, a connection and their namespace can be deleted at once."""
    other.server.kubectl("delete", "kgp,kconn", "--all", "-n", NAMESPACE, "--timeout=60s")
    assert "No resources found" in other.server.kubectl("get", "kgp,kconn", "-n", NAMESPACE).stderr
    other.server.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
