"""Real brokers, shared by all tests of this folder; each test works under names of its own.

A module that needs other ones has its own fixture `kafka`, and `access` where one needs a password there.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from group_hygiene.kafka.client import Client, connect
from group_hygiene.model.groups import Cluster
from group_hygiene.process.start import start
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.kafka import KafkaCluster, Security
from tests.kafka.makers import Maker, seen
from tests.kafka.scene import Scene

# A member of a group of the newer protocols hears of its assignment with its next heartbeat, every 5 s by default.
QUICK = {
    f"group.{kind}.{name}": "200"
    for kind in ("consumer", "share", "streams")
    for name in ("heartbeat.interval.ms", "min.heartbeat.interval.ms")
} | {
    "group.streams.initial.rebalance.delay.ms": "0",
    # Its member beats only when a test tells it to.
    "group.streams.max.session.timeout.ms": "600000",
    "group.streams.session.timeout.ms": "600000",
}


start()


@pytest.fixture(scope="package")
def kafka() -> Iterator[KafkaCluster]:
    """One broker of the newest version that counts requests, open to all clients, with a listener for a proxy."""
    with KafkaCluster(request_log=True, config=QUICK, security=Security(doors=1)) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def two_brokers() -> Iterator[KafkaCluster]:
    """Two brokers of the newest version that count requests."""
    with KafkaCluster(brokers=2, request_log=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def access(kafka: KafkaCluster) -> Settings:
    """How the product's client gets in."""
    return Settings(tuple(kafka.bootstrap_servers.split(",")))


@pytest.fixture(scope="module")
def client(access: Settings) -> Iterator[Client]:
    """The product's client, connected to all brokers."""
    made = connect(access)
    yield made
    made.close()


@pytest.fixture
def cluster(client: Client) -> Cluster:
    """Who is in the shared cluster now."""
    return seen(client)


@pytest.fixture
def make(kafka: KafkaCluster) -> Iterator[Maker]:
    """Makes what the test needs, where it may do everything."""
    maker = Maker(kafka.plaintext_bootstrap)
    yield maker
    maker.close()


@pytest.fixture
def scene(client: Client) -> Scene:
    """A connection that protects and claims nothing."""
    return Scene(client)


@pytest.fixture
def forgotten_sockets() -> Iterator[None]:
    """Let them end here, and not in the middle of another test, where a warning is an error."""
    yield
    gc.collect()
