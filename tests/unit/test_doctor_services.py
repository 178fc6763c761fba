"""`doctor` names the managed service that runs the brokers, as docs/kafka-permissions.md does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from group_hygiene.cli.doctor_kafka import service_of

_PAGE = Path(__file__).parents[2] / "docs" / "kafka-permissions.md"


@pytest.mark.parametrize(
    ("server", "service"),
    [
        pytest.param("b-1.main.a1b2c3.c2.kafka.eu-west-1.amazonaws.com:9098", "Amazon MSK, provisioned", id="msk"),
        pytest.param(
            "boot-a1.c1.kafka-serverless.eu-west-1.amazonaws.com:9098", "Amazon MSK Serverless", id="msk-serverless"
        ),
        pytest.param("pkc-4nym6.us-east-1.aws.confluent.cloud:9092", "Confluent Cloud", id="confluent"),
        pytest.param("kafka-x-y.aivencloud.com:21699", "Aiven", id="aiven"),
        pytest.param("seed-1.abc.byoc.prd.cloud.redpanda.com:9092", "Redpanda", id="redpanda"),
        pytest.param("NS.servicebus.windows.net:9093", "Azure Event Hubs", id="event-hubs"),
        pytest.param("my-cluster-kafka-bootstrap.kafka:9093", None, id="strimzi"),
        pytest.param("confluent.cloud.example.com:9092", None, id="another-domain"),
    ],
)
def test_the_service_of_a_broker(server: str, service: str | None) -> None:
    """By the end of its name; each service has a row."""
    assert service_of(["10.0.0.1:9092", server]) == service
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|", _PAGE.read_text(), re.MULTILINE)
    assert service is None or service in rows
