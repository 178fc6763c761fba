"""Logins to Amazon MSK: the token that AWS's signer makes, whose identity it proves, and which brokers may get it."""

from __future__ import annotations

import base64
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner

from group_hygiene.cli import main
from group_hygiene.controller.link import Link
from group_hygiene.errors import AuthenticationFailed, ConnectError, UsageError
from group_hygiene.kafka import login as kafka_login
from group_hygiene.kafka.client import connect
from group_hygiene.kafka.login import MskTokenProvider, library_config
from group_hygiene.model import reasons
from group_hygiene.process.start import start
from group_hygiene.spec.client_settings import (
    Hosts,
    Mechanism,
    MskGrant,
    MskIam,
    Sasl,
    Settings,
    Tls,
    parse_msk_grant,
    region_of,
    with_granted_hosts,
)
from group_hygiene.spec.connection import parse_connection
from group_hygiene.spec.storage import Allowed
from tests.aws import ACCESS_KEY, ROLE_ARN, SECRET_KEY, Login, verified

_REGION = "eu-west-1"
_OWN = MskIam(_REGION)
_SESSION, _ROLE_KEY, _ROLE_SECRET = "session-8k2/+=", "ASIAROLEEXAMPLE", "role-secret-51x/+"
_BROKERS = "*.kafka.eu-west-1.amazonaws.com"


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """This process has that access key, and no other AWS identity."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/does/not/exist")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    kafka_login.session.cache_clear()
    yield monkeypatch
    kafka_login.session.cache_clear()


@contextmanager
def _sts(status: int, body: str) -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """An STS that gives that answer to each request: its URL, and the requests' parameters."""
    asked: list[dict[str, list[str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def _assumed() -> str:
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (
        '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
        f"<AccessKeyId>{_ROLE_KEY}</AccessKeyId><SecretAccessKey>{_ROLE_SECRET}</SecretAccessKey>"
        f"<SessionToken>{_SESSION}</SessionToken><Expiration>{until}</Expiration></Credentials>"
        f"<AssumedRoleUser><Arn>{ROLE_ARN}</Arn><AssumedRoleId>a:b</AssumedRoleId></AssumedRoleUser>"
        "</AssumeRoleResult></AssumeRoleResponse>"
    )


def _refusal(code: str) -> str:
    return f"<ErrorResponse><Error><Code>{code}</Code><Message>{SECRET_KEY}</Message></Error></ErrorResponse>"


def test_a_token_is_a_signed_url(identity: pytest.MonkeyPatch) -> None:
    """By the specification, with the access key of this process; another secret key did not sign it."""
    token = MskTokenProvider(_OWN).token()
    assert verified(token, SECRET_KEY) == Login(ACCESS_KEY, _REGION, "")
    with pytest.raises(ValueError, match="signature"):
        verified(token, "another")
    url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    moved = base64.urlsafe_b64encode(url.replace(_REGION, "us-east-1").encode()).decode()
    with pytest.raises(ValueError, match="signature"):
        verified(moved, SECRET_KEY)


def test_a_token_of_temporary_credentials_has_their_session(identity: pytest.MonkeyPatch) -> None:
    """As IRSA, EKS Pod Identity and EC2 give them."""
    identity.setenv("AWS_SESSION_TOKEN", _SESSION)
    assert verified(MskTokenProvider(_OWN).token(), SECRET_KEY) == Login(ACCESS_KEY, _REGION, _SESSION)


def test_a_role_is_assumed_once(identity: pytest.MonkeyPatch) -> None:
    """Its credentials sign all tokens until they expire, and the own identity signs none of them."""
    with _sts(200, _assumed()) as (url, asked):
        identity.setenv("AWS_ENDPOINT_URL_STS", url)
        provider = MskTokenProvider(MskIam(_REGION, ROLE_ARN))
        assert asked == []
        tokens = [provider.token() for _ in range(3)]
    for token in tokens:
        assert verified(token, _ROLE_SECRET) == Login(_ROLE_KEY, _REGION, _SESSION)
    (request,) = asked
    assert request["RoleArn"] == [ROLE_ARN]
    assert request["RoleSessionName"] == ["group-hygiene"]


@pytest.mark.parametrize("code", ["AccessDenied", "ExpiredToken"])
def test_a_refusal_of_aws_is_shown_by_its_code_alone(identity: pytest.MonkeyPatch, code: str) -> None:
    """Its message may name accounts and roles of others."""
    with _sts(403, _refusal(code)) as (url, _):
        identity.setenv("AWS_ENDPOINT_URL_STS", url)
        with pytest.raises(AuthenticationFailed) as caught:
            MskTokenProvider(MskIam(_REGION, ROLE_ARN)).token()
    assert str(caught.value) == f"AWS refuses AssumeRole: {code}"


def test_an_sts_that_does_not_answer_is_an_error(identity: pytest.MonkeyPatch) -> None:
    """Without an attempt beyond the first."""
    identity.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    with pytest.raises(AuthenticationFailed, match="could not be read: EndpointConnectionError"):
        MskTokenProvider(MskIam(_REGION, ROLE_ARN)).token()


def test_without_an_identity_the_message_says_what_to_do(identity: pytest.MonkeyPatch) -> None:
    """And the next attempt searches again."""
    identity.delenv("AWS_ACCESS_KEY_ID")
    provider = MskTokenProvider(_OWN)
    with pytest.raises(AuthenticationFailed, match="EKS Pod Identity"):
        provider.token()
    identity.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    assert verified(provider.token(), SECRET_KEY)


def test_no_secret_is_logged(identity: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """AWS's libraries log signed URLs and responses at debug level."""
    factory = logging.getLogRecordFactory()
    start()
    try:
        with caplog.at_level(logging.DEBUG), _sts(200, _assumed()) as (url, _):
            identity.setenv("AWS_ENDPOINT_URL_STS", url)
            token = MskTokenProvider(MskIam(_REGION, ROLE_ARN)).token()
    finally:
        logging.setLogRecordFactory(factory)
    signature = verified(token, _ROLE_SECRET) and base64.urlsafe_b64decode(token + "==").decode()[-64:]
    shown = "\n".join(record.getMessage() for record in caplog.records)
    assert any(record.name.startswith("botocore") for record in caplog.records)
    for secret in (SECRET_KEY, _ROLE_SECRET, _SESSION, token, str(signature)):
        assert secret not in shown


def test_the_wire_has_kafkas_own_mechanism(identity: pytest.MonkeyPatch) -> None:
    """MSK accepts the signer's tokens by OAUTHBEARER; AWS_MSK_IAM needs the broker's name in what is signed."""
    settings = Settings(("b-1.x.kafka.eu-west-1.amazonaws.com:9098",), Tls(), Sasl(Mechanism.AWS_MSK_IAM, msk=_OWN))
    config = library_config(settings, 5)
    assert (config["security_protocol"], config["sasl_mechanism"]) == ("SASL_SSL", "OAUTHBEARER")
    assert verified(config["sasl_oauth_token_provider"].token(), SECRET_KEY)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        pytest.param("b-1.main.a1b2.c2.kafka.eu-west-1.amazonaws.com", True, id="broker"),
        pytest.param("B-1.Main.kafka.eu-west-1.amazonaws.com.", True, id="upper-case-and-final-dot"),
        pytest.param("kafka.eu-west-1.amazonaws.com", False, id="the-end-alone"),
        pytest.param("b-1.kafka.eu-west-1.amazonaws.com.example.com", False, id="longer"),
        pytest.param("b-1.evilkafka.eu-west-1.amazonaws.com", False, id="another-label"),
        pytest.param("b-1.kafka.us-east-1.amazonaws.com", False, id="another-region"),
        pytest.param("10.0.0.1", False, id="address"),
        pytest.param("example.com\0.kafka.eu-west-1.amazonaws.com", False, id="cut-off-by-c"),
        pytest.param("example.com/.kafka.eu-west-1.amazonaws.com", False, id="slash"),
        pytest.param("b-1.kafka.eu-west-1.amazonaws.com..", False, id="two-dots"),
        pytest.param("", False, id="empty"),
    ],
)
def test_hosts(host: str, allowed: bool) -> None:
    """A pattern covers whole labels at the end of a name."""
    assert Hosts((_BROKERS,)).include(host) is allowed


def _connection(namespace: str = "kafka", **iam: str) -> Settings:
    spec = {
        "bootstrapServers": ["b-1.x.kafka.eu-west-1.amazonaws.com:9098"],
        "tls": {},
        "sasl": {"mechanism": "AWS_MSK_IAM", "awsMskIam": {"region": _REGION, **iam}},
    }
    return parse_connection({"metadata": {"namespace": namespace, "name": "main"}, "spec": spec}).settings(_no_secret)


def _no_secret(ref: object) -> str:
    raise AssertionError(f"{ref} was read")


def test_without_flags_only_brokers_of_aws_get_tokens() -> None:
    """The settings of a KafkaConnection as the command line uses them: a tenant's own broker gets none."""
    sasl = _connection().sasl
    assert sasl is not None
    assert sasl.msk is not None
    assert sasl.msk.hosts == Hosts((_BROKERS, "*.kafka-serverless.eu-west-1.amazonaws.com"))


@pytest.mark.parametrize(
    ("grant", "iam", "allowed"),
    [
        pytest.param(None, {}, False, id="none"),
        pytest.param("kafka=*.x.kafka.eu-west-1.amazonaws.com", {}, True, id="own-identity"),
        pytest.param("team-a=*.x.kafka.eu-west-1.amazonaws.com", {}, False, id="another-namespace"),
        pytest.param(
            "kafka=*.x.kafka.eu-west-1.amazonaws.com", {"roleARN": ROLE_ARN}, False, id="a-role-needs-its-own"
        ),
        pytest.param(f"kafka=*.x.kafka.eu-west-1.amazonaws.com,{ROLE_ARN}", {"roleARN": ROLE_ARN}, True, id="role"),
        pytest.param(f"kafka=*.x.kafka.eu-west-1.amazonaws.com,{ROLE_ARN}", {}, False, id="a-role-is-not-the-own"),
        pytest.param(
            f"kafka=*.x.kafka.eu-west-1.amazonaws.com,{ROLE_ARN}2", {"roleARN": ROLE_ARN}, False, id="other-role"
        ),
    ],
)
def test_the_operator_grants_its_identity_by_namespace(grant: str | None, iam: dict[str, str], allowed: bool) -> None:
    """Off by default: with the operator's identity a tenant could delete groups of any cluster that it may use."""
    grants = [] if grant is None else [parse_msk_grant(grant)]
    if not allowed:
        with pytest.raises(AuthenticationFailed, match="--allow-msk-identity") as caught:
            with_granted_hosts(_connection(**iam), "kafka", grants)
        assert caught.value.reason == reasons.IDENTITY_NOT_ALLOWED
        return
    sasl = with_granted_hosts(_connection(**iam), "kafka", grants).sasl
    assert sasl is not None
    assert sasl.msk == MskIam(_REGION, iam.get("roleARN"), Hosts(("*.x.kafka.eu-west-1.amazonaws.com",)))


def test_other_logins_need_no_grant() -> None:
    """Their settings stay as they are."""
    settings = Settings(("kafka:9092",), sasl=Sasl(Mechanism.PLAIN, "u"))
    assert with_granted_hosts(settings, "kafka", []) is settings


def test_no_connection_is_opened_to_a_host_that_is_not_granted(identity: pytest.MonkeyPatch) -> None:
    """Not even one without a token."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        login = MskIam(_REGION, hosts=Hosts((_BROKERS,)))
        servers = (f"127.0.0.1:{server.getsockname()[1]}",)
        with pytest.raises(AuthenticationFailed, match=r"bootstrapServers: 127\.0\.0\.1 may not") as caught:
            connect(Settings(servers, sasl=Sasl(Mechanism.AWS_MSK_IAM, msk=login)))
        assert caught.value.reason == reasons.IDENTITY_NOT_ALLOWED
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize(
    ("grants", "reason"),
    [
        pytest.param((), reasons.IDENTITY_NOT_ALLOWED, id="none"),
        pytest.param((MskGrant("team-a", "127.0.0.1"),), reasons.IDENTITY_NOT_ALLOWED, id="another-namespace"),
        pytest.param((MskGrant("kafka", _BROKERS),), reasons.IDENTITY_NOT_ALLOWED, id="another-host"),
        pytest.param((MskGrant("kafka", "127.0.0.1"),), reasons.BROKERS_UNREACHABLE, id="granted"),
    ],
)
def test_the_operator_connects_only_where_its_options_allow(
    identity: pytest.MonkeyPatch, grants: tuple[MskGrant, ...], reason: str
) -> None:
    """A broker of a tenant gets not even a connection."""
    spec = {
        "bootstrapServers": ["127.0.0.1:1"],
        "tls": {},
        "sasl": {"mechanism": "AWS_MSK_IAM", "awsMskIam": {"region": _REGION}},
        "scan": {"timeout": "2s"},
    }
    connection = parse_connection({"metadata": {"namespace": "kafka", "name": "main"}, "spec": spec})
    api: Any = SimpleNamespace(read_secret=_no_secret)
    with pytest.raises(ConnectError) as caught:
        Link("kafka", api, "an-id", Allowed(brokers=grants)).connect(connection)
    assert caught.value.reason == reason


def test_the_operator_refuses_a_grant_that_it_cannot_read() -> None:
    """At its start, before it does anything."""
    result = CliRunner().invoke(main, ["operator", "--allow-msk-identity", "kafka=*"])
    assert result.exit_code != 0
    assert "'kafka=*' has no host name" in result.output + str(result.exception)


@pytest.mark.parametrize(
    ("entry", "grant"),
    [
        pytest.param(f"kafka={_BROKERS}", MskGrant("kafka", _BROKERS), id="pattern"),
        pytest.param("kafka=Kafka.Example.com", MskGrant("kafka", "kafka.example.com"), id="name"),
        pytest.param(f"a={_BROKERS},{ROLE_ARN}", MskGrant("a", _BROKERS, ROLE_ARN), id="role"),
    ],
)
def test_grants(entry: str, grant: MskGrant) -> None:
    """NAMESPACE=HOST[,ROLE_ARN]."""
    assert parse_msk_grant(entry) == grant


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param("", id="empty"),
        pytest.param(_BROKERS, id="no-namespace"),
        pytest.param(f"*={_BROKERS}", id="every-namespace"),
        pytest.param("kafka=", id="no-host"),
        pytest.param("kafka=*", id="every-host"),
        pytest.param("kafka=*.com", id="a-top-level-domain"),
        pytest.param("kafka=b-*.example.com", id="star-in-a-label"),
        pytest.param("kafka=kafka.example.com:9098", id="port"),
        pytest.param(f"kafka={_BROKERS},", id="empty-role"),
        pytest.param(f"kafka={_BROKERS},arn:aws:iam::1:role/a", id="no-account"),
    ],
)
def test_grants_that_are_refused(entry: str) -> None:
    """Each at the operator's start."""
    with pytest.raises(UsageError, match="as in kafka="):
        parse_msk_grant(entry)


@pytest.mark.parametrize(
    ("servers", "region"),
    [
        pytest.param(["b-1.a.b.c2.kafka.eu-west-1.amazonaws.com:9098"], "eu-west-1", id="provisioned"),
        pytest.param(["boot-a.c1.kafka-serverless.us-east-2.amazonaws.com:9098"], "us-east-2", id="serverless"),
        pytest.param(["b-1.a.kafka.cn-north-1.amazonaws.com.cn:9098"], "cn-north-1", id="china"),
        pytest.param(["x:1", "b-1.a.kafka.us-gov-west-1.amazonaws.com:9098"], "us-gov-west-1", id="of-the-second"),
        pytest.param(["kafka.example.com:9098"], None, id="own-domain"),
    ],
)
def test_the_region_of_brokers(servers: list[str], region: str | None) -> None:
    """By AWS's own names."""
    assert region_of(servers) == region


def test_without_the_signer_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation by pip has it only if it was asked for."""
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(AuthenticationFailed, match=r"kafka-group-hygiene\[aws\]"):
        MskTokenProvider(_OWN)
