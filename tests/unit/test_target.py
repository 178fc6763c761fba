"""The brokers that a login of `--command-config` may reach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.target import read_settings
from group_hygiene.errors import UsageError
from group_hygiene.spec.connection import Connection

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
