"""Patterns that select no group, by field: what the condition, the metric, `plan` and `doctor` say of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import ROOT, Groups, RunningOperator, World, connection, doctor, policy

pytestmark = pytest.mark.slow

NAMESPACE = "unused-patterns"
# Of each field, one that selects a group, and one that selects none, with its place.
USED, UNUSED = "unused-patterns-*", "payments-none-*"
PLACES = {
    "protect": "spec.protect[1]",
    "access": "spec.access[0].groups[1]",
    "owners": "spec.owners[0].groups[1]",
    "exclude": f"GroupPolicy {NAMESPACE}/p spec.match.exclude[1]",
}


class Doors(NamedTuple):
    """What each says. metric: by field. others: lines."""

    condition: str
    metric: dict[str, float]
    plan: str
    doctor: str


@pytest.fixture(scope="module")
def doors(world: World, kafka: KafkaCluster, groups: Groups, operator: RunningOperator) -> Iterator[Doors]:
    world.namespace(NAMESPACE)
    topic = groups.topic(NAMESPACE)
    groups.simple(f"{NAMESPACE}-1", topic)
    patterns = [USED, UNUSED]
    spec: dict[str, Any] = {
        "protect": patterns,
        "access": [{"namespaces": {"names": ["team"]}, "groups": patterns, "actions": ["Alert"]}],
        "owners": [{"name": "team", "groups": patterns}],
    }
    excluding = policy(NAMESPACE, "p", match={"groups": ["*"], "exclude": patterns}, action="Alert", when=None)
    # The first scan of the connection, which lists all groups, then has the policy.
    world.apply(excluding, connection(NAMESPACE, kafka.bootstrap_servers, **spec))

    def compared() -> dict[str, Any] | None:
        found = world.condition("kconn", NAMESPACE, "main", "PatternsMatch")
        return found if found is not None and found["reason"] == "PatternsUnused" else None

    condition = wait_for(compared)["message"]
    assert (world.condition("kconn", NAMESPACE, "main", "Ready") or {})["status"] == "True"
    metric: dict[str, float] = {}
    for line in operator.http("/metrics")[1].splitlines():
        if line.startswith("group_hygiene_unused_patterns{") and f'namespace="{NAMESPACE}"' in line:
            metric[line.partition('field="')[2].partition('"')[0]] = float(line.rpartition(" ")[2])
    command = [sys.executable, "-m", "group_hygiene.cli", "plan", "-f", "-", "--connection", "main", "-n", NAMESPACE]
    environment = os.environ | {"KUBECONFIG": str(world.server.kubeconfig), "PYTHONPATH": str(ROOT / "operator")}
    planned = subprocess.run(
        command, env=environment, input=json.dumps(excluding), capture_output=True, text=True, check=False
    )
    assert planned.returncode == 0, planned.stderr
    _, checks, _ = doctor(world.server.kubeconfig, NAMESPACE)
    checked = "\n".join(check["found"] for check in checks if check["check"] == "patterns")
    yield Doors(condition, metric, planned.stderr, checked)
    world.clear(NAMESPACE)


@pytest.mark.parametrize("field", [pytest.param(field, id=field) for field in PLACES])
@pytest.mark.parametrize("door", [pytest.param(door, id=door) for door in ("condition", "metric", "plan", "doctor")])
def test_each_is_named(doors: Doors, field: str, door: str) -> None:
    """By its place; and no other pattern of the field is."""
    if door == "metric":
        assert doors.metric[field] == 1
        return
    said = getattr(doors, door)
    assert f"{PLACES[field]}: {UNUSED} selects no group" in said
    assert said.count(f"{PLACES[field].removesuffix('[1]')}[") == 1


def test_they_name_nothing_else(doors: Doors) -> None:
    assert doors.metric == dict.fromkeys(PLACES, 1.0)
    for said in (doors.condition, doors.plan, doors.doctor):
        assert said.count("selects no group") == len(PLACES)
