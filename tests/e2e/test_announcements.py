"""The grace period of a mark runs only while users can see it, and the policy that announced it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from testing.faults.offsets_log import ends
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import FLOORS, Groups, RunningOperator, World, connection, policy
from tests.e2e.ledger_reader import ledger_entries
from tests.warehouse import Warehouse, idle

GRACE = timedelta(seconds=12)
STATUSES = {"apiGroups": ["grouphygiene.io"], "apiVersions": ["v1alpha1"], "resources": ["grouppolicies/status"]}
EVENTS = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["events"]}
Object = dict[str, Any]
# By the pipeline's tables a group stays idle during any pause of its policy: nothing but the mark can restart.
ENFORCE = {
    "interval": "5s",
    "when": {"idleFor": "20s"},
    "mode": "Enforce",
    "delete": {"gracePeriod": "12s", "maxPercent": 100},
}


@contextmanager
def refused(world: World, namespace: str, *rules: dict[str, Any]) -> Iterator[None]:
    """The API server refuses these writes in the namespace, by an admission policy."""
    constraints = {"resourceRules": [{"operations": ["CREATE", "UPDATE"], **rule} for rule in rules]}
    validation = {"expression": "false", "message": "frozen by the change board"}
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    api, name = "admissionregistration.k8s.io/v1", f"refuse-{namespace}"
    objects = (
        ("ValidatingAdmissionPolicy", {"matchConstraints": constraints, "validations": [validation]}),
        (
            "ValidatingAdmissionPolicyBinding",
            {"policyName": name, "validationActions": ["Deny"], "matchResources": selector},
        ),
    )
    world.apply(policy(namespace, "probe", match={"groups": ["none-*"]}, suspend=True))
    world.apply(
        *({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec} for kind, spec in objects)
    )
    counts = iter(range(10_000))

    def holds() -> bool:
        """An admission policy holds a moment after it is stored."""
        patch = json.dumps({"status": {"totals": {"deleted": next(counts)}}})
        where = ("patch", "kgp", "probe", "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)
        return validation["message"] in world.server.kubectl(*where, check=False).stderr

    wait_for(holds)
    try:
        yield
    finally:
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            world.server.kubectl("delete", kind, name)


def dates(kafka: KafkaCluster, kind: str, group: str, field: str, **fields: str) -> list[datetime]:
    """The dates in all entries of the ledger of this kind about the group, oldest first."""
    wanted = {"kind": kind, "group": group, **fields}
    entries = ledger_entries(kafka.bootstrap_servers)
    return [datetime.fromisoformat(entry[field]) for entry in entries if wanted.items() <= entry.items()]


def deleted(kafka: KafkaCluster, group: str) -> datetime:
    return wait_for(lambda: dates(kafka, "outcome", group, "at", what="Deleted"))[0]


Unused = Callable[[str], tuple[str, dict[str, Any]]]


@pytest.fixture
def unused(kafka: KafkaCluster, groups: Groups, tables: Path) -> Unused:
    """Makes a group that was used days ago by the tables, and returns it with the fields of a connection to these."""

    def make(name: str) -> tuple[str, dict[str, Any]]:
        topic = groups.topic(f"announcements-{name}")
        groups.abandoned(name, topic)
        groups.produce(topic)
        warehouse = Warehouse(tables / name, groups.admin.describe_cluster()["cluster_id"], partitions=5)
        warehouse.write([idle(name)], ends=ends(groups.bootstrap))
        return name, {"activity": {"uri": warehouse.uri, "maxAge": "1h"}}

    return make


@pytest.mark.parametrize(
    ("rules", "is_shown"),
    [
        pytest.param((STATUSES,), True, id="the-event-shows-it"),
        pytest.param((STATUSES, EVENTS), False, id="nothing-shows-it"),
    ],
)
def test_a_grace_period_begins_when_users_can_see_the_mark(
    world: World,
    kafka: KafkaCluster,
    operator: RunningOperator,
    unused: Unused,
    rules: tuple[dict[str, Any], ...],
    is_shown: bool,
) -> None:
    """While the API server refuses statuses, an Event starts the period; without both, it starts when it can be seen.

    The refusal is an Event, a counter and a blocked policy, each with the server's explanation where it has a text.
    """
    namespace = world.namespace(f"unseen-{'event' if is_shown else 'none'}")
    group, evidence = unused(namespace)
    with refused(world, namespace, *rules):
        world.apply(connection(namespace, kafka.bootstrap_servers, **evidence))
        world.apply(policy(namespace, "unused", match={"groups": [group]}, **ENFORCE))
        first = wait_for(lambda: dates(kafka, "mark", group, "since"))[0]
        wait_for(lambda: "frozen by the change board" in operator.log())
        labels = f'namespace="{namespace}",policy="unused"'
        wait_for(lambda: f"group_hygiene_deletion_blocked{{{labels}}} 1.0" in operator.http("/metrics")[1])
        assert 'group_hygiene_status_refusals_total{kind="grouppolicies"}' in operator.http("/metrics")[1]
        if is_shown:
            assert deleted(kafka, group) >= first + GRACE
            events = {event["reason"]: event for event in world.events(namespace)}
            messages = {reason: event["message"] for reason, event in events.items()}
            assert "will be deleted after 12s" in messages["GroupsMarked"]
            assert events["GroupsMarked"]["metadata"]["annotations"]["grouphygiene.io/run-id"]
            assert "frozen by the change board" in messages["StatusRefused"]
        else:
            wait_for(lambda: dates(kafka, "mark", group, "since")[-1] > first + GRACE)
            assert not dates(kafka, "outcome", group, "at", what="Deleted")
            shown = datetime.now(UTC)
    if not is_shown:
        assert deleted(kafka, group) >= shown + GRACE
    world.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


@pytest.mark.slow
def test_a_run_that_may_not_mark_announces_no_mark_of_before(
    world: World, kafka: KafkaCluster, operator: RunningOperator, unused: Unused
) -> None:
    """No user could see the mark; the first status comes from a run that finds the ledger's settings wrong."""
    namespace = world.namespace("unannounced")
    group, evidence = unused(namespace)
    with refused(world, namespace, STATUSES, EVENTS):
        world.apply(connection(namespace, kafka.bootstrap_servers, **evidence))
        world.apply(policy(namespace, "unused", match={"groups": [group]}, **ENFORCE))
        first = wait_for(lambda: dates(kafka, "mark", group, "since"))[0]
        _clean_up_by(kafka, "delete")
        wait_for(lambda: "must be compact" in operator.log())
        wait_for(lambda: datetime.now(UTC) > first + GRACE)
    try:
        status = wait_for(lambda: world.get("kgp", namespace, "unused").get("status"))
    finally:
        _clean_up_by(kafka, "compact")
    mended = datetime.now(UTC)
    assert "lastMarkedTime" not in status
    assert deleted(kafka, group) >= mended + GRACE
    world.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


