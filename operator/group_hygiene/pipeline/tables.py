"""The Delta tables of one Kafka cluster: names, schemas, properties; and how far the log is in them (`coverage`).

One warehouse (a folder or an object store URI) holds one cluster. The first columns of every bronze row are the
record's position: `era` is 0, and rises each time that the topic was recreated and a user chose to continue, since
offsets then start again; `batch` is the number of the batch, over all eras; `log_partition`, `log_offset` and
`record_time` are the record's own. They are first because Delta has minima and maxima of the first columns only, and
later reads filter by them.

A column that is NOT NULL here never holds a null, but Delta does not enforce that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
from deltalake import Schema

from group_hygiene.errors import PipelineError
from group_hygiene.kafka.offsets_topic import LogBounds
from group_hygiene.model.evidence import CLIENT, TABLES_VERSION
from group_hygiene.pipeline.store import State, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A property of a bronze table: rows from before this time (ISO 8601) were dropped, after `activity` had them.
PRUNED = "grouphygiene.pruned"
# A property of `commits`: of the days before this time (ISO 8601), only the first and the last commits are there.
THINNED = "grouphygiene.thinned"
_parser = duckdb.connect(config={"threads": 1})
_parser.execute("SET TimeZone = 'UTC'")


def _schema(columns: str) -> pa.Schema:
    """The Arrow schema of these columns in DuckDB's SQL. Every one is nullable, as in tables that Spark creates."""
    _parser.execute(f"CREATE OR REPLACE TABLE t ({columns})")
    # By way of Delta, which has names of its own for the elements of lists.
    return pa.schema(Schema.from_arrow(_parser.table("t").to_arrow_table().schema))


_POSITION = """
    era INT NOT NULL, batch BIGINT NOT NULL, log_partition INT NOT NULL, log_offset BIGINT NOT NULL,
    record_time TIMESTAMPTZ
"""
_INDEXED = 5
# Time of the previous complete read of the partition, which did not find the record, or found its transaction open: the
# record was written later, whatever its own times are. null = there was no such read.
_WRITTEN_AFTER = "written_after TIMESTAMPTZ"

# Every commit of an offset, and every tombstone of one (committed_offset and commit_ms are null). aborted: its
# transaction was aborted, so its time counts as activity, but its offset never applied. commit_ms: from the record's
# value, in milliseconds since 1970. leader_epoch: -1 = unknown.
COMMITS = Table(
    "commits",
    _schema(
        f"""
        {_POSITION}, "group" VARCHAR NOT NULL, topic VARCHAR NOT NULL, "partition" INT NOT NULL,
        committed_offset BIGINT, leader_epoch INT, metadata VARCHAR, commit_ms BIGINT, aborted BOOLEAN NOT NULL,
        {_WRITTEN_AFTER}
        """
    ),
    _INDEXED,
)

# Clients of members: see offsets_log.MemberClient. host: null also if the pipeline stores no hosts. null = no member.
_CLIENTS = f"STRUCT({', '.join(f'{name} VARCHAR' for name in CLIENT)})[]"

# Every other record of a group: see offsets_log.StateRecord for the columns of each kind of record.
GROUP_STATES = Table(
    "group_states",
    _schema(
        f"""
        {_POSITION}, kind VARCHAR NOT NULL, "group" VARCHAR NOT NULL, protocol_type VARCHAR, generation INT,
        member_id VARCHAR, members INT, state_ms BIGINT, gone BOOLEAN NOT NULL, {_WRITTEN_AFTER}, clients {_CLIENTS}
        """
    ),
    _INDEXED,
)

# Records that could not be decoded, unchanged, and why.
QUARANTINE = Table(
    "quarantine", _schema(f"{_POSITION}, key BLOB, value BLOB, error VARCHAR NOT NULL, {_WRITTEN_AFTER}"), _INDEXED
)

# One row per group. Times are those of the log's records; null = unknown. offsets: its last commit in each partition
# for which it still has an offset. `*_after`: the latest `written_after` of its commits, of the record of its state,
# and of the commits for each topic of `offsets`, or the time of a commit's record: these were written no earlier.
# last_clients: of the last record that names clients, and its time. log_partition: each file has the groups of one
# partition, or of all: see ingest.task.
ACTIVITY = Table(
    "activity",
    _schema(
        f"""
        cluster_id VARCHAR NOT NULL, log_partition INT NOT NULL, "group" VARCHAR NOT NULL, type VARCHAR NOT NULL,
        protocol_type VARCHAR, state VARCHAR NOT NULL, state_since TIMESTAMPTZ, members VARCHAR[] NOT NULL,
        first_commit TIMESTAMPTZ, last_commit TIMESTAMPTZ, oldest_commit TIMESTAMPTZ, empty_since TIMESTAMPTZ,
        first_seen TIMESTAMPTZ, partitions INT NOT NULL, topics INT NOT NULL,
        offsets STRUCT(
            topic VARCHAR, "partition" INT, "offset" BIGINT, leader_epoch INT, metadata VARCHAR, commit_time TIMESTAMPTZ
        )[] NOT NULL,
        commits_by_day MAP(DATE, BIGINT) NOT NULL, tombstoned_at TIMESTAMPTZ, era INT NOT NULL,
        updated_at TIMESTAMPTZ NOT NULL, last_commit_after TIMESTAMPTZ, state_after TIMESTAMPTZ,
        topics_after MAP(VARCHAR, TIMESTAMPTZ), last_clients {_CLIENTS}, last_clients_at TIMESTAMPTZ
        """
    ),
    indexed=2,
)

# One row per log partition: every record of that era before `covered_to` is in the three tables of records, and in
# version `activity_version` of `activity`, and no later record was written before `read_at` (with an open transaction,
# the time of its first record; null = never completely read). leader_epoch: of the partition at that read, -1 = its log
# has none. batch: the last completed one, 0 = none; rows of a later one will be written again. complete_since: records
# from before this time were lost unread, could not be decoded, or are of unknown groups (null = none). first_read_at:
# time of the first complete read; of older records, compaction had left only the last ones. topic_id: null = a broker
# before 2.8, which has none. version: TABLES_VERSION of the writer, for all tables.
COVERAGE = Table(
    "coverage",
    _schema(
        """
        cluster_id VARCHAR NOT NULL, topic_id VARCHAR, era INT NOT NULL, batch BIGINT NOT NULL,
        log_partition INT NOT NULL, covered_to BIGINT NOT NULL, read_at TIMESTAMPTZ, complete_since TIMESTAMPTZ,
        first_read_at TIMESTAMPTZ, version INT NOT NULL, leader_epoch INT, activity_id VARCHAR NOT NULL,
        activity_version BIGINT NOT NULL
        """
    ),
)

# The bronze tables: every record of the log is in one of them.
RECORDS = (COMMITS, GROUP_STATES, QUARANTINE)


# The same in each row.
_OF_ALL = ("cluster_id", "topic_id", "era", "batch")


@dataclass(frozen=True, slots=True)
class Place:
    """One partition of the log: see COVERAGE."""

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
