"""Groups are judged some at a time: on random clusters, with random policies, as all at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from group_hygiene.engine import scan
from group_hygiene.engine.context import Observation
from group_hygiene.kafka.client import Client
from group_hygiene.model.groups import CommittedOffset, Offsets, Partition
from group_hygiene.spec.policy import Policy
from tests.kafka.makers import Maker
from tests.kafka.scene import Scene, alert, policy, verdicts

_GROUPS, _TRIES = 40, 6
# What reads something else.
_WHEN: list[dict[str, Any]] = [
    {},
    {"lag": {"atLeast": 1}},
    {"lag": {"atLeast": 4}},
    {"committedOffsets": "OutOfRange"},
    {"committedOffsets": "Absent"},
    {"deletedTopics": "Some"},
    {"deletedTopics": "All"},
]


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in (1, 2)])
def test_slices_of_a_random_cluster_are_judged_as_the_whole(client: Client, make: Maker, seed: int) -> None:
    """The same verdicts, counts and observations of groups, whatever the size of the slices."""
    chance = random.Random(seed)
    topics = {make.topic(partitions=3, records=chance.randint(0, 6)): 3 for _ in range(4)}
    groups = {make.name(f"simple-{number % 4}"): _offsets(chance, topics) for number in range(_GROUPS)}
    make.simple_groups(groups)
    for topic in list(topics)[:2]:
        left = make.abandoned(make.name("left"), topic, commit={Partition(topic, 0): CommittedOffset(0)})
        make.join(make.name("live"), topic)
        groups[left] = {}
    make.delete_topic(next(iter(topics)))
    for attempt in range(_TRIES):
        policies = [_policy(chance, make.tag, number) for number in range(chance.randint(1, 12))]
        whole, found = _judged(client, policies, lambda scene: None)
        size = chance.choice([1, 2, 7, 30])

        def shrink(scene: Scene, size: int = size) -> None:
            scene.memory.slice = size

        sliced, again = _judged(client, policies, shrink)
        where = f"seed {seed}, attempt {attempt}, slices of {size}, {[each.name for each in policies]}"
        for each in policies:
            assert verdicts(again, each) == verdicts(found, each), where
            some, every = again.verdicts[each.key], found.verdicts[each.key]
            assert (sorted(some.names), some.by_reason) == (sorted(every.names), every.by_reason), where
            assert sorted(some.unknown) == sorted(every.unknown), where
        assert sliced == whole, where


def test_scans_hold_each_id_once(client: Client, make: Maker) -> None:
    """In the list of groups and in what is counted of each: all ids of a large cluster take tens of megabytes."""
    topic = make.topic(records=2)
    groups = [make.abandoned(make.name(f"left-{number}"), topic) for number in range(3)]
    scene, counting = Scene(client), policy(f"{make.tag}*")
    scene.observe(counting)
    # What the first scan wrote is read, and one group commits.
    scene.context = scene.open()
    make.simple(groups[0], {Partition(topic, 0): CommittedOffset(1)})
    listed = scene.observe(counting, after=20).snapshot.groups
    seen = scene.memory.contents.seen[scene.connection.uid]
    assert seen.keys() == set(groups)
    for held in (seen, listed, scene.memory.reads):
        assert all(name is seen[name].group for name in held if name in seen)


def test_who_is_left_out_of_a_scan_loses_no_counts(
    client: Client, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another policy read the group meanwhile."""
    group = make.abandoned(make.name("left"), make.topic(records=1))
    scene, first, second = Scene(client), policy(group, name="first"), policy(group, name="second")
    scene.observe(first, second, whole=False)

    def reserve(found: scan._Scan, *_: object) -> list[Policy]:
        found.leave_out(first, "there is too little memory")
        return [second]

    with monkeypatch.context() as patched:
        patched.setattr(scan._Scan, "reserve", reserve)
        assert [*scene.observe(first, second, after=30, whole=False).left_out] == [first.key]
    observation = scene.observe(first, second, after=30)
    assert verdicts(observation, first) == verdicts(observation, second) == {group: "Match"}


def _judged(
    client: Client, policies: list[Policy], prepare: Callable[[Scene], None]
) -> tuple[dict[str, bytes], Observation]:
    """The fingerprints of the groups that are observed, and the second of two scans."""
    scene = Scene(client)
    prepare(scene)
    scene.observe(*policies)
    observation = scene.observe(*policies, after=20)
    assert observation.snapshot.complete, observation.snapshot.incomplete
    seen = scene.memory.contents.seen.get(scene.connection.uid, {})
    return {name: each.fingerprint for name, each in seen.items()}, observation


def _offsets(chance: random.Random, topics: dict[str, int]) -> Offsets:
    """Of some partitions, before, at and beyond the ends."""
    places = [Partition(topic, index) for topic, count in topics.items() for index in range(count)]
    return {place: CommittedOffset(chance.randint(0, 8)) for place in chance.sample(places, chance.randint(1, 5))}


def _policy(chance: random.Random, tag: str, number: int) -> Policy:
    pattern = chance.choice(
        [f"{tag}*", f"{tag}simple-{chance.randint(0, 3)}*", f"{tag}l*", f"{tag}*{chance.randint(0, 9)}"]
    )
    when = chance.choice(_WHEN)
    if chance.random() < 0.5:
        return alert(pattern, name=f"alert-{number}", **when)
    return policy(pattern, name=f"delete-{number}", **when)
