"""The processes of one cluster and their server.properties: pure, nothing is started here."""

import base64
import uuid
from dataclasses import dataclass
from pathlib import Path

from testing.sandbox.kafka.security import Security

CONTROLLER_ID = 100


@dataclass(frozen=True)
class Door:
    """A further client listener of one broker, behind a proxy: its advertised port is `advertised`, not `port`."""

    port: int
    advertised: int


@dataclass(frozen=True)
class Node:
    """One Kafka process. A port is 0 where the process doesn't listen for that purpose."""

    id: int
    directory: Path
    client_port: int = 0
    internal_port: int = 0
    controller_port: int = 0
    doors: tuple[Door, ...] = ()

    @property
    def name(self) -> str:
        """Its name in error texts and file names."""
        return f"broker-{self.id}" if self.client_port else "controller"


@dataclass(frozen=True)
class Layout:
    """The facts about the cluster that every process needs."""

    version: tuple[int, ...]
    cluster_id: str
    brokers: tuple[Node, ...]
    controller: Node | None = None
    zookeeper_port: int = 0
    address: str = "127.0.0.1"

    @property
    def kraft(self) -> bool:
        """False if these brokers use ZooKeeper."""
        return not self.zookeeper_port

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All Kafka processes."""
        return self.brokers if self.controller is None else (*self.brokers, self.controller)

    def properties(self, node: Node, security: Security) -> dict[str, str]:
        """The server.properties of one process, without TLS."""
        ours = self._kraft(node) if self.kraft else self._zookeeper(node)
        ours |= listener_properties(node, security, self.address) | {"log.dirs": str(node.directory / "data")}
        if node.client_port:
            ours |= self._topics() | security.sasl_properties(["client", *door_names(node)])
        return ours | security.authorizer_properties(self.kraft)

    def _kraft(self, node: Node) -> dict[str, str]:
        quorum = self.controller or self.brokers[0]
        roles = ["broker"] * bool(node.client_port) + ["controller"] * bool(node.controller_port)
        return {
            "process.roles": ",".join(roles),
            "node.id": str(node.id),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"{quorum.id}@{self.address}:{quorum.controller_port}",
            # A killed broker may come back only when its old session is over; the default is 9 s.
            "broker.session.timeout.ms": "6000",
            "broker.heartbeat.interval.ms": "1000",
        }

    def _zookeeper(self, node: Node) -> dict[str, str]:
        return {
            "broker.id": str(node.id),
            "zookeeper.connect": f"127.0.0.1:{self.zookeeper_port}",
            # As in KRaft: a killed broker may come back only when its old session is over.
            "zookeeper.session.timeout.ms": "6000",
            # The default is the session's: too short for a first response on a busy machine.
            "zookeeper.connection.timeout.ms": "60000",
        }

    def _topics(self) -> dict[str, str]:
        replicas = str(min(3, len(self.brokers)))
        in_sync = str(min(2, len(self.brokers)))
        settings = {
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "5",
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.num.partitions": "5",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            # The default of 128 MB is allocated at start, from a small heap.
            "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        }
        if self.version >= (4, 1):
            settings |= {
                "group.coordinator.rebalance.protocols": "classic,consumer,share,streams",
                "share.coordinator.state.topic.num.partitions": "5",
                "share.coordinator.state.topic.replication.factor": replicas,
                "share.coordinator.state.topic.min.isr": in_sync,
            }
        return settings


def uses_kraft(version: tuple[int, ...]) -> bool:
    """False if ZooKeeper is needed: KRaft is complete from 3.3 on."""
    return version >= (3, 3)


def listener_properties(node: Node, security: Security, address: str) -> dict[str, str]:
    """The listeners of one process on this address."""
    ports = {"CLIENT": node.client_port, "INTERNAL": node.internal_port, "CONTROLLER": node.controller_port}
    doors = dict(zip((name.upper() for name in door_names(node)), node.doors, strict=True))
    ports |= {name: door.port for name, door in doors.items()}
    listeners = {name: f"{name}://{address}:{port}" for name, port in ports.items() if port}
    addresses = listeners | {name: f"{name}://{address}:{door.advertised}" for name, door in doors.items()}
    advertised = [address for name, address in addresses.items() if name != "CONTROLLER"]
    protocols = {
        "CLIENT": security.protocol,
        "INTERNAL": "PLAINTEXT",
        "CONTROLLER": "PLAINTEXT",
        **dict.fromkeys(doors, security.door_protocol),
    }
    settings = {
        "listeners": ",".join(listeners.values()),
        "listener.security.protocol.map": ",".join(f"{name}:{value}" for name, value in protocols.items()),
    }
    if advertised:
        settings |= {"advertised.listeners": ",".join(advertised), "inter.broker.listener.name": "INTERNAL"}
    return settings


def door_names(node: Node) -> list[str]:
    """The names of its listeners with a door, as security settings spell them."""
    return [f"door{index}" for index in range(len(node.doors))]


def new_cluster_id() -> str:
    """A Kafka Uuid: 16 bytes in URL-safe base64 without padding; no leading dash, as that reads as an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
