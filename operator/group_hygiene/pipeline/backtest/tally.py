"""Reads the records of each group in order, and counts the results of policies: in Spark's workers, then in Spark.

Within a slice of time, the last of several similar records is enough, with the time of the first. So the size of the
result depends on slices and partitions, not on the frequency of commits. What the driver gets is bounded by the number
of policies and steps, whatever the number of groups.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from functools import cache
from itertools import islice
from operator import attrgetter
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from group_hygiene.errors import PipelineError
from group_hygiene.pipeline.backtest.replay import (
    COMMIT,
    History,
    Span,
    Steps,
    Trial,
    first_index,
    milliseconds_of,
    moments_of,
    replay,
)
from group_hygiene.pipeline.ingest.fold import COMMIT_IS_USE, STATE_IS_USE, Moments
from group_hygiene.pipeline.name_patterns import patterned
from group_hygiene.pipeline.store import State
from group_hygiene.pipeline.tables import (
    ACTIVITY,
    COMMITS,
    GROUP_STATES,
    PRUNED,
    RECORDS,
    Progress,
    activity_at,
    read_coverage,
)

# Of records, also those that are null for each one of its table.
_COLUMNS = (
    *("group", "known", "era", "slice", "first_ms", "kind", "used", "log_partition", "log_offset", "record_time"),
    *("topic", "partition", "committed_offset", "commit_ms", "aborted"),
    *("protocol_type", "member_id", "members", "state_ms", "gone"),
)
# Rows of groups that are replayed together.
_TOGETHER = 50_000
_ROWS_A_BATCH = 10_000
# Of each policy, the most that the driver lists.
PATTERNS, REGRETS = 5_000, 10_000
# Instead of a policy's number: counts of all groups.
ALL = -1
_TIME = pa.timestamp("us", "UTC")
_NEVER_MS = 1 << 62
# (policy, what) -> rows.
Sums = Mapping[tuple[int, str], Sequence[Mapping[str, Any]]]


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
    """Rows for `histories`, those of a group together: its row of `activity`, and its records.

    slices: ends of the slices; the first has all records until it, and one more slice all after the last.

    Only batches that `activity` includes: concurrent writes to the tables change nothing.
    """
    upto = F.col("batch") <= reach.covered.batch
    commits = COMMITS.read(spark, warehouse).where(upto)
    states = GROUP_STATES.read(spark, warehouse).where(upto)
    alike = (F.lit(COMMIT).alias("kind"), "topic", "partition", "aborted", F.expr(COMMIT_IS_USE).alias("used"))
    offset = F.max_by("committed_offset", "log_offset").alias("committed_offset")
    of_commits = _latest(commits, slices, alike, offset, F.max("commit_ms").alias("commit_ms"))
    fields = (F.max_by(name, "log_offset").alias(name) for name in ("protocol_type", "members", "state_ms"))
    of_states = _latest(states, slices, ("kind", "member_id", "gone", F.expr(STATE_IS_USE).alias("used")), *fields)
    records = of_commits.unionByName(of_states, allowMissingColumns=True)
    rows = _known(spark, warehouse, reach).unionByName(records, allowMissingColumns=True)
    return rows.repartition("group").sortWithinPartitions("group").select(*_COLUMNS)


def _known(spark: SparkSession, warehouse: str, reach: Extent) -> DataFrame:
    # Not needed if no records were dropped.
    needed = F.col("offsets") if reach.pruned else F.slice("offsets", 1, 0)
    offsets = F.transform(
        needed,
        lambda it: F.struct(
            *(it[name].alias(name) for name in ("topic", "partition", "offset")),
            F.unix_micros(it["commit_time"]).alias("commit_time"),
        ),
    )
    times = (F.unix_micros(name).alias(name) for name in ("last_commit", "empty_since"))
    first_seen = F.unix_millis("first_seen").alias("first_seen")
    fields = ("log_partition", "type", "protocol_type", "state", *times, first_seen, offsets.alias("offsets"))
    rows = patterned(activity_at(spark, warehouse, reach.activity).select("group", *fields))
    return rows.select("group", F.struct(*rows.drop("group").columns).alias("known"))


def _latest(rows: DataFrame, slices: Steps, alike: Iterable[Column | str], *columns: Column) -> DataFrame:
    """The last record of those of a group that are alike, in each slice; one without a time is before all others."""
    time = F.coalesce("record_time", F.timestamp_millis(F.lit(0)))
    # The first slice end that is not before the record; `slices.count` = none.
    since = F.unix_micros(time) - F.unix_micros(F.lit(slices.start))
    index = F.ceil(since / F.lit(slices.every // timedelta(microseconds=1)))
    slice_ = F.greatest(F.lit(0), F.least(F.lit(slices.count), index)).cast("int")
    return rows.groupBy("group", "era", "log_partition", slice_.alias("slice"), *alike).agg(
        F.max("log_offset").alias("log_offset"),
        F.unix_millis(F.min(time)).alias("first_ms"),
        F.max("record_time").alias("record_time"),
        *columns,
    )


def histories(batches: Iterable[pa.RecordBatch], reach: Extent, start: datetime) -> Iterator[tuple[str, History]]:
    """The name pattern of each group in rows of `lives`, and its history from `start` on."""
    with TemporaryDirectory() as spill, closing(Moments(spill)) as moments:
        for rows in _whole_groups(batches):
            yield from _histories(moments, rows, reach, start)


def _whole_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Some groups at a time, each with all of its rows."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= _TOGETHER:
            rows = pa.Table.from_batches(waiting)
            last = pc.index(rows["group"], rows["group"][-1]).as_py()
            if last:
                yield rows.slice(0, last)
            waiting = rows.slice(last).to_batches()
    if waiting:
        yield pa.Table.from_batches(waiting)


def _histories(moments: Moments, rows: pa.Table, reach: Extent, start: datetime) -> Iterator[tuple[str, History]]:
    known = rows.filter(pc.is_valid(rows["known"]))
    groups = known["group"].combine_chunks()
    activity = dict(zip(groups.to_pylist(), known["known"].to_pylist(), strict=True))
    # A group without a row in `activity` was written since.
    records = rows.filter(pc.is_in(rows["group"], value_set=groups)).filter(pc.is_null(rows["known"]))
    partitions = pa.array([row["log_partition"] for row in activity.values()], pa.int32())
    own = pc.equal(records["log_partition"], partitions.take(pc.index_in(records["group"], value_set=groups)))
    # How many partitions an earlier log had is not known.
    records = records.append_column("own", pc.or_(own, pc.less(records["era"], reach.covered.era)))
    before = pa.Table.from_pylist(_lost(activity, records, reach), ACTIVITY.schema)
    found = dict(moments_of(moments.rows(groups, records, before)))
    for number, (group, row) in enumerate(activity.items()):
        complete_since = reach.covered.complete_since.get(row["log_partition"])
        yield row["pattern"], replay(group, found.get(number, ()), start, complete_since)


def _lost(activity: Mapping[str, Mapping[str, Any]], records: pa.Table, reach: Extent) -> list[dict[str, Any]]:
    """Rows of `activity` of the groups with records that were dropped, from before their other records.

    Unknown facts are assumed so that the group rather matches: it was unused since the history began, until its first
    record shows use.
    """
    firsts = records.group_by("group").aggregate([("first_ms", "min")])
    first = dict(zip(firsts["group"].to_pylist(), firsts["first_ms_min"].to_pylist(), strict=True))
    lost = [group for group, row in activity.items() if first.get(group, _NEVER_MS) > (row["first_seen"] or 0)]
    left = records.filter(pc.is_in(records["group"], value_set=pa.array(lost, pa.string())))
    of_groups: dict[str, list[dict[str, Any]]] = {group: [] for group in lost}
    for record in left.select(["group", "kind", "topic", "partition", "commit_ms"]).to_pylist():
        of_groups[record["group"]].append(record)
    began = milliseconds_of(reach.began) * 1000
    return [_before(group, activity[group], of_group, began) for group, of_group in of_groups.items()]


def _before(group: str, row: Mapping[str, Any], records: Sequence[Mapping[str, Any]], began: int) -> dict[str, Any]:
    """Times in microseconds since 1970. Earlier members are unknown: only `state` shows that they left."""
    commits = {(record["topic"], record["partition"]) for record in records if record["commit_ms"] is not None}
    # Offsets from before the records; a later commit hides the earlier offset.
    offsets = [offset for offset in row["offsets"] if (offset["topic"], offset["partition"]) not in commits]
    state, last, empty = row["state"], row["last_commit"], row["empty_since"]
    if any(record["kind"] != COMMIT for record in records):
        state, empty = "Empty", began
    elif state == "Gone" and records:
        # A simple group, whose tombstones are among the records.
        state = "Empty"
    if commits:
        last = max((offset["commit_time"] for offset in offsets), default=began)
    same = {"group": group, "type": row["type"], "protocol_type": row["protocol_type"], "members": []}
    return same | {"state": state, "last_commit": last, "empty_since": empty, "offsets": offsets}


class OnTrial(NamedTuple):
    """A policy, and the same with other periods. periods, graces: ascending, its own included, or empty."""

    trial: Trial
    periods: Sequence[Trial]
    graces: Sequence[Trial]

    @property
    def own(self) -> int:
        """The index of the policy's own period."""
        return self.periods.index(self.trial) if self.periods else 0


