"""The report in a real browser: what a reader sees, clicks and hears."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from group_hygiene.report.findings import Row
from group_hygiene.report.page import render
from group_hygiene.report.wording import IDLE, printable
from tests.browser.conftest import Open
from tests.findings import HOSTILE, READ_AT, rich

pytestmark = pytest.mark.slow  # of the report, in a browser

_FINDINGS = rich(names=HOSTILE)
_ROWS = _FINDINGS.rows
_STEP = 50
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])
WIDTHS = pytest.mark.parametrize("width", [360, 1280])


def _column(page: Page, title: str, table: str = "#groups-table") -> list[str]:
    return page.locator(f'{table} tbody td[data-label="{title}"]').all_inner_texts()


def _groups(page: Page) -> list[str]:
    """All groups that the table shows, after all of them were asked for."""
    more = page.locator("#groups-table .more")
    while more.is_visible():
        more.click()
    return page.locator("#groups-table tbody td:first-child .name").all_text_contents()


def _names(rows: Sequence[Row]) -> list[str]:
    return sorted(printable(row.group) for row in rows)


def _status(page: Page) -> str:
    return page.locator("#groups-table .shown").inner_text()


def _header(page: Page, title: str) -> Any:
    return page.locator("#groups-table thead").get_by_role("button", name=title, exact=True)


def _luminance(colour: str) -> float:
    """Of `rgb(r, g, b)`, by WCAG 2.2."""
    linear = []
    for value in re.findall(r"[\d.]+", colour)[:3]:
        part = float(value) / 255
        linear.append(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _css(page: Page, selector: str, name: str) -> str:
    found: str = page.locator(selector).first.evaluate("(e, name) => getComputedStyle(e)[name]", name)
    return found


def _fills(page: Page, selector: str) -> set[str]:
    """The colours of these parts of charts, as the browser made them out."""
    colours: list[str] = page.locator(selector).evaluate_all("all => all.map(e => getComputedStyle(e).fill)")
    return set(colours) - {"none"}


def test_a_column_is_sorted_both_ways(opened: Open) -> None:
    """By its values and not by how they are written; what is not known is last, whichever way."""
    page = opened()
    behind = [row.behind for row in _ROWS]
    known = sorted((n for n in behind if n is not None), reverse=True)
    expect(page.locator("#groups-table th[aria-sort]")).to_have_text("Idle for")
    _header(page, "Behind").click()
    assert _column(page, "Behind") == [f"{n:,}" for n in known[:_STEP]]
    assert page.locator("#groups-table th[aria-sort=descending]").inner_text() == "Behind"
    _header(page, "Behind").click()
    assert _column(page, "Behind") == [f"{n:,}" for n in known[::-1][:_STEP]]
    assert page.locator("#groups-table th[aria-sort=ascending]").inner_text() == "Behind"
    _header(page, "Group").click()
    assert page.locator("#groups-table tbody .name").all_text_contents() == _names(_ROWS)[:_STEP]


def test_longest_idle_comes_first_and_last(opened: Open) -> None:
    """The times of a column that shows durations: the longest is the earliest moment."""
    page = opened()
    since = sorted(f"{row.idle_since:%Y-%m-%d %H:%M}" for row in _ROWS if row.idle_since)
    shown = page.locator('#groups-table td[data-kind="since"] time')
    assert shown.all_inner_texts() == since[:_STEP]
    _header(page, "Idle for").click()
    assert shown.all_inner_texts() == since[::-1][:_STEP]


def test_more_rows_come_fifty_at_a_time(opened: Open) -> None:
    """And the count of them is told to who can't see them come."""
    page = opened()
    assert _status(page) == f"Showing 50 of {len(_ROWS):,} rows"
    page.locator("#groups-table .more").click()
    assert page.locator("#groups-table tbody tr").count() == 2 * _STEP
    assert _status(page) == f"Showing 100 of {len(_ROWS):,} rows"
    assert page.locator("#groups-table .shown").get_attribute("role") == "status"


