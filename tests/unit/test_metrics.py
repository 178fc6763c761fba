"""Metrics: names as Prometheus wants them, labels without bound never, and nothing left of what is gone."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from kubernetes.client import ApiClient
from msgspec import structs
from prometheus_client import Metric, generate_latest
from prometheus_client.samples import Sample

from group_hygiene import __version__
from group_hygiene.controller.admission import AdmittedPolicy
from group_hygiene.controller.api import Api
from group_hygiene.controller.objects import Objects
from group_hygiene.controller.policies import Alerting
from group_hygiene.controller.statuses import Recorder, StatusWriter
from group_hygiene.engine.pattern_notes import FIELDS, PatternNote
from group_hygiene.engine.plan import Plan
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.groups import Coverage, GroupState, GroupType
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.metrics import Metrics
from group_hygiene.observe.of_objects import ConnectionFacts, LedgerFacts, build_status
from group_hygiene.observe.outbox import Outbox, Sender
from group_hygiene.process.clock import SystemClock
from group_hygiene.process.egress import Egress
from group_hygiene.spec.connection import parse_connection
from group_hygiene.spec.fields import ObjectRef
from group_hygiene.spec.policy import Action, Policy
from tests.metrics_table import documented
from tests.unit.make import NOW, activity, alert, delete, group, mark, match, plan, refused, snapshot

_LABELS = {"namespace", "policy", "connection", "connection_namespace", "action", "mode", "reason", "outcome"}
_LABELS |= {"kind", "change", "state", "type", "result", "version", "le", "owner", "resource", "field"}
_POLICY = {"namespace": "kafka", "policy": "unused"}
_MAIN = {"namespace": "kafka", "connection": "main"}


def _plan(halted: bool = False) -> Plan:
    refusals = (Refusal(reasons.TOPICS_HIDDEN, "none"),) if halted else ()
    expires = match("secret-a", activity=activity(), retention=timedelta(days=7))
    verdicts = [expires, match("secret-b"), refused("secret-c"), refused("secret-d", reasons.CAUGHT_UP)]
    policy = delete(enforce=True, expiresWithin="168h")
    marks = {name: mark(policy, name) for name in ("secret-a", "secret-b", "secret-gone")}
    return plan(policy, verdicts, marks, refusals=refusals)


def _outcomes() -> list[Outcome]:
    return [
        Outcome("secret-a", OutcomeType.DELETED, reasons.DELETED, "deleted"),
        Outcome("secret-b", OutcomeType.NOT_DELETED, reasons.BECAME_ACTIVE, "secret-b is in use"),
    ]


def _facts(**changes: Any) -> ConnectionFacts:
    """Four groups, a ledger, and tables of a pipeline that may decide."""
    groups = [group("secret-a"), group("secret-b"), group("secret-c", state=GroupState.STABLE)]
    groups.append(group("secret-d", type=GroupType.CONSUMER))
    seen = snapshot(coverage=Coverage(None, 50, 50, datetime.fromtimestamp(1_900_000_000, UTC)))
    known = ConnectionFacts(
        snapshot=seen,
        features=(),
        retention=timedelta(days=7),
        all_groups={each.id: each for each in groups},
        ledger=LedgerFacts("__group_hygiene", "id", unreadable=2),
        has_activity=True,
        patterns=[PatternNote("protect", "spec.protect[0]", "secret-x", unused=True)],
    )
    return replace(known, **changes)


@pytest.fixture
def metrics() -> Metrics:
    """Metrics in which everything happened once."""
    metrics = Metrics()
    metrics.show_watches(["grouppolicies"], lambda plural: True)
    metrics.policy_ran(_plan(), _outcomes(), 1_900_000_000.0)
    metrics.follow("kafka", "main", [delete()])
    metrics.scanned("kafka", "main", 0.3, snapshot())
    metrics.observed("kafka", "main", _facts())
    metrics.failed("kafka", "main", reasons.BROKERS_UNREACHABLE, [delete()])
    metrics.scanned("kafka", "main", 0.3, snapshot())
    metrics.status_written("grouppolicies")
    metrics.status_refused("kafkaconnections", None)
    metrics.alerting("kafka", "unused", True)
    metrics.alert_sent("kafka", "main", "slack", arrived=False)
    return metrics


def _families(metrics: Metrics) -> Iterator[Metric]:
    """All of our own; beside them there are those of the process, as every Prometheus client has them."""
    return (family for family in metrics.registry.collect() if not family.name.startswith("process_"))


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
    assert families
    for family in families:
        assert re.fullmatch(r"group_hygiene(_[a-z]+)+", family.name)
        assert family.documentation
        assert not family.name.endswith("_total"), "the client adds it"
        totals = [sample.name for sample in family.samples if sample.name.endswith("_total")]
        assert bool(totals) is (family.type == "counter")
        if family.type == "histogram" or "timestamp" in family.name or "duration" in family.name:
            assert family.name.endswith("_seconds")
        assert not re.search(r"_(ms|millis|milliseconds|minutes|percent|kb)(_|$)", family.name)


def test_every_metric_is_documented(metrics: Metrics) -> None:
    """docs/runbook.md has each once, with its type and its labels, what it means and a query that names it."""
    metrics.policy_ran(plan(structs.replace(delete(), name="dry"), []), [], 1.0, evidenced=True)
    there = {
        (family.name + ("_total" if family.type == "counter" else ""), family.type): frozenset().union(
            *(sample.labels for sample in family.samples)
        )
        for family in _families(metrics)
    }
    rows = documented()
    assert len({row.name for row in rows}) == len(rows)
    assert {(row.name, row.type): row.labels for row in rows} == there
    for row in rows:
        assert row.meaning.endswith(".")
        assert row.name in row.query


def test_policy_ran(metrics: Metrics) -> None:
    """A run sets what a policy sees now, and counts what it did to groups."""
    assert _value(metrics, "groups_matched", **_POLICY) == 2
    assert _value(metrics, "groups_due", **_POLICY) == 2
    assert _value(metrics, "deletion_blocked", **_POLICY) == 0
    assert _value(metrics, "policy_last_run_timestamp_seconds", **_POLICY) == 1_900_000_000
    assert _value(metrics, "groups_skipped", **_POLICY, reason="TooRecent") == 1
    assert _value(metrics, "groups_skipped", **_POLICY, reason="CaughtUp") == 1
    assert _value(metrics, "outcomes_total", **_POLICY, outcome="Deleted", reason="") == 1
    assert _value(metrics, "outcomes_total", **_POLICY, outcome="NotDeleted", reason="BecameActive") == 1


def test_matches_by_owner(metrics: Metrics) -> None:
    """Each owner with matches, and the empty name; a policy of another namespace shows no owners."""
    assert _by_owner(metrics) == {"": 2}
    skipped = refused("d")
    verdicts = [match("a", owner="payments"), match("b", owner="payments"), match("c")]
    verdicts.append(structs.replace(skipped, evidence=structs.replace(skipped.evidence, owner="core")))
    metrics.policy_ran(plan(delete(), verdicts), [], 1.0)
    assert _by_owner(metrics) == {"payments": 2, "": 1}
    metrics.policy_ran(plan(delete(), [match("c", owner="core")]), [], 2.0)
    assert _by_owner(metrics) == {"core": 1}
    # With `{namespace}` an owner is a part of an id, of which any client of Kafka may create many.
    many = [match(f"{number}", owner=f"o{max(number, 9):03}") for number in range(100)]
    metrics.policy_ran(plan(delete(), many), [], 2.0)
    found = _by_owner(metrics)
    assert (len(found), found["o009"], found["(others)"]) == (65, 10, 27)
    metrics.policy_ran(
        plan(structs.replace(delete(), connection_ref=ObjectRef("main", "elsewhere")), [match("c")]), [], 3.0
    )
    assert _by_owner(metrics) == {}


def _by_owner(metrics: Metrics) -> dict[str, float]:
    return {s.labels["owner"]: s.value for s in _samples(metrics) if s.name.endswith("groups_matched_by_owner")}


def test_a_dry_run_has_nothing_due(metrics: Metrics) -> None:
    """What mode Enforce would delete is another number than what is due, and only one of them is shown."""
    metrics.policy_ran(plan(delete(), [match("a")]), [], 2.0)
    assert _value(metrics, "groups_would_delete", **_POLICY) == 1
    assert _value(metrics, "groups_due", **_POLICY) is None
    metrics.policy_ran(_plan(), [], 3.0)
    assert _value(metrics, "groups_would_delete", **_POLICY) is None
    assert _value(metrics, "groups_due", **_POLICY) == 2


def test_next_run_replaces_and_adds(metrics: Metrics) -> None:
    """The next run replaces gauges, drops reasons that no group has any more, and adds to counters."""
    metrics.policy_ran(plan(delete(), [refused("secret-c")]), _outcomes(), 1_900_000_600.0)
    assert _value(metrics, "groups_matched", **_POLICY) == 0
    assert _value(metrics, "groups_skipped", **_POLICY, reason="TooRecent") == 1
    assert _value(metrics, "groups_skipped", **_POLICY, reason="CaughtUp") is None
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
    metrics.policy_ran(_plan(halted=True), [], 1.0)
    assert _value(metrics, "deletion_blocked", **_POLICY) == 1
    metrics.policy_ran(_plan(), [], 2.0)
    assert _value(metrics, "deletion_blocked", **_POLICY) == 0


def test_a_dry_run_is_never_blocked(metrics: Metrics) -> None:
    """It deletes nothing anyway, so an alert on the gauge would say nothing that helps."""
    metrics.policy_ran(plan(delete(), [match("a")], total=1), [], 1.0)
    assert _value(metrics, "deletion_blocked", **_POLICY) == 0


def test_a_policy_that_is_gone(metrics: Metrics) -> None:
    """It leaves no series; others, and connections, keep theirs."""
    before = _names(metrics)
    metrics.follow("kafka", "other", [])
    assert _names(metrics) == before
    metrics.follow("kafka", "main", [])
    assert not [sample for sample in _samples(metrics) if "policy" in sample.labels]
    assert _value(metrics, "connection_up", **_MAIN) == 1


def test_a_policy_that_moved(metrics: Metrics) -> None:
    """What it did before stays, whichever of the two connections looks first, and it is shown at one of them only."""
    metrics.follow("kafka", "other", [delete()])
    metrics.follow("kafka", "main", [])
    assert _value(metrics, "policy_last_run_timestamp_seconds", **_POLICY) == 1_900_000_000
    shown = [sample.labels for sample in _samples(metrics) if sample.name == "group_hygiene_policy_info"]
    assert [labels["connection"] for labels in shown] == ["other"]
    metrics.follow("kafka", "other", [])
    assert _value(metrics, "policy_last_run_timestamp_seconds", **_POLICY) is None


def _names(metrics: Metrics) -> set[tuple[object, ...]]:
    return {(sample.name, *sorted(sample.labels.items())) for sample in _samples(metrics)}


def test_connection(metrics: Metrics) -> None:
    """A connection is up while its last scan was complete; the time of each scan is counted, and each that failed."""
    assert _value(metrics, "connection_up", **_MAIN) == 1
    assert _value(metrics, "scan_last_success_timestamp_seconds", **_MAIN) == NOW.timestamp()
    later = NOW + timedelta(hours=1)
    metrics.scanned("kafka", "main", 0.3, snapshot(incomplete=("a broker is lost",), taken_at=later))
    assert _value(metrics, "connection_up", **_MAIN) == 0
    assert _value(metrics, "scan_failures_total", **_MAIN, reason="SnapshotIncomplete") == 1
    assert _value(metrics, "scan_last_success_timestamp_seconds", **_MAIN) == NOW.timestamp()
    metrics.scanned("kafka", "main", 0.3, snapshot(taken_at=later))
    assert _value(metrics, "connection_up", **_MAIN) == 1
    assert _value(metrics, "scan_last_success_timestamp_seconds", **_MAIN) == later.timestamp()
    metrics.failed("kafka", "main", reasons.TLS_FAILED)
    assert _value(metrics, "connection_up", **_MAIN) == 0
    assert _value(metrics, "scan_duration_seconds_count", **_MAIN) == 4


def test_failed_runs(metrics: Metrics) -> None:
    """A scan without an answer is counted once for its connection, and for each policy that waited for it."""
    metrics.failed("kafka", "main", reasons.BROKERS_UNREACHABLE, [delete()])
    assert _value(metrics, "scan_failures_total", **_MAIN, reason="BrokersUnreachable") == 2
    assert _value(metrics, "run_failures_total", **_POLICY, reason="BrokersUnreachable") == 2


def test_groups(metrics: Metrics) -> None:
    """All groups by state and type; what a later list has no more is gone, and a list that lacks some says nothing."""
    empty = {**_MAIN, "state": "Empty", "type": "Classic"}
    assert _value(metrics, "groups", **empty) == 2
    assert _value(metrics, "groups", **(empty | {"state": "Stable"})) == 1
    assert _value(metrics, "groups", **(empty | {"type": "Consumer"})) == 1
    metrics.observed("kafka", "main", _facts(all_groups=None))
    metrics.observed("kafka", "main", _facts(all_groups={}, snapshot=snapshot(incomplete=("a broker is lost",))))
    assert _value(metrics, "groups", **empty) == 2
    metrics.observed("kafka", "main", _facts(all_groups={"a": group("a", state=GroupState.STABLE)}))
    assert _value(metrics, "groups", **empty) is None
    assert _value(metrics, "groups", **(empty | {"state": "Stable"})) == 1


def test_connection_facts(metrics: Metrics) -> None:
    """Retention, ledger and evidence, as the connection's status has them; what is not there has no series."""
    problem = Refusal(reasons.LEDGER_UNAVAILABLE, "no")
    stale = Coverage(Refusal(reasons.EVIDENCE_STALE, "old"), 49, 50, None)
    assert _shown(metrics) == (604_800, 1, 2, 1, 1_900_000_000)
    metrics.observed("kafka", "main", _facts(snapshot=snapshot(), ledger=LedgerFacts("t", None, 0, problem)))
    assert _shown(metrics) == (604_800, 0, 0, 1, 1_900_000_000), "nobody looked at the tables"
    metrics.observed("kafka", "main", _facts(snapshot=snapshot(coverage=stale), ledger=None, retention=None))
    assert _shown(metrics) == (None, None, None, 0, None)
    metrics.observed("kafka", "main", _facts(snapshot=snapshot(), has_activity=False))
    assert _shown(metrics) == (604_800, 1, 2, None, None)


