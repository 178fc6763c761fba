"""Computes the report's findings from `activity` and `coverage`. Does not connect to Kafka, writes nothing.

Everything is as of the time when the log was read. `model.evidence.Activity` defines idle and expiry. The cost depends
on the number of groups and offsets; the driver gets a bounded result.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, starmap
from typing import Any

import pyarrow as pa
from pyarrow import csv
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from group_hygiene.errors import PipelineError
from group_hygiene.model.evidence import Activity, LastClient
from group_hygiene.model.groups import GroupType
from group_hygiene.model.naming import FORMULAS
from group_hygiene.observe.findings import DayCounts, Findings, GroupRow, Share, StaleTopic, Unit, counted
from group_hygiene.pipeline.name_patterns import patterned, with_placeholders
from group_hygiene.pipeline.tables import Progress, activity_at, read_coverage
from group_hygiene.spec.connection import NO_OWNERS, Owners
from group_hygiene.spec.patterns import likely_program

_ROWS, _UNITS, _STALE, _LISTED, _MOST = 5_000, 200, 500, 500_000, 10
# Of the rows: those that each unit gets before any gets more.
_SHARE = 50
_COLUMNS = (
    *("group", "type", "protocol_type", "state", "first_seen", "last_commit", "oldest_commit", "empty_since"),
    *("last_commit_after", "state_after", "log_partition", "topics", "partitions", "offsets"),
    *("last_clients", "last_clients_at", "tombstoned_at", "commits_by_day"),
)
# Which of them say since when a group is idle.
_JUDGED = (
    *("log_partition", "type", "protocol_type"),
    *("last_commit", "oldest_commit", "empty_since", "last_commit_after", "state_after"),
)
_TIME, _NEVER = pa.timestamp("us", "UTC"), datetime.max.replace(tzinfo=UTC)
_UNIT = ("pattern", "owner", "program")
# Existing groups that are alike in these columns are counted together. overdue: see `_derived`.
_TALLIED = ("type", "covered", "due", "overdue", "idle", "owner")
# A pattern counts as generated if this share of its names has digits in place of the star.
_MADE = 0.8
_DAY, _WEEK, _CHART = timedelta(days=1), timedelta(days=7), timedelta(days=90)
# A name without a star that is not escaped.
_NO_STAR = r"(?s)\A(?:[^\\*]|\\.)*+\z"
_Rows = Sequence[Mapping[str, Any]]


def survey(
    spark: SparkSession, warehouse: str, retention: timedelta, owners: Owners = NO_OWNERS, since: datetime | None = None
) -> Findings:
    """All findings but `began` and `suggestions`, which stay empty. retention: the brokers' offsets.retention.minutes.

    since: see Findings; None = 7 days before the log was read. Raises PipelineError if there are no tables yet, empty
    ones, or not the version that `coverage` names.
    """
    covered, state = read_coverage(warehouse)
    read_at = max(covered.read_at.values()).astimezone(UTC)
    since = since or read_at - _WEEK
    activity = activity_at(spark, warehouse, state).select(*_COLUMNS)
    judged = known(activity, covered, retention).withColumns(_derived(read_at, retention, since))
    groups = patterned(judged.drop("offsets", "commits_by_day"))
    alone = F.rlike("pattern", F.lit(_NO_STAR)) | (F.col("group") == "")
    groups = groups.withColumn("pattern", F.when(alone, "").otherwise(F.col("pattern")))
    groups = _named(groups, owners).persist()
    try:
        sums = (F.count("*").alias("groups"), F.sum("partitions").alias("offsets"))
        alike = groups.where("there").groupBy(*_TALLIED).agg(*sums).toArrow().to_pylist()
        units = groups.select(*_UNIT).distinct().count()
        if not units:
            raise PipelineError("the tables hold no group yet: the log had none when it was read")
        shown = _units(groups)
        names = with_placeholders(groups, {unit["pattern"] for unit in shown})
        rows, days, listing = _rows(groups), _days(groups, read_at), _listing(groups)
        changes = groups.agg(*map(F.count_if, ("came", "went", "cleaned"))).toArrow().to_pylist()[0]
    finally:
        groups.unpersist()
    stale, stale_total, stale_topics = _stale(activity, read_at)
    behind = _behind(spark, activity, [row["group"] for row in rows])
    topics, left = _topics(judged)
    return Findings(
        cluster_id=covered.cluster_id,
        read_at=read_at,
        since=since,
        began=None,
        retention=retention,
        groups=sum(row["groups"] for row in alike),
        idle=_tally(alike, "idle")[True],
        offsets=sum(row["offsets"] for row in alike),
        idle_offsets=sum(row["offsets"] for row in alike if row["idle"]),
        left=left,
        **dict(zip(("came", "went", "cleaned"), changes.values(), strict=True)),
        units=[Unit(**_in_words(unit, names)) for unit in shown],
        others=units - len(shown),
        owners=_owners(alike) if owners.entries else [],
        topics=topics,
        committers=_committers(activity, read_at),
        days=days,
        rows=[GroupRow(**_in_words(row, names), behind=behind.get(row["group"])) for row in rows],
        listing=listing[0],
        listed=listing[1],
        expiring=dict(sorted((day, count) for day, count in _tally(alike, "due").items() if day is not None)),
        stale=stale,
        stale_total=stale_total,
        stale_topics=stale_topics,
        suggestions=(),
        notes=_notes(covered, read_at, alike),
    )


def known(activity: DataFrame, covered: Progress, retention: timedelta) -> DataFrame:
    """These rows with `simple`, `idle_since` and `expires` (Activity's simple, idle_since and first_expiry).

    Also with `covered`: whether their partition was read to its end; if not, both times are null (unknown). And with
    `idle`: whether they were idle for a week when it was.
    """
    read, since = covered.read_at, covered.complete_since
    flags = dict.fromkeys(("simple", "covered", "idle"), pa.bool_())
    fields = pa.struct({**flags, "idle_since": _TIME, "expires": _TIME})

    def found(partition: int, type_: str, protocol_type: str | None, *times: datetime | None) -> dict[str, Any]:
        last, oldest, empty, after, state_after = times
        each = Activity(
            *(GroupType(type_), protocol_type or "", "", None, last, oldest, empty, partition, 0, _NEVER),
            complete_since=since.get(partition),
            last_commit_after=after,
            state_after=state_after,
        )
        if partition not in read:
            return {"simple": each.simple, "covered": False, "idle": False}
        idle_since, expires = each.idle_since, each.first_expiry(retention)
        idle = idle_since is not None and idle_since <= read[partition] - _WEEK
        return {"simple": each.simple, "covered": True, "idle": idle, "idle_since": idle_since, "expires": expires}

    @F.arrow_udf("struct<simple: boolean, covered: boolean, idle: boolean, idle_since: timestamp, expires: timestamp>")  # type: ignore[attr-defined, untyped-decorator]
    def judged(*columns: pa.Array) -> pa.Array:
        return pa.array(starmap(found, zip(*(column.to_pylist() for column in columns), strict=True)), fields)

    return activity.withColumn("judged", judged(*_JUDGED)).select("*", "judged.*").drop("judged")


def _derived(read_at: datetime, retention: timedelta, since: datetime) -> dict[str, Column]:
    """due: the day on which the first offsets expire, within a week. overdue: they should have expired over a day ago.

    Not for groups in use, which commit again before that. Use is a recent commit if membership is unknown or none.
    """
    now, expires = F.lit(read_at), F.col("expires")
    recent = F.coalesce(F.col("last_commit") > now - F.lit(_DAY), F.lit(False))
    used = (F.col("state") == "Active") | (F.col("empty_since").isNull() & recent)
    waits, late = (F.col("state") != "Gone") & ~used, expires < now - F.lit(_DAY)
    went = (F.col("state") == "Gone") & (F.col("tombstoned_at") > F.lit(since))
    columns = {
        "there": F.col("state") != "Gone",
        "unused": ((F.col("state") == "Empty") | F.col("simple")) & (F.col("state") != "Gone"),
        "came": F.col("first_seen") > F.lit(since),
        "went": went,
        # Kafka itself removes offsets only after their retention.
        "cleaned": went & (F.col("tombstoned_at") < F.col("last_commit") + F.lit(retention)),
        "overdue": waits & late,
    }
    due = F.when(waits & ~late & (expires < now + F.lit(_WEEK)), F.greatest(expires, now).cast("date"))
    return {name: F.coalesce(column, F.lit(False)) for name, column in columns.items()} | {"due": due}


def _named(groups: DataFrame, owners: Owners) -> DataFrame:
    """These rows with `owner` and `program`; "" = none."""

    @F.arrow_udf("struct<owner: string, program: string>")  # type: ignore[attr-defined, untyped-decorator]
    def named(names: pa.Array) -> pa.Array:
        every = names.to_pylist()
        programs = (entry.program if (entry := likely_program(name)) else "" for name in every)
        return pa.StructArray.from_arrays(
            [pa.array(map(owners.of, every), pa.string()), pa.array(programs, pa.string())], ["owner", "program"]
        )

    return groups.withColumn("named", named("group")).select("*", "named.*").drop("named")


def _tally(alike: _Rows, column: str) -> Counter[Any]:
    """By the values of this column, the number of groups."""
    found = Counter[Any]()
    for row in alike:
        found[row[column]] += row["groups"]
    return found


def _owners(alike: _Rows) -> list[Share]:
    every, idle = _tally(alike, "owner"), _tally([row for row in alike if row["idle"]], "owner")
    shares = [Share(name, idle[name], count) for name, count in every.items()]
    return sorted(shares, key=lambda share: (-share.idle, -share.all, share.name))


def _units(groups: DataFrame) -> list[dict[str, Any]]:
    there, idle = F.col("there"), F.col("there") & F.col("idle")
    days = groups.groupBy(*_UNIT, F.col("first_seen").cast("date").alias("day")).agg(
        *(F.count("*").alias("seen"), F.count_if(there).alias("groups"), F.count_if(idle).alias("idle")),
        *(
            F.sum(F.when(which, F.col("partitions")).otherwise(0)).alias(name)
            for name, which in (("offsets", there), ("idle_offsets", idle))
        ),
        *(F.count_if(name).alias(name) for name in ("came", "went", "cleaned")),
        F.min(F.when(idle, F.col("idle_since"))).alias("idle_since"),
        F.max_by(F.struct("last_clients", "last_clients_at"), "last_clients_at").alias("client"),
        F.count_if(_digits("group") > _digits("pattern")).alias("numbered"),
    )
    sums = ("seen", "groups", "idle", "offsets", "idle_offsets", "came", "went", "cleaned")
    new = F.when(F.col("day").isNotNull(), F.struct("day", "seen"))
    units = days.groupBy(*_UNIT).agg(
        *(F.sum(name).alias(name) for name in sums),
        F.min("idle_since").alias("idle_since"),
        F.max_by("client", "client.last_clients_at").alias("client"),
        F.map_from_entries(F.sort_array(F.collect_list(new))).alias("new"),
        ((F.col("pattern") != "") & (F.sum("numbered") / F.sum("seen") >= _MADE)).alias("made"),
    )
    ordered = units.orderBy(*(F.desc(name) for name in ("idle_offsets", "idle", "groups", "seen")), *_UNIT)
    rows = ordered.select("*", "client.*").drop("client").limit(_UNITS).toArrow().to_pylist()
    return [row | {"new": dict(row["new"])} for row in rows]


def _in_words(fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a unit or a row, with its last client in words, and with placeholders in its pattern."""
    client = LastClient.of(fields["last_clients"], fields["last_clients_at"])
    known = {name: cell for name, cell in fields.items() if name not in ("turn", "last_clients", "last_clients_at")}
    pattern = names.get(fields["pattern"], fields["pattern"])
    return known | {"pattern": pattern, "last_client": client and str(client)}


def _days(groups: DataFrame, read_at: datetime) -> list[DayCounts]:
    """By day, up to 90: existing groups, and idle ones, by the last use of each."""
    gone = F.when(~F.col("there"), F.coalesce("tombstoned_at", "first_seen", F.lit(read_at)))
    idle = F.coalesce("idle_since", F.when(~F.col("there"), F.col("last_commit"))) + F.lit(_WEEK)
    idle = F.when(F.when(F.col("there"), F.col("idle")).otherwise(idle <= gone), idle)
    start = F.lit(read_at - _CHART)
    changes = [
        (F.coalesce("first_seen", start), 1, 0),
        (gone, -1, 0),
        (idle, 0, 1),
        (F.when(idle.isNotNull(), gone), 0, -1),
    ]
    steps = [
        F.struct(at.alias("at"), F.lit(many).alias("groups"), F.lit(few).alias("idle")) for at, many, few in changes
    ]
    rows = groups.select(F.explode(F.array(*steps)).alias("step")).select("step.*").where("at is not null")
    day = F.least(F.greatest("at", start), F.lit(read_at)).cast("date").alias("day")
    found = rows.groupBy(day).agg(F.sum("groups").alias("groups"), F.sum("idle").alias("idle")).orderBy("day")
    by_day = {row["day"]: (row["groups"], row["idle"]) for row in found.toArrow().to_pylist()}
    first = min(by_day)
    days = [first + timedelta(days=n) for n in range((read_at.date() - first).days + 1)]
    steps_of = [by_day.get(each, (0, 0)) for each in days]
    counts = accumulate(steps_of, lambda one, other: (one[0] + other[0], one[1] + other[1]))
    return [DayCounts(each, *count) for each, count in zip(days, counts, strict=True)]


def _topics(judged: DataFrame) -> tuple[list[Share], int]:
    """The topics with the most offsets of idle groups; and the number of partitions that only idle groups read."""
    at = judged.where("there").select("idle", F.explode("offsets").alias("at")).select("idle", "at.*")
    places = at.groupBy("topic", "partition").agg(F.count("*").alias("all"), F.count_if("idle").alias("idle"))
    topics = (
        places.groupBy("topic")
        .agg(
            F.sum("idle").alias("idle"),
            F.sum("all").alias("all"),
            F.count_if(F.col("idle") == F.col("all")).alias("left"),
        )
        .persist()
    )
    try:
        most = topics.orderBy(F.desc("idle"), F.desc("all"), "topic").limit(_MOST).toArrow().to_pylist()
        left = topics.agg(F.sum("left").alias("left")).toArrow().to_pylist()[0]["left"]
    finally:
        topics.unpersist()
    return [Share(row["topic"], row["idle"], row["all"]) for row in most], left or 0


def _committers(activity: DataFrame, read_at: datetime) -> list[tuple[str, int]]:
    """The existing groups with the most commits in the last 7 days."""
    days = F.map_filter("commits_by_day", lambda day, _: day > F.lit((read_at - _WEEK).date()))
    commits = F.aggregate(F.map_values(days), F.lit(0).cast("bigint"), lambda one, other: one + other)
    rows = activity.where("state <> 'Gone'").select("group", commits.alias("commits")).where("commits > 0")
    found = rows.orderBy(F.desc("commits"), "group").limit(_MOST).toArrow().to_pylist()
    return [(row["group"], row["commits"]) for row in found]


def _listing(groups: DataFrame) -> tuple[bytes, int]:
    """All existing groups as CSV, longest idle first, and how many they are."""
    idle = (F.col("idle_since").asc_nulls_last(), F.col("last_commit").asc_nulls_last(), F.col("group"))
    client = F.array_min(F.transform("last_clients", lambda client: client["client_id"]))
    texts = {**{name: F.col(name) for name in ("group", "owner", "program")}, "last_client_id": client}
    # Spreadsheets skip tabs and carriage returns before a formula.
    formula = rf"\A(?=[{re.escape(''.join(FORMULAS))}\t\r])"
    plain = [F.regexp_replace(text, formula, "'").alias(name) for name, text in texts.items()]
    others = ("type", "state", "idle_since", "last_commit", "expires", "topics", "partitions")
    rows = groups.where("there").orderBy(*idle).limit(_LISTED).select(*plain, *others).toArrow()
    text = io.BytesIO()
    csv.write_csv(rows, text)
    return text.getvalue(), len(rows)


def _digits(name: str) -> Column:
    return F.regexp_count(name, F.lit("[0-9]"))


def _rows(groups: DataFrame) -> list[dict[str, Any]]:
    """The fields for `_in_words`, of the relevant groups: the longest idle first, with a share for each unit.

    Chosen are first the longest idle of each unit, then the longest idle of all, then groups in use, up to the limit.
    """
    idle = (F.col("idle_since").asc_nulls_last(), F.col("last_commit").asc_nulls_last(), F.col("group"))
    same, unused = Window.partitionBy(*_UNIT, "unused"), F.col("unused")
    turn = F.when(unused & (F.row_number().over(same.orderBy(*idle)) <= _SHARE), 1).when(unused, 2).otherwise(3)
    rows = groups.where("there").select(
        *("group", *_UNIT, "type", "state", "last_commit", "idle_since", "expires", "topics", "partitions"),
        *("last_clients", "last_clients_at", turn.alias("turn")),
    )
    chosen = rows.orderBy("turn", *idle).limit(_ROWS).toArrow().to_pylist()
    return sorted(
        chosen,
        key=lambda row: (row["turn"] == 3, row["idle_since"] or _NEVER, row["last_commit"] or _NEVER, row["group"]),
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


def _stale(activity: DataFrame, read_at: datetime) -> tuple[list[StaleTopic], int, int]:
    """Topics for which active groups no longer commit, the oldest first; the number of all, and of distinct topics."""
    week = F.lit(read_at - _WEEK)
    used = activity.where((F.col("state") != "Gone") & (F.col("last_commit") > week) & (F.col("oldest_commit") <= week))
    offsets = used.select("group", F.col("last_commit").alias("group_last_commit"), F.explode("offsets").alias("at"))
    topics = offsets.groupBy("group", "group_last_commit", F.col("at.topic").alias("topic")).agg(
        F.count("*").alias("partitions"), F.max("at.commit_time").alias("last_commit")
    )
    stale = topics.where(F.col("last_commit") <= week).persist()
    try:
        rows = stale.orderBy("last_commit", "group", "topic").limit(_STALE).toArrow().to_pylist()
        total, distinct = stale.agg(F.count("*"), F.count_distinct("topic")).toArrow().to_pylist()[0].values()
        return [StaleTopic(**row) for row in rows], total, distinct
    finally:
        stale.unpersist()


def _notes(covered: Progress, read_at: datetime, alike: _Rows) -> list[str]:
    notes, reads, partitions = [], covered.read_at.values(), len(covered.places)
    uncovered, overdue = _tally(alike, "covered")[False], _tally(alike, "overdue")[True]
    if (unread := partitions - len(reads)) or uncovered:
        notes.append(
            f"{unread:,} of the {partitions:,} partitions of __consumer_offsets were never read to their end: "
            f"the idle time of {counted(uncovered, 'group')} is unknown. The next run of the pipeline reads on."
        )
    if (earliest := min(reads)) < read_at - _DAY:
        late = sum(each < read_at - _DAY for each in reads)
        notes.append(
            f"{late:,} partitions of __consumer_offsets were last read to their end more than a day before the others, "
            f"the first of them at {_shown(earliest)}: their groups may have been used since."
        )
    if lost := covered.complete_since.values():
        notes.append(
            f"In {len(lost):,} partitions of __consumer_offsets, records from before {_shown(max(lost))} are "
            "missing, or could not be read: their groups count as idle only since then."
        )
    if unknown := _tally(alike, "type")["Unknown"]:
        several = counted(unknown, "group")
        notes.append(f"The log has too few records to know the type of {several}: none of them counts as idle.")
    if overdue:
        notes.append(
            f"{counted(overdue, 'group')} should have lost offsets more than a day before the log was read. Compare "
            "the retention of this report with the brokers' offsets.retention.minutes."
        )
    return notes


def _shown(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S} UTC"
