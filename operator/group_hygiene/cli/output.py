"""The output of commands in each format of `-o`, and again and again (`--watch`); notes, errors and progress on stderr.

Independent of Kafka.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple, TextIO

import click

from group_hygiene.errors import HygieneError, UsageError
from group_hygiene.model import naming

_PROGRESS_AFTER_S = 1.0
_WIDTH_MAX = 150
_META = "group_hygiene."
_COLOURS = {
    "Stable": "green",
    "Empty": "yellow",
    "Dead": "red",
    "Match": "yellow",
    "Skip": "green",
}
_TABLES = {"table", "wide", "csv"}
# The first character of a line, by its result.
MARKS = {"Ok": "✓", "Warning": "!", "Failed": "✗"}
_MARK_COLOURS = {"✓": "green", "!": "yellow", "✗": "red"}


Cell = str | int | None
# An object of a report's JSON.
Document = Mapping[str, Any]


class Column(NamedTuple):
    """A column of a table, and the field of a document that it shows; "" = the title in lower case.

    cell: the value in place of the field's. wide: shown by `-o wide` only. number: aligned to the right. coloured: its
    values have colours.
    """

    title: str
    key: str = ""
    cell: Callable[[Document], Cell] | None = None
    wide: bool = False
    number: bool = False
    coloured: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Lines of text, then rows under the columns' titles; None is shown as `-`.

    watched: for each row, what `--watch` compares; none = its cells. unwatched: lines of the heading that it does not
    compare. Lags and ages change all the time, and say nothing new.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    heading: Sequence[str] = ()
    watched: Sequence[object] = ()
    unwatched: Collection[str] = ()

    @classmethod
    def of(cls, documents: Iterable[Document], columns: Sequence[Column], heading: Sequence[str] = ()) -> Table:
        """One row for each document."""
        return cls(
            columns,
            [[c.cell(each) if c.cell else each[c.key or c.title.lower()] for c in columns] for each in documents],
            heading,
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The output of a command in all formats.

    errors: failures; with any the exit code is 1. notes: additional information. in_rows: the errors of groups that the
    tables show in the groups' rows: with tables they are only counted.
    """

    document: Document
    names: Sequence[str]
    tables: Sequence[Table]
    notes: Sequence[str] = field(default_factory=tuple)
    errors: Sequence[str] = field(default_factory=tuple)
    exit_code: int = 0
    in_rows: Collection[str] = ()


def show(report: Report, output_format: str) -> int:
    """Print a report in one of the formats of `-o`; returns the exit code."""
    _print(report, output_format)
    sys.stdout.flush()
    for text in report.notes:
        note(text)
    shown = frozenset(report.in_rows) if output_format in _TABLES else frozenset[str]()
    for text in report.errors:
        if text not in shown:
            print_error(text)
    if shown:
        count = "1 group" if len(report.in_rows) == 1 else f"{len(report.in_rows):,} groups"
        print_error(f"{count} failed: see REASON and MESSAGE in the table")
    return 1 if report.errors else report.exit_code


def _print(report: Report, output_format: str) -> None:
    if output_format == "json":
        click.echo(json.dumps(report.document, indent=2))
    elif output_format == "yaml":
        import yaml

        click.echo(yaml.safe_dump(report.document, sort_keys=False), nl=False)
    elif output_format == "name":
        for name in report.names:
            click.echo(line_of(name, sys.stdout.encoding))
    else:
        for number, table in enumerate(report.tables):
            if number:
                click.echo()
            if output_format == "csv":
                _write_csv(table)
            else:
                show_table(table, output_format == "wide")


def line_of(text: str, encoding: str = "utf-8") -> str:
    """A group id as a line of `-o name`: as `id_line`. encoding: of the stream that the line is for.

    Kafka accepts any string as a group id, also the empty one and ids with line breaks.
    """
    fits = text.isascii() or codecs.lookup(encoding).name == "utf-8"
    return naming.id_line(text) if fits else json.dumps(text)


def text_of(line: str) -> str:
    """The text of a line by `line_of`. Raises UsageError for a line that begins with a quote and is no JSON string."""
    if not line.startswith('"'):
        return line
    try:
        text = json.loads(line)
    except ValueError:
        raise UsageError(f"{line} begins with a quote, but is no JSON string") from None
    # JSON that begins with a quote is a string.
    return str(text)


def note(text: str) -> None:
    """Print additional information, not an error; each text once in a command, as `--watch` finds it at each read."""
    context = click.get_current_context(silent=True)
    shown: set[str] = set() if context is None else context.meta.setdefault(f"{_META}notes", set())
    if text in shown:
        return
    shown.add(text)
    click.echo(f"Note: {printable(text)}", err=True)


def print_error(text: str) -> None:
    click.echo(f"Error: {printable(text)}", err=True)


def printable(text: str) -> str:
    """Like `naming.printable`; an empty text is shown as quotes."""
    return naming.printable(text) or '""'


def set_flag(context: click.Context, option: click.Parameter, value: bool) -> bool:
    """The callback of options of the output: -v, --no-headers."""
    context.meta[f"{_META}{option.name}"] = value
    return value


def is_verbose() -> bool:
    return _is_set("verbose")


def _is_set(name: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(f"{_META}{name}"))


