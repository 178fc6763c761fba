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
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.manifests import install_user_roles
from testing.sandbox.waiting import PATIENCE, wait_for
from tests.e2e.conftest import FLOORS, RECEIVING, Groups, World, connection, policy
from tests.examples import examples
from tests.kube.access import wait_until_allowed
from tests.receiving import Receiver

pytestmark = pytest.mark.usefixtures("operator")

OWNER, TEAM, STRANGER = "keep-owner", "keep-team", "keep-stranger"
# Of the races of ten GroupKeeps each with a deletion of their groups.
ROUNDS = examples(20, 2)
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


def may_edit(world: World, namespace: str) -> Path:
    """A kubeconfig with the token of a ServiceAccount that has the role edit in this namespace, and nothing else."""
    install_user_roles(world.server)
    place = ("-n", namespace)
    world.server.kubectl("create", "serviceaccount", "dev", *place)
    world.server.kubectl(
        "create", "rolebinding", "dev", "--clusterrole=edit", f"--serviceaccount={namespace}:dev", *place
    )
    file = world.server.kubeconfig_for_service_account(namespace, "dev")
    wait_until_allowed(world.server, f"--kubeconfig={file}", "create", "groupkeeps", *place)
    return file


@pytest.fixture(scope="module")
def dev(world: World, topic: str) -> Path:
    """That of the team. Its ServiceAccount `none` has no rights."""
    world.server.kubectl("create", "serviceaccount", "none", "-n", TEAM)
    return may_edit(world, TEAM)


@pytest.mark.usefixtures("dev")
def test_keep_without_a_kafka_user(world: World, groups: Groups, topic: str) -> None:
    """`keep` creates an object for a user who may not read the connection, and changes the same one later."""
    unused(groups, "keep-alone", topic)
    world.apply(deleting("alone", "keep-alone", gracePeriod="1h"))
    wait_for(lambda: world.get("kgp", OWNER, "alone")["status"].get("groups", {}).get("marked") == 1)
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
    wait_for(lambda: world.get("kgp", OWNER, "alone")["status"].get("groups", {}).get("marked") == 0)


class Story:
    """A team that has kubectl and the role edit in its namespace; and its platform, and another team."""

    platform, team = "story-platform", "story-team"
    # By the connection, a namespace has the groups that begin with its name.
    mine, yearly, theirs = "story-team.report", "story-team.yearly", "story-other.pay"

    def __init__(self, world: World, people: Receiver) -> None:
        self._world, self._people = world, people
        for name in (self.platform, self.team):
            world.namespace(name)
        self._file = may_edit(world, self.team)

    def kubectl(self, *arguments: str, input: Any = None, check: bool = True) -> str:
        """What the team's kubectl prints; its errors, too, if it may fail."""
        text = None if input is None else json.dumps(input)
        done = self._world.server.kubectl(*arguments, f"--kubeconfig={self._file}", input=text, check=check)
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, obj: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", input=obj)

    def keep(self, name: str, *names: str) -> dict[str, Any]:
        reference = {"name": "main", "namespace": self.platform}
        return group_keep(name, *names, namespace=self.team, connectionRef=reference)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", kind, name, "-o", "json")))

    def wait(self, kind: str, name: str, condition: str) -> dict[str, Any]:
        """Its status, once `kubectl wait` says that it has the condition."""
        self.kubectl("wait", f"--for=condition={condition}", f"{kind}/{name}", f"--timeout={PATIENCE:.0f}s")
        return dict(self.get(kind, name)["status"])

    def messages(self, kind: str, status: str) -> list[dict[str, Any]]:
        """Those of this kind to the team."""
        found = [item for request in self._people.at("/team") for item in request.json["alerts"]]
        return [item for item in found if (item["kind"], item["status"]) == (kind, status)]

    def message(self, kind: str, status: str = "firing") -> dict[str, Any]:
        """The first of this kind, once it has arrived."""
        wait_for(lambda: self.messages(kind, status))
        return self.messages(kind, status)[0]

    def readable(self) -> str:
        """All that the team can read of this product, without what it wrote itself."""
        found = json.loads(self.kubectl("get", "kgp,kgk,kgr,kconn,events", "-o", "json"))["items"]
        return json.dumps(
            [{key: value for key, value in item.items() if key not in ("spec", "metadata")} for item in found]
        )


@pytest.fixture
def story(world: World, kafka: KafkaCluster, groups: Groups, topic: str) -> Iterator[Story]:
    with Receiver(address=RECEIVING) as people:
        made = Story(world, people)
        for name in (made.mine, made.yearly, made.theirs):
            unused(groups, name, topic)
        namespaces = {"selector": {"matchLabels": {"kubernetes.io/metadata.name": made.team}}}
        actions = ["Alert", "Keep", "Restore"]
        access = [{"namespaces": namespaces, "groups": ["{namespace}.*"], "actions": actions}]
        receivers = [{"name": "team", "type": "Webhook", "webhook": {"address": people.url("/team")}}]
        owners = [{"name": "the-team", "groups": [f"{made.team}.*"], "receiver": "team"}]
        spec: dict[str, Any] = {"access": access, "receivers": receivers, "owners": owners, "limits": FLOORS}
        world.apply(connection(made.platform, kafka.bootstrap_servers, ledger={"topic": "story"}, **spec))
        yield made
    for name in (made.team, made.platform):
        world.server.kubectl("delete", "kgk,kgr,kgp,kconn", "--all", "-n", name)


