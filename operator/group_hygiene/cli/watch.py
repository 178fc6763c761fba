"""`--watch`: reports again and again, and rows that changed, as `kubectl get --watch --output-watch-events` prints."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from group_hygiene.cli.output import Cell, Column, Report, Table, note, print_error, show, show_table
from group_hygiene.errors import HygieneError

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
