"""Pages that are made of the CRDs and of the commands: up to date, and complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from docsite import __main__ as docsite
from docsite import duration_rules
from docsite.kind_pages import reasons_of
from docsite.schema import parse_kind, rules
from group_hygiene.spec.fields import DURATION

ROOT = Path(__file__).parents[2]
KINDS = ("kafkaconnection", "grouppolicy", "grouprestore", "groupkeep")
SECTIONS = ["What it is", "Example", "kubectl get", "Spec", "Status", "Conditions", "Debugging"]


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_generated_pages_are_up_to_date() -> None:
    """As `make docs` would write them, and the rules of durations in crds/."""
    assert docsite.stale() == []


def test_durations_have_one_grammar() -> None:
    """The page has that of the code, and each rule on durations is generated from it."""
    assert f"\n{DURATION.pattern}\n" in _page("patterns.md")
    found = set()
    for text in duration_rules.crds().values():
        for rule in rules(parse_kind(yaml.safe_load(text)).schema["properties"]["spec"], "spec"):
            if "d)" in rule.expression and "h)" in rule.expression:
                found.add(rule.expression.removeprefix("!(").partition(")?$')")[0])
    assert found == {f"self.matches('.') && self.matches('^{DURATION.pattern}".removesuffix(")?")}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_the_same_sections(kind: str) -> None:
    """In the same order."""
    assert re.findall("^## (.+)$", _page(f"kinds/{kind}.md"), re.MULTILINE) == SECTIONS


def test_each_reason_of_ready_is_one_of_some_kind() -> None:
    """The pages of the kinds name all reasons that docs/reasons.md has for Ready, and no others."""
    rows = [row for kind in KINDS for row in re.findall(r"^\| `Ready` \|.*$", _page(f"kinds/{kind}.md"), re.MULTILINE)]
    assert len(rows) == len(KINDS)
    named = {reason for row in rows for reason in re.findall(r"`(\w+)`", row)} - {"Ready"}
    assert named == set(reasons_of("Ready"))


def test_each_condition_has_a_row() -> None:
    """Each that the CRD's description of `conditions` names has its row."""
    for kind in KINDS:
        page = _page(f"kinds/{kind}.md")
        (about,) = re.findall(r"^\| `conditions` \|.*$", page, re.MULTILINE)
        named = set(
            re.findall(
                r"\b(Ready|Reconciling|Stalled|\w+Blocked|\w+Ready|TopicsVisible|PatternsMatch|MayNeverMatch|Alerting|"
                r"AlertsDelivered|Kept)\b",
                about,
            )
        )
        rows = set(re.findall(r"^\| `(\w+)` \|", page.partition("## Conditions")[2], re.MULTILINE))
        assert named == rows