def test_unused_patterns(metrics: Metrics) -> None:
    """By field, zeros too, as of the last scan that compared them; gone with the connection."""
    assert [_value(metrics, "unused_patterns", **_MAIN, field=field) for field in FIELDS] == [1, 0, 0, 0]
    metrics.observed("kafka", "main", _facts(patterns=None))
    assert _value(metrics, "unused_patterns", **_MAIN, field="protect") == 1
    metrics.observed("kafka", "main", _facts(patterns=[]))
    assert _value(metrics, "unused_patterns", **_MAIN, field="protect") == 0
    metrics.forget_connection("kafka", "main")
    assert _value(metrics, "unused_patterns", **_MAIN, field="protect") is None


def _shown(metrics: Metrics) -> tuple[float | None, ...]:
    names = ["offsets_retention_seconds", "ledger_ready", "ledger_unreadable_records"]
    names += ["evidence_ready", "evidence_as_of_timestamp_seconds"]
    return tuple(_value(metrics, name, **_MAIN) for name in names)


def test_follow(metrics: Metrics) -> None:
    """What policies are meant to do: all of it changes with an edit, and who is suspended is meant to do nothing."""
    where = {"connection_namespace": "kafka", "connection": "main"}
    assert _value(metrics, "policy_info", **_POLICY, **where, action="Delete", mode="DryRun") == 1
    assert _value(metrics, "policy_interval_seconds", **_POLICY) == 600
    assert _value(metrics, "scan_interval_seconds", **_MAIN) == 600
    other = structs.replace(alert(), name="report", interval=timedelta(hours=1))
    metrics.follow(
        "kafka", "main", [other, structs.replace(delete(enforce=True), generation=4, interval=timedelta(hours=2))]
    )
    assert _value(metrics, "policy_info", **_POLICY, **where, action="Delete", mode="DryRun") is None
    assert _value(metrics, "policy_info", **_POLICY, **where, action="Delete", mode="Enforce") == 1
    assert _value(metrics, "scan_interval_seconds", **_MAIN) == 3600
    metrics.follow("kafka", "main", [structs.replace(delete(), generation=5, suspend=True)])
    assert _value(metrics, "policy_info", **_POLICY, **where, action="Delete", mode="DryRun") is None
    assert _value(metrics, "policy_interval_seconds", **_POLICY) is None
    assert _value(metrics, "scan_interval_seconds", **_MAIN) is None


