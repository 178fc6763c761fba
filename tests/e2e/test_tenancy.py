"""One connection, several teams: what another namespace may do there, and that it learns of nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import pytest

from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import FLOORS, Groups, World, connection, policy

pytestmark = pytest.mark.usefixtures("operator")

OWNER, TEAM_A, TEAM_B, STRANGER = "tenancy-owner", "tenancy-a", "tenancy-b", "tenancy-stranger"
THEIRS = ("tenancy-payroll-old", "tenancy-payroll-live")
ACCESS = [
    {"namespaces": {"names": [TEAM_A]}, "groups": ["tenancy-a-*"], "actions": ["Alert", "Delete"]},
    {"namespaces": {"selector": {"matchLabels": {"team": "b"}}}, "groups": ["tenancy-b-*"], "actions": ["Alert"]},
]


@pytest.fixture(scope="module")
def teams(world: World, kafka: KafkaCluster, groups: Groups) -> Iterator[None]:
    """Abandoned groups of two teams and of the owner, and policies that would take all of them."""
    for name in (OWNER, TEAM_A, TEAM_B, STRANGER):
        world.namespace(name)
    world.server.kubectl("label", "namespace", TEAM_B, "team=b")
    topic = groups.topic("tenancy")
    groups.produce(topic)
    for name in ("tenancy-a-old", "tenancy-b-old", THEIRS[0]):
        groups.abandoned(name, topic)
    live = groups.member(THEIRS[1], topic)
    groups.produce(topic)
    reference = {"connectionRef": {"name": "main", "namespace": OWNER}, "match": {"groups": ["tenancy-*"]}}
    deleting = reference | {"mode": "Enforce", "delete": {"maxPercent": 100}}
    world.apply(
        connection(OWNER, kafka.bootstrap_servers, access=ACCESS, limits=FLOORS),
        policy(TEAM_A, "delete", **deleting),
        policy(TEAM_B, "alert", **(reference | {"action": "Alert"})),
        policy(TEAM_B, "delete", **deleting),
        policy(STRANGER, "delete", **deleting),
    )
    yield
    live.close()
    for name in (TEAM_A, TEAM_B, STRANGER, OWNER):
        world.server.kubectl("delete", "kgr,kgp,kconn", "--all", "-n", name)


def readable(world: World, namespace: str) -> str:
    """Everything that somebody of that namespace can read: objects and events, whole."""
    found = world.server.kubectl("get", "kgp,kconn,events", "-n", namespace, "-o", "json").stdout
    return json.dumps(json.loads(found))


@pytest.mark.usefixtures("teams")
def test_a_grant_narrows(world: World, groups: Groups) -> None:
    """A pattern that reaches further takes what is granted, says so, and deletes nothing else."""
    wait_for(lambda: "tenancy-a-old" not in groups.names())
    ready = world.wait_ready("kgp", TEAM_A, "delete", "AccessLimited")
    assert "'tenancy-*' reaches beyond what the KafkaConnection grants" in ready["message"]
    assert {"tenancy-b-old", *THEIRS} <= groups.names()


@pytest.mark.usefixtures("teams")
def test_labels_pick_namespaces(world: World) -> None:
    """A namespace that is picked by its labels sees its groups."""
    status = wait_for(
        lambda: (s := world.get("kgp", TEAM_B, "alert")["status"]).get("groups", {}).get("matched") == 1 and s
    )
    assert [row["group"] for row in status["sample"]] == ["tenancy-b-old"]


@pytest.mark.usefixtures("teams")
def test_an_action_that_is_not_granted(world: World, groups: Groups) -> None:
    """Who may only alert deletes nothing; an edit of the connection helps at once."""
    ready = world.wait_ready("kgp", TEAM_B, "delete", "ActionNotGranted")
    assert "does not grant Delete to namespace tenancy-b, only Alert: its owner must add" in ready["message"]
    assert "tenancy-b-old" in groups.names()


@pytest.mark.usefixtures("teams")
def test_a_restore_is_a_right_of_its_own(world: World) -> None:
    """Who may delete may not restore for that."""
    restore = {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "GroupRestore",
        "metadata": {"namespace": TEAM_A, "name": "back"},
        "spec": {"connectionRef": {"name": "main", "namespace": OWNER}, "groups": ["tenancy-a-old"]},
    }
    world.apply(restore)
    ready = world.wait_ready("kgr", TEAM_A, "back", "ActionNotGranted")
    assert "does not grant Restore to namespace tenancy-a" in ready["message"]


@pytest.mark.usefixtures("teams")
def test_no_grant(world: World) -> None:
    """Whoever is not named is refused."""
    world.wait_ready("kgp", STRANGER, "delete", "CrossNamespaceRefused")


@pytest.mark.usefixtures("teams")
@pytest.mark.parametrize(
    ("namespace", "foreign"),
    [
        pytest.param(TEAM_A, ("tenancy-b-old", *THEIRS), id="named"),
        pytest.param(TEAM_B, ("tenancy-a-old", *THEIRS), id="labelled"),
        pytest.param(STRANGER, ("tenancy-a-old", "tenancy-b-old", *THEIRS), id="stranger"),
    ],
)
def test_no_name_of_another_team(world: World, namespace: str, foreign: tuple[str, ...]) -> None:
    """Neither a status nor an event has a name of a group outside the grant, nor counts it."""
    text = readable(world, namespace)
    assert [name for name in foreign if name in text] == []
    for item in json.loads(text)["items"]:
        counts = item.get("status", {}).get("groups", {})
        assert counts.get("matched", 0) + counts.get("skipped", 0) <= 1
        assert counts.get("scanned", 0) <= 1
        assert sum(reason["count"] for reason in item.get("status", {}).get("groupsByReason", [])) <= 1


@pytest.fixture(scope="module")
def blocked(world: World, kafka: KafkaCluster, groups: Groups) -> Iterator[str]:
    """A team on a connection where much is wrong: limits that too many groups exceed, tables that can't be read.

    Returns its namespace.
    """
    owner, team = "tenancy-blocked-owner", "tenancy-blocked-team"
    for name in (owner, team):
        world.namespace(name)
    topic = groups.topic("tenancy-blocked")
    groups.produce(topic)
    for name in ("blocked-team-old", "blocked-theirs-old"):
        groups.abandoned(name, topic)
    groups.produce(topic)
    access = [{"namespaces": {"names": [team]}, "groups": ["blocked-team-*"], "actions": ["Alert", "Delete"]}]
    made = connection(
        owner,
        kafka.bootstrap_servers,
        access=access,
        limits={"maxPercent": 1, **FLOORS},
        ledger={"topic": "tenancy-blocked-ledger"},
        activity={"uri": "s3://bucket-of-the-owner/tables", "secretRef": {"name": "storage-of-the-owner"}},
    )
    reference = {"connectionRef": {"name": "main", "namespace": owner}, "match": {"groups": ["blocked-*"]}}
    deleting = {"mode": "Enforce", "delete": {"maxPercent": 100}}
    world.apply(
        made,
        policy(owner, "delete", match={"groups": ["blocked-*"]}, **deleting),
        policy(team, "delete", **reference, **deleting),
        policy(team, "idle", **(reference | {"action": "Alert", "when": {"idleFor": "1h"}})),
    )
    yield team
    for name in (team, owner):
        world.server.kubectl("delete", "kgp,kconn", "--all", "-n", name)


def test_what_is_wrong_names_nothing_of_others(world: World, blocked: str) -> None:
    """Not how many groups there are or are due, no Secret, bucket, ledger or group of others; its owner sees all."""

    def why(namespace: str, name: str, kind: str, reason: str) -> str:
        found = wait_for(
            lambda: (c := world.condition("kgp", namespace, name, kind)) and c["reason"] == reason and c["message"]
        )
        return str(found)

    own = why("tenancy-blocked-owner", "delete", "DeletionBlocked", "LimitExceeded")
    assert "groups are due" in own
    theirs = why(blocked, "delete", "DeletionBlocked", "LimitExceeded")
    assert theirs.startswith("more groups are due than")
    why(blocked, "idle", "EvidenceReady", "EvidenceUnreadable")
    wait_for(lambda: [e for e in world.events(blocked) if e["reason"] == "LimitExceeded"])
    text = readable(world, blocked)
    foreign = ("storage-of-the-owner", "bucket-of-the-owner", "tenancy-blocked-ledger", "blocked-theirs-old")
    assert [name for name in foreign if name in text] == []
    assert re.findall(r"\d+ of \d+ groups are due", text) == []
    status = world.condition("kconn", "tenancy-blocked-owner", "main", "EvidenceReady")
    assert status is not None
    assert "storage-of-the-owner" in status["message"]


def test_a_tenant_waits_and_unprotects_as_the_connection_grants(
    world: World, kafka: KafkaCluster, groups: Groups
) -> None:
    """A policy with the shortest times and every protection lifted deletes no sooner, and no more, than is granted."""
    owner, team = world.namespace("floors-owner"), world.namespace("floors-team")
    topic = groups.topic("floors")
    groups.produce(topic)
    names = {"floors-old", "connect-floors"}
    for name in names:
        groups.abandoned(name, topic)
    groups.produce(topic)
    entry = {"namespaces": {"names": [team]}, "groups": ["floors-*", "connect-floors"], "actions": ["Delete"]}
    hasty = policy(
        team,
        "hasty",
        connectionRef={"name": "main", "namespace": owner},
        match={"groups": ["floors-*", "connect-floors"], "unprotect": ["Streams", "StreamsState", "Connect"]},
        when={"unchangedFor": "1s"},
        mode="Enforce",
        delete={"gracePeriod": "1s", "maxPercent": 100, "backupRetention": "1h"},
    )

    def apply(access: Mapping[str, object], **spec: object) -> None:
        world.apply(
            connection(owner, kafka.bootstrap_servers, access=[access], ledger={"topic": "floors-ledger"}, **spec)
        )

    apply(entry)
    world.apply(hasty)
    ready = world.wait_ready("kgp", team, "hasty", "AccessLimited")
    for note in (
        "match.unprotect is without Connect, Streams, StreamsState",
        "when.unchangedFor is 24h, not 1s",
        "delete.gracePeriod is 24h, not 1s",
        "delete.backupRetention is 168h, not 1h",
    ):
        assert note in ready["message"]
    sample = world.get("kgp", team, "hasty")["status"]["sample"]
    assert {row["group"]: row["reason"] for row in sample} == {
        "connect-floors": "ConnectGroup",
        "floors-old": "TooRecent",
    }
    assert names <= groups.names()
    apply(entry, limits=FLOORS)
    wait_for(lambda: "floors-old" not in groups.names())
    assert "connect-floors" in groups.names()
    apply({**entry, "unprotect": ["Connect"]}, limits=FLOORS)
    wait_for(lambda: "connect-floors" not in groups.names())
    for namespace in (team, owner):
        world.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)
