"""Scenarios in which one guard prevents errors, and the figure of the audit that rises without that guard.

The Lease is checked right before a deletion, and removing it alone costs no group: see `faults.reckless.lease`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from testing.faults import races
from testing.faults.auditor import Audit
from testing.faults.errors import Broken, FaultsError
from testing.faults.kafka_proxy import When
from testing.faults.operators import LEASE_SECONDS
from testing.faults.requests import Exchange
from testing.faults.stage import Stage
from testing.faults.steps import Point, one_round

_END_SECONDS = 30.0
# Longer than evidence is fresh, and shorter than an intent is valid.
_SLOW_SECONDS = 4.0


@dataclass(frozen=True)
class Guard:
    """name: of `faults.reckless`, joined by + if another guard makes up for one alone.

    figure: must not be 0 without it. scenario: the figure is 0 in it with the guard.
    """

    name: str
    figure: str
    scenario: Callable[[Stage], None]
    count: Callable[[Audit], int]


def frozen_before_delete(stage: Stage) -> None:
    """The leader is frozen right before DeleteGroups; its successor deletes, the groups are made again, it resumes."""
    with stage.world(2) as world:
        stage.tried += 1
        one_round(world, Point("freeze", "intent-end", When.BETWEEN))


def changed_while_the_ledger_is_slow(stage: Stage) -> None:
    """The ledger is slow to acknowledge a backup, and the group commits meanwhile: it stays."""
    with stage.world(lease=30) as world:
        names = world.abandon(4)
        world.until_marked(names)

        def use(_: Exchange) -> None:
            world.commit(names[0], 9)
            world.truth.stays(names[:1], "it committed after it was read again, and long before the request")
            time.sleep(_SLOW_SECONDS)

        rule = world.at("intent-end", When.BETWEEN, use)
        world.run()
        rule.wait("the ledger is slow")
        stage.tried += 1
        if names[0] not in world.groups.listed():
            raise Broken("a group that committed was deleted")
        world.truth.free(names[:1])
        world.until_deleted(names)


def marked_late(stage: Stage) -> None:
    """The leader is frozen while it writes marks, and resumes when its successor has set later dates: those hold."""
    with stage.world(2, grace=20.0) as world:
        leader, names = world.replicas.leader(), world.abandon(3)
        released = threading.Event()

        def freeze(_: Exchange) -> None:
            leader.freeze()
            released.wait(120)

        rule = world.at("mark-produce", When.BEFORE, freeze)
        try:
            world.until_deleted(names, rule.fired.is_set)
            stage.tried += 1
            frozen = time.monotonic()
            world.replicas.another_leader(leader)
            world.until_marked(names)
            time.sleep(max(0.0, frozen + LEASE_SECONDS + 2 - time.monotonic()))
        finally:
            released.set()
            leader.thaw()
        leader.wait(_END_SECONDS)
        world.until_deleted(names)


def killed_at_delete(stage: Stage) -> None:
    """The leader is killed before the response to DeleteGroups: its successor finds the outcome, and records it."""
    with stage.world() as world:
        leader, names = world.replicas.leader(), world.abandon(3)
        world.kill_at_delete(leader, names)
        stage.tried += 1
        world.start(1)
        world.replicas.another_leader(leader)
        world.until_deleted(names)


def more_are_due_than_a_run_may_delete(stage: Stage) -> None:
    """More groups are due than maxPerRun: each run deletes at most so many, until all are gone."""
    with stage.world(policy={"delete": {"gracePeriod": "1s", "maxPerRun": 2, "maxPercent": 100}}) as world:
        names = world.abandon(5)
        stage.tried += 1
        world.until_deleted(names)


def plainly(stage: Stage) -> None:
    """Without a fault: abandoned groups are deleted, each has a backup, and all is recorded."""
    with stage.world() as world:
        stage.tried += 1
        world.until_deleted(world.abandon(4))


def grace_not_over(stage: Stage) -> None:
    """Groups are marked, and their grace period is not over."""
    with stage.world(grace=3600.0) as world:
        names = world.abandon(4)
        world.truth.stays(names, "its grace period is not over")
        world.until_marked(names)
        stage.tried += 1
        world.runs_and_keeps(names)


def too_many_are_due(stage: Stage) -> None:
    """More than maxPercent of the cluster's groups are due: none of them is deleted."""
    spec = {"delete": {"gracePeriod": "1s", "maxPerRun": 100, "maxPercent": 1}}
    with stage.world(policy=spec) as world:
        names = world.abandon(60)
        there = len(world.groups.listed())
        if len(names) * 100 <= there:
            raise FaultsError(f"of {there} groups these are no more than 1%: others left theirs")
        world.truth.stays(names, "more than 1% of all groups were due")
        world.until_marked(names)
        stage.tried += 1
        world.runs_and_keeps(names)
        if "LimitExceeded" not in world.reasons():
            raise Broken(f"the status does not show it: {world.summary()}")


GUARDS = (
    Guard(
        "lease+fresh+window+unedited+sole",
        "groups wrongly deleted",
        frozen_before_delete,
        lambda audit: len(audit.wrong),
    ),
    Guard("fresh+window", "groups wrongly deleted", changed_while_the_ledger_is_slow, lambda audit: len(audit.wrong)),
    Guard("fence", "groups wrongly deleted", marked_late, lambda audit: len(audit.wrong)),
    Guard("re-read", "groups wrongly deleted", races.changed_after_the_scan, lambda audit: len(audit.wrong)),
    Guard("backup", "backups missing", plainly, lambda audit: len(audit.no_backup)),
    Guard("intent", "deletions unrecorded", killed_at_delete, lambda audit: len(audit.unrecorded)),
    Guard("mark-date", "groups wrongly deleted", grace_not_over, lambda audit: len(audit.wrong)),
    Guard("max-percent", "groups wrongly deleted", too_many_are_due, lambda audit: len(audit.wrong)),
    Guard("max-per-run", "groups wrongly deleted", more_are_due_than_a_run_may_delete, lambda audit: len(audit.wrong)),
)
