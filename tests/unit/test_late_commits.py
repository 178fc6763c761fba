"""What a group committed before its offsets were deleted, from the records of the log in their order."""

from __future__ import annotations

import pytest

from group_hygiene.kafka.offsets_log import Commit, StateRecord
from group_hygiene.kafka.offsets_topic import GroupLog
from group_hygiene.kafka.partition import Marker
from group_hygiene.model.entries import SavedOffset, with_late_offsets
from group_hygiene.model.groups import CommittedOffset, Partition
from tests.backups import backup

_PLACE, _OTHER = Partition("orders", 0), Partition("orders", 1)
_GONE = StateRecord("g", "classic", gone=True)


def _commit(offset: int | None, place: Partition = _PLACE) -> Commit:
    return Commit("g", place.topic, place.partition, offset)


def _end(producer: int, commits: bool = True) -> Marker:
    return Marker(0, producer, commits)


@pytest.mark.parametrize(
    ("log", "late", "still_open"),
    [
        pytest.param([_commit(None), _GONE], {}, 0, id="nothing-was-committed"),
        pytest.param([_commit(4), _commit(5), _commit(None)], {_PLACE: 5}, 0, id="the-last-commit-counts"),
        pytest.param([_commit(5)], {}, 0, id="not-deleted"),
        pytest.param([_commit(5), _GONE, _commit(None, _OTHER)], {}, 0, id="another-partition-was-deleted"),
        pytest.param([_commit(None), _commit(7)], {}, 0, id="committed-after-the-deletion"),
        pytest.param([_commit(5), _commit(None), _commit(7), _commit(None)], {_PLACE: 7}, 0, id="deleted-twice"),
        pytest.param(
            [_commit(5), _commit(None), _commit(None), _GONE], {_PLACE: 5}, 0, id="deleted-twice-and-no-commit"
        ),
        pytest.param([_commit(None), (_commit(7), 1), _end(1), _commit(None)], {_PLACE: 7}, 0, id="ended-in-between"),
        pytest.param([(_commit(5), 1), _commit(None), _end(1), _GONE], {}, 0, id="ended-and-not-deleted"),
        pytest.param([(_commit(5), 1), _end(1), _commit(None)], {_PLACE: 5}, 0, id="in-a-transaction"),
        pytest.param([(_commit(5), 1), _end(1, False), _commit(None)], {}, 0, id="aborted"),
        pytest.param([(_commit(5), 1), _commit(None), _end(1)], {}, 1, id="open-at-the-deletion"),
        pytest.param([(_commit(5), 1), _GONE], {}, 1, id="open-and-without-an-offset"),
        pytest.param([_commit(4), (_commit(5), 1), _end(1), _commit(None)], {_PLACE: 5}, 0, id="counts-from-its-end"),
        pytest.param(
            [(_commit(5), 1), _commit(6), _end(1), _commit(None)], {_PLACE: 6}, 0, id="replaced-before-its-end"
        ),
        pytest.param([(_commit(5), 1), _end(2), _commit(None)], {}, 1, id="the-end-of-another-one"),
        pytest.param([_commit(None), (_commit(5), 1)], {}, 0, id="begun-after-the-deletion"),
    ],
)
def test_what_was_deleted(
    log: list[Commit | StateRecord | Marker | tuple[Commit, int]], late: dict[Partition, int], still_open: int
) -> None:
    """The last commit before a tombstone; a transaction that is open at the last one is counted."""
    of_group = GroupLog()
    for each in log:
        if isinstance(each, Marker):
            of_group.end(each)
        elif isinstance(each, Commit | StateRecord):
            of_group.take(each, None)
        else:
            of_group.take(*each)
    found = of_group.late()
    assert {place: commit.offset for place, commit in found.offsets.items()} == late
    assert found.open == still_open


@pytest.mark.parametrize(
    ("late", "rows"),
    [
        pytest.param({_PLACE: CommittedOffset(3, 1, "m")}, None, id="as-it-was-saved"),
        pytest.param({_PLACE: CommittedOffset(4, 1, "m")}, {"orders": [(0, 4)]}, id="later"),
        pytest.param({_PLACE: CommittedOffset(3, 1, "other")}, {"orders": [(0, 3)]}, id="other-metadata"),
        pytest.param({_OTHER: CommittedOffset(9)}, {"orders": [(0, 3), (1, 9)]}, id="another-partition"),
        pytest.param({Partition("new", 2): CommittedOffset(1)}, {"orders": [(0, 3)], "new": [(2, 1)]}, id="new-topic"),
    ],
)
def test_what_the_backup_has_then(
    late: dict[Partition, CommittedOffset], rows: dict[str, list[tuple[int, int]]] | None
) -> None:
    """Late offsets replace saved ones; a backup that has them all is not written again."""
    saved = backup("g", {"orders": [SavedOffset(0, 3, 1, "m", None)]})
    found = with_late_offsets(saved, late, {"new": "id-of-new"})
    shown = found and {t: [(row.partition, row.offset) for row in rows] for t, rows in found.offsets.items()}
    assert shown == rows
    assert found is None or found.topic_ids["new"] == "id-of-new"
