"""The sandbox's Kafka: every version starts, hurts on demand, and lets in whom it should."""

import contextlib
import gc
import socket
import ssl
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaTimeoutError, RetriableError, TopicAuthorizationFailedError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata

from testing.sandbox.errors import StartFailed
from testing.sandbox.kafka import KafkaCluster, Security
from testing.sandbox.kafka.oauth import unsecured_token
from testing.sandbox.kafka.tls import Authority
from testing.sandbox.kafka.wire import known_brokers
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker
from tests.kafka.members import ShareMember

pytestmark = pytest.mark.slow  # of what starts brokers, on which all other tests stand

PASSWORD = 'p"w\\ä'
USERS = {"alice": PASSWORD, "admin": "for-admin"}


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python is untyped
    """Unsecured tokens for one principal."""

    def __init__(self, name: str) -> None:
        self._name = name

    def token(self) -> str:
        return unsecured_token(self._name)


def groups(cluster: KafkaCluster, **options: Any) -> list[str]:
    """The ids of all groups, asked through the client listener."""
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers, client_id="test", **options)
    try:
        return sorted(group["group_id"] for group in client.list_groups())
    finally:
        client.close()


def comes_back(group: str, cluster: KafkaCluster, **options: Any) -> bool:
    """True once the group is listed: coordinators read the offsets log after a restart.

    Meanwhile the answer is an error, or (2.5.1, ZooKeeper: before it knows what it leads) an empty list without one.
    """

    def is_listed() -> bool:
        with contextlib.suppress(RetriableError):
            return groups(cluster, **options) == [group]
        return False

    return wait_for(is_listed, f"{group} is listed")


def commit(cluster: KafkaCluster, group: str, replicas: int = 1) -> None:
    """Make a topic of that name and a simple group with an offset for it."""
    client = KafkaAdminClient(bootstrap_servers=cluster.plaintext_bootstrap)
    client.create_topics([NewTopic(group, 1, replicas)])
    client.wait_for_topics([group], timeout_ms=180_000)
    client.close()
    consumer = KafkaConsumer(bootstrap_servers=cluster.plaintext_bootstrap, group_id=group, enable_auto_commit=False)
    consumer.assign([TopicPartition(group, 0)])
    consumer.commit({TopicPartition(group, 0): OffsetAndMetadata(0, "", -1)})
    consumer.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster(request_log=True, config={"offsets.topic.num.partitions": "3"}) as running:
        yield running


def test_a_broker_starts_and_lists_groups(cluster: KafkaCluster) -> None:
    """What a client commits is there to be listed."""
    commit(cluster, "a-group")
    assert "a-group" in groups(cluster)


def test_extra_settings_win(cluster: KafkaCluster) -> None:
    """`config` overrides the sandbox's own settings."""
    commit(cluster, "for-settings")
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    (topic,) = client.describe_topics(["__consumer_offsets"])
    client.close()
    assert len(topic["partitions"]) == 3


def test_requests_are_counted_by_api_and_client(cluster: KafkaCluster) -> None:
    """A count is exact, starts at the mark, and can be one client's only."""
    groups(cluster)
    mark = cluster.mark()
    groups(cluster)
    groups(cluster)
    assert cluster.count_requests("LIST_GROUPS", client_id="test", since=mark) == {1: 2}
    assert cluster.count_requests("LIST_GROUPS", client_id="somebody", since=mark) == {1: 0}


def test_share_groups_are_on(cluster: KafkaCluster) -> None:
    """Kafka's own tool can make a share group in the default version."""
    make = Maker(cluster.bootstrap_servers)
    with ShareMember(cluster, make, "a-share-group", make.topic()):
        wait_for(lambda: "a-share-group" in groups(cluster))
    make.close()
    listing = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
    listed = cluster.tool(listing, "--bootstrap-server", cluster.bootstrap_servers, "--list")
    assert "a-share-group" in listed.stdout, listed.stderr


def test_a_broken_setting_shows_the_end_of_the_log() -> None:
    """A failed start says why."""
    with pytest.raises(StartFailed, match=r"num\.io\.threads"), KafkaCluster(config={"num.io.threads": "none"}):
        pass


def test_three_brokers_survive_the_loss_of_one() -> None:
    """A killed broker is gone for the others, comes back on its port, and a stopped or frozen one does too."""
    # With an authorizer, as the separate controller must let the brokers in.
    security = Security(sasl="PLAIN", users=USERS, authorizer=True)
    with KafkaCluster(brokers=3, security=security) as cluster:
        commit(cluster, "a-group", replicas=3)
        before = cluster.bootstrap_servers
        internal = [int(address.rpartition(":")[2]) for address in cluster.plaintext_bootstrap.split(",")]

        cluster.kill_broker(2)
        assert known_brokers(internal[1]) is None
        cluster.start_broker(2)
        # Another broker hears of it a moment later.
        wait_for(lambda: set(known_brokers(internal[0]) or ()) == {1, 2, 3})

        cluster.pause_broker(3)
        assert known_brokers(internal[2], timeout=0.5) is None
        cluster.resume_broker(3)
        cluster.wait_ready()

        cluster.stop_broker(1)
        cluster.start_broker(1)
        assert cluster.bootstrap_servers == before
        assert comes_back("a-group", cluster, **client_options(cluster, "admin", "for-admin"))


