"""What holds for a connection as a whole: its limits over all of its policies, and its ledger."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import Groups, Object, World, connection, policy
from tests.e2e.ledger_reader import ledger_entries

pytestmark = pytest.mark.usefixtures("operator", "cleared")

WRITES = ("PRODUCE", "INIT_PRODUCER_ID", "CREATE_TOPICS", "END_TXN")


@pytest.fixture(scope="module")
def alone() -> Iterator[KafkaCluster]:
    """A broker of their own: nobody else writes to it, and nobody else's groups count."""
    with KafkaCluster(request_log=True) as cluster:
        yield cluster


@pytest.fixture
def reset(world: World, kafka: KafkaCluster, groups: Groups) -> Object:
    """A connection with a ledger of its own, on the shared broker, and a policy that is about to mark a group."""
    namespace, topic = world.namespace("reset"), groups.topic("reset")
    groups.produce(topic)
    groups.abandoned("reset-old", topic)
    groups.produce(topic)
    made = connection(namespace, kafka.bootstrap_servers, ledger={"topic": "reset-ledger"})
    world.apply(made, policy(namespace, "p", **enforcing("reset-*", grace="30s")))
    return made


@pytest.fixture(scope="module")
def made(alone: KafkaCluster) -> Iterator[Groups]:
    groups = Groups(alone)
    groups.topic("t")
    groups.produce("t")
    yield groups
    groups.close()


def leave_behind(made: Groups, *names: str) -> None:
    for name in names:
        made.abandoned(name, "t")
    made.produce("t")


def enforcing(*patterns: str, grace: str = "1s") -> dict[str, Any]:
    return {
        "match": {"groups": list(patterns)},
        "mode": "Enforce",
        "delete": {"maxPercent": 100, "gracePeriod": grace},
    }


def blocked(world: World, namespace: str, name: str, reason: str) -> Object | None:
    found = world.condition("kgp", namespace, name, "DeletionBlocked")
    return found if found and (found["status"], found["reason"]) == ("True", reason) else None


def sent(alone: KafkaCluster, since: dict[int, int]) -> dict[str, int]:
    """How many requests that write the operator sent."""
    return {api: sum(alone.count_requests(api, client_id="group-hygiene", since=since).values()) for api in WRITES}


def test_a_dry_run_writes_nothing_to_kafka(world: World, alone: KafkaCluster, made: Groups) -> None:
    """As long as no policy enforces, there is no ledger topic and no request that writes; then there are."""
    namespace = world.namespace("only-dry")
    leave_behind(made, "only-dry-old")
    since = alone.mark()
    world.apply(
        connection(namespace, alone.bootstrap_servers),
        policy(namespace, "p", match={"groups": ["only-dry-*"]}),
    )
    wait_for(lambda: world.get("kgp", namespace, "p")["status"].get("groups", {}).get("wouldDelete") == 1)
    assert sent(alone, since) == dict.fromkeys(WRITES, 0)
    assert "__group_hygiene" not in made.admin.list_topics()
    world.apply(policy(namespace, "p", **enforcing("only-dry-*")))
    wait_for(lambda: "only-dry-old" not in made.names())
    assert min(sent(alone, since).values()) > 0
    assert "__group_hygiene" in made.admin.list_topics()
    world.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


