"""Patterns that select no group, and those that a dot makes narrower: what plan, doctor and a condition say of them."""

from typing import Any

import pytest
from msgspec import structs

from group_hygiene.engine import pattern_notes as module
from group_hygiene.engine.pattern_notes import pattern_notes, unused_by_field, unused_refusal
from group_hygiene.spec.connection import Connection, parse_connection
from group_hygiene.spec.policy import parse_policy
from tests.unit.make import policy_object

GROUPS = ["pay-1", "pay.2", "pay.a.b", "orders", "team-a.x", "x" * 9]


def _connection(**spec: Any) -> Connection:
    return parse_connection({"metadata": {"name": "main"}, "spec": {"bootstrapServers": ["a:9092"], **spec}})


def _access(*groups: str) -> dict[str, Any]:
    return {"access": [{"namespaces": {"names": ["a"]}, "groups": list(groups), "actions": ["Alert"]}]}


@pytest.mark.parametrize(
    ("spec", "match", "expected"),
    [
        pytest.param({"protect": ["orders", "pay-*", "*.x", "*"]}, {}, [], id="all-are-used"),
        pytest.param({"protect": ["order", "orders"]}, {}, ["spec.protect[0]: order selects no group"], id="protect"),
        pytest.param(
            {"protect": ["pay.*"]},
            {},
            [r"spec.protect[0]: pay.*; pay* would select 1 more (a literal dot is \.)"],
            id="dot",
        ),
        pytest.param({"protect": [r"pay\.*"]}, {}, [], id="literal-dot"),
        pytest.param({"protect": ["team-a.*"]}, {}, [], id="dot-that-narrows-nothing"),
        pytest.param(
            {"protect": ["orders.*"]},
            {},
            [r"spec.protect[0]: orders.* selects no group; orders* would select 1 more (a literal dot is \.)"],
            id="unused-by-a-dot",
        ),
        pytest.param(
            {"protect": ["*y.*"]},
            {},
            [r"spec.protect[0]: *y.*; *y* would select 1 more (a literal dot is \.)"],
            id="dot-behind-a-star",
        ),
        pytest.param(
            _access("{namespace}.*", "team-b.*", "{uuid}"),
            {},
            [
                "spec.access[0].groups[1]: team-b.* selects no group",
                "spec.access[0].groups[2]: {uuid} selects no group",
            ],
            id="access",
        ),
        pytest.param(
            {"owners": [{"name": "a", "groups": ["orders", "a"]}]},
            {},
            ["spec.owners[0].groups[1]: a selects no group"],
            id="owners",
        ),
        pytest.param(
            {},
            {"exclude": ["a", "pay-*"]},
            ["GroupPolicy kafka/unused spec.match.exclude[0]: a selects no group"],
            id="exclude",
        ),
        pytest.param({}, {"groups": ["none", "orders"]}, [], id="groups-may-be-deleted"),
        pytest.param(
            {},
            {"groups": ["pay.*"]},
            [r"GroupPolicy kafka/unused spec.match.groups[0]: pay.*; pay* would select 1 more (a literal dot is \.)"],
            id="dot-in-groups",
        ),
    ],
)
def test_what_is_said(spec: dict[str, Any], match: dict[str, Any], expected: list[str]) -> None:
    """Each pattern by its place, and only those that there is something to say about."""
    policy = parse_policy(policy_object(match={"groups": ["*"], **match}))
    found = pattern_notes(_connection(**spec), [structs.replace(policy, namespace="kafka", name="unused")], GROUPS)
    assert [str(note) for note in found] == expected


def test_numbers_and_reasons() -> None:
    """A metric counts the unused ones by field; the condition names them, those first that select nothing."""
    nothing = _connection(protect=["pay.*", "a", "b"], **_access("c"))
    found = pattern_notes(nothing, [], GROUPS)
    assert unused_by_field(found) == {"protect": 2, "exclude": 0, "access": 1, "owners": 0}
    why = unused_refusal(found)
    assert why.reason == "PatternsUnused"
    assert why.message.startswith("spec.protect[1]: a selects no group, spec.protect[2]: b selects no group")
    assert unused_refusal(pattern_notes(_connection(protect=["pay.*"]), [], GROUPS)).reason == "DotBeforeStar"
    assert unused_refusal([]).reason == "PatternsMatch"
    # Of an empty cluster nothing can be said.
    assert pattern_notes(nothing, [], []) == []


def test_comparisons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a pattern that was not compared with all names nothing is said. Each star costs as much as a name."""
    monkeypatch.setattr(module, "_COMPARISONS", 20)
    found = pattern_notes(_connection(protect=["*a1", "*a2", "*a3", "b"]), [], [f"x{i}" for i in range(7)])
    assert [note.pattern for note in found] == ["*a1"]


def test_a_placeholder_costs_as_much_as_a_name_has_characters(
    monkeypatch: pytest.MonkeyPatch, compared: list[str]
) -> None:
    """It is searched at each of them: a tenant's exclude is compared with the ids of all groups."""
    monkeypatch.setattr(module, "_COMPARISONS", 1_000)
    pattern_notes(_connection(protect=["*a{digits}b*"]), [], [f"{i:0100}" for i in range(500)])
    assert len(compared) < 15