@pytest.mark.parametrize("version", ["3.9.1", "2.8.2", "2.5.1"])
def test_old_versions_start(version: str) -> None:
    """Each supported old version runs and answers, with its own tools beside it."""
    with KafkaCluster(version, request_log=True) as cluster:
        commit(cluster, "a-group")
        assert groups(cluster) == ["a-group"]
        assert cluster.count_requests("LIST_GROUPS", client_id="test") == {1: 1}
        new = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        tool = new if version == "3.9.1" else "kafka.admin.ConsumerGroupCommand"
        assert "a-group" in cluster.tool(tool, "--bootstrap-server", cluster.bootstrap_servers, "--list").stdout
        if version == "2.5.1":
            # ZooKeeper's memory of the killed broker must not keep it out.
            cluster.kill_broker(1)
            cluster.start_broker(1)
            assert comes_back("a-group", cluster)


def client_options(cluster: KafkaCluster, name: str, password: str) -> dict[str, Any]:
    """How a client logs in as `name` to a cluster with any security."""
    options: dict[str, Any] = {"security_protocol": cluster.security.protocol}
    if cluster.security.tls:
        options["ssl_cafile"] = str(cluster.ca_file)
    if cluster.security.client_auth == "required":
        made = cluster.client_certificate(name)
        options |= {"ssl_certfile": str(made.certificate), "ssl_keyfile": str(made.key)}
    if cluster.security.sasl == "OAUTHBEARER":
        options |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Tokens(name)}
    elif cluster.security.sasl:
        login = {"sasl_plain_username": name, "sasl_plain_password": password}
        options |= {"sasl_mechanism": cluster.security.sasl, **login}
    return options


@pytest.mark.parametrize(
    ("version", "security"),
    [
        pytest.param("4.4.0", Security(tls=True, sasl="SCRAM-SHA-512", users=USERS, authorizer=True), id="scram-tls"),
        pytest.param("4.4.0", Security(tls=True, client_auth="required", authorizer=True), id="mutual-tls"),
        pytest.param("4.4.0", Security(sasl="PLAIN", users=USERS, authorizer=True), id="plain"),
        pytest.param("4.4.0", Security(tls=True, sasl="OAUTHBEARER", authorizer=True), id="oauth-tls"),
        pytest.param("2.8.2", Security(sasl="SCRAM-SHA-256", users=USERS, authorizer=True), id="scram-zookeeper"),
        pytest.param("2.5.1", Security(tls=True, client_auth="required", authorizer=True), id="mutual-tls-2.5"),
    ],
)
def test_only_the_right_clients_are_let_in(version: str, security: Security) -> None:
    """The superuser sees all; a user without an ACL logs in and sees nothing; a wrong password or certificate fails."""
    with KafkaCluster(version, security=security) as cluster:
        commit(cluster, "a-group")
        assert groups(cluster, **client_options(cluster, "admin", "for-admin")) == ["a-group"]
        alice = client_options(cluster, "alice", PASSWORD)
        assert groups(cluster, **alice) == []
        client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers, **alice)
        with pytest.raises(TopicAuthorizationFailedError):
            client.create_topics([NewTopic("not-allowed", 1, 1)])
        client.close()
        if "sasl_plain_password" in alice:
            assert_wrong_password_fails(cluster, alice)
        if security.tls:
            assert_wrong_certificates_fail(cluster)


def assert_wrong_password_fails(cluster: KafkaCluster, right: dict[str, Any]) -> None:
    with pytest.raises(KafkaTimeoutError):
        groups(cluster, **{**right, "sasl_plain_password": "wrong"}, bootstrap_timeout_ms=10_000)
    # The client's error only says that it took too long; the broker's log says why.
    assert "Failed authentication with /127.0.0.1" in cluster.log(1).read_text()
    # The client leaves sockets that were refused to the garbage collector.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def assert_wrong_certificates_fail(cluster: KafkaCluster) -> None:
    other = Authority(cluster.ca_file.parent / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(cluster, ssl.create_default_context(cafile=str(other.ca)))
    without = ssl.create_default_context(cafile=str(cluster.ca_file))
    if cluster.security.client_auth == "none":
        handshake(cluster, without, 1)
        return
    with pytest.raises(ssl.SSLError):
        handshake(cluster, without)
    forged = ssl.create_default_context(cafile=str(cluster.ca_file))
    made = other.issue("admin")
    forged.load_cert_chain(made.certificate, made.key)
    with pytest.raises(ssl.SSLError):
        handshake(cluster, forged)


def handshake(cluster: KafkaCluster, context: ssl.SSLContext, seconds: float = 120.0) -> None:
    """Connect with TLS and wait so long for the broker's objection, which TLS 1.3 sends after the handshake."""
    port = int(cluster.bootstrap_servers.partition(",")[0].rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=120) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
        contextlib.suppress(TimeoutError),
    ):
        connection.settimeout(seconds)
        connection.recv(1)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"authorizer": True}, id="authorizer-where-every-client-is-a-superuser"),
        pytest.param({"client_auth": "required"}, id="client-certificates-without-tls"),
    ],
)
def test_senseless_security_is_refused(options: dict[str, Any]) -> None:
    """What would silently test nothing raises ValueError."""
    with pytest.raises(ValueError, match="needs"):
        Security(**options)
