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

from group_hygiene.cli.spark_commands import _write
from group_hygiene.errors import UsageError
from group_hygiene.observe.findings import Findings, Share, decode, duration, encode, period, printable
from group_hygiene.observe.page import by_day, curve, draw, render, strips
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


def _plain(page: str) -> str:
    """The page without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", page))


def test_names_are_text_wherever_they_stand() -> None:
    """In tables, charts, titles, links, policies: no name makes an element, an attribute or an end of a script."""
    hostile = rich(rows=40, names=HOSTILE)
    usual = rich(rows=40, names=[f"usual-{n}" for n in range(len(HOSTILE))])
    hostile = replace(hostile, suggestions=[suggestion(name) for name in HOSTILE], cluster_id=HOSTILE[0])
    hostile = replace(hostile, committers=[(HOSTILE[0], 7)])
    usual = replace(usual, suggestions=[suggestion(f"usual-{n}") for n in range(len(HOSTILE))])
    usual = replace(usual, committers=[("usual", 7)])
    kinds, expected = (
        sorted((tag, sorted(attributes)) for tag, attributes in _Elements(render(findings)).elements)
        for findings in (hostile, usual)
    )
    assert kinds == expected
    page = _Elements(render(hostile))
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert f'    groups: ["{HOSTILE[0]}"]' in "".join(page.texts["pre"])
    for tag in ("span", "title"):
        assert HOSTILE[0] in page.texts[tag], tag


def _rows(page: str) -> list[Any]:
    """The groups of all rows of the page."""
    return [row for unit in _data(page)["units"] for row in unit["rows"]]


def test_nothing_invisible_comes_from_a_name() -> None:
    """What turns the text around, breaks a line or is not seen stands there as what it is."""
    page = render(rich(rows=40, names=HOSTILE))
    assert "\u202e" not in page
    assert [row[0] for row in _rows(page)].count("from-the-\\u202eright-to-left") == 1
    assert "client 'two\\nlines' from 10.1.2.3" in [row[5] and row[5].partition(" and ")[0] for row in _rows(page)]
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
    page = render(replace(findings, stale=stale, stale_total=len(stale), suggestions=suggestions), "list.csv")
    size = len(page.encode())
    assert size < 3 * _MB
    units = len(_data(page)["units"])
    assert 50 < units < 5000
    assert f"This page has {units:,} of 5,412 rows, those with the most idle offsets." in _words(page)
    assert "All 100,000 groups are in the list beside this page." in _plain(page)
    assert f"of {len(suggestions)} are shown." in _words(page)


@pytest.mark.slow
def test_groups_of_large_units_are_cut() -> None:
    """The row says how many of its groups it lists."""
    findings = rich(rows=5000)
    names = [f"{n:05}".ljust(249, "é") for n in range(5000)]
    long = replace(findings, rows=[replace(row, group=name) for row, name in zip(findings.rows, names, strict=True)])
    page = render(long)
    assert len(page.encode()) < 3 * _MB
    first = _data(page)["units"][0]["rows"]
    assert f"This page lists {len(first):,} of the groups, longest idle first." in _words(page)
    assert len(_rows(page)) < 5000 == len(_rows(render(findings)))


def test_the_same_findings_make_the_same_page() -> None:
    """To the byte: two reports differ where the groups do."""
    assert render(rich(rows=30, names=HOSTILE)) == render(rich(rows=30, names=HOSTILE))
    assert render(rich(rows=30)) != render(rich(rows=31))


def test_a_cluster_without_groups_has_a_page_of_sentences() -> None:
    """Nothing to draw, nothing to list: each section says so, without a chart or a table."""
    page = render(empty())
    words, elements = _words(page), [tag for tag, _ in _Elements(page).elements]
    assert not {"svg", "table", "figure", "form", "aside"} & set(elements)
    assert elements.count("section") == 5
    for sentence in (
        "There are no groups",
        "The tables hold no group.",
        "No policy to suggest",
        "Nothing to draw",
        "No offsets expire within a week",
        "No group in use has left a topic",
        "not known",
        "of unknown length",
    ):
        assert sentence in words, sentence


@pytest.mark.slow
def test_days_before_the_history_are_not_drawn() -> None:
    """What was there before is not known; of one day there is no curve."""
    findings = rich(rows=20)
    assert "1 Sep 2026" in by_day(findings)
    later = by_day(replace(findings, began=READ_AT - timedelta(days=3)))
    assert "17 Nov 2026" in later
    assert "Sep" not in later
    assert by_day(replace(findings, began=READ_AT)) == ""


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
    page = render(rich(rows=300, names=HOSTILE), "a list.csv")
    found = set(re.findall(r"""[\w:-]*=?["']?(?:https?:)?//[\w.][^\s"'<]*""", page))
    assert found == {'xmlns="http://www.w3.org/2000/svg'}
    elements = _Elements(page)
    assert set(elements.attributes("src", "srcset", "action", "data", "xlink:href", "style")) == set()
    others = {target for target in elements.attributes("href") if not target.startswith("#")}
    assert others == {"data:,", "a%20list.csv"}
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


@pytest.mark.slow
def test_bars_lead_to_their_rows() -> None:
    """A chart's pieces have names, and those of a pattern are links to its row."""
    findings = rich(rows=300, owners=True)
    drawn = draw(findings)
    assert set(drawn) == {"days", "owners", "units", "topics", "committers", "expiring"}
    found = [
        (attributes["aria-label"], attributes["href"])
        for tag, attributes in _Elements(drawn["units"]).elements
        if tag == "a"
    ]
    n, unit = max(enumerate(findings.units), key=lambda one: one[1].idle_offsets)
    name = f"{unit.pattern} ({unit.owner})" if unit.owner else unit.pattern
    assert (f"{name}: idle: {unit.idle_offsets:,} offsets", f"#unit-{n}") in found
    assert all(name for name, _ in found)
    assert {target for _, target in found} <= {f"#unit-{n}" for n in range(len(findings.units))}


def test_a_curve_has_each_period_and_marks_the_suggested_one() -> None:
    """Deletions and regrets of each idleFor; of a policy without trials there is none."""
    made = suggestion("a-*")
    svg = curve(made)
    for wait, deleted, regret in made.tried:
        assert f"idleFor {period(wait)}, deleted: {deleted:,} groups" in svg
        assert f"idleFor {period(wait)}, used again later: {regret:,} group" in svg
    assert svg.count("stroke-dasharray") == 1
    assert curve(replace(made, idle_for=None)).count("stroke-dasharray") == 0
    assert curve(replace(made, tried=made.tried[:1])) == ""


def test_the_life_of_a_regretted_group_is_a_strip() -> None:
    """The days of its commits, the deletion, and its next use."""
    (life,) = suggestion("a-*").lives
    svg = strips(suggestion("a-*"))
    assert svg.count(f"{life.group}: commits, ") == len(life.used)
    assert f"{life.group}: deleted, Sat 31 Oct" in svg
    assert f"{life.group}: used again later, Wed 11 Nov" in svg
    assert strips(replace(suggestion("a-*"), lives=())) == ""


@pytest.mark.parametrize("lives", [1, 3])
def test_lives_are_drawn_over_their_own_time(lives: int) -> None:
    """The first mark is at the left, the last one at the right, and all are above the axis. Each mark has an area."""
    (life,) = suggestion("a-*").lives
    made = replace(suggestion("a-*"), lives=[replace(life, group=f"a-{n}") for n in range(lives)])
    svg = strips(made)
    marks = re.findall(r'translate\(([\d.]+),([\d.]+)\)" d="([^"]+)" fill="[^"]+"[^>]*><title>a-', svg)
    assert len(marks) == lives * (len(life.used) + 2)
    x, y = ([float(mark[n]) for mark in marks] for n in (0, 1))
    assert (min(x), max(x) > 300) == (0, True)
    axis = max(float(at) for at in re.findall(r"translate\(0.5,([\d.]+)\)", svg))
    assert max(y) < axis - 10
    assert 'fill="var(--live)"' in svg
    assert not re.findall(r'd="M-[\d.]+,0L[\d.]+,0"', svg)


def test_a_policy_has_its_command_and_its_row_a_link() -> None:
    """The file of the command is named as the policy; the row of the pattern leads to it."""
    page = render(rich(rows=300))
    start = "group-hygiene plan -f idle-groups.yaml --activity"
    assert f"{start} YOUR-WAREHOUSE --bootstrap-server YOUR-KAFKA:9092" in _words(page)
    assert "Save this file, replace YOUR-WAREHOUSE and YOUR-KAFKA:9092, and run the command:" in _plain(page)
    known = render(rich(rows=30), "", None, "/data/all groups", ("a:9092", "b:9092"))
    assert f"{start} '/data/all groups' --bootstrap-server a:9092,b:9092" in _words(known)
    assert "Save this file and run the command: Copy idle-groups.yaml" in _plain(known)
    assert "YOUR-" not in known
    assert '<a href="#policy-0">4 d</a>' in page
    assert '<a href="#policy-2">none fits</a>' in page


def test_what_idle_groups_cost() -> None:
    """Their offsets, partitions and heap."""
    findings = replace(rich(rows=100), idle=10, idle_offsets=1_048_576, offsets=2_000_000, left=77)
    words = _plain(render(findings))
    left = "Partitions only they read77 have no offsets of other groups"
    for text in ("10 of 2,000", "1,048,576 of 2,000,000", left, "2,400.0 MB"):
        assert text in words, text
    none = _plain(render(replace(findings, left=0)))
    assert "Partitions only they read0 all have offsets of other groups" in none


def test_what_changed_since_an_earlier_report() -> None:
    """Of all groups, and of each row that the earlier one had; another one is said to be new only if it had all."""
    now = rich(rows=300)
    old = replace(now, idle=now.idle - 30, groups=now.groups + 5, read_at=READ_AT - timedelta(days=7), others=0)
    first, second, *rest = now.units
    old = replace(old, units=[replace(first, idle=first.idle + 12), *rest])
    before = decode(encode(old).encode(), "old.json")
    page = render(now, before=before)
    words = _words(page)
    assert f"+30 idle groups (there were {old.idle:,})" in words
    assert "\u22125 groups." in words
    assert f"{now.came:,} groups came and {now.went:,} went; {now.cleaned:,} of these were deleted" in words
    assert page.count('<small class="change">\u221212</small>') == 1
    assert page.count("new here") == 1
    assert "new here" not in render(now, before=decode(encode(replace(old, others=3)).encode(), "old.json"))
    assert "Since the report of" not in _words(render(now))
    assert second.key not in {unit.key for unit in before.units}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("{", "old.json is not the JSON that", id="no-json"),
        pytest.param("{}", "old.json is not the JSON that", id="other-json"),
        pytest.param(encode(empty()).replace('"version": 1', '"version": 2'), "of another version", id="version"),
    ],
)
def test_a_file_that_is_no_earlier_report(text: str, says: str) -> None:
    """An error names the file."""
    with pytest.raises(UsageError, match=says):
        decode(text.encode(), "old.json")


