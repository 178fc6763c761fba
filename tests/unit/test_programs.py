"""Kafka Connect and Kafka Streams, by what their members show."""

import pytest

from group_hygiene.model.groups import Program, program_of

_UUID = "3f1a9c1e-0d43-4c8e-9a37-0c8f7d0a8b11"


@pytest.mark.parametrize(
    ("client_ids", "assignor", "expected"),
    [
        pytest.param(["connector-consumer-orders-sink-0"], "range", Program.CONNECT, id="connect"),
        pytest.param(
            ["connector-consumer-o-12", "connector-consumer-o-3"], "", Program.CONNECT, id="connect-rebalances"
        ),
        pytest.param(["mine", "connector-consumer-o-3"], "range", Program.CONNECT, id="one-of-its-members"),
        pytest.param([f"app-{_UUID}-StreamThread-1-consumer"], "stream", Program.STREAMS, id="streams"),
        pytest.param([f"app-{_UUID}-StreamThread-12-consumer"], "", Program.STREAMS, id="streams-rebalances"),
        pytest.param(["mine"], "stream", Program.STREAMS, id="assignor"),
        pytest.param(["mine-StreamThread-1-restore-consumer"], "", None, id="not-the-one-that-joins"),
        pytest.param(["connector-producer-o-0"], "", None, id="a-producer"),
        pytest.param(["rdkafka", "consumer-orders-1"], "range", None, id="others"),
        pytest.param([""], "", None, id="no-id"),
        pytest.param([], "stream", None, id="no-member"),
    ],
)
def test_program_of(client_ids: list[str], assignor: str, expected: Program | None) -> None:
    """A client id of one member, or the assignor, shows it, and is what is reported."""
    found = program_of(client_ids, assignor)
    assert (None if found is None else found.program) == expected
    assert found is None or found.client_id in client_ids
