"""What the API server answers or holds may be anything: the operator goes on, and each object answers for itself."""

from __future__ import annotations

import copy
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from group_hygiene.controller.api import KINDS, Api, load_config
from group_hygiene.controller.objects import POLICIES, Objects
from group_hygiene.controller.statuses import Recorder, StatusWriter
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.metrics import Metrics
from group_hygiene.process.clock import SystemClock
from group_hygiene.spec.crds import PLURALS
from testing.faults.api_proxy import ApiProxy, ApiRule, patches_status, refusing
from testing.faults.kafka_proxy import When
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import operators_account, use_crds
from testing.sandbox.waiting import PATIENCE, wait_for
from tests.e2e.conftest import ROOT, RunningOperator, World, connection, policy, running_operator
from tests.kube.access import can_i

_HOUR = "Retry-After: 3600"
# Nothing listens there.
_NOWHERE = "127.0.0.1:1"
_VERSION = "grouphygiene.io/v1alpha1"
# The API server reads 10,000 levels of JSON.
_DEPTH = 9_900


@pytest.fixture(scope="module")
def world(server: ApiServer) -> World:
    return World(server)


@pytest.fixture
def proxy(server: ApiServer) -> Iterator[ApiProxy]:
    host, port = server.url.removeprefix("https://").split(":")
    proxy = ApiProxy((host, int(port)), server.certificate)
    yield proxy
    proxy.close()