class Regret(NamedTuple):
    """A deletion of a group that was used again later. by: its first use, Commit or Join."""

    group: str
    pattern: str
    marked_at: datetime
    deleted_at: datetime
    back_at: datetime
    by: str


class Row(NamedTuple):
    """One count (`many`), perhaps of a reason (`text`), or a Regret ("regret").

    "period", "grace", and by name pattern (`text`) "pattern": groups that so many of the policy's periods delete, from
    the first one on, and for which so many of these are regretted. See `counted` for the sums.
    """

    policy: int
    what: str
    step: int = 0
    text: str | None = None
    deleted: int = 0
    regretted: int = 0
    regret: Mapping[str, Any] | None = None
    many: int = 1


_REGRET = pa.struct([(name, _TIME if name.endswith("_at") else pa.string()) for name in Regret._fields])
_TYPES = {"what": pa.string(), "text": pa.string(), "regret": _REGRET}
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.int64())) for name in Row._fields])


def tally(
    batches: Iterable[pa.RecordBatch], bench: Sequence[OnTrial], steps: Steps, reach: Extent
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow` over rows of `lives`; returns rows of SCHEMA. steps: of the counts."""
    rows = _Tally(bench, steps, reach.read_at).rows(histories(batches, reach, steps.start))
    while chunk := list(islice(rows, _ROWS_A_BATCH)):
        yield pa.RecordBatch.from_pylist([row._asdict() for row in chunk], SCHEMA)


class _Tally:
    """Counts the results of groups."""

    def __init__(self, bench: Sequence[OnTrial], steps: Steps, read_at: datetime) -> None:
        self._bench, self._steps, self._read_at = bench, steps, read_at
        self._counts: Counter[Row] = Counter()

    def rows(self, groups: Iterable[tuple[str, History]]) -> Iterator[Row]:
        """groups: their name patterns and histories."""
        for pattern, history in groups:
            there = False
            for stretch in history.stretches:
                if there is not (there := stretch.group is not None):
                    self._count(ALL, "there", stretch.begins, 1 if there else -1)
            for number, one in enumerate(self._bench):
                match = one.trial.policy.match
                # Most policies select few groups, by name.
                if match.groups.matches(history.name) and not match.exclude.matches(history.name):
                    yield from self._try(number, one, history, pattern)
        for row, many in self._counts.items():
            yield row._replace(many=many)

    def _count(self, policy: int, what: str, at: datetime | None = None, many: int = 1, **of: Any) -> None:
        self._counts[Row(policy, what, 0 if at is None else self._steps.first_from(at), **of)] += many

    def _try(self, number: int, one: OnTrial, history: History, pattern: str) -> Iterator[Row]:
        """Count the results of a policy for a group; returns its regrets."""
        if reason := one.trial.reason(history):
            self._count(number, "reason", text=reason)
        simulate = cache(lambda trial: trial.simulate(history))
        # A group in use has many stretches, and mostly never matches: then no longer period need be tried.
        if len(history.stretches) > len(one.periods) > 0 and not simulate(one.periods[0]):
            return
        for span in simulate(one.trial):
            self._count(number, "marked", span.marked)
            self._count(number, "matched", span.marked)
            self._count(number, "matched", span.end, -1)
            if span.deleted is None:
                continue
            self._count(number, "deleted", span.deleted)
            if span.back is not None:
                self._count(number, "regretted", span.deleted)
                regret = Regret(history.name, pattern, span.marked, span.deleted, span.back.at, span.back.by)
                yield Row(number, "regret", regret=regret._asdict())
            elif self._read_at - span.deleted < one.trial.waits:
                self._count(number, "unwatched")
        periods, graces = (_until(others, one.trial, simulate) for others in (one.periods, one.graces))
        for what, text, until in (("period", None, periods), ("pattern", pattern, periods), ("grace", None, graces)):
            if until[0]:
                self._count(number, what, text=text, deleted=until[0], regretted=until[1])


def _until(trials: Sequence[Trial], own: Trial, simulate: Callable[[Trial], Sequence[Span]]) -> tuple[int, int]:
    """Of trials with ascending periods, how many delete the group, and how many of these are regretted.

    A group that one period does not delete is not deleted with a longer one, and the same holds for regrets. So not all
    trials need be run; own, one of them, was.
    """
    if not trials:
        return 0, 0

    def until(size: int, result: Callable[[Span], Any]) -> int:
        guesses = (trials.index(own), size - 1, 0)
        return first_index(0, size, guesses, lambda index: not any(map(result, simulate(trials[index]))))

    deleted = until(len(trials), attrgetter("deleted"))
    return deleted, until(deleted, attrgetter("back"))


def counted(rows: DataFrame, bench: Sequence[OnTrial], patterns: int = PATTERNS, regrets: int = REGRETS) -> Sums:
    """Rows of SCHEMA, summed over all workers; none for other keys.

    deleted, regretted: by the policy's period, how many groups. patterns, regrets: the most that each policy gets, the
    first in order.
    """
    # Alert policies have no periods, but an array without elements has no type.
    most = max(1, *(len(others) for one in bench for others in (one.periods, one.graces)))
    many = F.col("many")
    sums = (
        F.array(*(F.sum(F.when(F.col(name) > index, many).otherwise(0)) for index in range(most))).alias(name)
        for name in ("deleted", "regretted")
    )
    rows = rows.groupBy("policy", "what", "step", "text", "regret").agg(F.sum(many).alias("many"), *sums)
    # Patterns by their deletions: with the policy's own period, then with the shortest.
    own = F.get(F.lit([one.own for one in bench]), "policy")
    order = (F.desc(F.get("deleted", own)), F.desc(F.get("deleted", F.lit(0))))
    ranked = Window.partitionBy("policy", "what").orderBy(*order, "regret.deleted_at", "regret.group", "text")
    rows = rows.withColumn("rank", F.row_number().over(ranked))
    limit = F.when(F.col("what") == "pattern", patterns).when(F.col("what") == "regret", regrets)
    found: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    listed = rows.where(limit.isNull() | (F.col("rank") <= limit)).toArrow()
    for row in listed.sort_by("rank").to_pylist():
        found[row["policy"], row["what"]].append(row)
    return found
