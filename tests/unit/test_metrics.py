"""Metrics: names as Prometheus wants them, labels without bound never, and nothing left of what is gone."""

import re
from collections.abc import Iterator

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.samples import Sample

from group_hygiene import reasons
from group_hygiene.metrics import Metrics
from group_hygiene.model import Keep, Outcome, OutcomeKind
from group_hygiene.plan import Plan
from tests.unit.make import delete, keep, mark, match, plan

_LABELS = {"namespace", "policy", "connection", "reason", "outcome", "kind", "change", "type", "result", "le"}
_POLICY = {"namespace": "kafka", "policy": "litter"}


def _plan(refused: bool = False) -> Plan:
    refusals = (Keep(reasons.TOPICS_HIDDEN, "none"),) if refused else ()
    verdicts = [match("secret-a"), match("secret-b"), keep("secret-c"), keep("secret-d", reasons.CAUGHT_UP)]
    policy = delete(enforce=True)
    marks = {name: mark(policy, name) for name in ("secret-a", "secret-b", "secret-gone")}
    return plan(policy, verdicts, marks, refusals=refusals)


def _outcomes() -> list[Outcome]:
    return [
        Outcome("secret-a", OutcomeKind.DELETED, reasons.DELETED, "deleted"),
        Outcome("secret-b", OutcomeKind.KEPT, reasons.BECAME_ACTIVE, "secret-b is in use"),
    ]


@pytest.fixture
def metrics() -> Metrics:
    """Metrics in which everything happened once."""
    metrics = Metrics()
    metrics.policy_ran(_plan(), _outcomes(), 1_900_000_000.0)
    metrics.scanned("kafka", "main", 0.3, complete=True)
    metrics.status_written("grouppolicies")
    metrics.alerting("kafka", "litter", True)
    metrics.alert_sent("kafka", "main", "slack", arrived=False)
    return metrics


def _families(metrics: Metrics) -> Iterator[Metric]:
    return iter(metrics.registry.collect())


def _samples(metrics: Metrics) -> Iterator[Sample]:
    return (sample for family in _families(metrics) for sample in family.samples)


def _value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"group_hygiene_{name}", labels)


def test_labels_never_name_groups(metrics: Metrics) -> None:
    """Labels have bounded values: no metric names a group, not in a label, not in a value."""
    assert {label for sample in _samples(metrics) for label in sample.labels} <= _LABELS
    assert b"secret" not in generate_latest(metrics.registry)


def test_names_follow_the_conventions(metrics: Metrics) -> None:
    """One prefix, snake case, base units at the end, _total for counters and nothing else, and a help text."""
    families = list(_families(metrics))
    assert len(families) == 15
    for family in families:
        assert re.fullmatch(r"group_hygiene(_[a-z]+)+", family.name)
        assert family.documentation
        assert not family.name.endswith("_total"), "the client adds it"
        totals = [sample.name for sample in family.samples if sample.name.endswith("_total")]
        assert bool(totals) is (family.type == "counter")
        if family.type == "histogram" or "timestamp" in family.name or "duration" in family.name:
            assert family.name.endswith("_seconds")
        assert not re.search(r"_(ms|millis|milliseconds|minutes|percent|kb)(_|$)", family.name)


def test_policy_ran(metrics: Metrics) -> None:
    """A run sets what a policy sees now, and counts what it did to groups."""
    assert _value(metrics, "groups_matched", **_POLICY) == 2
    assert _value(metrics, "groups_due", **_POLICY) == 2
    assert _value(metrics, "deletion_blocked", **_POLICY) == 0
    assert _value(metrics, "policy_last_run_timestamp_seconds", **_POLICY) == 1_900_000_000
    assert _value(metrics, "groups_kept", **_POLICY, reason="TooRecent") == 1
    assert _value(metrics, "groups_kept", **_POLICY, reason="CaughtUp") == 1
    assert _value(metrics, "outcomes_total", **_POLICY, outcome="Deleted", reason="") == 1
    assert _value(metrics, "outcomes_total", **_POLICY, outcome="Kept", reason="BecameActive") == 1


def test_next_run_replaces_and_adds(metrics: Metrics) -> None:
    """The next run replaces gauges, drops reasons that no group has any more, and adds to counters."""
    metrics.policy_ran(plan(delete(), [keep("secret-c")]), _outcomes(), 1_900_000_600.0)
    assert _value(metrics, "groups_matched", **_POLICY) == 0
    assert _value(metrics, "groups_kept", **_POLICY, reason="TooRecent") == 1
    assert _value(metrics, "groups_kept", **_POLICY, reason="CaughtUp") is None
    assert _value(metrics, "outcomes_total", **_POLICY, outcome="Deleted", reason="") == 2


def test_marks(metrics: Metrics) -> None:
    """How many groups are marked now, and how many were marked and let go so far, with the reason."""
    assert _value(metrics, "groups_marked", **_POLICY) == 1
    policy = delete(enforce=True)
    marks = {name: mark(policy, name) for name in ("gone", "secret-a")}
    metrics.policy_ran(plan(policy, [match("secret-a"), match("secret-new")], marks), [], 1.0)
    assert _value(metrics, "groups_marked", **_POLICY) == 2
    assert _value(metrics, "marks_total", **_POLICY, change="marked", reason="") == 1
    assert _value(metrics, "marks_total", **_POLICY, change="unmarked", reason="Gone") == 2


def test_blocked(metrics: Metrics) -> None:
    """A refused deletion shows as 1, until it is no more."""
    metrics.policy_ran(_plan(refused=True), [], 1.0)
    assert _value(metrics, "deletion_blocked", **_POLICY) == 1
    metrics.policy_ran(_plan(), [], 2.0)
    assert _value(metrics, "deletion_blocked", **_POLICY) == 0


def test_forget_policies(metrics: Metrics) -> None:
    """A policy that is gone leaves no series; others, and connections, keep theirs."""
    other = delete()
    metrics.policy_ran(plan(other, [match("a")]), _outcomes(), 1.0)
    before = {(sample.name, *sorted(sample.labels.items())) for sample in _samples(metrics)}
    metrics.forget_policies([("kafka", "other"), ("other", "litter")])
    assert {(sample.name, *sorted(sample.labels.items())) for sample in _samples(metrics)} == before
    metrics.forget_policies([("kafka", "litter")])
    assert not [sample for sample in _samples(metrics) if "policy" in sample.labels]
    assert _value(metrics, "connection_up", namespace="kafka", connection="main") == 1


def test_connection(metrics: Metrics) -> None:
    """A connection is up while its last scan was complete; the time of each scan is counted."""
    labels = {"namespace": "kafka", "connection": "main"}
    assert _value(metrics, "connection_up", **labels) == 1
    metrics.scanned("kafka", "main", 0.3, complete=False)
    assert _value(metrics, "connection_up", **labels) == 0
    metrics.scanned("kafka", "main", 0.3, complete=True)
    metrics.connection_down("kafka", "main")
    assert _value(metrics, "connection_up", **labels) == 0
    assert _value(metrics, "scan_duration_seconds_count", **labels) == 3


def test_status_written(metrics: Metrics) -> None:
    """Status writes are counted by kind."""
    assert _value(metrics, "status_writes_total", kind="grouppolicies") == 1
