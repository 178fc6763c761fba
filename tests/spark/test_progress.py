"""What a log that changed since the last run means: go on, or stop and say why."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from group_hygiene.errors import Halted, PipelineError
from group_hygiene.kafka.offsets_topic import LogBounds
from group_hygiene.pipeline.ingest.reading import cut_off, plan, refuse_others
from group_hygiene.pipeline.store import Held, Table
from group_hygiene.pipeline.tables import RECORDS, Place, Progress

NOW, EARLIER = datetime(2030, 1, 31, 12, tzinfo=UTC), datetime(2030, 1, 30, tzinfo=UTC)
BEFORE = Progress("ours", "topic-1", 3, 7, {0: Place(100, EARLIER), 1: Place(20, EARLIER, EARLIER)})


def bounds(
    cluster: str = "ours",
    topic: str | None = "topic-1",
    starts: dict[int, int] | None = None,
    ends: dict[int, int] | None = None,
) -> LogBounds:
    return LogBounds(cluster, topic, starts or {0: 0, 1: 0}, ends if ends is not None else {0: 100, 1: 25}, NOW)


def test_the_first_run_begins_where_the_log_begins() -> None:
    """As the first era; what retention took away before anybody read is nobody's loss."""
    first = plan(None, bounds(starts={0: 50, 1: 0}), start_over=False)
    assert (first.era, first.batch, first.positions) == (0, 0, {0: 50, 1: 0})
    assert {place.complete_since for place in first.places.values()} == {None}


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(bounds(), id="more-or-nothing-new"),
        pytest.param(bounds(starts={0: 100, 1: 20}), id="all-that-was-read-is-deleted"),
        pytest.param(bounds(topic=None), id="no-topic-ids"),
    ],
)
@pytest.mark.parametrize("start_over", [False, True])
def test_it_goes_on_where_it_ended(log: LogBounds, start_over: bool) -> None:
    """Also where the user said to start over: that is for a log that needs it."""
    assert plan(BEFORE, log, start_over) == BEFORE


@pytest.mark.parametrize(
    ("log", "says"),
    [
        pytest.param(bounds(topic="topic-2"), "recreated", id="another-topic-id"),
        pytest.param(bounds(ends={0: 99, 1: 25}), "ends at 99 now", id="shorter-than-what-was-read"),
        pytest.param(bounds(ends={0: 100}), "is gone", id="a-partition-less"),
        pytest.param(
            bounds(starts={0: 0, 1: 0, 2: 0}, ends={0: 100, 1: 25, 2: 5}),
            "has 3 partitions now and had 2",
            id="a-partition-more",
        ),
    ],
)
def test_a_recreated_log(log: LogBounds, says: str) -> None:
    """Is a new era, if the user says so: read from its beginning, and complete only since then."""
    with pytest.raises(Halted, match=rf"{says}.*--start-over"):
        plan(BEFORE, log, start_over=False)
    restarted = plan(BEFORE, log, start_over=True)
    assert (restarted.era, restarted.batch) == (4, 7)
    assert restarted.places == {partition: Place(0, None, NOW) for partition in log.starts}


@pytest.mark.parametrize("start_over", [False, True])
def test_a_log_that_is_gone(start_over: bool) -> None:
    """Nothing to go on with: era and batch stay as they are, so that what comes later is told from what was."""
    with pytest.raises(PipelineError, match=r"is gone: run this again once") as raised:
        plan(BEFORE, LogBounds("ours", None, {}, {}, NOW), start_over)
    assert not isinstance(raised.value, Halted), "it mends itself"


def test_records_that_were_deleted_unread() -> None:
    """The partition is complete only since then; the others, and the era, stay."""
    log = bounds(starts={0: 0, 1: 21})
    with pytest.raises(Halted, match=r"up to offset 20 and begins at 21 now.*--start-over"):
        plan(BEFORE, log, start_over=False)
    after = plan(BEFORE, log, start_over=True)
    assert (after.era, after.batch) == (3, 7)
    assert after.places == {0: Place(100, EARLIER), 1: Place(21, None, NOW)}


