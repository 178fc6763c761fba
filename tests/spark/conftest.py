"""One Spark session and one broker, shared by all tests of this folder; each test has a warehouse of its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from group_hygiene.kafka.client import Client, connect
from group_hygiene.pipeline.jobs import Options, spark_session
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.spark.jars import jars
from tests.kafka.conftest import QUICK
from tests.kafka.makers import Maker
from tests.spark.histories import LIVES, Bronze

# Fewer than Kafka's 50 partitions: a test then takes a fifth of the time, and each still has several. And their log
# holds what the tests wrote and nothing else: no group ends for its age, no record goes because a later one came.
FEW_PARTITIONS = QUICK | {
    "offsets.topic.num.partitions": "5",
    "offsets.retention.check.interval.ms": "86400000",
    "log.cleaner.enable": "false",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark as the product starts it, on this machine."""
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    # What runs once is not worth the time that Java would take to make it faster. Its room for compiled code would
    # then be a fifth of the usual, which Spark fills: what it needs all the time would be compiled again and again.
    java = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    settings = {"spark.driver.extraJavaOptions": java, "spark.sql.shuffle.partitions": "2"}
    with spark_session(Options("local[2]", jars(), "1g", log, settings=settings)) as session:
        yield session


@pytest.fixture(autouse=True)
def forget(spark: SparkSession) -> Iterator[None]:
    """Delta retains each table that it has read for an hour, and Python what its cycles of objects refer to: plans with
    broadcast tables of 16 MB each.
    """
    yield
    gc.collect()
    gateway: Any = spark.sparkContext._jvm
    gateway.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One broker of the newest version, open to everybody."""
    with KafkaCluster(config=FEW_PARTITIONS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def client(kafka: KafkaCluster) -> Iterator[Client]:
    """The product's client, connected to the shared broker."""
    made = connect(Settings(tuple(kafka.bootstrap_servers.split(","))))
    yield made
    made.close()


@pytest.fixture
def make(kafka: KafkaCluster) -> Iterator[Maker]:
    """Makes what the test needs in the shared broker."""
    maker = Maker(kafka.bootstrap_servers)
    yield maker
    maker.close()


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    return str(tmp_path / "warehouse")


@pytest.fixture(scope="module")
def lived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A day, of which all is known."""
    warehouse = str(tmp_path_factory.mktemp("lived"))
    groups = {name: sorted(events, key=lambda event: event["record_time"]) for name, events in LIVES.items()}
    Bronze(spark, warehouse).write(groups)
    return warehouse
