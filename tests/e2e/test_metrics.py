"""The metrics of a running operator, as Prometheus scrapes them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.prometheus import promtool
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import Groups, RunningOperator, World, connection, policy
from tests.metrics_table import documented

NAMESPACE = "scraped"
# What only tables of the pipeline have.
NOT_HERE = {
    "group_hygiene_evidence_as_of_timestamp_seconds",
    "group_hygiene_offsets_first_expiry_timestamp_seconds",
}
PARTS = {"histogram": ("_bucket", "_sum", "_count", "_created"), "counter": ("", "_created")}


@pytest.fixture(scope="module")
def scrape(world: World, kafka: KafkaCluster, groups: Groups, operator: RunningOperator) -> Iterator[str]:
    """A scrape after groups were marked, deleted and kept, and after a cluster was out of reach."""
    namespace, topic = world.namespace(NAMESPACE), groups.topic("scraped")
    groups.produce(topic)
    groups.abandoned("scraped-old", topic)
    groups.produce(topic)
    groups.abandoned("scraped-caught-up", topic)
    tables, away = (connection(namespace, "127.0.0.1:1") for _ in range(2))
    tables["metadata"]["name"] = "tables"
    tables["spec"] |= {"bootstrapServers": [kafka.bootstrap_servers], "activity": {"uri": "file:///nowhere/activity"}}
    away["metadata"]["name"] = "away"
    selects = {"match": {"groups": ["scraped-*"]}, "mode": "Enforce", "delete": {"maxPercent": 100}}
    idle = policy(namespace, "idle", connectionRef={"name": "tables"}, when={"idleFor": "72h"}, **selects)
    preview = policy(namespace, "preview", **(selects | {"mode": "DryRun"}))
    lost = policy(namespace, "lost", connectionRef={"name": "away"}, action="Alert", when=None)
    # Where nobody may be told: loopback.
    unreachable = {"name": "nobody", "type": "Webhook", "webhook": {"address": "http://127.0.0.1:9/"}}
    report = policy(namespace, "report", action="Alert", when=None, match=selects["match"])
    world.apply(connection(namespace, kafka.bootstrap_servers, receivers=[unreachable]), tables, away)
    world.apply(
        policy(namespace, "unused", interval="15s", notify={"receiverNames": []}, **selects),
        idle,
        preview,
        lost,
        report,
    )
    wait_for(lambda: "scraped-old" not in groups.names())
    deleted = f'group_hygiene_outcomes_total{{namespace="{namespace}",outcome="Deleted",policy="unused",reason=""}} 1.0'
    refused = f'group_hygiene_run_failures_total{{namespace="{namespace}",policy="lost",reason="BrokersUnreachable"}}'
    not_ready = f'group_hygiene_evidence_ready{{connection="tables",namespace="{namespace}"}} 0.0'
    not_sent = 'group_hygiene_alerts_sent_total{connection="main",namespace="scraped",result="failed",type="webhook"}'
    would = f'group_hygiene_groups_would_delete{{namespace="{namespace}",policy="preview"}} '
    wanted = (deleted, refused, not_ready, not_sent, would)
    wait_for(lambda: all(series in operator.http("/metrics")[1] for series in wanted))
    yield operator.http("/metrics")[1]
    world.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


@pytest.mark.slow
def test_promtool_finds_nothing_to_complain_of(scrape: str) -> None:
    """`promtool check metrics` knows the conventions of names, units and types."""
    checked = promtool("check", "metrics", input=scrape)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.slow
def test_promtool_would_complain(scrape: str) -> None:
    """That it says nothing means something: it does where a counter lacks its ending, or a unit is no base unit."""
    wrong = scrape.replace("group_hygiene_outcomes_total", "group_hygiene_outcomes").replace(
        "scan_duration_seconds", "ms"
    )
    checked = promtool("check", "metrics", input=wrong)
    assert checked.returncode != 0
    assert 'counter metrics should have "_total" suffix' in checked.stderr


def test_scraped_is_what_is_documented(scrape: str) -> None:
    """Every metric of docs/runbook.md is there with its labels, and no other but those of the process itself."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(scrape):
        for sample in family.samples:
            if sample.name.startswith("group_hygiene_"):
                found.setdefault(sample.name, set()).update(sample.labels)
    expected: dict[str, set[str]] = {}
    for metric in documented():
        for part in PARTS.get(metric.type, ("",)):
            name = metric.name.removesuffix("_total") + part if part == "_created" else metric.name + part
            expected[name] = set(metric.labels - ({"le"} if part != "_bucket" else set()))
    assert {name: labels for name, labels in expected.items() if name not in NOT_HERE} == found


def test_no_group_is_named(scrape: str) -> None:
    """Not in a label, however many things happened to it."""
    assert "scraped-" not in scrape


def test_a_deleted_connection_leaves_no_series(scrape: str, world: World, operator: RunningOperator) -> None:
    """Also while its policies are still there, for which rounds go on."""
    gone = 'connection="away"'
    assert gone in scrape
    world.server.kubectl("delete", "kconn", "away", "-n", NAMESPACE)
    world.wait_ready("kgp", NAMESPACE, "lost", "ConnectionNotFound")

    def shown() -> list[str]:
        lines = operator.http("/metrics")[1].splitlines()
        return [line for line in lines if gone in line and "policy_info" not in line]

    # All readers get the same metrics for a second.
    wait_for(lambda: shown() == [], lambda: f"still shown: {shown()}")
