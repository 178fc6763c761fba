"""GroupKeep objects as teams apply them: groups that no policy deletes, as long as the object exists."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from group_hygiene.model import reasons
from sandbox.kafka import KafkaCluster
from sandbox.waiting import PATIENCE, wait_for
from tests.e2e.conftest import FLOORS, ROOT, Groups, World, connection, policy
from tests.kube.access import wait_until_allowed

pytestmark = pytest.mark.usefixtures("operator")

OWNER, TEAM, STRANGER = "keep-owner", "keep-team", "keep-stranger"
# Of the races of ten GroupKeeps each with a deletion of their groups.
ROUNDS = int(os.environ.get("GROUP_HYGIENE_KEEP_ROUNDS", "1"))
GRANT = {"namespaces": {"names": [TEAM]}, "groups": ["keep-*"], "actions": ["Keep", "Alert", "Delete"]}


def group_keep(name: str, *groups: str, namespace: str = TEAM, **spec: Any) -> dict[str, Any]:
    reference = {"name": "main", "namespace": OWNER}
    return {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "GroupKeep",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"connectionRef": reference, "groups": list(groups), "reason": "yearly report", **spec},
    }


@pytest.fixture(scope="module")
def topic(world: World, kafka: KafkaCluster, groups: Groups) -> Iterator[str]:
    for name in (OWNER, TEAM, STRANGER):
        world.namespace(name)
    made = groups.topic("keep")
    groups.produce(made)
    world.apply(connection(OWNER, kafka.bootstrap_servers, limits=FLOORS, access=[GRANT]))
    yield made
    for name in (TEAM, STRANGER, OWNER):
        world.server.kubectl("delete", "kgk,kgr,kgp,kconn", "--all", "-n", name)


def unused(groups: Groups, name: str, topic: str) -> None:
    """A group whose consumer is gone, and for which records wait."""
    groups.abandoned(name, topic)
    groups.produce(topic)


def deleting(name: str, pattern: str, **delete: Any) -> dict[str, Any]:
    match = {"groups": [pattern]}
    return policy(OWNER, name, match=match, mode="Enforce", delete={"maxPercent": 100, **delete})


def kept(world: World, name: str, reason: str, namespace: str = TEAM) -> dict[str, Any]:
    """The status, once it has this reason for this edition of the object."""

    def found() -> dict[str, Any] | None:
        obj = world.get("kgk", namespace, name)
        status = obj.get("status") or {}
        ready = [each for each in status.get("conditions", ()) if each["type"] == "Ready"]
        current = status.get("observedGeneration") == obj["metadata"]["generation"]
        return dict(status) if current and ready and ready[0]["reason"] == reason else None

    return dict(wait_for(found) or {})


def condition(status: dict[str, Any]) -> str:
    (found,) = [each["status"] for each in status["conditions"] if each["type"] == "Kept"]
    return str(found)


def test_a_team_keeps_its_group_before_the_mark(world: World, groups: Groups, topic: str) -> None:
    """The policy says who asked, and deletes the group once the object is gone."""
    unused(groups, "keep-before", topic)
    world.apply(group_keep("before", "keep-before"))
    status = kept(world, "before", "Kept")
    assert condition(status) == "True"
    (row,) = status["results"]
    assert (row["group"], row["protected"], row["exists"], row["state"]) == ("keep-before", True, True, "Empty")
    world.apply(deleting("before", "keep-before"))
    wait_for(
        lambda: (
            {"reason": "KeepRequested", "count": 1}
            in world.get("kgp", OWNER, "before")["status"].get("groupsByReason", ())
        )
    )
    (verdict,) = world.get("kgp", OWNER, "before")["status"]["sample"]
    assert f"GroupKeep {TEAM}/before asked to keep it until" in verdict["message"]
    assert "keep-before" in groups.names()
    world.server.kubectl("delete", "kgk", "before", "-n", TEAM)
    wait_for(lambda: "keep-before" not in groups.names())


def test_one_that_is_being_deleted_keeps_nothing(world: World, groups: Groups, topic: str) -> None:
    """A finalizer of another program may keep the object there for long: its user no longer wants it."""
    unused(groups, "keep-deleted", topic)
    made = group_keep("deleted", "keep-deleted")
    made["metadata"]["finalizers"] = ["example.org/another-program"]
    world.apply(made)
    kept(world, "deleted", "Kept")
    world.apply(deleting("deleted", "keep-deleted"))
    world.server.kubectl("delete", "kgk", "deleted", "-n", TEAM, "--wait=false")
    try:
        wait_for(lambda: "keep-deleted" not in groups.names())
        world.wait_ready("kgk", TEAM, "deleted", "Terminating")
    finally:
        release = ("--type=merge", "-p", '{"metadata": {"finalizers": null}}')
        world.server.kubectl("patch", "kgk", "deleted", "-n", TEAM, *release)


def test_a_team_keeps_its_group_after_the_mark(world: World, groups: Groups, topic: str) -> None:
    """The mark ends; an edit that no longer lists the group ends its request."""
    unused(groups, "keep-after", topic)
    world.apply(deleting("after", "keep-after", gracePeriod="1h"))
    wait_for(lambda: world.get("kgp", OWNER, "after")["status"].get("groups", {}).get("marked") == 1)
    world.apply(group_keep("after", "keep-after"))
    assert condition(kept(world, "after", "Kept")) == "True"
    wait_for(lambda: world.get("kgp", OWNER, "after")["status"].get("groups", {}).get("marked") == 0)
    world.apply(group_keep("after", "keep-nothing"))
    status = kept(world, "after", "GroupUnknown")
    assert (condition(status), status["results"][0]["exists"]) == ("False", False)
    wait_for(lambda: world.get("kgp", OWNER, "after")["status"].get("groups", {}).get("marked") == 1)


def _entry_to_ask_for(status: dict[str, Any]) -> Any:
    """Of the first group: what its message says that the owner of the connection must add to spec.access."""
    _, _, text = status["results"][0]["message"].partition("must add ")
    return yaml.safe_load(text.partition(" to spec.access")[0])


def test_a_deleted_group_says_how_to_restore_it(world: World, kafka: KafkaCluster, groups: Groups, topic: str) -> None:
    """By an object that the team may create; without the grant for that, by what the team may ask for."""
    unused(groups, "keep-late", topic)
    world.apply(deleting("late", "keep-late"))
    wait_for(lambda: "keep-late" not in groups.names())
    world.apply(group_keep("late", "keep-late"))
    status = kept(world, "late", "AlreadyDeleted")
    assert condition(status) == "False"
    entry = {"namespaces": {"names": [TEAM]}, "groups": ["keep-late"], "actions": ["Restore"]}
    assert _entry_to_ask_for(status) == entry
    world.apply(connection(OWNER, kafka.bootstrap_servers, limits=FLOORS, access=[GRANT, entry]))

    def command() -> str | None:
        (row,) = world.get("kgk", TEAM, "late")["status"]["results"]
        _, _, found = row["message"].partition("protects it from then on: ")
        return found or None

    # Of a user who is granted it, and may create objects in the namespace.
    script = str(wait_for(command))
    namespace, kubeconfig = f"-n {TEAM}", str(world.server.kubeconfig)
    assert namespace in script
    subprocess.run(["sh", "-c", script], env={**os.environ, "KUBECONFIG": kubeconfig}, check=True)
    wait_for(lambda: "keep-late" in groups.names())
    assert condition(kept(world, "late", "Kept")) == "True"
    world.apply(connection(OWNER, kafka.bootstrap_servers, limits=FLOORS, access=[GRANT]))


def test_a_revoked_grant_ends_the_request(world: World, kafka: KafkaCluster, groups: Groups, topic: str) -> None:
    """As does a group that is not granted; a namespace without a grant learns nothing."""
    unused(groups, "keep-revoked", topic)
    world.apply(group_keep("revoked", "keep-revoked", "other-group"))
    status = kept(world, "revoked", "ActionNotGranted")
    assert {row["group"]: row["protected"] for row in status["results"]} == {"keep-revoked": True, "other-group": False}
    asked = {"namespaces": {"names": [TEAM]}, "groups": ["other-group"], "actions": ["Keep"]}
    assert _entry_to_ask_for(status) == asked
    world.apply(group_keep("revoked", "keep-revoked", namespace=STRANGER))
    refused = kept(world, "revoked", "CrossNamespaceRefused", STRANGER)
    entry = f'{{namespaces: {{names: ["{STRANGER}"]}}, groups: ["keep-revoked"], actions: [Keep]}}'
    assert f"its owner must add {entry} to spec.access" in refused["conditions"][0]["message"]
    world.apply(deleting("revoked", "keep-revoked"))
    world.apply(connection(OWNER, kafka.bootstrap_servers, limits=FLOORS, access=[GRANT | {"actions": ["Alert"]}]))
    kept(world, "revoked", "ActionNotGranted")
    wait_for(lambda: "keep-revoked" not in groups.names())
    world.apply(connection(OWNER, kafka.bootstrap_servers, limits=FLOORS, access=[GRANT]))


@pytest.mark.parametrize(
    ("enforces", "others"),
    [
        pytest.param("second", "keep-shared-*", id="its-policies-obey"),
        pytest.param("first", "none-*", id="it-ends-no-request"),
        pytest.param("second", "none-*", id="with-a-keep-of-its-own"),
    ],
)
def test_connections_that_share_a_ledger(
    world: World, kafka: KafkaCluster, groups: Groups, topic: str, enforces: str, others: str
) -> None:
    """A second connection to the cluster, with the same topic for its ledger, as is the default."""
    group, namespace = f"keep-shared-{enforces}-{len(others)}", f"keep-second-{enforces}-{len(others)}"
    unused(groups, group, topic)
    world.namespace(namespace)
    world.apply(group_keep("shared", group))
    kept(world, "shared", "Kept")
    world.apply(connection(namespace, kafka.bootstrap_servers, limits=FLOORS))
    if enforces == "first":
        world.apply(deleting("shared", group))
    elif others == "none-*":
        world.apply(deleting("shared", group))
        own = group_keep("own", "none-such", namespace=namespace)
        own["spec"]["connectionRef"] = {"name": "main"}
        world.apply(own)
        kept(world, "own", "GroupUnknown", namespace)
    world.apply(policy(namespace, "p", match={"groups": [others]}, mode="Enforce", delete={"maxPercent": 100}))
    world.wait_ready("kgp", namespace, "p", "Succeeded")
    # More than the time after which a policy of these connections deletes, and than ten of its runs.
    until = time.monotonic() + 20
    while time.monotonic() < until:
        assert group in groups.names()
        time.sleep(0.5)
    assert condition(kept(world, "shared", "Kept")) == "True"
    # It is the request that has kept it, and it ends with its object.
    world.apply(deleting("shared", group))
    world.server.kubectl("delete", "kgk", "shared", "-n", TEAM)
    wait_for(lambda: group not in groups.names())
    world.server.kubectl("delete", "kgp", "shared", "-n", OWNER)
    world.server.kubectl("delete", "kgk,kgp,kconn", "--all", "-n", namespace)


def test_a_keep_that_names_another_connection(world: World, kafka: KafkaCluster, groups: Groups, topic: str) -> None:
    """Its request ends where it was, once the other connection is known to have another ledger."""
    namespace = "keep-elsewhere"
    unused(groups, "keep-moved", topic)
    world.namespace(namespace)
    grant = GRANT | {"namespaces": {"names": [TEAM]}}
    world.apply(connection(namespace, kafka.bootstrap_servers, ledger={"topic": "keep-elsewhere"}, access=[grant]))
    # A run shows the ledger in the connection's status.
    world.apply(policy(namespace, "p", match={"groups": ["none-*"]}, mode="Enforce"))
    world.wait_ready("kgp", namespace, "p", "Succeeded")
    world.apply(group_keep("moved", "keep-moved"))
    kept(world, "moved", "Kept")
    world.apply(deleting("moved", "keep-moved"))
    moved = group_keep("moved", "keep-moved")
    moved["spec"]["connectionRef"] = {"name": "main", "namespace": namespace}
    world.apply(moved)
    kept(world, "moved", "Kept")
    wait_for(lambda: "keep-moved" not in groups.names())
    world.server.kubectl("delete", "kgk,kgp", "moved", "-n", TEAM, "--ignore-not-found")
    world.server.kubectl("delete", "kgp", "moved", "-n", OWNER)
    world.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


@pytest.fixture(scope="module")
def who(world: World, topic: str) -> str:
    """kubectl's option for the ServiceAccount `dev` with the team's role edit. `none` has no rights."""
    users = ROOT / "deploy" / "kustomize" / "overlays" / "cluster-wide" / "rbac-users.yaml"
    world.server.kubectl("apply", "-f", str(users))
    option, place = f"--as=system:serviceaccount:{TEAM}:dev", ("-n", TEAM)
    for name in ("dev", "none"):
        world.server.kubectl("create", "serviceaccount", name, *place)
    for role in ("view", "edit"):
        # The controller manager, which aggregates them into the built-in roles, does not run here.
        binding = (f"--clusterrole=group-hygiene-{role}", f"--serviceaccount={TEAM}:dev")
        world.server.kubectl("create", "rolebinding", f"dev-{role}", *binding, *place)
    wait_until_allowed(world.server, option, "create", "groupkeeps", *place)
    return option


def test_by_kubectl_alone(world: World, groups: Groups, topic: str, who: str, tmp_path: Path) -> None:
    """It sees when its group is due, and keeps it, without Kafka; by `keep`, too."""
    place = ("-n", TEAM)
    unused(groups, "keep-alone", topic)
    own = deleting("ours", "keep-alone", gracePeriod="1h")
    own["metadata"]["namespace"] = TEAM
    own["spec"]["connectionRef"]["namespace"] = OWNER
    file = tmp_path / "object.json"

    def apply(obj: dict[str, Any]) -> None:
        file.write_text(json.dumps(obj))
        world.server.kubectl("apply", "-f", str(file), who)

    apply(own)
    wait_for(lambda: world.get("kgp", TEAM, "ours")["status"].get("groups", {}).get("marked") == 1)
    apply(group_keep("alone", "keep-alone"))
    kept(world, "alone", "Kept")
    (row,) = json.loads(world.server.kubectl("get", "kgk", "alone", "-o", "json", who, *place).stdout)["status"][
        "results"
    ]
    assert (row["protected"], row["state"], row["policy"], row["dueReason"]) == (True, "Empty", "ours", "Unchanged")
    assert "dueTime" in row
    assert "unchangedSince" in row
    wait_for(lambda: world.get("kgp", TEAM, "ours")["status"].get("groups", {}).get("marked") == 0)
    world.server.kubectl("delete", "kgk", "alone", who, *place)
    wait_for(lambda: world.get("kgp", TEAM, "ours")["status"].get("groups", {}).get("marked") == 1)
    done = _command_of(world, "dev", "keep-alone")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["protected"]
    assert (row["group"], row["for"]) == ("keep-alone", "24h")
    by, _, name = row["by"].partition(f" {TEAM}/")
    assert by == "GroupKeep"
    uid = world.get("kgk", TEAM, name)["metadata"]["uid"]
    assert f"it holds for KafkaConnection {OWNER}/main, and no other" in done.stderr
    for options, code, message in (
        (("--for", "2d"), 0, ""),
        (("--for", "1h"), 1, "which is later; --replace shortens that"),
        (("--for", "1h", "--replace"), 0, ""),
        (("--remove",), 1, f"kubectl delete kgk {name}"),
    ):
        done = _command_of(world, "dev", "keep-alone", *options)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert world.get("kgk", TEAM, name)["metadata"]["uid"] == uid
    wait_for(lambda: world.get("kgp", TEAM, "ours")["status"].get("groups", {}).get("marked") == 0)


@pytest.mark.parametrize(
    ("account", "group", "message"),
    [
        pytest.param("dev", "keep-absent", "GroupUnknown: 1 of 1 groups are protected", id="unknown"),
        pytest.param("dev", "keep-*", "a GroupKeep has exact ids, no patterns", id="pattern"),
        pytest.param("dev", "other", "ActionNotGranted: 0 of 1 groups are protected", id="not-granted"),
        pytest.param("none", "keep-absent", f"No GroupKeep could be applied in namespace {TEAM} either", id="no-right"),
    ],
)
def test_a_user_who_may_not_read_the_connection(world: World, who: str, account: str, group: str, message: str) -> None:
    """`keep` creates a GroupKeep in the user's namespace, and reports what the operator says."""
    done = _command_of(world, account, group)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    assert f"Error: you may not read KafkaConnection {OWNER}/main" in done.stderr or account == "dev"


