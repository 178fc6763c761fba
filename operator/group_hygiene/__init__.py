"""Keeps the consumer groups of Kafka clusters tidy: finds those that nobody uses, proves it, and only then acts."""

__version__ = "0.1.0"
