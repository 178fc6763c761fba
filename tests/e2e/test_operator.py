"""What users see of the operator: statuses, events, deletions, and how it bears everything that can be wrong."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from kafka.admin import ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern, ResourceType

from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import use_crds
from testing.sandbox.waiting import PATIENCE, wait_for
from tests.e2e.conftest import (
    PASSWORD,
    ROOT,
    Groups,
    RunningOperator,
    World,
    connection,
    policy,
    running_operator,
    scans,
)
from tests.e2e.ledger_reader import ledger_entries

pytestmark = pytest.mark.usefixtures("operator", "quiet", "cleared")

_LEDGER = (ACLOperation.CREATE, ACLOperation.DESCRIBE_CONFIGS, ACLOperation.READ, ACLOperation.WRITE)
_LEDGER_WRITER = (ACLOperation.DESCRIBE, ACLOperation.WRITE)


@dataclass(frozen=True)
class Quiet:
    """A policy for which nothing changes from `since` on, and where the log and the count of scans stood then."""

    namespace: str
    since: float
    requests: int
    scans: int


def last_run(operator: RunningOperator, namespace: str, policy: str) -> float:
    """When the policy last ran, as its metric says."""
    series = f'group_hygiene_policy_last_run_timestamp_seconds{{namespace="{namespace}",policy="{policy}"}} '
    return float(operator.http("/metrics")[1].partition(series)[2].partition("\n")[0])


@pytest.fixture(scope="module")
def quiet(world: World, kafka: KafkaCluster, operator: RunningOperator) -> Quiet:
    """It runs beside all other tests, so that looking at it for a minute costs none of them."""
    namespace = world.namespace("quiet")
    world.apply(connection(namespace, kafka.bootstrap_servers), policy(namespace, "p", match={"groups": ["none-*"]}))
    world.wait_ready("kgp", namespace, "p", "Succeeded")
    # Written last, with the groups as a full list has them.
    world.wait_ready("kconn", namespace, "main", "Connected")
    return Quiet(namespace, time.monotonic(), len(world.server.audit_events()), scans(operator, namespace))


def test_enforce_deletes_the_abandoned_and_nothing_in_use(
    world: World, kafka: KafkaCluster, groups: Groups, operator: RunningOperator
) -> None:
    """Over `*`, abandoned groups go; Stable, simple, caught-up and protected ones stay; status and events tell it."""
    namespace, topic, silent = world.namespace("enforce"), groups.topic("enforce"), groups.topic("enforce-silent")
    groups.produce(topic)
    groups.produce(silent)
    for name in ("enforce-old-1", "enforce-old-2", "enforce-payments", "connect-enforce-sink"):
        groups.abandoned(name, topic)
    groups.abandoned("enforce-caught-up", silent)
    groups.simple("enforce-simple", topic)
    live = groups.member("enforce-live", topic)
    sink = groups.member("enforce-sink", topic, client_id="connector-consumer-orders-0")
    groups.produce(topic)
    stay = {
        "enforce-payments",
        "connect-enforce-sink",
        "enforce-caught-up",
        "enforce-simple",
        "enforce-live",
        "enforce-sink",
    }
    world.apply(
        connection(namespace, kafka.bootstrap_servers, protect=["enforce-pay*"]),
        policy(namespace, "p", match={"groups": ["*enforce*"]}, mode="Enforce", delete={"maxPercent": 100}),
    )
    wait_for(lambda: not {"enforce-old-1", "enforce-old-2"} & groups.names())
    assert stay <= groups.names()
    found = wait_for(
        lambda: (s := world.get("kgp", namespace, "p")["status"]).get("totals", {}).get("deleted") == 2 and s
    )
    ran = last_run(operator, namespace, "p")
    wait_for(lambda: last_run(operator, namespace, "p") > ran)
    assert stay <= groups.names(), "nor at the next run"
    status = world.get("kgp", namespace, "p")["status"]
    assert found["observedGeneration"] == 1
    reasons = {row["group"]: row["reason"] for row in status["sample"] if row["verdict"] == "Skip"}
    assert reasons == {
        "enforce-payments": "Protected",
        "connect-enforce-sink": "ConnectGroup",
        "enforce-caught-up": "CaughtUp",
        "enforce-simple": "SimpleGroup",
    }
    events = [(e["reason"], e["message"]) for e in world.events(namespace)]
    assert any(reason == "GroupsDeleted" and "enforce-old-1" in message for reason, message in events)
    live.close()
    programs = [(e["group"], e["program"]) for e in ledger_entries(groups.bootstrap) if e["kind"] == "used-by"]
    assert programs == [("enforce-sink", "Connect")]
    sink.close()


@pytest.mark.parametrize("kind", ["kgp", "kconn"])
def test_an_object_that_is_being_deleted_does_nothing(
    world: World, kafka: KafkaCluster, groups: Groups, kind: str
) -> None:
    """A finalizer of another program may keep it there for long: its marks end, and no group is deleted."""
    namespace, topic, group = world.namespace(f"deleted-{kind}"), groups.topic(f"d-{kind}"), f"terminating-{kind}"
    groups.produce(topic)
    groups.abandoned(group, topic)
    groups.produce(topic)
    rule = policy(namespace, "p", match={"groups": [group]}, mode="Enforce")
    rule["spec"]["delete"] = {"gracePeriod": "20s", "maxPercent": 100}
    objects = {"kconn": connection(namespace, kafka.bootstrap_servers), "kgp": rule}
    objects[kind]["metadata"]["finalizers"] = ["example.org/another-program"]
    world.apply(*objects.values())
    name = objects[kind]["metadata"]["name"]
    wait_for(lambda: (world.get("kgp", namespace, "p").get("status") or {}).get("groups", {}).get("marked") == 1)
    world.server.kubectl("delete", kind, name, "-n", namespace, "--wait=false")
    try:
        world.wait_ready(kind, namespace, name, "Terminating")
        time.sleep(25)
        assert group in groups.names()
    finally:
        release = ("--type=merge", "-p", '{"metadata": {"finalizers": null}}')
        world.server.kubectl("patch", kind, name, "-n", namespace, *release)


def test_objects_of_users_stay_as_they_are(world: World, kafka: KafkaCluster) -> None:
    """No finalizer, no annotation, no label, no new generation: the operator writes to status and to nothing else."""
    namespace = world.namespace("untouched")
    objects = [connection(namespace, kafka.bootstrap_servers), policy(namespace, "p", match={"groups": ["none-*"]})]
    world.server.kubectl("create", "-f", "-", input=yaml.safe_dump_all(objects))
    world.wait_ready("kgp", namespace, "p", "Succeeded")
    for kind, name in (("kconn", "main"), ("kgp", "p")):
        obj = world.get(kind, namespace, name)
        assert set(obj["metadata"]) <= {
            "creationTimestamp",
            "generation",
            "name",
            "namespace",
            "resourceVersion",
            "uid",
        }
        assert obj["metadata"]["generation"] == 1
        shown = world.server.kubectl("get", kind, name, "-n", namespace, "-o", "json", "--show-managed-fields").stdout
        written = {
            (each["manager"], each.get("subresource")) for each in json.loads(shown)["metadata"]["managedFields"]
        }
        assert written == {("kubectl-create", None), ("group-hygiene", "status")}


def test_columns_of_kubectl_get(world: World, kafka: KafkaCluster) -> None:
    """`kubectl get` shows what an operator's user looks for first."""
    namespace = world.namespace("columns")
    world.apply(connection(namespace, kafka.bootstrap_servers), policy(namespace, "p", match={"groups": ["none-*"]}))
    world.wait_ready("kgp", namespace, "p", "Succeeded")
    header, row = world.server.kubectl("get", "kgp", "-n", namespace).stdout.splitlines()
    columns = ["NAME", "CONNECTION", "MODE", "ACTION", "SUSPEND", "MATCHED", "WOULD", "DELETE"]
    assert header.split() == [*columns, "READY", "REASON", "LAST", "RUN", "AGE"]
    assert row.split()[1:9] == ["main", "DryRun", "Delete", "false", "0", "0", "True", "Succeeded"]
    wide = world.server.kubectl("get", "kconn", "-n", namespace, "-o", "wide").stdout
    assert kafka.cluster_id in wide
    assert "1 of 1 brokers answer" in wide


