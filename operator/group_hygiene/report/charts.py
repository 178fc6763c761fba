"""Findings as charts: SVG texts with colours from the page's CSS, whose bars and lines link to the groups behind them.

Drawn 336 px wide, so that they are legible on a phone; without requests to the network.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from unicodedata import east_asian_width
from xml.etree import ElementTree

import altair as alt
import vl_convert

from group_hygiene.report.findings import Age, Findings, Growth
from group_hygiene.report.wording import counted, link, number, printable, weekday

_WIDTH = 336
# Patterns in the line chart and in the bar chart.
_LINES = 5
_PATTERNS = 10
# Only the browser knows the width of letters, so labels and cuts assume a wide font. Vega can cut names itself, but may
# do so inside a character beyond U+FFFF, and then it draws nothing.
_CHARACTER_WIDTH = 7.2
_LONGEST = 40.0
_STATES = {"Empty": "var(--accent)", "Active": "var(--live)", "Unknown": "var(--faint)", "Gone": "var(--faint)"}
_FONT = "system-ui, sans-serif"
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "{http://www.w3.org/1999/xlink}href"


@dataclass(frozen=True, slots=True)
class Bar:
    """One part of a row's bar. groups: its length. description: shown with it. href: the target of a click."""

    row: str
    part: str
    groups: int
    description: str
    href: str | None = None


def draw(findings: Findings) -> dict[str, str]:
    """SVG texts by name: `age`, `type`, `growth`, `patterns`, `expiring`; "" if there is nothing to draw."""
    return {
        "age": by_age(findings),
        "type": by_type(findings),
        "growth": growth(findings),
        "patterns": by_pattern(findings),
        "expiring": expiring(findings),
    }


def by_age(findings: Findings) -> str:
    """Groups by the age of their last commit, each bar divided by state."""
    bars = [
        Bar(
            age,
            state,
            sum(c.groups for c in findings.counts if (c.age, c.state) == (age, state)),
            f"{state}, last commit {age}" if age is not Age.NEVER else f"{state}, {age}",
            link(age=age, state=state),
        )
        for age in Age
        for state in _states(findings)
    ]
    return _bars(bars, _states(findings), "Groups by the age of their last commit and by state")


def by_type(findings: Findings) -> str:
    """Groups by type, each bar divided by state."""
    types = sorted({c.type for c in findings.counts})
    bars = [
        Bar(
            kind,
            state,
            sum(c.groups for c in findings.counts if (c.type, c.state) == (kind, state)),
            f"{kind}, {state}",
            link(type=kind, state=state),
        )
        for kind in types
        for state in _states(findings)
    ]
    return _bars(bars, _states(findings), "Groups by type and state")


def by_pattern(findings: Findings) -> str:
    """The patterns with the most groups ever, each bar divided by idle, not idle and gone."""
    bars = []
    for found in _most_seen(findings.patterns, _PATTERNS):
        name = printable(found.pattern)
        live, gone = found.there - found.idle, found.seen - found.there
        bars += [
            Bar(name, "Idle 7 d or more", found.idle, f"{name}: idle", link(pattern=name, idle="yes")),
            Bar(name, "Not idle", live, f"{name}: not idle", link(pattern=name, idle="no")),
            Bar(name, "Gone", gone, f"{name}: gone"),
        ]
    colours = {"Idle 7 d or more": "var(--accent)", "Not idle": "var(--live)", "Gone": "var(--faint)"}
    return _bars(bars, colours, "Group ids by name pattern: idle, not idle and gone", above=True)


def expiring(findings: Findings) -> str:
    """Groups that lose their first offsets within a week, by day, including days without any."""
    if not any(findings.expiring.values()):
        return ""
    days = days_of_expiry(findings)
    bars = [
        Bar(weekday(day), "", findings.expiring.get(day, 0), f"{weekday(day)}: expiring", link(expires=f"{day}"))
        for day in days
    ]
    return _bars(bars, {"": "var(--accent)"}, "Groups whose first offsets expire within a week, by day")


def days_of_expiry(findings: Findings) -> list[date]:
    """Each day from the read of the log to a week later."""
    return [findings.read_at.date() + timedelta(days=n) for n in range(8)]


