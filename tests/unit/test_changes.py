"""What a request that changes offsets takes from the answer of a hostile broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from group_hygiene.kafka.changes import set_share_offsets
from group_hygiene.kafka.client import NO_ANSWER, Deadline
from group_hygiene.kafka.library import AlterShareGroupOffsetsResponse
from group_hygiene.model.groups import CommittedOffset, Fault, Partition

ASKED = Partition("orders", 0)
_Topic = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic
_Row = _Topic.AlterShareGroupOffsetsResponsePartition


class _Broker:
    """Answers each request with these topics and partitions."""

    def __init__(self, *places: Partition) -> None:
        topics = [_Topic(topic_name=p.topic, partitions=[_Row(partition_index=p.partition)]) for p in places]
        self._answer = AlterShareGroupOffsetsResponse(responses=topics)

    def supports(self, *_: Any) -> bool:
        return True

    def send_each(self, calls: Mapping[Any, Any], _: Deadline, reduce: Callable[[Any, Any], Any]) -> dict[Any, Any]:
        return {key: reduce(key, self._answer) for key in calls}


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        pytest.param((ASKED,), None, id="asked"),
        pytest.param((), NO_ANSWER, id="nothing"),
        pytest.param((Partition("", 0),), NO_ANSWER, id="no-name"),
        pytest.param((Partition("other", 0), Partition("orders", 1)), NO_ANSWER, id="others"),
    ],
)
def test_only_what_was_asked_for_counts(places: tuple[Partition, ...], expected: Fault | None) -> None:
    client: Any = _Broker(*places)
    assert set_share_offsets(client, "g", {ASKED: CommittedOffset(3)}, Deadline(5), 1) == {ASKED: expected}