@pytest.fixture
def account(server: ApiServer, proxy: ApiProxy, tmp_path: Path) -> Path:
    """A kubeconfig with the operator's rights that leads through the proxy."""
    config = json.loads(operators_account(server).read_text())
    config["clusters"] = [{"name": "sandbox", "cluster": {"server": f"http://127.0.0.1:{proxy.port}"}}]
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("list --connection main -n kafka", id="list"),
        pytest.param("keep g --for 1h --why test --connection main -n kafka", id="keep"),
        pytest.param("doctor --connection main -n kafka", id="doctor"),
    ],
)
@pytest.mark.parametrize("code", [429, 503])
def test_a_command_ends_that_is_told_to_come_back_in_an_hour(
    proxy: ApiProxy, account: Path, code: int, command: str
) -> None:
    """It says what the server answered."""
    proxy.answer = lambda method, path: refusing(code, _HOUR)
    where = {"KUBECONFIG": str(account), "PYTHONPATH": str(ROOT / "operator")}
    done = subprocess.run(
        [sys.executable, "-m", "group_hygiene.cli", *command.split()],
        env={**os.environ, **where},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode not in (0, None)
    assert f"{code}" in done.stdout + done.stderr
    assert "Retry-After: 3600" in done.stdout + done.stderr


@pytest.mark.parametrize("code", [429, 503])
def test_the_operator_goes_on_after_answers_that_ask_for_an_hour(
    proxy: ApiProxy, account: Path, world: World, tmp_path: Path, code: int
) -> None:
    """It logs them, sees later edits of all namespaces within its own pauses, and stops with the Lease released."""
    first, second = f"busy-{code}", f"other-{code}"
    for namespace in (first, second):
        world.namespace(namespace)
        world.apply(connection(namespace, _NOWHERE))
    refused: list[str] = []

    def answer(method: str, path: str) -> bytes | None:
        # The Lease is renewed, as with API priority and fairness.
        if len(refused) >= 2 or "/leases" in path or "watch=true" in path or not refusals:
            return None
        refused.append(f"{method} {path}")
        return refusing(code, _HOUR)

    refusals = False
    proxy.answer = answer
    with running_operator(account, tmp_path / "log", "--lease-duration", "180") as operator:
        for namespace in (first, second):
            world.wait_ready("kconn", namespace, "main", "BrokersUnreachable")
        refusals = True
        for namespace in (first, second):
            world.apply(policy(namespace, "p"))
        wait_for(lambda: len(refused) >= 2, lambda: f"refused: {refused}")
        for namespace in (first, second):
            world.wait_ready("kgp", namespace, "p", "ConnectionNotReady")
        assert "Retry-After: 3600" in operator.log()
        assert operator.stop() == 0
        assert "released Lease" in operator.log()
    for namespace in (first, second):
        world.clear(namespace)


# Kind, name -> what of it does not have the form of the CRD.
_MISSHAPEN: dict[tuple[str, str], Any] = {
    ("GroupPolicy", "ref-is-text"): {"spec": {"connectionRef": "main"}},
    ("GroupPolicy", "ref-is-list"): {"spec": {"connectionRef": ["main"]}},
    ("GroupPolicy", "name-is-number"): {"spec": {"connectionRef": {"name": 7}}},
    ("GroupPolicy", "name-is-object"): {"spec": {"connectionRef": {"name": {"main": True}}}},
    ("GroupPolicy", "namespace-is-list"): {"spec": {"connectionRef": {"name": "main", "namespace": ["shapes"]}}},
    ("GroupPolicy", "spec-is-text"): {"spec": "main"},
    ("GroupPolicy", "no-spec"): {},
    ("GroupPolicy", "match-is-text"): {"spec": {"connectionRef": {"name": "main"}, "match": "*"}},
    ("GroupPolicy", "interval-is-short"): {
        "spec": {"connectionRef": {"name": "main"}, "match": {"groups": ["a"]}, "action": "Alert", "interval": "1s"}
    },
    ("GroupPolicy", "delete-without-when"): {
        "spec": {"connectionRef": {"name": "main"}, "match": {"groups": ["a"]}, "action": "Delete"}
    },
    ("GroupPolicy", "status-is-text"): {"spec": {"connectionRef": {"name": "main"}}, "status": "Ready"},
    ("GroupPolicy", "conditions-are-text"): {
        "spec": {"connectionRef": {"name": "main"}},
        "status": {"conditions": "Ready", "sample": 7, "totals": [], "groups": "many", "lastRunTime": 7},
    },
    ("GroupRestore", "ref-is-text"): {"spec": {"connectionRef": "main", "groups": ["g"]}},
    ("GroupRestore", "groups-are-numbers"): {"spec": {"connectionRef": {"name": "main"}, "groups": [7]}},
    ("GroupRestore", "policy-is-text"): {"spec": {"connectionRef": {"name": "main"}, "policyRef": "p"}},
    ("GroupRestore", "status-is-list"): {"spec": {"connectionRef": {"name": "main"}}, "status": [1]},
    ("KafkaConnection", "spec-is-text"): {"spec": "main"},
    ("KafkaConnection", "no-spec"): {},
    ("KafkaConnection", "access-is-text"): {"spec": {"access": "all"}},
    ("KafkaConnection", "url-of-brackets"): {
        "spec": {
            "bootstrapServers": [_NOWHERE],
            "receivers": [{"name": "r", "webhook": {"address": "http://][]@?@"}}],
        }
    },
}


def test_objects_of_any_shape_stop_no_neighbour(server: ApiServer, world: World, account: Path, tmp_path: Path) -> None:
    """Objects that were stored under a laxer CRD report InvalidSpec; other objects, also of their connection, run."""
    world.namespace("shapes")
    world.namespace("neighbour")
    crds = [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "crds").glob("*.yaml"))]
    lax = copy.deepcopy(crds)
    for crd in lax:
        for version in crd["spec"]["versions"]:
            version["schema"] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    objects = [
        {"apiVersion": "grouphygiene.io/v1alpha1", "kind": kind, **shape}
        | {"metadata": {"name": name, "namespace": "shapes"}}
        for (kind, name), shape in _MISSHAPEN.items()
    ]
    try:
        use_crds(server, *lax)
        for obj in objects:
            wait_for(partial(_stored, server, obj))
    finally:
        use_crds(server, *crds)
    for namespace in ("shapes", "neighbour"):
        world.apply(connection(namespace, _NOWHERE), policy(namespace, "good"))
    # kubectl writes this annotation, and so can any user; it is nested more deeply than Python reads.
    deep = f"kubectl.kubernetes.io/last-applied-configuration={'[' * 50_000}"
    server.kubectl("annotate", "kgp", "good", "-n", "shapes", "--overwrite", deep)
    with running_operator(account, tmp_path / "log", "--lease-duration", "180") as operator:
        for namespace in ("neighbour", "shapes"):
            world.wait_ready("kgp", namespace, "good", "ConnectionNotReady")
        # The API server refuses statuses of such objects: then an Event and the log report it.
        for kind, name in _MISSHAPEN:
            # Of a connection with that receiver, only the receiver can't be notified.
            if name != "url-of-brackets":
                found = f"{kind} shapes/{name}: Stalled True InvalidSpec"
                wait_for(partial(_logged, operator, found), found)
        assert "Traceback" not in operator.log()
        assert operator.process.poll() is None
    for namespace in ("neighbour", "shapes"):
        world.clear(namespace)


