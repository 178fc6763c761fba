"""The brokers that a login may reach, and what a KafkaConnection of a file changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from group_hygiene.cli import target
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.target import read_settings
from group_hygiene.errors import UsageError
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.connection import Connection, ConnectionSpec, parse_connection

_FILE = Connection(bootstrap_servers=("from-the-file:9092",), namespace="kafka", name="main", uid="uid", generation=1)
_SCRAM = (
    "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
    'sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p";\n'
)
_IAM = (
    "security.protocol=SASL_SSL\nsasl.mechanism=AWS_MSK_IAM\n"
    "sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required;\n"
)
_KEY = (
    "security.protocol=SSL\nssl.keystore.type=PEM\n"
    "ssl.keystore.certificate.chain=-----BEGIN CERTIFICATE-----AA==-----END CERTIFICATE-----\n"
    "ssl.keystore.key=-----BEGIN PRIVATE KEY-----AA==-----END PRIVATE KEY-----\n"
)
_NAMED = "bootstrap.servers=from-the-properties:9092\n"


@pytest.mark.parametrize("login", [_SCRAM, _IAM, _KEY], ids=["password", "iam", "client-certificate"])
def test_a_login_is_not_sent_to_brokers_that_only_a_manifest_names(tmp_path: Path, login: str) -> None:
    """The author of a pull request could name brokers of their own. The user's brokers take precedence."""
    properties = tmp_path / "client.properties"
    properties.write_text(login)
    target = ChosenCluster(command_config=properties)
    with pytest.raises(UsageError, match=r"add bootstrap\.servers to .*client\.properties, or give --bootstrap-server"):
        read_settings(target, _FILE)
    if login is not _IAM:
        _, settings = read_settings(replace(target, bootstrap_servers=("b:9092",)), _FILE)
        assert settings.bootstrap_servers == ("b:9092",)
        properties.write_text(login + _NAMED)
        assert read_settings(target, _FILE)[1].bootstrap_servers == ("from-the-properties:9092",)


@pytest.mark.parametrize("text", ["security.protocol=PLAINTEXT\n", "security.protocol=SSL\n"], ids=["plain", "tls"])
def test_properties_without_a_login_reach_the_brokers_of_a_manifest(tmp_path: Path, text: str) -> None:
    """They contain no secret."""
    properties = tmp_path / "client.properties"
    properties.write_text(text)
    assert read_settings(ChosenCluster(command_config=properties), _FILE)[1].bootstrap_servers == (
        "from-the-file:9092",
    )


def test_tokens_go_only_to_brokers_of_aws_and_those_that_the_user_names(tmp_path: Path) -> None:
    """A broker names the addresses of others, which could be anywhere."""
    properties = tmp_path / "client.properties"
    properties.write_text(_IAM)
    servers = ("boot-x.c1.kafka-serverless.eu-west-1.amazonaws.com:9098", "Kafka.Example.com.:9098")
    _, settings = read_settings(ChosenCluster(bootstrap_servers=servers, command_config=properties), None)
    assert settings.sasl is not None
    assert settings.sasl.msk is not None
    hosts = settings.sasl.msk.hosts
    assert hosts is not None
    asked = {
        "b-1.main.a1.c2.kafka.eu-west-1.amazonaws.com": True,
        "kafka.example.com": True,
        "b-1.main.a1.c2.kafka.us-east-1.amazonaws.com": False,
        "other.example.com": False,
    }
    assert {host: hosts.include(host) for host in asked} == asked


# What a file may say that is not so in the cluster, by the field of the Connection.
_SAYS: dict[str, dict[str, Any]] = {
    "cluster_id": {"clusterID": "another"},
    "role": {"role": "FailoverTarget"},
    "topic_visibility": {"topicVisibility": "Attested"},
    "scan": {"scan": {"timeout": "90s"}},
    "protect": {"protect": ["orders-*"]},
    "given_limits": {"limits": {"minIdleFor": "30d"}},
    "mirror_maker": {"mirrorMaker": {"checkpointTopics": ["a.checkpoints.internal"]}},
    "activity": {"activity": {"uri": "/data/hygiene"}},
    "access": {"access": [{"namespaces": {"names": ["team"]}, "groups": ["team-*"], "actions": ["Alert"]}]},
    "receivers": {"receivers": [{"name": "ours", "type": "Webhook", "webhook": {"address": "https://example.com"}}]},
    "group_owners": {"owners": [{"groups": ["team-*"], "name": "team"}]},
    "keep_link": {"keepLink": "https://example.com/{group}"},
}
_LEADS = ("bootstrap_servers", "tls", "sasl", "ledger")


def test_a_file_says_all_but_where_the_connection_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of a pull request is about the object that it would apply; logins go where the present one leads."""
    assert _SAYS.keys() | set(_LEADS) == set(ConnectionSpec.__struct_fields__)
    here = _parsed("there:9092", {})
    there = Settings(bootstrap_servers=("there:9092",))
    monkeypatch.setattr(target, "_from_kubernetes", lambda *_: (None, {}, here, there))
    monkeypatch.setattr(target, "connect", lambda settings: SimpleNamespace(close=lambda: None, settings=settings))
    for name, spec in _SAYS.items():
        file = _parsed("elsewhere:9092", spec)
        with target.open_session(ChosenCluster(connection="main", namespace="kafka"), file) as session:
            assert getattr(session.connection, name) == getattr(file, name) != getattr(here, name)
            assert session.client.settings is there
            assert all(getattr(session.connection, each) == getattr(here, each) for each in (*_LEADS, "uid"))


def _parsed(servers: str, spec: dict[str, Any]) -> Connection:
    metadata = {"name": "main", "namespace": "kafka", "uid": servers}
    return parse_connection({"metadata": metadata, "spec": {"bootstrapServers": [servers]} | spec})
