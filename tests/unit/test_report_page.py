"""The report's page as text: what is in it, what never is, and how long it gets. Looked at in tests/browser."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from group_hygiene.cli.reports import _write
from group_hygiene.report.charts import draw
from group_hygiene.report.findings import Count, Findings, Growth, Row
from group_hygiene.report.page import render
from group_hygiene.report.wording import duration, link, period, printable
from tests.findings import HOSTILE, READ_AT, empty, rich, suggestion

_MB = 1_000_000


class _Elements(HTMLParser):
    """Each element with its attributes, and the text in each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        for tag in self._open[-1:]:
            self.texts.setdefault(tag, []).append(data)

    def attributes(self, *names: str) -> Iterator[str]:
        for _, attributes in self.elements:
            yield from (value or "" for name, value in attributes.items() if name in names)


def _data(page: str) -> Any:
    return json.loads("".join(_Elements(page).texts["script"][:1]))


def _words(page: str) -> str:
    return re.sub(r"\s+", " ", " ".join(text for tag, texts in _Elements(page).texts.items() for text in texts))


def test_names_are_text_wherever_they_stand() -> None:
    """In tables, charts, titles, links, policies: no name makes an element, an attribute or an end of a script."""
    hostile = rich(rows=40, names=HOSTILE)
    usual = rich(rows=40, names=[f"usual-{n}" for n in range(len(HOSTILE))])
    hostile = replace(hostile, suggestions=[suggestion(name) for name in HOSTILE], cluster_id=HOSTILE[0])
    usual = replace(usual, suggestions=[suggestion(f"usual-{n}") for n in range(len(HOSTILE))])
    kinds, expected = (
        sorted((tag, sorted(attributes)) for tag, attributes in _Elements(render(findings)).elements)
        for findings in (hostile, usual)
    )
    assert kinds == expected
    page = _Elements(render(hostile))
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert f'    groups: ["{HOSTILE[0]}"]' in "".join(page.texts["pre"])
    for tag in ("span", "title", "option"):
        assert HOSTILE[0] in page.texts[tag], tag


def _rows(page: str) -> list[Any]:
    rows: list[Any] = _data(page)["tables"]["groups-table"]["rows"]
    return rows


def test_nothing_invisible_comes_from_a_name() -> None:
    """What turns the text around, breaks a line or is not seen stands there as what it is."""
    page = render(rich(rows=40, names=HOSTILE))
    assert "\u202e" not in page
    assert [row[0] for row in _rows(page)].count("from-the-\\u202eright-to-left") == 1
    assert "client 'two\\nlines' from 10.1.2.3" in [row[12] and row[12].partition(" and ")[0] for row in _rows(page)]
    assert printable("a\n\x00\u200b\ue000é\U0001f389") == "a\\n\\x00\\u200b\\ue000é\U0001f389"
    assert printable("") == '""'


@pytest.mark.parametrize(
    "letter",
    [
        "x",
        pytest.param("<", marks=pytest.mark.slow, id="less"),
        pytest.param("&", marks=pytest.mark.slow, id="and"),
        pytest.param('"', id="quote"),
        pytest.param("é", marks=pytest.mark.slow),
        pytest.param("\U0001f389", marks=pytest.mark.slow, id="emoji"),
        pytest.param("\u202e", id="rtl"),
    ],
)
@pytest.mark.slow
def test_the_page_stays_below_three_megabytes(letter: str) -> None:
    """With 5,000 groups of the longest names; what is left out is said, and how to see it."""
    names = [(f"{n:05}" + letter * 249)[:249] for n in range(5000)]
    findings = rich(rows=5000, names=names)
    stale = [replace(s, group=names[n], topic=names[-n]) for n, s in enumerate(list(findings.stale) * 20)]
    suggestions = [suggestion(name) for name in names[:200]]
    page = render(replace(findings, stale=stale, stale_total=len(stale), suggestions=suggestions))
    size = len(page.encode())
    assert size < 3 * _MB
    rows = len(_data(page)["tables"]["groups-table"]["rows"])
    assert f"This page lists {rows:,} of 100,000 groups, the relevant ones." in _words(page)
    assert "group-hygiene list" in page
    if letter in "xé":
        # Names of usual letters are all there.
        assert (rows == 5000) == (letter == "x")
    assert f"of {len(suggestions)} are shown." in _words(page)


def test_the_same_findings_make_the_same_page() -> None:
    """To the byte: two reports differ where the groups do."""
    assert render(rich(rows=30, names=HOSTILE)) == render(rich(rows=30, names=HOSTILE))
    assert render(rich(rows=30)) != render(rich(rows=31))


def test_a_cluster_without_groups_has_a_page_of_sentences() -> None:
    """Nothing to draw, nothing to list: each section says so, without a chart or a table."""
    page = render(empty())
    words, elements = _words(page), [tag for tag, _ in _Elements(page).elements]
    assert not {"svg", "table", "figure", "form", "aside"} & set(elements)
    assert elements.count("section") == 7
    for sentence in (
        "There are no groups",
        "The tables hold no group.",
        "Patterns are found in the names of groups: there are none yet.",
        "There are no idle groups",
        "No offsets expire within a week",
        "No idle group is known to have lag",
        "No group in use has left a topic",
        "No policy to suggest",
        "not known",
    ):
        assert sentence in words, sentence


