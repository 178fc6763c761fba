"""Groups whose tombstones don't fit into one write of the broker (`max.message.bytes` of `__consumer_offsets`).

The coordinator appends all tombstones of a request and an offsets partition as one batch, or none: DeleteGroups answers
UNKNOWN_SERVER_ERROR for such a group, to Kafka's own tool too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from kafka.protocol.admin import DeleteGroupsRequest
from kafka.protocol.consumer import OffsetDeleteRequest

from group_hygiene.engine import deletion, recovery
from group_hygiene.engine.context import Observation
from group_hygiene.engine.plan import Plan
from group_hygiene.engine.recheck import FRESH_S
from group_hygiene.engine.restorable import RestoreRequest, ResultKind
from group_hygiene.engine.restoration import restore
from group_hygiene.kafka.changes import commit_offsets, delete_groups
from group_hygiene.kafka.client import Client
from group_hygiene.kafka.offsets import committed_offsets
from group_hygiene.model import reasons
from group_hygiene.model.entries import KeepRequest, OutcomeType
from group_hygiene.model.groups import CommittedOffset, Fault, Offsets, Partition
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.books import configured, restorer
from tests.kafka.clients import Around, Died, die
from tests.kafka.makers import Maker, at, soon
from tests.kafka.scene import Guard, Scene, policy, verdicts
from tests.kafka.test_settling import another_process, known_for, recorded
from tests.kafka.test_uncertain_answers import backups

PARTITIONS = 100
# About a third of what the operator reckons for the tombstones of such a group; the broker needs about 4,900.
SMALL, LARGE = "4000", "1048588"


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """A broker whose offsets topic may be spoilt."""
    with KafkaCluster(config={"offsets.topic.num.partitions": "1"}) as cluster:
        yield cluster


@pytest.fixture
def topic(make: Maker) -> str:
    """A topic of many partitions, with records in one."""
    return make.topic(partitions=PARTITIONS, records=5)


@pytest.fixture
def offsets(make: Maker, topic: str) -> Offsets:
    """What a group has committed."""
    return {place: commit for index in range(PARTITIONS) for place, commit in at(topic, 0, index).items()}


@pytest.fixture
def limit(make: Maker) -> Iterator[Callable[[], None]]:
    """Makes the broker's writes small, until the test ends: what is there already was written before."""
    yield lambda: configured(make, "__consumer_offsets", {"max.message.bytes": SMALL})
    configured(make, "__consumer_offsets", {"max.message.bytes": LARGE})


def committed(client: Client, group: str) -> Offsets:
    answer = committed_offsets(client, {group: None}, soon())[group]
    assert not isinstance(answer, Fault), answer
    return answer


def saved(scene: Scene, group: str) -> list[int]:
    """How many offsets each whole backup of a group has, the oldest first."""
    return [sum(map(len, backup.offsets.values())) for backup in backups(scene, group)]


def brought_back(scene: Scene, group: str) -> ResultKind:
    """What becomes of a restore from the newest backup."""
    ledger = another_process(scene)
    ours = restorer(scene.client, ledger, scene.clock, Guard())
    (result,) = restore(ours, RestoreRequest(id="a-restore", groups=(group,)))
    return result.kind


def due(scene: Scene, group: str) -> tuple[Observation, Plan]:
    observation, plan = scene.plan(policy(group))
    assert plan.actions == (group,), (plan.refusal, observation.verdicts[plan.policy.key])
    return observation, plan


@pytest.fixture(params=["classic", "consumer"])
def large(request: pytest.FixtureRequest, make: Maker, topic: str, offsets: Offsets) -> str:
    """An abandoned group of each protocol."""
    return make.abandoned(make.name("old"), topic, request.param, commit=offsets)


def test_a_group_that_kafka_cannot_delete_is_deleted_and_comes_back(
    scene: Scene, make: Maker, large: str, offsets: Offsets, limit: Callable[[], None]
) -> None:
    """It goes in several requests, under one backup, which a restore brings back in several commits."""
    client, group = scene.client, large
    limit()
    refused = delete_groups(client, {group: None}, soon())[group]
    assert refused is not None
    assert refused.code == "UNKNOWN"
    observation, plan = due(scene, group)
    (outcome,) = scene.apply(plan, observation)
    assert (outcome.kind, outcome.reason) == (OutcomeType.DELETED, reasons.DELETED), outcome.message
    assert group not in make.groups()
    assert saved(scene, group) == [PARTITIONS]
    assert [each.what for each in recorded(scene, group)] == [OutcomeType.DELETED]
    assert brought_back(scene, group) is ResultKind.RESTORED
    assert committed(client, group) == offsets