def test_objects_that_are_nested_deeply_stop_no_watch(
    server: ApiServer, world: World, account: Path, tmp_path: Path
) -> None:
    """Users may write the managed fields of an object, as deep as the API server reads; and kopf's annotation."""
    for namespace in ("deep", "neighbour"):
        world.namespace(namespace)
        world.apply(connection(namespace, _NOWHERE), policy(namespace, "good"))
    annotation = f"kopf.zalando.org/last-handled-configuration={'[' * 50_000}"
    server.kubectl("annotate", "kgp", "good", "-n", "deep", annotation)
    specs: dict[str, dict[str, Any]] = {
        "KafkaConnection": connection("deep", _NOWHERE)["spec"],
        "GroupPolicy": policy("deep", "any")["spec"],
        "GroupRestore": {"connectionRef": {"name": "main"}, "groups": ["g"]},
        "GroupKeep": {"connectionRef": {"name": "main"}, "groups": ["g"], "reason": "r"},
    }

    def create(name: str) -> None:
        """One of each kind."""
        fields = {"manager": "m", "operation": "Update", "apiVersion": _VERSION, "time": "2030-01-01T00:00:00Z"}
        managed = [fields | {"fieldsType": "FieldsV1", "fieldsV1": "NESTED"}]
        metadata = {"namespace": "deep", "name": name, "managedFields": managed}
        for kind, spec in specs.items():
            text = json.dumps({"apiVersion": _VERSION, "kind": kind, "metadata": metadata, "spec": spec})
            file = tmp_path / "deep.json"
            file.write_text(text.replace('"NESTED"', '{"f:x":' * _DEPTH + "{}" + "}" * _DEPTH))
            path = f"/apis/{_VERSION}/namespaces/deep/{PLURALS[kind]}"
            server.kubectl("create", "--raw", path, "-f", str(file))

    create("before")
    with running_operator(account, tmp_path / "log", "--lease-duration", "180") as operator:
        for namespace in ("neighbour", "deep"):
            world.wait_ready("kgp", namespace, "good", "ConnectionNotReady")
        create("later")
        world.apply(policy("neighbour", "later"))
        world.wait_ready("kgp", "neighbour", "later", "ConnectionNotReady")
        for kind, name in product(("kgp", "kgr", "kgk", "kconn"), ("before", "later")):
            server.kubectl("wait", "--for=condition=Ready=False", f"{kind}/{name}", "-n", "deep", "--timeout=60s")
        server.kubectl("annotate", "kgp", "good", "-n", "deep", "--overwrite", annotation, "example.com/note=x")
        assert "Traceback" not in operator.log()
        assert operator.process.poll() is None
    command = (sys.executable, "-m", "group_hygiene.cli", "list", "--connection", "absent", "-n", "deep")
    where = {"KUBECONFIG": str(server.kubeconfig), "PYTHONPATH": str(ROOT / "operator")}
    done = subprocess.run(command, env={**os.environ, **where}, capture_output=True, text=True, check=False)
    assert "there is deep/before, deep/later, deep/main" in done.stderr
    server.kubectl("delete", "kgp,kgr,kgk,kconn", "--all", "-n", "deep")
    world.clear("neighbour")


