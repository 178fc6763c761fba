"""Scenarios: the pipeline's tables go bad during a run, or a group is used after their last record."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from group_hygiene.kafka.offsets_log import partition_of
from testing.faults.errors import Broken
from testing.faults.kafka_proxy import Rule, When
from testing.faults.offsets_log import ends
from testing.faults.requests import OFFSET_FETCH, Exchange, asks_whether_loaded
from testing.faults.stage import Stage
from testing.faults.world import World
from testing.sandbox.waiting import wait_for
from tests.warehouse import Warehouse, idle, now

_POLICY = {"when": {"idleFor": "1h"}}


@dataclass
class Tables:
    """The pipeline's tables of one world's cluster, written by the scenario."""

    world: World
    good: Warehouse
    groups: list[str]

    @property
    def folder(self) -> Path:
        return self.good.folder

    @property
    def _before(self) -> Path:
        """A folder that the operator does not read."""
        return self.folder.with_name(f"{self.folder.name}-before")

    def begin(self) -> None:
        """Write good tables, and keep an older copy of them."""
        self.fresh()
        shutil.copytree(self.folder, self._before)
        self.fresh()

    def fresh(self) -> None:
        """The groups were unused for days, and the whole current log is covered."""
        self.good.write([idle(name) for name in self.groups], ends=ends(self.world.groups.bootstrap))

    def stale(self) -> None:
        self.good.cover(ends=ends(self.world.groups.bootstrap), read_at=now() - timedelta(hours=2))

    def gone(self) -> None:
        shutil.rmtree(self.folder)

    def another_cluster(self) -> None:
        other = Warehouse(self.folder, "another-cluster", partitions=self.good.partitions)
        other.write([idle(name) for name in self.groups], ends=ends(self.world.groups.bootstrap))

    def older(self) -> None:
        shutil.rmtree(self.folder)
        self._before.rename(self.folder)

    def half(self) -> None:
        """Only partitions without records of these groups are covered."""
        theirs = {partition_of(name, self.good.partitions) for name in self.groups}
        others = [index for index in range(self.good.partitions) if index not in theirs]
        self.good.cover(only=others, ends=ends(self.world.groups.bootstrap))


_DAMAGES: tuple[tuple[Callable[[Tables], None], str], ...] = (
    (Tables.stale, "EvidenceStale"),
    (Tables.gone, "EvidenceMissing"),
    (Tables.another_cluster, "EvidenceOfAnotherCluster"),
    (Tables.older, "EvidenceWentBack"),
    (Tables.half, "EvidenceIncomplete"),
)


def evidence_lost_amid_a_run(stage: Stage) -> None:
    """Tables go stale, vanish, go back or are of another cluster, after the scan of a deleting run: no group goes."""
    for damage, reason in _DAMAGES:
        with _world(stage) as (world, tables):
            world.truth.stays(tables.groups, f"the tables were bad ({reason}) before they were read again")
            rule = _after_the_scan(world, lambda _, tables=tables, damage=damage: damage(tables))  # type: ignore[misc]
            world.run()
            rule.wait("the tables go wrong")
            stage.tried += 1
            world.runs_and_keeps(tables.groups, 2)
            wait_for(lambda world=world, reason=reason: reason in world.reasons(), f"{reason} is reported", 180)  # type: ignore[misc]


def evidence_mended(stage: Stage) -> None:
    """Tables that were stale for some runs are updated: the groups are deleted, but not before."""
    with _world(stage) as (world, tables):
        world.truth.stays(tables.groups, "the tables were stale")
        rule = _after_the_scan(world, lambda _: tables.stale())
        world.run()
        rule.wait("the tables go stale")
        stage.tried += 1
        world.runs_and_keeps(tables.groups, 2)
        tables.fresh()
        world.truth.free(tables.groups)
        world.until_deleted(tables.groups)


def used_after_the_tables_end(stage: Stage) -> None:
    """A group commits its current offset again, ever closer to its deletion: it stays, and the others are deleted."""
    for step, when in ((None, When.BEFORE), ("reread-state", When.BEFORE), ("reread-offsets", When.BETWEEN)):
        with _world(stage) as (world, tables):
            name = tables.groups[0]

            def use(_: Exchange, world: World = world, name: str = name) -> None:
                world.commit(name, world.groups.offsets(name)[world.topic, 0])
                world.truth.stays([name], "it committed, though its state and offsets are unchanged")

            rule = world.at(step, when, use) if step else _after_the_scan(world, use)
            world.run()
            rule.wait("it commits")
            stage.tried += 1
            world.until_deleted(tables.groups[1:])
            world.runs_and_keeps([name], 2)
            if "RecentlyActive" not in world.reasons():
                raise Broken(f"the status does not show it: {world.summary()}")


@contextmanager
def _world(stage: Stage) -> Iterator[tuple[World, Tables]]:
    """Four groups that were marked by good evidence: the next run deletes them."""
    with stage.world(policy=_POLICY) as world:
        listed = world.groups.admin.list_topics(timeout=30)
        log = world.groups.admin.list_topics("__consumer_offsets", timeout=30).topics["__consumer_offsets"]
        groups = world.abandon(4)
        warehouse = Warehouse(world.tables / "main", listed.cluster_id, partitions=len(log.partitions))
        tables = Tables(world, warehouse, groups)
        tables.begin()
        activity = {"uri": warehouse.uri, "maxAge": "1h"}
        world.kube.patch("KafkaConnection", world.name, "main", {"activity": activity})
        world.until_marked(groups)
        yield world, tables


def _after_the_scan(world: World, do: Callable[[Exchange], None]) -> Rule:
    """Act once, when a scan that has read the tables fetches offsets: before the tables are read again."""

    def scans(exchange: Exchange) -> bool:
        reads = exchange.api == OFFSET_FETCH and not exchange.step and not asks_whether_loaded(exchange)
        return bool(exchange.sender) and reads

    return world.proxy.rule(Rule(scans, When.BEFORE, do))