def _clean_up_by(kafka: KafkaCluster, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    ledger = ConfigResource(ConfigResource.Type.TOPIC, "__group_hygiene", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.incremental_alter_configs([ledger])[ledger].result()


def suspend(world: World, there: Object, unused: Object) -> None:
    world.apply(_changed(unused, suspend=True))


def move(world: World, there: Object, unused: Object) -> None:
    """To a connection whose ledger has none of its marks."""
    other = _changed(there, ledger={"topic": f"ledger-{there['metadata']['namespace']}"})
    other["metadata"] = {**there["metadata"], "name": "other"}
    world.apply(other, _changed(unused, connectionRef={"name": "other"}, mode="DryRun"))


def mislead(world: World, there: Object, unused: Object) -> None:
    """To a connection that does not answer."""
    other = _changed(there, bootstrapServers=["127.0.0.1:1"])
    other["metadata"] = {**there["metadata"], "name": "other"}
    world.apply(other, _changed(unused, connectionRef={"name": "other"}))


def revoke(world: World, there: Object, unused: Object) -> None:
    world.apply(_changed(there, access=[]))


def _changed(obj: Object, **spec: Any) -> Object:
    return {**obj, "spec": {**obj["spec"], **spec}}


@pytest.mark.parametrize("pause", [suspend, move, mislead, revoke], ids=lambda pause: pause.__name__)
@pytest.mark.usefixtures("operator")
def test_a_mark_does_not_outlast_a_pause_of_its_policy(
    world: World,
    kafka: KafkaCluster,
    unused: Unused,
    pause: Callable[[World, Object, Object], None],
) -> None:
    """A policy that was suspended, moved or not admitted waits for a whole grace period when it runs again."""
    namespace = world.namespace(f"pause-{pause.__name__}")
    owner = world.namespace(f"{namespace}-owner") if pause is revoke else namespace
    group, evidence = unused(namespace)
    there = connection(owner, kafka.bootstrap_servers, **evidence)
    access = [{"namespaces": {"names": [namespace]}, "groups": ["*"], "actions": ["Delete"]}]
    if pause is revoke:
        there = _changed(there, access=access, limits=FLOORS)
    reference = {"name": "main", "namespace": owner}
    running = policy(namespace, "unused", match={"groups": [group]}, connectionRef=reference, **ENFORCE)
    world.apply(there, running)
    first = wait_for(lambda: dates(kafka, "mark", group, "since"))[0]
    wait_for(lambda: "lastMarkedTime" in world.get("kgp", namespace, "unused").get("status", {}))
    pause(world, there, running)
    wait_for(lambda: "lastMarkedTime" not in world.get("kgp", namespace, "unused")["status"])
    wait_for(lambda: datetime.now(UTC) > first + GRACE)
    assert not dates(kafka, "outcome", group, "at", what="Deleted")
    resumed = datetime.now(UTC)
    world.apply(there, running)
    assert deleted(kafka, group) >= resumed + GRACE
    for name in {namespace, owner}:
        world.server.kubectl("delete", "kgp,kconn", "--all", "-n", name)
