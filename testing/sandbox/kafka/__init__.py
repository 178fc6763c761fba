"""Real Kafka brokers of several versions, from Maven's jars."""

from testing.sandbox.kafka.cluster import KafkaCluster, ZooKeeperCluster
from testing.sandbox.kafka.java import Jvm
from testing.sandbox.kafka.security import Security

__all__ = ["Jvm", "KafkaCluster", "Security", "ZooKeeperCluster"]
