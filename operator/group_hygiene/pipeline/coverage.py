"""The table `coverage`: up to where each partition of the log is in the tables, and in which version of `activity`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from group_hygiene.errors import PipelineError
from group_hygiene.kafka.offsets_topic import LogBounds
from group_hygiene.model.evidence import TABLES_VERSION
from group_hygiene.pipeline.store import State
from group_hygiene.pipeline.tables import ACTIVITY, COVERAGE

# The same in each row.
_OF_ALL = ("cluster_id", "topic_id", "era", "batch")


@dataclass(frozen=True, slots=True)
class Place:
    """One partition of the log: see tables.COVERAGE."""

    covered_to: int
    read_at: datetime | None = None
    complete_since: datetime | None = None
    first_read_at: datetime | None = None
    leader_epoch: int | None = None

    def seen(self, partition: int, bounds: LogBounds) -> Place:
        """With its leader epoch, and `read_at` if it was read to its end."""
        epoch = bounds.leader_epochs.get(partition, self.leader_epoch)
        if self.covered_to < bounds.ends.get(partition, 0):
            return replace(self, leader_epoch=epoch)
        read_at = bounds.asked_at
        if (undecided_since := bounds.undecided_since.get(partition)) is not None:
            # All records beyond `covered_to` are later than this, by the reader's clock. It never moves back.
            read_at = max(filter(None, (self.read_at, min(read_at, undecided_since))))
        first_read_at = self.first_read_at or bounds.asked_at
        return replace(self, leader_epoch=epoch, read_at=read_at, first_read_at=first_read_at)


@dataclass(frozen=True, slots=True)
class Progress:
    """The rows of `coverage`. places: by partition of the log.

    batch: the number of the last completed batch; rows of a later one are leftovers of a run that was killed.
    """

    cluster_id: str
    topic_id: str | None
    era: int
    batch: int
    places: Mapping[int, Place]

    @property
    def positions(self) -> dict[int, int]:
        return {partition: place.covered_to for partition, place in self.places.items()}

    @property
    def read_at(self) -> dict[int, datetime]:
        """Partition that was read to its end -> when it last was."""
        return {partition: place.read_at for partition, place in self.places.items() if place.read_at is not None}

    @property
    def complete_since(self) -> dict[int, datetime]:
        """Partition that was read to its end -> records from before this time are missing; see `Activity`."""
        times = {partition: self.places[partition].complete_since for partition in self.read_at}
        return {partition: time for partition, time in times.items() if time is not None}

    def advanced(self, reached: Mapping[int, int], unread: Mapping[int, datetime]) -> Progress:
        """The progress after one more batch. unread: by partition, records before this time say nothing of groups."""
        moved = {
            partition: replace(
                place,
                covered_to=max(place.covered_to, reached.get(partition, 0)),
                complete_since=max(filter(None, (place.complete_since, unread.get(partition))), default=None),
            )
            for partition, place in self.places.items()
        }
        return replace(self, batch=self.batch + 1, places=moved)

    def seen(self, bounds: LogBounds) -> Progress:
        """With `read_at` of every partition that was read to its end, and the leader epoch of each."""
        return replace(self, places={number: place.seen(number, bounds) for number, place in self.places.items()})


def read_progress(warehouse: str) -> tuple[Progress, State] | None:
    """The progress in `coverage`, and the state of `activity` that has all of it; None = nothing was read yet."""
    # If a partition has several rows, the one that covers least counts, as in the operator.
    rows = sorted(COVERAGE.rows(warehouse), key=lambda row: row["covered_to"], reverse=True)
    if not rows:
        return None
    if len({(row["cluster_id"], row["activity_id"]) for row in rows}) > 1:
        raise PipelineError("coverage names several clusters or several activity tables")
    places = {row["log_partition"]: Place(**{field.name: row[field.name] for field in fields(Place)}) for row in rows}
    activity = State(rows[0]["activity_id"], rows[0]["activity_version"], rows[0]["batch"])
    return Progress(**{name: rows[0][name] for name in _OF_ALL}, places=places), activity


def read_coverage(warehouse: str) -> tuple[Progress, State]:
    """The same. Raises PipelineError, with what to do, if there are no tables yet, or if no partition was read."""
    if not (ACTIVITY.exists(warehouse) and COVERAGE.exists(warehouse)):
        raise PipelineError(f"there are no tables at {warehouse} yet: run `group-hygiene pipeline run` first")
    known = read_progress(warehouse)
    if known is None:
        raise PipelineError("the tables cover nothing yet: no run of the pipeline has completed")
    if not known[0].read_at:
        raise PipelineError("the log was never read to its end yet: run `group-hygiene pipeline run` again")
    return known


def write_progress(warehouse: str, progress: Progress, activity: State, after: int) -> None:
    """Replace the rows of `coverage`. Raises PipelineError if its version is not `after`: see Table.overwrite."""
    of_all = {name: getattr(progress, name) for name in _OF_ALL} | {"version": TABLES_VERSION}
    of_all |= {"activity_id": activity.id, "activity_version": activity.version}
    rows = [
        of_all | {"log_partition": partition} | asdict(place) for partition, place in sorted(progress.places.items())
    ]
    COVERAGE.overwrite(warehouse, rows, after)


def activity_at(spark: SparkSession, warehouse: str, covered: State) -> DataFrame:
    """`activity` at exactly this version: a concurrent run may have written a later one.

    Raises PipelineError if this version does not exist.
    """
    if not ACTIVITY.holds(warehouse, covered):
        raise PipelineError(
            f"coverage names version {covered.version} of an activity table that does not exist: an older or another "
            "table replaced it; the next run of the pipeline corrects that"
        )
    return ACTIVITY.read(spark, warehouse, covered.version)
