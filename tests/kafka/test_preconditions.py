"""What must hold before Kafka is changed, proved again for every run: `executor`, on real brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from group_hygiene.engine import recovery
from group_hygiene.engine.context import Memory
from group_hygiene.engine.recovery import LedgerNeed, few_replicas, open_journal
from group_hygiene.kafka.client import Client, connect
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.books import RIGHT, configured, settings
from tests.kafka.makers import Maker, soon
from tests.kafka.scene import Guard, Scene, policy

_RIGHT = RIGHT | {"max.message.bytes": "1048588", "delete.retention.ms": "86400000"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"cleanup.policy": "delete"}, "cleanup.policy must be compact, not delete", id="no-compaction"),
        pytest.param({"cleanup.policy": "compact,delete"}, "cleanup.policy must be compact", id="retention"),
        pytest.param({"message.timestamp.type": "CreateTime"}, "message.timestamp.type", id="times-of-clients"),
        pytest.param({"unclean.leader.election.enable": "true"}, "unclean.leader.election", id="unclean-elections"),
        pytest.param({"max.message.bytes": "100000"}, "max.message.bytes must be at least 1000000", id="small-batches"),
        pytest.param({"delete.retention.ms": "0"}, "delete.retention.ms must be at least 3600000", id="removals"),
    ],
)
def test_a_setting_of_the_ledger_that_is_changed_later(
    scene: Scene, make: Maker, change: Mapping[str, str], says: str
) -> None:
    """It is noticed by the next run, which deletes nothing; once it is set back, the run after that goes on."""
    topic, group = make.topic(records=3), make.name("old")
    make.abandoned(group, topic)
    rule = policy(group)
    observation, plan = scene.plan(rule)
    assert plan.actions == (group,)
    configured(make, scene.ledger, change)
    scene.context = scene.open()
    problem = scene.context.journal.problem
    assert problem is not None
    assert problem.reason == reasons.LEDGER_UNAVAILABLE
    assert says in problem.message
    observation = scene.observe(rule)
    assert observation.conditions.refusals[0].reason == reasons.LEDGER_UNAVAILABLE
    configured(make, scene.ledger, {key: _RIGHT[key] for key in change})
    scene.context = scene.open()
    assert scene.context.journal.problem is None
    observation = scene.observe(rule)
    outcomes = scene.apply(scene.planned(observation, rule), observation, Guard())
    assert [outcome.kind for outcome in outcomes] == [OutcomeType.DELETED]


def test_a_ledger_does_not_move_to_another_topic(scene: Scene, client: Client, make: Maker) -> None:
    """Whether the edit reaches a running process or the next one: nothing is written, and nothing is created."""
    other = make.name("other-ledger")
    edited = LedgerSettings(installation="tests", writer=f"group-hygiene-{other}", topic=other)
    held = recovery.open_journal(scene.memory, client, edited, LedgerNeed.CREATE, (), soon())
    restarted = replace(edited, known="an-id", known_topic=scene.ledger)
    begun = recovery.open_journal(Memory(), client, restarted, LedgerNeed.CREATE, (), soon())
    for journal in (held, begun):
        assert journal.problem is not None
        assert journal.problem.reason == reasons.LEDGER_CHANGED
        assert scene.ledger in journal.problem.message
        assert not journal.writable
    assert other not in make.admin.list_topics().topics
    scene.context = scene.open()
    assert scene.context.journal.problem is None


@pytest.mark.parametrize("need", [LedgerNeed.CREATE, LedgerNeed.WRITE, LedgerNeed.SHOW])
def test_another_cluster_gets_no_ledger(client: Client, make: Maker, need: LedgerNeed) -> None:
    """The address leads to other brokers, as after a DNS failover: not even the ledger's topic is created there."""
    topic = make.name("ledger")
    journal = open_journal(Memory(cluster_id="former"), client, settings(topic), need, (), soon())
    assert journal.problem is not None
    assert journal.problem.reason == reasons.CLUSTER_CHANGED
    assert topic not in make.admin.list_topics().topics


