"""The report in a real browser: what a reader sees, clicks and hears."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Locator, Page, expect

from group_hygiene.observe.findings import printable
from group_hygiene.observe.page import render, unit_name
from tests.browser.conftest import Open
from tests.findings import HOSTILE, rich

pytestmark = pytest.mark.slow  # of the report, in a browser

_FINDINGS = rich(names=HOSTILE, owners=True)
_UNITS = _FINDINGS.units
_STEP = 50
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])
WIDTHS = pytest.mark.parametrize("width", [360, 830, 1200])
_WIDE = """[...document.querySelectorAll('.rows, .groups')].filter(e => e.scrollWidth > e.clientWidth)
    .map(e => [e.className, e.scrollWidth, e.clientWidth])"""


def _unit(page: Page, pattern: str) -> Locator:
    """The row of this pattern with the most idle offsets."""
    place = next(n for n, unit in enumerate(_UNITS) if unit.pattern == pattern)
    return page.locator(f"#unit-{place}")


def _opened(page: Page, pattern: str) -> Locator:
    """The table of its groups."""
    unit = _unit(page, pattern)
    unit.locator("button.opener").click()
    return unit.locator(".groups")


def _column(groups: Locator, title: str) -> list[str]:
    return groups.locator(f'td[data-label="{title}"]').all_inner_texts()


def _shown(page: Page) -> list[str]:
    """The names of the rows in their order."""
    return page.locator("#units > tbody:visible > tr:first-child .opener").all_text_contents()


def _status(page: Page) -> str:
    return page.locator("#work .shown").inner_text()


def _header(where: Locator, title: str) -> Any:
    return where.locator("thead").first.get_by_role("button", name=title, exact=True)


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


def test_a_row_opens_to_its_groups_and_closes(opened: Open) -> None:
    """Those of its pattern and owner, longest idle first, some at a time; a button says whether it is open."""
    page, unit = opened(), _UNITS[0]
    rows = [printable(row.group) for row in _FINDINGS.rows if row.unit == unit.key]
    button = page.locator("#unit-0 button.opener")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(page.locator("#unit-0 .opened")).to_be_hidden()
    button.click()
    expect(button).to_have_attribute("aria-expanded", "true")
    names = page.locator("#unit-0 .groups .name")
    assert names.all_text_contents() == rows[:_STEP]
    while page.locator("#unit-0 .more").is_visible():
        page.locator("#unit-0 .more").click()
    assert names.all_text_contents() == rows
    assert f"This page lists {len(rows):,} of the groups" in page.locator("#unit-0 .opened p").inner_text()
    button.click()
    expect(page.locator("#unit-0 .opened")).to_be_hidden()


def test_groups_are_sorted_both_ways(opened: Open) -> None:
    """By values and not by how they are written; unknown ones are last in either order."""
    page = opened()
    groups = _opened(page, "console-consumer-{digits}")
    key = next(unit.key for unit in _UNITS if unit.pattern == "console-consumer-{digits}")
    rows = [row for row in _FINDINGS.rows if row.unit == key]
    known = sorted((row.behind for row in rows if row.behind is not None), reverse=True)
    _header(groups, "Behind").click()
    assert _column(groups, "Behind") == [f"{n:,}" for n in known[:_STEP]]
    assert groups.locator("th[aria-sort=descending]").inner_text() == "Behind"
    _header(groups, "Behind").click()
    assert _column(groups, "Behind") == [f"{n:,}" for n in known[::-1][:_STEP]]
    since = sorted(f"{row.idle_since:%Y-%m-%d %H:%M}" for row in rows if row.idle_since)
    times = groups.locator('td[data-kind="since"] time')
    _header(groups, "Idle for").click()
    assert times.all_inner_texts() == since[:_STEP]
    _header(groups, "Idle for").click()
    assert times.all_inner_texts() == since[::-1][:_STEP]


def test_rows_are_sorted_both_ways(opened: Open) -> None:
    """The most idle offsets come first; a header sorts by another column, with opened rows."""
    page = opened()
    expect(page.locator("#units > thead th[aria-sort]")).to_have_text("Idle offsets")
    assert _shown(page) == [unit_name(unit) for unit in _UNITS]
    page.locator("#unit-0 button.opener").click()
    _header(page.locator("#units"), "Idle groups").click()
    by_groups = sorted(_UNITS, key=lambda unit: -unit.idle)
    assert _shown(page) == [unit_name(unit) for unit in by_groups]
    _header(page.locator("#units"), "Idle groups").click()
    assert _shown(page)[-1] == unit_name(by_groups[0])
    expect(page.locator("#unit-0 .opened")).to_be_visible()


def test_search_and_owner_leave_what_fits_both(opened: Open) -> None:
    """Rows by name, program or client; or the groups of a row that have the text, when it is opened."""
    page = opened()
    page.get_by_role("searchbox", name="Search").fill("NOTEBOOK")
    page.get_by_label("Owner", exact=True).select_option("a-team-with-a-long-name")
    assert _shown(page) == ["notebook-{uuid}"]
    assert _status(page) == f"Showing 1 of {len(_UNITS)} rows"
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#work .shown")).to_have_text(f"Showing {len(_UNITS)} rows")
    page.get_by_label("Owner", exact=True).select_option("no owner")
    assert _shown(page) == [unit_name(unit) for unit in _UNITS if not unit.owner]
    page.get_by_role("button", name="Clear").click()
    *_, row = (row for row in _FINDINGS.rows if row.pattern == "load-test-{uuid}")
    page.get_by_role("searchbox", name="Search").fill(row.group[10:])
    assert _shown(page) == ["load-test-{uuid}"]
    page.locator("#units button.opener:visible").click()
    assert page.locator("#units .groups .name").all_text_contents() == [row.group]
    page.get_by_role("searchbox", name="Search").fill("no such group")
    assert _status(page) == f"Showing 0 of {len(_UNITS)} rows"


@WIDTHS
@SCHEMES
def test_nothing_is_beyond_the_right_edge(opened: Open, width: int, scheme: str, nothing: Path) -> None:
    """On a phone and on screens, with opened rows, and with names that were made to break pages."""
    page = opened(width=width, scheme=scheme)
    for button in page.locator("#units button.opener").all():
        button.click()
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(_WIDE) == []
    sizes = "[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height)"
    assert min(page.evaluate(sizes)) >= 10
    assert opened(width=width, scheme=scheme, file=nothing).evaluate("document.documentElement.scrollWidth") <= width


def test_policies_are_on_the_first_screen(opened: Open) -> None:
    """With their numbers, curve and command, below what idle groups cost."""
    page = opened(width=1200)
    for text in ("Idle groups", "Owners of idle groups", "Broker heap, about"):
        expect(page.locator("dt", has_text=text).first).to_be_in_viewport(ratio=1)
    expect(page.locator("#policy-0 > svg")).to_be_in_viewport(ratio=1)
    expect(page.locator("#policy-0 pre:visible")).to_be_in_viewport(ratio=1)
    for name in ("the policy", "the command"):
        copy = page.locator("#policy-0").get_by_role("button", name=f"Copy {name} for console-consumer-{{digits}}")
        expect(copy).to_be_in_viewport(ratio=1)


def test_the_copy_button_covers_no_text(opened: Open) -> None:
    """It stands beside the text."""
    page = opened(width=830)
    for summary in page.locator("#policies summary").all():
        summary.click()
    for copied in page.locator(".copied").all():
        button, text = copied.locator("button").bounding_box(), copied.locator("pre").bounding_box()
        assert button is not None
        assert text is not None
        assert button["x"] >= text["x"] + text["width"]


def test_a_bar_opens_its_row_and_a_row_leads_to_its_policy(opened: Open) -> None:
    """A click on a bar opens the row and focuses it, also if filters hid it, and again."""
    page = opened()
    page.get_by_role("searchbox", name="Search").fill("no such group")
    bar = page.get_by_role("link", name=re.compile(r"^notebook-\{uuid\} \(a-team-with-a-long-name\): idle: "))
    place = next(n for n, unit in enumerate(_UNITS) if unit.pattern == "notebook-{uuid}" and unit.owner)
    for _ in range(2):
        bar.click()
        expect(page.locator(f"#unit-{place} .opened")).to_be_visible()
        expect(page.locator(f"#unit-{place} button.opener")).to_be_focused()
        page.locator(f"#unit-{place} button.opener").click()
    page.locator(f"#unit-{place}").get_by_role("link", name="4 d").click()
    expect(page.locator("#policy-1")).to_be_in_viewport()
    expect(page.locator("#policy-2")).to_be_hidden()
    _unit(page, "connect-sink-{digits}").get_by_role("link", name="none fits").click()
    expect(page.locator("#policy-2")).to_be_in_viewport()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_was_made_to_break_pages_is_text(opened: Open, name: str) -> None:
    """In its row and in the table of its groups."""
    page = opened()
    if name:
        assert _opened(page, name).locator(".name").all_text_contents() == [printable(name)]
    else:
        # Those are the groups without a pattern.
        assert '""' in _opened(page, name).locator(".name").all_text_contents()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


def test_rows_are_reached_and_used_by_keyboard_alone(opened: Open) -> None:
    """Tab comes to headers and rows, with a ring around them; Enter sorts or opens, and leaves the focus."""
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the findings"
    page.locator("#filters button").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('th')?.textContent") == "Groups"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert _shown(page) == sorted(map(unit_name, _UNITS))
    assert page.evaluate("document.activeElement.textContent") == "Groups"
    page.locator("#unit-0 button.opener").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#unit-0 .opened")).to_be_visible()


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


@WIDTHS
def test_the_longest_names_stay_within_the_page(opened: Open, longest: Path, width: int) -> None:
    """They break where they must, and charts show their beginnings, with the whole in a title."""
    page = opened(width=width, file=longest)
    page.locator("#unit-0 button.opener").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(_WIDE) == []
    texts = page.locator("svg text:visible").filter(has_text="WWW")
    assert texts.count() > 5
    for text in texts.all():
        assert (text.text_content() or "").split("…")[0]
        box = text.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width


@WIDTHS
@SCHEMES
def test_axe_finds_nothing_serious(opened: Open, scheme: str, width: int, nothing: Path) -> None:
    """Landmarks, names, headings, contrast: in both themes, on a phone and on a desk."""
    full = opened(width=width, scheme=scheme)
    full.locator("#unit-0 button.opener").click()
    for summary in full.locator("summary").all():
        summary.click()
    for page in (full, opened(width=width, scheme=scheme, file=nothing)):
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
    for selector in ("nav", "#filters", "#theme", ".copy", ".skip"):
        expect(page.locator(selector).first).to_be_hidden()
    for section in page.locator("section").all():
        expect(section).to_be_visible()
    assert _luminance(_css(page, "body", "backgroundColor")) == 1
    assert _contrast(_css(page, "svg text", "fill"), "rgb(255, 255, 255)") > 4.5
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    assert page.evaluate("[...document.querySelectorAll('.rows')].every(e => e.scrollWidth <= 718)")


def test_without_javascript_rows_and_policies_are_there(opened: Open) -> None:
    """The same rows, and no control that would do nothing; a sentence says what is missing."""
    page, plain = opened(), opened(javascript=False)
    assert _shown(plain) == _shown(page)
    assert "Without JavaScript, rows can't be opened" in plain.locator("#work").inner_text()
    expect(plain.locator("button:visible, form:visible")).to_have_count(0)
    expect(plain.locator("#policy-0 > svg")).to_be_visible()


def test_a_policy_is_copied_as_it_is(opened: Open) -> None:
    """To the clipboard, to the last line."""
    page = opened()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    expect(page.locator("#policy-0 details pre")).to_be_hidden()
    page.get_by_role("button", name="Copy the policy for console-consumer-{digits}").click()
    expect(page.locator("#policy-0 .copy").first).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == _FINDINGS.suggestions[0].policy


@pytest.mark.parametrize("width", [830, 1200])
def test_an_owner_of_usual_length_is_on_one_line(opened: Open, tmp_path: Path, width: int) -> None:
    """Only longer ones break."""
    findings = replace(_FINDINGS, units=[replace(unit, owner="payments") for unit in _UNITS])
    file = tmp_path / "report.html"
    file.write_text(render(findings), "utf-8")
    page = opened(width=width, file=file)
    heights = '[...document.querySelectorAll("[data-label=Owner] span")].map(e => e.getClientRects().length)'
    assert set(page.evaluate(heights)) == {1}
