"""The topic of a ledger on services that refuse settings of new topics: which are needed, and which are left out."""

from __future__ import annotations

import logging
from collections.abc import Collection
from types import SimpleNamespace as Row
from typing import Any

import pytest

from group_hygiene.kafka.changes import create_topic
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.topic import TopicMetadata, create, may_create
from group_hygiene.model.groups import Fault

_NEEDED = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
_UNCLEAN, _IN_SYNC = "unclean.leader.election.enable", "min.insync.replicas"
_PREFERRED = {"segment.bytes", "segment.ms", "compression.type", "max.message.bytes"}
_INVALID_CONFIG, _INVALID_REQUEST, _POLICY, _DENIED = 40, 42, 44, 29


class _Brokers:
    """Three brokers that refuse some settings of new topics; stands in for `Client`."""

    def __init__(self, refused: Collection[str], code: int = _INVALID_CONFIG) -> None:
        self._refused, self._code = set(refused), code
        self.sent: list[dict[str, str]] = []
        self.made: dict[str, str] | None = None

    def send(self, call: Any, deadline: Any) -> Any:
        if type(call.request).__name__ == "MetadataRequest":
            row = Row(
                error_code=3 if self.made is None else 0, topic_id="an-id", partitions=[Row(replica_nodes=[1, 2, 3])]
            )
            return Row(topics=[row], brokers=[1, 2, 3], controller_id=1)
        (topic,) = call.request.topics
        settings = {config.name: config.value for config in topic.configs}
        self.sent.append(settings)
        wrong = sorted(settings.keys() & self._refused)
        if not wrong and not call.request.validate_only:
            self.made = settings
        message = f"can't set {wrong[0]}" if wrong else None
        return Row(topics=[Row(name=topic.name, error_code=self._code if wrong else 0, error_message=message)])


@pytest.mark.parametrize(
    ("refused", "code", "left_out", "attempts"),
    [
        pytest.param((), _INVALID_CONFIG, (), 1, id="nothing-is-refused"),
        pytest.param(_PREFERRED, _POLICY, _PREFERRED, 2, id="preferred"),
        pytest.param(["segment.ms"], _INVALID_CONFIG, _PREFERRED, 2, id="one-of-the-preferred"),
        pytest.param([_UNCLEAN], _POLICY, {*_PREFERRED, _UNCLEAN}, 3, id="unclean-elections"),
        pytest.param([_IN_SYNC], _INVALID_REQUEST, {*_PREFERRED, _UNCLEAN, _IN_SYNC}, 4, id="replicas-in-sync"),
        pytest.param(
            {*_PREFERRED, _UNCLEAN, _IN_SYNC},
            _INVALID_REQUEST,
            {*_PREFERRED, _UNCLEAN, _IN_SYNC},
            4,
            id="msk-serverless",
        ),
    ],
)
def test_settings_that_brokers_refuse_are_left_out(
    refused: Collection[str], code: int, left_out: Collection[str], attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that a ledger does not need; the log says which."""
    brokers: Any = _Brokers(refused, code)
    with caplog.at_level(logging.WARNING):
        assert create(brokers, "ledger", 3, Deadline(5), create_topic) == TopicMetadata("an-id", 1, 3)
    everything = {**_NEEDED, _UNCLEAN: "false", _IN_SYNC: "2"}.keys() | _PREFERRED
    assert brokers.made.keys() == everything - set(left_out)
    assert brokers.made.items() >= _NEEDED.items()
    assert len(brokers.sent) == attempts
    said = "".join(record.getMessage() for record in caplog.records)
    assert all(name in said for name in left_out)
    assert ("can't set" in said) == bool(left_out)


@pytest.mark.parametrize("name", sorted(_NEEDED))
def test_a_ledger_is_not_created_without_what_it_needs(name: str) -> None:
    """Kafka would delete its entries. The message has what is needed and what the brokers say."""
    brokers: Any = _Brokers([name])
    fault = create(brokers, "ledger", 3, Deadline(5), create_topic)
    assert isinstance(fault, Fault)
    assert "needs cleanup.policy=compact, message.timestamp.type=LogAppendTime" in fault.message
    assert fault.message.endswith(f"can't set {name}")
    assert brokers.made is None


def test_a_check_creates_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """As `doctor` asks: with the same settings, and without a line in the log."""
    brokers: Any = _Brokers(_PREFERRED)
    assert may_create(brokers, "ledger", 3, Deadline(5), create_topic) is None
    assert brokers.made is None
    assert not caplog.records


def test_other_refusals_are_no_matter_of_settings() -> None:
    """A missing permission is reported at the first attempt."""
    brokers: Any = _Brokers(["cleanup.policy"], _DENIED)
    fault = create(brokers, "ledger", 3, Deadline(5), create_topic)
    assert isinstance(fault, Fault)
    assert fault.message == "needs CREATE on the topic ledger"
    assert len(brokers.sent) == 1
