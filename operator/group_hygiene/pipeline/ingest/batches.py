"""One run of the ingest: writes the new records of the offsets log into the bronze tables, exactly once.

Each micro-batch is written to each table in a Delta transaction with the stream's name and the batch's number, so a
batch that is repeated after a crash is written only to tables that lack it; `ingested` comes last. The result is
compared with the brokers' own offsets, as Spark's source may omit records without an error.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from group_hygiene.errors import PipelineError
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.leader_epochs import epoch_ends
from group_hygiene.kafka.log_bounds import LogBounds, read_log_bounds
from group_hygiene.kafka.partition import Leader, fetch
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.pipeline.ingest.files import WRITTEN, Target, write_decoded
from group_hygiene.pipeline.ingest.progress import (
    Progress,
    cut_off,
    plan,
    read_progress,
    refuse_incomplete,
    refuse_older,
    refuse_orphans,
    restarted,
    write_progress,
)
from group_hygiene.pipeline.ingest.source import Positions, read_range, read_stream
from group_hygiene.pipeline.store import File, Once
from group_hygiene.pipeline.tables import COMMITS, COVERAGE, GROUP_STATES, QUARANTINE, RECORDS
from group_hygiene.spec.secret import one_line

Report = Callable[[str], None]

# In errors of Spark's Kafka source, with failOnDataLoss.
_LOST_SIGNS = ("data loss", "DATA_LOSS", "OffsetOutOfRange", "Cannot fetch record")


@dataclass(frozen=True, slots=True)
class Written:
    """Numbers of records that were written; `commits` includes `aborted`."""

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


def ingest(
    spark: SparkSession,
    client: Client,
    warehouse: str,
    report: Report,
    start_over: bool = False,
    hosts: bool = True,
) -> Written:
    """Read the log to its current end. Raises PipelineError unless all of it can be read, and was.

    start_over: see progress.plan. report: gets a line for each step. hosts: see files.Target.
    """
    return _Ingest(spark, client, warehouse, report, hosts).run(start_over)


class _Part(NamedTuple):
    """A file that the workers wrote, and that is not part of its table yet. rows: by partition of the log."""

    table: str
    file: File
    rows: Counter[int]


class _Ingest:
    def __init__(self, spark: SparkSession, client: Client, warehouse: str, report: Report, hosts: bool) -> None:
        self._spark = spark
        self._hosts = hosts
        self._client = client
        self._warehouse = warehouse.rstrip("/")
        self._report = report
        self._written = Written()
        self._failure: Exception | None = None

    def run(self, start_over: bool) -> Written:
        before = read_progress(self._warehouse)
        self._bounds = bounds = self._ask_bounds()
        cut = {} if before is None else cut_off(before, self._ask_epochs(before))
        self._progress = plan(before, bounds, start_over, cut)
        if before is None:
            refuse_orphans(self._spark, self._warehouse)
        else:
            refuse_incomplete(self._warehouse, before.batch)
        self._refuse_older(before)
        begins = not self._knows_its_place()
        if begins and before is not None and before.stream == self._progress.stream:
            self._progress = restarted(self._progress)
        if begins:
            self._begin_stream(before)
        if self._progress.places:
            self._stream()
        self._check_ends(bounds)
        # If there was a batch, it has written this already.
        if (seen := self._progress.seen(bounds)) != self._progress:
            write_progress(self._warehouse, seen)
        return self._written

    @property
    def _checkpoint(self) -> str:
        return f"{self._warehouse}/_checkpoints/{self._progress.stream}"

    def _ask_bounds(self) -> LogBounds:
        bounds = read_log_bounds(self._client, self._deadline())
        if isinstance(bounds, Fault):
            raise PipelineError(f"the log's end can't be read now: {bounds}")
        return bounds

    def _ask_epochs(self, progress: Progress) -> dict[int, int]:
        """By partition, the end offset of the leader epoch in which it was read; without unknown or gone ones."""
        asked = {
            Partition(OFFSETS_TOPIC, partition): place.leader_epoch
            for partition, place in progress.places.items()
            if place.leader_epoch is not None and partition in self._bounds.ends
        }
        ends: dict[int, int] = {}
        for place, answer in epoch_ends(self._client, asked, self._deadline()).items():
            if isinstance(answer, Fault):
                raise PipelineError(f"the leader epochs of {place} can't be read now: {answer}")
            ends[place.partition] = answer
        return ends

    def _deadline(self) -> Deadline:
        return Deadline(self._client.settings.timeout.total_seconds())

    def _knows_its_place(self) -> bool:
        """Whether the checkpoint exists, and ends where `ingested` does, or in a batch that will be repeated.

        From any other position, Spark would omit records, or use a batch number that the tables have: they would ignore
        its records.
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

    def _begin_stream(self, before: Progress | None) -> None:
        """Begin a stream without a checkpoint: remove rows of a batch that the previous stream did not complete."""
        for table in RECORDS if before is not None else ():
            if (found := table.open(self._spark, self._warehouse)) is not None:
                found.delete(F.col("batch") > self._progress.batch)
        write_progress(self._warehouse, self._progress)

    def _refuse_older(self, before: Progress | None) -> None:
        if before is not None and before.positions != self._bounds.ends:
            for row in COVERAGE.rows(self._warehouse)[:1]:
                refuse_older((before.era, before.batch), (row["era"], row["batch"]))

    def _stream(self) -> None:
        behind = sum(max(0, end - self._progress.positions[place]) for place, end in self._bounds.ends.items())
        self._report(f"reading {behind:,} offsets")
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
            # Spark passes on its text only.
            self._failure = error
            raise

    def _write(self, batch: DataFrame, number: int) -> None:
        positions = self._progress.positions
        ends = self._planned(number)
        if all(positions.get(partition, 0) >= end for partition, end in ends.items()):
            return
        starts = positions | (self._planned(number - 1) if number else {})
        committed, aborted = self._decoded(batch.coalesce(self._spark.sparkContext.defaultParallelism)), list[_Part]()
        rows = sum((part.rows for part in committed), Counter[int]())
        gaps = {partition: end for partition, end in ends.items() if end - starts[partition] > rows[partition]}
        if gaps:
            unseen = self._unseen(committed, {partition: starts[partition] for partition in gaps}, gaps)
            aborted = self._decoded(unseen, aborted=True)
            self._check_silent([partition for partition in gaps if not rows[partition]], starts, ends)
        progress = self._progress.advanced(ends).seen(self._bounds)
        if cut := cut_off(progress, self._ask_epochs(progress)):
            place = Partition(OFFSETS_TOPIC, min(cut))
            raise PipelineError(f"{place} changed its leader while it was read: nothing is lost, run this again")
        self._add(committed + aborted, number)
        self._written += _written(committed, aborted)
        self._progress = progress
        write_progress(self._warehouse, self._progress, number)
        read = sum(end - starts[partition] for partition, end in ends.items())
        self._report(f"batch {number}: offsets {read:,}, records so far {self._written.records:,}")

    def _decoded(self, records: DataFrame, aborted: bool = False) -> list[_Part]:
        """Decode the records in Spark's workers, and write them into files: all in one pass."""
        shapes = {table.name: table.shape for table in RECORDS}
        places = self._progress.places.items()
        read = {partition: place.read_at for partition, place in places if place.read_at is not None}
        place = self._progress.era, self._progress.batch + 1
        target = Target(self._warehouse, shapes, *place, aborted, read, self._hosts)
        parts: dict[str, _Part] = {}
        for row in records.mapInArrow(partial(write_decoded, target=target), from_arrow_schema(WRITTEN)).collect():
            part = parts.setdefault(row.path, _Part(row.table, File(row.path, row.size, row.stats), Counter()))
            part.rows[row.log_partition] += row.records
        return list(parts.values())

    def _unseen(self, committed: Iterable[_Part], starts: Positions, ends: Positions) -> DataFrame:
        """The records in gaps of the offsets that read_committed returned: those of aborted transactions.

        Transaction markers and compaction leave gaps, too, which look the same to a reader.
        """
        everything = read_range(self._spark, self._client.settings, starts, ends)
        for table in RECORDS:
            paths = [part.file.path for part in committed if part.table == table.name]
            seen = table.read_files(self._spark, self._warehouse, paths)
            seen = seen.where(F.col("log_partition").isin(list(starts))).select("log_partition", "log_offset")
            same = (F.col("partition") == F.col("log_partition")) & (F.col("offset") == F.col("log_offset"))
            everything = everything.join(seen, same, "left_anti")
        return everything

    def _add(self, parts: Iterable[_Part], number: int) -> None:
        """Add the files to each table in one version; a table that has this batch already is left unchanged."""
        # The first batch creates both, even without rows: if one is missing later, it was lost.
        needed = () if self._progress.batch else (COMMITS, GROUP_STATES)
        for table in RECORDS:
            files = [part.file for part in parts if part.table == table.name]
            if files or table in needed:
                table.add(self._warehouse, files, Once(self._progress.stream, number))

    def _check_silent(self, partitions: Iterable[int], starts: Positions, ends: Positions) -> None:
        """Fetch from the broker the first record of each range in which Spark found none."""
        for partition in partitions:
            place = Partition(OFFSETS_TOPIC, partition)
            leader, position = Leader(self._client, place), starts[partition]
            while position < ends[partition]:
                answer = fetch(leader, position, self._deadline())
                if isinstance(answer, Fault):
                    raise PipelineError(f"{place} can't be read: {answer}")
                if any(record.offset < ends[partition] for record in answer.records):
                    raise PipelineError(f"{place} has records from offset {position} on, and Spark read none of them")
                if answer.position == position:
                    break
                position = answer.position

    def _check_ends(self, bounds: LogBounds) -> None:
        for partition, end in bounds.ends.items():
            covered = self._progress.positions.get(partition, 0)
            if covered < end:
                raise PipelineError(
                    f"{OFFSETS_TOPIC}-{partition} ends at offset {end}, but Spark read it only up to {covered}: "
                    "nothing is lost, but the evidence is incomplete"
                )

    def _planned(self, number: int) -> dict[int, int]:
        """The end of a batch, which Spark wrote into the checkpoint before the batch: partition -> offset."""
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


def _written(committed: Iterable[_Part], aborted: Iterable[_Part]) -> Written:
    lost = _totals(aborted)
    count = _totals(committed) + lost
    return Written(count[COMMITS.name], count[GROUP_STATES.name], count[QUARANTINE.name], lost[COMMITS.name])


def _totals(parts: Iterable[_Part]) -> Counter[str]:
    """Table -> number of rows."""
    return sum((Counter({part.table: part.rows.total()}) for part in parts), Counter[str]())


def _explained(error: Exception) -> str:
    text = str(error)
    if any(sign in text for sign in _LOST_SIGNS):
        return "the log lost records, or was recreated, while Spark read it: the next run explains what to do"
    if isinstance(error, PythonException):
        # A worker's traceback ends with the error's name and text.
        message = re.split(r"^[\w.]+: ", text, flags=re.MULTILINE)[-1]
        return f"the records can't be written into the tables: {one_line(message)}"
    lines = text.strip().splitlines()
    return f"Spark failed: {lines[0] if lines else type(error).__name__}; details are in its log"