def test_a_pattern_shows_the_program_that_its_groups_look_like() -> None:
    """Of the catalogue; other patterns show none."""
    page = render(rich(rows=300))
    assert page.count("<small>looks like ") == 2
    for program in ("kafka-console-consumer without --group", "Kafka Connect"):
        assert f"<small>looks like {program}</small>" in page


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


def test_owners_are_shown_where_they_are_known() -> None:
    """In the facts, as a column and as a filter; without owners there is none of these."""
    owned = render(rich(rows=40, owners=True))
    assert 'id="filter-owner"' in owned
    assert '<option value="=a-team-with-a-long-name">a-team-with-a-long-name</option>' in owned
    assert '<option value="=">no owner</option>' in owned
    assert '<th scope="col" data-sort="1">Owner</th>' in owned
    assert "a-team-with-a-long-name" in owned[: owned.index("<main")]
    plain = render(rich(rows=40))
    assert '<th scope="col" data-sort="1">' not in plain
    assert 'id="filter-owner"' not in plain


@pytest.mark.parametrize(
    ("idle", "shown"),
    [
        pytest.param([9, 8, 7, 6], "9 o0, 8 o1, 7 o2, 6 o3", id="all"),
        pytest.param([9, 8, 7, 6, 5, 0], "9 o0, 8 o1, 7 o2, 11 others (2)", id="others"),
        pytest.param([0], "none", id="none"),
    ],
)
def test_the_owners_of_all_idle_groups_are_counted(idle: list[int], shown: str) -> None:
    """Those that are not named are counted together."""
    owners = [Share(f"o{n}", count, 10) for n, count in enumerate(idle)]
    assert f"Owners of idle groups{shown}" in _plain(render(replace(rich(rows=10), owners=owners)))