def test_by_kubectl_alone(world: World, groups: Groups, story: Story) -> None:
    """The team sees its groups, keeps one before a mark and one after it, gets messages, and restores what is deleted.

    It sees nothing of others.
    """
    _keeps_before_the_mark(story)
    _sees_its_groups(story)
    notify = {"receiverNames": list[str]()}
    platform = policy(story.platform, "purge", match={"groups": ["story-*"]}, mode="Enforce", notify=notify)
    platform["spec"]["delete"] = {"gracePeriod": "1h", "maxPercent": 100}
    world.apply(platform)
    _keeps_after_the_mark(story)
    platform["spec"]["delete"]["gracePeriod"] = "1s"
    world.apply(platform)
    wait_for(lambda: not {story.mine, story.theirs} & groups.names())
    _restores_and_keeps(story)
    assert {story.mine, story.yearly} <= groups.names()
    _sees_nothing_of_others(story)


def _keeps_before_the_mark(story: Story) -> None:
    story.apply(story.keep("yearly", story.yearly))
    (row,) = story.wait("kgk", "yearly", "Kept")["results"]
    assert (row["group"], row["protected"], row["state"]) == (story.yearly, True, "Empty")
    assert "dueTime" not in row


def _sees_its_groups(story: Story) -> None:
    """By a policy that changes nothing, whatever that selects."""
    conditions = {"unchangedFor": "3s", "lag": {"atLeast": 1}}
    watching = policy(story.team, "ours", action="Alert", when=conditions)
    watching["spec"]["connectionRef"]["namespace"] = story.platform
    story.apply(watching)
    wait_for(lambda: story.get("kgp", "ours")["status"].get("groups", {}).get("matched") == 2)
    status = story.get("kgp", "ours")["status"]
    seen = {entry["group"]: entry for entry in status["sample"]}
    assert seen.keys() == {story.mine, story.yearly}
    mine = seen[story.mine]
    assert (mine["state"], mine["lag"] > 0, "unchangedSince" in mine) == ("Empty", True, True)
    assert status["groups"]["scanned"] == 2


def _keeps_after_the_mark(story: Story) -> None:
    """By the object of the message that the platform's policy sends to the team."""
    message = story.message("GroupsMarked")
    assert message["groups"] == [story.mine]
    made = story.kubectl("create", "-f", "-", "-o", "name", input=message["keepObject"]).strip().partition("/")[2]
    (row,) = story.wait("kgk", made, "Kept")["results"]
    assert (row["group"], row["protected"], row["state"], "unchangedSince" in row) == (story.mine, True, "Empty", True)
    # When it was due, but not by which policy, which is of another namespace.
    assert message["firstDueTime"] is not None
    assert ("dueTime" in row, row["dueReason"], "policy" in row) == (True, "Unchanged", False)
    story.message("GroupsMarked", "resolved")
    # Once the object is gone, the group may be marked again.
    story.kubectl("delete", "kgk", made)


def _restores_and_keeps(story: Story) -> None:
    message = story.message("GroupsDeleted", "notice")
    assert message["groups"] == [story.mine]
    story.apply(story.keep("late", story.mine))
    (row,) = story.wait("kgk", "late", "Kept=False")["results"]
    assert (row["group"], row["exists"], row["reason"]) == (story.mine, False, "AlreadyDeleted")
    # By the command of its message.
    text, _, flags = row["message"].partition(" echo '")[2].rpartition("' | kubectl ")
    made = story.kubectl(*flags.split(), "-o", "name", input=json.loads(text)).strip().partition("/")[2]
    assert story.wait("kgr", made, "Ready")["counts"]["restored"] == 1
    # An edit is read at once; else the operator reads the group again within a minute.
    story.kubectl("patch", "kgk", "late", "--type=merge", "-p", json.dumps({"spec": {"reason": "restored"}}))
    (row,) = story.wait("kgk", "late", "Kept")["results"]
    assert (row["exists"], row["protected"]) == (True, True)


def _sees_nothing_of_others(story: Story) -> None:
    """Not whether a group exists or was deleted, and nothing of the platform."""
    text = story.readable()
    assert story.mine in text
    assert [name for name in (story.theirs, "story-other", "purge") if name in text] == []
    story.apply(story.keep("curious", story.theirs, "story-other.never-there"))
    one, other = story.wait("kgk", "curious", "Kept=False")["results"]
    # The same, but for the id.
    assert json.loads(json.dumps(other).replace(other["group"], one["group"])) == one
    assert one.keys() == {"group", "protected", "reason", "message"}
    for question in (("kconn", "-n", story.platform), ("kgp", "-n", story.platform), ("kgk", "-A")):
        assert "is forbidden" in story.kubectl("get", *question, check=False)


@pytest.mark.parametrize(
    ("account", "group", "message"),
    [
        pytest.param("dev", "keep-absent", "GroupUnknown: 1 of 1 groups are protected", id="unknown"),
        pytest.param("dev", "keep-*", "a GroupKeep has exact ids, no patterns", id="pattern"),
        pytest.param("dev", "other", "ActionNotGranted: 0 of 1 groups are protected", id="not-granted"),
        pytest.param("none", "keep-absent", f"No GroupKeep could be applied in namespace {TEAM} either", id="no-right"),
    ],
)
@pytest.mark.usefixtures("dev")
def test_a_user_who_may_not_read_the_connection(world: World, account: str, group: str, message: str) -> None:
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