def test_dry_run_deletes_nothing_and_says_what_it_would(world: World, kafka: KafkaCluster, groups: Groups) -> None:
    """Without `mode`, a policy counts what is due and touches nothing; mode: Enforce goes on from what was seen."""
    namespace, topic = world.namespace("dry-run"), groups.topic("dry-run")
    groups.produce(topic)
    groups.abandoned("dry-run-old", topic)
    groups.produce(topic)
    delete = {"maxPercent": 100, "gracePeriod": "1h"}
    world.apply(
        connection(namespace, kafka.bootstrap_servers),
        policy(namespace, "p", interval="15s", match={"groups": ["dry-run-*"]}, delete=delete),
    )
    status = wait_for(
        lambda: (s := world.get("kgp", namespace, "p")["status"]).get("groups", {}).get("wouldDelete") == 1 and s
    )
    assert status["groups"] | {"scanned": 0} == {
        "scanned": 0,
        "matched": 1,
        "marked": 0,
        "wouldDelete": 1,
        "deleted": 0,
        "skipped": 0,
        "failed": 0,
    }
    ready = world.condition("kgp", namespace, "p", "Ready")
    assert ready is not None
    assert "dry run" in ready["message"]
    assert "dry-run-old" in groups.names()
    patch = ("patch", "kgp", "p", "-n", namespace, "--type=merge", "-p")
    world.server.kubectl(*patch, '{"spec":{"mode":"Enforce"}}')
    marked = wait_for(lambda: (s := world.get("kgp", namespace, "p")["status"])["groups"]["marked"] == 1 and s)
    assert marked["sample"][0]["unchangedSince"] == status["sample"][0]["unchangedSince"], "it is not seen anew"
    world.server.kubectl(*patch, '{"spec":{"delete":{"gracePeriod":"1s"}}}')
    wait_for(lambda: "dry-run-old" not in groups.names())


