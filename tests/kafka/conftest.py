"""Real brokers, shared by all tests of this folder; each test works under names of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from group_hygiene.connection import Settings
from group_hygiene.kafka.client import Client, connect
from group_hygiene.kafka.cluster import read_cluster
from group_hygiene.model import Cluster
from sandbox.kafka import KafkaCluster
from tests.kafka.makers import Maker, soon

# A member of a KIP-848 group hears of its assignment with its next heartbeat, every 5 s by default.
QUICK = {"group.consumer.heartbeat.interval.ms": "200", "group.consumer.min.heartbeat.interval.ms": "200"}


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One broker of the newest version, open to everybody, that counts requests."""
    with KafkaCluster(request_log=True, config=QUICK) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def client(kafka: KafkaCluster) -> Iterator[Client]:
    """The product's client, connected to the shared broker."""
    made = connect(Settings(tuple(kafka.bootstrap_servers.split(","))))
    yield made
    made.close()


@pytest.fixture
def cluster(client: Client) -> Cluster:
    """Who is in the shared cluster now."""
    read = read_cluster(client, soon())
    assert isinstance(read, Cluster)
    return read


@pytest.fixture
def make(kafka: KafkaCluster) -> Iterator[Maker]:
    """Makes what the test needs in the shared broker."""
    maker = Maker(kafka.bootstrap_servers)
    yield maker
    maker.close()
