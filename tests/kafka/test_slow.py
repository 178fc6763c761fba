"""Where everything takes long, by a limit on requests or by slow brokers, groups are still deleted: fewer at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kafka.protocol.metadata import MetadataRequest

from group_hygiene.kafka.client import Call, Client, Deadline, connect
from group_hygiene.kafka.cluster import read_cluster
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.evidence import Claims
from group_hygiene.model.groups import Fault
from group_hygiene.spec.client_settings import Settings
from tests.kafka.makers import Maker
from tests.kafka.scene import Clock, Scene, policy

RATE = 2


class RealClock(Clock):
    """Time passes by itself as well."""

    def monotonic(self) -> float:
        return super().monotonic() + time.monotonic()


class SlowClock(Clock):
    """Each look at it takes as long as a batch of the size that the scene has come to, at 30 ms a group."""

    scene: Scene

    def monotonic(self) -> float:
        self._passed += 0.03 * self.scene.memory.batch
        return super().monotonic()


def set_clock(scene: Scene, clock: Clock) -> None:
    """From now on, at the date that the scene has come to."""
    clock.moved = scene.clock.moved
    scene.clock = clock
    scene.context = replace(scene.context, clock=clock)


@pytest.fixture
def paced(access: Settings) -> Iterator[Client]:
    """A client that may send so few requests a second that what a deletion reads would be old before it is sent."""
    made = connect(replace(access, requests_per_second=RATE))
    yield made
    made.close()


def test_few_requests_a_second_are_enough_to_delete(paced: Client, client: Client, make: Maker) -> None:
    """Requests that must come in quick succession do, and those after them wait for it."""
    topic = make.topic(partitions=1, records=1)
    group = make.abandoned(make.name("old"), topic)
    scene = Scene(client)
    observation, plan = scene.plan(policy(group))
    set_clock(scene, RealClock())
    scene.client = paced
    scene.memory.close_ledger()
    scene.context = scene.open()
    # On a busy machine some look may be too old by itself; with a pause before each request, every one is.
    kinds: list[OutcomeType] = []
    while kinds[-1:] != [OutcomeType.DELETED] and len(kinds) < 10:
        (outcome,) = scene.apply(plan, observation)
        kinds.append(outcome.kind)
    assert kinds[-1] is OutcomeType.DELETED


def test_a_deadline_ends_the_wait_for_a_turn(paced: Client) -> None:
    """What can't be sent before it fails at once, and takes no turn of the requests after it."""
    calls = {number: Call(None, MetadataRequest(topics=[], max_version=8)) for number in range(100)}
    started = time.monotonic()
    answers = paced.send_each(calls, Deadline(2.0))
    assert 1 <= sum(not isinstance(answer, Fault) for answer in answers.values()) <= 2.0 * RATE + 1
    assert not isinstance(read_cluster(paced, Deadline(60)), Fault)
    assert time.monotonic() - started < len(calls) / RATE / 2


def test_claims_that_take_long_leave_the_scan_its_time(client: Client, make: Maker) -> None:
    """They have a limit of their own, and an API server that is slow says nothing about brokers."""
    group = make.abandoned(make.name("old"), make.topic(partitions=1, records=1))
    tidy, scene = policy(group), Scene(client, timeout="3s")

    def claims() -> Claims:
        time.sleep(4)
        return Claims()

    scene.context = replace(scene.context, claims=claims, recent_claims=claims)
    observation, plan = scene.plan(tidy)
    assert observation.snapshot.complete, observation.snapshot.incomplete
    assert [outcome.kind for outcome in scene.apply(plan, observation)] == [OutcomeType.DELETED]


def test_a_burst_is_paid_for(paced: Client) -> None:
    """Nothing waits within it; the next request waits for as long as all of them should have taken."""
    count = 6
    started = time.monotonic()
    with paced.burst():
        for _ in range(count):
            assert not isinstance(read_cluster(paced, Deadline(60)), Fault)
    assert not isinstance(read_cluster(paced, Deadline(60)), Fault)
    assert time.monotonic() - started >= count / RATE


def test_what_takes_too_long_is_done_by_fewer_at_a_time(client: Client, make: Maker) -> None:
    """A batch that was too old when it was saved is kept, and the next run tries less at once, until it is in time."""
    topic = make.topic(partitions=1, records=1)
    names = [make.abandoned(make.name("old"), topic) for _ in range(4)]
    scene = Scene(client)
    observation, plan = scene.plan(policy(*names))
    slow = SlowClock()
    slow.scene = scene
    set_clock(scene, slow)
    assert {outcome.reason for outcome in scene.apply(plan, observation)} == {reasons.OFFSETS_UNKNOWN}
    assert scene.memory.batch == 2
    assert [outcome.kind for outcome in scene.apply(plan, observation)] == [OutcomeType.DELETED] * 4
    assert scene.memory.batch > 2
