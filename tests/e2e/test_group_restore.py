"""GroupRestore objects as users apply them: run once, told in their status, and within what a connection grants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import Groups, World, connection, policy

pytestmark = pytest.mark.usefixtures("operator")

OWNER, STRANGER, DRY = "restore-owner", "restore-stranger", "restore-dry"
OLD, BUSY = "restore-old", "restore-busy"


def group_restore(namespace: str, name: str, *groups: str, of: str = OWNER, **spec: Any) -> dict[str, Any]:
    """of: the namespace of the connection."""
    reference = {"name": "main", "namespace": of}
    return {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "GroupRestore",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"connectionRef": reference, "groups": list(groups), **spec},
    }


@pytest.fixture(scope="module")
def topic(world: World, kafka: KafkaCluster, groups: Groups) -> Iterator[str]:
    """Two groups that a policy deleted, of a topic that still has their records."""
    for name in (OWNER, STRANGER):
        world.namespace(name)
    made = groups.topic("restore")
    groups.produce(made)
    for name in (OLD, BUSY):
        groups.abandoned(name, made)
    groups.produce(made)
    tidy = policy(OWNER, "tidy", match={"groups": ["restore-*"]}, mode="Enforce", delete={"maxPercent": 100})
    world.apply(connection(OWNER, kafka.bootstrap_servers), tidy)
    wait_for(lambda: not {OLD, BUSY} & groups.names())
    yield made
    for namespace in (STRANGER, OWNER):
        world.server.kubectl("delete", "kgr,kgp,kconn", "--all", "-n", namespace)


def committed(kafka: KafkaCluster, group: str) -> str:
    """What Kafka's own tool says of the group."""
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    where = ("--bootstrap-server", kafka.bootstrap_servers)
    return kafka.tool(tool, *where, "--describe", "--offsets", "--group", group).stdout


def test_a_deleted_group_comes_back_once(world: World, kafka: KafkaCluster, groups: Groups, topic: str) -> None:
    """With the offset that it had; the policy that deleted it keeps it from now on, and a finished restore stays so."""
    world.apply(group_restore(OWNER, "back", OLD))
    ready = world.wait_ready("kgr", OWNER, "back", "Restored")
    assert ready["status"] == "True"
    status = world.get("kgr", OWNER, "back")["status"]
    assert (status["counts"]["groups"], status["counts"]["restored"]) == (1, 1)
    (row,) = [line.split() for line in committed(kafka, OLD).splitlines() if line.startswith(OLD)]
    assert row[1:4] == [topic, "0", "5"]
    wait_for(
        lambda: (
            {"reason": "Reappeared", "count": 1} in world.get("kgp", OWNER, "tidy")["status"].get("groupsByReason", [])
        )
    )
    assert OLD in groups.names()
    assert world.get("kgr", OWNER, "back")["status"] == status


def test_a_copy_of_it_restores_nothing(world: World, kafka: KafkaCluster, groups: Groups, topic: str) -> None:
    """As Git creates it again, although the group is gone again; and it is deleted, as it asks for, once it ended."""
    first = group_restore(OWNER, "copied", OLD)
    world.apply(first)
    world.wait_ready("kgr", OWNER, "copied", "Restored")
    groups.admin.delete_groups([OLD])
    world.server.kubectl("delete", "kgr", "copied", "-n", OWNER)
    world.apply(first)
    ready = world.wait_ready("kgr", OWNER, "copied", "RanBefore")
    assert ready["status"] == "True"
    assert OLD not in groups.names()
    passing = group_restore(OWNER, "passing", OLD, ttlSecondsAfterFinished=0)
    world.apply(passing)
    wait_for(lambda: OLD in groups.names())
    wait_for(lambda: not world.server.kubectl("get", "kgr", "passing", "-n", OWNER, "--ignore-not-found").stdout)


