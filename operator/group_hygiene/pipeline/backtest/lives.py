"""Reads the records of each group in order, for `replay`: the last ones of each slice of time. Reads only.

Within a slice, the last of several similar records is enough, with the time of the first. So the size of the result
depends on slices and partitions, not on the frequency of commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from group_hygiene.errors import PipelineError
from group_hygiene.model.groups import CommittedOffset, GroupType, Partition
from group_hygiene.pipeline.backtest.replay import COMMIT, History, Life, Record, Steps, milliseconds_of, replay
from group_hygiene.pipeline.coverage import Progress, activity_at, read_coverage
from group_hygiene.pipeline.name_patterns import patterned
from group_hygiene.pipeline.store import State
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, GROUP_STATES, PRUNED, RECORDS

_COLUMNS = ("group", "known", *Record._fields)


class Extent(NamedTuple):
    """The range of the tables.

    activity: that has what `covered` counts. began, read_at: the time for which they are complete. pruned: whether old
    records were dropped. bytes: of the files to read.
    """

    covered: Progress
    activity: State
    began: datetime
    read_at: datetime
    pruned: bool
    bytes: int


def extent(warehouse: str) -> Extent:
    """The range of the tables. Raises PipelineError, with what to do, if they have no history yet.

    The log is compacted: its first read finds the last records only, so history begins with that read.
    """
    covered, activity = read_coverage(warehouse)
    first = filter(None, (place.first_read_at for place in covered.places.values()))
    if len(covered.read_at) < len(covered.places):
        raise PipelineError(
            "the offsets log was not read to its end yet: run `group-hygiene pipeline run` until it says complete"
        )
    dropped = [text for table in RECORDS if (text := table.settings(warehouse).get(PRUNED))]
    return Extent(
        covered,
        activity,
        began=max([*first, *map(datetime.fromisoformat, dropped)]),
        read_at=min(covered.read_at.values()),
        pruned=bool(dropped),
        bytes=sum(table.size(warehouse) for table in (ACTIVITY, COMMITS, GROUP_STATES)),
    )


def lives(spark: SparkSession, warehouse: str, reach: Extent, slices: Steps) -> DataFrame:
    """Rows for `histories`: the row of `activity` of each group, then its records in order.

    slices: ends of the slices; the first has all records until it, and one more slice all after the last.

    Only batches that `activity` includes: concurrent writes to the tables change nothing.
    """
    upto = F.col("batch") <= reach.covered.batch
    commits = COMMITS.read(spark, warehouse).where(upto)
    states = GROUP_STATES.read(spark, warehouse).where(upto)
    # A commit, aborted or not, or a member. An epoch without members counts, too: of a consumer that joined and soon
    # left, compaction leaves only this record.
    commit = F.col("committed_offset").isNotNull().alias("alive")
    joined = "members > 0 OR protocol_type != '' OR kind LIKE '%-member' OR kind LIKE '%-epoch'"
    member = F.expr(f"NOT gone AND coalesce({joined}, false)").alias("alive")
    offset = F.max_by("committed_offset", "log_offset").alias("offset")
    fields = (F.max_by(name, "log_offset").alias(name) for name in ("protocol_type", "members", "state_ms"))
    alike = (F.lit(COMMIT).alias("kind"), "topic", "partition", "aborted", commit)
    of_commits = _latest(commits, slices, alike, offset, F.max("commit_ms").alias("commit_ms"))
    of_states = _latest(states, slices, ("kind", "member_id", "gone", member), *fields)
    records = of_commits.unionByName(of_states, allowMissingColumns=True)
    # The row of `activity` has no era and no position, so it is the first one.
    rows = _known(spark, warehouse, reach).unionByName(records, allowMissingColumns=True)
    return rows.repartition("group").sortWithinPartitions("group", "era", "position").select(*_COLUMNS)


def _known(spark: SparkSession, warehouse: str, reach: Extent) -> DataFrame:
    # Not needed if no records were dropped.
    needed = F.col("offsets") if reach.pruned else F.slice("offsets", 1, 0)
    offsets = F.transform(
        needed, lambda it: F.struct(it["topic"], it["partition"], it["offset"], F.unix_millis(it["commit_time"]))
    )
    times = (F.unix_millis(name).alias(name) for name in ("last_commit", "empty_since", "first_seen"))
    fields = ("log_partition", "type", "protocol_type", "state", *times, offsets.alias("offsets"))
    rows = patterned(activity_at(spark, warehouse, reach.activity).select("group", *fields))
    return rows.select("group", F.struct(*rows.drop("group").columns).alias("known"))


def _latest(rows: DataFrame, slices: Steps, alike: Iterable[Column | str], *columns: Column) -> DataFrame:
    """The last record of those of a group that are alike, in each slice; one without a time is before all others."""
    rows = rows.withColumn("record_time", F.coalesce("record_time", F.timestamp_millis(F.lit(0))))
    # The first slice end that is not before the record; `slices.count` = none.
    since = F.unix_micros("record_time") - F.unix_micros(F.lit(slices.start))
    index = F.ceil(since / F.lit(slices.every // timedelta(microseconds=1)))
    slice_ = F.greatest(F.lit(0), F.least(F.lit(slices.count), index)).cast("int")
    return rows.groupBy("group", "era", slice_.alias("slice"), *alike).agg(
        F.max("log_offset").alias("position"),
        F.unix_millis(F.min("record_time")).alias("first_ms"),
        F.unix_millis(F.max("record_time")).alias("record_ms"),
        *columns,
    )


def histories(batches: Iterable[pa.RecordBatch], reach: Extent, start: datetime) -> Iterator[tuple[str, History]]:
    """The name pattern of each group in rows of `lives`, and its history from `start` on."""
    began_ms, complete_since = milliseconds_of(reach.began), reach.covered.complete_since
    columns = ((column.to_pylist() for column in batch.columns) for batch in batches)
    rows = chain.from_iterable(zip(*of_batch, strict=True) for of_batch in columns)
    for group, (first, *rest) in groupby(rows, key=itemgetter(0)):
        # A group without a row in `activity` was written since.
        if (activity := first[1]) is not None:
            records = [Record._make(row[2:]) for row in rest]
            lost = _lost(activity, records, began_ms)
            history = replay(group, records, start, lost, complete_since.get(activity["log_partition"]))
            yield activity["pattern"], history


def _lost(activity: Mapping[str, Any], records: list[Record], began_ms: int) -> Life | None:
    """The group's state before its records, if earlier ones were dropped; None = there were none before them.

    Unknown facts are assumed so that the group rather matches: it was unused since the history began, until its first
    record shows use.
    """
    first = min((record.first_ms for record in records), default=None)
    if first is not None and first <= activity["first_seen"]:
        return None
    commits = {(record.topic, record.partition) for record in records if record.commit_ms is not None}
    # Offsets from before the records; a later commit hides the earlier offset.
    offsets = {
        Partition(topic, partition): (CommittedOffset(offset), at)
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
        # A simple group, whose tombstones are among the records.
        state = "Empty"
    return Life(GroupType(activity["type"]), activity["protocol_type"], state, last, empty, offsets)