def test_more_than_max_percent_deletes_none(world: World, kafka: KafkaCluster, groups: Groups) -> None:
    """A policy that is due to delete more of the cluster than maxPercent deletes nothing and says how to go on.

    The connection says that its ledger has fewer replicas than the spec asks for.
    """
    namespace, topic = world.namespace("too-many"), groups.topic("too-many")
    groups.produce(topic)
    names = {f"too-many-{index}" for index in range(4)}
    for name in names:
        groups.abandoned(name, topic)
    groups.produce(topic)
    world.apply(
        connection(namespace, kafka.bootstrap_servers),
        policy(namespace, "p", match={"groups": ["too-many-*"]}, mode="Enforce", delete={"maxPercent": 1}),
    )
    blocked = wait_for(
        lambda: (c := world.condition("kgp", namespace, "p", "DeletionBlocked")) and c["status"] == "True" and c
    )
    assert blocked["reason"] == "LimitExceeded"
    assert "raise maxPercent of the policy" in blocked["message"]
    # Their dates stand.
    wait_for(lambda: world.get("kgp", namespace, "p")["status"]["groups"]["marked"] == len(names))
    ready = world.condition("kgp", namespace, "p", "Ready")
    assert ready is not None
    assert (ready["status"], ready["reason"]) == ("True", "Succeeded")
    assert "raise maxPercent of the policy" in ready["message"]
    assert world.condition("kgp", namespace, "p", "Stalled") is None
    assert names <= groups.names()
    # There is one broker, and the default of the spec is three replicas.
    ledger = world.condition("kconn", namespace, "main", "LedgerReady") or {}
    assert (ledger["status"], ledger["reason"]) == ("True", "FewReplicas")
    assert "has 1 replicas, and ledger.replicationFactor asks for 3" in ledger["message"]
    world.server.kubectl("delete", "kgp", "p", "-n", namespace)


def test_alert_touches_nothing_and_reports(world: World, kafka: KafkaCluster, groups: Groups) -> None:
    """An Alert policy leaves the group, and reports it by status, Event and metric."""
    namespace, topic = world.namespace("alert"), groups.topic("alert")
    groups.produce(topic)
    groups.abandoned("alert-old", topic)
    groups.produce(topic)
    world.apply(
        connection(namespace, kafka.bootstrap_servers),
        policy(namespace, "p", match={"groups": ["alert-*"]}, action="Alert"),
    )
    wait_for(lambda: world.get("kgp", namespace, "p")["status"].get("groups", {}).get("matched") == 1)
    event = wait_for(lambda: next((e for e in world.events(namespace) if e["reason"] == "GroupsMatched"), None))
    assert event["type"] == "Warning"
    assert "alert-old" in event["message"]
    assert "alert-old" in groups.names()


def test_patterns_that_select_nothing_are_named(world: World, kafka: KafkaCluster, groups: Groups) -> None:
    """The connection says so in a condition, stays Ready, and counts them; an edit is judged at once."""
    namespace, topic = world.namespace("patterns"), groups.topic("patterns")
    groups.produce(topic)
    groups.abandoned("patterns-old", topic)
    servers = kafka.bootstrap_servers
    rule = policy(namespace, "p", match={"groups": ["patterns-*"], "exclude": ["patterns-gone"]}, action="Alert")
    world.apply(connection(namespace, servers, protect=["patterns.*", "patterns-old"]), rule)

    def condition(kind: str) -> dict[str, str]:
        status = world.get("kconn", namespace, "main").get("status", {})
        found: dict[str, dict[str, str]] = {each["type"]: each for each in status.get("conditions", [])}
        return found.get(kind, {"status": "", "message": "spec.protect"})

    found = wait_for(lambda: condition("PatternsMatch") if condition("PatternsMatch")["status"] == "False" else None)
    assert found["reason"] == "PatternsUnused"
    assert "spec.protect[0]: patterns.* selects no group; patterns* would select" in found["message"]
    assert "spec.protect[1]" not in found["message"]
    assert condition("Ready")["status"] == "True"
    world.apply(connection(namespace, servers, protect=["patterns-*"]))
    wait_for(lambda: "spec.protect" not in condition("PatternsMatch")["message"])