def _command_of(world: World, account: str, group: str, *options: str) -> subprocess.CompletedProcess[str]:
    """`keep` by a ServiceAccount of the team."""
    file = world.server.kubeconfig_for_service_account(TEAM, account)
    environment = os.environ | {"KUBECONFIG": str(file)}
    options = options or ("--for", "1d")
    why = () if "--remove" in options else ("--why", "report")
    command = (sys.executable, "-m", "group_hygiene.cli", "keep", group, *options, *why)
    where = ("--connection", "main", "-n", OWNER, "-o", "json")
    return subprocess.run([*command, *where], env=environment, capture_output=True, text=True, timeout=300, check=False)


def _decided(world: World, name: str) -> dict[str, Any] | None:
    """The status, once it says for certain whether the groups are protected."""
    status = world.get("kgk", TEAM, name).get("status") or {}
    found = [each["reason"] for each in status.get("conditions", ()) if each["type"] == "Kept"]
    return dict(status) if found and found[0] in ("Kept", "AlreadyDeleted") else None


def _race(world: World, names: list[str], since: float, until: float) -> None:
    """Ask to keep each of the groups, by an object of its name, at a random moment this many seconds from now."""
    start = time.monotonic()
    for moment, name in sorted((random.uniform(since, until), name) for name in names):
        time.sleep(max(0.0, start + moment - time.monotonic()))
        world.apply(group_keep(name, name))


