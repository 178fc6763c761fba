"""Every way to be let in, what the least permissions allow, what a missing one says, and no secret anywhere."""

from __future__ import annotations

import base64
import logging
import logging.config
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from msgspec.structs import replace as replaced

from group_hygiene.engine.executor import open_ledger
from group_hygiene.engine.recovery import recover_intents
from group_hygiene.engine.restorable import RestoreRequest, ResultKind
from group_hygiene.engine.restoration import restore
from group_hygiene.errors import AuthenticationFailed, ConnectError, HygieneError
from group_hygiene.kafka.changes import commit_offsets, delete_offsets, set_share_offsets
from group_hygiene.kafka.client import Client, connect
from group_hygiene.kafka.cluster import offsets_retention_minutes
from group_hygiene.kafka.groups import list_groups
from group_hygiene.kafka.offsets import ShareOffsets, committed_offsets, share_offsets
from group_hygiene.ledger.contents import TOPIC as DEFAULT_LEDGER
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.ledger.records import record
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, Change, OutcomeType, SavedOffset
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.process.egress import Egress, parse_egress
from group_hygiene.spec.client_settings import Mechanism, OAuth, Sasl, Settings, Tls
from group_hygiene.spec.fields import Hidden
from group_hygiene.spec.policy import Policy
from testing.sandbox.kafka import KafkaCluster, Security
from testing.sandbox.kafka.oauth import TokenEndpoint
from testing.sandbox.kafka.security import format_jaas
from testing.sandbox.kafka.tls import Authority
from testing.sandbox.waiting import wait_for
from tests.kafka.books import configured, restorer
from tests.kafka.makers import Maker, at, seen, soon
from tests.kafka.permissions import (
    CLUSTER,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    EXAMPLE,
    GROUP,
    LEAST,
    READ,
    RESTORE,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    WRITERS,
    Acl,
    grant,
    granted_by_commands,
    granted_by_strimzi,
    ledger_least,
    without,
)
from tests.kafka.scene import Guard, Scene, verdicts
from tests.kafka.scene import policy as strict_policy
from tests.kafka.test_settling import known_for
from tests.leaks import leaks

# With what must be escaped somewhere on its way, and a part by which a leak is found in any form.
LEAK = "never-to-be-seen-71Kq"
PASSWORD = f'{LEAK}"ä\\,=n'
WRONG_LEAK = "wrong-one-44Zx"
# Long before the timeout.
SOON_SECONDS, TIMEOUT = 30.0, timedelta(seconds=60)
KAFKAS_OWN = tuple(each for each in Mechanism if each is not Mechanism.AWS_MSK_IAM)
ALL_MECHANISMS = {
    "listener.name.client.sasl.enabled.mechanisms": ",".join(KAFKAS_OWN),
    "listener.name.client.oauthbearer.sasl.jaas.config": format_jaas(
        "OAUTHBEARER", {"unsecuredLoginStringClaim_sub": "admin"}
    ),
} | {
    f"listener.name.client.{mechanism.lower()}.sasl.jaas.config": format_jaas(mechanism, {})
    for mechanism in (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)
}

A_GROUP = "a-group"
CHECKPOINTS = "primary.checkpoints.internal"
HIDDEN_TOPIC = "hidden-topic"
# A name that ends with a dash stands for all that begin with it.
DENIED_GROUPS = "denied-"
READABLE = "readable-"
LEDGERS = "__group_hygiene-"
# What docs/kafka-permissions.md asks for.
WRITER = (*LEAST, *ledger_least(LEDGERS))
RESTORER = (*WRITER, *RESTORE)
LEDGER_READER = (
    *without(LEAST, (GROUP, "*", [DELETE])),
    *((TOPIC, LEDGERS, operation) for operation in (DESCRIBE, DESCRIBE_CONFIGS, READ)),
)
USERS: Mapping[str, Collection[Acl]] = {
    "nobody": (),
    "least": WRITER,
    "reader": without(WRITER, (GROUP, "*", [DELETE])),
    "mirror": (*WRITER, (TOPIC, CHECKPOINTS, READ)),
    "configs": (*WRITER, (CLUSTER, "kafka-cluster", DESCRIBE_CONFIGS)),
    "parts": (*WRITER, (TOPIC, "__consumer_offsets", DESCRIBE_CONFIGS), (TOPIC, READABLE, READ)),
    "no-cluster": without(WRITER, (CLUSTER, "kafka-cluster", [DESCRIBE])),
    "no-topics": without(WRITER, (TOPIC, "*", [DESCRIBE])),
    # DELETE on a group implies DESCRIBE, and so do READ and WRITE on a topic or a transactional id.
    "no-groups": without(WRITER, (GROUP, "*", [DESCRIBE, DELETE])),
    "no-named-groups": (*without(WRITER, (GROUP, "*", [DESCRIBE, DELETE])), (GROUP, "group-hygiene-loaded-", DESCRIBE)),
    "one-topic-hidden": WRITER,
    "one-group-denied": WRITER,
    "no-ledger": LEAST,
    "no-ledger-create": without(WRITER, (TOPIC, LEDGERS, [CREATE])),
    "no-ledger-configs": without(WRITER, (TOPIC, LEDGERS, [DESCRIBE_CONFIGS])),
    "no-ledger-read": without(WRITER, (TOPIC, LEDGERS, [READ])),
    "no-ledger-write": without(WRITER, (TOPIC, LEDGERS, [WRITE])),
    "no-ledger-transactions": without(WRITER, (TRANSACTIONAL_ID, WRITERS, [DESCRIBE, WRITE])),
    "ledger-reader": LEDGER_READER,
    "restorer": RESTORER,
    "no-restore-topics": without(RESTORER, (TOPIC, "*", [READ])),
    "no-restore-groups": without(RESTORER, (GROUP, "*", [READ])),
}
DENIED: Collection[tuple[str, Acl]] = (
    ("one-topic-hidden", (TOPIC, HIDDEN_TOPIC, DESCRIBE)),
    ("one-group-denied", (GROUP, DENIED_GROUPS, DESCRIBE)),
)

