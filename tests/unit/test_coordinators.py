"""Answers on coordinators that leave groups out, or name others: what no real broker does."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace as Row
from typing import Any

from group_hygiene.kafka.bounds import TOO_MUCH
from group_hygiene.kafka.client import NO_ANSWER, Deadline
from group_hygiene.kafka.cluster import Question, ask_brokers, look_up
from group_hygiene.model.groups import Fault


class _Broker:
    """Answers about the groups `known` and `foreign`, whatever is asked; stands in for `Client`."""

    def supports(self, request_class: Any, version: int = 0) -> bool:
        return True

    def send_each(self, calls: Mapping[Any, Any], deadline: Deadline, reduce: Any) -> dict[Any, Any]:
        rows = [Row(key=name, error_code=0, node_id=1) for name in ("known", "foreign")]
        return {key: reduce(key, Row(coordinators=rows)) for key in calls}


def test_each_group_has_a_result_and_no_other_one() -> None:
    """A group without a coordinator is not deleted, and does not end the run of its policy."""
    client: Any = _Broker()
    assert look_up(client, ["known", "omitted"], Deadline(1)) == {"known": 1, "omitted": NO_ANSWER}


class _Limited:
    """Answers about a group with as many bytes as its name has; at most 10 in an answer, and 15 in all of a call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def send_each(self, calls: Mapping[Any, Any], deadline: Deadline, reduce: Any) -> dict[Any, Any]:
        left, answers = 15, dict[Any, Any]()
        self.calls.append(len(calls))
        for chunk in calls:
            size = sum(map(len, chunk[1]))
            if size > 10:
                answers[chunk] = Fault("ANSWER_TOO_LARGE", "an answer")
                continue
            left -= size
            answers[chunk] = reduce(chunk, None) if left >= 0 else Fault(TOO_MUCH, "all answers")
        return answers


def test_large_answers_take_no_other_ones_with_them() -> None:
    """A client chooses how large the metadata of its offsets is. Alone, a group that is too large is a Fault."""
    client: Any = _Limited()
    names = ["aaaaaaa", "b", "ccccccccc", "d", "eeeeeeeee", "f", "g" * 11, "h"]
    question: Question[str] = Question(lambda keys: Row(keys=keys), lambda keys, _: dict.fromkeys(keys, True), 2)
    found = ask_brokers(client, dict.fromkeys(names, 1), question, Deadline(60), split=True)
    assert {name: found[name] is True for name in names} == {name: len(name) < 11 for name in names}
    assert client.calls[0] == 4
    assert set(client.calls[1:]) == {1}
