"""`lag` and `committedOffsets: OutOfRange` on an old and two new brokers: which match, and which are never read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from group_hygiene.engine.context import Observation
from group_hygiene.kafka.client import CLIENT_ID, Client
from group_hygiene.ledger.contents import group_of
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, OutcomeType
from group_hygiene.observe.of_objects import build_status
from group_hygiene.spec.policy import Policy
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.cluster import Mark
from tests.kafka.makers import Maker, at, soon
from tests.kafka.scene import Scene, alert, policy, verdicts

MATCH = "Match"
RECORDS = 5


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("2.5.1", id="2.5.1", marks=pytest.mark.slow),
        pytest.param(None, id="4.4.0-two-brokers"),
    ],
)
def kafka(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Brokers that count requests, and have no mirror's checkpoints."""
    if request.param is None:
        yield request.getfixturevalue("two_brokers")
        return
    with KafkaCluster(request.param, request_log=True) as cluster:
        yield cluster


@pytest.fixture
def topic(make: Maker) -> str:
    """A topic of four partitions, so that each broker leads some, with records in the first."""
    return make.topic(partitions=4, records=RECORDS)


def lists_of_offsets(kafka: KafkaCluster, since: Mark) -> set[int]:
    """How many ListOffsets of topics with records the brokers got from the product, each of them.

    Where the offsets log ends is asked at each scan for `unchangedFor`.
    """
    found = kafka.count_requests("LIST_OFFSETS", client_id=CLIENT_ID, since=since, without="__consumer_offsets")
    return set(found.values())


def cut(make: Maker, topic: str, before: int) -> None:
    """As retention does: what is before that offset of the first partition is gone."""
    for gone in make.admin.delete_records([TopicPartition(topic, 0, before)]).values():
        gone.result()


def sample(scene: Scene, observation: Observation, of: Policy) -> dict[str, tuple[Any, ...]]:
    """Each group as the status shows it: state, lag, and how many partitions are out of range."""
    status = build_status(of, {}, scene.planned(observation, of), [], observation.snapshot)
    return {one["group"]: (one["state"], one.get("lag"), one.get("outOfRangePartitions")) for one in status["sample"]}


def test_who_left_records_unread(scene: Scene, make: Maker, topic: str) -> None:
    """Abandoned in the middle and in use but behind both match, and a silent topic is told apart from either."""
    abandoned = make.abandoned(make.name("abandoned"), topic, commit=at(topic, 2))
    silent = make.abandoned(make.name("silent"), topic, commit=at(topic, RECORDS))
    never = make.abandoned(make.name("never"), topic, commit={})
    outside = make.simple(make.name("outside"), at(topic, 3) | at(topic, 0, partition=1))
    behind, reading = make.name("behind"), make.name("reading")
    make.join(behind, topic, commit=at(topic, 1))
    make.join(reading, topic, commit=at(topic, RECORDS))
    unread = alert(f"{make.tag}*", lag={"atLeast": 3})
    observation = scene.observe(unread)
    assert verdicts(observation, unread) == {
        abandoned: MATCH,
        behind: MATCH,
        outside: reasons.LAG_BELOW,
        silent: reasons.CAUGHT_UP,
        reading: reasons.CAUGHT_UP,
        never: reasons.NO_OFFSETS,
    }
    assert sample(scene, observation, unread) == {
        abandoned: ("Empty", 3, None),
        behind: ("Stable", 4, None),
        outside: ("Empty", 2, None),
        silent: ("Empty", 0, None),
        reading: ("Stable", 0, None),
        never: ("Empty", None, None),
    }
    make.produce(topic, [(None, b"x")], partition=1)
    observation = scene.observe(unread)
    assert verdicts(observation, unread)[outside] == MATCH, "all of its partitions count together"
    assert sample(scene, observation, unread)[outside] == ("Empty", 3, None)