def test_search_and_filters_together_leave_what_fits_all(opened: Open) -> None:
    """The address says it too, so that it can be sent to somebody: the same rows come there."""
    page = opened()
    page.get_by_role("searchbox", name="Search").fill("CHECKOUT")
    page.get_by_label("State", exact=True).select_option("Empty")
    page.get_by_label("Idle", exact=True).select_option("yes")
    fit = [
        row
        for row in _ROWS
        if "checkout" in row.group and row.state == "Empty" and row.idle_since and READ_AT - row.idle_since >= IDLE
    ]
    assert sorted(_groups(page)) == _names(fit)
    assert page.evaluate("location.hash") == "#groups?search=CHECKOUT&state=Empty&idle=yes"
    again = opened(fragment=page.evaluate("location.hash"))
    assert sorted(_groups(again)) == _names(fit)
    assert again.get_by_label("State", exact=True).input_value() == "Empty"
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#groups-table .shown")).to_have_text(f"Showing 50 of {len(_ROWS):,} rows")
    page.get_by_role("searchbox", name="Search").fill("no such group")
    assert _status(page) == "Showing 0 of 0 rows that match"


@WIDTHS
def test_the_groups_of_an_owner(opened: Open, tmp_path: Path, width: int) -> None:
    """A filter and a column show them, if groups have owners; the page stays within its width."""
    rows = [replace(row, owner="a-team-with-a-long-name" if n % 3 else None) for n, row in enumerate(_ROWS)]
    file = tmp_path / "owners.html"
    file.write_text(render(replace(_FINDINGS, rows=rows)), "utf-8")
    page = opened(file=file, width=width)
    page.get_by_label("Owner", exact=True).select_option("a-team-with-a-long-name")
    assert sorted(_groups(page)) == _names([row for row in rows if row.owner])
    assert set(_column(page, "Owner")) == {"a-team-with-a-long-name"}
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('.rows')].map(e => [e.id, e.scrollWidth, e.clientWidth])"
    assert [each for each in page.evaluate(wide) if each[1] > each[2]] == []


def test_a_click_on_a_bar_lists_its_groups_and_back_goes_back(opened: Open) -> None:
    """Exactly those of the rows that the bar counts, and how many of them there are in the cluster."""
    page = opened()
    page.get_by_role("link", name=re.compile(r"^Active, last commit under 30 days: ")).click()
    expect(page.locator("#groups-title")).to_be_focused()
    expect(page.locator("#groups-title")).to_be_in_viewport()
    first = [row for row in _ROWS if (row.state, row.age) == ("Active", "under 30 days")]
    assert sorted(_groups(page)) == _names(first)
    assert page.evaluate("location.hash") == "#groups?age=under%2030%20days&state=Active"
    assert _status(page).endswith(f"of {len(first)} rows that match; the cluster has {20 * len(first):,} such groups")
    page.get_by_role("link", name=re.compile(r"^notebook-\*: idle: ")).click()
    second = [
        row
        for row in _ROWS
        if row.pattern == "notebook-*" and row.idle_since is not None and READ_AT - row.idle_since >= IDLE
    ]
    assert sorted(_groups(page)) == _names(second)
    page.go_back()
    expect(page.get_by_label("State", exact=True)).to_have_value("Active")
    assert sorted(_groups(page)) == _names(first)
    page.go_back()
    expect(page.get_by_label("State", exact=True)).to_have_value("")
    assert _status(page) == f"Showing 50 of {len(_ROWS):,} rows"


@pytest.mark.parametrize("day", range(8))
def test_a_day_of_expiry_lists_the_groups_of_that_day(opened: Open, day: int) -> None:
    """By the day in UTC, exactly those that the chart counts: not who is in use, and expires on that day as well."""
    page = opened()
    wanted = READ_AT.date() + timedelta(days=day)
    due = [row for row in _ROWS if row.due == wanted]
    bar = page.get_by_role("link", name=re.compile(rf"\b{wanted.day} Nov: expiring"))
    if not due:
        assert wanted not in _FINDINGS.expiring
        expect(bar).to_have_count(0)
        return
    assert len(due) < len([row for row in _ROWS if row.expires and row.expires.date() == wanted]) or not day
    counted = _FINDINGS.expiring[wanted]
    expect(bar).to_have_attribute("aria-label", re.compile(rf": {counted:,} groups?$"))
    bar.click()
    assert sorted(_groups(page)) == _names(due)
    assert _status(page).endswith(f"of {len(due)} rows that match; the cluster has {counted:,} such groups")


