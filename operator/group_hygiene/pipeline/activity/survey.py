"""Computes the report's findings from `activity` and `coverage`. Does not connect to Kafka, writes nothing.

Everything is as of the time when the log was read. `model.evidence.Activity` defines idle and expiry: here both are
repeated as Spark SQL. The cost depends on the number of groups and offsets; the driver gets a bounded result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from group_hygiene.errors import PipelineError
from group_hygiene.model.last_use import LastClient
from group_hygiene.pipeline.activity.coverage import Covered, activity_at, read_coverage
from group_hygiene.pipeline.activity.name_patterns import patterned
from group_hygiene.report.findings import Age, Count, Findings, Growth, Row, StaleTopic

_ROWS, _PATTERNS, _STALE = 5_000, 20, 500
# Of the rows: those that each pattern gets before any gets more, and those that are included since they expire soon.
_SHARE, _EXPIRING = 50, 1_000
_COLUMNS = (
    *("group", "type", "protocol_type", "state", "first_seen", "last_commit", "oldest_commit", "empty_since"),
    *("last_commit_after", "state_after", "log_partition", "topics", "partitions", "offsets"),
    *("last_clients", "last_clients_at"),
)
# Existing groups that are alike in these columns are counted together. overdue: see `_due`.
_TALLIED = ("type", "state", "age", "covered", "due", "overdue", "idle")
# A pattern counts as generated if this share of its names has digits in place of the star.
_MADE = 0.8
_DAY, _WEEK = timedelta(days=1), timedelta(days=7)
_AGES = {
    Age.HOUR: timedelta(hours=1),
    Age.DAY: _DAY,
    Age.WEEK: _WEEK,
    Age.MONTH: timedelta(days=30),
    Age.QUARTER: timedelta(days=90),
}
_Rows = Sequence[Mapping[str, Any]]


def survey(spark: SparkSession, warehouse: str, retention: timedelta) -> Findings:
    """All findings but `began` and `suggestions`, which stay empty. retention: the brokers' offsets.retention.minutes.

    Raises PipelineError if there are no tables yet, empty ones, or not the version that `coverage` names.
    """
    covered = read_coverage(warehouse)
    activity = activity_at(spark, warehouse, covered.activity).select(*_COLUMNS)
    groups = patterned(known(activity.drop("offsets"), covered.places, retention))
    groups = groups.withColumns(_derived(covered.read_at)).persist()
    try:
        alike = groups.where("there").groupBy(*_TALLIED).agg(F.count("*").alias("groups")).toArrow().to_pylist()
        patterns = groups.select("pattern").distinct().count()
        if not patterns:
            raise PipelineError("the tables hold no group yet: the log had none when it was read")
        growth = _growth(groups)
        rows = _rows(groups)
    finally:
        groups.unpersist()
    stale, stale_total = _stale(activity, covered.read_at)
    behind = _behind(spark, activity, [row["group"] for row in rows])
    return Findings(
        cluster_id=covered.cluster_id,
        read_at=covered.read_at,
        began=None,
        retention=retention,
        groups=sum(row["groups"] for row in alike),
        idle=_tally(alike, "idle")[(True,)],
        counts=_counts(alike),
        patterns=growth,
        others=patterns - len(growth),
        rows=[_row(row, behind.get(row["group"])) for row in rows],
        expiring=dict(sorted((day, count) for (day,), count in _tally(alike, "due").items() if day is not None)),
        stale=stale,
        stale_total=stale_total,
        suggestions=(),
        notes=_notes(covered, alike),
    )


def known(activity: DataFrame, places: Mapping[int, Mapping[str, Any]], retention: timedelta) -> DataFrame:
    """These rows with `simple`, `idle_since` and `expires` (Activity's simple, idle_since and first_expiry).

    Also with `covered`: whether their partition is in `places`; if not, both times are null (unknown).
    """
    schema = pa.schema({"log_partition": "int32", "complete_since": pa.timestamp("us", "UTC"), "covered": "bool"})
    read = [{**row, "log_partition": number, "covered": True} for number, row in places.items()]
    covered = pa.Table.from_pylist(read, schema)
    rows = activity.join(F.broadcast(activity.sparkSession.createDataFrame(covered)), "log_partition", "left")
    classic, simple = F.col("type") == "Classic", F.col("simple")
    needed = F.when(simple, F.col("last_commit")).otherwise(F.col("empty_since"))
    idle = F.when(
        needed.isNotNull() & (F.col("type") != "Unknown"),
        F.greatest(needed, "last_commit", "last_commit_after", F.when(~simple, F.col("state_after")), "complete_since"),
    )
    retained_for = F.lit(retention)
    expires = (
        F.when(F.col("oldest_commit").isNull() & F.col("complete_since").isNull(), F.lit(None))
        .when(classic & ~simple, F.col("empty_since") + retained_for)
        .when(F.col("oldest_commit").isNotNull(), F.greatest(F.col("oldest_commit") + retained_for, "empty_since"))
    )
    rows = rows.withColumns(
        {"simple": classic & (F.coalesce("protocol_type", F.lit("")) == ""), "covered": F.col("covered").isNotNull()}
    )
    return rows.withColumns(
        {"idle_since": F.when(F.col("covered"), idle), "expires": F.when(F.col("covered"), expires)}
    )


def _derived(read_at: datetime) -> dict[str, Column]:
    now, last = F.lit(read_at), F.col("last_commit")
    age = F.when(last.isNull(), Age.NEVER.value)
    for name, limit in _AGES.items():
        age = age.when(last > now - F.lit(limit), name.value)
    return {
        "there": F.col("state") != "Gone",
        "unused": ((F.col("state") == "Empty") | F.col("simple")) & (F.col("state") != "Gone"),
        "age": age.otherwise(Age.OLDER.value),
        "idle": F.coalesce(F.col("idle_since") <= F.lit(read_at - _WEEK), F.lit(False)),
        **_due(now),
    }


def _due(now: Column) -> dict[str, Column]:
    """due: the day on which the first offsets expire, within a week. overdue: they should have expired over a day ago.

    Not for groups in use, which commit again before that. Use is a recent commit if membership is unknown or none.
    """
    used = (F.col("state") == "Active") | (
        F.col("empty_since").isNull() & F.coalesce(F.col("last_commit") > now - F.lit(_DAY), F.lit(False))
    )
    expires, waits = F.col("expires"), (F.col("state") != "Gone") & ~used
    late = expires < now - F.lit(_DAY)
    return {
        "due": F.when(waits & ~late & (expires < now + F.lit(_WEEK)), F.greatest(expires, now).cast("date")),
        "overdue": F.coalesce(waits & late, F.lit(False)),
    }


def _tally(alike: _Rows, *columns: str) -> Counter[tuple[Any, ...]]:
    """By the values of these columns, the number of groups."""
    found = Counter[tuple[Any, ...]]()
    for row in alike:
        found[tuple(row[column] for column in columns)] += row["groups"]
    return found


def _counts(alike: _Rows) -> list[Count]:
    ages = list(Age)
    counts = _tally(alike, "type", "state", "age").items()
    found = [Count(type_, state, Age(age), many) for (type_, state, age), many in counts]
    return sorted(found, key=lambda count: (count.type, count.state, ages.index(count.age)))


def _growth(groups: DataFrame) -> list[Growth]:
    idle = F.col("there") & F.col("idle")
    days = groups.groupBy("pattern", F.col("first_seen").cast("date").alias("day")).agg(
        *(F.count("*").alias("seen"), F.count_if("there").alias("there"), F.count_if(idle).alias("idle")),
        F.count_if(_digits("group") > _digits("pattern")).alias("numbered"),
    )
    new = F.when(F.col("day").isNotNull(), F.struct("day", "seen"))
    patterns = days.groupBy("pattern").agg(
        *(F.sum(name).alias(name) for name in ("seen", "there", "idle")),
        F.map_from_entries(F.collect_list(new)).alias("new"),
        (F.sum("numbered") / F.sum("seen") >= _MADE).alias("made"),
    )
    rows = patterns.orderBy(F.desc("seen"), "pattern").limit(_PATTERNS).toArrow().to_pylist()
    return [Growth(**row | {"new": dict(sorted(row["new"]))}) for row in rows]


def _row(fields: Mapping[str, Any], behind: int | None) -> Row:
    """A row of `_rows`, with its last client in words."""
    client = LastClient.of(fields["last_clients"], fields["last_clients_at"])
    known = {name: cell for name, cell in fields.items() if name not in ("turn", "last_clients", "last_clients_at")}
    return Row(**known | {"age": Age(fields["age"]), "behind": behind, "last_client": client and str(client)})


def _digits(name: str) -> Column:
    return F.regexp_count(name, F.lit("[0-9]"))


def _rows(groups: DataFrame) -> list[dict[str, Any]]:
    """The fields for `_row`, of the relevant groups: the longest idle first, with a share for each pattern.

    Chosen are first those that expire soon, then the longest idle of each pattern, then the longest idle of all, then
    groups in use, up to the limit. The result is sorted by idle time.
    """
    idle = (F.col("idle_since").asc_nulls_last(), F.col("last_commit").asc_nulls_last(), F.col("group"))
    same, unused = Window.partitionBy("pattern", "unused"), F.col("unused")
    rank = F.row_number().over(same.orderBy(*idle))
    turn = F.when(unused & (rank <= _SHARE), 1).when(unused, 2).otherwise(3)
    waiting = groups.where("there").select(
        *("group", "pattern", "type", "state", "age", "last_commit", "idle_since", "expires", "due"),
        *("topics", "partitions", "last_clients", "last_clients_at", "unused", turn.alias("turn")),
    )
    first = F.row_number().over(Window.partitionBy("pattern").orderBy("expires", "group"))
    soon = waiting.where(unused & F.col("due").isNotNull()).withColumn("first", first)
    soon = soon.where(F.col("first") <= _SHARE).drop("first").withColumn("turn", F.lit(0))
    ordered = waiting.orderBy("turn", *idle).limit(_ROWS)
    chosen: dict[str, dict[str, Any]] = {}
    for some in (soon.orderBy("expires", "group").limit(_EXPIRING), ordered):
        for row in some.drop("unused").toArrow().to_pylist():
            # A group may be in both.
            chosen.setdefault(row["group"], row)
    never = datetime.max.replace(tzinfo=UTC)
    return sorted(
        list(chosen.values())[:_ROWS],
        key=lambda row: (row["turn"] == 3, row["idle_since"] or never, row["last_commit"] or never, row["group"]),
    )


def _behind(spark: SparkSession, activity: DataFrame, groups: Sequence[str]) -> dict[str, int]:
    """By group, the records that other groups have read beyond it; without groups that share no partition."""
    offsets = activity.select("group", F.explode("offsets").alias("at")).select("group", "at.*")
    place = ("topic", "partition")
    furthest = offsets.groupBy(*place).agg(F.max("offset").alias("furthest"), F.count("*").alias("readers"))
    wanted = spark.createDataFrame(pa.table({"group": pa.array(groups, pa.string())}))
    own = offsets.join(F.broadcast(wanted), "group", "left_semi").join(furthest.where("readers > 1"), [*place])
    rows = own.groupBy("group").agg(F.sum(F.col("furthest") - F.col("offset")).alias("behind")).toArrow().to_pylist()
    return {row["group"]: row["behind"] for row in rows}


def _stale(activity: DataFrame, read_at: datetime) -> tuple[list[StaleTopic], int]:
    """Topics for which active groups no longer commit, the oldest first; and their total number."""
    week = F.lit(read_at - _WEEK)
    used = activity.where((F.col("state") != "Gone") & (F.col("last_commit") > week) & (F.col("oldest_commit") <= week))
    offsets = used.select("group", F.col("last_commit").alias("group_last_commit"), F.explode("offsets").alias("at"))
    topics = offsets.groupBy("group", "group_last_commit", F.col("at.topic").alias("topic")).agg(
        F.count("*").alias("partitions"), F.max("at.commit_time").alias("last_commit")
    )
    stale = topics.where(F.col("last_commit") <= week).persist()
    try:
        rows = stale.orderBy("last_commit", "group", "topic").limit(_STALE).toArrow().to_pylist()
        return [StaleTopic(**row) for row in rows], stale.count()
    finally:
        stale.unpersist()


def _notes(covered: Covered, alike: _Rows) -> list[str]:
    notes, places = [], covered.places.values()
    uncovered, overdue = _tally(alike, "covered")[(False,)], _tally(alike, "overdue")[(True,)]
    if (unread := covered.partitions - len(places)) or uncovered:
        notes.append(
            f"{unread:,} of the {covered.partitions:,} partitions of __consumer_offsets were never read to their end: "
            f"the idle time of {_groups(uncovered)} is unknown. The next run of the pipeline reads on."
        )
    earliest = min(place["read_at"] for place in places)
    if earliest < covered.read_at - _DAY:
        late = sum(place["read_at"] < covered.read_at - _DAY for place in places)
        notes.append(
            f"{late:,} partitions of __consumer_offsets were last read to their end more than a day before the others, "
            f"the first of them at {_shown(earliest)}: their groups may have been used since."
        )
    if lost := covered.complete_since.values():
        notes.append(
            f"In {len(lost):,} partitions of __consumer_offsets, records from before {_shown(max(lost))} are "
            "missing, or could not be read: their groups count as idle only since then."
        )
    if unknown := _tally(alike, "type")[("Unknown",)]:
        notes.append(
            f"The log has too few records to know the type of {_groups(unknown)}: none of them counts as idle."
        )
    if overdue:
        notes.append(
            f"{_groups(overdue)} should have lost offsets more than a day before the log was read. Compare the "
            "retention of this report with the brokers' offsets.retention.minutes."
        )
    return notes


def _groups(count: int) -> str:
    return f"{count:,} group" if count == 1 else f"{count:,} groups"


def _shown(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S} UTC"
