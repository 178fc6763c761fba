"""Real Kafka brokers of several versions, from Maven's jars."""

from sandbox.kafka.cluster import KafkaCluster, ZooKeeperCluster
from sandbox.kafka.java import Jvm
from sandbox.kafka.security import Security

__all__ = ["Jvm", "KafkaCluster", "Security", "ZooKeeperCluster"]
