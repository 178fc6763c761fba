"""Whatever breaks on a node while the operator deletes: no group goes that must stay, and none without a record."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from testing.faults.enforcement import Enforcement
from testing.sandbox.node import Node
from testing.sandbox.node.kafka import NodeKafka
from testing.sandbox.waiting import wait_for
from tests.node import release
from tests.node.enforcing import SECONDS, assert_all_is_well, enforcing, strike

_SPACE = "enforced"
_OUTAGE_SECONDS = 60.0


@pytest.fixture(scope="module")
def enforcement(node: Node, kafka: NodeKafka) -> Iterator[Enforcement]:
    """The operator as the chart installs it, two replicas, and a policy."""
    kafka.publish_secrets(_SPACE)
    release.install(node, f"rbac.secretNamespaces={{{_SPACE}}}")
    with enforcing(node, kafka, _SPACE) as made:
        yield made
    release.remove_everything(node)


class Leader(NamedTuple):
    """The pod that led when a fault came, and how often its container had been started again by then."""

    node: Node
    pod: str
    restarts: int


class Fault(NamedTuple):
    """strike: what happens to the leader, or to the node. recover: what happens then."""

    strike: Callable[[Leader], None]
    recover: Callable[[Leader], None]


def _delete(leader: Leader) -> None:
    leader.node.kubectl("delete", "pod", leader.pod, "-n", release.NAME, "--wait=false")


def _delete_at_once(leader: Leader) -> None:
    leader.node.kubectl("delete", "pod", leader.pod, "-n", release.NAME, "--grace-period=0", "--force")


def _kill(leader: Leader) -> None:
    leader.node.signal_container(release.NAME, leader.pod, signal.SIGKILL)


def _freeze(leader: Leader) -> None:
    leader.node.signal_container(release.NAME, leader.pod, signal.SIGSTOP)


def _another_leads(leader: Leader) -> None:
    node = leader.node
    wait_for(lambda: release.leader(node) not in ("", leader.pod), lambda: release.explain(node), SECONDS)


def _is_restarted(leader: Leader) -> None:
    node, once_more = leader.node, leader.restarts + 1
    wait_for(lambda: release.restarts(node).get(leader.pod) == once_more, lambda: release.explain(node), SECONDS)


def _is_restarted_after_another_leads(leader: Leader) -> None:
    _another_leads(leader)
    _is_restarted(leader)


def _start_kubelet(leader: Leader) -> None:
    time.sleep(_OUTAGE_SECONDS)
    leader.node.start_kubelet()


def _runs_on(leader: Leader) -> None:
    assert release.restarts(leader.node)[leader.pod] == leader.restarts


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(_delete, _another_leads), id="the-leaders-pod-is-deleted"),
        pytest.param(Fault(_delete_at_once, _another_leads), id="the-leaders-pod-is-deleted-without-grace"),
        pytest.param(Fault(_kill, _is_restarted), id="the-leaders-container-is-killed"),
        pytest.param(Fault(_freeze, _is_restarted_after_another_leads), id="the-leader-freezes-until-a-probe-ends-it"),
        pytest.param(Fault(lambda leader: leader.node.restart_containerd(), _runs_on), id="containerd-restarts"),
        pytest.param(
            Fault(lambda leader: leader.node.stop_kubelet(), _start_kubelet), id="the-kubelet-is-stopped-for-a-minute"
        ),
        pytest.param(Fault(lambda leader: leader.node.restart_api_server(), _runs_on), id="the-api-server-restarts"),
    ],
)
def test_a_fault_amid_a_deletion_costs_no_group(node: Node, enforcement: Enforcement, fault: Fault) -> None:
    """0 groups wrongly deleted, 0 backups missing, 0 deletions unrecorded, and all that were to go are gone."""
    release.wait_ready(node)
    wait_for(lambda: release.leader(node) in release.restarts(node), lambda: release.explain(node), SECONDS)
    pod = release.leader(node)
    leader = Leader(node, pod, release.restarts(node)[pod])
    names = strike(enforcement, lambda: fault.strike(leader))
    fault.recover(leader)
    assert_all_is_well(enforcement, names)
