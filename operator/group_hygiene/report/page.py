"""Findings as one HTML file, which loads nothing, and shows all names as text (escaped).

Its layout is in `page.html.j2` and `page.css`; `page.js` opens, sorts and filters rows. Rows beyond the size that a
browser opens quickly are left out, and the page says so.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any, TypeVar
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from group_hygiene.report import wording
from group_hygiene.report.charts import curve, draw, strips, unit_name
from group_hygiene.report.comparison import Numbers
from group_hygiene.report.findings import Findings, GroupRow, Unit
from group_hygiene.report.wording import counted, number, printable

# Of the 3 MB that a page may have; the rest of the page needs far less than these limits leave.
_ROWS_BYTES = 1_300_000
_UNITS_BYTES = 500_000
_STALE_BYTES = 100_000
_SUGGESTIONS_BYTES = 600_000
# Of a suggestion with its charts, and of a unit, without their texts.
_CARD_BYTES, _UNIT_BYTES = 40_000, 2_000
_SPARK = timedelta(days=60)
# What a broker's heap needs for an offset, by `make bench-broker`: of groups with one offset, with all that is theirs.
_HEAP_BYTES = 2_400

Cell = str | int | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageColumn:
    """A column of groups. kind: its format and order, defined in `page.js`."""

    title: str
    kind: str
    cell: Callable[[GroupRow], Cell]


_COLUMNS = (
    PageColumn("Group", "name", lambda row: printable(row.group)),
    PageColumn("Behind", "number", lambda row: row.behind),
    PageColumn("Partitions", "number", lambda row: row.partitions),
    PageColumn("Idle for", "since", lambda row: _seconds(row.idle_since)),
    PageColumn("Expires in", "until", lambda row: _seconds(row.expires)),
    PageColumn("Last client", "client", lambda row: row.last_client),
    PageColumn("State, type", "text", lambda row: f"{row.state}, {row.type}"),
)


def render(findings: Findings, listing: str = "", before: Numbers | None = None) -> str:
    """The page, as the text of an HTML file in UTF-8. Deterministic.

    listing: the name of the file with all groups beside it; "" = there is none. before: numbers of an earlier report.
    """
    suggestions = _fitting(
        sorted(findings.suggestions, key=lambda s: not s.policy),
        _SUGGESTIONS_BYTES,
        lambda s: _CARD_BYTES + len(escape(s.policy + s.why_not + 4 * s.pattern + 4 * s.name).encode()),
    )
    policies = {suggestion.pattern: n for n, suggestion in enumerate(suggestions)}
    units = _fitting(
        [_unit(unit, findings, before, policies) for unit in findings.units],
        _UNITS_BYTES,
        lambda u: _UNIT_BYTES + 4 * _script_bytes([u["name"], u["unit"].owner, u["unit"].last_client]),
    )
    places = {unit.key: n for n, unit in enumerate(findings.units[: len(units)])}
    listed = [row for row in findings.rows if row.unit in places]
    rows = _fitting([[column.cell(row) for column in _COLUMNS] for row in listed], _ROWS_BYTES)
    for row, cells in zip(listed, rows, strict=False):
        units[places[row.unit]]["rows"].append(cells)
    template, style, script = _template(), _file("page.css"), _file("page.js")
    charts = draw(findings) | {f"curve-{n}": curve(one) for n, one in enumerate(suggestions)}
    charts |= {f"strips-{n}": strips(one) for n, one in enumerate(suggestions)}
    data = {
        "readAt": _seconds(findings.read_at),
        "columns": [(column.title, column.kind) for column in _COLUMNS],
        "units": [{name: unit[name] for name in ("sort", "text", "rows")} for unit in units],
    }
    page = template.render(
        f=findings,
        charts={name: Markup(svg) for name, svg in charts.items()},  # noqa: S704, as Vega escapes what it draws
        units=units,
        rows=len(rows),
        owned=sum(1 for share in findings.owners if share.name),
        suggestions=suggestions,
        ready=[one for one in suggestions if one.policy],
        stale=_fitting(
            *(findings.stale, _STALE_BYTES),
            lambda stale: 500 + len(escape(printable(stale.group) + printable(stale.topic)).encode()),
        ),
        expiring=sum(findings.expiring.values()),
        heap=findings.idle_offsets * _HEAP_BYTES / 1024**2,
        listing=quote(listing),
        before=before,
        data=data,
        style=Markup(style),  # noqa: S704, a file of this package
        script=Markup(script),  # noqa: S704, as above
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'",
    )
    return page.lstrip()


def _unit(unit: Unit, findings: Findings, before: Numbers | None, policies: Mapping[str, int]) -> dict[str, Any]:
    """What the template needs of a unit. sort: by what each column of units is sorted. text: what a search finds."""
    name = unit_name(unit)
    old = None if before is None else before.of(unit.key)
    policy = policies.get(unit.pattern)
    since = _seconds(unit.idle_since)
    return {
        "unit": unit,
        "name": name,
        "idle_since": since,
        "change": None if old is None else unit.idle - old.idle,
        "spark": _spark(unit, findings.read_at),
        "policy": policy,
        "sort": [
            name,
            unit.owner,
            unit.idle,
            unit.idle_offsets,
            since and -since,
            unit.came,
            -1 if policy is None else 1,
        ],
        "text": " ".join(filter(None, (unit.owner, unit.program, unit.last_client))),
        "rows": [],
    }


def _spark(unit: Unit, read_at: datetime) -> dict[str, Any]:
    """New ids by day as a path of 120 x 20, and in words."""
    first = read_at.date() - _SPARK + timedelta(days=1)
    new = {(day - first).days: many for day, many in unit.new.items() if day >= first}
    most = max(new.values(), default=0)
    path = "".join(f"M{2 * day + 1} 20v-{max(1, round(19 * many / most))}" for day, many in sorted(new.items()))
    return {
        "path": path,
        "words": f"{counted(sum(new.values()), 'new id')} in {_SPARK.days} days, at most {most:,} a day",
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
        "seconds": _seconds,
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
