"""The records: what makes a group look changed, and what a snapshot says of itself."""

from typing import Any

import pytest

from group_hygiene.model.groups import CommittedOffset, GroupType, Offsets, Partition, fingerprint
from tests.unit.make import FAULT, OFFSETS, P0, P1, group, snapshot


@pytest.mark.parametrize(
    ("changes", "offsets"),
    [
        pytest.param({}, {}, id="no-offsets"),
        pytest.param({}, {P0: CommittedOffset(10)}, id="partition-gone"),
        pytest.param({}, {**OFFSETS, P0: CommittedOffset(11)}, id="offset-forward"),
        pytest.param({}, {**OFFSETS, P0: CommittedOffset(9)}, id="offset-back"),
        pytest.param({}, {**OFFSETS, P1: CommittedOffset(21)}, id="offset-of-the-other-partition"),
        pytest.param({}, {Partition("orders", 5): OFFSETS[P0], P1: OFFSETS[P1]}, id="other-partition"),
        pytest.param({}, {**OFFSETS, P0: CommittedOffset(10, 3)}, id="leader-epoch"),
        pytest.param({}, {**OFFSETS, P0: CommittedOffset(10, -1, "note")}, id="metadata"),
        pytest.param({}, {P0: OFFSETS[P1], P1: OFFSETS[P0]}, id="offsets-swapped"),
        pytest.param({"type": GroupType.CONSUMER}, OFFSETS, id="type"),
        pytest.param({"protocol_type": ""}, OFFSETS, id="protocol-type"),
    ],
)
def test_fingerprint_changes(changes: dict[str, Any], offsets: Offsets) -> None:
    """Any commit, and a group that became another kind of group, changes the fingerprint."""
    assert fingerprint(group(**changes), offsets) != fingerprint(group(), OFFSETS)


def test_fingerprint_stays() -> None:
    """The order in which a broker tells partitions, and the broker that tells, are no change."""
    reordered = dict(reversed(OFFSETS.items()))
    assert fingerprint(group(coordinator=2), reordered) == fingerprint(group(), OFFSETS)


def test_snapshot_counts_answers() -> None:
    """A snapshot is complete only without problems, and counts the brokers that answered."""
    partial = snapshot(broker_faults={1: FAULT}, incomplete=("broker 1",))
    assert (snapshot().complete, snapshot().answered) == (True, 2)
    assert (partial.complete, partial.answered) == (False, 1)
