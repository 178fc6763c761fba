"""One run of the ingest: all that the offsets log has gained, decoded once, into the bronze tables, exactly once.

Each micro-batch is written to each table in a Delta transaction that names the stream and the batch, so that a batch
that comes again after a crash is written to those tables only that lack it; `ingested` comes last. Whether all of the
log was read is held against what the brokers say of it: Spark's source can leave things out without an error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from group_hygiene.errors import PipelineError
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.log_bounds import LogBounds, read_log_bounds
from group_hygiene.kafka.partition import Leader, fetch
from group_hygiene.model import Fault, Partition
from group_hygiene.pipeline.decoding import SCHEMA, decode_batches
from group_hygiene.pipeline.progress import (
    Progress,
    plan,
    read_progress,
    refuse_incomplete,
    refuse_older,
    refuse_orphans,
    restarted,
    write_progress,
)
from group_hygiene.pipeline.source import Positions, read_range, read_stream
from group_hygiene.pipeline.tables import COMMITS, COVERAGE, GROUP_STATES, QUARANTINE, RECORDS, Once, Table

Tell = Callable[[str], None]

# Columns of these tables that a decoded record holds in one.
_UNPACKED = {GROUP_STATES.name: ["state.*"], QUARANTINE.name: ["aside.*"]}
# What Spark's Kafka source says under failOnDataLoss.
_LOST_SIGNS = ("data loss", "DATA_LOSS", "OffsetOutOfRange", "Cannot fetch record")


@dataclass(frozen=True, slots=True)
class Written:
    """How many records came into the tables; `aborted` are among the commits."""

    commits: int = 0
    states: int = 0
    quarantined: int = 0
    aborted: int = 0

    @property
    def records(self) -> int:
        return self.commits + self.states + self.quarantined

    def __add__(self, other: Written) -> Written:
        return Written(
            self.commits + other.commits,
            self.states + other.states,
            self.quarantined + other.quarantined,
            self.aborted + other.aborted,
        )


def ingest(spark: SparkSession, client: Client, warehouse: str, tell: Tell, start_over: bool = False) -> Written:
    """Read the log to the end that it has now. Raises PipelineError where not all of it can be had, or was.

    start_over: see progress.plan. `tell` gets a line for each step.
    """
    return _Ingest(spark, client, warehouse, tell).run(start_over)


class _Batch(NamedTuple):
    """A micro-batch, decoded. kinds: how many of each are committed; aborted None = its offsets have no gaps."""

    number: int
    committed: DataFrame
    kinds: Counter[str]
    aborted: DataFrame | None


class _Ingest:
    def __init__(self, spark: SparkSession, client: Client, warehouse: str, tell: Tell) -> None:
        self._spark = spark
        self._client = client
        self._warehouse = warehouse.rstrip("/")
        self._tell = tell
        self._written = Written()
        self._failure: Exception | None = None

    def run(self, start_over: bool) -> Written:
        before = read_progress(self._spark, self._warehouse)
        self._bounds = bounds = self._ask_bounds()
        self._progress = plan(before, bounds, start_over)
        if before is None:
            refuse_orphans(self._spark, self._warehouse)
        else:
            refuse_incomplete(self._spark, self._warehouse, before.batch)
        begins = not self._knows_its_place()
        if begins:
            # It would leave a checkpoint behind.
            self._refuse_older(before)
        if begins and before is not None and before.stream == self._progress.stream:
            self._progress = restarted(self._progress)
        with ThreadPoolExecutor(1) as beside:
            # While the first batch is being read and decoded. None of it is written before.
            inheriting = inheritable_thread_target(self._spark)
            if begins:
                self._ready = beside.submit(inheriting(self._begin_stream), before, self._progress)
            else:
                self._ready = beside.submit(inheriting(self._refuse_older), before)
            if self._progress.places:
                self._stream()
            self._ready.result()
        self._check_ends(bounds)
        # The last batch has said so already, if there was one.
        if (seen := self._progress.seen(bounds)) != self._progress:
            write_progress(self._spark, self._warehouse, seen)
        return self._written

    @property
    def _checkpoint(self) -> str:
        return f"{self._warehouse}/_checkpoints/{self._progress.stream}"

    def _ask_bounds(self) -> LogBounds:
        bounds = read_log_bounds(self._client, self._deadline())
        if isinstance(bounds, Fault):
            raise PipelineError(f"the log can't be read to its end now: {bounds}")
        return bounds

    def _deadline(self) -> Deadline:
        return Deadline(self._client.settings.timeout.total_seconds())

    def _knows_its_place(self) -> bool:
        """Whether the checkpoint is there and ends where `ingested` does, or in a batch that is to come again.

        From any other place, Spark would leave out records, or begin with a number that tables know: they leave out
        what comes by it.
        """
        newest = self._newest_planned() if self._exists(f"{self._checkpoint}/metadata") else None
        if newest is None:
            return False
        if self._is_at(ends := self._planned(newest)):
            return True
        if self._exists(f"{self._checkpoint}/commits/{newest}"):
            return False
        if newest:
            return self._is_at(self._planned(newest - 1))
        return all(self._progress.positions.get(partition, 0) <= end for partition, end in ends.items())

    def _is_at(self, ends: Positions) -> bool:
        return all(self._progress.positions.get(partition) == end for partition, end in ends.items())

    def _begin_stream(self, before: Progress | None, progress: Progress) -> None:
        """Of a stream without a checkpoint: take back what another one wrote of a batch that it did not finish."""
        for table in RECORDS if before is not None else ():
            if (found := table.open(self._spark, self._warehouse)) is not None:
                found.delete(F.col("batch") > progress.batch)
        write_progress(self._spark, self._warehouse, progress)

    def _refuse_older(self, before: Progress | None) -> None:
        if before is not None and before.positions != self._bounds.ends:
            for row in COVERAGE.rows(self._spark, self._warehouse)[:1]:
                refuse_older((before.era, before.batch), (row["era"], row["batch"]))

    def _stream(self) -> None:
        behind = sum(max(0, end - self._progress.positions[place]) for place, end in self._bounds.ends.items())
        self._tell(f"reading {behind:,} offsets")
        stream = read_stream(self._spark, self._client.settings, self._progress.positions)
        query = (
            stream.writeStream.foreachBatch(self._write_batch)
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except PySparkException as error:
            if isinstance(self._failure, PipelineError):
                raise self._failure from error
            raise PipelineError(_explained(self._failure or error)) from error
        finally:
            query.stop()

    def _write_batch(self, batch: DataFrame, number: int) -> None:
        try:
            self._write(batch, number)
        except Exception as error:
            # Spark hands on no more than its text.
            self._failure = error
            raise

    def _write(self, batch: DataFrame, number: int) -> None:
        positions = self._progress.positions
        ends = self._planned(number)
        if all(positions.get(partition, 0) >= end for partition, end in ends.items()):
            return
        starts = positions | (self._planned(number - 1) if number else {})
        cores = self._spark.sparkContext.defaultParallelism
        decoded = _decoded(batch.coalesce(cores)).persist()
        aborted: DataFrame | None = None
        try:
            rows, kinds = _counted(decoded)
            gaps = {partition: end for partition, end in ends.items() if end - starts[partition] > rows[partition]}
            if gaps:
                aborted = self._aborted(decoded, {partition: starts[partition] for partition in gaps}, gaps).persist()
                self._check_silent([partition for partition in gaps if not rows[partition]], starts, ends)
            self._ready.result()
            self._written += self._append(_Batch(number, decoded, kinds, aborted))
        finally:
            decoded.unpersist()
            if aborted is not None:
                aborted.unpersist()
        self._progress = self._progress.advanced(ends).seen(self._bounds)
        write_progress(self._spark, self._warehouse, self._progress, number)
        read = sum(end - starts[partition] for partition, end in ends.items())
        self._tell(f"batch {number}: offsets {read:,}, records so far {self._written.records:,}")

    def _aborted(self, committed: DataFrame, starts: Positions, ends: Positions) -> DataFrame:
        """What lies in the gaps of a read_committed reading: records of aborted transactions, or nothing at all.

        Markers of transactions, and what compaction removed, leave gaps too, which no reader can tell from the others.
        """
        everything = read_range(self._spark, self._client.settings, starts, ends)
        seen = committed.where(F.col("log_partition").isin(list(starts))).select("log_partition", "log_offset")
        same = (F.col("partition") == F.col("log_partition")) & (F.col("offset") == F.col("log_offset"))
        return _decoded(everything.join(seen, same, "left_anti"))

    def _append(self, batch: _Batch) -> Written:
        """Each table in a transaction of its own; one that has this batch already stays as it is."""
        frame, kinds, lost = batch.committed.withColumn("aborted", F.lit(False)), batch.kinds, Counter[str]()
        if batch.aborted is not None:
            lost = _counted(batch.aborted)[1]
        if batch.aborted is not None and lost:
            frame = frame.unionByName(batch.aborted.withColumn("aborted", F.lit(True)))
        count = kinds + lost
        # The first batch makes both, with rows or without: from then on, one that isn't there is one that was lost.
        needed = set() if self._progress.batch else {COMMITS.name, GROUP_STATES.name}
        append = inheritable_thread_target(self._spark)(self._append_to)
        with ThreadPoolExecutor(len(RECORDS)) as beside:
            given = [table for table in RECORDS if count[table.name] or table.name in needed]
            for appended in [beside.submit(append, table, frame, batch.number) for table in given]:
                appended.result()
        return Written(count[COMMITS.name], count[GROUP_STATES.name], count[QUARANTINE.name], lost[COMMITS.name])

    def _append_to(self, table: Table, frame: DataFrame, number: int) -> None:
        its_own = frame.where(_table() == table.name).select("*", *_UNPACKED.get(table.name, ()))
        numbered = its_own.withColumns({"era": F.lit(self._progress.era), "batch": F.lit(self._progress.batch + 1)})
        rows = numbered.select(*(F.col(field.name).cast(field.dataType) for field in table.schema))
        table.append(self._spark, self._warehouse, rows, Once(self._progress.stream, number))

    def _check_silent(self, partitions: Iterable[int], starts: Positions, ends: Positions) -> None:
        """Ask a broker itself for the first record of a range of which Spark showed none."""
        for partition in partitions:
            place = Partition(OFFSETS_TOPIC, partition)
            leader, position = Leader(self._client, place), starts[partition]
            while position < ends[partition]:
                answer = fetch(leader, position, self._deadline())
                if isinstance(answer, Fault):
                    raise PipelineError(f"{place} can't be read: {answer}")
                if any(record.offset < ends[partition] for record in answer.records):
                    raise PipelineError(f"{place} holds records from offset {position} on, and Spark read none of them")
                if answer.position == position:
                    break
                position = answer.position

    def _check_ends(self, bounds: LogBounds) -> None:
        for partition, end in bounds.ends.items():
            covered = self._progress.positions.get(partition, 0)
            if covered < end:
                raise PipelineError(
                    f"{OFFSETS_TOPIC}-{partition} ends at offset {end}, and Spark read it up to {covered} only: "
                    "nothing is lost, but the evidence is not complete"
                )

    def _planned(self, number: int) -> dict[int, int]:
        """Where a batch ends, as Spark wrote it into the checkpoint before it began: partition -> offset."""
        file = self._path(f"{self._checkpoint}/offsets/{number}")
        stream = self._file_system(file).open(file)
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        offsets = json.loads(text.splitlines()[-1])[OFFSETS_TOPIC]
        return {int(partition): offset for partition, offset in offsets.items()}

    def _newest_planned(self) -> int | None:
        """The last batch that Spark planned."""
        if not self._exists(f"{self._checkpoint}/offsets"):
            return None
        path = self._path(f"{self._checkpoint}/offsets")
        names = [status.getPath().getName() for status in self._file_system(path).listStatus(path)]
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def _exists(self, name: str) -> bool:
        path = self._path(name)
        return bool(self._file_system(path).exists(path))

    @property
    def _jvm(self) -> Any:
        return self._spark.sparkContext._jvm

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(name)

    def _file_system(self, path: Any) -> Any:
        return path.getFileSystem(self._spark.sparkContext._jsc.hadoopConfiguration())


def _decoded(records: DataFrame) -> DataFrame:
    return records.mapInArrow(decode_batches, SCHEMA)


def _counted(decoded: DataFrame) -> tuple[Counter[int], Counter[str]]:
    """How many records there are of each log partition, and for each table."""
    partitions, kinds = Counter[int](), Counter[str]()
    for row in decoded.groupBy("log_partition", _table().alias("table")).agg(F.count("*").alias("records")).collect():
        partitions[row.log_partition] += row.records
        kinds[row.table] += row.records
    return partitions, kinds


def _table() -> Column:
    """The name of the table that a decoded record is for."""
    aside = F.when(F.col("aside").isNotNull(), QUARANTINE.name)
    return aside.when(F.col("state").isNotNull(), GROUP_STATES.name).otherwise(COMMITS.name)


def _explained(error: Exception) -> str:
    text = str(error)
    if any(sign in text for sign in _LOST_SIGNS):
        return "the log lost records, or was created anew, while Spark read it: run it again, and it says what to do"
    return f"Spark can't go on: {text.splitlines()[0] if text else type(error).__name__}; its log says more"
