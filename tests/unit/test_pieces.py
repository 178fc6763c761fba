"""How the ingest divides the log: every offset is in one piece, and a log of a year takes few of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from group_hygiene.pipeline.ingest import batches
from group_hygiene.pipeline.ingest.batches import pieces_of

RANGES = st.dictionaries(st.integers(0, 99), st.tuples(st.integers(0, 2**50), st.integers(0, 2**36)), max_size=9)


@given(RANGES)
def test_every_offset_is_in_one_piece(ranges: dict[int, tuple[int, int]]) -> None:
    """From the position to the end of each partition, whose pieces come in their order, however many a round takes."""
    pieces = pieces_of(
        {partition: start for partition, (start, _) in ranges.items()},
        {partition: start + size for partition, (start, size) in ranges.items()},
    )
    reached = {partition: start for partition, (start, _) in ranges.items()}
    for piece in pieces:
        assert reached[piece.partition] == piece.start < piece.end
        reached[piece.partition] = piece.end
    assert reached == {partition: start + size for partition, (start, size) in ranges.items()}


def test_a_partition_that_was_read_has_none() -> None:
    """Nor one whose end is before what was read: it may have an open transaction again."""
    assert pieces_of({0: 5, 1: 7}, {0: 5, 1: 6}) == []


def test_a_year_of_a_billion_commits_a_day() -> None:
    """The newest offsets, of which compaction has left most records, in small pieces; the others in few."""
    size = 365 * 1_000_000_000 // 50
    pieces = pieces_of(dict.fromkeys(range(50), 0), dict.fromkeys(range(50), size))
    assert len(pieces) < 4_000
    of_one = [piece for piece in pieces if piece.partition == 7]
    assert [piece.end - piece.start for piece in of_one[-8:-1]] == [batches._PIECE_OFFSETS] * 7
    # A round takes some of each partition.
    assert {piece.partition for piece in pieces[: batches._PIECES]} == set(range(50))