def test_groups_that_fit_only_one_by_one_are_not_asked_for_together(
    scene: Scene, make: Maker, topic: str, offsets: Offsets, limit: Callable[[], None]
) -> None:
    """Each of them is small; all of them in one request are more than the broker can write at once."""
    some = dict(list(offsets.items())[:20])
    groups = {make.abandoned(make.name("old"), topic, commit=some) for _ in range(5)}
    limit()
    observation, plan = scene.plan(policy(f"{make.tag}old*"))
    assert set(plan.actions) == groups
    assert {each.kind for each in scene.apply(plan, observation)} == {OutcomeType.DELETED}
    assert not groups & make.groups().keys()


def watched(client: Client, do: Callable[[], object], after: bool = False) -> Any:
    """A client that does something right before its second OffsetDelete, or right after its first."""
    number, when = (1, "after") if after else (2, "before")
    return Around(client, OffsetDeleteRequest, **{when: lambda count: do() if count == number else None})


@pytest.fixture
def half_deleted(
    client: Client, make: Maker, topic: str, offsets: Offsets, limit: Callable[[], None]
) -> tuple[Scene, str, Plan]:
    """A process died between the requests that delete a group: the process, the group and the plan."""
    scene = Scene(watched(client, die))
    group = make.abandoned(make.name("old"), topic, commit=offsets)
    limit()
    observation, plan = due(scene, group)
    with pytest.raises(Died):
        scene.apply(plan, observation)
    return scene, group, plan


def test_a_process_that_dies_between_the_requests_leaves_a_whole_backup(
    client: Client, make: Maker, offsets: Offsets, half_deleted: tuple[Scene, str, Plan]
) -> None:
    """Half of the group is gone: that is recorded, and what the next try saves has both halves."""
    scene, group, _ = half_deleted
    left = len(committed(client, group))
    assert 0 < left < PARTITIONS

    successor = Scene(client, ledger=scene.ledger)
    known_for(successor, 60)
    assert recovery.recover_intents(successor.context) == {}
    (outcome,) = recorded(successor, group)
    assert (outcome.what, outcome.reason) == (OutcomeType.NOT_DELETED, reasons.INTERRUPTED)
    assert f"{left} of its {PARTITIONS} committed offsets are left" in outcome.message
    assert saved(successor, group) == [PARTITIONS]

    observation, plan = due(successor, group)
    (outcome_now,) = successor.apply(plan, observation)
    assert outcome_now.kind is OutcomeType.DELETED, outcome_now.message
    assert saved(successor, group) == [PARTITIONS, PARTITIONS]
    assert group not in make.groups()
    assert brought_back(successor, group) is ResultKind.RESTORED
    assert committed(client, group) == offsets


def test_a_request_to_keep_it_between_the_requests_keeps_the_rest(
    client: Client, make: Maker, topic: str, offsets: Offsets, limit: Callable[[], None]
) -> None:
    """Whoever asks then saves what is left; what went before is in the backup, and comes back."""

    def ask() -> None:
        now = scene.clock.now()
        request = KeepRequest(group=group, until=now + timedelta(days=1), why="needed", by="ann", at=now)
        another_process(scene).write([request])

    scene = Scene(watched(client, ask, after=True))
    group = make.abandoned(make.name("old"), topic, commit=offsets)
    limit()
    observation, plan = due(scene, group)
    (outcome,) = scene.apply(plan, observation)
    assert (outcome.kind, outcome.reason) == (OutcomeType.NOT_DELETED, reasons.KEEP_REQUESTED), outcome.message
    assert 0 < len(committed(client, group)) < PARTITIONS
    assert saved(scene, group) == [PARTITIONS]
    assert brought_back(scene, group) is ResultKind.RESTORED
    assert committed(client, group) == offsets


def test_half_a_group_comes_back_too(client: Client, offsets: Offsets, half_deleted: tuple[Scene, str, Plan]) -> None:
    """The process died between the requests, and somebody wants the group as it was."""
    scene, group, _ = half_deleted
    assert len(committed(client, group)) < PARTITIONS
    assert brought_back(Scene(client, ledger=scene.ledger), group) is ResultKind.RESTORED
    assert committed(client, group) == offsets


@pytest.fixture
def scenes(client: Client) -> Callable[[Callable[[], None], bool], Scene]:
    """Makes a connection whose process meets something between its requests."""
    return lambda do, after: Scene(watched(client, do, after))