def test_a_group_with_members_waits(world: World, groups: Groups, topic: str) -> None:
    """It says so, changes nothing, and goes through once they have left."""
    member = groups.member(BUSY, topic)
    world.apply(group_restore(OWNER, "waits", BUSY))
    ready = world.wait_ready("kgr", OWNER, "waits", "GroupActive")
    assert ready["status"] == "False"
    assert "completionTime" not in world.get("kgr", OWNER, "waits")["status"]
    member.close()


def test_one_that_is_being_deleted_restores_nothing(world: World, groups: Groups, topic: str) -> None:
    """A finalizer of another program may keep it there for long."""
    member = groups.member(BUSY, topic)
    leaving = group_restore(OWNER, "leaving", BUSY)
    leaving["metadata"]["finalizers"] = ["example.org/another-program"]
    world.apply(leaving)
    world.wait_ready("kgr", OWNER, "leaving", "GroupActive")
    world.server.kubectl("delete", "kgr", "leaving", "-n", OWNER, "--wait=false")
    try:
        world.wait_ready("kgr", OWNER, "leaving", "Terminating")
        member.close()
        world.apply(group_restore(OWNER, "next", "never-deleted"))
        world.wait_ready("kgr", OWNER, "next", "NoBackup")
        assert world.get("kgr", OWNER, "leaving")["status"]["conditions"][0]["reason"] == "Terminating"
    finally:
        release = ("--type=merge", "-p", '{"metadata": {"finalizers": null}}')
        world.server.kubectl("patch", "kgr", "leaving", "-n", OWNER, *release)


@pytest.mark.usefixtures("topic")
def test_another_namespace_is_refused(world: World) -> None:
    """Without a grant nobody learns what a backup holds, and not even whether there is such a connection."""
    world.apply(group_restore(STRANGER, "theirs", OLD), group_restore(STRANGER, "nowhere", OLD, of="restore-nowhere"))
    conditions = [world.wait_ready("kgr", STRANGER, name, "CrossNamespaceRefused") for name in ("theirs", "nowhere")]
    assert [ready["status"] for ready in conditions] == ["False", "False"]
    assert conditions[0]["message"].replace(OWNER, "restore-nowhere") == conditions[1]["message"]
    statuses = [world.get("kgr", STRANGER, name)["status"] for name in ("theirs", "nowhere")]
    assert set(statuses[0]) == set(statuses[1])
    assert "results" not in statuses[0]


def test_a_restore_makes_no_ledger(world: World, kafka: KafkaCluster, groups: Groups) -> None:
    """Where nothing was ever deleted there is nothing to restore, and nothing is written to Kafka, for nobody."""
    for name in (DRY, STRANGER):
        world.namespace(name)
    topic = "restore-no-ledger"
    made = connection(DRY, kafka.bootstrap_servers, ledger={"topic": topic})
    own, theirs = group_restore(DRY, "own", OLD, of=DRY), group_restore(STRANGER, "of-dry", OLD, of=DRY)
    world.apply(made, own, theirs)
    world.wait_ready("kgr", STRANGER, "of-dry", "CrossNamespaceRefused")
    ready = world.wait_ready("kgr", DRY, "own", "LedgerUnavailable")
    assert "there is no ledger, and so no backup" in ready["message"]
    assert topic not in groups.admin.list_topics()
    for namespace in (STRANGER, DRY):
        world.server.kubectl("delete", "kgr,kconn", "--all", "-n", namespace)


def test_a_group_without_a_backup_is_refused_for_good(world: World) -> None:
    """Waiting would not help: only another object can ask for something else."""
    world.apply(group_restore(OWNER, "nobody", "restore-never-there"))
    ready = world.wait_ready("kgr", OWNER, "nobody", "NoBackup")
    assert ready["status"] == "False"
    status = world.get("kgr", OWNER, "nobody")["status"]
    assert "completionTime" in status
    assert [c["type"] for c in status["conditions"] if c["status"] == "True"] == ["Stalled"]
