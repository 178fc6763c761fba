"""The summary that `plan` prints for a policy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from group_hygiene.cli import plans
from group_hygiene.decide.plan import Conditions, Verdicts
from group_hygiene.model.evidence import Protections
from group_hygiene.reconcile import Observation
from group_hygiene.spec.policy import parse_policy
from tests.unit.make import match, policy_object, snapshot


@pytest.mark.parametrize(
    ("begins", "ends", "percent", "says"),
    [
        pytest.param(
            24, 48, 90, "with at most 40 per run and 90% of all groups (temporaryLimits): 40 in the", id="later"
        ),
        pytest.param(24, 48, 40, "and 40% of all groups (temporaryLimits): nothing (50 of 100 groups", id="too-few"),
        pytest.param(-1, 1, 90, "and delete them after 24h, 40 in the first run; from", id="now"),
        pytest.param(-48, -24, 90, None, id="over"),
    ],
)
def test_temporary_limits_are_named_until_they_are_over(begins: int, ends: int, percent: int, says: str | None) -> None:
    """Limits that begin later permit a deletion which the limits of today refuse."""
    now = datetime.now(UTC)
    times = {"from": (now + timedelta(hours=begins)).isoformat(), "until": (now + timedelta(hours=ends)).isoformat()}
    limits: dict[str, Any] = {"maxPerRun": 2, "temporaryLimits": {**times, "maxPerRun": 40, "maxPercent": percent}}
    policy = parse_policy(policy_object(mode="Enforce", delete=limits))
    verdicts = Verdicts.of(match(f"g{n}") for n in range(50))
    observation = Observation(snapshot(), {policy.key: verdicts}, Conditions(total=100), Protections(), None)
    planned = plans._plan_one(plans.Scan("kafka/main", [policy], observation), policy)
    would = plans._would(planned)
    assert (says or "LimitExceeded") in would
    assert ("temporaryLimits" in would) is (says is not None)
    suggested = any("for a first clean-up" in line for line in plans._table(planned, summary=False).heading)
    assert suggested is (percent == 40 or says is None)
