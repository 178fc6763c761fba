"""Scenarios: an unfinished deletion, and changes by users before it is recovered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from testing.faults.errors import Broken
from testing.faults.kafka_proxy import When
from testing.faults.requests import Exchange
from testing.faults.stage import Stage
from testing.faults.world import World
from testing.sandbox.waiting import wait_for

# Longer than another process waits before it recovers an intent.
_SETTLING_SECONDS = 15.0


def policy_suspended_after_a_crash(stage: Stage) -> None:
    """The leader dies during a deletion, and its policy is suspended: the deletions are recorded nevertheless."""
    with _crashed(stage) as (world, names):
        world.kube.patch("GroupPolicy", world.name, "p", {"suspend": True})
        world.start(1)
        wait_for(lambda: world.settled(names), "all deletions are recorded", 90, 1.0)


def policy_deleted_after_a_crash(stage: Stage) -> None:
    """The leader dies during a deletion, and its policy is deleted: the deletions are recorded nevertheless."""
    with _crashed(stage) as (world, names):
        world.kube.delete("GroupPolicy", world.name, "p")
        world.start(1)
        wait_for(lambda: world.settled(names), "all deletions are recorded", 90, 1.0)


def restored_after_a_crash(stage: Stage) -> None:
    """The leader dies during a deletion, and a group is restored before another leads: its deletion is recorded."""
    with _crashed(stage) as (world, names):
        restored = names[0]
        world.command("restore", restored)
        world.truth.made({restored: world.groups.offsets(restored)})
        world.truth.stays([restored], "it was restored")
        world.start(1)

        def is_recorded() -> bool:
            return world.auditor.recorded(names) and not world.auditor.open_intents()

        wait_for(is_recorded, "all deletions are recorded", 90, 1.0)
        world.runs_and_keeps([restored])
        _counted(world, len(names))


def outcome_unwritten(stage: Stage) -> None:
    """The leader loses Kafka before it can write its outcomes: they are reported later, and counted once."""
    with stage.world() as world:
        leader, names = world.replicas.leader(), world.abandon(4)
        rule = world.at("outcome-add", When.BEFORE, lambda exchange: world.proxy.cut(exchange.sender))
        world.until_deleted(names, rule.fired.is_set)
        stage.tried += 1
        # It logs the outcome of each group at the end of the run.
        wait_for(lambda: repr(names[0]) in leader.log(), "it gave up writing", 120, 1.0)
        world.proxy.mend(leader.name)
        world.until_deleted(names)
        world.run()
        _counted(world, len(names))


def two_connections_to_one_cluster(stage: Stage) -> None:
    """Another connection with the same cluster and ledger runs during a deletion: it does not interfere."""
    with stage.world() as world:
        connection, policy = world.connection_object(), world.policy_object()
        connection["metadata"]["name"] = policy["spec"]["connectionRef"]["name"] = "second"
        policy["metadata"]["name"] = "q"
        policy["spec"]["match"] = {"groups": [f"{world.name}-nothing-*"]}
        world.kube.apply(connection)
        world.kube.apply(policy)
        names = world.abandon(3)

        def other(_: Exchange) -> None:
            world.kube.patch("GroupPolicy", world.name, "q", {"delete": {"maxPerRun": 77}})
            # So that it finds the intents; not longer than their writer waits for the answer.
            time.sleep(1.0)

        rule = world.at("delete", When.BETWEEN, other)
        world.until_deleted(names, rule.done.is_set)
        stage.tried += 1
        world.until_deleted(names)
        time.sleep(_SETTLING_SECONDS)
        world.ledger.read()
        for name in names:
            outcomes = [
                record.value for record in world.ledger.of("outcome", name) if record.value["what"] != "Unmarked"
            ]
            if [outcome["message"].partition(";")[0] for outcome in outcomes] != ["deleted"] or any(
                "interrupted" in outcome["message"] for outcome in outcomes
            ):
                raise Broken(f"{name}: another connection recorded its deletion: {outcomes}")
        _counted(world, len(names))


@contextmanager
def _crashed(stage: Stage) -> Iterator[tuple[World, list[str]]]:
    """Groups that were deleted by a process that was killed before it got the response."""
    with stage.world() as world:
        leader, names = world.replicas.leader(), world.abandon(3)
        world.kill_at_delete(leader, names)
        stage.tried += 1
        yield world, names


def _counted(world: World, deleted: int) -> None:
    count = (world.status().get("totals") or {}).get("deleted")
    if count != deleted:
        raise Broken(f"{deleted} groups were deleted, and status.totals.deleted is {count}")