Login = Callable[[str], Client]


def policy(*groups: str, **when: Any) -> Policy:
    """One for users who may not read topics."""
    return strict_policy(*groups, match={"unprotect": ["UnreadableTopics", "UnreadableOffsetsLog"]}, **when)


# kafka-python forgets to close the socket of a connection that was refused; it ends with the object.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning"),
    pytest.mark.usefixtures("forgotten_sockets"),
]


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """One broker that takes all four mechanisms, with ACLs."""
    security = Security(sasl="PLAIN", users=dict.fromkeys(USERS, PASSWORD), authorizer=True)
    with KafkaCluster(security=security, config=ALL_MECHANISMS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def inside(guarded: KafkaCluster) -> Iterator[Maker]:
    """Makes things behind the guards, where each user has its permissions."""
    maker = Maker(guarded.plaintext_bootstrap)
    upserts = [
        UserScramCredentialUpsertion("least", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for upsert in upserts:
        for future in maker.admin.alter_user_scram_credentials([upsert]).values():
            future.result()
    grant(maker, USERS, DENIED)
    maker.topic(HIDDEN_TOPIC)
    maker.simple(A_GROUP, at(HIDDEN_TOPIC))
    yield maker
    maker.close()


@pytest.fixture(scope="module")
def tokens() -> Iterator[TokenEndpoint]:
    """Gives tokens to who knows the password."""
    with TokenEndpoint({"least": PASSWORD}) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def login(guarded: KafkaCluster, inside: Maker) -> Iterator[Login]:
    """A client as that user, the same one each time."""
    clients: dict[str, Client] = {}

    def logged_in(user: str) -> Client:
        if user not in clients:
            clients[user] = connect(by_password(guarded, Mechanism.PLAIN, user))
        return clients[user]

    yield logged_in
    for client in clients.values():
        client.close()


def servers(cluster: KafkaCluster) -> tuple[str, ...]:
    return tuple(cluster.bootstrap_servers.split(","))


def by_password(cluster: KafkaCluster, mechanism: Mechanism, user: str = "least", password: str = PASSWORD) -> Settings:
    return Settings(servers(cluster), sasl=Sasl(mechanism, user, Hidden(password)), timeout=TIMEOUT)


def by_token(cluster: KafkaCluster, url: str, secret: str = PASSWORD, ca: str | None = None) -> Settings:
    oauth = OAuth(url, "least", Hidden(secret), ca=ca)
    return Settings(servers(cluster), sasl=Sasl(Mechanism.OAUTHBEARER, oauth=oauth), timeout=TIMEOUT)


def refused(settings: Settings) -> HygieneError:
    """The error of connecting, which must come soon."""
    before = time.monotonic()
    with pytest.raises(HygieneError) as caught:
        connect(settings)
    assert time.monotonic() - before < SOON_SECONDS
    assert_clean(caught.value)
    return caught.value


def assert_clean(error: BaseException) -> None:
    """No secret in an error, nor in what it was made from."""
    chain: BaseException | None = error
    while chain is not None:
        for leak in (LEAK, WRONG_LEAK):
            assert leak not in f"{chain} {chain!r}"
        chain = chain.__cause__ or chain.__context__


# Who is let in.

PASSWORDS = (Mechanism.PLAIN, Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)


@pytest.mark.parametrize("mechanism", KAFKAS_OWN)
def test_who_is_known_lists_groups(
    guarded: KafkaCluster, inside: Maker, tokens: TokenEndpoint, mechanism: Mechanism
) -> None:
    """By each mechanism, with the permissions of the user that it names."""
    oauth = mechanism is Mechanism.OAUTHBEARER
    client = connect(by_token(guarded, tokens.url) if oauth else by_password(guarded, mechanism))
    try:
        cluster = seen(client)
        assert cluster.problems == ()
        listing = list_groups(client, cluster, soon())
        assert not listing.faults
        assert A_GROUP in listing.groups
    finally:
        client.close()


@pytest.mark.parametrize("mechanism", PASSWORDS)
@pytest.mark.parametrize(
    "user", [pytest.param("least", id="wrong-password"), pytest.param("stranger", id="wrong-user")]
)
def test_an_unknown_user_is_reported_soon(
    guarded: KafkaCluster, inside: Maker, mechanism: Mechanism, user: str
) -> None:
    """AuthenticationFailed with the user's name, long before the timeout."""
    error = refused(by_password(guarded, mechanism, user, WRONG_LEAK))
    assert isinstance(error, AuthenticationFailed)
    assert f"{user!r}" in str(error)


def test_a_wrong_client_secret_is_reported_soon(guarded: KafkaCluster, inside: Maker, tokens: TokenEndpoint) -> None:
    """With the address of who refuses it."""
    error = refused(by_token(guarded, tokens.url, WRONG_LEAK))
    assert isinstance(error, AuthenticationFailed)
    assert f"{tokens.url} answers HTTP 401" in str(error)


def test_a_token_endpoint_that_is_down_is_reported_soon(guarded: KafkaCluster, inside: Maker) -> None:
    """With its address."""
    with TokenEndpoint({}) as endpoint:
        url = endpoint.url
    error = refused(by_token(guarded, url))
    assert isinstance(error, AuthenticationFailed)
    assert f"{url} does not answer" in str(error)


def test_a_token_endpoint_is_only_where_the_operator_may_connect(guarded: KafkaCluster, inside: Maker) -> None:
    """By address or by name, as with receivers: else it is not even asked, and the client's secret stays here."""
    named = Egress(hosts=frozenset({"sso.example.com"}))
    with TokenEndpoint({"least": PASSWORD}) as endpoint:
        for url in (endpoint.url, endpoint.url.replace("127.0.0.1", "localhost")):
            for egress in (Egress(), named):
                with pytest.raises(AuthenticationFailed, match=f"{url} leads to .*--allow-receiver") as caught:
                    connect(by_token(guarded, url), egress=egress)
                assert_clean(caught.value)
        assert endpoint.asked == 0
        connect(by_token(guarded, endpoint.url), egress=parse_egress(["127.0.0.0/8"])).close()
        assert endpoint.asked == 1


def test_a_token_that_the_broker_refuses_is_reported_soon(guarded: KafkaCluster, inside: Maker) -> None:
    """One that has expired already, for instance: the endpoint is not to blame."""
    with TokenEndpoint({"least": PASSWORD}, lifetime=-60) as endpoint:
        error = refused(by_token(guarded, endpoint.url))
    assert isinstance(error, AuthenticationFailed)
    assert "broker" in str(error)


def test_a_token_endpoint_is_trusted_by_its_own_authority(guarded: KafkaCluster, inside: Maker, tmp_path: Path) -> None:
    """Over HTTPS with `ca`; another authority's certificate is refused, before the secret is sent."""
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "other")
    with TokenEndpoint({"least": PASSWORD}, certificate=authority.issue("tokens")) as endpoint:
        connect(by_token(guarded, endpoint.url, ca=authority.ca.read_text())).close()
        assert endpoint.asked == 1
        error = refused(by_token(guarded, endpoint.url, ca=other.ca.read_text()))
        assert isinstance(error, AuthenticationFailed)
        assert endpoint.url in str(error)
        assert endpoint.asked == 1


def test_a_token_is_renewed_before_it_expires(guarded: KafkaCluster, inside: Maker) -> None:
    """The broker ends a session with its token (KIP-368): a client that lives longer must show another one."""
    with TokenEndpoint({"least": PASSWORD}, lifetime=3) as endpoint:
        client = connect(by_token(guarded, endpoint.url))
        try:
            cluster, start = seen(client), time.monotonic()

            def renewed() -> bool:
                assert not list_groups(client, cluster, soon()).faults
                return endpoint.asked >= 2 and time.monotonic() - start > 5

            wait_for(renewed)
        finally:
            client.close()


def test_a_token_endpoint_that_goes_down_is_a_fault(guarded: KafkaCluster, inside: Maker) -> None:
    """Once the old token ends: what is asked then fails soon, with the endpoint's address."""
    with TokenEndpoint({"least": PASSWORD}, lifetime=2) as endpoint:
        client = connect(by_token(guarded, endpoint.url))
        cluster = seen(client)
    try:
        time.sleep(2.5)
        before = time.monotonic()
        listing = list_groups(client, cluster, soon())
        assert time.monotonic() - before < SOON_SECONDS
        (fault,) = listing.faults.values()
        assert endpoint.url in str(fault)
        assert not listing.groups
    finally:
        client.close()


@pytest.fixture(scope="module")
def mutual() -> Iterator[KafkaCluster]:
    """One broker that asks for a client certificate, with ACLs."""
    with KafkaCluster(security=Security(tls=True, client_auth="required", authorizer=True)) as cluster:
        maker = Maker(cluster.plaintext_bootstrap)
        grant(maker, {"least": LEAST})
        maker.simple(A_GROUP, at(maker.topic()))
        maker.close()
        yield cluster


def by_certificate(cluster: KafkaCluster, authority: Authority, name: str = "least") -> Settings:
    made = authority.issue(name)
    tls = Tls(cluster.ca_file.read_text(), made.certificate.read_text(), Hidden(made.key.read_text()))
    return Settings(servers(cluster), tls=tls, timeout=TIMEOUT)


def test_a_client_certificate_lets_in(mutual: KafkaCluster) -> None:
    """Under the name in it."""
    client = connect(by_certificate(mutual, mutual.authority))
    try:
        assert seen(client).problems == ()
        assert A_GROUP in list_groups(client, seen(client), soon()).groups
    finally:
        client.close()


def test_a_missing_client_certificate_is_reported_soon(mutual: KafkaCluster) -> None:
    """The message says what may be missing."""
    error = refused(Settings(servers(mutual), tls=Tls(mutual.ca_file.read_text()), timeout=TIMEOUT))
    assert isinstance(error, ConnectError)
    assert "client certificate" in str(error)


def test_a_client_certificate_of_another_authority_is_reported_soon(mutual: KafkaCluster, tmp_path: Path) -> None:
    """The broker refuses it, and says so only after the handshake (TLS 1.3)."""
    error = refused(by_certificate(mutual, Authority(tmp_path / "other")))
    assert isinstance(error, ConnectError)
    assert "client certificate" in str(error)


# What the least permissions allow, and what is said where one of them is missing.


@dataclass(frozen=True)
class Seen:
    """What a user's run comes to: why the scan is incomplete, the group's verdict, the refusal and the outcome."""

    incomplete: str = ""
    verdict: str = "Match"
    verdict_message: str = ""
    refusal: str = ""
    refusal_message: str = ""
    outcome: str = ""
    outcome_message: str = ""


RUNS = {
    "least": Seen(outcome=reasons.DELETED),
    "configs": Seen(outcome=reasons.DELETED),
    "reader": Seen(outcome=reasons.DENIED, outcome_message="needs DELETE on the group"),
    "no-cluster": Seen(
        incomplete="DESCRIBE on the cluster is denied",
        refusal=reasons.SNAPSHOT_INCOMPLETE,
        refusal_message="DESCRIBE on the cluster is denied",
    ),
    "no-topics": Seen(
        incomplete="topic __consumer_offsets: TOPIC_AUTHORIZATION_FAILED: needs DESCRIBE on the topic",
        verdict=reasons.NO_OFFSETS,
    ),
    "no-groups": Seen(
        incomplete="GROUP_AUTHORIZATION_FAILED: needs DESCRIBE on groups group-hygiene-loaded-*",
        verdict=reasons.DENIED,
        verdict_message="GROUP_AUTHORIZATION_FAILED: needs DESCRIBE on the group",
    ),
    "no-named-groups": Seen(
        verdict=reasons.DENIED, verdict_message="GROUP_AUTHORIZATION_FAILED: needs DESCRIBE on the group"
    ),
    "one-topic-hidden": Seen(
        refusal=reasons.TOPICS_HIDDEN, refusal_message=f"DESCRIBE is denied on 1 topics ({HIDDEN_TOPIC})"
    ),
    "one-group-denied": Seen(outcome=reasons.DELETED),
    **{
        user: Seen(refusal=reasons.LEDGER_UNAVAILABLE, refusal_message=f"needs {needed}")
        for user, needed in (
            ("no-ledger", f"WRITE and DESCRIBE on the transactional id {WRITERS}"),
            ("no-ledger-create", f"CREATE on the topic {LEDGERS}"),
            ("no-ledger-configs", f"DESCRIBE_CONFIGS on the topic {LEDGERS}"),
            ("no-ledger-read", f"READ on the topic {LEDGERS}"),
            ("no-ledger-write", f"WRITE on the topic {LEDGERS}"),
            ("no-ledger-transactions", f"WRITE and DESCRIBE on the transactional id {WRITERS}"),
            ("ledger-reader", f"WRITE and DESCRIBE on the transactional id {WRITERS}"),
        )
    },
}


@pytest.mark.parametrize("user", RUNS)
def test_a_run_goes_as_far_as_its_permissions(login: Login, inside: Maker, user: str) -> None:
    """Scan, mark and deletion by a user that lacks one of the least permissions: who reads why knows what to grant.

    Without the ledger nothing is deleted, not even by a plan that says so.
    """
    group = inside.abandoned(inside.name("old"), inside.topic(records=3))
    expected, scene, tidy = RUNS[user], Scene(login(user)), policy(group)
    observation, plan = scene.plan(tidy)
    assert expected.incomplete in "; ".join(observation.snapshot.incomplete)
    assert bool(expected.incomplete) == bool(observation.snapshot.incomplete)
    assert verdicts(observation, tidy) == {group: expected.verdict}
    refusal = observation.verdicts[tidy.key][group].refusal
    assert expected.verdict_message in (refusal.message if refusal else "")
    assert (plan.refusal.reason if plan.refusal else "") == expected.refusal
    assert expected.refusal_message in (plan.refusal.message if plan.refusal else "")
    assert plan.actions == ((group,) if expected.outcome else ())
    outcomes = scene.apply(plan, observation)
    assert [outcome.reason for outcome in outcomes] == ([expected.outcome] if expected.outcome else [])
    if expected.refusal == reasons.LEDGER_UNAVAILABLE:
        forced = scene.apply(replace(plan, actions=(group,), refusal=None), observation)
        assert [(outcome.kind, outcome.reason) for outcome in forced] == [(OutcomeType.NOT_DELETED, expected.refusal)]
    assert expected.outcome_message in "".join(outcome.message for outcome in outcomes)
    deleted = expected.outcome == reasons.DELETED
    assert (group in inside.groups()) != deleted


@pytest.mark.parametrize(
    ("unprotect", "reason"),
    [
        pytest.param(["UnreadableTopics"], reasons.EVIDENCE_UNREADABLE, id="no-read"),
        pytest.param(["UnreadableTopics", "UnreadableOffsetsLog"], reasons.DELETED, id="the-policy-says-so"),
    ],
)
def test_without_read_on_the_offsets_log_a_group_is_kept(
    login: Login, inside: Maker, unprotect: list[str], reason: str
) -> None:
    """Nobody knows whether it was joined between scans: it stays, unless the policy names `UnreadableOffsetsLog`."""
    group = inside.abandoned(inside.name("old"), inside.topic(records=3))
    scene, tidy = Scene(login("least")), strict_policy(group, match={"unprotect": unprotect})
    observation, plan = scene.plan(tidy)
    (outcome,) = scene.apply(plan, observation)
    assert outcome.reason == reason
    if reason == reasons.EVIDENCE_UNREADABLE:
        assert "needs READ on the topic __consumer_offsets" in outcome.message
        assert "UnreadableOffsetsLog" in outcome.message
        assert group in inside.groups()


@pytest.mark.parametrize(
    ("user", "of", "verdict"),
    [
        pytest.param("least", strict_policy, reasons.LAG_UNKNOWN, id="no-read"),
        pytest.param("least", policy, "Match", id="no-read-and-the-policy-says-so"),
        pytest.param("restorer", strict_policy, reasons.CAUGHT_UP, id="read"),
    ],
)
def test_without_read_the_lag_is_unknown(
    login: Login, inside: Maker, user: str, of: Callable[..., Policy], verdict: str
) -> None:
    """Whoever may not READ the topic can't tell marks of transactions from records: the group stays, unless the policy
    names `UnreadableTopics`.
    """
    topic = inside.topic()
    inside.transaction(topic, 3)
    group = inside.abandoned(inside.name("old"), topic, commit=at(topic, 3))
    scene, tidy = Scene(login(user)), of(group)
    scene.observe(tidy)
    assert verdicts(scene.observe(tidy, after=60), tidy) == {group: verdict}


def test_a_group_that_is_denied_stays_alone(login: Login, inside: Maker) -> None:
    """Among many in one batch only the one that we may not DESCRIBE says so; what else is due is deleted."""
    topic, client = inside.topic(records=3), login("one-group-denied")
    groups = [inside.abandoned(inside.name("old"), topic) for _ in range(2)]
    denied = inside.abandoned(f"{DENIED_GROUPS}{inside.name()}", topic)
    many = {inside.name("many"): at(topic, number) for number in range(50)}
    inside.simple_groups(many)
    offsets = committed_offsets(client, dict.fromkeys([*many, denied]), soon())
    fault = offsets.pop(denied)
    assert isinstance(fault, Fault)
    assert str(fault) == "GROUP_AUTHORIZATION_FAILED: needs DESCRIBE on the group"
    assert offsets == many

    scene, tidy = Scene(client), policy(*groups, denied)
    observation, plan = scene.plan(tidy)
    assert verdicts(observation, tidy) == dict.fromkeys(groups, "Match") | {denied: reasons.DENIED}
    outcomes = scene.apply(plan, observation)
    assert {(outcome.group, outcome.kind) for outcome in outcomes} == {(group, OutcomeType.DELETED) for group in groups}


def test_a_group_of_which_a_part_may_not_go_loses_nothing(login: Login, inside: Maker) -> None:
    """It is too large for one request, and to delete its offsets one by one needs READ on each topic."""
    client, offsets_topic = login("parts"), "__consumer_offsets"
    topics = [inside.topic(f"{READABLE}{inside.name()}", 60, 3), inside.topic(f"z-{inside.name()}", 60, 3)]
    all_of_it = {
        place: commit for topic in topics for part in range(60) for place, commit in at(topic, 0, part).items()
    }
    group = inside.abandoned(inside.name("old"), topics[0], commit=all_of_it)
    scene = Scene(client)
    observation, plan = scene.plan(policy(group))
    configured(inside, offsets_topic, {"max.message.bytes": "5000"})
    try:
        (outcome,) = scene.apply(plan, observation)
    finally:
        configured(inside, offsets_topic, {"max.message.bytes": "1048588"})
    assert (outcome.reason, topics[1] in outcome.message) == (reasons.DENIED, True), outcome.message
    assert committed_offsets(client, {group: None}, soon())[group] == all_of_it
    assert not scene.context.journal.contents.intents


def test_a_write_that_is_denied_says_what_it_needs(login: Login, inside: Maker) -> None:
    """READ on the group and the topic, which deleting groups does not need."""
    client, topic, place = login("least"), inside.topic(), Partition(HIDDEN_TOPIC, 0)
    group = inside.simple(inside.name("simple"), at(topic, 1) | at(HIDDEN_TOPIC, 1))
    answers = [
        commit_offsets(client, group, at(HIDDEN_TOPIC, 2), soon())[place],
        delete_offsets(client, group, [place], soon())[place],
        delete_offsets(login("reader"), group, [place], soon())[place],
    ]
    assert [str(answer) for answer in answers] == [
        "GROUP_AUTHORIZATION_FAILED: needs READ on the group",
        "TOPIC_AUTHORIZATION_FAILED: needs READ on the topic",
        "GROUP_AUTHORIZATION_FAILED: needs DELETE on the group",
    ]
    assert committed_offsets(client, {group: None}, soon()) == {group: at(topic, 1) | at(HIDDEN_TOPIC, 1)}


@dataclass(frozen=True)
class Restored:
    """What a user's restore of a deleted group comes to, and why the only partition is not restored."""

    kind: ResultKind
    reason: str
    message: str = ""


RESTORES = {
    "restorer": Restored(ResultKind.RESTORED, reasons.RESTORED),
    "no-restore-topics": Restored(ResultKind.WAITING, reasons.DENIED, "needs READ on the topic"),
    "no-restore-groups": Restored(ResultKind.WAITING, reasons.DENIED, "needs READ on the group"),
}


@pytest.mark.parametrize("user", RESTORES)
def test_a_restore_goes_as_far_as_its_permissions(login: Login, inside: Maker, user: str) -> None:
    """As from the command line, beside the operator: what is missing is named, and nothing is half done."""
    topic, expected = inside.topic(records=3), RESTORES[user]
    group = inside.abandoned(inside.name("old"), topic, commit=at(topic, 2))
    operator = Scene(login("least"))
    _restored_by(login, user, operator, policy(group))
    there = committed_offsets(login("least"), {group: None}, soon())
    assert there == {group: at(topic, 2) if expected.kind is ResultKind.RESTORED else {}}


@pytest.mark.parametrize("user", RESTORES)
def test_a_share_group_needs_no_other_permissions(login: Login, inside: Maker, user: str) -> None:
    """To read, delete and bring back one takes what the other types take, and says the same where that is missing."""
    topic, group = inside.topic(records=3), inside.name("share")
    # The groups' coordinator knows a new topic later than the broker's metadata.
    wait_for(lambda: set(set_share_offsets(login("restorer"), group, at(topic, 2), soon()).values()) == {None})
    shares = strict_policy(group, match={"types": ["Share"], "unprotect": ["Share", "UnreadableOffsetsLog"]})
    _restored_by(login, user, Scene(login("least")), shares)
    there = share_offsets(login("least"), {group: None}, soon())[group]
    assert isinstance(there, ShareOffsets)
    assert there.started == (at(topic, 2) if RESTORES[user].kind is ResultKind.RESTORED else {})


def _restored_by(login: Login, user: str, operator: Scene, tidy: Policy) -> None:
    """The group of a policy is deleted by the operator, and its restore by the user comes to what is expected."""
    expected = RESTORES[user]
    observation, plan = operator.plan(tidy)
    (outcome,) = operator.apply(plan, observation)
    assert outcome.kind is OutcomeType.DELETED
    group = outcome.group
    request = RestoreRequest(id=f"by-{user}", groups=(group,))
    settings = LedgerSettings(installation=None, writer=f"{WRITERS}cli-{user}", topic=operator.ledger)

    reader = open_ledger(login("ledger-reader"), settings, soon(), create=False)
    assert reader is not None
    (preview,) = restore(restorer(login("ledger-reader"), reader, operator.clock, Guard()), request, preview=True)
    assert preview.reason == reasons.WOULD_RESTORE

    writer = open_ledger(login(user), settings, soon(), create=False, claim=True)
    assert writer is not None
    (result,) = restore(restorer(login(user), writer, operator.clock, Guard()), request)
    assert (result.kind, result.reason) == (expected.kind, expected.reason)
    assert expected.message in result.message
    assert operator.context.journal.read_on(soon()) is None


def test_a_user_without_rights_sees_nothing_and_deletes_nothing(login: Login, inside: Maker) -> None:
    """Somebody who is let in and has no permission at all gets no empty answer for an answer."""
    inside.abandoned(inside.name("old"), inside.topic(records=3))
    observation = Scene(login("nobody")).observe(policy(f"{inside.tag}*"), full=True)
    assert not observation.snapshot.groups
    assert not observation.snapshot.complete
    assert "DESCRIBE on the cluster is denied" in "; ".join(observation.snapshot.incomplete)


@pytest.mark.parametrize(("user", "minutes"), [("least", None), ("configs", 7 * 24 * 60)])
def test_the_retention_of_offsets_is_an_optional_permission(login: Login, user: str, minutes: int | None) -> None:
    """DESCRIBE_CONFIGS on the cluster shows it; without, it is unknown, and nothing else changes."""
    client = login(user)
    assert offsets_retention_minutes(client, seen(client), soon()) == minutes


def test_a_mirror_target_needs_its_checkpoints(login: Login, inside: Maker) -> None:
    """Without READ on them every group may be mirrored, and stays; with it only those that are."""
    topic = inside.topic(records=3)
    mirrored, other = (inside.abandoned(inside.name(what), topic) for what in ("mirrored", "other"))
    inside.checkpoints(inside.topic(CHECKPOINTS), [mirrored])
    tidy = policy(mirrored, other)
    try:
        observation, plan = Scene(login("least")).plan(tidy)
        assert verdicts(observation, tidy) == dict.fromkeys((mirrored, other), reasons.MIRROR_MAKER)
        assert plan.actions == ()
        refusal = observation.verdicts[tidy.key][other].refusal
        assert refusal is not None
        assert "checkpoints could not be read to their end" in refusal.message
        scene = Scene(login("mirror"))
        observation, plan = scene.plan(tidy)
        assert verdicts(observation, tidy) == {mirrored: reasons.MIRROR_MAKER, other: "Match"}
        assert [outcome.kind for outcome in scene.apply(plan, observation)] == [OutcomeType.DELETED]
        assert mirrored in inside.groups()
    finally:
        inside.delete_topic(CHECKPOINTS)


@pytest.mark.slow
def test_the_least_permissions_suffice_on_the_oldest_brokers() -> None:
    """And a missing one on the cluster is told there, too, in another way (Metadata before DescribeCluster)."""
    users = {user: USERS[user] for user in ("least", "no-cluster")}
    security = Security(sasl="PLAIN", users=dict.fromkeys(users, PASSWORD), authorizer=True)
    with KafkaCluster("2.5.1", security=security) as cluster:
        maker = Maker(cluster.plaintext_bootstrap)
        grant(maker, users)
        group = maker.abandoned(maker.name("old"), maker.topic(records=3))
        tidy = policy(group)
        for user, deleted in (("no-cluster", False), ("least", True)):
            client = connect(by_password(cluster, Mechanism.PLAIN, user))
            scene = Scene(client)
            observation, plan = scene.plan(tidy)
            assert observation.snapshot.complete == deleted
            assert (plan.refusal is None) == deleted
            assert len(scene.apply(plan, observation)) == int(deleted)
            assert (group in maker.groups()) != deleted
            client.close()
        maker.close()


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        pytest.param("no-topics", reasons.SNAPSHOT_INCOMPLETE, id="all-topics"),
        pytest.param("one-topic-hidden", reasons.TOPICS_HIDDEN, id="the-group's-topic"),
    ],
)
def test_a_group_whose_offsets_are_hidden_is_not_taken_for_one_without(
    login: Login, inside: Maker, user: str, reason: str
) -> None:
    """It looks as if it had never committed: a policy for such groups must not get it."""
    group, tidy = inside.name("old"), policy(f"{inside.tag}*", committedOffsets="Absent")
    inside.abandoned(group, HIDDEN_TOPIC)
    scene = Scene(login(user))
    observation, plan = scene.plan(tidy)
    assert verdicts(observation, tidy)[group] == "Match"
    assert plan.actions == ()
    assert plan.refusal is not None
    assert plan.refusal.reason == reason
    assert verdicts(Scene(login("least")).plan(tidy)[0], tidy)[group] == reasons.HAS_OFFSETS


