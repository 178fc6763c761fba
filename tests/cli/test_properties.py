"""Kafka's client properties -> how to connect: the format, what is supported, and that the rest is a clear error."""

from __future__ import annotations

import os
import pty
import re
import stat
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from group_hygiene.errors import UsageError
from group_hygiene.kafka.login import client_context
from group_hygiene.spec.client_settings import (
    IAM_HANDLER,
    IAM_OAUTH_HANDLER,
    Mechanism,
    MskIam,
    OAuth,
    Sasl,
    Tls,
    parse_client_properties,
)
from group_hygiene.spec.fields import Hidden
from tests.aws import ROLE_ARN

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
IAM = "software.amazon.msk.auth.iam.IAMLoginModule"
PASSWORD = "correct-horse"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nREVG\n-----END PRIVATE KEY-----\n"
ENCRYPTED = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nREVG\n-----END ENCRYPTED PRIVATE KEY-----\n"
FILES = {
    "ca.pem": f"# our authority\n{CERTIFICATE}",
    "both.pem": KEY + CERTIFICATE,
    "locked.pem": ENCRYPTED + CERTIFICATE,
    "a.jks": "\x7f",
}


def read(name: str) -> str:
    return Path(name).read_text("ascii", errors="ignore")


def parse(
    properties: Mapping[str, str], read_file: Callable[[str], str] = FILES.__getitem__
) -> tuple[Tls | None, Sasl | None]:
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    parsed = parse_client_properties(text, read_file)
    return parsed.tls, parsed.sasl


def sasl(mechanism: str, module: str, options: str, **more: str) -> dict[str, str]:
    jaas = f"{module} required {options};"
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas} | {
        name.replace("_", "."): value for name, value in more.items()
    }


def by_iam(options: str) -> dict[str, str]:
    return sasl("AWS_MSK_IAM", IAM, options, sasl_client_callback_handler_class=IAM_HANDLER) | {
        "security.protocol": "SASL_SSL"
    }


def ssl(**stores: str) -> dict[str, str]:
    return {"security.protocol": "SSL"} | {f"ssl.{name.replace('_', '.')}": value for name, value in stores.items()}


