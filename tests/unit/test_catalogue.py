"""The catalogue of programs: ids that look like theirs, and ids that don't."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from group_hygiene.cli import main
from group_hygiene.spec.patterns import catalogue, likely_program

UUID = "b3274990-d945-4bc9-95a8-b972aa676a44"


@pytest.mark.parametrize(
    ("group", "program"),
    [
        pytest.param(f"anonymous.{UUID}", "Spring Cloud Stream without a group", id="uuid"),
        pytest.param(f"anonymous.{UUID}x", None, id="longer"),
        pytest.param(f"anonymousx{UUID}", None, id="a-dot-is-a-dot"),
        pytest.param("perf-consumer-4183", "kafka-consumer-perf-test", id="digits"),
        pytest.param("perf-consumer-", None, id="no-digits"),
        pytest.param("perf-consumer-1\n", None, id="line-end"),
        pytest.param(
            "perf-share-consumer", "kafka-console-share-consumer, kafka-share-consumer-perf-test", id="second"
        ),
        pytest.param(f"spark-kafka-source-{UUID}-1-driver-0", "Spark with useDeprecatedOffsetFetching", id="star"),
        pytest.param("fluent-bit", "Fluent Bit, the Kafka input", id="default-id"),
        pytest.param("fluent-bit-2", None, id="longer-than-the-default"),
        pytest.param(
            "inventory-schemahistory", "Debezium, a connector that reads its schema history", id="ends-like-it"
        ),
        pytest.param("schemahistory", None, id="only-the-end"),
        pytest.param("orders", None, id="other"),
        pytest.param("", None, id="empty"),
    ],
)
def test_an_id_likely_program_a_program(group: str, program: str | None) -> None:
    """Only if the whole id does."""
    found = likely_program(group)
    assert (found and found.program) == program


def test_the_command_shows_each_program() -> None:
    """Its table has a line for each; `-o name` has the patterns."""
    lines = CliRunner().invoke(main, ["catalogue"]).stdout.splitlines()
    assert len(lines) == 1 + len(catalogue())
    names = CliRunner().invoke(main, ["catalogue", "-o", "name"]).stdout.splitlines()
    assert names == [pattern for entry in catalogue() for pattern in entry.groups]
