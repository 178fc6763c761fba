"""What bronze rows say of each group, and how that adds to the group's row in `activity`. Reads and writes no table.

Spark SQL functions only: no row ever meets Python. `changes` looks at new records alone, `merged` adds them to a row
that is there or not: in one run or in many, the same comes out.
"""

from __future__ import annotations

from datetime import datetime
from itertools import chain

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

# Of the records that say which members a group has, or that it ended; others come with these.
_TELLING = (
    "classic",
    "consumer-epoch",
    "consumer-member",
    "share-epoch",
    "share-member",
    "streams-epoch",
    "streams-member",
)
_TYPES = {"classic": "Classic", "consumer": "Consumer", "share": "Share", "streams": "Streams"}
_DAYS = 31


def changes(commits: DataFrame, states: DataFrame, cluster_id: str, now: datetime) -> DataFrame:
    """One row for each group of these rows of `commits` and `group_states`, all of one era: what they say of it.

    now: commits of more than 30 days before it aren't counted.
    """
    position = F.col("log_offset").alias("position")
    offset = F.struct(
        *("topic", "partition", position, F.col("committed_offset").alias("offset"), "leader_epoch", "metadata"),
        F.timestamp_millis("commit_ms").alias("commit_time"),
    )
    day = F.timestamp_millis("commit_ms").cast("date")
    told = F.struct(
        *(position, "record_time", F.split_part("kind", F.lit("-"), F.lit(1)).alias("family"), "protocol_type"),
        *(
            "members",
            "state_ms",
            "written_after",
            (F.col("gone") & ~F.endswith("kind", F.lit("-member"))).alias("ended"),
        ),
    )
    of_commit = {
        "offset": F.when(~F.col("aborted"), offset),
        "commit_ms": F.col("commit_ms"),
        "day": F.when(day > F.lit(now).cast("date") - _DAYS, day),
    }
    of_state = {
        "told": F.when(F.col("kind").isin(*_TELLING), told),
        "member": F.when(F.endswith("kind", F.lit("-member")), F.struct("member_id", position, "gone")),
    }
    common = ("era", "log_partition", "log_offset", "record_time", "group", "written_after")
    rows = commits.select(*common, *_named(of_commit)).unionByName(
        states.select(*common, *_named(of_state)), allowMissingColumns=True
    )
    of_topic = F.struct(F.col("offset.topic").alias("topic"), F.col("written_after").alias("after"))
    lives = F.col("offset.offset").isNotNull()
    # More groups than fit into a small hash table are sorted: by a number, as names mostly begin alike.
    found = rows.groupBy(F.xxhash64("group").alias("hash"), "group").agg(
        F.lit(cluster_id).alias("cluster_id"),
        F.max("era").alias("era"),
        F.max("log_partition").alias("log_partition"),
        F.min("log_offset").alias("read_from"),
        (F.max("log_offset") + 1).alias("read_to"),
        F.min("record_time").alias("first_seen"),
        F.timestamp_millis(F.min("commit_ms")).alias("first_commit"),
        F.timestamp_millis(F.max("commit_ms")).alias("last_commit"),
        F.max(F.when(F.col("commit_ms").isNotNull(), F.col("written_after"))).alias("last_commit_after"),
        F.collect_set(F.when(lives & F.col("written_after").isNotNull(), of_topic)).alias("topics_after"),
        F.collect_list("offset").alias("offsets"),
        F.collect_list("day").alias("days"),
        F.max(F.when(lives, F.col("log_offset"))).alias("committed_at"),
        F.max(F.when(F.col("offset").isNotNull() & ~lives, F.struct("log_offset", "record_time"))).alias("wiped"),
        F.max("told").alias("told"),
        F.max(F.when(F.col("told.ended"), F.col("told"))).alias("ended"),
        F.max(F.when(~F.col("told.ended"), F.col("told"))).alias("alive"),
        F.collect_list("member").alias("members"),
    )
    return found.drop("hash")