@pytest.mark.parametrize(
    ("joins", "after", "reason"),
    [
        pytest.param(True, True, reasons.BECAME_ACTIVE, id="joins"),
        pytest.param(True, False, reasons.SUBSCRIBED, id="joins-at-the-last-moment"),
        pytest.param(False, True, reasons.CHANGED, id="commits"),
    ],
)
def test_who_comes_back_between_the_requests_keeps_the_rest(
    scenes: Callable[..., Scene], make: Maker, offsets: Offsets, joins: bool, after: bool, reason: str
) -> None:
    """State and offsets are read again before each request; what is gone by then is in the backup."""
    topic = next(iter(offsets)).topic
    group = make.abandoned(make.name("old"), topic, commit=offsets)
    last = at(topic, 1, PARTITIONS - 1)

    def come_back() -> None:
        make.join(group, topic) if joins else make.simple(group, last)

    scene = scenes(come_back, after)
    observation, plan = due(scene, group)
    configured(make, "__consumer_offsets", {"max.message.bytes": SMALL})
    try:
        (outcome,) = scene.apply(plan, observation)
    finally:
        configured(make, "__consumer_offsets", {"max.message.bytes": LARGE})
    assert outcome.reason == reason
    there = committed(scene.client, group)
    assert 0 < len(there) < PARTITIONS
    assert f"{PARTITIONS - len(there)} of its {PARTITIONS} committed offsets" in outcome.message
    assert saved(scene, group) == [PARTITIONS]
    known_for(scene, 60)
    assert recovery.recover_intents(scene.context) == {}
    assert [each.what for each in recorded(scene, group)] == [OutcomeType.NOT_DELETED]
    assert saved(scene, group) == [PARTITIONS]
    tidy = policy(group)
    if joins:
        make.leave(group)
    assert verdicts(scene.observe(tidy), tidy) == {group: reasons.REAPPEARED}


def test_half_a_group_that_is_used_later_is_left_alone(
    client: Client, make: Maker, topic: str, half_deleted: tuple[Scene, str, Plan]
) -> None:
    """The process died between the requests; somebody commits once that is recorded, and is gone again."""
    scene, group, _ = half_deleted
    successor = Scene(client, ledger=scene.ledger)
    known_for(successor, 60)
    assert recovery.recover_intents(successor.context) == {}
    make.simple(group, at(topic, 1, PARTITIONS - 1))
    there = committed(client, group)
    observation, plan = due(successor, group)
    (outcome,) = successor.apply(plan, observation)
    assert outcome.reason == reasons.REAPPEARED, outcome.message
    assert committed(client, group) == there
    assert saved(successor, group) == [PARTITIONS]


