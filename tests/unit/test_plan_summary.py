"""What `plan` says in short: how long a first clean-up takes, the limits for it, and whose groups match."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from group_hygiene.cli.plans import by_owner, first_clean_up, owner_line
from group_hygiene.engine.plan import RunConditions, Verdicts, make_plan, max_deletions
from group_hygiene.spec.policy import Limits, parse_policy
from tests.unit.make import NOW, match, plan, policy_object

_TUESDAYS = [{"days": ["Tuesday"], "from": "20:00", "to": "23:00"}]
_HEADING = "if they are right, until they are deleted (1 run, 1h)"
_CONNECTION = "in KafkaConnection kafka/main: limits: {maxPerRun: 3000, maxPercent: 75}"


@pytest.mark.parametrize(
    ("delete", "limits", "total", "lines"),
    [
        pytest.param(
            {},
            Limits(50, 10),
            4_000,
            [
                f"{_HEADING}: delete: {{maxPerRun: 3000, maxPercent: 75}}",
                f"and {_CONNECTION}",
            ],
            id="both-limits-block",
        ),
        pytest.param(
            {"maxPerRun": 3_000, "maxPercent": 75}, Limits(50, 10), 4_000, [f"{_HEADING}: {_CONNECTION}"],
            id="the-connection-blocks",
        ),
        pytest.param(
            {},
            None,
            30_000,
            [
                "with these limits: 60 runs, 60h",
                f"{_HEADING}: delete: {{maxPerRun: 3000, maxPercent: 20}}",
            ],
            id="slow",
        ),
        pytest.param(
            {"maxPercent": 80, "windows": _TUESDAYS},
            None,
            4_000,
            [
                "with these limits: 60 runs, 60h of open windows",
                f"{_HEADING.removesuffix(')')} of open windows): delete: {{maxPerRun: 3000, maxPercent: 80}}",
            ],
            id="windows",
        ),
        pytest.param({"maxPerRun": 3_000, "maxPercent": 80}, None, 4_000, [], id="one-run"),
        pytest.param({}, None, None, [], id="total-not-known"),
    ],
)  # fmt: skip
def test_first_clean_up(delete: dict[str, Any], limits: Limits | None, total: int | None, lines: list[str]) -> None:
    """For 3,000 groups and interval 1h."""
    policy = parse_policy(policy_object(delete=delete, interval="1h"))
    conditions = RunConditions(limits=limits, total=total)
    made = make_plan(policy, Verdicts.of(map(match, map(str, range(3_000)))), {}, conditions, NOW)
    assert first_clean_up(made, conditions) == lines


def test_proposed_limits_are_enough() -> None:
    """With both, the first run deletes all groups."""
    spec = policy_object(delete={"windows": _TUESDAYS})
    conditions = RunConditions(limits=Limits(50, 10, min_groups=100), total=4_000)
    verdicts = Verdicts.of(map(match, map(str, range(3_000))))
    first, second = first_clean_up(make_plan(parse_policy(spec), verdicts, {}, conditions, NOW), conditions)
    own = yaml.safe_load(first.partition("windows): ")[2])["delete"]
    raised = yaml.safe_load(second.partition("main: ")[2])["limits"]
    spec["spec"]["delete"] |= own
    policy = parse_policy(spec)
    new = RunConditions(limits=Limits(raised["maxPerRun"], raised["maxPercent"], min_groups=100), total=4_000)
    made = make_plan(policy, verdicts, {}, new, NOW)
    assert (made.refusal, max_deletions(policy.limits, new)) == (None, 3_000)


def test_matches_by_owner() -> None:
    """Those with the most first; nothing where no match has an owner."""
    owned = {"a": "billing", "b": "billing", "c": "", "d": "orders"}
    policy = parse_policy(policy_object())
    made = plan(policy, [match(name, owner=owner) for name, owner in owned.items()])
    assert [owner_line(found) for found in by_owner(made)] == [
        "owner billing: 2 groups",
        "no owner: 1 group",
        "owner orders: 1 group",
    ]
    assert by_owner(plan(policy, [match("a")])) == []