def test_an_object_with_a_finalizer_of_kopf_is_followed(
    server: ApiServer, world: World, account: Path, tmp_path: Path
) -> None:
    """A user may write it. kopf would remove it, which the operator may not, and see no edit until it could."""
    namespace = world.namespace("finalizer")
    held = policy(namespace, "p")
    held["metadata"]["finalizers"] = ["kopf.zalando.org/KopfFinalizerMarker"]
    world.apply(connection(namespace, _NOWHERE), held)
    with running_operator(account, tmp_path / "log", "--lease-duration", "180") as operator:
        world.wait_ready("kgp", namespace, "p", "ConnectionNotReady")
        held["spec"]["suspend"] = True
        world.apply(held)
        world.wait_ready("kgp", namespace, "p", "Suspended")
        assert "grouppolicies/p" not in operator.log()
    server.kubectl("patch", "kgp", "p", "-n", namespace, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    world.clear(namespace)


def test_a_watch_that_fails_ends_the_process(proxy: ApiProxy, account: Path, tmp_path: Path) -> None:
    """By an answer that is nested more deeply than any of an API server. kopf itself would go on without watches."""
    line = b"[" * 20_000 + b"\n"
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(line) + line
    proxy.answer = lambda _, path: answer if "/groupkeeps?watch=true" in path else None
    with running_operator(account, tmp_path / "log", "--lease-duration", "180") as operator:
        assert operator.process.wait(PATIENCE) == 1
        assert "the operator ends" in operator.log()


def test_policies_of_absent_connections_delay_no_other(
    server: ApiServer, world: World, account: Path, tmp_path: Path
) -> None:
    """No loop exists for an absent connection, and a round of one that exists reads no objects from the API server."""
    for namespace in ("absent", "served"):
        world.namespace(namespace)
    many = 150
    world.apply(*(policy("absent", f"p{number}", connectionRef={"name": f"c{number}"}) for number in range(many)))
    world.apply(policy("absent", "across", connectionRef={"name": "main", "namespace": "nowhere"}))
    world.apply(connection("served", _NOWHERE), policy("served", "p"))
    with running_operator(account, tmp_path / "log", "--lease-duration", "180") as operator:
        world.wait_ready("kgp", "served", "p", "ConnectionNotReady")
        for number in (0, many - 1):
            world.wait_ready("kgp", "absent", f"p{number}", "ConnectionNotFound")
        world.wait_ready("kgp", "absent", "across", "CrossNamespaceRefused")
        threads = len(list(Path(f"/proc/{operator.process.pid}/task").iterdir()))
        assert threads < 50
        before, failed = len(server.audit_events()), _failures(operator)
        wait_for(lambda: _failures(operator) >= failed + 2)
        since = server.audit_events()[before:]
        ours = [e for e in since if "serviceaccount" in e["user"]["username"] and "/leases/" not in e["requestURI"]]
        reads = [e["requestURI"] for e in ours if e["verb"] in ("get", "list") and "limit=" not in e["requestURI"]]
        # The schemas of the CRDs are read every 30 s, by the process.
        assert [read for read in reads if not read.startswith("/openapi/")] == []
        # A connection that is applied later is served.
        world.apply(connection("absent", _NOWHERE) | {"metadata": {"name": "c7", "namespace": "absent"}})
        world.wait_ready("kgp", "absent", "p7", "ConnectionNotReady")
        world.clear("absent")
        wait_for(lambda: 'namespace="absent"' not in operator.http("/metrics")[1])
    world.clear("served")


_OF_SERVED = {"connectionRef": {"name": "main", "namespace": "served"}}


@pytest.mark.parametrize(
    ("obj", "reason"),
    [
        pytest.param(policy("idle", "idle", suspend=True, action="Alert", **_OF_SERVED), "Suspended", id="suspended"),
        pytest.param(policy("idle", "idle", **_OF_SERVED), "ActionNotGranted", id="action-not-granted"),
        pytest.param(
            policy("idle", "idle") | {"kind": "GroupRestore", "spec": _OF_SERVED | {"groups": ["g"]}},
            "ActionNotGranted",
            id="restore-not-granted",
        ),
    ],
)
def test_no_round_writes_a_status_of_what_does_not_run(
    world: World, proxy: ApiProxy, account: Path, tmp_path: Path, obj: dict[str, Any], reason: str
) -> None:
    """The API server refuses these writes for now: the policies of the connection run."""
    for namespace in ("idle", "served"):
        world.namespace(namespace)
    access = [{"namespaces": {"names": ["idle"]}, "groups": ["*"], "actions": ["Alert"]}]
    world.apply(connection("served", _NOWHERE, access=access), policy("served", "p"), obj)
    refused = threading.Event()

    def answer(method: str, path: str) -> bytes | None:
        if method != "PATCH" or "/idle/" not in path:
            return None
        refused.set()
        return refusing(429)

    proxy.answer = answer
    short = "kgr" if obj["kind"] == "GroupRestore" else "kgp"
    with running_operator(account, tmp_path / "log", "--lease-duration", "180"):
        wait_for(refused.is_set)
        world.wait_ready("kgp", "served", "p", "ConnectionNotReady")
        assert world.condition(short, "idle", "idle", "Ready") is None
        proxy.answer = lambda method, path: None
        # At once, and not only after a minute.
        world.apply(connection("served", _NOWHERE, access=access, limits={"requestsPerSecond": 50}))
        world.wait_ready(short, "idle", "idle", reason)
    world.server.kubectl("delete", "kgr,kgp,kconn", "--all", "-n", "idle")
    world.clear("served")


def _failures(operator: RunningOperator) -> float:
    series = 'group_hygiene_scan_failures_total{connection="main",namespace="served",reason="BrokersUnreachable"} '
    return float(operator.http("/metrics")[1].partition(series)[2].partition("\n")[0] or 0)


def _logged(operator: RunningOperator, text: str) -> bool:
    return text in operator.log()


def _stored(server: ApiServer, obj: dict[str, Any]) -> bool:
    """Create the object, with its status; False = the API server still has the stricter CRD."""
    apply = ("apply", "--validate=false", "-f", "-")
    if server.kubectl(*apply, input=json.dumps(obj), check=False).returncode:
        return False
    if "status" in obj:
        replace = ("replace", "--subresource=status", "--validate=false", "-f", "-")
        server.kubectl(*replace, input=json.dumps(obj))
    kind, name = obj["kind"], obj["metadata"]["name"]
    stored = json.loads(server.kubectl("get", f"{kind}.grouphygiene.io", name, "-n", "shapes", "-o", "json").stdout)
    return all(stored.get(key) == obj.get(key) for key in ("spec", "status"))


def test_policies_of_an_older_crd_do_nothing(server: ApiServer, world: World, account: Path, tmp_path: Path) -> None:
    """They report CRDOutdated, and run once the API server has the CRD of this version."""
    world.namespace("outdated")
    crd = yaml.safe_load((ROOT / "crds" / "grouppolicies.yaml").read_text())
    older = copy.deepcopy(crd)
    spec = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["delete"]["properties"].pop("windows")
    try:
        use_crds(server, older)
        world.apply(connection("outdated", _NOWHERE), policy("outdated", "p"))
        with running_operator(account, tmp_path / "log", "--lease-duration", "180"):
            ready = world.wait_ready("kgp", "outdated", "p", "CRDOutdated")
            assert "it lacks spec.delete.windows" in ready["message"]
            world.wait_ready("kconn", "outdated", "main", "BrokersUnreachable")
            use_crds(server, crd)
            world.wait_ready("kgp", "outdated", "p", "ConnectionNotReady")
    finally:
        use_crds(server, crd)
        world.clear("outdated")


def test_an_object_that_is_edited_and_deleted_aborts_no_round(
    world: World, proxy: ApiProxy, account: Path, server: ApiServer
) -> None:
    """Its status has a conflict, and it is gone when it is read again: there is nothing left to write."""
    world.namespace("churn")
    world.apply(policy("churn", "p"))
    api = Api(load_config(file=account))
    read = api.get(POLICIES, "churn", "p")
    world.apply(policy("churn", "p", interval="7s"))

    def reads_again(method: str, path: str) -> bool:
        return method == "GET" and path.endswith("/namespaces/churn/grouppolicies/p")

    proxy.rule(ApiRule(reads_again, When.BEFORE, lambda: world.clear("churn")))
    writer = StatusWriter(api, Objects(), Recorder(api), Metrics(), SystemClock(), "group-hygiene")
    writer.write_problem(POLICIES, read, Refusal(reasons.CONNECTION_NOT_FOUND, "there is none"))
    left = server.kubectl("get", "grouppolicies.grouphygiene.io", "-n", "churn", "-o", "name").stdout
    assert left == ""


def test_an_edit_that_only_a_write_shows_is_reported(world: World, account: Path) -> None:
    """A status meets a conflict, and the write stores the edit before the watch reports it: both loops are woken."""
    world.namespace("moved")
    world.apply(policy("moved", "p"))
    api, changes = Api(load_config(file=account)), list[Any]()
    objects = Objects(changed=lambda plural, key, connections: changes.append((plural, key, connections)))
    read = api.get(POLICIES, "moved", "p")
    objects.put(POLICIES, read)
    world.apply(policy("moved", "p", connectionRef={"name": "absent"}))
    changes.clear()
    writer = StatusWriter(api, objects, Recorder(api), Metrics(), SystemClock(), "group-hygiene")
    writer.write_problem(POLICIES, read, Refusal(reasons.CONNECTION_NOT_FOUND, "there is none"))
    assert changes == [(POLICIES, ("moved", "p"), {("moved", "main"), ("moved", "absent")})]
    world.clear("moved")


@pytest.mark.slow
def test_who_may_not_list_is_not_ready_and_does_not_lead(server: ApiServer, account: Path, tmp_path: Path) -> None:
    """It names what is refused; once it may, it is ready and leads."""
    role = json.loads(server.kubectl("get", "clusterrole", "group-hygiene-operator", "-o", "json").stdout)
    narrow = copy.deepcopy(role)
    for rule in narrow["rules"]:
        if "grouprestores" in rule["resources"]:
            rule["resources"].remove("grouprestores")
    try:
        server.kubectl("replace", "-f", "-", input=json.dumps(_unversioned(narrow)))
        wait_for(lambda: not can_i(server, f"--kubeconfig={account}", "list", "grouprestores", "-A"))
        with running_operator(account, tmp_path / "log", "--lease-duration", "180") as operator:
            wait_for(
                partial(_logged, operator, "no permission to list grouprestores.grouphygiene.io in all namespaces")
            )
            assert operator.http("/readyz")[0] == 503
            metrics = operator.http("/metrics")[1]
            assert 'group_hygiene_watching{resource="grouprestores"} 0.0' in metrics
            assert "group_hygiene_leader 0.0" in metrics
            server.kubectl("replace", "-f", "-", input=json.dumps(_unversioned(role)))
            wait_for(lambda: operator.http("/readyz")[0] == 200)
            wait_for(lambda: "group_hygiene_leader 1.0" in operator.http("/metrics")[1])
    finally:
        server.kubectl("replace", "-f", "-", input=json.dumps(_unversioned(role)))


def _unversioned(obj: dict[str, Any]) -> dict[str, Any]:
    return obj | {"metadata": {"name": obj["metadata"]["name"], "labels": obj["metadata"].get("labels") or {}}}


@pytest.mark.slow
def test_a_leader_that_sees_no_changes_lets_another_lead(
    server: ApiServer, proxy: ApiProxy, account: Path, tmp_path: Path
) -> None:
    """Its watch of policies is refused for a minute: it says so, releases the Lease and ends."""
    with running_operator(account, tmp_path / "log", "--lease-duration", "180") as operator:
        wait_for(lambda: "group_hygiene_leader 1.0" in operator.http("/metrics")[1])
        proxy.answer = lambda method, path: refusing(403) if "/grouppolicies" in path and "watch=true" in path else None
        # All watches end.
        server.restart()
        assert operator.process.wait(PATIENCE) == 1
        assert "gives up the lead" in operator.log()
        assert "no permission to watch grouppolicies" in operator.log()
        assert "released Lease" in operator.log()


@pytest.mark.slow
def test_a_leader_without_progress_lets_another_lead(world: World, account: Path, tmp_path: Path) -> None:
    """Its only round waits for a broker that accepts connections and says nothing: it says so, and ends."""
    start = [str(Path(__file__).with_name("impatient_operator.py"))]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        world.namespace("stuck")
        world.apply(connection("stuck", f"127.0.0.1:{silent.getsockname()[1]}", scan={"timeout": "5m"}))
        world.apply(policy("stuck", "p"))
        with running_operator(account, tmp_path / "log", "--lease-duration", "180", start=start) as operator:
            assert operator.process.wait(PATIENCE) == 1
            assert "gives up the lead: no round of any connection has ended for" in operator.log()
    world.clear("stuck")


@pytest.mark.slow
def test_a_namespace_that_may_not_be_watched_ends_no_other(
    world: World, proxy: ApiProxy, account: Path, tmp_path: Path
) -> None:
    """The operator is not ready, serves the others, and that one as soon as it may."""
    for namespace in ("open", "shut"):
        world.namespace(namespace)
        world.apply(policy(namespace, "p"))
    proxy.answer = lambda method, path: refusing(403) if "/namespaces/shut/" in path else None
    limits = ("--lease-duration", "180", "--namespace", "open", "--namespace", "shut")
    with running_operator(account, tmp_path / "log", *limits) as operator:
        world.wait_ready("kgp", "open", "p", "ConnectionNotFound")
        assert operator.http("/readyz")[0] == 503
        assert 'group_hygiene_watching{resource="grouppolicies"} 0.0' in operator.http("/metrics")[1]
        assert "no permission to list grouppolicies.grouphygiene.io in namespace shut" in operator.log()
        proxy.answer = lambda method, path: None
        world.wait_ready("kgp", "shut", "p", "ConnectionNotFound")
        wait_for(lambda: operator.http("/readyz")[0] == 200)
    for namespace in ("open", "shut"):
        world.clear(namespace)


@pytest.mark.slow
def test_a_leader_whose_lists_take_longer_than_the_lease_leads_on(
    world: World, proxy: ApiProxy, account: Path, tmp_path: Path
) -> None:
    """It renews the Lease while it compares its objects with lists, and acts after that."""
    world.namespace("slow-lists")
    world.apply(policy("slow-lists", "p"))
    # Without a renewal it leads for 16 s.
    duration, delay = 24, 8.0
    leading, finished = threading.Event(), threading.Event()

    def is_list(plural: str, method: str, path: str) -> bool:
        if method in ("POST", "PUT") and "/leases" in path:
            leading.set()
        return leading.is_set() and f"/{plural}?" in path and "limit=100" in path

    for plural in KINDS:
        proxy.rule(ApiRule(partial(is_list, plural), When.BEFORE, partial(time.sleep, delay)))
    proxy.rule(ApiRule(patches_status, When.BEFORE, finished.set))
    with running_operator(account, tmp_path / "log", "--lease-duration", f"{duration}") as operator:
        assert leading.wait(PATIENCE)
        assert not finished.wait(duration * 2 / 3)
        world.wait_ready("kgp", "slow-lists", "p", "ConnectionNotFound")
        assert finished.is_set()
        assert operator.process.poll() is None
        assert operator.stop() == 0
        assert "released Lease" in operator.log()
    world.clear("slow-lists")
