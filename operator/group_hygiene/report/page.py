"""Findings as one HTML file, which loads nothing, and shows all names as text (escaped).

Its layout is in `page.html.j2` and `page.css`; `page.js` sorts and filters the tables. Rows beyond the size that a
browser opens quickly are left out, and the page says so.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from group_hygiene.report import wording
from group_hygiene.report.charts import days_of_expiry, draw
from group_hygiene.report.findings import Age, Findings, Growth, Row
from group_hygiene.report.wording import IDLE, counted, number, printable
from group_hygiene.spec.catalogue import likely_program

# Of the 3 MB that a page may have; the rest of the page needs far less than these limits leave.
_ROWS_BYTES = 1_800_000
_STALE_BYTES = 150_000
_PATTERNS_BYTES = 40_000
_SUGGESTIONS_BYTES = 200_000
# Of a suggestion, without its texts.
_CARD_BYTES = 2_500
# Rows per step, and all rows without JavaScript: `page.js` has the same number.
_STEP = 50

Cell = str | int | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column:
    """at: index of the cell in a row. kind: its format and order, defined in the template and `page.js`."""

    title: str
    at: int
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of JSON types, with times as seconds since 1970. total: number of rows, including those left out."""

    name: str
    caption: str
    columns: Sequence[Column]
    sort: int
    descending: bool
    rows: Sequence[Sequence[Cell]]
    total: int


# A row of groups: name, pattern, type, state, age, then these, with the day that the filter `expires` goes by.
_LAST_COMMIT, _IDLE_SINCE, _EXPIRES, _TOPICS, _PARTITIONS, _BEHIND, _, _LAST_CLIENT, _OWNER = range(5, 14)
_GROUPS = (
    Column("Group", 0, "name"),
    Column("Idle for", _IDLE_SINCE, "since"),
    Column("Last commit", _LAST_COMMIT, "moment"),
    Column("Last client", _LAST_CLIENT, "client"),
    Column("State", 3),
    Column("Type", 2),
    Column("Expires in", _EXPIRES, "until"),
    Column("Topics", _TOPICS, "number"),
    Column("Partitions", _PARTITIONS, "number"),
    Column("Behind", _BEHIND, "number"),
)
# If groups have owners. The page has no room for one more column.
_OWNED = (
    _GROUPS[0],
    Column("Owner", _OWNER, "client"),
    *(column for column in _GROUPS[1:] if column.title not in ("Type", "Topics", "Partitions")),
)
_SOON = (
    Column("Group", 0, "name"),
    Column("Expires in", _EXPIRES, "until"),
    Column("Last commit", _LAST_COMMIT, "moment"),
    Column("State", 3),
    Column("Type", 2),
    Column("Topics", _TOPICS, "number"),
    Column("Partitions", _PARTITIONS, "number"),
)
_LAG = (
    Column("Group", 0, "name"),
    Column("Behind by at least", _BEHIND, "number"),
    Column("Idle for", _IDLE_SINCE, "since"),
    Column("Topics", _TOPICS, "number"),
    Column("Partitions", _PARTITIONS, "number"),
)
_OF_GROUPS = ("soon-table", "lag-table")
_STALE = (
    Column("Group", 0, "name"),
    Column("Topic", 1, "name"),
    Column("Last commit of the topic", 3, "since"),
    Column("Last commit of the group", 4, "since"),
    Column("Partitions", 2, "number"),
)


def render(findings: Findings) -> str:
    """The page, as the text of an HTML file in UTF-8. Deterministic."""
    rows = _fitting([_cells(row) for row in findings.rows], _ROWS_BYTES)
    behind = sorted(
        (cells for row, cells in zip(findings.rows, rows, strict=False) if _is_idle_with_lag(row, findings)),
        key=lambda row: -_number(row[_BEHIND]),
    )
    soon = sorted(
        (cells for row, cells in zip(findings.rows, rows, strict=False) if row.due is not None),
        key=lambda row: (_number(row[_EXPIRES]), str(row[0])),
    )
    stale = [
        (printable(s.group), printable(s.topic), s.partitions, _seconds(s.last_commit), _seconds(s.group_last_commit))
        for s in sorted(findings.stale, key=lambda s: s.last_commit)
    ]
    programs = {row.pattern: entry.program for row in findings.rows if (entry := likely_program(row.group))}
    every = [_pattern(found, findings, programs.get(found.pattern)) for found in findings.patterns]
    patterns = _fitting(every, _PATTERNS_BYTES)
    suggestions = _fitting(
        findings.suggestions,
        _SUGGESTIONS_BYTES,
        lambda s: _CARD_BYTES + len(escape(s.policy + s.why_not + 4 * s.pattern).encode()),
    )
    owners = sorted({row.owner for row in findings.rows if row.owner})
    columns = _OWNED if owners else _GROUPS
    tables = [
        Table("groups-table", "Groups, idle for longest first", columns, _IDLE_SINCE, True, rows, findings.groups),
        Table(
            "soon-table",
            "Groups that lose offsets within a week, the next to do so first",
            _SOON,
            _EXPIRES,
            False,
            soon,
            sum(findings.expiring.values()),
        ),
        Table(
            "lag-table",
            "Idle groups with records that wait for them, most records first",
            _LAG,
            _BEHIND,
            True,
            behind,
            sum(1 for row in findings.rows if _is_idle_with_lag(row, findings)),
        ),
        Table(
            "stale-table",
            "Topics that groups in use have left, longest ago first",
            _STALE,
            3,
            True,
            _fitting(stale, _STALE_BYTES),
            findings.stale_total,
        ),
    ]
    template = _template()
    style, script = _file("page.css"), _file("page.js")
    page = template.render(
        f=findings,
        charts={name: Markup(svg) for name, svg in draw(findings).items()},  # noqa: S704, as Vega escapes what it draws
        tables={table.name: table for table in tables},
        patterns=patterns,
        suggestions=suggestions,
        longest=max((findings.read_at - row.idle_since for row in findings.rows if row.idle_since), default=None),
        old=sum(c.groups for c in findings.counts if c.age in (Age.QUARTER, Age.OLDER)),
        never=sum(c.groups for c in findings.counts if c.age is Age.NEVER),
        new=sum(found["new"] for found in every),
        expiring=sum(findings.expiring.values()),
        options=_options(findings, patterns) | ({"owner": _same(owners)} if owners else {}),
        data=_data(findings, tables, patterns),
        step=_STEP,
        style=Markup(style),  # noqa: S704, a file of this package
        script=Markup(script),  # noqa: S704, as above
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'",
    )
    return page.lstrip()


