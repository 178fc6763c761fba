"""A broker that behaves like a service: no disks, no offsets log, and few settings of new topics, for any customer.

Everything is real but the reasons of the refusals: an authorizer and a policy of our own (tests/kafka/java).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import structs

from group_hygiene.cli.doctor import CheckResult
from group_hygiene.cli.doctor_kafka import CheckedCluster, examine_kafka
from group_hygiene.cli.target import Session
from group_hygiene.engine.executor import open_ledger
from group_hygiene.engine.restorable import RestoreRequest, ResultKind
from group_hygiene.engine.restoration import restore
from group_hygiene.kafka.client import Client, connect
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.spec.client_settings import Mechanism, Sasl, Settings
from group_hygiene.spec.connection import TopicVisibility
from group_hygiene.spec.fields import Hidden
from group_hygiene.spec.policy import Policy
from testing.sandbox.kafka import KafkaCluster, Security
from tests.kafka.books import restorer
from tests.kafka.makers import Maker, at
from tests.kafka.permissions import EXAMPLE, GROUP, READ, WRITERS, grant, ledger_least
from tests.kafka.plugins import jvm_with
from tests.kafka.scene import Guard, Scene, policy, stale, verdicts

_USER, _PASSWORD = "customer", "not-a-secret"
_LEDGERS = "__group_hygiene-"
_TRUSTING = {"unprotect": ["UnreadableOffsetsLog"]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One broker of the newest version whose customer has all documented permissions."""
    jvm = jvm_with(tmp_path_factory.mktemp("classes"), "ServiceAuthorizer", "FewSettings")
    security = Security(sasl="PLAIN", users={_USER: _PASSWORD}, authorizer=True)
    config = {"authorizer.class.name": "ServiceAuthorizer", "create.topic.policy.class.name": "FewSettings"}
    with KafkaCluster(security=security, config=config, jvm=jvm) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def owner(service: KafkaCluster) -> Iterator[Maker]:
    """Makes groups as the service's owner."""
    maker = Maker(service.plaintext_bootstrap)
    grant(maker, {_USER: (*EXAMPLE, *ledger_least(_LEDGERS), (GROUP, "*", READ))})
    yield maker
    maker.close()


@pytest.fixture(scope="module")
def customer(service: KafkaCluster, owner: Maker) -> Iterator[Client]:
    sasl = Sasl(Mechanism.PLAIN, _USER, Hidden(_PASSWORD))
    client = connect(Settings(tuple(service.bootstrap_servers.split(",")), sasl=sasl))
    yield client
    client.close()


def _scene(customer: Client, attested: bool = True) -> Scene:
    scene = Scene(customer)
    visibility = TopicVisibility.ATTESTED if attested else TopicVisibility.VERIFIED
    scene.connection = structs.replace(scene.connection, topic_visibility=visibility)
    scene.context = scene.open()
    return scene


def _trusting(*groups: str) -> Policy:
    return policy(*groups, match=_TRUSTING)


def test_without_an_attestation_nothing_is_deleted(customer: Client, owner: Maker) -> None:
    """As before: the offsets log and the disks can't be seen."""
    group = owner.abandoned(owner.name("old"), owner.topic(records=3))
    scene, tidy = _scene(customer, attested=False), _trusting(group)
    observation, plan = scene.plan(tidy)
    assert "topic __consumer_offsets: TOPIC_AUTHORIZATION_FAILED" in "; ".join(observation.snapshot.incomplete)
    assert observation.topics is not None
    assert observation.topics.reason == reasons.TOPICS_HIDDEN
    assert plan.actions == ()
    assert plan.refusal is not None
    assert plan.refusal.reason == reasons.SNAPSHOT_INCOMPLETE


def test_with_an_attestation_a_group_is_deleted_and_restored(customer: Client, owner: Maker) -> None:
    """From the scan to the restore, with a ledger that lacks the settings that the service refuses."""
    topic = owner.topic(records=3)
    group = owner.abandoned(owner.name("old"), topic, commit=at(topic, 1))
    scene, tidy = _scene(customer), _trusting(group)
    observation, plan = scene.plan(tidy)
    assert observation.snapshot.incomplete == ()
    assert observation.snapshot.cluster.samples
    assert observation.topics is not None
    assert observation.topics.reason == reasons.TOPICS_ATTESTED
    assert verdicts(observation, tidy) == {group: "Match"}
    (outcome,) = scene.apply(plan, observation)
    assert (outcome.kind, outcome.reason) == (OutcomeType.DELETED, reasons.DELETED)
    assert outcome.message == (
        "deleted; 2 records waited for it: consumers with auto.offset.reset=latest skip these, unless it is restored "
        "before they start; whether it committed right before is not known: brokers hide __consumer_offsets"
    )
    assert group not in owner.groups()

    settings = LedgerSettings(installation=None, writer=f"{WRITERS}cli-service", topic=scene.ledger)
    ledger = open_ledger(customer, settings, scene.context.deadline(), create=False, claim=True)
    assert ledger is not None
    request = RestoreRequest(id="a-request", groups=(group,))
    (result,) = restore(restorer(customer, ledger, scene.clock, Guard()), request)
    assert (result.kind, result.reason) == (ResultKind.RESTORED, reasons.RESTORED)
    assert group in owner.groups()


def test_a_live_group_stays(customer: Client, owner: Maker) -> None:
    """Its members are visible as anywhere."""
    topic = owner.topic(records=3)
    group = owner.name("live")
    owner.join(group, topic, commit=at(topic))
    observation, plan = _scene(customer).plan(_trusting(group))
    assert plan.actions == ()
    assert verdicts(observation, _trusting(group)).get(group) != "Match"
    owner.leave(group)


def test_uses_between_scans_are_not_known(customer: Client, owner: Maker) -> None:
    """So a policy that does not trust its scans deletes nothing."""
    group = owner.abandoned(owner.name("old"), owner.topic(records=3))
    scene, strict = _scene(customer), policy(group)
    observation, plan = scene.plan(strict)
    assert plan.actions == (group,)
    (outcome,) = scene.apply(plan, observation)
    assert outcome.reason == reasons.EVIDENCE_UNREADABLE
    assert "brokers hide __consumer_offsets" in outcome.message
    assert group in owner.groups()


def test_evidence_of_a_pipeline_is_not_available(customer: Client, owner: Maker) -> None:
    """Nothing can read the log."""
    group = owner.abandoned(owner.name("old"), owner.topic(records=3))
    tidy = stale(group)
    observation = _scene(customer).observe(tidy)
    assert set(verdicts(observation, tidy).values()) <= {reasons.EVIDENCE_NOT_CONFIGURED, reasons.EVIDENCE_UNREADABLE}
    assert observation.snapshot.complete


@pytest.mark.parametrize(
    ("attested", "result", "text"),
    [
        pytest.param(False, CheckResult.FAILED, "topicVisibility: Attested", id="not-attested"),
        pytest.param(True, CheckResult.WARNING, "spec.topicVisibility", id="attested"),
    ],
)
def test_doctor_names_the_case(customer: Client, owner: Maker, attested: bool, result: CheckResult, text: str) -> None:
    """What is refused, and the way out; with an attestation both are warnings."""
    connection = _scene(customer, attested).connection
    found = list(examine_kafka(Session(customer, connection), CheckedCluster(connection, customer.settings)))
    topics = [each for each in found if each.check in ("topics", "offsets log")]
    assert {each.result for each in topics} == {result}
    assert any(text in f"{each.found} {each.advice}" for each in topics)
