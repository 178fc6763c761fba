"""Brokers that list no states, and a group that may not be described: its state is a fault of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from group_hygiene.kafka.client import Client
from group_hygiene.kafka.groups import list_groups
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.groups import GroupState, GroupType
from group_hygiene.spec.client_settings import Mechanism, Sasl, Settings
from group_hygiene.spec.fields import Hidden
from testing.sandbox.kafka import KafkaCluster, Security
from tests.kafka.makers import Maker, seen, soon
from tests.kafka.permissions import DESCRIBE, EXAMPLE, GROUP, grant, ledger_least
from tests.kafka.scene import Scene, alert, policy, verdicts

OLD = "2.5.1"
USER, PASSWORD = "hygiene", "not-much-of-a-secret"


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """One old broker that asks who may do what."""
    with KafkaCluster(OLD, security=Security(sasl="PLAIN", users={USER: PASSWORD}, authorizer=True)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def access(kafka: KafkaCluster) -> Settings:
    """As a user who may do something."""
    servers = tuple(kafka.bootstrap_servers.split(","))
    return Settings(servers, sasl=Sasl(Mechanism.PLAIN, USER, Hidden(PASSWORD)))


@pytest.mark.slow
def test_a_group_that_may_not_be_described_is_kept_and_spoils_nothing(client: Client, make: Maker) -> None:
    """It is listed with its fault, in whatever state; the others are judged, and deleted, in a complete scan."""
    topic = make.topic(records=5)
    denied, other = make.abandoned(make.name("denied"), topic), make.abandoned(make.name("old"), topic)
    live = make.name("live")
    make.join(live, topic)
    grant(make, {USER: (*EXAMPLE, *ledger_least("__group_hygiene-"))}, [(USER, (GROUP, denied, DESCRIBE))])
    cluster = seen(client)
    for states in ((), {GroupState.EMPTY}):
        listing = list_groups(client, cluster, soon(), states, {GroupType.CLASSIC})
        assert not listing.faults
        assert {name: fault.code for name, fault in listing.group_faults.items()} == {
            denied: "GROUP_AUTHORIZATION_FAILED"
        }
        assert {name: group.state for name, group in listing.groups.items() if group.state not in states} == {
            denied: GroupState.UNKNOWN
        } | ({} if states else {other: GroupState.EMPTY, live: GroupState.STABLE})

    scene, tidy, look = Scene(client), policy(f"{make.tag}*"), alert(f"{make.tag}*", committedOffsets="Absent")
    scene.observe(tidy)
    scene.marked(tidy, [other])
    observation = scene.observe(tidy, look, after=60)
    assert observation.snapshot.complete
    assert observation.snapshot.groups[denied].state is GroupState.UNKNOWN
    (note,) = [note for note in observation.snapshot.notes if denied in note]
    assert "GROUP_AUTHORIZATION_FAILED: needs DESCRIBE on the group" in note
    assert verdicts(observation, tidy) == {other: "Match"}
    assert observation.conditions.total == 3
    plan = scene.planned(observation, tidy)
    assert plan.actions == (other,)
    assert [outcome.kind for outcome in scene.apply(plan, observation)] == [OutcomeType.DELETED]
    assert make.groups().keys() == {denied, live}
