"""Scenarios: commands that delete are killed, and no operator runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from testing.faults.errors import Broken
from testing.faults.kafka_proxy import Rule, Then, When
from testing.faults.operators import ROOT
from testing.faults.requests import DELETE_GROUPS, OFFSET_DELETE, Exchange
from testing.faults.stage import Stage
from testing.faults.world import World

# Longer than a command leaves intents of other commands alone.
_SETTLING_SECONDS = 135.0
_OPTIONS = ("--force", "--yes", "--without-connection")


def killed_commands(stage: Stage) -> None:
    """`delete` and `delete-offsets` are killed while they delete, and no operator runs: a later command records it."""
    with stage.world() as world:
        # The operator creates the ledger.
        world.run()
        world.replicas.leader().kill()
        whole, part, last = (f"{world.name}-{name}" for name in ("whole", "part", "last"))
        other = world.groups.topic(f"{world.name}-other")
        world.groups.abandon({name: {(world.topic, 0): 3, (world.topic, 1): 4} for name in (whole, last)})
        world.groups.commit(part, {(other, 0): 5})
        member = world.groups.member(part, world.topic)
        try:
            _kill_at(world, DELETE_GROUPS, "delete", whole)
            _kill_at(world, OFFSET_DELETE, "delete-offsets", part, "--topic", other)
            stage.tried += 2
            time.sleep(_SETTLING_SECONDS)
            world.command("delete", last, *_OPTIONS)
        finally:
            member.leave()
        for name, what in ((whole, "Deleted"), (part, "OffsetsDeleted"), (last, "Deleted")):
            _has_its_outcome(world, name, what)


def _kill_at(world: World, api: int, *arguments: str) -> None:
    """Run a command through the proxy, and kill it after the broker carried out its request, before the response."""
    running: list[subprocess.Popen[bytes]] = []

    def kill(_: Exchange) -> Then:
        running[0].kill()
        return Then.DROP

    rule = world.proxy.rule(Rule(lambda exchange: not exchange.sender and exchange.api == api, When.BETWEEN, kill))
    command = [sys.executable, "-m", "group_hygiene.cli", *arguments, *_OPTIONS, "--ledger-topic", world.ledger_topic]
    command += ["--bootstrap-server", world.proxy.bootstrap_servers]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator")}
    running.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    try:
        running[0].wait(90)
    finally:
        running[0].kill()
        running[0].wait()
    rule.wait(f"{arguments[0]} is killed", 1)


def _has_its_outcome(world: World, name: str, what: str) -> None:
    world.ledger.read()
    records = world.ledger.latest()
    if ("intent", name) in records:
        raise Broken(f"{name}: its intent is open")
    kinds = [key[3] for key in records if key[:2] == ("outcome", name) and key[3] != "Unmarked"]
    if kinds != [what]:
        raise Broken(f"{name}: its outcomes are {kinds}, not {what}")
    if not any(key[:2] == ("backup", name) for key in records):
        raise Broken(f"{name}: it has no backup")