@pytest.mark.parametrize(
    ("properties", "tls", "login"),
    [
        pytest.param({}, None, None, id="plaintext-by-default"),
        pytest.param({"security.protocol": "ssl"}, Tls(), None, id="ssl-with-the-systems-authorities"),
        pytest.param(
            ssl(truststore_type="PEM", truststore_location="ca.pem"), Tls(ca=CERTIFICATE), None, id="trust-store-file"
        ),
        pytest.param(
            ssl(truststore_type="PEM", truststore_certificates=CERTIFICATE.replace("\n", " \\\n")),
            Tls(ca=CERTIFICATE),
            None,
            id="trust-store-in-place",
        ),
        pytest.param(
            ssl(keystore_type="PEM", keystore_location="both.pem"),
            Tls(certificate=CERTIFICATE, private_key=Hidden(KEY)),
            None,
            id="key-store-file",
        ),
        pytest.param(
            {
                **ssl(keystore_type="PEM", keystore_key=KEY.replace("\n", "\\n")),
                "ssl.keystore.certificate.chain": CERTIFICATE.replace("\n", "\\n"),
            },
            Tls(certificate=CERTIFICATE, private_key=Hidden(KEY)),
            None,
            id="key-store-in-place",
        ),
        pytest.param(
            ssl(endpoint_identification_algorithm=""), Tls(verify_hostname=False), None, id="any-host-is-accepted"
        ),
        pytest.param(
            sasl("PLAIN", PLAIN, f'username="u" password="{PASSWORD}"'),
            None,
            Sasl(Mechanism.PLAIN, "u", Hidden(PASSWORD)),
            id="plain",
        ),
        pytest.param(
            sasl("scram-sha-512", SCRAM, "password='a;\\\\\\\\\\\\\"=b' username=u"),
            None,
            Sasl(Mechanism.SCRAM_SHA_512, "u", Hidden('a;\\"=b')),
            id="quotes-and-escapes",
        ),
        pytest.param(
            sasl("OAUTHBEARER", OAUTH, f'clientId="i" clientSecret="{PASSWORD}" scope="s"')
            | {"sasl.oauthbearer.token.endpoint.url": "https://sso/token"},
            None,
            Sasl(Mechanism.OAUTHBEARER, oauth=OAuth("https://sso/token", "i", Hidden(PASSWORD), "s")),
            id="oauth",
        ),
        pytest.param(
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://sso/token",
                "sasl.oauthbearer.client.credentials.client.id": "i",
                "sasl.oauthbearer.client.credentials.client.secret": PASSWORD,
            },
            Tls(),
            Sasl(Mechanism.OAUTHBEARER, oauth=OAuth("https://sso/token", "i", Hidden(PASSWORD))),
            id="oauth-without-jaas",
        ),
        pytest.param(by_iam(""), Tls(), Sasl(Mechanism.AWS_MSK_IAM, msk=MskIam("")), id="msk"),
        pytest.param(
            by_iam(f'awsRoleArn="{ROLE_ARN}"'),
            Tls(),
            Sasl(Mechanism.AWS_MSK_IAM, msk=MskIam("", ROLE_ARN)),
            id="msk-role",
        ),
        pytest.param(
            sasl("OAUTHBEARER", OAUTH, "", sasl_login_callback_handler_class=IAM_OAUTH_HANDLER)
            | {"security.protocol": "SASL_SSL"},
            Tls(),
            Sasl(Mechanism.AWS_MSK_IAM, msk=MskIam("")),
            id="msk-by-oauthbearer",
        ),
    ],
)
def test_supported(properties: dict[str, str], tls: Tls | None, login: Sasl | None) -> None:
    """What each property becomes."""
    assert parse(properties) == (tls, login)


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        pytest.param({"security.protocol": "TLS"}, "security.protocol must be one of PLAINTEXT, SSL", id="protocol"),
        pytest.param(ssl(truststore_location="a.jks"), "truststore.type JKS, Kafka's default, is not supp", id="jks"),
        pytest.param(
            ssl(keystore_type="PKCS12", keystore_location="a.jks"),
            "ssl.keystore.type PKCS12 is not supported",
            id="pkcs12",
        ),
        pytest.param(
            ssl(truststore_type="PEM", truststore_location="ca.pem", truststore_password=PASSWORD),
            "ssl.truststore.password is for JKS",
            id="store-password",
        ),
        pytest.param(
            ssl(keystore_type="PEM", keystore_location="both.pem", key_password=PASSWORD),
            "ssl.key.password is not supported",
            id="key-password",
        ),
        pytest.param(
            ssl(truststore_location="ca.pem"), "ca.pem is PEM: set ssl.truststore.type=PEM", id="pem-without-its-type"
        ),
        pytest.param(
            ssl(keystore_type="PEM", keystore_location="locked.pem"), "must be PEM without a password", id="locked-key"
        ),
        pytest.param(ssl(keystore_type="PEM", keystore_location="ca.pem"), "must hold a PEM private key", id="no-key"),
        pytest.param(
            ssl(truststore_type="PEM", truststore_certificates="x"), "must hold a PEM certificate", id="no-certificate"
        ),
        pytest.param(ssl(endpoint_identification_algorithm="ldap"), "must be https, or empty", id="algorithm"),
        pytest.param({"security.protocol": "SASL_SSL"}, "GSSAPI, is not supported", id="mechanism-left-out"),
        pytest.param(sasl("GSSAPI", PLAIN, ""), "sasl.mechanism must be one of PLAIN", id="gssapi"),
        pytest.param(sasl("PLAIN", SCRAM, "username=u password=p"), f"must begin with {PLAIN}", id="other-module"),
        pytest.param(sasl("PLAIN", PLAIN, "username=u"), "must hold username and password", id="no-password"),
        pytest.param(sasl("PLAIN", PLAIN, "username u"), "must have the form", id="no-jaas"),
        pytest.param(sasl("PLAIN", PLAIN, f'password="{PASSWORD}'), "must have the form", id="open-quote"),
        pytest.param(sasl("OAUTHBEARER", OAUTH, ""), "token.endpoint.url must be given", id="no-endpoint"),
        pytest.param({"config.providers": "file"}, "config.providers is not supported", id="config-providers"),
        pytest.param(
            sasl("OAUTHBEARER", OAUTH, "", sasl_login_callback_handler_class="com.example.Own"),
            "Java classes can't be loaded",
            id="own-callback",
        ),
        pytest.param({"sasl.client.callback.handler.class": "com.example.Own"}, "Java classes can't", id="own-client"),
        pytest.param(by_iam("") | {"security.protocol": "SASL_PLAINTEXT"}, "must be SASL_SSL", id="msk-without-tls"),
        pytest.param(by_iam("awsProfileName=a"), "awsProfileName is not supported: set AWS_PROFILE", id="msk-profile"),
        pytest.param(by_iam("awsRoleArn=admin"), "must be the ARN of a role", id="msk-role-by-name"),
        pytest.param(sasl("AWS_MSK_IAM", PLAIN, ""), f"must begin with {IAM}", id="msk-with-another-module"),
    ],
)
def test_refused(properties: dict[str, str], says: str) -> None:
    """One sentence that names the property, and never its value where that may be a secret."""
    with pytest.raises(UsageError) as raised:
        parse(properties)
    assert says in str(raised.value)
    assert PASSWORD not in str(raised.value)


