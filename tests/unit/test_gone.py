"""Which of a group's entries says what an interrupted deletion was to delete."""

from __future__ import annotations

from typing import Any

import pytest

from group_hygiene.kafka.client import Deadline
from group_hygiene.model.entries import Intent
from group_hygiene.reconcile import delete_requests
from group_hygiene.reconcile.delete_requests import Gone, are_gone
from tests.unit.make import NOW


def _intent(topics: tuple[str, ...]) -> Intent:
    return Intent(
        group="g", id="i", type="Classic", policy="p", policy_uid="u", generation=1, at=NOW, deadline=NOW, expires=NOW,
        topics=topics,
    )  # fmt: skip


@pytest.mark.parametrize("last", [(), ("orders",)], ids=["group", "topics"])
def test_the_last_entry_of_a_group_counts(monkeypatch: pytest.MonkeyPatch, last: tuple[str, ...]) -> None:
    """Offsets that are gone do not make a group gone, nor the other way round."""
    group, topics = Gone(False), Gone(True, frozenset({"orders"}))
    monkeypatch.setattr(delete_requests, "_groups_gone", lambda _, groups, __: dict.fromkeys(groups, group))
    monkeypatch.setattr(delete_requests, "_offsets_gone", lambda _, parts, __: dict.fromkeys(parts, topics))
    context: Any = None
    first = () if last else ("orders",)
    assert are_gone(context, [_intent(first), _intent(last)], Deadline(1)) == {"g": topics if last else group}