def test_a_pending_commit_between_the_requests_keeps_the_rest(
    scenes: Callable[..., Scene], make: Maker, topic: str, offsets: Offsets
) -> None:
    """It is for a partition whose offset is gone by then: Kafka shows it only where that partition is named."""
    group = make.abandoned(make.name("old"), topic, commit=offsets)
    pending: list[Any] = []
    scene = scenes(lambda: pending.append(make.pending(group, at(topic, 2, 1))), True)
    observation, plan = due(scene, group)
    configured(make, "__consumer_offsets", {"max.message.bytes": SMALL})
    try:
        (outcome,) = scene.apply(plan, observation)
    finally:
        configured(make, "__consumer_offsets", {"max.message.bytes": LARGE})
    assert outcome.reason == reasons.PENDING_TRANSACTION, outcome.message
    (producer,) = pending
    producer.commit_transaction(60)
    wait_for(lambda: committed(scene.client, group).get(Partition(topic, 1)) == CommittedOffset(2))


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test does right before a request may take long on a loaded machine, and the reads before it stay valid."""
    monkeypatch.setattr(deletion, "FRESH_S", 60.0)


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize(
    ("moment", "partition"),
    [
        # Its partition 0 has unread records, so it is deleted last.
        pytest.param(OffsetDeleteRequest, 1, id="at-the-first-request"),
        pytest.param(DeleteGroupsRequest, 0, id="at-the-last-request"),
    ],
)
def test_a_commit_right_before_a_request_is_saved(
    client: Client, make: Maker, offsets: Offsets, limit: Callable[[], None], moment: type, partition: int
) -> None:
    """The offsets were read again, and the request is under way: the backup has what the broker deletes."""
    topic = next(iter(offsets)).topic
    late = at(topic, 4, partition)

    def commits(count: int) -> None:
        if count == 1:
            assert set(commit_offsets(client, group, late, soon(), None, {}).values()) == {None}

    scene = Scene(Around(client, moment, before=commits))  # type: ignore[arg-type]
    group = make.abandoned(make.name("old"), topic, commit=offsets)
    limit()
    observation, plan = due(scene, group)
    (outcome,) = scene.apply(plan, observation)
    assert (outcome.kind, outcome.reason) == (OutcomeType.DELETED, reasons.DELETED), outcome.message
    assert group not in make.groups()
    (backup,) = backups(scene, group)
    found = {row.partition: row.offset for row in backup.offsets[topic]}
    assert found == dict.fromkeys(range(PARTITIONS), 0) | {partition: 4}
    assert "right before (1) are saved" in outcome.message


@pytest.mark.usefixtures("_patient")
def test_a_commit_right_before_half_of_it_is_deleted_is_saved(
    client: Client, make: Maker, offsets: Offsets, limit: Callable[[], None]
) -> None:
    """The process dies after the first request, and recovery finds that a part is left."""
    topic = next(iter(offsets)).topic

    def commits(count: int) -> None:
        if count == 1:
            answers = commit_offsets(client, group, at(topic, 4, 1), soon(), None, {})
            assert set(answers.values()) == {None}
        else:
            die()

    scene = Scene(Around(client, OffsetDeleteRequest, before=commits))  # type: ignore[arg-type]
    group = make.abandoned(make.name("old"), topic, commit=offsets)
    limit()
    observation, plan = due(scene, group)
    with pytest.raises(Died):
        scene.apply(plan, observation)
    successor = Scene(client, ledger=scene.ledger)
    known_for(successor, 60)
    assert recovery.recover_intents(successor.context) == {}
    assert 0 < len(committed(client, group)) < PARTITIONS
    (backup,) = backups(successor, group)
    assert {row.partition: row.offset for row in backup.offsets[topic]}[1] == 4
    (record,) = recorded(successor, group)
    assert "right before (1) are saved" in record.message


def test_half_a_group_that_was_restored_was_not_deleted(
    client: Client, offsets: Offsets, half_deleted: tuple[Scene, str, Plan]
) -> None:
    """The process died between the requests, and a restore came before the next process."""
    scene, group, _ = half_deleted
    assert brought_back(Scene(client, ledger=scene.ledger), group) is ResultKind.RESTORED
    successor = Scene(client, ledger=scene.ledger)
    known_for(successor, 60)
    assert recovery.recover_intents(successor.context) == {}
    assert [each.what for each in recorded(successor, group)] == [OutcomeType.RESTORED, OutcomeType.NOT_DELETED]
    assert recorded(successor, group)[-1].reason == reasons.REAPPEARED
    assert committed(client, group) == offsets
    contents = successor.context.journal.contents
    assert contents.intents == {}
    assert saved(successor, group) == [PARTITIONS]


def test_half_a_group_that_was_restored_and_deleted_is_gone(
    client: Client, make: Maker, half_deleted: tuple[Scene, str, Plan]
) -> None:
    """What is there decides, and not that it was restored."""
    scene, group, plan = half_deleted
    assert brought_back(Scene(client, ledger=scene.ledger), group) is ResultKind.RESTORED
    configured(make, "__consumer_offsets", {"max.message.bytes": LARGE})
    make.delete_group(group)
    successor = Scene(client, ledger=scene.ledger)
    known_for(successor, 60)
    assert recovery.recover_intents(successor.context) == {plan.policy.uid: 1}
    assert group in successor.context.journal.contents.deletions


def test_offsets_of_a_deleted_topic_go_with_the_group(
    kafka: KafkaCluster, scene: Scene, make: Maker, topic: str, offsets: Offsets, limit: Callable[[], None]
) -> None:
    """OffsetDelete refuses them. They are there because the broker could not write anything when the topic went."""
    gone = make.topic()
    group = make.abandoned(make.name("old"), topic, commit={**offsets, **at(gone, 3)})
    configured(make, "__consumer_offsets", {"max.message.bytes": "70"})
    make.delete_topic(gone)
    wait_for(lambda: gone in "".join(re.findall("Could not delete offsets.*", kafka.log(1).read_text())))
    limit()
    assert Partition(gone, 0) in committed(scene.client, group)
    observation, plan = due(scene, group)
    (outcome,) = scene.apply(plan, observation)
    assert (outcome.kind, outcome.reason) == (OutcomeType.DELETED, reasons.DELETED), outcome.message
    assert group not in make.groups()
    assert saved(scene, group) == [PARTITIONS + 1]


def test_groups_for_which_no_time_is_left_are_not_in_doubt(
    client: Client, make: Maker, topic: str, offsets: Offsets, limit: Callable[[], None]
) -> None:
    """No request about them was sent: they wait for the next run, and the rest of this run goes on."""
    # The first DeleteGroups takes all the time that there is for a batch.
    slow: Any = Around(client, DeleteGroupsRequest, after=lambda count: time.sleep(FRESH_S) if count == 1 else None)
    scene = Scene(slow)
    scene.memory.batch = 3
    some = dict(list(offsets.items())[:20])
    groups = {make.abandoned(make.name("old"), topic, commit=some) for _ in range(5)}
    limit()
    observation, plan = scene.plan(policy(f"{make.tag}old*"))
    assert set(plan.actions) == groups
    outcomes = {each.group: each for each in scene.apply(plan, observation)}
    deleted = {name for name, each in outcomes.items() if each.kind is OutcomeType.DELETED}
    assert len(deleted) == 3, outcomes
    assert make.groups().keys() & groups == groups - deleted
    assert {outcomes[name].message for name in groups - deleted} == {"not sent: there was no time left"}
    assert scene.context.journal.contents.intents == {}