def test_the_week_of_expiry_lists_the_groups_of_all_its_days(opened: Open) -> None:
    """As many as the heading says, and none that is long overdue."""
    page = opened()
    due = [row for row in _ROWS if row.due]
    assert [row for row in _ROWS if row.expires and not row.due and row.expires < READ_AT]
    page.get_by_role("link", name="List those groups.").click()
    assert sorted(_groups(page)) == _names(due)
    counted = sum(_FINDINGS.expiring.values())
    expect(page.locator("#expiring-title")).to_have_text(f"{counted:,} groups will lose offsets within a week")
    assert _status(page).endswith(f"of {len(due)} rows that match; the cluster has {counted:,} such groups")


def test_what_should_have_expired_is_overdue(opened: Open, tmp_path: Path) -> None:
    """With JavaScript and without: no moment that has passed is 0 minutes away."""
    expiring = [row for row in _ROWS if row.expires]
    rows = [*expiring[: _STEP // 2], *expiring[-_STEP // 2 :]]
    expected = [bool(row.expires and row.expires < READ_AT) for row in rows]
    assert set(expected) == {True, False}
    file = tmp_path / "report.html"
    file.write_text(render(replace(_FINDINGS, rows=rows)), "utf-8")
    several = [
        opened(file=file, javascript=javascript).locator("#groups-table tbody tr") for javascript in (True, False)
    ]
    for lines in several:
        shown = dict(
            zip(
                lines.locator(".name").all_text_contents(),
                lines.locator('[data-kind="until"] b').all_text_contents(),
                strict=True,
            )
        )
        assert [shown[printable(row.group)] == "overdue" for row in rows] == expected


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_was_made_to_break_pages_is_text(opened: Open, name: str) -> None:
    """In the table, in the choice of patterns, in the address and in a chart's title."""
    page = opened()
    page.get_by_label("Pattern", exact=True).select_option(printable(name))
    assert _groups(page) == [printable(name)]
    again = opened(fragment=page.evaluate("location.hash"))
    assert _groups(again) == [printable(name)]
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


def test_one_header_is_reached_and_used_by_keyboard_alone(opened: Open) -> None:
    """Tab comes to it, with a ring around it; Enter sorts, and leaves the focus where it was."""
    page = opened()
    page.get_by_role("searchbox", name="Search").focus()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "State":
            break
    assert page.evaluate("document.activeElement.closest('th')?.textContent") == "State"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert _column(page, "State")[0] == "Active"
    page.keyboard.press("Enter")
    assert _column(page, "State")[0] == "Unknown"
    assert page.evaluate("document.activeElement.textContent") == "State"


def test_a_bar_is_reached_and_used_by_keyboard_alone(opened: Open) -> None:
    """The marks of the charts are links like any other; the first stop of all skips to the findings."""
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the findings"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    name = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert re.match(r"Empty, last commit under an hour: ", name)
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#groups?age=under%20an%20hour&state=Empty"


def test_light_and_dark_follow_the_system_until_a_user_chooses(opened: Open) -> None:
    """Charts go with the page: their text can be read in both."""
    light, dark = opened(scheme="light"), opened(scheme="dark")
    assert _luminance(_css(light, "body", "backgroundColor")) > 0.8
    assert _luminance(_css(dark, "body", "backgroundColor")) < 0.05
    for page in (light, dark):
        behind = _css(page, "section", "backgroundColor")
        fills = _fills(page, "svg text")
        assert min(_contrast(fill, behind) for fill in fills) >= 4.5
        assert min(_contrast(fill, behind) for fill in _fills(page, "svg a path")) >= 2.5
    light.get_by_role("button", name="Dark").click()
    assert _css(light, "body", "backgroundColor") == _css(dark, "body", "backgroundColor")
    light.get_by_role("button", name="Light").click()
    assert _luminance(_css(light, "body", "backgroundColor")) > 0.8


@SCHEMES
def test_a_phone_shows_it_all_without_moving_sideways(opened: Open, scheme: str, nothing: Path) -> None:
    """At 360 px, with names of any length, before and after all rows of a table are there."""
    page = opened(width=360, scheme=scheme)
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) <= 360
    page.get_by_label("Pattern", exact=True).select_option(index=4)
    page.locator("#groups-table .more").click()
    assert page.evaluate(wide) <= 360
    sizes = "[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height)"
    assert min(page.evaluate(sizes)) >= 10
    assert opened(width=360, scheme=scheme, file=nothing).evaluate(wide) <= 360


@WIDTHS
def test_the_longest_names_stay_within_the_page(opened: Open, longest: Path, width: int) -> None:
    """5,000 of them: they break where they must, and charts show their beginnings, with the whole in a title."""
    page = opened(width=width, file=longest)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('.rows')].map(e => [e.id, e.scrollWidth, e.clientWidth])"
    assert [each for each in page.evaluate(wide) if each[1] > each[2]] == []
    texts = page.locator("svg text").filter(has_text="WWW")
    assert texts.count() > 10
    for text in texts.all():
        assert (text.text_content() or "").split("…")[0]
        box = text.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width
    page.get_by_role("searchbox", name="Search").fill("4999")
    expect(page.locator("#groups-table .shown")).to_have_text("Showing 1 of 1 row that matches")


