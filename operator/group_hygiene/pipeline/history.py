"""The tables as the life of each group, for `replay`: its records in order, the last ones of each slice. Reads only.

Within a slice of time, of records that are alike the last one is enough, and when the first one came. So what goes on
from here is bounded by slices and partitions, not by how often a group commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from group_hygiene.errors import PipelineError
from group_hygiene.pipeline.covered import activity_at, promised
from group_hygiene.pipeline.patterns import patterned
from group_hygiene.pipeline.replay import COMMIT, Known, Record, Steps, milliseconds_of
from group_hygiene.pipeline.tables import COMMITS, GROUP_STATES, PRUNED, RECORDS, State

_PLACE = ("group", "era")
# Sorted by group, era and position; of a record, all that Record has, in its order.
_BEFORE = ("group", "position", "known")
# Small enough to show how far it is, and that no core waits long for the last one.
_PARTS_A_CORE = 8
_COLUMNS = (*_BEFORE, *Record._fields)


@dataclass(frozen=True, slots=True)
class Extent:
    """What the tables can tell of.

    cluster: whose log it is. activity: the version that counts. began: since when all of it is there; read_at: until
    when. complete_since: partition of `__consumer_offsets` -> before when something of it is missing; see
    `model.Activity`. batch: the last one that counts. pruned: whether records that were too old were dropped.
    """

    cluster: str
    activity: State
    began: datetime
    read_at: datetime
    complete_since: Mapping[int, datetime]
    batch: int
    pruned: bool


class Told(NamedTuple):
    """One group of the tables. known: see `replay.Known`; None = its records are all that there ever were."""

    group: str
    pattern: str
    log_partition: int
    known: Known | None
    records: list[Record]


def extent(spark: SparkSession, warehouse: str) -> Extent:
    """How far the tables reach. Raises PipelineError where there is nothing to look back on, and says what to do.

    The log is compacted: who reads it for the first time finds the last records only, and history begins then.
    """
    covered = promised(spark, warehouse)
    rows = covered.places.values()
    if len(rows) < covered.partitions:
        raise PipelineError(
            "the offsets log was not read to its end yet: run `group-hygiene pipeline run` until it says complete"
        )
    since = {row["log_partition"]: row["complete_since"] for row in rows if row["complete_since"] is not None}
    dropped = [table.setting(warehouse, PRUNED) for table in RECORDS]
    moments = [row["first_read_at"] for row in rows] + [datetime.fromisoformat(told) for told in dropped if told]
    return Extent(
        cluster=covered.cluster_id,
        activity=covered.activity,
        began=max(moments),
        read_at=min(row["read_at"] for row in rows),
        complete_since=since,
        batch=max(row["batch"] for row in rows),
        pruned=any(dropped),
    )


def lives(spark: SparkSession, warehouse: str, reach: Extent, slices: Steps) -> DataFrame:
    """Rows for `told`: what `activity` says of each group now, and its records, together and in order.

    slices: the first is all until it, each other what came since the one before, and one more what came after the last.

    Only what is in `activity` too: who writes the tables meanwhile changes nothing.
    """
    upto = F.col("batch") <= reach.batch
    commits = COMMITS.read(spark, warehouse).where(upto)
    states = GROUP_STATES.read(spark, warehouse).where(upto)
    rows = _known(spark, warehouse, reach)
    for records in (_latest_commits(commits, slices), _latest_states(states, slices)):
        rows = rows.unionByName(records, allowMissingColumns=True)
    parts = _PARTS_A_CORE * spark.sparkContext.defaultParallelism
    return rows.select(*_COLUMNS).repartition(parts, "group").sortWithinPartitions("group", "era", "position")


def _known(spark: SparkSession, warehouse: str, reach: Extent) -> DataFrame:
    activity = activity_at(spark, warehouse, reach.activity)
    names = patterned(activity.select("group"))
    # Whose records are all there needs none of them.
    kept = F.col("offsets") if reach.pruned else F.slice("offsets", 1, 0)
    offsets = F.transform(
        kept, lambda it: F.struct(it["topic"], it["partition"], it["offset"], F.unix_millis(it["commit_time"]))
    )
    times = (F.unix_millis(name).alias(name) for name in ("last_commit", "empty_since", "first_seen"))
    told = map(F.col, ("pattern", "log_partition", "type", "protocol_type", "state"))
    known = F.struct(*told, *times, offsets.alias("offsets"))
    first = {"era": F.lit(-1), "position": F.lit(-1).cast("bigint"), "known": known}
    return activity.join(names, "group").select("group", *(value.alias(name) for name, value in first.items()))


def _latest_commits(commits: DataFrame, slices: Steps) -> DataFrame:
    """Of each partition of a group the last commit, tombstone and aborted commit in each slice."""
    wiped = F.col("committed_offset").isNull()
    rows = commits.withColumn("slice", _slice(slices)).withColumn("wiped", wiped)
    latest = rows.groupBy(*_PLACE, "slice", "topic", "partition", "wiped", "aborted").agg(
        F.max("log_offset").alias("position"),
        F.unix_millis(F.min("record_time")).alias("first_ms"),
        F.unix_millis(F.max("record_time")).alias("record_ms"),
        F.max_by("committed_offset", "log_offset").alias("offset"),
        F.max("commit_ms").alias("commit_ms"),
    )
    return latest.drop("wiped").withColumn("kind", F.lit(COMMIT))


def _latest_states(states: DataFrame, slices: Steps) -> DataFrame:
    """Of each kind of record and each member the last one in each slice; apart, those that somebody joined."""
    joined = (F.coalesce("members", F.lit(0)) > 0) | (F.coalesce("protocol_type", F.lit("")) != "")
    rows = states.withColumn("slice", _slice(slices)).withColumn("joined", joined)
    last = F.max_by(F.struct("protocol_type", "members", "state_ms"), "log_offset")
    latest = rows.groupBy(*_PLACE, "slice", "kind", "member_id", "gone", "joined").agg(
        F.max("log_offset").alias("position"),
        F.unix_millis(F.min("record_time")).alias("first_ms"),
        F.unix_millis(F.max("record_time")).alias("record_ms"),
        last.alias("last"),
    )
    return latest.select("*", "last.*").drop("last", "joined")


def _slice(slices: Steps) -> Column:
    """The first of them that is not before a record; `slices.count` = none is."""
    start = F.unix_micros(F.lit(slices.start))
    every = slices.every // timedelta(microseconds=1)
    index = F.ceil((F.unix_micros("record_time") - start) / F.lit(every))
    return F.greatest(F.lit(0), F.least(F.lit(slices.count), index)).cast("int")


def told(batches: Iterable[pa.RecordBatch], began: datetime) -> Iterator[Told]:
    """The groups that are in rows of `lives`. began: of the history."""
    began_ms = milliseconds_of(began)
    for group, rows in groupby(_rows(batches), key=itemgetter(0)):
        first, *rest = rows
        activity = first[_BEFORE.index("known")]
        # What `activity` lacks was written to the tables since.
        if activity is not None:
            records = [Record._make(row[len(_BEFORE) :]) for row in rest]
            known = _lost(activity, records, began_ms)
            yield Told(group, activity["pattern"], activity["log_partition"], known, records)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _lost(activity: Mapping[str, Any], records: list[Record], began_ms: int) -> Known | None:
    """What the records don't tell, as those before them were dropped; None = there were none before them.

    What nobody knows any more is taken so that it matches rather than not: nobody used the group since the history
    began, until the first record that says so.
    """
    first = min((record.first_ms for record in records), default=None)
    if first is not None and first <= activity["first_seen"]:
        return None
    commits = {(record.topic, record.partition) for record in records if record.commit_ms is not None}
    # One that was committed again since hides what it was.
    offsets = {
        (topic, partition): (offset, at)
        for topic, partition, offset, at in (tuple(one.values()) for one in activity["offsets"])
        if (topic, partition) not in commits
    }
    last, empty = activity["last_commit"], activity["empty_since"]
    if commits:
        last = max((at for _, at in offsets.values()), default=began_ms)
    state = activity["state"]
    if any(record.kind != COMMIT for record in records):
        state, empty = "Empty", began_ms
    elif state == "Gone" and records:
        # Nobody ever joined it: its tombstones are among the records.
        state = "Empty"
    return Known(activity["type"], activity["protocol_type"], state, last, empty, offsets)
