"""Findings as one HTML file with charts, which loads nothing, and shows all names as text (escaped).

The layout is in `page.html.j2` and `page.css`; `page.js` opens, sorts and filters rows. Rows beyond the size that a
browser opens quickly are left out, and the page says so. Charts are SVG texts with colours from the page's CSS, whose
bars may link to the unit behind them. They are drawn 336 px wide, so that they are legible on a phone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from importlib import resources
from typing import Any, TypeVar
from unicodedata import east_asian_width
from urllib.parse import quote
from xml.etree import ElementTree

import altair as alt
import vl_convert
from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from group_hygiene.observe.findings import (
    Findings,
    GroupRow,
    Numbers,
    Share,
    Suggestion,
    Unit,
    counted,
    duration,
    moment,
    number,
    period,
    printable,
    weekday,
)

_WIDTH = 336
_BARS = 10
# Only the browser knows the width of letters, so labels and cuts assume a wide font. Vega can cut names itself, but may
# do so inside a character beyond U+FFFF, and then it draws nothing.
_CHARACTER_WIDTH = 7.2
_LONGEST = 40.0
_IDLE, _OTHERS = "Idle 7 d or more", "Not idle"
_BY_USE = {_IDLE: "var(--accent)", _OTHERS: "var(--live)"}
_DELETED, _REGRET = "Deleted", "Used again later"
_BY_END = {_DELETED: "var(--accent)", _REGRET: "var(--bad)"}
_FONT = "system-ui, sans-serif"
# A mark that is filled: a shape that is only a line would have no colour.
_BAR = "M-0.3,-1H0.3V1H-0.3Z"
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "{http://www.w3.org/1999/xlink}href"
# Of the 3 MB that a page may have; the rest of the page needs far less than these limits leave.
_ROWS_BYTES = 1_300_000
_UNITS_BYTES = 500_000
_STALE_BYTES = 100_000
_SUGGESTIONS_BYTES = 600_000
# Of a suggestion with its charts, and of a unit, without their texts.
_CARD_BYTES, _UNIT_BYTES = 40_000, 2_000
_SPARK = timedelta(days=60)
# Of the owners of a pattern, or of all groups; the others are shown as one.
_NAMED = 3
# In commands, for what is unknown.
_WAREHOUSE, _SERVER = "YOUR-WAREHOUSE", "YOUR-KAFKA:9092"
# What a broker's heap needs for an offset, by `make bench-broker`: of groups with one offset, with all that is theirs.
_HEAP_BYTES = 2_400
Cell = str | int | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bar:
    """One part of a row's bar. description: shown with the count. href: the target of a click."""

    row: str
    part: str
    count: int
    description: str
    href: str | None = None


def draw(findings: Findings) -> dict[str, str]:
    """SVG texts by name: `days`, `owners`, `units`, `topics`, `committers`, `expiring`; "" = nothing to draw."""
    units = sorted(enumerate(findings.units), key=lambda one: -one[1].idle_offsets)[:_BARS]
    of_units = [
        (Share(unit_name(unit, with_owner=True), unit.idle_offsets, unit.offsets), f"#unit-{n}")
        for n, unit in units
        if unit.idle_offsets
    ]
    return {
        "days": by_day(findings),
        "owners": _shares([(share, None) for share in findings.owners[:_BARS]], "group", "Groups by owner"),
        "units": _shares(of_units, "offset", "Offsets by name pattern"),
        "topics": _shares([(share, None) for share in findings.topics if share.idle], "offset", "Offsets by topic"),
        "committers": _bars(
            [Bar(printable(name), "", count, printable(name)) for name, count in findings.committers],
            {"": "var(--live)"},
            "commit",
            "Groups with the most commits in 7 days",
            above=True,
        ),
        "expiring": expiring(findings),
    }


def unit_name(unit: Unit, with_owner: bool = False) -> str:
    """The pattern; of groups without one, what they are."""
    single = f"Single names of {unit.program}" if unit.program else "Single names"
    name = printable(unit.pattern) if unit.pattern else single
    return f"{name} ({unit.owner})" if with_owner and unit.owner else name


