"""Groups that policies select are counted against the memory that is left, before they are judged."""

from __future__ import annotations

import pytest

from group_hygiene import memory as process_memory
from group_hygiene.errors import MemoryExhausted
from group_hygiene.reconcile import Memory
from group_hygiene.reconcile.scan import _GROUP_BYTES, _require_memory


def test_more_groups_than_there_is_memory_for_are_not_judged() -> None:
    """A condition of the connection, instead of an error in whatever needs memory next."""
    memory = Memory()
    with pytest.raises(MemoryExhausted, match="groups to be judged"):
        _require_memory(memory, process_memory.LIMIT // _GROUP_BYTES + 1)
    assert memory.judged == 0


def test_groups_of_earlier_scans_have_their_memory_already() -> None:
    """A scan of as many groups as before is not refused because they are remembered."""
    memory = Memory(judged=process_memory.LIMIT)
    _require_memory(memory, process_memory.LIMIT)
    assert memory.judged == process_memory.LIMIT
