"""Answers to a deletion that don't say whether it was carried out: the backup stays, and what happened is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, DeleteGroupsResponse

from group_hygiene.engine import recovery
from group_hygiene.evidence.reader import Tables
from group_hygiene.kafka.client import Client, Deadline
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, OutcomeType, whole
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.connection import ActivitySpec
from testing.faults.kafka_proxy import KafkaProxy, Rule, Then, When
from testing.faults.owners import Owners
from testing.faults.requests import DELETE_GROUPS, OFFSET_DELETE, Exchange, answer_offsets_with, answer_with
from testing.sandbox.kafka import KafkaCluster
from tests.kafka.clients import Wrapped
from tests.kafka.makers import Maker, at, seen
from tests.kafka.scene import Scene, policy, stale
from tests.kafka.tables import Pipeline
from tests.kafka.test_settling import another_process, known_for
from tests.warehouse import in_use

# What Kafka's coordinator answers where a write was appended and then failed, what it answers where the group is gone,
# and codes that this program does not know (134: GROUP_DELETION_FAILED of KIP-1331).
UNCERTAIN = (-1, 3, 7, 14, 15, 16, 19, 35, 42, 69, 87, 134, 999)
# What it answers only where it wrote nothing: INVALID_GROUP_ID, GROUP_AUTHORIZATION_FAILED, NON_EMPTY_GROUP.
REFUSALS = {24: reasons.DELETE_FAILED, 30: reasons.DENIED, 68: reasons.BECAME_ACTIVE}


@pytest.fixture(scope="module")
def proxy(kafka: KafkaCluster) -> Iterator[KafkaProxy]:
    """What stands between the client and the broker."""
    made = KafkaProxy(kafka.door(0), Owners())
    yield made
    made.close()


@pytest.fixture(scope="module")
def access(proxy: KafkaProxy) -> Settings:
    """Through the proxy."""
    return Settings((proxy.bootstrap_servers,))


@pytest.fixture
def topic(make: Maker) -> str:
    """A topic with records."""
    return make.topic(records=5)


def rewrite(proxy: KafkaProxy, api: int, do: Callable[[Exchange], None]) -> Rule:
    """Change the next answer of a kind: the broker did what it was asked to."""

    def change(exchange: Exchange) -> Then:
        do(exchange)
        return Then.PASS

    return proxy.rule(Rule(lambda exchange: exchange.api == api, When.BETWEEN, change))


def backups(scene: Scene, group: str) -> list[Backup]:
    """The whole backups of a group, the oldest first."""
    found: dict[str, list[Backup]] = {}
    for entry in another_process(scene).entries(lambda key: key[0] == "backup" and key[1] == group, Deadline(60)):
        assert isinstance(entry, Backup)
        found.setdefault(entry.id, []).append(entry)
    made = [whole(parts) for _, parts in sorted(found.items())]
    return [each for each in made if each is not None]


def test_a_deletion_that_was_carried_out_is_recorded_whatever_the_answer(
    scene: Scene, proxy: KafkaProxy, make: Maker, topic: str
) -> None:
    """The broker deletes each group, and its answer has an error code: none of the backups is lost."""
    groups = {make.abandoned(make.name("old"), topic, commit=at(topic, 3)): code for code in UNCERTAIN}
    observation, plan = scene.plan(policy(f"{make.tag}old*"))
    assert set(plan.actions) == groups.keys()
    rule = rewrite(proxy, DELETE_GROUPS, lambda exchange: answer_with(exchange, groups))
    outcomes = {each.group: each.kind for each in scene.apply(plan, observation)}
    rule.wait("the answer is changed")
    assert not groups.keys() & make.groups().keys()
    assert {code: len(backups(scene, group)) for group, code in groups.items()} == dict.fromkeys(UNCERTAIN, 1)
    assert outcomes == dict.fromkeys(groups, OutcomeType.DELETED)
    assert scene.context.journal.contents.deletions.keys() == groups.keys()
    assert [made.offsets[topic][0].offset for group in groups for made in backups(scene, group)] == [3] * len(groups)


class AnsweringClient(Wrapped):
    """A client whose broker does not get DeleteGroups: it answers these error codes, by group."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.codes: Mapping[str, int] = {}

    def send_each(self, calls: Mapping[Any, Any], deadline: Deadline, reduce: Any = None) -> dict[Any, Any]:
        if not any(isinstance(call.request, DeleteGroupsRequest) for call in calls.values()):
            return self._client.send_each(calls, deadline, reduce)
        row = DeleteGroupsResponse.DeletableGroupResult

        def answer(call: Any) -> Any:
            rows = [row(group_id=name, error_code=self.codes[name]) for name in call.request.groups_names]
            return DeleteGroupsResponse(throttle_time_ms=0, results=rows, version=2)

        return {key: reduce(key, answer(call)) for key, call in calls.items()}


