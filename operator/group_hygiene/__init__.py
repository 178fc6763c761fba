"""Finds abandoned consumer groups of Kafka clusters, and deletes them once there is proof that they are unused."""

__version__ = "0.2.0"
