"""What a policy of another namespace shows of a run: nothing of other teams, whatever the run met."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from group_hygiene import reasons
from group_hygiene.errors import SecretProblem
from group_hygiene.model import Keep, Outcome, OutcomeKind
from group_hygiene.snapshot import Coverage
from group_hygiene.status import Problem, build_status, connection_not_ready, redact_problem, redact_run
from group_hygiene.status.redaction import OWN
from tests.unit.make import NOW, delete, keep, match, plan, snapshot

SECRETS = ("payroll-live", "orders.private", "Secret kafka/storage", "s3://bucket-of-payroll", "417 of 2089")
_FOREIGN = f"broker 1: {', '.join(SECRETS)}"
_CONNECTION = "kafka/main"


@pytest.mark.parametrize("reason", sorted(reasons.all_reasons() - OWN))
def test_no_message_but_of_the_groups_own_checks(reason: str) -> None:
    """Of a group, a run, its tables and an outcome; a reason that is new is redacted until somebody lists it."""
    policy = delete(enforce=True)
    refusals = (Keep(reason, _FOREIGN),)
    made = plan(policy, [match("a"), match("b"), keep("c", reason, _FOREIGN)], refusals=refusals)
    made = replace(made, unmarking={"d": Keep(reason, _FOREIGN)})
    look = snapshot(incomplete=(_FOREIGN,), coverage=Coverage(Keep(reason, _FOREIGN), 0, 50, NOW))
    outcomes = [Outcome("a", OutcomeKind.FAILED, reason, _FOREIGN)]
    shown, done, seen = redact_run(made, outcomes, look, _CONNECTION)
    asks = replace(policy, when=replace(policy.when, idle_for=policy.when.unchanged_for))
    for of in (look, snapshot()):
        incomplete = of is look
        text = json.dumps(build_status(asks, {}, shown, done, seen if incomplete else of))
        assert [secret for secret in SECRETS if secret in text] == []
        assert reason in text
    assert _FOREIGN not in repr((shown.unmarking, shown.refusal, done, seen.incomplete, seen.coverage))


def test_the_connections_own_namespace_sees_all() -> None:
    """It is told what is wrong; of others the reason alone, that somebody can be asked for."""
    error = SecretProblem("Secret kafka/storage does not exist")
    assert "Secret kafka/storage" in connection_not_ready(error, "kafka", _CONNECTION).message
    assert connection_not_ready(error, "team", _CONNECTION).message == (
        "KafkaConnection kafka/main is not ready: SecretNotFound"
    )
    problem = Problem(reasons.LEDGER_OWNED, _FOREIGN)
    assert redact_problem(problem, "kafka", _CONNECTION) == problem
    assert redact_problem(problem, "team", _CONNECTION).message == "the owner of KafkaConnection kafka/main can see why"
