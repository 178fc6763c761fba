"""The Delta tables of a warehouse without Spark, by delta-rs: small tables, and the files that workers write.

Spark takes several jobs and half a second for a table of some kilobytes. Both read and write the same tables. The
options of an object store come from the environment, by delta-rs' names: AWS_ACCESS_KEY_ID, AWS_REGION and so on.
Spark's workers import it, too: only methods that get a session or a DataFrame import pyspark.

A worker writes a Parquet file into the folder of a table, for the driver to add it to the table. If the driver never
does, no table refers to the file, and VACUUM removes it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction, Transaction, create_table_with_add_actions
from pyarrow.fs import PyFileSystem

from group_hygiene.errors import Halted, PipelineError
from group_hygiene.model.evidence import ACTIVITY_WRITER, TABLES_VERSION
from group_hygiene.spec.fields import one_line, timestamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Times in tables are at most so far from 1970, some 1,900 years: records may name any, and durations are added to them.
FAR_MS = 60_000_000_000_000
# Rows, or their bytes, that are buffered in memory, and then written as a row group.
_ROW_GROUP, _BUFFER_BYTES = 250_000, 64_000_000
# Numbers and times with nearly unique values: a dictionary for them would be built and discarded. Differences of
# successive values are small. Spark's rewrites keep it: see `jobs`.
NEARLY_UNIQUE = (
    *("log_offset", "record_time", "committed_offset", "commit_ms"),
    *("offsets.list.element.offset", "offsets.list.element.commit_time"),
    *("first_seen", "first_commit", "last_commit", "oldest_commit"),
)


class Held(NamedTuple):
    """A file of a table. rows: their number, 1 = not known. least, most: of one of its columns; None = not known."""

    path: str
    rows: int
    least: Any
    most: Any


class State(NamedTuple):
    """The id and version of a table, and the number of the batch that wrote it: see model.evidence.ACTIVITY_WRITER.

    Another table at the same path has another id.
    """

    id: str
    version: int
    batch: int


class Table(NamedTuple):
    """One table: `indexed` of its first columns have minima and maxima in Delta's log. The first write creates it.

    All methods raise PipelineError if the table can't be read or written, or if another run wrote it.
    """

    name: str
    schema: pa.Schema
    indexed: int = 0

    def path(self, warehouse: str) -> str:
        return f"{warehouse.rstrip('/')}/{self.name}"

    def read(self, spark: SparkSession, warehouse: str, version: int | None = None) -> DataFrame:
        """Its rows; none if it does not exist.

        version: of the table, which has it: a run at the same time may write a later one.
        """
        if version is None and not self.exists(warehouse):
            # Spark knows that there are no rows, and simplifies its plans.
            return spark.createDataFrame(self.schema.empty_table())
        reader = spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(self.path(warehouse))

    def exists(self, warehouse: str) -> bool:
        return opened(self.path(warehouse)) is not None

    def holds(self, warehouse: str, state: State) -> bool:
        """Whether this state is a version of it."""
        table = opened(uri := self.path(warehouse))
        if table is None or str(table.metadata().id) != state.id or table.version() < state.version:
            return False
        with _explained(uri):
            table.load_as_version(state.version)
            return table.transaction_version(ACTIVITY_WRITER) == state.batch

    def version(self, warehouse: str) -> int:
        """-1 = the table does not exist."""
        table = opened(self.path(warehouse))
        return -1 if table is None else int(table.version())

    def settings(self, warehouse: str) -> dict[str, str]:
        """Its properties; none if it does not exist."""
        table = opened(self.path(warehouse))
        return {} if table is None else dict(table.metadata().configuration)

    def size(self, warehouse: str) -> int:
        """The size of its files in bytes; 0 if it does not exist."""
        table = opened(self.path(warehouse))
        return 0 if table is None else sum(file["size_bytes"] for file in _files(table))

    def files(self, warehouse: str, version: int, column: str) -> list[Held]:
        """Its files at this version, with the least and most of the column in Delta's log; none for -1."""
        if version < 0:
            return []
        with _explained(uri := self.path(warehouse)):
            return [
                Held(
                    *(unquote(file["path"]), file["num_records"] or 1),
                    *(file.get(f"{end}.{column}") for end in ("min", "max")),
                )
                for file in _files(DeltaTable(uri, version=version))
            ]

    def rows(self, warehouse: str) -> list[dict[str, Any]]:
        """All rows of a small table, `coverage`, times in UTC, all columns; none if it does not exist.

        Raises Halted if a newer program wrote it.
        """
        found = rows(self.path(warehouse))
        if (newer := max((row["version"] for row in found), default=TABLES_VERSION)) > TABLES_VERSION:
            raise Halted(
                f"the tables at {warehouse} have version {newer}, and this program supports version {TABLES_VERSION}: "
                "a newer one wrote them. Run that one, or use another --warehouse"
            )
        return found

    def create(self, warehouse: str, batch: int) -> State:
        """Create it without rows. One that exists is replaced by one with another id, in one version.

        batch: the number of the batch that counts as its writer.
        """
        with _explained(uri := self.path(warehouse)):
            table = DeltaTable.create(
                *(uri, Schema.from_arrow(self.schema), "overwrite"),
                configuration=self._properties,
                raise_if_key_not_exists=False,
                commit_properties=_once(batch),
            )
            return State(str(table.metadata().id), int(table.version()), batch)

    def overwrite(self, warehouse: str, rows: Sequence[Mapping[str, Any]], after: int) -> None:
        """Overwrite a small table with these rows; creates it if it does not exist.

        after: fails if the table has another version than this one (-1 = it does not exist).
        """
        data = [{name: row[name] for name in self.schema.names} for row in rows]
        table = opened(uri := self.path(warehouse))
        with _explained(uri):
            if after != (-1 if table is None else table.version()):
                raise CommitFailedError(f"it is not at version {after} any more")
            write_deltalake(
                uri if table is None else table,
                pa.Table.from_pylist(data, self.schema),
                mode="overwrite",
                configuration=self._properties if table is None else None,
                commit_properties=_once(),
            )

    def change(
        self,
        warehouse: str,
        files: Iterable[AddAction],
        version: int,
        removed: Iterable[str] = (),
        batch: int | None = None,
    ) -> int:
        """Add files in its folder, and remove others, in the version after this one, which it returns; -1 creates it.

        batch: see State. Fails if the table has a later version: another run wrote it.
        """
        uri, schema, now = self.path(warehouse), Schema.from_arrow(self.schema), int(time.time() * 1000)
        actions: list[Any] = [*files, *(RemoveAction(path, True, now) for path in removed)]
        with _explained(uri):
            if version >= 0:
                table = DeltaTable(uri, version=version)
                table.create_write_transaction(actions, "append", schema, commit_properties=_once(batch))
                return version + 1
            settings = self._properties
            try:
                create_table_with_add_actions(uri, schema, actions, configuration=settings)
            except DeltaError as error:
                # That another run created it has no error of its own.
                if opened(uri) is None:
                    raise
                raise CommitFailedError("it exists by now") from error
        return 0

    @property
    def _properties(self) -> dict[str, str]:
        # As in Spark; delta-rs has a longer interval, and each reader reads all versions since the last checkpoint.
        interval = {"delta.checkpointInterval": "10"}
        return {"delta.dataSkippingNumIndexedCols": str(self.indexed)} | interval


