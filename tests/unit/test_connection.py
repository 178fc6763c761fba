"""The spec of a connection: which Secrets are read, what becomes of them, and that nobody ever sees them."""

import copy
import logging
from collections.abc import Callable, Collection
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest

from group_hygiene.errors import SecretProblem, SpecError
from group_hygiene.spec.client_settings import Mechanism, Settings
from group_hygiene.spec.connection import ActivitySpec, LedgerSpec, SecretName, parse_connection
from group_hygiene.spec.fields import Duration, Hidden, SecretRef
from group_hygiene.spec.policy import Limits

_CA, _CERT, _KEY = "-----CA-----\n", "-----CERT-----\n", "-----KEY-----\n"
_CA_REF, _LOGIN_REF = SecretRef("tls", "ca.crt"), SecretRef("login", "password")
_SECRETS = {
    SecretRef("tls", "ca.crt"): _CA,
    SecretRef("tls", "user.crt"): _CERT,
    SecretRef("tls", "user.key"): _KEY,
    SecretRef("login", "password"): "hunter2\n",
    SecretRef("login", "windows"): "hunter2\r\n",
    SecretRef("login", "blanks"): " hunter2 ",
}
_TLS = {
    "caSecretRef": {"name": "tls", "key": "ca.crt"},
    "certificateSecretRef": {"name": "tls", "key": "user.crt"},
    "privateKeySecretRef": {"name": "tls", "key": "user.key"},
}
_PASSWORD = {"name": "login", "key": "password"}
_SCRAM = {"mechanism": "SCRAM-SHA-512", "username": "hygiene", "passwordSecretRef": _PASSWORD}
_OAUTH = {
    "mechanism": "OAUTHBEARER",
    "oauth": {
        "tokenEndpoint": "https://sso/token",
        "clientID": "hygiene",
        "clientSecretRef": _PASSWORD,
        "scope": "kafka",
        "caSecretRef": {"name": "tls", "key": "ca.crt"},
    },
}
_MSK = {"mechanism": "AWS_MSK_IAM", "awsMskIam": {"region": "eu-west-1"}}


def _object(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "kafka", "name": "main", "uid": "uid-9", "generation": 2},
        "spec": {"bootstrapServers": ["kafka-0:9092", "kafka-1:9092"], **spec},
    }


def _settings(**spec: Any) -> Settings:
    return parse_connection(_object(**spec)).settings(_SECRETS.__getitem__)


@pytest.mark.parametrize(
    ("spec", "read"),
    [
        pytest.param({}, [], id="plaintext"),
        pytest.param({"tls": {}}, [], id="system-authorities"),
        pytest.param({"tls": {"caSecretRef": _TLS["caSecretRef"]}}, [_CA_REF], id="own-authority"),
        pytest.param(
            {"tls": _TLS}, [_CA_REF, SecretRef("tls", "user.crt"), SecretRef("tls", "user.key")], id="mutual-tls"
        ),
        pytest.param({"sasl": _SCRAM}, [_LOGIN_REF], id="scram"),
        pytest.param({"sasl": _OAUTH}, [_LOGIN_REF, _CA_REF], id="oauth"),
        pytest.param({"sasl": _MSK, "tls": {}}, [], id="msk"),
    ],
)
def test_reads_only_named_secrets(spec: dict[str, Any], read: list[SecretRef]) -> None:
    """Each Secret that the spec names is read once, and no other; parsing alone reads none."""
    asked: list[SecretRef] = []

    def read_secret(ref: SecretRef) -> str:
        asked.append(ref)
        return _SECRETS[ref]

    connection = parse_connection(_object(**spec))
    assert asked == []
    connection.settings(read_secret)
    assert asked == read


