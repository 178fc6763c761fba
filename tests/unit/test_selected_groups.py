"""Groups that policies select are counted against the memory that is left, before they are judged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from group_hygiene.decide.checks.needed import ID_MAX
from group_hygiene.errors import MemoryExhausted
from group_hygiene.kafka.client import Deadline
from group_hygiene.model.groups import Group
from group_hygiene.process import memory
from group_hygiene.reconcile import scan
from group_hygiene.reconcile.scan import _GROUP_BYTES, _group_bytes
from group_hygiene.spec.policy import Policy
from tests.unit.make import delete, group


@pytest.fixture
def intake() -> Any:
    """A run's, whose reservations end with the test."""
    intake = memory.Intake()
    yield intake
    intake.end()


def _limit(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """A process that has taken nothing yet, and may take 19 of 20 parts of that."""
    monkeypatch.setattr(memory, "LIMIT", size)
    monkeypatch.setattr(memory, "_used", lambda: 0)
    monkeypatch.setattr(memory, "_reserved", memory._Reserved())


def _select(intake: memory.Intake, policies: list[Policy], groups: dict[str, Group]) -> dict[str, list[Group]]:
    context: Any = SimpleNamespace(client=SimpleNamespace(intake=intake))
    return scan._select(context, policies, groups, Deadline(0.1))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param("orders", _GROUP_BYTES, id="short"),
        # Six bytes of JSON each, four times.
        pytest.param("\x01" * ID_MAX, _GROUP_BYTES + 24 * ID_MAX, id="control-characters"),
    ],
)
def test_more_groups_than_there_is_memory_for_are_not_judged(
    name: str, size: int, intake: memory.Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition of the connection, instead of an error in whatever needs memory next."""
    _limit(monkeypatch, 11 * size)
    groups = {f"{name[:-2]}{index:02}": group(f"{name[:-2]}{index:02}") for index in range(11)}
    with pytest.raises(MemoryExhausted, match="11 groups to be judged"):
        _select(intake, [delete()], groups)


def test_policies_share_what_is_left(intake: memory.Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each policy's groups are counted before the next policy's are looked for."""
    groups = {name: group(name) for name in ("a", "b", "c")}
    every = 3 * _group_bytes("a")
    first, second = delete(), delete()
    _limit(monkeypatch, 2 * every)
    with pytest.raises(MemoryExhausted, match="3 groups to be judged"):
        _select(intake, [first, second], groups)
    _limit(monkeypatch, 3 * every)
    (selected,) = _select(intake, [first], groups).values()
    assert selected == list(groups.values())


def test_an_id_that_is_too_long_is_repeated_nowhere() -> None:
    """Its group is kept unread."""
    assert _group_bytes("\x01" * (ID_MAX + 1)) == _GROUP_BYTES