def opened(uri: str) -> DeltaTable | None:
    """None = there is no table. Like all functions here, raises PipelineError if the table can't be read or written."""
    with _explained(uri):
        try:
            return DeltaTable(uri)
        except TableNotFoundError:
            return None


def rows(uri: str, query: str = "SELECT * FROM t") -> list[dict[str, Any]]:
    """The rows of a query of the table `t`, times in UTC; none if it does not exist."""
    if (table := opened(uri)) is None:
        return []
    with _explained(uri):
        found: list[dict[str, Any]] = _rows(table, query).read_all().to_pylist()
    return found


def read(uri: str, version: int, run: str, condition: str) -> pa.RecordBatchReader:
    """The rows for which an SQL condition holds. Raises DeltaError or ArrowException, also while they are read.

    run: within it, the table at this version is opened once.
    """
    return _rows(_opened_at(uri, version, run), f"SELECT * FROM t WHERE {condition}")  # noqa: S608


@lru_cache(maxsize=8)
def _opened_at(uri: str, version: int, run: str) -> DeltaTable:
    # A user may put an older state of the table back, whose next versions have the same numbers.
    return DeltaTable(uri, version=version)


def set_property(uri: str, name: str, value: str) -> None:
    """Set a property of the table, which exists."""
    with _explained(uri):
        DeltaTable(uri).alter.set_table_properties({name: value}, raise_if_not_exists=False)


def created(uri: str) -> datetime:
    """When the table was created, in UTC. It exists."""
    with _explained(uri):
        return datetime.fromtimestamp(DeltaTable(uri).metadata().created_time / 1000, UTC)


def delete(uri: str, condition: str, version: int) -> int:
    """Delete the rows for which an SQL condition holds; returns the table's version then. Fails as `change` does."""
    with _explained(uri):
        table = DeltaTable(uri, version=version)
        table.delete(condition, commit_properties=_once())
    return int(table.version())