def test_metrics_and_probes(world: World, kafka: KafkaCluster, operator: RunningOperator) -> None:
    """The probes answer, and a policy's series go away with the policy."""
    namespace = world.namespace("metrics")
    world.apply(connection(namespace, kafka.bootstrap_servers), policy(namespace, "p", match={"groups": ["none-*"]}))
    world.wait_ready("kgp", namespace, "p", "Succeeded")
    assert operator.http("/healthz") == (200, "ok\n")
    assert operator.http("/readyz") == (200, "ok\n")
    series = 'group_hygiene_groups_matched{namespace="metrics",policy="p"} 0.0'
    wait_for(lambda: series in operator.http("/metrics")[1])
    assert 'group_hygiene_connection_up{connection="main",namespace="metrics"} 1.0' in operator.http("/metrics")[1]
    world.server.kubectl("delete", "kgp", "p", "-n", namespace)
    wait_for(lambda: series not in operator.http("/metrics")[1])


def test_things_may_be_applied_in_any_order(world: World, kafka: KafkaCluster) -> None:
    """A policy before its connection waits, and goes on as soon as the connection is there."""
    namespace = world.namespace("any-order")
    world.apply(policy(namespace, "p", match={"groups": ["none-*"]}))
    ready = world.wait_ready("kgp", namespace, "p", "ConnectionNotFound")
    assert "any-order/main" in ready["message"]
    reconciling = world.condition("kgp", namespace, "p", "Reconciling")
    assert reconciling is not None
    assert reconciling["status"] == "True"
    world.apply(connection(namespace, kafka.bootstrap_servers))
    world.wait_ready("kgp", namespace, "p", "Succeeded")
    assert world.condition("kgp", namespace, "p", "Reconciling") is None


def test_another_namespace_is_refused(world: World, kafka: KafkaCluster) -> None:
    """A policy can't use another namespace's connection, and does not learn whether there is one."""
    owner, stranger = world.namespace("cross-owner"), world.namespace("cross-stranger")
    world.apply(connection(owner, kafka.bootstrap_servers))
    messages = []
    for name, target in (("there", owner), ("not-there", "cross-nowhere")):
        world.apply(policy(stranger, name, connectionRef={"name": "main", "namespace": target}))
        message = world.wait_ready("kgp", stranger, name, "CrossNamespaceRefused")["message"]
        messages.append(message.replace(target, "TARGET"))
        assert world.condition("kgp", stranger, name, "Stalled") is None, "an edit of the connection helps as well"
    assert messages[0] == messages[1]


@pytest.mark.slow
def test_suspended_is_healthy_and_does_nothing(world: World, kafka: KafkaCluster, groups: Groups) -> None:
    """A suspended policy is Ready, says so, and deletes nothing; unsuspended it starts."""
    namespace, topic = world.namespace("suspended"), groups.topic("suspended")
    groups.produce(topic)
    groups.abandoned("suspended-old", topic)
    groups.produce(topic)
    spec = {"match": {"groups": ["suspended-*"]}, "mode": "Enforce", "delete": {"maxPercent": 100}}
    world.apply(connection(namespace, kafka.bootstrap_servers), policy(namespace, "p", suspend=True, **spec))
    world.wait_ready("kgp", namespace, "p", "Suspended")
    time.sleep(8)
    assert "suspended-old" in groups.names()
    world.apply(policy(namespace, "p", suspend=False, **spec))
    wait_for(lambda: "suspended-old" not in groups.names())


def test_an_unreachable_broker_disturbs_no_other_connection(world: World, kafka: KafkaCluster) -> None:
    """The connection says why nobody answers, its policy that the connection is not ready; others go on."""
    broken, healthy = world.namespace("unreachable"), world.namespace("unreachable-neighbour")
    world.apply(
        connection(broken, "127.0.0.1:1,no-such-host.invalid:9092", scan={"timeout": "20s"}), policy(broken, "p")
    )
    world.apply(connection(healthy, kafka.bootstrap_servers), policy(healthy, "p", match={"groups": ["none-*"]}))
    ready = world.wait_ready("kconn", broken, "main", "BrokersUnreachable")
    assert "127.0.0.1:1: connection refused" in ready["message"]
    assert "no-such-host.invalid does not resolve" in ready["message"]
    assert "BrokersUnreachable" in world.wait_ready("kgp", broken, "p", "ConnectionNotReady")["message"]
    world.wait_ready("kgp", healthy, "p", "Succeeded")


