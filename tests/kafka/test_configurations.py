"""The file of Kafka's configurations names all that brokers have."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource

from testing.sandbox.kafka import KafkaCluster
from testing.worlds.configurations import elsewhere, in_worlds
from tests.kafka.makers import Maker


def unmentioned(make: Maker) -> set[str]:
    """The configurations of a broker and of a topic that the file does not mention."""
    kinds = ((ConfigResource.Type.BROKER, "1"), (ConfigResource.Type.TOPIC, make.topic()))
    found: set[str] = set()
    for kind, name in kinds:
        answers: Any = make.admin.describe_configs([ConfigResource(kind, name)])
        found |= {setting for answer in answers.values() for setting in answer.result()}
    return found - in_worlds().keys() - elsewhere().keys()


def test_the_newest_kafka(kafka: KafkaCluster) -> None:
    """A new configuration is in a world, or the file says why not."""
    make = Maker(kafka.plaintext_bootstrap)
    try:
        assert unmentioned(make) == set()
    finally:
        make.close()


@pytest.mark.slow
def test_kafka_2_8() -> None:
    """The same of the oldest release that many still run."""
    with KafkaCluster("2.8.2") as old:
        make = Maker(old.plaintext_bootstrap)
        assert unmentioned(make) == set()
        make.close()