def merged(found: DataFrame, activity: DataFrame, now: datetime) -> DataFrame:
    """The rows of `activity` that these groups have from now on: `found` by `changes`, and what was.

    What a group was in an earlier era of the log ended with it; its times stay. A group is left out whose row knows of
    any of these records already: another run wrote it meanwhile.
    """
    old = activity.select(F.struct("*").alias("old"))
    rows = found.join(old, F.col("group") == F.col("old.group"), "left")
    begins_later = (F.col("old.era") == F.col("era")) & (F.col("old.read_to") <= F.col("read_from"))
    rows = rows.where(F.col("old").isNull() | (F.col("old.era") < F.col("era")) | begins_later)
    rows = rows.withColumn("was", F.when(F.col("old.era") == F.col("era"), F.col("old")))
    # One select after the other: each names what the next ones use many times.
    rows = rows.select(
        *("cluster_id", "group", "old", "was", "told", "wiped", "ended", "alive"),
        *("committed_at", "era", "log_partition", "read_to"),
        *(F.col(name).alias(f"new_{name}") for name in ("first_seen", "first_commit", "last_commit")),
        _offsets(F.col("was.offsets"), F.col("offsets")).alias("offsets"),
        _members(F.col("was.members"), F.col("members"), F.col("ended")).alias("members"),
        F.greatest("old.last_commit_after", "last_commit_after").alias("new_last_commit_after"),
        _topics_after(F.col("old.topics_after"), F.col("topics_after")).alias("topics_after"),
        _by_day(F.col("old.commits_by_day"), F.col("days"), now).alias("days"),
    )
    # Each of these may name those before it.
    told = {"simple": _simple(), "since": _since(), "protocol": _protocol(), "state_now": _state()}
    rows = rows.select("*", *_named(told | {"type_now": _type(), "wiped_out": _wiped_out()}))
    return rows.select(*_named(_row(now)))


def _row(now: datetime) -> dict[str, Column]:
    told, simple, wiped_out, state = F.col("told"), F.col("simple"), F.col("wiped_out"), F.col("state_now")
    return {
        "cluster_id": F.col("cluster_id"),
        "group": F.col("group"),
        "type": F.col("type_now"),
        "protocol_type": F.col("protocol"),
        "state": F.when(wiped_out, "Gone").otherwise(state),
        "state_since": F.when(wiped_out, F.col("wiped.record_time"))
        .when(simple, F.lit(None))
        .when(told.isNull(), F.col("was.state_since"))
        .otherwise(F.col("since")),
        "members": F.col("members"),
        "first_commit": F.least("old.first_commit", "new_first_commit"),
        "last_commit": F.greatest("old.last_commit", "new_last_commit"),
        "oldest_commit": F.array_min(F.col("offsets.commit_time")),
        "empty_since": F.when(simple | wiped_out, F.lit(None))
        .when(told.isNull(), F.col("was.empty_since"))
        .when((state == "Empty") & (F.col("protocol") != ""), F.col("since")),
        "first_seen": F.least("old.first_seen", "new_first_seen"),
        "partitions": F.size("offsets"),
        "topics": F.size(F.array_distinct("offsets.topic")),
        "offsets": F.col("offsets"),
        **{f"commits_{count}d": _last_days(count, now) for count in (1, 7, 30)},
        "commits_by_day": F.col("days"),
        "tombstoned_at": F.when(wiped_out, F.col("wiped.record_time")).otherwise(
            F.coalesce("ended.record_time", "old.tombstoned_at")
        ),
        "era": F.col("era"),
        "log_partition": F.col("log_partition"),
        "read_to": F.greatest("was.read_to", "read_to"),
        "updated_at": F.lit(now),
        "last_commit_after": F.col("new_last_commit_after"),
        "state_after": F.when(told.isNull(), F.col("was.state_after")).otherwise(F.col("told.written_after")),
        "topics_after": F.map_filter("topics_after", lambda topic, _: F.array_contains("offsets.topic", topic)),
    }


def _simple() -> Column:
    """It became a group that nobody joined: by a commit after the end of the group, or before anything else."""
    told = F.col("told")
    nothing = F.coalesce("was.type", F.lit("Unknown")) == "Unknown"
    ended = F.coalesce(F.col("told.ended"), nothing | (F.col("was.state") == "Gone"))
    later = F.when(told.isNull(), True).otherwise(F.col("committed_at") > F.col("told.position"))
    return F.coalesce(ended & F.col("committed_at").isNotNull() & later, F.lit(False))


def _since() -> Column:
    at = F.col("told.state_ms")
    return F.coalesce(F.when(at > 0, F.timestamp_millis(at)), F.col("told.record_time"))


def _type() -> Column:
    return (
        F.when(F.col("simple"), "Classic")
        .when(F.col("told").isNull(), F.coalesce("was.type", F.lit("Unknown")))
        .when((F.col("told.family") == "classic") & F.col("protocol").isNull(), "Unknown")
        .otherwise(F.element_at(F.create_map(*map(F.lit, chain.from_iterable(_TYPES.items()))), F.col("told.family")))
    )


def _protocol() -> Column:
    family, empty = F.col("told.family"), F.lit("")
    # The end of a Classic group doesn't say whether anybody had joined it: what came before does, if it is known.
    joined = F.when(F.col("alive.family") == "classic", F.coalesce("alive.protocol_type", empty))
    committed = F.when(F.col("committed_at").isNotNull(), empty)
    return (
        F.when(F.col("simple"), empty)
        .when(F.col("told").isNull(), F.col("was.protocol_type"))
        .when((family == "classic") & F.col("told.ended"), F.coalesce(joined, "was.protocol_type", committed))
        .when(family == "classic", F.coalesce("told.protocol_type", empty))
        .otherwise(family)
    )


