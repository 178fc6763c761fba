"""Classes of our own in a broker: what services do to their customers, and what Amazon MSK checks."""

from __future__ import annotations

from pathlib import Path

from testing.sandbox.kafka.jars import VERSIONS, jars
from testing.sandbox.kafka.java import Jvm, compile_classes

_SOURCES = Path(__file__).with_name("java")


def jvm_with(folder: Path, *names: str) -> Jvm:
    """The JVM of a broker of the newest version with these classes of tests/kafka/java, compiled into the folder."""
    sources = [_SOURCES / f"{name}.java" for name in names]
    return Jvm(classes=compile_classes(jars(VERSIONS[0]), sources, folder))