def vacuum(uri: str, age: timedelta, versions: Sequence[int] = ()) -> None:
    """Remove files that left the table longer ago than this, or never were in it, but none of these versions."""
    if (table := opened(uri)) is not None:
        with _explained(uri):
            table.vacuum(
                *(int(age / timedelta(hours=1)), False, False),
                commit_properties=_once(),
                keep_versions=list(versions),
                full=True,
            )


def restore(uri: str, state: State) -> State:
    """Put this state back, in a new version."""
    with _explained(uri):
        table = DeltaTable(uri)
        table.restore(state.version, commit_properties=_once(state.batch))
    return state._replace(version=int(table.version()))


def _once(batch: int | None = None) -> CommitProperties:
    """Fail if there is a newer version than the one that was opened. batch: see State."""
    writers = None if batch is None else [Transaction(ACTIVITY_WRITER, batch)]
    return CommitProperties(max_commit_retries=0, app_transactions=writers)


def _rows(table: DeltaTable, query: str) -> pa.RecordBatchReader:
    # Not to_pyarrow_table: it sometimes aborts the process at exit. And not the reader that `execute` returns, as it
    # raises plain Exception.
    return pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(query))


def _files(table: DeltaTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return found


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        # The rest is for users of delta-rs.
        why = one_line(str(error).partition("Help:")[0]).rstrip(". ")
        message = f"the table {uri} has no new version: {why}"
        raise PipelineError(f"{message}. If another run wrote it at the same time, run this one again") from error
    except (DeltaError, OSError, ValueError, OverflowError, pa.ArrowException) as error:
        raise PipelineError(f"the table {uri} can't be read or written: {one_line(str(error))}") from error


def leave_out_pandas() -> None:
    """Keep Arrow from importing pandas, which takes a third of a second in each worker, and which no task needs.

    Call it before the first array is created. Other imports of pandas are not affected.
    """

    class Finder:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "pandas":
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, finder := Finder())
    pa.array([])
    sys.meta_path.remove(finder)


class Part(NamedTuple):
    """A file that no table includes yet. rows: their number; aborted: of those of aborted transactions."""

    table: str
    file: AddAction
    rows: int
    aborted: int


class TableFile:
    """One file in the folder of a table, with one row or more. rows: that were added.

    waiting_bytes: of those in memory. Raises OSError.
    """

    def __init__(self, warehouse: str, table: Table) -> None:
        self._table, self._name = table, f"part-{uuid4()}.zstd.parquet"
        folder = PyFileSystem(DeltaStorageHandler(warehouse))
        self._sink = folder.open_output_stream(f"{table.name}/{self._name}")
        self._metadata: list[pq.FileMetaData] = []
        paths = _paths(table.schema)
        self._writer = pq.ParquetWriter(
            self._sink,
            table.schema,
            compression="zstd",
            use_dictionary=[path for path in paths if path not in NEARLY_UNIQUE],
            column_encoding={path: "DELTA_BINARY_PACKED" for path in paths if path in NEARLY_UNIQUE},
            # No reader of a table looks at those of the others.
            write_statistics=table.schema.names[: table.indexed],
            metadata_collector=self._metadata,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self.waiting_bytes = self._aborted = self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        self.waiting_bytes += rows.nbytes
        self.rows += len(rows)
        if "aborted" in rows.schema.names:
            self._aborted += rows.column("aborted").true_count
        if self._waiting_rows >= _ROW_GROUP or self.waiting_bytes >= _BUFFER_BYTES:
            self.write()

    def finished(self) -> Part:
        self.write()
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        stats = _stats(self._table.schema.names[: self._table.indexed], *self._metadata)
        file = AddAction(self._name, size, {}, int(time.time() * 1000), True, stats)
        return Part(self._table.name, file, self.rows, self._aborted)

    def write(self) -> None:
        """Write the rows that wait, as a row group."""
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0


@cache
def _paths(schema: pa.Schema) -> tuple[str, ...]:
    """The paths of the columns in Parquet: several if a column is nested."""
    file = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), file)
    columns = pq.read_metadata(pa.BufferReader(file.getvalue())).schema
    return tuple(columns.column(index).path for index in range(len(columns)))


def _stats(names: Sequence[str], metadata: pq.FileMetaData) -> str:
    """Statistics of these first columns, in the JSON of Delta's protocol; readers skip files by them.

    Times are in milliseconds, the precision of a record's time.
    """
    least, most, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for index, name in enumerate(names):
        groups = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        nulls[name] = sum(group.null_count for group in groups)
        known = [group for group in groups if group.num_values]
        # With nothing but nulls, too long texts or a time beyond Python's range, it gets no minimum and maximum.
        if not known or not all(group.has_min_max for group in known):
            continue
        with suppress(ValueError, OverflowError):
            least[name], most[name] = min(group.min for group in known), max(group.max for group in known)
    stats = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(stats, default=partial(timestamp, timespec="milliseconds"))