def test_another_cluster_is_never_taken() -> None:
    """Not even if the user says to start over."""
    with pytest.raises(Halted, match=r"separate --warehouse for each"):
        plan(BEFORE, bounds(cluster="theirs"), start_over=True)


@pytest.mark.parametrize(
    ("last", "refused"),
    [
        pytest.param(0, False, id="no rows"),
        pytest.param(7, False, id="the same batch"),
        pytest.param(8, False, id="a run that was killed"),
        pytest.param(9, True, id="two batches more"),
    ],
)
@pytest.mark.parametrize("table", RECORDS, ids=[table.name for table in RECORDS])
def test_progress_is_never_behind_what_came_of_it(
    monkeypatch: pytest.MonkeyPatch, table: Table, last: int, refused: bool
) -> None:
    """Else an older state of it was put back, and what was read since may be gone from the log."""
    monkeypatch.setattr(Table, "version", lambda *_: 0)
    monkeypatch.setattr(Table, "files", lambda it, *_: [Held("file", 1, 1, last if it is table else 7)])
    with pytest.raises(Halted, match="older state of coverage") if refused else nullcontext():
        refuse_others("warehouse", 7)


def test_what_says_nothing_of_groups_counts_as_unread() -> None:
    """The latest time of all, for good."""
    later = NOW + (NOW - EARLIER)
    after = BEFORE.advanced({}, {0: NOW, 1: NOW}).advanced({0: 101}, {0: EARLIER, 1: later})
    assert {partition: place.complete_since for partition, place in after.places.items()} == {0: NOW, 1: later}
    assert (after.batch, after.positions) == (9, {0: 101, 1: 20})


def test_what_is_not_at_its_end_is_not_read_to_its_end() -> None:
    """`read_at` moves only where the log held no more when it was asked."""
    assert {p: place.read_at for p, place in BEFORE.seen(bounds()).places.items()} == {0: NOW, 1: EARLIER}
    assert BEFORE.advanced({1: 25}, {}).seen(bounds()).places[1].read_at == NOW


@pytest.mark.parametrize(
    ("undecided_since", "read_at"),
    [
        pytest.param({}, NOW, id="none-is-open"),
        pytest.param({1: NOW}, NOW, id="in-another-partition"),
        pytest.param({0: EARLIER + (NOW - EARLIER) / 2}, EARLIER + (NOW - EARLIER) / 2, id="open-since-the-last-read"),
        pytest.param({0: EARLIER - (NOW - EARLIER)}, EARLIER, id="by-a-clock-that-is-behind"),
        pytest.param({0: NOW + (NOW - EARLIER)}, NOW, id="by-a-clock-that-is-ahead"),
    ],
)
def test_a_partition_is_as_old_as_its_open_transaction(undecided_since: dict[int, datetime], read_at: datetime) -> None:
    """Nobody has read what is behind its first record; never older than an earlier read, which holds."""
    log = replace(bounds(), undecided_since=undecided_since)
    assert BEFORE.seen(log).places[0].read_at == read_at


def test_a_log_that_was_cut_off_and_grew_again() -> None:
    """Is a new era, as is one that ends before where it was read to. Whoever led it is known from then on."""
    read = BEFORE.seen(replace(bounds(), leader_epochs={0: 5, 1: 2}))
    assert {partition: place.leader_epoch for partition, place in read.places.items()} == {0: 5, 1: 2}
    assert cut_off(read, {0: 100, 1: 21}) == {}
    cut = cut_off(read, {0: 99, 1: 21})
    assert cut == {0: 99}
    with pytest.raises(Halted, match=r"in leader epoch 5, which ends at offset 99 now: .*--start-over"):
        plan(read, bounds(), start_over=False, cut=cut)
    assert plan(read, bounds(), start_over=True, cut=cut).era == 4
    with pytest.raises(Halted, match=r"in leader epoch 2, which is unknown now: "):
        plan(read, bounds(), start_over=False, cut=cut_off(read, {1: -1}))