@WIDTHS
@SCHEMES
def test_axe_finds_nothing_serious(opened: Open, scheme: str, width: int, nothing: Path) -> None:
    """Landmarks, names, headings, contrast: in both themes, on a phone and on a desk."""
    for page in (opened(width=width, scheme=scheme), opened(width=width, scheme=scheme, file=nothing)):
        found = Axe().run(page)
        serious = [v for v in found.response["violations"] if v["impact"] in ("serious", "critical")]
        assert [(v["id"], [n["target"] for n in v["nodes"][:3]]) for v in serious] == []
        assert len(found.response["passes"]) > 20


def test_headings_go_down_one_step_at_a_time(opened: Open) -> None:
    """One h1, and no level left out."""
    page = opened()
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(e => Number(e.tagName[1]))")
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_on_paper_all_is_there_but_the_controls(opened: Open) -> None:
    """In light colours also of a dark screen, as wide as a sheet."""
    page = opened(width=718, scheme="dark")
    page.emulate_media(media="print")
    for selector in ("nav", "#filters", "#theme", ".more", ".copy", ".skip"):
        expect(page.locator(selector).first).to_be_hidden()
    for section in page.locator("section").all():
        expect(section).to_be_visible()
    assert _luminance(_css(page, "body", "backgroundColor")) == 1
    assert _contrast(_css(page, "svg text", "fill"), "rgb(255, 255, 255)") > 4.5
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    assert page.evaluate("[...document.querySelectorAll('.rows, .scroll')].every(e => e.scrollWidth <= 718)")


def test_without_javascript_the_first_rows_are_there(opened: Open) -> None:
    """The same ones, and no control that would do nothing; a sentence says what is missing."""
    page, plain = opened(), opened(javascript=False)
    for table in ("#groups-table", "#soon-table", "#lag-table", "#stale-table"):
        rows = [p.locator(f"{table} tbody tr").all_inner_texts() for p in (page, plain)]
        assert [text.split() for text in rows[0]] == [text.split() for text in rows[1]]
        assert len(rows[1]) == _STEP
    assert "Without JavaScript, this table ends" in plain.locator("#groups-table").inner_text()
    expect(plain.locator("button:visible, form:visible")).to_have_count(0)


def test_a_policy_is_copied_as_it_is(opened: Open) -> None:
    """To the clipboard, to the last line."""
    page = opened()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the policy for console-consumer-*").click()
    expect(page.locator(".copy").first).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("pre").first.text_content()