# What is documented is what is tested.


DOCUMENTED: Mapping[str, tuple[Acl, ...]] = {
    "To delete: the ledger": ledger_least(DEFAULT_LEDGER),
    "To restore": RESTORE,
}


@pytest.mark.parametrize(
    ("section", "acls"),
    [("With kafka-acls", EXAMPLE), *(pytest.param(*each, marks=pytest.mark.slow) for each in DOCUMENTED.items())],
)
def test_the_documented_commands_grant_the_least_permissions(
    guarded: KafkaCluster, inside: Maker, section: str, acls: tuple[Acl, ...]
) -> None:
    """Kafka's own tool takes them as they are, and grants what the tests here use, no more and no less."""
    assert granted_by_commands(section, guarded, inside) == set(acls)


@pytest.mark.parametrize(("section", "acls"), [("With Strimzi", EXAMPLE), *DOCUMENTED.items()])
def test_the_documented_kafka_user_has_the_least_permissions(section: str, acls: tuple[Acl, ...]) -> None:
    """The same for Strimzi."""
    assert granted_by_strimzi(section) == set(acls)


# No secret anywhere.


def test_no_secret_is_logged_or_shown(
    guarded: KafkaCluster,
    mutual: KafkaCluster,
    inside: Maker,
    tokens: TokenEndpoint,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Passwords, client secrets, tokens and keys: in no record at DEBUG, in no repr and in no error, right or wrong."""
    certificate = by_certificate(mutual, mutual.authority)
    assert certificate.tls is not None
    assert certificate.tls.private_key is not None
    good = [
        *(by_password(guarded, mechanism) for mechanism in PASSWORDS),
        by_token(guarded, tokens.url),
        certificate,
    ]
    bad = [
        *(by_password(guarded, mechanism, password=WRONG_LEAK) for mechanism in PASSWORDS),
        by_token(guarded, tokens.url, WRONG_LEAK),
        replace(certificate, bootstrap_servers=servers(guarded)),
    ]
    shown = [f"{settings!r} {settings} {settings.sasl} {settings.tls}" for settings in good + bad]
    with everything_logged():
        for settings in good:
            client = connect(settings)
            shown.append(f"{client!r} {vars(client)}")
            list_groups(client, seen(client), soon())
            client.close()
        for settings in bad:
            with pytest.raises(HygieneError) as caught:
                connect(settings, timeout=2)
            assert_clean(caught.value)
            shown.append(f"{caught.value!r}")
        logging.getLogger("anything").debug("debug is on")
    assert "debug is on" in caplog.text
    assert "kafka.net.connection" in {record.name for record in caplog.records}, "its level was not lowered"
    shown += [f"{record.getMessage()} {record.__dict__} {record.exc_text}" for record in caplog.records]
    key = certificate.tls.private_key.reveal().splitlines()[1]
    # The header that every unsecured token of the sandbox begins with, and what HTTP calls the secret.
    token_start, basic = "eyJhbGciOi", "Basic "
    assert leaks((LEAK, WRONG_LEAK, key, token_start, basic), shown) == set()


def test_what_a_leak_would_look_like() -> None:
    """A password is found in what SASL PLAIN and HTTP send, however that is written down."""
    for sent in (f"\0user\0{PASSWORD}", f"\0longer-user\0{PASSWORD}", f"least:{PASSWORD}", f"x:{PASSWORD}"):
        for written in (repr(sent.encode()), base64.b64encode(sent.encode()).decode(), sent.encode().hex()):
            assert leaks([LEAK], [written]) == {LEAK}, written


@contextmanager
def everything_logged() -> Iterator[None]:
    """Every logger at DEBUG, as a user's own logging configuration may set it: kafka-python's, too."""
    names = list(logging.root.manager.loggerDict)
    before = {name: logging.getLogger(name).level for name in ("", *names)}
    levels = {name: {"level": "DEBUG"} for name in names}
    logging.config.dictConfig({"version": 1, "incremental": True, "root": {"level": "DEBUG"}, "loggers": levels})
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize("large", [pytest.param(False, id="topics-of-a-group"), pytest.param(True, id="large-group")])
def test_a_hidden_topic_is_not_gone(login: Login, inside: Maker, large: bool) -> None:
    """A process died before it deleted a topic's offsets, or a part of a large group's; the next one may no longer
    DESCRIBE the topic.
    """
    group = inside.abandoned(inside.name("live"), HIDDEN_TOPIC)
    scene = Scene(login("one-topic-hidden"))
    intent = scene.intent(group, strict_policy(group), topics=() if large else (HIDDEN_TOPIC,))
    changes: list[Change] = [replaced(intent, partitions=1) if large else intent]
    if large:
        said = ("group", "id", "type", "policy", "policy_uid", "generation", "at", "expires")
        same: dict[str, Any] = {name: getattr(intent, name) for name in said}
        offsets = {HIDDEN_TOPIC: [SavedOffset(0, 0, -1, "", None)]}
        same |= {"part": 0, "parts": 1, "protocol_type": "consumer", "cluster": "", "evidence": "", "topic_ids": {}}
        changes.append(Backup(**same, offsets=offsets))
    assert record(scene.context.journal, changes) is None
    scene.context = scene.open()
    known_for(scene, 60)
    assert not sum(recover_intents(scene.context).values())
    assert not scene.context.journal.entries(lambda key: key[:2] == ("outcome", group), soon())
