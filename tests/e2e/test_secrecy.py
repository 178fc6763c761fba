"""No secret in what the command line tool and the operator print, log and write, although every logger is at DEBUG."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from testing.sandbox.kafka import KafkaCluster, Security
from testing.sandbox.kafka.oauth import TokenEndpoint
from testing.sandbox.kafka.security import format_jaas
from testing.sandbox.kafka.tls import Authority
from testing.sandbox.manifests import operators_account
from testing.sandbox.waiting import wait_for
from tests.e2e.conftest import ROOT, Object, World, connection, new_world, policy, running_operator
from tests.leaks import leaks

pytestmark = pytest.mark.slow

USER, RIGHT, WRONG = "hygiene", "never-to-be-seen-71Kq-in-any-log", "mistyped-44Zx-and-secret-as-well"
MECHANISMS = ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER")
LOGINS = {
    mechanism: format_jaas(mechanism, {"clientId": USER, "clientSecret": "%s"})
    if mechanism == "OAUTHBEARER"
    else format_jaas(mechanism, {"username": USER, "password": "%s"})
    for mechanism in MECHANISMS
}
BROKER = {
    "listener.name.client.sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "listener.name.client.scram-sha-512.sasl.jaas.config": format_jaas("SCRAM-SHA-512", {}),
    "listener.name.client.oauthbearer.sasl.jaas.config": format_jaas(
        "OAUTHBEARER", {"unsecuredLoginStringClaim_sub": "admin"}
    ),
}
# The header that every token of the sandbox begins with, and what HTTP puts before a secret.
TOKEN_START, BASIC = "eyJhbGciOi", "Basic "
# What a logging configuration of the user's own comes to, after everything was imported.
LOUD = """
import logging, sys
import group_hygiene.controller.app, group_hygiene.kafka.mirror
from group_hygiene.cli import main
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
for name in logging.root.manager.loggerDict:
    logging.getLogger(name).setLevel(logging.DEBUG)
logging.getLogger("kafka").debug("debug is on")
logging.getLogger("urllib3").debug("debug is on")
main()
"""


@dataclass(frozen=True)
class Login:
    """One way to connect, by properties and as a KafkaConnection's spec with the Secret that it names."""

    name: str
    right: bool
    servers: str
    properties: Mapping[str, str]
    spec: Object
    secret: Mapping[str, str]


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Login]]:
    """Each mechanism and client certificates, with the right secret and with a wrong one."""
    scratch = tmp_path_factory.mktemp("secrets")
    by_password = Security(sasl="PLAIN", users={USER: RIGHT})
    by_certificate = Security(tls=True, client_auth="required")
    with (
        KafkaCluster(security=by_password, config=BROKER) as guarded,
        KafkaCluster(security=by_certificate) as mutual,
        TokenEndpoint({USER: RIGHT}) as tokens,
    ):
        admin: Any = AdminClient({"bootstrap.servers": guarded.plaintext_bootstrap, "log_level": 0})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsert = UserScramCredentialUpsertion(USER, info, RIGHT.encode())
        admin.alter_user_scram_credentials([upsert])[USER].result()
        servers = guarded.bootstrap_servers
        made = [
            _by_sasl(mechanism, secret == RIGHT, servers, tokens.url, secret)
            for mechanism in MECHANISMS
            for secret in (RIGHT, WRONG)
        ]
        made.append(_by_certificate(scratch / "right.pem", mutual, mutual.authority))
        made.append(_by_certificate(scratch / "wrong.pem", mutual, Authority(scratch / "other")))
        yield made


def _by_sasl(mechanism: str, right: bool, servers: str, url: str, secret: str) -> Login:
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": LOGINS[mechanism] % secret,
    }
    name = f"{mechanism.lower()}-{'right' if right else 'wrong'}"
    reference = {"name": name, "key": "secret"}
    sasl: Object = {"mechanism": mechanism, "username": USER, "passwordSecretRef": reference}
    if mechanism == "OAUTHBEARER":
        properties["sasl.oauthbearer.token.endpoint.url"] = url
        sasl = {
            "mechanism": mechanism,
            "oauth": {"tokenEndpoint": url, "clientID": USER, "clientSecretRef": reference},
        }
    return Login(name, right, servers, properties, {"sasl": sasl}, {"secret": secret})


