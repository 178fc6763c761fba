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
        found: list[dict[str, Any]] = _read(table, "*").read_all().to_pylist()
    return found


def change(
    uri: str, version: int, keys: pa.Table, changed: Callable[[pa.Table], pa.Table], schema: pa.Schema, mark: str
) -> None:
    """The rows that a key names are replaced by what `changed` makes of them; it may add rows of keys that have none.

    keys: one column of the table, each value once; there is a row at most for each. All of the table is read, as it is
    at that version, and those of its files are written anew that hold such a row: refused where anybody made a later
    version. mark: what the table's history says of it, where Spark's Delta has `userMetadata`.
    """
    (key,) = keys.column_names
    found: list[pa.RecordBatch] = []
    with _explained(uri):
        table = DeltaTable(uri, version=version)
        for batch in _read(table, "*"):
            known = batch.cast(schema)
            found.append(known.filter(pc.is_in(known.column(key), value_set=keys.column(key))))
    made = changed(pa.Table.from_batches(found, schema))
    # Java's Arrow leaves out the one offset that an array without values has, and Rust's reads it all the same.
    made = made.take(pa.array(range(made.num_rows), pa.int64()))
    same, history = f't."{key}" = s."{key}"', CommitProperties({"userMetadata": mark})
    with _explained(uri):
        merging = table.merge(made, same, "s", "t", commit_properties=history)
        merging.when_matched_update_all().when_not_matched_insert_all().execute()


def add_columns(uri: str, schema: pa.Schema, mark: str) -> None:
    """Those of the schema that the table lacks, in one version of it; none, where there is no table. mark: as above."""
    if (table := opened(uri)) is not None:
        with _explained(uri):
            _add_columns(table, schema, CommitProperties({"userMetadata": mark}))


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
            schema_mode="merge",
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
            _add_columns(table, schema, CommitProperties())
            table.create_write_transaction(actions, "append", columns, commit_properties=commit)


def size(uri: str) -> int:
    """How many bytes the table's files hold; 0 where there is none."""
    if (table := opened(uri)) is None:
        return 0
    return sum(pa.table(table.get_add_actions(flatten=True)).column("size_bytes").to_pylist())


def total(uri: str, column: str) -> int:
    """The sum of a column of whole numbers; 0 where there is no table."""
    if (table := opened(uri)) is None:
        return 0
    with _explained(uri):
        return _read(table, f'sum("{column}") AS total').read_all().column("total")[0].as_py() or 0


def files_between(table: DeltaTable, column: str, least: int, most: int) -> list[str]:
    """The files, by their paths in its folder, that may hold a row in which that column is one of these numbers."""
    found = []
    for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        # Of a file of which nothing is said, nobody knows.
        low, high = file.get(f"min.{column}"), file.get(f"max.{column}")
        if low is None or high is None or (low <= most and high >= least):
            found.append(unquote(file["path"]))
    return found


def _read(table: DeltaTable, what: str) -> pa.RecordBatchReader:
    # Not to_pyarrow_table: it was seen to abort the process when that ends. Nor by the reader that is answered with:
    # what it raises is no error of a kind.
    query = f"SELECT {what} FROM t"  # noqa: S608
    return pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(query))


def _add_columns(table: DeltaTable, schema: pa.Schema, commit: CommitProperties) -> None:
    held = {field.name for field in table.schema().fields}
    if missing := [field for field in Schema.from_arrow(schema).fields if field.name not in held]:
        table.alter.add_columns(missing, commit_properties=commit)


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
        # What follows helps who calls delta-rs.
        why = in_a_line(str(error).partition("Help:")[0]).rstrip(". ")
        told = f"the table {uri} got no new version: {why}"
        raise PipelineError(f"{told}. Where another run wrote it meanwhile, run this one again") from error
    except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
        raise PipelineError(f"the table {uri} can't be read or written: {in_a_line(str(error))}") from error
