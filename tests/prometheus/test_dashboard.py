"""The dashboard for Grafana: Grafana's own types read all of it, and its queries ask for what is there."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from testing.sandbox import grafana
from testing.sandbox.prometheus import parse
from tests.metrics_table import series

FILE = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboard.json"
ROWS = ["Overview", "Policies", "Deletions", "Connections and scans", "Evidence and ledger", "The operator itself"]
VARIABLES = ["datasource", "namespace", "connection", "policy"]
# Every Prometheus client has them; and what Prometheus adds to each series that it scrapes.
OF_THE_PROCESS = {"process_resident_memory_bytes": frozenset[str](), "process_cpu_seconds_total": frozenset[str]()}
OF_THE_SCRAPE = {"job", "instance"}
_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


@cache
def _dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


PANELS = [panel for panel in _dashboard()["panels"] if panel["type"] != "row"]
EACH_PANEL = pytest.mark.parametrize("panel", [pytest.param(panel, id=panel["title"]) for panel in PANELS])


def _lost(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Where what was understood is not what is written; an empty list is as good as none."""
    if isinstance(ours, dict):
        other = theirs if isinstance(theirs, dict) else {}
        return [lost for key, value in ours.items() for lost in _lost(value, other.get(key), f"{path}.{key}")]
    if isinstance(ours, list) and ours:
        if not isinstance(theirs, list) or len(ours) != len(theirs):
            return [path]
        return [lost for i, value in enumerate(ours) for lost in _lost(value, theirs[i], f"{path}[{i}]")]
    return [] if ours == theirs or (ours == [] and theirs is None) else [path]


def test_grafanas_types_read_it_whole() -> None:
    """Grafana knows each field, down to the options of panels and the queries, and its type; none is lost."""
    checked = grafana.check(FILE.read_text())
    assert checked.returncode == 0, checked.stderr
    assert _lost(_dashboard(), json.loads(checked.stdout)) == []


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        pytest.param('"showLegend"', '"showLegends"', "unexpected field 'showLegends'", id="unknown-option"),
        pytest.param('"legendFormat"', '"legend"', "unexpected field 'legend'", id="unknown-field-of-a-query"),
        pytest.param('"fillOpacity": 8', '"fillOpacity": "8"', "cannot unmarshal string", id="wrong-type"),
        pytest.param('"refresh": "1m"', '"fresh": "1m"', "unexpected field 'fresh'", id="unknown-field"),
    ],
)
def test_the_types_are_strict(before: str, after: str, complaint: str) -> None:
    """That they read it means something: a misspelt field or a wrong type is refused, however deep."""
    assert before in FILE.read_text()
    checked = grafana.check(FILE.read_text().replace(before, after))
    assert checked.returncode != 0
    assert complaint in checked.stderr


def test_rows_and_variables() -> None:
    """What one looks for first is on top; one chooses the data source, and whose policies and connections to see."""
    dashboard = _dashboard()
    assert [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"] == ROWS
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == VARIABLES


def test_panels_have_places_of_their_own() -> None:
    """No two panels overlap, and none reaches beyond the 24 columns."""
    taken: dict[tuple[int, int], str] = {}
    for panel in _dashboard()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for cell in (
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ):
            assert cell not in taken, f"{panel['title']} lies on {taken[cell]}"
            taken[cell] = panel["title"]
    ids = [panel["id"] for panel in _dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


@EACH_PANEL
def test_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    """A title, a sentence, a unit where there are numbers, and queries to the data source that was chosen."""
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["targets"]
    for query in (panel, *panel["targets"]):
        assert query["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    if panel["type"] == "timeseries":
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert all("legendFormat" in query for query in panel["targets"])


@EACH_PANEL
def test_queries_ask_for_what_is_there(panel: dict[str, Any]) -> None:
    """Prometheus' own parser reads each, and it names metrics and labels of docs/runbook.md only."""
    known = series() | OF_THE_PROCESS
    for target in panel["targets"]:
        # What Grafana puts in: the time that is shown.
        (query,) = parse([target["expr"].replace("$__range", "1d")])
        assert query.error == ""
        labels: set[str] = set(OF_THE_SCRAPE)
        for metric, selected in query.selectors:
            assert metric in known
            assert selected <= known[metric]
            labels |= known[metric]
        assert query.grouping <= labels
        grouped = query.grouping | (OF_THE_SCRAPE if not query.grouping - OF_THE_SCRAPE else set())
        assert set(re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))) <= grouped


def test_variables_ask_for_what_is_there() -> None:
    """So do the queries that fill the lists from which one chooses."""
    known = series()
    queries = [entry["query"]["query"] for entry in _dashboard()["templating"]["list"] if entry["type"] == "query"]
    assert len(queries) == 3
    for text in queries:
        found = _VALUES.fullmatch(text)
        assert found is not None
        (query,) = parse([found[1]])
        assert query.error == ""
        ((metric, selected),) = query.selectors
        metrics = [metric] if metric else re.findall(r"group_hygiene_\w+", found[1])
        assert metrics
        for name in metrics:
            assert selected | {found[2]} <= known[name]


def test_every_metric_is_on_it() -> None:
    """What is worth counting is worth a look, but for one that only alerts need."""
    shown = {metric for panel in PANELS for target in panel["targets"] for metric in re.findall(r"\w+", target["expr"])}
    ends = {name for name in series() if not name.endswith(("_sum", "_count"))}
    assert ends - shown == set()
