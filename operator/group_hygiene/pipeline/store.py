"""Delta tables without Spark, by delta-rs: small tables, and commits of files that Spark's workers wrote.

Spark takes several jobs and half a second for a table of some kilobytes. Both read and write the same tables. The
options of an object store come from the environment, by delta-rs' names: AWS_ACCESS_KEY_ID, AWS_REGION and so on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from group_hygiene.errors import PipelineError
from group_hygiene.spec.secret import one_line

# Our commits have it in Delta's history, as `userMetadata`.
MARK = "group-hygiene"


class File(NamedTuple):
    """A Parquet file in a table's folder. size: in bytes. stats: of its columns, in the JSON of Delta's log."""

    path: str
    size: int
    stats: str


class Held(NamedTuple):
    """A file of a table. rows: their number, 1 = not known. least, most: of one of its columns; None = not known."""

    path: str
    rows: int
    least: Any
    most: Any

    def may_have(self, least: int, most: int) -> bool:
        """Whether it may have a row in which the column is from `least` to `most`."""
        return self.least is None or self.most is None or (self.least <= most and self.most >= least)


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


def add_columns(uri: str, schema: pa.Schema) -> int:
    """Add the columns that the table lacks, in one version. Returns the table's version, -1 = it does not exist."""
    if (table := opened(uri)) is None:
        return -1
    existing = {field.name for field in table.schema().fields}
    if missing := [field for field in Schema.from_arrow(schema).fields if field.name not in existing]:
        with _explained(uri):
            table.alter.add_columns(missing, commit_properties=_marked())
    return int(table.version())


def settings(uri: str) -> dict[str, str]:
    """The table's properties; none if it does not exist."""
    table = opened(uri)
    return {} if table is None else dict(table.metadata().configuration)


def set_property(uri: str, name: str, value: str) -> None:
    """Set a property of the table, which exists."""
    with _explained(uri):
        DeltaTable(uri).alter.set_table_properties({name: value}, raise_if_not_exists=False)


def created(uri: str) -> datetime:
    """When the table was created, in UTC. It exists."""
    with _explained(uri):
        return datetime.fromtimestamp(DeltaTable(uri).metadata().created_time / 1000, UTC)


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
            commit_properties=_marked(retries=None if after is None else 0),
        )


def create(uri: str, schema: pa.Schema, properties: Mapping[str, str]) -> None:
    """Create the table without rows. One that exists is replaced by one with another id, in one version."""
    with _explained(uri):
        DeltaTable.create(
            *(uri, Schema.from_arrow(schema), "overwrite"),
            configuration=properties,
            commit_properties=_marked(),
            raise_if_key_not_exists=False,
        )


def change(
    uri: str,
    schema: pa.Schema,
    files: Iterable[File],
    removed: Iterable[str],
    properties: Mapping[str, str],
    version: int,
) -> int:
    """Add files to the table, and remove others, in the version after this one, which it returns; -1 creates the table.

    Fails if the table has a later version: another run wrote it.
    """
    now = int(time.time() * 1000)
    actions: list[Any] = [AddAction(file.path, file.size, {}, now, True, file.stats) for file in files]
    actions += [RemoveAction(path, True, now) for path in removed]
    columns = Schema.from_arrow(schema)
    with _explained(uri):
        if version < 0:
            _create(uri, columns, actions, properties)
        else:
            table = DeltaTable(uri, version=version)
            table.create_write_transaction(actions, "append", columns, commit_properties=_marked(retries=0))
    return version + 1


def _create(uri: str, columns: Schema, actions: list[Any], properties: Mapping[str, str]) -> None:
    try:
        create_table_with_add_actions(uri, columns, actions, configuration=properties, commit_properties=_marked())
    except DeltaError as error:
        # That another run created it has no error of its own.
        if opened(uri) is None:
            raise
        raise CommitFailedError("it exists by now") from error


def delete(uri: str, condition: str, version: int) -> int:
    """Delete the rows for which an SQL condition holds; returns the table's version then. Fails as `change` does."""
    with _explained(uri):
        table = DeltaTable(uri, version=version)
        table.delete(condition, commit_properties=_marked(retries=0))
    return int(table.version())


def vacuum(uri: str, age: timedelta, versions: Sequence[int]) -> None:
    """Remove files that left the table longer ago than this, or never were in it, but none of these versions."""
    if (table := opened(uri)) is not None:
        with _explained(uri):
            table.vacuum(
                *(int(age / timedelta(hours=1)), False, False),
                commit_properties=_marked(retries=0),
                keep_versions=list(versions),
                full=True,
            )


def history(uri: str, count: int) -> list[dict[str, Any]]:
    """The table's last commits, newest first, as far as they are still known."""
    with _explained(uri):
        found: list[dict[str, Any]] = DeltaTable(uri).history(count)
    return found


def size(uri: str) -> int:
    """The size of the table's files in bytes; 0 if it does not exist."""
    return 0 if (table := opened(uri)) is None else sum(file["size_bytes"] for file in _files(table))


def files(uri: str, version: int, column: str) -> list[Held]:
    """The table's files at this version, with what Delta's log says of the column; none for -1."""
    if version < 0:
        return []
    with _explained(uri):
        return [
            Held(unquote(file["path"]), file["num_records"] or 1, file.get(f"min.{column}"), file.get(f"max.{column}"))
            for file in _files(DeltaTable(uri, version=version))
        ]


def _rows(table: DeltaTable, query: str) -> pa.RecordBatchReader:
    # Not to_pyarrow_table: it sometimes aborts the process at exit. And not the reader that `execute` returns, as it
    # raises plain Exception.
    return pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(query))


def _files(table: DeltaTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return found


def _marked(retries: int | None = None) -> CommitProperties:
    """With our mark. retries: 0 = fail if there is a newer version than the one that was opened."""
    return CommitProperties({"userMetadata": MARK}, max_commit_retries=retries)


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
