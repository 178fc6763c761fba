"""What a policy's status says of its alerts."""

from __future__ import annotations

from typing import Any

import pytest

from group_hygiene import reasons, status
from group_hygiene.model import Keep, Verdict
from group_hygiene.policy import parse_policy
from tests.unit.make import NOW, delete, keep, match, plan, policy_object

FEW = parse_policy(policy_object("Alert", {}, alert={"groupsAtLeast": 2}))
BEFORE: dict[str, Any] = {"observedGeneration": 3, "conditions": []}


def alerting(verdicts: list[Verdict], before: dict[str, Any], held: int) -> tuple[str, str] | None:
    """Status and reason of Alerting after a run."""
    new = status.with_alerting({**BEFORE}, before, plan(FEW, verdicts), NOW, held)
    return next(((c["status"], c["reason"]) for c in new["conditions"] if c["type"] == "Alerting"), None)


def fired() -> dict[str, Any]:
    return status.with_alerting({**BEFORE}, {}, plan(FEW, [match("a"), match("b")]), NOW, 0)


UNKNOWN = keep("a", reasons.OFFSETS_UNKNOWN)


@pytest.mark.parametrize(
    ("verdicts", "fires", "held", "says"),
    [
        pytest.param([], False, 0, ("False", "NoGroupsMatched"), id="none"),
        pytest.param([match("a")], False, 0, ("False", "TooFewGroups"), id="too-few"),
        pytest.param([match("a"), match("b")], False, 0, ("True", "GroupsMatched"), id="enough"),
        pytest.param([match("a")], True, 0, ("False", "TooFewGroups"), id="too-few-now"),
        pytest.param([match("b"), UNKNOWN], True, 1, ("True", "GroupsMatched"), id="not-judged-now"),
        pytest.param([], True, 2, ("True", "GroupsMatched"), id="not-listed-now"),
        pytest.param([UNKNOWN], True, 1, ("False", "NoGroupsMatched"), id="too-few-with-what-was-not-judged"),
        pytest.param([UNKNOWN], False, 2, ("False", "NoGroupsMatched"), id="not-judged-and-did-not-alert"),
    ],
)
def test_alerting(verdicts: list[Verdict], fires: bool, held: int, says: tuple[str, str]) -> None:
    """True from so many groups on; what could not be judged ends it no more than it begins it."""
    assert alerting(verdicts, fired() if fires else {}, held) == says


def test_only_alert_policies_alert() -> None:
    """What others do, other conditions say."""
    new = status.with_alerting({**BEFORE}, {}, plan(delete(), [match("a")]), NOW, 0)
    assert status.is_alerting(new) is None


def test_delivery_names_who_can_not_be_told() -> None:
    """The first of them and how many more; nothing is said where nobody is to be told; other conditions stay."""
    ready = {**BEFORE, "conditions": [{"type": "Ready", "status": "True", "reason": "Succeeded"}]}
    failures = {
        "b": Keep(reasons.RECEIVER_FAILED, "receiver b: it answers 500"),
        "a": None,
        "c": Keep(reasons.RECEIVER_REFUSED, "receiver c: no"),
    }
    new = status.with_delivery(ready, {}, failures, NOW)
    assert [condition["type"] for condition in new["conditions"]] == ["Ready", "AlertsDelivered"]
    found = new["conditions"][1]
    assert (found["status"], found["reason"]) == ("False", "ReceiverFailed")
    assert found["message"] == "receiver b: it answers 500 (and 1 more of 3 receivers)"
    told = status.with_delivery(new, new, dict.fromkeys("abc"), NOW)
    assert (told["conditions"][1]["status"], told["conditions"][1]["reason"]) == ("True", "AllTold")
    assert status.needs_write(new, told, NOW)
    nobody = status.with_delivery(told, told, {}, NOW)
    assert [condition["type"] for condition in nobody["conditions"]] == ["Ready"]
