"""Scenarios: a replica that loses the API server or Kafka, and requests that arrive late."""

from __future__ import annotations

import threading
import time

from testing.faults.errors import Broken
from testing.faults.kafka_proxy import Then, When
from testing.faults.requests import DELETE_GROUPS, Exchange, deleted_groups
from testing.faults.stage import Stage
from testing.faults.world import World
from testing.sandbox.waiting import wait_for

_END_SECONDS = 30.0
# Longer than a lease and an intent of these replicas together.
_LONG_SECONDS = 12.0
# More than two minutes, and a Lease that outlives them.
_MINUTES_SECONDS, _LONG_LEASE = 130.0, 300
# Longer than these replicas wait for a response, and shorter than an intent's deadline; and longer than that.
_LATE_SECONDS, _VERY_LATE_SECONDS = 6.0, 18.0


def leader_without_api_server(stage: Stage) -> None:
    """The leader loses the API server during a deletion: another takes over, and never do both delete."""
    for step, when in (("reread-state", When.BETWEEN), ("intent-end", When.BETWEEN), ("delete", When.BETWEEN)):
        with stage.world(2) as world:
            leader, names = world.replicas.leader(), world.abandon(6)
            rule = world.at(step, when, lambda _, api=leader.api: api.cut())  # type: ignore[misc]
            world.until_deleted(names, rule.fired.is_set)
            stage.tried += 1
            world.replicas.another_leader(leader)
            if leader.wait(_END_SECONDS) == 0:
                raise Broken("it lost the lead, and exited without an error")
            world.until_deleted(names)
            leader.api.mend()
            _each_once(world)


def idle_leader_without_api_server(stage: Stage) -> None:
    """The leader loses the API server between runs: it ends in time, and its successor continues with its marks."""
    with stage.world(2) as world:
        leader, names = world.replicas.leader(), world.abandon(6)
        world.until_marked(names)
        leader.api.cut()
        stage.tried += 1
        successor = world.replicas.another_leader(leader)
        leader.wait(_END_SECONDS)
        world.until_deleted(names)
        _each_once(world)
        if any(exchange.sender != successor.name for exchange in world.proxy.seen(DELETE_GROUPS)):
            raise Broken("another process than the successor deleted")


def leader_without_kafka(stage: Stage) -> None:
    """The leader loses Kafka during a deletion, and keeps the lead: later it continues, and all is recorded."""
    for step, when in (("intent-produce", When.BETWEEN), ("delete", When.BETWEEN), ("outcome-end", When.BEFORE)):
        with stage.world(2) as world:
            leader, names = world.replicas.leader(), world.abandon(6)

            def cut(exchange: Exchange, world: World = world) -> None:
                world.proxy.cut(exchange.sender)

            rule = world.at(step, when, cut)
            world.until_deleted(names, rule.fired.is_set)
            stage.tried += 1
            time.sleep(_LONG_SECONDS)
            world.proxy.mend(leader.name)
            world.until_deleted(names)


def leader_without_kafka_dies(stage: Stage) -> None:
    """The leader loses Kafka after it sent DeleteGroups, and is killed: the request arrives afterwards."""
    with stage.world(2) as world:
        leader, names = world.replicas.leader(), world.abandon(6)
        arrives = threading.Event()

        def kill(_: Exchange) -> None:
            leader.kill()
            arrives.wait(60)

        rule = world.at("delete", When.BEFORE, kill)
        world.until_deleted(names, rule.fired.is_set)
        stage.tried += 1
        world.replicas.another_leader(leader)
        # The successor waits for the intent's deadline, so it sees the effect of a request that arrives before.
        time.sleep(3)
        arrives.set()
        world.until_deleted(names)


def late_delete(stage: Stage) -> None:
    """A DeleteGroups arrives after its sender's timeout, and before it reads the result: the record is right."""
    _late(stage, _LATE_SECONDS)


def very_late_delete(stage: Stage) -> None:
    """A DeleteGroups arrives after the intent's deadline: its groups have backups, and are recorded once seen."""
    _late(stage, _VERY_LATE_SECONDS)


def _late(stage: Stage, seconds: float) -> None:
    with stage.world() as world:
        names = world.abandon(6)
        rule = world.at("delete", When.BEFORE, lambda _: time.sleep(seconds))
        world.until_deleted(names, rule.fired.is_set)
        stage.tried += 1
        rule.wait("the request arrives")
        world.until_deleted(names)


def lost_answer(stage: Stage) -> None:
    """The response to DeleteGroups is lost, or its connection ends: the operator finds the outcome."""
    for then in (Then.SWALLOW, Then.DROP):
        with stage.world() as world:
            names = world.abandon(6)
            rule = world.at("delete", When.BETWEEN, lambda _, then=then: then)  # type: ignore[misc]
            world.until_deleted(names)
            stage.tried += rule.fired.is_set()


def api_server_down(stage: Stage) -> None:
    """The API server is down for minutes and loses its watches; a policy deleted meanwhile deletes nothing more.

    One leader survives with its long Lease; of two other replicas, the leader ends, and the other one leads once the
    API server is back.
    """
    with stage.world(lease=_LONG_LEASE) as one, stage.world(2) as two:
        worlds, leaders = (one, two), [world.replicas.leader() for world in (one, two)]
        names = {world.name: world.abandon(6) for world in worlds}
        for world in worlds:
            world.until_marked(names[world.name])
            for process in world.replicas.all:
                process.api.cut()
            stage.tried += 1
        time.sleep(_MINUTES_SECONDS / 2)
        for world in worlds:
            world.kube.delete("GroupPolicy", world.name, "p")
            world.truth.stays(names[world.name], "their policy was deleted while the API server was down")
            # A new watch cache begins at the present: a watch from an earlier version gets 410 Gone and must list.
            world.server.restart()
        time.sleep(_MINUTES_SECONDS / 2)
        for world in worlds:
            for process in world.replicas.all:
                process.api.mend()
        for world, leader in zip(worlds, leaders, strict=True):
            _goes_on(world, [f"{world.name}-new-*"])
            if leader.alive is not (world is one):
                raise Broken(f"{leader.name} {'survived' if leader.alive else 'ended'}")
            wait_for(lambda world=world: not world.marked(names[world.name]), "marks of a deleted policy end")  # type: ignore[misc]
            if set(names[world.name]) - world.groups.listed():
                raise Broken("groups of a deleted policy were deleted")


def _goes_on(world: World, groups: list[str]) -> None:
    """The leader runs a new policy."""
    policy = world.policy_object()
    policy["metadata"]["name"] = "q"
    policy["spec"]["match"] = {"groups": groups}
    world.kube.apply(policy)

    def ran() -> bool:
        return "lastRunTime" in (world.kube.get("GroupPolicy", world.name, "q").get("status") or {})

    wait_for(ran, "a policy that was made later runs", 120, 1.0)


def _each_once(world: World) -> None:
    """No group may be deleted by two processes: the second one would delete a group that was made again."""
    done: dict[str, str] = {}
    for exchange in world.proxy.seen(DELETE_GROUPS):
        for group, code in deleted_groups(exchange).items():
            if code != 0:
                continue
            if group in done:
                raise Broken(f"{group} was deleted by {done[group]} and by {exchange.sender}")
            done[group] = exchange.sender