def _state() -> Column:
    nobody = F.when(F.col("told.family") == "classic", F.col("told.members") == 0).otherwise(F.size("members") == 0)
    return (
        F.when(F.col("simple"), "Empty")
        .when(F.col("told").isNull(), F.coalesce("was.state", F.lit("Unknown")))
        .when(F.col("told.ended"), "Gone")
        .when(nobody, "Empty")
        .otherwise("Active")
    )


def _wiped_out() -> Column:
    """A group that nobody joined lost its last offset: nothing else in the log may tell that it ended."""
    nobody_joined = F.col("type_now").isin("Classic", "Unknown") & (F.coalesce("protocol", F.lit("")) == "")
    last = F.col("wiped.log_offset") > F.coalesce("told.position", F.lit(-1))
    ended = nobody_joined & (F.size("offsets") == 0) & F.col("state_now").isin("Empty", "Unknown") & last
    return F.coalesce(ended, F.lit(False))


def _offsets(old: Column, new: Column) -> Column:
    """What is committed now: the last of each partition, without those whose last is a tombstone."""
    before = F.transform(old, lambda it: F.struct(*_fields(it, F.lit(-1).cast("bigint"))))
    all_of_them = F.when(old.isNull(), new).otherwise(F.concat(before, new))
    # The array itself is bound to a name by a lambda: everywhere else it would be sorted anew for each element.
    latest = F.transform(
        F.array(F.sort_array(all_of_them)),
        lambda all_: F.filter(
            all_, lambda it, index: ~_same_place(it, F.get(all_, index + 1)) & it["offset"].isNotNull()
        ),
    )
    return F.transform(latest[0], lambda it: F.struct(*_fields(it)))


def _same_place(one: Column, other: Column) -> Column:
    return (one["topic"].eqNullSafe(other["topic"])) & (one["partition"].eqNullSafe(other["partition"]))


def _fields(offset: Column, position: Column | None = None) -> list[Column]:
    names = ["topic", "partition", "offset", "leader_epoch", "metadata", "commit_time"]
    columns = [offset[name].alias(name) for name in names]
    return columns if position is None else [*columns[:2], position.alias("position"), *columns[2:]]


def _topics_after(old: Column, new: Column) -> Column:
    """By topic the latest time; a topic has several where several reads are taken in at once."""
    latest = F.transform(
        F.array(F.sort_array(new)),
        lambda all_: F.filter(all_, lambda it, index: ~it["topic"].eqNullSafe(F.get(all_, index + 1)["topic"])),
    )[0]
    found = F.map_from_entries(latest)
    later = F.map_zip_with(old, found, lambda _, one, other: F.greatest(one, other))
    return F.when(old.isNull(), found).otherwise(later)


def _members(old: Column, new: Column, ended: Column) -> Column:
    """Who is in the group: those of before and those who came, without those who left. Sorted."""
    # A Classic group that becomes one of another type ends too, but not those who are in it.
    emptied_at = F.when(ended["family"] != "classic", ended["position"])
    latest = F.transform(
        F.array(F.sort_array(F.filter(new, lambda it: it["position"] > F.coalesce(emptied_at, F.lit(-1))))),
        lambda all_: F.filter(all_, lambda it, index: ~it["member_id"].eqNullSafe(F.get(all_, index + 1)["member_id"])),
    )[0]
    came = F.transform(F.filter(latest, lambda it: ~it["gone"]), lambda it: it["member_id"])
    left = F.transform(F.filter(latest, lambda it: it["gone"]), lambda it: it["member_id"])
    nobody = F.array().cast("array<string>")
    stayed = F.when(emptied_at.isNull(), F.coalesce(old, nobody)).otherwise(nobody)
    return F.when(F.size(new) == 0, stayed).otherwise(F.array_sort(F.array_union(F.array_except(stayed, left), came)))


def _by_day(old: Column, new: Column, now: datetime) -> Column:
    """How many commits on each of the last days: a bounded state from which all counts come."""
    counted = F.map_from_entries(
        F.transform(
            F.array_distinct(new),
            lambda day: F.struct(day, F.size(F.filter(new, lambda it: it == day)).cast("bigint")),
        )
    )
    zero = F.lit(0).cast("bigint")
    added = F.map_zip_with(old, counted, lambda _, one, other: F.coalesce(one, zero) + F.coalesce(other, zero))
    return F.when(old.isNull(), counted).otherwise(
        F.map_filter(added, lambda day, _: day > F.lit(now).cast("date") - _DAYS)
    )


def _last_days(count: int, now: datetime) -> Column:
    zero, first = F.lit(0).cast("bigint"), F.lit(now).cast("date") - count
    return F.aggregate(
        F.map_entries("days"), zero, lambda total, it: total + F.when(it["key"] > first, it["value"]).otherwise(zero)
    )


def _named(columns: dict[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]
