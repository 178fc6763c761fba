"""kube-apiserver with etcd and RBAC on this machine: start, stop, restart, and access for tests.

There is no controller manager: deleted namespaces stay Terminating, CronJobs don't run, service accounts are made by
hand. etcd listens on loopback without a password: all users of this machine can read it.
"""

import base64
import json
import secrets
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testing.sandbox.errors import SandboxError
from testing.sandbox.files import write_private
from testing.sandbox.kubectl import kubectl
from testing.sandbox.kubernetes.binaries import control_plane
from testing.sandbox.place import HERE, Place, direct
from testing.sandbox.prerequisites import OPENSSL, find
from testing.sandbox.process import Command, check_running, wait_until
from testing.sandbox.service import Service

START_SECONDS = 300.0
STOP_SECONDS = 10.0
ESTABLISHED_SECONDS = 180.0
TOKEN_HOURS = 24

_AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""


class ApiServer(Service):
    """A Kubernetes API server with etcd, ready when it has its default namespace."""

    _what = "API server"

    def __init__(self, *, audit_log: bool = False, place: Place = HERE, release: str = "") -> None:
        """release: see `control_plane`."""
        super().__init__(place)
        self._audit, self._release = audit_log, release

    def prepare(self) -> None:
        self._programs = control_plane(self._release)

    def stop_apiserver(self) -> None:
        """Stop kube-apiserver only; etcd keeps the objects. `start_apiserver` brings it back on the same port."""
        self._apiserver.stop(STOP_SECONDS)

    def start_apiserver(self) -> None:
        """Start kube-apiserver on its port with the objects that etcd has, and wait until it is ready."""
        self._apiserver = self._running.start("kube-apiserver", self._apiserver_command())
        wait_until(self._ready, [self._apiserver, self._etcd], START_SECONDS)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end: kube-apiserver's connections stay open without responses."""
        self._apiserver.send(signal.SIGSTOP)
        try:
            self._apiserver.wait_stopped()
            yield
        finally:
            self._apiserver.send(signal.SIGCONT)

    def restart(self) -> None:
        """Stop and start kube-apiserver: same port, certificate, keys and objects; watches and connections break."""
        self.stop_apiserver()
        self.start_apiserver()

    def check(self) -> None:
        """Raise StartFailed with the end of its log when a process has ended by itself."""
        check_running([self._etcd, self._apiserver])

    @property
    def url(self) -> str:
        """https://address:port, the address being that of its place."""
        return f"https://{self._place.address}:{self._port}"

    @property
    def certificate(self) -> Path:
        """PEM file of its own certificate, which clients must trust."""
        return self._scratch / "certificates" / "apiserver.crt"

    @property
    def service_account_key(self) -> Path:
        """PEM file of the key that signs tokens of service accounts."""
        return self._scratch / "service-accounts.key"

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig file of an administrator (group system:masters)."""
        return self._scratch / "admin.kubeconfig"

    def kubeconfig_for_service_account(self, namespace: str, name: str) -> Path:
        """A kubeconfig file with a token of a service account, which must exist; valid for a day.

        Its permissions depend on the roles that are bound to it.
        """
        asked = self.kubectl("create", "token", name, "--namespace", namespace, f"--duration={TOKEN_HOURS}h")
        return self.write_kubeconfig(f"{namespace}.{name}", asked.stdout.strip(), namespace)

    def kubectl(
        self, *arguments: str, input: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; raises SandboxError with its error text when `check` and it fails."""
        environment = direct(self._place.address)
        return kubectl(*arguments, kubeconfig=self.kubeconfig, environment=environment, input=input, check=check)

    def wait_established(self, *what: str) -> None:
        """Wait until these CustomResourceDefinitions are served. what: arguments of `kubectl wait`.

        It is retried, as it fails for one without conditions.
        """
        wait = ["wait", "--for=condition=Established", *what, "--timeout=60s"]
        wait_until(
            lambda: self.kubectl(*wait, check=False).returncode == 0, [self._apiserver, self._etcd], ESTABLISHED_SECONDS
        )

    def audit_events(self) -> list[dict[str, Any]]:
        """All requests so far, as audit.k8s.io/v1 Events at level Metadata; needs audit_log=True."""
        if not self._audit:
            raise SandboxError("this API server was started without audit_log=True")
        log = self._scratch / "audit.log"
        # The last line may be half written.
        lines = log.read_text().split("\n")[:-1] if log.exists() else []
        return [json.loads(line) for line in lines]

    def _start(self) -> None:
        scratch = self._scratch
        self._port, self._etcd_port, self._peer_port = self._ports.take(3)
        (scratch / "certificates").mkdir()
        self._token = secrets.token_urlsafe(32)
        write_private(scratch / "tokens.csv", self._users())
        write_private(scratch / "audit-policy.yaml", _AUDIT_POLICY)
        made = subprocess.run([find(OPENSSL), "genrsa", "2048"], capture_output=True, text=True, check=True)
        write_private(self.service_account_key, made.stdout)
        self._etcd = self._running.start("etcd", self._etcd_command(scratch))
        self.start_apiserver()
        self.write_kubeconfig("admin", self._token)

    def _users(self) -> str:
        """The file of tokens: a line for each user."""
        return f'{self._token},admin,admin,"system:masters"\n'

    def _cluster_arguments(self) -> list[str]:
        """The arguments that depend on whether there are controllers and nodes."""
        return [
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            # There is no controller that makes the default service account, which it would require of pods.
            "--disable-admission-plugins=ServiceAccount",
        ]

    def _etcd_command(self, scratch: Path) -> Command:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        return Command(
            [
                self._programs / "etcd",
                f"--data-dir={scratch / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                # The data is temporary: durability would only cost time.
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
            log=scratch / "etcd.log",
        )

    def _apiserver_command(self) -> Command:
        scratch, key = self._scratch, self.service_account_key
        argv: list[str | Path] = [
            self._programs / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--bind-address={self._place.address}",
            f"--secure-port={self._port}",
            # It makes its own certificate there, and uses it again after a restart.
            f"--cert-dir={scratch / 'certificates'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--token-auth-file={scratch / 'tokens.csv'}",
            *self._cluster_arguments(),
        ]
        if self._audit:
            argv += [
                f"--audit-policy-file={scratch / 'audit-policy.yaml'}",
                f"--audit-log-path={scratch / 'audit.log'}",
                # In megabytes: never rotate, so that one file has all.
                "--audit-log-maxsize=100000",
            ]
        return Command(argv, log=scratch / "kube-apiserver.log")

    def _ready(self) -> bool:
        if not self.certificate.exists():
            return False
        try:
            trust = ssl.create_default_context(cafile=str(self.certificate))
            # Ignores proxies of the environment.
            handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust))
            opener = urllib.request.build_opener(*handlers)
            opener.addheaders = [("Authorization", f"Bearer {self._token}")]
            # It reports ready a moment before it has made the namespace `default`.
            for path in ("/readyz", "/api/v1/namespaces/default"):
                opener.open(self.url + path, timeout=10).close()
            return True
        except (OSError, ssl.SSLError, urllib.error.URLError):
            return False

    def write_kubeconfig(self, name: str, token: str, namespace: str = "default") -> Path:
        """A kubeconfig file with this token."""
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        context = {"cluster": "sandbox", "user": name, "namespace": namespace}
        # JSON is YAML, so no YAML library is needed.
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sandbox", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "sandbox", "context": context}],
            "current-context": "sandbox",
        }
        return write_private(self._scratch / f"{name}.kubeconfig", json.dumps(config, indent=1))
