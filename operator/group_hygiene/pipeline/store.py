"""Delta tables without Spark, by delta-rs: what is small, and files that others wrote.

Spark takes several jobs and half a second for a table of some kilobytes. Both read and write the same tables. What an
object store wants to know is in the environment, as delta-rs names it: AWS_ACCESS_KEY_ID, AWS_REGION and so on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
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
        # Not to_pyarrow_table: it was seen to abort the process when that ends.
        answer = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t"))
    found: list[dict[str, Any]] = answer.to_pylist()
    return found


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
    """How many rows the table's files hold, those among them that were deleted since."""
    return sum(count or 0 for count in pa.table(table.get_add_actions(flatten=True)).column("num_records").to_pylist())


def files_between(table: DeltaTable, column: str, least: int, most: int) -> list[str]:
    """The files, by their paths in its folder, that may hold a row in which that column is one of these numbers."""
    found = []
    for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        # Of a file of which nothing is said, nobody knows.
        low, high = file.get(f"min.{column}"), file.get(f"max.{column}")
        if low is None or high is None or (low <= most and high >= least):
            found.append(unquote(file["path"]))
    return found


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
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise PipelineError(f"the table {uri} can't be read or written: {in_a_line(str(error))}") from error