def test_a_backup_goes_only_where_the_answer_proves_a_refusal(client: Client, make: Maker, topic: str) -> None:
    """The group is there: it may go yet, so backup and intent stay, unless the coordinator wrote nothing for sure."""
    answering = AnsweringClient(client)
    scene = Scene(answering)  # type: ignore[arg-type]
    codes = (*UNCERTAIN, *REFUSALS)
    groups = {make.abandoned(make.name("old"), topic): code for code in codes}
    observation, plan = scene.plan(policy(f"{make.tag}old*"))
    answering.codes = groups
    outcomes = {groups[each.group]: each.reason for each in scene.apply(plan, observation)}
    # No answer in time (7) is what it was: the rest of the run would wait for as long.
    uncertain = dict.fromkeys(UNCERTAIN, reasons.DELETE_FAILED) | {7: reasons.INTERRUPTED}
    assert outcomes == uncertain | REFUSALS
    kept = {code: len(backups(scene, group)) for group, code in groups.items()}
    assert kept == dict.fromkeys(UNCERTAIN, 1) | dict.fromkeys(REFUSALS, 0)
    contents = scene.context.journal.contents
    assert {groups[name] for name in contents.intents} == set(UNCERTAIN)
    # Later it turns out that they are there; and one of them goes all the same.
    known_for(scene, 60)
    assert recovery.recover_intents(scene.context) == {}
    assert {groups[name] for name in contents.unresolved} == set(UNCERTAIN)
    late = next(name for name, code in groups.items() if code == 16)
    make.delete_group(late)
    assert recovery.recover_intents(scene.context) == {plan.policy.uid: 1}
    assert len(backups(scene, late)) == 1


def test_tried_again_and_again_it_leaves_few_backups(client: Client, make: Maker, topic: str) -> None:
    """A deletion that fails at every run must not fill the ledger: the last backups stand for those before."""
    answering = AnsweringClient(client)
    scene = Scene(answering)  # type: ignore[arg-type]
    group = make.abandoned(make.name("old"), topic)
    tidy = policy(group)
    observation, plan = scene.plan(tidy)
    answering.codes = {group: -1}
    for _ in range(4):
        assert [each.reason for each in scene.apply(plan, observation)] == [reasons.DELETE_FAILED]
        known_for(scene, 60)
        assert recovery.recover_intents(scene.context) == {}
        observation = scene.observe(tidy, after=1)
        plan = scene.planned(observation, tidy)
        assert plan.actions == (group,)
    assert len(backups(scene, group)) == 2
    assert not scene.context.journal.contents.intents


@pytest.mark.parametrize(
    ("code", "of_request"), [pytest.param(16, True, id="of-the-request"), pytest.param(-1, False, id="of-each")]
)
def test_offsets_that_were_deleted_are_not_taken_for_refused(
    client: Client, proxy: KafkaProxy, make: Maker, tmp_path: Path, code: int, of_request: bool
) -> None:
    """OffsetDelete was carried out, and its answer has an error code: what is committed then decides."""
    read, left, group = make.topic(records=5), make.topic(records=5), make.name("live")
    make.join(group, read, commit=at(read, 3) | at(left, 4))
    cluster = seen(client)
    pipeline, scene, unread = Pipeline(client, cluster, tmp_path / "warehouse"), Scene(client), stale(group)
    pipeline.run([in_use(group, **{read: 0.1, left: 100})])
    scene.use(Tables(ActivitySpec(pipeline.uri)))
    observation, plan = scene.due(unread)
    assert plan.actions == (group,)
    rewrite(proxy, OFFSET_DELETE, lambda exchange: answer_offsets_with(exchange, code, of_request))
    (outcome,) = scene.apply(plan, observation)
    make.leave(group)
    assert len(backups(scene, group)) == 1
    assert (outcome.kind, outcome.topics) == (OutcomeType.DELETED, (left,)), outcome
    assert set(scene.context.journal.contents.offset_deletions[group]) == {left}
