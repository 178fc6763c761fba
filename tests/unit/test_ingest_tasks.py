"""How the ingest divides the log, and what it sends to Spark's workers."""

from __future__ import annotations

from functools import partial
from itertools import chain, pairwise, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from group_hygiene.pipeline.ingest import batches
from group_hygiene.pipeline.ingest.batches import divided, pieces_of
from group_hygiene.pipeline.ingest.fetch import Piece, Target, read_and_write
from group_hygiene.pipeline.tables import RECORDS
from group_hygiene.spec.connection import Mechanism, OAuth, Sasl, Settings, Tls
from group_hygiene.spec.secret import Hidden

RANGES = st.dictionaries(st.integers(0, 99), st.tuples(st.integers(0, 2**50), st.integers(0, 2**36)), max_size=9)


@given(RANGES, st.lists(st.integers(1, 2**40), min_size=1, max_size=9))
def test_every_offset_is_in_one_piece(ranges: dict[int, tuple[int, int]], sizes: list[int]) -> None:
    """From the position to the end of each partition, whose pieces come in their order, however large rounds are."""
    reached = {partition: start for partition, (start, _) in ranges.items()}
    stops = {partition: start + size for partition, (start, size) in ranges.items()}
    most = chain(sizes, repeat(2**40))
    while pieces := pieces_of(reached, stops, next(most)):
        assert len(pieces) <= 4 * batches._PIECES
        tasks = divided(pieces, min(len(pieces), 7))
        assert sorted(piece for task in tasks for piece in task) == sorted(pieces)
        # Successive partitions: a task's files have no others between them.
        ends = [(min(task).partition, max(task).partition) for task in tasks]
        assert all(last <= following for (_, last), (following, _) in pairwise(ends))
        for piece in pieces:
            assert reached[piece.partition] == piece.start < piece.end
            reached[piece.partition] = piece.end
    assert reached == stops


def test_a_partition_that_was_read_has_none() -> None:
    """Nor one whose end is before what was read: it may have an open transaction again."""
    assert pieces_of({0: 5, 1: 7}, {0: 5, 1: 6}, 9) == []


def test_a_year_of_a_billion_commits_a_day() -> None:
    """The newest offsets, of which compaction has left most records, in small pieces; the others in few.

    The first pieces are small as well: without compaction they are as full as the last ones.
    """
    size, most = 365 * 1_000_000_000 // 50, batches._PIECE_OFFSETS
    reached, ends = dict.fromkeys(range(50), 0), dict.fromkeys(range(50), size)
    rounds: list[list[Piece]] = []
    while pieces := pieces_of(reached, ends, most):
        # A round takes some of each partition.
        assert {piece.partition for piece in pieces} == {part for part, at in reached.items() if at < ends[part]}
        reached |= {piece.partition: piece.end for piece in pieces}
        most *= batches._GROWTH
        rounds.append(pieces)
    assert len(rounds) < 50
    of_one = [piece for pieces in rounds for piece in pieces if piece.partition == 7]
    assert [piece.end - piece.start for piece in of_one[-8:-1]] == [batches._PIECE_OFFSETS] * 7
    assert [piece.end - piece.start for piece in rounds[0]] == [batches._PIECE_OFFSETS] * batches._PIECES


SECRET = "never-to-be-seen"
LOGINS = [
    pytest.param(Sasl(Mechanism.SCRAM_SHA_512, "user", Hidden(SECRET)), id="scram"),
    pytest.param(Sasl(Mechanism.OAUTHBEARER, oauth=OAuth("https://idp/token", "id", Hidden(SECRET), "a")), id="oauth"),
]


@pytest.mark.parametrize("sasl", LOGINS)
def test_a_worker_has_the_whole_connection(sasl: Sasl) -> None:
    """With its secrets, as Spark sends a task; what is shown of it has none."""
    settings = Settings(("a:1",), Tls("ca", "certificate", Hidden(SECRET)), sasl, requests_per_second=5)
    target = Target("/tables", {table.name: table for table in RECORDS}, 1, 2, {})
    task = partial(read_and_write, settings=settings, target=target)
    sent = cloudpickle.loads(cloudpickle.dumps(task))  # type: ignore[no-untyped-call]
    assert sent.keywords == task.keywords
    login = sent.keywords["settings"].sasl
    assert (login.password or login.oauth.client_secret).reveal() == SECRET
    assert SECRET not in repr(sent)
