"""Scenarios: changes between a read and the deletion, and many deletions at once."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

from testing.faults.errors import Broken
from testing.faults.kafka_proxy import When
from testing.faults.requests import Exchange
from testing.faults.stage import Stage
from testing.faults.world import World
from testing.sandbox.waiting import wait_for

_MANY = 10_000
_STATUS_BYTES = 20_000
# Hours: longer than the retention of backups.
_MONTH = 31 * 24


def kept_during_a_run(stage: Stage) -> None:
    """A user runs `group-hygiene keep` during the run that deletes the group: once the command returns, it stays."""
    for step, when in (("note-end", When.AFTER), ("reread-state", When.BEFORE), ("reread-offsets", When.BETWEEN)):
        with stage.world() as world:
            names = world.abandon(4)
            world.until_marked(names)

            def ask(_: Exchange, world: World = world, name: str = names[0]) -> None:
                world.command("keep", name, "--for", "1d", "--why", "needed")
                world.truth.stays([name], "a request to keep it was confirmed")

            rule = world.at(step, when, ask)
            world.run()
            rule.wait("the request to keep is written")
            stage.tried += 1
            world.until_deleted(names[1:])
            world.runs_and_keeps(names[:1], 2)


def changed_after_the_scan(stage: Stage) -> None:
    """A group commits after the scan of the run that would delete it, and before it is read again: it stays."""
    with stage.world() as world:
        names = world.abandon(4)
        world.until_marked(names)

        def use(_: Exchange) -> None:
            world.commit(names[0], 9)
            world.truth.stays([names[0]], "it committed before it was read again")

        # The scan ends with writing its observations into the ledger.
        rule = world.at("note-end", When.BETWEEN, use)
        world.run()
        rule.wait("it commits")
        stage.tried += 1
        if names[0] not in world.groups.listed():
            raise Broken("a group that committed was deleted")
        world.until_deleted(names[1:])


def joined_at_the_last_moment(stage: Stage) -> None:
    """A consumer joins a group while its DeleteGroups is in flight: the broker refuses, and the others are deleted."""
    with stage.world() as world:
        names = world.abandon(4)
        members = []

        def join(_: Exchange) -> None:
            members.append(world.groups.member(names[0], world.topic))
            world.truth.stays([names[0]], "a consumer joined it")

        rule = world.at("delete", When.BEFORE, join)
        world.until_deleted(names, rule.done.is_set)
        rule.wait("a consumer joins")
        stage.tried += 1
        world.until_deleted(names[1:])
        world.runs_and_keeps(names[:1], 2)
        for member in members:
            member.leave()


def comes_back(stage: Stage) -> None:
    """A group reappears right after its deletion, as a broker may restore it: it stays, for any process."""
    for step, when in (("delete", When.BETWEEN), ("outcome-produce", When.BEFORE), ("outcome-end", When.AFTER)):
        with stage.world() as world:
            names = world.abandon(3)

            def make(_: Exchange, world: World = world, name: str = names[0]) -> None:
                world.groups.abandon({name: {(world.topic, 0): 2}})
                world.truth.made({name: {(world.topic, 0): 2}})
                world.truth.stays([name], "it came back after its deletion")

            rule = world.at(step, when, make)
            world.until_deleted(names, rule.done.is_set)
            stage.tried += 1
            world.until_deleted(names[1:])
            world.runs_and_keeps(names[:1], 4)
            world.succeed(world.replicas.leader())
            world.runs_and_keeps(names[:1], 4)


def pending_transaction(stage: Stage) -> None:
    """A transaction with commits for a marked group is open: the group stays until it ends."""
    with stage.world() as world:
        names = world.abandon(3)
        world.until_marked(names)
        world.truth.stays(names[:1], "a transaction that commits for it was open")
        producer = world.groups.pending(names[0], {(world.topic, 1): 1})
        stage.tried += 1
        world.until_deleted(names[1:])
        world.runs_and_keeps(names[:1])
        producer.abort_transaction(30)
        world.truth.free(names[:1])
        world.until_deleted(names[:1])


def window_closes_during_a_run(stage: Stage) -> None:
    """The policy's window closes while the first groups of a run are deleted: the others stay until one opens."""
    closes = (datetime.now(UTC) + timedelta(seconds=150)).replace(second=0, microsecond=0)
    window = {"from": f"{closes - timedelta(hours=2):%H:%M}", "to": f"{closes:%H:%M}"}
    # So many are due that none is deleted, until an edit of the limit: to suspend the policy would end its marks.
    limits = {"gracePeriod": "1s", "maxPerRun": 100, "maxPercent": 1}

    def close(_: Exchange) -> None:
        time.sleep(max(0.0, (closes - datetime.now(UTC)).total_seconds() + 0.2))

    with stage.world(policy={"delete": {**limits, "windows": [window]}}) as world:
        # More than the operator deletes at once.
        names = world.abandon(70)
        world.until_marked(names)
        # The ledger must answer before the operator stops waiting for it.
        time.sleep(max(0.0, (closes - datetime.now(UTC)).total_seconds() - 6))
        rule = world.at("outcome-end", When.BETWEEN, close)
        world.kube.patch("GroupPolicy", world.name, "p", {"delete": {"maxPercent": 100}})
        world.run()
        rule.wait("the outcomes of the first groups are written")
        stage.tried += 1
        left = sorted(set(names) & world.groups.listed())
        if not left or left == sorted(names):
            raise Broken(f"{len(names) - len(left)} of {len(names)} groups were deleted: the window closed amid none")
        if "OutsideWindow" not in world.reasons():
            raise Broken(f"the status does not show it: {world.summary()}")
        world.truth.stays(left, "no window was open")
        world.runs_and_keeps(left)
        world.kube.patch("GroupPolicy", world.name, "p", {"delete": {"windows": None}})
        world.truth.free(left)
        world.until_deleted(left)