def growth(findings: Findings) -> str:
    """Group ids seen so far, by day, of the patterns with the most; "" if all of them appeared on one day."""
    shown = _most_seen(findings.patterns, _LINES)
    first = min((day for found in shown for day in found.new), default=None)
    last = findings.read_at.date()
    if first is None or first >= last:
        return ""
    names = [printable(found.pattern) for found in shown]
    places = [str(n) for n in range(len(names))]
    points = [
        {"day": _millis(day), "ids": ids, "place": place, "href": link(pattern=name), "description": description}
        for place, name, found in zip(places, names, shown, strict=True)
        for description in [f"{name}: {number(sum(found.new.values()))} ids by {weekday(last)}"]
        for day, ids in _summed(found, first, last)
    ]
    days = [_millis(first), _millis(first + (last - first) / 2), _millis(last)]
    marks = alt.Chart(alt.InlineData(values=points)).mark_line(interpolate="step-after", strokeWidth=2)
    colours = alt.Scale(domain=places, range=[f"var(--line{n})" for n in range(1, _LINES + 1)])
    dashes = alt.Scale(domain=places, range=[[1, 0], [6, 3], [2, 2], [10, 3], [8, 3, 2, 3]])
    legend = alt.Legend(orient="bottom", columns=1, title=None, labelLimit=0, symbolType="stroke", symbolSize=240)
    legend.labelExpr = f"{json.dumps([_cut(name) for name in names])}[datum.label]"
    chart = marks.encode(
        x=alt.X("day:Q")
        .scale(type="utc", domain=[days[0], days[-1]])
        .axis(values=days, labelExpr="utcFormat(datum.value, '%-d %b %Y')", labelFlush=True, grid=False, title=None),
        y=alt.Y("ids:Q").axis(
            tickCount=4, labelExpr="format(datum.value, '~s')", title=None, domain=False, ticks=False
        ),
        color=alt.Color("place:N", scale=colours, legend=legend),
        strokeDash=alt.StrokeDash("place:N", scale=dashes, legend=legend),
        href="href:N",
        description="description:N",
    )
    return _svg(chart.properties(height=230 + 18 * len(names)), "Group ids seen so far, by day and name pattern")


def _most_seen(patterns: Iterable[Growth], count: int) -> list[Growth]:
    return sorted(patterns, key=lambda found: (-found.seen, found.pattern))[:count]


def _summed(found: Growth, first: date, last: date) -> Iterable[tuple[date, int]]:
    ids = 0
    for day in sorted(found.new.keys() | {first, last}):
        ids += found.new.get(day, 0)
        yield day, ids


def _states(findings: Findings) -> dict[str, str]:
    """State -> colour: known states in their order, then others."""
    there = {c.state for c in findings.counts}
    known = [state for state in _STATES if state in there]
    return {state: _STATES.get(state, "var(--faint)") for state in [*known, *sorted(there - set(known))]}


def _millis(day: date) -> int:
    return int(datetime.combine(day, time(), UTC).timestamp() * 1000)


def _bars(bars: Sequence[Bar], colours: Mapping[str, str], title: str, above: bool = False) -> str:
    """Rows of bars, each divided into parts, with its total at its end. above: the row's name is above its bar."""
    totals: dict[str, int] = {}
    for bar in bars:
        totals[bar.row] = totals.get(bar.row, 0) + bar.groups
    if not any(totals.values()):
        return ""
    order = {part: n for n, part in enumerate(colours)}
    pieces = [
        {
            "row": bar.row,
            "part": bar.part,
            "groups": bar.groups,
            "order": order[bar.part],
            "href": bar.href,
            "description": f"{bar.description}: {counted(bar.groups, 'group')}",
        }
        for bar in bars
        if bar.groups
    ]
    ends = [{"row": row, "name": _cut(row), "groups": total, "text": number(total)} for row, total in totals.items()]
    room = 10 + _CHARACTER_WIDTH * max(map(len, totals))
    axis = alt.Axis(title=None, domain=False, ticks=False, labelPadding=8, labelLimit=0, minExtent=room)
    y = alt.Y("row:N", sort=list(totals), axis=None if above else axis, scale=alt.Scale(padding=0))
    # Leaves space for the number behind the longest bar.
    x = alt.X("groups:Q", axis=None, scale=alt.Scale(domain=[0, max(totals.values()) * (1.2 if above else 1.35)]))
    down = 8 if above else 0
    legend = alt.Legend(orient="bottom", title=None, symbolType="square", columnPadding=14, offset=8)
    layers: list[Any] = [
        alt.Chart(alt.InlineData(values=pieces))
        .mark_bar(height=14, yOffset=down, stroke="var(--surface)", strokeWidth=1)
        .encode(
            x=x,
            y=y,
            color=alt.Color("part:N")
            .scale(domain=list(colours), range=list(colours.values()))
            .legend(legend if len(colours) > 1 else None),
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
