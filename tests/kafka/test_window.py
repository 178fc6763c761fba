"""What was deleted is what was saved: commits between the last read of a group's offsets and its deletion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from kafka.protocol.admin import DeleteGroupsRequest

from group_hygiene.engine import recheck, recovery, requested, uses
from group_hygiene.engine.executor import Executor
from group_hygiene.kafka.client import Client
from group_hygiene.model import reasons
from group_hygiene.model.entries import HistoryEntry, OutcomeType
from group_hygiene.model.evidence import Claims
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.client_settings import Settings
from testing.faults.kafka_proxy import KafkaProxy, Rule, Then, When
from testing.faults.owners import Owners
from testing.faults.requests import DELETE_GROUPS, FETCH, PRODUCE, Exchange
from testing.sandbox.kafka import KafkaCluster, Security
from testing.sandbox.waiting import wait_for
from tests.kafka.clients import Around, Died, die
from tests.kafka.makers import Maker, at, seen, soon
from tests.kafka.scene import Guard, Scene, policy
from tests.kafka.test_settling import known_for
from tests.kafka.test_tail import Ends, ends_of
from tests.kafka.test_uncertain_answers import backups

SAVED, LATE = 10, 40


@pytest.fixture(scope="module", params=[None, pytest.param("3.9.1", id="three-of-3.9.1")])
def kafka(request: pytest.FixtureRequest, kafka: KafkaCluster) -> Iterator[KafkaCluster]:
    """Also brokers that answer before their followers have a deletion."""
    if request.param is None:
        yield kafka
    else:
        with KafkaCluster(request.param, 3, security=Security(doors=1)) as cluster:
            yield cluster


@pytest.fixture(scope="module")
def proxy(kafka: KafkaCluster) -> Iterator[KafkaProxy]:
    """Between the product's client and the broker."""
    made = KafkaProxy(kafka.door(0), Owners())
    yield made
    made.close()


@pytest.fixture(scope="module")
def access(proxy: KafkaProxy) -> Settings:
    """Through the proxy."""
    return Settings(tuple(proxy.bootstrap_servers.split(",")))


@pytest.fixture
def topic(make: Maker) -> str:
    """A topic with records."""
    return make.topic(records=50)


def commits(make: Maker, group: str, topic: str) -> None:
    make.simple(group, at(topic, LATE))


def commits_for_another_topic(make: Maker, group: str, topic: str) -> None:
    make.simple(group, at(make.topic(f"{topic}-2", records=50), LATE))


def commits_in_a_transaction(make: Maker, group: str, topic: str) -> None:
    make.pending(group, at(topic, LATE)).commit_transaction(60)
    # The broker writes its marker after it answers.
    place = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    wait_for(lambda: _committed(make, place) == LATE)


def _committed(make: Maker, place: ConsumerGroupTopicPartitions) -> int:
    (answer,) = make.admin.list_consumer_group_offsets([place]).values()
    return int(answer.result().topic_partitions[0].offset)


def aborts_a_transaction(make: Maker, group: str, topic: str) -> None:
    make.pending(group, at(topic, LATE)).abort_transaction(60)


_LEFT_OPEN: list[Any] = []


def begins_a_transaction(make: Maker, group: str, topic: str) -> None:
    _LEFT_OPEN.append(make.pending(group, at(topic, LATE)))


def during(proxy: KafkaProxy, api: int, do: Callable[[], object]) -> Rule:
    """Do something before the broker gets the next request with this API key."""

    def hold(_: Exchange) -> Then:
        do()
        return Then.PASS

    return proxy.rule(Rule(lambda exchange: exchange.api == api, When.BEFORE, hold))


def saved(scene: Scene, group: str) -> dict[str, int]:
    """Topic -> the offset of its partition 0 in the backup."""
    (backup,) = backups(scene, group)
    return {topic: rows[0].offset for topic, rows in backup.offsets.items()}


