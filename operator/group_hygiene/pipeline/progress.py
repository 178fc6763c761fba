"""How far the log was read, and from where to go on: the table `ingested`, and what a log that changed means for it.

`plan` is pure. It never goes on by itself where records were lost or the log is another one: whoever trusts the tables
must know of it first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import NoReturn
from uuid import uuid4

from pyspark.sql import SparkSession

from group_hygiene.errors import Halted, PipelineError
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.log_bounds import LogBounds
from group_hygiene.model import NO_LEADER_EPOCH, TABLES_VERSION
from group_hygiene.pipeline.store import Once
from group_hygiene.pipeline.tables import COMMITS, COVERAGE, GROUP_STATES, INGESTED, RECORDS

_GO_ON = (
    "To go on with what is there now, run it once with --start-over: all history stays, and groups count as active at "
    "that moment, since nobody knows what was lost"
)
# Told with each partition.
_OF_ALL = ("cluster_id", "topic_id", "era", "batch", "stream")


@dataclass(frozen=True, slots=True)
class Place:
    """One partition of the log: see tables.INGESTED."""

    covered_to: int
    read_at: datetime | None = None
    complete_since: datetime | None = None
    first_read_at: datetime | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The rows of `ingested`. stream: the name of the checkpoint, and of the writer in each table's transactions.

    batch: the number of the last batch that was finished; the next one has the next number, also when it comes again.
    """

    cluster_id: str
    topic_id: str | None
    era: int
    batch: int
    stream: str
    places: Mapping[int, Place]

    @property
    def positions(self) -> dict[int, int]:
        return {partition: place.covered_to for partition, place in self.places.items()}

    def advanced(self, ends: Mapping[int, int]) -> Progress:
        """After one more batch, up to `ends`."""
        moved = {
            partition: replace(place, covered_to=max(place.covered_to, ends.get(partition, 0)))
            for partition, place in self.places.items()
        }
        return replace(self, batch=self.batch + 1, places=moved)

    def seen(self, bounds: LogBounds) -> Progress:
        """With `read_at` of every partition that was read to the end that it had then, and who led it."""
        read = {
            partition: replace(
                place,
                read_at=_read_at(place, bounds.asked_at, bounds.undecided_since.get(partition)),
                first_read_at=place.first_read_at or bounds.asked_at,
            )
            if place.covered_to >= bounds.ends.get(partition, 0)
            else place
            for partition, place in self.places.items()
        }
        led = {
            partition: replace(place, leader_epoch=bounds.leader_epochs.get(partition, place.leader_epoch))
            for partition, place in read.items()
        }
        return replace(self, places=led)


def _read_at(place: Place, asked_at: datetime, undecided_since: datetime | None) -> datetime:
    """No record beyond `covered_to` is older, by the reader's clock. Not before an earlier such moment, as it holds."""
    if undecided_since is None:
        return asked_at
    told = min(asked_at, undecided_since)
    return told if place.read_at is None else max(place.read_at, told)


def cut_off(before: Progress, ends: Mapping[int, int]) -> dict[int, int]:
    """Partitions of which records that were read are not there any more -> where what is left of them ends.

    ends: of the leader epoch in which each was read, as the leader has it now (`leader_epochs.epoch_ends`).
    """
    return {p: end for p, end in ends.items() if p in before.places and end < before.places[p].covered_to}


def plan(
    before: Progress | None, bounds: LogBounds, start_over: bool, cut: Mapping[int, int] | None = None
) -> Progress:
    """From where to go on. Raises Halted where the log is not the one that was read, or lost what was not read.

    cut: see `cut_off`. start_over: go on all the same. A log that began anew, or gained partitions, is a new era; one
    that lost its beginning is the same one. Raises PipelineError where there is no log now.
    """
    if before is None:
        places = {partition: Place(start) for partition, start in bounds.starts.items()}
        return Progress(bounds.cluster_id, bounds.topic_id, 0, 0, _new_stream(), places)
    if before.cluster_id != bounds.cluster_id:
        raise Halted(
            f"this warehouse holds the history of the Kafka cluster {before.cluster_id}, and this one is "
            f"{bounds.cluster_id}: give each cluster a --warehouse of its own"
        )
    if before.places and not bounds.ends:
        # Going on with no partitions would forget era and batch, which are told with each of them.
        raise PipelineError(
            f"the topic {OFFSETS_TOPIC} is gone: run it again when a consumer has made the brokers create it"
        )
    if (why := _began_anew(before, bounds, cut or {}) or _grew(before, bounds)) is not None:
        if not start_over:
            raise Halted(f"{why}. {_GO_ON}")
        places = {partition: _again(before, partition, bounds) for partition in bounds.starts}
        return Progress(bounds.cluster_id, bounds.topic_id, before.era + 1, before.batch, _new_stream(), places)
    places = dict(before.places)
    lost = {
        partition: start for partition, start in bounds.starts.items() if start > _covered(before, partition, start)
    }
    if lost:
        if not start_over:
            raise Halted(f"{_lost(before, lost)}. {_GO_ON}")
        places |= {partition: _again(before, partition, bounds) for partition in lost}
    stream = _new_stream() if lost else before.stream
    return Progress(bounds.cluster_id, bounds.topic_id or before.topic_id, before.era, before.batch, stream, places)