@pytest.mark.slow
def test_a_history_of_one_day_has_no_curve() -> None:
    """All ids of one day: a sentence instead of a chart with one point."""
    young = Growth("a-*", 5, 5, 5, {READ_AT.date(): 5}, True)
    findings = replace(rich(rows=20), patterns=[young], others=0)
    assert draw(findings)["growth"] == ""
    assert "The history is too short for a curve" in _words(render(findings))


@pytest.mark.slow
def test_notes_stand_at_the_top() -> None:
    """What the tables can't tell comes before any chart; without notes there is no box."""
    findings = replace(rich(rows=20), notes=["Half of <all> was not read."])
    page = render(findings)
    assert page.index("Half of &lt;all&gt; was not read.") < page.index("<svg")
    assert "aside" in dict(_Elements(page).elements)
    assert "aside" not in dict(_Elements(render(replace(findings, notes=[]))).elements)


def test_nothing_is_loaded() -> None:
    """No address outside of the page: only the names of XML's languages look like one."""
    page = render(rich(rows=300, names=HOSTILE))
    found = set(re.findall(r"""[\w:-]*=?["']?(?:https?:)?//[\w.][^\s"'<]*""", page))
    assert found == {'xmlns="http://www.w3.org/2000/svg'}
    elements = _Elements(page)
    assert set(elements.attributes("src", "srcset", "action", "data", "xlink:href", "style")) == set()
    assert all(target.startswith("#") or target == "data:," for target in elements.attributes("href"))
    assert not [name for _, attributes in elements.elements for name in attributes if name.startswith("on")]
    assert "url(" not in page
    assert "@import" not in page