def test_who_would_be_reset(scene: Scene, make: Maker, topic: str) -> None:
    """Below what retention left and beyond the end, in use or not; what was removed is no lag."""
    overtaken = make.abandoned(make.name("overtaken"), topic, commit=at(topic, 2))
    stuck = make.name("stuck")
    make.join(stuck, topic, commit=at(topic, 1))
    beyond = make.simple(make.name("beyond"), at(topic, RECORDS + 1) | at(topic, 1, partition=1))
    first = make.abandoned(make.name("first"), topic, commit=at(topic, 4))
    last = make.abandoned(make.name("last"), topic, commit=at(topic, RECORDS))
    lost, unread = (
        alert(f"{make.tag}*", committedOffsets="OutOfRange"),
        alert(f"{make.tag}*", name="unread", lag={"atLeast": 2}),
    )
    before = scene.observe(lost, unread)
    others = dict.fromkeys((overtaken, stuck, first, last), reasons.IN_RANGE)
    assert verdicts(before, lost) == {beyond: MATCH} | others
    assert verdicts(before, unread)[overtaken] == MATCH

    cut(make, topic, before=4)
    after = scene.observe(lost, unread)
    assert verdicts(after, lost) == {
        beyond: MATCH,
        overtaken: MATCH,
        stuck: MATCH,
        first: reasons.IN_RANGE,
        last: reasons.IN_RANGE,
    }
    assert verdicts(after, unread) == {
        beyond: reasons.CAUGHT_UP,
        overtaken: reasons.LAG_BELOW,
        stuck: reasons.LAG_BELOW,
        first: reasons.LAG_BELOW,
        last: reasons.CAUGHT_UP,
    }
    assert sample(scene, after, lost) == {
        beyond: ("Empty", 0, 2),
        overtaken: ("Empty", 1, 1),
        stuck: ("Stable", 1, 1),
        first: ("Empty", 1, None),
        last: ("Empty", 0, None),
    }


def test_it_is_read_again_before_a_deletion(scene: Scene, make: Maker, topic: str) -> None:
    """What matched at the scan and does not any more stays; what still does is deleted, with its lag in the backup."""
    other = make.topic(records=RECORDS)
    still, no_more = (make.abandoned(make.name("left"), name) for name in (topic, other))
    tidy = policy(f"{make.tag}*", lag={"atLeast": RECORDS})
    observation, plan = scene.plan(tidy)
    assert set(plan.actions) == {still, no_more}
    cut(make, other, before=1)
    outcomes = {outcome.group: outcome for outcome in scene.apply(plan, observation)}
    assert (outcomes[still].kind, outcomes[still].reason) == (OutcomeType.DELETED, reasons.DELETED)
    assert (outcomes[no_more].kind, outcomes[no_more].reason) == (OutcomeType.NOT_DELETED, reasons.LAG_BELOW)
    assert make.groups() == {no_more: "EMPTY"}
    assert scene.memory.ledger is not None
    kept = scene.memory.ledger.entries(lambda key: group_of(key) == still, soon())
    (backup,) = [entry for entry in kept if isinstance(entry, Backup)]
    assert [row.lag for row in backup.offsets[topic]] == [RECORDS]


# What a scan costs is what its policies ask for.


def test_who_does_not_ask_pays_nothing(scene: Scene, make: Maker, topic: str, kafka: KafkaCluster) -> None:
    """Not one ListOffsets in round after round with a ledger, where nothing is to be marked."""
    make.abandoned(make.name("abandoned"), topic)
    make.abandoned(make.name("silent"), topic, commit=at(topic, RECORDS))
    make.simple(make.name("simple"), at(topic))
    make.join(make.name("live"), topic, commit=at(topic))
    groups = f"{make.tag}*"
    policies = [
        policy(groups),
        policy(groups, name="gone", deletedTopics="All"),
        alert(groups, name="all"),
        alert(groups, name="never", committedOffsets="Absent"),
        alert(groups, name="some", deletedTopics="Some"),
    ]
    mark = kafka.mark()
    for _ in range(3):
        scene.context = scene.open()
        assert scene.context.journal.problem is None
        observation = scene.observe(*policies, after=5)
        assert set(verdicts(observation, policies[0]).values()) == {reasons.TOO_RECENT, reasons.SIMPLE}
    assert lists_of_offsets(kafka, mark) == {0}
    assert sum(kafka.count_requests("OFFSET_FETCH", client_id=CLIENT_ID, since=mark).values()) >= 3