def test_a_policy_names_the_owners_of_its_groups() -> None:
    """With the number of groups of each, if there are several."""
    findings = rich(rows=300, owners=True)
    of = {unit.owner: unit.groups for unit in findings.units if unit.pattern == "notebook-{uuid}"}
    card = _plain(render(findings)).partition("notebook-{uuid} 41,200 groups")[2]
    assert card.startswith(f" of a-team-with-a-long-name ({of['a-team-with-a-long-name']:,}), no owner ({of['']:,}).")
    one = replace(findings, units=[unit for unit in findings.units if unit.owner])
    assert "notebook-{uuid} 41,200 groups of a-team-with-a-long-name." in _plain(render(one))
    assert "notebook-{uuid} 41,200 groups." in _plain(render(rich(rows=300)))


def test_patterns_without_a_policy_take_one_line() -> None:
    """The heading counts the policies; the patterns that none fits are below, closed, and the rows say why."""
    page = render(rich(rows=300))
    assert "2 policies to try" in _plain(page)
    ready, closed, cards = re.sub(r"\s+", " ", page).partition(
        "<details><summary>No policy fits 1 pattern that was tried"
    )
    assert closed
    assert [part.count("<article ") for part in (ready, cards)] == [2, 1]
    assert "No policy: groups were used again after each idleFor." in _plain(cards)


def test_a_row_without_a_policy_has_the_reason() -> None:
    """Why none was tried, why none fits, or that the page has no room for it."""
    findings = rich(rows=300, names=["billing"])
    words = _plain(render(findings))
    for cell in (
        "none fits groups were used again after each idleFor",
        "\u2013 fewer than 10 idle groups",
        "\u2013 not tried",
    ):
        assert cell in words, cell
    many = [suggestion(name) for name in [*map(str, range(20)), "notebook-{uuid}"]]
    assert "\u2013 not on this page" in _plain(render(replace(findings, suggestions=many)))


def test_counts_are_of_what_they_name() -> None:
    """Distinct topics, and pairs of a group and a topic; a unit without groups ends its sentence at once."""
    findings = rich(rows=300)
    words = _plain(render(findings))
    assert "For 12 topics, groups in use have committed nothing" in words
    assert "These are 74 pairs of a group and a topic; 60 are listed." in words
    gone = replace(findings.units[0], groups=0, offsets=0)
    assert "0 groups exist. Since" in _plain(render(replace(findings, units=[gone])))


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
        _write(file, b"new")
    finally:
        os.umask(was)
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == (0o666 & ~mask if before is None else before)
    assert list(tmp_path.iterdir()) == [file]