def _by_certificate(pem: Path, mutual: KafkaCluster, authority: Authority) -> Login:
    made = authority.issue(USER)
    certificate, key = made.certificate.read_text(), made.key.read_text()
    pem.write_text(key + certificate)
    properties = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(mutual.ca_file),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pem),
    }
    name = f"certificate-{pem.stem}"
    keys = {"caSecretRef": "ca.crt", "certificateSecretRef": "user.crt", "privateKeySecretRef": "user.key"}
    tls = {field: {"name": name, "key": key} for field, key in keys.items()}
    secret = {"ca.crt": mutual.ca_file.read_text(), "user.crt": certificate, "user.key": key}
    return Login(name, pem.stem == "right", mutual.bootstrap_servers, properties, {"tls": tls}, secret)


def never(logins: list[Login]) -> list[str]:
    """What must be seen nowhere; of each key its first line, which no other text holds."""
    keys = [login.secret["user.key"].splitlines()[1] for login in logins if "user.key" in login.secret]
    return [RIGHT, WRONG, TOKEN_START, BASIC, *keys]


def process_list(pid: int) -> list[str]:
    """Command line and environment, as everybody or root may see them, of a process and of all that it started."""
    found: list[str] = []
    waiting = [str(pid)]
    while waiting:
        place = Path("/proc", waiting.pop())
        # One that it started may be gone by now.
        with suppress(FileNotFoundError, ProcessLookupError):
            found += [(place / name).read_bytes().decode(errors="replace") for name in ("cmdline", "environ")]
            waiting += [child for task in place.glob("task/*/children") for child in task.read_text().split()]
    return found


def test_the_tool_shows_no_secret(logins: list[Login], tmp_path: Path) -> None:
    """Neither when it is let in nor when it is not."""
    texts = []
    for login in logins:
        config = tmp_path / f"{login.name}.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in login.properties.items()))
        options = ["--bootstrap-server", login.servers, "--command-config", str(config), "--timeout", "60s"]
        done = subprocess.run(
            [sys.executable, "-c", LOUD, "list", *options],
            env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == (0 if login.right else 1), f"{login.name}: {done.stderr}"
        assert "debug is on" in done.stderr
        texts += [done.stdout, done.stderr]
    assert leaks(never(logins), texts) == set()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One of its own: the operator of this file must be the one that leads there."""
    with new_world() as made:
        yield made


def test_the_operator_shows_no_secret(world: World, logins: list[Login], tmp_path: Path) -> None:
    """Neither in its log nor in conditions, events, metrics and the process list."""
    log = tmp_path / "operator.log"
    namespaces = {f"secrecy-{login.name}": login for login in logins}
    reasons: dict[str, str] = {}
    for namespace, login in namespaces.items():
        world.namespace(namespace)
        metadata = {"name": login.name, "namespace": namespace}
        world.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": dict(login.secret)},
            connection(namespace, login.servers, **login.spec),
            policy(namespace, "p", match={"groups": ["none-*"]}),
        )

    processes: set[str] = set()

    def all_answered() -> bool:
        """Whether each has an answer, and those of the right secrets are good ones."""
        processes.update(process_list(operator.process.pid))
        ready = {name: world.condition("kconn", name, "main", "Ready") for name in namespaces}
        reasons.update({name: str(condition["reason"]) for name, condition in ready.items() if condition is not None})
        connected = {namespaces[name].name for name, reason in reasons.items() if reason == "Connected"}
        return reasons.keys() == namespaces.keys() and connected == {login.name for login in logins if login.right}

    # A lease that is not lost when this machine is busy.
    options = ("--log-level", "debug", "--lease-duration", "60", "--allow-receiver", "127.0.0.1")
    with running_operator(operators_account(world.server), log, *options, start=("-c", LOUD)) as operator:
        wait_for(all_answered)
        metrics = operator.http("/metrics")[1]
    seen = world.server.kubectl("get", "kconn,kgp,events", "-A", "-o", "yaml").stdout
    assert "debug is on" in operator.log()
    assert any("--health-port" in each for each in processes)
    assert any("KUBECONFIG" in each for each in processes)
    assert leaks(never(logins), [operator.log(), metrics, seen, *processes]) == set()
