"""The environment of a scenario: brokers, worlds, and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from testing.faults.auditor import Audit
from testing.faults.enforcement import Enforcement
from testing.faults.errors import FaultsError
from testing.faults.world import Setup, World
from testing.sandbox.errors import NotReached
from testing.sandbox.kafka import KafkaCluster, Security

# How many worlds may use the shared brokers at the same time.
DOORS = 8


class Brokers:
    """The cluster of one broker that most scenarios share, each with its own door (advertised ports)."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self.kafka = kafka
        self._free: SimpleQueue[int] = SimpleQueue()
        for door in range(DOORS):
            self._free.put(door)

    @contextmanager
    def door(self) -> Iterator[int]:
        door = self._free.get()
        try:
            yield door
        finally:
            self._free.put(door)


@dataclass
class Stage:
    """One run of one scenario. tried: faults so far. without: the guard that is removed from the operator.

    seed, seconds: of scenarios that draw by chance, and how long these go on.
    """

    name: str
    shared: Brokers
    say: Callable[[str], None]
    without: str = ""
    seed: int = 0
    seconds: float = 60.0
    tried: int = 0
    audit: Audit = field(default_factory=Audit)
    _worlds: int = 0

    @contextmanager
    def world(self, replicas: int = 1, kafka: KafkaCluster | None = None, **specs: Any) -> Iterator[World]:
        """A world with groups that must never be deleted, and replicas, one of them leading; audited at its end.

        kafka: the scenario's own cluster, with one door; default: the shared one. specs: `connection`, `policy`.
        """
        with ExitStack() as stack:
            door = 0 if kafka is not None else stack.enter_context(self.shared.door())
            self._worlds += 1
            name = f"{self.name}-{self._worlds}"
            setup = Setup(name, kafka or self.shared.kafka, door, self.without, **specs)
            world = stack.enter_context(World(setup))
            try:
                needed(world, stack)
                world.start(replicas)
                world.replicas.leader()
                yield world
            except (FaultsError, NotReached) as error:
                dead = [process for process in world.replicas.all if not process.alive]
                logs = "".join(f"\n  {each.name} ended: {each.log()[-600:]}" for each in dead)
                raise type(error)(f"{error}{logs}") from error
            finally:
                self.audit.add(world.audit())

    @contextmanager
    def cluster(self, brokers: int, security: Security | None = None, **config: str) -> Iterator[KafkaCluster]:
        """The scenario's own brokers, which it may damage."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        with KafkaCluster(brokers=brokers, security=security or Security(doors=1), config=settings) as cluster:
            yield cluster


def needed(world: Enforcement, stack: ExitStack) -> None:
    """Groups that must never be deleted: one in use, one protected, one simple."""
    live = f"{world.name}-live"
    member = world.groups.member(live, world.topic)
    stack.callback(member.leave)
    world.truth.stays([live], "it has a member")
    protected = world.abandon(1, "protected")
    world.truth.stays(protected, "it is protected")
    simple = f"{world.name}-simple"
    world.commit(simple, 1)
    world.truth.stays([simple], "it never had a member")
