"""Delta tables without Spark, by delta-rs: small tables, and commits of files that Spark's workers wrote.

Spark takes several jobs and half a second for a table of some kilobytes. Both read and write the same tables. The
options of an object store come from the environment, by delta-rs' names: AWS_ACCESS_KEY_ID, AWS_REGION and so on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from group_hygiene.errors import PipelineError
from group_hygiene.spec.secret import one_line


class Once(NamedTuple):
    """Delta's application transaction: a writer's name and a rising number. No number is written twice."""

    writer: str
    number: int


class File(NamedTuple):
    """A Parquet file in a table's folder. size: in bytes. stats: of its columns, in the JSON of Delta's log."""

    path: str
    size: int
    stats: str


def opened(uri: str) -> DeltaTable | None:
    """None = there is no table. Like all functions here, raises PipelineError if the table can't be read or written."""
    with _explained(uri):
        try:
            return DeltaTable(uri)
        except TableNotFoundError:
            return None


def rows(uri: str) -> list[dict[str, Any]]:
    """All rows of a small table, times in UTC; none if it does not exist."""
    if (table := opened(uri)) is None:
        return []
    with _explained(uri):
        found: list[dict[str, Any]] = _read(table, "*").read_all().to_pylist()
    return found


def change(
    uri: str, version: int, keys: pa.Table, changed: Callable[[pa.Table], pa.Table], schema: pa.Schema, mark: str
) -> None:
    """Replace the rows with these keys by the result of `changed`, which may add rows for keys without one.

    keys: one column of the table, with unique values; each has at most one row. Reads the whole table at that version,
    and rewrites the files with such rows. Fails if the table has a later version. mark: `userMetadata` in the table's
    history, as Spark's Delta calls it.
    """
    (key,) = keys.column_names
    found: list[pa.RecordBatch] = []
    with _explained(uri):
        table = DeltaTable(uri, version=version)
        for batch in _read(table, "*"):
            known = batch.cast(schema)
            found.append(known.filter(pc.is_in(known.column(key), value_set=keys.column(key))))
    made = changed(pa.Table.from_batches(found, schema))
    # Java's Arrow omits the single offset of an empty array, which Rust's Arrow requires.
    made = made.take(pa.array(range(made.num_rows), pa.int64()))
    same, history = f't."{key}" = s."{key}"', CommitProperties({"userMetadata": mark})
    with _explained(uri):
        merging = table.merge(made, same, "s", "t", commit_properties=history)
        merging.when_matched_update_all().when_not_matched_insert_all().execute()


def add_columns(uri: str, schema: pa.Schema, mark: str) -> None:
    """Add the columns that the table lacks, in one version, if the table exists. mark: see `change`."""
    if (table := opened(uri)) is not None:
        with _explained(uri):
            _add_columns(table, schema, CommitProperties({"userMetadata": mark}))


def setting(uri: str, name: str) -> str | None:
    """The value of a table property; None = the property or the table does not exist."""
    table = opened(uri)
    return None if table is None else table.metadata().configuration.get(name)


def version(uri: str) -> int:
    """The table's version; -1 = it does not exist."""
    table = opened(uri)
    return -1 if table is None else int(table.version())


def replace(uri: str, data: pa.Table, properties: Mapping[str, str], after: int | None = None) -> None:
    """Overwrite the table with these rows; creates it with the properties if it does not exist.

    after: fails if the table has another version than this one (-1 = it does not exist); None = any.
    """
    table = opened(uri)
    with _explained(uri):
        if after is not None and after != (-1 if table is None else table.version()):
            raise CommitFailedError(f"it is not at version {after} any more")
        write_deltalake(
            uri if table is None else table,
            data,
            mode="overwrite",
            schema_mode="merge",
            configuration=properties if table is None else None,
            # Without retries, the commit fails if there is a newer version than the one that was opened.
            commit_properties=CommitProperties(max_commit_retries=None if after is None else 0),
        )


def add(uri: str, schema: pa.Schema, files: Iterable[File], properties: Mapping[str, str], once: Once) -> None:
    """Add these files to the table in one version; creates it if it does not exist, even without files.

    Fails if this number of the writer is in the table already: another run added other files.
    """
    table, now = opened(uri), int(time.time() * 1000)
    actions: list[Any] = [AddAction(file.path, file.size, {}, now, True, file.stats) for file in files]
    columns = Schema.from_arrow(schema)
    commit = CommitProperties(app_transactions=[Transaction(once.writer, once.number)])
    with _explained(uri):
        if table is None:
            create_table_with_add_actions(uri, columns, actions, configuration=properties, commit_properties=commit)
            return
        if (last := table.transaction_version(once.writer)) is not None and last >= once.number:
            raise CommitFailedError("it has this batch already")
        _add_columns(table, schema, CommitProperties())
        table.create_write_transaction(actions, "append", columns, commit_properties=commit)


def delete(uri: str, condition: str) -> None:
    """Delete the rows for which an SQL condition holds, if the table exists."""
    if (table := opened(uri)) is not None:
        with _explained(uri):
            table.delete(condition)


def size(uri: str) -> int:
    """The size of the table's files in bytes; 0 if it does not exist."""
    if (table := opened(uri)) is None:
        return 0
    return sum(pa.table(table.get_add_actions(flatten=True)).column("size_bytes").to_pylist())


def total(uri: str, column: str) -> int:
    """The sum of a column of whole numbers; 0 if the table does not exist."""
    if (table := opened(uri)) is None:
        return 0
    with _explained(uri):
        return _read(table, f'sum("{column}") AS total').read_all().column("total")[0].as_py() or 0


def files_between(table: DeltaTable, column: str, least: int, most: int) -> list[str]:
    """Paths (in the table's folder) of files that may have a row in which the column is from `least` to `most`."""
    found = []
    for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        # A file without statistics may have any row.
        low, high = file.get(f"min.{column}"), file.get(f"max.{column}")
        if low is None or high is None or (low <= most and high >= least):
            found.append(unquote(file["path"]))
    return found


def _read(table: DeltaTable, what: str) -> pa.RecordBatchReader:
    # Not to_pyarrow_table: it sometimes aborts the process at exit. And not the reader that `execute` returns, as it
    # raises plain Exception.
    query = f"SELECT {what} FROM t"  # noqa: S608
    return pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(query))


def _add_columns(table: DeltaTable, schema: pa.Schema, commit: CommitProperties) -> None:
    existing = {field.name for field in table.schema().fields}
    if missing := [field for field in Schema.from_arrow(schema).fields if field.name not in existing]:
        table.alter.add_columns(missing, commit_properties=commit)


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        # The rest is for users of delta-rs.
        why = one_line(str(error).partition("Help:")[0]).rstrip(". ")
        message = f"the table {uri} has no new version: {why}"
        raise PipelineError(f"{message}. If another run wrote it at the same time, run this one again") from error
    except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
        raise PipelineError(f"the table {uri} can't be read or written: {one_line(str(error))}") from error
