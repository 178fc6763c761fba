"""The Delta tables of one Kafka cluster: names, schemas, properties, where they lie. Not how they are filled.

One warehouse (a folder or an object store URI) holds one cluster. Of every bronze row, the first columns say where it
was read: `era` counts the lives of the log (0, and one more each time the topic was created anew and the user said to
go on: offsets begin anew with it), `batch` counts what was read at a time, over all eras, `log_partition` and
`log_offset` say where the record lies, `record_time` the time in it. They come first, since Delta keeps minima and
maxima of the first columns only: they are what a later read filters by.

Columns that came after release 0.1.0 may be missing in tables that are there: they are read as null, and added by the
first write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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
from group_hygiene.model import TABLES_VERSION
from group_hygiene.pipeline import store
from group_hygiene.pipeline.files import Shape
from group_hygiene.pipeline.store import File, Once

# A property of a bronze table: rows from before that moment (ISO 8601) were dropped, which were in `activity` by then.
PRUNED = "grouphygiene.pruned"

_POSITION = (
    StructField("era", IntegerType(), False),
    StructField("batch", LongType(), False),
    StructField("log_partition", IntegerType(), False),
    StructField("log_offset", LongType(), False),
    StructField("record_time", TimestampType()),
)
# When all that was decided in this partition was read before, and the record was not there, or its transaction open:
# it was written later, whatever its own times say. null = the partition was not read before, or by release 0.1.0.
_WRITTEN_AFTER = StructField("written_after", TimestampType())


class State(NamedTuple):
    """A table as it is now. Another table in the same place has another id."""

    id: str
    version: int


class Table(NamedTuple):
    """One table: `indexed` of its first columns have minima and maxima in Delta's log.

    It is made with the first rows that are written to it. A column of the schema that is not nullable never holds a
    null, but Delta doesn't watch that. mark: of a bronze table, see Shape.
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
        """No rows where it isn't there."""
        found = self.open(spark, warehouse)
        return self.none(spark) if found is None else self.completed(found.toDF())

    def completed(self, frame: DataFrame) -> DataFrame:
        """Rows of this table, of an earlier release too: with all columns of the schema."""
        added = {
            field.name: F.lit(None).cast(field.dataType) for field in self.schema if field.name not in frame.columns
        }
        return frame.withColumns(added).select(*self.schema.names) if added else frame

    def none(self, spark: SparkSession) -> DataFrame:
        """No rows. By the limit, Spark knows, and leaves out of its plans whatever comes of them."""
        return spark.createDataFrame([], self.schema).limit(0)

    def open(self, spark: SparkSession, warehouse: str) -> DeltaTable | None:
        """None = it is not there."""
        return DeltaTable.forPath(spark, self.path(warehouse)) if self.exists(warehouse) else None

    def batches(self, spark: SparkSession, warehouse: str, first: int, last: int) -> DataFrame:
        """Of a bronze table, the rows of these batches; no file is opened that holds none of them."""
        table = store.opened(self.path(warehouse))
        if table is None:
            return self.none(spark)
        if table.protocol().min_reader_version > 1:
            # More is to be known of its rows than its files say: Spark finds it out, by some jobs of its own.
            rows = self.read(spark, warehouse)
        else:
            rows = self.read_files(spark, warehouse, store.files_between(table, "batch", first, last))
        return rows.where((F.col("batch") >= first) & (F.col("batch") <= last))

    def read_files(self, spark: SparkSession, warehouse: str, paths: Sequence[str]) -> DataFrame:
        """What is in these files of its folder."""
        if not paths:
            return self.none(spark)
        # Spark looks for patterns in them.
        found = [re.sub(r"([{}\[\]*?\\])", r"\\\1", f"{self.path(warehouse)}/{path}") for path in paths]
        return spark.read.schema(self.schema).parquet(*found)

    def rows(self, warehouse: str) -> list[dict[str, Any]]:
        """All of a small table, `ingested` or `coverage`, times in UTC, all columns; none where it isn't there.

        Raises Halted where a newer program wrote it.
        """
        missing: dict[str, Any] = dict.fromkeys(self.schema.names)
        rows = [missing | row for row in store.rows(self.path(warehouse))]
        if (newer := max((row["version"] for row in rows), default=TABLES_VERSION)) > TABLES_VERSION:
            raise Halted(
                f"the tables at {warehouse} are of version {newer}, and this program knows version {TABLES_VERSION}: "
                "a newer one wrote them. Run that one, or name another --warehouse"
            )
        return rows

    def state(self, spark: SparkSession, warehouse: str) -> State | None:
        """As Spark has it, which knows its own versions without a look at them; None = it is not there."""
        jvm: Any = spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, self.path(warehouse))
        nothing = jvm.scala.Option.empty()
        snapshot = log.update(False, nothing, nothing)
        return State(snapshot.metadata().id(), snapshot.version()) if snapshot.version() >= 0 else None

    def change(
        self, warehouse: str, version: int, keys: pa.Table, changed: Callable[[pa.Table], pa.Table], mark: str
    ) -> None:
        """The rows that a key names become what `changed` makes of them: see store.change."""
        store.change(self.path(warehouse), version, keys, changed, self.shape.schema, mark)

    def size(self, warehouse: str) -> int:
        """How many bytes its files hold; 0 where it isn't there."""
        return store.size(self.path(warehouse))

    def total(self, warehouse: str, column: str) -> int:
        """The sum of a column of whole numbers; 0 where it isn't there."""
        return store.total(self.path(warehouse), column)

    def setting(self, warehouse: str, name: str) -> str | None:
        """The value of one of its properties; None = it has none of this name, or is not there."""
        return store.setting(self.path(warehouse), name)

    def add_columns(self, warehouse: str, mark: str) -> None:
        """Those of the schema that a table of an earlier release lacks, as nulls."""
        store.add_columns(self.path(warehouse), self.shape.schema, mark)

    def append(self, spark: SparkSession, warehouse: str, frame: DataFrame) -> None:
        """Add these rows; the table is made with its first ones, or with none."""
        # Options of a table that is made now; one that is there keeps its own.
        writer = frame.select(*self.schema.names).write.format("delta").mode("append").options(**self._properties)
        writer.option("mergeSchema", "true").save(self.path(warehouse))

    def add(self, warehouse: str, files: Sequence[File], once: Once) -> None:
        """Files of `shape`, in its folder: their rows, from now on; the table is made with them, or with none."""
        store.add(self.path(warehouse), self.shape.schema, files, self._properties, once)

    def overwrite(self, warehouse: str, rows: Sequence[Mapping[str, Any]], once: Once | None = None) -> None:
        """These rows instead of all that were there, in a small table that is made when it isn't there."""
        told = [{name: row[name] for name in self.schema.names} for row in rows]
        store.replace(self.path(warehouse), pa.Table.from_pylist(told, self.shape.schema), self._properties, once)

    def make_anew(self, spark: SparkSession, warehouse: str) -> None:
        """An empty table of another id in the place of this one."""
        builder = DeltaTable.replace(spark).location(self.path(warehouse)).addColumns(self.schema)
        for name, value in self._properties.items():
            builder = builder.property(name, value)
        builder.execute()

    @property
    def shape(self) -> Shape:
        """As Arrow has it, and as Spark makes tables: every column may hold nulls."""
        fields = [field.with_nullable(True) for field in to_arrow_schema(self.schema)]
        return Shape(pa.schema(fields), self.mark, self.indexed)

    @property
    def _properties(self) -> dict[str, str]:
        # As often as Spark would; delta-rs does it less often, and whoever opens the table reads all versions since.
        often = {"delta.checkpointInterval": "10"}
        return {"delta.dataSkippingNumIndexedCols": str(self.indexed)} | often | dict(self.properties)