def test_the_policy_of_the_page_names_one_script_and_one_style() -> None:
    """By their hashes, with nothing allowed besides."""
    policy = next(
        attributes["content"] or ""
        for tag, attributes in _Elements(render(empty())).elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert allowed.pop("img-src") == "data:"
    assert re.fullmatch(r"'sha256-[^']+'", allowed.pop("style-src"))
    assert re.fullmatch(r"'sha256-[^']+'", allowed.pop("script-src"))
    assert set(allowed.values()) == {"'none'"}
    assert "default-src" in allowed


@pytest.mark.parametrize(
    ("findings", "title"),
    [
        pytest.param(replace(rich(rows=100), idle=1640), " 1,640 of 2,000 groups have been idle", id="many"),
        pytest.param(replace(empty(), groups=1, idle=1), " 1 of 1 group has been idle", id="one"),
        pytest.param(replace(empty(), groups=3), " No group has been idle for", id="none"),
    ],
)
def test_the_title_tells_how_many_are_idle(findings: Findings, title: str) -> None:
    """And no more than the findings know."""
    heading = re.sub(r"\s+", " ", " ".join(_Elements(render(findings)).texts["h1"]))
    assert title in heading


@pytest.mark.parametrize(
    ("days", "others", "title"),
    [
        pytest.param([6, 7, 0], 0, "5 new group ids in the last 7 days, 5 of them named a-*", id="all-are-known"),
        pytest.param(
            [6], 1, "At least 4 new group ids in the last 7 days, 4 of them named a-*", id="not-all-are-known"
        ),
        pytest.param([7, 20], 0, "No new group ids in the last 7 days", id="none"),
        pytest.param(
            [7], 3, "No new group ids in the last 7 days, of the patterns with the most groups", id="none-there"
        ),
    ],
)
def test_the_title_of_growth_tells_how_many_are_new(days: list[int], others: int, title: str) -> None:
    """In 7 days, of which today is one; of other patterns nobody knows."""
    new = {READ_AT.date() - timedelta(days=n): {0: 1, 6: 4, 7: 9, 20: 2}[n] for n in days}
    page = render(replace(empty(), patterns=[Growth("a-*", 20, 9, 0, new, True)], others=others))
    section = page[page.index('<h2 id="growth-title"') :]
    heading = re.sub(r"<[^>]*>", "", section[: section.index("</h2>")])
    assert re.sub(r"\s+", " ", heading).strip() == title


def test_lag_without_members_is_that_of_idle_groups() -> None:
    """Idle for 7 days; of a group that is in use, or has read all, there is none to tell. Most records come first."""

    def row(name: str, behind: int | None, days: int | None = 7) -> Row:
        base = rich(rows=1).rows[0]
        return replace(
            base, group=name, behind=behind, idle_since=None if days is None else READ_AT - timedelta(days=days)
        )

    rows = [
        row("little", 5),
        row("none", 0),
        row("not-known", None),
        row("in-use", 50, None),
        row("recent", 50, 6),
        row("much", 700),
    ]
    tables = _data(render(replace(rich(rows=20), rows=rows)))["tables"]
    assert [tables["groups-table"]["rows"][n][0] for n in tables["lag-table"]["rows"]] == ["much", "little"]


@pytest.mark.slow
def test_what_expires_next_comes_first() -> None:
    """Each group that is counted on a day, with its date; of how many it is told where not all of them are listed."""

    def row(name: str, hours: float, counted: bool = True) -> Row:
        at = READ_AT + timedelta(hours=hours)
        return replace(rich(rows=1).rows[0], group=name, expires=at, due=at.date() if counted else None)

    rows = [row("a", 30), row("in-use", 1, counted=False), row("c", 2), row("b", 2)]
    page = render(replace(rich(rows=20), rows=rows, expiring={READ_AT.date(): 5}))
    tables = _data(page)["tables"]
    assert [tables["groups-table"]["rows"][n][0] for n in tables["soon-table"]["rows"]] == ["b", "c", "a"]
    shown = page[page.index('id="soon-table"') :]
    assert "This page lists 3 of 5" in shown[: shown.index("</table>")]
    assert "2 h" in shown[: shown.index("</table>")]


@pytest.mark.slow
def test_each_bar_leads_to_its_groups() -> None:
    """A chart's pieces are links with names; what no row can show is none."""
    findings = rich(rows=300)
    drawn = draw(findings)
    assert set(drawn) == {"age", "type", "growth", "patterns", "expiring"}
    count = sum(c.groups for c in findings.counts if c.type == "Classic" and c.state == "Empty")
    links = {
        attributes["aria-label"]: attributes["href"]
        for svg in drawn.values()
        for tag, attributes in _Elements(svg).elements
        if tag == "a"
    }
    assert links[f"Classic, Empty: {count:,} groups"] == "#groups?type=Classic&state=Empty"
    assert "#groups?pattern=console-consumer-*&idle=yes" in links.values()
    assert all(name and target and target.startswith("#groups?") for name, target in links.items())
    assert not [name for name in links if name and ": gone:" in name]


def test_a_pattern_shows_the_program_that_its_groups_look_like() -> None:
    """Of the catalogue; other patterns show none."""
    page = render(rich(rows=300))
    assert page.count("<small>looks like ") == 2
    for program in ("kafka-console-consumer without --group", "Kafka Connect"):
        assert f"<small>looks like {program}</small>" in page


def test_an_unknown_state_is_drawn_too() -> None:
    """What a later version of the tables may say is a bar as any other."""
    findings = replace(rich(rows=20), counts=[Count("Novel", "Asleep", rich(rows=1).rows[0].age, 1)])
    assert "Novel, Asleep: 1 group<" in draw(findings)["type"]


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (timedelta(days=1200), "1,200 d"),
        (timedelta(hours=47, minutes=59), "1 d"),
        (timedelta(hours=23, minutes=59), "23 h"),
        (timedelta(seconds=3599), "59 min"),
        (timedelta(seconds=-5), "0 min"),
    ],
)
def test_durations_have_one_unit(time: timedelta, text: str) -> None:
    """The largest that is full; a moment to come is no negative time ago."""
    assert duration(time) == text


@pytest.mark.parametrize(("hours", "text"), [(12, "12 h"), (24, "1 d"), (36, "36 h"), (48, "2 d"), (0.5, "0.5 h")])
def test_periods_are_shown_exactly(hours: float, text: str) -> None:
    """Two that differ look different."""
    assert period(timedelta(hours=hours)) == text


def test_links_say_names_as_they_are() -> None:
    """A star stays a star; what has a meaning in addresses is escaped."""
    assert link(pattern="a-*", idle="yes") == "#groups?pattern=a-*&idle=yes"
    assert link(pattern="a&b=c #+é") == "#groups?pattern=a%26b%3Dc%20%23%2B%C3%A9"


def test_owners_are_shown_where_they_are_known() -> None:
    """As a column and a filter; without owners there is neither."""
    plain = rich(rows=40)
    rows = [replace(row, owner="billing" if n % 2 else None) for n, row in enumerate(plain.rows)]
    owned = render(replace(plain, rows=rows))
    assert [row[13] for row in _rows(owned)] == [row.owner for row in rows]
    assert 'id="filter-owner"' in owned
    assert '<option value="billing">billing</option>' in owned
    assert '<th scope="col" data-kind="client">Owner</th>' in owned
    assert "Owner" not in _words(render(plain))


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
@pytest.mark.parametrize("before", [None, 0o600, 0o644, 0o640])
def test_the_mode_of_a_report(tmp_path: Path, before: int | None, mask: int) -> None:
    """A new file has what the umask leaves; one that is replaced keeps its mode. Nothing else is left in the folder."""
    file = tmp_path / "report.html"
    if before is not None:
        file.touch()
        file.chmod(before)
    was = os.umask(mask)
    try:
        _write(file, "new")
    finally:
        os.umask(was)
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == (0o666 & ~mask if before is None else before)
    assert list(tmp_path.iterdir()) == [file]
