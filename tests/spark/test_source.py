"""The connection as properties of the Java client: our own parser of such properties reads the same in them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from group_hygiene.errors import SecretProblem
from group_hygiene.pipeline.ingest.source import client_properties
from group_hygiene.spec.client_properties import parse_client_properties
from group_hygiene.spec.connection import Mechanism, OAuth, Sasl, Settings, Tls
from group_hygiene.spec.secret import Hidden

ODD = "a\"b\\c,d=e;f g'ä\t"


def escaped(value: str) -> str:
    r"""As java.util.Properties writes a value: \uXXXX for what is special in its format."""
    return "".join(c if c.isalnum() and c.isascii() else f"\\u{ord(c):04x}" for c in value)


def pem(kind: str) -> str:
    return f"-----BEGIN {kind}-----\n{'QUJD' * 16}\nQUJD\n-----END {kind}-----\n"


def openssl(*arguments: str, stdin: str = "") -> str:
    return subprocess.run(["openssl", *arguments], input=stdin, capture_output=True, text=True, check=True).stdout


def as_java_reads_it(key: str) -> str:
    tls = Tls(certificate=pem("CERTIFICATE"), private_key=Hidden(key))
    return client_properties(Settings(("a:1",), tls))["ssl.keystore.key"]


KEY = openssl("genpkey", "-algorithm", "ed25519")
TLS = Tls(ca=pem("CERTIFICATE") * 2, certificate=pem("CERTIFICATE"), private_key=Hidden(KEY))


@pytest.mark.parametrize(
    ("tls", "sasl"),
    [
        pytest.param(None, None, id="open"),
        pytest.param(Tls(), None, id="tls-with-the-systems-authorities"),
        pytest.param(TLS, None, id="client-certificate"),
        pytest.param(Tls(verify_hostname=False), None, id="any-host"),
        *(
            pytest.param(tls, Sasl(mechanism, "us\\er", Hidden(ODD)), id=f"{mechanism}-{name}")
            for mechanism in (Mechanism.PLAIN, Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)
            for name, tls in (("open", None), ("tls", TLS))
        ),
        pytest.param(
            Tls(), Sasl(Mechanism.OAUTHBEARER, oauth=OAuth("https://idp/token", "id", Hidden(ODD), "a b")), id="oauth"
        ),
    ],
)
def test_every_way_to_be_let_in(tls: Tls | None, sasl: Sasl | None) -> None:
    """Nothing is lost or changed on the way, whatever characters a secret has."""
    properties = client_properties(Settings(("a:1", "b:2"), tls, sasl))
    text = "".join(f"{name}={escaped(value)}\n" for name, value in properties.items())
    read = parse_client_properties(text, pytest.fail)
    assert read.bootstrap_servers == ("a:1", "b:2")
    assert read.ignored == ()
    assert read.tls == tls
    assert read.sasl == sasl


@pytest.mark.parametrize(
    "make",
    [
        pytest.param("genrsa -traditional 2048", id="pkcs1"),
        pytest.param("genrsa 2048", id="pkcs8"),
        pytest.param("ecparam -genkey -noout -name prime256v1", id="sec1"),
        pytest.param("ecparam -genkey -name secp384r1", id="sec1-with-parameters"),
        pytest.param("genpkey -algorithm ed25519", id="ed25519"),
    ],
)
def test_keys_of_every_form(make: str) -> None:
    """The same key in the one form that Java reads, as OpenSSL sees it."""
    key = openssl(*make.split())
    turned = as_java_reads_it(key)
    assert turned.startswith("-----BEGIN PRIVATE KEY-----")
    assert openssl("pkey", "-pubout", stdin=turned) == openssl("pkey", "-pubout", stdin=key)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param(pem("CERTIFICATE"), id="a-certificate"),
        pytest.param(pem("ENCRYPTED PRIVATE KEY"), id="encrypted"),
        pytest.param(pem("EC PRIVATE KEY"), id="no-key-inside"),
        pytest.param(pem("PRIVATE KEY").replace("Q", "!"), id="no-base64"),
    ],
)
def test_what_is_no_key(text: str) -> None:
    """An error that shows nothing of it."""
    with pytest.raises(SecretProblem, match=r"must be a PEM private key without a password$"):
        as_java_reads_it(text)


def test_an_encrypted_key_of_the_older_form(tmp_path: Path) -> None:
    """Its block looks like one without a password."""
    key = tmp_path / "key"
    openssl("genrsa", "-traditional", "-aes128", "-passout", "pass:secret", "-out", str(key), "2048")
    with pytest.raises(SecretProblem):
        as_java_reads_it(key.read_text())
