"""A cluster of which a part does not answer: absence proves nothing, and nothing is deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from group_hygiene.engine.context import Observation
from group_hygiene.engine.requested import DeletionRequest, judge_requested
from group_hygiene.kafka.client import Call, Client, Deadline
from group_hygiene.kafka.library import RawListGroupsRequest
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.groups import Fault, GroupState
from group_hygiene.spec.policy import Policy
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.clients import Wrapped
from tests.kafka.makers import Maker, at
from tests.kafka.scene import Scene, alert, policy, verdicts

SCAN_SECONDS = 12
# One replica of each partition, so that a broker takes its groups along. Data topics have three.
FRAGILE = {"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "6"}


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """Three brokers, each the only one that knows its groups."""
    with KafkaCluster(brokers=3, config=FRAGILE) as cluster:
        yield cluster


@pytest.fixture
def homes(make: Maker, client: Client) -> dict[str, int]:
    """Abandoned groups, at least one on each broker -> the broker that is their coordinator."""
    topic = make.topic(records=5, replicas=3)
    found: dict[str, int] = {}
    for _ in range(30):
        make.abandoned(make.name("old"), topic)
        listed = Scene(client).observe(policy(f"{make.tag}*")).snapshot.groups
        found = {name: group.coordinator for name, group in listed.items() if make.tag in name}
        if set(found.values()) == {1, 2, 3}:
            break
    assert set(found.values()) == {1, 2, 3}
    return found


class Twice(Wrapped):
    """Broker 2 lists the groups of broker 1, too, as a coordinator that has not unloaded them yet."""

    def send_each(self, calls: Mapping[Any, Call], deadline: Deadline, *reduce: Callable[..., Any]) -> dict[Any, Any]:
        if not any(isinstance(call.request, RawListGroupsRequest) for call in calls.values()):
            return self._client.send_each(calls, deadline, *reduce)
        (listed,), answers = reduce, self._client.send_each(calls, deadline)
        assert not any(isinstance(answer, Fault) for answer in answers.values())
        rows = {broker: listed(broker, answer) for broker, answer in answers.items()}
        rows[2] |= listed(2, answers[1])
        return rows


def listed(observation: Observation, homes: dict[str, int]) -> set[str]:
    return homes.keys() & observation.snapshot.groups.keys()


def whole(scene: Scene, tidy: Policy, homes: dict[str, int]) -> Observation:
    """The first scan that says it is complete, which has every group."""
    last: list[Observation] = []

    def complete() -> bool:
        last[:] = [scene.observe(tidy, after=0.1)]
        return last[0].snapshot.complete

    wait_for(complete)
    assert listed(last[0], homes) == homes.keys()
    return last[0]


def test_without_a_broker_nothing_is_deleted(
    kafka: KafkaCluster, client: Client, make: Maker, homes: dict[str, int]
) -> None:
    """Neither while Metadata still names the dead broker, nor when it does not; and then everything is there again."""
    lost = 2
    others = {name for name, home in homes.items() if home != lost}
    scene, tidy = Scene(client, timeout=f"{SCAN_SECONDS}s"), policy(f"{make.tag}*")
    first = scene.observe(tidy)
    assert first.snapshot.complete
    assert listed(first, homes) == homes.keys()
    assert scene.observe(tidy, after=30).snapshot.complete

    kafka.kill_broker(lost)
    still_named = scene.observe(tidy, after=30)
    assert set(still_named.snapshot.broker_faults) <= {lost}
    assert not still_named.snapshot.complete
    assert listed(still_named, homes) == others
    # Their offsets were read, in time. The ends may be unknown: partitions need seconds to get another leader.
    assert set(verdicts(still_named, tidy).values()) <= {"Match", reasons.LAG_UNKNOWN}
    assert scene.planned(still_named, tidy).actions == ()

    kafka.wait_forgotten(lost)
    vanished = scene.observe(tidy, after=0.1)
    assert not vanished.snapshot.broker_faults
    assert any("has no leader" in problem for problem in vanished.snapshot.incomplete)
    assert listed(vanished, homes) == others
    assert verdicts(vanished, tidy) == dict.fromkeys(others, "Match")
    scene.mark(tidy, vanished)
    scene.clock.moved += timedelta(seconds=2)
    plan = scene.planned(scene.observe(tidy, after=0.1), tidy)
    assert set(plan.due) == others
    assert plan.actions == ()
    assert plan.refusal is not None
    assert plan.refusal.reason == reasons.SNAPSHOT_INCOMPLETE
    assert "has no leader" in plan.refusal.message

    kafka.start_broker(lost)
    wait_for(lambda: listed(Scene(client).observe(tidy), homes) == homes.keys())
    again = whole(scene, tidy, homes)
    plan = scene.planned(again, tidy)
    assert plan.refusal is None
    outcomes = scene.apply(plan, again)
    assert {outcome.kind for outcome in outcomes} == {OutcomeType.DELETED}
    assert {outcome.group for outcome in outcomes} == set(plan.actions) >= others


@pytest.mark.slow
def test_lag_is_reported_as_far_as_it_is_known(kafka: KafkaCluster, client: Client, make: Maker) -> None:
    """A partition whose only broker is dead: what is enough without it is enough, and all else is not known."""
    lost, topic = 2, make.topic(partitions=3, records=5)
    for partition in (1, 2):
        make.produce(topic, [(None, b"x")] * 5, partition)
    everywhere = at(topic) | at(topic, partition=1) | at(topic, partition=2)
    make.simple_groups({make.name("left"): everywhere for _ in range(12)})
    scene = Scene(client, timeout=f"{SCAN_SECONDS}s")
    some = alert(f"{make.tag}*", name="some", lag={"atLeast": 10})
    all_, outside = (
        alert(f"{make.tag}*", lag={"atLeast": 15}),
        alert(f"{make.tag}*", name="lost", committedOffsets="OutOfRange"),
    )
    groups = scene.observe(some, all_).snapshot.groups
    kafka.kill_broker(lost)
    try:
        kafka.wait_forgotten(lost)
        there = [name for name in groups if make.tag in name and groups[name].coordinator != lost]
        assert there
        observation = scene.observe(some, all_, outside)
        assert verdicts(observation, some) == dict.fromkeys(there, "Match")
        assert verdicts(observation, all_) == dict.fromkeys(there, reasons.LAG_UNKNOWN)
        assert verdicts(observation, outside) == dict.fromkeys(there, reasons.LAG_UNKNOWN)
    finally:
        kafka.start_broker(lost)
        kafka.wait_ready()

    def whole_again() -> bool:
        found = verdicts(scene.observe(all_, after=0.1), all_)
        return len(found) == 12 and set(found.values()) == {"Match"}

    wait_for(whole_again)


@pytest.mark.slow
def test_a_frozen_broker_holds_up_neither_the_scan_nor_the_others(
    kafka: KafkaCluster, client: Client, make: Maker, homes: dict[str, int]
) -> None:
    """It accepts connections and answers nothing: its fault names it, within the scan's time."""
    frozen = 3
    others = {name for name, home in homes.items() if home != frozen}
    scene, tidy = Scene(client, timeout=f"{SCAN_SECONDS}s"), policy(f"{make.tag}*")
    kafka.pause_broker(frozen)
    try:
        before = time.monotonic()
        observation = scene.observe(tidy)
        assert time.monotonic() - before < SCAN_SECONDS + 15
        assert not observation.snapshot.complete
        assert set(observation.snapshot.broker_faults) <= {frozen}
        assert listed(observation, homes) == others
    finally:
        kafka.resume_broker(frozen)
        kafka.wait_ready()
    whole(scene, tidy, homes)


def test_groups_that_two_brokers_list_stay(client: Client, homes: dict[str, int]) -> None:
    """The rows are the same, and one of them is out of date: neither a policy nor a command deletes such a group.

    By filtered lists, as at the first scan, and by lists of all groups, as soon as others match.
    """
    scene, tidy = Scene(Twice(client)), policy(*homes)  # type: ignore[arg-type]
    others = {name for name, home in homes.items() if home != 1}
    assert set(scene.observe(tidy).verdicts[tidy.key].names) == others
    observation, plan = scene.plan(tidy)
    assert {outcome.group: outcome.kind for outcome in scene.apply(plan, observation)} == dict.fromkeys(
        others, OutcomeType.DELETED
    )
    twice = sorted(homes.keys() - others)
    judged = judge_requested(scene.context, DeletionRequest(twice, "me", None, timedelta(days=1)))
    assert {judged.observation.snapshot.groups[name].state for name in twice} == {GroupState.UNKNOWN}
    assert not any(verdict.matches for verdict in judged.verdicts.values())
