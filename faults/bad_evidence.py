"""Scenarios: the pipeline's tables go wrong amid a run, or a group is used after the place where they end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from faults.errors import Broken
from faults.kafka_proxy import Rule, When
from faults.offsets_log import ends
from faults.requests import OFFSET_FETCH, Exchange, asks_whether_loaded
from faults.stage import Stage
from faults.waiting import wait_for
from faults.world import World
from group_hygiene.kafka.loaded import partition_of
from tests.warehouse import Warehouse, idle, now

_POLICY = {"when": {"idleFor": "1h"}}


@dataclass
class Tables:
    """What the operator reads of one world's cluster; made by hand, as a pipeline would."""

    world: World
    good: Warehouse
    groups: list[str]

    @property
    def folder(self) -> Path:
        return self.good.folder

    @property
    def _before(self) -> Path:
        """Where nobody reads."""
        return self.folder.with_name(f"{self.folder.name}-before")

    def begin(self) -> None:
        """Good tables, with an older copy of them aside."""
        self.fresh()
        shutil.copytree(self.folder, self._before)
        self.fresh()

    def fresh(self) -> None:
        """Nobody has used these groups for days, and the whole log is covered as it is now."""
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
        """Of the log, only the partitions are covered that have nothing of these groups."""
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
    """Tables go stale, vanish, go back or are another cluster's, after the scan of a run that deletes: all stay."""
    for damage, reason in _DAMAGES:
        with _world(stage) as (world, tables):
            world.truth.stays(tables.groups, f"the tables were bad ({reason}) before the second look")
            rule = _after_the_scan(world, lambda _, tables=tables, damage=damage: damage(tables))  # type: ignore[misc]
            world.run()
            rule.wait("the tables go wrong")
            stage.tried += 1
            world.runs_and_keeps(tables.groups, 2)
            wait_for(lambda world=world, reason=reason: reason in world.reasons(), f"{reason} is told", 180)  # type: ignore[misc]


def evidence_mended(stage: Stage) -> None:
    """Tables that were stale for some runs are brought up to date: the groups go, and not before."""
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
    """A group commits the offset that it has already, ever closer to its deletion: it stays, and the others go."""
    for step, when in ((None, When.BEFORE), ("reread-state", When.BEFORE), ("reread-offsets", When.BETWEEN)):
        with _world(stage) as (world, tables):
            name = tables.groups[0]

            def use(_: Exchange, world: World = world, name: str = name) -> None:
                world.commit(name, world.groups.offsets(name)[world.topic, 0])
                world.truth.stays([name], "it committed, though nothing that a broker answers of it changed")

            rule = world.at(step, when, use) if step else _after_the_scan(world, use)
            world.run()
            rule.wait("it commits")
            stage.tried += 1
            world.until_deleted(tables.groups[1:])
            world.runs_and_keeps([name], 2)
            if "RecentlyActive" not in world.reasons():
                raise Broken(f"and nobody is told: {world.told()}")


@contextmanager
def _world(stage: Stage) -> Iterator[tuple[World, Tables]]:
    """Four groups that are marked on good evidence: the next run deletes them."""
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
    """Once, when a scan that has read the tables asks for offsets: before the tables are read again."""

    def scans(exchange: Exchange) -> bool:
        reads = exchange.api == OFFSET_FETCH and not exchange.step and not asks_whether_loaded(exchange)
        return bool(exchange.sender) and reads

    return world.proxy.rule(Rule(scans, When.BEFORE, do))