@pytest.mark.parametrize(
    ("key", "password"),
    [
        pytest.param("password", "hunter2", id="line-end"),
        pytest.param("windows", "hunter2", id="windows-line-end"),
        pytest.param("blanks", " hunter2 ", id="blanks-stay"),
    ],
)
def test_password_without_line_end(key: str, password: str) -> None:
    """A line end after a password is left out, as no password has one; blanks may belong to it."""
    sasl = _settings(sasl={**_SCRAM, "passwordSecretRef": {"name": "login", "key": key}}).sasl
    assert sasl is not None
    assert sasl.password is not None
    assert sasl.password.reveal() == password


def test_settings_of_everything() -> None:
    """Texts in PEM stay as they are, secrets are hidden, and names arrive where they belong."""
    settings = _settings(tls={**_TLS, "verifyHostname": False}, sasl=_SCRAM, scan={"timeout": "2m"})
    assert settings.bootstrap_servers == ("kafka-0:9092", "kafka-1:9092")
    assert settings.timeout == timedelta(minutes=2)
    assert settings.tls is not None
    assert (settings.tls.ca, settings.tls.certificate) == (_CA, _CERT)
    assert isinstance(settings.tls.private_key, Hidden)
    assert settings.tls.private_key.reveal() == _KEY.rstrip()
    assert settings.tls.verify_hostname is False
    assert settings.sasl is not None
    assert (settings.sasl.mechanism, settings.sasl.username) == (Mechanism.SCRAM_SHA_512, "hygiene")


@pytest.mark.parametrize(
    ("spec", "attested"),
    [
        pytest.param({}, False, id="default"),
        pytest.param({"topicVisibility": "Verified"}, False, id="verified"),
        pytest.param({"topicVisibility": "Attested"}, True, id="attested"),
    ],
)
def test_topics_are_attested_only_by_the_spec(spec: dict[str, Any], attested: bool) -> None:
    """And a value that this program does not know is refused."""
    assert parse_connection(_object(**spec)).topics_attested is attested
    with pytest.raises(SpecError):
        parse_connection(_object(topicVisibility="All"))


def test_oauth_settings() -> None:
    """The client credentials grant gets its endpoint, id, secret, scope and authority."""
    sasl = _settings(sasl=_OAUTH).sasl
    assert sasl is not None
    assert sasl.oauth is not None
    assert isinstance(sasl.oauth.client_secret, Hidden)
    assert sasl.oauth.client_secret.reveal() == "hunter2"
    assert (sasl.oauth.token_endpoint, sasl.oauth.client_id) == ("https://sso/token", "hygiene")
    assert (sasl.oauth.scope, sasl.oauth.ca) == ("kafka", _CA)


_HIDDEN = Hidden("hunter2")


@pytest.mark.parametrize(
    "show",
    [
        pytest.param(str, id="str"),
        pytest.param(repr, id="repr"),
        pytest.param(lambda secret: f"{secret}", id="f-string"),
        pytest.param(lambda secret: f"{secret!s} {secret!r} {secret:>20}", id="f-string-conversions"),
        pytest.param("{} {0!r}".replace("{}", "{0}").format, id="format"),
        pytest.param(lambda secret: "%s %r" % (secret, secret), id="percent"),  # noqa: UP031
        pytest.param(lambda secret: str({"password": secret}), id="dict"),
        pytest.param(lambda secret: str([secret]), id="list"),
        pytest.param(lambda secret: str(ValueError(secret)), id="exception"),
        pytest.param(lambda secret: repr(ValueError(secret)), id="exception-repr"),
        pytest.param(lambda secret: repr(copy.deepcopy({"password": secret})), id="deep-copy"),
        pytest.param(lambda _: repr(_settings(sasl=_SCRAM)), id="settings"),
        pytest.param(lambda _: repr(_settings(sasl=_OAUTH)), id="settings-with-oauth"),
        pytest.param(lambda _: repr(asdict(_settings(sasl=_SCRAM))), id="settings-as-a-dict"),
        pytest.param(lambda _: repr(parse_connection(_object(sasl=_SCRAM))), id="connection"),
    ],
)
def test_hidden_is_never_shown(show: Callable[[Any], str]) -> None:
    """No way of turning a secret, or what holds it, into text shows it."""
    assert "hunter2" not in show(_HIDDEN)


