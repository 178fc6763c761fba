"""Combines the bronze rows of each group with the group's row in `activity`. Reads and writes no table.

Spark SQL functions only: no row passes through Python. `changes` aggregates new records, and `merged` adds the result
to an existing row, or makes a new one. One run or many give the same result.
"""

from __future__ import annotations

from datetime import datetime
from itertools import chain

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

# Kinds of records with a group's members or its end; all other records only accompany these.
_STATE_RECORDS = (
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
    """Aggregate rows of `commits` and `group_states`, all of one era, into one row per group.

    now: commits of more than 30 days before it are not counted.
    """
    position = F.col("log_offset").alias("position")
    offset = F.struct(
        *("topic", "partition", position, F.col("committed_offset").alias("offset"), "leader_epoch", "metadata"),
        F.timestamp_millis("commit_ms").alias("commit_time"),
    )
    day = F.timestamp_millis("commit_ms").cast("date")
    last = F.struct(
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
        "last": F.when(F.col("kind").isin(*_STATE_RECORDS), last),
        "member": F.when(F.endswith("kind", F.lit("-member")), F.struct("member_id", position, "gone")),
        "seen": F.when(F.size("clients") > 0, F.struct(position, "record_time", "clients")),
    }
    common = ("era", "log_partition", "log_offset", "record_time", "group", "written_after")
    rows = commits.select(*common, *_named(of_commit)).unionByName(
        states.select(*common, *_named(of_state)), allowMissingColumns=True
    )
    of_topic = F.struct(F.col("offset.topic").alias("topic"), F.col("written_after").alias("after"))
    lives = F.col("offset.offset").isNotNull()
    # Beyond a small hash table, Spark sorts the groups: by a hash, as names often have a common prefix.
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
        F.max("last").alias("last"),
        F.max(F.when(F.col("last.ended"), F.col("last"))).alias("ended"),
        F.max(F.when(~F.col("last.ended"), F.col("last"))).alias("alive"),
        F.collect_list("member").alias("members"),
        F.max("seen").alias("seen"),
    )
    return found.drop("hash")


def merged(found: DataFrame, activity: DataFrame, now: datetime) -> DataFrame:
    """The new rows of `activity` for these groups: `found` by `changes`, combined with their current rows.

    The end of an era of the log ends a group's state, but its times stay. A group whose row already includes any of
    these records is left out: another run wrote it at the same time.
    """
    old = activity.select(F.struct("*").alias("old"))
    rows = found.join(old, F.col("group") == F.col("old.group"), "left")
    begins_later = (F.col("old.era") == F.col("era")) & (F.col("old.read_to") <= F.col("read_from"))
    rows = rows.where(F.col("old").isNull() | (F.col("old.era") < F.col("era")) | begins_later)
    rows = rows.withColumn("was", F.when(F.col("old.era") == F.col("era"), F.col("old")))
    # Successive selects: each names columns that the next ones use several times.
    rows = rows.select(
        *("cluster_id", "group", "old", "was", "last", "wiped", "ended", "alive", "seen"),
        *("committed_at", "era", "log_partition", "read_to"),
        *(F.col(name).alias(f"new_{name}") for name in ("first_seen", "first_commit", "last_commit")),
        _offsets(F.col("was.offsets"), F.col("offsets")).alias("offsets"),
        _members(F.col("was.members"), F.col("members"), F.col("ended")).alias("members"),
        F.greatest("old.last_commit_after", "last_commit_after").alias("new_last_commit_after"),
        _topics_after(F.col("old.topics_after"), F.col("topics_after")).alias("topics_after"),
        _by_day(F.col("old.commits_by_day"), F.col("days"), now).alias("days"),
    )
    # Each of these may use those before it.
    derived = {"simple": _simple(), "since": _since(), "protocol": _protocol(), "state_now": _state()}
    rows = rows.select("*", *_named(derived | {"type_now": _type(), "wiped_out": _wiped_out()}))
    return rows.select(*_named(_row(now)))


def _row(now: datetime) -> dict[str, Column]:
    last, simple, wiped_out, state = F.col("last"), F.col("simple"), F.col("wiped_out"), F.col("state_now")
    return {
        "cluster_id": F.col("cluster_id"),
        "group": F.col("group"),
        "type": F.col("type_now"),
        "protocol_type": F.col("protocol"),
        "state": F.when(wiped_out, "Gone").otherwise(state),
        "state_since": F.when(wiped_out, F.col("wiped.record_time"))
        .when(simple, F.lit(None))
        .when(last.isNull(), F.col("was.state_since"))
        .otherwise(F.col("since")),
        "members": F.col("members"),
        "first_commit": F.least("old.first_commit", "new_first_commit"),
        "last_commit": F.greatest("old.last_commit", "new_last_commit"),
        "oldest_commit": F.array_min(F.col("offsets.commit_time")),
        "empty_since": F.when(simple | wiped_out, F.lit(None))
        .when(last.isNull(), F.col("was.empty_since"))
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
        "state_after": F.when(last.isNull(), F.col("was.state_after")).otherwise(F.col("last.written_after")),
        "topics_after": F.map_filter("topics_after", lambda topic, _: F.array_contains("offsets.topic", topic)),
        # A simple group has the name of a group that ended, and other clients.
        "last_clients": F.when(~simple, F.coalesce("seen.clients", "old.last_clients")),
        "last_clients_at": F.when(~simple, F.coalesce("seen.record_time", "old.last_clients_at")),
    }


