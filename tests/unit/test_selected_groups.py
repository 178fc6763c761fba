"""Groups that policies select are counted against the memory that is left, before they are judged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from group_hygiene import memory
from group_hygiene.checks.needed import ID_MAX
from group_hygiene.contents import Contents
from group_hygiene.entries import Seen
from group_hygiene.errors import MemoryExhausted
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import Group
from group_hygiene.policy import Policy
from group_hygiene.reconcile import scan
from group_hygiene.reconcile.scan import _JUDGED_BYTES, _REMEMBERED_BYTES, _group_bytes
from tests.unit.make import NOW, delete, group

_NEW_BYTES = _JUDGED_BYTES + _REMEMBERED_BYTES


@pytest.fixture
def intake() -> Any:
    """A run's, whose reservations end with the test."""
    intake = memory.Intake()
    yield intake
    intake.end()


def _select(
    intake: memory.Intake, policies: list[Policy], groups: dict[str, Group], contents: Contents | None = None
) -> dict[str, list[Group]]:
    context: Any = SimpleNamespace(
        client=SimpleNamespace(intake=intake), journal=SimpleNamespace(contents=contents or Contents())
    )
    return scan._select(context, policies, groups, Deadline(0.1))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param("orders", _NEW_BYTES, id="short"),
        # Six bytes of JSON each, four times.
        pytest.param("\x01" * ID_MAX, _NEW_BYTES + 24 * ID_MAX, id="control-characters"),
    ],
)
def test_more_groups_than_there_is_memory_for_are_not_judged(
    name: str, size: int, intake: memory.Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition of the connection, instead of an error in whatever needs memory next."""
    monkeypatch.setattr(memory, "left", lambda: 10 * size)
    monkeypatch.setattr(memory, "LIMIT", 0)
    groups = {f"{name[:-2]}{index:02}": group(f"{name[:-2]}{index:02}") for index in range(11)}
    with pytest.raises(MemoryExhausted, match="11 groups to be judged"):
        _select(intake, [delete()], groups)


def test_policies_share_what_is_left(intake: memory.Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each policy's groups are counted before the next policy's are looked for."""
    groups = {name: group(name) for name in ("a", "b", "c")}
    every = 3 * _group_bytes("a", False)
    first, second = delete(), delete()
    monkeypatch.setattr(memory, "LIMIT", 0)
    monkeypatch.setattr(memory, "left", lambda: 2 * every - memory._reserved.total - 1)
    with pytest.raises(MemoryExhausted, match="3 groups to be judged"):
        _select(intake, [first, second], groups)
    monkeypatch.setattr(memory, "left", lambda: 3 * every)
    (selected,) = _select(intake, [first], groups).values()
    assert selected == list(groups.values())


def test_what_is_remembered_of_a_group_is_taken_already(intake: memory.Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of as many groups as before is not refused because of what the earlier one left in memory."""
    policy, contents, groups = delete(), Contents(), {"a": group("a")}
    contents.apply([Seen(policy_uid=policy.uid, group="a", epoch=1, fingerprint=b"f", since=NOW, watched=0)])
    monkeypatch.setattr(memory, "LIMIT", 0)
    monkeypatch.setattr(memory, "left", lambda: _group_bytes("a", True))
    assert _select(intake, [policy], groups, contents) == {policy.key: [groups["a"]]}
    with pytest.raises(MemoryExhausted):
        _select(intake, [policy], groups)


def test_an_id_that_is_too_long_is_repeated_nowhere() -> None:
    """Its group is kept unread."""
    assert _group_bytes("\x01" * (ID_MAX + 1), False) == _NEW_BYTES