def test_a_suspended_policy_found_nothing(metrics: Metrics) -> None:
    """What its last run found is no longer so, and must not alert for ever; what it did stays counted."""
    metrics.policy_ran(_plan(halted=True), [], 1.0)
    found = {"groups_matched", "groups_matched_by_owner", "groups_marked", "groups_due", "groups_skipped"}
    found |= {"deletion_blocked", "alerting"}
    found = {f"group_hygiene_{name}" for name in (*found, "offsets_first_expiry_timestamp_seconds")}
    meant = {"group_hygiene_policy_info", "group_hygiene_policy_interval_seconds"}
    before = _of_policies(metrics)
    assert found < before
    metrics.follow("kafka", "main", [structs.replace(delete(), generation=4, suspend=True)])
    assert _of_policies(metrics) == before - found - meant
    metrics.follow("kafka", "main", [structs.replace(delete(), generation=5)])
    assert _of_policies(metrics) == before - found, "until its next run"


def _of_policies(metrics: Metrics) -> set[str]:
    return {sample.name for sample in _samples(metrics) if "policy" in sample.labels}


def test_alerting_is_of_those_that_alert() -> None:
    """Whoever does not run any more, or got another action, is not shown as one that alerts, or does not."""
    metrics, api, clock = Metrics(), Api(ApiClient()), SystemClock()
    sender = Sender(Outbox("kafka/main"), Egress(), lambda: False, lambda: None, lambda _kind, _arrived: None)
    alerting = Alerting(
        api, metrics, clock, StatusWriter(api, Objects(), Recorder(api), metrics, clock, "hygiene"), sender
    )

    def run(policy: Policy) -> float | None:
        made = plan(policy, [match("a")])
        new = build_status(policy, {}, made, [], snapshot())
        alerting.in_status(AdmittedPolicy({}, policy, cast("Any", None)), made, snapshot(), new)
        return _value(metrics, "alerting", **_POLICY)

    def bind(*policies: Policy) -> float | None:
        metrics.follow("kafka", "main", policies)
        connection = parse_connection(
            {"metadata": {"namespace": "kafka"}, "spec": {"bootstrapServers": ["kafka:9092"]}}
        )
        alerting.bind(
            connection, [AdmittedPolicy({}, policy, cast("Any", None)) for policy in policies if not policy.suspend]
        )
        return _value(metrics, "alerting", **_POLICY)

    assert (bind(alert()), run(alert()), bind(alert())) == (None, 1, 1)
    assert bind(structs.replace(alert(), generation=4, suspend=True)) is None
    assert (bind(alert()), run(alert()), bind()) == (None, 1, None)
    assert (bind(alert()), run(alert()), run(delete())) == (None, 1, None)


