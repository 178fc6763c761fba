"""Scenarios: a consumer uses a group while it is being restored. Its commits must stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from testing.faults.errors import Broken
from testing.faults.groups import Offsets
from testing.faults.kafka_proxy import Rule, When
from testing.faults.kube import Object
from testing.faults.operators import ROOT, OperatorProcess
from testing.faults.requests import OFFSET_FETCH, Exchange, requires_stable
from testing.faults.stage import Stage
from testing.faults.world import World
from testing.sandbox.waiting import wait_for

# A restore reads the committed offsets before it writes its start, after that, and right before its commit.
_READS = 3
_END_SECONDS = 30.0
# Longer than any read is good for.
_STANDSTILL_SECONDS = 4.0


def frozen_in_a_restore(stage: Stage) -> None:
    """The leader is frozen after a read of a restore; its successor restores, a consumer commits, it resumes."""
    # Long enough that earlier requests are not repeated after it resumed.
    with stage.world(2, connection={"scan": {"timeout": "10m"}}) as world:
        for read in range(_READS):
            leader, (name,) = world.replicas.leader(), world.abandon(1)
            world.until_deleted([name])

            def freeze(_: Exchange, leader: OperatorProcess = leader) -> None:
                leader.freeze()

            rule = world.proxy.rule(_at_read(leader.name, read, freeze))
            restore = f"r-{read}"
            world.kube.apply(_restore(world, restore, name))
            rule.wait("a restore reads the committed offsets")
            stage.tried += 1
            world.replicas.another_leader(leader)
            wait_for(partial(_is_over, world, restore), "the successor restores", 60)
            newer = _goes_on(world, name)
            leader.thaw()
            leader.wait(_END_SECONDS)
            _stays(world, name, newer)
            world.start(1)


def stopped_at_a_terminal(stage: Stage) -> None:
    """`group-hygiene restore` is stopped after a read, as by Ctrl-Z, and a consumer commits: it commits nothing."""
    with stage.world() as world:
        for read in range(_READS):
            (name,) = world.abandon(1)
            world.until_deleted([name])
            running: list[subprocess.Popen[bytes]] = []

            def stop(_: Exchange, name: str = name, running: list[subprocess.Popen[bytes]] = running) -> None:
                running[0].send_signal(signal.SIGSTOP)
                _goes_on(world, name)
                time.sleep(_STANDSTILL_SECONDS)
                running[0].send_signal(signal.SIGCONT)

            rule = world.proxy.rule(_at_read("", read, stop))
            running.append(_command(world, name))
            try:
                code = running[0].wait(60)
            finally:
                running[0].kill()
                running[0].wait()
            rule.wait("a restore reads the committed offsets", 1)
            stage.tried += 1
            if code == 0:
                raise Broken("it says that the group is restored")
            _stays(world, name, _newer(world))


def _at_read(sender: str, read: int, do: Callable[[Exchange], None]) -> Rule:
    """Act once, when a restore of this sender has sent its read, before it gets the response."""

    def matches(exchange: Exchange) -> bool:
        return exchange.sender == sender and exchange.api == OFFSET_FETCH and requires_stable(exchange)

    return Rule(matches, When.BETWEEN, do, skip=read)


def _restore(world: World, name: str, group: str) -> Object:
    return {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "GroupRestore",
        "metadata": {"name": name, "namespace": world.name},
        "spec": {"connectionRef": {"name": "main"}, "groups": [group]},
    }


def _is_over(world: World, name: str) -> bool:
    return "completionTime" in (world.kube.get("GroupRestore", world.name, name).get("status") or {})


def _command(world: World, group: str) -> subprocess.Popen[bytes]:
    """The command line, through the proxy, where it can be stopped."""
    command = [sys.executable, "-m", "group_hygiene.cli", "restore", group, "--ledger-topic", world.ledger_topic]
    command += ["--bootstrap-server", world.proxy.bootstrap_servers]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator")}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _newer(world: World) -> Offsets:
    return {(world.topic, 0): 9, (world.topic, 1): 9}


def _goes_on(world: World, name: str) -> Offsets:
    """Commit offsets for the group that no backup has."""
    newer = _newer(world)
    world.groups.commit(name, newer)
    world.truth.made({name: newer})
    world.truth.stays([name], "a consumer committed again")
    return newer


def _stays(world: World, name: str, newer: Offsets) -> None:
    now = world.groups.offsets(name)
    if now != newer:
        raise Broken(f"the offsets of {name} are {now}, over those that were committed since: {newer}")