def by_day(findings: Findings) -> str:
    """Existing and idle groups by day, since the history began; "" if that is one day."""
    days = [day for day in findings.days if findings.began is None or day.day >= findings.began.date()]
    if len(days) < 2:
        return ""
    names = {"Existing groups": "var(--live)", _IDLE: "var(--accent)"}
    points = [
        {"x": _millis(day.day), "y": count, "part": part}
        for day in days
        for part, count in zip(names, (day.groups, day.idle), strict=True)
    ]
    ticks = [_millis(day.day) for day in (days[0], days[len(days) // 2], days[-1])]
    x = (
        alt.X("x:Q")
        .scale(type="utc", domain=[ticks[0], ticks[-1]])
        .axis(values=ticks, labelExpr="utcFormat(datum.value, '%-d %b %Y')", labelFlush=True, grid=False, title=None)
    )
    return _svg(_lines(points, x, names).properties(height=220), "Existing and idle groups by day")


def curve(suggestion: Suggestion) -> str:
    """Deletions and regrets against idleFor, with a line at the one that is suggested; "" if only one was tried."""
    if len(suggestion.tried) < 2:
        return ""
    waits = [period(wait) for wait, _, _ in suggestion.tried]
    points = [
        {
            "x": wait,
            "y": count,
            "part": part,
            "description": f"idleFor {wait}, {part.lower()}: {counted(count, 'group')}",
        }
        for wait, (_, *counts) in zip(waits, suggestion.tried, strict=True)
        for part, count in zip(_BY_END, counts, strict=True)
    ]
    x = alt.X("x:O", sort=waits).axis(
        labelAngle=0, grid=False, title=None, ticks=False, labelOverlap=False, labelPadding=8
    )
    chart = _lines(points, x, _BY_END)
    if suggestion.idle_for:
        chosen = alt.InlineData(values=[{"x": period(suggestion.idle_for)}])
        rule = alt.Chart(chosen).mark_rule(color="var(--ink)", strokeDash=[2, 3], aria=False).encode(x=x)
        chart = alt.layer(rule, chart)
    return _svg(chart.properties(height=150), f"Deletions and regrets of {printable(suggestion.pattern)} by idleFor")


def strips(suggestion: Suggestion) -> str:
    """The days on which some regretted groups committed, with the deletion and the next use; "" if there are none."""
    marks = {"Commits": "var(--live)", _DELETED: "var(--accent)", _REGRET: "var(--bad)"}
    points = []
    for life in suggestion.lives:
        name = printable(life.group)
        ends = [("Commits", datetime.combine(day, time(12), UTC)) for day in life.used]
        ends += [(_DELETED, life.deleted_at), (_REGRET, life.back_at)]
        points += [
            {
                "row": name,
                "name": _cut(name),
                "x": int(at.timestamp() * 1000),
                "part": part,
                "description": f"{name}: {part.lower()}, {weekday(at.date())}",
            }
            for part, at in ends
        ]
    if not points:
        return ""
    data = alt.InlineData(values=points)
    x = (
        alt.X("x:T")
        .scale(type="utc")
        .axis(labelExpr="utcFormat(datum.value, '%-d %b')", grid=False, title=None, tickCount=4, labelFlush=True)
    )
    # Half a row above the first one, and below the last one.
    y = alt.Y("row:N", axis=None, scale=alt.Scale(padding=0.5))
    shape = alt.Shape("part:N", legend=None).scale(domain=list(marks), range=[_BAR, "cross", "circle"])
    layers = [
        alt.Chart(data)
        .mark_point(size=70, filled=True, opacity=1, yOffset=8)
        .encode(x=x, y=y, color=_colour(marks), shape=shape, description="description:N"),
        alt.Chart(data)
        .transform_aggregate(groupby=["row", "name"])
        .mark_text(align="left", baseline="middle", yOffset=-9, color="var(--ink)")
        .encode(x=alt.value(0), y=y, text="name:N", description="row:N"),
    ]
    return _svg(alt.layer(*layers).properties(height=44 * len(suggestion.lives) + 50), "Groups that were used again")


def expiring(findings: Findings) -> str:
    """Groups that lose their first offsets within a week, by day, including days without any."""
    days = [findings.read_at.date() + timedelta(days=n) for n in range(8)]
    bars = [Bar(weekday(day), "", findings.expiring.get(day, 0), f"{weekday(day)}: expiring") for day in days]
    return _bars(bars, {"": "var(--accent)"}, "group", "Groups whose first offsets expire within a week, by day")


def _shares(shares: Iterable[tuple[Share, str | None]], noun: str, title: str) -> str:
    bars = []
    for share, href in shares:
        name = printable(share.name) if share.name else "No owner"
        bars += [
            Bar(name, _IDLE, share.idle, f"{name}: idle", href),
            Bar(name, _OTHERS, share.all - share.idle, f"{name}: not idle", href),
        ]
    return _bars(bars, _BY_USE, noun, f"{title}: idle, and not", above=True)


def _lines(points: Sequence[Mapping[str, Any]], x: alt.X, colours: Mapping[str, str]) -> Any:
    """One line for each part, with its points if they have descriptions."""
    y = alt.Y("y:Q").axis(tickCount=4, labelExpr="format(datum.value, '~s')", title=None, domain=False, ticks=False)
    base = alt.Chart(alt.InlineData(values=list(points))).encode(x=x, y=y, color=_colour(colours))
    line = base.mark_line(strokeWidth=2, aria=False)
    dots = base.mark_point(filled=True, size=36, opacity=1).encode(description="description:N")
    return alt.layer(line, *([dots] if "description" in points[0] else []))


def _colour(colours: Mapping[str, str], legend: bool = True) -> alt.Color:
    shown = alt.Legend(orient="bottom", title=None, symbolType="square", columnPadding=14, offset=8)
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color("part:N", scale=scale, legend=shown if legend else None)


def _millis(day: date) -> int:
    return int(datetime.combine(day, time(), UTC).timestamp() * 1000)


def _bars(bars: Sequence[Bar], colours: Mapping[str, str], noun: str, title: str, above: bool = False) -> str:
    """Rows of bars, each divided into parts, with its total at its end. above: the row's name is above its bar."""
    totals: dict[str, int] = {}
    for bar in bars:
        totals[bar.row] = totals.get(bar.row, 0) + bar.count
    if not any(totals.values()):
        return ""
    order = {part: n for n, part in enumerate(colours)}
    pieces = [
        asdict(bar) | {"order": order[bar.part], "description": f"{bar.description}: {counted(bar.count, noun)}"}
        for bar in bars
        if bar.count
    ]
    ends = [{"row": row, "name": _cut(row), "count": total, "text": number(total)} for row, total in totals.items()]
    room = 10 + _CHARACTER_WIDTH * max(map(len, totals))
    axis = alt.Axis(title=None, domain=False, ticks=False, labelPadding=8, labelLimit=0, minExtent=room)
    y = alt.Y("row:N", sort=list(totals), axis=None if above else axis, scale=alt.Scale(padding=0))
    # Leaves space for the number behind the longest bar.
    x = alt.X("count:Q", axis=None, scale=alt.Scale(domain=[0, max(totals.values()) * (1.25 if above else 1.35)]))
    down = 8 if above else 0
    layers: list[Any] = [
        alt.Chart(alt.InlineData(values=pieces))
        .mark_bar(height=14, yOffset=down, stroke="var(--surface)", strokeWidth=1)
        .encode(
            x=x,
            y=y,
            color=_colour(colours, len(colours) > 1),
            order="order:Q",
            href="href:N",
            description="description:N",
        ),
        alt.Chart(alt.InlineData(values=ends))
        .mark_text(align="left", baseline="middle", dx=5, yOffset=down, color="var(--muted)", aria=False)
        .encode(x=x, y=y, text="text:N"),
    ]
    if above:
        names = alt.Chart(alt.InlineData(values=ends)).mark_text(
            align="left", baseline="middle", yOffset=-9, color="var(--ink)"
        )
        layers.append(names.encode(x=alt.value(0), y=y, text="name:N", description="row:N"))
    height = len(totals) * (42 if above else 24) + (26 if len(colours) > 1 else 0) + 8
    return _svg(alt.layer(*layers).properties(height=height), title)


def _cut(name: str) -> str:
    """The name, truncated to a chart's width."""
    room = _LONGEST
    for place, character in enumerate(name):
        room -= 2 if east_asian_width(character) in "WF" else 1.7 if character.isupper() or character in "mw@%" else 1
        if room < 0:
            return name[: place - 1] + "…"
    return name


def _svg(chart: Any, title: str) -> str:
    text = {"labelColor": "var(--ink)", "labelFont": _FONT, "labelFontSize": 12}
    chart = (
        chart.properties(width=_WIDTH, autosize=alt.AutoSizeParams(type="fit", contains="padding"))
        .configure(background="transparent", font=_FONT, padding=2)
        .configure_view(stroke=None)
        .configure_text(fontSize=12)
        .configure_axis(**text, gridColor="var(--line)", domainColor="var(--line)", tickColor="var(--line)")
        .configure_legend(**text)
    )
    return _embeddable(vl_convert.vegalite_to_svg(chart.to_dict()), title)


def _embeddable(svg: str, title: str) -> str:
    """The chart as part of a page: of flexible width, with links inside the page, each with one accessible name.

    Vega makes links absolute with its own base, and gives ARIA roles to all elements, most of them without a name.
    """
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(svg)  # noqa: S314, as Vega has just written it
    for element in list(root.iter()):
        text = element.attrib.pop("aria-label", None)
        for name in ("role", "aria-roledescription", "class"):
            element.attrib.pop(name, None)
        if text and element.tag in (f"{{{_SVG}}}path", f"{{{_SVG}}}text"):
            ElementTree.SubElement(element, f"{{{_SVG}}}title").text = text
        target = element.attrib.pop(_XLINK, None)
        if target is not None:
            if "#" in target:
                element.set("href", "#" + target.partition("#")[2])
                element.set("aria-label", element[0].get("aria-label", ""))
            else:
                # A mark without a link.
                element.tag = f"{{{_SVG}}}g"
    for name in ("width", "height", "version"):
        root.attrib.pop(name)
    root.set("role", "group")
    root.set("aria-label", title)
    return ElementTree.tostring(root, encoding="unicode")


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


def render(
    findings: Findings,
    listing: str = "",
    before: Numbers | None = None,
    warehouse: str = "",
    servers: Sequence[str] = (),
) -> str:
    """The page, as the text of an HTML file in UTF-8. Deterministic.

    listing: the name of the file with all groups beside it; "" = there is none. before: numbers of an earlier report.
    warehouse: URI of the tables. servers: the cluster's bootstrap servers. Commands have placeholders for unknown ones.
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
        idle_owners=_first((share.name, share.idle) for share in findings.owners if share.idle),
        owners_of=_owners(findings.units),
        suggestions=suggestions,
        ready=[one for one in suggestions if one.policy],
        commands={one.name: _command(one.name, warehouse, servers) for one in suggestions},
        placeholders=[name for name, given in ((_WAREHOUSE, warehouse), (_SERVER, servers)) if not given],
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


def _first(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """The first of these counts by name, and the sum of all others, unless that is only one."""
    every = list(counts)
    if len(every) <= _NAMED + 1:
        return every
    others = every[_NAMED:]
    return [*every[:_NAMED], (f"others ({len(others)})", sum(count for _, count in others))]


def _owners(units: Sequence[Unit]) -> dict[str, list[tuple[str, int]]]:
    """By pattern, how many groups each owner has, most groups first."""
    counts: dict[str, Counter[str]] = {}
    for unit in units:
        counts.setdefault(unit.pattern, Counter())[unit.owner] += unit.groups
    return {pattern: _first(count.most_common()) for pattern, count in counts.items()}


def _command(policy: str, warehouse: str, servers: Sequence[str]) -> str:
    """Shows the effect of the policy. An idleFor needs the tables: without them no group is judged."""
    tables = shlex.quote(warehouse) if warehouse else _WAREHOUSE
    brokers = shlex.quote(",".join(servers)) if servers else _SERVER
    return f"group-hygiene plan -f {policy}.yaml --activity {tables} --bootstrap-server {brokers}"


def _unit(unit: Unit, findings: Findings, before: Numbers | None, policies: Mapping[str, int]) -> dict[str, Any]:
    """What the template needs of a unit. sort: by what each column of units is sorted. text: what a search finds.

    why: the reason why there is no policy for its pattern; "" = there is one.
    """
    name = unit_name(unit)
    old = None if before is None else before.of(unit.key)
    policy = policies.get(unit.pattern)
    since = _seconds(unit.idle_since)
    tried = next((one for one in findings.suggestions if one.pattern == unit.pattern), None)
    why = findings.untried.get(unit.pattern, "not tried") if tried is None else tried.why_not
    return {
        "unit": unit,
        "name": name,
        "idle_since": since,
        "change": None if old is None else unit.idle - old.idle,
        "spark": _spark(unit, findings.read_at),
        "policy": policy,
        "why": "not on this page" if tried and policy is None else why,
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
        "duration": duration,
        "period": period,
        "moment": moment,
        "name": printable,
        "seconds": _seconds,
        "time": lambda seconds: datetime.fromtimestamp(seconds, UTC),
        "span": lambda seconds: duration(timedelta(seconds=seconds)),
    }
    return environment.get_template("page.html.j2")


@cache
def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    """The source expression of a Content-Security-Policy that allows exactly this script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