def many_at_once(stage: Stage) -> None:
    """10,000 groups match at once, and the leader is killed meanwhile: all go, within maxPerRun and interval."""
    pace, interval = 2_500, 20
    limits = {"gracePeriod": "1s", "maxPerRun": pace, "maxPercent": 100}
    spec = {"delete": limits, "interval": f"{interval}s", "suspend": True}
    with stage.world(2, policy=spec) as world:
        leader, names = world.replicas.leader(), world.abandon(_MANY)
        begun = len(world.groups.listed())
        world.kube.patch("GroupPolicy", world.name, "p", {"suspend": False})

        def far_enough() -> bool:
            return len(world.groups.listed()) < begun - pace // 2

        wait_for(far_enough, "half a run is done", 180, 0.5)
        leader.kill()
        stage.tried += 1
        world.replicas.another_leader(leader)
        left = set(names)
        wait_for(lambda: not left & world.groups.listed(), "all groups are gone", 300, 1.0)
        wait_for(lambda: world.settled(names), "all deletions are recorded", 60, 1.0)
        size = len(json.dumps(world.status()))
        if size > _STATUS_BYTES:
            raise Broken(f"the status has {size} bytes")
        for sender, runs in world.auditor.runs().items():
            # Runs begin at multiples of the interval, except a process's first; half a second is for the timer.
            if len({int(begun + 0.5) // interval for begun in runs}) < len(runs):
                raise Broken(f"runs of {sender} follow each other too soon: {runs}")


def clock_steps(stage: Stage) -> None:
    """The clock jumps by hours and by a month, and back: no group, backup or request to keep a group is lost.

    The process is real; its injected clock reads a file.
    """
    without, stage.without = stage.without, "clock"
    with stage.world() as world:
        stage.without = without
        # The audit checks the backups of these.
        gone = world.abandon(2)
        world.until_deleted(gone)
        world.kube.patch("GroupPolicy", world.name, "p", {"delete": {"gracePeriod": "1h"}})
        kept, *names = world.abandon(5)
        world.command("keep", kept, "--for", "1d", "--why", "needed")
        world.truth.stays([kept], "a user requested to keep it for a day")
        world.truth.stays(names, "its grace period of an hour is not over")
        world.until_marked(names)
        dates = {name: world.mark(name) for name in names}
        for hours in (2, 0, _MONTH, 0, -2, 0):
            world.step_clock(hours * 3600)
            stage.tried += 1
            world.runs_and_keeps([kept, *names], 3)
            if hours == 0 and {name: world.mark(name) for name in names} != dates:
                raise Broken("a mark's date moved")
            # With the clock behind, no mark is due, so the skew is not checked.
            if hours > 0 and "ClockSkew" not in world.reasons():
                raise Broken(f"the status does not show it: {world.summary()}")
        # A process that starts with such a clock prunes the ledger at its first run.
        world.step_clock(_MONTH * 3600)
        world.succeed(world.replicas.leader())
        stage.tried += 1
        world.runs_and_keeps([kept, *names], 2)
        world.step_clock(0)
        for name in gone:
            world.command("restore", name, "--preview")
        # All other protections are over; only the request to keep the group is left.
        world.kube.patch("GroupPolicy", world.name, "p", {"delete": {"gracePeriod": "1s"}})
        world.truth.free(names)
        world.until_deleted(names)
        world.runs_and_keeps([kept])
