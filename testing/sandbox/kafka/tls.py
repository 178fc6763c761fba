"""A private certificate authority, made with openssl: broker and client certificates as PEM, PKCS12 for brokers."""

import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testing.sandbox.errors import SandboxError
from testing.sandbox.files import write_private
from testing.sandbox.place import HERE, Place
from testing.sandbox.prerequisites import KEYTOOL, OPENSSL, Program, find

DAYS = "30"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_EXTENSIONS = """\
subjectAltName={names}
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth,clientAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""


@dataclass(frozen=True)
class Certificate:
    """PEM files: the certificate and its unencrypted private key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a directory. Clients of one must refuse certificates of another."""

    def __init__(self, directory: Path, place: Place = HERE) -> None:
        names = dict.fromkeys(["DNS:localhost", "IP:127.0.0.1", f"IP:{place.address}"])
        self._names = ",".join([*names, *(f"DNS:{name}" for name in place.names)])
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.ca = directory / "ca.pem"
        self._ca_key = directory / "ca.key"
        extensions = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
        _run(
            OPENSSL,
            *("req", "-x509", *_KEY, "-days", DAYS, "-subj", "/CN=kafka-group-hygiene sandbox"),
            *("-keyout", self._ca_key, "-out", self.ca),
            *(word for extension in extensions for word in ("-addext", extension)),
        )
        self.store_password = write_private(directory / "store.password", secrets.token_urlsafe(16))

    def issue(self, name: str) -> Certificate:
        """A certificate with that common name, for localhost, 127.0.0.1 and its place, for servers and clients."""
        made = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        request = self._directory / f"{name}.csr"
        extensions = write_private(self._directory / f"{name}.extensions", _EXTENSIONS.format(names=self._names))
        _run(OPENSSL, "req", *_KEY, "-subj", f"/CN={name}", "-keyout", made.key, "-out", request)
        _run(
            OPENSSL,
            *("x509", "-req", "-in", request, "-out", made.certificate, "-days", DAYS),
            *("-CA", self.ca, "-CAkey", self._ca_key, "-set_serial", str(secrets.randbits(64))),
            *("-extfile", extensions),
        )
        return made

    def broker_properties(self, client_auth: bool) -> dict[str, str]:
        """TLS settings of the client listener. PKCS12 and not PEM, as brokers before 2.7 know only stores."""
        broker = self.issue("broker")
        password = self.store_password.read_text()
        store = self._directory / "broker.p12"
        _run(
            OPENSSL,
            *("pkcs12", "-export", "-in", broker.certificate, "-inkey", broker.key, "-certfile", self.ca),
            *("-name", "broker", "-passout", f"file:{self.store_password}", "-out", store),
        )
        settings = {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(store),
            "ssl.keystore.password": password,
            "ssl.key.password": password,
        }
        if client_auth:
            trusted = self._directory / "trusted.p12"
            # Java trusts a certificate only from a store that keytool made.
            _run(
                KEYTOOL,
                *("-importcert", "-noprompt", "-alias", "ca", "-file", self.ca, "-storetype", "PKCS12"),
                *("-keystore", trusted, "-storepass:file", self.store_password),
            )
            settings |= {
                "ssl.client.auth": "required",
                "ssl.truststore.type": "PKCS12",
                "ssl.truststore.location": str(trusted),
                "ssl.truststore.password": password,
                # The principal is User:<common name>, as with SASL, and not the whole distinguished name.
                "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
            }
        return {f"listener.name.client.{name}": value for name, value in settings.items()}


def _run(program: Program, *arguments: str | Path) -> None:
    done = subprocess.run(
        [find(program), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise SandboxError(f"making certificates: {done.stdout}{done.stderr}")