def restarted(progress: Progress) -> Progress:
    """The same, for a checkpoint that is not there, or is another state's."""
    return replace(progress, stream=_new_stream())


def refuse_older(ingested: tuple[int, int], covered: tuple[int, int]) -> None:
    """Era and batch of `ingested` and of `coverage`, which comes of it. Raises Halted where it knows more.

    Batches would be numbered once more by numbers that are in `activity` by then, and so never be taken in.
    """
    if ingested < covered:
        _tables_differ(
            f"the table {INGESTED.name} ends with batch {ingested[1]} of era {ingested[0]}, and {COVERAGE.name} with "
            f"batch {covered[1]} of era {covered[0]}: an older state of {INGESTED.name} was put in its place"
        )


def refuse_orphans(spark: SparkSession, warehouse: str) -> None:
    """Where nothing was ingested yet. Raises Halted where tables hold something all the same: it would come twice."""
    for table in (*RECORDS, COVERAGE):
        if table.exists(warehouse) and not table.read(spark, warehouse).isEmpty():
            _tables_differ(f"the table {INGESTED.name} is gone or empty, and {table.name} is not")


def refuse_incomplete(warehouse: str, batch: int) -> None:
    """Raises Halted where a table is gone that the first batch made: what it held would count as never written."""
    for table in (COMMITS, GROUP_STATES):
        if batch and not table.exists(warehouse):
            _tables_differ(f"the table {INGESTED.name} ends with batch {batch}, and {table.name} is gone")


def _tables_differ(why: str) -> NoReturn:
    raise Halted(
        f"{why}. Put its newest state back, or read the log anew into a new, empty --warehouse (and name that in "
        "spec.activity.uri)"
    )


def read_progress(warehouse: str) -> Progress | None:
    """What `ingested` says; None = nothing was read yet."""
    rows = INGESTED.rows(warehouse)
    if not rows:
        return None
    places = {row["log_partition"]: Place(**{field.name: row[field.name] for field in fields(Place)}) for row in rows}
    return Progress(**{name: rows[0][name] for name in _OF_ALL}, places=places)


def write_progress(warehouse: str, progress: Progress, batch: int | None = None) -> None:
    """Replace the rows of `ingested`; once only for each batch of the stream, where one is given."""
    of_all = {name: getattr(progress, name) for name in _OF_ALL} | {"version": TABLES_VERSION}
    rows = [
        of_all | {"log_partition": partition} | asdict(place) for partition, place in sorted(progress.places.items())
    ]
    INGESTED.overwrite(warehouse, rows, None if batch is None else Once(progress.stream, batch))


def _new_stream() -> str:
    return uuid4().hex


def _again(before: Progress, partition: int, bounds: LogBounds) -> Place:
    """From where the log begins now, as nobody knows what came before it."""
    known = before.places.get(partition)
    return Place(bounds.starts[partition], None, bounds.asked_at, known.first_read_at if known else None)


def _covered(before: Progress, partition: int, start: int) -> int:
    place = before.places.get(partition)
    return start if place is None else place.covered_to


def _grew(before: Progress, bounds: LogBounds) -> str | None:
    """A group's partition follows from how many there are: its records go on elsewhere, by offsets of their own."""
    if before.places and bounds.starts.keys() - before.places.keys():
        return (
            f"the topic {OFFSETS_TOPIC} has {len(bounds.starts)} partitions now and had {len(before.places)}: "
            "groups were moved to others"
        )
    return None


def _began_anew(before: Progress, bounds: LogBounds, cut: Mapping[int, int]) -> str | None:
    if before.topic_id and bounds.topic_id and before.topic_id != bounds.topic_id:
        ids = f"id {before.topic_id} then, {bounds.topic_id} now"
        return f"the topic {OFFSETS_TOPIC} was created anew since the last run ({ids})"
    for partition, place in sorted(before.places.items()):
        end = bounds.ends.get(partition)
        if end is None or end < place.covered_to:
            now = "is gone" if end is None else f"ends at {end} now"
            return (
                f"{OFFSETS_TOPIC}-{partition} was read up to offset {place.covered_to} and {now}: "
                "the topic was created anew, or a broker lost the end of its log"
            )
    if cut:
        partition, end = min(cut.items())
        place, now = before.places[partition], "is unknown" if end == NO_LEADER_EPOCH else f"ends at offset {end}"
        return (
            f"{OFFSETS_TOPIC}-{partition} was read up to offset {place.covered_to} in leader epoch "
            f"{place.leader_epoch}, which {now} now: the topic was created anew, or an unclean leader election lost "
            "the end of its log"
        )
    return None


def _lost(before: Progress, lost: Mapping[int, int]) -> str:
    partition, start = min(lost.items())
    others = f" (and {len(lost) - 1} more partitions)" if len(lost) > 1 else ""
    covered = before.places[partition].covered_to
    return (
        f"{OFFSETS_TOPIC}-{partition} was read up to offset {covered} and begins at {start} now{others}: "
        "the records between were deleted before they were read"
    )