@pytest.mark.parametrize(
    "escape", [pytest.param("\\uZZ", id="malformed"), pytest.param("\\uD83D", id="half-a-character")]
)
def test_malformed_escapes_are_refused(escape: str) -> None:
    """As in Java, and without showing the value."""
    with pytest.raises(UsageError, match=r"has a malformed \\u escape$"):
        parse({"ssl.keystore.key": escape})


def test_unknown_properties_are_named() -> None:
    """So that the caller can say that they mean nothing here."""
    text = "client.id=x\nbootstrap.servers=a:1, b:2\nretries=3\n"
    parsed = parse_client_properties(text, FILES.__getitem__)
    assert parsed.ignored == ("client.id", "retries")
    assert parsed.bootstrap_servers == ("a:1", "b:2")


def test_secrets_are_not_shown() -> None:
    """In no repr and no message."""
    parsed = parse_client_properties(
        "".join(f"{k}={v}\n" for k, v in sasl("PLAIN", PLAIN, f"username=u password={PASSWORD}").items()),
        FILES.__getitem__,
    )
    assert PASSWORD not in f"{parsed} {parsed!r}"


def _at_a_terminal(line: str, lines: str) -> None:
    """Run a line of a shell whose user types these lines, as programs that read a password twice need it."""
    keyboard, terminal = pty.openpty()
    os.write(keyboard, lines.encode())
    command = ["setsid", "--ctty", "--wait", "sh", "-c", line]
    done = subprocess.run(command, stdin=terminal, stdout=PIPE, stderr=STDOUT, check=False, timeout=60)
    os.close(terminal)
    os.close(keyboard)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("declared", ["as it is", "as PEM"])
@pytest.mark.parametrize("kind", ["JKS", "PKCS12", "PKCS12 of an older keytool"])
@pytest.mark.parametrize("store", ["truststore", "keystore"])
def test_the_error_converts_a_store(tmp_path: Path, store: str, kind: str, declared: str) -> None:
    """Its lines, in a shell, make a PEM file of a store of Java's own tool; its properties are then supported."""
    file, pem = tmp_path / "my store", tmp_path / "my store.pem"
    kind, _, old = kind.partition(" of ")
    java = ["keytool", "-storepass", PASSWORD, "-storetype", kind, "-keystore", str(file), "-alias", "me"]
    java += ["-J-Dkeystore.pkcs12.legacy"] if old else []
    run = partial(subprocess.run, check=True, capture_output=True, start_new_session=True)
    run([*java, "-genkeypair", "-dname", "CN=me", "-keyalg", "EC", "-keypass", PASSWORD])
    if store == "truststore":
        certificate = run([*java, "-exportcert", "-rfc"]).stdout
        file.unlink()
        run([*java, "-importcert", "-noprompt"], input=certificate)
    passwords = {f"ssl.{store}.password": PASSWORD, "ssl.key.password": PASSWORD}
    properties = {"security.protocol": "SSL", f"ssl.{store}.location": str(file)}
    properties[f"ssl.{store}.type"] = "PEM" if declared == "as PEM" else kind
    with pytest.raises(UsageError) as raised:
        parse(properties | passwords, read)
    assert PASSWORD not in str(raised.value)
    first, *lines, last = str(raised.value).splitlines()
    assert (f"is not PEM, as ssl.{store}.type says; if it is a {kind} store" in first) == (declared == "as PEM")
    for line in lines:
        _at_a_terminal(line, f"{PASSWORD}\n" * 3)
    stores = f"ssl.{store}.type=PEM and ssl.{store}.location={pem}"
    assert last == f"and set {stores}, without ssl.{store}.password and ssl.key.password"
    converted = {"security.protocol": "SSL", f"ssl.{store}.location": str(pem), f"ssl.{store}.type": "PEM"}
    tls, _ = parse(converted, read)
    assert tls is not None
    client_context(tls)
    if store == "keystore":
        assert tls.private_key is not None
        assert stat.S_IMODE(pem.stat().st_mode) == 0o600


