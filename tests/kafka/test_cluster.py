"""What a real broker with TLS, SASL and an authorizer lets us see, and what we call it when it does not let us in."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from group_hygiene.engine.context import read_missing_topics
from group_hygiene.errors import AuthenticationFailed, ConnectError, SecretProblem, TLSFailed, Unreachable
from group_hygiene.kafka.changes import delete_groups
from group_hygiene.kafka.client import Client, connect
from group_hygiene.kafka.cluster import (
    features,
    hidden_topics,
    offsets_retention_minutes,
    topic_ids,
    topics_exist,
)
from group_hygiene.kafka.groups import describe_groups, list_groups
from group_hygiene.kafka.login import client_context
from group_hygiene.kafka.mirror import Checkpoints
from group_hygiene.kafka.offsets import committed_offsets, end_offsets
from group_hygiene.model.groups import Fault, GroupType, Partition
from group_hygiene.spec.client_settings import Mechanism, OAuth, Sasl, Settings, Tls
from group_hygiene.spec.fields import Hidden
from testing.sandbox.kafka import KafkaCluster, Security
from testing.sandbox.kafka.security import format_jaas
from testing.sandbox.kafka.tls import Authority
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker, at, seen, soon

PASSWORD = "never-to-be-seen-93Zq"
TIMEOUT = 60
# No program gets that port by chance.
UNREACHABLE = "127.0.0.1:1"
USERS = ("allowed", "no-cluster", "no-topic", "no-group", "no-delete")
DENIED_TOPIC = Fault("TOPIC_AUTHORIZATION_FAILED", "needs DESCRIBE on the topic")
HIDDEN_TOPIC, DENIED_GROUP = "hidden-topic", "denied-group"
MECHANISMS = (Mechanism.PLAIN, Mechanism.SCRAM_SHA_512)
SCRAM = "listener.name.client.scram-sha-512.sasl.jaas.config"
BOTH_MECHANISMS = {
    "listener.name.client.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    SCRAM: format_jaas("SCRAM-SHA-512", {}),
}

Login = Callable[[str], Client]

# kafka-python forgets to close the socket of a connection that was refused; it ends with the object.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning"),
    pytest.mark.usefixtures("forgotten_sockets"),
]


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """One broker that asks for TLS, a password and permissions."""
    security = Security(tls=True, sasl="PLAIN", users=dict.fromkeys(USERS, PASSWORD), authorizer=True)
    with KafkaCluster(security=security, config=BOTH_MECHANISMS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def inside(guarded: KafkaCluster) -> Iterator[Maker]:
    """Makes things behind the guards, and gives each user everything but what its name says."""
    maker = Maker(guarded.plaintext_bootstrap)
    credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upsert = UserScramCredentialUpsertion("allowed", credentials, PASSWORD.encode())
    for future in maker.admin.alter_user_scram_credentials([upsert]).values():
        future.result()
    allow = [
        _acl(user, resource, name, operation)
        for user in USERS
        for resource, name, operation in (
            (ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE),
            (ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS),
            (ResourceType.TOPIC, "*", AclOperation.READ),
            (ResourceType.GROUP, "*", AclOperation.DESCRIBE),
            (ResourceType.GROUP, "*", AclOperation.DELETE),
        )
        if not (user == "no-cluster" and resource == ResourceType.BROKER)
        and not (user == "no-delete" and operation == AclOperation.DELETE)
    ]
    deny = [
        _acl("no-topic", ResourceType.TOPIC, HIDDEN_TOPIC, AclOperation.DESCRIBE, AclPermissionType.DENY),
        _acl("no-group", ResourceType.GROUP, DENIED_GROUP, AclOperation.DESCRIBE, AclPermissionType.DENY),
    ]
    for future in maker.admin.create_acls(allow + deny).values():
        future.result()
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    wait_for(lambda: len(maker.admin.describe_acls(everything).result()) == len(allow + deny))
    maker.topic(HIDDEN_TOPIC)
    maker.simple(DENIED_GROUP, at(HIDDEN_TOPIC, 1))
    yield maker
    maker.close()


def _acl(
    user: str, resource: object, name: str, operation: object, permission: object = AclPermissionType.ALLOW
) -> object:
    return AclBinding(resource, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, permission)


@pytest.fixture(scope="module")
def login(guarded: KafkaCluster, inside: Maker) -> Iterator[Login]:
    """A client as that user, the same one each time."""
    clients: dict[str, Client] = {}

    def logged_in(user: str) -> Client:
        if user not in clients:
            clients[user] = connect(settings(guarded, user))
        return clients[user]

    yield logged_in
    for client in clients.values():
        client.close()


def settings(
    cluster: KafkaCluster, user: str = "allowed", password: str = PASSWORD, mechanism: Mechanism = Mechanism.PLAIN
) -> Settings:
    """How a user gets in."""
    return Settings(
        bootstrap_servers=tuple(cluster.bootstrap_servers.split(",")),
        tls=Tls(ca=cluster.ca_file.read_text()),
        sasl=Sasl(mechanism, user, Hidden(password)),
        timeout=timedelta(seconds=TIMEOUT),
    )


def test_a_cluster_is_read_with_all_its_leaders(login: Login, guarded: KafkaCluster) -> None:
    """Id, brokers and who leads each partition of the offsets topic; nothing to complain about."""
    cluster = seen(login("allowed"))
    assert cluster.id == guarded.cluster_id
    assert list(cluster.brokers) == [1]
    assert {partition: broker for partition, (broker, _) in cluster.leaders.items()} == dict.fromkeys(range(5), 1)
    assert cluster.problems == ()


def test_a_missing_permission_on_the_cluster_is_a_problem(login: Login) -> None:
    """Without DESCRIBE on the cluster lists of groups are filtered in silence: that must be said."""
    (problem,) = seen(login("no-cluster")).problems
    assert "DESCRIBE on the cluster is denied" in problem


def test_missing_topics_are_distinguished_from_existing_ones(login: Login, inside: Maker) -> None:
    """One answer for each topic; none asked, none given."""
    topic, absent = inside.topic(), inside.name("no-topic")
    assert topics_exist(login("allowed"), [topic, absent], soon()) == {topic: True, absent: False}
    assert topics_exist(login("allowed"), [], soon()) == {}


def test_a_topic_that_must_not_be_seen_is_not_missing(login: Login, inside: Maker) -> None:
    """A denied topic may well exist: that is a fault of its own, and the others are answered beside it."""
    topic, absent = inside.topic(), inside.name("no-topic")
    answers = topics_exist(login("no-topic"), [topic, absent, HIDDEN_TOPIC], soon())
    assert answers == {topic: True, absent: False, HIDDEN_TOPIC: DENIED_TOPIC}


def test_an_unanswered_question_says_nothing_of_any_topic(login: Login, inside: Maker) -> None:
    """Without an answer in time no topic exists, and none is missing."""
    answers = topics_exist(login("allowed"), [inside.topic(), inside.name("no-topic")], soon(0))
    assert {answer.code for answer in answers.values() if isinstance(answer, Fault)} == {"REQUEST_TIMED_OUT"}
    assert not {answer for answer in answers.values() if not isinstance(answer, Fault)}


def test_each_topic_has_its_id_or_its_fault(login: Login, inside: Maker) -> None:
    """Kafka's code for the topic that has none, and the others are not affected."""
    topic, absent = inside.topic(), inside.name("no-topic")
    for user, other, code in (
        ("allowed", absent, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("no-topic", HIDDEN_TOPIC, "TOPIC_AUTHORIZATION_FAILED"),
    ):
        ids = topic_ids(login(user), [topic, other], soon())
        assert isinstance(ids[topic], str)
        assert ids[topic]
        fault = ids[other]
        assert isinstance(fault, Fault)
        assert fault.code == code


def test_a_denied_topic_does_not_spoil_what_is_known_of_others(login: Login, inside: Maker) -> None:
    """Each group hears of its own topics: the denied one is doubt for who committed there, and nobody else."""
    topic, absent = inside.topic(), inside.name("no-topic")
    topics = {"fine": {topic, absent}, "doubtful": {absent, HIDDEN_TOPIC}, "none": set[str]()}
    missing = read_missing_topics(login("no-topic"), topics, soon())
    doubt = missing.pop("doubtful")
    assert missing == {"fine": frozenset({absent}), "none": frozenset()}
    assert isinstance(doubt, Fault)
    assert doubt.code == "TOPIC_AUTHORIZATION_FAILED"
    assert HIDDEN_TOPIC in doubt.message


def test_hidden_topics_are_named(login: Login, inside: Maker) -> None:
    """A topic that is on disk and not in Metadata is hidden; one that was deleted is not."""
    inside.delete_topic(inside.topic())
    allowed, denied = login("allowed"), login("no-topic")
    # A moment after it is gone from Metadata it is gone from disk.
    wait_for(lambda: hidden_topics(allowed, seen(allowed), soon()) == ())
    assert hidden_topics(denied, seen(denied), soon()) == (HIDDEN_TOPIC,)


def test_hidden_topics_can_hide(login: Login) -> None:
    """Without DESCRIBE on the cluster nobody can say whether a topic is hidden, and that is a fault."""
    client = login("no-cluster")
    fault = hidden_topics(client, seen(client), soon())
    assert isinstance(fault, Fault)
    assert fault.code == "CLUSTER_AUTHORIZATION_FAILED"


def test_a_hidden_topic_takes_its_committed_offsets_along(login: Login, inside: Maker) -> None:
    """Why hidden topics matter: the broker leaves their offsets out without a word."""
    topic = inside.topic()
    group = inside.simple(inside.name("half"), at(topic, 1) | at(HIDDEN_TOPIC, 2))
    assert committed_offsets(login("no-topic"), {group: None}, soon()) == {group: at(topic, 1)}
    assert committed_offsets(login("allowed"), {group: None}, soon()) == {group: at(topic, 1) | at(HIDDEN_TOPIC, 2)}
    ends = end_offsets(login("no-topic"), [Partition(topic, 0), Partition(HIDDEN_TOPIC, 0)], soon())
    # Not as if it did not exist: offsets of a deleted topic wait for nobody.
    assert ends == {Partition(topic, 0): 0, Partition(HIDDEN_TOPIC, 0): DENIED_TOPIC}


def test_a_denied_group_is_a_fault_of_its_own(login: Login, inside: Maker) -> None:
    """Its neighbours in the same request are answered."""
    topic, client = inside.topic(), login("no-group")
    group = inside.simple(inside.name("fine"), at(topic, 3))
    offsets = committed_offsets(client, dict.fromkeys([DENIED_GROUP, group]), soon())
    assert offsets[group] == at(topic, 3)
    pair = dict.fromkeys((DENIED_GROUP, group), GroupType.CLASSIC)
    described = describe_groups(client, pair, dict.fromkeys(pair, 1), soon())
    assert not isinstance(described[group], Fault)
    for answer in (offsets[DENIED_GROUP], described[DENIED_GROUP]):
        assert isinstance(answer, Fault)
        assert answer.code == "GROUP_AUTHORIZATION_FAILED"


def test_a_list_without_permission_on_the_cluster_is_filtered(login: Login, inside: Maker) -> None:
    """Why DESCRIBE on the cluster matters: with it every group is listed, even one that is denied."""
    inside.wait_state(inside.simple(inside.name("listed"), at(HIDDEN_TOPIC)), "EMPTY")
    client = login("no-group")
    assert DENIED_GROUP in list_groups(client, seen(client), soon()).groups


def test_a_denied_delete_deletes_nothing(login: Login, inside: Maker) -> None:
    """DELETE on the group is a permission of its own."""
    group = inside.simple(inside.name("kept"), at(inside.topic()))
    fault = delete_groups(login("no-delete"), {group: None}, soon())[group]
    assert isinstance(fault, Fault)
    assert fault.code == "GROUP_AUTHORIZATION_FAILED"
    assert inside.groups()[group] == "EMPTY"
    assert delete_groups(login("allowed"), {group: None}, soon()) == {group: None}


def test_facts_about_the_brokers_are_read(login: Login) -> None:
    """What the status shows: features of a new broker, and the retention of offsets where we may read it."""
    client = login("allowed")
    assert {"ListGroupsTypeFilter", "RequireStable", "ConsumerGroupDescribe"} <= set(features(client))
    assert offsets_retention_minutes(client, seen(client), soon()) == 7 * 24 * 60
    assert offsets_retention_minutes(login("no-cluster"), seen(login("no-cluster")), soon()) is None


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_right_password_lets_in(guarded: KafkaCluster, inside: Maker, mechanism: Mechanism) -> None:
    """Both mechanisms work, over TLS."""
    client = connect(settings(guarded, mechanism=mechanism))
    try:
        assert seen(client).problems == ()
    finally:
        client.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_fails_soon(guarded: KafkaCluster, inside: Maker, mechanism: Mechanism) -> None:
    """AuthenticationFailed names the user and not the password, and does not wait for the timeout."""
    before = time.monotonic()
    with pytest.raises(AuthenticationFailed, match="'allowed'") as caught:
        connect(settings(guarded, password="wrong-Xy7", mechanism=mechanism))
    assert time.monotonic() - before < TIMEOUT - 5
    assert "wrong-Xy7" not in str(caught.value)


def test_a_mechanism_that_is_off_fails_as_authentication(guarded: KafkaCluster) -> None:
    """Also the wrong way to log in is a failed login."""
    with pytest.raises(AuthenticationFailed):
        connect(settings(guarded, mechanism=Mechanism.SCRAM_SHA_256))


def test_an_unknown_authority_fails_as_tls(guarded: KafkaCluster, tmp_path: Path) -> None:
    """A certificate that the given CA did not sign is refused, with what OpenSSL says of it."""
    tls = Tls(ca=Authority(tmp_path / "other").ca.read_text())
    with pytest.raises(TLSFailed, match="certificate is not trusted"):
        connect(replace(settings(guarded), tls=tls), timeout=2)


def test_plain_text_to_a_tls_listener_says_so(guarded: KafkaCluster) -> None:
    """Somebody forgot `tls`: it accepts connections, and the message asks whether it wants TLS."""
    with pytest.raises(Unreachable, match="does it want TLS"):
        connect(replace(settings(guarded), tls=None, sasl=None), timeout=2)


def test_tls_to_a_plain_listener_fails_as_tls(guarded: KafkaCluster) -> None:
    """Somebody gave the address of a plaintext listener."""
    servers = tuple(guarded.plaintext_bootstrap.split(","))
    with pytest.raises(ConnectError) as caught:
        connect(replace(settings(guarded), bootstrap_servers=servers), timeout=2)
    assert isinstance(caught.value, TLSFailed)


@pytest.mark.parametrize(
    ("server", "why"),
    [
        pytest.param(UNREACHABLE, "connection refused", id="nobody-listens"),
        pytest.param("no-such-host.invalid:9092", "no-such-host.invalid does not resolve", id="no-such-name"),
    ],
)
def test_an_address_that_leads_nowhere_says_why(server: str, why: str) -> None:
    """Unreachable names the server and the reason."""
    with pytest.raises(Unreachable, match=why) as caught:
        connect(Settings((server,)), timeout=2)
    assert server in str(caught.value)


def test_one_good_server_is_enough(guarded: KafkaCluster, inside: Maker) -> None:
    """A dead bootstrap server beside a live one does not matter."""
    servers = (UNREACHABLE, *guarded.bootstrap_servers.split(","))
    connect(replace(settings(guarded), bootstrap_servers=servers)).close()


@pytest.mark.parametrize(
    "ca",
    [
        pytest.param("", id="empty"),
        pytest.param("not a certificate", id="text"),
        pytest.param("zertifikät", id="not-ascii"),
        pytest.param("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", id="broken"),
        pytest.param("-----BEGIN CERTIFICATE-----\n" * 301, id="too-many"),
    ],
)
def test_a_malformed_authority_is_a_problem_of_its_secret(guarded: KafkaCluster, ca: str) -> None:
    """SecretInvalid, said before anything is sent."""
    with pytest.raises(SecretProblem, match=r"tls\.caSecretRef must name (PEM|at most 300)") as caught:
        connect(replace(settings(guarded), tls=Tls(ca=ca)))
    assert caught.value.reason == "SecretInvalid"


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("-----BEGIN ENCRYPTED PRIVATE KEY-----\n", id="pkcs-8"),
        pytest.param("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n", id="traditional"),
        pytest.param("-----BEGIN PRIVATE KEY-----\n" + "A" * 8_000, id="large"),
    ],
)
@pytest.mark.parametrize("in_certificate", [False, True])
def test_a_key_that_takes_long_is_not_read(key: str, in_certificate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL derives a key from a password for as long as the text says, and looks for one in the certificate, too."""
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", lambda *_, **__: pytest.fail("OpenSSL read it"))
    certificate, private_key = (key, "") if in_certificate else ("", key)
    with pytest.raises(SecretProblem, match="without a password and of at most 8192 bits"):
        client_context(Tls(certificate=certificate, private_key=Hidden(private_key)))


def test_comments_in_a_bundle_may_be_in_any_language(guarded: KafkaCluster, inside: Maker) -> None:
    """What stands between the certificates does not matter."""
    bundle = f"# Autorità di certificazione\n{guarded.ca_file.read_text()}"
    connect(replace(settings(guarded), tls=Tls(ca=bundle))).close()


def test_a_malformed_authority_of_the_token_endpoint_is_a_problem_of_its_secret(guarded: KafkaCluster) -> None:
    """The same for the second place where an authority can be given."""
    oauth = OAuth("https://127.0.0.1:1/token", "id", Hidden("secret"), ca="")
    sasl = Sasl(Mechanism.OAUTHBEARER, oauth=oauth)
    with pytest.raises(SecretProblem, match=r"sasl\.oauth\.caSecretRef must name PEM"):
        connect(replace(settings(guarded), sasl=sasl))


def test_a_malformed_client_certificate_is_a_problem_of_its_secret(guarded: KafkaCluster) -> None:
    """Neither rubbish nor a key that belongs to another certificate is taken, and the text shows nothing of the key."""
    one, other = guarded.client_certificate("one"), guarded.client_certificate("other")
    certificate, key = one.certificate.read_text(), other.key.read_text()
    for tls in (
        Tls(guarded.ca_file.read_text(), certificate, Hidden(key)),
        Tls(guarded.ca_file.read_text(), certificate, Hidden("rubbish")),
        Tls(guarded.ca_file.read_text(), "rubbish", Hidden(key)),
    ):
        with pytest.raises(SecretProblem, match=r"tls\.certificateSecretRef and tls\.privateKeySecretRef") as caught:
            connect(replace(settings(guarded), tls=tls))
        assert caught.value.reason == "SecretInvalid"
        assert key.splitlines()[1] not in str(caught.value)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_log_shows_the_password(
    guarded: KafkaCluster, inside: Maker, caplog: pytest.LogCaptureFixture, mechanism: Mechanism
) -> None:
    """With every logger at DEBUG, as --log-level debug sets it, for logins that work and that don't."""
    logging.getLogger().setLevel(logging.DEBUG)
    try:
        logging.getLogger("kafka.anything").debug("a line of the library")
        logging.getLogger("anything").debug("debug is on")
        topic = inside.topic(inside.name("x.checkpoints.internal"), records=1)
        good = settings(guarded, mechanism=mechanism)
        assert PASSWORD not in repr(good)
        client = connect(good)
        list_groups(client, seen(client), soon())
        assert Checkpoints().read(client, [topic], soon()) == frozenset()
        client.close()
        for bad in (
            replace(good, bootstrap_servers=(UNREACHABLE,)),
            settings(guarded, "nobody", mechanism=mechanism),
        ):
            with pytest.raises(ConnectError) as caught:
                connect(bad, timeout=2)
            assert PASSWORD not in f"{caught.value!r} {caught.value.__cause__!r}"
    finally:
        logging.getLogger().setLevel(logging.WARNING)
    assert "debug is on" in caplog.text
    for record in caplog.records:
        assert PASSWORD not in f"{record.getMessage()} {record.__dict__}"