def _cells(row: Row) -> tuple[Cell, ...]:
    return (
        printable(row.group),
        # Most names that are not generated are their own pattern.
        printable(row.pattern) if row.pattern != row.group else None,
        row.type,
        row.state,
        row.age,
        _seconds(row.last_commit),
        _seconds(row.idle_since),
        _seconds(row.expires),
        row.topics,
        row.partitions,
        row.behind,
        f"{row.due}" if row.due else None,
        row.last_client,
        row.owner,
    )


def _is_idle_with_lag(row: Row, findings: Findings) -> bool:
    return bool(row.behind) and row.idle_since is not None and findings.read_at - row.idle_since >= IDLE


def _pattern(found: Growth, findings: Findings, program: str | None) -> dict[str, Any]:
    since = findings.read_at.date() - IDLE
    new = sum(groups for day, groups in found.new.items() if day > since)
    name = printable(found.pattern)
    counts = {"seen": found.seen, "there": found.there, "idle": found.idle, "new": new}
    return {"name": name, "program": program, **counts}


def _options(findings: Findings, patterns: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """The options of the filters: filter -> (value, label)."""
    return {
        "state": _same(sorted({*(c.state for c in findings.counts), *(row.state for row in findings.rows)})),
        "type": _same(sorted({*(c.type for c in findings.counts), *(row.type for row in findings.rows)})),
        "age": _same(Age),
        "idle": [("yes", "7 days or more"), ("no", "less, or not idle")],
        "expires": [
            ("week", "within a week"),
            *((f"{day}", wording.weekday(day)) for day in days_of_expiry(findings)),
        ],
        "pattern": [(found["name"], wording.truncated(found["name"], 60)) for found in patterns],
    }


def _same(values: Iterable[str]) -> list[tuple[str, str]]:
    return [(str(value), str(value)) for value in values]


def _data(findings: Findings, tables: Sequence[Table], patterns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The data for `page.js`. Tables that show rows of the groups' table refer to these by index."""
    groups = next(table for table in tables if table.name == "groups-table")
    place = {id(row): n for n, row in enumerate(groups.rows)}
    return {
        "readAt": _seconds(findings.read_at),
        "groups": findings.groups,
        "counts": [(c.type, c.state, c.age, c.groups) for c in findings.counts],
        "patterns": {found["name"]: (found["there"], found["idle"]) for found in patterns},
        "expiring": {f"{day}": groups for day, groups in sorted(findings.expiring.items())},
        "tables": {
            table.name: {
                "columns": [(column.at, column.kind) for column in table.columns],
                "rows": [place[id(row)] for row in table.rows] if table.name in _OF_GROUPS else table.rows,
            }
            for table in tables
        },
    }


def _script_bytes(item: Any) -> int:
    """As JSON in a script element, where three characters are escaped by six bytes each."""
    text = json.dumps(item, ensure_ascii=False)
    return len(text.encode()) + 5 * sum(text.count(character) for character in "<>&'")


def _fitting(items: Sequence[T], limit: int, size: Callable[[T], int] = _script_bytes) -> list[T]:
    """The first items that fit into so many bytes."""
    fitting = []
    for item in items:
        limit -= size(item)
        if limit < 0:
            break
        fitting.append(item)
    return fitting


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())


def _number(cell: Cell) -> int:
    return cell if isinstance(cell, int) else 0


@cache
def _template() -> Template:
    environment = Environment(
        loader=FunctionLoader(_file), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    environment.filters |= {
        "number": number,
        "counted": counted,
        "duration": wording.duration,
        "period": wording.period,
        "moment": wording.moment,
        "name": printable,
        "link": lambda value, **filters: wording.link(**filters),
        "time": lambda seconds: datetime.fromtimestamp(seconds, UTC),
        "span": lambda seconds: wording.duration(timedelta(seconds=seconds)),
    }
    return environment.get_template("page.html.j2")


@cache
def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    """The source expression of a Content-Security-Policy that allows exactly this script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