# Every commit of an offset, and every tombstone of one (committed_offset null; then no commit_ms either). `aborted`:
# written by a transaction that was aborted later: its time is activity, its offset never counted. commit_ms: as the
# record's value holds it, milliseconds since 1970; leader_epoch -1 = not known.
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

# Every other record of a group: see offsets_log.GroupState for what the columns mean for each kind.
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
        ]
    ),
    len(_POSITION),
    mark="state",
)

# Records that could not be decoded, as they are, and why.
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

# One row a log partition: every record of that era before `covered_to` is in the three tables above, and none beyond it
# is from before `read_at`: where a transaction was open, the time of its first record (null = it was never read to its
# end). leader_epoch: in which the partition was led when it was read so far, -1 = its log holds none; null = read by
# release 0.1.0. batch: the last one that was finished, 0 =
# none; rows of a later one come again. complete_since: what was written before that was lost unread, in whole or in
# part (null = nothing was). first_read_at: when it was read to its end for the first time: of what is older, compaction
# had left the last records only. topic_id null = a broker that knows none (before 2.8). stream: the checkpoint's name.
# version: of all tables of the warehouse, TABLES_VERSION of who wrote this.
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

# What a group had committed last, in each partition where it still has an offset.
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

# One row a group. Times are those of the log's records; null = not known. `*_after`: the latest `written_after` of its
# commits, of the record that says its state, and of the commits for each topic of `offsets`: these were no earlier.
# Deletion vectors: where it is large, a run writes the rows that changed, not the files that hold them.
ACTIVITY = Table(
    "activity",
    StructType(
        [
            StructField("cluster_id", StringType(), False),
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
            StructField("log_partition", IntegerType(), False),
            StructField("read_to", LongType(), False),
            StructField("updated_at", TimestampType(), False),
            StructField("last_commit_after", TimestampType()),
            StructField("state_after", TimestampType()),
            StructField("topics_after", MapType(StringType(), TimestampType())),
        ]
    ),
    2,
    (("delta.enableDeletionVectors", "true"),),
)

# One row a log partition, copied from `ingested` once all of that is in version `activity_version` of `activity`.
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

# What every record of the log is in one of.
RECORDS = (COMMITS, GROUP_STATES, QUARANTINE)
