"""Delta tables without Spark, by delta-rs: what is small, and files that others wrote.

Spark takes several jobs and half a second for a table of some kilobytes. Both read and write the same tables. What an
object store wants to know is in the environment, as delta-rs names it: AWS_ACCESS_KEY_ID, AWS_REGION and so on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from arro3.core import RecordBatchReader
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from group_hygiene.errors import PipelineError
from group_hygiene.secret import in_a_line


class Once(NamedTuple):
    """A writer's name, and a number of its own that rises: what was written by that number is not written again."""

    writer: str
    number: int


class File(NamedTuple):
    """A Parquet file in a table's folder. size: in bytes. stats: of its columns, as Delta's log has them."""

    path: str
    size: int
    stats: str


def opened(uri: str) -> DeltaTable | None:
    """None = there is no table. Raises PipelineError where that can't be told; so do all the others here."""
    with _explained(uri):
        try:
            return DeltaTable(uri)
        except TableNotFoundError:
            return None


def rows(uri: str) -> list[dict[str, Any]]:
    """All of a small table, times in UTC; none where it isn't there."""
    if (table := opened(uri)) is None:
        return []
    with _explained(uri):
        found: list[dict[str, Any]] = pa.table(_read(table)).to_pylist()
    return found


def change(
    uri: str, column: str, values: pa.Array, changed: Callable[[pa.Table], pa.Table], schema: pa.Schema, mark: str
) -> None:
    """Rows that have one of these values in a column are replaced by what `changed` makes of them; it may add some.

    The table is there, and of that schema. Refused where anybody else changes it meanwhile. All of it is read, and
    those of its files are written anew that hold such a row. mark: what the table's history says of it, where Spark's
    Delta has `userMetadata`.
    """
    with _explained(uri):
        table = DeltaTable(uri)
        found: list[pa.RecordBatch] = []
        for batch in _read(table):
            rows = pa.record_batch(batch).cast(schema)
            found.append(rows.filter(pc.is_in(rows.column(column), value_set=values)))
    rows = changed(pa.Table.from_batches(found, schema))
    # Java's Arrow leaves out the one offset that an array without values has, and Rust's reads it all the same.
    rows = rows.take(pa.array(range(rows.num_rows), pa.int64()))
    same, history = f't."{column}" = s."{column}"', CommitProperties({"userMetadata": mark})
    with _explained(uri):
        merging = table.merge(rows, same, "s", "t", commit_properties=history)
        merging.when_matched_update_all().when_not_matched_insert_all().execute()


def setting(uri: str, name: str) -> str | None:
    """The value of one of the table's properties; None = it has none of this name, or is not there."""
    table = opened(uri)
    return None if table is None else table.metadata().configuration.get(name)


def replace(uri: str, data: pa.Table, properties: Mapping[str, str], once: Once | None = None) -> None:
    """These rows instead of all that were there, in a table that is made with the properties when it isn't there."""
    table = opened(uri)
    with _explained(uri):
        if _was_done(table, once):
            return
        write_deltalake(
            uri if table is None else table,
            data,
            mode="overwrite",
            configuration=properties if table is None else None,
            commit_properties=_commit(once),
        )


def add(uri: str, schema: pa.Schema, files: Iterable[File], properties: Mapping[str, str], once: Once) -> None:
    """These files to the table, in one version of it; the table is made with them, or with none."""
    table, now = opened(uri), int(time.time() * 1000)
    actions: list[Any] = [AddAction(file.path, file.size, {}, now, True, file.stats) for file in files]
    columns, commit = Schema.from_arrow(schema), _commit(once)
    with _explained(uri):
        if _was_done(table, once):
            return
        if table is None:
            create_table_with_add_actions(uri, columns, actions, configuration=properties, commit_properties=commit)
        else:
            table.create_write_transaction(actions, "append", columns, commit_properties=commit)


def size(table: DeltaTable) -> int:
    """How many bytes the table's files hold."""
    return sum(pa.table(table.get_add_actions(flatten=True)).column("size_bytes").to_pylist())


def files_between(table: DeltaTable, column: str, least: int, most: int) -> list[str]:
    """The files, by their paths in its folder, that may hold a row in which that column is one of these numbers."""
    found = []
    for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        # Of a file of which nothing is said, nobody knows.
        low, high = file.get(f"min.{column}"), file.get(f"max.{column}")
        if low is None or high is None or (low <= most and high >= least):
            found.append(unquote(file["path"]))
    return found


def _read(table: DeltaTable) -> RecordBatchReader:
    # Not to_pyarrow_table: it was seen to abort the process when that ends.
    return QueryBuilder().register("t", table).execute("SELECT * FROM t")


def _was_done(table: DeltaTable | None, once: Once | None) -> bool:
    if table is None or once is None:
        return False
    last = table.transaction_version(once.writer)
    return last is not None and last >= once.number


def _commit(once: Once | None) -> CommitProperties:
    return CommitProperties(app_transactions=None if once is None else [Transaction(once.writer, once.number)])


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        told = f"the table {uri} got no new version: {in_a_line(str(error))}"
        raise PipelineError(f"{told} Where another run wrote it meanwhile, run this one again") from error
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise PipelineError(f"the table {uri} can't be read or written: {in_a_line(str(error))}") from error
