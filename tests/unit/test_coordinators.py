"""Answers on coordinators that leave groups out, or name others: what no real broker does."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace as Row
from typing import Any

from group_hygiene.kafka.client import NO_ANSWER, Deadline
from group_hygiene.kafka.coordinators import look_up


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