def test_claimed_groups_are_kept(world: World, kafka: KafkaCluster, groups: Groups) -> None:
    """A group that a KEDA ScaledObject names is Empty while scaled to zero, and needed: it stays."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "scaledobjects", "singular": "scaledobject", "kind": "ScaledObject"}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "scaledobjects.keda.sh"},
        "spec": {"group": "keda.sh", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    use_crds(world.server, crd)
    namespace, topic = world.namespace("claimed"), groups.topic("claimed")
    groups.produce(topic)
    groups.abandoned("claimed-by-keda", topic)
    groups.abandoned("claimed-by-nobody", topic)
    groups.produce(topic)
    trigger = {"type": "kafka", "metadata": {"consumerGroup": "claimed-by-keda", "topic": topic}}
    scaled = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "worker", "namespace": namespace},
        "spec": {"triggers": [trigger]},
    }
    world.apply(scaled)
    world.apply(
        connection(namespace, kafka.bootstrap_servers),
        policy(namespace, "p", match={"groups": ["claimed-*"]}, mode="Enforce", delete={"maxPercent": 100}),
    )
    wait_for(lambda: "claimed-by-nobody" not in groups.names())
    assert "claimed-by-keda" in groups.names()

    def kept() -> list[dict[str, str]]:
        rows = world.get("kgp", namespace, "p")["status"].get("sample", [])
        return [row for row in rows if row["verdict"] == "Skip" and row["group"] == "claimed-by-keda"]

    (row,) = wait_for(kept)
    assert (row["reason"], row["message"]) == ("ClaimedByResource", "named by ScaledObject claimed/worker")


@pytest.mark.parametrize("value", ["x" * 64 + ".example.com:9092", "a..b:9092", ".:9092"])
def test_a_name_that_can_be_none_is_refused(world: World, value: str) -> None:
    """An address that no resolver would take never reaches the operator."""
    refused = world.server.kubectl("create", "-f", "-", input=yaml.safe_dump(connection("default", value)), check=False)
    assert "must be one host:port" in refused.stderr


def test_oddities_stop_no_policy(world: World, kafka: KafkaCluster, secure_kafka: KafkaCluster) -> None:
    """Credentials beyond ASCII and a token endpoint that is none are conditions; the neighbour goes on."""
    odd, healthy = world.namespace("odd"), world.namespace("odd-neighbour")
    secret = {"metadata": {"name": "oauth", "namespace": odd}, "stringData": {"secret": "pa\u00dfw\u00f6rt\u2603"}}
    world.apply({"apiVersion": "v1", "kind": "Secret"} | secret)
    oauth = {
        "tokenEndpoint": "http://no-such-host.invalid/token",
        "clientID": "\u2603",
        "clientSecretRef": {"name": "oauth", "key": "secret"},
    }
    world.apply(
        connection(odd, secure_kafka.bootstrap_servers, sasl={"mechanism": "OAUTHBEARER", "oauth": oauth}),
        connection(healthy, kafka.bootstrap_servers),
        policy(healthy, "p", match={"groups": ["none-*"]}),
    )
    ready = world.wait_ready("kconn", odd, "main", "AuthenticationFailed")
    assert "the token endpoint http://no-such-host.invalid/token does not answer" in ready["message"]
    world.wait_ready("kgp", healthy, "p", "Succeeded")


@pytest.mark.slow
def test_a_status_that_can_not_be_written_ends_deleting(world: World, kafka: KafkaCluster, groups: Groups) -> None:
    """While its status is refused, a policy deletes what one run deletes and no more; later its total is right."""
    namespace, topic = world.namespace("unwritable"), groups.topic("unwritable")
    groups.produce(topic)
    names, delete = {f"unwritable-{index}" for index in range(4)}, {"maxPercent": 1, "maxPerRun": 1}
    for name in names:
        groups.abandoned(name, topic)
    groups.produce(topic)
    world.apply(
        connection(namespace, kafka.bootstrap_servers),
        # Held back by its limit until all is prepared: marks that no status told of would delete nothing.
        policy(namespace, "p", match={"groups": ["unwritable-*"]}, mode="Enforce", delete=delete),
    )
    wait_for(lambda: world.get("kgp", namespace, "p")["status"].get("groups", {}).get("marked") == 4)
    world.apply(*_refuse_status(namespace, "p"))
    patch = ("patch", "kgp", "p", "-n", namespace, "--type=merge", "-p")
    touch = (*patch, '{"status":{"conditions":[]}}', "--subresource=status", "--dry-run=server")
    # A rule of that kind takes effect a moment after it is stored.
    wait_for(lambda: "refused by a test" in world.server.kubectl(*touch, check=False).stderr)
    world.server.kubectl(*patch, '{"spec":{"delete":{"maxPercent":100}}}')
    wait_for(lambda: len(names & groups.names()) == 3)
    time.sleep(15)
    assert len(names & groups.names()) == 3
    world.server.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "refuse-status")
    # After the pauses between its tries, which have grown.
    wait_for(lambda: not names & groups.names(), seconds=2 * PATIENCE)
    wait_for(lambda: world.get("kgp", namespace, "p")["status"].get("totals", {}).get("deleted") == 4)


def _refuse_status(namespace: str, name: str) -> list[dict[str, object]]:
    rule = {
        "apiGroups": ["grouphygiene.io"],
        "apiVersions": ["v1alpha1"],
        "operations": ["UPDATE"],
        "resources": ["grouppolicies/status"],
    }
    expression = f"object.metadata.namespace != '{namespace}' || object.metadata.name != '{name}'"
    api, metadata = "admissionregistration.k8s.io/v1", {"name": "refuse-status"}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": expression, "message": "refused by a test"}],
    }
    binding = {"policyName": "refuse-status", "validationActions": ["Deny"]}
    return [
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec},
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding},
    ]


@pytest.mark.slow
def test_200_policies_share_one_list_per_scan(world: World, operator: RunningOperator) -> None:
    """200 policies on one connection, all with matches: one ListGroups per broker per scan, as the broker counts it."""
    namespace = world.namespace("many")
    # Not less: a run in which all have news must end before two intervals are over, else all would look anew.
    policies = [
        policy(namespace, f"p{index:03}", match={"groups": ["many-*"]}, interval="30s", delete={"maxPercent": 100})
        for index in range(200)
    ]
    # A broker of their own, since the connections of the other tests look at the shared one.
    with KafkaCluster(request_log=True) as alone:
        own = Groups(alone)
        own.topic("many")
        own.produce("many")
        own.abandoned("many-old", "many")
        own.produce("many")
        world.apply(*policies, connection(namespace, alone.bootstrap_servers))

        def all_due() -> bool:
            items = json.loads(world.server.kubectl("get", "kgp", "-n", namespace, "-o", "json").stdout)["items"]
            return all(item["status"].get("groups", {}).get("wouldDelete") == 1 for item in items)

        wait_for(all_due, seconds=2 * PATIENCE)
        # What the first runs asked for beside is over.
        before = scans(operator, namespace)
        wait_for(lambda: scans(operator, namespace) > before)
        before, mark, start = scans(operator, namespace), alone.mark(), time.monotonic()
        wait_for(lambda: scans(operator, namespace) >= before + 2)
        (lists,) = alone.count_requests("LIST_GROUPS", client_id="group-hygiene", since=mark).values()
        done, seconds = scans(operator, namespace) - before, time.monotonic() - start
        # One may have listed, and have been counted as a scan, a moment before or after.
        assert done - 1 <= lists <= done + 1, "one for each scan"
        assert done <= seconds / 30 + 3, "and no scan for a policy alone"
        own.close()
        # In one request: kubectl paces itself when it deletes many by name.
        path = f"/apis/grouphygiene.io/v1alpha1/namespaces/{namespace}"
        world.server.kubectl("delete", "--raw", f"{path}/grouppolicies")
        world.server.kubectl("delete", "--raw", f"{path}/kafkaconnections")


@pytest.mark.slow
def test_another_cluster_under_the_same_address_stops_policies(
    world: World, kafka: KafkaCluster, secure_kafka: KafkaCluster, groups: Groups
) -> None:
    """A connection that leads to another cluster than before deletes and shows nothing until a user confirms."""
    namespace = world.namespace("swapped")
    world.apply(connection(namespace, secure_kafka.plaintext_bootstrap))
    world.wait_ready("kconn", namespace, "main", "Connected")
    topic = groups.topic("swapped")
    groups.produce(topic)
    groups.abandoned("swapped-old", topic)
    groups.produce(topic)
    before = world.get("kconn", namespace, "main")["status"]
    match = {"groups": ["swapped-*"]}
    world.apply(
        connection(namespace, kafka.bootstrap_servers),
        policy(namespace, "p", match=match, mode="Enforce", delete={"maxPercent": 100}),
        policy(namespace, "dry", match=match),
        policy(namespace, "alert", match=match, action="Alert", when=None),
    )
    world.wait_ready("kconn", namespace, "main", "ClusterChanged")
    for name in ("p", "dry", "alert"):
        world.wait_ready("kgp", namespace, name, "ClusterChanged")
        assert not {"groups", "sample"} & world.get("kgp", namespace, name)["status"].keys()
    shown = world.get("kconn", namespace, "main")["status"]
    assert (shown["clusterID"], shown["groups"]) == (before["clusterID"], before["groups"])
    assert "swapped-old" in groups.names()
    world.server.kubectl("delete", "kconn", "main", "-n", namespace)
    world.apply(connection(namespace, kafka.bootstrap_servers))
    wait_for(lambda: "swapped-old" not in groups.names())


class TestSecrets:
    """Everything that can be wrong with credentials is a condition on the connection, and mends itself."""

    def quickstart(self, world: World, secure_kafka: KafkaCluster, namespace: str) -> None:
        """examples/quickstart.yaml as it stands, but for the address and the namespace."""
        for document in yaml.safe_load_all((ROOT / "examples" / "quickstart.yaml").read_text()):
            document["metadata"]["namespace"] = namespace
            if document["kind"] == "KafkaConnection":
                document["spec"]["bootstrapServers"] = secure_kafka.bootstrap_servers.split(",")
            world.apply(document)

    def secret(self, world: World, namespace: str, name: str, **values: str) -> None:
        metadata = {"name": name, "namespace": namespace}
        world.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values})

    def test_from_no_secret_to_ready(self, world: World, secure_kafka: KafkaCluster, operator: RunningOperator) -> None:
        """The ten-line example: each missing or wrong thing is named, and once all is right it becomes Ready."""
        namespace = world.namespace("secrets")
        self.quickstart(world, secure_kafka, namespace)
        ready = world.wait_ready("kconn", namespace, "main", "SecretNotFound")
        assert "Secret secrets/my-cluster-cluster-ca-cert does not exist" in ready["message"]
        large = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "my-cluster-cluster-ca-cert"}}
        large["stringData"] = {"ca.crt": "x" * 270_000}
        world.server.kubectl("create", "-n", namespace, "-f", "-", input=yaml.safe_dump(large))
        self._poke(world, namespace)
        ready = world.wait_ready("kconn", namespace, "main", "SecretInvalid")
        assert "the value of 'ca.crt' is larger than 256 KiB" in ready["message"]
        self.secret(world, namespace, "my-cluster-cluster-ca-cert", **{"ca.crt": "no certificate"})
        self.secret(world, namespace, "group-hygiene", wrong_key=PASSWORD)
        self._poke(world, namespace)
        world.wait_ready("kconn", namespace, "main", "SecretKeyMissing")
        self.secret(world, namespace, "group-hygiene", password="wrong-" + PASSWORD)
        self._poke(world, namespace)
        world.wait_ready("kconn", namespace, "main", "SecretInvalid")
        self.secret(world, namespace, "my-cluster-cluster-ca-cert", **{"ca.crt": secure_kafka.ca_file.read_text()})
        self._poke(world, namespace)
        ready = world.wait_ready("kconn", namespace, "main", "AuthenticationFailed")
        assert "'group-hygiene'" in ready["message"]
        self._allow(secure_kafka)
        self.secret(world, namespace, "group-hygiene", password=PASSWORD)
        self._poke(world, namespace)
        world.wait_ready("kconn", namespace, "main", "Connected")
        world.wait_ready("kgp", namespace, "random-ids", "Succeeded")
        assert PASSWORD not in operator.log()
        assert PASSWORD not in world.server.kubectl("get", "kconn,kgp,events", "-A", "-o", "yaml").stdout

    def test_secret_that_may_not_be_read(self, world: World, secure_kafka: KafkaCluster) -> None:
        """Where the operator may not read Secrets, the condition says where to allow it."""
        namespace = world.namespace("forbidden", secrets=False)
        self.quickstart(world, secure_kafka, namespace)
        ready = world.wait_ready("kconn", namespace, "main", "SecretForbidden")
        assert "name forbidden in the chart's rbac.secretNamespaces" in ready["message"]

    def test_denied_permissions_are_named(self, world: World, secure_kafka: KafkaCluster) -> None:
        """A denied group is that group's failure, by name; a list that Kafka filters silently is told as incomplete."""
        namespace = world.namespace("denied")
        self.secret(world, namespace, "my-cluster-cluster-ca-cert", **{"ca.crt": secure_kafka.ca_file.read_text()})
        self.secret(world, namespace, "group-hygiene", password=PASSWORD)
        self._allow(secure_kafka)
        with closing(Groups(secure_kafka)) as made:
            topic = made.topic("denied")
            made.produce(topic)
            made.abandoned("denied-open", topic)
            made.abandoned("denied-secret", topic)
            made.produce(topic)
            made.admin.create_acls(
                [_acl(ResourceType.GROUP, "denied-secret", ACLOperation.ALL, ACLPermissionType.DENY)]
            )
            self.quickstart(world, secure_kafka, namespace)
            spec = {"match": {"groups": ["denied-*"]}, "mode": "Enforce", "delete": {"maxPercent": 100}}
            world.apply(policy(namespace, "p", **spec))
            ready = world.wait_ready("kgp", namespace, "p", "AuthorizationDenied")
            assert "denied-secret" in ready["message"]
            wait_for(lambda: "denied-open" not in made.names())
            assert "denied-secret" in made.names()
            made.admin.create_acls(
                [_acl(ResourceType.CLUSTER, "kafka-cluster", ACLOperation.DESCRIBE, ACLPermissionType.DENY)]
            )
            made.abandoned("denied-late", topic)
            made.produce(topic)
            ready = world.wait_ready("kgp", namespace, "p", "SnapshotIncomplete")
            assert "DESCRIBE on the cluster is denied" in ready["message"]
            time.sleep(8)
            assert "denied-late" in made.names(), "nothing is deleted on an incomplete snapshot"

    def _poke(self, world: World, namespace: str) -> None:
        """An edit, so that the test need not wait for the back-off to run out."""
        patch = f'{{"spec":{{"protect":["poke-{time.time()}"]}}}}'
        world.server.kubectl("patch", "kconn", "main", "-n", namespace, "--type=merge", "-p", patch)

    def _allow(self, secure_kafka: KafkaCluster) -> None:
        admin = KafkaAdminClient(bootstrap_servers=secure_kafka.plaintext_bootstrap)
        admin.create_acls(
            [
                _acl(ResourceType.CLUSTER, "kafka-cluster", ACLOperation.DESCRIBE),
                _acl(ResourceType.GROUP, "*", ACLOperation.DESCRIBE),
                _acl(ResourceType.GROUP, "*", ACLOperation.DELETE),
                # That of DESCRIBE is with it.
                _acl(ResourceType.TOPIC, "*", ACLOperation.READ),
                *(_acl(ResourceType.TOPIC, "__group_hygiene", operation) for operation in _LEDGER),
                *(_acl(ResourceType.TRANSACTIONAL_ID, "*", operation) for operation in _LEDGER_WRITER),
            ]
        )
        admin.close()