@contextmanager
def working(on: str) -> Iterator[None]:
    """Show on the terminal what the command does, if it takes more than a second; then remove the line.

    With -v, show its beginning and its end.
    """
    if is_verbose():
        start = time.monotonic()
        click.echo(f"{printable(on)} ...", err=True)
        try:
            yield
        finally:
            click.echo(f"{printable(on)}: {time.monotonic() - start:.1f}s", err=True)
        return
    stream = sys.stderr
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    timer = threading.Timer(_PROGRESS_AFTER_S, _write_status, (stream, f"{on} ..."))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        _write_status(stream, "")


def _write_status(stream: TextIO, text: str) -> None:
    stream.write(f"\r\x1b[2K{text}")
    stream.flush()


def _coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _write_csv(table: Table) -> None:
    """All columns (RFC 4180); an empty field is no value. The heading is left out."""
    if not table.columns:
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if not _is_set("no_headers"):
        writer.writerow(column.title for column in table.columns)
    writer.writerows(map(_csv_cell, row) for row in table.rows)


def _csv_cell(cell: Cell) -> Cell:
    """A text that a spreadsheet would run as a formula begins with an apostrophe, as OWASP advises (CSV injection)."""
    if not isinstance(cell, str):
        return cell
    return f"'{printable(cell)}" if cell.startswith(naming.FORMULAS) else printable(cell)


def show_table(table: Table, wide: bool, titles: bool = True, beside: Sequence[Sequence[Cell]] = ()) -> None:
    """beside: rows that are shown at another time; the columns are as wide as for these."""
    for line in table.heading:
        mark = _MARK_COLOURS.get(line[:1]) if _coloured() else None
        text = printable(line)
        click.echo(text if mark is None else click.style(text[:1], fg=mark) + text[1:], color=mark is not None)
    chosen = [index for index, column in enumerate(table.columns) if wide or not column.wide]
    columns = [table.columns[index] for index in chosen]
    if not table.rows:
        return
    every = [["-" if row[i] is None else printable(str(row[i])) for i in chosen] for row in (*table.rows, *beside)]
    rows = every[: len(table.rows)]
    # A longer text only moves the rest of its own row: an id may have 32,767 characters.
    widths = [max(len(c.title), *(min(len(row[i]), _WIDTH_MAX) for row in every)) for i, c in enumerate(columns)]
    colours = _coloured()
    if titles and not _is_set("no_headers"):
        click.echo(_line([column.title for column in columns], columns, widths, colours=False))
    for row in rows:
        click.echo(_line(row, columns, widths, colours), color=colours)


def _line(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int], colours: bool) -> str:
    pieces = []
    for text, column, width in zip(row, columns, widths, strict=True):
        padded = text.rjust(width) if column.number else text.ljust(width)
        colour = _COLOURS.get(text) if colours and column.coloured else None
        pieces.append(click.style(padded, fg=colour) if colour else padded)
    return "  ".join(pieces).rstrip()


_EVENT = Column("EVENT")


def show_each(make: Callable[[], Report], output: str, every: timedelta | None) -> int:
    """Show one report, and with `every` the changes after each such time, until the user interrupts it.

    output: table or wide, with `every`. If a later report fails, the error is shown, and the next one is made.
    """
    if every is None:
        return show(make(), output)
    # A shell starts background processes with SIGINT ignored; a SIGINT that is sent explicitly must work.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    report, known, failed = make(), dict[str, Table](), set[str]()
    while True:
        for table in report.tables:
            # A policy's heading begins with its name; the rest changes.
            name = next(iter(table.heading), "")
            known[name] = _show_changes(known.get(name), table, output == "wide", complete=not report.errors)
        sys.stdout.flush()
        for text in report.notes:
            note(text)
        for text in report.errors:
            if text not in failed:
                print_error(text)
        failed = set(report.errors)
        time.sleep(every.total_seconds())
        try:
            report = make()
        except HygieneError as error:
            report = Report({}, (), (), errors=[str(error)])


def _show_changes(before: Table | None, after: Table, wide: bool, complete: bool) -> Table:
    """Show the heading and the rows that changed, with their events; returns the table that is known now.

    A row is known by its first cell. complete: False = rows that are missing may exist.
    """
    old, new = _watched(before) if before else {}, _watched(after)
    rows = [("MODIFIED" if row[0] in old else "ADDED", *row) for row in after.rows if old.get(row[0]) != new[row[0]]]
    gone = [row for row in before.rows if row[0] not in new] if before else []
    if complete:
        rows += [("DELETED", *row) for row in gone]
    if before is None or rows or _heading(before) != _heading(after):
        columns = (_EVENT, *after.columns) if after.columns else ()
        beside = [("MODIFIED", *row) for row in after.rows]
        show_table(replace(after, columns=columns, rows=rows), wide, titles=not old, beside=beside)
    if complete or not before:
        return after
    watched = [*new.values(), *(old[row[0]] for row in gone)]
    return replace(after, rows=[*after.rows, *gone], watched=watched)


def _watched(table: Table) -> dict[Cell, object]:
    return {row[0]: each for row, each in zip(table.rows, table.watched or table.rows, strict=True)}


def _heading(table: Table) -> list[str]:
    return [line for line in table.heading if line not in table.unwatched]