@pytest.mark.parametrize("action", [action for action in Action if action.changes])
def test_outcomes_start_at_zero(action: Action) -> None:
    """What is counted is there before it happens: `increase` does not see a counter's first value."""
    metrics = Metrics()
    metrics.follow("kafka", "main", [structs.replace(delete(), action=action)])
    assert _value(metrics, "outcomes_total", **_POLICY, outcome="Deleted", reason="") == 0
    assert _value(metrics, "outcomes_total", **_POLICY, outcome="Failed", reason="DeleteFailed") == 0
    metrics.follow("kafka", "main", [structs.replace(alert(), name="changes-nothing")])
    assert _value(metrics, "outcomes_total", **_POLICY, outcome="Deleted", reason="") is None
    shown = [sample for sample in _samples(metrics) if sample.labels.get("policy") == "changes-nothing"]
    assert {sample.name for sample in shown} == {
        "group_hygiene_policy_info",
        "group_hygiene_policy_interval_seconds",
    }


def test_forget_connection(metrics: Metrics) -> None:
    """A connection that is gone leaves no series; its policies keep theirs."""
    metrics.forget_connection("kafka", "other")
    assert _value(metrics, "connection_up", **_MAIN) == 1
    metrics.forget_connection("kafka", "main")
    of_connection = [sample for sample in _samples(metrics) if "connection" in sample.labels]
    assert {sample.name for sample in of_connection} == {"group_hygiene_policy_info"}
    assert _value(metrics, "groups_matched", **_POLICY) == 2


def test_build_info(metrics: Metrics) -> None:
    """Which version runs."""
    assert _value(metrics, "build_info", version=__version__) == 1


def test_a_refused_status_blocks_its_policy(metrics: Metrics) -> None:
    """Only a policy's: the gauge of the other kinds does not exist. The next run that is shown ends it."""
    metrics.status_refused("grouppolicies", ("kafka", "unused"))
    assert _value(metrics, "status_refusals_total", kind="grouppolicies") == 1
    assert _value(metrics, "deletion_blocked", namespace="kafka", policy="unused") == 1
    metrics.policy_ran(plan(delete(), []), [], 2.0)
    assert _value(metrics, "deletion_blocked", namespace="kafka", policy="unused") == 0


def test_status_written(metrics: Metrics) -> None:
    """Status writes are counted by kind."""
    assert _value(metrics, "status_writes_total", kind="grouppolicies") == 1