LATE_COMMITS = [
    pytest.param(commits, {"": LATE}, "right before (1) are saved", id="a-commit"),
    pytest.param(
        commits_for_another_topic, {"": SAVED, "-2": LATE}, "right before (1) are saved", id="for-another-topic"
    ),
    pytest.param(commits_in_a_transaction, {"": LATE}, "right before (1) are saved", id="in-a-transaction"),
    pytest.param(aborts_a_transaction, {"": SAVED}, "", id="in-an-aborted-transaction"),
    pytest.param(begins_a_transaction, {"": SAVED}, "1 transaction(s) were open", id="in-an-open-transaction"),
]


@pytest.mark.parametrize("answered", [True, pytest.param(False, id="answer-lost")])
@pytest.mark.parametrize(("late", "offsets", "says"), LATE_COMMITS)
def test_a_commit_before_the_deletion_is_saved(  # noqa: PLR0913, PLR0917
    scene: Scene,
    proxy: KafkaProxy,
    make: Maker,
    late: Callable[..., None],
    offsets: dict[str, int],
    says: str,
    answered: bool,
) -> None:
    """The request is under way: the backup has what the broker deletes, and the outcome says so."""
    topic = make.topic(records=50)
    group = make.abandoned(make.name("monthly"), topic, commit=at(topic, SAVED))
    observation, plan = scene.plan(policy(group))
    if not answered:
        proxy.rule(Rule(lambda exchange: exchange.api == DELETE_GROUPS, When.BETWEEN, lambda _: Then.DROP))
    rule = during(proxy, DELETE_GROUPS, lambda: late(make, group, topic))
    (outcome,) = scene.apply(plan, observation)
    rule.wait("the commit comes before the request")
    assert outcome.kind is OutcomeType.DELETED
    assert group not in make.groups()
    assert saved(scene, group) == {f"{topic}{rest}": offset for rest, offset in offsets.items()}
    assert says in outcome.message


def test_a_first_commit_before_the_deletion_is_saved(scene: Scene, proxy: KafkaProxy, make: Maker, topic: str) -> None:
    """Of a group that had no offsets when it was read."""
    group = make.abandoned(make.name("never-committed"), topic, commit={})
    observation, plan = scene.plan(policy(group, committedOffsets="Absent"))
    rule = during(proxy, DELETE_GROUPS, lambda: commits(make, group, topic))
    (outcome,) = scene.apply(plan, observation)
    rule.wait("the commit comes before the request")
    assert outcome.kind is OutcomeType.DELETED
    assert saved(scene, group) == {topic: LATE}
    assert "right before (1) are saved" in outcome.message


def test_a_fault_while_the_window_is_read_loses_no_commit(
    scene: Scene, proxy: KafkaProxy, make: Maker, topic: str
) -> None:
    """A connection that ends at the first read after the deletion: the log is read again, and the commit is saved."""
    group = make.abandoned(make.name("monthly"), topic, commit=at(topic, SAVED))
    observation, plan = scene.plan(policy(group))
    deleted = during(proxy, DELETE_GROUPS, lambda: commits(make, group, topic))
    lost = Rule(lambda exchange: exchange.api == FETCH and deleted.done.is_set(), When.BETWEEN, lambda _: Then.DROP)
    proxy.rule(lost)
    (outcome,) = scene.apply(plan, observation)
    lost.wait("the answer with the commit is lost")
    assert outcome.kind is OutcomeType.DELETED
    assert saved(scene, group) == {topic: LATE}
    assert "right before (1) are saved" in outcome.message


def test_the_window_begins_after_the_slow_reads(scene: Scene, make: Maker, topic: str) -> None:
    """What a busy log got while they lasted is read once, and not again within the time in which evidence is fresh."""
    group = make.abandoned(make.name("monthly"), topic, commit=at(topic, SAVED))
    observation, plan = scene.plan(policy(group))
    begun: list[Ends] = []
    ends: list[Ends] = []

    def claims() -> Claims:
        make.simple(make.name("busy"), at(topic))
        ends.append(ends_of(scene.client, seen(scene.client)))
        return Claims()

    def intent() -> None:
        begun.extend(each.log_ends for each in scene.context.journal.contents.intents.values())

    scene.context = replace(scene.context, claims=claims)
    (outcome,) = scene.apply(plan, observation, Guard(stop=intent))
    assert outcome.kind is OutcomeType.DELETED
    assert begun
    assert all(at_least <= begun[0][index] for index, at_least in ends[-1].items())


