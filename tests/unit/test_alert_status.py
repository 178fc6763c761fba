"""What a policy's status says of its alerts."""

from __future__ import annotations

from typing import Any

import pytest

from group_hygiene.model import reasons
from group_hygiene.model.evidence import Verdict
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.conditions import needs_write
from group_hygiene.observe.of_objects import is_alerting, with_alerting, with_delivery
from group_hygiene.spec.policy import parse_policy
from tests.unit.make import NOW, delete, match, plan, policy_object, refused

FEW = parse_policy(policy_object("Alert", {}, notify={"groupsAtLeast": 2}))
BEFORE: dict[str, Any] = {"observedGeneration": 3, "conditions": []}


def alerting(verdicts: list[Verdict], before: dict[str, Any], goes_on: bool) -> tuple[str, str] | None:
    """Status and reason of Alerting after a run."""
    new = with_alerting({**BEFORE}, before, plan(FEW, verdicts), NOW, goes_on)
    return next(((c["status"], c["reason"]) for c in new["conditions"] if c["type"] == "Alerting"), None)


def fired() -> dict[str, Any]:
    return with_alerting({**BEFORE}, {}, plan(FEW, [match("a"), match("b")]), NOW, False)


UNKNOWN = refused("a", reasons.OFFSETS_UNKNOWN)


@pytest.mark.parametrize(
    ("verdicts", "fires", "goes_on", "says"),
    [
        pytest.param([], False, False, ("False", "NoGroupsMatched"), id="none"),
        pytest.param([match("a")], False, False, ("False", "TooFewGroups"), id="too-few"),
        pytest.param([match("a"), match("b")], False, False, ("True", "GroupsMatched"), id="enough"),
        pytest.param([match("a")], True, False, ("False", "TooFewGroups"), id="too-few-now"),
        pytest.param([match("b"), UNKNOWN], True, True, ("True", "GroupsMatched"), id="not-judged-now"),
        pytest.param([], True, True, ("True", "GroupsMatched"), id="not-listed-now"),
        pytest.param([UNKNOWN], True, False, ("False", "NoGroupsMatched"), id="too-few-with-what-was-not-judged"),
        pytest.param([UNKNOWN], False, True, ("False", "NoGroupsMatched"), id="not-judged-and-did-not-alert"),
    ],
)
def test_alerting(verdicts: list[Verdict], fires: bool, goes_on: bool, says: tuple[str, str]) -> None:
    """True from so many groups on; what could not be judged ends it no more than it begins it."""
    assert alerting(verdicts, fired() if fires else {}, goes_on) == says


def test_only_alert_policies_alert() -> None:
    """What others do, other conditions say."""
    new = with_alerting({**BEFORE}, {}, plan(delete(), [match("a")]), NOW, False)
    assert is_alerting(new) is None


def test_delivery_names_receivers_that_can_not_be_notified() -> None:
    """The first of them and how many more; nothing is said where nobody is to be told; other conditions stay."""
    ready = {**BEFORE, "conditions": [{"type": "Ready", "status": "True", "reason": "Succeeded"}]}
    failures = {
        "b": Refusal(reasons.RECEIVER_FAILED, "receiver b: it answers 500"),
        "a": None,
        "c": Refusal(reasons.RECEIVER_REFUSED, "receiver c: no"),
    }
    new = with_delivery(ready, {}, failures, NOW)
    assert [condition["type"] for condition in new["conditions"]] == ["Ready", "AlertsDelivered"]
    found = new["conditions"][1]
    assert (found["status"], found["reason"]) == ("False", "ReceiverFailed")
    assert found["message"] == "receiver b: it answers 500 (and 1 more of 3 receivers)"
    delivered = with_delivery(new, new, dict.fromkeys("abc"), NOW)
    assert (delivered["conditions"][1]["status"], delivered["conditions"][1]["reason"]) == ("True", "AllDelivered")
    assert needs_write(new, delivered, NOW)
    without_receivers = with_delivery(delivered, delivered, {}, NOW)
    assert [condition["type"] for condition in without_receivers["conditions"]] == ["Ready"]
