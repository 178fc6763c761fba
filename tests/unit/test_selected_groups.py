"""Groups that policies select are counted against the memory that is left, before they are judged."""

from __future__ import annotations

from itertools import repeat

import pytest

from group_hygiene import memory as process_memory
from group_hygiene.checks.needed import ID_MAX
from group_hygiene.errors import MemoryExhausted
from group_hygiene.reconcile import Memory
from group_hygiene.reconcile.scan import _GROUP_BYTES, _group_bytes, _require_memory
from tests.unit.make import group


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param("orders", _GROUP_BYTES, id="short"),
        # Six bytes of JSON each, four times.
        pytest.param("\x01" * ID_MAX, _GROUP_BYTES + 24 * ID_MAX, id="control-characters"),
    ],
)
def test_more_groups_than_there_is_memory_for_are_not_judged(name: str, size: int) -> None:
    """A condition of the connection, instead of an error in whatever needs memory next."""
    memory = Memory()
    with pytest.raises(MemoryExhausted, match="groups to be judged"):
        _require_memory(memory, repeat(group(name), process_memory.LIMIT // size + 1))
    assert memory.judged == 0


def test_groups_of_earlier_scans_have_their_memory_already() -> None:
    """A scan of as many groups as before is not refused because they are remembered."""
    memory = Memory(judged=process_memory.LIMIT)
    _require_memory(memory, repeat(group(), process_memory.LIMIT // (2 * _GROUP_BYTES)))
    assert memory.judged == process_memory.LIMIT


def test_an_id_that_is_too_long_is_repeated_nowhere() -> None:
    """Its group is kept unread."""
    assert _group_bytes("\x01" * (ID_MAX + 1)) == _GROUP_BYTES
