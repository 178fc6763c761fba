"""One scan for several namespaces: what one of them makes large or slow is its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from group_hygiene.kafka.client import Client, connect
from group_hygiene.model import reasons
from group_hygiene.model.groups import CommittedOffset, Partition
from group_hygiene.process import memory
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.policy import Policy
from testing.sandbox.kafka import KafkaCluster
from tests.kafka.makers import Maker
from tests.kafka.scene import Scene, alert, verdicts

# Of the chart, and the groups and policies that took it all when each pair of them was reserved by itself.
_LIMIT, _GROUPS, _POLICIES = 512 << 20, 2_010, 45


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """A broker without the groups of other tests."""
    with KafkaCluster() as cluster:
        yield cluster


def of(namespace: str, name: str, *groups: str, **when: Any) -> Policy:
    """An Alert policy of this namespace."""
    made = alert(*groups, name=name, **when)
    return structs.replace(made, namespace=namespace, uid=f"{namespace}-{name}")


def simple_groups(make: Maker, kind: str, count: int, topic: str) -> list[str]:
    names = [make.name(kind) for _ in range(count)]
    make.simple_groups({name: {Partition(topic, 0): CommittedOffset(0)} for name in names})
    return names


@pytest.mark.parametrize("namespace", ["team-a", "kafka"])
def test_a_policy_that_takes_much_time_leaves_it_to_other_namespaces(
    access: Settings, make: Maker, namespace: str
) -> None:
    """It is left out with a figure; those of the connection and of another namespace read all of their groups."""
    topic = make.topic(partitions=1, records=1)
    names = {
        kind: simple_groups(make, kind, count, topic) for kind, count in (("greedy", 100), ("small", 5), ("own", 1))
    }
    greedy = of(namespace, "greedy", f"{make.tag}greedy-*", lag={"atLeast": 1})
    others = [
        of("team-b", "small", *names["small"], committedOffsets="Absent"),
        of("kafka", "own", *names["own"], committedOffsets="Absent"),
    ]
    with closing(connect(replace(access, requests_per_second=5))) as paced:
        scene = Scene(paced, timeout="12s")
        # Each slice takes requests of its own.
        scene.memory.slice = 2
        observation = scene.observe(greedy, *others, whole=False)
    for policy in others:
        assert verdicts(observation, policy) == dict.fromkeys(names[policy.name], reasons.HAS_OFFSETS)
    assert observation.snapshot.complete, observation.snapshot.incomplete
    assert list(observation.left_out) == [greedy.key]
    why = observation.left_out[greedy.key].message
    assert re.match(r"reading its groups took \d+\.\d s so far, and a scan has 12 s", why)


def test_policies_of_one_namespace_have_all_the_time(access: Settings, make: Maker) -> None:
    """As there is no other that needs it: a scan that takes most of its time leaves nothing out."""
    names = simple_groups(make, "all", 30, make.topic(partitions=1))
    policy = of("team-a", "all", *names, committedOffsets="Absent")
    with closing(connect(replace(access, requests_per_second=5))) as paced:
        scene = Scene(paced, timeout="10s")
        scene.memory.slice = 1
        observation = scene.observe(policy, whole=False)
    assert observation.left_out == {}
    assert observation.verdicts[policy.key].by_reason == {reasons.HAS_OFFSETS: len(names)}


def test_the_connections_own_have_all_the_time_beside_a_small_one(access: Settings, make: Maker) -> None:
    """What a tenant adds is read after them, and leaves them their time."""
    topic = make.topic(partitions=1)
    names, (small,) = simple_groups(make, "all", 40, topic), simple_groups(make, "small", 1, topic)
    own = [of("kafka", name, *names[first::2], committedOffsets="Absent") for first, name in enumerate(("a", "b"))]
    tenants = of("team-a", "small", small, committedOffsets="Absent")
    with closing(connect(replace(access, requests_per_second=5))) as paced:
        scene = Scene(paced, timeout="14s")
        scene.memory.slice = 1
        observation = scene.observe(*own, tenants, whole=False)
    assert observation.left_out == {}
    counts = {policy.key: observation.verdicts[policy.key].by_reason for policy in own}
    assert counts == {key: {reasons.HAS_OFFSETS: len(names) // 2} for key in counts}


def test_many_policies_on_all_groups_fit_into_the_default_memory(
    client: Client, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A team has 45 policies on 2,010 groups, and all match: those of others run, and most of the team's do."""
    topic = make.topic(partitions=1, records=1)
    names = simple_groups(make, "many", _GROUPS, topic)
    # As in a process that does nothing else.
    in_use, before = memory._used, memory._used()
    monkeypatch.setattr(memory, "LIMIT", _LIMIT)
    monkeypatch.setattr(memory, "_used", lambda: max(0, in_use() - before))
    monkeypatch.setattr(memory, "_reserved", memory._Reserved())
    many = [of("team-a", f"p-{number}", f"{make.tag}*") for number in range(_POLICIES)]
    others = [of("kafka", "own", f"{make.tag}*"), of("team-b", "one", names[0])]
    observation = Scene(client).observe(*many, *others, whole=False)
    for policy, count in zip(others, (_GROUPS, 1), strict=True):
        assert len(observation.verdicts[policy.key]) == count
    # A slow machine leaves some out for their CPU time.
    assert {each.namespace for each in many if each.key in observation.verdicts} == {"team-a"}
    assert all("CPU time" in why.message for why in observation.left_out.values())
