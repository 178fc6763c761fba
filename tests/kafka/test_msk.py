"""Tokens of AWS's signer at a real broker, which verifies them as Amazon MSK does, with a secret key that it knows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.target import read_settings
from group_hygiene.errors import AuthenticationFailed
from group_hygiene.kafka import login as kafka_login
from group_hygiene.kafka.client import connect
from group_hygiene.kafka.cluster import read_cluster
from group_hygiene.kafka.groups import list_groups
from group_hygiene.model.groups import Fault
from group_hygiene.spec.client_settings import Hosts, Mechanism, MskIam, Sasl, Settings, Tls
from testing.sandbox.kafka import KafkaCluster, Security
from testing.sandbox.kafka.security import format_jaas
from tests.aws import ACCESS_KEY, SECRET_KEY
from tests.kafka.makers import Maker, at, seen, soon
from tests.kafka.plugins import jvm_with

_GROUP = "a-group"
_LISTENER = "listener.name.client.oauthbearer.sasl"
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning"),
    pytest.mark.usefixtures("forgotten_sockets"),
]


@pytest.fixture(scope="module")
def msk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """One broker with TLS that takes only tokens that were signed with SECRET_KEY."""
    config = {
        f"{_LISTENER}.jaas.config": format_jaas(
            "OAUTHBEARER", {"unsecuredLoginStringClaim_sub": "admin", ACCESS_KEY: SECRET_KEY}
        ),
        f"{_LISTENER}.server.callback.handler.class": "MskTokens",
    }
    jvm = jvm_with(tmp_path_factory.mktemp("classes"), "MskTokens")
    with KafkaCluster(security=Security(tls=True, sasl="OAUTHBEARER"), config=config, jvm=jvm) as cluster:
        maker = Maker(cluster.plaintext_bootstrap)
        maker.simple(_GROUP, at(maker.topic()))
        maker.close()
        yield cluster


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """This process has the access key that the broker knows."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    kafka_login.session.cache_clear()
    yield monkeypatch
    kafka_login.session.cache_clear()


def _settings(msk: KafkaCluster, login: MskIam, host: str = "") -> Settings:
    port = msk.bootstrap_servers.rpartition(":")[2]
    servers = (f"{host}:{port}" if host else msk.bootstrap_servers,)
    sasl = Sasl(Mechanism.AWS_MSK_IAM, msk=login)
    return Settings(servers, Tls(msk.ca_file.read_text()), sasl, timeout=timedelta(seconds=60))


@pytest.mark.parametrize("session", ["", "a-session/+="])
def test_a_signed_token_lets_in(msk: KafkaCluster, identity: pytest.MonkeyPatch, session: str) -> None:
    """With a permanent key, and with temporary credentials."""
    if session:
        identity.setenv("AWS_SESSION_TOKEN", session)
    client = connect(_settings(msk, MskIam("eu-west-1")))
    try:
        assert _GROUP in list_groups(client, seen(client), soon()).groups
    finally:
        client.close()


def test_a_token_that_another_key_signed_is_refused(msk: KafkaCluster, identity: pytest.MonkeyPatch) -> None:
    """At once, with the broker's reason and without a credential."""
    identity.setenv("AWS_SECRET_ACCESS_KEY", "another-secret-9Qx")
    with pytest.raises(AuthenticationFailed) as caught:
        connect(_settings(msk, MskIam("eu-west-1")))
    for secret in (SECRET_KEY, "another-secret-9Qx", "X-Amz-"):
        assert secret not in f"{caught.value} {caught.value.__cause__!r}"


def test_a_broker_that_another_one_names_gets_no_token(msk: KafkaCluster) -> None:
    """Brokers choose the addresses of others: the broker advertises 127.0.0.1, and only localhost may get tokens."""
    client = connect(_settings(msk, MskIam("eu-west-1", hosts=Hosts(("localhost",))), "localhost"))
    try:
        found = read_cluster(client, soon(5))
        fault = found if isinstance(found, Fault) else list_groups(client, found, soon(5)).faults[1]
    finally:
        client.close()
    assert fault == Fault("SASL_AUTHENTICATION_FAILED", "host 127.0.0.1 may not get tokens of this AWS identity")
    both = connect(_settings(msk, MskIam("eu-west-1", hosts=Hosts(("localhost", "127.0.0.1"))), "localhost"))
    try:
        assert _GROUP in list_groups(both, seen(both), soon()).groups
    finally:
        both.close()


@pytest.mark.parametrize(
    "login",
    [
        pytest.param(
            "sasl.mechanism=AWS_MSK_IAM\n"
            "sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required;\n"
            "sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler\n",
            id="aws-msk-iam",
        ),
        pytest.param(
            "sasl.mechanism=OAUTHBEARER\n"
            "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;\n"
            "sasl.login.callback.handler.class=software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler\n",
            id="oauthbearer",
        ),
    ],
)
def test_the_properties_of_java_clients_let_in(
    msk: KafkaCluster, identity: pytest.MonkeyPatch, tmp_path: Path, login: str
) -> None:
    """As AWS documents them, with the region of the environment, since the broker's name has none."""
    identity.setenv("AWS_REGION", "eu-west-1")
    file = tmp_path / "client.properties"
    stores = f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={msk.ca_file}\n"
    file.write_text(f"bootstrap.servers={msk.bootstrap_servers}\n{stores}{login}")
    _, settings = read_settings(ChosenCluster(command_config=file), None)
    client = connect(settings)
    try:
        assert _GROUP in list_groups(client, seen(client), soon()).groups
    finally:
        client.close()