def test_private_key_is_never_shown() -> None:
    """The repr of settings shows no private key either."""
    assert "KEY" not in repr(_settings(tls=_TLS))


def test_hidden_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does a log line, whether it names the secret or the settings."""
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("x").warning("%s %r %s", _HIDDEN, _HIDDEN, _settings(sasl=_SCRAM))
    assert "***" in caplog.text
    assert "hunter2" not in caplog.text


def test_reveal_gives_a_plain_text() -> None:
    """Who must send the secret gets all of it, as an ordinary str."""
    assert _HIDDEN.reveal() == "hunter2"
    assert type(_HIDDEN.reveal()) is str


@pytest.mark.parametrize(
    "secrets",
    [
        pytest.param({SecretRef("login", "password"): "other"}, id="password"),
        pytest.param({SecretRef("tls", "ca.crt"): "other"}, id="authority"),
        pytest.param({SecretRef("tls", "user.key"): "other"}, id="private-key"),
    ],
)
def test_settings_differ_when_a_secret_does(secrets: dict[SecretRef, str]) -> None:
    """Equal spec and Secrets give equal settings; a changed Secret does not, so that we connect anew."""
    connection = parse_connection(_object(tls=_TLS, sasl=_SCRAM))
    before = connection.settings(_SECRETS.__getitem__)
    assert connection.settings(_SECRETS.__getitem__) == before
    assert connection.settings({**_SECRETS, **secrets}.__getitem__) != before


def test_connection_defaults() -> None:
    """The shortest connection has no TLS, no login, no limits of its own, nothing protected, and 30 s for a scan."""
    connection = parse_connection(_object())
    assert (connection.key, connection.uid, connection.generation) == ("kafka/main", "uid-9", 2)
    assert (connection.limits, connection.protect.sources) == (None, ())
    assert (connection.given_limits.requests_per_second, connection.access, connection.activity) == (None, (), None)
    assert connection.ledger == LedgerSpec("__group_hygiene", 3, None)
    settings = connection.settings(_SECRETS.__getitem__)
    assert (settings.tls, settings.sasl, settings.timeout) == (None, None, timedelta(seconds=30))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"maxPerRun": 5}, Limits(5, 100), id="per-run-only"),
        pytest.param({"maxPercent": 5}, Limits(10_000, 5), id="percent-only"),
        pytest.param({"minGroups": 5}, Limits(10_000, 100, 5), id="least-groups-only"),
        pytest.param({"requestsPerSecond": 5}, None, id="rate-only"),
    ],
)
def test_connection_limits(limits: dict[str, int], expected: Limits | None) -> None:
    """A limit that a connection leaves out restricts no policy."""
    assert parse_connection(_object(limits=limits)).limits == expected


_OWNERS = [
    {"name": "Payments_1.a", "groups": ["payments-*", r"pay\*"], "receiver": "chat"},
    {"name": "core", "groups": ["payments-core-*", "core-*-live"]},
    {"name": "rest", "groups": ["*-batch"], "receiver": "chat"},
]
_CHAT = {"name": "chat", "type": "Webhook", "webhook": {"address": "http://chat.example"}}


@pytest.mark.parametrize(
    ("group", "owner"),
    [
        pytest.param("payments-1", "Payments_1.a", id="prefix"),
        pytest.param("pay*", "Payments_1.a", id="literal-star"),
        pytest.param("payments-core-1", "Payments_1.a", id="first-match"),
        pytest.param("core-a-live", "core", id="star-inside"),
        pytest.param("nightly-batch", "rest", id="suffix"),
        pytest.param("Payments-1", "", id="case-matters"),
        pytest.param("orders", "", id="none"),
    ],
)
def test_owner_of_a_group(group: str, owner: str) -> None:
    """The first entry with a pattern that matches the whole id owns the group."""
    assert parse_connection(_object(owners=_OWNERS, receivers=[_CHAT])).owners.of(group) == owner


@pytest.mark.parametrize("link", ["", "https://a.example/keep?group={group}", "http://[::1]:8080/a#{group}"])
def test_owners_with_a_receiver_and_the_link(link: str) -> None:
    """Owners without a receiver get no messages; without `keepLink` there is no link."""
    connection = parse_connection(_object(owners=_OWNERS, receivers=[_CHAT], **({"keepLink": link} if link else {})))
    assert [owner.name for owner in connection.owners.notified] == ["Payments_1.a", "rest"]
    assert connection.keep_link == link
    assert (parse_connection(_object()).owners.of("a"), parse_connection(_object()).keep_link) == ("", "")


@pytest.mark.parametrize(
    ("activity", "expected", "local"),
    [
        pytest.param(
            {"uri": "s3://b/main"}, ActivitySpec("s3://b/main", Duration(hours=1), None), False, id="shortest"
        ),
        pytest.param({"uri": "/srv/x"}, ActivitySpec("/srv/x", Duration(hours=1), None), True, id="path"),
        pytest.param({"uri": "file:///srv/x"}, ActivitySpec("file:///srv/x"), True, id="path-as-url"),
        pytest.param(
            {"uri": "abfss://c@a.dfs.core.windows.net/x", "maxAge": "5m", "secretRef": {"name": "bucket"}},
            ActivitySpec("abfss://c@a.dfs.core.windows.net/x", Duration(minutes=5), SecretName("bucket")),
            False,
            id="all",
        ),
    ],
)
def test_activity(activity: dict[str, Any], expected: ActivitySpec, local: bool) -> None:
    """Where the tables are, how old they may be, and whether that is a path on this machine."""
    found = parse_connection(_object(activity=activity)).activity
    assert found == expected
    assert found is not None
    assert found.local is local


def test_storage_options_are_hidden_and_few() -> None:
    """Of a Secret only what reaches an object store: no option that makes the operator use files of its own."""
    secret = {"AWS_ACCESS_KEY_ID": "AKIA\n", "AWS_SECRET_ACCESS_KEY": "hunter2", "GOOGLE_APPLICATION_CREDENTIALS": "/x"}

    def read(name: str, keys: Collection[str]) -> dict[str, str]:
        assert name == "bucket"
        return {key: secret[key] for key in keys if key in secret}

    store = ActivitySpec("s3://b/x", secret_ref=SecretName("bucket")).store(read)
    assert store is not None
    assert {key: value.reveal() for key, value in store.options.items()} == {
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "https://s3.us-east-1.amazonaws.com",
    }
    assert "hunter2" not in f"{store} {store!r}"
    assert ActivitySpec("s3://b/x").store(read) is None


def test_a_secret_without_storage_options() -> None:
    """Nothing that helps in it is a mistake to be told."""
    with pytest.raises(
        SecretProblem, match=r"Secret bucket of spec\.activity\.secretRef has none of the keys AWS_"
    ) as caught:
        ActivitySpec("s3://b/x", secret_ref=SecretName("bucket")).store(lambda name, keys: {})
    assert caught.value.reason == "SecretKeyMissing"


def test_ledger_and_rate() -> None:
    """What the spec says of the ledger and of the rate of requests arrives."""
    ledger = {"topic": "hygiene.a_b-c", "replicationFactor": 1, "id": "id-1"}
    connection = parse_connection(_object(ledger=ledger, limits={"requestsPerSecond": 20, "maxPerRun": 1}))
    assert connection.ledger == LedgerSpec("hygiene.a_b-c", 1, "id-1")
    assert (connection.given_limits.requests_per_second, connection.limits) == (20, Limits(1, 100))


def test_connection_without_spec_refused() -> None:
    """An object without a spec is refused, not a crash."""
    with pytest.raises(SpecError, match="spec: must be given"):
        parse_connection({"metadata": {"name": "main"}})
