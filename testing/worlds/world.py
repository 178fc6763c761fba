"""A world as data: a cluster, one change to it, and what is expected of the operator in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from testing.sandbox.kafka import KafkaCluster, Security, ZooKeeperCluster
from testing.sandbox.kafka.jars import VERSIONS

if TYPE_CHECKING:
    from testing.worlds.life import Life

Change = Callable[["Life"], AbstractContextManager[None]]


class Moment(Enum):
    """When a change happens in a life."""

    FIRST = "before there are groups"
    START = "before the operator starts"
    MARKED = "while groups are marked"
    DELETED = "after the first deletions"


@dataclass(frozen=True)
class Works:
    """The life is lived to its end: groups are deleted, restored, and not deleted while a client uses them."""


@dataclass(frozen=True)
class Refuses:
    """Nothing is deleted from the change on, until its context ends: that is the way out, and the life goes on.

    reason: in a status of the policy or the connection. cause: what that message, `doctor` and the operator's log say.
    ends: whether there is no way out within a life. everywhere: whether `doctor` and `delete --force` must refuse, too.
    forced: whether `delete --force` may delete, as it reads neither the offsets log nor lag, or has another clock.
    """

    reason: str
    cause: str
    ends: bool = False
    everywhere: bool = True
    forced: bool = False

    def names_cause(self, text: str) -> bool:
        """Whether a message or a log says it."""
        return self.cause.lower() in text.lower()


@dataclass(frozen=True)
class Cluster:
    """Brokers. config: added to server.properties. user: whether the operator logs in as a user with ACLs.

    zookeeper: of a version that could do without. Worlds of equal clusters share brokers, one after another.
    """

    version: str = VERSIONS[0]
    brokers: int = 1
    config: tuple[tuple[str, str], ...] = ()
    user: bool = False
    zookeeper: bool = False

    def start(self) -> KafkaCluster:
        """A cluster with one door, to be entered."""
        security = Security(doors=1)
        if self.user:
            security = Security(sasl="PLAIN", users={USER: PASSWORD}, authorizer=True, doors=1)
        kind = ZooKeeperCluster if self.zookeeper else KafkaCluster
        return kind(self.version, self.brokers, security=security, config=dict(self.config))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its version as numbers."""
        return tuple(int(part) for part in self.version.split("."))


USER, PASSWORD = "hygiene", "correct-horse-battery"


def config(**settings: str) -> tuple[tuple[str, str], ...]:
    """Settings of brokers, with _ for the dots."""
    return tuple(sorted((name.replace("_", "."), value) for name, value in settings.items()))


@dataclass(frozen=True)
class World:
    """name: unique, as a DNS label. about: the change in words. family: see `worlds.table`.

    settings: Kafka's configurations that it is about, for configurations.yaml. alone: its change damages the brokers,
    so that no other world may follow on them. ledger: added to `spec.ledger`. needs: programs or rights
    that it needs; where one is missing it is reported as not run. protocols: of groups that the brokers offer, where
    the version alone does not say it. own_clock: whether the operator's clock can be set (`faults.reckless.clock`).
    grace: the least grace period in seconds, where the change takes longer than the usual one.
    """

    family: str
    name: str
    about: str
    cluster: Cluster = Cluster()
    change: Change | None = None
    moment: Moment = Moment.START
    expected: Works | Refuses = Works()
    settings: tuple[str, ...] = ()
    alone: bool = False
    ledger: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    protocols: tuple[str, ...] | None = None
    own_clock: bool = False
    grace: float = 0.0

    @property
    def touched(self) -> frozenset[str]:
        """All settings of Kafka that it changes."""
        return frozenset(self.settings) | {name for name, _ in self.cluster.config}
