"""The Delta tables of one Kafka cluster: names, schemas, properties. How they are filled is elsewhere.

One warehouse (a folder or an object store URI) holds one cluster. The first columns of every bronze row are the
record's position: `era` is 0, and rises each time that the topic was recreated and a user chose to continue, since
offsets then start again; `batch` is the number of the batch, over all eras; `log_partition`, `log_offset` and
`record_time` are the record's own. They are first because Delta has minima and maxima of the first columns only, and
later reads filter by them.

Existing tables may lack columns that were added after release 0.1.0: they read as null, and the first write adds them.
A column that is not nullable here never holds a null, but Delta does not enforce that.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from group_hygiene.model.last_use import CLIENT
from group_hygiene.pipeline.store import Table

# A property of a bronze table: rows from before this time (ISO 8601) were dropped, after `activity` had them.
PRUNED = "grouphygiene.pruned"
# A property of `activity`: how its rows are in files. Tables of earlier releases have none.
LAYOUT = "grouphygiene.layout"

_POSITION = (
    StructField("era", IntegerType(), False),
    StructField("batch", LongType(), False),
    StructField("log_partition", IntegerType(), False),
    StructField("log_offset", LongType(), False),
    StructField("record_time", TimestampType()),
)
# Time of the previous complete read of the partition, which did not find the record, or found its transaction open: the
# record was written later, whatever its own times are. null = there was no such read, or release 0.1.0 read it.
_WRITTEN_AFTER = StructField("written_after", TimestampType())


def _nullable(columns: StructType) -> pa.Schema:
    """The Arrow schema, in which every column is nullable, as in tables that Spark creates."""
    return pa.schema([field.with_nullable(True) for field in to_arrow_schema(columns, timezone="UTC")])


# Every commit of an offset, and every tombstone of one (committed_offset and commit_ms are null). aborted: its
# transaction was aborted, so its time counts as activity, but its offset never applied. commit_ms: from the record's
# value, in milliseconds since 1970. leader_epoch: -1 = unknown.
COMMITS = Table(
    "commits",
    _nullable(
        StructType(
            [
                *_POSITION,
                StructField("group", StringType(), False),
                StructField("topic", StringType(), False),
                StructField("partition", IntegerType(), False),
                StructField("committed_offset", LongType()),
                StructField("leader_epoch", IntegerType()),
                StructField("metadata", StringType()),
                StructField("commit_ms", LongType()),
                StructField("aborted", BooleanType(), False),
                _WRITTEN_AFTER,
            ]
        )
    ),
    len(_POSITION),
    mark="topic",
)

# Clients of members: see offsets_log.Client. host: null also if the pipeline stores no hosts. null = no member.
_CLIENTS = ArrayType(StructType([StructField(name, StringType()) for name in CLIENT]))

# Every other record of a group: see offsets_log.GroupState for the columns of each kind of record.
GROUP_STATES = Table(
    "group_states",
    _nullable(
        StructType(
            [
                *_POSITION,
                StructField("kind", StringType(), False),
                StructField("group", StringType(), False),
                StructField("protocol_type", StringType()),
                StructField("generation", IntegerType()),
                StructField("member_id", StringType()),
                StructField("members", IntegerType()),
                StructField("state_ms", LongType()),
                StructField("gone", BooleanType(), False),
                _WRITTEN_AFTER,
                StructField("clients", _CLIENTS),
            ]
        )
    ),
    len(_POSITION),
    mark="state",
)

# Records that could not be decoded, unchanged, and why.
QUARANTINE = Table(
    "quarantine",
    _nullable(
        StructType(
            [
                *_POSITION,
                StructField("key", BinaryType()),
                StructField("value", BinaryType()),
                StructField("error", StringType(), False),
                _WRITTEN_AFTER,
            ]
        )
    ),
    len(_POSITION),
    mark="aside",
)

# One row per log partition: every record of that era before `covered_to` is in the three tables above, and no later
# record was written before `read_at` (with an open transaction, the time of its first record; null = never completely
# read). leader_epoch: of the partition at that read, -1 = its log has none, null = release 0.1.0 read it. batch: the
# last completed one, 0 = none; rows of a later one will be written again. complete_since: records from before this time
# were lost unread, in whole or in part (null = none). first_read_at: time of the first complete read; of older records,
# compaction had left only the last ones. topic_id: null = a broker before 2.8, which has none. stream: not
# used since release 0.2.0. version: TABLES_VERSION of the writer, for all tables.
INGESTED = Table(
    "ingested",
    _nullable(
        StructType(
            [
                StructField("cluster_id", StringType(), False),
                StructField("topic_id", StringType()),
                StructField("era", IntegerType(), False),
                StructField("batch", LongType(), False),
                StructField("log_partition", IntegerType(), False),
                StructField("covered_to", LongType(), False),
                StructField("read_at", TimestampType()),
                StructField("complete_since", TimestampType()),
                StructField("first_read_at", TimestampType()),
                StructField("stream", StringType(), False),
                StructField("version", IntegerType(), False),
                StructField("leader_epoch", IntegerType()),
            ]
        )
    ),
)

# A group's last commit in each partition for which it still has an offset.
_OFFSET = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("leader_epoch", IntegerType()),
        StructField("metadata", StringType()),
        StructField("commit_time", TimestampType()),
    ]
)

# One row per group. Times are those of the log's records; null = unknown. `*_after`: the latest `written_after` of its
# commits, of the record of its state, and of the commits for each topic of `offsets`: these were written no earlier.
# last_clients: of the last record that names clients, and its time; null also if an earlier release read that record.
# log_partition: each file has the groups of one partition, or of all: see activity.shards.
ACTIVITY = Table(
    "activity",
    _nullable(
        StructType(
            [
                StructField("cluster_id", StringType(), False),
                StructField("log_partition", IntegerType(), False),
                StructField("group", StringType(), False),
                StructField("type", StringType(), False),
                StructField("protocol_type", StringType()),
                StructField("state", StringType(), False),
                StructField("state_since", TimestampType()),
                StructField("members", ArrayType(StringType()), False),
                StructField("first_commit", TimestampType()),
                StructField("last_commit", TimestampType()),
                StructField("oldest_commit", TimestampType()),
                StructField("empty_since", TimestampType()),
                StructField("first_seen", TimestampType()),
                StructField("partitions", IntegerType(), False),
                StructField("topics", IntegerType(), False),
                StructField("offsets", ArrayType(_OFFSET), False),
                StructField("commits_1d", LongType(), False),
                StructField("commits_7d", LongType(), False),
                StructField("commits_30d", LongType(), False),
                StructField("commits_by_day", MapType(DateType(), LongType()), False),
                StructField("tombstoned_at", TimestampType()),
                StructField("era", IntegerType(), False),
                StructField("read_to", LongType(), False),
                StructField("updated_at", TimestampType(), False),
                StructField("last_commit_after", TimestampType()),
                StructField("state_after", TimestampType()),
                StructField("topics_after", MapType(StringType(), TimestampType())),
                StructField("last_clients", _CLIENTS),
                StructField("last_clients_at", TimestampType()),
            ]
        )
    ),
    2,
    ((LAYOUT, "1"),),
)

# One row per log partition, copied from `ingested` once version `activity_version` of `activity` includes all of it.
COVERAGE = Table(
    "coverage",
    pa.schema(
        [
            *(field for field in INGESTED.schema if field.name != "stream"),
            pa.field("activity_id", pa.string()),
            pa.field("activity_version", pa.int64()),
        ]
    ),
)

# The bronze tables: every record of the log is in one of them.
RECORDS = (COMMITS, GROUP_STATES, QUARANTINE)


def laid_out(warehouse: str) -> bool:
    """Whether no file of `activity` has deletion vectors: tables of earlier releases may, or by a user's setting."""
    settings = ACTIVITY.settings(warehouse)
    return LAYOUT in settings and settings.get("delta.enableDeletionVectors") != "true"
