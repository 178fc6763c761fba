"""What Metadata says of one topic stays with it: Kafka's own code and text, and whether to ask again.

A broker that has not elected a new topic's leader yet can't be provoked to say so: its answers are made here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest

from group_hygiene.kafka.answers import Metadata, Topic
from group_hygiene.kafka.client import Call, Client, Deadline
from group_hygiene.kafka.cluster import topic_ids, topics_exist
from group_hygiene.kafka.offsets import end_offsets
from group_hygiene.model.groups import Fault, Partition
from tests.kafka.makers import soon

NO_LEADER, ABSENT, DENIED, INVALID = 5, 3, 29, 17


class Broker:
    """Answers each request for topics with the next of these: topic -> error code."""

    def __init__(self, *answers: Mapping[str, int]) -> None:
        self._answers: Iterator[Mapping[str, int]] = iter(answers)
        self.asked: list[list[str]] = []

    def send_each(self, calls: Mapping[Any, Call], _deadline: Deadline, *_: object) -> dict[Any, Any]:
        for call in calls.values():
            self.asked.append([topic.name for topic in call.request.topics])
        return {key: Metadata((), "", self._topics(next(self._answers)), frozenset()) for key in calls}

    @staticmethod
    def _topics(codes: Mapping[str, int]) -> tuple[Topic, ...]:
        return tuple(Topic(code, name, uuid.UUID(int=1), ()) for name, code in codes.items())


def asking(broker: Broker) -> Client:
    return cast(Client, broker)


def test_a_topic_without_a_leader_yet_is_asked_for_again() -> None:
    """Alone, and until the broker knows."""
    broker = Broker({"old": 0, "new": NO_LEADER, "gone": ABSENT}, {"new": NO_LEADER}, {"new": 0})
    assert topics_exist(asking(broker), ["old", "new", "gone"], soon()) == {"old": True, "new": True, "gone": False}
    assert broker.asked == [["gone", "new", "old"], ["new"], ["new"]]


@pytest.mark.parametrize(
    ("code", "name", "retriable"),
    [
        pytest.param(NO_LEADER, "LEADER_NOT_AVAILABLE", True, id="retriable"),
        pytest.param(DENIED, "TOPIC_AUTHORIZATION_FAILED", False, id="denied"),
        pytest.param(INVALID, "INVALID_TOPIC", False, id="no-name-of-a-topic"),
    ],
)
@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda client: topics_exist(client, ["t"], soon(0))["t"], id="existence"),
        pytest.param(lambda client: topic_ids(client, ["t"], soon(0))["t"], id="id"),
        pytest.param(lambda client: end_offsets(client, [Partition("t", 0)], soon(0))[Partition("t", 0)], id="end"),
    ],
)
def test_the_error_of_a_topic_has_kafkas_message(
    ask: Callable[[Client], Any], code: int, name: str, retriable: bool
) -> None:
    """Whoever asks, and never as if the topic did not exist."""
    fault = ask(asking(Broker({"t": code})))
    assert isinstance(fault, Fault)
    assert (fault.code, fault.retriable) == (name, retriable)
    assert fault.message


def test_a_topic_that_does_not_exist_is_asked_for_once() -> None:
    """For Kafka that is a retriable error; here it is the answer, and the deadline is for others."""
    broker = Broker({"t": ABSENT})
    end = end_offsets(asking(broker), [Partition("t", 0)], soon())[Partition("t", 0)]
    assert isinstance(end, Fault)
    assert (end.code, end.retriable) == ("UNKNOWN_TOPIC_OR_PARTITION", False)
    assert len(broker.asked) == 1


def test_a_topic_that_the_answer_leaves_out_is_not_missing() -> None:
    """An answer that is not there never says that a topic was deleted."""
    answer = topics_exist(asking(Broker({"other": 0})), ["t", "other"], soon())
    assert answer["other"] is True
    assert isinstance(answer["t"], Fault)
    assert answer["t"].code == "NO_ANSWER"
