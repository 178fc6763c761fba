"""Marks as users see them: a group is warned of, waits for its date, and is let go when something changes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import Groups, World, connection, policy
from tests.e2e.ledger_reader import ledger_entries, outcomes

pytestmark = pytest.mark.usefixtures("operator")

NAMESPACE = "marks"
GRACE = {"short": "6s", "edited": "1h", "joined": "1h", "dry": "1h", "deleted": "1h"}


def spec(name: str) -> dict[str, Any]:
    delete = {"gracePeriod": GRACE[name], "maxPercent": 100}
    # Looks that are further apart than two intervals would end a mark: a pause of this machine must be shorter.
    return {"match": {"groups": [f"marks-{name}"]}, "mode": "Enforce", "interval": "15s", "delete": delete}


def mark(world: World, name: str) -> tuple[str, str] | None:
    """Since when the policy's group is marked, and when it is due, by the policy's status."""
    sample = world.get("kgp", NAMESPACE, name).get("status", {}).get("sample") or [{}]
    return (sample[0]["markedSince"], sample[0]["dueTime"]) if "markedSince" in sample[0] else None


def counted(world: World, name: str) -> int:
    return int(world.get("kgp", NAMESPACE, name)["status"]["groups"]["marked"])


@pytest.fixture(scope="module")
def marks(world: World, kafka: KafkaCluster, groups: Groups) -> Iterator[dict[str, tuple[str, str]]]:
    """A policy and a group for each test, all made at once: name -> the mark's dates."""
    world.namespace(NAMESPACE)
    topic = groups.topic("marks")
    groups.produce(topic)
    for name in GRACE:
        groups.abandoned(f"marks-{name}", topic)
    groups.produce(topic)
    policies = [policy(NAMESPACE, name, **spec(name)) for name in GRACE]
    world.apply(connection(NAMESPACE, kafka.bootstrap_servers), *policies)
    yield {name: wait_for(partial(mark, world, name)) for name in GRACE}
    world.server.kubectl("delete", "kgp,kconn", "--all", "-n", NAMESPACE)


def test_marked_then_deleted_after_its_date(
    world: World, kafka: KafkaCluster, groups: Groups, marks: dict[str, tuple[str, str]]
) -> None:
    """First an Event and a date in the status; the deletion comes after that date, and not before."""
    since, due = marks["short"]
    assert since < due
    warning = "1 group will be deleted after 6s, unless they are used or protected: 'marks-short'"
    # Recorded after the status.
    wait_for(
        lambda: [
            e for e in world.events(NAMESPACE) if e["reason"] == "GroupsMarked" and e["message"].startswith(warning)
        ]
    )
    wait_for(lambda: "marks-short" not in groups.names())

    def entries(kind: str, **fields: str) -> list[dict[str, Any]]:
        wanted = {"kind": kind, "group": "marks-short", **fields}
        return [e for e in ledger_entries(kafka.bootstrap_servers) if wanted.items() <= e.items()]

    # Written a moment after the group is gone.
    (deleted,) = wait_for(lambda: entries("outcome", what="Deleted"))
    (marked,) = entries("mark")
    assert deleted["at"] >= marked["due"]
    assert deleted["marked_since"] == marked["since"]


def test_an_edit_of_conditions_marks_again(world: World, groups: Groups, marks: dict[str, tuple[str, str]]) -> None:
    """A mark belongs to the policy as it was; limits decide nothing about a group, so an edit of them moves no date."""
    edit = spec("edited") | {"delete": {"gracePeriod": "1h", "maxPercent": 90}}
    world.apply(policy(NAMESPACE, "edited", **edit))
    wait_for(lambda: world.get("kgp", NAMESPACE, "edited")["status"]["observedGeneration"] == 2)
    assert mark(world, "edited") == marks["edited"]
    world.apply(policy(NAMESPACE, "edited", **(edit | {"when": {"unchangedFor": "4s"}})))
    since, due = wait_for(lambda: (m := mark(world, "edited")) != marks["edited"] and m)
    assert since > marks["edited"][0]
    assert due > marks["edited"][1]
    assert "marks-edited" in groups.names()


def test_a_member_ends_the_mark(
    world: World, kafka: KafkaCluster, groups: Groups, marks: dict[str, tuple[str, str]]
) -> None:
    """Who joins in the grace period needs to do no more; the ledger says why the mark ended."""
    assert marks["joined"]
    member = groups.member("marks-joined", "marks")
    wait_for(lambda: outcomes(kafka.bootstrap_servers, "marks-joined") == [("Unmarked", "Gone")])
    wait_for(lambda: counted(world, "joined") == 0)
    member.close()


def test_a_dry_run_has_no_marks(
    world: World, kafka: KafkaCluster, groups: Groups, marks: dict[str, tuple[str, str]]
) -> None:
    """Back to DryRun takes the marks away, and to Enforce again sets new dates."""
    patch = ("patch", "kgp", "dry", "-n", NAMESPACE, "--type=merge", "-p")
    world.server.kubectl(*patch, '{"spec":{"mode":"DryRun"}}')
    wait_for(lambda: counted(world, "dry") == 0)
    assert outcomes(kafka.bootstrap_servers, "marks-dry") == [("Unmarked", "DryRun")]
    world.server.kubectl(*patch, '{"spec":{"mode":"Enforce"}}')
    since, _ = wait_for(lambda: mark(world, "dry"))
    assert since > marks["dry"][0]
    assert "marks-dry" in groups.names()


def test_a_deleted_policy_leaves_no_mark(
    world: World, kafka: KafkaCluster, groups: Groups, marks: dict[str, tuple[str, str]]
) -> None:
    """What a policy marked is let go with it."""
    assert marks["deleted"]
    world.server.kubectl("delete", "kgp", "deleted", "-n", NAMESPACE)
    wait_for(lambda: outcomes(kafka.bootstrap_servers, "marks-deleted") == [("Unmarked", "PolicyChanged")])
    assert "marks-deleted" in groups.names()
