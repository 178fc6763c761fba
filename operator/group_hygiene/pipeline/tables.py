"""The Delta tables of one Kafka cluster: names, schemas, properties, paths. How they are filled is elsewhere.

One warehouse (a folder or an object store URI) holds one cluster. The first columns of every bronze row are the
record's position: `era` is 0, and rises each time that the topic was recreated and a user chose to continue, since
offsets then start again; `batch` is the number of the batch, over all eras; `log_partition`, `log_offset` and
`record_time` are the record's own. They are first because Delta has minima and maxima of the first columns only, and
later reads filter by them.

Existing tables may lack columns that were added after release 0.1.0: they read as null, and the first write adds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
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

from group_hygiene.errors import Halted
from group_hygiene.model.evidence import TABLES_VERSION
from group_hygiene.model.last_use import CLIENT
from group_hygiene.pipeline import store
from group_hygiene.pipeline.shape import Shape
from group_hygiene.pipeline.store import File, Held

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


class State(NamedTuple):
    """The id and version of a table. Another table at the same path has another id."""

    id: str
    version: int


class Table(NamedTuple):
    """One table: `indexed` of its first columns have minima and maxima in Delta's log.

    The first write creates it. A column that is not nullable here never holds a null, but Delta does not enforce that.
    mark: of a bronze table, see Shape.
    """

    name: str
    schema: StructType
    indexed: int = 0
    properties: tuple[tuple[str, str], ...] = ()
    mark: str = ""

    def path(self, warehouse: str) -> str:
        return f"{warehouse.rstrip('/')}/{self.name}"

    def exists(self, warehouse: str) -> bool:
        return store.opened(self.path(warehouse)) is not None

    def read(self, spark: SparkSession, warehouse: str) -> DataFrame:
        """Its rows; none if it does not exist."""
        found = self.open(spark, warehouse)
        return self.none(spark) if found is None else self.completed(found.toDF())

    def completed(self, frame: DataFrame) -> DataFrame:
        """Rows of this table with all columns of the schema, also if an earlier release wrote it."""
        added = {
            field.name: F.lit(None).cast(field.dataType) for field in self.schema if field.name not in frame.columns
        }
        return frame.withColumns(added).select(*self.schema.names) if added else frame

    def none(self, spark: SparkSession) -> DataFrame:
        """No rows. With the limit, Spark knows that, and simplifies its plans."""
        return spark.createDataFrame([], self.schema).limit(0)

    def open(self, spark: SparkSession, warehouse: str) -> DeltaTable | None:
        """None = it does not exist."""
        return DeltaTable.forPath(spark, self.path(warehouse)) if self.exists(warehouse) else None

    def rows(self, warehouse: str) -> list[dict[str, Any]]:
        """All rows of a small table, `ingested` or `coverage`, times in UTC, all columns; none if it does not exist.

        Raises Halted if a newer program wrote it.
        """
        missing: dict[str, Any] = dict.fromkeys(self.schema.names)
        rows = [missing | row for row in store.rows(self.path(warehouse))]
        if (newer := max((row["version"] for row in rows), default=TABLES_VERSION)) > TABLES_VERSION:
            raise Halted(
                f"the tables at {warehouse} have version {newer}, and this program supports version {TABLES_VERSION}: "
                "a newer one wrote them. Run that one, or use another --warehouse"
            )
        return rows

    def state(self, warehouse: str) -> State | None:
        """None = it does not exist."""
        table = store.opened(self.path(warehouse))
        return None if table is None else State(str(table.metadata().id), int(table.version()))

    def change(self, warehouse: str, files: Sequence[File], version: int, removed: Sequence[str] = ()) -> int:
        """Add files of `shape` in its folder, and remove others: see store.change."""
        return store.change(self.path(warehouse), self.shape.schema, files, removed, self._properties, version)

    def read_version(self, spark: SparkSession, warehouse: str, version: int) -> DataFrame:
        """Its rows at this version: a run at the same time may write a later one."""
        reader = spark.read.format("delta").option("versionAsOf", str(version))
        return self.completed(reader.load(self.path(warehouse)))

    def size(self, warehouse: str) -> int:
        """The size of its files in bytes; 0 if it does not exist."""
        return store.size(self.path(warehouse))

    def settings(self, warehouse: str) -> dict[str, str]:
        """Its properties; none if it does not exist."""
        return store.settings(self.path(warehouse))

    def add_columns(self, warehouse: str) -> int:
        """Add the columns that a table of an earlier release lacks, as nulls; returns its version: see `version`."""
        return store.add_columns(self.path(warehouse), self.shape.schema)

    def files(self, warehouse: str, version: int, column: str) -> list[Held]:
        """Its files at this version: see store.files."""
        return store.files(self.path(warehouse), version, column)

    def append(self, spark: SparkSession, warehouse: str, frame: DataFrame) -> None:
        """Append these rows; creates the table if it does not exist, even without rows."""
        # The options apply only if this creates the table.
        writer = frame.select(*self.schema.names).write.format("delta").mode("append").options(**self._properties)
        writer.option("mergeSchema", "true").save(self.path(warehouse))

    def version(self, warehouse: str) -> int:
        """-1 = the table does not exist."""
        return store.version(self.path(warehouse))

    def overwrite(self, warehouse: str, rows: Sequence[Mapping[str, Any]], after: int | None = None) -> None:
        """Overwrite a small table with these rows; creates it if it does not exist. after: see store.replace."""
        data = [{name: row[name] for name in self.schema.names} for row in rows]
        store.replace(self.path(warehouse), pa.Table.from_pylist(data, self.shape.schema), self._properties, after)

    def create(self, warehouse: str) -> None:
        """Create it without rows: see store.create."""
        store.create(self.path(warehouse), self.shape.schema, self._properties)

    @property
    def shape(self) -> Shape:
        """The Arrow schema, in which every column is nullable, as in tables that Spark creates."""
        fields = [field.with_nullable(True) for field in to_arrow_schema(self.schema, timezone="UTC")]
        return Shape(pa.schema(fields), self.mark, self.indexed)

    @property
    def _properties(self) -> dict[str, str]:
        # As in Spark; delta-rs has a longer interval, and each reader reads all versions since the last checkpoint.
        interval = {"delta.checkpointInterval": "10"}
        return {"delta.dataSkippingNumIndexedCols": str(self.indexed)} | interval | dict(self.properties)


# Every commit of an offset, and every tombstone of one (committed_offset and commit_ms are null). aborted: its
# transaction was aborted, so its time counts as activity, but its offset never applied. commit_ms: from the record's
# value, in milliseconds since 1970. leader_epoch: -1 = unknown.
COMMITS = Table(
    "commits",
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
    ),
    len(_POSITION),
    mark="topic",
)

# Clients of members: see offsets_log.Client. host: null also if the pipeline stores no hosts. null = no member.
_CLIENTS = ArrayType(StructType([StructField(name, StringType()) for name in CLIENT]))

# Every other record of a group: see offsets_log.GroupState for the columns of each kind of record.
GROUP_STATES = Table(
    "group_states",
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
    ),
    len(_POSITION),
    mark="state",
)

# Records that could not be decoded, unchanged, and why.
QUARANTINE = Table(
    "quarantine",
    StructType(
        [
            *_POSITION,
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("error", StringType(), False),
            _WRITTEN_AFTER,
        ]
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
    ),
    2,
    ((LAYOUT, "1"),),
)

# One row per log partition, copied from `ingested` once version `activity_version` of `activity` includes all of it.
COVERAGE = Table(
    "coverage",
    StructType(
        [
            *(field for field in INGESTED.schema.fields if field.name != "stream"),
            StructField("activity_id", StringType(), False),
            StructField("activity_version", LongType(), False),
        ]
    ),
)

# The bronze tables: every record of the log is in one of them.
RECORDS = (COMMITS, GROUP_STATES, QUARANTINE)


def laid_out(warehouse: str) -> bool:
    """Whether no file of `activity` has deletion vectors: tables of earlier releases may, or by a user's setting."""
    settings = ACTIVITY.settings(warehouse)
    return LAYOUT in settings and settings.get("delta.enableDeletionVectors") != "true"