def test_a_transaction_that_begins_while_the_group_is_read_again(
    scene: Scene, make: Maker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By force nothing else looks for uses: either the question for open transactions finds it, or the log's end."""
    group = make.abandoned(make.name("monthly"), topic, commit=at(topic, SAVED))
    request = requested.DeletionRequest([group], "ann", None, timedelta(days=1))
    another = make.topic(records=SAVED)

    why_not: list[object] = []

    def judge() -> requested.Judged | None:
        found = requested.judge_requested(scene.context, request)
        why_not[:] = [found.stop, found.verdicts[group]]
        return found if found.verdicts[group].matches and found.stop is None else None

    # On a loaded machine, the group may not be Empty at once.
    judged = wait_for(judge, lambda: str(why_not))

    def after_it_began(*arguments: Any) -> Any:
        begins_a_transaction(make, group, another)
        return uses.read_start(*arguments)

    monkeypatch.setattr(recheck, "read_start", after_it_began)
    problem, outcomes = requested.delete_requested(Executor(scene.context, Guard()), judged)
    assert problem is None
    _LEFT_OPEN.pop().abort_transaction(30)
    (outcome,) = outcomes
    assert (outcome.kind, outcome.reason) == (OutcomeType.NOT_DELETED, reasons.PENDING_TRANSACTION)
    assert group in make.groups()


def test_a_commit_while_it_is_saved_keeps_the_group(scene: Scene, proxy: KafkaProxy, make: Maker, topic: str) -> None:
    """The log is read again after the backup was read back, and before the request."""
    group = make.abandoned(make.name("monthly"), topic, commit=at(topic, SAVED))
    observation, plan = scene.plan(policy(group))
    before = len(proxy.seen(DELETE_GROUPS))
    during(proxy, PRODUCE, lambda: commits(make, group, topic))
    (outcome,) = scene.apply(plan, observation)
    assert (outcome.kind, outcome.reason) == (OutcomeType.NOT_DELETED, reasons.RECENTLY_ACTIVE)
    used, again = map(datetime.fromisoformat, re.findall(r"20[0-9T:-]+Z", outcome.message))
    assert again - used == plan.policy.when.unchanged_for, outcome.message
    assert len(proxy.seen(DELETE_GROUPS)) == before
    assert group in make.groups()
    assert backups(scene, group) == []


def test_a_process_that_died_leaves_the_commit_to_the_next(client: Client, make: Maker, topic: str) -> None:
    """The intent has the ends of the log, so recovery finds the commit, too."""
    dying = Around(client, DeleteGroupsRequest, after=die)
    scene = Scene(dying)  # type: ignore[arg-type]
    group = make.abandoned(make.name("monthly"), topic, commit=at(topic, SAVED))
    observation, plan = scene.plan(policy(group))
    dying.before = lambda _: commits(make, group, topic)
    with pytest.raises(Died):
        scene.apply(plan, observation)
    assert saved(scene, group) == {topic: SAVED}
    scene.context = scene.open()
    known_for(scene, 60)
    assert sum(recovery.recover_intents(scene.context).values()) == 1
    assert saved(scene, group) == {topic: LATE}
    ended = scene.context.journal.entries(lambda key: key[:2] == ("outcome", group), soon())
    assert not isinstance(ended, Refusal)
    assert [each.message for each in ended if isinstance(each, HistoryEntry)] == [
        "deleted; the process that did it was interrupted; 40 records waited for it: consumers with "
        "auto.offset.reset=latest skip these, unless it is restored before they start; offsets that it committed "
        "right before (1) are saved"
    ]