CLUSTERS = """
clusters = prod, prod.eu
ssl.truststore.type=PEM
ssl.truststore.location=ca.pem
client.id=x
prod.bootstrap.servers=a:1
prod.security.protocol=SSL
prod.eu.bootstrap.servers=b:1, b:2
prod.eu.ssl.truststore.location=both.pem
prod.eu.security.protocol=SSL
test.bootstrap.servers=c:1
prod->test.enabled=true
"""


@pytest.mark.parametrize(
    ("cluster", "servers", "tls"),
    [
        pytest.param("prod", ("a:1",), Tls(ca=CERTIFICATE), id="shared"),
        pytest.param("prod.eu", ("b:1", "b:2"), Tls(ca=CERTIFICATE), id="name-with-a-dot"),
        pytest.param("test", ("c:1",), None, id="plain-text"),
        pytest.param(None, (), None, id="none"),
    ],
)
def test_one_of_several_clusters(cluster: str | None, servers: tuple[str, ...], tls: Tls | None) -> None:
    """As in MirrorMaker 2: a property with the cluster's name wins; those of other clusters have no effect."""
    files: list[str] = []

    def noted(name: str) -> str:
        files.append(name)
        return FILES[name]

    parsed = parse_client_properties(CLUSTERS, noted, cluster)
    assert (parsed.bootstrap_servers, parsed.tls) == (servers, tls)
    assert parsed.clusters == ("prod", "prod.eu", "test")
    if cluster is not None:
        assert parsed.ignored == ("client.id", "prod->test.enabled")
    assert files == {"prod": ["ca.pem"], "prod.eu": ["both.pem"]}.get(cluster or "", [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(CLUSTERS, "it has no cluster 'dev' (dev.bootstrap.servers), only prod, prod.eu, test", id="other"),
        pytest.param("bootstrap.servers=a:1\n", "it has no cluster 'dev' (dev.bootstrap.servers)", id="one-cluster"),
    ],
)
def test_an_unknown_cluster(text: str, says: str) -> None:
    """Never the brokers of another one, or those without a name."""
    with pytest.raises(UsageError) as raised:
        parse_client_properties(text, FILES.__getitem__, "dev")
    assert str(raised.value) == says


def test_the_documented_files() -> None:
    """Each example of the reference is supported, and has no property without effect."""
    page = (Path(__file__).parents[2] / "docs" / "cli-reference.md").read_text()
    blocks = re.findall(r"^```properties\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    scram, mutual, clusters = (
        parse_client_properties(block, lambda _: KEY + CERTIFICATE, "prod" if "prod." in block else None)
        for block in blocks
    )
    assert not any((scram.ignored, mutual.ignored, clusters.ignored))
    assert scram.sasl is not None
    assert mutual.tls is not None
    assert mutual.tls.private_key is not None
    assert clusters.bootstrap_servers == ("kafka.example.com:9094",)
    assert clusters.tls == Tls(ca=CERTIFICATE)


@pytest.mark.parametrize(
    ("text", "ignored"),
    [
        pytest.param(
            "sasl.mechanism=PLAIN", ("sasl.mechanism (security.protocol is PLAINTEXT)",), id="a-login-that-is-not-used"
        ),
        pytest.param(
            "security.protocol=SSL\nsasl.mechanism=PLAIN",
            ("sasl.mechanism (security.protocol is SSL)",),
            id="a-login-beside-tls",
        ),
        pytest.param(
            "ssl.truststore.type=PEM", ("ssl.truststore.type (security.protocol is PLAINTEXT)",), id="tls-not-used"
        ),
        pytest.param("bootstrap.server=a:1", ("bootstrap.server (did you mean bootstrap.servers?)",), id="a-slip"),
        pytest.param("retries=3", ("retries",), id="of-a-producer"),
    ],
)
def test_what_has_no_effect_is_said(text: str, ignored: tuple[str, ...]) -> None:
    """A login is not dropped silently: without security.protocol Kafka's clients connect in plain text, too."""
    assert parse_client_properties(text, lambda _: "").ignored == ignored