def _never_both(world: World, groups: Groups, names: list[str], context: object = "") -> None:
    """A group is there if its GroupKeep says that it is kept, and gone if that says that it was deleted."""
    found = {name: condition(dict(wait_for(partial(_decided, world, name)) or {})) == "True" for name in names}
    there = groups.names()
    assert found == {name: name in there for name in names}, context
    world.server.kubectl("delete", "kgk", *names, "-n", TEAM)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_never_kept_and_deleted(world: World, groups: Groups, topic: str, number: int) -> None:
    """GroupKeeps of ten groups and the policy that deletes these, at the same moment."""
    names = [f"keep-race-{number}-{each}" for each in range(10)]
    for name in names:
        groups.abandoned(name, topic)
    groups.produce(topic)
    world.apply(deleting(f"race-{number}", f"keep-race-{number}-*"))
    wait_for(lambda: world.get("kgp", OWNER, f"race-{number}")["status"].get("groups", {}).get("marked") == len(names))
    # It deletes the groups in its next run, at a multiple of its interval.
    due = 5 - time.time() % 5
    _race(world, names, due - 1, due + 2)

    def judged() -> bool:
        """Whether the policy has met each request, or has deleted the group."""
        status = world.get("kgp", OWNER, f"race-{number}")["status"]
        refused = {each["reason"]: each["count"] for each in status.get("groupsByReason", ())}
        deleted = status.get("totals", {}).get("deleted", 0)
        return bool(refused.get(reasons.KEEP_REQUESTED, 0) + deleted == len(names))

    wait_for(judged)
    _never_both(world, groups, names)
    world.server.kubectl("delete", "kgp", f"race-{number}", "-n", OWNER)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_never_kept_and_deleted_by_a_command(world: World, groups: Groups, topic: str, number: int) -> None:
    """GroupKeeps of ten groups and `delete`, which another process runs, at the same moment."""
    names = [f"keep-command-{number}-{each}" for each in range(10)]
    for name in names:
        groups.abandoned(name, topic)
    groups.produce(topic)
    command = (sys.executable, "-m", "group_hygiene.cli", "delete", *names, "--connection", "main", "-n", OWNER)
    environment = os.environ | {"KUBECONFIG": str(world.server.kubeconfig)}
    with subprocess.Popen(
        [*command, "--force", "--yes", "-o", "json"], env=environment, stdout=subprocess.PIPE
    ) as delete:
        # Its start takes about 2 seconds.
        _race(world, names, 0, 4)
        answer, _ = delete.communicate(timeout=PATIENCE)
    _never_both(world, groups, names, answer)
