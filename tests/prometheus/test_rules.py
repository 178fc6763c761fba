"""The rules for Prometheus: promtool takes them, their cases hold, and what they name is there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from testing.sandbox.prometheus import Query, parse, promtool
from tests.metrics_table import series

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES, CASES = FOLDER / "rules.yaml", FOLDER / "rules_test.yaml"
RUNBOOK = "docs/runbook.md"
SEVERITIES = {"info", "warning", "critical"}


@cache
def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = [pytest.param(rule, id=rule["alert"]) for rule in _rules() if "alert" in rule]
RECORDED = {rule["record"]: rule["expr"] for rule in _rules() if "record" in rule}


def _query(expression: str) -> Query:
    """The parsed expression, with what is recorded written out."""
    for name, recorded in RECORDED.items():
        expression = re.sub(rf"{name}\[(\w+)\]", rf"({recorded})[\1:]", expression).replace(name, f"({recorded})")
    return parse([expression])[0]


def test_promtool_takes_the_rules() -> None:
    """Syntax, templates and Prometheus' own lints."""
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_the_cases_hold() -> None:
    """`promtool test rules`: each alert fires when it should, with the words it should have, and not earlier."""
    tested = promtool("test", "rules", CASES)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.slow
def test_the_cases_would_not_hold_for_other_rules(tmp_path: Path) -> None:
    """The cases are about these rules: with one threshold moved they fail."""
    other = RULES.read_text().replace("> 0.5 * max by", "> 0.7 * max by")
    assert other != RULES.read_text()
    (tmp_path / RULES.name).write_text(other)
    (tmp_path / CASES.name).write_text(CASES.read_text())
    tested = promtool("test", "rules", tmp_path / CASES.name)
    assert tested.returncode != 0
    assert "GroupHygieneScanSlow" in tested.stdout + tested.stderr


@pytest.mark.parametrize("rule", ALERTS)
def test_each_alert_has_both_cases(rule: dict[str, Any]) -> None:
    """One in which it fires, and one in which it does not although its metrics, where it needs any, are there."""
    firing: list[Any] = []
    quiet: list[Any] = []
    for test in yaml.safe_load(CASES.read_text())["tests"]:
        for case in test["alert_rule_test"]:
            if case["alertname"] == rule["alert"]:
                (firing if case["exp_alerts"] else quiet).append(test["input_series"])
    assert firing
    metrics = {metric for metric, _ in _query(rule["expr"]).selectors}
    assert any(metrics & {entry["series"].partition("{")[0] for entry in given} for given in quiet)


@pytest.mark.parametrize("rule", ALERTS)
def test_each_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    """How bad it is, what it is, what to do, and where more of that is written."""
    assert re.fullmatch(r"GroupHygiene([A-Z][a-z]+)+", rule["alert"])
    assert rule["labels"]["severity"] in SEVERITIES
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert not annotations["summary"].endswith(".")
    assert annotations["description"].endswith(".")
    assert annotations["runbook_url"] == f"{RUNBOOK}#{rule['alert'].lower()}"


def test_the_runbook_has_a_section_for_each_alert() -> None:
    """And none for what is no alert."""
    sections = re.findall(r"^## (\w+)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in _rules() if "alert" in rule]


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.get("alert") or rule["record"]) for rule in _rules()])
def test_rules_name_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    """Those of docs/runbook.md, which are those that a scrape of the operator has."""
    query, known = _query(rule["expr"]), series()
    # Not the operator's own: what scrapes gives the one, and who has several Kubernetes clusters the other.
    labels: set[str] = {"job", "cluster"}
    for metric, selected in query.selectors:
        assert metric in known
        assert selected <= known[metric]
        labels |= known[metric]
    assert query.grouping <= labels
    annotations = rule.get("annotations", {})
    assert set(re.findall(r"\$labels\.(\w+)", " ".join(annotations.values()))) <= query.grouping | {
        "namespace",
        "connection",
    }


def test_recorded_series_are_used() -> None:
    """No rule records what nobody asks for."""
    used = {metric for rule in _rules() if "alert" in rule for metric, _ in parse([rule["expr"]])[0].selectors}
    assert used >= set(RECORDED)


def test_the_prometheusrule_holds_the_same() -> None:
    """It is made of the other: `make rules`."""
    derived = (FOLDER / "prometheusrule.yaml").read_text()
    groups = RULES.read_text().partition("\ngroups:\n")[2].splitlines()
    assert derived.partition("\nspec:\n  groups:\n")[2].splitlines() == [f"  {line}" if line else "" for line in groups]
    assert yaml.safe_load(derived)["spec"] == yaml.safe_load(RULES.read_text())


def test_the_cases_are_of_these_rules() -> None:
    """Not of a copy."""
    assert yaml.safe_load(CASES.read_text())["rule_files"] == [RULES.name]