def _acl(
    kind: ResourceType, name: str, operation: ACLOperation, permission: ACLPermissionType = ACLPermissionType.ALLOW
) -> ACL:
    return ACL("User:group-hygiene", "*", operation, permission, ResourcePattern(kind, name))


def test_few_status_writes_while_nothing_changes(world: World, operator: RunningOperator, quiet: Quiet) -> None:
    """At an interval of 5 s, ten runs without news write each status at most once, as the API server counts it."""
    wait_for(lambda: scans(operator, quiet.namespace) - quiet.scans >= 10 and time.monotonic() - quiet.since > 60)
    # Tests may have run for minutes since then, and times alone are written once a minute.
    end = datetime.now(UTC) - timedelta(seconds=time.monotonic() - quiet.since - 60)
    written = [
        event
        for event in world.server.audit_events()[quiet.requests :]
        if event["verb"] == "patch"
        and event["objectRef"].get("namespace") == quiet.namespace
        and datetime.fromisoformat(event["requestReceivedTimestamp"]) < end
    ]
    names = [event["objectRef"]["resource"] for event in written]
    assert names.count("grouppolicies") <= 1, names
    # Once more when somebody else's policy has the ledger made, which the connection's status then names.
    assert names.count("kafkaconnections") <= 2, names


@pytest.mark.slow
def test_api_server_restart(world: World, kafka: KafkaCluster, groups: Groups, operator: RunningOperator) -> None:
    """When the API server comes back, the operator goes on by itself, with what was applied since."""
    namespace, topic = world.namespace("restart"), groups.topic("restart")
    groups.produce(topic)
    groups.abandoned("restart-old", topic)
    groups.produce(topic)
    world.server.stop_apiserver()
    time.sleep(5)
    world.server.start_apiserver()
    # It is ready a moment before it serves what CRDs define.
    wait_for(lambda: world.server.kubectl("get", "kconn,kgp", "-A", check=False).returncode == 0)
    world.apply(
        connection(namespace, kafka.bootstrap_servers),
        policy(namespace, "p", match={"groups": ["restart-*"]}, mode="Enforce", delete={"maxPercent": 100}),
    )
    wait_for(lambda: "restart-old" not in groups.names(), seconds=2 * PATIENCE)
    assert operator.process.poll() is None


class TestProcess:
    """Operators of their own: start, stop, flags."""

    @pytest.mark.slow
    def test_missing_kinds_end_it_at_once(self, tmp_path: Path) -> None:
        """Without the CRDs the operator exits 1 with a sentence that says what to apply, and no traceback."""
        with ApiServer() as server, running_operator(server.kubeconfig, tmp_path / "log") as process:
            assert process.process.wait(PATIENCE) == 1
            assert "Apply the files in crds/ first" in process.log()
            assert "Traceback" not in process.log()

    def test_no_api_server_to_talk_to(self, tmp_path: Path) -> None:
        """Without a kubeconfig or a pod it says so and exits 1."""
        with running_operator(tmp_path / "none", tmp_path / "log") as process:
            assert process.process.wait(PATIENCE) == 1
            assert "set KUBECONFIG" in process.log()
            assert "Traceback" not in process.log()