def test_fewer_replicas_than_the_spec_asks_for_are_reported(scene: Scene) -> None:
    """This cluster has one broker, and the spec asks for three replicas."""
    note = few_replicas(scene.memory.ledger, scene.connection)
    assert note is not None
    assert note.reason == reasons.FEW_REPLICAS
    assert "has 1 replicas, and ledger.replicationFactor asks for 3" in note.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "says"),
    [
        pytest.param(
            {"transaction.state.log.replication.factor": "3"},
            "there is no transaction coordinator: transaction.state.log.replication.factor is 3, and 1 brokers",
            id="no-coordinator",
        ),
        pytest.param(
            {"transaction.max.timeout.ms": "30000"},
            "transaction.max.timeout.ms of the brokers is 30000, and must be 60000",
            id="short-transactions",
        ),
    ],
)
def test_brokers_without_transactions(config: Mapping[str, str], says: str) -> None:
    """It is known at once, with the setting to change, and nothing is created."""
    with KafkaCluster(config=config) as kafka:
        client = connect(Settings((kafka.bootstrap_servers,)))
        make = Maker(kafka.bootstrap_servers)
        try:
            journal = open_journal(Memory(), client, settings("ledger"), LedgerNeed.CREATE, (), soon())
            assert journal.problem is not None
            assert journal.problem.reason == reasons.LEDGER_UNAVAILABLE
            assert says in journal.problem.message
            assert set(make.admin.list_topics().topics) <= {"__transaction_state"}
        finally:
            make.close()
            client.close()


@pytest.mark.slow
def test_a_ledger_is_not_created_while_a_broker_is_gone() -> None:
    """It would have fewer replicas for good. Once the broker is back, it gets as many as the spec asks for."""
    with KafkaCluster(brokers=2, config={"transaction.state.log.replication.factor": "1"}) as kafka:
        make = Maker(kafka.bootstrap_servers)
        make.topic(replicas=2)
        kafka.kill_broker(2)
        kafka.wait_forgotten(2)
        client = connect(Settings(tuple(kafka.bootstrap_servers.split(","))))
        wanted, memory = settings("ledger", replication_factor=2), Memory()
        try:
            journal = open_journal(memory, client, wanted, LedgerNeed.CREATE, (), soon())
            assert journal.problem is not None
            assert "needs 2 replicas (ledger.replicationFactor), and brokers 2 are gone" in journal.problem.message
            assert "ledger" not in make.admin.list_topics().topics
            kafka.start_broker(2)
            journal = open_journal(memory, client, wanted, LedgerNeed.CREATE, (), soon())
            assert journal.problem is None
            assert memory.ledger is not None
            assert memory.ledger.replicas == 2
        finally:
            make.close()
            client.close()


@pytest.mark.slow
def test_a_ledger_that_one_broker_may_hold_alone() -> None:
    """With three replicas, two must be in sync at each write: else the loss of one broker may lose a backup."""
    with KafkaCluster(brokers=3) as kafka:
        make = Maker(kafka.bootstrap_servers)
        make.topic(replicas=3)
        client, memory = connect(Settings(tuple(kafka.bootstrap_servers.split(",")))), Memory()

        def problem() -> str:
            # Brokers learn of a setting one after another.
            found = open_journal(memory, client, settings("ledger"), LedgerNeed.CREATE, (), soon()).problem
            assert found is None or found.reason == reasons.LEDGER_UNAVAILABLE
            return "" if found is None else found.message

        try:
            wait_for(lambda: problem() == "")
            assert memory.ledger is not None
            assert memory.ledger.replicas == 3
            configured(make, "ledger", {"min.insync.replicas": "1"})
            wait_for(lambda: "min.insync.replicas must be at least 2, not 1" in problem())
            configured(make, "ledger", {"min.insync.replicas": "2"})
            wait_for(lambda: problem() == "")
        finally:
            make.close()
            client.close()
