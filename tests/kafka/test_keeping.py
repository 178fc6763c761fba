"""The requests of GroupKeeps, on a real broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from group_hygiene import reconcile
from group_hygiene.model import reasons
from group_hygiene.model.group_keep import GroupKeep
from group_hygiene.model.refusal import Refusal
from group_hygiene.reconcile import keeping
from tests.kafka.makers import Maker, at
from tests.kafka.scene import Guard, Scene, policy


def kept(scene: Scene, keep: GroupKeep) -> dict[str, str]:
    """Group -> the reason of its result."""
    found = reconcile.keep_groups(reconcile.Executor(scene.context, Guard()), keep, {}, False)
    assert not isinstance(found, Refusal), found
    return {each.group: each.reason for each in found}


def test_a_namespace_has_so_many_requests_and_no_more(
    scene: Scene, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger's entries are in memory: no team fills it. What it has is renewed; other namespaces have their own."""
    monkeypatch.setattr(keeping, "REQUESTS_MAX", 3)
    names = tuple(make.name(f"g{number}") for number in range(4))
    first = GroupKeep("team-a", "first", "uid-1", names[:2], "needed", None)
    second = GroupKeep("team-a", "second", "uid-2", names, "needed", None)
    assert set(kept(scene, first).values()) == {reasons.GROUP_UNKNOWN}
    assert list(kept(scene, second).values()) == [reasons.GROUP_UNKNOWN, *[reasons.TOO_MANY_KEEPS] * 3]
    assert set(kept(scene, first).values()) == {reasons.GROUP_UNKNOWN}
    assert set(kept(scene, replace(second, namespace="team-b", groups=names[:3])).values()) == {reasons.GROUP_UNKNOWN}
    requests = [source for by_source in scene.context.journal.contents.object_keeps.values() for source in by_source]
    assert len(requests) == 6


def test_a_group_shows_its_client_and_since_when_it_is_unchanged(scene: Scene, make: Maker) -> None:
    """Members now, without their hosts; of an Empty group since when scans found it so."""
    topic = make.topic(records=2)
    used, empty = make.name("used"), make.name("empty")
    make.join(used, topic)
    make.abandoned(empty, topic, commit=at(topic, 1))
    before = scene.clock.now()
    scene.observe(policy("*"))
    keep = GroupKeep("team-a", "both", "uid", (used, empty), "needed", None)
    found = reconcile.keep_groups(reconcile.Executor(scene.context, Guard()), keep, {}, False)
    assert not isinstance(found, Refusal), found
    of_used, of_empty = found
    assert (of_used.state, of_used.unchanged_since, of_empty.client) == ("Stable", None, "")
    assert of_used.client.startswith("client '")
    assert "from" not in of_used.client
    assert of_empty.unchanged_since is not None
    assert before <= of_empty.unchanged_since <= scene.clock.now()