def test_only_a_ledger_that_is_opened_asks_where_it_begins(client: Client, make: Maker, kafka: KafkaCluster) -> None:
    """Once in the life of a process, and one request."""
    mark = kafka.mark()
    scene = Scene(client)
    assert scene.context.journal.problem is None
    assert sum(kafka.count_requests("LIST_OFFSETS", client_id=CLIENT_ID, since=mark).values()) == 1
    mark = kafka.mark()
    scene.context = scene.open()
    scene.observe(alert(f"{make.tag}*"))
    assert lists_of_offsets(kafka, mark) == {0}


def test_only_who_would_match_else_is_asked_about(client: Client, make: Maker, topic: str, kafka: KafkaCluster) -> None:
    """Policies that ask for lag and range, where each group stays for another reason."""
    protected = make.abandoned(make.name("protected"), topic)
    abandoned = make.abandoned(make.name("abandoned"), topic)
    scene = Scene(client, protect=[protected])
    when: dict[str, Any] = {"lag": {"atLeast": 1}, "committedOffsets": "OutOfRange"}
    every = [
        policy(f"{make.tag}*", **when),
        alert(f"{make.tag}*", name="gone", deletedTopics="Some", **when),
        alert(f"{make.tag}*", name="never", committedOffsets="Absent"),
        alert(make.name("nobody"), name="nobody", **when),
    ]
    mark = kafka.mark()
    observation = scene.observe(*every)
    why = [verdicts(observation, each).get(abandoned) for each in every]
    assert why == [reasons.TOO_RECENT, reasons.TOPICS_EXIST, reasons.HAS_OFFSETS, None]
    assert lists_of_offsets(kafka, mark) == {0}


def test_each_partition_is_asked_once(scene: Scene, make: Maker, topic: str, kafka: KafkaCluster) -> None:
    """Three groups that match and policies that ask one by one: where each partition begins, and where it ends."""
    everywhere = at(topic) | at(topic, partition=1) | at(topic, partition=2) | at(topic, partition=3)
    groups = [make.simple(make.name("left"), everywhere) for _ in range(3)]
    unread = alert(f"{make.tag}*", lag={"atLeast": 1})
    lost = alert(f"{make.tag}*", name="lost", committedOffsets="OutOfRange")
    # It asks about topics of one group in the same round in which the others ask for ends.
    gone = alert(groups[0], name="gone", deletedTopics="Some", lag={"atLeast": 1})
    mark = kafka.mark()
    observation = scene.observe(gone, unread, lost)
    assert verdicts(observation, unread) == dict.fromkeys(groups, MATCH)
    assert verdicts(observation, lost) == dict.fromkeys(groups, reasons.IN_RANGE)
    assert verdicts(observation, gone) == {groups[0]: reasons.TOPICS_EXIST}
    assert lists_of_offsets(kafka, mark) == {2}


@pytest.mark.parametrize("size", [pytest.param(1, id="one-by-one"), pytest.param(3, id="threes")])
def test_slices_change_nothing(scene: Scene, make: Maker, topic: str, size: int) -> None:
    """Judged in slices or at once, each group has the same verdict, also of policies that read lag and count scans."""
    for offset in range(RECORDS + 1):
        make.abandoned(make.name("abandoned"), topic, commit=at(topic, offset) | at(topic, 0, partition=1))
    make.simple(make.name("simple"), at(topic, RECORDS + 1))
    policies = (
        alert(f"{make.tag}*", lag={"atLeast": 3}),
        alert(f"{make.tag}*", name="lost", committedOffsets="OutOfRange"),
        policy(f"{make.tag}*", name="unchanged"),
    )
    scene.observe(*policies)
    whole = scene.observe(*policies, after=30)
    shown = [verdicts(whole, each) for each in policies]
    scene.memory.slice = size
    sliced = scene.observe(*policies, whole=False)
    assert [verdicts(sliced, each) for each in policies] == shown
    assert set(shown[2].values()) == {reasons.TOO_RECENT, reasons.SIMPLE}
    assert sample(scene, sliced, policies[0]) == sample(scene, whole, policies[0])
