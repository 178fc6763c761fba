"""A real Kubernetes of one node: containers, volumes, probes and services, with a Kafka that pods reach."""

from testing.sandbox.node.node import Node

__all__ = ["Node"]
