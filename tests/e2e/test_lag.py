"""Lag as users see it: who left records unread, in which state; and the operator asks for it only where told to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from group_hygiene.kafka.client import CLIENT_ID
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.cluster import Mark
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import Groups, RunningOperator, World, connection, policy, scans
from tests.kafka.makers import requests

NAMESPACE = "lag"


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """A broker that nobody else asks for anything, and that counts what it is asked."""
    with KafkaCluster(request_log=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def groups(kafka: KafkaCluster) -> Iterator[Groups]:
    made = Groups(kafka)
    yield made
    made.close()


@pytest.mark.slow
def test_only_who_asks_for_lag_pays_for_it(
    world: World, kafka: KafkaCluster, groups: Groups, operator: RunningOperator
) -> None:
    """Others ask for no ends but those of the offsets log; one that asks shows Stable with lag and Empty with lag."""
    world.namespace(NAMESPACE)
    topic, silent = groups.topic("lag"), groups.topic("lag-silent")
    groups.produce(topic)
    groups.abandoned("lag-left", topic)
    groups.abandoned("lag-silent", silent)
    live = groups.member("lag-live", topic)
    live.commit()
    groups.produce(topic, 7)
    try:
        world.apply(
            connection(NAMESPACE, kafka.bootstrap_servers),
            policy(NAMESPACE, "tidy", mode="Enforce", when={"unchangedFor": "24h"}),
            policy(NAMESPACE, "never", action="Alert", when={"committedOffsets": "Absent"}),
            policy(NAMESPACE, "gone", action="Alert", when={"deletedTopics": "Some"}),
        )
        for name in ("tidy", "never", "gone"):
            world.wait_ready("kgp", NAMESPACE, name, "Succeeded")
        # In its first scans a process opens its ledger, and takes out of it what is past its time.
        _scan(operator, 3)
        mark = kafka.mark()
        _scan(operator, 3)
        assert _asked(kafka, "LIST_GROUPS", mark) >= 3
        assert _asked(kafka, "OFFSET_FETCH", mark) >= 3
        assert _ends_asked(kafka, mark) <= {"__consumer_offsets"}

        world.apply(policy(NAMESPACE, "unread", action="Alert", when={"lag": {"atLeast": 7}}))
        status = wait_for(
            lambda: (
                (s := world.get("kgp", NAMESPACE, "unread").get("status", {})).get("groups", {}).get("matched") == 2
                and s
            )
        )
        shown = {row["group"]: (row["state"], row.get("reason"), row.get("lag")) for row in status["sample"]}
        assert shown == {
            "lag-left": ("Empty", None, 7),
            "lag-live": ("Stable", None, 7),
            "lag-silent": ("Empty", "CaughtUp", 0),
        }
        assert _ends_asked(kafka, mark) - {"__consumer_offsets"} == {topic, silent}
    finally:
        live.close()
        world.server.kubectl("delete", "kgp,kconn", "--all", "-n", NAMESPACE)


def _scan(operator: RunningOperator, times: int) -> None:
    before = scans(operator, NAMESPACE)
    wait_for(lambda: scans(operator, NAMESPACE) >= before + times)


def _ends_asked(kafka: KafkaCluster, since: Mark) -> set[str]:
    return {topic["name"] for body in requests(kafka, "LIST_OFFSETS", since) for topic in body["topics"]}


def _asked(kafka: KafkaCluster, api: str, since: Mark) -> int:
    return sum(kafka.count_requests(api, client_id=CLIENT_ID, since=since).values())