def test_policies_share_the_connections_limits(world: World, alone: KafkaCluster, made: Groups) -> None:
    """maxPercent counts what all policies want to delete together; maxPerRun is what they may delete together."""
    namespace, names = world.namespace("shared"), {"shared-a", "shared-b"}
    leave_behind(made, *names)
    total = len(made.names())
    # Enough for either policy, not for both.
    limits = {"maxPerRun": 1, "maxPercent": 150 // total}
    world.apply(
        connection(namespace, alone.bootstrap_servers, limits=limits),
        *(policy(namespace, name, **tight(name, 1)) for name in names),
    )
    # Held back by their own limits until both are due: else the first would be gone before the second counts.
    for name in sorted(names):
        wait_for(partial(blocked, world, namespace, name, "LimitExceeded"))
    world.apply(*(policy(namespace, name, **tight(name, 100)) for name in names))

    def together(name: str) -> str | None:
        found = (blocked(world, namespace, name, "LimitExceeded") or {}).get("message", "")
        return found if "KafkaConnection" in found else None

    for name in sorted(names):
        message = wait_for(partial(together, name))
        assert message.startswith(f"2 of {total} groups are due")
        assert "raise limits.maxPercent of the KafkaConnection" in message
    assert names <= made.names()
    world.apply(connection(namespace, alone.bootstrap_servers, limits=limits | {"maxPercent": 100}))
    wait_for(lambda: len(_deletions(alone, names)) == 2)
    assert not names & made.names()
    first, second = _deletions(alone, names)
    assert first < second, "each run deletes one group of either policy"
    world.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


def test_a_cluster_with_fewer_groups_than_expected_is_not_cleaned(
    world: World, alone: KafkaCluster, made: Groups
) -> None:
    """Below minGroups nothing is deleted, and the policy says what to do; once there are enough groups, it goes on."""
    namespace = world.namespace("few")
    leave_behind(made, "few-old")
    total = len(made.names())
    world.apply(
        connection(namespace, alone.bootstrap_servers, limits={"minGroups": total + 1, "maxPercent": 100}),
        policy(namespace, "p", **enforcing("few-old")),
    )
    found = wait_for(lambda: blocked(world, namespace, "p", "ClusterTooSmall"))
    assert "lower limits.minGroups of the KafkaConnection" in found["message"]
    assert (world.condition("kgp", namespace, "p", "Ready") or {}).get("status") == "False"
    assert "few-old" in made.names()
    leave_behind(made, "another")
    wait_for(lambda: "few-old" not in made.names())
    world.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


def test_nothing_is_deleted_outside_of_windows(world: World, alone: KafkaCluster, made: Groups) -> None:
    """A mark's date is in the next window; the policy is Ready. Another window changes dates of new marks only."""
    namespace = world.namespace("windows")
    leave_behind(made, "windows-old")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    window = {"days": [f"{tomorrow:%A}"], "from": f"{tomorrow:%H}:00", "to": f"{tomorrow:%H}:59"}
    spec = enforcing("windows-old")
    world.apply(
        connection(namespace, alone.bootstrap_servers),
        policy(namespace, "p", **spec | {"delete": spec["delete"] | {"windows": [window]}}),
    )

    opens = f"{tomorrow:%Y-%m-%dT%H}:00:00Z"
    wait_for(lambda: world.get("kgp", namespace, "p").get("status", {}).get("nextDueTime") == opens)
    assert (world.condition("kgp", namespace, "p", "Ready") or {}).get("status") == "True"
    always = {"from": "00:00", "to": "00:00", "timeZone": "Asia/Kathmandu"}
    delete = spec["delete"] | {"windows": [window, always]}
    edited = policy(namespace, "p", **spec | {"delete": delete})
    world.apply(edited)
    wait_for(lambda: _generations(world, namespace))
    assert world.get("kgp", namespace, "p")["status"]["nextDueTime"] == opens
    assert "windows-old" in made.names()
    # It starts all marks again.
    world.apply(policy(namespace, "p", **spec | {"delete": delete | {"gracePeriod": "2s"}}))
    wait_for(lambda: "windows-old" not in made.names())
    world.server.kubectl("delete", "kgp,kconn", "--all", "-n", namespace)


def _generations(world: World, namespace: str) -> bool:
    """Whether the status is of the current spec."""
    found = world.get("kgp", namespace, "p")
    return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])


def tight(name: str, percent: int) -> Object:
    """A policy of that name with another maxPercent."""
    spec = enforcing(name)
    return spec | {"delete": spec["delete"] | {"maxPercent": percent}}


def _deletions(alone: KafkaCluster, names: set[str]) -> list[int]:
    """How many observations are in the ledger before each deletion, in their order: every run begins with some."""
    scans, found = 0, []
    for entry in ledger_entries(alone.bootstrap_servers):
        scans += entry["kind"] == "watch"
        if entry["kind"] == "outcome" and entry["group"] in names and entry["what"] == "Deleted":
            found.append(scans)
    return found


def test_another_ledger_stops_deletion(world: World, groups: Groups, reset: Object) -> None:
    """Without its ledger nothing is deleted, nor with another one in its place, until the connection confirms it."""
    namespace, spec = reset["metadata"]["namespace"], reset["spec"]

    def ledger_ready() -> tuple[str, str, str]:
        found = world.condition("kconn", namespace, "main", "LedgerReady") or {}
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    def mark() -> Object | None:
        sample = world.get("kgp", namespace, "p")["status"].get("sample") or [{}]
        return sample[0] if "dueTime" in sample[0] else None

    before, old = wait_for(mark), world.get("kconn", namespace, "main")["status"]["ledger"]["id"]
    groups.admin.delete_topics(["reset-ledger"])
    wait_for(lambda: blocked(world, namespace, "p", "LedgerReset"))
    wait_for(lambda: ledger_ready()[:2] == ("False", "LedgerReset"))
    assert "reset-ledger" not in groups.admin.list_topics(), "it does not just make a new one"
    # Another connection that uses this topic has nothing to lose there.
    other = world.namespace("reset-other")
    theirs = connection(other, ",".join(spec["bootstrapServers"]), ledger=spec["ledger"])
    world.apply(theirs, policy(other, "p", **enforcing("none-*")))
    new = wait_for(lambda: world.get("kconn", other, "main").get("status", {}).get("ledger", {}).get("id"))
    wait_for(lambda: f"holds the ledger {new}, not {old} as before" in ledger_ready()[2])
    wait_for(lambda: datetime.now(UTC) > datetime.fromisoformat(before["dueTime"]) + timedelta(seconds=6))
    assert "reset-old" in groups.names(), "a run after its date"
    world.apply(reset | {"spec": spec | {"ledger": spec["ledger"] | {"id": new}}})
    wait_for(lambda: ledger_ready()[0] == "True")
    assert wait_for(lambda: (m := mark()) and m["dueTime"] > before["dueTime"] and m), "it is warned of anew"
    for name in (namespace, other):
        world.server.kubectl("delete", "kgp,kconn", "--all", "-n", name)