def _simple() -> Column:
    """Whether a commit, after the group's end or as its first record, made it a simple group (without members)."""
    last = F.col("last")
    nothing = F.coalesce("was.type", F.lit("Unknown")) == "Unknown"
    ended = F.coalesce(F.col("last.ended"), nothing | (F.col("was.state") == "Gone"))
    later = F.when(last.isNull(), True).otherwise(F.col("committed_at") > F.col("last.position"))
    return F.coalesce(ended & F.col("committed_at").isNotNull() & later, F.lit(False))


def _since() -> Column:
    at = F.col("last.state_ms")
    return F.coalesce(F.when(at > 0, F.timestamp_millis(at)), F.col("last.record_time"))


def _type() -> Column:
    return (
        F.when(F.col("simple"), "Classic")
        .when(F.col("last").isNull(), F.coalesce("was.type", F.lit("Unknown")))
        .when((F.col("last.family") == "classic") & F.col("protocol").isNull(), "Unknown")
        .otherwise(F.element_at(F.create_map(*map(F.lit, chain.from_iterable(_TYPES.items()))), F.col("last.family")))
    )


def _protocol() -> Column:
    family, empty = F.col("last.family"), F.lit("")
    # A Classic group's tombstone does not say whether it ever had members: its earlier records do, if known.
    joined = F.when(F.col("alive.family") == "classic", F.coalesce("alive.protocol_type", empty))
    committed = F.when(F.col("committed_at").isNotNull(), empty)
    return (
        F.when(F.col("simple"), empty)
        .when(F.col("last").isNull(), F.col("was.protocol_type"))
        .when((family == "classic") & F.col("last.ended"), F.coalesce(joined, "was.protocol_type", committed))
        .when(family == "classic", F.coalesce("last.protocol_type", empty))
        .otherwise(family)
    )


def _state() -> Column:
    empty = F.when(F.col("last.family") == "classic", F.col("last.members") == 0).otherwise(F.size("members") == 0)
    return (
        F.when(F.col("simple"), "Empty")
        .when(F.col("last").isNull(), F.coalesce("was.state", F.lit("Unknown")))
        .when(F.col("last.ended"), "Gone")
        .when(empty, "Empty")
        .otherwise("Active")
    )


def _wiped_out() -> Column:
    """Whether a simple group lost its last offset: no other record of the log may show that it ended."""
    never_joined = F.col("type_now").isin("Classic", "Unknown") & (F.coalesce("protocol", F.lit("")) == "")
    last = F.col("wiped.log_offset") > F.coalesce("last.position", F.lit(-1))
    ended = never_joined & (F.size("offsets") == 0) & F.col("state_now").isin("Empty", "Unknown") & last
    return F.coalesce(ended, F.lit(False))


def _offsets(old: Column, new: Column) -> Column:
    """The current offsets: the last commit of each partition, without those that ended with a tombstone."""
    before = F.transform(old, lambda it: F.struct(*_fields(it, F.lit(-1).cast("bigint"))))
    all_of_them = F.when(old.isNull(), new).otherwise(F.concat(before, new))
    # The lambda binds the sorted array to a name: otherwise it would be sorted again for each element.
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
    """Topic -> latest time; a topic has several times if several reads are added at once."""
    latest = F.transform(
        F.array(F.sort_array(new)),
        lambda all_: F.filter(all_, lambda it, index: ~it["topic"].eqNullSafe(F.get(all_, index + 1)["topic"])),
    )[0]
    found = F.map_from_entries(latest)
    later = F.map_zip_with(old, found, lambda _, one, other: F.greatest(one, other))
    return F.when(old.isNull(), found).otherwise(later)


def _members(old: Column, new: Column, ended: Column) -> Column:
    """The ids of the members: earlier ones and those that joined, without those that left. Sorted."""
    # The end of a Classic group may be its conversion into another type, which keeps the members.
    emptied_at = F.when(ended["family"] != "classic", ended["position"])
    latest = F.transform(
        F.array(F.sort_array(F.filter(new, lambda it: it["position"] > F.coalesce(emptied_at, F.lit(-1))))),
        lambda all_: F.filter(all_, lambda it, index: ~it["member_id"].eqNullSafe(F.get(all_, index + 1)["member_id"])),
    )[0]
    came = F.transform(F.filter(latest, lambda it: ~it["gone"]), lambda it: it["member_id"])
    left = F.transform(F.filter(latest, lambda it: it["gone"]), lambda it: it["member_id"])
    none = F.array().cast("array<string>")
    stayed = F.when(emptied_at.isNull(), F.coalesce(old, none)).otherwise(none)
    return F.when(F.size(new) == 0, stayed).otherwise(F.array_sort(F.array_union(F.array_except(stayed, left), came)))


def _by_day(old: Column, new: Column, now: datetime) -> Column:
    """Commits by day, for the last days only: a bounded state for all counts."""
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
